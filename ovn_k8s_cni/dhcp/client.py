"""The one-shot exchange DISCOVER, OFFER, REQUEST, ACK (RFC 2131 section 3.1) as a state machine without I/O.

Messages and the monotonic clock go in; messages to send, the next time to wake up, and at the end a lease or what went
wrong come out. What happens when is in TRANSITIONS and nowhere else. Nothing here keeps a lease alive: whoever gets the
address renews it.
"""

from __future__ import annotations

from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.message import Message, MessageError
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ovn_k8s_cni.dhcp.message import Route

# The same in DISCOVER and REQUEST: servers exist that answer the REQUEST with what the DISCOVER had asked for.
PARAMETERS = bytes(
    (
        dhcp.SUBNET_MASK,
        dhcp.ROUTER,
        dhcp.DNS_SERVER,
        dhcp.DOMAIN_NAME,
        dhcp.MTU,
        dhcp.NTP,
        dhcp.LEASE_TIME,
        dhcp.SERVER_ID,
        dhcp.RENEWAL_TIME,
        dhcp.REBINDING_TIME,
        dhcp.DOMAIN_SEARCH,
        dhcp.CLASSLESS_ROUTE,
    )
)

# ---- the states, the events, and what leads from where to where

NEW, SELECTING, REQUESTING, PAUSING, BOUND, FAILED = "new", "selecting", "requesting", "pausing", "bound", "failed"
STATES = (NEW, SELECTING, REQUESTING, PAUSING, BOUND, FAILED)

START = "start"
GOOD_OFFER = "OFFER"
SECOND_CHOICE = "OFFER of a server that has let us down before"
GOOD_ACK = "ACK"
BAD_ACK = "ACK that cannot be used"
CHOSEN_NAK = "NAK of the chosen server"
LAST_NAK = "NAK of the chosen server, one too many"
SILENCE = "time to send again, or on"
FALLBACK = "time to send again, but a second choice is there"
GIVEN_UP = "no answer to as many REQUESTs as it gets"
DEADLINE = "deadline"
EVENTS = (
    *(START, GOOD_OFFER, SECOND_CHOICE, GOOD_ACK, BAD_ACK, CHOSEN_NAK, LAST_NAK),
    *(SILENCE, FALLBACK, GIVEN_UP, DEADLINE),
)

# (state, event): (next state, the method that does what goes with it). What is not here changes nothing; that is what
# becomes of late and duplicate messages. NAKs of other servers and OFFERs that cannot be taken are no events at all.
TRANSITIONS: dict[tuple[str, str], tuple[str, str]] = {
    (NEW, START): (SELECTING, "_discover"),
    # DISCOVER is out.
    (SELECTING, GOOD_OFFER): (REQUESTING, "_request"),
    (SELECTING, SECOND_CHOICE): (SELECTING, "_remember"),
    (SELECTING, FALLBACK): (REQUESTING, "_request_remembered"),
    (SELECTING, SILENCE): (SELECTING, "_discover_again"),
    (SELECTING, DEADLINE): (FAILED, "_report_no_offer"),
    # An OFFER is chosen, REQUEST is out.
    (REQUESTING, GOOD_ACK): (BOUND, "_bind"),
    (REQUESTING, BAD_ACK): (FAILED, "_report_bad_ack"),
    (REQUESTING, CHOSEN_NAK): (PAUSING, "_pause"),
    (REQUESTING, LAST_NAK): (FAILED, "_report_naks"),
    (REQUESTING, SILENCE): (REQUESTING, "_request_again"),
    (REQUESTING, GIVEN_UP): (SELECTING, "_discover_elsewhere"),
    (REQUESTING, DEADLINE): (FAILED, "_report_no_ack"),
    # The chosen server has taken it back.
    (PAUSING, SILENCE): (SELECTING, "_discover"),
    (PAUSING, DEADLINE): (FAILED, "_report_pause"),
}

