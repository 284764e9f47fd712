"""Datapath `ovs`: the pod's veth is a port of the OVS bridge that `ovn-bridge-mappings` names (ovn-controller(8)).

Tables and columns: ovs-vswitchd.conf.db(5). Every operation's cost is independent of the number of ports.
"""

from __future__ import annotations

from ovn_k8s_cni.cni.error import INVALID_CONFIG, NOT_FORWARDING, CniError
from ovn_k8s_cni.cni.error import OVSDB as OVSDB_FAILURE
from ovn_k8s_cni.config import parse_mappings
from ovn_k8s_cni.datapath import record
from ovn_k8s_cni.datapath.record import Attachment
from ovn_k8s_cni.ipam.lease import from_text as lease_from_text
from ovn_k8s_cni.ipam.lease import to_text as lease_to_text
from ovn_k8s_cni.record import Record
from ovn_k8s_cni.system.deadline import Deadline
from ovn_k8s_cni.system.ovsdb import OvsdbTimeout, dict_of, list_of, milliseconds, named, ovs_map, ovs_set, uuid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ovn_k8s_cni.config import Config
    from ovn_k8s_cni.datapath.veth import Veth
    from ovn_k8s_cni.system.netlink import Link, Rtnetlink
    from ovn_k8s_cni.system.ovsdb import Ovsdb

_NETWORK, _NAD = "k8s.ovn.org/network", "k8s.ovn.org/nad"
_NETNS, _IPAM, _LEASE = f"{record.MARK}/netns", f"{record.MARK}/ipam", f"{record.MARK}/lease"
_UNDO_SECONDS = 3.0


