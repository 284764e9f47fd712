"""The kernel as full pyroute2 sees it, in a named network namespace; never through the plugin's own code."""

from __future__ import annotations

import dataclasses
from typing import Any

from pyroute2 import NetNS


@dataclasses.dataclass(frozen=True)
class Link:
    """An interface; `vlans` maps VLAN IDs to their flags on a bridge port."""

    index: int
    name: str
    mac: str
    mtu: int
    up: bool
    operstate: str
    alias: str
    master: str
    port_state: int | None


def _attributes(message: Any, *path: str) -> Any:
    for name in path:
        message = message.get_attr(name) if message is not None else None
    return message


def links(netns: str) -> dict[str, Link]:
    """Return all interfaces of a namespace by name."""
    with NetNS(netns, flags=0) as ns:
        found = list(ns.get_links())
    names = {message["index"]: message.get_attr("IFLA_IFNAME") for message in found}
    return {
        message.get_attr("IFLA_IFNAME"): Link(
            index=message["index"],
            name=message.get_attr("IFLA_IFNAME"),
            mac=message.get_attr("IFLA_ADDRESS") or "",
            mtu=message.get_attr("IFLA_MTU"),
            up=bool(message["flags"] & 1),
            operstate=message.get_attr("IFLA_OPERSTATE"),
            alias=message.get_attr("IFLA_IFALIAS") or "",
            master=names.get(message.get_attr("IFLA_MASTER"), ""),
            port_state=_attributes(message, "IFLA_LINKINFO", "IFLA_INFO_SLAVE_DATA", "IFLA_BRPORT_STATE"),
        )
        for message in found
    }


def addresses(netns: str, name: str) -> list[str]:
    """Return the IPv4 addresses (`a.b.c.d/n`) of an interface."""
    with NetNS(netns, flags=0) as ns:
        index = ns.link_lookup(ifname=name)[0]
        found = list(ns.get_addr(family=2, index=index))
    return [f"{message.get_attr('IFA_LOCAL')}/{message['prefixlen']}" for message in found]


def routes(netns: str) -> set[tuple[str, str]]:
    """Return (destination/prefix, gateway or "") of the main table's IPv4 routes."""
    with NetNS(netns, flags=0) as ns:
        found = list(ns.get_routes(family=2, table=254))
    return {
        (f"{message.get_attr('RTA_DST') or '0.0.0.0'}/{message['dst_len']}", message.get_attr("RTA_GATEWAY") or "")
        for message in found
    }
