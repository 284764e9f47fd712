"""How fast, how lossless, how small: this plugin beside its Go peers, all in one run (`make bench`).

Every peer has a node, a physical network, a dnsmasq and a dhcp daemon of its own. One at a time, the peers take turns,
so that a noisy machine is noisy for all of them; absolute figures drift with the machine, ratios less.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conformance.rig.process import PLUGIN, ROOT, TOOLS, environment, run, wait_for
from conformance.rig.rig import BRIDGE, NETWORK, UPLINK, Pod, Rig, rig

LEAN, HELLO = ROOT / "build/out/lean", ROOT / "build/out/hello"
AT_ONCE = 16
PORTS = 500


@dataclasses.dataclass(frozen=True)
class Peer:
    """One row of the table: a plugin on a rig of its own."""

    name: str
    node: Rig
    plugin: pathlib.Path
    config: dict[str, Any]


def _ipam(node: Rig) -> dict[str, Any]:
    return {"type": "dhcp", "daemonSocketPath": str(node.dhcp_socket)}


def _peers(stack: contextlib.ExitStack) -> list[Peer]:
    linux = stack.enter_context(rig("linux"))
    ovs = stack.enter_context(rig("ovs"))
    bridge = stack.enter_context(rig("linux"))
    macvlan = stack.enter_context(rig("linux"))
    run(["ip", "-n", macvlan.node, "link", "set", UPLINK, "nomaster"])
    for node in (linux, ovs):
        node.node_file.write_text(json.dumps(json.loads(node.node_file.read_text()) | {"logLevel": "error"}))
    common = {"cniVersion": "1.1.0", "name": NETWORK}
    return [
        Peer("this, linux", linux, PLUGIN, linux.config()),
        Peer("this, ovs", ovs, PLUGIN, ovs.config()),
        Peer(
            "macvlan + dhcp",
            macvlan,
            TOOLS / "bin/macvlan",
            common | {"type": "macvlan", "master": UPLINK, "mode": "bridge", "ipam": _ipam(macvlan)},
        ),
        Peer(
            "bridge + dhcp",
            bridge,
            TOOLS / "bin/bridge",
            common | {"type": "bridge", "bridge": BRIDGE, "ipam": _ipam(bridge)},
        ),
    ]


def _timed(peer: Peer, verb: str, pod: Pod) -> float:
    """Call and return milliseconds; raise RuntimeError when it fails."""
    answer = peer.node.call(verb, pod, peer.config, plugin=peer.plugin)
    if answer.status:
        raise RuntimeError(f"{peer.name} {verb}: {answer.stdout}{answer.stderr}")
    return answer.seconds * 1000


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _row(name: str, adds: list[float], deletes: list[float], rest: str) -> str:
    points = [0.5, 0.9, 0.99, 1.0]
    numbers = [f"{_percentile(adds, p):8.0f}" for p in points] + [f"{_percentile(deletes, p):8.0f}" for p in points]
    return f"{name:16}" + "".join(numbers) + rest


HEAD = f"{'':16}" + "".join(f"{f'{verb} {p}':>8}" for verb in ("ADD", "DEL") for p in ("p50", "p90", "p99", "max"))


def _lost(peer: Peer, before: int, adds: int) -> int:
    """Return how many DISCOVERs more than one an ADD reached the server's log: those answered too late or repeated."""
    return peer.node.server.count("DISCOVER") - before - adds


def one_at_a_time(peers: list[Peer], count: int) -> dict[str, list[float]]:
    """Print the table for single calls, the peers taking turns; return ADD times by peer."""
    adds: dict[str, list[float]] = {peer.name: [] for peer in peers}
    deletes: dict[str, list[float]] = {peer.name: [] for peer in peers}
    pods = {peer.name: peer.node.pod() for peer in peers}
    for number in range(count):
        for peer in peers:
            pod = Pod(pods[peer.name].netns, f"one{number:04d}")
            adds[peer.name].append(_timed(peer, "ADD", pod))
            deletes[peer.name].append(_timed(peer, "DEL", pod))
    print(f"\nOne at a time, {count} attachments, ms\n{HEAD} {'a second':>9} {'slow':>5} {'leases left':>12}")
    for peer in peers:
        slow = sum(value > 5000 for value in adds[peer.name])
        pace = 1000 / statistics.mean(adds[peer.name])
        rest = f" {pace:9.1f} {slow:5d} {len(peer.node.server.leases()):12d}"
        print(_row(peer.name, adds[peer.name], deletes[peer.name], rest))
    return adds


