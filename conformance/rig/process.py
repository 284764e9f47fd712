"""Programs in network namespaces: run to their end, or kept running until the rig goes."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools"
PLUGIN = ROOT / "dist/ovn-k8s-cni-overlay"

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def in_netns(netns: str | None) -> list[str]:
    """Return the words that run what follows in a named network namespace; None means here."""
    return [] if netns is None else ["nsenter", f"--net=/run/netns/{netns}"]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a small environment, the same wherever the tests run."""
    return {"PATH": _PATH, "LC_ALL": "C", **(extra or {})}


def run(
    argv: Sequence[str | pathlib.Path],
    netns: str | None = None,
    *,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    check: bool = True,
    seconds: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end; with `check`, raise RuntimeError with all that it said when it fails."""
    done = subprocess.run(
        [*in_netns(netns), *map(str, argv)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment(env),
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(map(str, argv))} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def wait_for(what: str, ready: Callable[[], bool], seconds: float = 10) -> None:
    """Ask `ready` every few milliseconds; raise TimeoutError naming `what` when it stays false."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds} s")
        time.sleep(0.01)


class Daemon:
    """A program that runs until it is stopped; it dies with the test run, however that ends."""

    def __init__(
        self,
        argv: Sequence[str | pathlib.Path],
        netns: str | None,
        log: pathlib.Path,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.argv = [str(word) for word in argv]
        self.netns = netns
        self.log = log
        self.env = dict(env or {})
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it (again); its output is appended to the log."""
        with self.log.open("ab") as output:
            self._process = self._popen(output)

    def _popen(self, output: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *in_netns(self.netns), *self.argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,  # a terminal's ^C is for the test run, which then stops its daemons in order
            env=environment(self.env),
        )

    @property
    def pid(self) -> int:
        """Its process ID."""
        if self._process is None:
            raise RuntimeError(f"{self.argv[0]} does not run")
        return self._process.pid

    def alive(self) -> bool:
        """Tell whether it runs."""
        return self._process is not None and self._process.poll() is None

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self._process is not None:
            self._process.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, with SIGKILL if it takes more than 5 s."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def output(self) -> str:
        """Return what it has written to its log."""
        return self.log.read_text(errors="replace")
