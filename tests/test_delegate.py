"""The dhcp plugin, and everything that it can do wrong. Scripts stand in for it: the real one is in conformance/."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from ovn_k8s_cni.cni import request as requests
from ovn_k8s_cni.cni.error import CniError
from ovn_k8s_cni.ipam import delegate as delegates
from ovn_k8s_cni.ipam.delegate import Delegate, DelegateError, Target
from ovn_k8s_cni.system.deadline import Deadline
from tests.support import alive, environment, network_config, script, wait_until

pytestmark = pytest.mark.timeout(30)

TARGET = Target("c0ffee", "/var/run/netns/x", "net1")
RESULT = {"cniVersion": "1.1.0", "ips": [{"address": "192.0.2.7/24", "gateway": "192.0.2.1"}]}

Plugin = Callable[..., Delegate]


@pytest.fixture
def plugin(tmp_path: pathlib.Path) -> Plugin:
    """Return a function that installs a script as the dhcp plugin and returns the delegate for it."""

    def installed(
        text: str, version: str = "1.1.0", ipam: dict[str, Any] | None = None, **variables: str | None
    ) -> Delegate:
        script(tmp_path / "dhcp", f"cd {tmp_path}\n{text}")
        given = {"CNI_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", **variables}
        config = json.dumps(network_config(cniVersion=version, ipam=ipam or {"type": "dhcp"})).encode()
        request = requests.parse(environment("ADD", **given), config)
        return delegates.of(request, request.config["ipam"])

    return installed


def ask(delegate: Delegate, verb: str = "ADD", seconds: float = 10) -> bytes:
    return delegate.ask(verb, TARGET, Deadline(seconds))


# ---- found


def test_first_in_the_path_that_can_be_executed(tmp_path: pathlib.Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "a" / "dhcp").write_text("#!/bin/sh\n", encoding="ascii")
    script(tmp_path / "b" / "dhcp", "")
    script(tmp_path / "c" / "dhcp", "")
    found = delegates.find([f"{tmp_path}/a", f"{tmp_path}/missing", f"{tmp_path}/b/", f"{tmp_path}/c"])
    assert found == f"{tmp_path}/b/dhcp"


def test_the_usual_directory_comes_last(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delegates, "DEFAULT_PATH", str(tmp_path))
    script(tmp_path / "dhcp", "")
    assert delegates.find(["/nonexistent"]) == f"{tmp_path}/dhcp"


def test_missing_everywhere() -> None:
    with pytest.raises(CniError) as caught:
        delegates.find(["/nonexistent", "/also/nonexistent"])
    assert caught.value.code == 104
    assert "not installed" in caught.value.msg
    for place in ("/nonexistent", "/also/nonexistent", vars(delegates)["DEFAULT_PATH"]):
        assert place in caught.value.details


def test_a_directory_of_that_name_is_no_plugin(tmp_path: pathlib.Path) -> None:
    (tmp_path / "dhcp").mkdir()
    with pytest.raises(CniError, match="not installed"):
        delegates.find([str(tmp_path)])


def test_what_cannot_be_executed_after_all(plugin: Plugin, tmp_path: pathlib.Path) -> None:
    delegate = plugin("")
    (tmp_path / "dhcp").write_bytes(b"\x7fELF of another machine")
    with pytest.raises(CniError, match="cannot be executed; Exec format error") as caught:
        ask(delegate)
    assert caught.value.code == 104


# ---- what it is given


def test_config(plugin: Plugin, tmp_path: pathlib.Path) -> None:
    ipam = {
        "type": "dhcp",
        "daemonSocketPath": "/run/x.sock",
        "priority": 7,
        "provide": [{"option": "12", "value": "x"}],
    }
    delegate = plugin(f"cat >{tmp_path}/config; echo '{{}}'", ipam=ipam)
    ask(delegate)
    config = json.loads((tmp_path / "config").read_bytes())
    assert set(config) == {"cniVersion", "name", "type", "ipam"}
    assert (config["cniVersion"], config["name"]) == ("1.1.0", "cluster_udn_blue")
    assert {key: config["ipam"][key] for key in ipam} == ipam
    assert delegate.socket_path == "/run/x.sock"


@pytest.mark.parametrize("ipam", [{"type": "dhcp"}, {"type": "dhcp", "daemonSocketPath": ""}])
def test_usual_socket_of_the_daemon(plugin: Plugin, ipam: dict[str, Any]) -> None:
    assert plugin("", ipam=ipam).socket_path == "/run/cni/dhcp.sock"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, ["121", "33", "6", "15", "119"]),
        ([], ["121", "33", "6", "15", "119"]),
        ([{"option": "42"}], ["42", "121", "33", "6", "15", "119"]),
        ([{"option": "121"}, {"option": "6"}], ["121", "6", "33", "15", "119"]),
        ([{"option": 121}], [121, "33", "6", "15", "119"]),
    ],
)
def test_options_that_routes_and_dns_need_are_requested_besides(asked: Any, expected: list[Any]) -> None:
    ipam = {"type": "dhcp"} if asked is None else {"type": "dhcp", "request": asked}
    found = delegates.with_requested_options(ipam)
    assert [option["option"] for option in found["request"]] == expected


def test_what_the_user_says_of_an_option_is_kept() -> None:
    own = [{"option": "121", "skipDefault": True}, {"skipDefault": True}]
    ipam = {"type": "dhcp", "request": own, "more": 1}
    found = delegates.with_requested_options(ipam)
    assert found["request"][:2] == own
    assert (found["more"], ipam["request"]) == (1, own)


def test_environment_that_it_gets(plugin: Plugin, tmp_path: pathlib.Path) -> None:
    args = "IgnoreUnknown=1;K8S_POD_NAME=web;X=a=b;;noise=\u00e4"
    delegate = plugin(
        f"cat /proc/$$/environ >{tmp_path}/environ; cat >/dev/null; echo '{{}}'",
        CNI_ARGS=args,
        CNI_NETNS="/of/the/request",
        LD_LIBRARY_PATH="/tmp/_MEIx",
        _MEIPASS2="/tmp/_MEIx",
        _PYI_ARCHIVE_FILE="/opt/cni/bin/ovn-k8s-cni-overlay",
        OTHER="kept",
    )
    ask(delegate, "DEL")
    items = os.fsdecode((tmp_path / "environ").read_bytes()).split("\0")
    assert dict(item.split("=", 1) for item in items if item) == {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/var/run/netns/x",
        "CNI_IFNAME": "net1",
        "CNI_PATH": str(tmp_path),
        "CNI_ARGS": args,
        "PATH": "/usr/bin:/bin",
        "OTHER": "kept",
    }


# ---- what it answers


def test_answer(plugin: Plugin) -> None:
    printed = ask(plugin(f"cat >/dev/null; echo '{json.dumps(RESULT)}'"))
    assert delegates.parse_answer(printed)["ips"] == RESULT["ips"]


def test_started_early(plugin: Plugin, tmp_path: pathlib.Path) -> None:
    delegate = plugin("echo $$ >>pids; read -r config; echo '{}'")
    child = delegate.start("ADD", TARGET)
    pid = child.pid
    assert delegate.ask("ADD", TARGET, Deadline(5), child) == b"{}\n"
    assert (tmp_path / "pids").read_text(encoding="ascii").split() == [str(pid)], "and not once more"


@pytest.mark.parametrize(
    "printed",
    [b"", b"\n", b"garbage", b"[]", b"null", b"{", b"{} {}", b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"ips": 1}',
     b'{"ips": ["x"]}', b'{"routes": [null]}', b"time=now level=info\n{}"],
)  # fmt: skip
def test_answer_that_cannot_be_read(printed: bytes) -> None:
    with pytest.raises(CniError, match="the dhcp plugin's answer cannot be read") as caught:
        delegates.parse_answer(printed)
    assert caught.value.code == 104


def test_garbage_is_quoted_and_cut() -> None:
    with pytest.raises(CniError) as caught:
        delegates.parse_answer(b"panic: \x1b[31m" + b"x" * 10_000)
    assert "panic: " in caught.value.details
    assert "\x1b" not in caught.value.details
    assert len(caught.value.details) < 400


ERROR = {"cniVersion": "1.1.0", "code": 999, "msg": "no more leases", "details": "try later"}


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (f"echo '{json.dumps(ERROR)}'; exit 1", 999, "no more leases; try later"),
        ('echo \'{"code": 11, "msg": "busy"}\'; exit 1', 11, "busy"),
        ('echo \'{"code": "11", "msg": 5}\'; exit 1', 0, "5"),
        ("echo '{}'; exit 1", 0, "failed without a reason"),
        ("exit 1", 0, "ended with status 1 and printed nothing"),
        ("echo panic >&2; exit 2", 0, "ended with status 2 and printed 'panic'"),
        ("echo out; echo err >&2; exit 3", 0, "ended with status 3 and printed 'out'"),
        ("echo '[1]'; exit 1", 0, "ended with status 1 and printed '[1]'"),
        ("kill -SEGV $$", 0, "ended with status -11 and printed nothing"),
        ("printf '\\377\\376'; exit 1", 0, "'\\\\xff\\\\xfe'"),
    ],
)
def test_failure(plugin: Plugin, text: str, code: int, said: str) -> None:
    with pytest.raises(DelegateError) as caught:
        ask(plugin(f"cat >/dev/null; {text}"))
    assert (caught.value.code, said in str(caught.value)) == (code, True), str(caught.value)


def test_it_ends_without_reading_the_config(plugin: Plugin) -> None:
    ipam = {"type": "dhcp", "ballast": "x" * 1_000_000}
    assert ask(plugin("echo '{}'", ipam=ipam)) == b"{}\n"
    with pytest.raises(DelegateError, match="status 1"):
        ask(plugin("exit 1", ipam=ipam))


def test_huge_output(plugin: Plugin) -> None:
    printed = ask(plugin("cat >/dev/null; head -c 30000000 /dev/zero"))
    assert len(printed) < 2_000_000
    with pytest.raises(CniError):
        delegates.parse_answer(printed)


@pytest.mark.parametrize("text", ["sleep 60", "cat >/dev/null; echo '{}'; sleep 60", "exec >&- 2>&-; sleep 60"])
def test_hanging(plugin: Plugin, tmp_path: pathlib.Path, text: str) -> None:
    """At the deadline it is ended, and what it has started with it."""
    delegate = plugin(f"echo $$ >{tmp_path}/pids; sleep 61 & echo $! >>{tmp_path}/pids; {text}")
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(delegate, seconds=0.3)
    assert 0.3 <= time.monotonic() - started < 2
    pids = [int(line) for line in (tmp_path / "pids").read_text(encoding="ascii").split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(map(alive, pids)), 2)


# ---- in a version that it speaks

PICKY = """
config=$(cat)
echo "$CNI_COMMAND $config" >>log
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":%s}'; exit 0 ;;
esac
for version in %s; do
    case $config in *'"cniVersion":"'$version'"'*) echo "{\\"cniVersion\\":\\"$version\\"}"; exit 0 ;; esac
