"""The DHCP codec: scapy judges what is encoded and encodes what is decoded; what servers get wrong is in tables."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP, DHCPRevOptions, DHCPTypes

from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.message import Message, MessageError
from ovn_k8s_cni.system.ipv4 import parse as ip

pytestmark = pytest.mark.timeout(60)

COOKIE = b"\x63\x82\x53\x63"
MAC = b"\x0a\x58\xc0\x00\x02\x07"
END = b"\xff"


def tlv(code: int, value: bytes) -> bytes:
    return bytes([code, len(value)]) + value


ACK = tlv(53, b"\x05")
SERVER = tlv(54, ip("192.0.2.1"))


def packet(
    options: bytes,
    *,
    sname: bytes = b"",
    file: bytes = b"",
    op: int = 2,
    hardware: tuple[int, int] = (1, 6),
    cookie: bytes = COOKIE,
) -> bytes:
    """Return a DHCP message, written down from RFC 2131 figure 1."""
    fixed = struct.pack(
        "!BBBBIHH4s4s4s4s16s64s128s",
        op, *hardware, 0, 0x01020304, 5, 0x8000, bytes(4), ip("192.0.2.7"), bytes(4), bytes(4), MAC, sname, file,
    )  # fmt: skip
    return fixed + cookie + options


def decoded(*options: bytes) -> Message:
    """Return an ACK with `options`."""
    return dhcp.decode(packet(ACK + b"".join(options) + END))


# ---- scapy as the judge

U32 = st.integers(0, 2**32 - 1)
HOSTS = st.builds(
    lambda first, rest: socket.inet_ntoa(bytes([first]) + rest),
    st.integers(1, 223).filter(lambda first: first != 127),
    st.binary(min_size=3, max_size=3),
)
HOST_LISTS = st.lists(HOSTS, min_size=1, max_size=5)
LABELS = st.from_regex(r"[a-zA-Z0-9_-]{1,63}", fullmatch=True)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join).filter(lambda name: len(name) <= 253)


def hosts_raw(values: Iterable[str]) -> bytes:
    return b"".join(map(socket.inet_aton, values))


# Code: scapy's name, values as scapy has them, the bytes of the option.
TYPED: dict[int, tuple[str, st.SearchStrategy[list[Any]], Callable[[list[Any]], bytes]]] = {
    1: ("subnet_mask", st.integers(0, 32).map(lambda n: [socket.inet_ntoa((~((1 << 32 - n) - 1) & 0xFFFFFFFF)
        .to_bytes(4, "big"))]), hosts_raw),
    3: ("router", HOST_LISTS, hosts_raw),
    6: ("name_server", HOST_LISTS, hosts_raw),
    15: ("domain", NAMES.map(lambda name: [name.encode()]), b"".join),
    26: ("interface-mtu", st.integers(68, 65535).map(lambda n: [n]), lambda v: struct.pack("!H", v[0])),
    42: ("NTP_server", HOST_LISTS, hosts_raw),
    51: ("lease_time", U32.map(lambda n: [n]), lambda v: struct.pack("!I", v[0])),
    54: ("server_id", HOSTS.map(lambda host: [host]), hosts_raw),
    58: ("renewal_time", U32.map(lambda n: [n]), lambda v: struct.pack("!I", v[0])),
    59: ("rebinding_time", U32.map(lambda n: [n]), lambda v: struct.pack("!I", v[0])),
    61: ("client_id", st.binary(min_size=1, max_size=255).map(lambda b: [b]), b"".join),
}  # fmt: skip
MESSAGE_TYPES = st.integers(1, 8)
OPTIONS = (
    st.fixed_dictionaries({}, optional={code: values for code, (_, values, _) in TYPED.items()})
    .map(lambda found: list(found.items()))
    .flatmap(st.permutations)
)
FIXED = st.fixed_dictionaries(
    {
        "op": st.sampled_from([1, 2]),
        "xid": U32,
        "flags": st.sampled_from([0, 0x8000]),
        "secs": st.integers(0, 65535),
        **dict.fromkeys(("ciaddr", "yiaddr", "siaddr", "giaddr"), st.binary(min_size=4, max_size=4)),
    }
)
CHADDRS = st.binary(min_size=6, max_size=6)


def as_scapy(options: list[tuple[int, list[Any]]]) -> list[tuple[Any, ...]]:
    return [(TYPED[code][0], *values) for code, values in options]


def as_bytes(options: list[tuple[int, list[Any]]]) -> dict[int, bytes]:
    return {code: TYPED[code][2](values) for code, values in options}


def texts(fixed: dict[str, Any]) -> dict[str, Any]:
    return {key: socket.inet_ntoa(value) if key.endswith("iaddr") else value for key, value in fixed.items()}


@given(FIXED, CHADDRS, MESSAGE_TYPES, OPTIONS)
def test_scapy_reads_what_is_encoded(
    fixed: dict[str, Any], chaddr: bytes, kind: int, options: list[tuple[int, list[Any]]]
) -> None:
    raw = {53: bytes([kind])} | as_bytes(options)
    encoded = dhcp.encode(Message(chaddr=chaddr, options=raw, **fixed))
    read = BOOTP(encoded)
    assert {key: getattr(read, key) for key in fixed} == {**texts(fixed), "flags": read.flags}
    assert (int(read.flags), read.htype, read.hlen, read.hops) == (fixed["flags"], 1, 6, 0)
    assert (read.chaddr, read.sname, read.file) == (chaddr + bytes(10), bytes(64), bytes(128))
    *found, end = [option for option in read[DHCP].options if option != "pad"]
    assert found == [("message-type", kind), *as_scapy(options)]
    assert end == "end"


@given(FIXED, CHADDRS, MESSAGE_TYPES, OPTIONS)
def test_what_scapy_builds_is_decoded(
    fixed: dict[str, Any], chaddr: bytes, kind: int, options: list[tuple[int, list[Any]]]
) -> None:
    built = BOOTP(**texts(fixed), chaddr=chaddr) / DHCP(options=[("message-type", kind), *as_scapy(options), "end"])
    found = dhcp.decode(bytes(built))
    assert {key: getattr(found, key) for key in fixed} == fixed
    assert (found.chaddr, found.kind()) == (chaddr, kind)
    assert dict(found.options) == {53: bytes([kind])} | as_bytes(options)


@given(MESSAGE_TYPES, OPTIONS)
def test_values_are_what_scapy_put_in(kind: int, options: list[tuple[int, list[Any]]]) -> None:
    values = dict(options)
    message = dhcp.decode(
        bytes(BOOTP(op=2, chaddr=MAC) / DHCP(options=[("message-type", kind), *as_scapy(options), "end"]))
    )

    def one(code: int) -> Any:
        return values[code][0] if code in values else None

    for code in (3, 6, 42):
        assert [socket.inet_ntoa(host) for host in dhcp.addresses(message, code)] == values.get(code, [])
    for code in (51, 58, 59):
        assert dhcp.seconds(message, code) == one(code)
    assert dhcp.interface_mtu(message) == one(26)
    server = dhcp.server_id(message)
    assert (server and socket.inet_ntoa(server)) == one(54)
    domain = dhcp.domain_name(message)
    assert (domain and domain.encode()) == one(15)
    prefix = dhcp.prefix_length(message)
    assert (None if prefix is None else bin(int.from_bytes(ip(one(1)), "big")).count("1")) == prefix


@given(st.dictionaries(st.sampled_from([15, 119, 224]), st.binary(max_size=900), min_size=1))
def test_long_options_are_split_and_joined(options: dict[int, bytes]) -> None:
    whole = {53: b"\x05"} | options
    encoded = dhcp.encode(Message(op=2, xid=1, chaddr=MAC, options=whole))
    assert dhcp.decode(encoded).options == whole
    # scapy, which joins nothing, sees the pieces in order.
    pieces = [option for option in BOOTP(encoded)[DHCP].options if isinstance(option, tuple) and option[0] == 224]
    assert b"".join(piece for _, piece in pieces) == options.get(224, b"")


@pytest.mark.parametrize("size", [0, 1, 40, 100])
def test_at_least_300_bytes_are_sent(size: int) -> None:
    encoded = dhcp.encode(Message(op=1, xid=1, chaddr=MAC, options={53: b"\x01", 61: bytes(size)}))
    assert len(encoded) == max(300, 240 + 3 + 2 + size + 1)
    assert dhcp.decode(encoded).options[61] == bytes(size)


NAMES_OF_SCAPY = {
    "SUBNET_MASK": "subnet_mask", "ROUTER": "router", "DNS_SERVER": "name_server", "DOMAIN_NAME": "domain",
    "MTU": "interface-mtu", "STATIC_ROUTE": "static-routes", "NTP": "NTP_server", "REQUESTED_ADDRESS": "requested_addr",
    "LEASE_TIME": "lease_time", "OVERLOAD": "dhcp-option-overload", "MESSAGE_TYPE": "message-type",
    "SERVER_ID": "server_id", "PARAMETERS": "param_req_list", "MESSAGE": "error_message",
    "RENEWAL_TIME": "renewal_time", "REBINDING_TIME": "rebinding_time", "CLIENT_ID": "client_id",
    "CLASSLESS_ROUTE": "classless_static_routes",
}  # fmt: skip


@pytest.mark.parametrize(("ours", "scapys"), NAMES_OF_SCAPY.items())
def test_codes_are_scapys(ours: str, scapys: str) -> None:
    assert getattr(dhcp, ours) == DHCPRevOptions[scapys][0]


@pytest.mark.parametrize("kind", range(1, 9))
def test_message_types_are_scapys(kind: int) -> None:
    assert dhcp.TYPE_NAMES[kind].lower() == DHCPTypes[kind]
    assert getattr(dhcp, dhcp.TYPE_NAMES[kind]) == kind


# ---- the frame around the options


def test_smallest_message_is_accepted() -> None:
    assert dhcp.decode(packet(ACK)).options == {53: b"\x05"}


@pytest.mark.parametrize("length", range(241))
def test_too_short(length: int) -> None:
    with pytest.raises(MessageError):
        dhcp.decode(packet(ACK)[:length])


@pytest.mark.parametrize(
    "payload",
    [
        packet(ACK, op=0),
        packet(ACK, op=3),
        packet(ACK, hardware=(6, 6)),
        packet(ACK, hardware=(1, 0)),
        packet(ACK, hardware=(1, 16)),
        packet(ACK, hardware=(1, 255)),
        packet(ACK, cookie=b"\x63\x82\x53\x64"),
        packet(ACK, cookie=bytes(4)),
    ],
    ids=["op 0", "op 3", "IEEE 802", "no address", "16 bytes", "255 bytes", "another cookie", "BOOTP"],
)
def test_no_dhcp_message(payload: bytes) -> None:
    with pytest.raises(MessageError):
        dhcp.decode(payload)


# ---- options as servers write them

ROUTER = tlv(3, ip("192.0.2.254"))
FOUND = {53: b"\x05", 3: ip("192.0.2.254"), 54: ip("192.0.2.1")}


@pytest.mark.parametrize(
    "options",
    [
        ACK + SERVER + ROUTER + END,
        ROUTER + SERVER + ACK + END,
        bytes(3) + ACK + bytes(1) + SERVER + bytes(2) + ROUTER + bytes(5) + END,
        ACK + SERVER + ROUTER,
        ACK + SERVER + ROUTER + bytes(60),
        ACK + SERVER + ROUTER + END + bytes(60),
        ACK + SERVER + ROUTER + END + tlv(53, b"\x06") + tlv(3, ip("192.0.2.9")),
        ACK + SERVER + ROUTER + END + b"garbage behind the end \xff\x03\xff",
        ACK + SERVER + ROUTER + b"\x06",
        ACK + SERVER + ROUTER + b"\x06\x04\xc0\x00\x02",
        ACK + SERVER + ROUTER + b"\x06\xff",
    ],
    ids=["plain", "any order", "pads", "no end", "no end, pads", "pads behind the end", "options behind the end",
         "garbage behind the end", "cut after a code", "cut in a value", "cut after a length"],
)  # fmt: skip
def test_options(options: bytes) -> None:
    assert dhcp.decode(packet(options)).options == FOUND


@pytest.mark.parametrize(
    ("overload", "expected"),
    [
        (None, ["main"]),
        (b"", ["main"]),
        (b"\x00", ["main"]),
        (b"\x01", ["main", "file"]),
        (b"\x02", ["main", "sname"]),
        (b"\x03", ["main", "file", "sname"]),
        (b"\x04", ["main"]),
        (b"\xff", ["main"]),
    ],
)
def test_overload(overload: bytes | None, expected: list[str]) -> None:
    said = b"" if overload is None else tlv(52, overload)
    payload = packet(
        ACK + tlv(15, b"main ") + said + END,
        file=tlv(15, b"file ") + END + tlv(15, b"not "),
        sname=bytes(2) + tlv(15, b"sname ") + END,
    )
    assert dhcp.decode(payload).options[15].decode().split() == expected


def test_overload_may_fill_its_fields_to_the_last_byte() -> None:
    payload = packet(ACK + tlv(52, b"\x03") + END, file=tlv(6, bytes(126)), sname=tlv(6, bytes(range(62))))
    assert dhcp.decode(payload).options[6] == bytes(126) + bytes(range(62))


def test_overload_does_not_reach_from_one_field_into_the_next() -> None:
    """An option that is cut off by the end of its field ends that field, and no other."""
    payload = packet(ACK + tlv(52, b"\x03") + END, file=bytes(100) + b"\x06\x40" + bytes(26), sname=ROUTER)
    options = dhcp.decode(payload).options
    assert 6 not in options
    assert options[3] == ip("192.0.2.254")


def test_overload_is_not_recursive() -> None:
    payload = packet(ACK + tlv(52, b"\x01") + END, file=tlv(52, b"\x03") + END, sname=ROUTER + END)
    assert 3 not in dhcp.decode(payload).options


def test_overload_in_a_field_alone_says_nothing() -> None:
    assert 3 not in dhcp.decode(packet(ACK + END, file=tlv(52, b"\x02") + END, sname=ROUTER + END)).options


def test_message_type_may_stand_in_an_overloaded_field() -> None:
    assert dhcp.decode(packet(tlv(52, b"\x01") + END, file=ACK + END)).kind() == dhcp.ACK


@pytest.mark.parametrize("code", [3, 6, 15, 33, 42, 61, 119, 121, 224])
def test_repeated_options_are_joined(code: int) -> None:
    """RFC 3396: also when another option, a pad or the cut of an address stands between them."""
    message = decoded(tlv(code, b"\xc0\x00\x02"), b"\0", SERVER, tlv(code, b""), tlv(code, b"\x01"))
    assert message.options[code] == b"\xc0\x00\x02\x01"


@pytest.mark.parametrize("code", [1, 26, 50, 51, 54, 58, 59])
def test_of_repeated_options_of_fixed_length_the_first_counts(code: int) -> None:
    size = 2 if code == 26 else 4
    first, second = bytes([10] * size), bytes([11] * size)
    payload = packet(ACK + tlv(52, b"\x01") + tlv(code, first) + tlv(code, second) + END, file=tlv(code, second))
    assert dhcp.decode(payload).options[code] == first


def test_of_two_message_types_the_first_counts() -> None:
    assert decoded(tlv(53, b"\x06")).kind() == dhcp.ACK


# ---- broken options

NO_SERVER = [b"", b"\xc0", ip("192.0.2.1")[:3], ip("192.0.2.1") + b"\0", ip("192.0.2.1") * 2, bytes(4),
             ip("127.0.0.1"), ip("224.0.0.1"), ip("240.0.0.1"), b"\xff" * 4]  # fmt: skip


@pytest.mark.parametrize("value", NO_SERVER, ids=lambda value: value.hex() or "empty")
def test_broken_server_identifier_drops_the_packet(value: bytes) -> None:
    with pytest.raises(MessageError, match="option 54"):
        decoded(tlv(54, value))
    with pytest.raises(MessageError, match="option 54"):
        decoded(tlv(54, value), SERVER)


@pytest.mark.parametrize(
    "options",
    [b"", END, SERVER, tlv(53, b""), tlv(53, b"\x00"), tlv(53, b"\x09"), tlv(53, b"\xff"), tlv(53, b"\x05\x05"),
     tlv(53, b"") + ACK, tlv(53, b"\x00") + ACK, END + ACK, b"\x35", b"\x35\x01"],
)  # fmt: skip
def test_broken_message_type_drops_the_packet(options: bytes) -> None:
    with pytest.raises(MessageError):
        dhcp.decode(packet(options))


BROKEN: list[tuple[Callable[[Message], object], int, list[bytes]]] = [
    (dhcp.prefix_length, 1, [b"", b"\xff\xff\xff", b"\xff\xff\xff\x00\x00"]),
    (lambda message: dhcp.seconds(message, 51), 51, [b"", b"\x00", b"\x00\x00\x0e", bytes(8)]),
    (dhcp.interface_mtu, 26, [b"", b"\x05", b"\x05\xdc\x00", b"\x00\x00", b"\x00\x43"]),
    (
        lambda message: dhcp.addresses(message, 3),
        3,
        [b"\xc0", ip("192.0.2.1") + b"\xc0\x00", bytes(4), ip("192.0.2.1") + b"\xff" * 4, ip("127.1.1.1")],
    ),
    (
        dhcp.domain_name,
        15,
        [b"", b"\0", b".", b"..", b"a..b", b".a", b"a b", b"a\nnameserver 6.6.6.6", b"a\0b", "ä".encode(), b"a/b",
         b"x" * 64, b"a;b", b"a#b"],
    ),
    (
        dhcp.domain_search,
        119,
        [b"\0", b"\x01a", b"\x01", b"\x05ab\0", b"\x40" + b"x" * 64 + b"\0", b"\x80a\0", b"\x01 \0", b"\x01\n\0",
         b"\x01.\0", b"\x01a\xc0", b"\x01a\0\xc0", b"\xc0\x00", b"\x01a\xc0\x00", b"\x01a\xc0\x02", b"\x01a\xc0\x05",
         b"\xc0\x02\x01a\0", b"\x01a\xff\xff", b"\x01a\0\xc0\x02", b"\x01a\0\x01b\xc0\x03", b"\x01a\0\0"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "code", "value"),
    [(read, code, value) for read, code, values in BROKEN for value in values],
    ids=[f"{code}: {value!r:.30}" for _, code, values in BROKEN for value in values],
)
def test_broken_option(read: Callable[[Message], object], code: int, value: bytes) -> None:
    """The packet is good; only who asks for the option is told."""
    message = decoded(tlv(code, value), SERVER)
    assert dhcp.server_id(message) == ip("192.0.2.1")
    with pytest.raises(MessageError):
        read(message)


def test_absent_options() -> None:
    message = decoded()
    nothing = [dhcp.prefix_length, dhcp.server_id, dhcp.interface_mtu, dhcp.domain_name]
    assert [read(message) for read in nothing] == [None] * 4
    assert [dhcp.seconds(message, code) for code in (51, 58, 59)] == [None] * 3
    assert dhcp.addresses(message, 3) == ()
    assert dhcp.domain_search(message) == ()


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [(b"\xff\xff\xff\xff", dhcp.INFINITE), (b"\x80\x00\x00\x00", 2**31), (bytes(4), 0), (b"\x00\x00\x0e\x10", 3600)],
)
def test_lease_times_are_unsigned(raw: bytes, seconds: int) -> None:
    assert dhcp.seconds(decoded(tlv(51, raw)), 51) == seconds


@given(
    st.one_of(st.binary(min_size=4, max_size=4), st.integers(0, 32).map(lambda n: (2**32 - 2**n).to_bytes(4, "big")))
)
@example(ip("255.255.255.255"))
@example(ip("0.0.0.0"))
@example(ip("255.0.255.0"))
@example(ip("0.0.0.255"))
@example(ip("255.255.255.1"))
def test_masks_with_holes(mask: bytes) -> None:
    bits = "".join(f"{byte:08b}" for byte in mask)
    message = decoded(tlv(1, mask))
    if re.fullmatch("1*0*", bits):
        assert dhcp.prefix_length(message) == bits.count("1")
    else:
        with pytest.raises(MessageError, match="not contiguous"):
            dhcp.prefix_length(message)


# ---- names


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"example.org", "example.org"),
        (b"example.org.", "example.org"),
        (b"example.org\0", "example.org"),
        (b"example.org.\0\0", "example.org"),
        (b"_ldap._tcp.EXAMPLE-1.org", "_ldap._tcp.EXAMPLE-1.org"),
        (b"x" * 63, "x" * 63),
        (b".".join([b"x" * 63] * 3 + [b"x" * 61]), ".".join(["x" * 63] * 3 + ["x" * 61])),
    ],
)
def test_domain_name(raw: bytes, name: str) -> None:
    assert dhcp.domain_name(decoded(tlv(15, raw))) == name


@pytest.mark.parametrize("last", [62, 63])
def test_domain_name_of_more_than_253_bytes(last: int) -> None:
    name = b".".join([b"x" * 63] * 3 + [b"x" * last])
    with pytest.raises(MessageError, match="option 15"):
        dhcp.domain_name(decoded(tlv(15, name)))


def wire_name(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def compressed(names: Iterable[str]) -> bytes:
    """Return a search list in which every tail that was there before is a pointer (RFC 1035, section 4.1.4)."""
    known: dict[str, int] = {}
    raw = b""
    for name in names:
        rest = name
        while rest and rest not in known:
            if len(raw) < 1 << 14:
                known[rest] = len(raw)
            label, _, rest = rest.partition(".")
            raw += bytes([len(label)]) + label.encode()
        raw += (0xC000 | known[rest]).to_bytes(2, "big") if rest else b"\0"
    return raw


SEARCH_LISTS = st.lists(
    st.lists(st.sampled_from(["a", "b", "eng", "example", "org", "x" * 63]), min_size=1, max_size=3).map(".".join),
    max_size=8,
)


@given(SEARCH_LISTS)
def test_search_list(names: list[str]) -> None:
    for raw in (b"".join(map(wire_name, names)), compressed(names)):
        message = dhcp.decode(dhcp.encode(Message(op=2, xid=1, chaddr=MAC, options={53: b"\x05", 119: raw})))
        assert list(dhcp.domain_search(message)) == names


def test_pointer_beyond_the_first_256_bytes() -> None:
    names = [*(f"{letter * 63}" for letter in "abcde"), "eng.example.org", "www.example.org"]
    raw = compressed(names)
    assert raw[-2] == 0xC1, "its high bits count"
    message = dhcp.decode(dhcp.encode(Message(op=2, xid=1, chaddr=MAC, options={53: b"\x05", 119: raw})))
    assert list(dhcp.domain_search(message)) == names


def test_search_list_of_rfc_3397() -> None:
    """The example of its section 2, in two options, cut within a name."""
    raw = (
        b"\x03eng\x05apple\x03com\x00"  # at offset 4 stands apple.com
        b"\x09marketing\xc0\x04"
    )
    assert compressed(["eng.apple.com", "marketing.apple.com"]) == raw
    message = decoded(tlv(119, raw[:9]), SERVER, tlv(119, raw[9:]))
    assert dhcp.domain_search(message) == ("eng.apple.com", "marketing.apple.com")


@pytest.mark.parametrize(("last", "accepted"), [(61, True), (62, False), (63, False)])
def test_longest_name_in_a_search_list(last: int, accepted: bool) -> None:
    name = ".".join(["x" * 63] * 3 + ["x" * last])
    message = dhcp.decode(dhcp.encode(Message(op=2, xid=1, chaddr=MAC, options={53: b"\x05", 119: wire_name(name)})))
    if accepted:
        assert dhcp.domain_search(message) == (name,)
    else:
        with pytest.raises(MessageError):
            dhcp.domain_search(message)


def test_pointers_to_pointers_cost_little() -> None:
    """As many as fit into a jumbo frame, each name a chain through all that stand before it."""
    chain = b"\x01a\0" + b"".join((0xC000 | (at - 2 if at > 3 else 0)).to_bytes(2, "big") for at in range(3, 8900, 2))
    message = dhcp.decode(dhcp.encode(Message(op=2, xid=1, chaddr=MAC, options={53: b"\x05", 119: chain})))
    started = time.process_time()
    with contextlib.suppress(MessageError):
        dhcp.domain_search(message)
    assert time.process_time() - started < 0.2


# ---- anything at all

OPTION_BYTES = st.one_of(
    st.binary(max_size=120),
    st.lists(
        st.builds(
            tlv,
            st.sampled_from([0, 1, 3, 6, 15, 26, 33, 51, 52, 53, 54, 58, 59, 61, 119, 121, 255]),
            st.binary(max_size=24),
        )
    ).map(b"".join),
)
PAYLOADS = st.one_of(
    st.binary(max_size=300),
    st.builds(
        lambda options, sname, file: packet(ACK + options, sname=sname, file=file),
        OPTION_BYTES,
        st.binary(max_size=64),
        st.binary(max_size=128),
    ),
)
READERS: list[Callable[[Message], object]] = [
    Message.kind,
    dhcp.server_id,
    dhcp.prefix_length,
    dhcp.interface_mtu,
    dhcp.domain_name,
    dhcp.domain_search,
    lambda message: dhcp.seconds(message, 51),
    lambda message: dhcp.addresses(message, 3),
    lambda message: dhcp.addresses(message, 6),
]


def tried(read: Callable[[Any], Any], argument: object) -> Any:
    """Return what `read` returns, None where it raises MessageError; any other exception fails the test."""
    try:
        return read(argument)
    except MessageError:
        return None


@settings(max_examples=5000)
@given(PAYLOADS)
def test_nothing_but_message_error(payload: bytes) -> None:
    message = tried(dhcp.decode, payload)
    assert message is None or payload[236:240] == COOKIE
    for read in READERS if message else []:
        value = tried(read, message)
        assert value is None or isinstance(value, int | bytes | str | tuple)


@settings(max_examples=500)
@given(PAYLOADS)
def test_decoded_messages_survive_a_round_trip(payload: bytes) -> None:
    message = tried(dhcp.decode, payload)
    if message is not None:
        options = {code: value for code, value in message.options.items() if code != dhcp.OVERLOAD}
        again = dhcp.decode(dhcp.encode(message.replace(options=options)))
        assert again == message.replace(options=options)
