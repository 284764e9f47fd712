"""Child processes: fed, read, ended for certain, and never more of this process than they need."""

from __future__ import annotations

import errno
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ovn_k8s_cni.system.child import Child, Finished, clean_environment
from ovn_k8s_cni.system.deadline import Deadline
from tests.support import ROOT, alive, script, wait_until

pytestmark = pytest.mark.timeout(30)

Run = Callable[..., Finished]
PATH = {"PATH": "/usr/bin:/bin"}


def open_descriptors() -> set[str]:
    return {entry for entry in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{entry}")}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Whatever a test does with a child, no descriptor and no zombie stays."""
    before = open_descriptors()
    yield
    assert open_descriptors() == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture
def program(tmp_path: pathlib.Path) -> Callable[[str], str]:
    return lambda text: str(script(tmp_path / "program", text))


@pytest.fixture
def run(program: Callable[[str], str]) -> Run:
    """Return a function that runs a shell script to its end."""

    def ran(text: str, stdin: bytes = b"", seconds: float = 10, environment: dict[str, str] | None = None) -> Finished:
        return Child(program(text), PATH if environment is None else environment).finish(stdin, Deadline(seconds))

    return ran


def pid_in(file: pathlib.Path) -> int:
    """Return the process ID that a script writes down as soon as it runs."""
    assert wait_until(lambda: file.exists() and file.read_text(encoding="ascii").endswith("\n"))
    return int(file.read_text(encoding="ascii"))


# ---- fed and read


def test_input_output_and_status(run: Run) -> None:
    assert run("cat; echo complaint >&2; exit 3", b"question") == Finished(3, b"question", b"complaint\n", False)


def test_ended_by_a_signal(run: Run) -> None:
    assert run("kill -TERM $$").status == -signal.SIGTERM


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 1_000_000])
def test_all_of_the_input_arrives(run: Run, size: int) -> None:
    assert run("wc -c", b"x" * size).stdout.split() == [str(size).encode()]


def test_input_and_output_at_the_same_time(run: Run) -> None:
    """More than both pipes hold: whoever writes all before reading stands still."""
    data = bytes(range(256)) * 3000
    assert run("cat", data).stdout == data


@pytest.mark.parametrize("stream", ["", ">&2"])
def test_endless_output_is_cut(run: Run, stream: str) -> None:
    finished = run(f"head -c 20000000 /dev/zero {stream}")
    assert finished.status == 0
    assert 1 << 20 <= len(finished.stdout + finished.stderr) < (1 << 20) + (1 << 17)


@pytest.mark.parametrize("text", ["exit 0", "exec <&-; sleep 0.05; exit 0", "head -c 10 >/dev/null; exit 0"])
def test_program_that_does_not_read_its_input(run: Run, text: str) -> None:
    finished = run(text, b"x" * 1_000_000)
    assert (finished.status, finished.timed_out) == (0, False)


def test_program_that_closes_its_output_and_goes_on(run: Run) -> None:
    assert run("exec >&- 2>&-; sleep 0.1; exit 4").status == 4


def test_input_waits_until_it_is_given(program: Callable[[str], str]) -> None:
    """The program is started early and fed late."""
    child = Child(program("read line; echo got $line"), PATH)
    time.sleep(0.05)
    assert child.finish(b"it\n", Deadline(5)).stdout == b"got it\n"


def test_something_else_is_read_meanwhile(program: Callable[[str], str], tmp_path: pathlib.Path) -> None:
    """The program ends only after what is beside it was read."""
    os.mkfifo(tmp_path / "read")
    ours, theirs = socket.socketpair()
    pieces: list[bytes] = []

    class Reader:
        def fileno(self) -> int:
            return ours.fileno()

        def read(self) -> bool:
            pieces.append(ours.recv(1))
            if len(pieces) < 3:
                return True
            (tmp_path / "read").write_bytes(b"go\n")
            return False

    with ours, theirs:
        theirs.send(b"abcdef")
        child = Child(program(f"read word <{tmp_path}/read; echo $word"), PATH)
        assert child.finish(b"", Deadline(5), Reader()).stdout == b"go\n"
    assert pieces == [b"a", b"b", b"c"], "it wanted no more"


