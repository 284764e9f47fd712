"""Undo beside do: the part of `contextlib.ExitStack` that a CNI ADD needs, without importing `contextlib`."""

from __future__ import annotations

from ovn_k8s_cni import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Self


class UndoStack:
    """Runs what was pushed, last first, when its block ends; `clear` says that the work is to stay.

    A step that fails is logged and does not keep the others from running, nor hide the error that started the undoing.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def push(self, step: Callable[..., object], *arguments: Any) -> None:
        """Remember to call `step(*arguments)`."""
        self._steps.append((step, arguments))

    def pop(self) -> None:
        """Forget the last step: another takes its place, or it is not needed any more."""
        self._steps.pop()

    def clear(self) -> None:
        """Forget every step: what was done is to stay."""
        self._steps.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._steps:
            step, arguments = self._steps.pop()
            try:
                step(*arguments)
            except Exception as problem:
                log.warning(f"undoing {getattr(step, '__name__', step)} failed: {problem}")
