"""A pod's lease: the delegate is asked, the exchange is watched, both are put together."""

from __future__ import annotations

from ovn_k8s_cni.cni.error import BAD_LEASE, DELEGATE, NO_LEASE, CniError
from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.ipam import apply, exchange
from ovn_k8s_cni.ipam import delegate as delegates
from ovn_k8s_cni.ipam.delegate import DelegateError, parse_answer
from ovn_k8s_cni.ipam.lease import Lease
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.ipam.apply import WantedAddress, WantedRoute
    from ovn_k8s_cni.ipam.delegate import Delegate, Target
    from ovn_k8s_cni.ipam.exchange import Sighting, Watch
    from ovn_k8s_cni.system.child import Child
    from ovn_k8s_cni.system.deadline import Deadline


class Acquired(Record):
    """A lease with what came with it: the routes the server wants and the DNS part of the result."""

    lease: Lease
    address: WantedAddress
    routes: list[WantedRoute]
    dns: dict[str, Any]


class Waiting(Record):
    """A dhcp plugin that is started for an attachment and waits for its stdin."""

    delegate: Delegate
    child: Child
    target: Target


def start(request: Request, ipam: dict[str, Any]) -> Waiting:
    """Start the dhcp plugin for an ADD; raise code 104 when it is not there."""
    delegate = delegates.of(request, ipam)
    target = delegates.Target(request.container_id, request.netns, request.ifname)
    return Waiting(delegate, delegate.start("ADD", target), target)


def acquire(waiting: Waiting, watch: Watch, where: str, deadline: Deadline) -> Acquired:
    """Have the dhcp plugin acquire a lease; `watch` is on the pod's interface, `where` is the place to look at.

    Raises code 104 when the plugin or its daemon fails, 105 when no server answers, 106 when the lease cannot be used.
    """
    try:
        printed = waiting.delegate.ask("ADD", waiting.target, deadline, waiting.child, watch)
    except (DelegateError, TimeoutError) as problem:
        watch.read()
        raise _failure(problem, waiting.delegate, watch.seen, where, deadline) from None
    watch.read()
    result = parse_answer(printed)
    address = apply.wanted_address(result)
    ack = watch.ack()
    if ack is not None and ack.message.yiaddr != address.address:
        ack = None
    return Acquired(
        _lease(address, ack), address, apply.wanted_routes(result), exchange.dns(ack.message) if ack else {}
    )


def _lease(address: WantedAddress, ack: Sighting | None) -> Lease:
    return Lease(
        address=address.address,
        prefix=address.prefix,
        gateway=address.gateway,
        server=dhcp.server_id(ack.message) if ack else None,
        hop=ack.datagram.source_mac if ack else None,
    )


def _failure(problem: Exception, delegate: Delegate, seen: list[Sighting], where: str, deadline: Deadline) -> CniError:
    """Return the error for a lease that did not come, saying what was seen on the wire and what to look at."""
    said = str(problem) or f"it did not end within {deadline.elapsed():.1f} s"
    account = exchange.account(seen)
    if "dialing DHCP daemon" in said:
        return CniError(
            DELEGATE,
            f"the dhcp daemon does not answer at {delegate.socket_path}",
            f"{said}; start `{delegate.program} daemon` on this node, or set ipam.daemonSocketPath",
        )
    if not seen and isinstance(problem, TimeoutError):
        return CniError(
            DELEGATE,
            f"the dhcp daemon at {delegate.socket_path} took the request and sent no DISCOVER",
            f"nothing within {deadline.elapsed():.1f} s; is the daemon alive? its log tells more",
        )
    ack = exchange.last_ack(seen)
    if ack is not None and dhcp.SUBNET_MASK not in ack.message.options:
        server = dhcp.server_id(ack.message)
        return CniError(
            BAD_LEASE,
            f"the lease of {ipv4.text(ack.message.yiaddr)} has no subnet mask (option 1)",
            f"server {ipv4.text(server) if server else 'unknown'} has to send it; the dhcp plugin: {said}",
        )
    if ack is None and seen:
        hint = f"check that a DHCP server answers on {where}, e.g. tcpdump -ni <bridge> port 67 or port 68"
        return CniError(NO_LEASE, f"no DHCP lease within {deadline.elapsed():.1f} s", f"{account}; {said}; {hint}")
    return CniError(DELEGATE, "the dhcp plugin failed", f"{said}; {account}")
