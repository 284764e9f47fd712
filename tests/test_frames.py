"""Ethernet frames with DHCP, ARP and ICMP inside: scapy judges what is built, and builds what is read."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.packet import Packet, Padding, Raw

from ovn_k8s_cni.dhcp import frame as frames
from ovn_k8s_cni.dhcp.frame import DHCP_ONLY, Datagram
from ovn_k8s_cni.system import neighbour as neighbours
from ovn_k8s_cni.system.deadline import Deadline
from ovn_k8s_cni.system.packet import ETH_P_ALL, Frame, PacketSocket
from tests.support import Namespace, wait_until

pytestmark = pytest.mark.timeout(30)

MACS = st.binary(min_size=6, max_size=6)
ADDRESSES = st.binary(min_size=4, max_size=4)
PORTS = st.integers(0, 65535)
DATAGRAMS = st.builds(
    Datagram,
    source_mac=MACS,
    destination_mac=MACS,
    source=ADDRESSES,
    destination=ADDRESSES,
    source_port=PORTS,
    destination_port=PORTS,
    payload=st.binary(max_size=600),
)
DATAGRAM = Datagram(
    source_mac=b"\x0a\x58\xc0\x00\x02\x07",
    destination_mac=b"\xff" * 6,
    source=bytes([192, 0, 2, 7]),
    destination=bytes([192, 0, 2, 1]),
    source_port=68,
    destination_port=67,
    payload=bytes(range(100)),
)
HEADERS = 14 + 20 + 8
# Both ends named: scapy would ask the machine's network for what is missing.
LINK = Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
LINK_OF_ANOTHER_TYPE = Ether(src=LINK.src, dst=LINK.dst, type=0x88A8)
ENDS = {"src": "192.0.2.1", "dst": "192.0.2.7"}


def received(data: bytes, *, tagged: bool = False, trusted: bool = False, unfinished: bool = False) -> Frame:
    return Frame(data, outgoing=False, tagged=tagged, checksum_trusted=trusted, checksum_unfinished=unfinished)


def mac_text(mac: bytes) -> str:
    return mac.hex(":")


def recomputed(packet: Packet) -> bytes:
    """Return the packet with every length and checksum as scapy computes it."""
    for layer in (IP, UDP):
        for field in ("len", "chksum"):
            delattr(packet[layer], field)
    return bytes(packet)


def by_scapy(datagram: Datagram, **ip_fields: object) -> Packet:
    return (
        Ether(src=mac_text(datagram.source_mac), dst=mac_text(datagram.destination_mac))
        / IP(src=socket.inet_ntoa(datagram.source), dst=socket.inet_ntoa(datagram.destination), **ip_fields)
        / UDP(sport=datagram.source_port, dport=datagram.destination_port)
        / Raw(datagram.payload)
    )


# ---- built by us, read by scapy


@given(DATAGRAMS)
def test_scapy_reads_what_is_built(datagram: Datagram) -> None:
    built = frames.build(datagram)
    packet = Ether(built)
    assert recomputed(packet.copy()) == built
    ip, udp = packet[IP], packet[UDP]
    assert (packet.src, packet.dst) == (mac_text(datagram.source_mac), mac_text(datagram.destination_mac))
    assert (socket.inet_aton(ip.src), socket.inet_aton(ip.dst)) == (datagram.source, datagram.destination)
    assert (udp.sport, udp.dport, bytes(udp.payload)) == (
        datagram.source_port,
        datagram.destination_port,
        datagram.payload,
    )


def with_checksum_zero(datagram: Datagram) -> Datagram:
    """Return the datagram with two more bytes that make its checksum 0."""
    blank = datagram.replace(payload=datagram.payload + b"\0\0")
    return blank.replace(payload=datagram.payload + frames.build(blank)[40:42])


@pytest.mark.parametrize("payload", [b"", b"ab", bytes(300)])
def test_checksum_zero_is_sent_as_ffff(payload: bytes) -> None:
    built = frames.build(with_checksum_zero(DATAGRAM.replace(payload=payload)))
    assert built[40:42] == b"\xff\xff"
    assert frames.parse(received(built)) is not None
    assert recomputed(Ether(built)) == built


# ---- built by scapy, read by us


@given(DATAGRAMS)
def test_what_scapy_builds_is_read(datagram: Datagram) -> None:
    assert frames.parse(received(bytes(by_scapy(datagram)))) == datagram


@given(DATAGRAMS, st.integers(1, 10), st.integers(0, 255), st.integers(1, 255), st.booleans())
def test_ip_options_and_other_fields_do_not_matter(
    datagram: Datagram, words: int, tos: int, ttl: int, unfragmentable: bool
) -> None:
    options = [IPOption(b"\x01") for _ in range(4 * words - 1)] + [IPOption(b"\x00")]
    flags = "DF" if unfragmentable else 0
    packet = by_scapy(datagram, options=options, tos=tos, ttl=ttl, id=4711, flags=flags)
    data = bytes(packet)
    assert data[14] == 0x45 + words
    assert frames.parse(received(data)) == datagram


@given(st.binary(max_size=18), st.binary(min_size=1, max_size=60))
def test_padding_is_cut_off(payload: bytes, padding: bytes) -> None:
    datagram = DATAGRAM.replace(payload=payload)
    data = bytes(by_scapy(datagram) / Padding(padding))
    assert data.endswith(padding)
    assert frames.parse(received(data)) == datagram


def test_udp_length_shorter_than_the_ip_packet_counts() -> None:
    whole = by_scapy(DATAGRAM)
    whole[UDP].len = 8 + 10
    whole[UDP].chksum = 0
    assert frames.parse(received(bytes(whole))) == DATAGRAM.replace(payload=DATAGRAM.payload[:10])


@pytest.mark.parametrize("length", [0, 7, 8 + len(DATAGRAM.payload) + 1, 65535])
def test_impossible_udp_length(length: int) -> None:
    packet = by_scapy(DATAGRAM)
    packet[UDP].len = length
    packet[UDP].chksum = 0
    assert frames.parse(received(bytes(packet))) is None


@pytest.mark.parametrize("length", [0, 19, 20, 27, 65535])
def test_impossible_ip_length(length: int) -> None:
    assert frames.parse(received(bytes(by_scapy(DATAGRAM, len=length)))) is None


def test_ip_header_shorter_than_its_minimum() -> None:
    assert frames.parse(received(bytes(by_scapy(DATAGRAM, ihl=4)))) is None


@pytest.mark.parametrize("kept", range(HEADERS + len(DATAGRAM.payload)))
def test_truncated(kept: int) -> None:
    assert frames.parse(received(frames.build(DATAGRAM)[:kept])) is None


@pytest.mark.parametrize("fields", [{"flags": "MF"}, {"frag": 1}, {"frag": 8191}, {"flags": "MF", "frag": 185}])
def test_fragment(fields: dict[str, object]) -> None:
    assert frames.parse(received(bytes(by_scapy(DATAGRAM, **fields)), trusted=True)) is None


@pytest.mark.parametrize(
    "packet",
    [
        LINK / IP(**ENDS, proto=17, version=5) / UDP(sport=67, dport=68) / Raw(bytes(20)),
        LINK / IP(**ENDS) / TCP(sport=67, dport=68) / Raw(bytes(20)),
        LINK / IP(**ENDS) / ICMP() / Raw(bytes(20)),
        LINK / IPv6(src="fe80::1", dst="fe80::2") / UDP(sport=67, dport=68) / Raw(bytes(20)),
        LINK / ARP(op=1, hwsrc=LINK.src, psrc="192.0.2.1", pdst="192.0.2.7") / Raw(bytes(40)),
        LINK / Dot1Q(vlan=5) / IP(**ENDS) / UDP(sport=67, dport=68) / Raw(bytes(20)),
        LINK_OF_ANOTHER_TYPE / IP(**ENDS) / UDP(sport=67, dport=68) / Raw(bytes(20)),
    ],
    ids=["IPv5", "TCP", "ICMP", "IPv6", "ARP", "a tag in the frame", "another EtherType"],
)
def test_no_datagram(packet: Packet) -> None:
    assert frames.parse(received(bytes(packet), trusted=True)) is None


def test_frame_that_carried_a_tag_is_somebody_elses() -> None:
    assert frames.parse(received(frames.build(DATAGRAM), tagged=True)) is None


# ---- checksums

BITS = st.integers(0, 7)


@given(st.integers(14, HEADERS + len(DATAGRAM.payload) - 1), BITS)
def test_a_changed_bit_is_noticed(at: int, bit: int) -> None:
    data = bytearray(frames.build(DATAGRAM))
    data[at] ^= 1 << bit
    assume(data[40:42] != b"\0\0")
    assert frames.parse(received(bytes(data))) is None


@given(st.integers(1, 65535))
def test_wrong_checksum_that_the_kernel_explains(difference: int) -> None:
    built = frames.build(DATAGRAM)
    given_sum = struct.unpack_from("!H", built, 40)[0]
    wrong = built[:40] + struct.pack("!H", given_sum ^ difference) + built[42:]
    assert frames.parse(received(wrong, trusted=True)) == DATAGRAM
    assert frames.parse(received(wrong, unfinished=True)) == DATAGRAM
    assert frames.parse(received(wrong)) == (None if given_sum != difference else DATAGRAM)


def test_no_checksum_is_accepted() -> None:
    packet = by_scapy(DATAGRAM)
    packet[UDP].chksum = 0
    assert frames.parse(received(bytes(packet))) == DATAGRAM


@pytest.mark.parametrize("trusted", [True, False])
def test_wrong_header_checksum_is_never_accepted(trusted: bool) -> None:
    data = bytes(by_scapy(DATAGRAM, chksum=0x1234))
    assert frames.parse(received(data, trusted=trusted)) is None


@given(st.binary(max_size=120), st.booleans())
def test_any_bytes_are_read_or_passed_over(data: bytes, trusted: bool) -> None:
    found = frames.parse(received(data, trusted=trusted))
    assert found is None or found.payload in data


# ---- questions to a neighbour


@given(MACS, ADDRESSES, ADDRESSES)
def test_arp_request_is_scapys(mac: bytes, sender: bytes, target: bytes) -> None:
    asking = Ether(src=mac_text(mac), dst="ff:ff:ff:ff:ff:ff") / ARP(
        op="who-has",
        hwsrc=mac_text(mac),
        psrc=socket.inet_ntoa(sender),
        hwdst="00:00:00:00:00:00",
        pdst=socket.inet_ntoa(target),
    )
    assert neighbours.arp_request(mac, sender, target) == bytes(asking)


@given(MACS, ADDRESSES, MACS, ADDRESSES, st.integers(0, 65535))
def test_echo_request_is_scapys(mac: bytes, sender: bytes, hop: bytes, target: bytes, identifier: int) -> None:
    asking = (
        Ether(src=mac_text(mac), dst=mac_text(hop))
        / IP(src=socket.inet_ntoa(sender), dst=socket.inet_ntoa(target), id=0)
        / ICMP(type="echo-request", id=identifier, seq=1)
    )
    assert neighbours.echo_request(mac, sender, hop, target, identifier) == bytes(asking)


# ---- the BPF programs


class OutOfFrame(Exception):
    """A program loaded from beyond the frame: the kernel drops it then."""


def load(data: bytes, at: int, size: int) -> int:
    if at + size > len(data):
        raise OutOfFrame
    return int.from_bytes(data[at : at + size], "big")


def accepts(program: tuple[tuple[int, int, int, int], ...], data: bytes) -> int:
    """Run a classic BPF program as the kernel would (linux/filter.h); return how many bytes it keeps."""
    accumulator = index = counter = 0
    try:
        while True:
            code, if_true, if_false, operand = program[counter]
            counter += 1
            match code:
                case 0x28:  # BPF_LD | BPF_H | BPF_ABS
                    accumulator = load(data, operand, 2)
                case 0x30:  # BPF_LD | BPF_B | BPF_ABS
                    accumulator = load(data, operand, 1)
                case 0x48:  # BPF_LD | BPF_H | BPF_IND
                    accumulator = load(data, index + operand, 2)
                case 0xB1:  # BPF_LDX | BPF_B | BPF_MSH
                    index = 4 * (load(data, operand, 1) & 0xF)
                case 0x15:  # BPF_JMP | BPF_JEQ | BPF_K
                    counter += if_true if accumulator == operand else if_false
                case 0x45:  # BPF_JMP | BPF_JSET | BPF_K
                    counter += if_true if accumulator & operand else if_false
                case 0x06:  # BPF_RET | BPF_K
                    return operand
                case _:
                    raise AssertionError(f"instruction {code:#x} is not known here")
    except OutOfFrame:
        return 0


PACKETS = st.one_of(
    st.builds(
        lambda port, flags, offset, options: (
            LINK
            / IP(**ENDS, flags=flags, frag=offset, options=[IPOption(b"\x01")] * options)
            / UDP(sport=67, dport=port)
            / Raw(bytes(40))
        ),
        st.sampled_from([66, 67, 68, 69, 6700]),
        st.sampled_from([0, "DF", "MF"]),
        st.sampled_from([0, 0, 0, 1, 8191]),
        st.sampled_from([0, 4, 40]),
    ),
    st.sampled_from(
        [
            LINK / IP(**ENDS) / TCP(sport=67, dport=68),
            LINK / IP(**ENDS) / ICMP(type=0),
            LINK / IPv6(src="fe80::1", dst="fe80::2", nh=1) / Raw(bytes(40)),
            LINK / IPv6(src="fe80::1", dst="fe80::2") / UDP(sport=67, dport=68),
            LINK / Dot1Q(vlan=7) / IP(**ENDS) / UDP(sport=67, dport=68),
            LINK / ARP(op=1, hwsrc=LINK.src, psrc="192.0.2.1", pdst="192.0.2.7"),
            LINK / ARP(op=2, hwsrc=LINK.src, psrc="192.0.2.1", pdst="192.0.2.7"),
            LINK / ARP(op=3, hwsrc=LINK.src, psrc="192.0.2.1", pdst="192.0.2.7"),
        ]
    ),
)


def is_dhcp(packet: Packet) -> bool:
    return packet.type == 0x0800 and packet[IP].proto == 17 and packet[IP].frag == 0 and packet[UDP].dport in (67, 68)


@given(PACKETS)
def test_programs_take_what_they_are_for(packet: Packet) -> None:
    data = bytes(packet)
    assert bool(accepts(DHCP_ONLY, data)) == is_dhcp(packet)
    is_reply = (ARP in packet and packet[ARP].op == 2) or ICMP in packet
    assert bool(accepts(neighbours.REPLIES, data)) == is_reply


@given(DATAGRAMS, st.integers(0, HEADERS - 1), st.integers(0, 255))
@example(DATAGRAM, 0, 255)
def test_filter_takes_all_that_would_be_read(datagram: Datagram, at: int, value: int) -> None:
    data = bytearray(frames.build(datagram.replace(destination_port=68)))
    data[at] = value
    frame = received(bytes(data), trusted=True)
    found = frames.parse(frame)
    assume(found is not None and found.destination_port in (67, 68))
    assert accepts(DHCP_ONLY, frame.data) >= len(frame.data)


@pytest.mark.parametrize("program", [DHCP_ONLY, neighbours.REPLIES], ids=["DHCP_ONLY", "REPLIES"])
@given(data=st.binary(max_size=60))
def test_programs_end_on_any_bytes(program: tuple[tuple[int, int, int, int], ...], data: bytes) -> None:
    assert accepts(program, data) in (0, 0xFFFF)


# ---- on the wire


@pytest.fixture
def pair(netns: Namespace) -> Namespace:
    """Return a namespace with a veth pair, `here` and `there`, that passes frames."""
    netns.add("here", "veth", peer="there")
    netns.set_up("here", "there")
    return netns


@pytest.fixture
def wire(pair: Namespace) -> Iterator[PacketSocket]:
    with pair.entered():
        listening = PacketSocket("here", ETH_P_ALL, DHCP_ONLY)
    yield listening
    listening.close()


@pytest.fixture
def peer(pair: Namespace) -> Iterator[socket.socket]:
    with pair.entered():
        sending = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        sending.bind(("there", ETH_P_ALL))
    with sending:
        yield sending


def test_only_dhcp_comes_through(wire: PacketSocket, peer: socket.socket) -> None:
    other = DATAGRAM.replace(destination_port=53)
    for datagram in (other, DATAGRAM, other):
        peer.send(frames.build(datagram))
    frame = wire.wait(Deadline(2))
    assert frame is not None
    assert (frame.data, frame.outgoing, frame.tagged) == (frames.build(DATAGRAM), False, False)
    assert frames.parse(frame) == DATAGRAM
    assert wire.wait(Deadline(0.05)) is None


def test_what_another_socket_sends_is_seen_as_outgoing(
    pair: Namespace, wire: PacketSocket, peer: socket.socket
) -> None:
    frame = frames.build(DATAGRAM)
    with pair.entered():
        sender = PacketSocket("here", ETH_P_ALL, DHCP_ONLY)
    with sender:
        sender.send(frame)
    seen = wire.wait(Deadline(2))
    assert seen is not None
    assert (seen.data, seen.outgoing) == (frame, True)
    peer.settimeout(2)
    # The kernel's own (multicast listener reports and the like) may come first.
    while (came := peer.recv(2000)) != frame:
        assert came[12:14] != frame[12:14]


def test_tagged_frame_is_told_from_an_untagged_one(wire: PacketSocket, peer: socket.socket) -> None:
    built = frames.build(DATAGRAM)
    peer.send(built[:12] + b"\x81\x00\x00\x05" + built[12:])
    frame = wire.wait(Deadline(2))
    assert frame is not None
    assert frame.tagged
    assert frames.parse(frame) is None


def test_checksum_left_to_the_offload_is_accepted(pair: Namespace, wire: PacketSocket) -> None:
    """A UDP socket's datagram crosses a veth with its checksum unfinished."""
    pair.iproute.addr("add", index=pair.index("there"), address="192.0.2.1", prefixlen=24)
    with pair.entered():
        sending = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sending:
        sending.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sending.bind(("192.0.2.1", 67))
        sending.sendto(b"hello" * 20, ("192.0.2.255", 68))
    frame = wire.wait(Deadline(2))
    assert frame is not None
    assert frame.checksum_unfinished
    assert frames.parse(frame.replace(checksum_unfinished=False)) is None
    found = frames.parse(frame)
    assert found is not None
    assert (found.source, found.payload) == (bytes([192, 0, 2, 1]), b"hello" * 20)


