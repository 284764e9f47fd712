"""The story of an attachment, one verb a function: each step that leaves something behind pushes its own undo."""

from __future__ import annotations

from ovn_k8s_cni import datapath as datapaths
from ovn_k8s_cni import log, workload
from ovn_k8s_cni.cni import result as cni_result
from ovn_k8s_cni.cni.error import (
    ALREADY_ATTACHED,
    CHECK_FAILED,
    GC_INCOMPLETE,
    INVALID_CONFIG,
    NOT_FORWARDING,
    CniError,
)
from ovn_k8s_cni.datapath import veth
from ovn_k8s_cni.datapath.record import DELEGATED, DISCOVERED, Attachment, host_name, of_another_network
from ovn_k8s_cni.datapath.veth import Sandbox
from ovn_k8s_cni.system.ethtool import Ethtool
from ovn_k8s_cni.system.netlink import Rtnetlink
from ovn_k8s_cni.undo import UndoStack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.config import Config
    from ovn_k8s_cni.datapath import Datapath
    from ovn_k8s_cni.datapath.veth import Veth
    from ovn_k8s_cni.ipam.acquire import Acquired, Waiting
    from ovn_k8s_cni.system.deadline import Deadline

# Seconds that a path may take to forward before ADD gives up: a Linux bridge with STP needs twice its forward delay.
_PATH_SECONDS = 40.0
# Seconds kept back from the exchange, so that a lease that did not come can still be cleaned up inside the deadline.
_UNDO_SECONDS = 3.0


def add(request: Request, config: Config, deadline: Deadline) -> dict[str, Any]:
    """Attach the sandbox and return the CNI result; on failure everything done is undone. Raises CniError, OSError."""
    with Sandbox.open(request.netns) as sandbox, Rtnetlink() as node, UndoStack() as undo:
        ipam = workload.ipam(request, config)
        waiting = _start_delegate(request, config, ipam == DELEGATED, undo)
        path = datapaths.open_path(request, config, node, deadline, undo)
        attachment = _new(request, ipam, path.name)
        log.step(deadline, f"{path.where} looked up")
        _remove_leftover(attachment, request, config, sandbox, node, path, deadline)
        undo.push(veth.remove, node, attachment.host_name)
        pair = veth.make(node, sandbox, attachment, config.mac, config.mtu or path.mtu)
        log.step(deadline, "veth pair made")
        undo.push(path.unplug, attachment.host_name)
        _plug(attachment, pair, path, node, sandbox, deadline)
        log.step(deadline, "path forwards")
        result = _interfaces(request, pair)
        if waiting is not None:
            attachment, acquired = _lease(attachment, waiting, pair, path, sandbox, deadline, undo)
            log.step(deadline, f"lease acquired: {attachment.lease}")
            _apply(acquired, pair, sandbox, config, result)
        elif ipam == DISCOVERED:
            attachment = _discover(attachment, pair, path, sandbox, config, deadline, undo, result)
            log.step(deadline, f"address discovered: {attachment.lease}")
        result["dns"] = config.dns or result["dns"]
        path.remember(attachment)
        log.step(deadline, "address applied, lease written down")
        undo.clear()
        return result


def _start_delegate(request: Request, config: Config, delegated: bool, undo: UndoStack) -> Waiting | None:
    """Start the dhcp plugin early: it comes up while the kernel makes the link."""
    if config.ipam is None or not delegated:
        return None
    from ovn_k8s_cni.ipam import acquire

    waiting = acquire.start(request, config.ipam)
    undo.push(waiting.child.kill)
    return waiting


def _new(request: Request, ipam: str, datapath: str) -> Attachment:
    return Attachment(
        host_name=host_name(request.container_id, request.ifname),
        container_id=request.container_id,
        ifname=request.ifname,
        network=request.name,
        netns=request.netns,
        datapath=datapath,
        ipam=ipam,
    )


