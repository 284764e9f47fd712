"""A real guest takes the lease over that was discovered for it, and keeps it on another node."""

from __future__ import annotations

import copy
import json

import pytest

from conformance.rig.guest import guest
from conformance.rig.process import run, wait_for
from conformance.rig.rig import BRIDGE, Rig, rig
from conformance.rig.servers import Offered

pytestmark = pytest.mark.timeout(180)

MAC = "0a:58:0a:00:00:99"
RFC4361 = "ff0000000100030001" + MAC.replace(":", "")
# Without it dnsmasq takes the address from a hash of the MAC, lease or no lease, and "the same address" proves nothing.
SEQUENTIAL = Offered(extra=("--dhcp-sequential-ip",))


def _address(result: dict[str, list[dict[str, str]]]) -> str:
    return result["ips"][0]["address"].partition("/")[0]


@pytest.mark.parametrize("datapath", ["linux", "ovs"])
@pytest.mark.parametrize(
    ("sends", "configured", "same"),
    [("mac", None, True), ("none", None, True), (RFC4361, f"hex:{RFC4361}", True), (RFC4361, None, False)],
    ids=["01+MAC", "no client-id", "RFC 4361 configured", "RFC 4361 not configured"],
)
def test_the_guest_gets_the_address_of_the_result(
    datapath: str, sends: str, configured: str | None, same: bool
) -> None:
    with rig(datapath, offered=SEQUENTIAL) as node:
        pod, decoy = node.pod(), node.pod()
        result = node.add(pod, workload="vm", clientId=configured, runtimeConfig={"mac": MAC})
        node.add(decoy)
        with guest(node, pod, MAC, sends) as running:
            assert (running.address() == _address(result)) is same


def _second_node(first: Rig) -> Rig:
    """Return a node with a bridge of its own on the physical network of the first one."""
    second = copy.copy(first)
    second.ovs, second.datapath = None, "linux"
    second.node = first.new_netns("node2")
    run(
        ["ip", "-n", second.node, "link", "add", "uplink", "type", "veth", "peer", "name", "trunk", "netns", first.node]
    )
    run(["ip", "-n", second.node, "link", "add", BRIDGE, "type", "bridge"])
    for name in (BRIDGE, "uplink"):
        run(["ip", "-n", second.node, "link", "set", name, "up"])
    run(["ip", "-n", second.node, "link", "set", "uplink", "master", BRIDGE])
    run(["ip", "-n", first.node, "link", "set", "trunk", "up"])
    if first.ovs is None:
        run(["ip", "-n", first.node, "link", "set", "trunk", "master", BRIDGE])
    else:
        first.ovs.vsctl("add-port", BRIDGE, "trunk")
    shown = ["bridge", "-n", second.node, "link", "show", "dev", "uplink"]
    wait_for("the second uplink forwards", lambda: "state forwarding" in run(shown).stdout)
    second.node_file = first.place / "node2.json"
    second.node_file.write_text(json.dumps({"datapath": "linux", "bridgeMappings": f"physnet:{BRIDGE}"}))
    return second


@pytest.mark.parametrize("datapath", ["linux", "ovs"])
def test_cold_migration_keeps_the_address(datapath: str) -> None:
    with rig(datapath, offered=SEQUENTIAL) as node:
        pod, decoy = node.pod(), node.pod()
        result = node.add(pod, workload="vm", runtimeConfig={"mac": MAC})
        with guest(node, pod, MAC, "mac") as running:
            assert running.address() == _address(result)
        node.delete(pod, workload="vm")
        assert node.server.releases() == 0
        node.add(decoy)
        other = _second_node(node)
        there = other.pod()
        moved = other.add(there, workload="vm", runtimeConfig={"mac": MAC})
        assert _address(moved) == _address(result)
        with guest(other, there, MAC, "mac") as running:
            assert running.address() == _address(result)
