"""Leases are taken from real servers and given back to them, whatever release of the dhcp plugin the node has."""

from __future__ import annotations

import pytest

from conformance.rig import kernel
from conformance.rig.process import run
from conformance.rig.rig import Rig, rig
from conformance.rig.servers import Offered

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
def test_an_off_link_server_gets_its_release_through_the_router() -> None:
    """The server identifier lies beyond the router, as behind a relay; the daemon's RELEASE has no route there."""
    far = "10.99.0.1"
    extra = (f"--dhcp-option-force=option:server-identifier,{far}",)
    with rig("linux", offered=Offered(extra=extra)) as node:
        run(["ip", "-n", node.physical, "address", "add", f"{far}/32", "dev", "lo"])
        run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], node.physical)
        pod = node.pod()
        node.add(pod)
        assert f"srv={far}" in kernel.links(node.node)[_host_name(node)].alias
        capture = _Capture(node)
        node.delete(pod)
        assert far in capture.releases()


def _host_name(node: Rig) -> str:
    (name,) = [name for name in kernel.links(node.node) if name.startswith("okc")]
    return name


class _Capture:
    """tcpdump on the physical network's wire."""

    def __init__(self, node: Rig) -> None:
        from conformance.rig.process import Daemon, wait_for

        self._file = node.place / "release.txt"
        words = ["tcpdump", "-l", "-nvi", node.wire, "udp", "dst", "port", "67"]
        self._tcpdump = Daemon(words, node.physical, self._file)
        wait_for("tcpdump listens", lambda: "listening on" in self._tcpdump.output())

    def releases(self) -> str:
        """Return what was captured until a RELEASE was."""
        from conformance.rig.process import wait_for

        try:
            wait_for("a RELEASE passes", lambda: "Release" in self._tcpdump.output(), 3)
        finally:
            self._tcpdump.stop()
        return self._tcpdump.output()
