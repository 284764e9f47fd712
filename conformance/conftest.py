"""What every conformance test relies on: the built file and the tools are there, and nothing is left behind."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Iterator

import pytest

from conformance.rig.rig import plugin_is_built
from conformance.rig.servers import packages_are_there


@pytest.fixture(scope="session", autouse=True)
def _parts_are_there() -> None:
    plugin_is_built()
    packages_are_there()


def _of_this_machine() -> tuple[set[str], set[str], set[str]]:
    """Return what a test might leave: namespaces, links of the host, and directories of an unpacked program."""
    netns = {path.name for path in pathlib.Path("/run/netns").glob(f"okc-{os.getpid()}-*")}
    links = subprocess.run(["ip", "-brief", "link"], capture_output=True, text=True, check=True).stdout
    places = [*pathlib.Path("/tmp").glob("_MEI*"), *pathlib.Path("/tmp").glob(f"okc-rig-{os.getpid()}-*")]
    return netns, {line.split()[0] for line in links.splitlines()}, {str(place) for place in places}


@pytest.fixture(autouse=True, scope="module")
def _nothing_is_left() -> Iterator[None]:
    before = _of_this_machine()
    yield
    assert _of_this_machine() == before
