"""Nothing is left: after a kill at any moment, a DEL in every combination of things missing, a GC."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from conformance.rig import kernel
from conformance.rig.process import PLUGIN, run, wait_for
from conformance.rig.rig import BRIDGE, NETWORK, Pod, Rig, rig

pytestmark = pytest.mark.timeout(120)

KILLS = 60
# Somewhat longer than an ADD takes on a slow machine, so that some kills come after its end.
LONGEST_ADD = 0.12


@pytest.fixture(scope="module", params=["linux", "ovs"])
def node(request: pytest.FixtureRequest) -> Iterator[Rig]:
    with rig(request.param) as made:
        yield made


def _left(node: Rig, pod: Pod | None = None) -> list[str]:
    """Return what is left of attachments: links, ports, leases at the server, the pod's interface."""
    found = [f"link {name}" for name in kernel.links(node.node) if name.startswith("okc")]
    found += [f"port {name}" for name in (node.ovs.ports() if node.ovs is not None else [])]
    found += [f"lease {address}" for address in node.server.leases()]
    if pod is not None and pathlib.Path(pod.path).exists() and pod.ifname in kernel.links(pod.netns):
        found.append(f"interface {pod.ifname}")
    return found


def _workers(node: Rig) -> set[int]:
    """Return the processes of the rig's CNI calls that run the frozen file or a dhcp plugin."""
    found = set()
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                if str(node.bin).encode() not in (entry / "environ").read_bytes():
                    continue
                if os.readlink(entry / "exe") == str(PLUGIN) or (
                    command[0].endswith(b"/dhcp") and command[1:] == [b""]
                ):
                    found.add(int(entry.name))
    return found


def _unpacked() -> set[pathlib.Path]:
    places = [pathlib.Path(place) for place in ("/tmp", "/var/tmp", "/dev/shm", "/run")]
    return {found for place in places for found in place.glob("_MEI*")}


def _daemon_holds(node: Rig) -> int:
    """Return how many leases the daemon's log says that it took and did not give up."""
    log = node.dhcp.output()
    return log.count("lease acquired") - log.count("releasing lease") - log.count("terminating lease maintenance")


def test_killed_at_any_moment(node: Rig) -> None:
    unpacked, pod = _unpacked(), node.pod()
    for number in range(KILLS):
        one = Pod(pod.netns, f"killed{number}")
        process = node.start("ADD", one)
        time.sleep(LONGEST_ADD * number / KILLS)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=10)
        # The runtime calls DEL within 10 ms, while the daemon may still be at its exchange.
        node.delete(one)
        wait_for("workers are gone", lambda: not _workers(node), 1)
        assert _left(node, one) == [], f"killed after {LONGEST_ADD * number / KILLS * 1000:.0f} ms"
    wait_for("the daemon has given everything up", lambda: _daemon_holds(node) == 0, 3)
    assert _unpacked() == unpacked


def test_killed_and_added_again_without_a_del(node: Rig) -> None:
    pod = node.pod()
    for share in (0.2, 0.4, 0.6, 0.8):
        process = node.start("ADD", pod)
        time.sleep(LONGEST_ADD / 2 * share)
        process.kill()
        process.communicate(timeout=10)
        answer = node.call("ADD", pod)
        # Killed after its last step the attachment stands, and is not touched; before, it is made anew.
        assert answer.status == 0 or answer.json["code"] == 108, answer.stdout
        run(["ping", "-c1", "-W2", "172.18.0.5"], pod.netns)
        node.delete(pod)
        assert _left(node, pod) == []


def test_a_failed_add_leaves_nothing(node: Rig) -> None:
    pod = node.pod()
    node.server.daemon.send_signal(signal.SIGSTOP)
    try:
        answer = node.call("ADD", pod, node.config(deadlineSeconds=5))
    finally:
        node.server.daemon.send_signal(signal.SIGCONT)
    assert (answer.status, answer.json["code"]) == (1, 105)
    assert "DISCOVER" in answer.json["details"]
    assert answer.seconds < 9
    assert pod.ifname not in kernel.links(pod.netns)
    assert [name for name in _left(node) if not name.startswith("lease")] == []
    node.delete(pod)


