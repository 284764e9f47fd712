"""The frozen file itself: one process, nothing unpacked, nothing read from the machine that it runs on.

The rows of "A frozen file on a node": temporary directories in every bad state, the file replaced while it runs, closed
descriptors, a hostile environment. Each test asks for VERSION, which reads its standard input and so loads an extension
module out of the file.
"""

from __future__ import annotations

import json
import os
import pathlib
import pkgutil
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping

import pytest
from PyInstaller.archive.readers import CArchiveReader, ZlibArchiveReader

ROOT = pathlib.Path(__file__).resolve().parent.parent
BINARY = ROOT / "dist" / "ovn-k8s-cni-overlay"
REQUEST = b'{"cniVersion":"1.1.0"}'
ENVIRONMENT = {"CNI_COMMAND": "VERSION"}
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm", "/run")

pytestmark = pytest.mark.skipif(not BINARY.exists(), reason="needs `make build`")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


def call(
    *command: str | pathlib.Path, env: Mapping[str, str] | None = None, cwd: pathlib.Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command or (BINARY,),
        input=REQUEST,
        env=ENVIRONMENT if env is None else env,
        cwd=cwd,
        capture_output=True,
        timeout=30,
        check=False,
    )


def shell(script: str) -> subprocess.CompletedProcess[bytes]:
    return call("/bin/sh", "-euc", script, env={**ENVIRONMENT, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


def in_private_mounts(script: str, options: str = "rw", library: str = "") -> subprocess.CompletedProcess[bytes]:
    """Run a shell script with a new tmpfs on each place where one could unpack, and the plugin as /mnt/plugin."""
    mounts = "".join(f"mount -t tmpfs -o {options} none {directory}\n" for directory in SCRATCH)
    copies = f"mount -t tmpfs none /mnt\ncp {shlex.quote(str(BINARY))} /mnt/plugin\n"
    if library:
        copies += f"cp {shlex.quote(library)} /mnt/preload.so\n"
    script = copies + mounts + script
    return shell(f"exec unshare --mount --propagation private /bin/sh -euc {shlex.quote(script)}")


def install(directory: pathlib.Path) -> None:
    command: list[str | pathlib.Path] = [sys.executable, ROOT / "build" / "install.py", BINARY, directory]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def assert_answered(result: subprocess.CompletedProcess[bytes]) -> None:
    assert result.returncode == 0, result.stderr.decode()
    assert "1.1.0" in json.loads(result.stdout)["supportedVersions"]
    assert result.stderr == b""


@pytest.fixture
def blocked(tmp_path: pathlib.Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a copy of the plugin and wait until it waits for its standard input."""
    plugin = tmp_path / "plugin"
    plugin.write_bytes(BINARY.read_bytes())
    plugin.chmod(0o755)
    with subprocess.Popen(
        [plugin], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 10
        # The system call that it is in, and its first argument: read (0 on x86-64, 63 on arm64) from descriptor 0.
        while not re.match(r"(0|63) 0x0 ", pathlib.Path(f"/proc/{process.pid}/syscall").read_text(encoding="ascii")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        process.kill()


def children_of(pid: int) -> list[int]:
    children = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            status = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        if int(status.rpartition(")")[2].split()[1]) == pid:
            children.append(int(path.parent.name))
    return children


def test_answers() -> None:
    assert_answered(call())


# ---- one process, nothing unpacked


def test_is_one_process(blocked: subprocess.Popen[bytes]) -> None:
    assert children_of(blocked.pid) == []
    assert len(list(pathlib.Path(f"/proc/{blocked.pid}/task").iterdir())) == 1


def test_killed_means_gone(blocked: subprocess.Popen[bytes], tmp_path: pathlib.Path) -> None:
    blocked.send_signal(signal.SIGKILL)
    blocked.wait(timeout=1)
    links = []
    for link in pathlib.Path("/proc").glob("[0-9]*/exe"):
        try:
            links.append(str(link.readlink()))
        except OSError:
            continue
    assert str(tmp_path / "plugin") not in links


@as_root
def test_leaves_nothing_behind() -> None:
    result = in_private_mounts(f"/mnt/plugin >/mnt/answer\nfind {' '.join(SCRATCH)} -mindepth 1")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


@as_root
def test_leaves_nothing_behind_when_killed() -> None:
    result = in_private_mounts(
        "sleep 1 | /mnt/plugin &\nsleep 0.3\nkill -9 $!\nwait $! || test $? = 137\n"
        f"find {' '.join(SCRATCH)} -mindepth 1"
    )
    assert (result.returncode, result.stdout) == (0, b"")


@as_root
@pytest.mark.parametrize("options", ["noexec", "ro", "noexec,ro,mode=000", "size=4k,nr_inodes=1"])
def test_needs_no_place_to_unpack(options: str) -> None:
    assert_answered(in_private_mounts("exec /mnt/plugin", options))


def test_absent_temporary_directory() -> None:
    assert_answered(call(env={**ENVIRONMENT, "TMPDIR": "/nonexistent"}))


@as_root
def test_runs_where_there_is_only_libc_and_proc() -> None:
    """A root without /tmp, /dev, /etc, /run and Python."""
    script = """
        for directory in proc usr lib lib64; do mkdir -p /mnt/$directory; done
        mount -t proc none /mnt/proc
        for directory in lib lib64; do mount --bind /$directory /mnt/$directory; done
        for directory in /mnt/lib/python3*; do mount -t tmpfs none $directory; done
        exec chroot /mnt /plugin"""
    assert_answered(in_private_mounts(script))


@as_root
def test_says_that_proc_is_missing() -> None:
    script = "for d in lib lib64; do mkdir /mnt/$d; mount --bind /$d /mnt/$d; done\nexec chroot /mnt /plugin"
    result = in_private_mounts(script)
    assert result.returncode == 1
    assert b"is /proc mounted?" in result.stderr


@pytest.fixture
def no_memfd(tmp_path: pathlib.Path) -> dict[str, str]:
    """Preload a memfd_create that is refused, as under a seccomp filter."""
    source = tmp_path / "refuse.c"
    source.write_text("#include <errno.h>\nint memfd_create(void) { errno = EPERM; return -1; }\n", encoding="ascii")
    library = tmp_path / "refuse.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    return {**ENVIRONMENT, "LD_PRELOAD": str(library)}


def test_without_memfd_an_unnamed_file_serves(no_memfd: dict[str, str]) -> None:
    assert_answered(call(env=no_memfd))


@as_root
def test_without_memfd_and_without_a_directory_python_serves(no_memfd: dict[str, str]) -> None:
    """No extension module can be loaded at all: the pure Python twin of `_json` takes over."""
    assert_answered(in_private_mounts("LD_PRELOAD=/mnt/preload.so exec /mnt/plugin", "ro", no_memfd["LD_PRELOAD"]))


# ---- the file itself


def test_replaced_and_removed_while_it_runs(blocked: subprocess.Popen[bytes], tmp_path: pathlib.Path) -> None:
    (tmp_path / "other").write_bytes(b"#!/bin/false\n")
    (tmp_path / "other").rename(tmp_path / "plugin")
    (tmp_path / "plugin").unlink()
    answer, complaint = blocked.communicate(REQUEST, timeout=10)
    assert (blocked.returncode, complaint) == (0, b"")
    assert "1.1.0" in json.loads(answer)["supportedVersions"]


def test_install_never_shows_half_a_file(tmp_path: pathlib.Path) -> None:
    install(tmp_path)
    done = threading.Event()

    def keep_calling() -> list[subprocess.CompletedProcess[bytes]]:
        results = []
        while not done.is_set():
            results.append(call(tmp_path / BINARY.name))
        return results

    calls: list[subprocess.CompletedProcess[bytes]] = []
    caller = threading.Thread(target=lambda: calls.extend(keep_calling()))
    caller.start()
    for _ in range(10):
        install(tmp_path)
    done.set()
    caller.join()
    assert len(calls) > 5
    for result in calls:
        assert_answered(result)
    assert [path.name for path in tmp_path.iterdir()] == [BINARY.name]
    assert (tmp_path / BINARY.name).stat().st_mode & 0o7777 == 0o755


def test_by_symbolic_link(tmp_path: pathlib.Path) -> None:
    (tmp_path / "link").symlink_to(BINARY)
    assert_answered(call(tmp_path / "link"))


@pytest.fixture(scope="module")
def archived() -> CArchiveReader:
    return CArchiveReader(str(BINARY))


def test_holds_every_module_of_the_package(archived: CArchiveReader) -> None:
    pyz = archived.open_embedded_archive("PYZ.pyz")
    assert isinstance(pyz, ZlibArchiveReader)
    package = ROOT / "ovn_k8s_cni"
    names = {module.name for module in pkgutil.walk_packages([str(package)], "ovn_k8s_cni.")}
    assert names | {"ovn_k8s_cni"} <= set(pyz.toc)


def test_holds_nothing_of_pyinstallers_own_loader(archived: CArchiveReader) -> None:
    names = " ".join(archived.toc)
    assert not re.search(r"libpython|base_library|pyimod|pyi_rth", names)


# ---- what the caller hands over


def test_working_directory_removed(tmp_path: pathlib.Path) -> None:
    gone = shlex.quote(str(tmp_path / "gone"))
    assert_answered(shell(f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {shlex.quote(str(BINARY))}"))


@pytest.mark.parametrize("environment", [{"LC_ALL": "C"}, {"LC_ALL": "xx_YY.none"}, {"LANG": "de_DE.ISO-8859-1"}, {}])
def test_locale_does_not_matter(environment: dict[str, str]) -> None:
    assert_answered(call(env={**ENVIRONMENT, **environment}))


def test_nothing_is_imported_from_the_machine(tmp_path: pathlib.Path) -> None:
    """Modules, settings and virtual environments in the working directory, in the environment, beside the plugin."""
    for name in ("sitecustomize", "usercustomize", "json", "_json", "os", "encodings", "ovn_k8s_cni"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('taken from the machine')\n", encoding="ascii")
    install(tmp_path)
    for name in ("pyvenv.cfg", f"{BINARY.name}._pth", "python._pth"):
        (tmp_path / name).write_text("home = /nonexistent\n", encoding="ascii")
    hostile = {
        "PYTHONPATH": str(tmp_path),
        "PYTHONHOME": str(tmp_path),
        "PYTHONSTARTUP": str(tmp_path / "os.py"),
        "PYTHONINSPECT": "1",
        "PYTHONVERBOSE": "1",
        "PYTHONWARNINGS": "error",
        "PYTHONIOENCODING": "utf-16",
        "_MEIPASS2": str(tmp_path),
        "_PYI_APPLICATION_HOME_DIR": str(tmp_path),
    }
    assert_answered(call(tmp_path / BINARY.name, env={**ENVIRONMENT, **hostile}, cwd=tmp_path))


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&-", "0<&- 1>&- 2>&-"])
def test_closed_descriptors(closed: str) -> None:
    result = shell(f"exec {shlex.quote(str(BINARY))} {closed}")
    assert b"Fatal Python error" not in result.stderr
    if closed == "2>&-":
        assert_answered(result)
    elif "1>&-" in closed:
        # Nobody can hear the answer, so it must not look like a success.
        assert result.returncode == 1
    else:
        assert result.returncode in {0, 1}
        json.loads(result.stdout)


def test_reader_gone() -> None:
    """The caller closed its end of the pipe: an error, not a death by SIGPIPE."""
    reading, writing = os.pipe()
    os.close(reading)
    with subprocess.Popen(
        [BINARY], env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=writing, stderr=subprocess.DEVNULL
    ) as process:
        os.close(writing)
        process.communicate(REQUEST, timeout=10)
    assert process.returncode == 1


# ---- what a start costs

# Each takes more than all of VERSION (design decision 2).
HEAVY = {
    "argparse", "asyncio", "dataclasses", "enum", "inspect", "json", "logging", "pyroute2", "re", "scapy", "socket",
    "ssl", "subprocess", "threading", "traceback", "typing", "yaml",
}  # fmt: skip


def test_version_imports_nothing_heavy() -> None:
    result = call(
        sys.executable, "-X", "importtime", "-S", "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from ovn_k8s_cni.__main__ import main; sys.exit(main())",
    )  # fmt: skip
    assert result.returncode == 0
    imported = {line.rpartition(b"|")[2].strip().decode() for line in result.stderr.splitlines()}
    assert "ovn_k8s_cni.__main__" in imported
    assert not HEAVY & imported
