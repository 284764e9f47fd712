"""The DHCP client without a network: each row of docs on packets in the field, its table, and any sequence at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovn_k8s_cni.dhcp import client as clients
from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.client import (
    BOUND,
    EVENTS,
    FAILED,
    NEW,
    PAUSING,
    REQUESTING,
    SELECTING,
    STATES,
    TRANSITIONS,
    Bound,
    Client,
    Failed,
    Tally,
)
from ovn_k8s_cni.dhcp.message import Message, Route
from ovn_k8s_cni.system.ipv4 import parse as ip
from tests.fuzz import targets

pytestmark = pytest.mark.timeout(60)

MAC = b"\x0a\x58\xc0\x00\x02\x07"
OWN_ID = b"\x01" + MAC
SERVER, OTHER = ip("192.0.2.1"), ip("192.0.2.2")
ADDRESS, TRAP = ip("192.0.2.7"), ip("192.0.2.66")
MASK = ip("255.255.255.0")
SECONDS = 55.0


def no_jitter(size: int) -> bytes:
    """Return what lies in the middle: no time is added or taken."""
    return b"\x80" + bytes(size - 1) if size == 2 else b"\x00\x00\x00\x2a"[:size]


def counting() -> Callable[[int], bytes]:
    numbers = itertools.count(1)
    return lambda size: next(numbers).to_bytes(4, "big") if size == 4 else no_jitter(size)


class Exchange:
    """A client, its clock, and all that it has sent."""

    def __init__(
        self,
        client_id: bytes | None = OWN_ID,
        seconds: float = SECONDS,
        random: Callable[[int], bytes] | None = None,
        start: float = 1000.0,
    ) -> None:
        self.client = Client(MAC, client_id, seconds, random or counting())
        self.began = self.now = start
        self.sent: list[Message] = []
        self.times: list[float] = []
        self.client.start(self.now)
        self._collect()

    def _collect(self) -> None:
        for message in self.client.outgoing():
            self.sent.append(message)
            self.times.append(self.now - self.began)

    @property
    def last(self) -> Message:
        return self.sent[-1]

    def kinds(self) -> list[str]:
        return [dhcp.TYPE_NAMES[message.kind()] for message in self.sent]

    def hear(self, message: Message, after: float = 0.001) -> None:
        self.now += after
        self.client.receive(message, self.now)
        self._collect()

    def sleep(self) -> None:
        """Let time pass until the client wants to wake."""
        wake_at = self.client.wake_at()
        assert wake_at is not None
        self.now = max(self.now, wake_at)
        self.client.wake(self.now)
        self._collect()

    def sleep_out(self) -> Failed:
        """Let time pass until it gives up."""
        for _ in range(1000):
            outcome = self.client.outcome()
            if outcome is not None:
                assert isinstance(outcome, Failed)
                return outcome
            self.sleep()
        raise AssertionError("the client does not end")

    def offer(self, **changes: Any) -> Message:
        return self.reply(dhcp.OFFER, **changes)

    def ack(self, **changes: Any) -> Message:
        return self.reply(dhcp.ACK, **changes)

    def nak(self, **changes: Any) -> Message:
        return self.reply(dhcp.NAK, **changes)

    def reply(self, kind: int, *, options: dict[int, bytes | None] | None = None, **fields: Any) -> Message:
        """Return a server's answer to the last message; an option of None is left out."""
        whole: dict[int, bytes | None] = {53: bytes([kind]), 54: SERVER, 1: MASK, **(options or {})}
        return Message(
            **{
                "op": 2,
                "xid": self.last.xid,
                "chaddr": MAC,
                "yiaddr": ADDRESS,
                "options": {code: value for code, value in whole.items() if value is not None},
                **fields,
            }
        )

    def bound(self) -> Bound:
        outcome = self.client.outcome()
        assert isinstance(outcome, Bound), outcome
        return outcome

    def failed(self) -> Failed:
        outcome = self.client.outcome()
        assert isinstance(outcome, Failed), outcome
        return outcome


@pytest.fixture
def selecting() -> Exchange:
    return Exchange()


@pytest.fixture
def requesting() -> Exchange:
    exchange = Exchange()
    exchange.hear(exchange.offer())
    return exchange


# ---- what is sent


