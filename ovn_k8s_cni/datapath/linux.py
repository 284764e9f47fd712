"""Datapath `linux`: the pod's veth is a port of a Linux bridge; a VLAN is the bridge's VLAN filtering."""

from __future__ import annotations

from ovn_k8s_cni.cni.error import INVALID_CONFIG, NOT_FORWARDING, CniError
from ovn_k8s_cni.datapath import record
from ovn_k8s_cni.system import netlink
from ovn_k8s_cni.system.netlink import BR_STATE_FORWARDING, PVID, UNTAGGED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ovn_k8s_cni.config import Config
    from ovn_k8s_cni.datapath.record import Attachment
    from ovn_k8s_cni.datapath.veth import Veth
    from ovn_k8s_cni.system.deadline import Deadline
    from ovn_k8s_cni.system.netlink import Link, Rtnetlink

# Port states of IEEE 802.1D as linux/if_bridge.h counts them.
_STATES = ("disabled", "listening", "learning", "forwarding", "blocking")


class LinuxBridge:
    """The bridge that the node file maps the physical network to."""

    name = "linux"
    checksums_need_software = False

    def __init__(self, node: Rtnetlink, config: Config) -> None:
        """Look the bridge up; raise code 7 when there is no mapping, no such bridge, or it cannot do the VLAN."""
        self._node = node
        self._vlan_id = config.vlan_id
        self._bridge = _look_up(node, config)

    @property
    def mtu(self) -> int:
        """The physical network's MTU in bytes."""
        return self._bridge.mtu

    @property
    def where(self) -> str:
        """The place a person would look at."""
        return f"Linux bridge {self._bridge.name}"

    def plug(self, attachment: Attachment, pair: Veth) -> None:  # noqa: ARG002
        """Make the host side a port of the bridge."""
        host = pair.host
        messages = [netlink.set_master(host.index, self._bridge.index, host.name, self._bridge.name)]
        if self._vlan_id is not None:
            messages.append(netlink.add_access_vlan(host.index, self._vlan_id, host.name))
        self._node.do(*messages)
        if self._vlan_id is not None:
            self._leave_other_vlans(host)

    def _leave_other_vlans(self, host: Link) -> None:
        """Take the VLANs that the bridge gave the new port by itself: they would leak into the pod."""
        others = [vid for vid in self._node.port_vlans(host.index) if vid != self._vlan_id]
        if others:
            self._node.do(*(netlink.delete_vlan(host.index, vid, host.name) for vid in others))

    def wait_until_forwarding(self, attachment: Attachment, pair: Veth, deadline: Deadline) -> None:
        """Wait until the bridge port forwards; raise code 103 when it does not by the deadline."""
        state: list[int | None] = [None]

        def forwards() -> bool:
            port = self._node.link(index=pair.host.index)
            state[0] = port.port_state if port is not None else None
            return state[0] == BR_STATE_FORWARDING

        if not deadline.poll(forwards):
            raise CniError(
                NOT_FORWARDING,
                f"port {attachment.host_name} of bridge {self._bridge.name} does not forward",
                f"state {_state_text(state[0])} after {deadline.elapsed():.1f} s; is the bridge up, does it run STP?",
            )

    def remember(self, attachment: Attachment) -> None:
        """Write what is known of the attachment, its lease included, where DEL, CHECK and GC will look."""
        self._node.do(netlink.set_alias(attachment.host_name, record.to_alias(attachment)))

    def find(self, host_name: str, network: str) -> Attachment | None:
        """Return what is remembered of the attachment with that host-side interface."""
        link = self._node.link(host_name)
        return record.from_alias(host_name, link.alias, network) if link is not None else None

    def unplug(self, host_name: str) -> None:
        """Nothing: a port leaves a Linux bridge with its interface."""

    def settle(self, deadline: Deadline) -> None:
        """Nothing: a bridge forgets a port as it goes."""

    def problems(self, attachment: Attachment, host: Link) -> list[str]:
        """Return what is wrong with the port, for CHECK."""
        name, found = attachment.host_name, []
        if host.master != self._bridge.index:
            found.append(f"{name} is no port of bridge {self._bridge.name}")
        elif host.port_state != BR_STATE_FORWARDING:
            found.append(f"port {name} is {_state_text(host.port_state)}, not forwarding")
        elif self._vlan_id is not None:
            vlans = self._node.port_vlans(host.index)
            if vlans != {self._vlan_id: PVID | UNTAGGED}:
                found.append(f"port {name} has VLANs {sorted(vlans)}, not just {self._vlan_id} untagged")
        return found


def _state_text(state: int | None) -> str:
    return "unknown" if state is None or state >= len(_STATES) else _STATES[state]


def _look_up(node: Rtnetlink, config: Config) -> Link:
    name = config.bridge_mappings.get(config.physical_network)
    if name is None:
        mappings = ",".join(f"{physnet}:{bridge}" for physnet, bridge in config.bridge_mappings.items())
        raise CniError(
            INVALID_CONFIG,
            f"physical network {config.physical_network!r} is mapped to no Linux bridge on this node",
            f'"bridgeMappings" of the node file: {mappings or "none"}',
        )
    bridge = node.link(name)
    if bridge is None or bridge.kind != "bridge":
        raise CniError(
            INVALID_CONFIG,
            f"physical network {config.physical_network!r} is mapped to {name!r}, which is no Linux bridge",
            f"found: {bridge.kind or 'another kind of interface' if bridge else 'no such interface'}",
        )
    if config.vlan_id is not None and not bridge.vlan_filtering:
        raise CniError(
            INVALID_CONFIG,
            f"vlanID={config.vlan_id} needs VLAN filtering, which is off on bridge {name}",
            f"ip link set {name} type bridge vlan_filtering 1, and let the uplink carry the VLAN",
        )
    return bridge


def list_attachments(node: Rtnetlink, network: str) -> list[Attachment]:
    """Return the attachments to `network` that host-side links tell of, whatever their datapath."""
    found = (record.from_alias(link.name, link.alias, network) for link in node.links() if link.kind == "veth")
    return [attachment for attachment in found if attachment is not None]
