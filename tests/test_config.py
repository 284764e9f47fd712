"""Network config and node file: every key's range and type, who wins, and every problem named at once."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni import config as configs
from ovn_k8s_cni.cni import request as requests
from ovn_k8s_cni.cni.error import CniError
from ovn_k8s_cni.config import Config
from ovn_k8s_cni.system.ipv4 import parse_mac
from tests.support import asked, environment, mac_bytes, network_config

pytestmark = pytest.mark.timeout(30)


def load(config: dict[str, Any], verb: str = "ADD", **variables: str | None) -> Config:
    return configs.load(requests.parse(environment(verb, **variables), json.dumps(config).encode()))


def loaded(verb: str = "ADD", **changes: Any) -> Config:
    return load(network_config(**changes), verb)


def trouble(verb: str = "ADD", **changes: Any) -> CniError:
    with pytest.raises(CniError) as caught:
        loaded(verb, **changes)
    return caught.value


@pytest.fixture
def node_file(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "config.json"


def written(file: pathlib.Path, content: object) -> str:
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return str(file)


# ---- what is understood


def test_the_seeds_own_network() -> None:
    config = load(
        {
            "cniVersion": "1.1.0",
            "type": "ovn-k8s-cni-overlay",
            "name": "cluster_udn_localnet-dhcp-ipam",
            "netAttachDefName": "test-localnet-dhcp-ipam/localnet-dhcp-ipam",
            "topology": "localnet",
            "role": "secondary",
            "physicalNetworkName": "physnet",
            "ipam": {"type": "dhcp"},
        }
    )
    assert config == Config(
        network="cluster_udn_localnet-dhcp-ipam",
        nad_key="test-localnet-dhcp-ipam/localnet-dhcp-ipam",
        physical_network="physnet",
        vlan_id=None,
        mtu=None,
        mac=None,
        ipam={"type": "dhcp"},
        dns={},
        default_route=False,
        workload="auto",
        client_id="mac",
        valid_attachments=None,
        datapath="auto",
        ovsdb_socket="/var/run/openvswitch/db.sock",
        bridge_mappings={},
        transient_ports=True,
        deadline_seconds=55.0,
        log_file=None,
        log_level="warning",
    )


def test_without_a_physical_network_the_networks_own_name_is_mapped() -> None:
    config = network_config()
    del config["physicalNetworkName"]
    assert load(config).physical_network == "cluster_udn_blue"


def test_unknown_keys_of_the_network_config_are_somebody_elses() -> None:
    assert loaded(allowPersistentIPs=True, capabilities={"mac": True}, x=[1]) == loaded()


ACCEPTED: dict[str, list[tuple[Any, str, Any]]] = {
    "vlanID": [(1, "vlan_id", 1), (4094, "vlan_id", 4094), (None, "vlan_id", None)],
    "mtu": [(576, "mtu", 576), (9000, "mtu", 9000), (65535, "mtu", 65535), (None, "mtu", None)],
    "datapath": [("auto", "datapath", "auto"), ("ovs", "datapath", "ovs"), ("linux", "datapath", "linux")],
    "ovsdbSocket": [("/run/db.sock", "ovsdb_socket", "/run/db.sock")],
    "bridgeMappings": [
        ("a:br-a", "bridge_mappings", {"a": "br-a"}),
        ("a:br-a,b:br-b", "bridge_mappings", {"a": "br-a", "b": "br-b"}),
        (" a : br-a , b:br-b ", "bridge_mappings", {"a": "br-a", "b": "br-b"}),
    ],
    "transientPorts": [(False, "transient_ports", False), (None, "transient_ports", True)],
    "deadlineSeconds": [(1, "deadline_seconds", 1.0), (3600, "deadline_seconds", 3600.0),
                        (2.5, "deadline_seconds", 2.5)],
    "defaultRoute": [(True, "default_route", True), (None, "default_route", False)],
    "workload": [(kind, "workload", kind) for kind in ("auto", "pod", "vm")] + [(None, "workload", "auto")],
    "clientId": [
        ("mac", "client_id", "mac"),
        ("none", "client_id", "none"),
        (None, "client_id", "mac"),
        ("hex:01aB", "client_id", "hex:01aB"),
        ("hex:01:aB:02", "client_id", "hex:01aB02"),
        ("hex:" + "00" * 255, "client_id", "hex:" + "00" * 255),
    ],
    "logFile": [("/var/log/x", "log_file", "/var/log/x"), (None, "log_file", None)],
    "logLevel": [(level, "log_level", level) for level in ("error", "warning", "info", "debug")],
    "topology": [("localnet", "network", "cluster_udn_blue"), (None, "network", "cluster_udn_blue")],
    "role": [("secondary", "network", "cluster_udn_blue"), (None, "network", "cluster_udn_blue")],
    "dns": [({"nameservers": ["192.0.2.1"]}, "dns", {"nameservers": ["192.0.2.1"]}), (None, "dns", {})],
}  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"), [(key, *case) for key, cases in ACCEPTED.items() for case in cases]
)
def test_accepted(key: str, value: Any, field: str, expected: Any) -> None:
    assert getattr(loaded(**{key: value}), field) == expected


NO_INTEGER: list[Any] = [True, False, "100", 100.0, 1.5, [100], {}, -1, 0, 2**63]
REFUSED: dict[str, list[Any]] = {
    "vlanID": [*NO_INTEGER, 4095, 4096],
    "mtu": [*NO_INTEGER, 575, 65536],
    "datapath": ["", "OVS", "bridge", 1, ["ovs"], {}],
    "ovsdbSocket": ["", "db.sock", "tcp:127.0.0.1:6640", "/a\0b", 1, True, []],
    "bridgeMappings": ["", "a", "a:", ":b", "a:b,", ",", "a:b,c", 1, {"a": "b"}, ["a:b"]],
    "transientPorts": ["true", 0, 1, [], "no"],
    "deadlineSeconds": [0, 0.5, 3601, -1, "55", True, [], 1e308],
    "defaultRoute": ["true", 1, 0, [], {}],
    "workload": ["", "VM", "container", 1, True, []],
    "clientId": ["", "MAC", "01ab", "hex:", "hex:01", "hex:01a", "hex:0g01", "hex:" + "00" * 256, 1, True, [], {}],
    "logFile": ["", "x.log", 1, True, []],
    "logLevel": ["", "WARNING", "warn", 1, []],
    "netAttachDefName": ["", 1, [], {}],
    "physicalNetworkName": ["", 1, [], True],
    "topology": ["layer2", "layer3", "Localnet", 1, ""],
    "role": ["primary", "Secondary", 1, ""],
    "nodeConfig": ["", "relative", 1, None, []],
    "ipam": [1, "dhcp", True, ["dhcp"]],
    "dns": [
        1,
        "8.8.8.8",
        ["8.8.8.8"],
        True,
        {"nameservers": "8.8.8.8"},
        {"nameservers": [1]},
        {"domain": ["a"]},
        {"domain": None},
        {"search": "a"},
        {"search": None},
        {"options": {}},
    ],
    "runtimeConfig": [1, "x", [], True],
    "args": [1, "x", [], True, {"cni": 1}, {"cni": []}],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in REFUSED.items() for value in values])
def test_refused(key: str, value: Any) -> None:
    problem = trouble(**{key: value})
    assert problem.code == 7
    named = (
        {"args": "cni", "dns": f"dns.{next(iter(value))}"}.get(key, key) if isinstance(value, dict) and value else key
    )
    assert problem.details.startswith(f"{named}=")
    assert ": expected " in problem.details


def test_what_is_refused_is_shown_with_what_was_expected() -> None:
    problem = trouble(vlanID=4095)
    assert (
        str(problem)
        == "the config of network cluster_udn_blue has a problem; vlanID=4095: expected an integer from 1 to 4094"
    )


def test_long_values_are_cut() -> None:
    assert len(trouble(vlanID="x" * 10_000).details) < 200


def test_several_problems_are_named_in_one_error(node_file: pathlib.Path) -> None:
    problem = trouble(
        vlanID=0,
        mtu="big",
        topology="layer2",
        nodeConfig=written(node_file, {"deadlineSeconds": 0}),
        runtimeConfig={"mac": "multicast"},
        ipam={"type": "static"},
    )
    assert problem.code == 7
    assert problem.msg == "the config of network cluster_udn_blue has 6 problems"
    for key in (
        "vlanID=0",
        'mtu="big"',
        'topology="layer2"',
        "node file: deadlineSeconds=0",
        "runtimeConfig.mac",
        "ipam.type",
    ):
        assert key in problem.details


# ---- ipam and subnets


@pytest.mark.parametrize("ipam", [None, {}, {"type": ""}])
def test_without_ipam_there_is_an_interface_only(ipam: Any) -> None:
    assert loaded(ipam=ipam).ipam is None


def test_ipam_key_absent() -> None:
    config = network_config()
    del config["ipam"]
    assert load(config).ipam is None


def test_the_whole_ipam_section_is_kept() -> None:
    ipam = {
        "type": "dhcp",
        "daemonSocketPath": "/run/x.sock",
        "request": [{"option": "42", "skipDefault": True}],
        "provide": [{"option": "12", "fromArg": "K8S_POD_NAME"}],
        "priority": 5,
        "of another release": [None],
    }
    assert loaded(ipam=ipam).ipam == ipam


@pytest.mark.parametrize("kind", ["static", "host-local", "DHCP", "whereabouts", 1, None, ["dhcp"]])
def test_other_ipam_is_refused_with_what_is_supported(kind: Any) -> None:
    problem = trouble(ipam={"type": kind, "subnet": "192.0.2.0/24"})
    assert problem.code == 7
    assert f"ipam.type={json.dumps(kind)}" in problem.details
    assert "dhcp" in problem.details.partition("expected")[2]


def test_ipam_without_a_type_is_refused() -> None:
    assert "ipam.type=null" in trouble(ipam={"subnet": "192.0.2.0/24"}).details


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("daemonSocketPath", 1),
        ("daemonSocketPath", ["/run/x"]),
        ("request", {}),
        ("request", "121"),
        ("request", ["121"]),
        ("request", [None]),
        ("provide", 1),
        ("provide", [1]),
    ],
)
def test_malformed_ipam_section(key: str, value: Any) -> None:
    problem = trouble(ipam={"type": "dhcp", key: value})
    assert (problem.code, f"ipam.{key}=" in problem.details) == (7, True)


@pytest.mark.parametrize("subnets", ["192.0.2.0/24", ["192.0.2.0/24"], "x"])
def test_subnets_together_with_dhcp(subnets: Any) -> None:
    problem = trouble(subnets=subnets)
    assert (problem.code, "subnets=" in problem.details) == (7, True)


@pytest.mark.parametrize("ipam", [None, {}, {"type": ""}])
def test_subnets_alone_are_not_supported(ipam: Any) -> None:
    problem = trouble(subnets="192.0.2.0/24", ipam=ipam)
    assert problem.code == 2
    assert 'subnets="192.0.2.0/24"' in problem.msg
    assert "dhcp" in problem.details


@pytest.mark.parametrize("subnets", [None, "", []])
def test_no_subnets_are_fine(subnets: Any) -> None:
    assert loaded(subnets=subnets).ipam == {"type": "dhcp"}


# ---- MAC requests

FIRST, SECOND, THIRD = "02:00:00:00:00:01", "02:00:00:00:00:02", "02:00:00:00:00:03"


def mac_of(runtime: Any = None, arguments: Any = None, cni_args: str = "", verb: str = "ADD") -> bytes | None:
    config = network_config(runtimeConfig={"mac": runtime}, args={"cni": {"mac": arguments}})
    return load(config, verb, CNI_ARGS=cni_args).mac


@pytest.mark.parametrize(
    ("runtime", "arguments", "cni_args", "expected"),
    [
        (FIRST, SECOND, f"MAC={THIRD}", FIRST),
        (None, SECOND, f"MAC={THIRD}", SECOND),
        ("", SECOND, f"MAC={THIRD}", SECOND),
        (None, None, f"MAC={THIRD}", THIRD),
        ("", "", f"MAC={THIRD}", THIRD),
        (None, SECOND, "", SECOND),
        (FIRST, "broken", "MAC=broken", FIRST),
        (None, None, "MAC=", None),
        (None, None, "mac=" + THIRD, None),
        (None, None, "", None),
    ],
)
def test_order_of_mac_requests(runtime: Any, arguments: Any, cni_args: str, expected: str | None) -> None:
    assert mac_of(runtime, arguments, cni_args) == (mac_bytes(expected) if expected else None)


@pytest.mark.parametrize(
    "text", ["0a:58:C0:00:02:Ff", "0A:58:C0:00:02:FF", "0a:58:c0:00:02:ff", "0a-58-c0-00-02-ff", "0A-58-c0-00-02-FF"]
)
def test_macs_are_read_in_any_case(text: str) -> None:
    assert mac_of(text) == mac_bytes("0a:58:c0:00:02:ff")


NO_MAC: list[tuple[Any, str]] = [
    ("01:00:5e:00:00:01", "multicast"),
    ("ff:ff:ff:ff:ff:ff", "multicast"),
    ("03:00:00:00:00:01", "multicast"),
    ("00:00:00:00:00:00", "all zeros"),
    ("0a:58:c0:00:02", "six pairs"),
    ("0a:58:c0:00:02:07:08", "six pairs"),
    ("0a58.c000.0207", "six pairs"),
    ("0a58c0000207", "six pairs"),
    ("a:58:c0:0:2:7", "six pairs"),
    ("0g:58:c0:00:02:07", "six pairs"),
    (" 0a:58:c0:00:02:07", "six pairs"),
    ("0a:58:c0:00:02:07\n", "six pairs"),
    ("0a:58:c0:00:02:+7", "six pairs"),
    ("\N{ARABIC-INDIC DIGIT ZERO}a:58:c0:00:02:07", "six pairs"),
    ("random", "six pairs"),
    (5, "six pairs"),
    (0, "six pairs"),
    (False, "six pairs"),
    (["0a:58:c0:00:02:07"], "six pairs"),
    ({}, "six pairs"),
]


@pytest.mark.parametrize(("wish", "reason"), NO_MAC)
@pytest.mark.parametrize("place", ["runtimeConfig.mac", "args.cni.mac"])
def test_malformed_mac(place: str, wish: Any, reason: str) -> None:
    with pytest.raises(CniError) as caught:
        mac_of(*((wish, None) if place == "runtimeConfig.mac" else (None, wish)))
    assert caught.value.code == 7
    assert caught.value.details.startswith(f"{place}=")
    assert reason in caught.value.details


@pytest.mark.parametrize(("wish", "reason"), [case for case in NO_MAC if isinstance(case[0], str)])
def test_malformed_mac_in_the_arguments(wish: str, reason: str) -> None:
    with pytest.raises(CniError) as caught:
        mac_of(cni_args=f"MAC={wish}")
    assert (caught.value.code, "CNI_ARGS MAC=" in str(caught.value), reason in str(caught.value)) == (7, True, True)


@given(st.binary(min_size=6, max_size=6), st.booleans())
def test_every_unicast_mac_can_be_asked_for(mac: bytes, upper: bool) -> None:
    text = mac.hex(":").upper() if upper else mac.hex(":")
    if mac[0] & 1 or not any(mac):
        with pytest.raises(ValueError, match=r"multicast|zeros"):
            parse_mac(text)
    else:
        assert parse_mac(text) == mac


def test_runtime_config_as_containerd_gives_it() -> None:
    """Go's nil slices and maps arrive as null."""
    runtime = {
        "dns": {"Servers": ["192.0.2.53"], "Searches": None, "Options": None},
        "portMappings": [{"HostPort": 80, "ContainerPort": 8080, "Protocol": "tcp", "HostIP": ""}],
        "io.kubernetes.cri.pod-annotations": None,
        "mac": None,
        "ips": None,
    }
    assert loaded(runtimeConfig=runtime) == loaded()