GONE: dict[str, Callable[[Rig, Pod], object]] = {
    "nothing": lambda _node, _pod: None,
    "the interface": lambda _node, pod: run(["ip", "-n", pod.netns, "link", "delete", pod.ifname]),
    "the host side": lambda node, _pod: run(["ip", "-n", node.node, "link", "delete", _host(node)]),
    "the port": lambda node, _pod: node.ovs.vsctl("del-port", _host(node)) if node.ovs else None,
    "the netns": lambda _node, pod: run(["ip", "netns", "delete", pod.netns]),
    "the daemon": lambda node, _pod: node.dhcp.stop(),
    "the plugin": lambda node, _pod: (node.bin / "dhcp").unlink(),
    "the server": lambda node, _pod: node.server.daemon.send_signal(signal.SIGSTOP),
}


def _host(node: Rig) -> str:
    (name,) = [name for name in kernel.links(node.node) if name.startswith("okc")]
    return name


@pytest.mark.parametrize("datapath", ["linux", "ovs"])
@pytest.mark.parametrize("gone", GONE)
def test_del_succeeds_whatever_is_gone(datapath: str, gone: str) -> None:
    with rig(datapath) as node:
        pod = node.pod()
        node.add(pod)
        GONE[gone](node, pod)
        answer = node.call("DEL", pod)
        assert (answer.status, answer.stdout) == (0, "")
        assert answer.seconds < 6
        assert [name for name in _left(node, pod) if not name.startswith("lease")] == []
        # As containerd does: once more, with CNI_NETNS set and empty.
        again = node.call("DEL", pod, extra={"CNI_NETNS": ""})
        assert (again.status, again.stdout) == (0, "")
        if gone in ("nothing", "the daemon", "the plugin"):
            assert node.server.leases() == set()


@pytest.mark.parametrize("netns", ["", "/run/netns/never-there", "/dev/null", "/"])
def test_del_of_what_was_never_added(node: Rig, netns: str) -> None:
    answer = node.call("DEL", node.pod(), extra={"CNI_NETNS": netns})
    assert (answer.status, answer.stdout) == (0, "")


def test_del_of_an_older_sandbox_spares_the_newer(node: Rig) -> None:
    older, newer = node.pod(), node.pod()
    node.add(older)
    result = node.add(newer)
    node.delete(older)
    assert kernel.addresses(newer.netns, newer.ifname) == [result["ips"][0]["address"]]
    run(["ping", "-c1", "-W2", "172.18.0.5"], newer.netns)
    node.delete(newer)


def test_gc_removes_what_is_not_listed_and_nothing_else(node: Rig) -> None:
    kept, lost, other = node.pod(), node.pod(), node.pod()
    result = node.add(kept)
    node.add(lost)
    node.add(other, name="another-network")
    listed = [{"containerID": kept.container_id, "ifname": kept.ifname}]
    without = node.call("GC", None, node.config())
    assert (without.status, without.json["code"]) == (1, 7)
    assert lost.ifname in kernel.links(lost.netns)
    answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": listed}))
    assert (answer.status, answer.stdout) == (0, "")
    assert lost.ifname not in kernel.links(lost.netns)
    assert other.ifname in kernel.links(other.netns)
    assert kernel.addresses(kept.netns, kept.ifname) == [result["ips"][0]["address"]]
    assert len(node.server.leases()) == 2
    empty = node.call("GC", None, node.config(**{"cni.dev/attachments": []}))
    assert empty.status == 0, empty.stdout
    assert kept.ifname not in kernel.links(kept.netns)
    assert other.ifname in kernel.links(other.netns)
    node.delete(other, name="another-network")
    assert _left(node) == []


def test_gc_finds_what_a_lost_sandbox_left(node: Rig) -> None:
    """`ctr run --cni -d` of containerd 1.6 never calls DEL; the netns goes with the container."""
    pod = node.pod()
    node.add(pod)
    run(["ip", "netns", "delete", pod.netns])
    answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": []}))
    assert answer.status == 0, answer.stdout
    assert [name for name in _left(node) if not name.startswith("lease")] == []
    wait_for("the daemon has given it up", lambda: _daemon_holds(node) == 0, 3)


