"""Who is attached, and so whose the lease is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovn_k8s_cni import config as configs
from ovn_k8s_cni import workload
from ovn_k8s_cni.cni import request as requests
from ovn_k8s_cni.ipam import discovery

MAC = b"\x0a\x58\x0a\0\0\1"
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"


def _ipam(config: dict[str, Any], args: str = "") -> str:
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/run/netns/x",
        "CNI_IFNAME": "net1",
        "CNI_ARGS": args,
    }
    whole = {"cniVersion": "1.1.0", "name": "blue", "ipam": {"type": "dhcp"}, **config}
    request = requests.parse(environment, json.dumps(whole).encode())
    return workload.ipam(request, configs.load(request))


@pytest.mark.parametrize(
    ("config", "args", "expected"),
    [
        ({}, "", "dhcp"),
        ({"ipam": None}, "", "none"),
        ({"ipam": None, "workload": "vm"}, "", "none"),
        ({"workload": "vm"}, "", "discovery"),
        ({"workload": "pod", "runtimeConfig": {"workload": "vm"}}, "", "dhcp"),
        ({"workload": "auto", "runtimeConfig": {"workload": "vm"}}, "", "discovery"),
        ({"runtimeConfig": {"workload": "pod"}}, "", "dhcp"),
        ({"runtimeConfig": {ANNOTATIONS: {"kubevirt.io/domain": "vm1"}}}, "", "discovery"),
        ({"runtimeConfig": {ANNOTATIONS: {"kubevirt.io/other": "vm1"}}}, "", "dhcp"),
        ({"runtimeConfig": {ANNOTATIONS: None}}, "", "dhcp"),
        ({"args": {"cni": {"workload": "vm"}}}, "", "discovery"),
        ({"args": {"cni": None}}, "", "dhcp"),
        ({}, "IgnoreUnknown=1;WORKLOAD=vm", "discovery"),
        ({}, "WORKLOAD=VM", "dhcp"),
    ],
)
def test_how_the_address_comes(config: dict[str, Any], args: str, expected: str) -> None:
    assert _ipam(config, args) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("mac", b"\1" + MAC), ("none", None), ("hex:ff0001", b"\xff\0\1")],
)
def test_the_client_identifier(wanted: str, expected: bytes | None) -> None:
    assert discovery.client_id(wanted, MAC) == expected
