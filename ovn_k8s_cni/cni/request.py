"""One CNI request: environment and stdin, validated (CNI spec 1.1.0, section 2)."""

from __future__ import annotations

from ovn_k8s_cni.cni import versions
from ovn_k8s_cni.cni.error import DECODING_FAILURE, INVALID_CONFIG, INVALID_ENVIRONMENT, CniError
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERBS = ("ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION")

# Section 2, "Parameters": what each verb requires; every other variable is optional.
_REQUIRED = {
    "ADD": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "CHECK": ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
}

DEFAULT_PATH = "/opt/cni/bin"

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_IFNAME_BYTES = 15  # IFNAMSIZ less its NUL


class Request(Record):
    """What the runtime asked for.

    `netns` is a path, "" where the runtime gave none; `args` are the pairs of CNI_ARGS; `path` the directories of
    CNI_PATH; `config` the network config as it came; `environment` the process's, for the delegate.
    """

    verb: str
    version: str
    name: str
    container_id: str
    netns: str
    ifname: str
    args: dict[str, str]
    path: tuple[str, ...]
    config: dict[str, Any]
    environment: dict[str, str]

    def __str__(self) -> str:
        pod = self.args.get("K8S_POD_NAME")
        who = f"pod {self.args.get('K8S_POD_NAMESPACE', '')}/{pod}" if pod else f"container {self.container_id[:13]}"
        return f"{who}, interface {self.ifname}, network {self.name}"


def parse_verb(environment: Mapping[str, str]) -> str:
    """Return CNI_COMMAND; raise code 4 when it is none of the specification's."""
    verb = environment.get("CNI_COMMAND", "")
    if verb not in VERBS:
        raise CniError(INVALID_ENVIRONMENT, f"CNI_COMMAND={verb!r} is not a CNI verb", f"expected: {', '.join(VERBS)}")
    return verb


def parse_config(stdin: bytes) -> dict[str, Any]:
    """Return the network config of `stdin`; raise code 6 when it is not a JSON object."""
    try:
        config = json.loads(stdin)
    except json.JsonError as problem:
        raise CniError(DECODING_FAILURE, "the network config on stdin is not JSON", str(problem)) from None
    if not isinstance(config, dict):
        raise CniError(
            DECODING_FAILURE, "the network config on stdin is not a JSON object", f"found: {type(config).__name__}"
        )
    return config


def config_version(config: Mapping[str, Any]) -> str:
    """Return the config's `cniVersion`; raise code 6 when it is not a string."""
    version = config.get("cniVersion", versions.UNSTATED)
    if not isinstance(version, str):
        raise CniError(DECODING_FAILURE, f"cniVersion={version!r} of the network config is not a string")
    return version or versions.UNSTATED


def parse_args(text: str, *, strict: bool) -> dict[str, str]:
    """Return the pairs of CNI_ARGS (`K=V;K=V`), split at the first `=`.

    A part without `=` raises code 4 when `strict`; a clean-up (not strict) passes over it.
    """
    pairs = {}
    for part in filter(None, text.split(";")):
        key, equals, value = part.partition("=")
        if equals:
            pairs[key] = value
        elif strict:
            raise CniError(INVALID_ENVIRONMENT, f"CNI_ARGS part {part!r} is not KEY=VALUE", f"CNI_ARGS={text!r}")
    return pairs


def _is_name(text: str) -> bool:
    return bool(text) and text[0] not in "_.-" and _NAME_CHARACTERS.issuperset(text)


def _check_container_id(container_id: str) -> None:
    if not _is_name(container_id):
        raise CniError(
            INVALID_ENVIRONMENT,
            f"CNI_CONTAINERID={container_id!r} is not a container ID",
            "expected: a letter or digit, then letters, digits, '_', '.', '-'",
        )


def _check_ifname(ifname: str) -> None:
    too_long = len(ifname.encode("utf-8", "surrogateescape")) > _IFNAME_BYTES
    if ifname in (".", "..") or too_long or any(c in "/:%" or c.isspace() or not c.isprintable() for c in ifname):
        raise CniError(
            INVALID_ENVIRONMENT,
            f"CNI_IFNAME={ifname!r} is not an interface name",
            f"expected: 1 to {_IFNAME_BYTES} bytes without '/', ':', '%' and white space, not '.' or '..'",
        )


def _check_environment(verb: str, environment: Mapping[str, str]) -> None:
    missing = [name for name in _REQUIRED[verb] if not environment.get(name)]
    if missing:
        raise CniError(INVALID_ENVIRONMENT, f"{verb} needs {', '.join(missing)}", "unset or empty in the environment")
    if "CNI_CONTAINERID" in _REQUIRED[verb]:
        _check_container_id(environment["CNI_CONTAINERID"])
        _check_ifname(environment["CNI_IFNAME"])


def _network_name(config: Mapping[str, Any]) -> str:
    name = config.get("name")
    if not isinstance(name, str) or not _is_name(name):
        raise CniError(
            INVALID_CONFIG,
            f"name={name!r} of the network config is not a network name",
            "expected: a letter or digit, then letters, digits, '_', '.', '-'",
        )
    return name


def parse(environment: Mapping[str, str], stdin: bytes) -> Request:
    """Return the validated request for any verb but VERSION; raise CniError (codes 1, 4, 6, 7)."""
    verb = parse_verb(environment)
    config = parse_config(stdin)
    version = config_version(config)
    versions.require(version, verb)
    _check_environment(verb, environment)
    return Request(
        verb=verb,
        version=version,
        name=_network_name(config),
        container_id=environment.get("CNI_CONTAINERID", ""),
        netns=environment.get("CNI_NETNS", ""),
        ifname=environment.get("CNI_IFNAME", ""),
        args=parse_args(environment.get("CNI_ARGS", ""), strict=verb in ("ADD", "CHECK")),
        path=tuple(filter(None, environment.get("CNI_PATH", "").split(":"))) or (DEFAULT_PATH,),
        config=config,
        environment=dict(environment),
    )
