"""A lease onto the pod's interface. Rows of "Addresses and routes on the pod"; the server is not to be believed."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni.cni.error import CniError
from ovn_k8s_cni.ipam import apply
from ovn_k8s_cni.ipam.apply import WantedAddress, WantedRoute
from ovn_k8s_cni.system import ipv4, netlink
from ovn_k8s_cni.system.ipv4 import parse as ip
from ovn_k8s_cni.system.netlink import Link, Message, NetlinkError, Route, Rtnetlink
from tests.support import Namespace

pytestmark = pytest.mark.timeout(30)


def result(address: object = "192.0.2.7/24", gateway: object = None, routes: list[Any] | None = None) -> dict[str, Any]:
    one = {"address": address} if gateway is None else {"address": address, "gateway": gateway}
    return {"interfaces": [], "ips": [one], "routes": routes or [], "dns": {}}


def wanted(*routes: tuple[str, str | None]) -> list[WantedRoute]:
    """Return routes as a server asks for them: destination and router, None for an on-link one."""
    found = []
    for text, gateway in routes:
        destination, prefix = ipv4.parse_prefix(text)
        found.append(WantedRoute(ipv4.network(destination, prefix), prefix, ip(gateway) if gateway else None))
    return found


def shown(routes: list[WantedRoute]) -> list[str]:
    return [apply.describe(route) for route in routes]


# ---- the address


@pytest.mark.parametrize(
    ("text", "address", "prefix"),
    [
        ("192.0.2.7/24", "192.0.2.7", 24),
        ("10.0.0.0/31", "10.0.0.0", 31),
        ("10.0.0.1/31", "10.0.0.1", 31),
        ("10.0.0.255/32", "10.0.0.255", 32),
        ("10.0.0.0/32", "10.0.0.0", 32),
        ("100.64.0.1/10", "100.64.0.1", 10),
        ("169.254.7.7/16", "169.254.7.7", 16),
        ("11.2.3.4/8", "11.2.3.4", 8),
        ("223.255.255.254/24", "223.255.255.254", 24),
    ],
)
def test_address(text: str, address: str, prefix: int) -> None:
    assert apply.wanted_address(result(text)) == WantedAddress(ip(address), prefix, None)


@pytest.mark.parametrize(
    "text",
    [
        "1.2.3.4/1", "11.2.3.4/7",
        "0.0.0.0/24", "0.0.0.0/0", "0.1.2.3/8", "127.0.0.1/8", "127.255.255.254/32", "224.0.0.1/24", "239.1.2.3/32",
        "240.0.0.1/24", "255.255.255.255/32", "192.0.2.255/24", "192.0.2.0/24", "192.0.2.3/30", "10.255.255.255/8",
        "192.0.2.7/0", "128.0.0.0/1",
    ],
)  # fmt: skip
def test_address_that_no_host_can_have(text: str) -> None:
    with pytest.raises(CniError) as caught:
        apply.wanted_address(result(text))
    assert caught.value.code == 106
    assert text in caught.value.msg


@pytest.mark.parametrize(
    "value",
    [None, "", "192.0.2.7", "192.0.2.7/", "192.0.2.7/33", "192.0.2.7/-1", "192.0.2.7/024", "192.0.2.7/24/24",
     "192.0.2/24", "192.0.2.07/24", "192.0.2.256/24", "2001:db8::7/64", "192.0.2.7/ 24", 5, ["192.0.2.7/24"],
     "192.0.2.\N{ARABIC-INDIC DIGIT SEVEN}/24"],
)  # fmt: skip
def test_malformed_address(value: object) -> None:
    with pytest.raises(CniError) as caught:
        apply.wanted_address(result(value))
    assert caught.value.code == 106


@pytest.mark.parametrize("ips", [[], [{"address": "192.0.2.7/24"}, {"address": "192.0.2.8/24"}]])
def test_not_one_address(ips: list[Any]) -> None:
    with pytest.raises(CniError, match="did not return one address") as caught:
        apply.wanted_address({**result(), "ips": ips})
    assert caught.value.code == 106


@given(st.binary(min_size=4, max_size=4), st.integers(1, 32))
def test_address_by_the_rules_of_rfc_1122(address: bytes, prefix: int) -> None:
    bits = int.from_bytes(address, "big")
    host_bits = bits & ((1 << 32 - prefix) - 1)
    ordinary = address[0] not in (0, 127) and address[0] < 224
    inside = prefix > 30 or 0 < host_bits < (1 << 32 - prefix) - 1
    text = f"{socket.inet_ntoa(address)}/{prefix}"
    if ordinary and inside and prefix >= 8:
        assert apply.wanted_address(result(text)).address == address
    else:
        with pytest.raises(CniError):
            apply.wanted_address(result(text))


@pytest.mark.parametrize(
    "gateway", [None, "", "0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "x", 5, "192.0.2.1/24"]
)
def test_gateway_that_cannot_be_one_is_passed_over(gateway: object) -> None:
    assert apply.wanted_address(result(gateway=gateway)).gateway is None


def test_gateway() -> None:
    assert apply.wanted_address(result(gateway="198.51.100.1")).gateway == ip("198.51.100.1")


# ---- the routes that are wanted


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"dst": "10.0.0.0/8", "gw": "192.0.2.1"}, "10.0.0.0/8 via 192.0.2.1"),
        ({"dst": "10.1.2.3/8", "gw": "192.0.2.1"}, "10.0.0.0/8 via 192.0.2.1"),
        ({"dst": "0.0.0.0/0", "gw": "192.0.2.1"}, "0.0.0.0/0 via 192.0.2.1"),
        ({"dst": "1.2.3.4/0", "gw": "192.0.2.1"}, "0.0.0.0/0 via 192.0.2.1"),
        ({"dst": "10.0.0.1/32"}, "10.0.0.1/32 scope link"),
        ({"dst": "10.0.0.0/8", "gw": "0.0.0.0"}, "10.0.0.0/8 scope link"),
        ({"dst": "10.0.0.0/8", "gw": None}, "10.0.0.0/8 scope link"),
        ({"dst": "10.0.0.0/8", "gw": ""}, "10.0.0.0/8 scope link"),
        ({"dst": "192.0.0.0/2", "gw": "192.0.2.1"}, "192.0.0.0/2 via 192.0.2.1"),
    ],
)
def test_wanted_route(item: dict[str, Any], expected: str) -> None:
    assert shown(apply.wanted_routes(result(routes=[item]))) == [expected]


BROKEN_ROUTES: list[dict[str, Any]] = [
    {}, {"dst": None}, {"dst": "10.0.0.0"}, {"dst": "10.0.0.0/33"}, {"dst": "x/8"}, {"dst": 5}, {"dst": "::/0"},
    {"dst": "127.0.0.0/8", "gw": "192.0.2.1"}, {"dst": "224.0.0.0/4", "gw": "192.0.2.1"},
    {"dst": "240.0.0.0/8", "gw": "192.0.2.1"}, {"dst": "255.255.255.255/32"},
    {"dst": "10.0.0.0/8", "gw": "127.0.0.1"}, {"dst": "10.0.0.0/8", "gw": "224.0.0.1"},
    {"dst": "10.0.0.0/8", "gw": "255.255.255.255"}, {"dst": "10.0.0.0/8", "gw": "0.0.0.1"},
    {"dst": "10.0.0.0/8", "gw": "fe80::1"}, {"dst": "10.0.0.0/8", "gw": "x"}, {"dst": "10.0.0.0/8", "gw": 1},
    {"dst": "10.0.0.0/8", "priority": -1}, {"dst": "10.0.0.0/8", "priority": 1 << 32},
    {"dst": "10.0.0.0/8", "priority": "5"}, {"dst": "10.0.0.0/8", "priority": 1.5},
]  # fmt: skip


@pytest.mark.parametrize("item", BROKEN_ROUTES, ids=str)
def test_broken_routes_are_passed_over_and_the_others_kept(item: dict[str, Any]) -> None:
    good = {"dst": "10.9.0.0/16", "gw": "192.0.2.1"}
    assert shown(apply.wanted_routes(result(routes=[item, good]))) == ["10.9.0.0/16 via 192.0.2.1"]


@pytest.mark.parametrize(("priority", "metric"), [(4711, 4711), (2**32 - 1, 2**32 - 1), (0, 0), (None, 0)])
def test_metric_is_taken_over(priority: int | None, metric: int) -> None:
    (route,) = apply.wanted_routes(result(routes=[{"dst": "10.0.0.0/8", "gw": "192.0.2.1", "priority": priority}]))
    assert route.metric == metric


def test_default_route_whose_destination_is_written_oddly() -> None:
    """The prefix says that all of it is meant."""
    assert shown(apply.wanted_routes(result(routes=[{"dst": "240.0.0.0/0", "gw": "192.0.2.1"}]))) == [
        "0.0.0.0/0 via 192.0.2.1"
    ]


# ---- the routes that are allowed

OURS = 7


def existing(*routes: tuple[str, int, int]) -> list[Route]:
    """Return routes of the kernel: destination, interface, metric."""
    found = []
    for text, oif, metric in routes:
        destination, prefix = ipv4.parse_prefix(text)
        found.append(Route(destination, prefix, ip("10.244.0.1"), oif, metric))
    return found


@pytest.mark.parametrize(
    ("dst", "is_default"),
    [("0.0.0.0/0", True), ("0.0.0.0/1", True), ("128.0.0.0/1", True), ("64.0.0.0/2", True), ("10.0.0.0/7", True),
     ("10.0.0.0/8", False), ("192.168.0.0/16", False), ("192.0.2.9/32", False)],
)  # fmt: skip
def test_what_counts_as_a_default_route(dst: str, is_default: bool) -> None:
    for router in ("192.0.2.1", None):
        routes = wanted((dst, router))
        assert apply.allowed_routes(routes, [], OURS, default_route=False) == ([] if is_default else routes)
        assert apply.allowed_routes(routes, [], OURS, default_route=True) == routes


@pytest.mark.parametrize(
    ("others", "metric"),
    [
        (existing(("0.0.0.0/0", 2, 0)), 1),
        (existing(("0.0.0.0/0", 2, 100)), 101),
        (existing(("0.0.0.0/0", 2, 100), ("0.0.0.0/0", 3, 300)), 301),
        (existing(("0.0.0.0/0", 0, 5)), 6),
        (existing(("10.0.0.0/8", 2, 900)), 0),
        (existing(("0.0.0.0/0", OURS, 900)), 0),
    ],
    ids=["one", "one with a metric", "two", "multipath", "no default route", "our own"],
)
def test_default_route_never_outranks_one_that_is_there(others: list[Route], metric: int) -> None:
    (route,) = apply.allowed_routes(wanted(("0.0.0.0/0", "192.0.2.1")), others, OURS, default_route=True)
    assert route.metric == metric


def test_larger_metric_of_the_server_stays() -> None:
    routes = apply.wanted_routes(result(routes=[{"dst": "0.0.0.0/0", "gw": "192.0.2.1", "priority": 500}]))
    (route,) = apply.allowed_routes(routes, existing(("0.0.0.0/0", 2, 100)), OURS, default_route=True)
    assert route.metric == 500


def test_largest_possible_metric_there_already() -> None:
    others = existing(("0.0.0.0/0", 2, 2**32 - 1))
    for route in apply.allowed_routes(wanted(("0.0.0.0/0", "192.0.2.1")), others, OURS, default_route=True):
        assert route.metric < 2**32


@pytest.mark.parametrize("dst", ["0.0.0.0/1", "128.0.0.0/1", "64.0.0.0/2", "8.0.0.0/7"])
def test_halves_of_the_world_are_dropped_beside_a_default_route(dst: str) -> None:
    routes = wanted((dst, "192.0.2.1"), ("10.0.0.0/8", "192.0.2.1"))
    allowed = apply.allowed_routes(routes, existing(("0.0.0.0/0", 2, 0)), OURS, default_route=True)
    assert shown(allowed) == ["10.0.0.0/8 via 192.0.2.1"]


def test_on_link_routes_go_in_first_and_the_order_is_kept_otherwise() -> None:
    routes = wanted(
        ("10.1.0.0/16", "10.9.9.9"),
        ("10.9.9.9/32", None),
        ("10.2.0.0/16", "10.9.9.9"),
        ("0.0.0.0/0", "10.9.9.9"),
        ("10.8.0.0/16", None),
    )
    assert shown(apply.allowed_routes(routes, [], OURS, default_route=True)) == [
        "10.9.9.9/32 scope link",
        "10.8.0.0/16 scope link",
        "10.1.0.0/16 via 10.9.9.9",
        "10.2.0.0/16 via 10.9.9.9",
        "0.0.0.0/0 via 10.9.9.9",
    ]


ROUTES = st.lists(
    st.builds(
        lambda destination, prefix, router: (f"{socket.inet_ntoa(destination)}/{prefix}", router),
        st.binary(min_size=4, max_size=4).filter(lambda raw: raw[0] != 127 and raw[0] < 224),
        st.integers(0, 32),
        st.sampled_from(["192.0.2.1", "10.9.9.9", None]),
    ),
    max_size=6,
)


@given(ROUTES, st.booleans(), st.booleans())
def test_nothing_that_takes_the_traffic_gets_past(
    routes: list[tuple[str, str | None]], default_route: bool, there_already: bool
) -> None:
    others = existing(("0.0.0.0/0", 2, 50)) if there_already else []
    allowed = apply.allowed_routes(wanted(*routes), others, OURS, default_route=default_route)
    for route in allowed:
        if route.prefix < 8:
            assert default_route
            assert not there_already or (route.prefix == 0 and route.metric > 50)
    ordinary = [route for route in wanted(*routes) if route.prefix >= 8]
    assert sorted(shown(ordinary)) == sorted(shown([route for route in allowed if route.prefix >= 8]))
    assert [route.gateway is None for route in allowed] == sorted((r.gateway is None for r in allowed), reverse=True)


# ---- in the result


def test_address_in_the_result() -> None:
    assert apply.result_ip(WantedAddress(ip("192.0.2.7"), 24, ip("192.0.2.1")), 1) == {
        "address": "192.0.2.7/24",
        "gateway": "192.0.2.1",
        "interface": 1,
    }
    assert "gateway" not in apply.result_ip(WantedAddress(ip("192.0.2.7"), 24, None), 1)


def test_routes_in_the_result() -> None:
    gateway, on_link = wanted(("10.0.0.0/8", "192.0.2.1"), ("10.9.9.9/32", None))
    assert apply.result_route(gateway) == {"dst": "10.0.0.0/8", "gw": "192.0.2.1"}
    assert apply.result_route(on_link) == {"dst": "10.9.9.9/32", "scope": 253}
    assert apply.result_route(gateway.replace(metric=7))["priority"] == 7


# ---- onto an interface

POD = Link(
    index=OURS, name="net1", flags=1, mac=bytes(6), mtu=1500, operstate=6, master=0, peer=0, alias="", kind="veth",
    port_state=None, vlan_filtering=False,
)  # fmt: skip
ADDRESS = WantedAddress(ip("192.0.2.7"), 24, None)


class Kernel:
    """Stands in for Rtnetlink: refuses what it is told to, by the words of the request."""

    def __init__(self, **refusals: int) -> None:
        self.refusals = refusals
        self.done: list[str] = []

    def routes(self) -> list[Route]:
        return [Route(ip("10.0.0.0"), 8, ip("192.0.2.1"), OURS, 0)]

    def do(self, message: Message) -> None:
        for word, status in self.refusals.items():
            if word in message.what:
                raise NetlinkError(status, message.what)
        self.done.append(message.what)


def configured(kernel: Kernel, *routes: tuple[str, str | None]) -> list[WantedRoute]:
    return apply.configure(cast("Rtnetlink", kernel), POD, ADDRESS, wanted(*routes), default_route=True)


def test_the_address_goes_in_before_the_routes() -> None:
    kernel = Kernel()
    configured(kernel, ("10.0.0.0/8", "192.0.2.1"))
    assert kernel.done == [
        "giving net1 192.0.2.7/24",
        "adding the route 10.0.0.0/8 via 192.0.2.1 on net1",
    ]


def test_route_that_is_there_already_counts_as_installed() -> None:
    kernel = Kernel(route=errno.EEXIST)
    assert shown(configured(kernel, ("10.0.0.0/8", "192.0.2.1"))) == ["10.0.0.0/8 via 192.0.2.1"]


@pytest.mark.parametrize("status", [errno.ENETUNREACH, errno.EINVAL, errno.EPERM, errno.ENODEV, errno.ENOMEM])
def test_any_other_refusal_of_a_route_is_raised(status: int) -> None:
    with pytest.raises(NetlinkError) as caught:
        configured(Kernel(route=status), ("10.0.0.0/8", "192.0.2.1"))
    assert caught.value.errno == status


@pytest.mark.parametrize("status", [errno.EEXIST, errno.EPERM])
def test_any_refusal_of_the_address_is_raised(status: int) -> None:
    with pytest.raises(NetlinkError) as caught:
        configured(Kernel(giving=status))
    assert caught.value.errno == status


@pytest.fixture
def pod(netns: Namespace) -> Iterator[tuple[Namespace, Rtnetlink]]:
    """Return a namespace with the interface net1, up, and our rtnetlink socket inside it."""
    netns.add("net1", "veth", peer="far")
    netns.set_up("net1", "far")
    with netns.entered(), Rtnetlink() as rtnetlink:
        yield netns, rtnetlink


def in_kernel(netns: Namespace) -> set[str]:
    """Return the main table's routes, less the subnet's own, as `ip route` shows them."""
    found = set()
    for item in netns.iproute.get_routes(family=socket.AF_INET, table=254):
        if item["proto"] != 2:
            text = f"{item.get('dst') or '0.0.0.0'}/{item['dst_len']}"
            text += f" via {item.get('gateway')}" if item.get("gateway") else ""
            text += f" metric {item.get('priority')}" if item.get("priority") else ""
            found.add(text + (" onlink" if item["flags"] & netlink.RTNH_F_ONLINK else ""))
    return found


def configured_in(
    pod: tuple[Namespace, Rtnetlink],
    *routes: tuple[str, str | None],
    address: str = "192.0.2.7/24",
    default_route: bool = True,
) -> list[WantedRoute]:
    link = pod[1].link("net1")
    assert link is not None
    target = apply.wanted_address(result(address))
    return apply.configure(pod[1], link, target, wanted(*routes), default_route=default_route)


def applied(
    pod: tuple[Namespace, Rtnetlink], address: str, *routes: tuple[str, str | None], default_route: bool = True
) -> set[str]:
    installed = configured_in(pod, *routes, address=address, default_route=default_route)
    found = in_kernel(pod[0])
    assert len(found) == len(installed), "what is reported is what is there"
    return found


@pytest.mark.parametrize(
    ("address", "broadcast"),
    [("192.0.2.7/24", "192.0.2.255"), ("10.1.2.3/8", "10.255.255.255"), ("192.0.2.7/31", None), ("192.0.2.7/32", None)],
)
def test_address_on_the_interface(pod: tuple[Namespace, Rtnetlink], address: str, broadcast: str | None) -> None:
    applied(pod, address)
    (found,) = pod[0].iproute.get_addr(family=socket.AF_INET, index=pod[0].index("net1"))
    assert f"{found.get('local')}/{found['prefixlen']}" == address
    assert found.get("broadcast") == broadcast


def test_router_inside_the_subnet(pod: tuple[Namespace, Rtnetlink]) -> None:
    assert applied(pod, "192.0.2.7/24", ("0.0.0.0/0", "192.0.2.1"), ("10.0.0.0/8", "192.0.2.2")) == {
        "0.0.0.0/0 via 192.0.2.1",
        "10.0.0.0/8 via 192.0.2.2",
    }


@pytest.mark.parametrize("address", ["192.0.2.7/24", "192.0.2.7/32"])
def test_router_outside_the_subnet_is_taken_as_on_link(pod: tuple[Namespace, Rtnetlink], address: str) -> None:
    assert applied(pod, address, ("0.0.0.0/0", "198.51.100.1")) == {"0.0.0.0/0 via 198.51.100.1 onlink"}


def test_router_that_an_on_link_route_reaches(pod: tuple[Namespace, Rtnetlink]) -> None:
    """In the server's order, which the kernel would refuse."""
    routes = ("0.0.0.0/0", "198.51.100.1"), ("198.51.100.1/32", None)
    assert applied(pod, "192.0.2.7/32", *routes) == {"0.0.0.0/0 via 198.51.100.1", "198.51.100.1/32"}


