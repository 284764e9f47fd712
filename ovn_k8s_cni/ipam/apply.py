"""A lease onto the pod's interface: address, then routes, in an order that the kernel accepts.

What the server says is checked before use (design decision 12): two /1 routes take all traffic as well as a default
route, so routes shorter than /8 are treated as default routes, dropped unless asked for, and never put before one that
is already there.
"""

from __future__ import annotations

import errno

from ovn_k8s_cni import log
from ovn_k8s_cni.cni.error import BAD_LEASE, CniError
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4, netlink
from ovn_k8s_cni.system.netlink import NetlinkError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ovn_k8s_cni.system.netlink import Link, Message, Rtnetlink
    from ovn_k8s_cni.system.netlink import Route as KernelRoute

_SHORTEST_ORDINARY = 8  # prefix length
_LARGEST_METRIC = 0xFFFFFFFF


class WantedAddress(Record):
    """The leased address; raw bytes, `gateway` None where the server names no router."""

    address: bytes
    prefix: int
    gateway: bytes | None


class WantedRoute(Record):
    """A route that the server wants; `gateway` None for an on-link one, `metric` 0 the kernel's default."""

    destination: bytes
    prefix: int
    gateway: bytes | None
    metric: int = 0

    def is_default(self) -> bool:
        """Tell whether it would take (a great part of) all traffic."""
        return self.prefix < _SHORTEST_ORDINARY


def wanted_address(result: dict[str, Any]) -> WantedAddress:
    """Return the one address of the dhcp plugin's result; raise code 106 when a host cannot have it."""
    if len(result["ips"]) != 1:
        raise CniError(BAD_LEASE, "the dhcp plugin did not return one address", f"ips: {result['ips']!r:.200}")
    (ip,) = result["ips"]
    try:
        address, prefix = ipv4.parse_prefix(ip.get("address"))
    except ValueError as problem:
        raise CniError(BAD_LEASE, "the leased address cannot be used", str(problem)) from None
    trouble = ipv4.host_trouble(address, prefix)
    if prefix < _SHORTEST_ORDINARY:
        trouble = f"a subnet as large as a /{prefix} would take traffic that is not its own"
    if trouble:
        raise CniError(BAD_LEASE, f"the leased address {ip['address']} cannot be used", trouble)
    return WantedAddress(address, prefix, _gateway(ip.get("gateway")))


def _gateway(value: object) -> bytes | None:
    if not value:
        return None
    try:
        gateway = ipv4.parse(value)
    except ValueError as problem:
        log.warning(f"passed over the router: {problem}")
        return None
    if trouble := ipv4.host_trouble(gateway):
        log.warning(f"passed over the router {value}: {trouble}")
        return None
    return gateway


def wanted_routes(result: dict[str, Any]) -> list[WantedRoute]:
    """Return the usable routes of the dhcp plugin's result; one that is broken is passed over with a warning."""
    found: list[WantedRoute] = []
    for item in result["routes"]:
        try:
            route = _wanted_route(item)
        except ValueError as problem:
            log.warning(f"passed over the route {item!r:.120}: {problem}")
            continue
        if route not in found:
            found.append(route)
    return found


def _wanted_route(item: dict[str, Any]) -> WantedRoute:
    destination, prefix = ipv4.parse_prefix(item.get("dst"))
    if prefix and (destination[0] == 127 or destination[0] >= 224):
        raise ValueError("its destination is loopback, multicast or reserved")
    gateway = ipv4.parse(item["gw"]) if item.get("gw") else bytes(4)
    # RFC 3442: a router of 0.0.0.0 means that the destination is on the link.
    if gateway != bytes(4) and (trouble := ipv4.host_trouble(gateway)):
        raise ValueError(f"its router {item['gw']} cannot be one: {trouble}")
    metric = item.get("priority") or 0
    if not isinstance(metric, int) or not 0 <= metric <= _LARGEST_METRIC:
        raise ValueError("its priority is no metric")
    on_link = gateway == bytes(4)
    return WantedRoute(ipv4.network(destination, prefix), prefix, None if on_link else gateway, metric)


