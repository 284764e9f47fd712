"""ARP (RFC 826): find a neighbour's MAC."""

from __future__ import annotations

from _struct import Struct

from ovn_k8s_cni.system.packet import ETH_P_ARP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.packet import PacketSocket

_BROADCAST = b"\xff" * 6
_FRAME = Struct("!6s6sHHHBBH6s4s6s4s")  # Ethernet header, then RFC 826's fields
_REQUEST, _REPLY = 1, 2
_REPEAT = 0.1  # seconds

# Classic BPF on the frame: ARP replies only.
REPLIES = (
    (0x28, 0, 0, 12),  # ldh the EtherType
    (0x15, 0, 3, ETH_P_ARP),
    (0x28, 0, 0, 20),  # ldh the operation
    (0x15, 0, 1, _REPLY),
    (0x06, 0, 0, 0xFFFF),
    (0x06, 0, 0, 0),
)


def request(mac: bytes, sender: bytes, target: bytes) -> bytes:
    """Return the frame in which the host `mac`, `sender` asks all for the MAC of `target`."""
    return _FRAME.pack(_BROADCAST, mac, ETH_P_ARP, 1, 0x0800, 6, 4, _REQUEST, mac, sender, bytes(6), target)


def resolve(wire: PacketSocket, mac: bytes, sender: bytes, target: bytes, deadline: Deadline) -> bytes | None:
    """Return the MAC of `target`, None when nobody answers by the deadline; `wire` is filtered by REPLIES."""
    while not deadline.passed():
        wire.send(request(mac, sender, target))
        attempt = deadline.share(_REPEAT)
        while (frame := wire.wait(attempt)) is not None:
            fields = _FRAME.unpack_from(frame.data.ljust(_FRAME.size, b"\0"))
            if fields[9] == target and not frame.outgoing:
                return bytes(fields[8])
    return None
