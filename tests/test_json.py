"""JSON by the interpreter's C code alone: as the package `json` has it, but for what is not JSON."""

from __future__ import annotations

import json as package
import math
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni.system import json
from ovn_k8s_cni.system.json import JsonError
from tests.support import ROOT

pytestmark = pytest.mark.timeout(30)

VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=20,
)


@given(VALUES)
def test_both_ways_like_the_package(value: Any) -> None:
    text = json.dumps(value)
    assert text == package.dumps(value, separators=(",", ":"))
    assert text.isascii()
    assert json.loads(text) == json.loads(text.encode()) == value


@given(VALUES, st.text(alphabet=" \t\r\n"), st.text(alphabet=" \t\r\n"), st.booleans())
def test_white_space_and_unicode(value: Any, before: str, after: str, ascii_only: bool) -> None:
    text = before + package.dumps(value, ensure_ascii=ascii_only, indent=1) + after
    assert json.loads(text.encode("utf-8", "surrogatepass") if ascii_only else text) == value


@given(st.text(alphabet='{}[]",:0123456789truefalsn\\ \n-+.eE', max_size=12))
def test_what_the_package_refuses_is_refused(text: str) -> None:
    try:
        expected = package.loads(text)
    except ValueError:
        with pytest.raises(JsonError):
            json.loads(text)
    else:
        if not has_infinity(expected):
            assert json.loads(text) == expected


def has_infinity(value: Any) -> bool:
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return (isinstance(value, float) and math.isinf(value)) or any(map(has_infinity, inside))


@given(st.binary(max_size=20))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        value = json.loads(raw)
    except JsonError:
        return
    assert package.loads(raw) == value


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "[NaN]", '{"a": Infinity}'])
def test_what_only_the_package_takes_for_json(text: str) -> None:
    assert package.loads(text) is not None
    with pytest.raises(JsonError, match="is not JSON"):
        json.loads(text)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b" \n\t\r ", "empty"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        (b"\xff", "not UTF-8: invalid start byte at byte 0"),
        (b'"\xc3', "not UTF-8: unexpected end of data at byte 1"),
        (b"x", "no JSON value at character 0"),
        (b'{"a": x}', "no JSON value at character 6"),
        (b"{} x", "more text after the JSON value, at character 2"),
        (b'{"a" 1}', "delimiter"),
        (b'"a\nb"', "control character"),
        (b'"\\x"', "escape"),
        (b"\x0b{}", "no JSON value"),
        ("\xa0{}".encode(), "no JSON value"),
        (b"[" * 200_000, "nested too deeply"),
        (b"1" * 5000, "digits"),
        (b'{"a": 1e999}', "1e999 is too large"),
        (b"-1e999", "-1e999 is too large"),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_errors_say_why(raw: bytes, reason: str) -> None:
    with pytest.raises(JsonError) as caught:
        json.loads(raw)
    assert reason.lower() in str(caught.value).lower()


@pytest.mark.parametrize(
    ("text", "value", "rest"),
    [('{"a":1}{"b":2}', {"a": 1}, '{"b":2}'), (" \n[1] , 2", [1], " , 2"), ("12 3", 12, " 3"), ('"x""y"', "x", '"y"')],
)
def test_first_of_several_values(text: str, value: Any, rest: str) -> None:
    found, end = json.decode_first(text)
    assert (found, text[end:]) == (value, rest)


@given(VALUES)
def test_an_incomplete_object_is_none_yet(value: Any) -> None:
    text = package.dumps({"a": value})
    for end in range(len(text)):
        with pytest.raises(JsonError):
            json.decode_first(text[:end])


@pytest.mark.parametrize("value", [b"x", {1, 2}, object(), [b"x"], {"a": {"b": object()}}])
def test_what_has_no_json_form(value: object) -> None:
    with pytest.raises(TypeError, match="has no JSON form"):
        json.dumps(value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks(value: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        json.dumps({"a": value})


def test_scanner_without_the_package() -> None:
    """In a fresh interpreter, as in the frozen file: an error's class is looked up where nobody has put it yet."""
    code = """
import sys
from ovn_k8s_cni.system import json
assert json.loads(b'{"a": [1, 2.5, "\\\\u00e4", null]}') == {"a": [1, 2.5, "\\u00e4", None]}
assert json.dumps({"a": [True, "\\u00e4"]}) == '{"a":[true,"\\\\u00e4"]}'
assert "json" not in sys.modules and "re" not in sys.modules
for text in ('{"a"', '{"a": 1', '["x', '"a\\nb"'):
    try:
        json.loads(text)
    except json.JsonError as problem:
        assert str(problem), text
    else:
        raise AssertionError(text)
"""
    subprocess.run([sys.executable, "-S", "-c", "import sys; sys.path.insert(0, '.')\n" + code], cwd=ROOT, check=True)