def test_interface_that_goes_away(pair: Namespace, wire: PacketSocket) -> None:
    pair.iproute.link("del", index=pair.index("here"))
    with pytest.raises(OSError, match="Network is down"):
        wire.wait(Deadline(2))


def test_missing_interface(pair: Namespace) -> None:
    with pair.entered(), pytest.raises(OSError, match="No such device"):
        PacketSocket("nothing", ETH_P_ALL, DHCP_ONLY)


ME, NEIGHBOUR, NOBODY = (bytes([192, 0, 2, host]) for host in (7, 1, 99))


@pytest.fixture
def neighbour() -> Iterator[Namespace]:
    with Namespace() as namespace:
        yield namespace


@pytest.fixture
def asking(netns: Namespace, neighbour: Namespace) -> Iterator[PacketSocket]:
    """Return a packet socket on `here`, at whose other end the neighbour has its address and an address behind it."""
    netns.add("here", "veth", peer={"ifname": "there", "net_ns_fd": neighbour.fd})
    neighbour.iproute.addr("add", index=neighbour.index("there"), address="192.0.2.1", prefixlen=24)
    neighbour.iproute.addr("add", index=neighbour.index("lo"), address="198.51.100.1", prefixlen=32)
    neighbour.set_up("lo")
    neighbour.iproute.link("set", index=neighbour.index("there"), state="up")
    netns.set_up("here")
    neighbour.iproute.neigh(
        "add", dst="192.0.2.7", lladdr=mac_text(netns.mac("here")), ifindex=neighbour.index("there"), state="permanent"
    )
    with netns.entered():
        wire = PacketSocket("here", ETH_P_ALL, neighbours.REPLIES)
    with wire:
        yield wire