_BACK_OFF = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # seconds, each up to a fifth more or less; the last one repeats
_JITTER = 0.2
_MOST_REQUESTS = 5  # to a server that does not answer: 7.75 s
_MOST_NAKS = 5  # with pauses of 0.5, 1, 2, 4 s between them

_LARGEST_SECS = 0xFFFF

# ---- how it ends

NO_ANSWER, REFUSED, UNUSABLE = "no answer", "refused", "unusable"


class Tally(Record):
    """How many messages went out and came back; `last_dropped` says of the last dropped packet why it was."""

    discovers: int = 0
    requests: int = 0
    offers: int = 0
    acks: int = 0
    naks: int = 0
    dropped: int = 0
    last_dropped: str = ""

    def text(self) -> str:
        """Return it as a line for an error's details."""
        sent = _counts((self.discovers, "DISCOVER"), (self.requests, "REQUEST"))
        came = _counts((self.offers, "OFFER"), (self.acks, "ACK"), (self.naks, "NAK"))
        dropped = f"; dropped: {self.dropped}, the last one because {self.last_dropped}" if self.dropped else ""
        return f"sent: {sent}; came back: {came}{dropped}"


def _counts(*counted: tuple[int, str]) -> str:
    return ", ".join(f"{number} {name}" for number, name in counted if number) or "nothing"


class Bound(Record):
    """The lease that a server has given; addresses are 4 raw bytes, times seconds (dhcp.INFINITE: without end).

    `server` is the ACK's server identifier, the chosen OFFER's where the ACK has none. `classless_routes` is None when
    option 121 is absent or broken. `warnings` tells which optional options were broken and so count as absent.
    """

    address: bytes
    prefix: int
    server: bytes
    routers: tuple[bytes, ...]
    dns_servers: tuple[bytes, ...]
    domain: str | None
    search: tuple[str, ...]
    classless_routes: tuple[Route, ...] | None
    static_routes: tuple[Route, ...]
    lease_seconds: int | None
    renewal_seconds: int | None
    rebinding_seconds: int | None
    mtu: int | None
    ack: Message
    tally: Tally
    warnings: tuple[str, ...]

    def routes(self) -> tuple[Route, ...]:
        """Return the routes of the lease: option 121 alone or, without it, option 33 and the first router's default."""
        if self.classless_routes is not None:
            return self.classless_routes
        default = tuple(dhcp.Route(bytes(4), 0, router) for router in self.routers[:1])
        return self.static_routes + default


class Failed(Record):
    """No lease, for one of the reasons NO_ANSWER, REFUSED (by NAKs), UNUSABLE (what the server acknowledged).

    `text` says what happened for the person on call, `seconds` how long it took. For UNUSABLE the lease exists on the
    server: `ack` and `server` are there so that it can be released.
    """

    why: str
    text: str
    seconds: float
    tally: Tally
    server: bytes | None = None
    ack: Message | None = None


class _Offered(Record):
    """What a server has offered."""

    server: bytes
    address: bytes


_NOTHING = _Offered(server=bytes(4), address=bytes(4))
_NO_MESSAGE = Message(op=0, xid=0, chaddr=b"", options={})  # what the clock's events come with