def test_router_that_only_a_routed_network_contains(pod: tuple[Namespace, Rtnetlink]) -> None:
    """A gateway is never reached through another gateway."""
    routes = ("198.51.100.0/24", "192.0.2.1"), ("10.0.0.0/8", "198.51.100.1")
    assert applied(pod, "192.0.2.7/24", *routes) == {
        "198.51.100.0/24 via 192.0.2.1",
        "10.0.0.0/8 via 198.51.100.1 onlink",
    }


def test_default_route_on_link(pod: tuple[Namespace, Rtnetlink]) -> None:
    routes = ("0.0.0.0/0", None), ("10.0.0.0/8", "198.51.100.1")
    assert applied(pod, "192.0.2.7/32", *routes) == {"0.0.0.0/0", "10.0.0.0/8 via 198.51.100.1"}


def test_default_routes_are_dropped_unless_asked_for(pod: tuple[Namespace, Rtnetlink]) -> None:
    routes = ("0.0.0.0/0", "192.0.2.1"), ("0.0.0.0/1", "192.0.2.1"), ("10.0.0.0/8", "192.0.2.1")
    assert applied(pod, "192.0.2.7/24", *routes, default_route=False) == {"10.0.0.0/8 via 192.0.2.1"}


@pytest.mark.parametrize("metric", [0, 100])
def test_default_route_beside_another(pod: tuple[Namespace, Rtnetlink], metric: int) -> None:
    netns, _ = pod
    netns.add("eth0", "veth", peer="far0")
    netns.set_up("eth0", "far0")
    netns.iproute.addr("add", index=netns.index("eth0"), address="10.244.0.5", prefixlen=24)
    netns.iproute.route("add", dst="default", gateway="10.244.0.1", priority=metric)
    before = in_kernel(netns)
    configured_in(pod, ("0.0.0.0/0", "192.0.2.1"), ("128.0.0.0/1", "192.0.2.1"))
    assert in_kernel(netns) == before | {f"0.0.0.0/0 via 192.0.2.1 metric {metric + 1}"}
    (best,) = netns.iproute.route("get", dst="203.0.113.9")
    assert best.get("gateway") == "10.244.0.1"


