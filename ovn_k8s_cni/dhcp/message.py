"""DHCP messages as bytes and back (RFC 2131 section 2, RFC 2132, 3396, 3397, 3442).

Strict where a wrong reading would give a wrong address, lenient where servers in the field differ. Decoding raises
MessageError and nothing else, and reads nothing beyond its input.
"""

from __future__ import annotations

from _struct import Struct

from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BOOTREQUEST, BOOTREPLY = 1, 2
DISCOVER, OFFER, REQUEST, DECLINE, ACK, NAK, RELEASE, INFORM = range(1, 9)
TYPE_NAMES = ("", "DISCOVER", "OFFER", "REQUEST", "DECLINE", "ACK", "NAK", "RELEASE", "INFORM")

PAD, SUBNET_MASK, ROUTER, DNS_SERVER, DOMAIN_NAME, MTU, STATIC_ROUTE, NTP = 0, 1, 3, 6, 15, 26, 33, 42
REQUESTED_ADDRESS, LEASE_TIME, OVERLOAD, MESSAGE_TYPE, SERVER_ID, PARAMETERS = 50, 51, 52, 53, 54, 55
MESSAGE, RENEWAL_TIME, REBINDING_TIME, CLIENT_ID, DOMAIN_SEARCH, CLASSLESS_ROUTE, END = 56, 58, 59, 61, 119, 121, 255

INFINITE = 0xFFFFFFFF  # seconds: a lease without end (RFC 2131 section 3.3)

_FIXED = Struct("!BBBBIHH4s4s4s4s16s64s128s")  # RFC 2131 figure 1, up to the magic cookie
_COOKIE = b"\x63\x82\x53\x63"
_OPTIONS_AT = _FIXED.size + len(_COOKIE)
_SMALLEST_SENT = 300  # bytes; some relays drop shorter BOOTP messages
_LONGEST_NAME = 253  # characters as text, 255 bytes on the wire (RFC 1035, section 2.3.4)
_MOST_POINTERS = 32  # in one name; chains of thousands would cost seconds

# Their length is fixed, so of several the first counts; all the others are joined (RFC 3396).
_FIXED_LENGTH = frozenset(
    (SUBNET_MASK, REQUESTED_ADDRESS, LEASE_TIME, OVERLOAD, MESSAGE_TYPE, SERVER_ID, RENEWAL_TIME, REBINDING_TIME, MTU)
)


class MessageError(ValueError):
    """Not a DHCP message, or an option that cannot be read."""


class Message(Record):
    """A DHCP message; addresses are 4 raw bytes, `chaddr` the MAC, `options` raw values by code."""

    op: int
    xid: int
    chaddr: bytes
    options: Mapping[int, bytes]
    flags: int = 0
    secs: int = 0
    ciaddr: bytes = bytes(4)
    yiaddr: bytes = bytes(4)
    siaddr: bytes = bytes(4)
    giaddr: bytes = bytes(4)

    def kind(self) -> int:
        """Return the message type (option 53)."""
        return self.options[MESSAGE_TYPE][0]


class Route(Record):
    """A route that a server hands out: 4 raw bytes of network, its prefix length, and the router, None for on-link."""

    destination: bytes
    prefix: int
    router: bytes | None


def encode(message: Message) -> bytes:
    """Return the bytes of `message`: options in their order, long ones split (RFC 3396), padded to 300 bytes."""
    fixed = _FIXED.pack(
        message.op,
        1,  # Ethernet
        len(message.chaddr),
        0,
        message.xid,
        message.secs,
        message.flags,
        message.ciaddr,
        message.yiaddr,
        message.siaddr,
        message.giaddr,
        message.chaddr,
        b"",
        b"",
    )
    options = b"".join(_encode_option(code, value) for code, value in message.options.items())
    return (fixed + _COOKIE + options + bytes([END])).ljust(_SMALLEST_SENT, b"\0")


def _encode_option(code: int, value: bytes) -> bytes:
    pieces = [value[start : start + 255] for start in range(0, len(value), 255)] or [b""]
    return b"".join(bytes([code, len(piece)]) + piece for piece in pieces)