@pytest.mark.parametrize("client_id", [OWN_ID, None, b"\xff" + bytes(18)])
def test_messages(client_id: bytes | None) -> None:
    exchange = Exchange(client_id)
    exchange.hear(exchange.offer())
    exchange.hear(exchange.ack())
    assert exchange.kinds() == ["DISCOVER", "REQUEST"]
    discover, request = exchange.sent
    for message in exchange.sent:
        assert (message.op, message.chaddr, message.flags, message.xid) == (1, MAC, 0, discover.xid)
        assert [message.ciaddr, message.yiaddr, message.siaddr, message.giaddr] == [bytes(4)] * 4
        assert message.options[55] == bytes([1, 3, 6, 15, 26, 42, 51, 54, 58, 59, 119, 121])
        assert message.options.get(61) == client_id
        assert (61 in message.options) == (client_id is not None)
        assert dhcp.decode(dhcp.encode(message)) == message
    assert set(discover.options) - {61} == {53, 55}
    assert set(request.options) - {61} == {53, 55, 50, 54}
    assert (request.options[50], request.options[54]) == (ADDRESS, SERVER)


def test_each_message_is_returned_once() -> None:
    client = Client(MAC, None, 5, no_jitter)
    assert client.outgoing() == []
    client.start(0)
    assert len(client.outgoing()) == 1
    assert client.outgoing() == []


def test_xid_is_what_chance_says() -> None:
    assert Exchange(random=lambda size: b"\xde\xad\xbe\xef"[:size]).last.xid == 0xDEADBEEF


def test_secs_grow_and_the_request_repeats_its_discovers(selecting: Exchange) -> None:
    """RFC 2131, section 3.1, item 3."""
    for _ in range(5):
        selecting.sleep()
    assert [message.secs for message in selecting.sent] == [int(time) for time in selecting.times]
    assert selecting.last.secs == 7
    selecting.hear(selecting.offer(), after=3)
    for _ in range(3):
        selecting.sleep()
    assert [message.secs for message in selecting.sent[6:]] == [7] * 4
    assert selecting.kinds()[6:] == ["REQUEST"] * 4


def test_secs_do_not_overflow() -> None:
    exchange = Exchange(seconds=1e6)
    exchange.now += 70000
    exchange.sleep()
    assert exchange.last.secs == 0xFFFF


# ---- when it is sent

SCHEDULE = [0, 0.25, 0.75, 1.75, 3.75, 7.75, 15.75, 23.75, 31.75, 39.75, 47.75]


@pytest.mark.parametrize(
    ("random", "factor"),
    [(bytes, 0.8), (lambda size: b"\xff" * size, 1.2), (no_jitter, 1.0)],
    ids=["earliest", "latest", "middle"],
)
def test_discovers_are_repeated_with_back_off(random: Callable[[int], bytes], factor: float) -> None:
    exchange = Exchange(random=random)
    failed = exchange.sleep_out()
    expected = [time * factor for time in SCHEDULE if time * factor < SECONDS]
    assert exchange.times[: len(expected)] == pytest.approx(expected, abs=0.001)
    assert {message.xid for message in exchange.sent} == {exchange.sent[0].xid}
    assert exchange.now - exchange.began == pytest.approx(SECONDS)
    assert failed.seconds == pytest.approx(SECONDS)
    assert failed.tally.discovers == len(exchange.sent)


def test_jitter_is_drawn_each_time() -> None:
    draws: list[int] = []

    def random(size: int) -> bytes:
        draws.append(size)
        return bytes(size)

    exchange = Exchange(random=random)
    for _ in range(4):
        exchange.sleep()
    assert draws == [4, 2, 2, 2, 2, 2]


def test_requests_are_repeated_and_then_another_server_is_looked_for(requesting: Exchange) -> None:
    first = requesting.last
    for _ in range(4):
        requesting.sleep()
    began = requesting.times[1]
    assert [time - began for time in requesting.times[1:]] == pytest.approx(SCHEDULE[:5], abs=0.001)
    assert requesting.sent[1:] == [first] * 5
    requesting.sleep()
    assert requesting.kinds()[6:] == ["DISCOVER"]
    assert requesting.times[6] - began == pytest.approx(7.75, abs=0.001)
    assert requesting.last.xid != first.xid
    assert requesting.client.state == SELECTING
    requesting.sleep()
    assert requesting.times[7] - requesting.times[6] == pytest.approx(0.25, abs=0.001)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.25, 1.0, 55.0])
