"""The Internet checksum (RFC 1071), which IP, UDP and ICMP share."""

from __future__ import annotations


def checksum(data: bytes) -> int:
    """Return the checksum of `data`; 0 for data that holds its own right one."""
    if len(data) % 2:
        data += b"\0"
    total = sum(int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
