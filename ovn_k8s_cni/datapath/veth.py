"""The veth pair of an attachment: one end in the pod's network namespace, one on the node."""

from __future__ import annotations

import errno

from ovn_k8s_cni import log
from ovn_k8s_cni.cni.error import ALREADY_ATTACHED, INVALID_ENVIRONMENT, KERNEL, CniError
from ovn_k8s_cni.datapath import record
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system import netlink, sysctl
from ovn_k8s_cni.system.ethtool import Ethtool
from ovn_k8s_cni.system.netlink import NetlinkError, Rtnetlink
from ovn_k8s_cni.system.netns import Netns
from ovn_k8s_cni.system.packet import ETH_P_ALL, PacketSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.netlink import Link


class Sandbox:
    """The pod's network namespace, with the sockets that were made inside it."""

    def __init__(self, netns: Netns) -> None:
        self.netns = netns
        with netns.entered():
            self.rtnetlink = Rtnetlink()
            self.ethtool = Ethtool()

    @classmethod
    def open(cls, path: str) -> Self:
        """Open the sandbox at `path`; raise code 4 when it is no network namespace, or the node's own."""
        try:
            netns = Netns(path)
        except OSError as problem:
            reason = "it is not a network namespace" if problem.errno == errno.EINVAL else problem.strerror
            raise CniError(INVALID_ENVIRONMENT, f"CNI_NETNS={path} cannot be entered", reason or str(problem)) from None
        if netns.is_own():
            netns.close()
            raise CniError(INVALID_ENVIRONMENT, f"CNI_NETNS={path} is the network namespace of the node itself")
        return cls(netns)

    @classmethod
    def open_if_there(cls, path: str) -> Self | None:
        """Open the sandbox of a clean-up; None when it is gone, was never given, or is none."""
        if not path:
            return None
        try:
            return cls.open(path)
        except CniError as problem:
            log.info(f"going on without the sandbox: {problem}")
            return None

    def listen(self, interface: str, program: tuple[tuple[int, int, int, int], ...]) -> PacketSocket:
        """Return a packet socket on `interface` inside the sandbox, both directions; raise OSError."""
        with self.netns.entered():
            return PacketSocket(interface, ETH_P_ALL, program)

    def announce(self, link: Link) -> None:
        """Have the kernel tell the neighbours of `link` its addresses (RFC 5227, section 3): they may know another MAC.

        A packet socket would do it too, and cost an RCU grace period. The kernel sends an announcement when the MAC is
        set, also to what it is, where `arp_notify` is on; the bridge and macvlan plugins leave it on as well.
        """
        try:
            with self.netns.entered():
                sysctl.write(f"net/ipv4/conf/{link.name}/arp_notify", "1")
            self.rtnetlink.do(netlink.set_mac(link.index, link.mac, link.name))
        except OSError as problem:
            log.warning(f"could not announce the addresses of {link.name}: {problem}")

    def close(self) -> None:
        """Close the sockets and let go of the namespace."""
        self.rtnetlink.close()
        self.ethtool.close()
        self.netns.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Veth(Record):
    """A pair: `host` on the node, `pod` in the sandbox."""

    host: Link
    pod: Link


def make(node: Rtnetlink, sandbox: Sandbox, attachment: record.Attachment, mac: bytes | None, mtu: int) -> Veth:
    """Make the pair, both ends down, the host side marked; raise code 108 when the pod has such an interface."""
    try:
        node.do(
            netlink.new_veth(attachment.host_name, attachment.ifname, sandbox.netns.fd, mac, mtu),
            netlink.set_alias(attachment.host_name, record.to_alias(attachment)),
        )
    except NetlinkError as problem:
        if problem.errno == errno.EEXIST:
            raise CniError(
                ALREADY_ATTACHED,
                f"the sandbox already has an interface {attachment.ifname}",
                f"netns {attachment.netns}; the kernel says: {problem.strerror}",
            ) from None
        raise
    host, pod = node.link(attachment.host_name), sandbox.rtnetlink.link(attachment.ifname)
    if host is None or pod is None:
        raise CniError(KERNEL, f"the veth pair for {attachment.ifname} is gone as soon as it was made")
    if mac is not None and pod.mac != mac:
        found = pod.mac.hex(":")
        raise CniError(KERNEL, f"{attachment.ifname} did not take the MAC {mac.hex(':')}", f"it has {found}")
    return Veth(host, pod)


def set_up(node: Rtnetlink, sandbox: Sandbox, pair: Veth) -> None:
    """Set both ends up; the host side, which only passes frames on, does not speak IPv6 itself."""
    try:
        sysctl.write(f"net/ipv6/conf/{pair.host.name}/disable_ipv6", "1")
    except OSError as problem:
        log.debug(f"{pair.host.name} keeps IPv6: {problem}")
    sandbox.rtnetlink.do(netlink.set_up(pair.pod.index, pair.pod.name))
    node.do(netlink.set_up(pair.host.index, pair.host.name))


def wait_until_up(node: Rtnetlink, node_ethtool: Ethtool, sandbox: Sandbox, pair: Veth, deadline: Deadline) -> bool:
    """Wait until the kernel passes frames on both ends; tell whether it does by the deadline."""

    def forwards() -> bool:
        node_ethtool.sync_carrier(pair.host.name)
        sandbox.ethtool.sync_carrier(pair.pod.name)
        host, pod = node.link(index=pair.host.index), sandbox.rtnetlink.link(index=pair.pod.index)
        return host is not None and pod is not None and host.up() and pod.up()

    return deadline.poll(forwards)


def remove(node: Rtnetlink, name: str) -> bool:
    """Remove the host-side interface and its peer with it; tell whether it was there."""
    link = node.link(name)
    if link is None:
        return False
    try:
        node.do(netlink.delete_link(link.index, name))
    except NetlinkError as problem:
        if problem.errno != errno.ENODEV:
            raise
    return True


def pod_end(sandbox: Sandbox, host: Link | None, ifname: str) -> Link | None:
    """Return the sandbox's interface `ifname` if it is the other end of `host`, else None: it is another's."""
    pod = sandbox.rtnetlink.link(ifname)
    if pod is None or host is None or pod.kind != "veth":
        return None
    return pod if pod.peer == host.index and host.peer == pod.index else None


def mac_text(mac: bytes) -> str:
    """Return a MAC as text, lower case."""
    return mac.hex(":")
