"""Entry: a CNI call when CNI_COMMAND is set, else a word to the person who started it."""

from __future__ import annotations

import posix
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_SIGINT, _SIGPIPE, _SIGTERM, _SIG_IGN = 2, 13, 15, 1


def main() -> int:
    """Serve one request and return the exit status."""
    environment = _environment()
    if "CNI_COMMAND" not in environment:
        return _introduce()
    from _signal import signal

    from ovn_k8s_cni.cni.error import CniError
    from ovn_k8s_cni.plugin import answer, told

    # A runtime that closes our stdout is to be met as an error of write, not as a signal.
    signal(_SIGPIPE, _SIG_IGN)
    for number in (_SIGINT, _SIGTERM):
        signal(number, _interrupt)
    try:
        status, text = answer(environment, _stdin())
    except CniError as interrupted:  # while nothing was done yet, or while another failure was being told
        status, text = told(interrupted)
    for number in (_SIGINT, _SIGTERM):
        signal(number, _SIG_IGN)
    return status if _write_all(1, text.encode()) else 1


def _interrupt(number: int, _frame: object) -> None:
    """Have the request undo what it has done, and say so."""
    from ovn_k8s_cni.cni.error import TRY_AGAIN_LATER, CniError

    raise CniError(TRY_AGAIN_LATER, f"interrupted by signal {number}", "what was done is undone")


def _environment() -> Mapping[str, str]:
    decode = {"errors": "surrogateescape"}
    return {name.decode(**decode): value.decode(**decode) for name, value in posix.environ.items()}


def _introduce() -> int:
    from ovn_k8s_cni import __version__
    from ovn_k8s_cni.cni.versions import SUPPORTED

    text = f"CNI plugin ovn-k8s-cni-overlay {__version__}\nCNI protocol versions supported: {', '.join(SUPPORTED)}\n"
    sys.stderr.write(text)
    return 0


def _stdin() -> bytes:
    """Return all of stdin; nothing when it cannot be read."""
    try:
        return _read_all(0)
    except OSError:
        return b""


def _read_all(descriptor: int) -> bytes:
    pieces = []
    while piece := posix.read(descriptor, 1 << 16):
        pieces.append(piece)
    return b"".join(pieces)


def _write_all(descriptor: int, data: bytes) -> bool:
    """Write all of `data`; tell whether somebody took it."""
    try:
        while data:
            data = data[posix.write(descriptor, data) :]
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