class Client:
    """One exchange for the interface `mac`; `client_id` is the whole value of option 61, None to send none.

    `random` returns as many random bytes as it is asked for. `now` is always the monotonic clock in seconds. It is for
    the caller to call `wake` at `wake_at()`, to broadcast what `outgoing()` returns after each call, and to stop when
    there is an `outcome()`: when `seconds` have passed since `start`, at the latest.
    """

    def __init__(self, mac: bytes, client_id: bytes | None, seconds: float, random: Callable[[int], bytes]) -> None:
        self.mac = mac
        self.state = NEW
        self._client_id = client_id
        self._seconds = seconds
        self._random = random
        self._started = self._ends = self._wake_at = 0.0
        self._outgoing: list[Message] = []
        self._outcome: Bound | Failed | None = None
        self._tally = Tally()
        # Of this round; a return to DISCOVER begins a new one.
        self._xid = 0
        self._secs = 0
        self._repeats = 0
        self._chosen = self._second_choice = _NOTHING
        # Of all rounds.
        self._naks = 0
        self._let_down: set[bytes] = set()

    # ---- in

    def start(self, now: float) -> None:
        """Send the first DISCOVER; the deadline counts from here. A second call does nothing."""
        if self.state == NEW:
            self._started, self._ends = now, now + self._seconds
            self._happens(START, now)

    def receive(self, message: Message, now: float) -> None:
        """Take in a message that came by, as `message.decode` returns it; it may be anybody's."""
        if not self._runs():
            return
        if now >= self._ends:
            self._happens(DEADLINE, now)
        elif trouble := self._not_ours(message):
            self.drop(trouble)
        elif message.kind() == dhcp.OFFER:
            self._receive_offer(message, now)
        elif message.kind() == dhcp.ACK:
            self._receive_ack(message, now)
        elif message.kind() == dhcp.NAK:
            self._receive_nak(message, now)
        else:
            self.drop(f"no server sends a {dhcp.TYPE_NAMES[message.kind()]}")

    def drop(self, why: str) -> None:
        """Count a packet that could not be used; `why` completes "the last one because"."""
        self._tally = self._tally.replace(dropped=self._tally.dropped + 1, last_dropped=why)

    def wake(self, now: float) -> None:
        """Do what is due at `now`; too early is harmless."""
        if not self._runs():
            return
        if now >= self._ends:
            self._happens(DEADLINE, now)
        elif now >= self._wake_at:
            self._happens(self._overdue(), now)

    # ---- out

    def outgoing(self) -> list[Message]:
        """Return the messages to broadcast now; each is returned once."""
        messages, self._outgoing = self._outgoing, []
        return messages

    def wake_at(self) -> float | None:
        """Return when to call `wake`, None before the start and when there is an outcome."""
        return min(self._wake_at, self._ends) if self._runs() else None

    def outcome(self) -> Bound | Failed | None:
        """Return how it ended, None while it runs."""
        return self._outcome

    def tally(self) -> Tally:
        """Return what was sent and received up to now."""
        return self._tally

    # ---- from what comes in to an event

    def _runs(self) -> bool:
        return self.state not in (NEW, BOUND, FAILED)

    def _not_ours(self, message: Message) -> str | None:
        """Return why a message is not for this round, None when it is; no other field tells, least of all a source."""
        if message.op != dhcp.BOOTREPLY:
            return "it was no reply"
        if message.chaddr != self.mac:
            return f"it was for the client {message.chaddr.hex(':')}"
        if message.xid != self._xid:
            return f"it belonged to the exchange {message.xid:#010x}, ours is {self._xid:#010x}"
        if message.options.get(dhcp.CLIENT_ID, self._client_id) != self._client_id:
            return f"it was for the client identifier {message.options[dhcp.CLIENT_ID].hex()}"
        return None

    def _receive_offer(self, offer: Message, now: float) -> None:
        self._count(offers=1)
        server = dhcp.server_id(offer)
        if server is None:
            self.drop("an OFFER had no server identifier (option 54)")
        elif trouble := ipv4.host_trouble(offer.yiaddr):
            self.drop(f"{ipv4.text(server)} offered {ipv4.text(offer.yiaddr)}: {trouble}")
        else:
            self._happens(SECOND_CHOICE if server in self._let_down else GOOD_OFFER, now, offer)

    def _receive_ack(self, ack: Message, now: float) -> None:
        self._count(acks=1)
        self._happens(BAD_ACK if _trouble(ack) else GOOD_ACK, now, ack)

    def _receive_nak(self, nak: Message, now: float) -> None:
        self._count(naks=1)
        server = dhcp.server_id(nak)
        if server == self._chosen.server:
            self._happens(CHOSEN_NAK if self._naks + 1 < _MOST_NAKS else LAST_NAK, now, nak)
        else:
            self.drop(f"a NAK was of {ipv4.text(server) if server else 'no server (option 54)'}, not of the chosen one")

    def _overdue(self) -> str:
        if self.state == SELECTING and self._second_choice is not _NOTHING:
            return FALLBACK
        if self.state == REQUESTING and self._repeats + 1 >= _MOST_REQUESTS:
            return GIVEN_UP
        return SILENCE

    def _happens(self, event: str, now: float, message: Message = _NO_MESSAGE) -> None:
        transition = TRANSITIONS.get((self.state, event))
        if transition is None:
            self.drop(f"there was no use for it ({event}, while {self.state})")
            return
        self.state, action = transition
        getattr(self, action)(message, now)

    # ---- what goes with a transition: each method of the table

    def _discover(self, _: Message, now: float) -> None:
        self._xid = int.from_bytes(self._random(4), "big")
        self._chosen = self._second_choice = _NOTHING
        self._repeats = 0
        self._send_discover(now)

    def _discover_again(self, _: Message, now: float) -> None:
        self._repeats += 1
        self._send_discover(now)

    def _discover_elsewhere(self, message: Message, now: float) -> None:
        self._let_down.add(self._chosen.server)
        self._discover(message, now)

    def _remember(self, offer: Message, _: float) -> None:
        if self._second_choice is _NOTHING:
            self._second_choice = _offered(offer)

    def _request(self, offer: Message, now: float) -> None:
        self._chosen = _offered(offer)
        self._repeats = 0
        self._send_request(now)

    def _request_remembered(self, _: Message, now: float) -> None:
        self._chosen = self._second_choice
        self._repeats = 0
        self._send_request(now)

    def _request_again(self, _: Message, now: float) -> None:
        self._repeats += 1
        self._send_request(now)

    def _pause(self, _: Message, now: float) -> None:
        self._naks += 1
        self._let_down.add(self._chosen.server)
        self._wait(self._naks, now)

    def _bind(self, ack: Message, _: float) -> None:
        self._outcome = _bound(ack, self._server_of(ack), self._tally)

    def _report_bad_ack(self, ack: Message, now: float) -> None:
        server = self._server_of(ack)
        self._fail(UNUSABLE, f"{_trouble(ack)}; the server is {ipv4.text(server)}", now, server, ack)

    def _report_naks(self, _: Message, now: float) -> None:
        self._fail(REFUSED, f"{self._offer_text()} and refused it (NAK), the {_MOST_NAKS}th time", now)

    def _report_pause(self, _: Message, now: float) -> None:
        self._fail(REFUSED, f"{self._offer_text()} and refused it (NAK); there was no time to ask again", now)

    def _report_no_offer(self, _: Message, now: float) -> None:
        self._fail(NO_ANSWER, f"no server offered a usable address within {self._seconds:g} s", now)

    def _report_no_ack(self, _: Message, now: float) -> None:
        self._fail(NO_ANSWER, f"{self._offer_text()} and sent no ACK for it within {self._seconds:g} s", now)

    # ---- the parts of that

    def _server_of(self, ack: Message) -> bytes:
        return dhcp.server_id(ack) or self._chosen.server

    def _offer_text(self) -> str:
        return f"the server {ipv4.text(self._chosen.server)} offered {ipv4.text(self._chosen.address)}"

    def _fail(self, why: str, text: str, now: float, server: bytes | None = None, ack: Message | None = None) -> None:
        self._outcome = Failed(why, text, now - self._started, self._tally, server, ack)

    def _send_discover(self, now: float) -> None:
        self._count(discovers=1)
        self._secs = min(int(now - self._started), _LARGEST_SECS)
        self._send(dhcp.DISCOVER, {}, now)

    def _send_request(self, now: float) -> None:
        self._count(requests=1)
        asked = {dhcp.REQUESTED_ADDRESS: self._chosen.address, dhcp.SERVER_ID: self._chosen.server}
        self._send(dhcp.REQUEST, asked, now)

    def _send(self, kind: int, asked: dict[int, bytes], now: float) -> None:
        """Queue a message and set the time to repeat it.

        A REQUEST has the `secs` of its DISCOVER, so that relays which look at it pass both on to the same servers (RFC
        2131 section 3.1). Without the broadcast flag: a packet socket gets unicast answers as well, and a switch may
        still send broadcasts of this server where the last pod was.
        """
        identifier = {} if self._client_id is None else {dhcp.CLIENT_ID: self._client_id}
        self._outgoing.append(
            Message(
                op=dhcp.BOOTREQUEST,
                xid=self._xid,
                chaddr=self.mac,
                secs=self._secs,
                options={dhcp.MESSAGE_TYPE: bytes([kind]), **identifier, **asked, dhcp.PARAMETERS: PARAMETERS},
            )
        )
        self._wait(self._repeats, now)

    def _wait(self, step: int, now: float) -> None:
        pause = _BACK_OFF[min(step, len(_BACK_OFF) - 1)]
        share = int.from_bytes(self._random(2), "big") / 0xFFFF  # 0 to 1
        self._wake_at = now + pause * (1 + _JITTER * (2 * share - 1))

    def _count(self, **one: int) -> None:
        self._tally = self._tally.replace(**{name: getattr(self._tally, name) + more for name, more in one.items()})


