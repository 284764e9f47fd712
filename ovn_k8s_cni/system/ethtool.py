"""The two ethtool requests that an attachment needs (linux/ethtool.h)."""

from __future__ import annotations

from _socket import socket as _Socket
from _struct import pack
from fcntl import ioctl

from ovn_k8s_cni.system import syscalls

_SIOCETHTOOL = 0x8946
_ETHTOOL_GLINK, _ETHTOOL_STXCSUM = 0x0000000A, 0x00000017
_AF_INET, _SOCK_DGRAM_CLOEXEC = 2, 2 | 0o2000000


class Ethtool:
    """An ioctl socket of the namespace it was made in."""

    def __init__(self) -> None:
        self._socket = _Socket(_AF_INET, _SOCK_DGRAM_CLOEXEC, 0)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _value(self, name: str, command: int, data: int) -> int:
        value = bytearray(pack("II", command, data))  # struct ethtool_value
        request = pack("16sP16x", name.encode("utf-8", "surrogateescape"), syscalls.address_of(value))  # struct ifreq
        ioctl(self._socket.fileno(), _SIOCETHTOOL, request)
        return int.from_bytes(value[4:], "little")

    def sync_carrier(self, name: str) -> bool:
        """Return whether `name` has carrier, after the kernel has caught up with it.

        The kernel handles a carrier change in a work queue, up to 0.2 s later, and drops what is sent before; asking
        for the link by ethtool makes it do so at once (ethtool_op_get_link calls linkwatch_sync_dev).
        """
        return bool(self._value(name, _ETHTOOL_GLINK, 0))

    def checksum_in_software(self, name: str) -> None:
        """Turn tx checksum offload off, so that frames carry finished checksums (`ethtool -K NAME tx off`)."""
        self._value(name, _ETHTOOL_STXCSUM, 0)
