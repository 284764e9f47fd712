"""DHCP servers on the physical network: dnsmasq, ISC dhcpd, Kea, each started from a config of the rig's own."""

from __future__ import annotations

import csv
import dataclasses
import json
import pathlib
import re
import signal
import time
from collections.abc import Callable
from typing import Protocol

from conformance.rig.process import Daemon, run, wait_for


@dataclasses.dataclass(frozen=True)
class Offered:
    """What a server is to lease and to tell: a /16 around `server`, texts as the server's manual has them."""

    server: str = "172.18.0.5"
    netmask: str = "255.255.0.0"
    first: str = "172.18.1.0"
    last: str = "172.18.20.255"
    seconds: int = 3600
    router: str | None = "172.18.0.5"
    dns: tuple[str, ...] = ("172.18.0.5",)
    domain: str | None = None
    search: tuple[str, ...] = ()
    classless: tuple[tuple[str, str], ...] = ()  # destination/prefix, router
    extra: tuple[str, ...] = ()  # more words, of dnsmasq only


class Server(Protocol):
    """A running DHCP server."""

    daemon: Daemon

    def leases(self) -> set[str]:
        """Return the addresses that are leased now."""

    def releases(self) -> int:
        """Return how many RELEASEs it has accepted."""

    def count(self, kind: str) -> int:
        """Return how many messages of a kind (DISCOVER, …) it has logged."""


class Dnsmasq:
    """dnsmasq(8); it pings no address before it offers it."""

    def __init__(self, netns: str, interface: str, place: pathlib.Path, offered: Offered) -> None:
        self._leases = place / "dnsmasq.leases"
        self._log = place / "dnsmasq.log"
        words = [
            "dnsmasq", "--keep-in-foreground", "--no-ping", "--conf-file=/dev/null", "--port=0", "--user=root",
            "--group=root",  # leaving root for group dip would clear PR_SET_PDEATHSIG
            "--dhcp-authoritative", "--log-dhcp", f"--interface={interface}", "--bind-interfaces",
            f"--dhcp-leasefile={self._leases}", f"--log-facility={self._log}", f"--pid-file={place / 'dnsmasq.pid'}",
            f"--dhcp-range={offered.first},{offered.last},{offered.netmask},{offered.seconds}",
            # With no value the option is not sent at all; without the word dnsmasq would name itself.
            f"--dhcp-option=option:router{',' + offered.router if offered.router else ''}",
            f"--dhcp-option=option:dns-server{',' + ','.join(offered.dns) if offered.dns else ''}",
            "--dhcp-lease-max=5000",
        ]  # fmt: skip
        if offered.domain:
            words.append(f"--dhcp-option=option:domain-name,{offered.domain}")
        if offered.search:
            words.append(f"--dhcp-option=option:domain-search,{','.join(offered.search)}")
        if offered.classless:
            pairs = ",".join(f"{destination},{router}" for destination, router in offered.classless)
            words.append(f"--dhcp-option=option:classless-static-route,{pairs}")
        words += offered.extra
        self._leases.touch()
        self.daemon = Daemon(words, netns, place / "dnsmasq.out")
        wait_for("dnsmasq listens", lambda: "sockets bound" in self._text() or "DHCP, IP range" in self._text())

    def _text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def leases(self) -> set[str]:
        """Return the addresses in the lease file."""
        return {line.split()[2] for line in self._leases.read_text().splitlines() if line.count(" ") >= 4}

    def releases(self) -> int:
        """Count the DHCPRELEASE lines that name no trouble."""
        lines = re.findall(r"DHCPRELEASE\(.*", self._text())
        return sum("unknown lease" not in line for line in lines)

    def count(self, kind: str) -> int:
        """Count log lines of a message kind."""
        return len(re.findall(rf"DHCP{kind}\(", self._text()))


class IscDhcpd:
    """ISC dhcpd(8)."""

    def __init__(self, netns: str, interface: str, place: pathlib.Path, offered: Offered) -> None:
        self._leases = place / "dhcpd.leases"
        self._leases.touch()
        config = place / "dhcpd.conf"
        network = ".".join((*offered.server.split(".")[:2], "0", "0"))
        routers = f"option routers {offered.router};" if offered.router else ""
        dns = f"option domain-name-servers {', '.join(offered.dns)};" if offered.dns else ""
        config.write_text(
            f"authoritative; ping-check false;\n"
            f"default-lease-time {offered.seconds}; max-lease-time {offered.seconds};\n"
            f"subnet {network} netmask {offered.netmask} {{ range {offered.first} {offered.last}; {routers} {dns} }}\n"
        )
        self.daemon = Daemon(
            ["dhcpd", "-4", "-f", "-d", "--no-pid", "-cf", config, "-lf", self._leases, interface],
            netns,
            place / "dhcpd.log",
        )
        wait_for("dhcpd listens", lambda: "Listening on" in self.daemon.output() and self.daemon.alive())
        time.sleep(0.2)

    def leases(self) -> set[str]:
        """Return the addresses whose last record in the lease file is active."""
        state: dict[str, str] = {}
        for address, body in re.findall(r"^lease (\S+) \{(.*?)^\}", self._leases.read_text(), re.DOTALL | re.MULTILINE):
            found = re.search(r"^  binding state (\w+);", body, re.MULTILINE)
            state[address] = found[1] if found else ""
        return {address for address, binding in state.items() if binding == "active"}

    def releases(self) -> int:
        """Count the DHCPRELEASE lines that say "found": the lease was there."""
        return len(re.findall(r"DHCPRELEASE of .* \(found\)", self.daemon.output()))

    def count(self, kind: str) -> int:
        """Count log lines of a message kind."""
        return len(re.findall(rf"^DHCP{kind} ", self.daemon.output(), re.MULTILINE))


