"""The CNI result (CNI spec 1.1.0, section 5, "Add Success"): built and read in the newest form, converted at the edge.

In between a result is a plain dict of the 1.1.0 shape: `interfaces`, `ips`, `routes`, `dns`.
"""

from __future__ import annotations

from ovn_k8s_cni.cni import versions
from ovn_k8s_cni.cni.error import DECODING_FAILURE, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SINCE_1_1_0 = {"interfaces": ("mtu", "socketPath", "pciID"), "routes": ("mtu", "advmss", "priority", "table", "scope")}


def empty() -> dict[str, Any]:
    """Return a result with nothing in it."""
    return {"interfaces": [], "ips": [], "routes": [], "dns": {}}


def convert(result: dict[str, Any], version: str) -> dict[str, Any]:
    """Return `result` in the shape of `version` (one of `versions.SUPPORTED`), `cniVersion` included."""
    shaped = {name: [dict(item) for item in result[name]] for name in ("interfaces", "ips", "routes")}
    if versions.key(version) < versions.key("1.1.0"):
        for name, newer in _SINCE_1_1_0.items():
            for item in shaped[name]:
                for field in newer:
                    item.pop(field, None)
    if versions.key(version) < versions.key("1.0.0"):
        for ip in shaped["ips"]:
            ip["version"] = "4"
    # Empty lists are left out, as libcni does: a runtime reads a missing list and an empty one alike.
    filled = {name: items for name, items in shaped.items() if items}
    return {"cniVersion": version, **filled, "dns": result["dns"]}


def parse(raw: Any, origin: str) -> dict[str, Any]:
    """Return the result object `raw` (any supported version) in the 1.1.0 shape.

    Raises code 6, naming `origin`, when a part has not the specification's form.
    """
    if not isinstance(raw, dict):
        raise CniError(DECODING_FAILURE, f"{origin} is not a CNI result", f"found: {type(raw).__name__}")
    parsed = empty()
    for name in ("interfaces", "ips", "routes"):
        items = raw.get(name) or []
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise CniError(DECODING_FAILURE, f"{name} of {origin} is not a list of objects", f"found: {items!r:.200}")
        parsed[name] = [{key: value for key, value in item.items() if key != "version"} for item in items]
    dns = raw.get("dns") or {}
    if not isinstance(dns, dict):
        raise CniError(DECODING_FAILURE, f"dns of {origin} is not an object", f"found: {dns!r:.200}")
    parsed["dns"] = dns
    return parsed
