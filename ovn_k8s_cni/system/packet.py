"""Packet sockets (packet(7)): Ethernet frames of one interface, as they come and as they go."""

from __future__ import annotations

from _socket import socket as _Socket
from _struct import Struct, pack
from _thread import start_new_thread
from select import POLLIN, poll

from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from ovn_k8s_cni.system.deadline import Deadline

ETH_P_ALL, ETH_P_IP, ETH_P_ARP = 0x0003, 0x0800, 0x0806

_AF_PACKET, _SOCK_RAW_CLOEXEC = 17, 3 | 0o2000000
_SOL_SOCKET, _SO_ATTACH_FILTER, _SO_RCVBUF = 1, 26, 8
_SOL_PACKET, _PACKET_AUXDATA, _PACKET_OUTGOING = 263, 8, 4
_AUXDATA = Struct("=IIIHHHH")  # tpacket_auxdata: status, length, snap length, mac, net, VLAN TCI, VLAN TPID
_CSUM_NOT_READY, _VLAN_VALID, _CSUM_VALID = 0x8, 0x10, 0x80
_INSTRUCTION = Struct("=HBBI")  # sock_filter: code, jump if true, jump if false, operand
_RECEIVE_BUFFER = 1 << 18
_LARGEST_FRAME = 1 << 16


class Frame(Record):
    """A frame and what the kernel says about it.

    `checksum_trusted`: the kernel vouches for the transport checksum; `checksum_unfinished`: it is left to an offload;
    `tagged`: it carried a VLAN tag.
    """

    data: bytes
    outgoing: bool
    tagged: bool
    checksum_trusted: bool
    checksum_unfinished: bool


class PacketSocket:
    """A packet socket on one interface; nothing reaches it before its filter is in place."""

    def __init__(self, interface: str, protocol: int, program: tuple[tuple[int, int, int, int], ...]) -> None:
        """Listen for `protocol` (ETH_P_…) on `interface`, filtered by the classic BPF `program`; raise OSError."""
        # Protocol 0 receives nothing, so that no frame slips in before the filter is attached.
        self._socket = _Socket(_AF_PACKET, _SOCK_RAW_CLOEXEC, 0)
        try:
            code = bytearray(b"".join(_INSTRUCTION.pack(*instruction) for instruction in program))
            fprog = pack("HP", len(program), syscalls.address_of(code))  # struct sock_fprog
            self._socket.setsockopt(_SOL_SOCKET, _SO_ATTACH_FILTER, fprog)
            self._socket.setsockopt(_SOL_SOCKET, _SO_RCVBUF, _RECEIVE_BUFFER)
            self._socket.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
            self._socket.setblocking(False)
            self._socket.bind((interface, protocol))
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        """Stop listening; the kernel lets a packet socket go only after an RCU grace period, 10 to 20 ms."""
        self._socket.close()

    def close_in_background(self) -> None:
        """Stop listening without waiting for the grace period; a process that ends meanwhile waits for the rest."""
        try:
            start_new_thread(self._socket.close, ())
        except RuntimeError:  # no thread to be had
            self._socket.close()

    def fileno(self) -> int:
        """Return the descriptor, to be polled."""
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, frame: bytes) -> None:
        """Send a whole Ethernet frame; raise OSError."""
        self._socket.send(frame)

    def receive(self) -> Frame | None:
        """Return the next frame that has come in, None when there is none; raise OSError (the interface is gone)."""
        try:
            data, ancillary, _, address = self._socket.recvmsg(_LARGEST_FRAME, 64)
        except BlockingIOError:
            return None
        status = 0
        for level, kind, content in ancillary:
            if (level, kind) == (_SOL_PACKET, _PACKET_AUXDATA):
                status = _AUXDATA.unpack_from(content)[0]
        return Frame(
            data=data,
            outgoing=address[2] == _PACKET_OUTGOING,
            tagged=bool(status & _VLAN_VALID),
            checksum_trusted=bool(status & _CSUM_VALID),
            checksum_unfinished=bool(status & _CSUM_NOT_READY),
        )

    def wait(self, deadline: Deadline) -> Frame | None:
        """Return the next frame, None when the deadline passes first; raise OSError."""
        ready = poll()
        ready.register(self._socket.fileno(), POLLIN)
        while True:
            frame = self.receive()
            if frame is not None or deadline.passed():
                return frame
            ready.poll(int(deadline.left() * 1000) + 1)