def test_a_stale_row_of_the_same_name_is_removed_before_the_plug() -> None:
    """podman comes back with the same container ID and a new netns; over the old row the new veth passes nothing."""
    with rig("ovs") as node:
        old = node.pod()
        node.add(old)
        run(["ip", "netns", "delete", old.netns])
        new = Pod(node.pod().netns, old.container_id)
        result = node.add(new)
        assert kernel.addresses(new.netns, new.ifname) == [result["ips"][0]["address"]]
        run(["ping", "-c1", "-W2", "172.18.0.5"], new.netns)
        node.delete(new)
        assert node.ovs is not None
        assert node.ovs.ports() == []


def test_strangers_are_not_touched(node: Rig) -> None:
    """A veth with another's alias, and a port with another's external_ids, survive GC."""
    run(["ip", "-n", node.node, "link", "add", "stranger", "type", "veth", "peer", "name", "strange2"])
    run(["ip", "-n", node.node, "link", "set", "stranger", "alias", f"ovn-k8s-cnix net={NETWORK} id=x if=net1"])
    if node.ovs is not None:
        ids = [f"external_ids:k8s.ovn.org/network={NETWORK}", "external_ids:sandbox=abc"]
        node.ovs.vsctl("add-port", BRIDGE, "stranger", "--", "set", "Interface", "stranger", *ids)
    answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": []}))
    assert answer.status == 0, answer.stdout
    assert "stranger" in kernel.links(node.node)
    if node.ovs is not None:
        assert "stranger" in node.ovs.vsctl("list-ports", BRIDGE)
        node.ovs.vsctl("del-port", "stranger")
    run(["ip", "-n", node.node, "link", "delete", "stranger"])


def test_del_and_gc_of_another_network_spare_this_one(node: Rig) -> None:
    """A runtime calls DEL after the ADD that was refused because this network has the interface."""
    pod = node.pod()
    result = node.add(pod)
    node.delete(pod, name="another-network")
    answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": [], "name": "another-network"}))
    assert answer.status == 0, answer.stdout
    assert kernel.addresses(pod.netns, pod.ifname) == [result["ips"][0]["address"]]
    run(["ping", "-c1", "-W2", "172.18.0.5"], pod.netns)
    node.delete(pod)
    assert _left(node, pod) == []


def test_an_empty_ovs_directory_is_no_ovs() -> None:
    """A hostPath mount makes /var/run/openvswitch on a node that has Linux bridges only."""
    with rig("linux") as node:
        node.write_node_file({"datapath": "auto", "ovsdbSocket": str(node.place / "db.sock")})
        pod = node.pod()
        node.add(pod)
        answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": []}))
        assert answer.status == 0, answer.stdout
        node.delete(pod)
        node.delete(pod)
        assert _left(node, pod) == []


@pytest.mark.parametrize("dhcp", ["1.10.0", "1.9.1"])
def test_gc_reaches_the_sandbox_of_a_long_name(dhcp: str) -> None:
    """What containerd gives at its longest, and a lease that takes as much room as one can."""
    with rig("linux", dhcp=dhcp) as node:
        made = node.pod()
        path = pathlib.Path("/run/netns/cni-01234567-89ab-cdef-0123-456789abcdef")
        path.touch()
        run(["mount", "--bind", made.path, str(path)])
        try:
            extra = {"CNI_NETNS": f"/var{path}", "CNI_IFNAME": "localnet-dhcp01"}
            answer = node.call("ADD", made, extra=extra)
            assert answer.status == 0, answer.stdout
            if dhcp == "1.10.0":
                node.restart_dhcp_daemon()
            answer = node.call("GC", None, node.config(**{"cni.dev/valid-attachments": []}))
            assert answer.status == 0, answer.stdout
            assert _left(node) == []
        finally:
            run(["umount", str(path)])
            path.unlink()
