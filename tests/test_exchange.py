"""The delegated exchange as the watcher sees it, and the RELEASE that is sent when no valid one leaves."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from ovn_k8s_cni.datapath.record import Attachment
from ovn_k8s_cni.ipam import exchange, release
from ovn_k8s_cni.ipam.exchange import Sighting, Watch
from ovn_k8s_cni.ipam.lease import Lease
from ovn_k8s_cni.system.ipv4 import parse as ip
from ovn_k8s_cni.system.packet import Frame, PacketSocket
from tests.support import mac_bytes

pytestmark = pytest.mark.timeout(30)

MAC, SERVER_MAC = "0a:58:c0:00:02:07", "0a:58:c0:00:02:01"
ADDRESS, SERVER = "192.0.2.7", "192.0.2.1"
CLIENT_ID = b"\0c0ffee/blue/net1"
LEASE = Lease(ip(ADDRESS), 24, ip("192.0.2.254"), ip(SERVER), mac_bytes(SERVER_MAC))
ATTACHMENT = Attachment("okc0", "c0ffee", "net1", "blue", "/x", "linux", "dhcp", LEASE)


def frame(
    kind: str,
    *options: tuple[Any, ...],
    outgoing: bool = False,
    source: str | None = None,
    destination: str | None = None,
    unfinished: bool = False,
    tagged: bool = False,
    **fields: Any,
) -> Frame:
    """Return a DHCP message as scapy makes it, seen on the pod's interface."""
    if outgoing:
        ends = Ether(src=MAC, dst="ff:ff:ff:ff:ff:ff") / IP(
            src=source or "0.0.0.0", dst=destination or "255.255.255.255"
        )
        udp, op = UDP(sport=68, dport=67), 1
    else:
        ends = Ether(src=SERVER_MAC, dst=MAC) / IP(src=source or SERVER, dst=destination or ADDRESS)
        udp, op = UDP(sport=67, dport=68), 2
    bootp = BOOTP(
        **{"op": op, "xid": 7, "chaddr": mac_bytes(MAC), "yiaddr": "0.0.0.0" if outgoing else ADDRESS, **fields}
    )
    data = bytes(ends / udp / bootp / DHCP(options=[("message-type", kind), *options, "end"]))
    return Frame(data, outgoing=outgoing, tagged=tagged, checksum_trusted=False, checksum_unfinished=unfinished)


class Wire:
    """Stands in for the packet socket: gives out frames, None between them, and is closed once."""

    def __init__(self, *frames: Frame | None) -> None:
        self.frames = list(frames)
        self.closed = 0

    def fileno(self) -> int:
        return 77

    def receive(self) -> Frame | None:
        return self.frames.pop(0) if self.frames else None

    def close_in_background(self) -> None:
        self.closed += 1


def watch(wire: Wire) -> Watch:
    return Watch(cast("PacketSocket", wire), mac_bytes(MAC))


def sighting(seen: Frame) -> Sighting:
    found = exchange.read(seen, mac_bytes(MAC))
    assert found is not None
    return found


# ---- what is ours

ACK = frame("ack", ("server_id", SERVER))


@pytest.mark.parametrize(
    "seen",
    [
        ACK,
        frame("ack", ("server_id", SERVER), source="198.51.100.1"),
        frame("ack", ("server_id", SERVER), siaddr="198.51.100.1", giaddr="198.51.100.2", hops=3),
        frame("ack", ("server_id", SERVER), destination="255.255.255.255"),
        frame("ack"),
        frame("offer", ("server_id", SERVER)),
        frame("nak", ("server_id", SERVER)),
        frame("discover", outgoing=True),
    ],
    ids=[
        "ACK",
        "another source",
        "another siaddr, giaddr and hops",
        "broadcast",
        "no server",
        "OFFER",
        "NAK",
        "DISCOVER",
    ],
)
def test_ours(seen: Frame) -> None:
    assert sighting(seen).message.chaddr == mac_bytes(MAC)


@pytest.mark.parametrize(
    "seen",
    [
        frame("ack", chaddr=mac_bytes("0a:58:c0:00:02:08")),
        frame("ack", op=1),
        frame("request", outgoing=True, op=2),
        ACK.replace(outgoing=True),
        ACK.replace(tagged=True),
        ACK.replace(data=ACK.data[:100]),
        ACK.replace(data=ACK.data[:-1] + b"\0"),
        frame("ack", ("server_id", "0.0.0.0")),
        frame("ack", hlen=5),
    ],
    ids=["another client", "a request that came in", "a reply that went out", "our own reply", "tagged", "cut",
         "wrong checksum", "broken server", "no Ethernet"],
)  # fmt: skip
def test_not_ours(seen: Frame) -> None:
    assert exchange.read(seen, mac_bytes(MAC)) is None


