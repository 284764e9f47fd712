"""The upstream `dhcp` IPAM plugin: found, asked in a version that it speaks, watched, and read.

The plugin is started before the interface is ready and waits for its stdin meanwhile, so that its own start-up costs
the pod nothing.
"""

from __future__ import annotations

import posix

from ovn_k8s_cni import log
from ovn_k8s_cni.cni import result as cni_result
from ovn_k8s_cni.cni import versions
from ovn_k8s_cni.cni.error import DELEGATE, INCOMPATIBLE_VERSION, CniError
from ovn_k8s_cni.cni.request import DEFAULT_PATH
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import json
from ovn_k8s_cni.system.child import Child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.system.child import Finished, Reader
    from ovn_k8s_cni.system.deadline import Deadline

DEFAULT_SOCKET = "/run/cni/dhcp.sock"
_PLUGIN = "dhcp"
_S_IFMT, _S_IFREG = 0o170000, 0o100000

# Unless told to, the plugin requests options 1 and 3 only: classless and static routes, DNS servers, domain, search.
_ALSO_REQUESTED = ("121", "33", "6", "15", "119")


class DelegateError(Exception):
    """The dhcp plugin failed; `code` is its error object's, 0 when it printed none."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Target(Record):
    """For whom the plugin is asked: what its client identifier is made of, and where the interface is."""

    container_id: str
    netns: str
    ifname: str


class Delegate:
    """The dhcp plugin of a node and how to ask it for one network."""

    def __init__(self, program: str, environment: dict[str, str], config: dict[str, Any], ipam: dict[str, Any]) -> None:
        self.program = program
        self._environment = environment
        self._config = config
        self._ipam = ipam
        self.socket_path = str(ipam.get("daemonSocketPath") or DEFAULT_SOCKET)

    def start(self, verb: str, target: Target) -> Child:
        """Start the plugin for `verb`; it waits for its stdin. Raises code 104 when it cannot be executed."""
        environment = self._environment | {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": target.container_id,
            "CNI_NETNS": target.netns,
            "CNI_IFNAME": target.ifname,
            "CNI_PATH": self._environment.get("CNI_PATH") or DEFAULT_PATH,
        }
        try:
            return Child(self.program, environment)
        except OSError as problem:
            raise CniError(DELEGATE, f"{self.program} cannot be executed", problem.strerror or str(problem)) from None

    def ask(
        self,
        verb: str,
        target: Target,
        deadline: Deadline,
        started: Child | None = None,
        beside: Reader | None = None,
    ) -> bytes:
        """Return what the plugin prints for `verb`, asked in the config's version, else in one that it says it speaks.

        `started` is a child of `start` to be used, `beside` what is to be read while the plugin works.
        Raises DelegateError when it fails, TimeoutError when it does not end by the deadline.
        """
        version = str(self._config["cniVersion"])
        try:
            return self._ask_in(version, verb, target, deadline, started, beside)
        except DelegateError as problem:
            if problem.code != INCOMPATIBLE_VERSION:
                raise
        return self._ask_in(self._common_version(version, target, deadline), verb, target, deadline, None, beside)

    def _ask_in(
        self,
        version: str,
        verb: str,
        target: Target,
        deadline: Deadline,
        started: Child | None,
        beside: Reader | None,
    ) -> bytes:
        child = started or self.start(verb, target)
        config = {**self._config, "cniVersion": version, "ipam": self._ipam}
        return _output(child.finish(json.dumps(config).encode(), deadline, beside))

    def _common_version(self, wanted: str, target: Target, deadline: Deadline) -> str:
        spoken = self.spoken_versions(target, deadline)
        common = versions.highest_common(spoken, wanted)
        if common is None:
            raise DelegateError(
                INCOMPATIBLE_VERSION,
                f"it speaks CNI {', '.join(spoken)}, none of them {wanted} or an older one of ours",
            )
        log.info(f"{self.program} does not speak CNI {wanted}; it is asked in {common}")
        return common

    def spoken_versions(self, target: Target, deadline: Deadline) -> list[str]:
        """Return the CNI versions that the plugin speaks (its VERSION); raise DelegateError, TimeoutError."""
        printed = _output(self.start("VERSION", target).finish(b'{"cniVersion":"1.0.0"}', deadline))
        spoken = _object(printed).get("supportedVersions")
        if not isinstance(spoken, list) or not all(isinstance(version, str) for version in spoken):
            raise DelegateError(0, f"its VERSION answer is not one: {_short(printed)}")
        return spoken


def _object(printed: bytes) -> dict[str, Any]:
    try:
        found = json.loads(printed)
    except json.JsonError:
        found = None
    if not isinstance(found, dict):
        raise DelegateError(0, f"it printed what is not a JSON object: {_short(printed)}")
    return found


def _short(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace").strip()
    return repr(text[:200]) if text else "nothing"


def _output(finished: Finished) -> bytes:
    if finished.timed_out:
        raise TimeoutError
    if finished.status == 0:
        return finished.stdout
    try:
        found = _object(finished.stdout)
    except DelegateError:
        said = _short(finished.stdout if finished.stdout.strip() else finished.stderr)
        raise DelegateError(0, f"it ended with status {finished.status} and printed {said}") from None
    code = found.get("code")
    parts = [str(found[key]) for key in ("msg", "details") if found.get(key)]
    raise DelegateError(code if isinstance(code, int) else 0, "; ".join(parts) or "it failed without a reason")


def find(path: Iterable[str]) -> str:
    """Return the dhcp plugin's file in the directories `path`, else in /opt/cni/bin; raise code 104."""
    places = [*path]
    if DEFAULT_PATH not in places:
        places.append(DEFAULT_PATH)
    for place in places:
        file = f"{place.rstrip('/')}/{_PLUGIN}"
        if _is_program(file):
            return file
    raise CniError(
        DELEGATE,
        "the dhcp IPAM plugin is not installed",
        f"no executable {_PLUGIN!r} in {', '.join(places)} (CNI_PATH)",
    )


def _is_program(file: str) -> bool:
    try:
        mode = posix.stat(file).st_mode
    except OSError:
        return False
    return mode & _S_IFMT == _S_IFREG and posix.access(file, posix.X_OK)


def of(request: Request, ipam: dict[str, Any]) -> Delegate:
    """Return the delegate for a request; raise code 104 when the plugin is not there."""
    config = {"cniVersion": request.version, "name": request.name, "type": str(request.config.get("type", ""))}
    return Delegate(find(request.path), request.environment, config, with_requested_options(ipam))


def with_requested_options(ipam: dict[str, Any]) -> dict[str, Any]:
    """Return the whole `ipam` section with the options that routes and DNS need added to its `request`."""
    asked = list(ipam.get("request") or [])
    present = {str(option.get("option")) for option in asked}
    return {**ipam, "request": asked + [{"option": code} for code in _ALSO_REQUESTED if code not in present]}


def parse_answer(printed: bytes) -> dict[str, Any]:
    """Return the plugin's ADD result in the 1.1.0 shape; raise code 104 when it is none."""
    try:
        return cni_result.parse(_object(printed), "the dhcp plugin's answer")
    except (DelegateError, CniError) as problem:
        raise CniError(DELEGATE, "the dhcp plugin's answer cannot be read", str(problem)) from None
