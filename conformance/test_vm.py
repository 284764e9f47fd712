"""A KubeVirt VM: the address is discovered once and reported, the interface never has it, the guest owns the lease."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from conformance.rig import kernel
from conformance.rig.process import Daemon, run, wait_for
from conformance.rig.relay import move_server_behind_a_relay
from conformance.rig.rig import Pod, Rig, rig
from conformance.rig.servers import Offered

pytestmark = pytest.mark.timeout(90)

KUBEVIRT = {"io.kubernetes.cri.pod-annotations": {"kubevirt.io/domain": "vm1"}}


@pytest.fixture(scope="module", params=["linux", "ovs"])
def node(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param) as made:
        yield made


def _address(result: dict[str, list[dict[str, str]]]) -> str:
    return result["ips"][0]["address"].partition("/")[0]


def _told(monitor: Daemon, pod: Pod, address: str) -> None:
    """Wait until the monitor tells of an address that comes and goes for that purpose."""

    def told() -> bool:
        for verb in ("add", "delete"):
            run(["ip", "-n", pod.netns, "address", verb, f"{address}/32", "dev", "lo"])
        return f"{address}/" in monitor.output()

    wait_for("the monitor listens", told)


def test_no_address_at_any_time(node: Rig) -> None:
    pod = node.pod()
    monitor = Daemon(["ip", "-n", pod.netns, "monitor", "address", "route"], None, node.place / "monitor.txt")
    try:
        _told(monitor, pod, "127.0.0.9")
        result = node.add(pod, workload="vm")
        _told(monitor, pod, "127.0.0.10")
    finally:
        monitor.stop()
    told = [line for line in monitor.output().splitlines() if "inet " in line or "172.18." in line]
    assert [line for line in told if "127.0.0." not in line] == []
    assert kernel.addresses(pod.netns, pod.ifname) == []
    assert _address(result) in node.server.leases()
    assert result["ips"][0]["gateway"] == "172.18.0.5"
    assert result["routes"] == [{"dst": "0.0.0.0/0", "gw": "172.18.0.5"}]
    assert result["dns"] == {"nameservers": ["172.18.0.5"]}
    assert kernel.routes(pod.netns) == set()
    checked = node.call("CHECK", pod, node.config(workload="vm", prevResult=result))
    assert checked.status == 0, checked.stdout
    node.delete(pod, workload="vm")


def test_del_sends_no_release_whatever_is_known(node: Rig) -> None:
    """The runtime says no more that it was a VM: what was written down at ADD counts."""
    pod = node.pod()
    result = node.add(pod, workload="vm")
    released = node.server.releases()
    node.delete(pod)
    node.delete(pod)
    assert _address(result) in node.server.leases()
    assert node.server.releases() == released
    collected = node.pod()
    result = node.add(collected, workload="vm")
    answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": []}))
    assert answer.status == 0, answer.stdout
    assert collected.ifname not in kernel.links(collected.netns)
    assert _address(result) in node.server.leases()
    assert node.server.releases() == released


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"runtimeConfig": KUBEVIRT}, {}),
        ({"runtimeConfig": {"workload": "vm"}}, {}),
        ({"args": {"cni": {"workload": "vm"}}}, {}),
        ({}, {"CNI_ARGS": "IgnoreUnknown=1;WORKLOAD=vm"}),
    ],
)
def test_hints_of_the_runtime(node: Rig, changes: dict[str, object], extra: dict[str, str]) -> None:
    pod = node.pod()
    answer = node.call("ADD", pod, node.config(**changes), extra)
    assert answer.status == 0, answer.stdout
    assert kernel.addresses(pod.netns, pod.ifname) == []
    node.delete(pod)


def test_the_config_outranks_a_hint(node: Rig) -> None:
    pod = node.pod()
    node.add(pod, workload="pod", runtimeConfig=KUBEVIRT)
    assert len(kernel.addresses(pod.netns, pod.ifname)) == 1
    node.delete(pod)


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (None, "01:0a:58:0a:00:00:71"),
        ("mac", "01:0a:58:0a:00:00:72"),
        ("none", "*"),
        ("hex:ff:00:00:00:01:00:03:00:01", "ff:00:00:00:01:00:03:00:01"),
    ],
)
def test_the_client_identifier(node: Rig, wanted: str | None, sent: str) -> None:
    pod = node.pod()
    # A MAC for each: dnsmasq remembers an identifier that a client does not send any more.
    mac = sent.removeprefix("01:") if sent.startswith("01:") else f"0a:58:0a:00:01:{len(sent):02x}"
    result = node.add(pod, workload="vm", clientId=wanted, runtimeConfig={"mac": mac})
    lines = (node.place / "dnsmasq.leases").read_text().splitlines()
    (lease,) = [line.split() for line in lines if line.split()[2] == _address(result)]
    assert lease[4] == sent
    node.delete(pod, workload="vm")


@pytest.mark.parametrize("wanted", ["mack", "hex:", "hex:ff", "hex:zz11", 7])
def test_a_client_identifier_that_is_none(node: Rig, wanted: object) -> None:
    answer = node.call("ADD", node.pod(), node.config(workload="vm", clientId=wanted))
    assert (answer.status, answer.json["code"]) == (1, 7)
    assert "clientId" in answer.json["details"]


def test_through_a_relay(node: Rig) -> None:
    with rig(node.datapath) as far:
        server = move_server_behind_a_relay(far)
        result = far.add(far.pod(), workload="vm")
        assert server.leases() == {_address(result)}


@pytest.mark.parametrize("server", ["dnsmasq", "isc", "kea", "udhcpd"])
def test_every_server(server: str) -> None:
    with rig("linux", server) as node:
        pod = node.pod()
        result = node.add(pod, workload="vm")
        assert node.server.leases() == {_address(result)}
        node.delete(pod)
        assert node.server.leases() == {_address(result)}
        again = node.add(Pod(pod.netns, "again"), workload="vm", runtimeConfig={"mac": result["interfaces"][1]["mac"]})
        assert _address(again) == _address(result)


@pytest.mark.parametrize(("lost", "seconds"), [(1, 0.6), (3, 2.5)])
def test_lost_packets_cost_little(node: Rig, lost: int, seconds: float) -> None:
    """Nobody listens to the first DISCOVERs; the times are the issue's."""
    pod = node.pod()
    capture = Daemon(["tcpdump", "-l", "-ni", node.wire, "udp dst port 67"], node.physical, node.place / "lost.txt")
    wait_for("tcpdump listens", lambda: "listening on" in capture.output())
    node.server.daemon.stop()
    begun = time.monotonic()
    process = node.start("ADD", pod, node.config(workload="vm"))
    try:
        wait_for("they are lost", lambda: capture.output().count("BOOTP/DHCP, Request") == lost, seconds)
    finally:
        node.server.daemon.start()
        capture.stop()
    stdout, _ = process.communicate(timeout=10)
    elapsed = time.monotonic() - begun
    assert process.returncode == 0, stdout
    assert elapsed < seconds
    node.delete(pod)