@given(st.binary(max_size=400), st.booleans())
def test_any_frame_is_read_or_passed_over(data: bytes, outgoing: bool) -> None:
    assert exchange.read(Frame(data, outgoing, False, True, False), mac_bytes(MAC)) is None


# ---- the watch

OURS = (
    frame("discover", ("client_id", CLIENT_ID), outgoing=True),
    frame("request", ("client_id", CLIENT_ID), outgoing=True),
)


def test_watches_until_the_ack_and_lets_go_at_once() -> None:
    wire = Wire(OURS[0], None, frame("offer"), OURS[1], None, ACK, OURS[0])
    watching = watch(wire)
    assert (watching.fileno(), watching.ack()) == (77, None)
    assert watching.read()
    assert watching.read()
    assert not watching.read()
    ack = watching.ack()
    assert ack is not None
    assert (ack.message.yiaddr, ack.datagram.source_mac) == (ip(ADDRESS), mac_bytes(SERVER_MAC))
    assert not watching.read(), "it wants no more"
    watching.close()
    assert wire.closed == 1


def test_watch_that_sees_nothing_is_closed_with_its_block() -> None:
    wire = Wire()
    with watch(wire) as watching:
        assert watching.read()
        assert watching.ack() is None
    assert wire.closed == 1


def test_interface_that_goes_away_is_no_failure() -> None:
    class Gone(Wire):
        def receive(self) -> Frame | None:
            raise OSError(100, "Network is down")

    with watch(Gone()) as watching:
        assert watching.read()
        assert watching.seen == []


def seen_ack(*frames: Frame) -> Sighting | None:
    with watch(Wire(*frames)) as watching:
        watching.read()
        return watching.ack()


@pytest.mark.parametrize(
    "answer",
    [
        frame("ack", xid=8),
        frame("nak"),
        frame("offer"),
        frame("ack", ("client_id", b"\0somebody/else")),
    ],
    ids=["another exchange", "NAK", "OFFER", "another client identifier"],
)
def test_what_is_no_ack_of_ours(answer: Frame) -> None:
    assert seen_ack(*OURS, answer) is None


@pytest.mark.parametrize("echoed", [[], [("client_id", CLIENT_ID)]], ids=["none", "ours"])
def test_client_identifier_that_is_echoed_or_not(echoed: list[tuple[str, bytes]]) -> None:
    assert seen_ack(*OURS, frame("ack", *echoed)) is not None


def test_ack_to_a_client_without_an_identifier() -> None:
    assert seen_ack(frame("request", outgoing=True), frame("ack")) is not None


def test_ack_before_anything_was_sent_is_not_ours() -> None:
    assert seen_ack(ACK) is None


def test_the_newest_ack_counts() -> None:
    newest = seen_ack(*OURS, ACK, frame("ack", yiaddr="192.0.2.9"))
    assert newest is not None
    assert newest.message.yiaddr == ip("192.0.2.9")


# ---- told to people


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([], "sent: nothing; came back: nothing"),
        ([OURS[0]] * 3, "sent: 3 DISCOVER; came back: nothing"),
        ([*OURS, frame("offer"), frame("nak")], "sent: 1 DISCOVER, 1 REQUEST; came back: 1 OFFER, 1 NAK"),
    ],
)
def test_account(frames: list[Frame], text: str) -> None:
    assert exchange.account(map(sighting, frames)) == text


# ---- DNS


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], {}),
        ([("name_server", "192.0.2.53")], {"nameservers": ["192.0.2.53"]}),
        ([("name_server", "192.0.2.53", "192.0.2.54")], {"nameservers": ["192.0.2.53", "192.0.2.54"]}),
        ([("domain", b"example.org.")], {"domain": "example.org"}),
        ([(119, b"\x01a\0\x01b\xc0\0")], {"search": ["a", "b.a"]}),
        (
            [("name_server", "192.0.2.53"), ("domain", b"example.org"), (119, b"\x01a\0")],
            {"nameservers": ["192.0.2.53"], "domain": "example.org", "search": ["a"]},
        ),
        ([("name_server", "127.0.0.1"), ("domain", b"example.org")], {"domain": "example.org"}),
        ([(6, b"\xc0\0\2"), (119, b"\x01a\0")], {"search": ["a"]}),
        ([("domain", b"a\nnameserver 6.6.6.6"), ("name_server", "192.0.2.53")], {"nameservers": ["192.0.2.53"]}),
        ([(119, b"\xc0\0"), ("domain", b"example.org")], {"domain": "example.org"}),
        ([(119, b""), ("domain", b"")], {}),
    ],
)
def test_dns_part_of_the_result(options: list[tuple[Any, ...]], expected: dict[str, Any]) -> None:
    assert exchange.dns(sighting(frame("ack", *options)).message) == expected


