"""IPv4 addresses as 4 raw bytes; text only at the edges (`ipaddress` costs 6 ms to import)."""

from __future__ import annotations

from _socket import inet_ntoa as text

__all__ = ["broadcast", "host_trouble", "network", "parse", "parse_mac", "parse_prefix", "prefix_of_mask", "text"]

_MAC_BYTES = 6


def parse(value: object) -> bytes:
    """Return the 4 bytes of a dotted quad; raise ValueError for anything else (`1.2`, `01.2.3.4` and the like too)."""
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) != 4 or not all(p.isascii() and p.isdigit() and str(int(p)) == p and int(p) < 256 for p in parts):
        raise ValueError(f"{value!r} is not an IPv4 address")
    return bytes(int(part) for part in parts)


def parse_prefix(value: object) -> tuple[bytes, int]:
    """Return address and prefix length of `a.b.c.d/n`; raise ValueError."""
    address, slash, length = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not (slash and length.isascii() and length.isdigit() and str(int(length)) == length and int(length) <= 32):
        raise ValueError(f"{value!r} is not an IPv4 address with a prefix length")
    return parse(address), int(length)


def _mask(prefix: int) -> int:
    return 0xFFFFFFFF << (32 - prefix) & 0xFFFFFFFF


def network(address: bytes, prefix: int) -> bytes:
    """Return `address` with its host bits zero."""
    return (int.from_bytes(address, "big") & _mask(prefix)).to_bytes(4, "big")


def broadcast(address: bytes, prefix: int) -> bytes | None:
    """Return the broadcast address of the subnet, None where there is none (/31 and /32)."""
    if prefix > 30:
        return None
    return (int.from_bytes(address, "big") | ~_mask(prefix) & 0xFFFFFFFF).to_bytes(4, "big")


def prefix_of_mask(mask: bytes) -> int:
    """Return the length of a 4-byte subnet mask; raise ValueError when it has holes."""
    value = int.from_bytes(mask, "big")
    prefix = value.bit_count()
    if len(mask) != 4 or value != _mask(prefix):
        raise ValueError(f"subnet mask {text(mask) if len(mask) == 4 else mask.hex()} is not contiguous")
    return prefix


def host_trouble(address: bytes, prefix: int = 32) -> str | None:
    """Return why `address` cannot be a host's (RFC 1122, section 3.2.1.3), None when it can."""
    first = address[0]
    if first in (0, 127) or first >= 224:
        return "it is unspecified, loopback, multicast, reserved or broadcast"
    if prefix <= 30 and address == broadcast(address, prefix):
        return "it is the broadcast address of its subnet"
    if prefix <= 30 and address == network(address, prefix):
        return "it is the network address of its subnet"
    return None


def parse_mac(value: object) -> bytes:
    """Return the 6 bytes of a unicast MAC (`aa:bb:cc:dd:ee:ff` or with `-`, any case); raise ValueError saying why."""
    parts = value.replace("-", ":").split(":") if isinstance(value, str) else []
    digits = frozenset("0123456789abcdefABCDEF")
    if len(parts) != _MAC_BYTES or not all(len(part) == 2 and digits.issuperset(part) for part in parts):
        raise ValueError("expected six pairs of hexadecimal digits, as in 0a:58:0a:00:00:01")
    mac = bytes.fromhex("".join(parts))
    if mac[0] & 1:
        raise ValueError("it is a multicast address; expected a unicast one")
    if mac == bytes(_MAC_BYTES):
        raise ValueError("it is all zeros; expected a unicast address")
    return mac