def test_deadline(seconds: float) -> None:
    exchange = Exchange(seconds=seconds)
    failed = exchange.sleep_out()
    assert exchange.now - exchange.began == pytest.approx(seconds)
    assert failed.why == clients.NO_ANSWER
    assert exchange.client.wake_at() is None
    assert exchange.times[-1] < max(seconds, 1e-9)


def test_nothing_is_taken_after_the_deadline(requesting: Exchange) -> None:
    requesting.hear(requesting.ack(), after=SECONDS)
    assert requesting.failed().why == clients.NO_ANSWER


def test_waking_early_or_often_is_harmless(selecting: Exchange) -> None:
    wake_at = selecting.client.wake_at()
    assert wake_at is not None
    for now in (selecting.now, wake_at - 0.001, selecting.now - 10):
        selecting.client.wake(now)
    assert selecting.client.outgoing() == []
    selecting.client.wake(wake_at)
    selecting.client.wake(wake_at)
    assert len(selecting.client.outgoing()) == 1


def test_waking_late_sends_once(selecting: Exchange) -> None:
    selecting.client.wake(selecting.now + 30)
    assert len(selecting.client.outgoing()) == 1


def test_before_the_start_nothing_happens() -> None:
    client = Client(MAC, None, 5, no_jitter)
    client.wake(3)
    client.receive(Message(op=2, xid=0, chaddr=MAC, options={53: b"\x02", 54: SERVER}, yiaddr=ADDRESS), 3)
    assert (client.state, client.wake_at(), client.outcome(), client.outgoing()) == (NEW, None, None, [])
    assert client.tally() == Tally()


def test_second_start_does_nothing(selecting: Exchange) -> None:
    wake_at = selecting.client.wake_at()
    selecting.client.start(selecting.now + 1)
    assert selecting.client.outgoing() == []
    assert selecting.client.wake_at() == wake_at


# ---- which messages are ours

NOT_OURS: dict[str, dict[str, Any]] = {
    "a request": {"op": 1},
    "another xid": {"xid": 0x01020304},
    "xid 0": {"xid": 0},
    "another MAC": {"chaddr": b"\x0a\x58\xc0\x00\x02\x08"},
    "no MAC": {"chaddr": bytes(6)},
    "another client-id": {"options": {61: b"\x01" + MAC[:5] + b"\x08"}},
    "client-id of another type": {"options": {61: b"\x00" + MAC}},
    "client-id cut short": {"options": {61: OWN_ID[:-1]}},
    "client-id with more": {"options": {61: OWN_ID + b"\0"}},
    "empty client-id": {"options": {61: b""}},
}
OURS: dict[str, dict[str, Any]] = {
    "no client-id": {},
    "our client-id": {"options": {61: OWN_ID}},
    "siaddr": {"siaddr": ip("203.0.113.9")},
    "giaddr": {"giaddr": ip("203.0.113.9")},
    "ciaddr": {"ciaddr": ip("203.0.113.9")},
    "secs and flags": {"secs": 17, "flags": 0xFFFF},
    "flags 0": {"flags": 0},
}


@pytest.mark.parametrize("changes", NOT_OURS.values(), ids=NOT_OURS)
def test_messages_of_others(changes: dict[str, Any]) -> None:
    exchange = Exchange()
    exchange.hear(exchange.offer(yiaddr=TRAP, **changes))
    assert (exchange.client.state, exchange.kinds()) == (SELECTING, ["DISCOVER"])
    exchange.hear(exchange.offer())
    for kind in (dhcp.ACK, dhcp.NAK):
        exchange.hear(exchange.reply(kind, yiaddr=TRAP, **changes))
        assert exchange.client.state == REQUESTING
    exchange.hear(exchange.ack())
    bound = exchange.bound()
    assert bound.address == ADDRESS
    assert (bound.tally.offers, bound.tally.acks, bound.tally.naks, bound.tally.dropped) == (1, 1, 0, 3)


@pytest.mark.parametrize("changes", OURS.values(), ids=OURS)
def test_messages_of_ours(changes: dict[str, Any]) -> None:
    exchange = Exchange()
    exchange.hear(exchange.offer(**changes))
    exchange.hear(exchange.ack(**changes))
    assert exchange.bound().address == ADDRESS


