"""The DHCP client over a real veth pair, with scapy as the broken or hostile server at the other end.

What must not be believed stands in TRAPS: each is sent ahead of the right answer, with an address of its own, for each
message of the exchange. What servers do that is odd and right stands in ODD.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scapy.layers.dhcp import BOOTP, DHCP
from scapy.layers.inet import IP, UDP, IPOption, fragment
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet, Padding, Raw

from ovn_k8s_cni.dhcp import client as clients
from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp import wire as wires
from ovn_k8s_cni.dhcp.client import Bound, Client, Failed
from ovn_k8s_cni.dhcp.frame import DHCP_ONLY
from ovn_k8s_cni.dhcp.message import Route
from ovn_k8s_cni.dhcp.wire import Finished
from ovn_k8s_cni.system.ipv4 import parse as ip
from ovn_k8s_cni.system.packet import ETH_P_ALL, PacketSocket
from tests.support import Namespace

pytestmark = pytest.mark.timeout(60)

SERVER_MAC = "02:00:00:00:00:01"
SERVER, OTHER, ADDRESS, TRAP = "192.0.2.1", "192.0.2.2", "192.0.2.7", "192.0.2.66"
MASK = "255.255.255.0"
COOKIE = b"\x63\x82\x53\x63"
DISCOVER, OFFER, REQUEST, ACK, NAK = dhcp.DISCOVER, dhcp.OFFER, dhcp.REQUEST, dhcp.ACK, dhcp.NAK
SECONDS = 8.0  # for what succeeds
IMPATIENT = 1.2  # seconds, for what must not

# The answers of a server to a client's message, as frames.
Answers = Callable[["Asked"], list[Packet]]


class Asked:
    """A client's message, as scapy reads it."""

    def __init__(self, frame: bytes) -> None:
        packet = Ether(frame)
        self.ether, self.ip, self.udp, self.bootp = packet, packet[IP], packet[UDP], packet[BOOTP]
        options = [option for option in packet[DHCP].options if isinstance(option, tuple)]
        self.options: dict[str, Any] = {name: values[0] for name, *values in options}
        self.parameters = [list(value) for name, value, *_ in options if name == "param_req_list"]
        self.kind = int(self.options["message-type"])
        self.answer = {DISCOVER: OFFER, REQUEST: ACK}[self.kind]

    def reply(
        self,
        kind: int | None = None,
        *options: tuple[Any, ...],
        server: str | None = SERVER,
        mask: str | None = MASK,
        **fields: Any,
    ) -> Packet:
        """Return the right answer as a broadcast frame, with further options and other fields of BOOTP."""
        said: list[Any] = [("message-type", kind or self.answer)]
        said += [("server_id", server)] if server else []
        said += [("subnet_mask", mask)] if mask and kind != NAK else []
        return self.framed(self.message(**fields) / DHCP(options=[*said, *options, "end"]))

    def laid_out(self, options: bytes, *, cookie: bytes = COOKIE, **fields: Any) -> Packet:
        """Return an answer whose options are given as bytes."""
        return self.framed(self.message(options=cookie + options, **fields))

    def message(self, **fields: Any) -> Packet:
        return BOOTP(
            **{"op": 2, "xid": self.bootp.xid, "chaddr": self.bootp.chaddr, "yiaddr": ADDRESS, "flags": "B", **fields}
        )

    def framed(self, payload: Packet, to: str = "ff:ff:ff:ff:ff:ff", **ip_fields: Any) -> Packet:
        return (
            Ether(src=SERVER_MAC, dst=to)
            / IP(**{"src": SERVER, "dst": "255.255.255.255", **ip_fields})
            / UDP(sport=67, dport=68)
            / payload
        )

    @property
    def other_chaddr(self) -> bytes:
        return bytes(self.bootp.chaddr[:5]) + bytes([self.bootp.chaddr[5] ^ 1]) + bytes(10)