class Kea:
    """kea-dhcp4(8), with its lease file in memfile form."""

    def __init__(self, netns: str, interface: str, place: pathlib.Path, offered: Offered) -> None:
        self._leases = place / "kea.csv"
        options = [{"name": "routers", "data": offered.router}] if offered.router else []
        if offered.dns:
            options.append({"name": "domain-name-servers", "data": ", ".join(offered.dns)})
        network = ".".join((*offered.server.split(".")[:2], "0", "0"))
        subnet = {
            "id": 1,
            "subnet": f"{network}/16",
            "pools": [{"pool": f"{offered.first} - {offered.last}"}],
            "option-data": options,
        }
        config = {
            "Dhcp4": {
                "interfaces-config": {"interfaces": [interface]},
                "lease-database": {"type": "memfile", "name": str(self._leases), "lfc-interval": 0},
                "valid-lifetime": offered.seconds,
                "authoritative": True,
                "subnet4": [subnet],
                "loggers": [
                    {
                        "name": "kea-dhcp4",
                        "output_options": [{"output": "stdout"}],
                        "severity": "DEBUG",
                        "debuglevel": 50,
                    }
                ],
            }
        }
        file = place / "kea.json"
        file.write_text(json.dumps(config))
        env = {"KEA_PIDFILE_DIR": str(place), "KEA_LOCKFILE_DIR": str(place), "KEA_LOGGER_DESTINATION": "stdout"}
        self.daemon = Daemon(["kea-dhcp4", "-c", file], netns, place / "kea.log", env)
        wait_for("kea listens", lambda: "DHCP4_STARTED" in self.daemon.output() and self.daemon.alive())

    def leases(self) -> set[str]:
        """Return the addresses whose last record has a life time left."""
        with self._leases.open(newline="") as file:
            last = {row["address"]: row for row in csv.DictReader(file)}
        return {
            address for address, row in last.items() if int(row["valid_lifetime"]) > 0 and row.get("state", "0") == "0"
        }

    def releases(self) -> int:
        """Count the releases that it accepted."""
        return len(re.findall(r"DHCP4_RELEASE |DHCP4_RELEASE_DELETED|DHCP4_RELEASE\b", self.daemon.output()))

    def count(self, kind: str) -> int:
        """Count received packets of a kind."""
        return len(re.findall(rf"DHCP4_PACKET_RECEIVED.*DHCP{kind}", self.daemon.output()))


class Udhcpd:
    """busybox udhcpd; it asks by ARP whether an address is free and waits 2 s for the answer."""

    def __init__(self, netns: str, interface: str, place: pathlib.Path, offered: Offered) -> None:
        self._leases = place / "udhcpd.leases"
        self._leases.touch()
        lines = [f"start {offered.first}", f"end {offered.last}", f"interface {interface}", "max_leases 5376"]
        lines += [f"lease_file {self._leases}", f"pidfile {place / 'udhcpd.pid'}", f"option subnet {offered.netmask}"]
        lines += [f"option lease {offered.seconds}"]
        if offered.router:
            lines.append(f"option router {offered.router}")
        if offered.dns:
            lines.append(f"option dns {' '.join(offered.dns)}")
        config = place / "udhcpd.conf"
        config.write_text("\n".join(lines) + "\n")
        self.daemon = Daemon(["busybox", "udhcpd", "-f", config], netns, place / "udhcpd.log")
        wait_for("udhcpd listens", lambda: "started" in self.daemon.output() and self.daemon.alive())

    def leases(self) -> set[str]:
        """Return the addresses in the lease file, which it writes when it is told to."""
        before = self._leases.stat().st_mtime_ns
        self.daemon.send_signal(signal.SIGUSR1)
        wait_for("the lease file is written", lambda: self._leases.stat().st_mtime_ns > before)
        listed = run(["busybox", "dumpleases", "-f", self._leases]).stdout
        return set(re.findall(r"\b(?:\d+\.){3}\d+\b", listed))

    def releases(self) -> int:
        """Count the releases that it has logged."""
        return self.count("RELEASE")

    def count(self, kind: str) -> int:
        """Count log lines of a message kind, as far as it logs them."""
        return len(re.findall(rf"received {kind}|{kind}", self.daemon.output()))


SERVERS: dict[str, Callable[[str, str, pathlib.Path, Offered], Server]] = {
    "dnsmasq": Dnsmasq,
    "isc": IscDhcpd,
    "kea": Kea,
    "udhcpd": Udhcpd,
}


def packages_are_there() -> None:
    """Raise RuntimeError when a program is not installed: a missing tool is a failure, never a skip."""
    for program in ("dnsmasq", "dhcpd", "kea-dhcp4", "busybox", "qemu-system-x86_64", "tcpdump"):
        run(["sh", "-c", f"command -v {program}"])
