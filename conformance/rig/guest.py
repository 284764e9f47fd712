"""A VM in a pod: KubeVirt's bridge binding, and QEMU with Debian's cloud kernel and busybox's DHCP client behind it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import socket
import stat
from typing import Self

from conformance.rig import kernel
from conformance.rig.process import TOOLS, Daemon, run, wait_for
from conformance.rig.rig import Pod

FILES = TOOLS / "guest"  # made by build/guest.sh
_BUSYBOX = pathlib.Path("/bin/busybox")

# ---- what a guest boots

# What udhcpc tells its script (udhcpc(8)), as one line of the console.
_LEASE = r"""#!/bin/sh
case $1 in
deconfig) ip -4 address flush dev $interface ;;
bound|renew)
    ip address replace $ip/$mask dev $interface
    [ -z "$router" ] || ip route replace default via ${router%% *} dev $interface
    ;;
esac
echo "@guest $1 address=$ip prefix=$mask server=$serverid lease=$lease router=$router client_id=$client_id"
"""

# Lines from the console are commands: the test's way in.
_INIT = r"""#!/bin/busybox sh
/bin/busybox mkdir -p /bin /proc /sys /dev
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -echo
for module in /modules/*.ko; do insmod $module; done
for word in $(cat /proc/cmdline); do case $word in client_id=*) export "$word" ;; esac; done
ip link set lo up
ip link set eth0 up
echo "@guest up mac=$(cat /sys/class/net/eth0/address)"
case $client_id in none) set -- -C ;; *) set -- -x 0x3d:$client_id ;; esac
udhcpc -f -i eth0 -s /lease -t 30 -T 1 -A 1 -p /udhcpc.pid "$@" &
while read -r line; do
    eval "$line"
    echo "@guest done status=$?"
done
"""


def _initramfs() -> bytes:
    directory, program, file = stat.S_IFDIR | 0o755, stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    members = [(name, directory, b"") for name in ("bin", "modules")]
    members += [("bin/busybox", program, _BUSYBOX.read_bytes())]
    members += [("init", program, _INIT.encode()), ("lease", program, _LEASE.encode())]
    members += [(f"modules/{path.name}", file, path.read_bytes()) for path in sorted((FILES / "modules").iterdir())]
    return b"".join(_newc(number, *member) for number, member in enumerate([*members, ("TRAILER!!!", 0, b"")], 1))


def _newc(number: int, name: str, mode: int, data: bytes) -> bytes:
    """Return one member of a cpio archive in the new portable format, cpio(5)."""
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
    return header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4)


# ---- how KubeVirt puts it on the pod's interface


@dataclasses.dataclass(frozen=True)
class Binding:
    """KubeVirt's bridge binding: a bridge of the pod's interface and a tap; the guest has the interface's first MAC."""

    pod: Pod
    mac: str
    tap: str = "tap0"

    @classmethod
    def make(cls, pod: Pod) -> Binding:
        """Wire what an ADD has left in the pod, as virt-handler does."""
        made, bridge, ns = cls(pod, kernel.links(pod.netns)[pod.ifname].mac), f"k6t-{pod.ifname}", ["-n", pod.netns]
        other = "02:" + ":".join(f"{byte:02x}" for byte in os.urandom(5))
        run(["ip", *ns, "link", "set", pod.ifname, "down"])
        run(["ip", *ns, "link", "set", pod.ifname, "address", other])
        run(["ip", *ns, "link", "add", bridge, "type", "bridge"])
        run(["ip", *ns, "link", "set", pod.ifname, "master", bridge])
        # KubeVirt does so: the guest's MAC is to be found behind the tap only.
        run(["bridge", *ns, "link", "set", "dev", pod.ifname, "learning", "off"])
        run(["ip", *ns, "tuntap", "add", "dev", made.tap, "mode", "tap", "vnet_hdr"])
        run(["ip", *ns, "link", "set", made.tap, "master", bridge])
        for name in (pod.ifname, made.tap, bridge):
            run(["ip", *ns, "link", "set", name, "up"])
        return made


# ---- the guest


def rfc4361_client_id(mac: str) -> str:
    """Return what systemd-networkd sends unless told otherwise: ff, an IAID, a DUID-EN of systemd's number (43793)."""
    plain = mac.replace(":", "")
    return f"hex:ff{plain[4:]}00020000ab11{plain}7e57"


@dataclasses.dataclass(frozen=True)
class GuestLease:
    """What the guest's DHCP client was told, and the client identifier that it sent: `none` or hexadecimal digits."""

    address: str  # a.b.c.d
    prefix: int
    server: str
    seconds: int
    client_id: str

    @classmethod
    def read(cls, words: dict[str, str]) -> GuestLease:
        """Make it of the words of a console line."""
        numbers = int(words["prefix"]), int(words["lease"])
        return cls(words["address"], numbers[0], words["server"], numbers[1], words["client_id"])


class Guest:
    """A running VM; `with` ends it, as a host that loses power does: it gives nothing back."""

    def __init__(self, place: pathlib.Path, binding: Binding, client_id: str = "mac") -> None:
        """Boot it; `client_id` is `mac`, `none` or `hex:…`, as in the plugin's config; its files come into `place`."""
        told = f"01{binding.mac.replace(':', '')}" if client_id == "mac" else client_id.removeprefix("hex:")
        name = f"guest-{binding.pod.netns}"
        initramfs, self._socket = place / f"{name}.cpio", place / f"{name}.sock"
        initramfs.write_bytes(_initramfs())
        self.console = place / f"{name}.console"
        # Emptied: what the guest before this one said is not to be taken for its word.
        self.console.write_bytes(b"")
        words: list[str | pathlib.Path] = [
            # Never KVM: a guest may hang before its first instruction although /dev/kvm can be opened.
            "qemu-system-x86_64", "-accel", "tcg", "-machine", "pc", "-m", "192", "-nodefaults", "-no-user-config",
            "-display", "none", "-no-reboot", "-kernel", FILES / "vmlinuz", "-initrd", initramfs,
            "-append", f"console=ttyS0 quiet panic=-1 mitigations=off client_id={told}",
            "-chardev", f"socket,id=c0,path={self._socket},server=on,wait=off,logfile={self.console}",
            "-serial", "chardev:c0",
            # With vnet_hdr, QEMU's default: the guest leaves checksums of its UDP and TCP to the host.
            "-netdev", f"tap,id=n0,ifname={binding.tap},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=n0,mac={binding.mac},romfile=",
        ]  # fmt: skip
        self._daemon = Daemon(words, binding.pod.netns, place / f"{name}.qemu")

    def __enter__(self) -> Self:
        """Return the guest."""
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        self.stop()

    def stop(self) -> None:
        """Pull the plug."""
        self._daemon.stop()
        self._socket.unlink(missing_ok=True)

    def told(self, event: str) -> list[dict[str, str]]:
        """Return the words of every console line of an event: up, bound, renew, leasefail, nak, done."""
        # Whole lines only: the console is read while it is written.
        lines = re.findall(
            rf"^@guest {event}((?: \w+=\S*)*)[ \r]*\n", self.console.read_bytes().decode(errors="replace"), re.M
        )
        return [dict(word.split("=", 1) for word in line.split()) for line in lines]

    def _wait(self, event: str, number: int, seconds: float) -> dict[str, str]:
        def come() -> bool:
            if not self._daemon.alive():
                raise RuntimeError(f"QEMU is gone: {self._said()}")
            return len(self.told(event)) >= number

        try:
            wait_for(f"the guest says {event}", come, seconds)
        except TimeoutError as silent:
            raise TimeoutError(f"{silent}: {self._said()}") from None
        return self.told(event)[number - 1]

    def _said(self) -> str:
        return self._daemon.output() + self.console.read_text(errors="replace")[-2000:]

    def lease(self, seconds: float = 60) -> GuestLease:
        """Wait until it has a lease; return the first one."""
        return GuestLease.read(self._wait("bound", 1, seconds))

    def renew(self, seconds: float = 20) -> GuestLease:
        """Have its client ask for more time, by unicast and, after a second without answer, by broadcast."""
        number = len(self.told("renew")) + 1
        self.run("kill -USR1 $(cat /udhcpc.pid)")
        return GuestLease.read(self._wait("renew", number, seconds))

    def run(self, command: str, seconds: float = 20) -> int:
        """Run a line of shell in it and return the exit status; what it prints is on the console."""
        number = len(self.told("done")) + 1
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(seconds)
            line.connect(os.fspath(self._socket))
            line.sendall(command.encode() + b"\n")
            return int(self._wait("done", number, seconds)["status"])
