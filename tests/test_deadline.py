"""The one deadline of a request."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni.system import deadline as deadlines
from ovn_k8s_cni.system.deadline import Deadline

pytestmark = pytest.mark.timeout(10)


class Clock:
    """A clock that the test moves; sleeping moves it too."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(deadlines, "monotonic", lambda: clock.now)
    monkeypatch.setattr(deadlines, "sleep", clock.sleep)
    return clock


def test_time_passes(clock: Clock) -> None:
    deadline = Deadline(5)
    clock.now += 3
    assert (deadline.elapsed(), deadline.left(), deadline.passed()) == (3, 2, False)
    clock.now += 2
    assert (deadline.left(), deadline.passed()) == (0, True)
    clock.now += 10
    assert (deadline.elapsed(), deadline.left(), deadline.passed()) == (15, 0, True)


@pytest.mark.parametrize(("at_most", "expected"), [(None, 5), (10, 5), (2, 2), (0, 0)])
def test_no_more_than(clock: Clock, at_most: float | None, expected: float) -> None:
    assert Deadline(5).left(at_most) == expected
    assert clock.pauses == []


def test_share_is_never_longer_than_the_whole(clock: Clock) -> None:
    whole = Deadline(5)
    clock.now += 4
    assert (whole.share(3).left(), whole.share(0.5).left()) == (1, 0.5)
    assert whole.share(3).elapsed() == 0
    clock.now += 4
    assert whole.share(3).passed()


def ready_after(clock: Clock, seconds: float) -> Callable[[], bool]:
    end = clock.now + seconds
    return lambda: clock.now >= end


def test_ready_at_once_costs_no_pause(clock: Clock) -> None:
    assert Deadline(5).poll(lambda: True)
    assert clock.pauses == []


def test_pauses_double_up_to_the_longest(clock: Clock) -> None:
    assert Deadline(5).poll(ready_after(clock, 0.2), 0.01, 0.05)
    assert clock.pauses == pytest.approx([0.01, 0.02, 0.04, 0.05, 0.05, 0.05])


def test_the_last_pause_ends_with_the_deadline(clock: Clock) -> None:
    deadline = Deadline(0.1)
    assert not deadline.poll(lambda: False, 0.04, 1.0)
    assert clock.pauses == pytest.approx([0.04, 0.06])
    assert deadline.elapsed() == pytest.approx(0.1)


def test_asked_once_more_when_the_time_is_up(clock: Clock) -> None:
    """What became ready during the last pause counts."""
    assert Deadline(0.1).poll(ready_after(clock, 0.1), 0.06, 1.0)
    passed = Deadline(0)
    assert passed.poll(lambda: True)
    assert not passed.poll(lambda: False)


@given(st.floats(0, 100), st.floats(0, 100))
def test_left_is_never_negative(seconds: float, at_most: float) -> None:
    assert 0 <= Deadline(seconds).left(at_most) <= min(seconds, at_most)
    assert 0 <= Deadline(-seconds).left() == 0


def test_the_real_clock() -> None:
    started = time.monotonic()
    assert not Deadline(0.05).poll(lambda: False)
    assert 0.05 <= time.monotonic() - started < 0.5
