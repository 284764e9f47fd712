"""JSON by CPython's C scanner and encoder alone.

The package `json` imports `re` to skip white space, 9 ms of every start; `_json` is what it hands the work to. Where
an interpreter offers another `_json`, the package is used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_SPACE = " \t\n\r"


class JsonError(ValueError):
    """Not JSON; the text says where and why."""


def _no_constant(name: str) -> float:
    raise JsonError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:  # math.isinf without its module
        raise JsonError(f"{text} is too large for a number")
    return value


class _Context:
    """The attributes that `_json.make_scanner` reads off `json.JSONDecoder`."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = staticmethod(_finite)
    parse_int = int
    parse_constant = staticmethod(_no_constant)
    memo: dict[str, str] = {}  # noqa: RUF012 - the scanner clears it itself


def _refuse(value: object) -> str:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_scan: Callable[[str, int], tuple[Any, int]]
_encode: Callable[[Any, int], Iterable[str]]

try:
    import _json

    _scan = _json.make_scanner(_Context)  # type: ignore[arg-type] # typeshed knows only its use by `json`
    _encode = _json.make_encoder(None, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, False)
except (ImportError, TypeError):  # pragma: no cover - CPython has had this _json since 3.1
    import json as _package

    _scan = _package.JSONDecoder(parse_float=_finite, parse_constant=_no_constant).raw_decode
    _encode = lambda value, _level: (_package.dumps(value, separators=(",", ":"), allow_nan=False),)  # noqa: E731


def _after_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def decode_first(text: str) -> tuple[Any, int]:
    """Return the first JSON value of `text` and the position after it; raise JsonError when it is not complete."""
    try:
        return _scan_patiently(text, _after_space(text, 0))
    except StopIteration as stop:
        raise JsonError(f"no JSON value at character {stop.value}") from None
    except RecursionError:
        raise JsonError("nested too deeply") from None
    except JsonError:
        raise
    except ValueError as problem:
        raise JsonError(str(problem)) from None


def _scan_patiently(text: str, start: int) -> tuple[Any, int]:
    try:
        value, end = _scan(text, start)
    except SystemError:
        # CPython 3.11's scanner takes its exception class from sys.modules and fails like this when nobody has
        # imported it: import it now, when there is an error to tell, and scan again for the error's text.
        import json.decoder  # noqa: F401

        value, end = _scan(text, start)
    return value, end


def loads(raw: bytes | str) -> Any:
    """Return the one JSON value in `raw` (UTF-8); raise JsonError for anything else, a byte-order mark included."""
    if isinstance(raw, bytes):
        if raw.startswith(b"\xef\xbb\xbf"):
            raise JsonError("starts with a byte-order mark; save it as UTF-8 without one")
        try:
            raw = raw.decode()
        except UnicodeDecodeError as problem:
            raise JsonError(f"not UTF-8: {problem.reason} at byte {problem.start}") from None
    if not raw.strip(_SPACE):
        raise JsonError("empty")
    value, end = decode_first(raw)
    if _after_space(raw, end) != len(raw):
        raise JsonError(f"more text after the JSON value, at character {end}")
    return value


def dumps(value: Any) -> str:
    """Return `value` (dict, list, str, int, float, bool, None) as compact ASCII JSON."""
    return "".join(_encode(value, 0))
