"""The named scenarios of one broker: when it answers, what its disk may do to it, and its sockets."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import (
    CommitUnknownError,
    DamagedJournalError,
    DiskFullError,
    RaftlogError,
    StorageFailedError,
)
from raftlog.record import validate
from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.server.replica_host import HostServices, PartitionHost
from raftlog.server.workers import Workers
from raftlog.storage import Log
from raftlog.testing import cluster, wait_until
from raftlog.testing.cluster import answers
from raftlog.testing.disk import Fault, SimDisk
from raftlog.types import TopicPartition
from tests.consensus.journals import contents, fill_group, open_journal
from tests.consensus.test_journal_crashes import change, check, started
from tests.integration.power import Disks, why_not
from tests.replication.samples import disks
from tests.server.harness import (
    TIMEOUT_S,
    Client,
    FakeClock,
    FaultyDisk,
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
        services = HostServices(
            clock=FakeClock(),
            loop=loop,
            sync_workers=self.workers,
            on_failed=self.failures.append,
        )
        log = Log.open(FaultyDisk(), str(directory), TopicConfig())
        self.host = PartitionHost(TopicPartition("t", 0), log, services)
        self.state: PartitionState = replace(
            initial_state((1, 2), (), disks((1, 2)), 1), leader_epoch=1
        )
        self.host.lead(self.state, 1, lag_max_seconds=10)
        self.told: list[RaftlogError | None] = []

    def append(self, value: bytes) -> None:
        """As a produce request with acks=all does; its outcome goes to ``told``."""
        batch = batch_of(value)
        appended = self.host.append(batch, validate(batch))
        self.host.when_committed(appended.last_offset + 1, self.told.append)

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
        assert leader.told == [], "the follower has nothing yet"
        leader.follower_has(1)
        assert leader.told == [None]
        leader.host.follow(2, 2)  # the epoch is lost before the watermark has reached it
        ok, unknown = leader.told
        assert ok is None
        assert isinstance(unknown, CommitUnknownError), "not an ok, and not a failure either"
        with pytest.raises(AssertionError):
            leader.follower_has(2)
        assert len(leader.told) == 2
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
        assert len(leader.host.read_uncommitted(start_offset=0, bytes_max=1 << 20)) == 2
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
    broken = running(tmp_path, disk=disk)
    broker = broken.__enter__()  # it has to fail, so it cannot end as a block does
    with broker.client() as client:
        client.create("t")
        assert client.produce("t", batch_of(b"kept")).failure is None
        disk.faults.sync_error = code
        client.send_batch("t", batch_of(b"unknown"))
        broker.wait_until(lambda: bool(broker.fatal))
        with pytest.raises(StorageFailedError):
            broker.stop()
        assert not client.socket.recv(1), "an answer to what may be lost"
    with running(tmp_path) as again, again.client() as client:
        assert client.produce("t", batch_of(b"next")).failure is None
        values = client.values("t") if hasattr(client, "values") else _values(client)
        assert values[0] == b"kept"
        assert values[-1] == b"next"


def _values(client: Client) -> list[bytes]:
    _, values = client.fetched(client.send_fetch("t"))
    return values


def test_s31_disk_full(tmp_path: Path) -> None:
    """Writes are refused, reads go on, and with room so do writes: nobody has to come."""
    disk = FaultyDisk()
    with running(tmp_path, disk=disk) as broker, broker.client() as client:
        client.create("t")
        assert client.produce("t", batch_of(b"before")).failure is None
        disk.faults.no_room = True
        for _ in range(3):
            assert isinstance(error_of(client.produce("t", batch_of(b"no"))), DiskFullError)
        assert _values(client) == [b"before"]
        disk.faults.no_room = False
        assert client.produce("t", batch_of(b"after")).failure is None
        assert _values(client) == [b"before", b"after"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if why_not():
        pytest.skip(f"not injected: no file system of its own: {why_not()}")
    with Disks(tmp_path, count=1) as disks_:
        yield disks_.places[0]


def _mount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


@pytest.mark.integration
def test_s32_read_only(small_disk: Path, tmp_path: Path) -> None:
    """A file system that has turned read-only: no write is told ok, and nothing is harmed."""
    with _on(small_disk, tmp_path) as broker:
        with Client(broker.address) as client:
            client.create("t")
            assert client.produce("t", batch_of(b"before")).failure is None
            _mount(small_disk, "ro") if broker.running else None