def test_the_same_route_twice_is_one() -> None:
    routes = [{"dst": "10.0.0.0/8", "gw": "192.0.2.1"}, {"dst": "10.1.0.0/8", "gw": "192.0.2.1"}]
    assert shown(apply.wanted_routes(result(routes=routes))) == ["10.0.0.0/8 via 192.0.2.1"]


def test_route_to_the_subnet_itself(pod: tuple[Namespace, Rtnetlink]) -> None:
    """The kernel has made it with the address: there already, and ours."""
    assert shown(configured_in(pod, ("192.0.2.0/24", None))) == ["192.0.2.0/24 scope link"]


def test_route_that_another_interface_has_is_not_reported(pod: tuple[Namespace, Rtnetlink]) -> None:
    netns, _ = pod
    netns.add("eth0", "veth", peer="far0")
    netns.set_up("eth0", "far0")
    netns.iproute.route("add", dst="10.0.0.0/8", oif=netns.index("eth0"), scope="link")
    installed = configured_in(pod, ("10.0.0.0/8", "192.0.2.1"), ("198.51.100.0/24", "192.0.2.1"))
    assert shown(installed) == ["198.51.100.0/24 via 192.0.2.1"]
    assert in_kernel(netns) == {"10.0.0.0/8", "198.51.100.0/24 via 192.0.2.1"}


def test_route_over_an_interface_that_is_down(pod: tuple[Namespace, Rtnetlink]) -> None:
    pod[0].iproute.link("set", index=pod[0].index("net1"), state="down")
    with pytest.raises(NetlinkError, match=r"adding the route 10\.0\.0\.0/8 via .* on net1: Network is unreachable"):
        configured_in(pod, ("10.0.0.0/8", "192.0.2.1"))
