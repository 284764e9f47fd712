"""A DHCP server in a network of its own, behind a router with a relay."""

from __future__ import annotations

from conformance.rig.process import Daemon, run
from conformance.rig.rig import Rig
from conformance.rig.servers import Dnsmasq, Offered

FAR_SERVER, FAR_ROUTER = "10.99.0.1", "10.99.0.5"


def move_server_behind_a_relay(node: Rig) -> Dnsmasq:
    """Put the DHCP server into a network of its own; what was its place becomes a router with a DHCP relay."""
    node.server.daemon.stop()
    far = node.new_netns("far")
    run(["ip", "-n", far, "link", "add", "far0", "type", "veth", "peer", "name", "near0", "netns", node.physical])
    for netns, name, address in ((far, "far0", FAR_SERVER), (node.physical, "near0", FAR_ROUTER)):
        run(["ip", "-n", netns, "address", "add", f"{address}/24", "dev", name])
        run(["ip", "-n", netns, "link", "set", name, "up"])
    run(["ip", "-n", far, "route", "add", "172.18.0.0/16", "via", FAR_ROUTER])
    run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], node.physical)
    place = node.place / "far"
    place.mkdir()
    server = Dnsmasq(far, "far0", place, Offered())
    words = ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--group=root"]
    words += [f"--dhcp-relay=172.18.0.5,{FAR_SERVER}", f"--pid-file={place / 'relay.pid'}"]
    node.keep(server.daemon, Daemon(words, node.physical, place / "relay.log"))
    return server
