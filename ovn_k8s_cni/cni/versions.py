"""CNI specification versions: which are spoken here, and which verb came with which."""

from __future__ import annotations

from ovn_k8s_cni.cni.error import INCOMPATIBLE_VERSION, CniError

SUPPORTED = ("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
HIGHEST = SUPPORTED[-1]

# A configuration without `cniVersion` means 0.1.0 (libcni's reading of the first specification).
UNSTATED = "0.1.0"

# First version that knows the verb; those not named are older than all that we support.
_INTRODUCED = {"CHECK": "0.4.0", "STATUS": "1.1.0", "GC": "1.1.0"}


def key(version: str) -> tuple[int, ...]:
    """Return `version` as numbers to compare: `"1.0.0"` gives `(1, 0, 0)`; a non-version gives `()`."""
    parts = version.split(".")
    return tuple(int(part) for part in parts) if all(part.isascii() and part.isdigit() for part in parts) else ()


def require(version: str, verb: str) -> None:
    """Raise code 1 unless `version` is supported and knows `verb`."""
    if version not in SUPPORTED:
        raise CniError(
            INCOMPATIBLE_VERSION,
            f"CNI version {version!r} of the network config is not supported",
            f"supported: {', '.join(SUPPORTED)}",
        )
    introduced = _INTRODUCED.get(verb)
    if introduced is not None and key(version) < key(introduced):
        raise CniError(
            INCOMPATIBLE_VERSION,
            f"{verb} does not exist in CNI version {version}",
            f"it came with {introduced}; set cniVersion to {introduced} or newer",
        )


def highest_common(others: list[str], at_most: str) -> str | None:
    """Return the highest supported version in `others` that is not above `at_most`, None when there is none."""
    common = [version for version in SUPPORTED if version in others and key(version) <= key(at_most)]
    return common[-1] if common else None


def answer(asked: str) -> dict[str, object]:
    """Return the VERSION answer; `cniVersion` echoes a version that we know (CNI spec, section 2, VERSION)."""
    return {"cniVersion": asked if asked in SUPPORTED else HIGHEST, "supportedVersions": list(SUPPORTED)}
