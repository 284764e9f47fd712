"""Fuzz the DHCP client: `python -m tests.fuzz.fuzz_client [libFuzzer's options] [corpus directories]`."""

from __future__ import annotations

import sys

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["ovn_k8s_cni.dhcp", "ovn_k8s_cni.system.ipv4"]):
    from tests.fuzz import targets


def main() -> None:
    """Fuzz until a limit of libFuzzer's is reached or something does not hold; does not return."""
    atheris.Setup(sys.argv, targets.client)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
