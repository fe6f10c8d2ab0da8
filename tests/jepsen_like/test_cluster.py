"""The cluster under test is made as it is needed, tells what it sees, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, NewTopic
from raftlog.client import profiles
from raftlog.config import Address, BrokerConfig
from raftlog.errors import AuthenticationError, BrokerUnavailableError
from raftlog.testing import BrokerProcess, wait_until
from raftlog.testing.cluster import answers, free_port
from raftlog.types import Offset, TopicPartition
from raftlog_jepsen import cluster
from raftlog_jepsen.cluster import (
    SETTINGS,
    ClusterUnderTest,
    Exit,
    Host,
    Needs,
    how_it_ended,
    state_of,
)
from raftlog_jepsen.control import namespaces
from raftlog_jepsen.kafka_clients import KafkaConsumer, KafkaProducer
from raftlog_jepsen.nemesis.base import FaultBudget
from raftlog_jepsen.plan import Shape, TopicShape
from raftlog_jepsen.secured import RULES

pytestmark = pytest.mark.integration

PATIENCE_S = 40.0
TRIES_MAX = 3
NAME = TopicPartition("events", 0)
ENTER = "import sys; from raftlog_jepsen.control import namespaces; namespaces.enter(sys.argv[1:])"
IN_SANDBOX = Path(__file__).with_name("in_sandbox.py")


def shape_of(brokers: int) -> Shape:
    topic = TopicShape(name="events", partitions=1, replication_factor=brokers, min_isr=1)
    return Shape(brokers=brokers, topics=(topic,))


def settings_of(cluster: ClusterUnderTest, broker_id: int) -> BrokerConfig:
    return BrokerConfig.from_toml((cluster.directory / f"broker-{broker_id}.toml").read_text())


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """Three brokers, whose links and whose clients' connections go through relays."""
    made = ClusterUnderTest(
        shape_of(3),
        Needs(relays=True, client_relays=True),
        tmp_path_factory.mktemp("cluster"),
        settings={"fetch.max.bytes": "4096", "replica.lag.time.max.ms": "4000"},
    )
    try:
        made.start()
        with Admin(made.bootstrap) as admin:
            admin.create_topics([NewTopic("events", 1, 3)])
        yield made
    finally:
        made.close()


@pytest.fixture
def three(running: ClusterUnderTest) -> ClusterUnderTest:
    """All at work and whole."""
    running.ensure_all_up()
    assert running.wait_quiet(PATIENCE_S) == []
    return running


def test_brokers_reach_each_other_and_clients_reach_them_through_relays(
    three: ClusterUnderTest,
) -> None:
    assert three.net.backend == "relays"
    assert three.bootstrap == ",".join(three.addresses().values())
    links = three.net.links
    assert links is not None
    for broker_id, host in three.hosts.items():
        config = settings_of(three, broker_id)
        assert config.fetch_max_bytes == 4096
        assert config.replica_lag_time_max_ms == 4000
        assert config.log_checkpoint_interval_ms == int(SETTINGS["log.checkpoint.interval.ms"])
        assert config.listen == host.process.address
        assert config.advertised_listen == host.address == links.address(0, broker_id)
        assert three.addresses()[broker_id] == str(host.address)
        for voter in config.voters:
            direct = voter.id == broker_id
            assert voter.address == (
                host.process.address if direct else links.address(broker_id, voter.id)
            )
        assert host.process.address != host.address
    assert three.data_directories() == {n: three.directory / f"broker-{n}" for n in (1, 2, 3)}


def test_a_quiet_cluster_is_whole(three: ClusterUnderTest) -> None:
    part = three.status()[NAME]
    assert part.is_whole
    assert part.agreed == part.caught_up == {1, 2, 3}
    assert three.answers().members == {1, 2, 3}


