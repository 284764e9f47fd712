"""A guest's address, learnt by one exchange of our own (RFC 2131 section 3.1) and never put on the interface.

The guest's DHCP client will ask with the same MAC and client identifier, and the server gives it the same address.
"""

from __future__ import annotations

import posix

from ovn_k8s_cni.cni.error import BAD_LEASE, NO_LEASE, CniError
from ovn_k8s_cni.dhcp import wire
from ovn_k8s_cni.dhcp.client import UNUSABLE, Bound, Client
from ovn_k8s_cni.dhcp.frame import DHCP_ONLY
from ovn_k8s_cni.ipam import exchange, release
from ovn_k8s_cni.ipam.apply import WantedAddress, WantedRoute
from ovn_k8s_cni.ipam.lease import Lease
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4
from ovn_k8s_cni.system.deadline import Deadline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ovn_k8s_cni.datapath.veth import Sandbox
    from ovn_k8s_cni.dhcp.client import Failed
    from ovn_k8s_cni.dhcp.message import Route
    from ovn_k8s_cni.system.netlink import Link

_ETHERNET = b"\1"  # the client identifier's type byte (RFC 2132 section 9.14)
_GIVE_BACK_SECONDS = 2.0


class Discovered(Record):
    """What the server told: to be reported, not applied. `dns` is the CNI result's."""

    lease: Lease
    address: WantedAddress
    routes: list[WantedRoute]
    dns: dict[str, Any]


def client_id(wanted: str, mac: bytes) -> bytes | None:
    """Return the value of option 61 for the config's `clientId` (`mac`, `none` or `hex:…`), None to send none."""
    if wanted == "none":
        return None
    return _ETHERNET + mac if wanted == "mac" else bytes.fromhex(wanted.removeprefix("hex:"))


def discover(sandbox: Sandbox, pod: Link, identifier: bytes | None, where: str, deadline: Deadline) -> Discovered:
    """Have one exchange on the pod's interface; raise code 105 when no server answers, 106 when its lease is no good.

    A lease that cannot be used is given back at once; `where` is the place to look at.
    """
    socket = sandbox.listen(pod.name, DHCP_ONLY)
    try:
        finished = wire.run(Client(pod.mac, identifier, deadline.left(), posix.urandom), socket)
    finally:
        socket.close_in_background()
    if isinstance(finished.outcome, Bound):
        return _discovered(finished.outcome, finished.hop)
    failed = finished.outcome
    # An address that no host can have is not sent from either, to give it back.
    releasable = failed.ack is not None and ipv4.host_trouble(failed.ack.yiaddr) is None
    if failed.why == UNUSABLE and failed.ack is not None and failed.server is not None and releasable:
        unusable = Lease(address=failed.ack.yiaddr, prefix=32, server=failed.server, hop=finished.hop)
        give_back(sandbox, pod, unusable, identifier, "")
    raise _error(failed, where)


def _error(failed: Failed, where: str) -> CniError:
    account = failed.tally.text()
    if failed.why == UNUSABLE:
        return CniError(BAD_LEASE, failed.text, account)
    hint = f"check that a DHCP server answers on {where}, e.g. tcpdump -ni <bridge> port 67 or port 68"
    return CniError(NO_LEASE, f"no DHCP lease within {failed.seconds:.1f} s: {failed.text}", f"{account}; {hint}")


def _discovered(bound: Bound, hop: bytes | None) -> Discovered:
    gateway = bound.routers[0] if bound.routers else None
    return Discovered(
        lease=Lease(address=bound.address, prefix=bound.prefix, gateway=gateway, server=bound.server, hop=hop),
        address=WantedAddress(bound.address, bound.prefix, gateway),
        routes=[_route(route) for route in bound.routes()],
        dns=exchange.dns(bound.ack),
    )


def _route(route: Route) -> WantedRoute:
    return WantedRoute(route.destination, route.prefix, route.router)


def give_back(sandbox: Sandbox, pod: Link, lease: Lease, identifier: bytes | None, datapath: str) -> None:
    """Release a lease that no guest will come to own; takes a few seconds at the most."""
    release.send_release(sandbox, pod, lease, identifier, datapath, Deadline(_GIVE_BACK_SECONDS))
