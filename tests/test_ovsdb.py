"""JSON-RPC with a scripted server that does what a real one does seldom. The real one is in conformance/."""

from __future__ import annotations

import contextlib
import json
import pathlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni import datapath as datapaths
from ovn_k8s_cni.cni.error import CniError
from ovn_k8s_cni.cni.request import parse
from ovn_k8s_cni.config import Config, load
from ovn_k8s_cni.datapath import ovs
from ovn_k8s_cni.system import ovsdb
from ovn_k8s_cni.system.deadline import Deadline
from ovn_k8s_cni.system.ovsdb import Ovsdb, OvsdbError, OvsdbTimeout, OvsdbUnreachable
from tests.support import environment, network_config

pytestmark = pytest.mark.timeout(30)

SELECT = {"op": "select", "table": "Bridge", "where": [], "columns": ["name"]}
ROWS = {"rows": [{"name": "br-ex"}]}


class Peer:
    """The server's end of a connection."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._text = ""

    def request(self) -> dict[str, Any]:
        """Return the client's next message."""
        while True:
            with contextlib.suppress(json.JSONDecodeError):
                message, end = json.JSONDecoder().raw_decode(self._text)
                self._text = self._text[end:]
                assert isinstance(message, dict)
                return message
            piece = self.stream.recv(1 << 16)
            assert piece, "the client has gone"
            self._text += piece.decode()

    def send(self, *messages: object) -> None:
        """Send messages, or bytes as they are, in one packet."""
        self.stream.sendall(b"".join(m if isinstance(m, bytes) else json.dumps(m).encode() for m in messages))

    def answer(self, *results: object, error: object = None) -> None:
        """Answer the next request."""
        self.send({"id": self.request()["id"], "result": list(results), "error": error})

    def until_closed(self) -> None:
        """Keep quiet until the client goes."""
        with contextlib.suppress(ConnectionResetError):
            while self.stream.recv(1 << 16):
                pass


Script = Callable[[Peer], None]
Serve = Callable[[Script], str]


@pytest.fixture
def serve(tmp_path: pathlib.Path) -> Iterator[Serve]:
    """Return a function that has a script talk to the first client, and returns the socket's path."""
    path = str(tmp_path / "db.sock")
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        listening.settimeout(10)

        def talk(script: Script) -> None:
            try:
                stream, _ = listening.accept()
                stream.settimeout(10)
                with stream:
                    script(Peer(stream))
            except BaseException as problem:
                failures.append(problem)

        def started(script: Script) -> str:
            threads.append(threading.Thread(target=talk, args=(script,)))
            threads[-1].start()
            return path

        yield started
        for thread in threads:
            thread.join()
    assert failures == []


def connected(path: str, seconds: float = 5) -> Ovsdb:
    return Ovsdb(path, Deadline(seconds))


# ---- asked and answered


def test_requests_and_results(serve: Serve) -> None:
    requests = []

    def script(peer: Peer) -> None:
        for number in range(2):
            requests.append(peer.request())
            peer.send({"id": requests[-1]["id"], "error": None, "result": [{"rows": [{"n": number}]}, {"count": 1}]})

    with connected(serve(script)) as database:
        assert database.transact(SELECT, {"op": "mutate"}) == [{"rows": [{"n": 0}]}, {"count": 1}]
        assert database.transact(SELECT) == [{"rows": [{"n": 1}]}, {"count": 1}]
    assert [set(request) for request in requests] == [{"method", "params", "id"}] * 2
    assert [request["method"] for request in requests] == ["transact", "transact"]
    assert [request["params"] for request in requests] == [
        ["Open_vSwitch", SELECT, {"op": "mutate"}],
        ["Open_vSwitch", SELECT],
    ]
    assert requests[0]["id"] != requests[1]["id"]


def test_echo_requests_are_answered_in_between(serve: Serve) -> None:
    """An ovsdb-server that hears nothing for some seconds asks, and hangs up when nobody answers."""
    echoes = []

    def script(peer: Peer) -> None:
        request = peer.request()
        for identifier, parameters in (("echo", []), (7, ["x", {"y": None}])):
            peer.send({"method": "echo", "id": identifier, "params": parameters})
            echoes.append(peer.request())
        peer.send({"id": request["id"], "result": [ROWS], "error": None})

    with connected(serve(script)) as database:
        assert database.transact(SELECT) == [ROWS]
    assert echoes == [
        {"id": "echo", "result": [], "error": None},
        {"id": 7, "result": ["x", {"y": None}], "error": None},
    ]


