"""Undo beside do."""

from __future__ import annotations

import pathlib

import pytest

from ovn_k8s_cni import log
from ovn_k8s_cni.undo import UndoStack

pytestmark = pytest.mark.timeout(10)


def fail() -> None:
    raise OSError("cannot be undone")


def test_last_first() -> None:
    done: list[int] = []
    with UndoStack() as undo:
        for number in range(3):
            undo.push(done.append, number)
        assert done == []
    assert done == [2, 1, 0]


def test_error_goes_on_after_the_undoing() -> None:
    done: list[str] = []

    def body() -> None:
        with UndoStack() as undo:
            undo.push(done.append, "undone")
            raise LookupError("the reason")

    with pytest.raises(LookupError, match="the reason"):
        body()
    assert done == ["undone"]


def test_clear_lets_the_work_stay() -> None:
    done: list[int] = []
    with UndoStack() as undo:
        undo.push(done.append, 1)
        undo.clear()
        undo.push(done.append, 2)
    assert done == [2]


def test_pop_forgets_the_last_step_only() -> None:
    done: list[int] = []
    with UndoStack() as undo:
        undo.push(done.append, 1)
        undo.push(done.append, 2)
        undo.pop()
        undo.push(done.append, 3)
    assert done == [3, 1]


def test_failing_step_is_logged_and_hides_nothing(tmp_path: pathlib.Path) -> None:
    log.configure(str(tmp_path / "log"), "warning", "a request")
    done: list[int] = []

    def body() -> None:
        with UndoStack() as undo:
            undo.push(done.append, 1)
            undo.push(fail)
            undo.push(done.append, 3)
            raise LookupError("the reason")

    with pytest.raises(LookupError, match="the reason"):
        body()
    assert done == [3, 1]
    assert "undoing fail failed: cannot be undone" in (tmp_path / "log").read_text(encoding="utf-8")


def test_step_may_push_another() -> None:
    done: list[int] = []
    with UndoStack() as undo:
        undo.push(lambda: undo.push(done.append, 2))
    assert done == [2]
