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
    from typing import Any, Self

    from ovn_k8s_cni.dhcp.frame import Datagram
    from ovn_k8s_cni.system.packet import Frame, PacketSocket


class Sighting(Record):
    """One DHCP message of ours on the wire."""

    frame: Frame
    datagram: Datagram
    message: Message


class Watch:
    """Reads the exchange of the client `mac` while it happens, until its ACK is there.

    Then the socket is let go at once: the daemon is busy closing its own, and the two waits are one.
    """

    def __init__(self, wire: PacketSocket, mac: bytes) -> None:
        self._wire: PacketSocket | None = wire
        self._mac = mac
        self._descriptor = wire.fileno()
        self.seen: list[Sighting] = []

    def fileno(self) -> int:
        """Return the descriptor, to be polled."""
        return self._descriptor

    def read(self) -> bool:
        """Take in what has passed; tell whether the ACK is still to come."""
        if self._wire is not None:
            self.seen += sightings(self._wire, self._mac)
            if self.ack() is not None:
                self.close()
        return self._wire is not None

    def ack(self) -> Sighting | None:
        """Return the newest ACK that answers a message of ours."""
        sent = [sighting.message for sighting in self.seen if sighting.frame.outgoing]
        return last_ack(sighting for sighting in self.seen if any(_answers(sighting.message, ours) for ours in sent))

    def close(self) -> None:
        """Let the socket go."""
        if self._wire is not None:
            self._wire.close_in_background()
            self._wire = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answers(reply: Message, ours: Message) -> bool:
    """Tell whether `reply` is to `ours`: of the same exchange and, if it echoes a client identifier, with ours."""
    identifier = ours.options.get(dhcp.CLIENT_ID)
    return reply.xid == ours.xid and reply.options.get(dhcp.CLIENT_ID, identifier) == identifier


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


def last_ack(seen: Iterable[Sighting]) -> Sighting | None:
    """Return the newest ACK that came in."""
    acks = [sighting for sighting in seen if sighting.message.kind() == dhcp.ACK]
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
