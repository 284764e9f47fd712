"""IPv4 addresses as bytes, beside the standard library's `ipaddress`, which is too dear to import."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ovn_k8s_cni.system import ipv4

pytestmark = pytest.mark.timeout(30)

RAW = st.binary(min_size=4, max_size=4)
PREFIXES = st.integers(0, 32)


@given(RAW)
def test_text_and_back(raw: bytes) -> None:
    assert ipv4.text(raw) == str(ipaddress.IPv4Address(raw))
    assert ipv4.parse(ipv4.text(raw)) == raw


@given(st.text("0123456789.+-_ x\u0663", max_size=16))
@example("255.255.255.255")
@example("256.0.0.1")
@example("01.2.3.4")
@example("1.2.3")
@example("1.2.3.4.5")
@example("1..3.4")
@example("+1.2.3.4")
@example("1_0.2.3.4")
@example("\u0663.2.3.4")
def test_what_ipaddress_refuses_is_refused(text: str) -> None:
    try:
        expected = ipaddress.IPv4Address(text).packed
    except ValueError:
        with pytest.raises(ValueError, match="is not an IPv4 address"):
            ipv4.parse(text)
    else:
        assert ipv4.parse(text) == expected


@pytest.mark.parametrize("value", [None, 5, b"1.2.3.4", ["1.2.3.4"], 1.2, True])
def test_what_is_no_text(value: object) -> None:
    with pytest.raises(ValueError, match="is not an IPv4 address"):
        ipv4.parse(value)
    with pytest.raises(ValueError, match="with a prefix length"):
        ipv4.parse_prefix(value)


@given(RAW, PREFIXES)
def test_networks(raw: bytes, prefix: int) -> None:
    interface = ipaddress.IPv4Interface((raw, prefix))
    assert ipv4.parse_prefix(str(interface)) == (raw, prefix)
    assert ipv4.network(raw, prefix) == interface.network.network_address.packed
    broadcast = ipv4.broadcast(raw, prefix)
    assert broadcast == (interface.network.broadcast_address.packed if prefix <= 30 else None)
    assert ipv4.prefix_of_mask(interface.network.netmask.packed) == prefix


@pytest.mark.parametrize(
    "text",
    ["1.2.3.4", "1.2.3.4/", "1.2.3.4/33", "1.2.3.4/+8", "1.2.3.4/08", "1.2.3.4/8/8", "/8", "x/8", "1.2.3.4/255.0.0.0",
     "1.2.3.4/\u0663", "1.2.3.4 /8"],
)  # fmt: skip
def test_malformed_prefix(text: str) -> None:
    with pytest.raises(ValueError, match="is not an IPv4 address"):
        ipv4.parse_prefix(text)


@pytest.mark.parametrize("mask", [b"", b"\xff", b"\xff\xff\xff", b"\xff\xff\xff\xff\x00", b"\xff\xff\xff\xff\x80"])
def test_mask_of_another_length(mask: bytes) -> None:
    with pytest.raises(ValueError, match="not contiguous"):
        ipv4.prefix_of_mask(mask)


@given(RAW, st.integers(1, 32))
@example(b"\xc0\0\2\4", 30)
@example(b"\xc0\0\2\7", 30)
@example(b"\xc0\0\2\4", 31)
@example(b"\xdf\xff\xff\xff", 32)
def test_who_can_be_a_host(raw: bytes, prefix: int) -> None:
    address = ipaddress.IPv4Address(raw)
    network = ipaddress.IPv4Interface((raw, prefix)).network
    never = raw[0] == 0 or address.is_loopback or address.is_multicast or raw[0] >= 240
    inside = prefix >= 31 or address not in (network.network_address, network.broadcast_address)
    assert (ipv4.host_trouble(raw, prefix) is None) == (not never and inside)
    assert (ipv4.host_trouble(raw) is None) == (not never)