# ---- giving back


@pytest.mark.parametrize(
    ("container_id", "ifname", "expected"),
    [
        ("c0ffee", "net1", b"\0c0ffee/blue/net1"),
        ("f" * 64, "eth0", b"\0" + b"f" * 64 + b"/blue/eth0"),
        ("f" * 300, "net1", b"\0" + b"f" * 254),
        ("f" * 246, "net1", b"\0" + b"f" * 246 + b"/blue/ne"),
    ],
)
def test_client_identifier_is_the_daemons(container_id: str, ifname: str, expected: bytes) -> None:
    attachment = ATTACHMENT.replace(container_id=container_id, ifname=ifname)
    assert release.client_id(attachment) == expected


def dissected(raw: bytes) -> tuple[Any, dict[Any, Any]]:
    """Return a frame as scapy reads it, its checksums verified, and the DHCP options by scapy's names."""
    packet = Ether(raw)
    again = packet.copy()
    del again[IP].chksum, again[UDP].chksum
    assert bytes(again) == raw
    return packet, {option[0]: option[1] for option in packet[DHCP].options if isinstance(option, tuple)}


def test_release() -> None:
    raw = release.release(mac_bytes(MAC), mac_bytes(SERVER_MAC), LEASE, ip(SERVER), CLIENT_ID)
    packet, options = dissected(raw)
    assert (packet.src, packet.dst) == (MAC, SERVER_MAC)
    assert (packet[IP].src, packet[IP].dst, packet[UDP].sport, packet[UDP].dport) == (ADDRESS, SERVER, 68, 67)
    bootp = packet[BOOTP]
    assert (bootp.op, bootp.ciaddr, bootp.yiaddr, bootp.chaddr[:6]) == (1, ADDRESS, "0.0.0.0", mac_bytes(MAC))
    assert options == {"message-type": 7, "server_id": SERVER, "client_id": CLIENT_ID}
    assert len(bytes(packet[BOOTP])) >= 300


def test_releases_have_transaction_ids_of_their_own() -> None:
    args = mac_bytes(MAC), mac_bytes(SERVER_MAC), LEASE, ip(SERVER), CLIENT_ID
    assert len({dissected(release.release(*args))[0][BOOTP].xid for _ in range(5)}) == 5


def test_discover() -> None:
    packet, options = dissected(release.discover(mac_bytes(MAC), CLIENT_ID, 0x01020304))
    assert (packet.dst, packet[IP].src, packet[IP].dst) == ("ff:ff:ff:ff:ff:ff", "0.0.0.0", "255.255.255.255")
    assert (packet[BOOTP].xid, int(packet[BOOTP].flags), packet[BOOTP].ciaddr) == (0x01020304, 0, "0.0.0.0")
    assert (options["message-type"], options["client_id"]) == (1, CLIENT_ID)


def released(**changes: Any) -> Sighting:
    fields: dict[str, Any] = {"source": ADDRESS, "destination": SERVER, "ciaddr": ADDRESS, **changes}
    server = fields.pop("server", SERVER)
    options = [("server_id", server)] if server else []
    return sighting(frame(fields.pop("kind", "release"), *options, outgoing=True, **fields))


@pytest.mark.parametrize("datapath", ["linux", "ovs"])
def test_release_that_a_server_accepts(datapath: str) -> None:
    assert release.is_valid(released(), LEASE, datapath)


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "0.0.0.0"},
        {"source": "192.0.2.8"},
        {"ciaddr": "0.0.0.0"},
        {"ciaddr": "192.0.2.8", "source": "192.0.2.8"},
        {"destination": "255.255.255.255"},
        {"destination": "192.0.2.2", "server": "192.0.2.2"},
        {"server": "192.0.2.2"},
        {"server": None},
        {"kind": "decline"},
        {"kind": "request"},
    ],
    ids=str,
)
def test_release_that_no_server_accepts(changes: dict[str, Any]) -> None:
    """The first is what the daemon sends up to 1.9.1."""
    assert not release.is_valid(released(**changes), LEASE, "linux")


def test_release_without_a_finished_checksum_passes_a_linux_bridge_only() -> None:
    unfinished = released(unfinished=True)
    assert release.is_valid(unfinished, LEASE, "linux")
    assert not release.is_valid(unfinished, LEASE, "ovs")


def test_release_that_came_in_is_somebody_elses() -> None:
    seen = released()
    assert not release.is_valid(seen.replace(frame=seen.frame.replace(outgoing=False)), LEASE, "linux")