class PodIdentity(Record):
    """What Kubernetes calls the workload; all empty where the runtime tells nothing."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


def iface_id(nad_key: str, pod: PodIdentity) -> str:
    """Return the logical switch port's name: the NAD key with `-` and `/` as `.`, then the pod's namespace and name."""
    prefix = nad_key.replace("-", ".").replace("/", ".")
    return f"{prefix}_{pod.namespace}_{pod.name}"


class OvsBridge:
    """The bridge of the physical network, over one OVSDB connection."""

    name = "ovs"

    def __init__(self, ovsdb: Ovsdb, node: Rtnetlink, config: Config, pod: PodIdentity) -> None:
        """Look the bridge up; raise code 7 when there is no mapping or no such bridge."""
        self._ovsdb = ovsdb
        self._config = config
        self._pod = pod
        switch, bridges = ovsdb.transact(
            {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["external_ids", "other_config"]},
            {"op": "select", "table": "Bridge", "where": [], "columns": ["name", "datapath_type"]},
        )
        row = switch["rows"][0] if switch["rows"] else {"external_ids": ["map", []], "other_config": ["map", []]}
        self._bridge = _mapped_bridge(dict_of(row["external_ids"]), config.physical_network)
        types = {bridge["name"]: bridge["datapath_type"] for bridge in bridges["rows"]}
        if self._bridge not in types:
            raise CniError(
                INVALID_CONFIG,
                f"physical network {config.physical_network!r} is mapped to {self._bridge!r}, which is no OVS bridge",
                f"bridges: {', '.join(sorted(types)) or 'none'}",
            )
        tso = dict_of(row["other_config"]).get("userspace-tso-enable") == "true"
        # The userspace datapath forwards what the sender left to an offload, and nobody finishes it.
        self.checksums_need_software = types[self._bridge] == "netdev" and not tso
        local = node.link(self._bridge)
        self._mtu = local.mtu if local is not None else 1500
        # The row that plug inserted: looked up by its UUID, which costs the same however many rows there are.
        self._interface: list[Any] = []

    @property
    def mtu(self) -> int:
        """The physical network's MTU in bytes: the bridge's own interface follows its ports (or is set)."""
        return self._mtu

    @property
    def where(self) -> str:
        """The place a person would look at."""
        return f"OVS bridge {self._bridge}"

    def plug(self, attachment: Attachment, pair: Veth) -> None:
        """Insert the port; ovs-vswitchd takes it up on its own time."""
        interface = {"name": attachment.host_name, "external_ids": ovs_map(self._external_ids(attachment, pair))}
        port: dict[str, Any] = {"name": attachment.host_name, "interfaces": named("interface")}
        if self._config.vlan_id is not None:
            port["tag"] = self._config.vlan_id
        if self._config.transient_ports:
            port["other_config"] = ovs_map({"transient": "true"})
        results = self._ovsdb.transact(
            {"op": "insert", "table": "Interface", "row": interface, "uuid-name": "interface"},
            {"op": "insert", "table": "Port", "row": port, "uuid-name": "port"},
            {
                "op": "mutate",
                "table": "Bridge",
                "where": [["name", "==", self._bridge]],
                "mutations": [["ports", "insert", named("port")]],
            },
        )
        self._interface = [["_uuid", "==", results[0]["uuid"]]]
        if results[2].get("count") != 1:
            raise CniError(OVSDB_FAILURE, f"OVS bridge {self._bridge} went away while the port was added")

    def _external_ids(self, attachment: Attachment, pair: Veth) -> dict[str, str]:
        known = {
            "attached_mac": pair.pod.mac.hex(":"),
            "iface-id": iface_id(self._config.nad_key or attachment.network, self._pod) if self._pod.name else "",
            "iface-id-ver": self._pod.uid,
            "sandbox": attachment.container_id,
            "pod-if-name": attachment.ifname,
            _NETWORK: attachment.network,
            _NAD: self._config.nad_key,
            _NETNS: attachment.netns,
            _IPAM: attachment.ipam,
        }
        return {key: value for key, value in known.items() if value}

    def wait_until_forwarding(self, attachment: Attachment, pair: Veth, deadline: Deadline) -> None:  # noqa: ARG002
        """Wait until ovs-vswitchd has the port and its link up; raise code 103 when it has not by the deadline."""
        name = attachment.host_name
        try:
            row = self._wait_for("ofport", "!=", ovs_set(), deadline)
            if (ofport := list_of(row["ofport"])) != [] and ofport[0] < 1:
                error = " ".join(list_of(row["error"])) or "no reason given"
                raise CniError(NOT_FORWARDING, f"ovs-vswitchd refused port {name} on {self._bridge}", error)
            if list_of(row["link_state"]) != ["up"]:
                self._wait_for("link_state", "==", "up", deadline)
        except OvsdbTimeout:
            raise CniError(
                NOT_FORWARDING,
                f"ovs-vswitchd did not take up port {name} on {self._bridge} within {deadline.elapsed():.1f} s",
                "is ovs-vswitchd running? its log and `ovs-vsctl show` tell more",
            ) from None

    def _wait_for(self, column: str, until: str, value: Any, deadline: Deadline) -> dict[str, Any]:
        columns = ["ofport", "link_state", "error"]
        wait = {
            "op": "wait",
            "table": "Interface",
            "where": self._interface,
            "columns": [column],
            "until": until,
            "rows": [{column: value}],
            "timeout": milliseconds(deadline),
        }
        select = {"op": "select", "table": "Interface", "where": self._interface, "columns": columns}
        _, found = self._ovsdb.transact(wait, select, deadline=deadline)
        if not found["rows"]:
            raise CniError(OVSDB_FAILURE, f"a port was taken away from {self._bridge} while it was waited for")
        row: dict[str, Any] = found["rows"][0]
        return row

    def remember(self, attachment: Attachment) -> None:
        """Write the lease where DEL, CHECK and GC will look.

        Not on the alias too: each change of a link has ovs-vswitchd go over all its ports several times.
        """
        text = lease_to_text(attachment.lease) if attachment.lease is not None else ""
        key = ovs_set(_LEASE)
        self._ovsdb.transact(
            {
                "op": "mutate",
                "table": "Interface",
                "where": [["name", "==", attachment.host_name]],
                "mutations": [["external_ids", "delete", key], ["external_ids", "insert", ovs_map({_LEASE: text})]],
            }
        )

    def find(self, host_name: str, network: str) -> Attachment | None:
        """Return what is remembered of the attachment with that host-side interface."""
        found = find(self._ovsdb, host_name)
        return found if found is not None and found.network == network else None

    def unplug(self, host_name: str) -> None:
        """Take the port out, also when the time of the request is up: an ADD is undone."""
        unplug(self._ovsdb, host_name, Deadline(_UNDO_SECONDS))

    def settle(self, deadline: Deadline) -> None:
        """Wait until ovs-vswitchd has forgotten what was taken out."""
        wait_until_applied(self._ovsdb, deadline)

    def problems(self, attachment: Attachment, host: Link) -> list[str]:  # noqa: ARG002
        """Return what is wrong with the port, for CHECK."""
        name = attachment.host_name
        ports, interfaces = self._ovsdb.transact(
            {"op": "select", "table": "Port", "where": [["name", "==", name]], "columns": ["_uuid", "tag"]},
            {
                "op": "select",
                "table": "Interface",
                "where": [["name", "==", name]],
                "columns": ["ofport", "error", "link_state", "external_ids"],
            },
        )
        if not ports["rows"] or not interfaces["rows"]:
            return [f"OVS has no port {name}"]
        port, interface = ports["rows"][0], interfaces["rows"][0]
        (holder,) = self._ovsdb.transact(
            {"op": "select", "table": "Bridge", "where": [["ports", "includes", port["_uuid"]]], "columns": ["name"]}
        )
        found = []
        if [row["name"] for row in holder["rows"]] != [self._bridge]:
            found.append(f"{name} is no port of OVS bridge {self._bridge}")
        if list_of(port["tag"]) != ([] if self._config.vlan_id is None else [self._config.vlan_id]):
            found.append(f"port {name} has tag {list_of(port['tag'])}, not {self._config.vlan_id}")
        if (ofport := list_of(interface["ofport"])) == [] or ofport[0] < 1:
            reason = " ".join(list_of(interface["error"])) or "is ovs-vswitchd running?"
            found.append(f"port {name} has no OpenFlow port: {reason}")
        elif list_of(interface["link_state"]) != ["up"]:
            found.append(f"port {name} has link state {' '.join(list_of(interface['link_state'])) or 'unknown'}")
        sandbox = dict_of(interface["external_ids"]).get("sandbox")
        if sandbox != attachment.container_id:
            found.append(f"port {name} belongs to sandbox {sandbox}")
        return found


def _mapped_bridge(external_ids: dict[str, str], physical_network: str) -> str:
    text = external_ids.get("ovn-bridge-mappings", "")
    try:
        mappings = parse_mappings(text) if text else {}
    except ValueError:
        mappings = {}
    if physical_network not in mappings:
        raise CniError(
            INVALID_CONFIG,
            f"physical network {physical_network!r} is mapped to no OVS bridge on this node",
            f"external_ids:ovn-bridge-mappings of the Open_vSwitch row: {text or 'none'}",
        )
    return mappings[physical_network]


_ROW = {"table": "Interface", "columns": ["name", "external_ids"]}


def _attachment(row: dict[str, Any]) -> Attachment | None:
    ids = dict_of(row["external_ids"])
    if _IPAM not in ids:  # not ours
        return None
    return Attachment(
        host_name=row["name"],
        container_id=ids.get("sandbox", ""),
        ifname=ids.get("pod-if-name", ""),
        network=ids.get(_NETWORK, ""),
        netns=ids.get(_NETNS, ""),
        datapath="ovs",
        ipam=ids[_IPAM],
        lease=lease_from_text(ids.get(_LEASE, "")),
    )


def find(ovsdb: Ovsdb, host_name: str, deadline: Deadline | None = None) -> Attachment | None:
    """Return what OVSDB remembers of the attachment with that host-side interface, None when it is not ours or gone."""
    (found,) = ovsdb.transact({"op": "select", "where": [["name", "==", host_name]], **_ROW}, deadline=deadline)
    return _attachment(found["rows"][0]) if found["rows"] else None


def list_attachments(ovsdb: Ovsdb, network: str) -> list[Attachment]:
    """Return our attachments to `network`."""
    marked = [["external_ids", "includes", ovs_map({_NETWORK: network})]]
    (found,) = ovsdb.transact({"op": "select", "where": marked, **_ROW})
    return [attachment for attachment in map(_attachment, found["rows"]) if attachment is not None]


def unplug(ovsdb: Ovsdb, host_name: str, deadline: Deadline | None = None) -> bool:
    """Take our port out of whatever bridge has it; tell whether it was there."""
    if find(ovsdb, host_name, deadline) is None:
        return False
    (found,) = ovsdb.transact(
        {"op": "select", "table": "Port", "where": [["name", "==", host_name]], "columns": ["_uuid"]},
        deadline=deadline,
    )
    if not found["rows"]:
        return False
    port = uuid(found["rows"][0]["_uuid"][1])
    # Port and Interface rows that no bridge refers to are deleted by the database itself.
    ovsdb.transact(
        {
            "op": "mutate",
            "table": "Bridge",
            "where": [["ports", "includes", port]],
            "mutations": [["ports", "delete", port]],
        },
        deadline=deadline,
    )
    return True


def wait_until_applied(ovsdb: Ovsdb, deadline: Deadline) -> None:
    """Wait until ovs-vswitchd has done all that is in the database by now (`next_cfg` and `cur_cfg`)."""
    _, bumped = ovsdb.transact(
        {"op": "mutate", "table": "Open_vSwitch", "where": [], "mutations": [["next_cfg", "+=", 1]]},
        {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["next_cfg", "cur_cfg"]},
    )
    goal, current = bumped["rows"][0]["next_cfg"], bumped["rows"][0]["cur_cfg"]
    while current < goal:
        _, seen = ovsdb.transact(
            {
                "op": "wait",
                "table": "Open_vSwitch",
                "where": [],
                "columns": ["cur_cfg"],
                "until": "!=",
                "rows": [{"cur_cfg": current}],
                "timeout": milliseconds(deadline),
            },
            {"op": "select", "table": "Open_vSwitch", "where": [], "columns": ["cur_cfg"]},
            deadline=deadline,
        )
        current = seen["rows"][0]["cur_cfg"]
