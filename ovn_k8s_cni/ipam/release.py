"""Giving a lease back: by the daemon, and by ourselves when no RELEASE that a server accepts has left.

The daemon up to 1.9.1 sends its RELEASE from 0.0.0.0, which servers drop; from 1.10.0 on by a UDP socket, whose
checksum a userspace OVS bridge never finishes. So the wire is watched, and what is missing is sent (RFC 2131 section
4.4.6: unicast to the server, `ciaddr` the address, the client identifier of the exchange).
"""

from __future__ import annotations

import posix

from ovn_k8s_cni import log
from ovn_k8s_cni.dhcp import frame as frames
from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.frame import Datagram
from ovn_k8s_cni.dhcp.message import Message
from ovn_k8s_cni.ipam import exchange
from ovn_k8s_cni.ipam.lease import Lease
from ovn_k8s_cni.system import ipv4, neighbour

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ovn_k8s_cni.datapath.record import Attachment
    from ovn_k8s_cni.datapath.veth import Sandbox
    from ovn_k8s_cni.ipam.exchange import Sighting
    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.netlink import Link
    from ovn_k8s_cni.system.packet import Frame, PacketSocket

_ANSWER_SECONDS = 0.3
# A userspace switch that takes many ports in or out forwards nothing meanwhile.
_OVS_ANSWER_SECONDS = 1.0
_OVS_PING_SECONDS = 0.5
# How often a RELEASE is sent while nothing tells that it has passed: a second one does no harm.
_MOST_TIMES = 3
_ASK_SECONDS, _ASK_TIMES = 0.3, 3
_ROUNDS = 3
_SETTLE_SECONDS = 0.1
_LONGEST_CLIENT_ID = 254  # bytes, without the type byte in front


def client_id(attachment: Attachment) -> bytes:
    """Return the daemon's client identifier (option 61) for an attachment."""
    text = f"{attachment.container_id}/{attachment.network}/{attachment.ifname}"
    return b"\0" + text.encode("utf-8", "surrogateescape")[:_LONGEST_CLIENT_ID]


def give_back(
    tell_daemon: Callable[[], None], sandbox: Sandbox, pod: Link, attachment: Attachment, deadline: Deadline
) -> None:
    """Have the daemon forget and release the lease, and see to it that a valid RELEASE leaves.

    When ADD was ended before it could write the lease down, the server is asked which address it holds for us; an
    exchange that the daemon is still having is waited out, so that nothing is acquired behind our back.
    """
    wire = sandbox.listen(pod.name, frames.DHCP_ONLY)
    neighbours = sandbox.listen(pod.name, neighbour.REPLIES)
    try:
        for _ in range(_ROUNDS):
            way = _Way(neighbours, pod, attachment.lease, attachment.datapath, deadline)
            way.open()
            tell_daemon()
            _release_once(wire, way, attachment, deadline)
            if not attachment.exchange_unfinished() or not _acquired_again(wire, pod.mac, deadline):
                return
    finally:
        wire.close_in_background()
        neighbours.close_in_background()


def _release_once(wire: PacketSocket, way: _Way, attachment: Attachment, deadline: Deadline) -> None:
    """Send a RELEASE unless a valid one leaves; what the lease is, the server is asked where it must be."""
    lease, identifier = attachment.lease, client_id(attachment)
    if lease is None or lease.server is None:
        lease = _ask_server(wire, way.pod.mac, identifier, lease, deadline)
        way = _Way(way.wire, way.pod, lease, way.datapath, deadline)
    if lease is None or lease.server is None:
        return
    if not (_valid_one_leaves(wire, way, lease, attachment, deadline) and way.passed()):
        _send(wire, way, lease, lease.server, identifier)