# ---- started


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (pathlib.Path.exists, errno.ENOENT),
        (lambda path: path.mkdir(), errno.EACCES),
        (lambda path: path.write_text("#!/bin/sh\n", encoding="ascii"), errno.EACCES),
        (lambda path: script(path, "").write_text("not a program", encoding="ascii"), errno.ENOEXEC),
        (lambda path: script(path, "").write_text("#!/nonexistent/interpreter\n", encoding="ascii"), errno.ENOENT),
    ],
    ids=["missing", "a directory", "not executable", "no program", "no interpreter"],
)
def test_what_cannot_be_executed(tmp_path: pathlib.Path, make: Callable[[pathlib.Path], object], status: int) -> None:
    make(tmp_path / "program")
    with pytest.raises(OSError, match="program") as caught:
        Child(str(tmp_path / "program"), PATH)
    assert caught.value.errno == status


FROZEN = {
    "LD_LIBRARY_PATH": "/tmp/_MEIabc",
    "LD_LIBRARY_PATH_ORIG": "/usr/lib",
    "LD_PRELOAD": "/tmp/x.so",
    "_MEIPASS2": "/tmp/_MEIabc",
    "_PYI_ARCHIVE_FILE": "/opt/cni/bin/x",
    "_PYI_PARENT_PROCESS_LEVEL": "1",
}


def test_environment(run: Run) -> None:
    kept = {**PATH, "CNI_ARGS": "A=1;B=ä\udcff", "MEI": "1", "X_PYI": "1", "LD_DEBUG_OUTPUT": "x", "EMPTY": ""}
    finished = run("cat /proc/$$/environ", environment={**kept, **FROZEN})
    found = dict(item.split("=", 1) for item in os.fsdecode(finished.stdout).split("\0") if item)
    assert found == kept


def test_clean_environment_leaves_its_argument_alone() -> None:
    environment = {**PATH, **FROZEN}
    assert clean_environment(environment) == PATH
    assert environment == {**PATH, **FROZEN}


def test_no_descriptor_but_the_three_pipes(run: Run, tmp_path: pathlib.Path) -> None:
    """Neither ours nor one that a careless runtime left open in us."""
    careless = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(careless, True)
    high = 700
    os.dup2(careless, high, inheritable=True)
    try:
        finished = run("ls /proc/$$/fd")
    finally:
        os.close(careless)
        os.close(high)
    # The shell itself keeps its script open, at 10 or higher.
    assert [fd for fd in finished.stdout.split() if fd not in {b"10", b"255"}] == [b"0", b"1", b"2"]


def test_process_group_of_its_own(run: Run) -> None:
    group, ours = map(int, run("ps -o pgid= -p $$; ps -o pgid= -p $PPID").stdout.split())
    assert group != ours == os.getpgid(0)


def test_broken_pipes_kill_it_again(run: Run) -> None:
    """Python ignores SIGPIPE, and what is ignored stays ignored over an exec."""
    assert run("kill -PIPE $$; echo survived") == Finished(-signal.SIGPIPE, b"", b"", False)


# ---- ended


@pytest.mark.parametrize(
    "text", ["sleep 60", "trap '' TERM INT HUP; while :; do sleep 1; done", "exec >&- 2>&-; sleep 60"]
)
def test_too_slow(run: Run, text: str) -> None:
    started = time.monotonic()
    finished = run(f"echo so far; {text}", seconds=0.3)
    assert 0.3 <= time.monotonic() - started < 1.5
    assert finished == Finished(-signal.SIGKILL, b"so far\n", b"", True)


