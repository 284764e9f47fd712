"""Versions of the CNI specification: which verb exists in which, and the shape of result and error in each."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovn_k8s_cni.cni import result as results
from ovn_k8s_cni.cni import versions
from ovn_k8s_cni.cni.error import CniError
from ovn_k8s_cni.plugin import answer
from tests.support import asked, environment, network_config

pytestmark = pytest.mark.timeout(30)

ALL = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
FOREIGN = ["0.1.0", "0.2.0", "1.2.0", "2.0.0", "1.1", "1.1.0-rc1", "v1.1.0", " 1.1.0", "latest", "١.١.٠"]  # noqa: RUF001


# ---- VERSION


def version(stdin: bytes, **variables: str) -> tuple[int, Any]:
    status, text = answer({"CNI_COMMAND": "VERSION", **variables}, stdin)
    return status, json.loads(text)


@pytest.mark.parametrize("stdin", [b"", b"\n", b" \t\r\n"])
def test_version_without_stdin(stdin: bytes) -> None:
    assert version(stdin) == (0, {"cniVersion": "1.1.0", "supportedVersions": ALL})


@pytest.mark.parametrize("asked_in", ALL)
def test_version_answers_in_the_version_of_the_question(asked_in: str) -> None:
    expected = {"cniVersion": asked_in, "supportedVersions": ALL}
    assert version(json.dumps({"cniVersion": asked_in}).encode()) == (0, expected)


@pytest.mark.parametrize("asked_in", [*FOREIGN, ""])
def test_version_asked_in_a_foreign_version(asked_in: str) -> None:
    expected = {"cniVersion": "1.1.0", "supportedVersions": ALL}
    assert version(json.dumps({"cniVersion": asked_in}).encode()) == (0, expected)


def test_version_takes_what_podman_and_others_give_besides() -> None:
    stdin = json.dumps({**network_config(cniVersion="0.4.0"), "vlanID": "wrong", "name": None}).encode()
    status, found = version(stdin, CNI_CONTAINERID="dummy", CNI_NETNS="dummy", CNI_IFNAME="dummy", CNI_ARGS="x")
    assert (status, found["cniVersion"]) == (0, "0.4.0")


@pytest.mark.parametrize("stdin", [b"garbage", b"[]", b'{"cniVersion": 1}', b'{"cniVersion": null}', b"\xef\xbb\xbf{}"])
def test_version_of_what_cannot_be_read(stdin: bytes) -> None:
    status, found = version(stdin)
    assert (status, found["code"], found["cniVersion"]) == (1, 6, "1.1.0")


# ---- which verb in which version


@pytest.mark.parametrize(
    ("verb", "since"), [("ADD", "0.3.0"), ("DEL", "0.3.0"), ("CHECK", "0.4.0"), ("STATUS", "1.1.0"), ("GC", "1.1.0")]
)
@pytest.mark.parametrize("spoken", ALL)
def test_verbs_exist_since_their_version(verb: str, since: str, spoken: str) -> None:
    # Everything else is as it should be, and nothing on this machine is touched.
    changes: dict[str, Any] = {"ipam": {}, "prevResult": {}, "cni.dev/valid-attachments": []}
    status, found = asked(verb, network_config(cniVersion=spoken, **changes))
    refused = status == 1 and found["code"] == 1
    assert refused == (ALL.index(spoken) < ALL.index(since))
    if refused:
        assert f"{verb} does not exist in CNI version {spoken}" in found["msg"]
        assert since in found["details"]
        assert found["cniVersion"] == spoken


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK", "STATUS", "GC"])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_foreign_version(verb: str, foreign: str) -> None:
    status, found = asked(verb, network_config(cniVersion=foreign))
    assert (status, found["code"], found["cniVersion"]) == (1, 1, "1.1.0")
    assert repr(foreign) in found["msg"]
    assert ", ".join(ALL) in found["details"]


@pytest.mark.parametrize("unstated", [None, ""], ids=["absent", "empty"])
def test_unstated_version_is_the_first_specifications(unstated: str | None) -> None:
    config = network_config(cniVersion=unstated)
    if unstated is None:
        del config["cniVersion"]
    status, found = asked("ADD", config)
    assert (status, found["code"], "'0.1.0'" in found["msg"]) == (1, 1, True)


@pytest.mark.parametrize("value", [1, 1.1, None, ["1.1.0"], {}, True])
def test_version_that_is_no_string(value: object) -> None:
    status, found = asked("ADD", network_config(cniVersion=value))
    assert (status, found["code"], found["cniVersion"]) == (1, 6, "1.1.0")


# ---- the error object


@pytest.mark.parametrize("spoken", ALL)
def test_error_speaks_the_version_of_the_config(spoken: str) -> None:
    status, found = asked("ADD", network_config(cniVersion=spoken), CNI_IFNAME="a/b")
    assert status == 1
    assert set(found) == {"cniVersion", "code", "msg", "details"}
    assert (found["cniVersion"], found["code"]) == (spoken, 4)


@pytest.mark.parametrize("stdin", [b"", b"[]", b'{"cniVersion": 7}', b'{"cniVersion": "9.9.9"}'])
def test_error_speaks_the_highest_version_when_the_config_cannot_be_read(stdin: bytes) -> None:
    assert asked("ADD", stdin)[1]["cniVersion"] == "1.1.0"


def test_unknown_verb_speaks_the_highest_version() -> None:
    _, text = answer(environment("FLY"), json.dumps(network_config(cniVersion="0.4.0")).encode())
    assert json.loads(text)["cniVersion"] == "1.1.0"


def test_error_without_details_has_no_such_key() -> None:
    assert CniError(7, "msg").to_object("1.0.0") == {"cniVersion": "1.0.0", "code": 7, "msg": "msg"}


@given(st.text(), st.text())
def test_error_survives_json(msg: str, details: str) -> None:
    from ovn_k8s_cni.system import json as ours

    found = json.loads(ours.dumps(CniError(7, msg, details).to_object("1.1.0")))
    assert (found["msg"], found.get("details", "")) == (msg, details)


# ---- the result

WHOLE: dict[str, Any] = {
    "interfaces": [
        {"name": "okc0123456789ab", "mac": "0a:00:00:00:00:01", "mtu": 1400},
        {"name": "net1", "mac": "0a:00:00:00:00:02", "mtu": 1400, "sandbox": "/var/run/netns/x", "socketPath": "/s",
         "pciID": "p"},
    ],
    "ips": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1", "interface": 1}],
    "routes": [
        {"dst": "198.51.100.0/24", "gw": "192.0.2.1", "priority": 100, "mtu": 1300, "advmss": 1200, "table": 5},
        {"dst": "203.0.113.0/24", "scope": 253},
    ],
    "dns": {"nameservers": ["192.0.2.53"], "domain": "example.org", "search": ["example.org"]},
}  # fmt: skip

OLD_INTERFACES = [
    {"name": "okc0123456789ab", "mac": "0a:00:00:00:00:01"},
    {"name": "net1", "mac": "0a:00:00:00:00:02", "sandbox": "/var/run/netns/x"},
]
OLD_ROUTES = [{"dst": "198.51.100.0/24", "gw": "192.0.2.1"}, {"dst": "203.0.113.0/24"}]


@pytest.mark.parametrize("spoken", ["0.3.0", "0.3.1", "0.4.0"])
def test_result_before_1_0_0(spoken: str) -> None:
    assert results.convert(WHOLE, spoken) == {
        "cniVersion": spoken,
        "interfaces": OLD_INTERFACES,
        "ips": [{"version": "4", "address": "192.0.2.7/24", "gateway": "192.0.2.1", "interface": 1}],
        "routes": OLD_ROUTES,
        "dns": WHOLE["dns"],
    }


def test_result_of_1_0_0() -> None:
    assert results.convert(WHOLE, "1.0.0") == {
        "cniVersion": "1.0.0",
        "interfaces": OLD_INTERFACES,
        "ips": WHOLE["ips"],
        "routes": OLD_ROUTES,
        "dns": WHOLE["dns"],
    }


def test_result_of_1_1_0() -> None:
    assert results.convert(WHOLE, "1.1.0") == {"cniVersion": "1.1.0", **WHOLE}


@pytest.mark.parametrize("spoken", ALL)
def test_conversion_leaves_its_argument_alone(spoken: str) -> None:
    before = json.dumps(WHOLE)
    results.convert(WHOLE, spoken)
    assert json.dumps(WHOLE) == before


@pytest.mark.parametrize("spoken", ALL)
def test_result_without_an_address(spoken: str) -> None:
    interface_only = {**results.empty(), "interfaces": [{"name": "net1", "mac": "0a:00:00:00:00:02", "mtu": 1500}]}
    found = results.convert(interface_only, spoken)
    assert set(found) == {"cniVersion", "interfaces", "dns"}
    assert found["dns"] == {}


@pytest.mark.parametrize("spoken", ALL)
def test_result_is_read_back(spoken: str) -> None:
    """As prevResult, or from a dhcp plugin of that version."""
    read = results.parse(json.loads(json.dumps(results.convert(WHOLE, spoken))), "prevResult")
    newer = ("mtu", "socketPath", "pciID", "priority", "advmss", "table", "scope")
    for name in ("interfaces", "ips", "routes"):
        expected = WHOLE[name]
        if spoken != "1.1.0":
            expected = [{key: value for key, value in item.items() if key not in newer} for item in expected]
        assert read[name] == expected
    assert read["dns"] == WHOLE["dns"]


@pytest.mark.parametrize(
    "raw", [{}, {"ips": None, "routes": None, "interfaces": None, "dns": None}, {"cniVersion": "1.1.0"}]
)
def test_result_with_nothing_in_it(raw: dict[str, Any]) -> None:
    assert results.parse(raw, "it") == {"interfaces": [], "ips": [], "routes": [], "dns": {}}


@pytest.mark.parametrize(
    "raw",
    [None, [], "x", 1, {"ips": {"address": "x"}}, {"ips": "x"}, {"ips": ["192.0.2.7/24"]}, {"interfaces": [None]},
     {"routes": [1]}, {"dns": "x"}, {"dns": ["x"]}, {"interfaces": 1}],
)  # fmt: skip
def test_malformed_result(raw: object) -> None:
    with pytest.raises(CniError, match="prevResult") as caught:
        results.parse(raw, "prevResult")
    assert caught.value.code == 6


# ---- comparing versions


@pytest.mark.parametrize(
    ("others", "at_most", "expected"),
    [
        (ALL, "1.1.0", "1.1.0"),
        (["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"], "1.1.0", "1.0.0"),
        (["1.0.0", "0.4.0"], "0.4.0", "0.4.0"),
        (["1.1.0"], "1.0.0", None),
        (["0.1.0", "0.2.0"], "1.1.0", None),
        (["2.0.0", "1.1.0", "x", ""], "1.1.0", "1.1.0"),
        ([], "1.1.0", None),
        (["0.3.1", "0.3.0"], "0.3.0", "0.3.0"),
    ],
)
def test_highest_common_version(others: list[str], at_most: str, expected: str | None) -> None:
    assert versions.highest_common(others, at_most) == expected


@given(st.tuples(*[st.integers(0, 99)] * 3), st.tuples(*[st.integers(0, 99)] * 3))
def test_versions_are_compared_as_numbers(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    keys = [versions.key(".".join(map(str, version))) for version in (one, other)]
    assert (keys[0] < keys[1]) == (one < other)