def decode(payload: bytes) -> Message:
    """Return the message in a UDP payload; raise MessageError when it is none or its type cannot be read."""
    if len(payload) <= _OPTIONS_AT:
        raise MessageError(f"{len(payload)} bytes are too short for a DHCP message")
    op, hardware, hlen, _, xid, secs, flags, ciaddr, yiaddr, siaddr, giaddr, chaddr, sname, file = _FIXED.unpack_from(
        payload
    )
    if op not in (BOOTREQUEST, BOOTREPLY):
        raise MessageError(f"op {op} is neither a request nor a reply")
    if hardware != 1 or hlen != 6:
        raise MessageError(f"hardware type {hardware} with {hlen} bytes of address is not Ethernet")
    if payload[_FIXED.size : _OPTIONS_AT] != _COOKIE:
        raise MessageError("the magic cookie is missing")
    options = _decode_options(payload[_OPTIONS_AT:], sname, file)
    if len(options.get(MESSAGE_TYPE, b"")) != 1 or not DISCOVER <= options[MESSAGE_TYPE][0] <= INFORM:
        raise MessageError("option 53 (message type) is missing or broken")
    if SERVER_ID in options and (len(options[SERVER_ID]) != 4 or ipv4.host_trouble(options[SERVER_ID])):
        raise MessageError("option 54 (server identifier) is broken")
    return Message(
        op=op,
        xid=xid,
        chaddr=chaddr[:hlen],
        options=options,
        flags=flags,
        secs=secs,
        ciaddr=ciaddr,
        yiaddr=yiaddr,
        siaddr=siaddr,
        giaddr=giaddr,
    )


def _decode_options(main: bytes, sname: bytes, file: bytes) -> dict[int, bytes]:
    """Return the options of the main field and, as option 52 says, of `file` and `sname`, in that order."""
    options: dict[int, bytes] = {}
    _gather(options, main)
    overload = options.get(OVERLOAD, b"\0")[:1]
    if overload in (b"\1", b"\3"):
        _gather(options, file)
    if overload in (b"\2", b"\3"):
        _gather(options, sname)
    return options


def _gather(options: dict[int, bytes], field: bytes) -> None:
    for code, value in _each_option(field):
        if code not in options:
            options[code] = value
        elif code not in _FIXED_LENGTH:
            options[code] += value


