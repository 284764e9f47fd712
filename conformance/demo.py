"""The main job on real parts, step by step (`make demo`): a pod gets an address from a physical network, and goes."""

from __future__ import annotations

import argparse
import json
import sys

from conformance.rig.cnitool import Cnitool
from conformance.rig.process import run
from conformance.rig.rig import Rig, rig


def _say(text: str) -> None:
    print(f"\n=== {text}", flush=True)


def _show(text: str) -> None:
    print("    " + text.strip().replace("\n", "\n    "), flush=True)


def _leases(node: Rig) -> str:
    return "\n".join(sorted(node.server.leases())) or "(none)"


def _must(what: str, good: bool, details: str = "") -> None:
    if not good:
        raise RuntimeError(f"{what} failed: {details}")


def demonstrate(node: Rig) -> None:
    """Run ADD, CHECK and DEL by cnitool and show what they do; raise RuntimeError when one does not as promised."""
    pod, cnitool = node.pod(), Cnitool(node, "1.1.0")
    _say("leases on the server before")
    _show(_leases(node))

    _say(f"cnitool add: attach {pod.netns} to the physical network as {pod.ifname}")
    added = cnitool.call("add", pod)
    _must("ADD", added.status == 0, added.stdout + added.stderr)
    _show(json.dumps(added.json, indent=2))

    _say(f"ip addr inside the pod, which {node.server.daemon.argv[0]} gave")
    _show(run(["ip", "-n", pod.netns, "-4", "address", "show", pod.ifname]).stdout)
    _say("ping from the pod across the physical network")
    _show(run(["ping", "-c2", "-i0.2", "-W2", "172.18.0.5"], pod.netns).stdout)
    _say("leases on the server now")
    _show(_leases(node))

    _say("cnitool check: kernel, bridge and daemon are as the result says")
    checked = cnitool.call("check", pod)
    _must("CHECK", checked.status == 0, checked.stdout + checked.stderr)
    _show("ok")

    _say("cnitool del: release the lease, unplug, remove")
    deleted = cnitool.call("del", pod)
    _must("DEL", deleted.status == 0, deleted.stdout + deleted.stderr)
    _show("ok")
    _say("leases on the server after")
    _show(_leases(node))
    _must("giving the lease back", not node.server.leases(), _leases(node))


def main() -> int:
    """Run the demonstration on one datapath, or on both; ^C removes everything too."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--datapath", choices=["linux", "ovs"], action="append")
    chosen = options.parse_args().datapath or ["linux", "ovs"]
    try:
        for datapath in chosen:
            _say(f"datapath {datapath}: a node, a physical network with dnsmasq, the dhcp daemon, in namespaces")
            with rig(datapath) as node:
                demonstrate(node)
    except KeyboardInterrupt:
        print("\ninterrupted; everything is removed", file=sys.stderr)
        return 130
    _say("done: the leases are gone from the server, nothing is left on this machine")
    return 0


if __name__ == "__main__":
    sys.exit(main())
