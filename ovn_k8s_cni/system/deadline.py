"""The one deadline of a request, from which every wait takes its share (design decision 13)."""

from __future__ import annotations

from time import monotonic, sleep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Deadline:
    """A moment on the monotonic clock; all times are in seconds."""

    def __init__(self, seconds: float) -> None:
        self.started = monotonic()
        self.seconds = seconds

    def elapsed(self) -> float:
        """Return how long ago the deadline was set."""
        return monotonic() - self.started

    def left(self, at_most: float | None = None) -> float:
        """Return the time left, never negative, and no more than `at_most`."""
        left = max(0.0, self.started + self.seconds - monotonic())
        return left if at_most is None else min(left, at_most)

    def passed(self) -> bool:
        """Tell whether no time is left."""
        return self.left() <= 0

    def share(self, at_most: float) -> Deadline:
        """Return a deadline of its own for one step: `at_most` seconds from now, but no later than this one."""
        return Deadline(self.left(at_most))

    def poll(self, ready: Callable[[], bool], first_pause: float = 0.001, longest_pause: float = 0.05) -> bool:
        """Ask `ready` until it says yes (True) or the time is up (False), with pauses that double."""
        pause = first_pause
        while not ready():
            if self.passed():
                return False
            sleep(self.left(pause))
            pause = min(2 * pause, longest_pause)
        return True
