"""The delegated exchange as it was seen on the pod's interface (design decision 9)."""

from __future__ import annotations

from ovn_k8s_cni import log
from ovn_k8s_cni.dhcp import frame as frames
from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.message import Message, MessageError
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ovn_k8s_cni.dhcp.frame import Datagram
    from ovn_k8s_cni.system.packet import Frame, PacketSocket


class Sighting(Record):
    """One DHCP message of ours on the wire."""

    frame: Frame
    datagram: Datagram
    message: Message


def sightings(wire: PacketSocket, mac: bytes) -> list[Sighting]:
    """Return the messages about the client `mac` that have passed since the last call; never waits."""
    seen = []
    while (frame := _receive(wire)) is not None:
        sighting = read(frame, mac)
        if sighting is not None:
            seen.append(sighting)
    return seen


def _receive(wire: PacketSocket) -> Frame | None:
    try:
        return wire.receive()
    except OSError as problem:  # the interface went away
        log.debug(f"watching the exchange: {problem}")
        return None


def read(frame: Frame, mac: bytes) -> Sighting | None:
    """Return what `frame` says about the client `mac`; None when it says nothing or is broken."""
    datagram = frames.parse(frame)
    if datagram is None:
        return None
    try:
        message = dhcp.decode(datagram.payload)
    except MessageError as problem:
        log.debug(f"passed over a DHCP packet from {datagram.source.hex()}: {problem}")
        return None
    wanted = dhcp.BOOTREQUEST if frame.outgoing else dhcp.BOOTREPLY
    if message.chaddr != mac or message.op != wanted:
        return None
    return Sighting(frame, datagram, message)


def last_ack(seen: Iterable[Sighting], address: bytes | None = None) -> Sighting | None:
    """Return the newest ACK (of `address`, if given) that came in."""
    acks = [s for s in seen if s.message.kind() == dhcp.ACK and address in (None, s.message.yiaddr)]
    return acks[-1] if acks else None


def account(seen: Iterable[Sighting]) -> str:
    """Return how many messages of each type went out and came back, for an error's details."""
    sent: dict[int, int] = {}
    came: dict[int, int] = {}
    for sighting in seen:
        tally = sent if sighting.frame.outgoing else came
        kind = sighting.message.kind()
        tally[kind] = tally.get(kind, 0) + 1
    return f"sent: {_counts(sent)}; came back: {_counts(came)}"


def _counts(tally: dict[int, int]) -> str:
    return ", ".join(f"{number} {dhcp.TYPE_NAMES[kind]}" for kind, number in sorted(tally.items())) or "nothing"


def dns(ack: Message) -> dict[str, Any]:
    """Return the `dns` part of a CNI result from options 6, 15 and 119; a broken option is passed over."""
    found: dict[str, Any] = {}
    for key, read_option in (
        ("nameservers", lambda: [ipv4.text(address) for address in dhcp.addresses(ack, dhcp.DNS_SERVER)]),
        ("domain", lambda: dhcp.domain_name(ack)),
        ("search", lambda: list(dhcp.domain_search(ack))),
    ):
        try:
            value = read_option()
        except MessageError as problem:
            log.warning(f"passed over the server's {key}: {problem}")
            continue
        if value:
            found[key] = value
    return found
