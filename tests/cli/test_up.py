"""``raftlog up`` as a process: it says where it is, resumes a directory, leaves nothing behind."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from raftlog.client import profiles
from raftlog.testing import wait_until
from raftlog.tls import client_context
from tests.cli.conftest import Raftlog, spawning

pytestmark = pytest.mark.integration
Spawn = Callable[..., "subprocess.Popen[bytes]"]


def first_lines(process: subprocess.Popen[bytes]) -> list[str]:
    """Its output up to "ready"."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line.decode().strip())
        if "ready" in lines[-1]:
            return lines
    raise AssertionError(process.communicate())


def broker_pid(directory: Path) -> int | None:
    record = json.loads((directory / "cluster.json").read_bytes())
    pid: int | None = record["brokers"][0]["pid"]
    return pid


def is_ready(url: str) -> bool:
    """Whether the broker is ready, and can be restarted safely."""
    try:
        with urllib.request.urlopen(url + "/readyz?restart", timeout=5) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError:
        return False


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 0, marks=pytest.mark.nightly)],
)
def test_it_runs_until_it_is_told_to_stop(
    spawn: Spawn, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    directory = tmp_path / "new"
    process = spawn("up", "--brokers", 1, "--data-dir", directory, "--port", 0)
    lines = first_lines(process)
    assert lines[-1] == "ready"
    assert lines[-2].startswith("bootstrap: 127.0.0.1:")
    pid = broker_pid(directory)
    assert pid is not None
    process.send_signal(number)
    assert process.wait(timeout=60) == status
    assert not is_alive(pid)
    assert broker_pid(directory) is None
    open_to_others = [path for path in directory.rglob("*") if path.stat().st_mode & 0o077]
    assert (directory.stat().st_mode & 0o777, open_to_others) == (0o700, [])


@pytest.mark.nightly
def test_the_same_directory_resumes_at_the_same_address_with_as_many_brokers(
    spawn: Spawn, raftlog: Raftlog, tmp_path: Path
) -> None:
    first = spawn("up", "--brokers", 1, "--data-dir", tmp_path, "--port", 0, "--json")
    before = json.loads(first_lines(first)[-1])
    first.terminate()
    first.wait(timeout=60)
    ran = raftlog("up", "--brokers", 3, "--data-dir", tmp_path)
    assert ran.status == 1
    assert "contains a cluster of 1 broker, not of 3" in ran.err
    second = spawn("up", "--data-dir", tmp_path, "--json")
    after = json.loads(first_lines(second)[-1])
    assert after["bootstrap"] == before["bootstrap"]
    assert after["brokers"][0]["http"] == before["brokers"][0]["http"]


def test_brokers_end_even_if_it_is_killed(spawn: Spawn, tmp_path: Path) -> None:
    process = spawn("up", "--brokers", 1, "--data-dir", tmp_path, "--port", 0)
    first_lines(process)
    pid = broker_pid(tmp_path)
    assert pid is not None
    process.kill()
    wait_until(lambda: not is_alive(pid), timeout_s=30, what="the broker's end")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a cluster of one broker that runs."""
    directory = tmp_path_factory.mktemp("up")
    with spawning() as spawn:
        first_lines(spawn("up", "--brokers", 1, "--data-dir", directory, "--port", 0))
        yield directory


def test_another_shell_brings_a_killed_broker_back(raftlog: Raftlog, up: Path) -> None:
    pid = broker_pid(up)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: broker_pid(up) is None, what="a record of the death")
    ran = raftlog("up", "--data-dir", up, "--start", 1, "--json")
    assert ran.json["ready"] is True
    wait_until(lambda: broker_pid(up) not in {pid, None}, what="a record of the start")


def test_a_second_one_in_the_same_directory_is_refused(raftlog: Raftlog, up: Path) -> None:
    ran = raftlog("up", "--brokers", 1, "--data-dir", up, "--port", 0)
    assert ran.status == 1
    assert "another `raftlog up` runs" in ran.err


def test_a_port_in_use_is_refused(raftlog: Raftlog, up: Path, tmp_path: Path) -> None:
    port = json.loads((up / "cluster.json").read_bytes())["bootstrap"].rpartition(":")[2]
    ran = raftlog("up", "--data-dir", tmp_path, "--port", port)
    assert ran.status == 1
    assert f"127.0.0.1:{port}" in ran.err
    assert "--port" in ran.err


def test_three_brokers_survive_ctrl_c_with_all_records(
    spawn: Spawn, raftlog: Raftlog, tmp_path: Path
) -> None:
    process = spawn("up", "--data-dir", tmp_path, "--port", 0, "--json")
    state = json.loads(first_lines(process)[-1])
    assert [broker["id"] for broker in state["brokers"]] == [1, 2, 3]
    for broker in state["brokers"]:
        wait_until(partial(is_ready, broker["http"]), what="a broker that is ready")
    assert len(state["bootstrap"].split(",")) == 3
    at = ("--bootstrap", state["bootstrap"])
    assert raftlog("topic", "create", "t", "--partitions", 3, *at).status == 0
    described = raftlog("topic", "describe", "t", "--json", *at).json
    assert {len(part["replicas"]) for part in described["partitions"]} == {3}
    lines = b"".join(b"%d\n" % number for number in range(100))
    assert raftlog("produce", "t", "-p", 1, *at, stdin=lines).status == 0
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert not any(is_alive(broker["pid"]) for broker in state["brokers"])
    again = spawn("up", "--data-dir", tmp_path)
    assert first_lines(again)[-2] == f"bootstrap: {state['bootstrap']}"
    assert raftlog("tail", "t", "-p", 1, "-o", "earliest", "-n", 100, *at).out == lines


def test_a_broker_gets_others_and_leaves_them_with_its_records(
    spawn: Spawn, raftlog: Raftlog, tmp_path: Path
) -> None:
    process = spawn("up", "--brokers", 1, "--data-dir", tmp_path, "--port", 0, "--json")
    state = json.loads(first_lines(process)[-1])
    at = ("--bootstrap", state["bootstrap"])
    assert raftlog("topic", "create", "t", *at).status == 0
    assert raftlog("produce", "t", *at, stdin=b"a\nb\n").status == 0
    added = raftlog("up", "--data-dir", tmp_path, "--add", 2, "--json").json["added"]
    assert [row["id"] for row in added] == [2, 3]
    assert raftlog("cluster", "decommission", 1, "--json", *at).json["removed"] is True

    def recorded() -> list[int]:
        record = json.loads((tmp_path / "cluster.json").read_bytes())
        return [broker["id"] for broker in record["brokers"] if broker["pid"]]

    wait_until(lambda: recorded() == [2, 3], what="a record of those that run")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    again = spawn("up", "--data-dir", tmp_path, "--json")
    resumed = json.loads(first_lines(again)[-1])
    assert [broker["id"] for broker in resumed["brokers"]] == [2, 3]
    at = ("--bootstrap", resumed["bootstrap"])
    assert [row["id"] for row in raftlog("cluster", "brokers", "--json", *at).json] == [2, 3]
    assert raftlog("tail", "t", "-o", "earliest", "-n", 2, *at).out == b"a\nb\n"


def test_a_secured_cluster_authenticates_its_clients_and_stays_secured(
    spawn: Spawn, raftlog: Raftlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = spawn("up", "--secure", "--brokers", 3, "--data-dir", tmp_path, "--port", 0)
    lines = first_lines(process)
    state = json.loads((tmp_path / "cluster.json").read_bytes())
    profile = tmp_path / "admin.toml"
    assert profile.stat().st_mode & 0o077 == 0
    assert state["environment"] == {"RAFTLOG_PROFILE": str(profile)}
    assert lines[-2] == f"clients: export RAFTLOG_PROFILE={profile}"
    admin = ("--profile", profile)
    assert raftlog("topic", "create", "t", *admin).status == 0
    made = raftlog("user", "create", "alice", *admin)
    password = made.out.decode().strip()
    assert [user["name"] for user in raftlog("user", "list", "--json", *admin).json] == [
        "admin",
        "alice",
    ]
    monkeypatch.setenv("RAFTLOG_SASL_PASSWORD", password)
    ca = tmp_path / "tls" / "ca.pem"
    reached = ("--bootstrap", state["bootstrap"])
    alice = (*reached, "--security-protocol", "SASL_SSL", "--ssl-cafile", ca)
    alice = (*alice, "--sasl-username", "alice")
    refused = raftlog("produce", "t", *alice, stdin=b"hello\n")
    assert (refused.status, "alice may not" in refused.err) == (1, True)
    rule = ("--principal", "User:alice", "--operation", "WRITE", "--topic", "t")
    assert raftlog("acl", "create", *rule, *admin).status == 0
    assert raftlog("produce", "t", *alice, stdin=b"hello\n").status == 0
    rotated = raftlog("user", "rotate", "alice", "--password-stdin", *admin, stdin=b"a new one\n")
    assert rotated.status == 0
    assert "authentication failed" in raftlog("tail", "t", "-n", 1, *alice).err
    assert raftlog("user", "delete", "alice", "--json", *admin).json["deleted"]
    assert "requires" in raftlog("topic", "list", *reached).err
    url = state["brokers"][0]["http"]
    assert url.startswith("https://")
    assert raftlog("ready", url, "--ssl-cafile", ca).status == 0
    assert raftlog("console", "--data-dir", tmp_path, "--no-browser").out.decode() == f"{url}/\n"
    secret = profiles.load(str(profile))["sasl_password"]
    basic = base64.b64encode(f"admin:{secret}".encode()).decode()
    request = urllib.request.Request(
        f"{url}/api/v1/topics", headers={"Authorization": f"Basic {basic}"}
    )
    with urllib.request.urlopen(request, context=client_context(ca=str(ca))) as response:
        assert json.loads(response.read()) == ["t"]
    logs = b"".join(path.read_bytes() for path in tmp_path.glob("broker-*.log"))
    for text in (password, "a new one", secret, basic):
        assert text.encode() not in logs
    added = raftlog("up", "--data-dir", tmp_path, "--add", 1, "--json")
    assert (added.status, added.json["added"][0]["id"]) == (0, 4), added.err
    process.terminate()
    process.wait(timeout=60)
    again = spawn("up", "--data-dir", tmp_path)
    assert f"clients: export RAFTLOG_PROFILE={profile}" in first_lines(again)
    assert raftlog("tail", "t", "-o", "earliest", "-n", 1, *admin).out == b"hello\n"
