"""Clusters of real processes, and the fixtures that give them to users."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.testing import BrokerProcess, Cluster, cluster, fork_server, wait_until
from raftlog.testing.cluster import answers, free_port, free_ports, local_cluster, members
from tests.client.samples import python

pytestmark = pytest.mark.integration

# -- clusters --------------------------------------------------------------------------------------

# Clusters of real processes: together from the start, cut apart and healed, wiped and back.


SOON_S = 30.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with cluster(brokers=3) as started:
        yield started


@pytest.fixture
def three(running: Cluster) -> Cluster:
    """Three brokers that run and reach each other."""
    running.heal()
    for broker in running.brokers:
        broker.resume()
    running.start()
    return running


@pytest.fixture
def topic(three: Cluster, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own with one partition and three replicas, all in sync."""
    name: str = request.node.name[:200]
    with Admin(three.bootstrap) as admin:
        admin.create_topics([NewTopic(name, replication_factor=3)])
    wait_until(lambda: three.is_in_sync(name, 0), timeout_s=SOON_S, what="replicas in sync")
    return name


def send(three: Cluster, topic: str, values: list[bytes]) -> None:
    with Producer(three.bootstrap) as producer:
        producer.send_many(topic, values, partition=0).result(timeout=SOON_S)


def read(three: Cluster, topic: str) -> list[bytes | None]:
    partition = TopicPartition(topic, 0)
    found: list[bytes | None] = []
    with Consumer(three.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        while consumer.position(partition) < end:
            found += [record.value for record in consumer.poll(timeout_ms=1000)]
    return found


def leader_of(three: Cluster, topic: str) -> int:
    wait_until(lambda: three.leader(topic, 0) is not None, timeout_s=SOON_S, what="a leader")
    found = three.leader(topic, 0)
    assert found is not None
    return found


def test_started_brokers_have_each_other(three: Cluster) -> None:
    assert three.bootstrap == ",".join(str(broker.address) for broker in three.brokers)
    for broker in three.brokers:
        assert answers(broker.address)
        assert members(broker.address) == {1, 2, 3}


def test_the_members_of_a_secured_cluster_are_seen() -> None:
    pytest.importorskip("cryptography")
    with cluster(secure=True) as secured:
        secured.wait_known(secured.brokers, timeout_s=3.0)


def test_one_broker_is_a_cluster_of_its_own() -> None:
    with cluster() as alone:
        (broker,) = alone.brokers
        assert members(broker.address) == {1}
        assert "voters" not in broker.settings
        with pytest.raises(ValueError, match="created without relays"):
            alone.isolate(1)
    assert not broker.running
    assert not broker.data_dir.exists()


@pytest.mark.nightly
def test_a_killed_leader_is_replaced_and_comes_back(three: Cluster, topic: str) -> None:
    send(three, topic, [b"before"])
    first = leader_of(three, topic)
    three.broker(first).kill()
    send(three, topic, [b"while it is down"])
    assert leader_of(three, topic) != first
    three.broker(first).start()
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=SOON_S, what="the return")
    assert read(three, topic) == [b"before", b"while it is down"]


@pytest.mark.nightly
def test_all_killed_at_once_come_back_with_everything(three: Cluster, topic: str) -> None:
    send(three, topic, [b"1", b"2"])
    addresses = [broker.address for broker in three.brokers]
    three.kill()
    assert not any(broker.running for broker in three.brokers)
    three.start()
    assert [broker.address for broker in three.brokers] == addresses
    assert read(three, topic) == [b"1", b"2"]


def test_all_are_stopped_in_peace(three: Cluster) -> None:
    three.stop()
    for broker in three.brokers:
        assert not broker.running
        assert broker.last_words().endswith("state=synced")


def test_a_wiped_broker_comes_back_empty_and_gets_everything(three: Cluster, topic: str) -> None:
    send(three, topic, [b"kept"])
    with pytest.raises(ValueError, match=r"broker 3 is running\. Kill it first"):
        three.wipe(3)
    three.broker(3).kill()
    three.wipe(3)
    assert not three.broker(3).data_dir.exists()
    three.wipe(3)  # a disk that is gone cannot be more so
    three.start()
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=SOON_S, what="the copy")
    assert three.views(topic, 0)[3].log_end_offset == 1


def test_a_partition_leaves_the_majority_at_work(three: Cluster, topic: str) -> None:
    old = leader_of(three, topic)
    rest = {1, 2, 3} - {old}
    three.partition([{old}, rest])
    wait_until(lambda: three.leader(topic, 0) in rest, timeout_s=SOON_S, what="another leader")
    for broker in three.brokers:
        assert answers(broker.address)  # clients reach both sides
    send(three, topic, [b"by the majority"])
    three.heal()
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=SOON_S, what="the healing")
    assert read(three, topic) == [b"by the majority"]