def test_what_is_missing_is_told(three: ClusterUnderTest) -> None:
    assert three.kill([2]) == {2: "signal 9"}
    assert three.kill([2]) == {}
    three.pause([3])
    assert three.up() == {1}
    lack = three.wait_quiet(0)
    assert "brokers 2, 3 down" in lack
    assert any(line.startswith("events:0") for line in lack)
    assert three.state(2) == "gone"
    wait_until(lambda: three.state(3) == "stopped", what="the stop")
    assert three.ensure_all_up() == [
        "broker 3 was still paused: resumed",
        "broker 2 was still down: started",
    ]
    assert three.ensure_all_up() == []
    assert three.wait_quiet(PATIENCE_S) == []


def test_a_broker_that_nobody_reaches_is_started_all_the_same(three: ClusterUnderTest) -> None:
    three.kill([1])
    three.net.cut({(0, 1), (1, 0), (1, 2), (2, 1), (1, 3), (3, 1)})
    try:
        assert 0 < three.start_broker(1) < PATIENCE_S
        assert three.start_broker(1) >= 0  # it runs
    finally:
        three.net.heal()
    assert three.wait_quiet(PATIENCE_S) == []


def test_exits_are_told_unless_they_were_expected(three: ClusterUnderTest) -> None:
    before = three.kills()[1]
    three.kill([1])
    three.start_broker(1)
    assert three.exits() == []  # somebody ended it
    assert three.kills()[1] == before + 1
    for expected in (True, False):
        if expected:
            three.expect_exit([2])
        pid = three.hosts[2].broker_pid
        assert pid is not None
        os.kill(pid, signal.SIGABRT)
        wait_until(lambda: 2 not in three.up(), what="its end")
        found = three.exits()[-1]
        assert (found.broker, found.status, found.expected) == (2, -signal.SIGABRT, expected)
        three.start_broker(2)
    (noted,) = three.unexpected_exits()
    assert noted.startswith("broker 2 ended unexpectedly with signal 6: ")


def test_a_broker_that_cannot_start_holds_up_no_other(three: ClusterUnderTest) -> None:
    three.kill([1, 2])
    data_dir, aside = three.hosts[1].data_dir, three.directory / "aside"
    data_dir.rename(aside)
    data_dir.write_text("in the way")
    try:
        with pytest.raises(BrokerUnavailableError, match="broker 1 ended with status 1"):
            three.start_broker(1)
        failed, started = three.ensure_all_up()
        assert failed.startswith("broker 1 was down and cannot be started: ")
        assert started == "broker 2 was still down: started"
    finally:
        data_dir.unlink()
        aside.rename(data_dir)


def kill_a_leader_that_may_be_lost(cluster: ClusterUnderTest, ledger: FaultBudget) -> int:
    """It is down, and others lead.

    What it decided a moment before (the ISR of a cluster that had just come up) may have come
    between the look and the kill: then the ledger refuses, and is right, and the next one is tried.
    """
    for _ in range(TRIES_MAX):
        assert cluster.wait_quiet(PATIENCE_S) == []
        leader = cluster.status()[NAME].leader
        assert leader is not None
        cluster.kill([leader])
        refusal = ledger.may_lose([leader])
        if not refusal:
            return leader
        assert "no in-sync replica would be left" in refusal
        cluster.start_broker(leader)
    raise AssertionError(f"the ISR of a quiet cluster shrank {TRIES_MAX} times")


def test_a_lost_disk_counts_until_it_is_filled_again(three: ClusterUnderTest) -> None:
    ledger = FaultBudget(three)
    leader = kill_a_leader_that_may_be_lost(three, ledger)
    others = {1, 2, 3} - {leader}
    assert ledger.may_lose(others) == f"the cluster's voters would be {leader} of 3: no majority"
    ledger.lost([leader])
    shutil.rmtree(three.hosts[leader].data_dir)
    assert "no majority" in ledger.may_lose([min(others)])
    three.start_broker(leader)
    ledger.returned([leader])
    assert three.wait_quiet(PATIENCE_S) == []
    # One look may find a replica that has not said yet that it has it all.
    wait_until(
        lambda: ledger.may_lose([min(others)]) == "", timeout_s=PATIENCE_S, what="all are whole"
    )
    assert ledger.failed == frozenset()


