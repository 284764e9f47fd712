"""Network config and node file, validated once and immutable afterwards (design decision 6).

The network config is what the NAD carries; the node file holds what is true of this node. Where both speak, the network
config wins. Unknown keys are accepted in the network config, whose writer is a controller of another release, and an
error in the node file, where they are somebody's typing mistake.
"""

from __future__ import annotations

import errno
import posix

from ovn_k8s_cni import log
from ovn_k8s_cni.cni.error import INVALID_CONFIG, UNSUPPORTED_FIELD, CniError
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import ipv4, json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ovn_k8s_cni.cni.request import Request

DEFAULT_NODE_FILE = "/etc/cni/net.d/ovn-k8s-cni.d/config.json"
DEFAULT_OVSDB_SOCKET = "/var/run/openvswitch/db.sock"
DEFAULT_DEADLINE = 55.0  # CRI-O kills at 60 s

DATAPATHS = ("auto", "ovs", "linux")


class Config(Record):
    """What a request is to do. MACs are raw bytes; `ipam` None means interface only; `mtu` None the network's own."""

    network: str
    nad_key: str
    physical_network: str
    vlan_id: int | None
    mtu: int | None
    mac: bytes | None
    ipam: dict[str, Any] | None
    dns: dict[str, Any]
    default_route: bool
    workload: str
    client_id: str
    valid_attachments: tuple[tuple[str, str], ...] | None
    datapath: str
    ovsdb_socket: str
    bridge_mappings: dict[str, str]
    transient_ports: bool
    deadline_seconds: float
    log_file: str | None
    log_level: str


class _Problems:
    """Collects every problem, so that a person mends them in one go."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, key: str, value: object, expected: str) -> None:
        self.found.append(f"{key}={_shown(value)}: expected {expected}")


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _string(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a non-empty string")
    return value


def _path(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or "\0" in value:
        raise ValueError("an absolute path")
    return value


def _boolean(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _integer(lowest: int, highest: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise ValueError(f"an integer from {lowest} to {highest}")
        return value

    return check


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= 3600:
        raise ValueError("a number of seconds from 1 to 3600")
    return float(value)


def _client_id(value: object) -> str:
    """Return `mac`, `none` or `hex:` with digits only: a type byte and 1 to 254 more (RFC 2132 section 9.14)."""
    if value in ("mac", "none"):
        return str(value)
    digits = value.removeprefix("hex:").replace(":", "") if isinstance(value, str) and value.startswith("hex:") else ""
    try:
        length = len(bytes.fromhex(digits))
    except ValueError:
        length = 0
    if not 2 <= length <= 255:
        raise ValueError("mac, none, or hex: and 2 to 255 bytes in hexadecimal")
    return f"hex:{digits}"


def _one_of(*choices: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return str(value)

    return check


def parse_mappings(value: object) -> dict[str, str]:
    """Return bridge mappings `physnet:bridge,…` (ovn-bridge-mappings of ovn-controller(8)) as a dict."""
    mappings = {}
    for part in value.split(",") if isinstance(value, str) else [""]:
        physnet, _, bridge = (piece.strip() for piece in part.partition(":"))
        if not physnet or not bridge:
            raise ValueError("a comma list of physnet:bridge")
        mappings[physnet] = bridge
    return mappings


_NODE_KEYS: dict[str, tuple[Callable[[object], Any], Any]] = {
    "datapath": (_one_of(*DATAPATHS), "auto"),
    "ovsdbSocket": (_path, DEFAULT_OVSDB_SOCKET),
    "bridgeMappings": (parse_mappings, {}),
    "transientPorts": (_boolean, True),
    "deadlineSeconds": (_seconds, DEFAULT_DEADLINE),
    "defaultRoute": (_boolean, False),
    "workload": (_one_of("auto", "pod", "vm"), "auto"),
    "clientId": (_client_id, "mac"),
    "logFile": (_path, None),
    "logLevel": (_one_of(*log.LEVELS), "warning"),
}

# Keys of the network config alone; those not listed and not above are somebody else's.
_NETWORK_KEYS: dict[str, tuple[Callable[[object], Any], Any]] = {
    "netAttachDefName": (_string, ""),
    "physicalNetworkName": (_string, ""),
    "topology": (_one_of("localnet"), "localnet"),
    "role": (_one_of("secondary"), "secondary"),
    "vlanID": (_integer(1, 4094), None),
    "mtu": (_integer(576, 65535), None),
}


def read_node_file(path: str | None) -> dict[str, Any]:
    """Return the node file's object; `path` None means the default place, where it may be missing. Raises code 7."""
    place = path or DEFAULT_NODE_FILE
    try:
        content = _read(place)
    except OSError as problem:
        if path is None and problem.errno in (errno.ENOENT, errno.ENOTDIR):
            return {}
        raise CniError(INVALID_CONFIG, f"the node file {place} cannot be read", problem.strerror or "") from None
    try:
        found = json.loads(content)
    except json.JsonError as problem:
        raise CniError(INVALID_CONFIG, f"the node file {place} is not JSON", str(problem)) from None
    if not isinstance(found, dict):
        raise CniError(INVALID_CONFIG, f"the node file {place} is not a JSON object", f"found: {type(found).__name__}")
    if unknown := sorted(set(found) - set(_NODE_KEYS)):
        raise CniError(
            INVALID_CONFIG,
            f"the node file {place} has unknown keys: {', '.join(unknown)}",
            f"known: {', '.join(sorted(_NODE_KEYS))}",
        )
    return found


