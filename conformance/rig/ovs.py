"""Open vSwitch of the node: ovsdb-server and ovs-vswitchd in the node's namespace, userspace datapath."""

from __future__ import annotations

import pathlib

from conformance.rig.process import Daemon, run, wait_for

_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


class Ovs:
    """A database and a switch of their own; `bridge` maps the physical network `physnet`."""

    def __init__(self, netns: str, place: pathlib.Path, bridge: str, uplink: str, *, tso: bool = False) -> None:
        self.place = place
        self.bridge = bridge
        self.socket = place / "db.sock"
        database = place / "conf.db"
        run(["ovsdb-tool", "create", database, _SCHEMA])
        env = {"OVS_RUNDIR": str(place), "OVS_LOGDIR": str(place)}
        control = f"--unixctl={place}/ovsdb.ctl"
        self.ovsdb = Daemon(
            ["ovsdb-server", database, f"--remote=punix:{self.socket}", control], netns, place / "ovsdb.log", env
        )
        wait_for("ovsdb-server answers", self.socket.exists)
        self.vsctl("--no-wait", "init")
        self.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"external_ids:ovn-bridge-mappings=physnet:{bridge}")
        if tso:
            self.vsctl("--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
        self.vswitchd = Daemon(
            ["ovs-vswitchd", f"unix:{self.socket}", f"--unixctl={place}/vswitchd.ctl"],
            netns,
            place / "vswitchd.log",
            env,
        )
        self.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev")
        self.vsctl("add-port", bridge, uplink)

    def vsctl(self, *words: str, check: bool = True) -> str:
        """Run ovs-vsctl on this database and return what it prints."""
        return run(["ovs-vsctl", f"--db=unix:{self.socket}", "--timeout=20", *words], check=check).stdout.strip()

    def ports(self) -> list[str]:
        """Return the names of our ports on any bridge, stale rows too."""
        names = self.vsctl("--bare", "--columns=name", "find", "Interface").split()
        return [name for name in names if name.startswith("okc")]

    def stop(self) -> None:
        """End both daemons."""
        self.vswitchd.stop()
        self.ovsdb.stop()