def test_the_last_partition_counts(three: Cluster) -> None:
    three.partition([{1}, {2}, {3}])
    three.partition([{1, 2}])  # 3 is on a side of its own
    assert three._apart == {frozenset((1, 3)), frozenset((2, 3))}
    three.cut(1, 2)
    assert len(three._apart) == 3
    three.heal()
    three.isolate(2)
    assert three._apart == {frozenset((1, 2)), frozenset((2, 3))}
    with pytest.raises(ValueError, match="broker 1 is on two sides"):
        three.partition([{1}, {1, 2}])
    with pytest.raises(ValueError, match="no broker 4"):
        three.partition([{4}, {1, 2, 3}])


def test_nobody_waits_for_who_cannot_join(three: Cluster) -> None:
    three.broker(1).kill()
    three.broker(2).pause()
    three.start()  # 1 and 3 are the majority
    assert {1, 3} <= members(three.broker(1).address)
    three.kill()
    three.partition([{1}, {2}, {3}])
    three.start()  # each answers, and that is all
    assert all(answers(broker.address) for broker in three.brokers)


def test_joining_that_takes_too_long_says_so(three: Cluster) -> None:
    three.broker(1).pause()
    three.broker(1)._paused = False  # as if it had stopped by itself
    with pytest.raises(TimeoutError, match=r"broker 1 has \[1, 2, 3\] in the cluster"):
        three.wait_members(timeout_s=0)


def test_a_cluster_is_resumed_where_it_lives(tmp_path: Path) -> None:
    addresses = {
        number: Address("127.0.0.1", port) for number, port in enumerate(free_ports(3), start=1)
    }
    made = local_cluster(tmp_path, addresses=addresses, settings={"rack": "r"})
    assert made.relays is None
    secret = tmp_path / "cluster.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_text()) >= 64
    for broker in made.brokers:
        assert broker.settings["rack"] == "r"
        assert broker.settings["voters"] == ",".join(f"{n}@{a}" for n, a in addresses.items())
        assert broker.settings["cluster.secret.file"] == str(secret)
    before = secret.read_text()
    again = local_cluster(tmp_path, brokers=3)
    assert [broker.data_dir for broker in again.brokers] == [b.data_dir for b in made.brokers]
    assert secret.read_text() == before


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "broker-3").write_text("in the way of the data directory")
    names = {thread.name for thread in threading.enumerate()}
    with (
        pytest.raises(BrokerUnavailableError, match="broker 3 ended"),
        cluster(brokers=3, directory=tmp_path),
    ):
        pass
    assert {thread.name for thread in threading.enumerate()} == names
    for line in (tmp_path / "broker-1.toml").read_text().splitlines():
        if line.startswith("listen"):
            host, _, port = line.split('"')[1].rpartition(":")
            assert not answers(Address(host, int(port)))


def test_a_forked_child_that_leaves_the_block_ends_nothing() -> None:
    done = python(
        """
        import os, sys
        from raftlog.testing import cluster
        with cluster() as running:
            directory = running.directory
            if not (child := os.fork()):
                sys.exit()
            assert os.waitpid(child, 0)[1] == 0
            assert running.brokers[0].running
            assert directory.exists()
        assert not directory.exists()
        """
    )
    assert done.returncode == 0, done.stderr


# -- processes -------------------------------------------------------------------------------------
#
# A broker as a process: it answers when it should, and only what was started here ends.


# A command that starts the broker as its child, and ignores SIGTERM meanwhile: as unshare does.
FORKING = ("sh", "-c", 'trap "" TERM; "$@"; exit $?', "sh")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("processes")
    process = BrokerProcess(1, Address("127.0.0.1", free_port()), directory / "broker-1")
    yield process
    process.kill()


@pytest.fixture
def broker(shared: BrokerProcess) -> BrokerProcess:
    """One that runs."""
    if not shared.running:
        shared.start()
    return shared


def test_a_killed_broker_is_gone_and_comes_back_at_the_same_address(broker: BrokerProcess) -> None:
    address, pid = broker.address, broker.pid
    broker.kill()
    assert not broker.running
    assert broker.pid is None
    assert not answers(address)
    broker.start()
    assert broker.address == address
    assert broker.pid != pid
    assert answers(address)


def test_a_stopped_broker_ends_in_peace(broker: BrokerProcess) -> None:
    broker.stop()
    assert not broker.running
    assert "state=synced" in broker.log_path.read_text()


def test_a_paused_broker_keeps_its_connections_and_goes_on_when_resumed(
    broker: BrokerProcess,
) -> None:
    broker.pause()
    assert broker.running
    assert broker.paused
    broker.resume()
    assert not broker.paused
    wait_until(lambda: answers(broker.address), what="the resumed broker's answer")


