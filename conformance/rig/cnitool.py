"""cnitool, the reference runtime: libcni's own way of calling a plugin."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import Any

from conformance.rig.process import TOOLS, run
from conformance.rig.rig import NETWORK, Answer, Pod, Rig

# libcni keeps results in /var/lib/cni, which belongs to the machine.
_WITH_CACHE_OF_ITS_OWN = (
    'mount -t tmpfs none /var/lib && mkdir /var/lib/cni && mount --bind "$1" /var/lib/cni && shift && exec "$@"'
)

CNITOOL = TOOLS / "bin/cnitool"


@dataclasses.dataclass(frozen=True)
class Cnitool:
    """cnitool on a rig's node, with a network configuration list of one plugin in a given version."""

    rig: Rig
    version: str
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def _directory(self) -> pathlib.Path:
        directory = self.rig.place / f"net.d-{self.version}"
        directory.mkdir(exist_ok=True)
        plugin = self.rig.config(cniVersion=None, name=None) | self.extra
        config = {"cniVersion": self.version, "name": NETWORK, "plugins": [plugin]}
        (directory / "10-physnet.conflist").write_text(json.dumps(config))
        return directory

    def _cache(self) -> pathlib.Path:
        cache = self.rig.place / "libcni"
        cache.mkdir(exist_ok=True)
        return cache

    def call(self, verb: str, pod: Pod) -> Answer:
        """Run `cnitool verb NETWORK netns`; it takes the container ID from the netns path."""
        env = {
            "NETCONFPATH": str(self._directory()),
            "CNI_PATH": str(self.rig.bin),
            "CNI_IFNAME": pod.ifname,
            "HOME": str(self.rig.place),
        }
        done = run(
            [
                "unshare",
                "--mount",
                "sh",
                "-ec",
                _WITH_CACHE_OF_ITS_OWN,
                "sh",
                self._cache(),
                CNITOOL,
                verb,
                NETWORK,
                pod.path,
            ],
            self.rig.node,
            env=env,
            check=False,
        )
        parsed = json.loads(done.stdout) if done.stdout.strip().startswith("{") else None
        return Answer(done.returncode, parsed, done.stdout, done.stderr, 0.0)


def error(answer: Answer) -> str:
    """Return what a person sees of a failure."""
    return answer.stdout + answer.stderr