def _each_option(field: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the whole options of `field`; one that is cut off ends it, as does a missing end mark."""
    position = 0
    while position < len(field):
        code = field[position]
        if code == END:
            return
        if code == PAD:
            position += 1
            continue
        if position + 1 >= len(field):
            return
        end = position + 2 + field[position + 1]
        if end > len(field):
            return
        yield code, field[position + 2 : end]
        position = end


def _exact(message: Message, code: int, length: int) -> bytes | None:
    value = message.options.get(code)
    if value is None:
        return None
    if len(value) != length:
        raise MessageError(f"option {code} has {len(value)} bytes, not {length}")
    return value


def server_id(message: Message) -> bytes | None:
    """Return the server identifier (option 54), None when there is none."""
    return message.options.get(SERVER_ID)


def prefix_length(message: Message) -> int | None:
    """Return the prefix length of the subnet mask (option 1), None when there is none; raise MessageError."""
    mask = _exact(message, SUBNET_MASK, 4)
    try:
        return None if mask is None else ipv4.prefix_of_mask(mask)
    except ValueError as problem:
        raise MessageError(f"option {SUBNET_MASK}: {problem}") from None


def seconds(message: Message, code: int) -> int | None:
    """Return an option that is a time (51, 58, 59), unsigned, None when there is none; raise MessageError."""
    value = _exact(message, code, 4)
    return None if value is None else int.from_bytes(value, "big")


def interface_mtu(message: Message) -> int | None:
    """Return option 26, None when there is none; raise MessageError below its minimum of 68 (RFC 2132, 5.1)."""
    value = _exact(message, MTU, 2)
    if value is None:
        return None
    mtu = int.from_bytes(value, "big")
    if mtu < 68:
        raise MessageError(f"option {MTU} says {mtu}, less than 68")
    return mtu


def addresses(message: Message, code: int) -> tuple[bytes, ...]:
    """Return an option that is a list of hosts (3, 6, 42); raise MessageError when its length or a host is wrong."""
    value = message.options.get(code, b"")
    if len(value) % 4:
        raise MessageError(f"option {code} has {len(value)} bytes, no multiple of 4")
    found = tuple(value[start : start + 4] for start in range(0, len(value), 4))
    for address in found:
        if trouble := ipv4.host_trouble(address):
            raise MessageError(f"option {code} names {ipv4.text(address)}: {trouble}")
    return found


def classless_routes(message: Message) -> tuple[Route, ...]:
    """Return the classless static routes (option 121, RFC 3442), () when there are none; raise MessageError.

    They are taken whole or not at all: without one of them traffic would leave by another.
    """
    value = message.options.get(CLASSLESS_ROUTE)
    if value == b"":
        raise MessageError(f"option {CLASSLESS_ROUTE} is empty")
    routes = []
    position = 0
    while value and position < len(value):
        route, position = _classless_route(value, position)
        routes.append(route)
    return tuple(routes)


def _classless_route(value: bytes, start: int) -> tuple[Route, int]:
    """Return the route at `start` and the position after it: prefix length, its significant bytes, router."""
    prefix = value[start]
    if prefix > 32:
        raise MessageError(f"option {CLASSLESS_ROUTE} has a prefix of {prefix} bits")
    router_at = start + 1 + (prefix + 7) // 8
    end = router_at + 4
    if end > len(value):
        raise MessageError(f"option {CLASSLESS_ROUTE} ends within a route")
    # The client zeroes what the prefix does not cover, says RFC 3442.
    destination = ipv4.network(value[start + 1 : router_at].ljust(4, b"\0"), prefix)
    router = value[router_at:end]
    on_link = router == bytes(4)
    return Route(destination, prefix, None if on_link else _router(router, CLASSLESS_ROUTE)), end


def _router(address: bytes, code: int) -> bytes:
    if trouble := ipv4.host_trouble(address):
        raise MessageError(f"option {code} routes by {ipv4.text(address)}: {trouble}")
    return address


def static_routes(message: Message) -> tuple[Route, ...]:
    """Return the classful static routes (option 33, RFC 2132 section 5.8), () when there are none; raise MessageError.

    A destination of 0.0.0.0 is illegal there, and one of its class A network means nothing: both are passed over.
    """
    value = message.options.get(STATIC_ROUTE, b"")
    if len(value) % 8:
        raise MessageError(f"option {STATIC_ROUTE} has {len(value)} bytes, no multiple of 8")
    pairs = [(value[at : at + 4], value[at + 4 : at + 8]) for at in range(0, len(value), 8)]
    return tuple(_classful_route(destination, router) for destination, router in pairs if destination[0])


def _classful_route(destination: bytes, router: bytes) -> Route:
    first = destination[0]
    if first >= 224:
        raise MessageError(
            f"option {STATIC_ROUTE} routes to {ipv4.text(destination)}, which is of no class with networks"
        )
    prefix = 8 if first < 128 else 16 if first < 192 else 24
    return Route(ipv4.network(destination, prefix), prefix, _router(router, STATIC_ROUTE))


def domain_name(message: Message) -> str | None:
    """Return option 15, None when there is none; raise MessageError when it is not a domain name."""
    value = message.options.get(DOMAIN_NAME)
    if value is None:
        return None
    return _name([_label(label) for label in value.rstrip(b"\0").removesuffix(b".").split(b".")], DOMAIN_NAME)


def _name(labels: list[str], code: int) -> str:
    name = ".".join(labels)
    if not 1 <= len(name) <= _LONGEST_NAME:
        raise MessageError(f"option {code} has an empty or overlong name")
    return name


def domain_search(message: Message) -> tuple[str, ...]:
    """Return the search list (option 119, RFC 3397); raise MessageError when it is broken."""
    value = message.options.get(DOMAIN_SEARCH, b"")
    names = []
    position = 0
    while position < len(value):
        name, position = _search_name(value, position)
        names.append(name)
    return tuple(names)


def _search_name(value: bytes, start: int) -> tuple[str, int]:
    """Return the name at `start` and the position after it; pointers (RFC 1035, 4.1.4) may only point backwards."""
    labels: list[str] = []
    position, end, limit, pointers = start, -1, start, 0
    while True:
        if position >= len(value):
            raise MessageError(f"option {DOMAIN_SEARCH} ends within a name")
        length = value[position]
        if length == 0:
            break
        if length >= 0xC0:
            if position + 1 >= len(value):
                raise MessageError(f"option {DOMAIN_SEARCH} ends within a pointer")
            target = (length & 0x3F) << 8 | value[position + 1]
            pointers += 1
            if target >= limit or pointers > _MOST_POINTERS:
                raise MessageError(f"option {DOMAIN_SEARCH} has a pointer forwards, or too many")
            end = position + 2 if end < 0 else end
            position = limit = target
            continue
        if length > 63 or position + 1 + length > len(value):
            raise MessageError(f"option {DOMAIN_SEARCH} has a broken label")
        labels.append(_label(value[position + 1 : position + 1 + length]))
        position += 1 + length
    return _name(labels, DOMAIN_SEARCH), position + 1 if end < 0 else end


_LABEL_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def _label(label: bytes) -> str:
    # What is taken over here ends in a resolv.conf, where a space or a line feed would be a setting of its own.
    if not 1 <= len(label) <= 63 or not _LABEL_BYTES.issuperset(label):
        raise MessageError(f"{label!r} is not a label of a domain name")
    return label.decode("ascii")
