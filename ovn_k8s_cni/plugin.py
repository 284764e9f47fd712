"""One CNI request from bytes to bytes: environment and stdin in, one JSON object and an exit status out.

Everything else goes to the log file: what is on stdout beside the answer fails the call.
"""

from __future__ import annotations

from ovn_k8s_cni.cni import request as requests
from ovn_k8s_cni.cni import versions
from ovn_k8s_cni.cni.error import INTERNAL, IO_FAILURE, KERNEL, OVSDB, TRY_AGAIN_LATER, CniError
from ovn_k8s_cni.system import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.config import Config

# Seconds: a runtime waits for these in a pod's stop, in a loop, or at a kubelet's few-second beat.
_VERB_SECONDS = {"DEL": 8.0, "CHECK": 6.0, "STATUS": 1.8}


def answer(environment: Mapping[str, str], stdin: bytes) -> tuple[int, str]:
    """Return exit status and what goes to stdout ("" for verbs that answer by their status alone)."""
    version = versions.HIGHEST
    try:
        verb = requests.parse_verb(environment)
        if verb == "VERSION":
            return 0, json.dumps(versions.answer(_asked_version(stdin)))
        version = _error_version(stdin)
        request = requests.parse(environment, stdin)
        result = _serve(request)
        return 0, "" if result is None else json.dumps(result)
    except CniError as problem:
        return told(problem, version)


def told(problem: CniError, version: str = versions.HIGHEST) -> tuple[int, str]:
    """Return exit status and what goes to stdout for a request that failed."""
    return 1, json.dumps(problem.to_object(version))


def _asked_version(stdin: bytes) -> str:
    """Return the version in a VERSION request's stdin; the specification lets it be empty."""
    if not stdin.strip():
        return versions.HIGHEST
    return requests.config_version(requests.parse_config(stdin))


def _error_version(stdin: bytes) -> str:
    """Return the version in which an error is told: the config's if it is one of ours."""
    try:
        asked = requests.config_version(requests.parse_config(stdin))
    except CniError:
        return versions.HIGHEST
    return asked if asked in versions.SUPPORTED else versions.HIGHEST


def _serve(request: Request) -> dict[str, Any] | None:
    """Do the request; every failure leaves as a CniError that names the pod, the interface and the network."""
    from ovn_k8s_cni import config as configs
    from ovn_k8s_cni import log
    from ovn_k8s_cni.system.netlink import NetlinkError
    from ovn_k8s_cni.system.ovsdb import OvsdbError, OvsdbUnreachable

    try:
        config = configs.load(request)
        result = _verb(request, config)
    except CniError as problem:
        log.error(str(problem))
        raise
    except NetlinkError as problem:
        raise _failed(KERNEL, request, f"the kernel refused: {problem.strerror}") from problem
    except OvsdbUnreachable as problem:
        raise _failed(TRY_AGAIN_LATER, request, str(problem)) from problem
    except OvsdbError as problem:
        raise _failed(OVSDB, request, str(problem)) from problem
    except OSError as problem:
        raise _failed(IO_FAILURE, request, str(problem)) from problem
    except Exception as problem:
        raise _failed(INTERNAL, request, _where(problem)) from problem
    log.info("done")
    return result


def _failed(code: int, request: Request, details: str) -> CniError:
    from ovn_k8s_cni import log

    log.error(details)
    return CniError(code, f"{request.verb} failed for {request}", details)


def _where(problem: BaseException) -> str:
    """Return an unforeseen exception with the place that raised it: a bug report in one line."""
    place = ""
    traceback = problem.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        place = f" at {code.co_name} ({code.co_filename.rpartition('/')[2]}:{traceback.tb_lineno})"
        traceback = traceback.tb_next
    return f"a defect of this plugin, please report it: {type(problem).__name__}: {problem}{place}"


def _verb(request: Request, config: Config) -> dict[str, Any] | None:
    from ovn_k8s_cni import attachment
    from ovn_k8s_cni.system.deadline import Deadline

    deadline = Deadline(_VERB_SECONDS.get(request.verb, config.deadline_seconds))
    if request.verb == "ADD":
        from ovn_k8s_cni.cni.result import convert

        return convert(attachment.add(request, config, deadline), request.version)
    verbs = {"DEL": attachment.delete, "CHECK": attachment.check, "STATUS": attachment.status, "GC": attachment.gc}
    verbs[request.verb](request, config, deadline)
    return None
