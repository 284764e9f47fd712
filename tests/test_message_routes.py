"""Routes in DHCP messages, options 121 (RFC 3442) and 33 (RFC 2132, 5.8): scapy builds them and reads them too."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP

from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.message import Message, MessageError, Route
from ovn_k8s_cni.system.ipv4 import parse as ip

pytestmark = pytest.mark.timeout(60)

MAC = b"\x0a\x58\xc0\x00\x02\x07"
ON_LINK = "0.0.0.0"


def with_option(code: int, value: bytes) -> Message:
    """Return an ACK with an option, having been on the wire."""
    return dhcp.decode(dhcp.encode(Message(op=2, xid=1, chaddr=MAC, options={53: b"\x05", code: value})))


def built_by_scapy(option: tuple[Any, ...]) -> Message:
    options = [("message-type", 5), option, "end"]
    return dhcp.decode(bytes(BOOTP(op=2, chaddr=MAC) / DHCP(options=options)))


def read_by_scapy(message: Message, name: str) -> list[str]:
    options = BOOTP(dhcp.encode(message))[DHCP].options
    (found,) = [option for option in options if isinstance(option, tuple) and option[0] == name]
    # A list of one is handed over as a list, a longer one as so many values.
    values = found[1] if len(found) == 2 and isinstance(found[1], list) else found[1:]
    return [str(value) for value in values]


ADDRESSES = st.binary(min_size=4, max_size=4).map(socket.inet_ntoa)
ROUTERS = st.builds(
    lambda first, rest: socket.inet_ntoa(bytes([first]) + rest),
    st.integers(1, 223).filter(lambda first: first != 127),
    st.binary(min_size=3, max_size=3),
)


def masked(destination: str, prefix: int) -> bytes:
    return ipaddress.ip_network((destination, prefix), strict=False).network_address.packed


# ---- option 121

CLASSLESS = st.lists(
    st.tuples(ADDRESSES, st.integers(0, 32), st.one_of(ROUTERS, st.just(ON_LINK))), min_size=1, max_size=20
)


def expected(routes: list[tuple[str, int, str]]) -> tuple[Route, ...]:
    return tuple(
        Route(masked(destination, prefix), prefix, None if router == ON_LINK else ip(router))
        for destination, prefix, router in routes
    )


@given(CLASSLESS)
@example([("10.0.0.0", 8, "192.0.2.1"), ("0.0.0.0", 0, "192.0.2.1"), ("203.0.113.7", 32, ON_LINK)])
@example([("10.229.255.255", 20, "192.0.2.1")])  # host bits among the significant bytes
def test_what_scapy_builds_is_decoded(routes: list[tuple[str, int, str]]) -> None:
    texts = [f"{destination}/{prefix}:{router}" for destination, prefix, router in routes]
    assert dhcp.classless_routes(built_by_scapy(("classless_static_routes", *texts))) == expected(routes)


def wire_route(destination: bytes, prefix: int, router: bytes) -> bytes:
    return bytes([prefix]) + destination[: (prefix + 7) // 8] + router


@given(CLASSLESS)
def test_scapy_reads_what_is_decoded(routes: list[tuple[str, int, str]]) -> None:
    """Bytes written down from RFC 3442; longer lists come in several options, which scapy does not join."""
    short = routes[:20]
    value = b"".join(wire_route(masked(net, prefix), prefix, ip(router)) for net, prefix, router in short)
    message = with_option(121, value)
    assert dhcp.classless_routes(message) == expected(short)
    assert read_by_scapy(message, "classless_static_routes") == [
        f"{socket.inet_ntoa(route.destination)}/{route.prefix}:"
        f"{socket.inet_ntoa(route.router) if route.router else ON_LINK}"
        for route in dhcp.classless_routes(message)
    ]


ROUTE_BYTES = st.one_of(
    st.builds(wire_route, ADDRESSES.map(ip), st.integers(0, 32), ROUTERS.map(ip)),
    st.builds(wire_route, ADDRESSES.map(ip), st.integers(0, 40), ADDRESSES.map(ip)),
    st.binary(max_size=9),
)


@given(st.lists(ROUTE_BYTES, min_size=1, max_size=12).map(b"".join))
def test_any_bytes_are_read_as_scapy_reads_them_or_not_at_all(value: bytes) -> None:
    message = with_option(121, value)
    try:
        routes = dhcp.classless_routes(message)
    except MessageError:
        return
    seen = [text.replace("/", ":").split(":") for text in read_by_scapy(message, "classless_static_routes")]
    assert routes == expected([(destination, int(prefix), router) for destination, prefix, router in seen])


@pytest.mark.parametrize(
    ("prefix", "significant"),
    [(0, 0), (1, 1), (8, 1), (9, 2), (16, 2), (17, 3), (24, 3), (25, 4), (32, 4)],
)
def test_examples_of_rfc_3442(prefix: int, significant: int) -> None:
    """As many bytes of the destination as the prefix covers."""
    value = bytes([prefix]) + b"\xff" * significant + ip("192.0.2.1")
    (route,) = dhcp.classless_routes(with_option(121, value))
    assert route == Route(masked("255.255.255.255", prefix), prefix, ip("192.0.2.1"))


def test_a_list_in_several_options_is_joined_before_it_is_read() -> None:
    """RFC 3396: cut after 255 bytes, within a route."""
    routes = [(f"10.{number}.7.0", 24, "192.0.2.1") for number in range(60)]
    value = b"".join(wire_route(ip(net), prefix, ip(router)) for net, prefix, router in routes)
    assert len(value) > 255
    assert dhcp.classless_routes(with_option(121, value)) == expected(routes)


GOOD = b"\x18\xcb\x00\x71" + ip("192.0.2.251")
BROKEN_121 = {
    "empty": b"",
    "a prefix alone": b"\x00",
    "no router": b"\x18\xcb\x00\x71",
    "half a router": b"\x18\xcb\x00\x71\xc0\x00",
    "33 bits": b"\x21" + b"\x0a" * 9,
    "255 bits": b"\xff" + b"\x0a" * 9,
    "loopback as router": b"\x00" + ip("127.0.0.1"),
    "multicast as router": b"\x00" + ip("224.0.0.1"),
    "broadcast as router": b"\x00" + b"\xff" * 4,
    "0.0.0.1 as router": b"\x00" + ip("0.0.0.1"),
}


@pytest.mark.parametrize("broken", BROKEN_121.values(), ids=BROKEN_121)
def test_broken_121(broken: bytes) -> None:
    with pytest.raises(MessageError, match="option 121"):
        dhcp.classless_routes(with_option(121, broken))


@pytest.mark.parametrize("broken", [value for value in BROKEN_121.values() if value])
def test_121_is_taken_whole_or_not_at_all(broken: bytes) -> None:
    with pytest.raises(MessageError, match="option 121"):
        dhcp.classless_routes(with_option(121, GOOD + broken))


@pytest.mark.parametrize("kept", range(1, len(GOOD)))
def test_121_that_is_cut_off(kept: int) -> None:
    with pytest.raises(MessageError, match="option 121"):
        dhcp.classless_routes(with_option(121, GOOD + GOOD[:kept]))


# ---- option 33

CLASSFUL = st.lists(
    st.tuples(st.integers(1, 223), st.binary(min_size=3, max_size=3), ROUTERS).map(
        lambda found: (socket.inet_ntoa(bytes([found[0]]) + found[1]), found[2])
    ),
    min_size=1,
    max_size=20,
)


def class_prefix(destination: str) -> int:
    """Return the prefix length of the class that an address is in (RFC 791, section 3.2), from its first bits."""
    bits = f"{ip(destination)[0]:08b}"
    return 8 if bits.startswith("0") else 16 if bits.startswith("10") else 24


def expected_classful(routes: list[tuple[str, str]]) -> tuple[Route, ...]:
    return tuple(
        Route(masked(destination, class_prefix(destination)), class_prefix(destination), ip(router))
        for destination, router in routes
    )


@given(CLASSFUL)
@example([("127.255.255.255", "192.0.2.1"), ("128.0.0.1", "192.0.2.1"), ("191.255.1.1", "192.0.2.1")])
@example([("192.0.0.1", "192.0.2.1"), ("223.255.255.255", "192.0.2.1")])
def test_what_scapy_builds_of_33_is_decoded(routes: list[tuple[str, str]]) -> None:
    flat = [address for pair in routes for address in pair]
    assert dhcp.static_routes(built_by_scapy(("static-routes", *flat))) == expected_classful(routes)


@given(CLASSFUL)
def test_scapy_reads_what_is_decoded_of_33(routes: list[tuple[str, str]]) -> None:
    value = b"".join(ip(destination) + ip(router) for destination, router in routes)
    message = with_option(33, value)
    seen = read_by_scapy(message, "static-routes")
    assert dhcp.static_routes(message) == expected_classful(list(zip(seen[::2], seen[1::2], strict=True)))


@pytest.mark.parametrize("destination", ["0.0.0.0", "0.0.0.1", "0.255.0.0"])
def test_destination_zero_is_passed_over(destination: str) -> None:
    """RFC 2132: the default route is an illegal destination for a static route."""
    value = ip(destination) + ip("192.0.2.1") + ip("198.51.100.0") + ip("192.0.2.2")
    assert dhcp.static_routes(with_option(33, value)) == (Route(ip("198.51.100.0"), 24, ip("192.0.2.2")),)


BROKEN_33 = {
    "half a route": ip("198.51.100.0"),
    "a route and a byte": ip("198.51.100.0") + ip("192.0.2.1") + b"\x01",
    "multicast destination": ip("224.0.0.0") + ip("192.0.2.1"),
    "reserved destination": ip("240.0.0.0") + ip("192.0.2.1"),
    "0.0.0.0 as router": ip("198.51.100.0") + bytes(4),
    "loopback as router": ip("198.51.100.0") + ip("127.0.0.1"),
    "broadcast as router": ip("198.51.100.0") + b"\xff" * 4,
}


@pytest.mark.parametrize("broken", BROKEN_33.values(), ids=BROKEN_33)
def test_broken_33(broken: bytes) -> None:
    with pytest.raises(MessageError, match="option 33"):
        dhcp.static_routes(with_option(33, broken))


@given(st.binary(max_size=64))
def test_any_bytes_of_33(value: bytes) -> None:
    try:
        routes = dhcp.static_routes(with_option(33, value))
    except MessageError:
        return
    assert {route.router for route in routes} <= {value[at : at + 4] for at in range(4, len(value), 8)}


def test_absent() -> None:
    message = with_option(15, b"example.org")
    assert dhcp.classless_routes(message) == ()
    assert dhcp.static_routes(message) == ()