class Server(threading.Thread):
    """Answers each message of a client with what `answers` makes of it; its first `deaf` messages it does not hear."""

    def __init__(self, sending: socket.socket, answers: Answers, deaf: int) -> None:
        super().__init__(daemon=True)
        self._socket, self._answers, self._deaf = sending, answers, deaf
        self._over = threading.Event()
        self.asked: list[Asked] = []
        self.trouble: Exception | None = None

    def run(self) -> None:
        try:
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    self._serve(self._socket.recv(2000))
        except OSError:
            pass  # the link is gone
        except Exception as trouble:
            self.trouble = trouble

    def _serve(self, frame: bytes) -> None:
        if frame[12:14] != b"\x08\x00" or frame[36:38] != b"\x00\x43":
            return
        self.asked.append(Asked(frame))
        if len(self.asked) > self._deaf:
            for packet in self._answers(self.asked[-1]):
                self._socket.send(bytes(packet))

    def stop(self) -> None:
        self._over.set()
        self.join(5)
        assert not self.is_alive()
        if self.trouble is not None:
            raise self.trouble


class Lab:
    """A veth pair with our interface `here`, the server on `there`."""

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        namespace.add("here", "veth", peer="there")
        namespace.set_up("here", "there")
        self.mac = namespace.mac("here")
        self.own_id = b"\x01" + self.mac
        self.server: Server

    @contextlib.contextmanager
    def _serving(self, answers: Answers, deaf: int) -> Iterator[PacketSocket]:
        with self.namespace.entered():
            sending = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            sending.bind(("there", ETH_P_ALL))
            wire = PacketSocket("here", ETH_P_ALL, DHCP_ONLY)
        sending.settimeout(0.05)
        with sending, wire:
            self.server = Server(sending, answers, deaf)
            self.server.start()
            try:
                yield wire
            finally:
                self.server.stop()

    def run(
        self, answers: Answers, *, seconds: float = SECONDS, deaf: int = 0, client_id: bytes | None = b""
    ) -> Finished:
        """Have an exchange; `client_id` b"" stands for 01 and the MAC."""
        identifier = self.own_id if client_id == b"" else client_id
        with self._serving(answers, deaf) as wire:
            finished = wires.run(Client(self.mac, identifier, seconds, random_bytes), wire)
        assert list(self.namespace.iproute.get_addr(family=socket.AF_INET)) == []
        return finished

    def bound(self, answers: Answers, **how: Any) -> Bound:
        """Have an exchange that must succeed, with the right address from the right server."""
        finished = self.run(answers, **how)
        assert isinstance(finished.outcome, Bound), finished.outcome
        assert (finished.outcome.address, finished.outcome.prefix) == (ip(ADDRESS), 24)
        assert finished.hop == bytes.fromhex(SERVER_MAC.replace(":", ""))
        return finished.outcome

    def failed(self, answers: Answers, **how: Any) -> Failed:
        """Have an exchange that must fail."""
        outcome = self.run(answers, **{"seconds": IMPATIENT, **how}).outcome
        assert isinstance(outcome, Failed), outcome
        return outcome

    def xids(self) -> set[int]:
        """Return the xids of all that was asked: one for each round from DISCOVER on."""
        return {asked.bootp.xid for asked in self.server.asked}


def random_bytes(size: int) -> bytes:
    # A xid that means something else when its bytes are turned round, and jitter in the middle.
    return b"\x80\x00" if size == 2 else b"\x5e\xed" + time.monotonic_ns().to_bytes(8, "big")[-2:]


@pytest.fixture
def lab(netns: Namespace) -> Lab:
    return Lab(netns)


def right(asked: Asked) -> list[Packet]:
    return [asked.reply()]


# ---- the plain exchange, and what scapy reads of ours