def test_one_alone_on_the_loopback_device_with_nothing_special(tmp_path: Path) -> None:
    made = ClusterUnderTest(shape_of(1), Needs(), tmp_path / "alone")
    try:
        made.start()
        assert made.net.backend == "none"
        assert made.hosts[1].process.address == made.hosts[1].address
        assert settings_of(made, 1).voters == ()
        assert made.cannot("kill") == ""
        assert made.cannot("wipe") != ""
        made.stop()
        assert made.hosts[1].process.last_words().endswith("state=synced")
    finally:
        made.close()
    made.close()
    assert not answers(made.hosts[1].address)


def test_what_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from raftlog_jepsen.control import disks

    closed: list[str] = []

    class OneDisk:
        """The machine has room for one."""

        def __init__(self, directory: Path, name: str) -> None:
            if name != "disk-1":
                raise OSError("no room")
            self.mount_point = directory / name

        def close(self, *, keep: bool) -> None:
            closed.append(f"keep={keep}")

    monkeypatch.setattr(disks, "LoopDisk", OneDisk)
    with pytest.raises(OSError, match="no room"):
        ClusterUnderTest(shape_of(3), Needs(loop_disks=True, relays=True), tmp_path)
    assert closed == ["keep=True"]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What was seen in a cluster with all that needs root: in a sandbox, so in another process."""
    if namespaces.why_no_sandbox():
        pytest.skip(f"no sandbox can be made here: {namespaces.why_no_sandbox()}")
    directory = tmp_path_factory.mktemp("everything")
    command = [sys.executable, str(IN_SANDBOX), str(directory)]
    done = subprocess.run(
        [sys.executable, "-c", ENTER, *command], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


CHECKS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "the network is of namespaces": lambda seen: seen["backend"] == "namespaces",
    "each broker has a network of its own": lambda seen: len(set(seen["networks"])) == 4,
    "each broker has a clock of its own": lambda seen: (
        seen["bases"] == ["100000", "200000", "300000"]
    ),
    "data is on disks of their own": lambda seen: len(set(seen["devices"])) == 4,
    "logs are not": lambda seen: seen["logs"] == [f"broker-{n}.log" for n in (1, 2, 3)],
    "brokers run under other commands": lambda seen: all(
        broker not in (wrapper, None) for wrapper, broker in seen["pids"]
    ),
    "a paused one is stopped, and its wrapper too": lambda seen: (
        seen["paused"] == ["stopped", "stopped"]
    ),
    "a killed one is gone, and its wrapper too": lambda seen: seen["killed"] == ["gone", "gone"],
    "a killed one comes back": lambda seen: seen["quiet"] == [[], []],
    "all end in peace": lambda seen: all(
        words.endswith("state=synced") for words in seen["last_words"]
    ),
    "disks are there for who looks later": lambda seen: seen["images"] == 3,
}


@pytest.mark.parametrize("check", CHECKS)
def test_with_all_that_needs_root(everything: dict[str, Any], check: str) -> None:
    assert CHECKS[check](everything), everything


# -- host ------------------------------------------------------------------------------------------
#
# A host says what its broker's process does, by the system's word and the broker's own.


# What a broker does as far as a host is concerned; ARGS: what it does then.
BUILD = """
import os, signal, sys, threading
sys.stderr.write(os.environ["SAYS"])
sys.stderr.flush()
if os.environ["THEN"] == "wait":
    threading.Thread(target=sys.stdin.read).start()
    sys.stdin.read()
