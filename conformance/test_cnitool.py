"""The reference runtime calls every verb of the frozen file, in the newest version and in an old one."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import pytest

from conformance.rig import kernel
from conformance.rig.cnitool import Cnitool
from conformance.rig.process import run
from conformance.rig.rig import BRIDGE, Rig, rig

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["linux", "ovs"])
def node(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param) as made:
        yield made


@pytest.mark.parametrize("version", ["1.1.0", "0.4.0"])
def test_add_check_del(node: Rig, version: str) -> None:
    pod, cnitool = node.pod(), Cnitool(node, version)
    added = cnitool.call("add", pod)
    assert added.status == 0, added
    assert added.json["cniVersion"] == version
    (address,) = kernel.addresses(pod.netns, pod.ifname)
    assert [ip["address"] for ip in added.json["ips"]] == [address]
    assert str(ipaddress.ip_interface(address).ip) in node.server.leases()
    host, inside = added.json["interfaces"]
    assert kernel.links(pod.netns)[pod.ifname].mac == inside["mac"]
    assert inside["sandbox"] == pod.path
    assert host["name"] in kernel.links(node.node)
    assert ("version" in added.json["ips"][0]) == (version == "0.4.0")
    assert ("mtu" in inside) == (version == "1.1.0")
    run(["ping", "-c1", "-W2", "172.18.0.5"], pod.netns)

    checked = cnitool.call("check", pod)
    assert checked.status == 0, checked
    deleted = cnitool.call("del", pod)
    assert deleted.status == 0, deleted
    assert pod.ifname not in kernel.links(pod.netns)
    assert host["name"] not in kernel.links(node.node)
    assert node.server.leases() == set()


def test_check_sees_that_the_address_is_gone(node: Rig) -> None:
    pod, cnitool = node.pod(), Cnitool(node, "1.1.0")
    assert cnitool.call("add", pod).status == 0
    run(["ip", "-n", pod.netns, "address", "flush", "dev", pod.ifname])
    checked = cnitool.call("check", pod)
    assert checked.status != 0
    assert "lacks the address" in checked.stdout + checked.stderr
    assert cnitool.call("del", pod).status == 0


def test_status_and_gc(node: Rig) -> None:
    pod, cnitool = node.pod(), Cnitool(node, "1.1.0")
    assert cnitool.call("status", pod).status == 0
    assert cnitool.call("add", pod).status == 0
    forgotten = node.pod()
    node.add(forgotten)
    # cnitool 1.3.1 deletes what libcni has cached, then sends no list at all: nothing may be removed on a guess.
    without_list = cnitool.call("gc", pod)
    assert without_list.status != 0
    assert "brings no list of valid attachments" in without_list.stderr
    assert pod.ifname not in kernel.links(pod.netns)
    assert forgotten.ifname in kernel.links(forgotten.netns)

    listing_none = Cnitool(node, "1.1.0", {"cni.dev/valid-attachments": []})
    collected = listing_none.call("gc", pod)
    assert collected.status == 0, collected
    assert forgotten.ifname not in kernel.links(forgotten.netns)
    assert node.server.leases() == set()
    assert {name for name in kernel.links(node.node) if name.startswith("okc")} == set()


def test_version(node: Rig) -> None:
    answer = node.call("VERSION", None, {"cniVersion": "1.1.0"})
    assert answer.status == 0
    assert answer.json["supportedVersions"] == ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


def test_status_names_what_is_missing(node: Rig) -> None:
    answer = node.call("STATUS", None, node.config(physicalNetworkName="nowhere"))
    assert answer.status == 1
    assert answer.json["code"] == 50
    assert "nowhere" in answer.json["details"]
    assert f"physnet:{BRIDGE}" in answer.json["details"]