def test_the_mac_of_a_neighbour(netns: Namespace, neighbour: Namespace, asking: PacketSocket) -> None:
    assert neighbours.resolve(asking, netns.mac("here"), ME, NEIGHBOUR, Deadline(2)) == neighbour.mac("there")


def test_whether_a_neighbour_answers(netns: Namespace, neighbour: Namespace, asking: PacketSocket) -> None:
    hop = neighbour.mac("there")
    for target in (NEIGHBOUR, bytes([198, 51, 100, 1])):
        assert neighbours.answers(asking, netns.mac("here"), ME, hop, target, 4711, Deadline(2))


def test_nobody_there(netns: Namespace, neighbour: Namespace, asking: PacketSocket) -> None:
    patience = Deadline(0.25)
    assert neighbours.resolve(asking, netns.mac("here"), ME, NOBODY, patience) is None
    assert not neighbours.answers(asking, netns.mac("here"), ME, neighbour.mac("there"), NOBODY, 1, Deadline(0.15))
    assert patience.elapsed() < 1


def test_what_we_answer_ourselves_is_no_answer(netns: Namespace, asking: PacketSocket) -> None:
    """The kernel's own reply to a neighbour's question passes the same socket, on its way out."""
    mac = netns.mac("here")
    reply = Ether(src=mac_text(mac), dst="ff:ff:ff:ff:ff:ff") / ARP(
        op=2, hwsrc=mac_text(mac), psrc="192.0.2.99", hwdst="02:00:00:00:00:09", pdst="192.0.2.1"
    )
    with netns.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind(("here", 0))
        sending.send(bytes(reply))
    assert neighbours.resolve(asking, mac, ME, NOBODY, Deadline(0.15)) is None


