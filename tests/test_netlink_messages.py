"""Every rtnetlink message, byte for byte what pyroute2 makes of it; every answer, read as pyroute2 reads it."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink import NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_EXCL, NLM_F_REQUEST
from pyroute2.netlink import rtnl as constants
from pyroute2.netlink.exceptions import NetlinkError as TheirError
from pyroute2.netlink.rtnl.br_vlan import br_vlan_msg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from ovn_k8s_cni.system import netlink
from ovn_k8s_cni.system.ipv4 import parse as ip
from ovn_k8s_cni.system.netlink import Link, Message, NetlinkError, Rtnetlink
from tests.support import Namespace, mac_bytes, wait_until

pytestmark = pytest.mark.timeout(30)

ASKED = NLM_F_REQUEST | NLM_F_ACK
NEW = ASKED | NLM_F_CREATE | NLM_F_EXCL
MAC = "0a:58:c0:00:02:07"


class Wire:
    """Stands in for the kernel: keeps what is sent, answers with one scripted datagram after the other."""

    def __init__(self, *answers: bytes) -> None:
        self.sent: list[bytes] = []
        self.answers = list(answers)

    def send(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)

    def recv(self, _size: int) -> bytes:
        if not self.answers:
            raise BlockingIOError
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def framed(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body + bytes(-len(body) % 4)


def acknowledged(sequence: int, status: int = 0) -> bytes:
    return framed(2, 0x100, sequence, struct.pack("=i", -status) + bytes(16))


def done(sequence: int, flags: int = 2) -> bytes:
    return framed(3, flags, sequence, bytes(4))


def over(wire: Wire) -> Rtnetlink:
    rtnetlink = Rtnetlink()
    rtnetlink.close()
    rtnetlink.__dict__["_socket"] = wire
    return rtnetlink


def on_the_wire(message: Message) -> bytes:
    wire = Wire(acknowledged(1))
    over(wire).do(message)
    (sent,) = wire.sent
    return sent


def theirs(message: Any, kind: int, flags: int, fields: dict[str, Any], *attributes: tuple[str, Any]) -> bytes:
    for name, value in fields.items():
        message[name] = value
    message["attrs"] = list(attributes)
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    message["header"]["sequence_number"] = 1
    message["header"]["pid"] = 0
    message.encode()
    return bytes(message.data)


def link(kind: int, flags: int, fields: dict[str, Any], *attributes: tuple[str, Any]) -> bytes:
    return theirs(ifinfmsg(), kind, flags, fields, *attributes)


def vlan(kind: int, vid: int, flags: int) -> bytes:
    info = {"attrs": [("IFLA_BRIDGE_VLAN_INFO", {"flags": flags, "vid": vid})]}
    return link(kind, ASKED, {"family": socket.AF_BRIDGE, "index": 7}, ("IFLA_AF_SPEC", info))


def veth(name: str, peer: str, netns: int, mac: str | None, mtu: int) -> bytes:
    other = [("IFLA_IFNAME", peer), ("IFLA_MTU", mtu)]
    other += [("IFLA_ADDRESS", mac)] if mac else []
    other += [("IFLA_NET_NS_FD", netns)]
    data = {"attrs": [("VETH_INFO_PEER", {"attrs": other})]}
    info = {"attrs": [("IFLA_INFO_KIND", "veth"), ("IFLA_INFO_DATA", data)]}
    attributes = [("IFLA_IFNAME", name), ("IFLA_MTU", mtu), ("IFLA_LINKINFO", info)]
    return link(constants.RTM_NEWLINK, NEW, {}, *attributes)


BUILDERS: dict[str, tuple[Message, Callable[[], bytes]]] = {
    "new_veth": (
        netlink.new_veth("okc0123456789ab", "net1", 9, mac_bytes(MAC), 1400),
        lambda: veth("okc0123456789ab", "net1", 9, MAC, 1400),
    ),
    "new_veth with a MAC of the kernel's": (
        netlink.new_veth("a", "longest-name-15", 300, None, 9000),
        lambda: veth("a", "longest-name-15", 300, None, 9000),
    ),
    "set_up": (
        netlink.set_up(7, "net1"),
        lambda: link(constants.RTM_SETLINK, ASKED, {"index": 7, "flags": 1, "change": 1}),
    ),
    "set_mac": (
        netlink.set_mac(7, mac_bytes(MAC), "net1"),
        lambda: link(constants.RTM_SETLINK, ASKED, {"index": 7}, ("IFLA_ADDRESS", MAC)),
    ),
    "set_master": (
        netlink.set_master(7, 3, "net1", "br0"),
        lambda: link(constants.RTM_SETLINK, ASKED, {"index": 7}, ("IFLA_MASTER", 3)),
    ),
    "delete_link": (
        netlink.delete_link(7, "net1"),
        lambda: link(constants.RTM_DELLINK, ASKED, {"index": 7}),
    ),
    "add_access_vlan": (
        netlink.add_access_vlan(7, 4094, "net1"),
        lambda: vlan(constants.RTM_SETLINK, 4094, netlink.PVID | netlink.UNTAGGED),
    ),
    "delete_vlan": (
        netlink.delete_vlan(7, 1, "net1"),
        lambda: vlan(constants.RTM_DELLINK, 1, 0),
    ),
    "get_link by name": (
        netlink.get_link("net1"),
        lambda: link(constants.RTM_GETLINK, NLM_F_REQUEST, {}, ("IFLA_EXT_MASK", 8), ("IFLA_IFNAME", "net1")),
    ),
    "get_link by index": (
        netlink.get_link(index=7),
        lambda: link(constants.RTM_GETLINK, NLM_F_REQUEST, {"index": 7}, ("IFLA_EXT_MASK", 8)),
    ),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_builder(name: str) -> None:
    ours, expected = BUILDERS[name]
    assert on_the_wire(ours).hex(" ", -4) == expected().hex(" ", -4)


@pytest.mark.parametrize(
    "alias",
    ["", "a", "ovn-k8s-cni net=0011aabb", "x" * 255],
)
def test_set_alias(alias: str) -> None:
    name = "okc0123456789ab"
    # pyroute2 ends an alias with a NUL; the kernel takes it as a string with its length, and 255 bytes at most.
    expected = link(constants.RTM_SETLINK, ASKED, {}, ("IFLA_IFNAME", name))
    attribute = struct.pack("=HH", 4 + len(alias), 20) + alias.encode() + bytes(-len(alias) % 4)
    expected = struct.pack("=I", len(expected) + len(attribute)) + expected[4:] + attribute
    assert on_the_wire(netlink.set_alias(name, alias)) == expected


ADDRESSES = st.binary(min_size=4, max_size=4)


@given(ADDRESSES, st.integers(1, 32), st.one_of(st.none(), ADDRESSES), st.integers(1, 2**31 - 1))
def test_add_address(address: bytes, prefix: int, broadcast: bytes | None, index: int) -> None:
    text = socket.inet_ntoa(address)
    attributes = [("IFA_LOCAL", text), ("IFA_ADDRESS", text)]
    attributes += [("IFA_BROADCAST", socket.inet_ntoa(broadcast))] if broadcast is not None else []
    fields = {"family": socket.AF_INET, "prefixlen": prefix, "scope": 0, "index": index}
    expected = theirs(ifaddrmsg(), constants.RTM_NEWADDR, NEW, fields, *attributes)
    assert on_the_wire(netlink.add_address(index, address, prefix, broadcast, "")) == expected


@given(
    st.tuples(ADDRESSES, st.integers(0, 32)),
    st.one_of(st.none(), ADDRESSES),
    st.integers(0, 2**32 - 1),
    st.booleans(),
)
def test_add_route(target: tuple[bytes, int], gateway: bytes | None, metric: int, onlink: bool) -> None:
    destination, prefix = target
    attributes: list[tuple[str, Any]] = [("RTA_DST", socket.inet_ntoa(destination))] if prefix else []
    attributes += [("RTA_GATEWAY", socket.inet_ntoa(gateway))] if gateway else []
    attributes += [("RTA_OIF", 7)]
    attributes += [("RTA_PRIORITY", metric)] if metric else []
    fields = {
        "family": socket.AF_INET,
        "dst_len": prefix,
        "table": 254,
        "proto": constants.rt_proto["dhcp"],
        "scope": constants.rt_scope["universe" if gateway else "link"],
        "type": constants.rt_type["unicast"],
        "flags": 4 if onlink and gateway else 0,
    }
    expected = theirs(rtmsg(), constants.RTM_NEWROUTE, NEW, fields, *attributes)
    ours = netlink.add_route(7, destination, prefix, gateway, metric=metric, onlink=onlink, what="")
    assert on_the_wire(ours) == expected


DUMPS: dict[str, tuple[Callable[[Rtnetlink], object], Callable[[], bytes]]] = {
    "links": (
        Rtnetlink.links,
        lambda: link(constants.RTM_GETLINK, NLM_F_REQUEST | NLM_F_DUMP, {}, ("IFLA_EXT_MASK", 8)),
    ),
    "addresses": (
        lambda rtnetlink: rtnetlink.addresses(7),
        lambda: theirs(ifaddrmsg(), constants.RTM_GETADDR, ASKED | NLM_F_DUMP, {"family": socket.AF_INET, "index": 7}),
    ),
    "routes": (
        Rtnetlink.routes,
        lambda: theirs(
            rtmsg(),
            constants.RTM_GETROUTE,
            ASKED | NLM_F_DUMP,
            {"family": socket.AF_INET, "table": 254, "type": constants.rt_type["unicast"]},
        ),
    ),
    "port_vlans": (
        lambda rtnetlink: rtnetlink.port_vlans(7),
        lambda: theirs(
            br_vlan_msg(), constants.RTM_GETVLAN, ASKED | NLM_F_DUMP, {"family": socket.AF_BRIDGE, "ifindex": 7}
        ),
    ),
}


@pytest.mark.parametrize("name", DUMPS)
def test_dump(name: str) -> None:
    ask, expected = DUMPS[name]
    wire = Wire(done(1))
    ask(over(wire))
    assert wire.sent == [expected()]


# ---- what the kernel makes of them


@pytest.fixture
def ours(netns: Namespace) -> Iterator[Rtnetlink]:
    with netns.entered(), Rtnetlink() as rtnetlink:
        yield rtnetlink


@pytest.fixture
def pod() -> Iterator[Namespace]:
    with Namespace() as namespace:
        yield namespace


@pytest.fixture
def bridge(netns: Namespace) -> int:
    """Return the index of a bridge with one port that forwards (`port0`), one that is down, and an alias."""
    index = netns.add("br0", "bridge")
    netns.add("port0", "veth", peer="far0")
    netns.add("port1", "veth", peer="far1")
    netns.set_up("br0", "port0", "far0")
    for name in ("port0", "port1"):
        netns.iproute.link("set", index=netns.index(name), master=index)
    netns.iproute.link("set", index=netns.index("port0"), ifalias="ovn-k8s-cni net=ä if=net1")
    assert wait_until(lambda: netns.link("br0").get("operstate") == "UP")
    return index


def read_by_pyroute2(item: Any) -> Link:
    info = item.get("linkinfo") or {"attrs": []}
    nested = dict(info["attrs"])
    kind = nested.get("IFLA_INFO_KIND", "")
    slave = dict(nested.get("IFLA_INFO_SLAVE_DATA", {"attrs": []})["attrs"])
    data = dict(nested["IFLA_INFO_DATA"]["attrs"]) if kind == "bridge" else {}
    return Link(
        index=item["index"],
        name=item.get("ifname"),
        flags=item["flags"],
        mac=mac_bytes(item.get("address")),
        mtu=item.get("mtu"),
        operstate=("UNKNOWN", "NOTPRESENT", "DOWN", "LOWERLAYERDOWN", "TESTING", "DORMANT", "UP").index(
            item.get("operstate")
        ),
        master=item.get("master") or 0,
        peer=item.get("link") or 0,
        alias=item.get("ifalias") or "",
        kind=kind,
        port_state=slave.get("IFLA_BRPORT_STATE"),
        vlan_filtering=bool(data.get("IFLA_BR_VLAN_FILTERING", 0)),
    )


@pytest.mark.usefixtures("bridge")
def test_links_as_pyroute2_reads_them(netns: Namespace, ours: Rtnetlink) -> None:
    expected = [read_by_pyroute2(item) for item in netns.iproute.get_links()]
    assert {found.name for found in expected} == {"lo", "br0", "port0", "far0", "port1", "far1"}
    assert ours.links() == expected
    for one in expected:
        assert ours.link(one.name) == ours.link(index=one.index) == one


@pytest.mark.parametrize(
    ("flags", "operstate", "up"), [(0x1003, 6, True), (0x1002, 6, False), (0x1003, 2, False), (0x1003, 0, False)]
)
def test_up_is_what_the_kernel_lets_send(flags: int, operstate: int, up: bool) -> None:
    attribute = struct.pack("=HHB3x", 5, 16, operstate)
    assert netlink.parse_link(struct.pack("=BxHiII", 0, 1, 7, flags, 0) + attribute).up() == up


def test_new_veth(netns: Namespace, pod: Namespace, ours: Rtnetlink) -> None:
    ours.do(
        netlink.new_veth("okc0123456789ab", "net1", pod.fd, mac_bytes(MAC), 1342),
        netlink.set_alias("okc0123456789ab", "a" * 255),
    )
    host, inside = netns.link("okc0123456789ab"), pod.link("net1")
    assert (inside.get("address"), inside.get("mtu"), inside.get("operstate")) == (MAC, 1342, "DOWN")
    assert (host.get("ifalias"), host.get("mtu"), host.get("operstate")) == ("a" * 255, 1342, "DOWN")
    assert (host.get("link"), inside.get("link")) == (inside["index"], host["index"])


def test_set_up_plug_and_delete(netns: Namespace, bridge: int, ours: Rtnetlink) -> None:
    index, far = netns.index("port1"), netns.index("far1")
    ours.do(netlink.set_master(far, bridge, "far1", "br0"), netlink.set_up(far, "far1"), netlink.set_up(index, "port1"))
    assert netns.link("far1").get("master") == bridge
    assert netns.link("far1")["flags"] & netns.link("port1")["flags"] & netlink.IFF_UP
    ours.do(netlink.delete_link(index, "port1"))
    assert netns.iproute.link_lookup(ifname="port1") == netns.iproute.link_lookup(ifname="far1") == []


def test_addresses_as_pyroute2_reads_them(netns: Namespace, ours: Rtnetlink) -> None:
    netns.add("net1", "veth", peer="far")
    index, other = netns.index("net1"), netns.index("far")
    ours.do(
        netlink.add_address(index, ip("192.0.2.7"), 24, ip("192.0.2.255"), ""),
        netlink.add_address(index, ip("192.0.2.8"), 24, None, ""),
        netlink.add_address(other, ip("198.51.100.1"), 32, None, ""),
    )
    netns.iproute.addr("add", index=index, local="203.0.113.1", address="203.0.113.2", prefixlen=32)
    expected = [
        (item["index"], ip(item.get("local")), item["prefixlen"])
        for item in netns.iproute.get_addr(family=socket.AF_INET, index=index)
    ]
    assert len(expected) == 3
    assert [(found.index, found.address, found.prefix) for found in ours.addresses(index)] == expected
    (first,) = [item for item in netns.iproute.get_addr(index=index) if item.get("local") == "192.0.2.7"]
    assert first.get("broadcast") == "192.0.2.255"


def test_routes_as_pyroute2_reads_them(netns: Namespace, ours: Rtnetlink) -> None:
    netns.add("net1", "veth", peer="far")
    netns.set_up("net1", "far")
    index = netns.index("net1")
    ours.do(
        netlink.add_address(index, ip("192.0.2.7"), 24, None, ""),
        netlink.add_route(index, bytes(4), 0, ip("192.0.2.1"), metric=100, onlink=False, what=""),
        netlink.add_route(index, ip("198.51.100.0"), 24, None, metric=0, onlink=False, what=""),
        netlink.add_route(index, ip("203.0.113.0"), 24, ip("10.9.9.9"), metric=0, onlink=True, what=""),
    )
    # Not ours to see: another type, another table.
    netns.iproute.route("add", dst="10.66.0.0/16", type="blackhole")
    netns.iproute.route("add", dst="10.67.0.0/16", oif=index, table=99, scope="link")
    found = ours.routes()
    expected = [
        (
            ip(item.get("dst") or "0.0.0.0"),
            item["dst_len"],
            ip(item.get("gateway")) if item.get("gateway") else b"",
            item.get("oif"),
            item.get("priority") or 0,
        )
        for item in netns.iproute.get_routes(family=socket.AF_INET, table=254, type=constants.rt_type["unicast"])
    ]
    assert len(expected) == 4
    assert [(r.destination, r.prefix, r.gateway, r.oif, r.metric) for r in found] == expected
    routes = netns.iproute.get_routes(family=socket.AF_INET, table=254)
    (onlink,) = [item for item in routes if item.get("dst") == "203.0.113.0"]
    assert (onlink["flags"] & netlink.RTNH_F_ONLINK, onlink["proto"]) == (netlink.RTNH_F_ONLINK, 16)


def test_port_vlans_as_pyroute2_reads_them(netns: Namespace, ours: Rtnetlink) -> None:
    try:
        netns.add("br1", "bridge", br_vlan_filtering=1)
    except TheirError as problem:
        if problem.code == errno.EOPNOTSUPP:
            pytest.skip("this kernel has no VLAN filtering")
        raise
    netns.add("port0", "veth", peer="far0")
    index = netns.index("port0")
    netns.iproute.link("set", index=index, master=netns.index("br1"))
    ours.do(netlink.add_access_vlan(index, 100, "port0"))
    assert ours.port_vlans(index) == {1: netlink.UNTAGGED, 100: netlink.PVID | netlink.UNTAGGED}
    ours.do(netlink.delete_vlan(index, 1, "port0"))
    (item,) = netns.iproute.get_vlans(index=index)
    infos = [dict(value) for _, value in dict(item["attrs"])["IFLA_AF_SPEC"]["attrs"]]
    assert infos == [{"flags": netlink.PVID | netlink.UNTAGGED, "vid": 100}]
    assert ours.port_vlans(index) == {100: netlink.PVID | netlink.UNTAGGED}


def test_port_vlans_reads_what_pyroute2_writes() -> None:
    entries = [
        ("BRIDGE_VLANDB_ENTRY", {"attrs": [("BRIDGE_VLANDB_ENTRY_INFO", {"vid": vid, "flags": flags})]})
        for vid, flags in ((1, 0), (100, 6))
    ]
    answer = theirs(br_vlan_msg(), 112, 2, {"family": socket.AF_BRIDGE, "ifindex": 7}, *entries)
    assert over(Wire(answer, done(1))).port_vlans(7) == {1: 0, 100: 6}


# ---- asking and being refused


def test_batch_goes_on_and_the_first_refusal_is_raised(netns: Namespace, ours: Rtnetlink) -> None:
    netns.add("net1", "veth", peer="far")
    index = netns.index("net1")
    with pytest.raises(NetlinkError, match="setting first up: ") as caught:
        ours.do(netlink.set_up(998, "first"), netlink.delete_link(999, "second"), netlink.set_up(index, "net1"))
    assert caught.value.errno == errno.ENODEV
    assert netns.link("net1")["flags"] & netlink.IFF_UP
    assert ours.link("net1") is not None, "the socket is in step after a refusal"


def test_refusal_tells_the_kernels_reason(netns: Namespace, ours: Rtnetlink) -> None:
    netns.add("net1", "veth", peer="far")
    netns.set_up("net1", "far")
    route = netlink.add_route(
        netns.index("net1"), bytes(4), 0, ip("192.0.2.1"), metric=0, onlink=False, what="adding the default route"
    )
    with pytest.raises(NetlinkError) as caught:
        ours.do(route)
    assert caught.value.strerror == "adding the default route: Network is unreachable (Nexthop has invalid gateway)"


@pytest.mark.parametrize("capped", [True, False])
def test_refusals_text_is_found_behind_the_echoed_request(capped: bool) -> None:
    request = framed(16, 5, 1, bytes(21))
    text = b"no such thing\0"
    extended = struct.pack("=HH", 4 + len(text), 1) + text + bytes(-len(text) % 4)
    body = struct.pack("=i", -errno.EINVAL) + (request[:16] if capped else request) + extended
    wire = Wire(framed(2, 0x300 if capped else 0x200, 1, body))
    with pytest.raises(NetlinkError, match=r"setting x up: Invalid argument \(no such thing\)$"):
        over(wire).do(netlink.set_up(1, "x"))


def test_existing_name_is_refused_with_eexist(netns: Namespace, pod: Namespace, ours: Rtnetlink) -> None:
    netns.add("taken", "bridge")
    with pytest.raises(NetlinkError) as caught:
        ours.do(netlink.new_veth("taken", "net1", pod.fd, None, 1500))
    assert caught.value.errno == errno.EEXIST
    assert pod.iproute.link_lookup(ifname="net1") == []


def test_link_that_is_not_there(ours: Rtnetlink) -> None:
    assert ours.link("nothing") is None
    assert ours.link(index=4711) is None


def test_link_that_may_not_be_asked_for() -> None:
    with pytest.raises(NetlinkError, match="looking up net1: Operation not permitted"):
        over(Wire(acknowledged(1, errno.EPERM))).link("net1")


def test_kernel_that_does_not_answer() -> None:
    with pytest.raises(NetlinkError) as caught:
        over(Wire()).link("net1")
    assert caught.value.errno == errno.ETIMEDOUT


def test_answers_to_earlier_requests_are_passed_over() -> None:
    late = framed(16, 2, 0, bytes(16)) + acknowledged(0, errno.EPERM)
    assert over(Wire(late, acknowledged(1))).do(netlink.set_up(1, "x")) == [[]]


def test_questions_in_a_batch_are_answered_in_order(netns: Namespace, ours: Rtnetlink) -> None:
    netns.add("net1", "veth", peer="far")
    answers = ours.do(netlink.get_link("far"), netlink.set_up(netns.index("net1"), "net1"), netlink.get_link("net1"))
    far, nothing, net1 = ([netlink.parse_link(body).name for body in bodies] for bodies in answers)
    assert (far, nothing, net1) == (["far"], [], ["net1"])


ONE_LINK = struct.pack("=BxHiII", 0, 1, 7, 0, 0)


def test_interrupted_dump_is_asked_again() -> None:
    interrupted = framed(16, 2 | NLM_F_DUMP_INTR, 1, ONE_LINK) + done(1, 2 | NLM_F_DUMP_INTR)
    wire = Wire(interrupted, framed(16, 2, 2, ONE_LINK), done(2))
    assert [found.index for found in over(wire).links()] == [7]
    assert len(wire.sent) == 2


def test_interrupted_dump_is_read_to_its_end_before_the_next() -> None:
    """The kernel refuses a dump with EBUSY while one is not read to its end."""

    class Kernel(Wire):
        def send(self, data: bytes) -> int:
            first = not self.sent
            super().send(data)
            if first:
                self.answers = [framed(16, 2 | NLM_F_DUMP_INTR, 1, ONE_LINK), framed(16, 2, 1, ONE_LINK), done(1)]
            elif self.answers:
                self.answers.append(acknowledged(len(self.sent), errno.EBUSY))
            else:
                self.answers = [framed(16, 2, len(self.sent), ONE_LINK), done(len(self.sent))]
            return len(data)

    assert [found.index for found in over(Kernel()).links()] == [7]


def test_dump_that_is_refused_is_not_asked_again() -> None:
    wire = Wire(acknowledged(1, errno.EPERM))
    with pytest.raises(NetlinkError, match="listing interfaces: Operation not permitted"):
        over(wire).links()
    assert len(wire.sent) == 1


def test_dump_that_never_settles_is_an_error() -> None:
    wire = Wire(*(done(number, 2 | NLM_F_DUMP_INTR) for number in range(1, 100)))
    with pytest.raises(NetlinkError, match="listing interfaces: the list changed while it was read"):
        over(wire).links()
    assert len(wire.sent) < 50


def test_long_list_that_changes_while_it_is_read(netns: Namespace, ours: Rtnetlink) -> None:
    """More links than fit into one answer, one coming or going between any two."""
    for number in range(60):
        netns.iproute.link("add", ifname=f"v{number}", kind="veth", peer=f"w{number}")
    whole = {f"{end}{number}" for end in "vw" for number in range(60)} | {"lo"}

    real = ours.__dict__["_socket"]
    changes = iter(range(3))

    class Meddled:
        def send(self, data: bytes) -> int:
            return int(real.send(data))

        def recv(self, size: int) -> bytes:
            answer = bytes(real.recv(min(size, 1 << 14)))
            number = next(changes, None)
            if number is not None:
                netns.iproute.link("add", ifname=f"extra{number}", kind="veth", peer=f"artxe{number}")
            return answer

    ours.__dict__["_socket"] = Meddled()
    try:
        assert whole <= {found.name for found in ours.links()}
        assert next(changes, None) is None, "the list did not change while it was read"
        assert ours.link("v0") is not None
    finally:
        ours.__dict__["_socket"] = real


@given(st.binary(max_size=200))
def test_attributes_of_anything(data: bytes) -> None:
    found = netlink.attributes(data, 0)
    assert sum(4 + len(value) for value in found.values()) <= len(data) + 3
