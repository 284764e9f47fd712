"""The program as a runtime starts it: descriptors, working directory, exit status, and nothing else on stdout."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support import ROOT, environment, network_config, wait_until

pytestmark = pytest.mark.timeout(30)

PROGRAM = [sys.executable, "-m", "ovn_k8s_cni"]
VERSION = {"CNI_COMMAND": "VERSION"}
ASKED = b'{"cniVersion":"1.0.0"}'


def call(
    variables: Mapping[str, str], stdin: bytes = b"", script: str = 'exec "$@"'
) -> subprocess.CompletedProcess[bytes]:
    """Run the program with these variables, by a shell script that gets its command line."""
    return subprocess.run(
        ["/bin/sh", "-euc", script, "sh", *PROGRAM],
        input=stdin,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **variables},
        cwd="/",
        capture_output=True,
        timeout=20,
        check=False,
    )


def test_version() -> None:
    result = call(VERSION, ASKED)
    assert (result.returncode, result.stderr) == (0, b"")
    assert json.loads(result.stdout)["cniVersion"] == "1.0.0"


def test_without_a_command_it_says_what_it_is() -> None:
    result = call({"CNI_CONTAINERID": "x"})
    assert (result.returncode, result.stdout) == (0, b"")
    assert b"CNI plugin ovn-k8s-cni-overlay" in result.stderr
    assert b"0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0" in result.stderr


def test_an_empty_command_is_one() -> None:
    result = call({"CNI_COMMAND": ""})
    assert (result.returncode, json.loads(result.stdout)["code"], result.stderr) == (1, 4, b"")


def test_without_a_command_stdin_is_not_waited_for() -> None:
    reading, writing = os.pipe()
    try:
        result = subprocess.run(PROGRAM, stdin=reading, env={}, cwd=ROOT, capture_output=True, timeout=10, check=True)
    finally:
        os.close(reading)
        os.close(writing)
    assert b"CNI plugin" in result.stderr


@pytest.mark.parametrize(
    ("verb", "config", "status", "code"),
    [
        ("ADD", network_config(), 1, 4),
        ("CHECK", network_config(prevResult={}), 1, 4),
        ("DEL", network_config(ipam={}), 0, None),
        ("DEL", network_config(), 0, None),
        ("STATUS", network_config(), 1, 50),
        ("GC", network_config(), 1, 7),
        ("ADD", network_config(cniVersion="9.9.9"), 1, 1),
        ("FLY", network_config(), 1, 4),
    ],
)
def test_one_json_object_or_nothing(verb: str, config: object, status: int, code: int | None) -> None:
    result = call(environment(verb), json.dumps(config).encode())
    assert (result.returncode, result.stderr) == (status, b"")
    if code is None:
        assert result.stdout == b""
    else:
        assert json.loads(result.stdout)["code"] == code


def test_config_larger_than_a_pipe_holds() -> None:
    config = network_config(ipam={}, ballast="x" * 2_000_000)
    assert call(environment("DEL"), json.dumps(config).encode()).returncode == 0


def test_config_that_comes_in_pieces() -> None:
    script = '(printf \'{"cniVer\'; sleep 0.1; printf \'sion":"0.4.0"}\') | "$@"'
    result = call(VERSION, script=script)
    assert json.loads(result.stdout)["cniVersion"] == "0.4.0"


# ---- descriptors


@pytest.mark.parametrize("verb", ["VERSION", "ADD", "DEL"])
def test_stdin_closed(verb: str) -> None:
    result = call(environment(verb), script='exec "$@" <&-')
    found = json.loads(result.stdout)
    assert result.stderr == b""
    if verb == "VERSION":
        assert (result.returncode, "1.1.0" in found["supportedVersions"]) == (0, True)
    else:
        assert (result.returncode, found["code"]) == (1, 6)


@pytest.mark.parametrize("redirection", ["</proc/self/mem", "0>/dev/null"])
def test_stdin_that_cannot_be_read(redirection: str) -> None:
    result = call(environment("ADD"), script=f'exec "$@" {redirection}')
    assert (result.returncode, json.loads(result.stdout)["code"], result.stderr) == (1, 6, b"")


@pytest.mark.parametrize("verb", ["VERSION", "ADD"])
def test_stdout_is_a_closed_pipe(verb: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = subprocess.run(
            PROGRAM,
            input=ASKED,
            stdout=writing,
            stderr=subprocess.PIPE,
            env=environment(verb),
            cwd=ROOT,
            timeout=20,
            check=False,
        )
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, b"")


@pytest.mark.parametrize("script", ['exec "$@" >&-', 'exec "$@" >/dev/full'], ids=["closed", "full"])
def test_stdout_that_takes_nothing(script: str) -> None:
    """Nobody can hear the answer, so it must not look like a success."""
    result = call(VERSION, ASKED, script)
    assert (result.returncode, result.stdout, result.stderr) == (1, b"", b"")


def test_stderr_closed() -> None:
    result = call(VERSION, ASKED, 'exec "$@" 2>&-')
    assert (result.returncode, json.loads(result.stdout)["cniVersion"]) == (0, "1.0.0")


def test_answer_waits_for_a_slow_reader(tmp_path: pathlib.Path) -> None:
    """More than a pipe holds, to somebody who takes his time."""
    config = json.dumps(network_config(cniVersion="9" * 200_000)).encode()
    result = call(environment("ADD"), config, f'"$@" | (sleep 0.2; cat >{shlex.quote(str(tmp_path))}/answer)')
    assert result.returncode == 0
    assert json.loads((tmp_path / "answer").read_bytes())["code"] == 1


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("verb", ["ADD", "VERSION"])
def test_interrupted_while_it_waits_for_its_config(verb: str, number: signal.Signals) -> None:
    with subprocess.Popen(
        PROGRAM,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(verb),
        cwd=ROOT,
    ) as process:
        assert wait_until(lambda: reads_stdin(process.pid))
        process.send_signal(number)
        answer, complaint = process.communicate(timeout=10)
    assert (process.returncode, complaint) == (1, b"")
    assert json.loads(answer)["code"] == 11


def reads_stdin(pid: int) -> bool:
    """Tell whether a process is in the system call read (0 on x86-64, 63 on arm64) of descriptor 0."""
    return re.match(r"(0|63) 0x0 ", pathlib.Path(f"/proc/{pid}/syscall").read_text(encoding="ascii")) is not None


# ---- surroundings


@pytest.mark.parametrize("verb", ["VERSION", "STATUS", "DEL"])
def test_working_directory_removed(verb: str, tmp_path: pathlib.Path) -> None:
    gone = shlex.quote(str(tmp_path / "gone"))
    config = json.dumps(network_config(ipam={})).encode()
    result = call(environment(verb), config, f'mkdir {gone}; cd {gone}; rmdir {gone}; exec "$@"')
    assert (result.returncode, result.stderr) == ({"VERSION": 0, "STATUS": 1, "DEL": 0}[verb], b"")
    if verb != "DEL":
        assert json.loads(result.stdout)["cniVersion"] == "1.1.0"


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LC_ALL": "xx_YY.none"}, {"LANG": "de_DE.ISO-8859-1"}])
def test_locale_does_not_matter(locale: dict[str, str]) -> None:
    config = json.dumps(network_config(name="blä"), ensure_ascii=False).encode()
    result = call({**environment("ADD"), "CNI_ARGS": "X=ä", **locale}, config)
    found = json.loads(result.stdout)
    assert (found["code"], "'blä'" in found["msg"], result.stderr) == (7, True, b"")


def test_environment_that_is_no_utf_8() -> None:
    result = subprocess.run(
        PROGRAM,
        input=json.dumps(network_config()).encode(),
        env={os.fsencode(k): os.fsencode(v) for k, v in environment("ADD").items()} | {b"CNI_IFNAME": b"\xff\xfe"},
        cwd=ROOT,
        capture_output=True,
        timeout=20,
        check=False,
    )
    found = json.loads(result.stdout)
    assert (result.returncode, found["code"], "\\udcff" in found["msg"]) == (1, 4, True)


# ---- what a start costs

HEAVY = {
    "argparse", "asyncio", "contextlib", "dataclasses", "enum", "inspect", "ipaddress", "json", "logging", "pyroute2",
    "re", "scapy", "selectors", "socket", "ssl", "subprocess", "threading", "traceback", "typing", "yaml",
}  # fmt: skip


@pytest.mark.parametrize("verb", ["VERSION", "STATUS", "DEL", "GC", "ADD", "CHECK"])
def test_no_verb_imports_what_is_heavy(verb: str) -> None:
    """Each of them costs more than all that is needed (design decision 2)."""
    config = network_config(prevResult={}, **{"cni.dev/valid-attachments": []})
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); before = set(sys.modules)\n"
        "from ovn_k8s_cni.__main__ import main; main(); print(*(set(sys.modules) - before), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code],
        input=json.dumps(config).encode(),
        env=environment(verb, LC_ALL="C.UTF-8"),
        capture_output=True,
        timeout=20,
        check=True,
    )
    imported = set(result.stderr.decode().split())
    assert "ovn_k8s_cni.plugin" in imported
    assert not {name for name in imported if name.partition(".")[0] in HEAVY}
