"""A neighbour's MAC (ARP, RFC 826), and whether frames to it get through (ICMP echo, RFC 792), on a packet socket."""

from __future__ import annotations

from _struct import Struct

from ovn_k8s_cni.system.internet import checksum
from ovn_k8s_cni.system.packet import ETH_P_ARP, ETH_P_IP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.packet import PacketSocket

_BROADCAST = b"\xff" * 6
_ARP = Struct("!6s6sHHHBBH6s4s6s4s")  # Ethernet header, then RFC 826's fields
_ARP_REQUEST, _ARP_REPLY = 1, 2
_ECHO = Struct("!6s6sH BBHHHBBH4s4s BBHHH")  # Ethernet, IPv4 and ICMP headers
_ICMP = Struct("!BBHHH")
_ICMP_AT = 34  # bytes into the frame, behind an IPv4 header without options
_ECHO_REQUEST, _ECHO_REPLY = 8, 0
_PROTOCOL_ICMP, _TTL = 1, 64
_REPEAT = 0.1  # seconds

# Classic BPF on the frame: ARP replies, and ICMP.
REPLIES = (
    (0x28, 0, 0, 12),  # ldh the EtherType
    (0x15, 0, 2, ETH_P_ARP),
    (0x28, 0, 0, 20),  # ldh the operation
    (0x15, 3, 4, _ARP_REPLY),
    (0x15, 0, 3, ETH_P_IP),
    (0x30, 0, 0, 23),  # ldb the protocol
    (0x15, 0, 1, _PROTOCOL_ICMP),
    (0x06, 0, 0, 0xFFFF),
    (0x06, 0, 0, 0),
)


def arp_request(mac: bytes, sender: bytes, target: bytes) -> bytes:
    """Return the frame in which the host `mac`, `sender` asks all for the MAC of `target`."""
    return _ARP.pack(_BROADCAST, mac, ETH_P_ARP, 1, 0x0800, 6, 4, _ARP_REQUEST, mac, sender, bytes(6), target)


def echo_request(mac: bytes, sender: bytes, next_hop: bytes, target: bytes, identifier: int) -> bytes:
    """Return an ICMP echo request without data, to `target` by the MAC `next_hop`."""
    icmp = (_ECHO_REQUEST, 0, 0, identifier, 1)
    icmp = (*icmp[:2], checksum(_ICMP.pack(*icmp)), *icmp[3:])
    ip = (0x45, 0, 28, 0, 0, _TTL, _PROTOCOL_ICMP, 0, sender, target)
    blank = _ECHO.pack(next_hop, mac, ETH_P_IP, *ip, *icmp)[14:_ICMP_AT]
    return _ECHO.pack(next_hop, mac, ETH_P_IP, *ip[:7], checksum(blank), *ip[8:], *icmp)


def resolve(wire: PacketSocket, mac: bytes, sender: bytes, target: bytes, deadline: Deadline) -> bytes | None:
    """Return the MAC of `target`, None when nobody answers by the deadline; `wire` is filtered by REPLIES."""

    def reply(frame: bytes) -> bytes | None:
        if len(frame) < _ARP.size or frame[12:14] != b"\x08\x06":
            return None
        fields = _ARP.unpack_from(frame)
        return bytes(fields[8]) if fields[7] == _ARP_REPLY and fields[9] == target else None

    return _ask(wire, arp_request(mac, sender, target), reply, deadline)


def answers(
    wire: PacketSocket, mac: bytes, sender: bytes, next_hop: bytes, target: bytes, identifier: int, deadline: Deadline
) -> bool:
    """Tell whether `target` answers an ICMP echo request by the deadline; `wire` is filtered by REPLIES."""

    def reply(frame: bytes) -> bytes | None:
        if len(frame) < _ECHO.size or frame[12:14] != b"\x08\x00" or frame[14] != 0x45 or frame[26:30] != target:
            return None
        kind, _, _, number, _ = _ICMP.unpack_from(frame, _ICMP_AT)
        return frame if (kind, number) == (_ECHO_REPLY, identifier) else None

    question = echo_request(mac, sender, next_hop, target, identifier)
    return _ask(wire, question, reply, deadline) is not None


def _ask(
    wire: PacketSocket, question: bytes, reply: Callable[[bytes], bytes | None], deadline: Deadline
) -> bytes | None:
    """Send `question` every tenth of a second until `reply` makes something of a frame that comes in."""
    while not deadline.passed():
        wire.send(question)
        attempt = deadline.share(_REPEAT)
        while (frame := wire.wait(attempt)) is not None:
            found = None if frame.outgoing or frame.tagged else reply(frame.data)
            if found is not None:
                return found
    return None