@pytest.mark.parametrize("background", ["sleep 61 &", "(trap '' TERM; sleep 61) &", "sleep 61 >&- 2>&- <&- &"])
def test_what_it_has_started_goes_with_it(run: Run, tmp_path: pathlib.Path, background: str) -> None:
    finished = run(f"{background} echo $! >{tmp_path}/pid; sleep 61", seconds=0.3)
    assert finished.timed_out
    grandchild = pid_in(tmp_path / "pid")
    assert wait_until(lambda: not alive(grandchild), 2)


def test_what_it_leaves_behind_does_not_hold_us_up(run: Run, tmp_path: pathlib.Path) -> None:
    """It has ended and answered; a process of its own keeps the pipes open."""
    started = time.monotonic()
    finished = run(f"echo answer; sleep 61 & echo $! >{tmp_path}/pid; exit 0", seconds=8)
    assert finished == Finished(0, b"answer\n", b"", False)
    assert time.monotonic() - started < 3
    grandchild = pid_in(tmp_path / "pid")
    assert wait_until(lambda: not alive(grandchild), 2)


def test_deadline_passed_before_it_is_asked(program: Callable[[str], str]) -> None:
    child = Child(program("sleep 60"), PATH)
    pid = child.pid
    assert child.finish(b"", Deadline(0)).timed_out
    assert not alive(pid)


def test_kill(program: Callable[[str], str], tmp_path: pathlib.Path) -> None:
    child = Child(program(f"sleep 62 & echo $! >{tmp_path}/pid; sleep 62"), PATH)
    pid, grandchild = child.pid, pid_in(tmp_path / "pid")
    assert child.kill() == -signal.SIGKILL
    assert not pathlib.Path(f"/proc/{pid}").exists()
    assert wait_until(lambda: not alive(grandchild), 2)
    assert child.kill() == 0, "once more does nothing"


def test_kill_of_one_that_has_ended(program: Callable[[str], str]) -> None:
    child = Child(program("exit 5"), PATH)
    assert wait_until(lambda: not alive(child.pid))
    assert child.kill() == 5


def test_kill_after_its_end_is_harmless(program: Callable[[str], str]) -> None:
    child = Child(program("exit 5"), PATH)
    child.finish(b"", Deadline(5))
    assert child.kill() == 0


# ---- and with its parent

PARENT = """
import os, time
from ovn_k8s_cni.system.child import Child
from ovn_k8s_cni.system.deadline import Deadline
{prelude}
child = Child({program!r}, {{"PATH": "/usr/bin:/bin"}})
print(os.getpid(), child.pid, flush=True)
{then}
"""


@pytest.mark.parametrize(
    ("prelude", "then"),
    [
        ("", "time.sleep(60)"),
        ("", "child.finish(b'x' * 1_000_000, Deadline(60))"),
        # The frozen file's outer process has forked once more.
        ("if os.fork(): os._exit(0)", "time.sleep(60)"),
    ],
    ids=["asleep", "feeding it", "a fork of a parent that is gone"],
)
def test_killed_with_its_parent(program: Callable[[str], str], prelude: str, then: str) -> None:
    text = PARENT.format(program=program("sleep 63"), prelude=prelude, then=then)
    with subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        parent, child = map(int, process.stdout.readline().split())
        assert alive(child)
        time.sleep(0.05)
        os.kill(parent, signal.SIGKILL)
        assert wait_until(lambda: not alive(child), 1)


def test_a_child_is_told_of_its_parents_death_by_the_kernel(run: Run) -> None:
    """Read back by prctl(2), since the program that is executed can forget it (a set-user-ID one does)."""
    code = "import ctypes; n = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)"
    assert run(f'exec {sys.executable} -c "{code}"').stdout == b"9\n"


def test_nothing_of_the_above_needs_subprocess() -> None:
    """Importing it costs 13 ms of every pod's start."""
    code = "import sys; sys.path.insert(0, '.'); import ovn_k8s_cni.system.child; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(found.stdout.split())
    assert "ovn_k8s_cni.system.child" in modules
    assert not {name for name in modules if re.match(r"subprocess|selectors|contextlib|signal$|typing$|re$", name)}