def _read(path: str) -> bytes:
    descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        pieces = []
        while piece := posix.read(descriptor, 1 << 16):
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        posix.close(descriptor)


def _node_file_key(config: Mapping[str, Any], problems: _Problems) -> str | None:
    if "nodeConfig" not in config:
        return None
    try:
        return _path(config["nodeConfig"])
    except ValueError as expected:
        problems.add("nodeConfig", config["nodeConfig"], str(expected))
        return None


def _collect(
    keys: Mapping[str, tuple[Callable[[object], Any], Any]],
    sources: tuple[tuple[str, Mapping[str, Any]], ...],
    problems: _Problems,
) -> dict[str, Any]:
    """Return each key's value from the first source that has it, else its default."""
    values = {}
    for key, (check, default) in keys.items():
        values[key] = default
        for where, source in sources:
            if source.get(key) is not None:
                try:
                    values[key] = check(source[key])
                except ValueError as expected:
                    problems.add(where + key, source[key], str(expected))
                break
    return values


def _object(config: Mapping[str, Any], key: str, problems: _Problems) -> dict[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.add(key, value, "an object")
        return {}
    return value


def _dns(config: Mapping[str, Any], problems: _Problems) -> dict[str, Any]:
    """Return the `dns` section: lists of strings, and a domain (CNI spec 1.1.0, section 5)."""
    dns = _object(config, "dns", problems)
    for key, value in dns.items():
        if key == "domain" and not isinstance(value, str):
            problems.add("dns.domain", value, "a string")
        if key in ("nameservers", "search", "options") and not _is_string_list(value):
            problems.add(f"dns.{key}", value, "a list of strings")
    return dns


def _is_string_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _ipam(config: Mapping[str, Any], problems: _Problems) -> dict[str, Any] | None:
    """Return the `ipam` section; None when it is absent or empty, which is IPAM mode Disabled."""
    ipam = _object(config, "ipam", problems)
    if not ipam or ipam.get("type") == "":
        return None
    if ipam.get("type") != "dhcp":
        problems.add("ipam.type", ipam.get("type"), 'dhcp, or no "ipam" for an interface without an address')
    socket_path = ipam.get("daemonSocketPath", "")
    if not isinstance(socket_path, str):
        problems.add("ipam.daemonSocketPath", socket_path, "a path")
    for key in ("request", "provide"):
        options = ipam.get(key)
        if options is not None and not (isinstance(options, list) and all(isinstance(o, dict) for o in options)):
            problems.add(f"ipam.{key}", options, "a list of objects")
    return ipam


def _mac(
    request: Request, runtime: Mapping[str, Any], arguments: Mapping[str, Any], problems: _Problems
) -> bytes | None:
    """Return the MAC that was asked for: runtimeConfig.mac, else args.cni.mac, else MAC= in CNI_ARGS, else None."""
    wishes = (
        ("runtimeConfig.mac", runtime.get("mac")),
        ("args.cni.mac", arguments.get("mac")),
        ("CNI_ARGS MAC", request.args.get("MAC")),
    )
    for key, wish in wishes:
        if wish is None or wish == "":
            continue
        try:
            return ipv4.parse_mac(wish)
        except ValueError as reason:
            problems.found.append(f"{key}={_shown(wish)}: {reason}")
            return None
    return None


def _valid_attachments(config: Mapping[str, Any], problems: _Problems) -> tuple[tuple[str, str], ...] | None:
    """Return (container ID, ifname) of the list that a GC brings, None when there is no list."""
    key = next((name for name in ("cni.dev/valid-attachments", "cni.dev/attachments") if name in config), None)
    if key is None:
        return None
    # CRI-O's empty list arrives as null, Go's nil slice.
    items = [] if config[key] is None else config[key]
    if not isinstance(items, list) or not all(_is_attachment(item) for item in items):
        problems.add(key, items, 'a list of {"containerID": …, "ifname": …}')
        return None
    return tuple((item["containerID"], item["ifname"]) for item in items)


def _is_attachment(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("containerID"), str) and isinstance(item.get("ifname"), str)


def _refuse_subnets(request: Request, ipam: dict[str, Any] | None, problems: _Problems) -> None:
    config = request.config
    if not config.get("subnets"):
        return
    if ipam is None and request.verb != "DEL":
        raise CniError(
            UNSUPPORTED_FIELD,
            f"subnets={_shown(config['subnets'])} of network {request.name} is not supported",
            'addresses come from an external DHCP server ("ipam": {"type": "dhcp"}) or not at all',
        )
    problems.add("subnets", config["subnets"], "no subnets together with ipam.type dhcp")


def load(request: Request) -> Config:
    """Return the configuration of `request`; raise code 7 naming every key, its value and what was expected.

    A DEL takes defaults in place of what is wrong: a typing mistake in the config must not keep a pod from going.
    """
    config = request.config
    problems = _Problems()
    node = _node_settings(request.verb, _node_file_key(config, problems), problems)
    settings = _collect(_NODE_KEYS, (("", config), ("node file: ", node)), problems)
    # Now, since what is wrong with the config is to be found there too.
    log.configure(settings["logFile"], settings["logLevel"], f"{request.verb} {request}")
    network = _collect(_NETWORK_KEYS, (("", config),), problems)
    runtime = _object(config, "runtimeConfig", problems)
    arguments = _object(_object(config, "args", problems), "cni", problems)
    ipam = _ipam(config, problems)
    _refuse_subnets(request, ipam, problems)
    loaded = Config(
        network=request.name,
        nad_key=network["netAttachDefName"],
        physical_network=network["physicalNetworkName"] or request.name,
        vlan_id=network["vlanID"],
        mtu=network["mtu"],
        mac=_mac(request, runtime, arguments, problems),
        ipam=ipam,
        dns=_dns(config, problems),
        default_route=settings["defaultRoute"],
        workload=settings["workload"],
        client_id=settings["clientId"],
        valid_attachments=_valid_attachments(config, problems),
        datapath=settings["datapath"],
        ovsdb_socket=settings["ovsdbSocket"],
        bridge_mappings=settings["bridgeMappings"],
        transient_ports=settings["transientPorts"],
        deadline_seconds=settings["deadlineSeconds"],
        log_file=settings["logFile"],
        log_level=settings["logLevel"],
    )
    if problems.found:
        trouble = _trouble(request.name, problems.found)
        if request.verb != "DEL":
            raise trouble
        log.warning(str(trouble))
    return loaded


def _trouble(network: str, found: list[str]) -> CniError:
    count = "a problem" if len(found) == 1 else f"{len(found)} problems"
    return CniError(INVALID_CONFIG, f"the config of network {network} has {count}", "; ".join(found))


def _node_settings(verb: str, path: str | None, problems: _Problems) -> dict[str, Any]:
    try:
        return read_node_file(path)
    except CniError as problem:
        if verb != "DEL":
            raise
        problems.found.append(str(problem))
        return {}