@pytest.mark.parametrize("client_id", [b"", None, b"\xff" + bytes(range(18))], ids=["mac", "none", "RFC 4361"])
def test_what_the_server_sees(lab: Lab, client_id: bytes | None) -> None:
    lab.bound(right, client_id=client_id)
    assert {asked.kind for asked in lab.server.asked} == {DISCOVER, REQUEST}
    assert len(lab.xids()) == 1
    for asked in lab.server.asked:
        ether, ip_header, bootp = asked.ether, asked.ip, asked.bootp
        assert (ether.src, ether.dst) == (lab.mac.hex(":"), "ff:ff:ff:ff:ff:ff")
        assert (ip_header.src, ip_header.dst, asked.udp.sport, asked.udp.dport) == (
            "0.0.0.0",
            "255.255.255.255",
            68,
            67,
        )
        assert (bootp.op, int(bootp.flags), bootp.chaddr[:6], bootp.ciaddr) == (1, 0, lab.mac, "0.0.0.0")
        assert len(bytes(bootp)) >= 300
        assert asked.parameters == [[1, 3, 6, 15, 26, 42, 51, 54, 58, 59, 119, 121]]
        assert asked.options.get("client_id") == (lab.own_id if client_id == b"" else client_id)
        assert recomputed(ether) == bytes(ether)
        chosen = (asked.options.get("requested_addr"), asked.options.get("server_id"))
        assert chosen == ((ADDRESS, SERVER) if asked.kind == REQUEST else (None, None))


def recomputed(packet: Packet) -> bytes:
    """Return the frame with lengths and checksums as scapy computes them."""
    packet = packet.copy()
    for layer in (IP, UDP):
        for field in ("len", "chksum"):
            delattr(packet[layer], field)
    return bytes(packet)


# ---- what must not be believed


def broken_sum(packet: Packet) -> Packet:
    built = Ether(bytes(packet))
    built[UDP].chksum ^= 0x0101
    return built


def tagged(tag: Packet, packet: Packet) -> Packet:
    kind = 0x88A8 if isinstance(tag, Dot1AD) else 0x8100
    return Ether(src=packet.src, dst=packet.dst, type=kind) / tag / packet[IP]


def in_fragments(packet: Packet) -> list[Packet]:
    return [Ether(src=packet.src, dst=packet.dst) / piece for piece in fragment(packet[IP], 200)]


def tlv(code: int, value: bytes) -> bytes:
    return bytes([code, len(value)]) + value


def kind_tlv(kind: int) -> bytes:
    return tlv(53, bytes([kind]))


SERVER_TLV, MASK_TLV = tlv(54, ip(SERVER)), tlv(1, ip(MASK))

