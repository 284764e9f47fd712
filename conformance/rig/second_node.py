"""A second node on the same physical network, for what moves from one to the other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from conformance.rig.process import run, wait_for
from conformance.rig.rig import WIRE, Rig
from conformance.rig.servers import Dnsmasq, Offered

SWITCH = "sw0"


def _plug(switch: str, port: str) -> None:
    run(["ip", "-n", switch, "link", "set", port, "master", SWITCH])
    run(["ip", "-n", switch, "link", "set", port, "up"])
    wait_for(
        f"the switch forwards on {port}",
        lambda: "state forwarding" in run(["bridge", "-n", switch, "link", "show", "dev", port]).stdout,
    )


def _cable(node: Rig, switch: str, port: str) -> None:
    """Move the far end of a node's uplink from what was its physical network into the switch."""
    run(["ip", "-n", node.physical, "link", "set", WIRE, "netns", switch, "name", port])
    _plug(switch, port)


@contextlib.contextmanager
def second_node(first: Rig, offered: Offered | None = None) -> Iterator[Rig]:
    """Put a switch between the first node's uplink and the server, and a second node on it; that one is removed.

    The server of the first rig is replaced by a dnsmasq that has no leases yet: come here before the first ADD. Both
    rigs name it as theirs.
    """
    switch = first.new_netns("switch")
    run(["ip", "-n", switch, "link", "add", SWITCH, "type", "bridge"])
    run(["ip", "-n", switch, "link", "set", SWITCH, "up"])
    first.server.daemon.stop()
    _cable(first, switch, "node1")
    # A new wire for the server, under the name that it had.
    run(["ip", "-n", first.physical, "link", "add", WIRE, "type", "veth", "peer", "name", "server", "netns", switch])
    run(["ip", "-n", first.physical, "address", "add", "172.18.0.5/16", "dev", WIRE])
    run(["ip", "-n", first.physical, "link", "set", WIRE, "up"])
    run(["ethtool", "-K", WIRE, "tx", "off"], first.physical)
    _plug(switch, "server")
    place = first.place / "switched"
    place.mkdir()
    first.server = Dnsmasq(first.physical, WIRE, place, offered or Offered())
    first.keep(first.server.daemon)
    with contextlib.ExitStack() as stack:
        second = Rig(stack, first.datapath)
        second.server = first.server
        _cable(second, switch, "node2")
        second.start_dhcp_daemon("1.10.0")
        yield second
