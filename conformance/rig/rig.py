"""The rig: a node, a physical network behind its bridge, pods, and the means to call CNI plugins on the node."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from conformance.rig.ovs import Ovs
from conformance.rig.process import PLUGIN, TOOLS, Daemon, environment, in_netns, run, wait_for
from conformance.rig.servers import SERVERS, Offered, Server

BRIDGE, UPLINK, WIRE = "br-phys", "uplink", "phys0"
NETWORK = "cluster_udn_localnet-dhcp-ipam"

_numbers = itertools.count(1)

DHCP_PLUGINS = {
    "1.10.0": TOOLS / "bin/dhcp",
    "1.9.1": TOOLS / "dhcp-1.9.1/dhcp",
    "1.1.1": TOOLS / "dhcp-1.1.1/dhcp",
}


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a plugin answered: exit status, stdout as JSON (None when empty), raw stdout and stderr, and seconds."""

    status: int
    json: Any
    stdout: str
    stderr: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Pod:
    """A sandbox: its network namespace's name, and the container ID that runtimes would give it."""

    netns: str
    container_id: str
    ifname: str = "net1"

    @property
    def path(self) -> str:
        """The path that CNI_NETNS has."""
        return f"/run/netns/{self.netns}"


class Rig:
    """A running rig; made by `rig(...)`, which removes it."""

    def __init__(
        self, stack: contextlib.ExitStack, datapath: str, *, vlan: int | None = None, tso: bool = False
    ) -> None:
        self._stack = stack
        self.datapath = datapath
        self.name = f"okc-{os.getpid()}-{next(_numbers)}"
        self.place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"okc-rig-{os.getpid()}-")))
        self.node, self.physical = self.new_netns("node"), self.new_netns("phys")
        self.ovs: Ovs | None = None
        self._cable()
        self._make_bridge(vlan, tso)
        self.wire = WIRE
        run(["ip", "-n", self.physical, "address", "add", "172.18.0.5/16", "dev", self.wire])
        self.server: Server
        self.dhcp: Daemon
        self.dhcp_socket = self.place / "dhcp.sock"
        self.bin = self.place / "bin"
        self.bin.mkdir()
        (self.bin / PLUGIN.name).symlink_to(PLUGIN)
        self.node_file = self.place / "node.json"
        self.write_node_file({})

    def new_netns(self, role: str) -> str:
        """Make a network namespace that goes with the rig; return its name."""
        name = f"{self.name}-{role}"
        run(["ip", "netns", "add", name])
        self._stack.callback(run, ["ip", "netns", "delete", name], check=False)
        run(["ip", "-n", name, "link", "set", "lo", "up"])
        return name

    def _cable(self) -> None:
        run(
            ["ip", "-n", self.node, "link", "add", UPLINK, "type", "veth", "peer", "name", WIRE, "netns", self.physical]
        )
        run(["ip", "-n", self.node, "link", "set", UPLINK, "up"])
        run(["ip", "-n", self.physical, "link", "set", WIRE, "up"])
        # What stands for the physical network sends finished frames, as a real NIC does.
        run(["ethtool", "-K", WIRE, "tx", "off"], self.physical)

    def _make_bridge(self, vlan: int | None, tso: bool) -> None:
        if self.datapath == "ovs":
            self.ovs = Ovs(self.node, self.place, BRIDGE, UPLINK, tso=tso)
            self._stack.callback(self.ovs.stop)
            if vlan is not None:
                # The wire stands for an access port of that VLAN: this kernel has no VLAN devices to tag with.
                self.ovs.vsctl("set", "Port", UPLINK, f"tag={vlan}")
            return
        run(["ip", "-n", self.node, "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "-n", self.node, "link", "set", BRIDGE, "up"])
        run(["ip", "-n", self.node, "link", "set", UPLINK, "master", BRIDGE])
        wait_for("the uplink forwards", lambda: "state forwarding" in self._bridge_state())

    def _bridge_state(self) -> str:
        return run(["bridge", "-n", self.node, "link", "show", "dev", UPLINK]).stdout

    def keep(self, *daemons: Daemon) -> None:
        """Have daemons go with the rig that a test has started beside its own."""
        for daemon in daemons:
            self._stack.callback(daemon.stop)

    def start_server(self, kind: str, offered: Offered) -> None:
        """Start a DHCP server on the physical network."""
        self.server = SERVERS[kind](self.physical, self.wire, self.place, offered)
        self._stack.callback(self.server.daemon.stop)

    def start_dhcp_daemon(self, version: str) -> None:
        """Start the dhcp daemon on the node, and put its plugin into the CNI directory."""
        program = DHCP_PLUGINS[version]
        link = self.bin / "dhcp"
        link.unlink(missing_ok=True)
        link.symlink_to(program)
        self.dhcp = Daemon(
            [program, "daemon", "-socketpath", self.dhcp_socket], self.node, self.place / "dhcp-daemon.log"
        )
        self._stack.callback(self.dhcp.stop)
        wait_for("the dhcp daemon listens", self.dhcp_socket.exists)

    def restart_dhcp_daemon(self) -> None:
        """End the daemon, whose leases go with it, and start it again."""
        self.dhcp.stop()
        self.dhcp_socket.unlink(missing_ok=True)
        self.dhcp.start()
        wait_for("the dhcp daemon listens", self.dhcp_socket.exists)

    def write_node_file(self, changes: dict[str, Any]) -> None:
        """Write the node file: what this datapath needs, and `changes`."""
        settings: dict[str, Any] = {"logFile": str(self.place / "plugin.log"), "logLevel": "debug"}
        if self.datapath == "ovs":
            settings["ovsdbSocket"] = str(self.place / "db.sock")
        else:
            settings |= {"datapath": "linux", "bridgeMappings": f"physnet:{BRIDGE}"}
        self.node_file.write_text(json.dumps(settings | changes))

    def pod(self, ifname: str = "net1") -> Pod:
        """Make a sandbox."""
        number = next(_numbers)
        return Pod(self.new_netns(f"pod{number}"), f"c{number:04d}{os.urandom(28).hex()}", ifname)

    def config(self, **changes: Any) -> dict[str, Any]:
        """Return the network config of the seed's NAD, with the keys that point into the rig, and `changes`."""
        config: dict[str, Any] = {
            "cniVersion": "1.1.0",
            "type": "ovn-k8s-cni-overlay",
            "name": NETWORK,
            "netAttachDefName": "test-localnet-dhcp-ipam/localnet-dhcp-ipam",
            "topology": "localnet",
            "role": "secondary",
            "physicalNetworkName": "physnet",
            "ipam": {"type": "dhcp", "daemonSocketPath": str(self.dhcp_socket)},
            "nodeConfig": str(self.node_file),
        }
        return {key: value for key, value in (config | changes).items() if value is not None}

    def environment(self, verb: str, pod: Pod | None, extra: dict[str, str] | None = None) -> dict[str, str]:
        """Return the CNI environment of a call."""
        given = {"CNI_COMMAND": verb, "CNI_PATH": str(self.bin)}
        if pod is not None:
            given |= {"CNI_CONTAINERID": pod.container_id, "CNI_NETNS": pod.path, "CNI_IFNAME": pod.ifname}
        return environment(given | (extra or {}))

    def start(
        self,
        verb: str,
        pod: Pod | None,
        config: dict[str, Any] | None = None,
        extra: dict[str, str] | None = None,
        plugin: pathlib.Path = PLUGIN,
    ) -> subprocess.Popen[str]:
        """Start a plugin on the node, its stdin already fed and closed."""
        process = subprocess.Popen(
            [*in_netns(self.node), str(plugin)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment(verb, pod, extra),
        )
        if process.stdin is None:
            raise RuntimeError("no stdin")
        process.stdin.write(json.dumps(self.config() if config is None else config))
        process.stdin.close()
        process.stdin = None
        return process

    def call(
        self,
        verb: str,
        pod: Pod | None = None,
        config: dict[str, Any] | None = None,
        extra: dict[str, str] | None = None,
        plugin: pathlib.Path = PLUGIN,
        seconds: float = 70,
    ) -> Answer:
        """Call a plugin on the node as a runtime does."""
        begun = time.monotonic()
        process = self.start(verb, pod, config, extra, plugin)
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        finally:
            process.kill()
        elapsed = time.monotonic() - begun
        return Answer(process.returncode, json.loads(stdout) if stdout.strip() else None, stdout, stderr, elapsed)

    def add(self, pod: Pod, **changes: Any) -> dict[str, Any]:
        """Attach a pod and return the result; raise RuntimeError with the error object when it fails."""
        answer = self.call("ADD", pod, self.config(**changes))
        if answer.status or not isinstance(answer.json, dict):
            raise RuntimeError(f"ADD: {answer.stdout}{answer.stderr}")
        return answer.json

    def delete(self, pod: Pod, **changes: Any) -> None:
        """Detach a pod; raise RuntimeError with the error object when it fails."""
        answer = self.call("DEL", pod, self.config(**changes))
        if answer.status or answer.stdout:
            raise RuntimeError(f"DEL: {answer.stdout}{answer.stderr}")

    def plugin_log(self) -> str:
        """Return what the plugin has logged."""
        log = self.place / "plugin.log"
        return log.read_text() if log.exists() else ""


_OWNER = os.getpid()


def _exit(number: int, _: object) -> None:
    if os.getpid() != _OWNER:  # pyroute2's NetNS forks a child that inherits this handler, and ends it by SIGTERM
        os._exit(128 + number)
    raise SystemExit(128 + number)


@contextlib.contextmanager
def rig(
    datapath: str = "linux",
    server: str = "dnsmasq",
    dhcp: str = "1.10.0",
    offered: Offered | None = None,
    vlan: int | None = None,
    tso: bool = False,
) -> Iterator[Rig]:
    """Make a rig with its server and daemon, and remove all of it, whatever happens inside."""
    with contextlib.ExitStack() as stack:
        # The default action of SIGTERM would skip every removal below.
        stack.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _exit))
        made = Rig(stack, datapath, vlan=vlan, tso=tso)
        made.start_server(server, offered or Offered())
        made.start_dhcp_daemon(dhcp)
        yield made


def plugin_is_built() -> None:
    """Raise RuntimeError when the binary or a tool is missing: that is a failure, never a skip."""
    for needed in (PLUGIN, TOOLS / "bin/cnitool", TOOLS / "bin/nclient4", *DHCP_PLUGINS.values()):
        if not shutil.which(str(needed)):
            raise RuntimeError(f"{needed} is missing: run `make build tools`")