@pytest.mark.parametrize("end", [BrokerProcess.stop, BrokerProcess.kill])
def test_a_paused_broker_can_be_ended(broker: BrokerProcess, end: object) -> None:
    broker.pause()
    assert callable(end)
    end(broker)
    assert not broker.running
    assert not broker.paused


def test_a_running_broker_is_not_started_twice(broker: BrokerProcess) -> None:
    with pytest.raises(ValueError, match="already running"):
        broker.spawn()


def test_an_address_in_use_is_refused(tmp_path: Path, broker: BrokerProcess) -> None:
    rival = BrokerProcess(id=2, address=broker.address, data_dir=tmp_path / "rival")
    with pytest.raises(BrokerUnavailableError, match=f"{broker.address}.*select another"):
        rival.start()
    assert broker.running


def test_a_broker_that_cannot_start_says_why(tmp_path: Path, broker: BrokerProcess) -> None:
    rival = BrokerProcess(2, Address("127.0.0.1", free_port()), broker.data_dir)
    with pytest.raises(BrokerUnavailableError, match=r"ended with status 1: .*broker"):
        rival.start()
    assert broker.running


def test_a_broker_that_is_not_ready_in_time_is_killed(tmp_path: Path) -> None:
    late = BrokerProcess(1, Address("127.0.0.1", free_port()), tmp_path / "late")
    with pytest.raises(BrokerUnavailableError, match="does not respond"):
        late.start(timeout_s=0)
    assert not late.running


def test_what_was_never_started_can_be_ended_in_any_way(tmp_path: Path) -> None:
    idle = BrokerProcess(
        id=1, address=Address("127.0.0.1", free_port()), data_dir=tmp_path / "idle"
    )
    idle.kill()
    idle.stop()
    idle.pause()
    assert not idle.paused
    assert idle.pid is None
    assert idle.last_words() == "(no output)"


def test_a_broker_ends_with_its_starter(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    starter = os.fork()
    if starter == 0:  # a starter that is killed without a chance to clean up
        started = BrokerProcess(1, Address("127.0.0.1", free_port()), tmp_path / "broker")
        started.spawn()
        os.write(write_end, str(started.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write_end)
    pid = int(os.read(read_end, 20))
    os.close(read_end)
    os.waitpid(starter, 0)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), timeout_s=20, what="the orphan's end")


def broker_in(directory: Path, **how: Any) -> BrokerProcess:
    return BrokerProcess(1, Address("127.0.0.1", free_port()), directory / "broker-1", **how)


def test_a_broker_is_one_also_where_hosts_run_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_WORKERS", "2")
    process = broker_in(tmp_path)
    process.start()
    workers = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    process.kill()
    assert not workers


@pytest.fixture
def wrapped(tmp_path: Path) -> Iterator[BrokerProcess]:
    """One that runs as the child of another command."""
    process = broker_in(tmp_path, prefix=FORKING)
    process.start()
    yield process
    process.kill()


def is_stopped(pid: int | None) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_broker_may_run_under_another_command(wrapped: BrokerProcess) -> None:
    pid, broker_pid = wrapped.pid, wrapped.broker_pid
    assert pid is not None
    assert broker_pid is not None
    assert pid != broker_pid
    assert Path(f"/proc/{broker_pid}/cmdline").read_bytes().startswith(sys.executable.encode())
    wrapped.pause()
    wait_until(lambda: is_stopped(pid) and is_stopped(broker_pid), what="both are stopped")
    wrapped.resume()
    assert not is_stopped(broker_pid)
    wrapped.send_kill()
    wrapped.send_kill()
    wrapped.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert wrapped.broker_pid is None
    assert wrapped.exit_status == -signal.SIGKILL
    wrapped.start()  # at the same address, and with the same data directory, at once


def test_a_broker_under_another_command_ends_in_peace(wrapped: BrokerProcess) -> None:
    wrapped.stop()
    assert wrapped.exit_status == 0
    assert wrapped.last_words().endswith("state=synced")


def test_without_a_prefix_the_broker_is_the_process(broker: BrokerProcess) -> None:
    assert broker.broker_pid == broker.pid


def test_it_is_seen_when_a_broker_ends_by_itself(tmp_path: Path) -> None:
    deaths: list[int] = []
    process = broker_in(tmp_path, on_death=deaths.append)
    for end in (BrokerProcess.kill, BrokerProcess.stop):
        process.start()
        assert process.exit_status is None
        end(process)
        assert not process.running
    assert deaths == []
    process.start()
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSEGV)
    wait_until(lambda: not process.running, what="the end")
    assert deaths == [-signal.SIGSEGV]
    process.kill()
    assert process.exit_status == -signal.SIGSEGV
    assert deaths == [-signal.SIGSEGV]
    assert process.kills == 1


