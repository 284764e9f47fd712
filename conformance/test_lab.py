"""The rig on its own, with upstream's plugins in place of ours: what it shows of ours is not of its own making."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.rig import kernel
from conformance.rig.process import ROOT, TOOLS, run, wait_for
from conformance.rig.rig import BRIDGE, Rig, rig

pytestmark = pytest.mark.timeout(90)

SERVER = "172.18.0.5"

# A bridge port cannot be a macvlan's master too; the bridge itself can.
PEERS: dict[str, dict[str, Any]] = {
    "macvlan": {"type": "macvlan", "master": BRIDGE, "mode": "bridge"},
    "bridge": {"type": "bridge", "bridge": BRIDGE},
}


def _config(node: Rig, peer: str) -> dict[str, Any]:
    ipam = {"type": "dhcp", "daemonSocketPath": str(node.dhcp_socket)}
    return {"cniVersion": "1.0.0", "name": peer, **PEERS[peer], "ipam": ipam}


@pytest.mark.parametrize("server", ["dnsmasq", "isc", "kea"])
def test_every_server_serves_upstreams_plugins(server: str) -> None:
    with rig("linux", server) as node:
        for peer in PEERS:
            pod, config, plugin = node.pod(), _config(node, peer), TOOLS / "bin" / peer
            added = node.call("ADD", pod, config, plugin=plugin)
            assert added.status == 0, added
            (address,) = kernel.addresses(pod.netns, pod.ifname)
            assert [ip["address"] for ip in added.json["ips"]] == [address]
            assert str(ipaddress.ip_interface(address).ip) in node.server.leases()
            run(["ping", "-c1", "-W2", SERVER], pod.netns)
            assert node.call("DEL", pod, config, plugin=plugin).status == 0


@pytest.mark.parametrize("server", ["dnsmasq", "isc", "kea"])
def test_each_release_is_counted_once(server: str) -> None:
    with rig("linux", server) as node:
        for released in (1, 2, 3):
            pod, config, plugin = node.pod(), _config(node, "macvlan"), TOOLS / "bin/macvlan"
            assert node.call("ADD", pod, config, plugin=plugin).status == 0
            assert len(node.server.leases()) == 1
            assert node.call("DEL", pod, config, plugin=plugin).status == 0
            wait_for("the server has dropped the lease", lambda: not node.server.leases(), 2)
            assert node.server.releases() == node.server.count("RELEASE") == released


@pytest.mark.parametrize(("version", "accepted"), [("1.9.1", 0), ("1.1.1", 1)])
def test_what_dnsmasq_makes_of_an_older_daemons_release(version: str, accepted: int) -> None:
    """1.9.1 sends it from 0.0.0.0, which dnsmasq drops; 1.1.1 has another client, slow (3 s an ADD) and correct."""
    with rig("linux", dhcp=version) as node:
        pod, config, plugin = node.pod(), _config(node, "macvlan"), TOOLS / "bin/macvlan"
        assert node.call("ADD", pod, config, plugin=plugin).status == 0
        assert len(node.server.leases()) == 1
        assert node.call("DEL", pod, config, plugin=plugin).status == 0
        time.sleep(0.2)  # dnsmasq has had the packet by now, if there was one
        assert node.server.releases() == accepted
        assert len(node.server.leases()) == 1 - accepted


def test_a_port_of_ovs_reaches_the_physical_network() -> None:
    with rig("ovs") as node:
        assert node.ovs is not None
        pod = node.pod()
        run(["ip", "-n", node.node, "link", "add", "host0", "type", "veth", "peer", pod.ifname, "netns", pod.netns])
        run(["ip", "-n", node.node, "link", "set", "host0", "up"])
        run(["ip", "-n", pod.netns, "link", "set", pod.ifname, "up"])
        run(["ip", "-n", pod.netns, "address", "add", "172.18.0.77/16", "dev", pod.ifname])
        node.ovs.vsctl("add-port", BRIDGE, "host0")
        run(["ping", "-c1", "-W5", SERVER], pod.netns)


def _processes_naming(text: str) -> list[int]:
    """Return the processes whose command line or environment contains `text`."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            content = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if text.encode() in content:
            found.append(int(process.name))
    return found


def _fail_inside(datapath: str, seen: list[Rig]) -> None:
    with rig(datapath) as node:
        node.pod()
        assert len(_processes_naming(str(node.place))) == (4 if datapath == "ovs" else 2)
        seen.append(node)
        raise ZeroDivisionError


@pytest.mark.parametrize("datapath", ["linux", "ovs"])
def test_nothing_is_left_when_the_body_fails(datapath: str) -> None:
    seen: list[Rig] = []
    with pytest.raises(ZeroDivisionError):
        _fail_inside(datapath, seen)
    (node,) = seen
    assert _processes_naming(str(node.place)) == []
    assert not node.place.exists()
    assert list(pathlib.Path("/run/netns").glob(f"{node.name}-*")) == []


_RUN = """
import sys, time
from conformance.rig.rig import rig
with rig(sys.argv[1]) as node:
    print(node.place, node.name, flush=True)
    time.sleep(60)
"""


@contextlib.contextmanager
def _running(datapath: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run a rig in a process of its own, the leader of a group: a terminal's ^C reaches the whole group.

    What the process leaves is removed in the end, so that a test that finds some leaves none itself.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, datapath],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    )
    assert process.stdout is not None
    place, name = process.stdout.readline().split()
    try:
        with process:
            yield process, place, name
            process.kill()
    finally:
        for pid in _processes_naming(place):
            os.kill(pid, signal.SIGKILL)
        for netns in pathlib.Path("/run/netns").glob(f"{name}-*"):
            run(["ip", "netns", "delete", netns.name])
        shutil.rmtree(place, ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("datapath", ["linux", "ovs"])
def test_nothing_is_left_after_an_interrupt(datapath: str, number: signal.Signals) -> None:
    with _running(datapath) as (process, place, name):
        os.killpg(process.pid, number)
        process.wait(15)
        assert _processes_naming(place) == []
        assert not pathlib.Path(place).exists()
        assert list(pathlib.Path("/run/netns").glob(f"{name}-*")) == []


def test_a_killed_run_leaves_no_process() -> None:
    with _running("ovs") as (process, place, _):
        process.kill()
        process.wait()
        wait_for("the daemons have died with it", lambda: _processes_naming(place) == [], 2)
