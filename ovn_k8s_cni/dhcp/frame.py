"""UDP datagrams between the DHCP ports as Ethernet frames (RFC 791, RFC 768), with checksums of our own."""

from __future__ import annotations

from _struct import Struct

from ovn_k8s_cni.dhcp.message import encode
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system.internet import checksum
from ovn_k8s_cni.system.packet import ETH_P_IP

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ovn_k8s_cni.dhcp.message import Message
    from ovn_k8s_cni.system.packet import Frame

SERVER_PORT, CLIENT_PORT = 67, 68
BROADCAST_MAC, BROADCAST = b"\xff" * 6, b"\xff" * 4

_ETHERNET = Struct("!6s6sH")
_IP = Struct(
    "!BBHHHBBH4s4s"
)  # version and length, TOS, total, id, fragment, TTL, protocol, checksum, source, destination
_UDP = Struct("!HHHH")
_PSEUDO = Struct("!4s4sBBH")
_PROTOCOL_UDP, _TTL, _FRAGMENT_BITS = 17, 64, 0x3FFF

# Classic BPF on the frame: unfragmented UDP to a DHCP port.
DHCP_ONLY = (
    (0x28, 0, 0, 12),  # ldh the EtherType
    (0x15, 0, 8, ETH_P_IP),
    (0x30, 0, 0, 23),  # ldb the protocol
    (0x15, 0, 6, _PROTOCOL_UDP),
    (0x28, 0, 0, 20),  # ldh flags and fragment offset
    (0x45, 4, 0, 0x1FFF),
    (0xB1, 0, 0, 14),  # ldx the IP header's length
    (0x48, 0, 0, 16),  # ldh the destination port
    (0x15, 2, 0, SERVER_PORT),
    (0x15, 1, 0, CLIENT_PORT),
    (0x06, 0, 0, 0),
    (0x06, 0, 0, 0xFFFF),
)


class Datagram(Record):
    """A UDP datagram and the frame around it; MACs and addresses are raw bytes."""

    source_mac: bytes
    destination_mac: bytes
    source: bytes
    destination: bytes
    source_port: int
    destination_port: int
    payload: bytes


def build(datagram: Datagram) -> bytes:
    """Return the whole Ethernet frame, both checksums in place."""
    length = _UDP.size + len(datagram.payload)
    pseudo = _PSEUDO.pack(datagram.source, datagram.destination, 0, _PROTOCOL_UDP, length)
    ports = datagram.source_port, datagram.destination_port, length
    # 0 means "no checksum", so one that comes out as 0 is sent as its other form (RFC 768).
    udp = _UDP.pack(*ports, checksum(pseudo + _UDP.pack(*ports, 0) + datagram.payload) or 0xFFFF)
    header = (0x45, 0, _IP.size + length, 0, 0, _TTL, _PROTOCOL_UDP)
    blank = _IP.pack(*header, 0, datagram.source, datagram.destination)
    ip = _IP.pack(*header, checksum(blank), datagram.source, datagram.destination)
    return _ETHERNET.pack(datagram.destination_mac, datagram.source_mac, ETH_P_IP) + ip + udp + datagram.payload


def broadcast(message: Message) -> bytes:
    """Return a client's message as a frame to all servers, from the address that it does not have yet."""
    return build(
        Datagram(
            source_mac=message.chaddr,
            destination_mac=BROADCAST_MAC,
            source=bytes(4),
            destination=BROADCAST,
            source_port=CLIENT_PORT,
            destination_port=SERVER_PORT,
            payload=encode(message),
        )
    )


def parse(frame: Frame) -> Datagram | None:
    """Return the datagram in a frame that is meant for us and whole; None for every other frame.

    A tagged frame belongs to somebody else. A checksum of 0, and one that the kernel has checked or left to an offload,
    is accepted; every other one is verified. The IP length cuts off Ethernet padding.
    """
    data = frame.data
    if frame.tagged or len(data) < _ETHERNET.size + _IP.size + _UDP.size:
        return None
    destination_mac, source_mac, ethertype = _ETHERNET.unpack_from(data)
    first, _, total, _, fragment, _, protocol, _, source, destination = _IP.unpack_from(data, _ETHERNET.size)
    header = (first & 0xF) * 4
    start = _ETHERNET.size + header
    end = _ETHERNET.size + total
    if ethertype != ETH_P_IP or first >> 4 != 4 or header < _IP.size or protocol != _PROTOCOL_UDP:
        return None
    if fragment & _FRAGMENT_BITS or end > len(data) or start + _UDP.size > end:
        return None
    source_port, destination_port, length, given = _UDP.unpack_from(data, start)
    if not _UDP.size <= length <= end - start or checksum(data[_ETHERNET.size : start]):
        return None
    udp = data[start : start + length]
    to_verify = given and not (frame.checksum_trusted or frame.checksum_unfinished)
    if to_verify and checksum(_PSEUDO.pack(source, destination, 0, _PROTOCOL_UDP, length) + udp):
        return None
    return Datagram(
        source_mac=source_mac,
        destination_mac=destination_mac,
        source=source,
        destination=destination,
        source_port=source_port,
        destination_port=destination_port,
        payload=udp[_UDP.size :],
    )