Trap = Callable[[Asked, int], list[Packet]]
TRAPS: dict[str, Trap] = {
    "foreign xid": lambda asked, kind: [asked.reply(kind, yiaddr=TRAP, xid=asked.bootp.xid ^ 1)],
    "xid in the other byte order": lambda asked, kind: [
        asked.reply(kind, yiaddr=TRAP, xid=int.from_bytes(asked.bootp.xid.to_bytes(4, "little"), "big"))
    ],
    "foreign chaddr": lambda asked, kind: [asked.reply(kind, yiaddr=TRAP, chaddr=asked.other_chaddr)],
    "empty chaddr": lambda asked, kind: [asked.reply(kind, yiaddr=TRAP, chaddr=bytes(16))],
    "chaddr of 16 bytes": lambda asked, kind: [asked.reply(kind, yiaddr=TRAP, hlen=16)],
    "not Ethernet": lambda asked, kind: [asked.reply(kind, yiaddr=TRAP, htype=6)],
    "a request": lambda asked, kind: [asked.reply(kind, yiaddr=TRAP, op=1)],
    "differing echo of option 61": lambda asked, kind: [
        asked.reply(kind, ("client_id", b"\x00somebody else"), yiaddr=TRAP),
        asked.reply(kind, ("client_id", b"\x01" + asked.other_chaddr[:6]), yiaddr=TRAP),
        asked.reply(kind, ("client_id", b"\x01" + bytes(asked.bootp.chaddr[:5])), yiaddr=TRAP),
    ],
    "bad UDP checksum": lambda asked, kind: [broken_sum(asked.reply(kind, yiaddr=TRAP))],
    "bad IP checksum": lambda asked, kind: [
        asked.framed(asked.reply(kind, yiaddr=TRAP)[BOOTP], chksum=0x1234),
    ],
    "802.1Q tag": lambda asked, kind: [tagged(Dot1Q(vlan=5), asked.reply(kind, yiaddr=TRAP))],
    "802.1ad tag": lambda asked, kind: [tagged(Dot1AD(vlan=5), asked.reply(kind, yiaddr=TRAP))],
    "fragments": lambda asked, kind: in_fragments(asked.reply(kind, yiaddr=TRAP)),
    "to the server's port": lambda asked, kind: [
        Ether(src=SERVER_MAC, dst="ff:ff:ff:ff:ff:ff")
        / IP(src=SERVER, dst="255.255.255.255")
        / UDP(sport=67, dport=67)
        / asked.reply(kind, yiaddr=TRAP)[BOOTP]
    ],
    "another magic cookie": lambda asked, kind: [
        asked.laid_out(kind_tlv(kind) + SERVER_TLV + MASK_TLV, cookie=b"\x63\x82\x53\x64", yiaddr=TRAP),
        asked.laid_out(b"", cookie=b"", yiaddr=TRAP),
    ],
    "no message type": lambda asked, _: [asked.laid_out(SERVER_TLV + MASK_TLV + b"\xff", yiaddr=TRAP)],
    "broken message type": lambda asked, kind: [
        asked.laid_out(broken + SERVER_TLV + MASK_TLV + b"\xff", yiaddr=TRAP)
        for broken in (tlv(53, b""), tlv(53, bytes([kind, kind])), tlv(53, b"\x00"), tlv(53, b"\x2a"))
    ],
    "broken server identifier": lambda asked, kind: [
        asked.laid_out(kind_tlv(kind) + tlv(54, broken) + MASK_TLV + b"\xff", yiaddr=TRAP)
        for broken in (b"", ip(SERVER)[:3], ip(SERVER) + b"\0", bytes(4), ip("127.0.0.1"), ip("224.0.0.1"), b"\xff" * 4)
    ],
    "message type behind the end": lambda asked, kind: [
        asked.laid_out(SERVER_TLV + MASK_TLV + b"\xff" + kind_tlv(kind), yiaddr=TRAP)
    ],
    "message type in a field that is not overloaded": lambda asked, kind: [
        asked.laid_out(SERVER_TLV + MASK_TLV + said + b"\xff", **{field: kind_tlv(kind) + b"\xff"}, yiaddr=TRAP)
        for said, field in ((b"", "file"), (b"", "sname"), (tlv(52, b"\x02"), "file"), (tlv(52, b"\x01"), "sname"))
    ],
    "a type that no server sends": lambda asked, _: [
        asked.reply(other, yiaddr=TRAP) for other in (DISCOVER, REQUEST, dhcp.DECLINE, dhcp.RELEASE, dhcp.INFORM)
    ],
    "cut off": lambda asked, kind: [
        asked.framed(Raw(bytes(asked.reply(kind, yiaddr=TRAP)[BOOTP])[:kept])) for kept in (0, 1, 44, 236, 239, 240)
    ],
    "NAK of another server": lambda asked, _: [
        asked.reply(NAK, server=OTHER, yiaddr="0.0.0.0"),
        asked.reply(NAK, server=None, yiaddr="0.0.0.0"),
    ],
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_what_must_not_be_believed(lab: Lab, trap: Trap) -> None:
    """Ahead of each right answer comes the wrong one; ahead of the ACK a NAK of the same kind too."""

    def answers(asked: Asked) -> list[Packet]:
        kinds = [OFFER] if asked.kind == DISCOVER else [ACK, NAK]
        return [*(packet for kind in kinds for packet in trap(asked, kind)), asked.reply()]

    lab.bound(answers)
    assert {asked.options["requested_addr"] for asked in lab.server.asked if asked.kind == REQUEST} == {ADDRESS}
    assert len(lab.xids()) == 1, "a NAK that is not to be believed has led back to DISCOVER"


@pytest.mark.parametrize("trap", [name for name in TRAPS if name != "NAK of another server"])
def test_nothing_comes_of_it_alone(lab: Lab, trap: str) -> None:
    failed = lab.failed(lambda asked: TRAPS[trap](asked, asked.answer), seconds=0.4)
    assert failed.why == clients.NO_ANSWER
    assert (failed.tally.discovers, failed.tally.requests) == (2, 0)
    assert failed.tally.text().startswith("sent: 2 DISCOVER; came back: nothing")


# ---- what is odd, and right


def in_overloaded_fields(asked: Asked) -> Packet:
    return asked.laid_out(
        tlv(52, b"\x03") + kind_tlv(asked.answer) + b"\xff",
        file=SERVER_TLV + b"\0\0" + tlv(15, b"example") + b"\xff",
        sname=tlv(15, b".org") + MASK_TLV + tlv(3, ip("192.0.2.254")) + b"\xff",
    )


def without_checksum(packet: Packet) -> Packet:
    packet[UDP].chksum = 0
    return packet


ODD: dict[str, Callable[[Asked], Packet]] = {
    "own client-id echoed": lambda asked: asked.reply(None, ("client_id", asked.options["client_id"])),
    "other source, siaddr, giaddr and hops": lambda asked: asked.framed(
        asked.reply(siaddr="203.0.113.9", giaddr="203.0.113.8", hops=7, secs=9)[BOOTP], src="203.0.113.7"
    ),
    "from source 0.0.0.0": lambda asked: asked.framed(asked.reply()[BOOTP], src="0.0.0.0"),
    "unicast": lambda asked: asked.framed(asked.reply(flags=0)[BOOTP], to=asked.ether.src, dst=ADDRESS),
    "broadcast MAC, unicast address": lambda asked: asked.framed(asked.reply()[BOOTP], dst=ADDRESS),
    "unicast MAC, broadcast address": lambda asked: asked.framed(asked.reply()[BOOTP], to=asked.ether.src),
    "no UDP checksum": lambda asked: without_checksum(asked.reply()),
    "IP options": lambda asked: asked.framed(asked.reply()[BOOTP], options=[IPOption(b"\x01")] * 40),
    "Ethernet padding": lambda asked: asked.reply() / Padding(b"\x35\x01\x06" * 20),
    "options in another order": lambda asked: asked.laid_out(
        MASK_TLV + tlv(51, bytes(4)) + SERVER_TLV + kind_tlv(asked.answer) + b"\xff"
    ),
    "pads anywhere": lambda asked: asked.laid_out(
        bytes(5) + kind_tlv(asked.answer) + b"\0" + SERVER_TLV + bytes(3) + MASK_TLV + bytes(2) + b"\xff" + bytes(60)
    ),
    "no end mark, and short": lambda asked: asked.laid_out(kind_tlv(asked.answer) + SERVER_TLV + MASK_TLV),
    "cut off in an option behind the good ones": lambda asked: asked.laid_out(
        kind_tlv(asked.answer) + SERVER_TLV + MASK_TLV + b"\x06\x08\xc0\x00"
    ),
    "bytes behind the end": lambda asked: asked.laid_out(
        kind_tlv(asked.answer) + SERVER_TLV + MASK_TLV + b"\xff" + kind_tlv(NAK) + b"\x01\x04junk"
    ),
    "overloaded fields": in_overloaded_fields,
    "only the message type in the main field": lambda asked: asked.laid_out(
        kind_tlv(asked.answer) + tlv(52, b"\x01"), file=SERVER_TLV + MASK_TLV
    ),
    "repeated options of fixed size": lambda asked: asked.laid_out(
        kind_tlv(asked.answer) + kind_tlv(NAK) + SERVER_TLV + tlv(54, ip(OTHER)) + MASK_TLV + tlv(1, ip("255.0.0.0"))
    ),
    "unknown options": lambda asked: asked.reply(None, (224, bytes(200)), (82, b"\x01\x04port"), (254, b"")),
    "ten dozen options": lambda asked: asked.reply(None, *((code, b"\0") for code in range(130, 250))),
    "as large as the link lets": lambda asked: asked.reply(None, *((code, bytes(200)) for code in range(224, 230))),
    "lease time 0": lambda asked: asked.reply(None, ("lease_time", 0)),
    "lease without end": lambda asked: asked.reply(None, ("lease_time", 0xFFFFFFFF)),
    "broken options beside": lambda asked: asked.laid_out(
        kind_tlv(asked.answer) + SERVER_TLV + MASK_TLV
        + b"".join(tlv(code, b"\xc0\x00\x02") for code in (3, 6, 26, 33, 51, 58, 59, 119, 121)) + tlv(15, b"\n")
    ),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_and_right(lab: Lab, odd: Callable[[Asked], Packet]) -> None:
    bound = lab.bound(lambda asked: [odd(asked)])
    assert bound.server == ip(SERVER)
    assert len(lab.xids()) == 1


@pytest.mark.parametrize("size", [0, 1, 2])
def test_smallest_messages(lab: Lab, size: int) -> None:
    """An OFFER must have a server, an ACK a mask; a NAK need have nothing, and 240 bytes and an option is enough."""

    def answers(asked: Asked) -> list[Packet]:
        filler = tlv(224, bytes(size))[: 2 * size]
        body = kind_tlv(asked.answer) + (SERVER_TLV if asked.kind == DISCOVER else MASK_TLV) + filler
        return [asked.laid_out(body)]

    assert lab.bound(answers).server == ip(SERVER)


def test_options_that_are_split_within_a_value(lab: Lab) -> None:
    """RFC 3396, over the main field and both overloaded ones."""
    routes = b"\x18\xcb\x00\x71" + ip("192.0.2.251") + b"\x10\xc6\x33" + bytes(4)
    search = b"\x03eng\x07example\x03org\0\x04test\xc0\x04"

    def answers(asked: Asked) -> list[Packet]:
        main = kind_tlv(asked.answer) + SERVER_TLV + tlv(52, b"\x03") + tlv(121, routes[:3]) + tlv(119, search[:7])
        file = tlv(119, search[7:15]) + tlv(121, routes[3:9]) + b"\xff"
        sname = MASK_TLV + tlv(121, routes[9:]) + tlv(119, search[15:]) + b"\xff"
        return [asked.laid_out(main + b"\xff", file=file, sname=sname)]

    bound = lab.bound(answers)
    assert bound.routes() == (Route(ip("203.0.113.0"), 24, ip("192.0.2.251")), Route(ip("198.51.0.0"), 16, None))
    assert bound.search == ("eng.example.org", "test.example.org")
    assert bound.warnings == ()


def test_overloaded_and_broken_options_are_told_apart(lab: Lab) -> None:
    bound = lab.bound(lambda asked: [in_overloaded_fields(asked)])
    assert (bound.domain, bound.routers) == ("example.org", (ip("192.0.2.254"),))
    broken = lab.bound(lambda asked: [ODD["broken options beside"](asked)])
    assert len(broken.warnings) == 10
    assert (broken.domain, broken.routers, broken.routes(), broken.lease_seconds) == (None, (), (), None)


# ---- several servers


def test_of_several_offers_the_first_is_taken(lab: Lab) -> None:
    def answers(asked: Asked) -> list[Packet]:
        if asked.kind == REQUEST:
            return [asked.reply()]
        return [asked.reply(), asked.reply(server=OTHER, yiaddr=TRAP), asked.reply(yiaddr=TRAP), asked.reply()]

    assert lab.bound(answers).server == ip(SERVER)
    chosen = {(asked.options["requested_addr"], asked.options["server_id"]) for asked in lab.server.asked[1:]}
    assert chosen == {(ADDRESS, SERVER)}


def test_offers_that_cannot_be_taken_are_passed_over(lab: Lab) -> None:
    bogus = ("0.0.0.0", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255")

    def answers(asked: Asked) -> list[Packet]:
        if asked.kind == REQUEST:
            return [asked.reply()]
        return [asked.reply(server=None, yiaddr=TRAP), *(asked.reply(yiaddr=text) for text in bogus), asked.reply()]

    assert lab.bound(answers).tally.offers >= len(bogus) + 2
    assert {asked.options["requested_addr"] for asked in lab.server.asked if asked.kind == REQUEST} == {ADDRESS}
    assert len(lab.xids()) == 1


def test_duplicates_and_late_messages(lab: Lab) -> None:
    """A NAK behind the ACK is too late, an OFFER behind the first passed over, an ACK ahead of the REQUEST too."""

    def answers(asked: Asked) -> list[Packet]:
        if asked.kind == DISCOVER:
            return [asked.reply(ACK, yiaddr=TRAP), asked.reply(NAK), *[asked.reply()] * 3]
        return [asked.reply(OFFER, yiaddr=TRAP), *[asked.reply()] * 3, asked.reply(NAK), asked.reply(yiaddr=TRAP)]

    lab.bound(answers)
    assert len(lab.xids()) == 1


def test_answers_to_an_earlier_round_are_late(lab: Lab) -> None:
    """After a NAK, what belongs to the first round keeps coming."""
    first: list[Asked] = []

    def answers(asked: Asked) -> list[Packet]:
        if asked.kind == DISCOVER:
            late = [old.reply(kind, yiaddr=TRAP) for old in first for kind in (OFFER, ACK, NAK)]
            return [*late, asked.reply()]
        if not first or first[0].bootp.xid == asked.bootp.xid:
            first.append(asked)
            return [asked.reply(NAK, yiaddr="0.0.0.0")]
        return [*(old.reply(kind, yiaddr=TRAP) for old in first for kind in (ACK, NAK)), asked.reply()]

    bound = lab.bound(answers)
    assert len(lab.xids()) == 2
    assert bound.tally.naks >= 1


# ---- NAKs


def test_own_nak_leads_back_to_discover(lab: Lab) -> None:
    naks: list[float] = []

    def answers(asked: Asked) -> list[Packet]:
        if asked.kind == REQUEST and not naks:
            naks.append(time.monotonic())
            return [asked.reply(NAK, yiaddr="0.0.0.0")]
        return [asked.reply()]

    bound = lab.bound(answers)
    assert time.monotonic() - naks[0] > 0.4
    assert bound.tally.naks == 1
    assert len(lab.xids()) == 2


def test_naks_without_end(lab: Lab) -> None:
    def answers(asked: Asked) -> list[Packet]:
        return [asked.reply(OFFER if asked.kind == DISCOVER else NAK)]

    failed = lab.failed(answers, seconds=2.2)
    assert failed.why in (clients.REFUSED, clients.NO_ANSWER)
    assert failed.tally.naks >= 2
    assert failed.tally.requests <= 4
    assert len(lab.xids()) >= 2


def test_a_server_that_offers_and_refuses_does_not_keep_the_other_one_away(lab: Lab) -> None:
    def answers(asked: Asked) -> list[Packet]:
        if asked.kind == DISCOVER:
            return [asked.reply(server=OTHER, yiaddr=TRAP), asked.reply()]
        other_is_asked = asked.options["server_id"] == OTHER
        return [asked.reply(NAK, server=OTHER) if other_is_asked else asked.reply()]

    assert lab.bound(answers).server == ip(SERVER)


# ---- leases that cannot be used


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask": None}, "no subnet mask (option 1)"),
        ({"mask": "255.0.255.0"}, "255.0.255.0 is not contiguous"),
        ({"mask": "255.255.255.1"}, "255.255.255.1 is not contiguous"),
        ({"mask": "0.0.0.0"}, "empty subnet mask (option 1)"),
        ({"yiaddr": "0.0.0.0"}, "0.0.0.0"),
        ({"yiaddr": "127.0.0.1"}, "127.0.0.1"),
        ({"yiaddr": "224.0.0.1"}, "224.0.0.1"),
        ({"yiaddr": "255.255.255.255"}, "255.255.255.255"),
        ({"yiaddr": "192.0.2.255"}, "broadcast address of its subnet"),
        ({"yiaddr": "192.0.2.0"}, "network address of its subnet"),
    ],
    ids=str,
)
def test_unusable_lease(lab: Lab, changes: dict[str, Any], reason: str) -> None:
    """An error at once, that names the server and what is wrong; the lease is there to be given back."""

    def answers(asked: Asked) -> list[Packet]:
        return [asked.reply() if asked.kind == DISCOVER else asked.reply(**changes)]

    finished = lab.run(answers)
    failed = finished.outcome
    assert isinstance(failed, Failed)
    assert failed.why == clients.UNUSABLE
    assert reason in failed.text
    assert f"the server is {SERVER}" in failed.text
    assert (failed.server, finished.hop) == (ip(SERVER), bytes.fromhex("020000000001"))
    assert failed.seconds < SECONDS / 2


def test_the_address_of_the_ack_counts(lab: Lab) -> None:
    bound = lab.bound(lambda asked: [asked.reply(yiaddr=TRAP if asked.kind == DISCOVER else ADDRESS)])
    assert bound.address == ip(ADDRESS)


# ---- loss and silence


@pytest.mark.parametrize(("lost", "seconds"), [(1, 0.6), (2, 1.2), (3, 2.5)])
def test_the_first_packets_are_lost(lab: Lab, lost: int, seconds: float) -> None:
    started = time.monotonic()
    bound = lab.bound(right, deaf=lost)
    assert time.monotonic() - started < seconds
    assert bound.tally.discovers > lost


def test_the_first_request_is_lost(lab: Lab) -> None:
    requests: list[Asked] = []

    def answers(asked: Asked) -> list[Packet]:
        requests.extend([asked] if asked.kind == REQUEST else [])
        return [asked.reply()] if asked.kind == DISCOVER or len(requests) > 1 else []

    assert lab.bound(answers).tally.requests == 2
    first, again = requests
    assert bytes(first.bootp) == bytes(again.bootp)


@pytest.mark.parametrize("answers", [lambda _: [], right], ids=["silent", "out of reach"])
def test_silence(lab: Lab, answers: Answers) -> None:
    failed = lab.failed(answers, deaf=100)
    assert failed.tally.text() == "sent: 3 DISCOVER; came back: nothing"
    assert failed.seconds == pytest.approx(IMPATIENT, abs=0.3)


def test_silence_after_the_offer(lab: Lab) -> None:
    failed = lab.failed(lambda asked: [asked.reply()] if asked.kind == DISCOVER else [])
    assert failed.text == f"the server {SERVER} offered {ADDRESS} and sent no ACK for it within {IMPATIENT:g} s"
    assert failed.tally.requests >= 2
    assert (failed.tally.acks, failed.tally.naks) == (0, 0)


def test_a_flood_does_not_keep_the_client_beyond_its_deadline(lab: Lab) -> None:
    """Answers for others that never cease: the clock is looked at between any two."""
    over = threading.Event()

    def flood() -> None:
        with lab.namespace.entered():
            sending = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            sending.bind(("there", 0))
        frame = foreign_frame(lab.mac)
        with sending:
            while not over.is_set():
                sending.send(frame)

    flooding = threading.Thread(target=flood, daemon=True)
    started = time.monotonic()
    flooding.start()
    try:
        failed = lab.failed(lambda _: [], seconds=0.6, deaf=100)
    finally:
        over.set()
        flooding.join(5)
    assert time.monotonic() - started < 3
    assert failed.tally.discovers >= 2
    assert failed.tally.dropped > 10
    assert "ours is" in failed.tally.last_dropped


def foreign_frame(mac: bytes) -> bytes:
    return bytes(
        Ether(src=SERVER_MAC, dst="ff:ff:ff:ff:ff:ff")
        / IP(src=SERVER, dst="255.255.255.255")
        / UDP(sport=67, dport=68)
        / BOOTP(op=2, xid=1, chaddr=mac, yiaddr=TRAP)
        / DHCP(options=[("message-type", "offer"), ("server_id", SERVER), "end"])
    )


# ---- the interface


def test_the_interface_goes_away(lab: Lab) -> None:
    def answers(_: Asked) -> list[Packet]:
        command = ["nsenter", f"--net={lab.namespace.path}", "ip", "link", "delete", "here"]
        subprocess.run(command, check=True, timeout=10)
        return []

    started = time.monotonic()
    with pytest.raises(OSError, match=r"Network is down|No such device"):
        lab.run(answers)
    assert time.monotonic() - started < SECONDS / 2


def test_old_packets_in_the_queue(lab: Lab) -> None:
    """What had come in before the exchange began is of no use to it."""
    with lab.namespace.entered():
        wire = PacketSocket("here", ETH_P_ALL, DHCP_ONLY)
        sending = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
        sending.bind(("there", 0))
    with wire, sending:
        for _ in range(50):
            sending.send(foreign_frame(lab.mac))
        finished = wires.run(Client(lab.mac, None, 0.3, random_bytes), wire)
    assert isinstance(finished.outcome, Failed)
    assert (finished.outcome.tally.dropped, finished.hop) == (50, None)
