"""The DHCP client on a packet socket: its interface needs no address, and gets none."""

from __future__ import annotations

import errno
from time import monotonic

from ovn_k8s_cni import log
from ovn_k8s_cni.dhcp import frame as frames
from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.client import Bound
from ovn_k8s_cni.dhcp.message import MessageError
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4
from ovn_k8s_cni.system.deadline import Deadline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ovn_k8s_cni.dhcp.client import Client, Failed
    from ovn_k8s_cni.dhcp.frame import Datagram
    from ovn_k8s_cni.system.packet import Frame, PacketSocket

# The send queue or the link was full: the frame is lost, as others are later on the way, and will be repeated.
_LOST = frozenset((errno.EAGAIN, errno.ENOBUFS))


class Finished(Record):
    """How an exchange ended; `hop` is the MAC that the outcome's ACK came from, None when it has none.

    It is the server's, or that of the router or relay on the way to it.
    """

    outcome: Bound | Failed
    hop: bytes | None


def run(client: Client, wire: PacketSocket, clock: Callable[[], float] = monotonic) -> Finished:
    """Drive `client` to its outcome on `wire`, a socket with the filter frame.DHCP_ONLY; raise OSError.

    Takes no longer than the client was given, but for a few milliseconds.
    """
    client.start(clock())
    while True:
        _send(client, wire)
        frame = wire.wait(Deadline((client.wake_at() or 0) - clock()))
        datagram = None if frame is None else _take(client, frame, clock())
        client.wake(clock())
        outcome = client.outcome()
        if outcome is not None:
            _log(client, outcome)
            return Finished(outcome, datagram.source_mac if datagram is not None and outcome.ack is not None else None)


def _log(client: Client, outcome: Bound | Failed) -> None:
    log.info(f"discovery for {client.mac.hex(':')}: {client.state}; {outcome.tally.text()}")
    for warning in outcome.warnings if isinstance(outcome, Bound) else ():
        log.warning(f"passed over a part of the lease: {warning}")


def _send(client: Client, wire: PacketSocket) -> None:
    for message in client.outgoing():
        log.debug(f"sending a {dhcp.TYPE_NAMES[message.kind()]}, xid {message.xid:#010x}")
        try:
            wire.send(frames.broadcast(message))
        except OSError as problem:
            if problem.errno not in _LOST:
                raise
            log.debug(f"sending: {problem}")


def _take(client: Client, frame: Frame, now: float) -> Datagram | None:
    """Hand a frame to the client; return its datagram when it is one to a DHCP client and can be read."""
    datagram = None if frame.outgoing else frames.parse(frame)
    if datagram is None or datagram.destination_port != frames.CLIENT_PORT:
        return None
    try:
        message = dhcp.decode(datagram.payload)
    except MessageError as problem:
        log.debug(f"passed over a DHCP packet from {ipv4.text(datagram.source)}: {problem}")
        client.drop(str(problem))
        return None
    log.debug(f"took in a {dhcp.TYPE_NAMES[message.kind()]} from {ipv4.text(datagram.source)}, xid {message.xid:#010x}")
    client.receive(message, now)
    return datagram
