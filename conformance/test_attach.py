"""What an ADD makes of a pod's network: interface, path, address, routes, DNS, and what it writes down."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from pyroute2 import netns as pyroute2_netns

from conformance.rig import kernel
from conformance.rig.process import Daemon, run, wait_for
from conformance.rig.rig import BRIDGE, NETWORK, Pod, Rig, rig
from conformance.rig.servers import Offered

pytestmark = pytest.mark.timeout(90)

MAC = "0a:58:0a:12:34:56"
K8S = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_UID=8f4e-uid;K8S_POD_INFRA_CONTAINER_ID=x"


@pytest.fixture(scope="module", params=["linux", "ovs"])
def node(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param) as made:
        yield made


def _host(result: dict[str, list[dict[str, str]]]) -> str:
    return result["interfaces"][0]["name"]


def _send_over_tcp(pod: Pod, server: str, payload: bytes) -> bytes:
    """Connect from inside the pod, send, and return what comes back."""
    got: list[bytes] = []

    def client() -> None:
        pyroute2_netns.setns(pod.netns)
        with socket.create_connection((server, 7777), 5) as connection:
            connection.sendall(payload)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                got.append(piece)

    # A thread of its own: the namespace is a thread's.
    thread = threading.Thread(target=client)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return b"".join(got)


def test_tcp_passes_and_not_only_ping(node: Rig) -> None:
    echo = Daemon(["busybox", "nc", "-ll", "-p", "7777", "-e", "cat"], node.physical, node.place / "echo.log")
    wait_for("the echo server listens", lambda: ":7777" in run(["ss", "-tln"], node.physical).stdout)
    pod = node.pod()
    try:
        node.add(pod)
        payload = bytes(range(256)) * 400
        assert _send_over_tcp(pod, "172.18.0.5", payload) == payload
    finally:
        echo.stop()
        node.delete(pod)


def test_what_is_written_down(node: Rig) -> None:
    pod = node.pod()
    answer = node.call("ADD", pod, extra={"CNI_ARGS": K8S})
    assert answer.status == 0, answer.stdout
    host = _host(answer.json)
    alias = kernel.links(node.node)[host].alias
    assert alias.startswith("ovn-k8s-cni ")
    assert f"id={pod.container_id}" in alias
    assert len(alias) <= 255
    address = answer.json["ips"][0]["address"]
    if node.ovs is None:
        assert f"ip={address}" in alias
        assert "srv=172.18.0.5" in alias
    else:
        ids = dict(
            pair.split("=", 1)
            for pair in node.ovs.vsctl("--bare", "--columns=external_ids", "find", "Interface", f"name={host}").split()
            if "=" in pair
        )
        assert ids["attached_mac"].replace("\\", "") == answer.json["interfaces"][1]["mac"]
        assert ids["sandbox"] == pod.container_id
        assert ids["pod-if-name"] == pod.ifname
        assert ids["iface-id"] == "test.localnet.dhcp.ipam.localnet.dhcp.ipam_shop_web-0"
        assert ids["iface-id-ver"] == "8f4e-uid"
        assert ids["k8s.ovn.org/network"] == NETWORK
        assert ids["k8s.ovn.org/nad"] == "test-localnet-dhcp-ipam/localnet-dhcp-ipam"
        assert node.ovs.vsctl("get", "Port", host, "other_config:transient") == '"true"'
        assert f"ip={address}" in node.ovs.vsctl("get", "Interface", host, "external_ids:ovn-k8s-cni/lease")
    node.delete(pod)


@pytest.mark.parametrize(
    ("changes", "extra"),
    [
        ({"runtimeConfig": {"mac": MAC.upper()}, "args": {"cni": {"mac": "0a:00:00:00:00:99"}}}, {}),
        ({"args": {"cni": {"mac": MAC}}}, {"CNI_ARGS": "MAC=0a:00:00:00:00:99"}),
        ({"runtimeConfig": {"mac": "", "portMappings": None}}, {"CNI_ARGS": f"IP=;MAC={MAC}"}),
    ],
)
def test_the_mac_that_was_asked_for(node: Rig, changes: dict[str, object], extra: dict[str, str]) -> None:
    pod = node.pod()
    answer = node.call("ADD", pod, node.config(**changes), extra)
    assert answer.status == 0, answer.stdout
    assert answer.json["interfaces"][1]["mac"] == MAC
    assert kernel.links(pod.netns)[pod.ifname].mac == MAC
    node.delete(pod)


def test_mtu_of_the_config_and_of_the_physical_network(node: Rig) -> None:
    pod = node.pod()
    assert node.add(pod, mtu=1400)["interfaces"][1]["mtu"] == 1400
    assert kernel.links(pod.netns)[pod.ifname].mtu == 1400
    node.delete(pod)
    if node.ovs is None:
        run(["ip", "-n", node.node, "link", "set", BRIDGE, "mtu", "1300"])
    else:
        node.ovs.vsctl("set", "Interface", BRIDGE, "mtu_request=1300")
        wait_for("the bridge has its MTU", lambda: kernel.links(node.node)[BRIDGE].mtu == 1300)
    result = node.add(pod)
    assert [interface["mtu"] for interface in result["interfaces"]] == [1300, 1300]
    node.delete(pod)


def test_without_ipam_there_is_an_interface_and_no_address(node: Rig) -> None:
    pod = node.pod()
    before = node.server.count("DISCOVER")
    result = node.add(pod, ipam=None)
    assert "ips" not in result
    assert len(result["interfaces"]) == 2
    assert kernel.links(pod.netns)[pod.ifname].operstate == "UP"
    assert kernel.addresses(pod.netns, pod.ifname) == []
    checked = node.call("CHECK", pod, node.config(ipam=None, prevResult=result))
    assert checked.status == 0, checked.stdout
    node.delete(pod, ipam=None)
    assert pod.ifname not in kernel.links(pod.netns)
    assert node.server.count("DISCOVER") == before


def test_the_hosts_own_end_speaks_no_ipv6(node: Rig) -> None:
    pod = node.pod()
    host = _host(node.add(pod, ipam=None))
    shown = run(["ip", "-n", node.node, "-6", "address", "show", "dev", host]).stdout
    assert "inet6" not in shown
    node.delete(pod, ipam=None)


def test_a_second_add_is_refused_and_takes_nothing_away(node: Rig) -> None:
    pod = node.pod()
    result = node.add(pod)
    again = node.call("ADD", pod)
    assert (again.status, again.json["code"]) == (1, 108)
    other = node.call("ADD", Pod(pod.netns, "another"))
    assert (other.status, other.json["code"]) == (1, 108)
    assert kernel.addresses(pod.netns, pod.ifname) == [result["ips"][0]["address"]]
    run(["ping", "-c1", "-W2", "172.18.0.5"], pod.netns)
    checked = node.call("CHECK", pod, node.config(prevResult=result))
    assert checked.status == 0, checked.stdout
    node.delete(pod)
    assert node.server.leases() == set()


def test_neighbours_are_told_of_the_address(node: Rig) -> None:
    capture = Daemon(["tcpdump", "-l", "-nei", node.wire, "arp"], node.physical, node.place / "arp.txt")
    wait_for("tcpdump listens", lambda: "listening on" in capture.output())
    pod = node.pod()
    try:
        result = node.add(pod)
        address = result["ips"][0]["address"].partition("/")[0]
        wait_for("an announcement", lambda: f"who-has {address} tell {address}" in capture.output(), 3)
        assert result["interfaces"][1]["mac"] in capture.output()
    finally:
        capture.stop()
        node.delete(pod)


def test_two_networks_of_one_pod(node: Rig) -> None:
    pod = node.pod()
    second = Pod(pod.netns, pod.container_id, "net2")
    first_result, second_result = node.add(pod), node.add(second)
    assert _host(first_result) != _host(second_result)
    assert len(node.server.leases()) == 2
    node.delete(pod)
    assert kernel.addresses(pod.netns, "net2") == [second_result["ips"][0]["address"]]
    node.delete(second)
    assert node.server.leases() == set()


@pytest.mark.parametrize("datapath", ["linux", "ovs"])
class TestRoutes:
    def test_routes_in_order_default_dropped(self, datapath: str) -> None:
        # A router off the subnet and its on-link route behind it: an order that the kernel would refuse.
        classless = (("10.50.0.0/16", "192.168.77.1"), ("192.168.77.0/24", "0.0.0.0"), ("0.0.0.0/0", "172.18.0.5"))
        with rig(datapath, offered=Offered(classless=classless)) as node:
            pod = node.pod()
            result = node.add(pod)
            found = kernel.routes(pod.netns)
            assert ("10.50.0.0/16", "192.168.77.1") in found
            assert ("192.168.77.0/24", "") in found
            assert not any(destination == "0.0.0.0/0" for destination, _ in found)
            assert {(route["dst"], route.get("gw", "")) for route in result["routes"]} == {
                ("10.50.0.0/16", "192.168.77.1"),
                ("192.168.77.0/24", ""),
            }
            checked = node.call("CHECK", pod, node.config(prevResult=result))
            assert checked.status == 0, checked.stdout

    def test_default_route_when_asked_for(self, datapath: str) -> None:
        with rig(datapath) as node:
            pod = node.pod()
            result = node.add(pod, defaultRoute=True)
            assert ("0.0.0.0/0", "172.18.0.5") in kernel.routes(pod.netns)
            assert result["routes"] == [{"dst": "0.0.0.0/0", "gw": "172.18.0.5"}]

    def test_a_default_route_that_is_there_stays_first(self, datapath: str) -> None:
        with rig(
            datapath, offered=Offered(classless=(("0.0.0.0/0", "172.18.0.5"), ("128.0.0.0/1", "172.18.0.5")))
        ) as node:
            pod = node.pod()
            run(["ip", "-n", pod.netns, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0p"])
            run(["ip", "-n", pod.netns, "address", "add", "10.1.1.2/24", "dev", "eth0"])
            run(["ip", "-n", pod.netns, "link", "set", "eth0", "up"])
            run(["ip", "-n", pod.netns, "route", "add", "default", "via", "10.1.1.1"])
            result = node.add(pod, defaultRoute=True)
            chosen = run(["ip", "-n", pod.netns, "-json", "route", "get", "203.0.113.9"]).stdout
            assert json.loads(chosen)[0]["dev"] == "eth0"
            assert [route["dst"] for route in result["routes"]] == ["0.0.0.0/0"]

    def test_dns_from_the_exchange_and_from_the_config(self, datapath: str) -> None:
        offered = Offered(dns=("172.18.0.53", "172.18.0.54"), domain="corp.example", search=("a.example", "b.example"))
        with rig(datapath, offered=offered) as node:
            pod = node.pod()
            assert node.add(pod)["dns"] == {
                "nameservers": ["172.18.0.53", "172.18.0.54"],
                "domain": "corp.example",
                "search": ["a.example", "b.example"],
            }
            node.delete(pod)
            assert node.add(pod, dns={"nameservers": ["9.9.9.9"]})["dns"] == {"nameservers": ["9.9.9.9"]}


def test_vlan_is_an_access_port_on_ovs() -> None:
    with rig("ovs", vlan=100) as node:
        pod = node.pod()
        result = node.add(pod, vlanID=100)
        assert node.ovs is not None
        assert node.ovs.vsctl("get", "Port", _host(result), "tag") == "100"
        run(["ping", "-c1", "-W2", "172.18.0.5"], pod.netns)
        checked = node.call("CHECK", pod, node.config(vlanID=100, prevResult=result))
        assert checked.status == 0, checked.stdout
        node.delete(pod, vlanID=100)
        stray = node.call("ADD", pod, node.config(vlanID=101, deadlineSeconds=5))
        assert (stray.status, stray.json["code"]) == (1, 105)


def test_vlan_on_a_bridge_without_filtering_is_refused() -> None:
    with rig("linux") as node:
        answer = node.call("ADD", node.pod(), node.config(vlanID=100))
        assert (answer.status, answer.json["code"]) == (1, 7)
        assert "vlan_filtering 1" in answer.json["details"]


def test_userspace_tso_leaves_the_offload_on() -> None:
    with rig("ovs", tso=True) as node:
        pod = node.pod()
        node.add(pod)
        features = run(["ethtool", "-k", pod.ifname], pod.netns).stdout
        assert "tx-checksumming: on" in features
        node.delete(pod)
        assert node.server.leases() == set()


def test_a_bridge_with_stp_is_waited_for() -> None:
    """The port listens and learns for two forward delays; whatever is sent before is lost."""
    with rig("linux") as node:
        run(["ip", "-n", node.node, "link", "set", BRIDGE, "type", "bridge", "forward_delay", "200", "stp_state", "1"])
        wait_for(
            "the uplink forwards again",
            lambda: "state forwarding" in run(["bridge", "-n", node.node, "link", "show", "dev", "uplink"]).stdout,
            20,
        )
        answer = node.call("ADD", node.pod())
        assert answer.status == 0, answer.stdout
        assert answer.seconds > 3.5
        assert node.server.count("DISCOVER") == 1
