"""What is remembered of an attachment: names, lease and alias survive being written down."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni.datapath import record
from ovn_k8s_cni.datapath.ovs import PodIdentity, iface_id
from ovn_k8s_cni.datapath.record import Attachment
from ovn_k8s_cni.ipam import lease as leases
from ovn_k8s_cni.ipam.lease import Lease
from ovn_k8s_cni.system import netlink
from ovn_k8s_cni.system.ipv4 import parse as ip

pytestmark = pytest.mark.timeout(30)

RAW = st.binary(min_size=4, max_size=4)
MACS = st.binary(min_size=6, max_size=6).filter(lambda mac: not mac[0] & 1 and any(mac))
LEASES = st.builds(
    Lease,
    address=RAW,
    prefix=st.integers(0, 32),
    gateway=st.one_of(st.none(), RAW),
    server=st.one_of(st.none(), RAW),
    hop=st.one_of(st.none(), MACS),
)
NAME = st.text(string.ascii_letters + string.digits + "_.-", min_size=1)
CONTAINER_IDS = st.builds(lambda head, tail: head + tail, st.sampled_from("az09AZ"), NAME)
IFNAMES = st.text(string.ascii_letters + string.digits + "_.-=@+", min_size=1, max_size=15)
PATHS = st.text(min_size=1, max_size=40).map("/var/run/netns/".__add__).filter(lambda text: "\0" not in text)
ATTACHMENTS = st.builds(
    Attachment,
    host_name=st.just("okc0123456789ab"),
    container_id=CONTAINER_IDS,
    ifname=IFNAMES,
    network=CONTAINER_IDS,
    netns=st.one_of(st.just(""), PATHS),
    datapath=st.sampled_from(["linux", "ovs"]),
    ipam=st.sampled_from(["none", "dhcp", "discovery"]),
    lease=st.one_of(st.none(), LEASES),
)
LEASE = Lease(ip("192.0.2.7"), 24, ip("192.0.2.1"), ip("192.0.2.2"), b"\x0a\0\0\0\0\1")
ATTACHMENT = Attachment("okc0123456789ab", "c0ffee", "net1", "blue", "/var/run/netns/x", "linux", "dhcp", LEASE)


# ---- leases


@given(LEASES)
def test_lease_survives_being_written_down(lease: Lease) -> None:
    assert leases.from_text(leases.to_text(lease)) == lease


def test_lease_is_to_be_read_by_people() -> None:
    assert leases.to_text(LEASE) == "ip=192.0.2.7/24 gw=192.0.2.1 srv=192.0.2.2 hop=0a0000000001"
    assert leases.to_text(Lease(ip("192.0.2.7"), 32)) == "ip=192.0.2.7/32"


@pytest.mark.parametrize(
    "text",
    [
        "", "nothing", "ip=", "ip=192.0.2.7", "ip=192.0.2.7/33", "ip=x/24", "gw=192.0.2.1", "ip=192.0.2.7/24 gw=x",
        "ip=192.0.2.7/24 srv=", "ip=192.0.2.7/24 hop=0a00", "ip=192.0.2.7/24 hop=zz0000000001", "ip = 192.0.2.7/24",
        "ip=192.0.2.7/24 hop=", "xip=192.0.2.7/24",
    ],
)  # fmt: skip
def test_what_is_no_lease(text: str) -> None:
    assert leases.from_text(text) is None


def test_lease_is_found_among_other_words() -> None:
    assert leases.from_text("x ip=192.0.2.7/24  y=z =\tsrv=192.0.2.2 a=b=c") == Lease(
        ip("192.0.2.7"), 24, server=ip("192.0.2.2")
    )


@given(st.text())
def test_any_text_is_a_lease_or_none(text: str) -> None:
    found = leases.from_text(text)
    assert found is None or leases.from_text(leases.to_text(found)) == found


# ---- aliases


def size(alias: str) -> int:
    return len(alias.encode("utf-8", "surrogateescape"))


@given(ATTACHMENTS)
def test_alias_is_never_too_long(attachment: Attachment) -> None:
    assert size(record.to_alias(attachment)) <= 255


@given(ATTACHMENTS)
def test_attachment_survives_its_alias(attachment: Attachment) -> None:
    """Short enough, all of it; else what is left out is missing, and nothing is wrong."""
    found = record.from_alias(attachment.host_name, record.to_alias(attachment), attachment.network)
    assert found is not None
    assert (found.host_name, found.network, found.datapath, found.ipam) == (
        attachment.host_name,
        attachment.network,
        attachment.datapath,
        attachment.ipam,
    )
    for kept, whole in (
        (found.container_id, attachment.container_id),
        (found.ifname, attachment.ifname),
        (found.netns, attachment.netns),
        (found.lease, attachment.lease),
    ):
        assert kept == whole or not kept
    if (
        len(attachment.container_id) < 70
        and not any(map(str.isspace, attachment.netns))
        and size(attachment.netns) < 60
    ):
        assert found == attachment


@pytest.mark.parametrize(
    ("container_id", "netns", "kept"),
    [
        ("f" * 64, "/var/run/netns/cni-01234567-89ab-cdef-0123-456789abcdef", ("id", "if", "lease", "ns")),
        ("f" * 64, "/very/long" * 20, ("id", "if", "lease")),
        ("f" * 110, "/var/run/netns/x" * 3, ("id", "if", "lease")),
        ("f" * 180, "/x", ("id", "if")),
        ("f" * 300, "/x", ()),
    ],
)
def test_what_is_left_out_first(container_id: str, netns: str, kept: tuple[str, ...]) -> None:
    attachment = ATTACHMENT.replace(container_id=container_id, netns=netns)
    found = record.from_alias("okc0123456789ab", record.to_alias(attachment), "blue")
    assert found is not None
    expected = {
        "id": container_id if "id" in kept else "",
        "if": "net1" if "if" in kept else "",
        "lease": LEASE if "lease" in kept else LEASE.replace(hop=None) if "lease without hop" in kept else None,
        "ns": netns if "ns" in kept else "",
    }
    assert {"id": found.container_id, "if": found.ifname, "lease": found.lease, "ns": found.netns} == expected


@pytest.mark.parametrize(("length", "kept"), [(254, True), (255, True), (256, False)])
def test_an_alias_may_be_filled_to_its_last_byte(length: int, kept: bool) -> None:
    """The kernel takes 255 bytes."""
    short = size(record.to_alias(ATTACHMENT.replace(netns="/")))
    netns = "/" + "x" * (length - short)
    found = record.from_alias("okc0123456789ab", record.to_alias(ATTACHMENT.replace(netns=netns)), "blue")
    assert found == ATTACHMENT.replace(netns=netns, lease=LEASE if kept else LEASE.replace(hop=None))


@pytest.mark.parametrize("netns", ["/a b", "/a\tb", "/a\nb", "/a ip=6.6.6.6/8", "/a\x1cgw=6.6.6.6", "/a\u2028id=x"])
def test_path_that_would_be_several_words_is_left_out(netns: str) -> None:
    found = record.from_alias("okc0123456789ab", record.to_alias(ATTACHMENT.replace(netns=netns)), "blue")
    assert found == ATTACHMENT.replace(netns="")


@pytest.mark.parametrize(
    "netns",
    ["/var/run/netns/cni-1", "/var/run/netns/a/b", "/var/run/netns/", "/run/netns/cni-1", "/proc/4711/ns/net", "/cni-1",
     "cni-1", "./cni-1", ".."],
)  # fmt: skip
def test_a_path_is_never_taken_for_another(netns: str) -> None:
    found = record.from_alias("okc0123456789ab", record.to_alias(ATTACHMENT.replace(netns=netns)), "blue")
    assert found is not None
    assert found.netns in (netns, "")
    if netns.startswith("/"):
        assert found.netns == netns


def test_path_that_is_no_utf_8() -> None:
    """As the environment may hand it over; the kernel takes any bytes."""
    attachment = ATTACHMENT.replace(netns="/run/\udcff")
    alias = record.to_alias(attachment)
    assert b" ns=/run/\xff" in netlink.set_alias("okc0", alias).body
    assert record.from_alias("okc0123456789ab", alias, "blue") == attachment


@pytest.mark.parametrize(
    "alias",
    [
        "", "uplink", "ovn-k8s-cni", "ovn-k8s-cni net=", "ovn-k8s-cni-other net=01234567", " ovn-k8s-cni net=01234567",
        "net=01234567 ovn-k8s-cni", "somebody net=01234567 id=x", "OVN-K8S-CNI net=01234567",
    ],
)  # fmt: skip
def test_aliases_of_strangers_are_ignored(alias: str) -> None:
    alias = alias.replace("01234567", record.network_tag("blue"))
    assert record.from_alias("veth0", alias, "blue") is None


@given(ATTACHMENTS, CONTAINER_IDS)
def test_attachments_to_other_networks_are_ignored(attachment: Attachment, network: str) -> None:
    found = record.from_alias(attachment.host_name, record.to_alias(attachment), network)
    assert (found is not None) == (network == attachment.network)


@given(st.text())
def test_any_alias_is_an_attachment_or_none(text: str) -> None:
    assert record.from_alias("veth0", text, "blue") is None
    ours = f"{record.MARK} net={record.network_tag('blue')} {text}"
    found = record.from_alias("veth0", ours, "blue")
    assert found is not None
    assert (found.host_name, found.network) == ("veth0", "blue")


@pytest.mark.parametrize(
    ("ipam", "lease", "unfinished"),
    [
        ("dhcp", None, True),
        ("dhcp", LEASE, False),
        ("none", None, False),
        ("discovery", None, False),
    ],
)
def test_unfinished_exchange(ipam: str, lease: Lease | None, unfinished: bool) -> None:
    """Seen from what is written down alone: an ADD that was killed has a mark without a lease."""
    alias = record.to_alias(ATTACHMENT.replace(ipam=ipam, lease=lease))
    found = record.from_alias("okc0123456789ab", alias, "blue")
    assert found is not None
    assert found.exchange_unfinished() == unfinished


# ---- names


@given(st.text(max_size=100), st.text(max_size=20))
def test_host_name_fits_and_is_stable(container_id: str, ifname: str) -> None:
    name = record.host_name(container_id, ifname)
    assert len(name.encode()) <= 15
    assert set(name) <= set(string.ascii_lowercase + string.digits)
    assert record.host_name(container_id, ifname) == name


def test_host_name_stays_what_it_was() -> None:
    """DEL of a newer release computes it again for an ADD of an older one."""
    assert record.host_name("c0ffee", "net1") == "okcff23e1d99741"
    assert record.network_tag("blue") == "30691e09"


def test_different_attachments_have_different_host_names() -> None:
    """IDs with equal heads and tails too, for which the Go stack's name collides."""
    containers = [f"{'0' * 20}{number:04d}{'0' * 40}" for number in range(2000)]
    names = {record.host_name(container, ifname) for container in containers for ifname in ("net1", "net2", "eth0")}
    assert len(names) == 6000


def test_not_utf_8() -> None:
    assert record.host_name("c0ffee", "\udcff") != record.host_name("c0ffee", "\udcfe")


@pytest.mark.parametrize(
    ("nad_key", "expected"),
    [
        ("ns/blue", "ns.blue_shop_web-0"),
        ("my-ns/localnet-dhcp-ipam", "my.ns.localnet.dhcp.ipam_shop_web-0"),
        ("my-ns/blue/1", "my.ns.blue.1_shop_web-0"),
        ("plain", "plain_shop_web-0"),
    ],
)
def test_logical_switch_port(nad_key: str, expected: str) -> None:
    """`-` and `/` of the NAD key become `.`; the pod's own names stay."""
    assert iface_id(nad_key, PodIdentity("shop", "web-0", "uid")) == expected
