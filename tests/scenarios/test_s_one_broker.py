"""The named scenarios of one broker: when it answers, what its disk may do, and its sockets."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from raftlog.config import TopicConfig
from raftlog.disk import OsDisk, OsFile
from raftlog.errors import (
    CommitUnknownError,
    DamagedJournalError,
    DiskFullError,
    RaftlogError,
    StorageFailedError,
)
from raftlog.record import validate
from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.server.clock import BrokerClock
from raftlog.server.disks import DiskWatch
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.scheduling import Workers
from raftlog.storage import Log
from raftlog.testing import cluster, wait_until
from raftlog.testing.cluster import answers
from raftlog.testing.disk import SimDisk
from raftlog.types import Buffer, TopicPartition
from tests.consensus.journals import contents, fill_group, open_journal
from tests.consensus.test_journal import change, check, started
from tests.replication.samples import disks
from tests.server.harness import (
    TIMEOUT_S,
    Client,
    FakeClock,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    running,
    values_of,
)
from tests.storage.crashes import sweep

# -- S25, S26: what is answered, and what is read


class Leader:
    """Broker 1 leads a partition that broker 2 copies; its disk syncs at once."""

    def __init__(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        self.workers = Workers(loop, count=1, name="test")
        self.failures: list[StorageFailedError] = []
        services = ReplicaServices(
            clock=BrokerClock(FakeClock()),
            loop=loop,
            sync_workers=self.workers,
            disk=DiskWatch(loop, sync=self.workers, journal=self.workers, timeout_s=5.0),
            on_failed=self.failures.append,
            on_damage=lambda _host: None,
        )
        log = Log.open(FaultyDisk(), str(directory), TopicConfig())
        self.host = Partition(TopicPartition("t", 0), log, services)
        self.state: PartitionState = replace(
            initial_state((1, 2), (), disks((1, 2)), 1), leader_epoch=1
        )
        self.host.lead(self.state, 1, lag_max_seconds=10)
        self.noted: list[RaftlogError | None] = []

    def append(self, value: bytes) -> None:
        """As a produce request with acks=all does; its outcome goes to ``told``."""
        batch = batch_of(value)
        appended = self.host.append(batch, validate(batch))
        self.host.when_committed(appended.last_offset + 1, self.noted.append)

    def follower_has(self, offset: int) -> None:
        self.host.on_follower(2, "disk-2", fetch_offset=offset, durable_offset=offset)

    async def on_disk(self) -> None:
        """Wait until this broker's own disk has all."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.host.when_on_disk(self.host.log.log_end_offset, lambda _error: done.set_result(None))
        await asyncio.wait_for(done, TIMEOUT_S)

    def values(self) -> list[bytes]:
        """What a consumer reads here."""
        return values_of(b"".join(self.host.read(start_offset=0, bytes_max=1 << 20)))

    async def close(self) -> None:
        self.host.close(StorageFailedError("over"))
        quiet = asyncio.Event()
        self.host.when_quiet(quiet.set)
        await asyncio.wait_for(quiet.wait(), TIMEOUT_S)
        self.host.log.abandon()
        self.workers.stop()


def test_s25_ack_after_hw_only(tmp_path: Path) -> None:
    """Its own fsync is no acknowledgement; nor is what comes after another was elected."""

    async def play() -> None:
        leader = Leader(tmp_path / "log")
        leader.append(b"a")
        leader.append(b"b")
        await leader.on_disk()
        assert leader.noted == [], "the follower has nothing yet"
        leader.follower_has(1)
        assert leader.noted == [None]
        leader.host.follow(2, 2)  # the epoch is lost before the watermark has reached it
        ok, unknown = leader.noted
        assert ok is None
        assert isinstance(unknown, CommitUnknownError), "not an ok, and not a failure either"
        with pytest.raises(AssertionError):
            leader.follower_has(2)
        assert len(leader.noted) == 2
        await leader.close()

    asyncio.run(play())


def test_s26_read_below_hw_only(tmp_path: Path) -> None:
    """Not what is on the leader's disk, not while it leads, and not when it leads no more."""

    async def play() -> None:
        leader = Leader(tmp_path / "log")
        leader.append(b"a")
        leader.append(b"b")
        await leader.on_disk()
        assert leader.values() == []
        leader.follower_has(1)
        assert leader.values() == [b"a"]
        leader.host.follow(2, 2)
        assert leader.values() == [b"a"]
        written = leader.host.read_uncommitted(start_offset=0, bytes_max=1 << 20)
        assert values_of(b"".join(written)) == [b"a", b"b"], "it is there, for followers to copy"
        await leader.close()

    asyncio.run(play())


# -- S29, S37: the files that are rewritten


@pytest.mark.parametrize("chances", [1, pytest.param(20, marks=pytest.mark.seeds)])
def test_s37_kill_during_rewrite_at_every_step(chances: int, seed: int) -> None:
    """A process that ends, or a power cut, at each single step of rewriting a journal."""
    assert sweep(started, lambda _disk, promise: change(promise), check, seed=seed, chances=chances)