sys.exit(int(os.environ["THEN"]))
"""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """One whose broker says and does what its environment tells it to."""
    package = tmp_path / "build" / "raftlog"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(BUILD)
    address = Address("127.0.0.1", free_port())
    process = BrokerProcess(7, address, tmp_path / "data", source=tmp_path / "build")
    made = Host(process, address, environment={"SAYS": "hello\n", "THEN": "wait"})
    yield made
    process.kill()


def test_it_is_ready_when_its_broker_says_so(host: Host) -> None:
    host.environment["SAYS"] = "raftlog broker 7 ready on 127.0.0.1:1\n"
    host.spawn()
    host.wait_ready()
    assert host.state() == "running"
    assert (host.id, host.prefix, host.broker_pid) == (7, (), host.process.pid)
    host.process.kill()
    assert host.state() == "gone"
    host.environment["SAYS"] = "not yet\n"
    host.spawn()
    with pytest.raises(BrokerUnavailableError, match="broker 7 is not ready after 0 s"):
        host.wait_ready(timeout_s=0)  # what it said the last time does not count


def test_one_that_ends_instead_has_its_last_words_told(host: Host) -> None:
    host.environment |= {"SAYS": "raftlog broker 7: no luck\n", "THEN": "1"}
    host.may_exit = True
    host.spawn()
    with pytest.raises(BrokerUnavailableError, match=r"broker 7 ended with status 1: .*no luck"):
        host.wait_ready()
    (found,) = host.exits
    assert found.expected
    host.may_exit = False
    host.environment["THEN"] = "2"
    host.spawn()
    wait_until(lambda: not host.process.running, what="the end")
    assert (
        str(host.exits[1]) == "broker 7 ended unexpectedly with status 2: raftlog broker 7: no luck"
    )
    assert not host.exits[1].expected
    assert host.exits[1].monotonic_ns > host.exits[0].monotonic_ns


def test_a_broker_whose_threads_all_stand_still_is_stopped(host: Host) -> None:
    host.spawn()
    wait_until(lambda: "hello" in host.process.last_words(), what="the broker's start")
    host.process.pause()
    wait_until(lambda: host.state() == "stopped", what="every thread's stop")
    host.process.resume()
    wait_until(lambda: host.state() == "running", what="its going on")


def test_a_process_that_nobody_waited_for_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    wait_until(lambda: state_of(process.pid) == "gone", what="a zombie")
    process.wait()
    assert state_of(process.pid) == "gone"
    assert state_of(os.getpid()) == "running"
    monkeypatch.setattr(cluster, "PROC", Path("/no/such/place"))
    assert state_of(os.getpid()) == "unknown"


def test_ends_in_words() -> None:
    assert how_it_ended(-signal.SIGKILL) == "signal 9"
    assert how_it_ended(3) == "status 3"
    assert how_it_ended(None) == "no end"
    assert str(Exit(1, -11, "oops", False, 0)) == "broker 1 ended unexpectedly with signal 11: oops"


# -- secured ---------------------------------------------------------------------------------------
#
# A run against a secured cluster: clients authenticate, and their rules are what permits them.


PARTITION = TopicPartition("t", 0)


def test_clients_need_the_profile_and_its_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ClusterUnderTest(shape_of(1), Needs(), tmp_path, secure=True)
    try:
        made.start()
        assert made.secured is not None
        path = Path(made.secured.environment[profiles.VARIABLE])
        tls = {"security_protocol": "SSL", "ssl_cafile": profiles.load(str(path))["ssl_cafile"]}
        with Admin(made.bootstrap, **tls) as admin, pytest.raises(AuthenticationError):
            admin.list_topics()
        for name, value in made.secured.environment.items():
            monkeypatch.setenv(name, value)
        with Admin(made.bootstrap) as admin:
            assert {*RULES} <= {*admin.describe_acls()}
            admin.create_topics([NewTopic("t", 1)])
        assert asyncio.run(_ends(made.bootstrap)) == {PARTITION: 1}
        assert made.wait_quiet(PATIENCE_S) == []
        assert os.stat(path).st_mode & 0o077 == 0
        made.start_broker(1)
    finally:
        made.close()


async def _ends(bootstrap: str) -> dict[TopicPartition, Offset]:
    """Write a record with Kafka's protocol. Returns the ends of the partition."""
    producer = KafkaProducer(
        bootstrap,
        acks=-1,
        idempotent=True,
        compression="none",
        linger_ms=0,
        request_timeout_ms=10_000,
        delivery_timeout_ms=20_000,
        metadata_max_age_ms=3_000,
        client_id="p",
    )
    await (await producer.send("t", b"0", partition=0))
    await producer.close(timeout=0)
    reader = KafkaConsumer(bootstrap, request_timeout_ms=10_000, metadata_max_age_ms=3_000)
    try:
        return await reader.end_offsets([PARTITION])
    finally:
        await reader.close()
