"""What several test modules use."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pathlib
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

from pyroute2 import IPRoute

from ovn_k8s_cni.plugin import answer

ROOT = pathlib.Path(__file__).resolve().parent.parent

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(status: int) -> None:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Namespace:
    """A network namespace without a name: it is gone when it is closed, and with this process however that ends."""

    def __init__(self) -> None:
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        try:
            _checked(_libc.unshare(_CLONE_NEWNET))
            self.fd = os.open("/proc/self/ns/net", os.O_RDONLY)
            self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
            self.iproute = IPRoute()
        finally:
            _checked(_libc.setns(home, _CLONE_NEWNET))
            os.close(home)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Run a block inside the namespace."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        _checked(_libc.setns(self.fd, _CLONE_NEWNET))
        try:
            yield
        finally:
            _checked(_libc.setns(home, _CLONE_NEWNET))
            os.close(home)

    def add(self, name: str, kind: str, **options: Any) -> int:
        """Add an interface by pyroute2 and return its index."""
        self.iproute.link("add", ifname=name, kind=kind, **options)
        return self.index(name)

    def index(self, name: str) -> int:
        """Return an interface's index."""
        (index,) = self.iproute.link_lookup(ifname=name)
        return int(index)

    def set_up(self, *names: str) -> None:
        """Set interfaces up and wait until the kernel passes frames on them."""
        for name in names:
            self.iproute.link("set", index=self.index(name), state="up")
        assert wait_until(lambda: all(self.link(name).get("operstate") in ("UP", "UNKNOWN") for name in names))

    def link(self, name: str) -> Any:
        """Return what pyroute2 reads of an interface."""
        return self.iproute.get_links(ifname=name)[0]

    def mac(self, name: str) -> bytes:
        """Return an interface's MAC."""
        return bytes.fromhex(self.link(name).get("address").replace(":", ""))

    def close(self) -> None:
        """Let the kernel take it away."""
        self.iproute.close()
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def environment(verb: str, **changes: str | None) -> dict[str, str]:
    """Return a CNI environment; a change to None takes a variable out."""
    whole: dict[str, str | None] = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/nonexistent/netns",
        "CNI_IFNAME": "net1",
        "CNI_PATH": "/nonexistent/bin",
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def network_config(**changes: Any) -> dict[str, Any]:
    """Return a network config as a NAD has it, on the datapath that needs nothing of this machine."""
    return {
        "cniVersion": "1.1.0",
        "type": "ovn-k8s-cni-overlay",
        "name": "cluster_udn_blue",
        "netAttachDefName": "ns/blue",
        "topology": "localnet",
        "role": "secondary",
        "physicalNetworkName": "physnet",
        "ipam": {"type": "dhcp"},
        "datapath": "linux",
        "bridgeMappings": "physnet:no-such-bridge",
        **changes,
    }


def asked(verb: str, config: object = None, **variables: str | None) -> tuple[int, Any]:
    """Have a request answered; return the exit status and what is printed as JSON, None for nothing."""
    stdin = config if isinstance(config, bytes) else json.dumps(network_config() if config is None else config).encode()
    status, text = answer(environment(verb, **variables), stdin)
    return status, json.loads(text) if text else None


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait until `condition` holds; tell whether it does in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def script(path: pathlib.Path, text: str) -> pathlib.Path:
    """Write an executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        status = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def mac_bytes(text: str) -> bytes:
    """Return a MAC's bytes."""
    return bytes.fromhex(text.replace(":", ""))
