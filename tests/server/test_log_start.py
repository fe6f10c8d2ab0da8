"""How a log loses its old end: the start moves at once, the files go in a thread."""

from __future__ import annotations

import errno
from typing import Any

from raftlog.errors import BrokerUnavailableError, DiskFullError, RaftlogError, StorageFailedError
from raftlog.record import validate
from raftlog.server.metrics import Counters
from raftlog.server.partition import GroupCommit, LogStartAdvancer
from raftlog.storage import Log
from raftlog.testing.disk import Fault
from tests.running import runs
from tests.server.cluster.paper import Scene, play, write
from tests.server.harness import batch_of

GONE = BrokerUnavailableError("gone")


class Dropping:
    """A log of four segments with a record each."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.failures: list[StorageFailedError] = []
        self.told: list[RaftlogError | None] = []
        self.starts: list[int] = []  # that are durable
        self.log: Log = s.log(segment_bytes=1, retention_bytes=1)
        write(self.log, b"a", b"b", b"c", b"d")
        self.commit = GroupCommit(
            self.log,
            s.loop,
            s.workers,
            on_durable=lambda: None,
            on_failed=self.failures.append,
            counters=Counters(),
        )
        self.drops = LogStartAdvancer(
            self.log,
            self.commit,
            s.workers,
            on_start=lambda: self.starts.append(self.log.durable_start_offset),
            on_failed=self.failures.append,
        )

    def drop(self, offset: int) -> None:
        self.drops.advance_log_start(offset, self.told.append)

    def segments(self) -> list[str]:
        names = self.s.disk.list_dir(self.log.directory)
        return sorted(name for name in names if name.endswith(".log"))


@runs(play)
async def test_the_start_moves_at_once_and_is_answered_when_it_is_durable(s: Scene) -> None:
    d = Dropping(s)
    s.workers.hold()
    d.drop(2)
    assert (d.log.log_start_offset, d.log.durable_start_offset) == (2, 0)
    assert d.told == []
    s.workers.release()
    await s.come_to_rest()
    assert (d.told, d.starts) == ([None], [2])
    assert len(d.segments()) == 2


@runs(play)
async def test_what_is_dropped_already_is_answered_too(s: Scene) -> None:
    d = Dropping(s)
    d.drop(3)
    d.drop(1)
    await s.come_to_rest()
    assert d.log.log_start_offset == 3
    assert d.told == [None, None]


@runs(play)
async def test_it_waits_for_a_sync_that_is_out(s: Scene) -> None:
    d = Dropping(s)
    write_unsynced(d.log)
    s.workers.hold()
    d.commit.request()
    await s.come_to_rest()
    d.drop(2)
    assert d.log.log_start_offset == 0
    s.workers.release()
    await s.come_to_rest()
    assert d.log.log_start_offset == 2
    assert d.told == [None]


def write_unsynced(log: Log) -> None:
    batch = batch_of(b"e")
    log.append(batch, validate(batch), leader_epoch=1, now_ms=1_700_000_000_000)


@runs(play)
async def test_a_log_that_was_cut_meanwhile_is_dropped_up_to_its_end(s: Scene) -> None:
    d = Dropping(s)
    write_unsynced(d.log)
    s.workers.hold()
    d.commit.request()
    await s.come_to_rest()
    d.commit.between_syncs(lambda: d.log.truncate_to(1))
    d.drop(4)
    s.workers.release()
    await s.come_to_rest()
    assert (d.log.log_start_offset, d.log.log_end_offset) == (1, 1)
    assert d.told == [None]


@runs(play)
async def test_retention_drops_what_is_committed_and_too_much(s: Scene) -> None:
    d = Dropping(s)
    d.drops.apply_retention(now_ms=1_700_000_000_000, high_watermark=2)
    await s.come_to_rest()
    assert d.log.log_start_offset == 2
    d.drops.apply_retention(now_ms=1_700_000_000_000, high_watermark=2)
    await s.come_to_rest()
    assert d.log.log_start_offset == 2


@runs(play)
async def test_a_disk_without_room_is_told_and_is_not_the_end(s: Scene) -> None:
    d = Dropping(s)
    s.disk.faults.append(Fault(error=errno.ENOSPC))
    d.drop(2)
    await s.come_to_rest()
    assert [type(error) for error in d.told] == [DiskFullError]
    assert d.failures == []
    d.drop(2)
    await s.come_to_rest()
    assert d.told[1:] == [None]


@runs(play)
async def test_a_disk_that_fails_is_reported_once_for_each_failure(s: Scene) -> None:
    d = Dropping(s)
    s.disk.faults.append(Fault(error=errno.EIO))
    d.drop(2)
    await s.come_to_rest()
    assert [type(error) for error in d.told] == [StorageFailedError]
    assert d.failures == d.told


@runs(play)
async def test_an_error_that_is_none_of_the_disks_is_not_to_be_trusted_either(s: Scene) -> None:
    d = Dropping(s)
    error = d.drops.disk_error("cutting", ValueError("a mistake"))
    assert isinstance(error, StorageFailedError)
    assert d.failures == [error]
    room: Any = d.drops.disk_error("cutting", OSError(errno.EDQUOT, "quota"))
    assert isinstance(room, DiskFullError)
    assert len(d.failures) == 1


@runs(play)
async def test_a_segment_that_is_old_enough_ends_and_on_a_full_disk_it_waits(s: Scene) -> None:
    d = Dropping(s)
    later = 1_700_000_000_000 + 8 * 24 * 3_600_000
    s.disk.faults.append(Fault(error=errno.ENOSPC))
    assert not d.drops.roll_if_due(now_ms=later)
    assert d.failures == []
    assert d.drops.roll_if_due(now_ms=later)
    assert len(d.segments()) == 5
    assert not d.drops.roll_if_due(now_ms=later), "there is nothing in it yet"
    write(d.log, b"e")
    s.disk.faults.append(Fault(error=errno.EIO))
    assert not d.drops.roll_if_due(now_ms=2 * later)
    assert [type(error) for error in d.failures] == [StorageFailedError]


@runs(play)
async def test_after_the_close_nothing_is_dropped_and_that_is_said(s: Scene) -> None:
    d = Dropping(s)
    d.drops.closed = GONE
    d.drop(2)
    assert d.told == [GONE]
    assert d.log.log_start_offset == 0


@runs(play)
async def test_it_is_quiet_when_no_thread_works_on_its_files(s: Scene) -> None:
    d = Dropping(s)
    quiet: list[str] = []
    s.workers.hold()
    d.drop(1)
    d.drop(2)
    d.drops.closed = GONE
    d.drops.when_quiet(lambda: quiet.append("one"))
    await s.come_to_rest()
    assert quiet == []
    s.workers.release()
    await s.come_to_rest()
    assert quiet == ["one"]
    assert d.told == [None, None]
    d.drops.when_quiet(lambda: quiet.append("two"))
    assert quiet == ["one", "two"]