def _send(wire: PacketSocket, way: _Way, lease: Lease, server: bytes, identifier: bytes | None) -> None:
    next_hop = way.next_hop() or lease.hop
    if next_hop is None:
        log.warning(f"no RELEASE of {ipv4.text(lease.address)}: nobody answers for its server or router")
        return
    for _ in range(_MOST_TIMES):
        wire.send(release(way.pod.mac, next_hop, lease, server, identifier))
        log.info(f"sent a RELEASE of {ipv4.text(lease.address)} to {ipv4.text(server)}")
        if way.passed():
            return
    log.warning(f"nothing tells that the RELEASE of {ipv4.text(lease.address)} has left the switch")


def send_release(
    sandbox: Sandbox, pod: Link, lease: Lease, identifier: bytes | None, datapath: str, deadline: Deadline
) -> None:
    """Send a RELEASE of a lease that only we know of."""
    if lease.server is None:
        return
    wire = sandbox.listen(pod.name, frames.DHCP_ONLY)
    neighbours = sandbox.listen(pod.name, neighbour.REPLIES)
    try:
        way = _Way(neighbours, pod, lease, datapath, deadline)
        way.open()
        _send(wire, way, lease, lease.server, identifier)
    finally:
        wire.close_in_background()
        neighbours.close_in_background()


def _valid_one_leaves(wire: PacketSocket, way: _Way, lease: Lease, attachment: Attachment, deadline: Deadline) -> bool:
    """Tell whether the daemon's RELEASE is one that the server accepts; it may have to wait for the kernel's ARP."""
    if attachment.exchange_unfinished():
        return False
    patience = deadline.share(_SETTLE_SECONDS)
    while (frame := wire.wait(patience)) is not None:
        sighting = exchange.read(frame, way.pod.mac)
        if sighting is not None and frame.outgoing and sighting.message.kind() == dhcp.RELEASE:
            return is_valid(sighting, lease, attachment.datapath) and way.leads_to(sighting.datagram.destination_mac)
    return False


class _Way:
    """The way from the pod to its server: directly or, when it is off-link, through the router.

    On OVS it is opened before use and looked at afterwards: a userspace switch drops the first frame of a flow while it
    takes other ports in or out, and what still lies before ovs-vswitchd goes with the port.
    """

    def __init__(self, wire: PacketSocket, pod: Link, lease: Lease | None, datapath: str, deadline: Deadline) -> None:
        self.wire = wire
        self.pod = pod
        self.datapath = datapath
        self._lease = lease
        self._deadline = deadline
        self._resolved = False
        self._next_hop: bytes | None = None

    def next_hop(self) -> bytes | None:
        """Return the MAC to send to, None when nobody answers."""
        if not self._resolved:
            self._next_hop = self._resolve()
            self._resolved = True
        return self._next_hop

    def leads_to(self, mac: bytes) -> bool:
        """Tell whether a frame to `mac` goes there; the kernel may remember a server's former MAC."""
        return self.next_hop() in (None, mac)

    def open(self) -> None:
        """Have the switch learn the flow that the RELEASE will take."""
        if self.datapath == "ovs":
            self._ping()

    def passed(self) -> bool:
        """Tell whether what was sent is out of the switch: an answer to a later question to the same place says so.

        A server that answers no ping leaves it open; what was sent has had its time then.
        """
        return self.datapath != "ovs" or self._ping()

    def _resolve(self) -> bytes | None:
        lease = self._lease
        if lease is None or lease.server is None:
            return None
        on_link = ipv4.network(lease.server, lease.prefix) == ipv4.network(lease.address, lease.prefix)
        target = lease.server if on_link else lease.gateway
        if target is None:
            return None
        return neighbour.resolve(self.wire, self.pod.mac, lease.address, target, self._patience())

    def _ping(self) -> bool:
        lease, next_hop = self._lease, self.next_hop()
        if lease is None or lease.server is None or next_hop is None:
            return False
        identifier = int.from_bytes(posix.urandom(2), "big")
        return neighbour.answers(
            self.wire,
            self.pod.mac,
            lease.address,
            next_hop,
            lease.server,
            identifier,
            self._deadline.share(_OVS_PING_SECONDS),
        )

    def _patience(self) -> Deadline:
        return self._deadline.share(_OVS_ANSWER_SECONDS if self.datapath == "ovs" else _ANSWER_SECONDS)