def test_an_echo_of_a_client_id_that_was_not_sent_is_not_ours() -> None:
    exchange = Exchange(client_id=None)
    exchange.hear(exchange.offer(options={61: OWN_ID}))
    assert exchange.client.state == SELECTING
    exchange.hear(exchange.offer())
    assert exchange.client.state == REQUESTING


@pytest.mark.parametrize("kind", [dhcp.DISCOVER, dhcp.REQUEST, dhcp.DECLINE, dhcp.RELEASE, dhcp.INFORM])
def test_replies_of_a_type_that_no_server_sends(kind: int, requesting: Exchange) -> None:
    requesting.hear(requesting.reply(kind))
    assert requesting.client.state == REQUESTING
    assert dhcp.TYPE_NAMES[kind] in requesting.client.tally().last_dropped


# ---- OFFERs


def test_offer_without_a_server_identifier_is_passed_over(selecting: Exchange) -> None:
    selecting.hear(selecting.offer(options={54: None}, yiaddr=TRAP))
    assert selecting.client.state == SELECTING
    assert "option 54" in selecting.client.tally().last_dropped
    selecting.hear(selecting.offer())
    assert selecting.last.options[50] == ADDRESS


BOGUS = [ip(text) for text in ("0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "240.0.0.1", "255.255.255.255")]


@pytest.mark.parametrize("address", BOGUS, ids=lambda address: ".".join(map(str, address)))
def test_offer_of_no_host_address_is_passed_over(selecting: Exchange, address: bytes) -> None:
    selecting.hear(selecting.offer(yiaddr=address))
    assert selecting.client.state == SELECTING
    selecting.hear(selecting.offer())
    assert selecting.last.options[50] == ADDRESS


def test_the_first_of_several_offers_is_taken(selecting: Exchange) -> None:
    selecting.hear(selecting.offer())
    for server, address in ((OTHER, TRAP), (SERVER, TRAP), (SERVER, ADDRESS)):
        selecting.hear(selecting.offer(options={54: server}, yiaddr=address))
    assert selecting.kinds() == ["DISCOVER", "REQUEST"]
    assert (selecting.last.options[54], selecting.last.options[50]) == (SERVER, ADDRESS)
    selecting.hear(selecting.ack())
    assert selecting.bound().tally == Tally(1, 1, 4, 1, 0, 3, "there was no use for it (OFFER, while requesting)")


# ---- ACKs


def test_the_address_of_the_ack_counts(requesting: Exchange) -> None:
    requesting.hear(requesting.ack(yiaddr=ip("192.0.2.9")))
    assert requesting.bound().address == ip("192.0.2.9")


@pytest.mark.parametrize(("said", "taken"), [(SERVER, SERVER), (None, SERVER), (OTHER, OTHER)])
def test_the_server_of_the_ack(requesting: Exchange, said: bytes | None, taken: bytes) -> None:
    requesting.hear(requesting.ack(options={54: said}))
    assert requesting.bound().server == taken


def test_ack_that_was_not_asked_for(selecting: Exchange) -> None:
    selecting.hear(selecting.ack(yiaddr=TRAP))
    assert selecting.client.state == SELECTING
    selecting.hear(selecting.offer())
    selecting.hear(selecting.ack())
    assert selecting.bound().address == ADDRESS


def test_late_messages_of_an_earlier_round(requesting: Exchange) -> None:
    """After the return to DISCOVER, what the old REQUEST or DISCOVER brings about is not ours any more."""
    late = [requesting.offer(yiaddr=TRAP), requesting.ack(yiaddr=TRAP), requesting.nak()]
    for _ in range(5):
        requesting.sleep()
    assert requesting.client.state == SELECTING
    for message in late:
        requesting.hear(message)
    assert requesting.client.state == SELECTING
    requesting.hear(requesting.offer(options={54: OTHER}))
    for message in late:
        requesting.hear(message)
    requesting.hear(requesting.ack(options={54: OTHER}))
    assert requesting.bound().address == ADDRESS


def test_duplicates_change_nothing(selecting: Exchange) -> None:
    offer = selecting.offer()
    for _ in range(3):
        selecting.hear(offer)
    assert selecting.kinds() == ["DISCOVER", "REQUEST"]
    ack = selecting.ack()
    selecting.hear(ack)
    bound = selecting.bound()
    for message in (ack, offer, selecting.nak(), selecting.ack(yiaddr=TRAP)):
        selecting.hear(message)
    selecting.client.wake(selecting.now + 100)
    assert selecting.client.outcome() is bound
    assert len(selecting.sent) == 2
    assert selecting.client.wake_at() is None


def test_ack_after_several_requests(requesting: Exchange) -> None:
    requesting.sleep()
    requesting.sleep()
    requesting.hear(requesting.ack())
    assert requesting.bound().tally == Tally(discovers=1, requests=3, offers=1, acks=1)


@pytest.mark.parametrize("address", BOGUS, ids=lambda address: ".".join(map(str, address)))
def test_ack_of_no_host_address(requesting: Exchange, address: bytes) -> None:
    requesting.hear(requesting.ack(yiaddr=address))
    failed = requesting.failed()
    assert failed.why == clients.UNUSABLE
    assert ".".join(map(str, address)) in failed.text
    assert "192.0.2.1" in failed.text


@pytest.mark.parametrize(
    ("mask", "address", "reason"),
    [
        (None, "192.0.2.7", "no subnet mask (option 1)"),
        (b"", "192.0.2.7", "option 1"),
        (MASK[:3], "192.0.2.7", "option 1"),
        (MASK + b"\0", "192.0.2.7", "option 1"),
        (ip("255.0.255.0"), "192.0.2.7", "not contiguous"),
        (ip("255.255.255.1"), "192.0.2.7", "not contiguous"),
        (ip("0.0.0.255"), "192.0.2.7", "not contiguous"),
        (bytes(4), "192.0.2.7", "empty subnet mask (option 1)"),
        (MASK, "192.0.2.255", "broadcast address"),
        (MASK, "192.0.2.0", "network address"),
        (ip("255.255.255.252"), "192.0.2.7", "broadcast address"),
    ],
)
def test_ack_with_an_unusable_mask(requesting: Exchange, mask: bytes | None, address: str, reason: str) -> None:
    """An error of its own, that names the server, at once; and enough to give the lease back."""
    ack = requesting.ack(options={1: mask}, yiaddr=ip(address))
    requesting.hear(ack)
    failed = requesting.failed()
    assert failed.why == clients.UNUSABLE
    assert reason in failed.text
    assert address in failed.text
    assert "server is 192.0.2.1" in failed.text
    assert (failed.server, failed.ack) == (SERVER, ack)


@pytest.mark.parametrize(
    ("mask", "address", "prefix"),
    [("255.255.255.255", "192.0.2.7", 32), ("255.255.255.254", "192.0.2.6", 31), ("255.0.0.0", "10.0.0.1", 8)],
)
def test_usable_masks(requesting: Exchange, mask: str, address: str, prefix: int) -> None:
    requesting.hear(requesting.ack(options={1: ip(mask)}, yiaddr=ip(address)))
    assert (requesting.bound().address, requesting.bound().prefix) == (ip(address), prefix)


# ---- NAKs


@pytest.mark.parametrize("server", [OTHER, None, ip("203.0.113.1")])
def test_nak_of_another_server_is_ignored(requesting: Exchange, server: bytes | None) -> None:
    requesting.hear(requesting.nak(options={54: server}))
    assert requesting.client.state == REQUESTING
    requesting.hear(requesting.ack())
    assert requesting.bound().tally.naks == 1


def test_nak_that_was_not_asked_for(selecting: Exchange) -> None:
    selecting.hear(selecting.nak())
    assert selecting.client.state == SELECTING


def test_nak_of_the_chosen_server(requesting: Exchange) -> None:
    """A pause, then a new round with an xid of its own."""
    old = requesting.last.xid
    requesting.hear(requesting.nak())
    assert requesting.client.state == PAUSING
    assert requesting.kinds() == ["DISCOVER", "REQUEST"]
    paused = requesting.now
    requesting.hear(requesting.offer())
    requesting.hear(requesting.ack(yiaddr=TRAP))
    requesting.hear(requesting.nak())
    assert requesting.client.state == PAUSING
    requesting.sleep()
    assert requesting.now - paused == pytest.approx(0.5, abs=0.001)
    assert requesting.kinds()[2:] == ["DISCOVER"]
    assert requesting.last.xid != old


def test_naks_are_borne_a_bounded_number_of_times(selecting: Exchange) -> None:
    pauses = []
    for round_number in range(1, 6):
        selecting.hear(selecting.offer())
        if round_number > 1:
            assert selecting.client.state == SELECTING  # it has let us down: the others get their chance first
            selecting.sleep()
        assert selecting.client.state == REQUESTING
        selecting.hear(selecting.nak())
        if round_number < 5:
            assert selecting.client.state == PAUSING
            before = selecting.now
            selecting.sleep()
            pauses.append(round(selecting.now - before, 2))
    failed = selecting.failed()
    assert (failed.why, failed.ack) == (clients.REFUSED, None)
    assert "192.0.2.1" in failed.text
    assert "192.0.2.7" in failed.text
    assert failed.tally == Tally(discovers=5, requests=5, offers=5, naks=5)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    assert len({message.xid for message in selecting.sent}) == 5


def silent_until_given_up(exchange: Exchange) -> None:
    for _ in range(5):
        exchange.sleep()


def nak(exchange: Exchange) -> None:
    exchange.hear(exchange.nak())
    exchange.sleep()


@pytest.mark.parametrize("let_down", [silent_until_given_up, nak])
def test_another_server_is_preferred_to_one_that_has_let_us_down(
    requesting: Exchange, let_down: Callable[[Exchange], None]
) -> None:
    """A server that is quick to offer and never acknowledges must not win each round."""
    let_down(requesting)
    requesting.hear(requesting.offer(yiaddr=TRAP))
    assert requesting.client.state == SELECTING
    requesting.hear(requesting.offer(options={54: OTHER}))
    assert (requesting.last.options[54], requesting.last.options[50]) == (OTHER, ADDRESS)


@pytest.mark.parametrize("let_down", [silent_until_given_up, nak])
def test_but_it_gets_another_chance_when_it_is_alone(
    requesting: Exchange, let_down: Callable[[Exchange], None]
) -> None:
    let_down(requesting)
    discovered = requesting.now
    requesting.hear(requesting.offer())
    requesting.hear(requesting.offer(yiaddr=TRAP))
    requesting.sleep()
    assert requesting.now - discovered == pytest.approx(0.25, abs=0.001)
    assert requesting.kinds()[-1] == "REQUEST"
    assert requesting.last.options[50] == ADDRESS
    requesting.hear(requesting.ack())
    assert requesting.bound().address == ADDRESS


# ---- what failures say


def test_nobody_answers() -> None:
    failed = Exchange(seconds=10).sleep_out()
    assert failed == Failed(
        why=clients.NO_ANSWER,
        text="no server offered a usable address within 10 s",
        seconds=failed.seconds,
        tally=Tally(discovers=6),
    )
    assert failed.tally.text() == "sent: 6 DISCOVER; came back: nothing"


def test_no_ack() -> None:
    exchange = Exchange(seconds=5)
    exchange.hear(exchange.offer())
    failed = exchange.sleep_out()
    assert failed.why == clients.NO_ANSWER
    assert failed.text == "the server 192.0.2.1 offered 192.0.2.7 and sent no ACK for it within 5 s"
    assert failed.tally.text() == "sent: 1 DISCOVER, 5 REQUEST; came back: 1 OFFER"


def test_time_runs_out_in_the_pause_after_a_nak() -> None:
    exchange = Exchange(seconds=0.3)
    exchange.hear(exchange.offer())
    exchange.hear(exchange.nak())
    failed = exchange.sleep_out()
    assert failed.why == clients.REFUSED
    assert "refused it (NAK)" in failed.text


def test_dropped_packets_are_counted_and_the_last_explained(selecting: Exchange) -> None:
    selecting.hear(selecting.offer(xid=7))
    selecting.hear(selecting.offer(chaddr=b"\x02\0\0\0\0\x09"))
    selecting.client.drop("option 54 (server identifier) is broken")
    tally = selecting.sleep_out().tally
    assert (tally.offers, tally.dropped) == (0, 3)
    assert tally.text().endswith(
        "came back: nothing; dropped: 3, the last one because option 54 (server identifier) is broken"
    )


# ---- what a lease has

ROUTER = ip("192.0.2.254")
FULL: dict[int, bytes | None] = {
    3: ROUTER + ip("192.0.2.253"),
    6: ip("192.0.2.53") + ip("198.51.100.53"),
    15: b"example.org",
    26: b"\x05\x78",
    33: ip("198.51.100.0") + ip("192.0.2.252"),
    51: b"\x00\x00\x0e\x10",
    58: b"\x00\x00\x07\x08",
    59: b"\x00\x00\x0c\x4e",
    119: b"\x03eng\x07example\x03org\0",
    121: b"\x18\xcb\x00\x71" + ip("192.0.2.251") + b"\x10\xc6\x33" + bytes(4),
}


def test_full_lease(requesting: Exchange) -> None:
    ack = requesting.ack(options=FULL)
    requesting.hear(ack)
    assert requesting.client.state == BOUND
    assert requesting.bound() == Bound(
        address=ADDRESS,
        prefix=24,
        server=SERVER,
        routers=(ROUTER, ip("192.0.2.253")),
        dns_servers=(ip("192.0.2.53"), ip("198.51.100.53")),
        domain="example.org",
        search=("eng.example.org",),
        classless_routes=(Route(ip("203.0.113.0"), 24, ip("192.0.2.251")), Route(ip("198.51.0.0"), 16, None)),
        static_routes=(Route(ip("198.51.100.0"), 24, ip("192.0.2.252")),),
        lease_seconds=3600,
        renewal_seconds=1800,
        rebinding_seconds=3150,
        mtu=1400,
        ack=ack,
        tally=Tally(discovers=1, requests=1, offers=1, acks=1),
        warnings=(),
    )


def test_bare_lease(requesting: Exchange) -> None:
    requesting.hear(requesting.ack())
    bound = requesting.bound()
    assert (bound.routers, bound.dns_servers, bound.domain, bound.search) == ((), (), None, ())
    assert (bound.classless_routes, bound.static_routes, bound.routes()) == (None, (), ())
    assert (bound.lease_seconds, bound.renewal_seconds, bound.rebinding_seconds, bound.mtu) == (None,) * 4
    assert bound.warnings == ()


@pytest.mark.parametrize(
    ("raw", "seconds"), [(bytes(4), 0), (b"\xff" * 4, dhcp.INFINITE), (b"\x80\0\0\0", 2**31), (None, None)]
)
def test_no_lease_time_stops_the_exchange(requesting: Exchange, raw: bytes | None, seconds: int | None) -> None:
    requesting.hear(requesting.ack(options={51: raw}))
    assert requesting.bound().lease_seconds == seconds


BROKEN: dict[int, tuple[bytes, str, object]] = {
    3: (b"\xc0\x00\x02", "routers", ()),
    6: (bytes(4), "dns_servers", ()),
    15: (b"a b", "domain", None),
    26: (b"\x00\x10", "mtu", None),
    33: (bytes(7), "static_routes", ()),
    51: (b"\x0e\x10", "lease_seconds", None),
    58: (b"", "renewal_seconds", None),
    59: (bytes(5), "rebinding_seconds", None),
    119: (b"\x07eng", "search", ()),
    121: (b"\x21" + bytes(9), "classless_routes", None),
}


@pytest.mark.parametrize("code", BROKEN)
def test_broken_optional_option_is_dropped_with_a_warning(code: int) -> None:
    raw, field, absent = BROKEN[code]
    whole, broken = Exchange(), Exchange()
    for exchange, options in ((whole, FULL), (broken, {**FULL, code: raw})):
        exchange.hear(exchange.offer())
        exchange.hear(exchange.ack(options=options))
    assert getattr(broken.bound(), field) == absent
    assert len(broken.bound().warnings) == 1
    expected = whole.bound().replace(**{field: absent}, warnings=broken.bound().warnings, ack=broken.bound().ack)
    assert broken.bound() == expected


DEFAULT = Route(bytes(4), 0, ROUTER)
STATIC = Route(ip("198.51.100.0"), 24, ip("192.0.2.252"))
CLASSLESS = (Route(ip("203.0.113.0"), 24, ip("192.0.2.251")), Route(ip("198.51.0.0"), 16, None))


@pytest.mark.parametrize(
    ("left_out", "routes"),
    [
        ({}, CLASSLESS),
        ({121: None}, (STATIC, DEFAULT)),
        ({121: b"\x21" + bytes(9)}, (STATIC, DEFAULT)),
        ({121: b""}, (STATIC, DEFAULT)),
        ({121: None, 33: None}, (DEFAULT,)),
        ({121: None, 3: None}, (STATIC,)),
        ({3: None, 33: None}, CLASSLESS),
        ({121: b"\0" + ROUTER}, (DEFAULT,)),
    ],
)
def test_routes(requesting: Exchange, left_out: dict[int, bytes | None], routes: tuple[Route, ...]) -> None:
    """RFC 3442: with option 121, options 3 and 33 make no routes."""
    requesting.hear(requesting.ack(options={**FULL, **left_out}))
    assert requesting.bound().routes() == routes


# ---- the table


@pytest.fixture
def walked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """Collect which transitions are made."""
    found: set[tuple[str, str]] = set()
    happens = Client._happens

    def recorded(self: Client, event: str, *rest: Any) -> None:
        found.add((self.state, event))
        happens(self, event, *rest)

    monkeypatch.setattr(Client, "_happens", recorded)
    return found


def test_each_transition_is_reached_from_outside(walked: set[tuple[str, str]]) -> None:
    def offered(seconds: float = SECONDS) -> Exchange:
        exchange = Exchange(seconds=seconds)
        exchange.hear(exchange.offer())
        return exchange

    Exchange().sleep_out()  # nobody there
    offered().hear(offered().ack())
    missing = offered()
    missing.hear(missing.ack(options={1: None}))
    offered(5).sleep_out()  # no ACK
    paused = offered(0.3)
    paused.hear(paused.nak())
    paused.sleep_out()
    refused = Exchange()
    while refused.client.outcome() is None:
        refused.hear(refused.offer())
        if refused.client.state == SELECTING:
            refused.sleep()
        refused.hear(refused.nak())
        if refused.client.state == PAUSING:
            refused.sleep()
    silent_until_given_up(offered())
    assert walked == set(TRANSITIONS)


def test_table_is_sound() -> None:
    for (state, event), (next_state, action) in TRANSITIONS.items():
        assert {state, next_state} <= set(STATES)
        assert event in EVENTS
        assert callable(getattr(Client, action))
    final = set(STATES) - {state for state, _ in TRANSITIONS}
    assert final == {BOUND, FAILED}
    assert {event for _, event in TRANSITIONS} == set(EVENTS)


def in_state(state: str) -> Exchange:
    exchange = Exchange()
    if state == NEW:
        exchange.client = Client(MAC, OWN_ID, SECONDS, no_jitter)
    if state in (REQUESTING, PAUSING, BOUND):
        exchange.hear(exchange.offer())
    if state == PAUSING:
        exchange.hear(exchange.nak())
    if state == BOUND:
        exchange.hear(exchange.ack())
    if state == FAILED:
        exchange.sleep_out()
    assert exchange.client.state == state
    return exchange


@pytest.mark.parametrize(
    ("state", "event"), [pair for pair in itertools.product(STATES, EVENTS) if pair not in TRANSITIONS]
)
def test_what_is_not_in_the_table_changes_nothing(state: str, event: str) -> None:
    exchange = in_state(state)
    client = exchange.client
    before = (client.wake_at(), client.outcome())
    client._happens(event, exchange.now, exchange.offer())
    assert client.state == state
    assert client.outgoing() == []
    assert (client.wake_at(), client.outcome()) == before


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", range(1, 9))
def test_any_message_in_any_state(state: str, kind: int) -> None:
    """Only the expected ones lead on."""
    leads_on = {(SELECTING, dhcp.OFFER): REQUESTING, (REQUESTING, dhcp.ACK): BOUND, (REQUESTING, dhcp.NAK): PAUSING}
    exchange = in_state(state)
    exchange.hear(exchange.reply(kind))
    assert exchange.client.state == leads_on.get((state, kind), state)


# ---- anything at all; the same that the fuzzer does, from hypothesis' choices

SCRIPTS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.builds(lambda code, rest: bytes([code]) + rest, st.integers(0, 7), st.binary(min_size=3, max_size=6)),
        st.sampled_from(targets.USEFUL),
    ),
    max_size=30,
).map(b"".join)


@settings(max_examples=3000)
@given(SCRIPTS)
def test_any_sequence(script: bytes) -> None:
    """Nothing is raised, no address is bound that no valid ACK gave, and it ends by the deadline."""
    targets.client(script)


@settings(max_examples=200)
@given(st.data())
def test_useful_sequences_do_bind(data: st.DataObject) -> None:
    """The invariants would hold for a client that never binds."""
    before = data.draw(st.lists(st.sampled_from(targets.HARMLESS), max_size=6).map(b"".join))
    between = data.draw(st.lists(st.sampled_from(targets.HARMLESS), max_size=6).map(b"".join))
    outcome = targets.client(before + targets.OFFER + between + targets.ACK)
    assert isinstance(outcome, Bound)
