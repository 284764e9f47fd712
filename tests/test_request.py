"""What a runtime may hand over: environment and stdin, missing, malformed, hostile. Rows of "Calls"."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovn_k8s_cni.cni import request as requests
from ovn_k8s_cni.cni.error import CniError
from ovn_k8s_cni.cni.request import Request
from ovn_k8s_cni.plugin import answer
from ovn_k8s_cni.system.netlink import NetlinkError
from ovn_k8s_cni.system.ovsdb import OvsdbError, OvsdbUnreachable
from tests.support import asked, environment, network_config

pytestmark = pytest.mark.timeout(30)

ATTACHING = ("ADD", "DEL", "CHECK")


def parsed(verb: str = "ADD", config: dict[str, Any] | None = None, **variables: str | None) -> Request:
    return requests.parse(environment(verb, **variables), json.dumps(config or network_config()).encode())


def refused(verb: str, config: object = None, **variables: str | None) -> tuple[int, str]:
    """Return code and whole text of an error, after a look at its form."""
    status, found = asked(verb, config, **variables)
    assert status == 1
    assert set(found) - {"details"} == {"cniVersion", "code", "msg"}
    assert found["msg"]
    return found["code"], f"{found['msg']}; {found.get('details', '')}"


def test_what_a_request_says() -> None:
    request = parsed(CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop", CNI_PATH="/a:/b")
    assert (request.verb, request.version, request.name) == ("ADD", "1.1.0", "cluster_udn_blue")
    assert (request.container_id, request.netns, request.ifname) == ("c0ffee", "/nonexistent/netns", "net1")
    assert request.path == ("/a", "/b")
    assert str(request) == "pod shop/web, interface net1, network cluster_udn_blue"


def test_a_request_without_a_pod_names_its_container() -> None:
    request = parsed(CNI_CONTAINERID="0123456789abcdef0123456789abcdef")
    assert str(request) == "container 0123456789abc, interface net1, network cluster_udn_blue"


# ---- environment


@pytest.mark.parametrize("verb", ["", "add", "ADD ", "UPDATE", "VERSION\n", "\udcff"])
def test_unknown_verb(verb: str) -> None:
    code, text = refused(verb)
    assert code == 4
    assert f"CNI_COMMAND={verb!r}" in text
    assert "ADD, DEL, CHECK, STATUS, GC, VERSION" in text


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("ADD", ["CNI_CONTAINERID"]),
        ("ADD", ["CNI_NETNS"]),
        ("ADD", ["CNI_IFNAME"]),
        ("ADD", ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"]),
        ("CHECK", ["CNI_NETNS", "CNI_IFNAME"]),
        ("DEL", ["CNI_CONTAINERID", "CNI_IFNAME"]),
        ("GC", ["CNI_PATH"]),
    ],
)
def test_missing_variables_are_all_named(verb: str, names: list[str], value: str | None) -> None:
    code, text = refused(verb, **dict.fromkeys(names, value))
    assert code == 4
    assert f"{verb} needs {', '.join(names)}" in text


@pytest.mark.parametrize("netns", [None, "", "/nonexistent", "/etc/passwd", "not absolute", "/proc/self/ns/net", "/"])
def test_del_succeeds_without_a_network_namespace(netns: str | None) -> None:
    assert asked("DEL", network_config(ipam={}), CNI_NETNS=netns) == (0, None)


@pytest.mark.parametrize(
    ("netns", "reason"),
    [
        ("/nonexistent", "No such file or directory"),
        ("/etc/passwd", "not a network namespace"),
        ("/", "not a network namespace"),
        ("/proc/self/ns/uts", "not a network namespace"),
        ("/proc/self/ns/net", "the network namespace of the node itself"),
        ("relative", "No such file or directory"),
    ],
)
@pytest.mark.parametrize("verb", ["ADD", "CHECK"])
def test_no_network_namespace(verb: str, netns: str, reason: str) -> None:
    code, text = refused(verb, network_config(ipam={}, prevResult={}), CNI_NETNS=netns)
    assert code == 4
    assert f"CNI_NETNS={netns}" in text
    assert reason in text


def test_status_takes_the_empty_variables_that_containerd_gives() -> None:
    empty = dict.fromkeys(("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"), "")
    code, text = refused("STATUS", **empty)
    assert code == 50, "only what an ADD needs is missing"
    assert "no-such-bridge" in text


@pytest.mark.parametrize("verb", ATTACHING)
@pytest.mark.parametrize("container_id", ["a/b", "../x", "-a", ".a", "_a", "a b", "a\n", "ä", "a\udcff", "a;b", "\0"])
def test_malformed_container_id(verb: str, container_id: str) -> None:
    code, text = refused(verb, CNI_CONTAINERID=container_id)
    assert code == 4
    assert f"CNI_CONTAINERID={container_id!r}" in text


@pytest.mark.parametrize("container_id", ["a", "0", "A.b_c-d", "default-web.1", "f" * 64, "x" * 300])
def test_container_id(container_id: str) -> None:
    assert parsed(CNI_CONTAINERID=container_id).container_id == container_id


@pytest.mark.parametrize("verb", ATTACHING)
@pytest.mark.parametrize(
    "ifname",
    [".", "..", "a/b", "a:b", "a%d", "a b", "a\tb", "a\n", "\x7f", "sixteen-bytes-xx", "ääääääää", "a\udcff", "\u2028"],
)
def test_malformed_interface_name(verb: str, ifname: str) -> None:
    code, text = refused(verb, CNI_IFNAME=ifname)
    assert code == 4
    assert f"CNI_IFNAME={ifname!r}" in text


@pytest.mark.parametrize("ifname", ["a", "eth0", "fifteen-bytes-x", "net.100", "...", "äääääää", "a=b"])
def test_interface_name(ifname: str) -> None:
    assert parsed(CNI_IFNAME=ifname).ifname == ifname


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        (";", {}),
        (";;A=1;;B=2;", {"A": "1", "B": "2"}),
        ("A=b=c=d", {"A": "b=c=d"}),
        ("A==", {"A": "="}),
        ("A=", {"A": ""}),
        ("=x", {"": "x"}),
        ("A=1;A=2", {"A": "2"}),
        (" A = 1 ", {" A ": " 1 "}),
        ("IgnoreUnknown=true;UNKNOWN=ä\udcff", {"IgnoreUnknown": "true", "UNKNOWN": "ä\udcff"}),
        ("MAC=02:00:00:00:00:01;IP=192.0.2.7", {"MAC": "02:00:00:00:00:01", "IP": "192.0.2.7"}),
    ],
)
@pytest.mark.parametrize("verb", ["ADD", "DEL", "STATUS"])
def test_arguments(verb: str, text: str, expected: dict[str, str]) -> None:
    request = parsed(verb, CNI_ARGS=text)
    assert request.args == expected
    assert request.environment["CNI_ARGS"] == text, "the delegate gets them as they came"


@pytest.mark.parametrize("text", ["A", "A=1;B", "A=1; ", "noise;A=1"])
def test_malformed_arguments(text: str) -> None:
    for verb in ("ADD", "CHECK"):
        code, message = refused(verb, network_config(prevResult={}), CNI_ARGS=text)
        assert code == 4
        assert f"CNI_ARGS={text!r}" in message
    # A clean-up goes on with what can be read.
    assert parsed("DEL", CNI_ARGS=text).args == parsed("GC", CNI_ARGS=text).args
    assert asked("DEL", network_config(ipam={}), CNI_ARGS=text) == (0, None)


def test_arguments_without_a_pod_are_fine() -> None:
    _, text = refused("ADD", network_config(ipam={}), CNI_ARGS="IgnoreUnknown=1")
    assert text.startswith("CNI_NETNS=/nonexistent/netns cannot be entered"), "ADD has come as far as the namespace"


@pytest.mark.parametrize(("path", "expected"), [("", 1), (None, 1), (":", 1), ("/a::/b:", 2), ("/a", 1)])
def test_search_path_has_no_empty_entries(path: str | None, expected: int) -> None:
    found = parsed(CNI_PATH=path).path
    assert len(found) == expected
    assert all(found)


# ---- stdin

DEEP = 100_000


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "STATUS", "GC"])
@pytest.mark.parametrize(
    ("stdin", "reason"),
    [
        (b"", "empty"),
        (b" \r\n\t", "empty"),
        (b"hello", "not JSON"),
        (b"{", "not JSON"),
        (b'{"name": "x",}', "not JSON"),
        (b"{'name': 'x'}", "not JSON"),
        (b'{"name": "x"} {}', "more text after"),
        (b'{"name": "x"}\0', "more text after"),
        (b"[]", "not a JSON object"),
        (b'[{"cniVersion": "1.1.0"}]', "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b"1", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"\xef\xbb\xbf{}", "byte-order mark"),
        ('{"name": "x"}'.encode("utf-16"), "not UTF-8"),
        (b'{"name": "\xff"}', "not UTF-8"),
        (b'{"name": "a\nb"}', "not JSON"),
        (b'{"mtu": NaN}', "not JSON"),
        (b'{"mtu": -Infinity}', "not JSON"),
        (b'{"mtu": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * DEEP + b"]" * DEEP, "nested too deeply"),
        (b'{"a":' * DEEP + b"1" + b"}" * DEEP, "nested too deeply"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_stdin_that_is_no_network_config(verb: str, stdin: bytes, reason: str) -> None:
    code, text = refused(verb, stdin)
    assert code == 6
    assert reason in text


def test_of_duplicate_keys_the_last_counts() -> None:
    whole = json.dumps(network_config()).encode()
    assert requests.parse(environment("ADD"), whole[:-1] + b',"name":"other"}').name == "other"


def test_huge_config() -> None:
    config = network_config(ballast=["x" * 1000] * 10_000)
    assert parsed(config=config).config["ballast"][-1] == "x" * 1000


@pytest.mark.parametrize("name", [None, "", 5, ["x"], "a b", "-a", ".a", "../x", "a/b", "ä", "a\n"])
def test_malformed_network_name(name: object) -> None:
    config = network_config(name=name)
    if name is None:
        del config["name"]
    code, text = refused("ADD", config)
    assert code == 7
    assert f"name={name!r}" in text


def test_the_error_names_pod_interface_and_network() -> None:
    code, text = refused("STATUS", CNI_ARGS="K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop")
    assert code == 50
    assert "cluster_udn_blue" in text


def test_nothing_is_printed_besides(capfd: pytest.CaptureFixture[str]) -> None:
    refused("STATUS")
    refused("ADD", b"garbage")
    assert capfd.readouterr() == ("", "")


# ---- anything at all

JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None, True, False, 0, 1, -1, 100, 2**63, 1.5, 1e308, "", "x", "../x", "a\0b", "ä", "\udcff", "dhcp", "1.1.0",
        "0.4.0",
        "linux", "02:00:00:00:00:01", "physnet:br", [], [None], [[]], {}, {"": None}, {"type": "dhcp"}, {"type": 1},
        {"cni": {"mac": []}}, {"mac": 5}, [{"containerID": "a", "ifname": "b"}], [{"containerID": 1}], {"dhcp": [1]},
    ]
)  # fmt: skip
KEYS = st.sampled_from(
    [
        "cniVersion", "name", "type", "ipam", "netAttachDefName", "physicalNetworkName", "topology", "role", "vlanID",
        "mtu", "subnets", "excludeSubnets", "runtimeConfig", "args", "dns", "prevResult", "cni.dev/valid-attachments",
        "cni.dev/attachments", "ovsdbSocket", "bridgeMappings", "transientPorts", "deadlineSeconds", "defaultRoute",
        "logFile", "logLevel", "nodeConfig", "unknown",
    ]
)  # fmt: skip
VARIABLES = st.sampled_from(["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"])
TEXTS = st.sampled_from([None, "", "x", "eth0", "/", "a=b", "MAC=x", "MAC=01:00:00:00:00:01", "\udcff", ";", "a b"])
CODES = {1, 2, 4, 5, 6, 7, 11, 50, 51, *range(101, 110)}


@settings(max_examples=600)
@given(
    st.sampled_from(requests.VERBS),
    st.dictionaries(VARIABLES, TEXTS, max_size=2),
    st.dictionaries(KEYS, JUNK, max_size=3),
)
def test_every_request_gets_an_answer(verb: str, variables: dict[str, str | None], changes: dict[str, Any]) -> None:
    """One JSON object or nothing; never an exception, never the code for a defect of this plugin."""
    status, text = answer(environment(verb, **variables), json.dumps(network_config(**changes)).encode())
    if status == 0:
        assert bool(text) == (verb == "VERSION")
    else:
        found = json.loads(text)
        assert found["code"] in CODES, found
        assert found["msg"].strip()


@given(st.binary(max_size=40))
def test_any_stdin_gets_an_answer(stdin: bytes) -> None:
    status, text = answer(environment("ADD"), stdin)
    assert (status, json.loads(text)["code"] in {1, 6, 7}) == (1, True)


def test_unforeseen_failure_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("not thought of")

    monkeypatch.setattr("ovn_k8s_cni.attachment.status", fail)
    code, text = refused("STATUS")
    assert code == 100
    assert "LookupError: not thought of at fail (test_request.py:" in text


@pytest.mark.parametrize(
    ("problem", "code", "text"),
    [
        (
            NetlinkError(1, "setting net1 up: Operation not permitted"),
            101,
            "the kernel refused: setting net1 up: Operation",
        ),
        (OvsdbError("constraint violation: x"), 102, "constraint violation: x"),
        (OvsdbUnreachable("/run/db.sock", "it closed the connection"), 11, "it closed the connection"),
        (OSError(28, "No space left on device"), 5, "No space left on device"),
        (CniError(107, "differs", "from what it was"), 107, "differs; from what it was"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_have_their_codes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, problem: Exception, code: int, text: str
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr("ovn_k8s_cni.attachment.status", fail)
    found, told = refused("STATUS", network_config(logFile=str(tmp_path / "log"), logLevel="error"))
    assert (found, text in told) == (code, True), told
    assert text.partition("; ")[0] in (tmp_path / "log").read_text(encoding="utf-8")


def test_unforeseen_failure_in_the_config_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise LookupError("not thought of")

    monkeypatch.setattr("ovn_k8s_cni.config.load", fail)
    code, text = refused("STATUS")
    assert (code, "LookupError" in text) == (100, True)


def test_a_failing_parse_is_an_error_of_the_caller() -> None:
    with pytest.raises(CniError):
        requests.parse({}, b"{}")