@pytest.mark.parametrize("changes", [{"runtimeConfig": None}, {"args": None}, {"args": {"cni": None}}, {"dns": None}])
def test_null_is_like_absent(changes: dict[str, Any]) -> None:
    assert loaded(**changes) == loaded()


# ---- the node file


def test_the_default_node_file_may_be_missing() -> None:
    assert loaded().deadline_seconds == 55


def test_the_default_node_file_is_read(monkeypatch: pytest.MonkeyPatch, node_file: pathlib.Path) -> None:
    monkeypatch.setattr(configs, "DEFAULT_NODE_FILE", written(node_file, {"deadlineSeconds": 20}))
    assert loaded().deadline_seconds == 20


def test_the_network_config_wins_over_the_node_file(node_file: pathlib.Path) -> None:
    settings = {"deadlineSeconds": 20, "defaultRoute": True, "logLevel": "debug", "datapath": "ovs"}
    config = loaded(nodeConfig=written(node_file, settings), deadlineSeconds=30, defaultRoute=False)
    assert (config.deadline_seconds, config.default_route) == (30, False)
    assert (config.datapath, config.log_level) == ("linux", "debug")


def test_null_in_the_network_config_leaves_the_word_to_the_node_file(node_file: pathlib.Path) -> None:
    path = written(node_file, {"deadlineSeconds": 20, "logLevel": None})
    config = loaded(nodeConfig=path, deadlineSeconds=None)
    assert (config.deadline_seconds, config.log_level) == (20, "warning")


