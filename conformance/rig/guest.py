"""A real guest behind KubeVirt's bridge binding: QEMU (software emulation), Debian's cloud kernel, busybox udhcpc."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import re
import shutil
from collections.abc import Iterator

from conformance.rig.process import TOOLS, Daemon, run, wait_for
from conformance.rig.rig import Pod, Rig

FILES = TOOLS / "guest"
_BUSYBOX = pathlib.Path("/bin/busybox")

# What the guest does: load its network driver, take a lease as the kernel command line says, tell it on the console.
_INIT = r"""#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for module in /modules/*.ko; do /bin/busybox insmod $module; done
wanted=$(/bin/busybox sed 's/.*okc.client_id=\([^ ]*\).*/\1/' /proc/cmdline)
case $wanted in
    mac) words= ;;
    none) words=-C ;;
    *) words="-C -x 0x3d:$wanted" ;;
esac
/bin/busybox ip link set eth0 up
/bin/busybox udhcpc -i eth0 -f -n -q -t 20 -T 1 -s /script $words || echo GUEST-FAILED
while :; do /bin/busybox sleep 1000; done
"""
_SCRIPT = r"""#!/bin/busybox sh
[ "$1" != bound ] || echo "GUEST-LEASE $ip/$mask server $serverid" >/dev/console
"""


def _cpio_entry(name: str, content: bytes, mode: int, number: int) -> bytes:
    """Return one file of an initramfs (the kernel's Documentation/driver-api/early-userspace/buffer-format.rst)."""
    path = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + path
    return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)


def initramfs() -> bytes:
    """Return the guest's whole user space."""
    directories = [("bin", b"", 0o040755), ("modules", b"", 0o040755)]
    files = [("bin/busybox", _BUSYBOX.read_bytes(), 0o100755)]
    files += [("init", _INIT.encode(), 0o100755), ("script", _SCRIPT.encode(), 0o100755)]
    files += [(f"modules/{m.name}", m.read_bytes(), 0o100644) for m in sorted((FILES / "modules").iterdir())]
    entries = [*directories, *files, ("TRAILER!!!", b"", 0)]
    return b"".join(_cpio_entry(*entry, number) for number, entry in enumerate(entries, 1))


def wire_like_kubevirt(pod: Pod, mac: str) -> None:
    """Do what KubeVirt's bridge binding does: the guest gets the interface's MAC, and a tap beside it on a bridge."""
    run(["ip", "-n", pod.netns, "link", "set", pod.ifname, "down"])
    other = f"{(int(mac[:2], 16) ^ 0x40) & 0xFE:02x}{mac[2:]}"
    run(["ip", "-n", pod.netns, "link", "set", pod.ifname, "address", other])
    run(["ip", "-n", pod.netns, "link", "add", f"k6t-{pod.ifname}", "type", "bridge"])
    run(["ip", "tuntap", "add", "tap0", "mode", "tap"], pod.netns)
    for port in (pod.ifname, "tap0"):
        run(["ip", "-n", pod.netns, "link", "set", port, "master", f"k6t-{pod.ifname}"])
        run(["ip", "-n", pod.netns, "link", "set", port, "up"])
    run(["ip", "-n", pod.netns, "link", "set", f"k6t-{pod.ifname}", "up"])


@dataclasses.dataclass(frozen=True)
class Guest:
    """A running guest."""

    qemu: Daemon
    console: pathlib.Path

    def address(self, seconds: float = 60) -> str:
        """Return the address that its DHCP client got."""

        def told() -> str:
            return self.console.read_text(errors="replace") if self.console.exists() else ""

        wait_for("the guest has its lease", lambda: "GUEST-LEASE" in told() or "GUEST-FAILED" in told(), seconds)
        found = re.search(r"GUEST-LEASE ([\d.]+)/", told())
        if found is None:
            raise RuntimeError(f"the guest got no lease: {told()[-500:]}")
        return found[1]


@contextlib.contextmanager
def guest(node: Rig, pod: Pod, mac: str, client_id: str) -> Iterator[Guest]:
    """Start a guest in a pod whose interface had `mac`; `client_id` is `mac`, `none` or hexadecimal digits."""
    wire_like_kubevirt(pod, mac)
    place = node.place / f"guest-{pod.netns}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "initramfs").write_bytes(initramfs())
    words = ["qemu-system-x86_64", "-accel", "tcg", "-m", "256", "-no-reboot", "-display", "none", "-monitor", "none"]
    words += ["-serial", f"file:{place / 'console'}", "-kernel", str(FILES / "vmlinuz")]
    words += ["-initrd", str(place / "initramfs"), "-append", f"console=ttyS0 quiet okc.client_id={client_id} end"]
    words += ["-netdev", "tap,id=n0,ifname=tap0,script=no,downscript=no,vhost=off"]
    words += ["-device", f"virtio-net-pci,netdev=n0,mac={mac},romfile="]
    qemu = Daemon(words, pod.netns, place / "qemu.log")
    try:
        yield Guest(qemu, place / "console")
    finally:
        qemu.stop()