def test_answers_that_are_for_somebody_else(netns: Namespace, neighbour: Namespace, asking: PacketSocket) -> None:
    """ARP replies of other hosts, echo replies to other questions, errors of routers, and tagged frames."""
    mac = netns.mac("here")
    far = Ether(src=mac_text(neighbour.mac("there")), dst=mac_text(mac))
    theirs = IP(src="192.0.2.99", dst="192.0.2.7")
    others = [
        far / ARP(op=2, hwsrc="02:00:00:00:00:09", psrc="192.0.2.98", hwdst=mac_text(mac), pdst="192.0.2.7"),
        far / ARP(op=1, hwsrc="02:00:00:00:00:09", psrc="192.0.2.99", hwdst=mac_text(mac), pdst="192.0.2.7"),
        far / Dot1Q(vlan=5) / ARP(op=2, hwsrc="02:00:00:00:00:09", psrc="192.0.2.99", pdst="192.0.2.7"),
        far / theirs / ICMP(type=0, id=2, seq=1),
        far / theirs / ICMP(type=3, code=1, id=1, seq=1),
        far / IP(src="192.0.2.98", dst="192.0.2.7") / ICMP(type=0, id=1, seq=1),
        far / Dot1Q(vlan=5) / theirs / ICMP(type=0, id=1, seq=1),
        far / ARP(op=2),
    ]
    with neighbour.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind(("there", 0))
        for packet in others:
            sending.send(bytes(packet))
        sending.send(bytes(others[0])[:20])
    assert neighbours.resolve(asking, mac, ME, NOBODY, Deadline(0.15)) is None
    with neighbour.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind(("there", 0))
        for packet in others:
            sending.send(bytes(packet))
    assert not neighbours.answers(asking, mac, ME, neighbour.mac("there"), NOBODY, 1, Deadline(0.15))


def test_closing_in_the_background_closes(pair: Namespace) -> None:
    with pair.entered():
        wire = PacketSocket("here", ETH_P_ALL, DHCP_ONLY)
    before = wire.fileno()
    wire.close_in_background()
    assert before >= 0
    assert wait_until(lambda: wire.fileno() == -1)
