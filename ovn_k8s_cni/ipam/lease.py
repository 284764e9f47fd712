"""What must be remembered of a lease so that it can be given back (RFC 2131 section 4.4.6), as one line of text."""

from __future__ import annotations

from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4


class Lease(Record):
    """A lease; addresses are 4 raw bytes.

    `server` is the server identifier and `hop` the MAC that its answers came from (its own, or a router's or relay's);
    both None when the exchange was not seen.
    """

    address: bytes
    prefix: int
    gateway: bytes | None = None
    server: bytes | None = None
    hop: bytes | None = None


def to_text(lease: Lease) -> str:
    """Return `lease` as `ip=… gw=… srv=… hop=…`."""
    parts = [f"ip={ipv4.text(lease.address)}/{lease.prefix}"]
    if lease.gateway is not None:
        parts.append(f"gw={ipv4.text(lease.gateway)}")
    if lease.server is not None:
        parts.append(f"srv={ipv4.text(lease.server)}")
    if lease.hop is not None:
        parts.append(f"hop={lease.hop.hex()}")
    return " ".join(parts)


def from_text(text: str) -> Lease | None:
    """Return the lease in a line of `key=value` words, whatever else is in it; None when there is none."""
    words = dict(word.split("=", 1) for word in text.split() if "=" in word)
    try:
        address, prefix = ipv4.parse_prefix(words.get("ip"))
        return Lease(
            address=address,
            prefix=prefix,
            gateway=ipv4.parse(words["gw"]) if "gw" in words else None,
            server=ipv4.parse(words["srv"]) if "srv" in words else None,
            hop=ipv4.parse_mac(":".join(words["hop"][i : i + 2] for i in range(0, 12, 2))) if "hop" in words else None,
        )
    except ValueError:
        return None
