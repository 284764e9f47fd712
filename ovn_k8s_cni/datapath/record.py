"""What is remembered of an attachment, and how it is written on the host-side link's alias.

The alias is written in the same system call that makes the link, so that whatever is left by a kill at any instruction
can be found and told from what is not ours.
"""

from __future__ import annotations

from _blake2 import blake2b

from ovn_k8s_cni.ipam.lease import Lease
from ovn_k8s_cni.ipam.lease import from_text as lease_from_text
from ovn_k8s_cni.ipam.lease import to_text as lease_to_text
from ovn_k8s_cni.record import Record

MARK = "ovn-k8s-cni"

# How the address came: not at all, by the dhcp plugin, whose lease is ours to release, or by our own exchange for a
# guest, which owns it.
NO_ADDRESS, DELEGATED, DISCOVERED = "none", "dhcp", "discovery"
_NETNS_DIRECTORY = "/var/run/netns/"
_LONGEST_ALIAS = 255  # bytes: IFALIASZ less its NUL
_HOST_NAME_DIGITS = 12  # with the prefix, the 15 bytes of an interface name


class Attachment(Record):
    """One container's interface on one network.

    `host_name` is the host-side interface; `netns` the path that ADD was given; `datapath` "linux" or "ovs"; `ipam`
    NO_ADDRESS, DELEGATED or DISCOVERED; `lease` None until ADD has it.
    """

    host_name: str
    container_id: str
    ifname: str
    network: str
    netns: str
    datapath: str
    ipam: str
    lease: Lease | None = None

    def exchange_unfinished(self) -> bool:
        """Tell whether ADD never came to its end, so that the daemon or the server may hold a lease we do not know."""
        return self.ipam == DELEGATED and self.lease is None


def host_name(container_id: str, ifname: str) -> str:
    """Return the host-side interface's name: DEL computes it again from its arguments alone."""
    digest = blake2b(f"{container_id}/{ifname}".encode("utf-8", "surrogateescape"), digest_size=_HOST_NAME_DIGITS // 2)
    return "okc" + digest.hexdigest()


def network_tag(network: str) -> str:
    """Return the 8 digits that stand for a network name where there is no room for it."""
    return blake2b(network.encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()


def to_alias(attachment: Attachment) -> str:
    """Return the alias; when it gets too long, what a release can do without is left out."""
    words = [MARK, f"net={network_tag(attachment.network)}", f"dp={attachment.datapath}"]
    words.append(f"ipam={attachment.ipam}")
    lease = lease_to_text(attachment.lease).split() if attachment.lease else []
    needed = [word for word in lease if not word.startswith("hop=")]
    essential = [f"id={attachment.container_id}", f"if={attachment.ifname}"]
    netns = [f"ns={_short_path(attachment.netns)}"] if _can_be_told(attachment.netns) else []
    for optional in (lease + netns, needed + netns, lease, needed, []):
        alias = " ".join(words + essential + optional)
        if len(alias.encode("utf-8", "surrogateescape")) <= _LONGEST_ALIAS:
            return alias
    return " ".join(words)


def _can_be_told(path: str) -> bool:
    """Tell whether a path is one word, and not one without a slash, which would be taken for a shortened one."""
    return "/" in path and not any(map(str.isspace, path))


def _short_path(path: str) -> str:
    """Return a path without the directory that runtimes put network namespaces into; it has no slash then."""
    name = path.removeprefix(_NETNS_DIRECTORY)
    return path if "/" in name or not name else name


def _long_path(text: str) -> str:
    return _NETNS_DIRECTORY + text if text and "/" not in text else text


def of_another_network(alias: str, network: str) -> bool:
    """Tell whether an alias is one of ours for a network other than `network`."""
    mark, *words = alias.split(" ")
    return mark == MARK and f"net={network_tag(network)}" not in words


def from_alias(name: str, alias: str, network: str) -> Attachment | None:
    """Return the attachment to `network` that the alias of link `name` tells of; None when it is another's or none."""
    mark, *pairs = alias.split(" ")
    words = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    if mark != MARK or words.get("net") != network_tag(network):
        return None
    return Attachment(
        host_name=name,
        container_id=words.get("id", ""),
        ifname=words.get("if", ""),
        network=network,
        netns=_long_path(words.get("ns", "")),
        datapath=words.get("dp", "linux"),
        ipam=words.get("ipam", NO_ADDRESS),
        lease=lease_from_text(alias),
    )
