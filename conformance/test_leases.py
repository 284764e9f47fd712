"""Leases are taken from real servers and given back to them, whatever release of the dhcp plugin the node has."""

from __future__ import annotations

import pytest

from conformance.rig import kernel
from conformance.rig.process import wait_for
from conformance.rig.relay import move_server_behind_a_relay
from conformance.rig.rig import Rig, rig

HUNDRED = 100


def _leftovers(node: Rig) -> list[str]:
    ports = node.ovs.ports() if node.ovs is not None else []
    return ports + [name for name in kernel.links(node.node) if name.startswith("okc")]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("datapath", ["linux", "ovs"])
@pytest.mark.parametrize("server", ["dnsmasq", "isc", "kea"])
def test_every_server_serves_and_sees_the_release(datapath: str, server: str) -> None:
    with rig(datapath, server) as node:
        pod = node.pod()
        result = node.add(pod)
        (address,) = kernel.addresses(pod.netns, pod.ifname)
        assert result["ips"][0]["address"] == address
        assert result["ips"][0]["gateway"] == "172.18.0.5"
        assert result["dns"] == {"nameservers": ["172.18.0.5"]}
        assert node.server.leases() == {address.partition("/")[0]}
        node.delete(pod)
        assert node.server.leases() == set()
        assert node.server.releases() == 1
        assert _leftovers(node) == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("dhcp", ["1.10.0", "1.9.1"])
@pytest.mark.parametrize("datapath", ["linux", "ovs"])
def test_a_hundred_leases_come_and_go(datapath: str, dhcp: str) -> None:
    with rig(datapath, "dnsmasq", dhcp) as node:
        pod = node.pod()
        for number in range(HUNDRED):
            one = pod.__class__(pod.netns, f"c{number}")
            node.add(one)
            assert len(node.server.leases()) == 1
            node.delete(one)
        assert node.server.releases() == HUNDRED
        assert node.server.leases() == set()
        # One DISCOVER a lease: none was lost on a path that did not forward yet.
        assert node.server.count("DISCOVER") == HUNDRED
        assert _leftovers(node) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("datapath", ["linux", "ovs"])
def test_debians_old_plugin_is_asked_in_a_version_that_it_speaks(datapath: str) -> None:
    with rig(datapath, dhcp="1.1.1") as node:
        pod = node.pod()
        result = node.add(pod)
        assert result["cniVersion"] == "1.1.0"
        assert kernel.addresses(pod.netns, pod.ifname) == [result["ips"][0]["address"]]
        assert node.call("STATUS").status == 0
        node.delete(pod)
        assert node.server.leases() == set()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("datapath", ["linux", "ovs"])
@pytest.mark.parametrize("dhcp", ["1.10.0", "1.9.1"])
def test_a_server_behind_a_relay_gets_its_release_through_the_router(datapath: str, dhcp: str) -> None:
    """The daemon's RELEASE has no route there: the default route is not the pod's to have."""
    with rig(datapath, dhcp=dhcp) as node:
        server = move_server_behind_a_relay(node)
        pod = node.pod()
        result = node.add(pod)
        assert {result["ips"][0]["address"].partition("/")[0]} == server.leases()
        node.delete(pod)
        wait_for("the lease is gone", lambda: server.leases() == set(), 3)
        assert server.releases() == 1
