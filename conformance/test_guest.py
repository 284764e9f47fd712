"""A real guest takes over the lease that was discovered for it, and keeps it on another node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.rig import kernel
from conformance.rig.guest import Binding, Guest, rfc4361_client_id
from conformance.rig.process import Daemon, run, wait_for
from conformance.rig.rig import Pod, Rig, rig
from conformance.rig.second_node import second_node
from conformance.rig.servers import Offered

pytestmark = pytest.mark.timeout(180)

MAC = "0a:58:0a:00:00:99"
RFC4361 = rfc4361_client_id(MAC)
# By default dnsmasq takes the address from a hash of the MAC, lease or no lease, and "the same address" proves nothing.
SEQUENTIAL = Offered(extra=("--dhcp-sequential-ip",))
FIRST, NEXT, AFTER = "172.18.1.0", "172.18.1.1", "172.18.1.2"


@pytest.fixture(params=["linux", "ovs"])
def node(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param, offered=SEQUENTIAL) as made:
        yield made


def _add(node: Rig, pod: Pod, **changes: Any) -> str:
    """Attach a VM and return the address in the result."""
    (ip,) = node.add(pod, workload="vm", runtimeConfig={"mac": MAC}, **changes)["ips"]
    return str(ip["address"]).partition("/")[0]


def _decoy(node: Rig) -> str:
    """Have another client take the next address."""
    return str(node.add(node.pod())["ips"][0]["address"]).partition("/")[0]


@contextlib.contextmanager
def _monitor(node: Rig, pod: Pod) -> Iterator[list[str]]:
    """Yield a list that holds, afterwards, what the kernel has told of IPv4 addresses and routes in the pod."""
    seen: list[str] = []
    watch = Daemon(["ip", "-4", "-o", "monitor", "address", "route"], pod.netns, node.place / f"{pod.netns}.monitor")
    mark = ["ip", "-n", pod.netns, "address"]

    def reports(address: str) -> bool:
        run([*mark, "replace", f"{address}/32", "dev", "lo"])
        run([*mark, "delete", f"{address}/32", "dev", "lo"])
        return address in watch.output()

    try:
        wait_for("the monitor reports", lambda: reports("127.9.9.1"))
        yield seen
        # Messages of one socket come in order: all that was before the second mark has been read.
        wait_for("the monitor still reports", lambda: reports("127.9.9.2"))
        told = watch.output().splitlines()
        # ip(8) looks names up while it reports, and says so when it cannot tell a veth's peer.
        seen += [line for line in told if "127.9.9." not in line and not line.startswith("Error: Peer netns")]
    finally:
        watch.stop()


@contextlib.contextmanager
def _echo(node: Rig) -> Iterator[None]:
    server = Daemon(["busybox", "nc", "-ll", "-p", "7777", "-e", "cat"], node.physical, node.place / "echo.log")
    try:
        wait_for("the echo server listens", lambda: ":7777" in run(["ss", "-tln"], node.physical).stdout)
        yield
    finally:
        server.stop()


def test_the_monitor_would_see_an_address(node: Rig) -> None:
    pod = node.pod()
    with _monitor(node, pod) as seen:
        address = node.add(pod)["ips"][0]["address"]
    assert any(f"{pod.ifname} " in line and f"inet {address} " in line for line in seen)
    assert any(line.startswith(f"172.18.0.0/16 dev {pod.ifname} ") for line in seen)


@pytest.mark.parametrize("client_id", ["mac", "none"])
def test_the_guest_gets_the_address_of_the_result(node: Rig, client_id: str) -> None:
    pod = node.pod()
    with _monitor(node, pod) as seen:
        assert _add(node, pod) == FIRST
    assert seen == []
    assert _decoy(node) == NEXT
    with Guest(node.place, Binding.make(pod), client_id) as guest, _echo(node):
        lease = guest.lease()
        assert (lease.address, lease.prefix, lease.server) == (FIRST, 16, "172.18.0.5")
        # The interface has no address, not even now: the guest has it.
        assert kernel.addresses(pod.netns, pod.ifname) == []
        assert guest.renew().address == FIRST
        # virtio leaves the checksums of TCP to the host: ping and DHCP's raw sockets would prove nothing.
        assert guest.run("echo it passes | nc -w 5 172.18.0.5 7777 | grep 'it passes'") == 0
    assert node.server.leases() == {FIRST, NEXT}


@pytest.mark.parametrize(("configured", "address"), [(RFC4361, FIRST), (None, AFTER)], ids=["configured", "not"])
def test_a_guest_of_rfc_4361_has_to_be_configured(node: Rig, configured: str | None, address: str) -> None:
    pod = node.pod()
    assert _add(node, pod, clientId=configured) == FIRST
    assert _decoy(node) == NEXT
    with Guest(node.place, Binding.make(pod), RFC4361) as guest:
        assert guest.lease().address == address


def test_cold_migration_keeps_the_address(node: Rig) -> None:
    with second_node(node, SEQUENTIAL) as second:
        pod = node.pod()
        assert _add(node, pod) == FIRST
        with Guest(node.place, Binding.make(pod)) as guest:
            assert guest.lease().address == FIRST
        # The bridge and the tap of the stopped VM are still in the pod, and nothing tells DEL any more that it was one.
        node.delete(pod)
        assert _decoy(node) == NEXT
        there = second.pod()
        assert _add(second, there) == FIRST
        with Guest(second.place, Binding.make(there)) as guest:
            assert guest.lease().address == FIRST
            assert guest.renew().address == FIRST
        second.delete(there)
        # Not even tried, at either node: the lease is the guest's.
        assert node.server.count("RELEASE") == 0
        assert FIRST in node.server.leases()