def test_what_is_not_the_answer_is_passed_over(serve: Serve) -> None:
    def script(peer: Peer) -> None:
        identifier = peer.request()["id"]
        peer.send(
            {"method": "update", "id": None, "params": [None, {}]},
            {"id": identifier + 100, "result": [{"rows": []}], "error": None},
            {"id": str(identifier), "result": [{"rows": []}], "error": None},
            {"unknown": True},
            b"\n\t ",
            {"id": identifier, "result": [ROWS], "error": None},
        )

    with connected(serve(script)) as database:
        assert database.transact(SELECT) == [ROWS]


def test_the_rest_of_a_packet_is_kept_for_the_next_answer(serve: Serve) -> None:
    def script(peer: Peer) -> None:
        first = peer.request()["id"]
        second = json.dumps({"id": first + 1, "result": [{"rows": [2]}], "error": None}).encode()
        peer.send({"id": first, "result": [ROWS], "error": None}, second[:20])
        peer.request()
        peer.send(second[20:])

    with connected(serve(script)) as database:
        assert database.transact(SELECT) == [ROWS]
        assert database.transact(SELECT) == [{"rows": [2]}]


class Stream:
    """Stands in for the socket: what comes in is cut where the test wants it."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def settimeout(self, _seconds: float) -> None:
        pass

    def sendall(self, _data: bytes) -> None:
        pass

    def recv(self, _size: int) -> bytes:
        return self.pieces.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def unused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = str(tmp_path_factory.mktemp("db") / "db.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(1000)
        yield path


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-10, 10), st.sampled_from(["}", "{", '"', "ä€𝄞", "\\", "a}{b", ""])
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "}", "ü"]), inner)),
    max_leaves=8,
)


@given(st.lists(VALUES, min_size=1, max_size=3), st.lists(st.integers(1, 30)), st.booleans())
def test_messages_are_put_together_however_they_are_cut(
    unused: str, values: list[Any], cuts: list[int], ascii_only: bool
) -> None:
    """Within a message, between two, within a character; two or three messages in one piece."""
    messages = [{"id": number, "result": [{"v": value}], "error": None} for number, value in enumerate(values, 1)]
    rest = b" ".join(json.dumps(message, ensure_ascii=ascii_only).encode() for message in messages)
    pieces = []
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    with connected(unused) as database:
        database.__dict__["_socket"].close()
        database.__dict__["_socket"] = stream = Stream([piece for piece in [*pieces, rest] if piece])
        assert [database.transact(SELECT) for _ in values] == [[{"v": value}] for value in values]
        assert stream.pieces == []


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_character_that_is_cut(serve: Serve, cut: int) -> None:
    clef = "𝄞".encode()

    def script(peer: Peer) -> None:
        identifier = peer.request()["id"]
        whole = json.dumps({"id": identifier, "result": [{"v": "𝄞"}], "error": None}, ensure_ascii=False).encode()
        at = whole.index(clef) + cut
        peer.send(whole[:at])
        time.sleep(0.05)
        peer.send(whole[at:])

    with connected(serve(script)) as database:
        assert database.transact(SELECT) == [{"v": "𝄞"}]


# ---- refused


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([{"error": "constraint violation", "details": "why"}], "constraint violation: why"),
        ([{"error": "referential integrity violation"}], "referential integrity violation"),
        ([{"rows": []}, {"error": "aborted", "details": "x"}, None], "aborted: x"),
        (
            [{"count": 1}, {"count": 1}, {"error": "constraint violation", "details": "commit"}],
            "constraint violation: commit",
        ),
    ],
)
def test_refused_operation(serve: Serve, results: list[Any], text: str) -> None:
    with connected(serve(lambda peer: peer.answer(*results))) as database, pytest.raises(OvsdbError) as caught:
        database.transact(SELECT)
    assert str(caught.value) == text
    assert not isinstance(caught.value, OvsdbTimeout | OvsdbUnreachable)


def test_refused_request(serve: Serve) -> None:
    script: Script = lambda peer: peer.answer(error={"error": "unknown database", "details": "Open_vSwitch"})  # noqa: E731
    with connected(serve(script)) as database, pytest.raises(OvsdbError, match="unknown database"):
        database.transact(SELECT)


@pytest.mark.parametrize("result", [None, {}, "x", 5])
def test_answer_without_results(serve: Serve, result: object) -> None:
    script: Script = lambda peer: peer.send({"id": peer.request()["id"], "result": result, "error": None})  # noqa: E731
    with connected(serve(script)) as database, pytest.raises(OvsdbError, match="without a result"):
        database.transact(SELECT)


def test_wait_that_timed_out(serve: Serve) -> None:
    script: Script = lambda peer: peer.answer({"error": "timed out", "details": '"wait" timed out'}, None)  # noqa: E731
    with connected(serve(script)) as database, pytest.raises(OvsdbTimeout, match='"wait" timed out'):
        database.transact({"op": "wait"}, SELECT)


def test_connection_serves_on_after_a_refusal(serve: Serve) -> None:
    def script(peer: Peer) -> None:
        peer.answer({"error": "timed out"})
        peer.answer(ROWS)

    with connected(serve(script)) as database:
        with pytest.raises(OvsdbTimeout):
            database.transact({"op": "wait"})
        assert database.transact(SELECT) == [ROWS]


# ---- unreachable


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (lambda path: None, True),  # noqa: ARG005
        (lambda path: path.parent.joinpath("file").touch(), True),
        (lambda path: path.touch(), False),
        (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), False),
        (lambda path: path.mkdir(), False),
    ],
    ids=["nothing there", "nothing there either", "a file", "a stale socket", "a directory"],
)
def test_nobody_there(tmp_path: pathlib.Path, make: Callable[[pathlib.Path], object], missing: bool) -> None:
    make(tmp_path / "db.sock")
    with pytest.raises(OvsdbUnreachable, match=f"OVSDB at {tmp_path}/db.sock cannot be reached: ") as caught:
        connected(str(tmp_path / "db.sock"))
    assert caught.value.missing == missing


def test_below_a_file_there_is_no_socket(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OvsdbUnreachable) as caught:
        connected(str(tmp_path / "file" / "db.sock"))
    assert caught.value.missing


def test_path_that_is_too_long() -> None:
    with pytest.raises(OvsdbUnreachable, match="too long"):
        connected("/" + "x" * 200)


def unreachable(path: str, seconds: float, reason: str) -> float:
    """Have a request fail for `reason`; return how long it took."""
    started = time.monotonic()
    with connected(path, seconds) as database, pytest.raises(OvsdbUnreachable, match=reason) as caught:
        database.transact(SELECT)
    assert not caught.value.missing
    return time.monotonic() - started


@pytest.mark.parametrize(
    "said",
    [b"", b"garbage", b"{", b'{"id": 1, "result": [', b"[]", b"[{}]", b"{]}", b'"text"', b"}}}}",
     b"HTTP/1.1 400 Bad Request\r\n\r\n"],
)  # fmt: skip
def test_silence_and_garbage_end_at_the_deadline(serve: Serve, said: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(said)
        peer.until_closed()

    assert 0.2 <= unreachable(serve(script), 0.2, r"no answer within 0\.\d+ s") < 1


def test_server_that_never_accepts(unused: str) -> None:
    assert unreachable(unused, 0.2, "no answer within") < 1


def test_server_that_talks_about_something_else_for_ever(serve: Serve) -> None:
    def script(peer: Peer) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                peer.send({"method": "update", "id": None, "params": []})
                time.sleep(0.01)

    assert unreachable(serve(script), 0.3, "no answer within") < 1


def test_server_that_does_not_read(serve: Serve) -> None:
    done = threading.Event()
    started = time.monotonic()

    def script(_: Peer) -> None:
        done.wait(5)

    with connected(serve(script), 0.3) as database:
        with pytest.raises(OvsdbUnreachable):
            database.transact({"op": "insert", "row": {"name": "x" * 10_000_000}})
        done.set()
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("said", [b"", b"{", b'{"id": 1, "result": [{"rows": []'])
def test_connection_closed(serve: Serve, said: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(said)

    assert unreachable(serve(script), 5, "closed the connection") < 1


def test_connection_closed_before_the_request(serve: Serve) -> None:
    with connected(serve(lambda peer: peer.stream.close())) as database:
        time.sleep(0.05)
        with pytest.raises(OvsdbUnreachable, match="Broken pipe"):
            database.transact(SELECT)


def test_connection_closed_with_the_request_unread(serve: Serve) -> None:
    assert unreachable(serve(lambda _: time.sleep(0.1)), 5, "Connection reset by peer") < 1


@pytest.mark.parametrize("raw", [b'{"v": "\xff"}', b'{"v": "\xc3("}', b"\x80\x80\x80\x80", b"\xff}} "])
def test_no_utf_8(serve: Serve, raw: bytes) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(raw + b" " * (4 - len(raw)))
        peer.until_closed()

    with connected(serve(script), 1) as database, pytest.raises(OvsdbError, match="not UTF-8"):
        database.transact(SELECT)


def test_one_request_may_have_a_deadline_of_its_own(serve: Serve) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.until_closed()

    started = time.monotonic()
    with connected(serve(script), 20) as database, pytest.raises(OvsdbUnreachable):
        database.transact(SELECT, deadline=Deadline(0.2))
    assert time.monotonic() - started < 1


# ---- values


def test_values() -> None:
    assert ovsdb.uuid("1234") == ["uuid", "1234"]
    assert ovsdb.named("row") == ["named-uuid", "row"]
    assert ovsdb.ovs_map({"a": "1", "b": "2"}) == ["map", [["a", "1"], ["b", "2"]]]
    assert ovsdb.ovs_set() == ["set", []]
    assert ovsdb.ovs_set("a", 1) == ["set", ["a", 1]]
    assert ovsdb.dict_of(["map", [["a", "1"]]]) == {"a": "1"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(["set", []], []), (["set", [1, 2]], [1, 2]), (5, [5]), ("x", ["x"]), (["uuid", "u"], [["uuid", "u"]])],
)
def test_sets_are_abbreviated_when_they_have_one_element(value: Any, expected: list[Any]) -> None:
    assert ovsdb.list_of(value) == expected


# ---- the connection of a request


def config(path: str, datapath: str, mappings: str | None = None) -> Config:
    whole = network_config(datapath=datapath, ovsdbSocket=path, bridgeMappings=mappings)
    return load(parse(environment("ADD"), json.dumps(whole).encode()))


def test_datapath_linux_needs_no_database(tmp_path: pathlib.Path) -> None:
    assert datapaths.connect(config(f"{tmp_path}/db.sock", "linux"), Deadline(5)) is None


def test_datapath_auto_is_linux_where_there_is_no_socket(tmp_path: pathlib.Path) -> None:
    assert datapaths.connect(config(f"{tmp_path}/db.sock", "auto", "physnet:br0"), Deadline(5)) is None


def test_neither_ovs_nor_a_mapping(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CniError, match=r"'physnet'.*neither OVS nor a Linux bridge mapping") as caught:
        datapaths.connect(config(f"{tmp_path}/db.sock", "auto"), Deadline(5))
    assert caught.value.code == 7


@pytest.mark.parametrize("datapath", ["ovs", "auto"])
def test_a_database_that_does_not_answer_is_no_reason_for_another_datapath(
    tmp_path: pathlib.Path, datapath: str
) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{tmp_path}/db.sock")
    with pytest.raises(CniError, match="Connection refused") as caught:
        datapaths.connect(config(f"{tmp_path}/db.sock", datapath, "physnet:br0"), Deadline(5))
    assert caught.value.code == 11


def test_datapath_ovs_without_a_socket(tmp_path: pathlib.Path) -> None:
    with pytest.raises(CniError, match="cannot be reached") as caught:
        datapaths.connect(config(f"{tmp_path}/db.sock", "ovs", "physnet:br0"), Deadline(5))
    assert caught.value.code == 11


def cleanup(path: str, datapath: str, mappings: str, remembered: str) -> int | None:
    """Return the code with which a clean-up fails that finds no database, None when it goes on without."""
    try:
        assert datapaths.connect_for_cleanup(config(path, datapath, mappings or None), Deadline(5), remembered) is None
    except CniError as problem:
        return problem.code
    return None


@pytest.mark.parametrize(
    ("datapath", "mappings", "remembered", "ovs_installed", "code"),
    [
        ("linux", "physnet:br0", "", True, None),
        ("linux", "physnet:br0", "linux", True, None),
        ("linux", "physnet:br0", "ovs", True, 11),
        ("auto", "", "", False, None),
        ("auto", "", "", True, 11),
        ("auto", "physnet:br0", "", True, None),
        ("auto", "physnet:br0", "linux", True, None),
        ("auto", "", "ovs", False, 11),
        ("auto", "physnet:br0", "ovs", False, 11),
        ("ovs", "", "", False, 11),
        ("ovs", "", "ovs", True, 11),
        ("ovs", "", "linux", True, None),
    ],
)
def test_clean_up_without_a_database(
    tmp_path: pathlib.Path, datapath: str, mappings: str, remembered: str, ovs_installed: bool, code: int | None
) -> None:
    if ovs_installed:
        (tmp_path / "openvswitch").mkdir()
    assert cleanup(f"{tmp_path}/openvswitch/db.sock", datapath, mappings, remembered) == code


@pytest.mark.parametrize("seconds", [9, 20, 40])
@pytest.mark.parametrize("purpose", ["attach", "clean up"])
def test_a_connection_lasts_as_long_as_its_request(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, purpose: str, seconds: float
) -> None:
    """The lease may take half a minute; then OVSDB is asked again, over the same connection."""

    def script(peer: Peer) -> None:
        request = peer.request()
        time.sleep(0.05)
        peer.send({"id": request["id"], "result": [ROWS], "error": None})

    settings = config(serve(script), "ovs")
    deadline = Deadline(55)
    if purpose == "attach":
        database = datapaths.connect(settings, deadline)
    else:
        database = datapaths.connect_for_cleanup(settings, deadline, "ovs")
    assert database is not None
    monkeypatch.setattr("ovn_k8s_cni.system.deadline.monotonic", lambda: time.monotonic() + seconds)
    with database:
        assert database.transact(SELECT) == [ROWS]


def test_a_server_that_is_overrun(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "db.sock")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as clients:
        listening.bind(path)
        listening.listen(0)
        for _ in range(2):
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect_ex(path)
        with pytest.raises(OvsdbUnreachable, match="temporarily unavailable") as caught:
            connected(path, 0.3)
    assert not caught.value.missing


def test_a_port_is_taken_out_also_when_the_time_of_the_request_is_up(serve: Serve) -> None:
    row = {"name": "okc0", "external_ids": ovsdb.ovs_map({"ovn-k8s-cni/ipam": "dhcp", "sandbox": "c0ffee"})}
    asked = []

    def script(peer: Peer) -> None:
        for result in ({"rows": [row]}, {"rows": [{"_uuid": ["uuid", "4711"]}]}, {"count": 1}):
            request = peer.request()
            asked.append(request["params"][1])
            time.sleep(0.03)
            peer.send({"id": request["id"], "result": [result], "error": None})

    with connected(serve(script), 0.02) as database:
        time.sleep(0.03)
        assert ovs.unplug(database, "okc0", Deadline(2))
    assert [operation["op"] for operation in asked] == ["select", "select", "mutate"]
    assert asked[2]["mutations"] == [["ports", "delete", ["uuid", "4711"]]]


@pytest.mark.parametrize(
    ("rows", "what"), [([], "gone"), ([{"name": "okc0", "external_ids": ["map", [["sandbox", "x"]]]}], "another's")]
)
def test_a_port_that_is_not_ours_is_left_alone(serve: Serve, rows: list[Any], what: str) -> None:
    with connected(serve(lambda peer: peer.answer({"rows": rows}))) as database:
        assert not ovs.unplug(database, "okc0"), what


@pytest.mark.parametrize("wait", [0.25, 1.0])
def test_a_wait_ends_at_the_server_before_we_stop_listening(serve: Serve, wait: float) -> None:
    """So that what is told is what was waited for, not that the server is silent."""

    def script(peer: Peer) -> None:
        request = peer.request()
        time.sleep(request["params"][1]["timeout"] / 1000)
        peer.send({"id": request["id"], "result": [{"error": "timed out"}], "error": None})

    deadline = Deadline(wait)
    with connected(serve(script), 0.1) as database, pytest.raises(OvsdbTimeout):
        database.transact({"op": "wait", "timeout": ovsdb.milliseconds(deadline)}, deadline=deadline)