def test_a_broker_may_be_of_another_build(tmp_path: Path) -> None:
    build = tmp_path / "build" / "raftlog"
    build.mkdir(parents=True)
    (build / "__init__.py").touch()
    (build / "__main__.py").write_text("raise SystemExit('a broken build')")
    with pytest.raises(BrokerUnavailableError, match="ended with status 1: a broken build"):
        broker_in(tmp_path, source=tmp_path / "build").start()


# -- fork server -----------------------------------------------------------------------------------
#
# Brokers as forks: the same as those of new interpreters, and the ends of all that takes part.


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_fork_and_a_new_interpreter_are_the_same_broker(tmp_path: Path, can_fork: bool) -> None:
    """Environment, directory, files, process group, exit status and messages of both."""
    data, home = tmp_path / "data", tmp_path / "home"
    process = broker_in(data, home=home, can_fork=can_fork)
    process.start()
    try:
        assert process.pid is not None
        assert os.getpgid(process.pid) == process.pid
        assert os.readlink(f"/proc/{process.pid}/cwd") == os.getcwd()
        assert {link_of(process.pid, fd) for fd in (1, 2)} == {str(process.log_path)}
        assert link_of(process.pid, 0).startswith("pipe:")
        os.killpg(process.pid, signal.SIGINT)
        wait_until(lambda: not process.running, what="the end")
        assert process.exit_status == 0
        assert "state=synced" in process.log_path.read_text()
        process.environment = {"RAFTLOG_FAILPOINTS": "no-such-point=crash"}
        with pytest.raises(BrokerUnavailableError, match=r"status 1: raftlog broker 1: .*no-such"):
            process.start()
    finally:
        process.kill()
    assert {path.name for path in home.iterdir()} == {"broker-1.log", "broker-1.toml"}
    assert [path.name for path in data.iterdir()] == ["broker-1"]


def link_of(pid: int, fd: int) -> str:
    return os.readlink(f"/proc/{pid}/fd/{fd}")


@pytest.mark.parametrize(
    ("environment", "can_fork"),
    [
        ({"RAFTLOG_FAILPOINTS": "x"}, True),
        ({"LD_PRELOAD": "libfaketime.so"}, False),
        ({"PYTHONMALLOC": "debug"}, False),
        ({"RAFTLOG_TESTING_FORK": "0"}, False),
    ],
)
def test_what_a_process_reads_at_its_start_only_needs_a_new_one(
    environment: dict[str, str], can_fork: bool
) -> None:
    assert fork_server.can_fork({**os.environ, **environment}) == can_fork


def test_a_fork_server_that_was_killed_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_server", fork_server._Server())  # others use the first one
    process = broker_in(tmp_path)
    process.start()
    try:
        (server,) = parents(process.pid)
        assert len(os.listdir(f"/proc/{server}/task")) == 1, "a fork copies one thread only"
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: not process.running, what="the end of its broker")
        assert process.exit_status == -signal.SIGKILL
        process.start()
        assert parents(process.pid) != [server]
    finally:
        process.kill()
        fork_server._server._discard()


def parents(pid: int | None) -> list[int]:
    return [int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])]


def test_a_process_is_waited_for_though_another_thread_polls_its_socket(tmp_path: Path) -> None:
    """A thread that polls keeps the kernel's file open, as a copy of the descriptor does."""
    process = broker_in(tmp_path)
    process.start()
    child = process._process
    assert isinstance(child, fork_server.ForkedProcess)
    copy = os.dup(child._exit_socket.fileno())
    try:
        process.send_kill()
        assert child.wait(60) == -signal.SIGKILL
        assert not Path(f"/proc/{child.pid}").exists(), "not even a zombie is left"
    finally:
        os.close(copy)
        process.kill()


# -- fixtures --------------------------------------------------------------------------------------

# The fixtures that users get: brokers that answer, and their addresses.


def test_the_fixtures_are_a_running_broker(
    raftlog_cluster: Cluster, raftlog_bootstrap: str
) -> None:
    assert raftlog_bootstrap == raftlog_cluster.bootstrap
    assert len(raftlog_cluster.brokers) == 1
    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
        assert admin.list_topics() == ["t"]


@pytest.mark.raftlog_cluster(brokers=3, settings={"rack": "here"})
def test_a_mark_asks_for_more(raftlog_cluster: Cluster, raftlog_bootstrap: str) -> None:
    assert len(raftlog_cluster.brokers) == 3
    assert raftlog_cluster.relays is not None
    with Admin(raftlog_bootstrap) as admin:
        assert {broker.rack for broker in admin.describe_cluster().brokers} == {"here"}
