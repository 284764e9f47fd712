"""STATUS: everything that an ADD will need, tried (CNI spec 1.1.0, section 2, STATUS)."""

from __future__ import annotations

import errno
import posix
from _socket import socket as _Socket

from ovn_k8s_cni.cni.error import NOT_AVAILABLE, CniError
from ovn_k8s_cni.system.ovsdb import OvsdbError
from ovn_k8s_cni.workload import VM

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.config import Config
    from ovn_k8s_cni.system.deadline import Deadline

_AF_UNIX, _SOCK_STREAM_CLOEXEC = 1, 1 | 0o2000000
# Seconds for each thing that is tried; all of them together stay below 2.
_DATAPATH_SECONDS = 0.8
_DAEMON_SECONDS = 0.45


def require(request: Request, config: Config, deadline: Deadline, open_datapath: Callable[[Deadline], object]) -> None:
    """Raise code 50 naming all that an ADD would fail for: bridge mapping, OVSDB, dhcp plugin, its daemon."""
    found = []
    try:
        open_datapath(deadline.share(_DATAPATH_SECONDS))
    except (CniError, OvsdbError, OSError) as problem:
        found.append(str(problem))
    if config.ipam is not None and config.workload != VM:
        found += _plugin_trouble(request, config.ipam, deadline)
    if found:
        raise CniError(NOT_AVAILABLE, f"an ADD to network {request.name} would fail", "; ".join(found))


def _plugin_trouble(request: Request, ipam: dict[str, object], deadline: Deadline) -> list[str]:
    from ovn_k8s_cni.cni import versions
    from ovn_k8s_cni.ipam import delegate

    found = []
    try:
        asked = delegate.of(request, ipam)
    except CniError as problem:
        found.append(str(problem))
        socket_path = str(ipam.get("daemonSocketPath") or delegate.DEFAULT_SOCKET)
    else:
        socket_path = asked.socket_path
        try:
            spoken = asked.spoken_versions(delegate.Target("status", "", ""), deadline.share(_DAEMON_SECONDS))
            if versions.highest_common(spoken, request.version) is None:
                found.append(f"{asked.program} speaks only CNI {', '.join(spoken)}, not {request.version}")
        except (delegate.DelegateError, CniError) as problem:
            found.append(f"{asked.program} does not tell its version: {problem}")
        except TimeoutError:
            found.append(f"{asked.program} does not tell its version: no answer in time")
    trouble = _daemon_trouble(socket_path, deadline.share(_DAEMON_SECONDS))
    return found + ([f"the dhcp daemon does not answer at {socket_path}: {trouble}"] if trouble else [])


def _daemon_trouble(path: str, deadline: Deadline) -> str | None:
    """Return why the daemon cannot be talked to, None when it can: it answers HTTP, so it is asked for that."""
    stream = _Socket(_AF_UNIX, _SOCK_STREAM_CLOEXEC, 0)
    try:
        stream.settimeout(max(0.01, deadline.left()))
        stream.connect(path)
        stream.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return None if stream.recv(64) else "it closed the connection without an answer"
    except TimeoutError:
        return "it accepts and does not answer"
    except OSError as problem:
        if problem.errno == errno.ECONNREFUSED:
            return "a stale socket, nobody listens"
        return posix.strerror(problem.errno) if problem.errno else str(problem)
    finally:
        stream.close()
