"""What must hold for any input: one function for the codec, one for the client.

Without the fuzzer they are ordinary functions: test_corpus.py runs them over the corpus, tests/test_client.py over what
hypothesis thinks of.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

from ovn_k8s_cni.dhcp import message as dhcp
from ovn_k8s_cni.dhcp.client import Bound, Client, Failed
from ovn_k8s_cni.dhcp.message import Message, MessageError

# ---- the codec

READERS: tuple[Callable[[Message], object], ...] = (
    dhcp.server_id,
    dhcp.prefix_length,
    dhcp.interface_mtu,
    dhcp.domain_name,
    dhcp.domain_search,
    dhcp.classless_routes,
    dhcp.static_routes,
    *(lambda message, code=code: dhcp.seconds(message, code) for code in (51, 58, 59)),
    *(lambda message, code=code: dhcp.addresses(message, code) for code in (3, 6, 42)),
)


def codec(payload: bytes) -> Message | None:
    """Decode a payload; nothing but MessageError may come out of it, and what comes out is the same when sent again."""
    try:
        message = dhcp.decode(payload)
    except MessageError:
        return None
    assert message.kind() in range(1, 9)
    for read in READERS:
        with contextlib.suppress(MessageError):
            read(message)
    # Overload describes how the options were laid out on the way here, which is not kept.
    plain = message.replace(options={code: value for code, value in message.options.items() if code != dhcp.OVERLOAD})
    encoded = dhcp.encode(plain)
    again = dhcp.decode(encoded)
    assert again == plain
    assert dhcp.encode(again) == encoded
    return message


# ---- the client
#
# A script is a sequence of steps, each a byte that says which (its three lowest bits) and what belongs to it; where the
# script ends, so does the step. When it is over, time passes until the client has ended.

SECONDS = 55.0
_MAC = b"\x0a\x58\xc0\x00\x02\x07"
_OTHER_MAC = b"\x0a\x58\xc0\x00\x02\x08"
_CLIENT_ID = b"\x01" + _MAC
_SERVERS = (b"\xc0\x00\x02\x01", b"\xc0\x00\x02\x02", b"\xc6\x33\x64\x01", None)
_ADDRESSES = (
    *(b"\xc0\x00\x02\x07", b"\xc0\x00\x02\x08", b"\x0a\x01\x02\x03", b"\xc0\x00\x02\xff"),
    *(bytes(4), b"\x7f\x00\x00\x01", b"\xe0\x00\x00\x01", b"\xff" * 4),
)
_MOST_STEPS = 2000  # more waking than in 55 s is a client that spins

PASS, SLEEP, REPLY, OPTIONS, RAW, EARLY, LATE, DROP = range(8)
FOREIGN_XID, OLD_XID, FOREIGN_MAC, REQUEST, ECHO, FOREIGN_ECHO, NO_MASK, HOLES = (1 << bit for bit in range(8))


def reply(kind: int, what: int = 0, *, server: int = 0, address: int = 0) -> bytes:
    """Return the step in which a server says something; `what` are flags, `server` and `address` places in a list."""
    return bytes([REPLY, kind - 1, what, server | address << 2])


OFFER, ACK, NAK = reply(dhcp.OFFER), reply(dhcp.ACK), reply(dhcp.NAK)
_NO_SERVER = len(_SERVERS) - 1
# What neither leads the client on nor lets time pass.
HARMLESS = [
    *(reply(kind, what) for kind in (2, 5, 6) for what in (FOREIGN_XID, FOREIGN_MAC, REQUEST, FOREIGN_ECHO)),
    reply(dhcp.OFFER, server=_NO_SERVER),
    reply(dhcp.NAK, server=1),
    reply(dhcp.NAK, server=_NO_SERVER),
    bytes([RAW, 2, 1, 2, 3, 4]),
    bytes([EARLY, 200]),
    bytes([DROP]),
]
USEFUL = [OFFER, ACK, NAK, bytes([SLEEP]), bytes([SLEEP]) * 5, reply(2, server=1), reply(5, ECHO), *HARMLESS]


class _Script:
    """Reads a script, zeros where it has ended."""

    def __init__(self, script: bytes) -> None:
        self._script = script
        self._at = 0

    def over(self) -> bool:
        return self._at >= len(self._script)

    def byte(self) -> int:
        return next(iter(self.bytes(1)), 0)

    def bytes(self, size: int) -> bytes:
        start, self._at = self._at, self._at + size
        return self._script[start : self._at]


def _usable(ack: Message) -> bool:
    """Tell whether a host can have the address of an ACK; written from the reference, not from the client."""
    mask = ack.options.get(1, b"")
    bits = "".join(f"{byte:08b}" for byte in mask)
    ones = bits.count("1")
    if len(mask) != 4 or not ones or "01" in bits:
        return False
    first, host = ack.yiaddr[0], int.from_bytes(ack.yiaddr, "big") & ((1 << 32 - ones) - 1)
    edge = ones <= 30 and host in (0, (1 << 32 - ones) - 1)
    return 1 <= first <= 223 and first != 127 and not edge


class _Run:
    def __init__(self, script: bytes) -> None:
        self.script = _Script(script)
        self.client = Client(_MAC, _CLIENT_ID, SECONDS, self._random)
        self.now = self.began = 5000.0
        self._drawn = 0
        self.sent: list[Message] = []
        self.client.start(self.now)
        self._collect()

    def _random(self, size: int) -> bytes:
        self._drawn += 1
        return (self._drawn * 2654435761 & 0xFFFFFFFF).to_bytes(4, "big")[:size]

    def _collect(self) -> None:
        new = self.client.outgoing()
        assert len(new) <= 1, "one step, one message"
        for message in new:
            assert dhcp.decode(dhcp.encode(message)) == message
            assert message.ciaddr == bytes(4)
            assert message.kind() in (dhcp.DISCOVER, dhcp.REQUEST)
        self.sent += new
        wake_at = self.client.wake_at()
        assert (wake_at is None) == (self.client.outcome() is not None)
        assert wake_at is None or wake_at <= self.began + SECONDS

    def _wake(self, now: float) -> None:
        self.client.wake(now)
        self._collect()

    def _hear(self, message: Message) -> None:
        finished = self.client.outcome()
        last = self.sent[-1]
        asked_for = (
            message.op == dhcp.BOOTREPLY
            and (message.xid, message.chaddr) == (last.xid, _MAC)
            and message.options.get(61, _CLIENT_ID) == _CLIENT_ID
            and message.kind() == dhcp.ACK
            and last.kind() == dhcp.REQUEST
            and self.now < self.began + SECONDS
        )
        self.client.receive(message, self.now)
        self._collect()
        outcome = self.client.outcome()
        if finished is not None:
            assert outcome is finished
        elif isinstance(outcome, Bound):
            assert asked_for
            assert _usable(message)
            assert outcome.address == message.yiaddr
            assert outcome.ack == message
            assert outcome.server == message.options.get(54, last.options[54])
            outcome.routes()
        elif outcome is not None and outcome.ack is not None:
            assert asked_for
            assert not _usable(message)

    def step(self) -> None:
        """Do one step of the script."""
        script = self.script
        match script.byte() & 7:
            case 0:
                self.now += script.byte() / 64
                self._wake(self.now)
            case 1:
                self._sleep()
            case 2:
                self._hear(self._reply(script.byte() % 8 + 1, script.byte(), script.byte()))
            case 3:
                self._payload(self._headed(script.byte() % 8 + 1, script.bytes(script.byte())))
            case 4:
                self._payload(script.bytes(2 * script.byte()))
            case 5:
                self._wake(self.now - script.byte())
            case 6:
                self.now += script.byte() / 8
            case _:
                self.client.drop("it was not even read")

    def _sleep(self) -> None:
        wake_at = self.client.wake_at()
        if wake_at is not None:
            self.now = max(self.now, wake_at)
            self._wake(self.now)

    def _reply(self, kind: int, what: int, who: int) -> Message:
        server = _SERVERS[who & 3]
        xid = self.sent[0].xid if what & OLD_XID else self.sent[-1].xid
        options = {53: bytes([kind]), 1: b"\xff\x00\xff\x00" if what & HOLES else b"\xff\xff\xff\x00"}
        if server is not None:
            options[54] = server
        if what & NO_MASK:
            del options[1]
        if what & (ECHO | FOREIGN_ECHO):
            options[61] = _CLIENT_ID if what & ECHO else b"\0" + _MAC
        return Message(
            op=1 if what & REQUEST else 2,
            xid=xid ^ bool(what & FOREIGN_XID),
            chaddr=_OTHER_MAC if what & FOREIGN_MAC else _MAC,
            yiaddr=_ADDRESSES[who >> 2 & 7],
            options=options,
        )

    def _headed(self, kind: int, options: bytes) -> bytes:
        head = struct.pack("!BBBBIHH4s4s4s4s16s192x", 2, 1, 6, 0, self.sent[-1].xid, 0, 0, bytes(4), _ADDRESSES[0],
                           bytes(4), bytes(4), _MAC)  # fmt: skip
        return head + b"\x63\x82\x53\x63" + bytes([53, 1, kind]) + options

    def _payload(self, payload: bytes) -> None:
        try:
            message = dhcp.decode(payload)
        except MessageError as problem:
            self.client.drop(str(problem))
        else:
            self._hear(message)

    def run_out(self) -> Bound | Failed:
        """Let time pass until the client has ended."""
        for _ in range(_MOST_STEPS):
            outcome = self.client.outcome()
            if outcome is not None:
                assert outcome.tally.text()
                assert outcome.tally.discovers + outcome.tally.requests == len(self.sent)
                return outcome
            before = self.client.wake_at()
            self._sleep()
            after = self.client.wake_at()
            assert before is not None
            assert after is None or after > before
        raise AssertionError("the client does not end")


def client(script: bytes) -> Bound | Failed:
    """Run a script; return how it ended. What must hold is asserted on the way."""
    run = _Run(script)
    while not run.script.over():
        run.step()
    return run.run_out()