def many_at_once(peers: list[Peer], count: int) -> dict[str, float]:
    """Print the table for calls 16 at once, one peer after the other; return ADDs per second by peer."""
    print(f"\n{AT_ONCE} at once, {count} attachments, ms\n{HEAD} {'a second':>9} {'slow':>5} {'leases left':>12}")
    pace = {}
    for peer in peers:
        pods = [peer.node.pod() for _ in range(count)]
        before = len(peer.node.server.leases())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            begun = time.monotonic()
            adds = list(pool.map(lambda pod, peer=peer: _timed(peer, "ADD", pod), pods))
            pace[peer.name] = count / (time.monotonic() - begun)
            deletes = list(pool.map(lambda pod, peer=peer: _timed(peer, "DEL", pod), pods))
        slow = sum(value > 5000 for value in adds)
        left = len(peer.node.server.leases()) - before
        print(_row(peer.name, adds, deletes, f" {pace[peer.name]:9.1f} {slow:5d} {left:12d}"))
    return pace


def guests(peer: Peer, count: int) -> tuple[float, float]:
    """Print ADD of a VM beside a Go client's bare exchange on the same bridge; return both medians in ms."""
    guest = dataclasses.replace(peer, config=peer.config | {"workload": "vm"})
    bare = dataclasses.replace(peer, config={key: value for key, value in peer.config.items() if key != "ipam"})
    pod, other = peer.node.pod(), peer.node.pod()
    _timed(bare, "ADD", other)
    in_pod = ["nsenter", f"--net={other.path}", str(TOOLS / "bin/nclient4"), other.ifname]
    adds, exchanges = [], []
    for number in range(count):
        one = Pod(pod.netns, f"guest{number}")
        adds.append(_timed(guest, "ADD", one))
        _timed(guest, "DEL", one)
        begun = time.monotonic()
        run(in_pod)
        exchanges.append((time.monotonic() - begun) * 1000)
    _timed(bare, "DEL", other)
    print(f"\nA VM's address, {count} times one at a time, ms\n{'':24}{'p50':>8}{'p90':>8}{'p99':>8}{'max':>8}")
    for name, times in (("this, ADD of a VM, ovs", adds), ("nclient4, exchange only", exchanges)):
        print(f"{name:24}" + "".join(f"{_percentile(times, share):8.0f}" for share in (0.5, 0.9, 0.99, 1.0)))
    return statistics.median(adds), statistics.median(exchanges)


def _start_ms(argv: list[str], env: dict[str, str], stdin: str) -> float:
    begun = time.perf_counter()
    subprocess.run(
        argv, input=stdin.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, check=False
    )
    return (time.perf_counter() - begun) * 1000


