"""Kernel parameters under /proc/sys, of the current network namespace."""

from __future__ import annotations

import posix


def write(name: str, value: str) -> None:
    """Set the parameter `name` (with slashes, as below /proc/sys); raise OSError."""
    descriptor = posix.open(f"/proc/sys/{name}", posix.O_WRONLY | posix.O_CLOEXEC)
    try:
        posix.write(descriptor, value.encode())
    finally:
        posix.close(descriptor)