def test_a_silent_server_is_accounted_for(node: Rig) -> None:
    pod = node.pod()
    node.server.daemon.send_signal(signal.SIGSTOP)
    try:
        answer = node.call("ADD", pod, node.config(workload="vm", deadlineSeconds=6))
    finally:
        node.server.daemon.send_signal(signal.SIGCONT)
    assert (answer.status, answer.json["code"]) == (1, 105)
    assert "DISCOVER" in answer.json["details"]
    assert "came back: nothing" in answer.json["details"]
    assert answer.seconds < 7
    assert pod.ifname not in kernel.links(pod.netns)


def test_a_lease_without_a_mask_is_refused_and_given_back() -> None:
    with rig("linux", offered=Offered(extra=("--dhcp-option=option:netmask",))) as node:
        answer = node.call("ADD", node.pod(), node.config(workload="vm"))
        assert (answer.status, answer.json["code"]) == (1, 106), answer.stdout
        assert "option 1" in answer.json["msg"]
        wait_for("the lease is gone", lambda: node.server.leases() == set(), 3)


def test_no_dhcp_plugin_is_needed(node: Rig) -> None:
    (node.bin / "dhcp").unlink()
    node.dhcp.stop()
    try:
        pod = node.pod()
        node.add(pod, workload="vm")
        assert node.call("STATUS", None, node.config(workload="vm")).status == 0
        node.delete(pod, workload="vm")
    finally:
        (node.place / "dhcp.sock").unlink(missing_ok=True)
        node.start_dhcp_daemon("1.10.0")
