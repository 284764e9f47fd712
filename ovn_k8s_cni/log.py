"""A line a thing worth knowing, appended to the node file's `logFile`; nothing where none is configured.

The standard `logging` costs 15 ms of every pod start. A log that cannot be written never fails a request.
"""

from __future__ import annotations

import posix
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ovn_k8s_cni.system.deadline import Deadline

LEVELS = ("error", "warning", "info", "debug")

_state: dict[str, object] = {"file": None, "level": 1, "about": ""}


def configure(file: str | None, level: str, about: str) -> None:
    """Append to `file` (None: nowhere) what is at least as grave as `level`; `about` starts each line."""
    _state.update(file=file, level=LEVELS.index(level), about=about)


def _write(level: int, text: str) -> None:
    file = _state["file"]
    if not isinstance(file, str) or level > int(str(_state["level"])):
        return
    now = time.time()
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
    line = f"{stamp} {LEVELS[level]} [{posix.getpid()}] {_state['about']}: {text}".replace("\n", " | ") + "\n"
    try:
        descriptor = posix.open(file, posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_CLOEXEC, 0o640)
        try:
            posix.write(descriptor, line.encode("utf-8", "backslashreplace"))
        finally:
            posix.close(descriptor)
    except OSError:
        pass


def error(text: str) -> None:
    """Log what failed a request."""
    _write(0, text)


def warning(text: str) -> None:
    """Log what went wrong without failing the request."""
    _write(1, text)


def info(text: str) -> None:
    """Log a request's steps."""
    _write(2, text)


def step(deadline: Deadline, text: str) -> None:
    """Log, at level debug, how long after its start the request has done a step."""
    if _state["level"] == len(LEVELS) - 1:
        _write(3, f"{deadline.elapsed() * 1000:.1f} ms: {text}")


def debug(text: str) -> None:
    """Log what helps to follow a step."""
    _write(3, text)
