"""Who is attached: a pod, or a KubeVirt virtual machine whose guest owns the lease (design decision 8).

The node file or the network config says so (`workload`), else a hint of the runtime, else it is a pod.
"""

from __future__ import annotations

from ovn_k8s_cni.datapath.record import DELEGATED, DISCOVERED, NO_ADDRESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ovn_k8s_cni.cni.request import Request
    from ovn_k8s_cni.config import Config

POD, VM = "pod", "vm"

# A capability of containerd: the annotations of the pod.
_POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
_VM_ANNOTATION = "kubevirt.io/domain"


def decide(request: Request, config: Config) -> str:
    """Return POD or VM."""
    if config.workload in (POD, VM):
        return config.workload
    return VM if VM in _hints(request) else POD


def ipam(request: Request, config: Config) -> str:
    """Return how the attachment's address comes: NO_ADDRESS, DELEGATED or DISCOVERED."""
    if config.ipam is None:
        return NO_ADDRESS
    return DISCOVERED if decide(request, config) == VM else DELEGATED


def _hints(request: Request) -> list[object]:
    """Return what the runtime says: `workload` of runtimeConfig or args.cni, WORKLOAD= in CNI_ARGS, the annotations."""
    runtime = _object(request.config, "runtimeConfig")
    arguments = _object(_object(request.config, "args"), "cni")
    annotated = VM if _VM_ANNOTATION in _object(runtime, _POD_ANNOTATIONS) else POD
    return [runtime.get("workload"), arguments.get("workload"), request.args.get("WORKLOAD"), annotated]


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}