def test_s29_corrupt_journal_is_refused(seed: int) -> None:
    """Damage is no reason to forget votes: it does not open, and nothing is overwritten."""
    disk = SimDisk(Random(seed))
    disk.make_dirs("data")
    journal = open_journal(disk)
    fill_group(journal, "a", 5)
    journal.sync()
    fill_group(journal, "b", 5)
    journal.sync()
    assert contents(journal)
    journal.close()
    (path,) = [f"data/{name}" for name in disk.list_dir("data") if name.endswith("journal")]
    disk.flip_bit(path, 8 * (len(disk.durable_bytes(path) or b"") // 2))
    damaged = disk.durable_bytes(path)
    with pytest.raises(DamagedJournalError):
        open_journal(disk)
    assert disk.durable_bytes(path) == damaged


# -- S30 to S32: disks that fail, are full, or may only be read


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_s30_fsync_error_is_fatal(tmp_path: Path, code: int) -> None:
    """What was waiting is never told ok, the broker ends, and a start finds what was told."""
    disk = FaultyDisk()
    broker = RunningBroker(tmp_path, {}, FakeClock(), disk)
    with broker.client() as client:
        client.create("t")
        assert client.produce("t", batch_of(b"kept")).failure is None
        disk.faults.sync_error = code
        waiting = client.send_batch("t", batch_of(b"unknown"))
        broker.wait_until(lambda: bool(broker.fatal))
        broker.expect_failed_stop()
        assert not was_told_ok(client, waiting)
    with running(tmp_path) as again, again.client() as client:
        assert client.produce("t", batch_of(b"next")).failure is None
        found = values(client)
        assert found[0] == b"kept"
        assert found[-1] == b"next"


def was_told_ok(client: Client, correlation_id: int) -> bool:
    """Whether a batch was acknowledged; not if the connection ended, with or without a word."""
    try:
        return client.produced(correlation_id).failure is None
    except (AssertionError, ConnectionResetError):
        return False


def values(client: Client) -> list[bytes]:
    _, found = client.fetched(client.send_fetch("t"))
    return found


def test_s31_disk_full(tmp_path: Path) -> None:
    """Writes are refused, reads go on, and with room so do writes: nobody has to come."""
    disk = FaultyDisk()
    with running(tmp_path, disk=disk) as broker, broker.client() as client:
        client.create("t")
        assert client.produce("t", batch_of(b"before")).failure is None
        disk.faults.no_room = True
        for _ in range(3):
            assert isinstance(error_of(client.produce("t", batch_of(b"no"))), DiskFullError)
        assert values(client) == [b"before"]
        disk.faults.no_room = False
        assert client.produce("t", batch_of(b"after")).failure is None
        assert values(client) == [b"before", b"after"]


class ReadOnlyFile(OsFile):
    """A file of ``ReadOnlyDisk``."""

    switch: ReadOnlyDisk

    def append(self, buffers: Sequence[Buffer]) -> None:
        self.switch.check(self.path)
        super().append(buffers)

    def pwrite(self, data: Buffer, position: int) -> None:
        self.switch.check(self.path)
        super().pwrite(data, position)


class ReadOnlyDisk(OsDisk):
    """The machine's disk, until its file system turns read-only, as after an error of ext4's."""

    is_read_only = False

    def check(self, path: str) -> None:
        if self.is_read_only:
            raise OSError(errno.EROFS, "Read-only file system", path)

    def open(
        self, path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> OsFile:
        if create and not self.exists(path):
            self.check(path)
        file = super().open(path, create=create, write=write)
        file.__class__ = ReadOnlyFile
        assert isinstance(file, ReadOnlyFile)
        file.switch = self
        return file

    def write_atomic(self, path: str, data: bytes) -> None:
        self.check(path)
        super().write_atomic(path, data)


def test_s32_read_only(tmp_path: Path) -> None:
    """No write is told ok. A lone broker ends with the reason; all is there when it may write."""
    disk = ReadOnlyDisk()
    broker = RunningBroker(tmp_path, {}, FakeClock(), disk)
    with broker.client() as client:
        client.create("t")
        assert client.produce("t", batch_of(b"before")).failure is None
        disk.is_read_only = True
        answer = client.produce("t", batch_of(b"no"))
        assert isinstance(error_of(answer), StorageFailedError)
        assert "Read-only file system" in str(error_of(answer))
    broker.wait_until(lambda: bool(broker.fatal))
    broker.expect_failed_stop()
    with running(tmp_path) as again, again.client() as client:
        assert values(client) == [b"before"]
        assert client.produce("t", batch_of(b"after")).failure is None


# -- S33: sockets


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="another process's limits: Linux only")
def test_s33_fd_exhaustion(tmp_path: Path) -> None:
    """Without file descriptors newcomers wait or are refused; then the listener goes on."""
    with cluster(brokers=1, directory=tmp_path) as alone:
        (broker,) = alone.brokers
        assert broker.pid is not None
        with Client(broker.address) as client, ExitStack() as crowd:
            client.create("t")
            assert client.produce("t", batch_of(b"before")).failure is None
            used = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
            soft, hard = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (used + 5, hard))
            for _ in range(30):
                crowd.enter_context(socket.create_connection(broker.address))
            wait_until(
                lambda: len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) >= used + 5,
                what="no file descriptor is left",
            )
            assert not answers(broker.address), "nobody more comes in"
            assert client.produce("t", batch_of(b"meanwhile")).failure is None
            assert values(client) == [b"before", b"meanwhile"]
            crowd.close()
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (soft, hard))
            wait_until(lambda: answers(broker.address), what="the listener goes on")
            assert client.produce("t", batch_of(b"after")).failure is None
