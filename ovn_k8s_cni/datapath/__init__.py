"""Where a pod's interface is plugged: the mapped OVS bridge, or a Linux bridge (design decision 7)."""

from __future__ import annotations

import posix

from ovn_k8s_cni.cni.error import INVALID_CONFIG, TRY_AGAIN_LATER, CniError
from ovn_k8s_cni.system.ovsdb import Ovsdb, OvsdbUnreachable

_CLEANUP_PATIENCE = 2.0  # seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.config import Config
    from ovn_k8s_cni.datapath.record import Attachment
    from ovn_k8s_cni.datapath.veth import Veth
    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.netlink import Link, Rtnetlink
    from ovn_k8s_cni.undo import UndoStack

    class Datapath(Protocol):
        """A physical network's place on this node, and what is done with an attachment there."""

        name: str
        checksums_need_software: bool

        @property
        def mtu(self) -> int: ...

        @property
        def where(self) -> str: ...

        def plug(self, attachment: Attachment, pair: Veth) -> None: ...

        def wait_until_forwarding(self, attachment: Attachment, pair: Veth, deadline: Deadline) -> None: ...

        def remember(self, attachment: Attachment) -> None: ...

        def find(self, host_name: str, network: str) -> Attachment | None: ...

        def unplug(self, host_name: str) -> None: ...

        def settle(self, deadline: Deadline) -> None: ...

        def problems(self, attachment: Attachment, host: Link) -> list[str]: ...


def open_path(request: Request, config: Config, node: Rtnetlink, deadline: Deadline, opened: UndoStack) -> Datapath:
    """Return the physical network's place on this node; `opened` closes what is opened for it. Raises CniError."""
    ovsdb = connect(config, deadline)
    if ovsdb is None:
        from ovn_k8s_cni.datapath.linux import LinuxBridge

        return LinuxBridge(node, config)
    from ovn_k8s_cni.datapath.ovs import OvsBridge, PodIdentity

    opened.push(ovsdb.close)
    args = request.args
    pod = PodIdentity(args.get("K8S_POD_NAMESPACE", ""), args.get("K8S_POD_NAME", ""), args.get("K8S_POD_UID", ""))
    return OvsBridge(ovsdb, node, config, pod)


def connect(config: Config, deadline: Deadline) -> Ovsdb | None:
    """Return a connection to OVSDB for the configured datapath, None where the datapath is `linux`.

    Datapath `auto` takes OVS when its database answers and `linux` when there is no database socket; one that is there
    and does not answer is a restarting OVS (code 11), never a reason to use another datapath.
    """
    if config.datapath == "linux":
        return None
    try:
        return Ovsdb(config.ovsdb_socket, deadline)
    except OvsdbUnreachable as problem:
        if config.datapath == "auto" and problem.missing:
            if config.bridge_mappings:
                return None
            raise CniError(
                INVALID_CONFIG,
                f"physical network {config.physical_network!r}: neither OVS nor a Linux bridge mapping on this node",
                f'no socket {config.ovsdb_socket}, no "bridgeMappings" in the node file',
            ) from None
        raise CniError(TRY_AGAIN_LATER, str(problem), "is ovsdb-server running? ovsdbSocket names its socket") from None


def connect_for_cleanup(config: Config, deadline: Deadline, remembered: str) -> Ovsdb | None:
    """Return a connection to OVSDB for taking a port out, None where no port can be left.

    `remembered` is the datapath that the attachment's link tells of, "" when there is no link. A database that answers
    is asked whatever the config says now. Raises code 11 when one does not answer and a port may be left: the link or
    the config says `ovs`, or nothing says `linux` and OVS is installed here.
    """
    if remembered == "linux":
        return None
    try:
        return Ovsdb(config.ovsdb_socket, deadline, _CLEANUP_PATIENCE)
    except OvsdbUnreachable as problem:
        if remembered != "ovs" and _never_plugged(config, problem):
            return None
        hint = "a port may be left on its bridge; DEL is to be repeated"
        raise CniError(TRY_AGAIN_LATER, str(problem), hint) from None


def _never_plugged(config: Config, problem: OvsdbUnreachable) -> bool:
    """Tell whether an ADD with this config would not have used OVS, as far as that can be told."""
    if config.datapath == "auto":
        installed = _exists(_directory(config.ovsdb_socket))
        return problem.missing and (bool(config.bridge_mappings) or not installed)
    return config.datapath == "linux"


def _directory(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except OSError:
        return False
    return True