def _remove_leftover(
    attachment: Attachment,
    request: Request,
    config: Config,
    sandbox: Sandbox,
    node: Rtnetlink,
    path: Datapath,
    deadline: Deadline,
) -> None:
    """Remove what an ADD of the same attachment left when it was killed, or when its sandbox was lost.

    Raises code 108 when the attachment is finished and its sandbox is this one: it is not to be touched.
    """
    link, found = node.link(attachment.host_name), path.find(attachment.host_name, attachment.network)
    if link is None and found is None:
        return
    in_use = veth.pod_end(sandbox, link, attachment.ifname) is not None
    foreign = link is not None and of_another_network(link.alias, attachment.network)
    if foreign or (in_use and (found is None or not found.exchange_unfinished())):
        raise CniError(ALREADY_ATTACHED, f"{request} is attached already", "DEL has to come before another ADD")
    from ovn_k8s_cni import removal

    log.warning(f"removing what an earlier ADD of {request} left")
    removal.remove(found or attachment, request, config, node, deadline)
    path.settle(deadline)


def _plug(
    attachment: Attachment, pair: Veth, path: Datapath, node: Rtnetlink, sandbox: Sandbox, deadline: Deadline
) -> None:
    """Plug the pair and wait until the path forwards: whatever is sent before is lost, and a DISCOVER costs 10 s."""
    patience = deadline.share(_PATH_SECONDS)
    node_ethtool = Ethtool()
    try:
        if path.checksums_need_software:
            sandbox.ethtool.checksum_in_software(pair.pod.name)
        # Up before the plug: ovs-vswitchd sets flags by reading and writing them, and would write an older "down" back.
        veth.set_up(node, sandbox, pair)
        path.plug(attachment, pair)
        if not veth.wait_until_up(node, node_ethtool, sandbox, pair, patience):
            raise CniError(NOT_FORWARDING, f"the veth pair {attachment.host_name} and {pair.pod.name} does not come up")
        path.wait_until_forwarding(attachment, pair, patience)
    finally:
        node_ethtool.close()


def _lease(
    attachment: Attachment,
    waiting: Waiting,
    pair: Veth,
    path: Datapath,
    sandbox: Sandbox,
    deadline: Deadline,
    undo: UndoStack,
) -> tuple[Attachment, Acquired]:
    """Acquire a lease; return the attachment that knows it, and what came with it."""
    from ovn_k8s_cni import removal
    from ovn_k8s_cni.dhcp.frame import DHCP_ONLY
    from ovn_k8s_cni.ipam import acquire, exchange

    patience = deadline.share(max(1.0, deadline.left() - _UNDO_SECONDS))
    with exchange.Watch(sandbox.listen(pair.pod.name, DHCP_ONLY), pair.pod.mac) as watch:
        # From here on the server may hold a lease, known to us or not.
        undo.push(removal.give_back, waiting.delegate, sandbox, pair.pod, attachment)
        acquired = acquire.acquire(waiting, watch, path.where, patience)
    attachment = attachment.replace(lease=acquired.lease)
    undo.pop()
    undo.push(removal.give_back, waiting.delegate, sandbox, pair.pod, attachment)
    return attachment, acquired


def _discover(
    attachment: Attachment,
    pair: Veth,
    path: Datapath,
    sandbox: Sandbox,
    config: Config,
    deadline: Deadline,
    undo: UndoStack,
    result: dict[str, Any],
) -> Attachment:
    """Learn the address that the guest will get, and report it; the interface stays without one, the guest owns it."""
    from ovn_k8s_cni.ipam import apply, discovery

    identifier = discovery.client_id(config.client_id, pair.pod.mac)
    patience = deadline.share(max(1.0, deadline.left() - _UNDO_SECONDS))
    found = discovery.discover(sandbox, pair.pod, identifier, path.where, patience)
    # From here on the server holds a lease that nobody will use if this ADD fails.
    undo.push(discovery.give_back, sandbox, pair.pod, found.lease, identifier, path.name)
    result["ips"] = [apply.result_ip(found.address, interface=1)]
    result["routes"] = [apply.result_route(route) for route in found.routes]
    result["dns"] = found.dns
    return attachment.replace(lease=found.lease)


