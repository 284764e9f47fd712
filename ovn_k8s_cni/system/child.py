"""Child processes: made ready early, fed when wanted, ended for certain.

`subprocess` costs 13 ms to import. A child gets its own process group (what it starts goes with it), a clean
environment, no descriptor but its three pipes, and dies with this process (PR_SET_PDEATHSIG), however that ends.
"""

from __future__ import annotations

import posix
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    from ovn_k8s_cni.system.deadline import Deadline

    class Reader(Protocol):
        """Something to be read while a child works; `read` tells whether it wants to go on."""

        def fileno(self) -> int: ...

        def read(self) -> bool: ...


_SIGKILL, _SIGPIPE, _SIG_DFL = 9, 13, 0
_MOST_OUTPUT = 1 << 20  # bytes; a CNI result has some hundred
_REAP_PAUSE = 0.002
_GLANCE = 0.1  # seconds of silence after which it is looked whether the child still runs
_MOST_DESCRIPTORS = 1 << 16

# A frozen caller's variables would have a child load the caller's libraries or take itself for part of it.
_NOT_INHERITED = ("LD_LIBRARY_PATH", "LD_LIBRARY_PATH_ORIG", "LD_PRELOAD")
_NOT_INHERITED_PREFIXES = ("_MEI", "_PYI")


class Finished(Record):
    """A child's end: exit status (negative: ended by that signal), what it wrote, and whether it ran out of time."""

    status: int
    stdout: bytes
    stderr: bytes
    timed_out: bool


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` less what a child must not inherit from a frozen program."""
    return {
        name: value
        for name, value in environment.items()
        if name not in _NOT_INHERITED and not name.startswith(_NOT_INHERITED_PREFIXES)
    }


class Child:
    """A started program that waits for its stdin."""

    def __init__(self, program: str, environment: Mapping[str, str]) -> None:
        """Start `program`; raise OSError when it cannot be executed."""
        stdin, self._stdin = posix.pipe2(posix.O_CLOEXEC)
        self._stdout, stdout = posix.pipe2(posix.O_CLOEXEC)
        self._stderr, stderr = posix.pipe2(posix.O_CLOEXEC)
        failure, failed = posix.pipe2(posix.O_CLOEXEC)
        parent = posix.getpid()
        self.pid = posix.fork()
        if self.pid == 0:
            _become(program, environment, (stdin, stdout, stderr), failed, parent)
        for fd in (stdin, stdout, stderr, failed):
            posix.close(fd)
        # Closed by the exec: nothing to read means that the program runs.
        errno = posix.read(failure, 16)
        posix.close(failure)
        if errno:
            self.kill()
            raise OSError(int(errno), posix.strerror(int(errno)), program)

    def finish(self, stdin: bytes, deadline: Deadline, beside: Reader | None = None) -> Finished:
        """Feed `stdin`, read until the child has ended, and reap it; kill its process group when the time is up.

        `beside` is read whenever there is something, until it wants no more.
        """
        for fd in (self._stdin, self._stdout, self._stderr):
            posix.set_blocking(fd, False)
        output: dict[int, bytearray] = {self._stdout: bytearray(), self._stderr: bytearray()}
        waiting = poll()
        waiting.register(self._stdin, POLLOUT)
        for fd in output:
            waiting.register(fd, POLLIN)
        if beside is not None:
            waiting.register(beside.fileno(), POLLIN)
        open_ends = set(output)
        rest = memoryview(stdin)
        while open_ends and not deadline.passed():
            events = waiting.poll(int(deadline.left(_GLANCE) * 1000) + 1)
            if not events and self._has_ended():
                break
            for fd, event in events:
                if fd == self._stdin:
                    rest = _feed(fd, rest, event)
                    if not rest:
                        waiting.unregister(fd)
                        self._close_stdin()
                elif fd not in output:
                    if beside is not None and not beside.read():
                        waiting.unregister(fd)
                elif not _drain(fd, output[fd]):
                    waiting.unregister(fd)
                    open_ends.discard(fd)
        out, err = bytes(output[self._stdout]), bytes(output[self._stderr])
        if open_ends and self._has_ended():
            self._kill_group()  # what it has left behind keeps the pipes open
        status, timed_out = self._reap(deadline)
        return Finished(status, out, err, timed_out)

    def _reap(self, deadline: Deadline) -> tuple[int, bool]:
        """Wait for the end until the deadline, then kill; return the exit status and whether it had to be killed."""
        gone = [0, 0]

        def ended() -> bool:
            gone[:] = posix.waitpid(self.pid, posix.WNOHANG)
            return gone[0] != 0

        in_time = deadline.poll(ended, _REAP_PAUSE / 8, _REAP_PAUSE)
        if not in_time:
            return self.kill(), True
        self._close()
        return posix.waitstatus_to_exitcode(gone[1]), False

    def kill(self) -> int:
        """End the child and what it has started, and reap it; return its exit status. Harmless when it is done."""
        if self.pid <= 0:
            return 0
        self._kill_group()
        try:
            _, status = posix.waitpid(self.pid, 0)
        except ChildProcessError:
            status = 0
        self._close()
        return posix.waitstatus_to_exitcode(status)

    def _has_ended(self) -> bool:
        """Tell whether the child has ended, without reaping it."""
        return posix.waitid(posix.P_PID, self.pid, posix.WEXITED | posix.WNOHANG | posix.WNOWAIT) is not None

    def _kill_group(self) -> None:
        for kill in (posix.killpg, posix.kill):
            try:  # noqa: SIM105 - contextlib costs 6 ms to import
                kill(self.pid, _SIGKILL)
            except ProcessLookupError:
                pass

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            posix.close(self._stdin)
            self._stdin = -1

    def _close(self) -> None:
        self._close_stdin()
        if self.pid > 0:
            posix.close(self._stdout)
            posix.close(self._stderr)
        self.pid = 0


def _feed(fd: int, rest: memoryview, event: int) -> memoryview:
    """Write what fits and return what is left; a reader that went away gets nothing more."""
    if event & (POLLERR | POLLHUP):
        return rest[:0]
    try:
        return rest[posix.write(fd, rest) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]


def _drain(fd: int, into: bytearray) -> bool:
    """Read what is there; return whether more may come. Output beyond the limit is read and thrown away."""
    try:
        piece = posix.read(fd, 65536)
    except BlockingIOError:
        return True
    if len(into) < _MOST_OUTPUT:
        into += piece
    return bool(piece)


def _become(
    program: str, environment: Mapping[str, str], pipes: tuple[int, int, int], failed: int, parent: int
) -> None:  # pragma: no cover - runs in the child
    """Turn the forked process into `program`; never return."""
    try:
        from _signal import signal

        syscalls.set_parent_death_signal(_SIGKILL)
        if posix.getppid() != parent:  # it died before the kernel was told to watch it
            posix._exit(127)
        posix.setpgid(0, 0)
        signal(_SIGPIPE, _SIG_DFL)
        for target, fd in enumerate(pipes):
            posix.dup2(fd, target)
        # Ours close themselves, those that a careless runtime has left us do not.
        posix.closerange(len(pipes), failed)
        posix.closerange(failed + 1, _MOST_DESCRIPTORS)
        posix.execve(program, [program], clean_environment(environment))
    except OSError as problem:
        posix.write(failed, str(problem.errno or 5).encode())
    finally:
        posix._exit(127)