def is_valid(sighting: Sighting, lease: Lease, datapath: str) -> bool:
    """Tell whether an outgoing message is a RELEASE of `lease` that its server accepts."""
    frame, datagram, message = sighting.frame, sighting.datagram, sighting.message
    return (
        frame.outgoing
        and message.kind() == dhcp.RELEASE
        and datagram.source == message.ciaddr == lease.address
        and datagram.destination == dhcp.server_id(message) == lease.server
        and not (frame.checksum_unfinished and datapath == "ovs")
    )


def _acquired_again(wire: PacketSocket, mac: bytes, deadline: Deadline) -> bool:
    settled = deadline.share(_SETTLE_SECONDS)
    seen: list[Sighting] = []
    while (frame := wire.wait(settled)) is not None:
        seen += _read(frame, mac)
    return exchange.last_ack(seen) is not None


def _read(frame: Frame, mac: bytes) -> list[Sighting]:
    sighting = exchange.read(frame, mac)
    return [] if sighting is None else [sighting]


def discover(mac: bytes, identifier: bytes, xid: int) -> bytes:
    """Return a DISCOVER as a frame.

    Without the broadcast flag: a switch may still send broadcasts of this server where the last pod was.
    """
    options = {
        dhcp.MESSAGE_TYPE: bytes([dhcp.DISCOVER]),
        dhcp.CLIENT_ID: identifier,
        dhcp.PARAMETERS: bytes([dhcp.SUBNET_MASK, dhcp.ROUTER]),
    }
    return frames.broadcast(Message(op=dhcp.BOOTREQUEST, xid=xid, chaddr=mac, options=options))


def _ask_server(
    wire: PacketSocket, mac: bytes, identifier: bytes, known: Lease | None, deadline: Deadline
) -> Lease | None:
    """Return the lease that a server holds for the client, as its OFFER tells; None when no (matching) one answers."""
    for _ in range(_ASK_TIMES):
        xid = int.from_bytes(posix.urandom(4), "big")
        wire.send(discover(mac, identifier, xid))
        attempt = deadline.share(_ASK_SECONDS)
        while (frame := wire.wait(attempt)) is not None:
            for sighting in _read(frame, mac):
                offer = sighting.message
                server = dhcp.server_id(offer)
                if offer.xid != xid or offer.kind() != dhcp.OFFER or server is None:
                    continue
                if known is not None and offer.yiaddr != known.address:
                    continue
                return _lease_of(sighting, server)
    log.info("no server says that it holds a lease for us")
    return None


def _lease_of(sighting: Sighting, server: bytes) -> Lease:
    message = sighting.message
    try:
        prefix = dhcp.prefix_length(message)
        routers = dhcp.addresses(message, dhcp.ROUTER)
    except dhcp.MessageError:
        prefix, routers = None, ()
    return Lease(
        address=message.yiaddr,
        prefix=32 if prefix is None else prefix,
        gateway=routers[0] if routers else None,
        server=server,
        hop=sighting.datagram.source_mac,
    )


def release(mac: bytes, next_hop: bytes, lease: Lease, server: bytes, identifier: bytes | None) -> bytes:
    """Return a RELEASE of `lease` as a frame to the MAC `next_hop`; `identifier` None sends no option 61."""
    options = {dhcp.MESSAGE_TYPE: bytes([dhcp.RELEASE]), dhcp.SERVER_ID: server}
    if identifier is not None:
        options[dhcp.CLIENT_ID] = identifier
    xid = int.from_bytes(posix.urandom(4), "big")
    message = Message(op=dhcp.BOOTREQUEST, xid=xid, chaddr=mac, ciaddr=lease.address, options=options)
    return frames.build(
        Datagram(
            source_mac=mac,
            destination_mac=next_hop,
            source=lease.address,
            destination=server,
            source_port=frames.CLIENT_PORT,
            destination_port=frames.SERVER_PORT,
            payload=dhcp.encode(message),
        )
    )