def start_up(node: Rig, count: int) -> dict[str, float]:
    """Print what starting costs, median of `count`, taking turns; return it by name."""
    version = environment({"CNI_COMMAND": "VERSION"})
    pod = node.pod()
    # All that an ADD imports, and not one step of it: there is no dhcp plugin where it is told to look.
    refused = node.environment("ADD", pod, {"CNI_PATH": "/nonexistent"})
    asked = '{"cniVersion":"1.1.0"}'
    in_node = ["nsenter", f"--net=/run/netns/{node.node}"]
    cases: dict[str, Callable[[], float]] = {
        "/bin/true": lambda: _start_ms(["/bin/true"], version, ""),
        "Go plugin, VERSION": lambda: _start_ms([str(TOOLS / "bin/macvlan")], version, asked),
        "this, VERSION": lambda: _start_ms([str(PLUGIN)], version, asked),
        "nsenter /bin/true": lambda: _start_ms([*in_node, "/bin/true"], version, ""),
        "this, an ADD's imports (with nsenter)": lambda: _start_ms(
            [*in_node, str(PLUGIN)], refused, json.dumps(node.config())
        ),
        "hello, PyInstaller's own onefile": lambda: _start_ms([str(HELLO)], version, ""),
        "lean, PyInstaller's own onefile": lambda: _start_ms([str(LEAN)], version, ""),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(count):
        for name, case in cases.items():
            times[name].append(case())
    print(f"\nStart-up, whole process, ms, median of {count}")
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, value in medians.items():
        print(f"{name:40}{value:8.1f}")
    return medians


def peak_memory(peer: Peer) -> float:
    """Print and return the peak resident memory of one ADD in MiB."""
    pod = peer.node.pod()
    process = peer.node.start("ADD", pod, peer.config, plugin=peer.plugin)
    # Not rusage: a process started from here inherits the peak of this one, which is larger.
    status, highest = pathlib.Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        with contextlib.suppress(OSError):
            found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
            highest = max(highest, int(found[1]) if found else 0)
    if process.returncode:
        raise RuntimeError(f"ADD ended with {process.returncode}")
    _timed(peer, "DEL", pod)
    mebibytes = highest / 1024
    print(f"{peer.name:16} peak memory of an ADD {mebibytes:6.1f} MiB")
    return mebibytes


def _fill(node: Rig, count: int) -> None:
    """Give the bridge `count` more ports, as many pods would; quiet ones, for they are to be there and no more."""
    run(["sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1", "net.ipv6.conf.all.disable_ipv6=1"], node.node)
    lines = []
    for number in range(count):
        lines.append(f"link add fill{number} type veth peer name fell{number}")
        lines += [f"link set fill{number} up", f"link set fell{number} up"]
        if node.ovs is None:
            lines.append(f"link set fill{number} master {BRIDGE}")
    run(["ip", "-n", node.node, "-batch", "-"], stdin="\n".join(lines) + "\n", seconds=300)
    if node.ovs is not None:
        words = [word for number in range(count) for word in ("--", "add-port", BRIDGE, f"fill{number}")]
        node.ovs.vsctl(*words[1:])
        last = f"fill{count - 1}"
        ovs = node.ovs
        wait_for("the ports are there", lambda: ovs.vsctl("get", "Interface", last, "link_state") == "up", 60)


def _ovs_alone(node: Rig, count: int) -> float:
    """Return the median milliseconds of a bare `ovs-vsctl add-port` of a veth: what OVS itself takes for a port."""
    times = []
    if node.ovs is None:
        raise RuntimeError("no OVS on this rig")
    for number in range(count):
        name = f"alone{number}"
        run(["ip", "-n", node.node, "link", "add", name, "type", "veth", "peer", "name", f"enola{number}"])
        begun = time.monotonic()
        node.ovs.vsctl("add-port", BRIDGE, name)
        times.append((time.monotonic() - begun) * 1000)
        node.ovs.vsctl("del-port", name)
        run(["ip", "-n", node.node, "link", "delete", name])
    return statistics.median(times)


def with_ports(count: int) -> dict[str, float]:
    """Print ADD's median at no other port and at 500, on both datapaths; return the ratio by datapath."""
    print(f"\nADD p50 at 0 and at {PORTS} ports, {count} attachments, ms")
    ratios = {}
    for datapath in ("linux", "ovs"):
        with rig(datapath) as empty, rig(datapath) as full:
            _fill(full, PORTS)
            peers = [Peer("empty", empty, PLUGIN, empty.config()), Peer("full", full, PLUGIN, full.config())]
            adds: dict[str, list[float]] = {"empty": [], "full": []}
            pods = {peer.name: peer.node.pod() for peer in peers}
            for number in range(count):
                for peer in peers:
                    pod = Pod(pods[peer.name].netns, f"ports{number}")
                    adds[peer.name].append(_timed(peer, "ADD", pod))
                    _timed(peer, "DEL", pod)
            if datapath == "ovs":
                alone = [_ovs_alone(node, count) for node in (empty, full)]
                print(f"{'ovs-vsctl alone':16}{alone[0]:8.1f}{alone[1]:8.1f}   ratio {alone[1] / alone[0]:.2f}")
        none, some = statistics.median(adds["empty"]), statistics.median(adds["full"])
        ratios[datapath] = some / none
        print(f"{datapath:16}{none:8.1f}{some:8.1f}   ratio {some / none:.2f}")
    return ratios


def where_it_goes(count: int) -> None:
    """Print the median time of each step of an ADD, from the plugin's own log."""
    print(f"\nWhere one ADD's milliseconds go (median of {count}, log level debug)")
    for datapath in ("linux", "ovs"):
        with rig(datapath) as node:
            pod = node.pod()
            peer = Peer(datapath, node, PLUGIN, node.config())
            walls: list[float] = []
            for number in range(count):
                one = Pod(pod.netns, f"where{number}")
                walls.append(_timed(peer, "ADD", one))
                _timed(peer, "DEL", one)
            steps: dict[str, list[float]] = {}
            for stamp, text in re.findall(r"ADD .*?: ([\d.]+) ms: ([^:\n]+)", node.plugin_log()):
                steps.setdefault(text, []).append(float(stamp))
        ends = {text: statistics.median(values) for text, values in steps.items()}
        last = 0.0
        print(f"{datapath}: process start, imports, end {statistics.median(walls) - max(ends.values()):6.1f}")
        for text, end in ends.items():
            print(f"    {text:44}{end - last:6.1f}")
            last = end


def main() -> int:
    """Run all of it and say, line by line, whether the promised ratios hold."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=100, help="attachments a row (100)")
    count: int = options.parse_args().count
    promises: list[tuple[str, float, float]] = []
    with contextlib.ExitStack() as stack:
        peers = _peers(stack)
        adds = one_at_a_time(peers, count)
        macvlan = statistics.median(adds["macvlan + dhcp"])
        promises.append(("ADD p50, linux / macvlan", statistics.median(adds["this, linux"]) / macvlan, 3.0))
        promises.append(("ADD p50, ovs / macvlan", statistics.median(adds["this, ovs"]) / macvlan, 3.5))
        for name in ("this, linux", "this, ovs"):
            promises.append((f"ADD p99 {name}, ms", _percentile(adds[name], 0.99), 500))
            promises.append((f"ADD max {name}, ms", max(adds[name]), 1000))
        for peer in peers[:2]:
            promises.append((f"DISCOVERs beyond one an ADD, {peer.name}", _lost(peer, 0, count), 0))
        pace = many_at_once(peers, count)
        for name in ("this, linux", "this, ovs"):
            promises.append((f"macvlan's pace / {name}'s, 16 at once", pace["macvlan + dhcp"] / pace[name], 4.0))
            promises.append((f"bridge's pace / {name}'s, 16 at once", pace["bridge + dhcp"] / pace[name], 1.0))
        vm, _ = guests(peers[1], count)
        promises.append(("ADD p50 of a VM / of a pod, ovs", vm / statistics.median(adds["this, ovs"]), 1.3))
        starts = start_up(peers[0].node, 60)
        promises.append(("VERSION / lean", starts["this, VERSION"] / starts["lean, PyInstaller's own onefile"], 1.0))
        for peer in peers[:2]:
            promises.append((f"peak memory {peer.name}, MiB", peak_memory(peer), 30))
    for datapath, ratio in with_ports(max(20, count // 3)).items():
        promises.append((f"ADD at {PORTS} ports / at none, {datapath}", ratio, 1.3))
    where_it_goes(30)
    print("\nPromised (at most)")
    for text, value, limit in promises:
        print(f"{'ok  ' if value <= limit else 'MISS'} {text:50}{value:8.2f} {limit:8.2f}")
    return int(any(value > limit for _, value, limit in promises))


if __name__ == "__main__":
    sys.exit(main())