def test_a_named_node_file_must_be_there(node_file: pathlib.Path) -> None:
    problem = trouble(nodeConfig=str(node_file))
    assert problem.code == 7
    assert str(problem) == f"the node file {node_file} cannot be read; No such file or directory"


def test_unreadable_node_file(tmp_path: pathlib.Path) -> None:
    problem = trouble(nodeConfig=str(tmp_path))
    assert (problem.code, "cannot be read; Is a directory" in str(problem)) == (7, True)


def test_unreadable_default_node_file(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setattr(configs, "DEFAULT_NODE_FILE", str(tmp_path))
    assert trouble().code == 7


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON; empty"),
        (b"datapath: ovs\n", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON; starts with a byte-order mark"),
        (b'{"logLevel": "\xff"}', "is not JSON; not UTF-8"),
        (b"[]", "is not a JSON object; found: list"),
        (b"null", "is not a JSON object"),
    ],
)
def test_malformed_node_file(node_file: pathlib.Path, content: bytes, reason: str) -> None:
    problem = trouble(nodeConfig=written(node_file, content))
    assert problem.code == 7
    assert f"the node file {node_file} {reason}" in str(problem)


def test_unknown_keys_of_the_node_file_are_named(node_file: pathlib.Path) -> None:
    problem = trouble(nodeConfig=written(node_file, {"datapth": "ovs", "vlanID": 5, "logLevel": "debug"}))
    assert problem.code == 7
    assert problem.msg == f"the node file {node_file} has unknown keys: datapth, vlanID"
    assert "datapath" in problem.details