def _apply(acquired: Acquired, pair: Veth, sandbox: Sandbox, config: Config, result: dict[str, Any]) -> None:
    """Give the interface its address and routes, tell the neighbours, and enter into `result` what is installed."""
    from ovn_k8s_cni.ipam import apply

    installed = apply.configure(
        sandbox.rtnetlink, pair.pod, acquired.address, acquired.routes, default_route=config.default_route
    )
    sandbox.announce(pair.pod)
    result["ips"] = [apply.result_ip(acquired.address, interface=1)]
    result["routes"] = [apply.result_route(route) for route in installed]
    result["dns"] = acquired.dns


def _interfaces(request: Request, pair: Veth) -> dict[str, Any]:
    """Return a result that names both ends of the pair."""
    result = cni_result.empty()
    result["interfaces"] = [
        {"name": pair.host.name, "mac": pair.host.mac.hex(":"), "mtu": pair.host.mtu},
        {"name": pair.pod.name, "mac": pair.pod.mac.hex(":"), "mtu": pair.pod.mtu, "sandbox": request.netns},
    ]
    return result


def delete(request: Request, config: Config, deadline: Deadline) -> None:
    """Detach the sandbox; succeeds whatever is gone already. Raises code 11 when a port may be left (OVSDB silent)."""
    from ovn_k8s_cni import removal

    with Rtnetlink() as node:
        removal.remove(_new(request, workload.ipam(request, config), ""), request, config, node, deadline)


def check(request: Request, config: Config, deadline: Deadline) -> None:
    """Compare kernel and OVS with prevResult and have the daemon hold the lease; raise code 107 naming what differs."""
    from ovn_k8s_cni import check as checks

    expected = checks.previous(request)
    name = host_name(request.container_id, request.ifname)
    with Sandbox.open(request.netns) as sandbox, Rtnetlink() as node, UndoStack() as opened:
        path = datapaths.open_path(request, config, node, deadline, opened)
        link, attachment = node.link(name), path.find(name, request.name)
        guest = attachment is not None and attachment.ipam == DISCOVERED
        found = checks.differences(expected, request, sandbox, link, name, guest=guest)
        if attachment is None:
            found.append(f"nothing on this node tells of the attachment ({name})")
        elif link is not None:
            found += path.problems(attachment, link)
        if not found and attachment is not None and config.ipam is not None and attachment.ipam == DELEGATED:
            found += checks.readopt(attachment, request, config.ipam, sandbox, path, deadline)
    if found:
        raise CniError(CHECK_FAILED, f"CHECK of {request} found differences", "; ".join(found))


def status(request: Request, config: Config, deadline: Deadline) -> None:
    """Try what an ADD will need; raise code 50 naming everything that is missing."""
    from ovn_k8s_cni.status import require

    with Rtnetlink() as node, UndoStack() as opened:
        require(request, config, deadline, lambda share: datapaths.open_path(request, config, node, share, opened))


def gc(request: Request, config: Config, deadline: Deadline) -> None:
    """Remove every attachment of this network that the runtime does not list; raise code 109 naming what stayed."""
    from ovn_k8s_cni import removal

    if config.valid_attachments is None:
        raise CniError(
            INVALID_CONFIG,
            f"GC of network {request.name} brings no list of valid attachments",
            'neither "cni.dev/valid-attachments" nor "cni.dev/attachments" in the config; nothing was changed',
        )
    valid = {host_name(container_id, ifname) for container_id, ifname in config.valid_attachments}
    failures = []
    with Rtnetlink() as node:
        for attachment in removal.attachments(request, config, node, deadline):
            if attachment.host_name in valid:
                continue
            if deadline.passed():
                failures.append(f"{attachment.host_name} ({attachment.container_id[:13]}): no time left")
                continue
            try:
                removal.remove(attachment, request, config, node, deadline)
            except (CniError, OSError) as problem:
                failures.append(f"{attachment.host_name} ({attachment.container_id[:13]}): {problem}")
    if failures:
        raise CniError(GC_INCOMPLETE, f"GC of network {request.name} could not remove everything", "; ".join(failures))
