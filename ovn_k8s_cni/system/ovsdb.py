"""OVSDB over its unix socket: JSON-RPC (RFC 7047), one connection a request.

Rows and operations are the RFC's JSON as Python dicts; the helpers build the few values that JSON cannot say.
"""

from __future__ import annotations

import errno
from _socket import socket as _Socket

from ovn_k8s_cni.system import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Self

    from ovn_k8s_cni.system.deadline import Deadline

_AF_UNIX, _SOCK_STREAM_CLOEXEC = 1, 1 | 0o2000000
_DATABASE = "Open_vSwitch"
_SLACK = 0.2  # seconds by which a `wait` ends at the server before we stop listening


class OvsdbError(Exception):
    """ovsdb-server refused an operation, or spoke no OVSDB."""


class OvsdbUnreachable(OvsdbError):
    """Nobody answers at the socket; `missing` tells whether there is no socket at all."""

    def __init__(self, path: str, reason: str, *, missing: bool = False) -> None:
        super().__init__(f"OVSDB at {path} cannot be reached: {reason}")
        self.missing = missing


class OvsdbTimeout(OvsdbError):
    """A `wait` operation's condition did not come true in time."""


def uuid(value: str) -> list[str]:
    """Return the atom for a row (RFC 7047, section 5.1)."""
    return ["uuid", value]


def named(value: str) -> list[str]:
    """Return the atom for a row that the same transaction inserts."""
    return ["named-uuid", value]


def ovs_map(pairs: Mapping[str, str]) -> list[Any]:
    """Return the value of a map column."""
    return ["map", [[key, value] for key, value in pairs.items()]]


def ovs_set(*values: Any) -> list[Any]:
    """Return the value of a set column."""
    return ["set", list(values)]


def dict_of(value: list[Any]) -> dict[str, str]:
    """Return a map column's value as a dict."""
    return {str(key): str(item) for key, item in value[1]}


def list_of(value: Any) -> list[Any]:
    """Return a set column's value, which OVSDB abbreviates when it has one element, as a list."""
    return list(value[1]) if isinstance(value, list) and value[0] == "set" else [value]


def milliseconds(deadline: Deadline) -> int:
    """Return the timeout of a `wait` operation whose answer is listened for until `deadline`."""
    return max(1, int((deadline.left() - _SLACK) * 1000))


class Ovsdb:
    """A connection for a request with a deadline; one answer takes at most `patience` seconds of it."""

    def __init__(self, path: str, deadline: Deadline, patience: float = 10.0) -> None:
        """Connect; raise OvsdbUnreachable."""
        self._path = path
        self._deadline = deadline
        self._patience = patience
        self._text = ""
        self._undecoded = b""
        self._identifier = 0
        self._socket = _Socket(_AF_UNIX, _SOCK_STREAM_CLOEXEC, 0)
        try:
            self._socket.settimeout(max(0.001, deadline.left(patience)))
            self._socket.connect(path)
        except OSError as problem:
            self._socket.close()
            missing = problem.errno in (errno.ENOENT, errno.ENOTDIR)
            raise OvsdbUnreachable(path, problem.strerror or str(problem), missing=missing) from None

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transact(self, *operations: dict[str, Any], deadline: Deadline | None = None) -> list[dict[str, Any]]:
        """Do all of `operations` or none, and return each one's result; `deadline` is for those that wait.

        Raises OvsdbTimeout when a `wait` timed out, OvsdbError when an operation was refused, OvsdbUnreachable when
        the connection is lost or the deadline passes.
        """
        self._identifier += 1
        request = {"method": "transact", "params": [_DATABASE, *operations], "id": self._identifier}
        deadline = deadline or self._deadline.share(self._patience)
        self._send(request, deadline)
        while True:
            answer = self._receive(deadline)
            if answer.get("method") == "echo":
                self._send({"result": answer.get("params", []), "error": None, "id": answer.get("id")}, deadline)
            elif answer.get("id") == self._identifier:
                return _results(answer)

    def _send(self, message: dict[str, Any], deadline: Deadline) -> None:
        try:
            self._socket.settimeout(max(0.001, deadline.left()))
            self._socket.sendall(json.dumps(message).encode())
        except OSError as problem:
            raise OvsdbUnreachable(self._path, problem.strerror or str(problem)) from None

    def _receive(self, deadline: Deadline) -> dict[str, Any]:
        while True:
            # Messages follow each other without a frame: a value that does not parse is one that is not all there.
            if self._text.lstrip().startswith("{") and "}" in self._text:
                try:
                    message, end = json.decode_first(self._text)
                except json.JsonError:
                    pass
                else:
                    self._text = self._text[end:]
                    if isinstance(message, dict):
                        return message
            self._read_more(deadline)

    def _read_more(self, deadline: Deadline) -> None:
        try:
            self._socket.settimeout(max(0.001, deadline.left()))
            piece = self._socket.recv(1 << 16)
        except TimeoutError:
            raise OvsdbUnreachable(self._path, f"no answer within {deadline.seconds:.3g} s") from None
        except OSError as problem:
            raise OvsdbUnreachable(self._path, problem.strerror or str(problem)) from None
        if not piece:
            raise OvsdbUnreachable(self._path, "it closed the connection")
        whole = self._undecoded + piece
        try:
            self._text += whole.decode()
            self._undecoded = b""
        except UnicodeDecodeError as problem:
            self._text += whole[: problem.start].decode()
            self._undecoded = whole[problem.start :]
            if problem.reason != "unexpected end of data":
                raise OvsdbError(f"{self._path} sent what is not UTF-8") from None


def _results(answer: dict[str, Any]) -> list[dict[str, Any]]:
    if answer.get("error") is not None:
        raise OvsdbError(f"OVSDB refused the request: {json.dumps(answer['error'])}")
    results = answer.get("result")
    if not isinstance(results, list):
        raise OvsdbError("OVSDB answered without a result")
    for result in results:
        if isinstance(result, dict) and "error" in result:
            text = f"{result['error']}: {result.get('details', '')}".rstrip(": ")
            raise OvsdbTimeout(text) if result["error"] == "timed out" else OvsdbError(text)
    return [result for result in results if isinstance(result, dict)]