NODE_KEYS = ["datapath", "ovsdbSocket", "bridgeMappings", "transientPorts", "deadlineSeconds", "defaultRoute",
             "workload", "clientId", "logFile", "logLevel"]  # fmt: skip


@pytest.mark.parametrize("key", NODE_KEYS)
def test_wrong_values_in_the_node_file_are_told_as_such(node_file: pathlib.Path, key: str) -> None:
    config = {name: value for name, value in network_config().items() if name != key}
    config["nodeConfig"] = written(node_file, {key: []})
    with pytest.raises(CniError, match=rf"node file: {key}=\[\]: expected ") as caught:
        load(config)
    assert caught.value.code == 7


# ---- GC's list


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], ()),
        # As CRI-O gives it for a network without pods: Go's nil slice.
        (None, ()),
        ([{"containerID": "a", "ifname": "net1"}], (("a", "net1"),)),
        (
            [{"containerID": "a", "ifname": "net1"}, {"containerID": "b", "ifname": "net1", "more": 1}],
            (("a", "net1"), ("b", "net1")),
        ),
    ],
)
def test_valid_attachments(key: str, items: Any, expected: Any) -> None:
    assert loaded("GC", **{key: items}).valid_attachments == expected


def test_the_newer_of_both_lists_counts() -> None:
    lists = {"cni.dev/attachments": [], "cni.dev/valid-attachments": [{"containerID": "a", "ifname": "net1"}]}
    assert loaded("GC", **lists).valid_attachments == (("a", "net1"),)


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
@pytest.mark.parametrize(
    "items",
    [{}, "x", 1, True, ["a"], [None], [{}], [{"containerID": "a"}], [{"ifname": "a"}],
     [{"containerID": 1, "ifname": "a"}], [{"containerID": "a", "ifname": "b"}, {}]],
)  # fmt: skip
def test_malformed_list_of_attachments(key: str, items: Any) -> None:
    problem = trouble("GC", **{key: items})
    assert (problem.code, f"{key}=" in problem.details) == (7, True)