done
echo '{"code":1,"msg":"incompatible CNI versions","details":"config is not supported"}'
exit 1
"""


def picky(plugin: Plugin, *spoken: str, version: str = "1.1.0") -> Delegate:
    return plugin(PICKY % (json.dumps(spoken), " ".join(spoken)), version)


def asked_for(tmp_path: pathlib.Path) -> list[str]:
    """Return what the picky plugin was asked: the verb and, but for VERSION, the version."""
    found = []
    for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines():
        verb, _, config = line.partition(" ")
        found.append(verb if verb == "VERSION" else f"{verb} {json.loads(config)['cniVersion']}")
    return found


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
def test_a_plugin_that_speaks_the_version_is_asked_once(plugin: Plugin, tmp_path: pathlib.Path, verb: str) -> None:
    ask(picky(plugin, "1.0.0", "1.1.0"), verb)
    assert asked_for(tmp_path) == [f"{verb} 1.1.0"]


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
@pytest.mark.parametrize(
    ("spoken", "version", "common"),
    [
        (("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"), "1.1.0", "1.0.0"),
        (("0.3.1", "0.4.0"), "1.0.0", "0.4.0"),
        (("0.3.0",), "1.1.0", "0.3.0"),
        (("1.0.0", "2.0.0"), "1.1.0", "1.0.0"),
    ],
)
def test_an_older_plugin_is_asked_again_in_the_highest_common_version(
    plugin: Plugin, tmp_path: pathlib.Path, verb: str, spoken: tuple[str, ...], version: str, common: str
) -> None:
    assert json.loads(ask(picky(plugin, *spoken, version=version), verb))["cniVersion"] == common
    assert asked_for(tmp_path) == [f"{verb} {version}", "VERSION", f"{verb} {common}"]


@pytest.mark.parametrize(("spoken", "version"), [(("0.1.0", "0.2.0"), "1.1.0"), (("1.1.0",), "0.4.0"), ((), "1.1.0")])
def test_no_common_version(plugin: Plugin, spoken: tuple[str, ...], version: str) -> None:
    with pytest.raises(DelegateError) as caught:
        ask(picky(plugin, *spoken, version=version))
    assert caught.value.code == 1
    for text in (*spoken, version):
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "answer",
    ["", "garbage", "{}", '{"supportedVersions":"1.0.0"}', '{"supportedVersions":[1]}', '{"supportedVersions":null}'],
)
def test_version_answer_that_is_none(plugin: Plugin, answer: str) -> None:
    text = f"test $CNI_COMMAND = VERSION || {{ echo '{{\"code\":1}}'; exit 1; }}\nprintf '%s' '{answer}'"
    with pytest.raises(DelegateError):
        ask(plugin(text))


def test_a_plugin_that_refuses_what_it_says_it_speaks(plugin: Plugin, tmp_path: pathlib.Path) -> None:
    text = (
        'echo $CNI_COMMAND >>log; test $CNI_COMMAND = VERSION && { echo \'{"supportedVersions":["1.1.0"]}\'; exit 0; }'
    )
    with pytest.raises(DelegateError) as caught:
        ask(plugin(text + '\necho \'{"code":1,"msg":"no"}\'; exit 1'))
    assert caught.value.code == 1
    assert (tmp_path / "log").read_text(encoding="ascii").split() == ["ADD", "VERSION", "ADD"]


def test_other_failures_are_not_asked_again(plugin: Plugin, tmp_path: pathlib.Path) -> None:
    with pytest.raises(DelegateError):
        ask(plugin("echo $CNI_COMMAND >>log; echo '{\"code\":11}'; exit 1"))
    assert (tmp_path / "log").read_text(encoding="ascii").split() == ["ADD"]


def test_all_attempts_share_one_deadline(plugin: Plugin) -> None:
    text = "sleep 0.2; test $CNI_COMMAND = VERSION && sleep 60; echo '{\"code\":1}'; exit 1"
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        ask(plugin(text), seconds=0.5)
    assert time.monotonic() - started < 2


def test_spoken_versions(plugin: Plugin) -> None:
    delegate = picky(plugin, "0.4.0", "1.0.0")
    assert delegate.spoken_versions(TARGET, Deadline(5)) == ["0.4.0", "1.0.0"]
