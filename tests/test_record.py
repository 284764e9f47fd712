"""Records: what dataclasses would give, at the price of a plain class."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni.record import Record

pytestmark = pytest.mark.timeout(10)


class Point(Record):
    x: int
    y: int = 0
    _private: ClassVar[int] = 5


class Labelled(Point):
    label: str = ""
    y: int = 9


@dataclasses.dataclass(frozen=True)
class Twin:
    x: int
    y: int = 0


@given(st.lists(st.integers(), max_size=3), st.dictionaries(st.sampled_from(["x", "y", "z"]), st.integers()))
def test_made_like_a_dataclass(values: list[int], named: dict[str, int]) -> None:
    """Where the twin refuses the arguments so does the record; else they look alike."""
    if set(named) & set(("x", "y")[: len(values)]):
        return  # given twice: the record's own test
    try:
        twin = Twin(*values, **named)
    except TypeError:
        with pytest.raises(TypeError):
            Point(*values, **named)
    else:
        point = Point(*values, **named)
        assert (point.x, point.y) == (twin.x, twin.y)
        assert repr(point) == repr(twin).replace("Twin", "Point")


def test_given_twice() -> None:
    with pytest.raises(TypeError):
        Point(1, x=2)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["x", "y", "z", "_private"])
def test_immutable(name: str) -> None:
    point = Point(1, 2)
    with pytest.raises(AttributeError, match="immutable"):
        setattr(point, name, 3)
    with pytest.raises(AttributeError, match="immutable"):
        delattr(point, name)
    assert point == Point(1, 2)


@given(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), st.integers(0, 2))
def test_equality_and_hash(x: int, y: int, other_x: int, other_y: int) -> None:
    one, other = Point(x, y), Point(other_x, other_y)
    assert (one == other) == ((x, y) == (other_x, other_y))
    if one == other:
        assert hash(one) == hash(other)
    assert len({one, other}) == (1 if one == other else 2)


@pytest.mark.parametrize("other", [Labelled(1, 2), (1, 2), None, Twin(1, 2)])
def test_another_class_is_another_thing(other: object) -> None:
    assert Point(1, 2) != other


def test_inheritance_keeps_the_order_and_may_change_a_default() -> None:
    assert Labelled(1) == Labelled(x=1, y=9, label="")
    assert repr(Labelled(1, 2, "a")) == "Labelled(x=1, y=2, label='a')"
    assert Point(1).y == 0


def test_replace() -> None:
    point = Labelled(1, 2, "a")
    assert point.replace(y=5) == Labelled(1, 5, "a")
    assert type(point.replace(y=5)) is Labelled
    assert point == Labelled(1, 2, "a")


@pytest.mark.parametrize("changes", [{"z": 1}, {"_private": 1}, {"replace": 1}])
def test_replace_of_what_is_no_field(changes: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="no field"):
        Point(1).replace(**changes)
