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
from ovn_k8s_cni.system import arp, ipv4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ovn_k8s_cni.datapath.record import Attachment
    from ovn_k8s_cni.datapath.veth import Sandbox
    from ovn_k8s_cni.ipam.exchange import Sighting
    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.netlink import Link
    from ovn_k8s_cni.system.packet import Frame, PacketSocket

_ARP_SECONDS = 0.3
_ASK_SECONDS, _ASK_TIMES = 0.3, 3
_ROUNDS = 3
_SETTLE_SECONDS = 0.05
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
    try:
        for _ in range(_ROUNDS):
            tell_daemon()
            _release_once(sandbox, wire, pod, attachment, deadline)
            if not attachment.exchange_unfinished() or not _acquired_again(wire, pod.mac, deadline):
                return
    finally:
        wire.close_in_background()


def _release_once(sandbox: Sandbox, wire: PacketSocket, pod: Link, attachment: Attachment, deadline: Deadline) -> None:
    """Send a RELEASE unless a valid one has been seen; what the lease is, the server is asked where it must be."""
    lease = attachment.lease
    seen = exchange.sightings(wire, pod.mac)
    if lease is None or lease.server is None:
        lease = _ask_server(wire, pod.mac, client_id(attachment), lease, deadline)
    if lease is None or lease.server is None:
        return
    seen += exchange.sightings(wire, pod.mac)
    neighbours = sandbox.listen(pod.name, arp.REPLIES)
    try:
        if not any(is_valid(sighting, lease, attachment.datapath) for sighting in seen):
            _send(wire, neighbours, pod, lease, lease.server, client_id(attachment), deadline)
        # What was sent may still wait for ovs-vswitchd, and would go with the port. An answer to a later question from
        # where it goes says that it has passed.
        _next_hop(neighbours, pod, lease, lease.server, deadline)
    finally:
        neighbours.close_in_background()


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
    """Return a DISCOVER as a frame, asking for a broadcast answer: the interface has no address to be reached at."""
    options = {
        dhcp.MESSAGE_TYPE: bytes([dhcp.DISCOVER]),
        dhcp.CLIENT_ID: identifier,
        dhcp.PARAMETERS: bytes([dhcp.SUBNET_MASK, dhcp.ROUTER]),
    }
    message = Message(op=dhcp.BOOTREQUEST, xid=xid, chaddr=mac, flags=0x8000, options=options)
    return frames.build(
        Datagram(
            source_mac=mac,
            destination_mac=frames.BROADCAST_MAC,
            source=bytes(4),
            destination=frames.BROADCAST,
            source_port=frames.CLIENT_PORT,
            destination_port=frames.SERVER_PORT,
            payload=dhcp.encode(message),
        )
    )


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


def release(mac: bytes, next_hop: bytes, lease: Lease, server: bytes, identifier: bytes) -> bytes:
    """Return a RELEASE of `lease` as a frame to the MAC `next_hop`."""
    options = {dhcp.MESSAGE_TYPE: bytes([dhcp.RELEASE]), dhcp.SERVER_ID: server, dhcp.CLIENT_ID: identifier}
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


def _send(
    wire: PacketSocket,
    neighbours: PacketSocket,
    pod: Link,
    lease: Lease,
    server: bytes,
    identifier: bytes,
    deadline: Deadline,
) -> None:
    next_hop = _next_hop(neighbours, pod, lease, server, deadline) or lease.hop
    if next_hop is None:
        log.warning(f"no RELEASE of {ipv4.text(lease.address)}: nobody answers for its server or router")
        return
    wire.send(release(pod.mac, next_hop, lease, server, identifier))
    log.info(f"sent a RELEASE of {ipv4.text(lease.address)} to {ipv4.text(server)}")


def _next_hop(neighbours: PacketSocket, pod: Link, lease: Lease, server: bytes, deadline: Deadline) -> bytes | None:
    """Return the MAC to send to: the server's or, when it is off-link, the router's; None when nobody answers."""
    on_link = ipv4.network(server, lease.prefix) == ipv4.network(lease.address, lease.prefix)
    target = server if on_link else lease.gateway
    if target is None:
        return None
    return arp.resolve(neighbours, pod.mac, lease.address, target, deadline.share(_ARP_SECONDS))