# ---- what servers say


def _offered(offer: Message) -> _Offered:
    return _Offered(server=offer.options[dhcp.SERVER_ID], address=offer.yiaddr)


def _usable_prefix(ack: Message) -> int:
    """Return the prefix length of the lease in an ACK; raise MessageError when the lease cannot be used."""
    address = ipv4.text(ack.yiaddr)
    try:
        prefix = dhcp.prefix_length(ack)
    except MessageError as problem:
        raise MessageError(f"the lease of {address} has a broken subnet mask: {problem}") from None
    if prefix is None:
        raise MessageError(
            f"the lease of {address} has no subnet mask (option {dhcp.SUBNET_MASK}), and none is guessed"
        )
    if prefix == 0:
        raise MessageError(f"the lease of {address} has an empty subnet mask (option {dhcp.SUBNET_MASK})")
    if trouble := ipv4.host_trouble(ack.yiaddr, prefix):
        raise MessageError(f"the leased address {address}/{prefix} cannot be used: {trouble}")
    return prefix


def _trouble(ack: Message) -> str:
    """Return why the lease in an ACK cannot be used, "" when it can."""
    try:
        _usable_prefix(ack)
    except MessageError as problem:
        return str(problem)
    return ""


def _bound(ack: Message, server: bytes, tally: Tally) -> Bound:
    warnings: list[str] = []

    def optional(read: Callable[[Message], Any], absent: Any = None) -> Any:
        try:
            return read(ack)
        except MessageError as problem:
            warnings.append(str(problem))
            return absent

    return Bound(
        address=ack.yiaddr,
        prefix=_usable_prefix(ack),
        server=server,
        routers=optional(lambda ack: dhcp.addresses(ack, dhcp.ROUTER), ()),
        dns_servers=optional(lambda ack: dhcp.addresses(ack, dhcp.DNS_SERVER), ()),
        domain=optional(dhcp.domain_name),
        search=optional(dhcp.domain_search, ()),
        classless_routes=optional(dhcp.classless_routes) or None,
        static_routes=optional(dhcp.static_routes, ()),
        lease_seconds=optional(lambda ack: dhcp.seconds(ack, dhcp.LEASE_TIME)),
        renewal_seconds=optional(lambda ack: dhcp.seconds(ack, dhcp.RENEWAL_TIME)),
        rebinding_seconds=optional(lambda ack: dhcp.seconds(ack, dhcp.REBINDING_TIME)),
        mtu=optional(dhcp.interface_mtu),
        ack=ack,
        tally=tally,
        warnings=tuple(warnings),
    )
