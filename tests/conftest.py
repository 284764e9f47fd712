"""What every test gets: steady hypothesis, no node file of this machine, network namespaces that leave nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.support import Namespace

# The same examples on every machine; HYPOTHESIS_PROFILE=explore looks for new ones.
settings.register_profile("steady", derandomize=True, deadline=None, database=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@pytest.fixture(scope="session", autouse=True)
def nothing_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep this machine's node file and dhcp plugin out of the tests."""
    nothing = tmp_path_factory.mktemp("nothing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ovn_k8s_cni.config.DEFAULT_NODE_FILE", str(nothing / "config.json"))
        for module in ("cni.request", "ipam.delegate"):
            patch.setattr(f"ovn_k8s_cni.{module}.DEFAULT_PATH", str(nothing))
        yield


@pytest.fixture
def netns() -> Iterator[Namespace]:
    """Return an empty network namespace."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    with Namespace() as namespace:
        yield namespace