def allowed_routes(
    wanted: list[WantedRoute], existing: list[KernelRoute], interface: int, *, default_route: bool
) -> list[WantedRoute]:
    """Return the routes to install, on-link ones first, default routes only when asked for.

    Beside a default route of another interface ours gets the larger metric, and a /1 to /7, which would win by its
    prefix, is dropped.
    """
    others = [route.metric for route in existing if route.prefix == 0 and route.oif != interface]
    next_metric = 1 + max(others, default=-1)
    allowed = []
    for route in wanted:
        if route.is_default() and not default_route:
            log.info(f"dropped the default route {describe(route)}: defaultRoute is not set")
        elif route.is_default() and others and (route.prefix or next_metric > _LARGEST_METRIC):
            log.warning(f"dropped the route {describe(route)}: it would outrank the default route that is there")
        elif route.is_default() and others:
            allowed.append(route.replace(metric=max(route.metric, next_metric)))
        else:
            allowed.append(route)
    return [route for route in allowed if route.gateway is None] + [route for route in allowed if route.gateway]


def describe(route: WantedRoute) -> str:
    """Return a route as `ip route` would show it."""
    via = f" via {ipv4.text(route.gateway)}" if route.gateway else " scope link"
    return f"{ipv4.text(route.destination)}/{route.prefix}{via}"


def _reachable(gateway: bytes, address: WantedAddress, routes: list[WantedRoute]) -> bool:
    """Tell whether the kernel will find `gateway` on the link by itself."""
    on_link = [(address.address, address.prefix)]
    on_link += [(route.destination, route.prefix) for route in routes if route.gateway is None]
    return any(ipv4.network(gateway, prefix) == ipv4.network(net, prefix) for net, prefix in on_link)


def address_message(pod: Link, address: WantedAddress) -> Message:
    """Return the request that gives the pod's interface its address."""
    text = f"{ipv4.text(address.address)}/{address.prefix}"
    broadcast = ipv4.broadcast(address.address, address.prefix)
    return netlink.add_address(pod.index, address.address, address.prefix, broadcast, f"giving {pod.name} {text}")


def configure(
    rtnetlink: Rtnetlink, pod: Link, address: WantedAddress, routes: list[WantedRoute], *, default_route: bool
) -> list[WantedRoute]:
    """Give the interface its address and routes; return the routes that are installed.

    One that is there already counts as installed, one that another interface has does not; any other refusal raises
    NetlinkError.
    """
    rtnetlink.do(address_message(pod, address))
    if not routes:
        return []
    allowed = allowed_routes(routes, rtnetlink.routes(), pod.index, default_route=default_route)
    there_already = False
    for route in allowed:
        onlink = route.gateway is not None and not _reachable(route.gateway, address, allowed)
        try:
            rtnetlink.do(
                netlink.add_route(
                    pod.index,
                    route.destination,
                    route.prefix,
                    route.gateway,
                    metric=route.metric,
                    onlink=onlink,
                    what=f"adding the route {describe(route)} on {pod.name}",
                )
            )
        except NetlinkError as problem:
            if problem.errno != errno.EEXIST:
                raise
            there_already = True
    return _installed(allowed, rtnetlink, pod) if there_already else allowed


def _installed(routes: list[WantedRoute], rtnetlink: Rtnetlink, pod: Link) -> list[WantedRoute]:
    there = [(route.destination, route.prefix, route.gateway) for route in rtnetlink.routes() if route.oif == pod.index]
    return [route for route in routes if (route.destination, route.prefix, route.gateway or b"") in there]


def result_ip(address: WantedAddress, interface: int) -> dict[str, Any]:
    """Return the address as a CNI result has it; `interface` is an index into the result's interfaces."""
    item: dict[str, Any] = {"address": f"{ipv4.text(address.address)}/{address.prefix}", "interface": interface}
    if address.gateway is not None:
        item["gateway"] = ipv4.text(address.gateway)
    return item


def result_route(route: WantedRoute) -> dict[str, Any]:
    """Return a route as a CNI result has it."""
    item: dict[str, Any] = {"dst": f"{ipv4.text(route.destination)}/{route.prefix}"}
    if route.gateway is not None:
        item["gw"] = ipv4.text(route.gateway)
    else:
        item["scope"] = netlink.SCOPE_LINK
    if route.metric:
        item["priority"] = route.metric
    return item