def test_gc_without_a_list_is_an_error_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ovn_k8s_cni.removal.remove", lambda *_: pytest.fail("something is removed"))
    status, found = asked("GC", CNI_CONTAINERID=None, CNI_NETNS=None, CNI_IFNAME=None)
    assert (status, found["code"]) == (1, 7)
    assert "cni.dev/valid-attachments" in found["details"]


# ---- DEL takes what it can


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"vlanID": 0}, "vlan_id", None),
        ({"mtu": "x"}, "mtu", None),
        ({"datapath": "x"}, "datapath", "auto"),
        ({"deadlineSeconds": -1}, "deadline_seconds", 55.0),
        ({"runtimeConfig": {"mac": "x"}}, "mac", None),
        ({"topology": "layer2"}, "network", "cluster_udn_blue"),
        ({"subnets": "192.0.2.0/24"}, "ipam", {"type": "dhcp"}),
        ({"subnets": "192.0.2.0/24", "ipam": None}, "ipam", None),
        ({"nodeConfig": "relative"}, "deadline_seconds", 55.0),
        ({"nodeConfig": "/nonexistent"}, "deadline_seconds", 55.0),
        ({"runtimeConfig": 1}, "mac", None),
        ({"dns": 1}, "dns", {}),
    ],
)
def test_del_takes_defaults_for_mistakes(changes: dict[str, Any], field: str, expected: Any) -> None:
    assert getattr(loaded("DEL", **changes), field) == expected
    assert trouble("ADD", **changes).code in (2, 7)


@pytest.mark.parametrize("content", [b"", b"[]", b'{"unknown": 1}', b'{"deadlineSeconds": 0}'])
def test_del_takes_defaults_for_a_broken_node_file(node_file: pathlib.Path, content: bytes) -> None:
    assert loaded("DEL", nodeConfig=written(node_file, content)).deadline_seconds == 55


def test_del_with_mistakes_everywhere_succeeds() -> None:
    config = network_config(vlanID="x", mtu=-1, ipam={"type": "static"}, args=1, nodeConfig="/nonexistent", role=7)
    assert asked("DEL", config) == (0, None)


def test_what_del_passes_over_is_in_the_log(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "log"
    config = network_config(vlanID="x", ipam=None, logFile=str(log), nodeConfig="/nonexistent")
    assert asked("DEL", config) == (0, None)
    text = log.read_text(encoding="utf-8")
    assert "vlanID" in text
    assert "/nonexistent" in text
