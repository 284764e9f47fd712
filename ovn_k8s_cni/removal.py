"""Taking an attachment away: the lease first, while its interface stands, then the port, then the interface.

Every step runs whatever the step before did; what is gone already is no failure.
"""

from __future__ import annotations

from ovn_k8s_cni import datapath as datapaths
from ovn_k8s_cni import log
from ovn_k8s_cni.cni.error import TRY_AGAIN_LATER, CniError
from ovn_k8s_cni.datapath import veth
from ovn_k8s_cni.datapath.record import DELEGATED, from_alias, of_another_network
from ovn_k8s_cni.datapath.veth import Sandbox
from ovn_k8s_cni.ipam import delegate as delegates
from ovn_k8s_cni.ipam import release
from ovn_k8s_cni.system.deadline import Deadline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.config import Config
    from ovn_k8s_cni.datapath.record import Attachment
    from ovn_k8s_cni.ipam.delegate import Delegate
    from ovn_k8s_cni.system.netlink import Link, Rtnetlink
    from ovn_k8s_cni.system.ovsdb import Ovsdb

    T = TypeVar("T")

# Seconds for what the daemon, the server and OVSDB may each take: a removal answers whatever is broken.
_DAEMON_SECONDS = 2.5
_RELEASE_SECONDS = 4.0


class _Steps:
    """Runs every step, and keeps the first failure that must be told."""

    def __init__(self) -> None:
        self.failure: CniError | OSError | None = None

    def run(self, what: str, step: Callable[[], T], *, must: bool = False) -> T | None:
        try:
            return step()
        except Exception as problem:
            log.warning(f"{what}: {problem}")
            if must and self.failure is None:
                if isinstance(problem, CniError | OSError):
                    self.failure = problem
                else:
                    self.failure = CniError(TRY_AGAIN_LATER, f"{what} failed", str(problem))
            return None


def remove(known: Attachment, request: Request, config: Config, node: Rtnetlink, deadline: Deadline) -> None:
    """Remove an attachment; raise CniError (code 11) or OSError when something may be left.

    `known` is what the caller knows; what the link or OVSDB remembers of it counts more.
    """
    steps = _Steps()
    name = known.host_name
    link = steps.run("looking up the interface", lambda: node.link(name))
    if link is not None and of_another_network(link.alias, known.network):
        log.warning(f"{name} is attached to another network: it stays")
        return
    attachment = _remembered(known, link)
    remembered = attachment.datapath
    ovsdb = steps.run(
        "connecting to OVSDB",
        lambda: datapaths.connect_for_cleanup(config, deadline, remembered),
        must=True,
    )
    if ovsdb is not None:
        in_ovsdb = steps.run("asking OVSDB", lambda: _found_in_ovsdb(ovsdb, known))
        attachment = in_ovsdb or attachment
    if attachment.ipam == DELEGATED:
        steps.run("releasing the lease", lambda: _release(attachment, request, config, link))
    if ovsdb is not None:
        with ovsdb:
            steps.run(f"taking port {name} out", lambda: _unplug(ovsdb, name, known.network), must=True)
    steps.run(f"removing interface {name}", lambda: veth.remove(node, name), must=True)
    if steps.failure is not None:
        raise steps.failure


def _remembered(known: Attachment, link: Link | None) -> Attachment:
    """Return what the link's alias tells, for what the caller is asked about."""
    found = from_alias(known.host_name, link.alias, known.network) if link is not None else None
    return known if found is None else found.replace(container_id=known.container_id, ifname=known.ifname)


def _found_in_ovsdb(ovsdb: Ovsdb, known: Attachment) -> Attachment | None:
    from ovn_k8s_cni.datapath import ovs

    found = ovs.find(ovsdb, known.host_name)
    return found if found is not None and found.network == known.network else None


def _unplug(ovsdb: Ovsdb, name: str, network: str) -> bool:
    from ovn_k8s_cni.datapath import ovs

    found = ovs.find(ovsdb, name)
    return found is not None and found.network == network and ovs.unplug(ovsdb, name)


def _release(attachment: Attachment, request: Request, config: Config, link: Link | None) -> None:
    """Have the daemon release the lease while the interface stands, and do ourselves what it cannot."""
    delegate = _delegate(request, config)
    attachment = attachment.replace(netns=request.netns or attachment.netns)
    sandbox = Sandbox.open_if_there(attachment.netns)
    if sandbox is None:
        _tell_daemon(delegate, attachment, Deadline(_DAEMON_SECONDS))
        return
    with sandbox:
        pod = veth.pod_end(sandbox, link, attachment.ifname)
        if pod is not None and pod.up():
            give_back(delegate, sandbox, pod, attachment)
        else:
            _tell_daemon(delegate, attachment, Deadline(_DAEMON_SECONDS))


def _delegate(request: Request, config: Config) -> Delegate | None:
    """Return the dhcp plugin, None when it is gone: the server still gets its RELEASE."""
    try:
        return delegates.of(request, config.ipam or {"type": "dhcp"})
    except CniError as problem:
        log.warning(str(problem))
        return None


def give_back(delegate: Delegate | None, sandbox: Sandbox, pod: Link, attachment: Attachment) -> None:
    """Release a lease, known or not, over the standing interface; takes a few seconds at the most."""
    deadline = Deadline(_RELEASE_SECONDS)
    release.give_back(lambda: _tell_daemon(delegate, attachment, deadline), sandbox, pod, attachment, deadline)


def _tell_daemon(delegate: Delegate | None, attachment: Attachment, deadline: Deadline) -> None:
    """Have the daemon release and forget the attachment; a failure is worth a line in the log, no more."""
    if delegate is None:
        return
    target = delegates.Target(attachment.container_id, attachment.netns, attachment.ifname)
    try:
        delegate.ask("DEL", target, deadline.share(_DAEMON_SECONDS))
    except (delegates.DelegateError, CniError, TimeoutError) as problem:
        log.warning(f"the dhcp plugin's DEL: {str(problem) or 'no answer in time'}")


def attachments(request: Request, config: Config, node: Rtnetlink, deadline: Deadline) -> list[Attachment]:
    """Return all our attachments to the network on this node, whichever datapath they are on; raise code 11."""
    from ovn_k8s_cni.datapath.linux import list_attachments

    found = {attachment.host_name: attachment for attachment in list_attachments(node, request.name)}
    remembered = {attachment.datapath for attachment in found.values()}
    # Links tell of all that is on Linux bridges, and may be gone where a port of OVS is left.
    ovsdb = datapaths.connect_for_cleanup(config, deadline, "ovs" if "ovs" in remembered else "")
    if ovsdb is not None:
        from ovn_k8s_cni.datapath import ovs

        with ovsdb:
            found |= {attachment.host_name: attachment for attachment in ovs.list_attachments(ovsdb, request.name)}
    return list(found.values())
