"""The owner of a log: who waits for what, and in which order they are told."""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.config.address import Watermark
from raftlog.errors import (
    BrokerUnavailableError,
    CommitUnknownError,
    DamagedLogError,
    DiskFullError,
    DiskHungError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    RaftlogError,
    StorageFailedError,
    UnknownLeaderEpochError,
    UnknownTopicError,
)
from raftlog.limits import CLOCK_STEP_MS
from raftlog.record import validate
from raftlog.replication.cluster_commands import Event
from raftlog.server.clock import BrokerClock
from raftlog.server.disks import (
    FULL_SECONDS,
    FULL_SECONDS_MAX,
    SLOWER,
    DiskProblem,
    DiskSpace,
    DiskWatch,
)
from raftlog.server.metrics import Counters
from raftlog.server.partition import (
    SLEEP_SECONDS_MAX,
    WORK_SECONDS_MAX,
    YIELD_SECONDS,
    EventLog,
    GivenUpError,
    LogCompaction,
    LogFlusher,
    LogStartAdvancer,
    Pace,
    Partition,
    Pass,
    ReplicaServices,
    Terms,
    check_epoch,
)
from raftlog.server.scheduling import Workers
from raftlog.storage import Log
from raftlog.storage.log_dirs import DiskMeasure, LogDir
from raftlog.testing.disk import Fault
from raftlog.transactions import Marker
from raftlog.types import TopicPartition
from tests.running import runs
from tests.server.cluster.fake import Scene, play, state_of, write
from tests.server.fake_consensus import FakeWorkers
from tests.server.harness import TIMEOUT_S, FakeClock, FaultyDisk, batch_of, leads_alone, values_of

GONE = UnknownTopicError("gone")


class PartitionScene:
    """A host over a real log."""

    def __init__(self, directory: Path, policy: str) -> None:
        self.disk = FaultyDisk()
        self.failures: list[StorageFailedError] = []
        self.damaged: list[Partition] = []
        self.noted: list[tuple[str, RaftlogError | None]] = []
        loop = asyncio.get_running_loop()
        self.workers = Workers(loop, count=2, name="test")
        self.watch = DiskWatch(loop, sync=self.workers, journal=self.workers, timeout_s=5.0)
        self.space = DiskSpace(producers=Watermark(10), replication=Watermark(5))
        services = ReplicaServices(
            clock=BrokerClock(FakeClock()),
            loop=loop,
            sync_workers=self.workers,
            disk=self.watch,
            on_failed=self.failures.append,
            on_damage=self.damaged.append,
            space=self.space,
        )
        log = Log.open(self.disk, str(directory), TopicConfig(flush_policy=policy))
        self.host = Partition(TopicPartition("t", 0), log, services)
        self.host.lead(leads_alone("directory"), 1, lag_max_seconds=inf)

    def append(self, *values: bytes) -> int:
        """The offset after the batch."""
        batch = batch_of(*values)
        return self.host.append(batch, validate(batch)).last_offset + 1

    def note(self, name: str) -> Callable[[RaftlogError | None], None]:
        return lambda error: self.noted.append((name, error))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - each turn of the loop may change it
                await asyncio.sleep(0)

    async def quiet(self) -> None:
        done = asyncio.Event()
        self.host.when_quiet(done.set)
        await asyncio.wait_for(done.wait(), TIMEOUT_S)


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., None]:
    def play(
        test: Callable[[PartitionScene], Coroutine[Any, Any, None]], *, policy: str = "fsync"
    ) -> None:
        async def run() -> None:
            s = PartitionScene(tmp_path / "log", policy)
            await test(s)
            if s.host.closed is None:
                s.host.close(GONE)
            s.disk.faults.sync_gate.set()
            await s.quiet()
            s.host.log.abandon()
            s.workers.stop()

        asyncio.run(run())

    return play


def test_waits_end_in_the_order_of_the_log(scene: Callable[..., None]) -> None:
    async def test(s: PartitionScene) -> None:
        s.disk.faults.sync_gate.clear()
        for name in ("a", "b", "c"):
            end = s.append(name.encode())
            s.host.when_committed(end, s.note(name))
        assert s.noted == []
        assert s.host.high_watermark == 0
        s.disk.faults.sync_gate.set()
        await s.until(lambda: len(s.noted) == 3)
        assert s.noted == [("a", None), ("b", None), ("c", None)]
        assert s.host.high_watermark == 3
        s.host.when_committed(2, s.note("at once"))
        s.host.when_on_disk(3, s.note("this too"))
        assert s.noted[3:] == [("at once", None), ("this too", None)]

    scene(test)


def test_a_marker_is_refused_once_what_refuses_it_is_committed(scene: Callable[..., None]) -> None:
    async def test(s: PartitionScene) -> None:
        s.disk.faults.sync_gate.clear()
        for epoch in (2, 1):
            marker = Marker(9, epoch, is_commit=True, coordinator_epoch=0, is_bumped=True)
            s.host.append_marker(marker, s.note(f"of epoch {epoch}"))
        assert s.noted == []
        s.disk.faults.sync_gate.set()
        await s.until(lambda: len(s.noted) == 2)
        assert s.noted[0] == ("of epoch 2", None)
        assert isinstance(s.noted[1][1], ProducerFencedError)

    scene(test)


def test_readers_see_only_what_is_committed(scene: Callable[..., None]) -> None:
    async def test(s: PartitionScene) -> None:
        woken: list[int] = []

        class Watcher:
            def wake(self) -> None:
                woken.append(s.host.high_watermark)

        watcher = Watcher()
        s.host.watch(watcher)
        s.disk.faults.sync_gate.clear()
        s.append(b"a", b"b")
        assert s.host.read(start_offset=0, bytes_max=1_000) == []
        assert s.host.committed_bytes == 0
        s.disk.faults.sync_gate.set()
        await s.until(lambda: bool(woken))
        assert woken == [2]
        batches = s.host.read(start_offset=0, bytes_max=1_000)
        assert values_of(b"".join(batches)) == [b"a", b"b"]
        assert s.host.committed_bytes == sum(map(len, batches))
        s.host.unwatch(watcher)
        s.append(b"c")
        await s.until(lambda: s.host.high_watermark == 3)
        assert woken == [2]

    scene(test)


def test_flush_policy_os_commits_at_once_and_syncs_when_a_segment_ends(
    scene: Callable[..., None],
) -> None:
    async def test(s: PartitionScene) -> None:
        s.host.log.config = TopicConfig(flush_policy="os", segment_bytes=16 * 1024)
        syncs = s.disk.faults
        for number in range(3):
            assert s.append(b"x" * 9_000) == s.host.high_watermark == number + 1
        await s.until(lambda: syncs.syncs > 0)
        s.host.save_snapshot()
        await s.until(lambda: s.host.log.durable_end_offset == 3)

    scene(test, policy="os")


def test_flush_policy_os_syncs_at_once_while_too_many_files_are_open(
    scene: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(s: PartitionScene) -> None:
        s.append(b"x")
        await s.until(lambda: s.host.log.durable_end_offset == 1)  # of the first segment
        s.append(b"x")
        assert s.host.log.durable_end_offset == 1
        monkeypatch.setattr(s.disk, "has_surplus", lambda: True)
        s.append(b"x")
        await s.until(lambda: s.host.log.durable_end_offset == 3)

    scene(test, policy="os")


def test_closing_ends_every_wait_and_refuses_what_comes(scene: Callable[..., None]) -> None:
    async def test(s: PartitionScene) -> None:
        s.disk.faults.sync_gate.clear()
        end = s.append(b"a")
        s.host.when_committed(end, s.note("commit"))
        s.host.when_on_disk(end, s.note("disk"))
        await asyncio.sleep(0)
        s.host.delete_records(0, s.note("deletion"))
        s.host.close(GONE)
        assert sorted(s.noted) == [("commit", GONE), ("disk", GONE)]
        for refused in (
            lambda: s.append(b"b"),
            lambda: s.host.read(start_offset=0, bytes_max=1),
            lambda: s.host.offset_for_timestamp(0),
            lambda: s.host.delete_records(0, s.note("late")),
        ):
            with pytest.raises(UnknownTopicError):
                refused()
        s.disk.faults.sync_gate.set()
        await s.quiet()
        assert s.noted[2:] == [("deletion", GONE)]
        s.host.save_snapshot()
        s.host.reconsider()
        s.host.apply_retention()
        await s.quiet()

    scene(test)


@runs(play)
async def test_nobody_begins_to_wait_for_a_commit_that_is_not_possible(s: Scene) -> None:
    """Members of groups send heartbeats for as long, and each would leave its wait behind."""
    host = s.host()
    host.lead(state_of(1, 2, epoch=5, min_isr=2), 1, lag_max_seconds=10)
    batch = batch_of(b"a")
    host.append(batch, validate(batch))
    noted: list[RaftlogError | None] = []
    host.when_committed(1, noted.append)
    host.commit_problem = "broker 2 is gone"
    host.when_committed(0, noted.append)
    host.when_committed(1, noted.append)
    host.commit_problem = ""
    host.on_state(state_of(1, 2, epoch=5, isr=[1], min_isr=2, version=2))
    host.when_committed(1, noted.append)
    assert [type(error) for error in noted[1:]] == [NotEnoughReplicasError] * 2
    assert noted[0] is None
    host.on_state(state_of(1, 2, epoch=5, min_isr=1, isr=[1], version=3))
    await s.come_to_rest()
    assert noted[3:] == [None], "the first one has waited"


@runs(play)
async def test_a_start_that_cannot_be_committed_is_not_waited_for(s: Scene) -> None:
    """Tools ask for the starts of all partitions all the time."""
    host = s.host()
    host.lead(state_of(1, 2, epoch=5, min_isr=2), 1, lag_max_seconds=10)
    batch = batch_of(b"a")
    host.append(batch, validate(batch))
    await s.come_to_rest()
    host.on_follower(2, "disk-2", fetch_offset=1, durable_offset=1)
    host.advance_log_start(1, lambda _error: None)
    await s.come_to_rest()
    noted: list[int | RaftlogError] = []
    host.committed_start(noted.append)
    assert noted == [], "the follower has not confirmed it yet"
    host.on_state(state_of(1, 2, epoch=5, isr=[1], min_isr=2, version=2))
    host.committed_start(noted.append)
    assert [type(each) for each in noted] == [LeaderNotAvailableError]
    host.on_state(state_of(1, 2, epoch=5, isr=[1], min_isr=1, version=3))
    host.committed_start(noted.append)
    assert noted[1:] == [1, 1]


def test_only_what_is_committed_can_be_deleted(scene: Callable[..., None]) -> None:
    async def test(s: PartitionScene) -> None:
        s.disk.faults.sync_gate.clear()
        s.append(b"a")
        with pytest.raises(OffsetOutOfRangeError, match="high watermark is 0"):
            s.host.delete_records(1, s.note("deletion"))
        s.disk.faults.sync_gate.set()
        await s.until(lambda: s.host.high_watermark == 1)
        s.host.delete_records(1, s.note("deletion"))
        await s.until(lambda: bool(s.noted))
        assert s.noted == [("deletion", None)]
        assert s.host.log.log_start_offset == 1

    scene(test)


def test_that_there_is_no_room_is_noted_until_something_is_appended(
    scene: Callable[..., None],
) -> None:
    async def test(s: PartitionScene) -> None:
        first = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
        s.host.append(first, validate(first))
        s.disk.faults.no_room = True
        with pytest.raises(DiskFullError):
            s.append(b"b")
        assert s.host.disk_problem.is_short
        assert s.host.append(first, validate(first)).duplicate
        assert s.host.disk_problem.is_short, "nothing was written"
        assert "no space" in s.space.reason, "status and health say that writes fail"
        s.disk.faults.no_room = False
        s.append(b"b")
        assert not s.space.reason
        assert not s.host.disk_problem.is_short

    scene(test)


def test_below_a_watermark_nothing_grows_and_retries_are_answered(
    scene: Callable[..., None],
) -> None:
    async def test(s: PartitionScene) -> None:
        first = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
        s.host.append(first, validate(first))
        s.space.measured(DiskMeasure(9, 100))
        with pytest.raises(DiskFullError, match=r"t:0: producers are refused"):
            s.append(b"b")
        assert s.host.disk_problem.is_short, "so that another broker becomes the leader"
        assert s.host.append(first, validate(first)).duplicate
        s.space.measured(DiskMeasure(12, 100))
        s.append(b"b")
        assert not s.host.disk_problem.is_short
        assert s.host.log.log_end_offset == 2

    scene(test)


@pytest.mark.parametrize(
    ("replicas", "refusal"), [((1,), DamagedLogError), ((1, 2, 3), NotLeaderError)]
)
def test_who_appends_to_a_damaged_log_is_told_to_ask_another_if_there_is_one(
    scene: Callable[..., None], replicas: tuple[int, ...], refusal: type[RaftlogError]
) -> None:
    """Until its roles are looked at, the broker leads on, with a log that takes nothing more."""

    async def test(s: PartitionScene) -> None:
        assert s.host.leadership is not None
        state = replace(s.host.leadership.state, leader_epoch=5, replicas=replicas)
        s.host.lead(state, 1, lag_max_seconds=30.0)
        s.append(b"a")
        s.host.log.note_damage("byte 7 is bad", offset=0)
        with pytest.raises(refusal, match="byte 7 is bad"):
            s.append(b"b")

    scene(test)


@pytest.mark.parametrize("policy", ["fsync", "os"])
def test_a_log_whose_directory_is_removed_harms_no_other(
    scene: Callable[..., None], policy: str
) -> None:
    async def test(s: PartitionScene) -> None:
        s.append(b"a")
        await s.until(lambda: s.host.high_watermark == 1)
        s.disk.faults.sync_gate.clear()
        s.host.when_on_disk(s.append(b"b"), s.note("b"))
        s.host.when_committed(2, s.note("b"))
        await asyncio.sleep(0)
        shutil.rmtree(s.host.log.directory)
        s.host.save_snapshot()
        s.disk.faults.sync_gate.set()
        await s.until(lambda: bool(s.damaged))
        assert s.damaged == [s.host]
        assert s.failures == []
        if policy == "fsync":
            assert [type(error) for _, error in s.noted] == [CommitUnknownError] * 2
            assert s.host.high_watermark == 1
        s.host.close(GONE)
        await s.quiet()

    scene(test, policy=policy)


def test_records_of_a_removed_directory_are_not_deleted_at_the_others_cost(
    scene: Callable[..., None],
) -> None:
    async def test(s: PartitionScene) -> None:
        s.append(b"a")
        await s.until(lambda: s.host.high_watermark == 1)
        shutil.rmtree(s.host.log.directory)
        s.host.delete_records(1, s.note("deletion"))
        await s.until(lambda: bool(s.noted))
        assert isinstance(s.noted[0][1], DamagedLogError)
        assert (s.damaged, s.failures) == ([s.host], [])

    scene(test)


def claim_all_offsets(log: Log) -> None:
    """Flip a bit of the first batch's count of offsets."""
    (path,) = Path(log.directory).glob("*.log")
    data = bytearray(path.read_bytes())
    data[52] ^= 8
    path.write_bytes(data)


def test_corruption_that_a_truncation_finds_is_reported_and_nothing_is_cut(
    scene: Callable[..., None],
) -> None:
    async def test(s: PartitionScene) -> None:
        s.append(b"a")
        s.append(b"b")
        s.append(b"c")
        await s.until(lambda: s.host.high_watermark == 3)
        s.host.follow(2, 2)
        claim_all_offsets(s.host.log)
        done: list[bool] = []
        s.host.truncate(2, lambda: done.append(True))
        await s.until(lambda: bool(done))
        assert (s.damaged, s.failures) == ([s.host], [])
        assert (s.host.log.log_end_offset, s.host.log.durable_end_offset) == (3, 3)

    scene(test)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_told_once_and_nothing_is_acknowledged(
    scene: Callable[..., None], code: int
) -> None:
    """Even no room: after a failed fsync nobody knows what is on the disk."""

    async def test(s: PartitionScene) -> None:
        s.disk.faults.sync_error = code
        s.host.when_committed(s.append(b"a"), s.note("a"))
        await s.until(lambda: bool(s.failures))
        assert s.noted == []
        assert s.host.high_watermark == 0
        with pytest.raises(StorageFailedError):
            s.append(b"b")
        s.host.close(s.failures[0])
        assert s.noted == [("a", s.failures[0])]

    scene(test)


def test_nobody_waits_for_a_disk_that_hangs(scene: Callable[..., None]) -> None:
    async def test(s: PartitionScene) -> None:
        s.disk.faults.sync_gate.clear()
        end = s.append(b"a")
        s.host.when_committed(end, s.note("commit"))
        s.host.when_on_disk(end, s.note("disk"))
        s.watch.is_hung = True
        s.host.disk_hangs()
        assert [(name, type(error)) for name, error in s.noted] == [
            ("disk", CommitUnknownError),
            ("commit", CommitUnknownError),
        ]
        with pytest.raises(DiskHungError, match="Nothing was appended"):
            s.append(b"b")
        s.watch.is_hung = False
        s.disk.faults.sync_gate.set()
        await s.until(lambda: s.host.high_watermark == 1)
        assert s.append(b"c") == 2

    scene(test)


def test_a_log_that_is_not_synced_does_not_wait_for_a_disk_that_hangs(
    scene: Callable[..., None],
) -> None:
    async def test(s: PartitionScene) -> None:
        s.watch.is_hung = True
        s.host.disk_hangs()
        assert not s.host.must_yield()
        assert s.append(b"a") == 1

    scene(test, policy="os")


def test_an_offline_log_answers_nothing(scene: Callable[..., None]) -> None:
    """Not even where it ends: it is not known after a start without its disk."""

    async def test(s: PartitionScene) -> None:
        s.host.when_committed(s.append(b"a"), s.note("a"))
        await s.until(lambda: s.noted == [("a", None)])
        s.host.log.log_dir = LogDir(s.disk, "disk-2", "id", failure="disk-2 has failed")
        for ask in (
            lambda: s.host.check_readable(replica_ok=False),
            lambda: s.host.read(start_offset=0, bytes_max=1),
            lambda: s.append(b"b"),
        ):
            with pytest.raises(DamagedLogError, match="disk-2 has failed"):
                ask()
        s.host.follow(2, 7)
        with pytest.raises(NotLeaderError, match="disk-2 has failed"):
            s.host.check_readable(replica_ok=True)

    scene(test)


# -- broker clock ----------------------------------------------------------------------------------
#
# A broker's clock: the machine's, corrected for records, and trusted for deletions.


T0 = 1_700_000_000_000
DAY_MS = 86_400_000


class Machine:
    def __init__(self) -> None:
        self.now, self.step_ms = 50.0, 0

    def monotonic(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        return T0 + round((self.now - 50) * 1_000) + self.step_ms


def test_records_and_deletions_have_the_machines_time_until_it_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    clock = BrokerClock(machine)
    machine.now += 1
    assert (clock.wall_ms(), clock.deletion_ms(), clock.monotonic()) == (T0 + 1_000, T0 + 1_000, 51)
    machine.step_ms = -10 * DAY_MS
    with caplog.at_level(logging.INFO):
        clock.update()
        clock.update()
        assert (clock.wall_ms(), clock.deletion_ms()) == (T0 + 1_000, T0 + 1_000)
        assert clock.error_ms() == -10 * DAY_MS
        machine.step_ms = 0
        clock.update()
    stepped, back = caplog.messages
    assert "wall clock differs: ahead_s=-864000.0" in stepped
    assert "restart the broker" in stepped
    assert "wall clock corrected" in back


def test_peers_decide_in_a_cluster_and_until_then_nothing_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    machine.step_ms = 8 * DAY_MS
    with caplog.at_level(logging.INFO):
        clock = BrokerClock(machine, broker_id=1, voters=[1, 2, 3], saved_ms=T0)
        clock.update()
        assert clock.deletion_ms() is None
        clock.on_peer(2, T0, 0.0)
        clock.on_peer(3, T0 + CLOCK_STEP_MS, 0.0)
        clock.update()
    assert clock.deletion_ms() == T0 + CLOCK_STEP_MS
    assert clock.wall_ms() == T0 + CLOCK_STEP_MS
    waits, differs, resumes = caplog.messages
    assert "expiry paused: reason=clock_not_confirmed" in waits
    assert "correct the clocks of the other brokers" in differs
    assert "expiry resumed" in resumes


# -- event log -------------------------------------------------------------------------------------
#
# Events of a broker: the last ones are kept, all are counted.


def test_the_oldest_is_forgotten_and_stays_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EVENTS_KEPT_MAX", 2)
    log = EventLog()
    for at_ms, kind in enumerate(("a", "b", "a")):
        log.add(Event(kind, "text"), at_ms)
    assert [(at_ms, event.kind) for at_ms, event in log.events] == [(1, "b"), (2, "a")]
    assert log.counts == {"a": 2, "b": 1}


# -- fencing ---------------------------------------------------------------------------------------
#
# A request with another leader epoch than the replica's is refused, and says which way it is.


TP = TopicPartition("t", 3)


@pytest.mark.parametrize("known", [-1, 7])
def test_the_replicas_own_epoch_and_none_at_all_pass(known: int) -> None:
    check_epoch(known, 7, TP)


@pytest.mark.parametrize(
    ("known", "refusal"), [(6, FencedLeaderEpochError), (8, UnknownLeaderEpochError)]
)
def test_any_other_is_refused_by_name(known: int, refusal: type[RaftlogError]) -> None:
    with pytest.raises(refusal, match=f"t:3.*epoch.*{known}"):
        check_epoch(known, 7, TP)


# -- flusher ---------------------------------------------------------------------------------------
#
# Group commit against a fake log: one task at a time, everything in the next.


class Ticket:
    """What would be synced."""

    def __init__(self, end: int, snapshot: bool) -> None:
        self.end = end
        self.snapshot = snapshot

    def run(self) -> None:
        pass


class FakeLog:
    """Counts what is appended and what is durable."""

    def __init__(self) -> None:
        self.end = 0
        self.durable = 0
        self.begun: list[Ticket] = []
        self._out: Ticket | None = None

    def begin_sync(self, *, snapshot: bool = False) -> Ticket | None:
        assert self._out is None, "two tasks at a time"
        if self.end == self.durable and not snapshot:
            return None
        self._out = Ticket(self.end, snapshot)
        self.begun.append(self._out)
        return self._out

    def complete_sync(self, task: Ticket) -> None:
        assert task is self._out
        self._out = None
        self.durable = task.end

    def failed_sync(self, task: Ticket, error: OSError) -> StorageFailedError:
        assert task is self._out
        self._out = None
        return StorageFailedError(str(error))


class FlusherScene:
    """A group commit with fakes around it."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.workers = FakeWorkers()
        self.durable: list[int] = []
        self.failed: list[StorageFailedError] = []
        self.commit = LogFlusher(
            cast(Log, self.log),
            asyncio.get_running_loop(),
            cast(Workers, self.workers),
            on_durable=lambda: self.durable.append(self.log.durable),
            on_failed=self.failed.append,
            counters=Counters(),
        )

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            self.log.end += 1
            self.commit.request()


def flusher_scene(test: Callable[[FlusherScene], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        await test(FlusherScene())

    asyncio.run(run())


async def turn() -> None:
    """One turn of the event loop."""
    await asyncio.sleep(0)


@runs(flusher_scene)
async def test_what_one_turn_appends_goes_into_one_sync(s: FlusherScene) -> None:
    s.append(3)
    assert s.workers.out == []
    await turn()
    assert [task.end for task in s.log.begun] == [3]
    s.workers.finish()
    assert s.durable == [3]
    await turn()
    assert len(s.log.begun) == 1


@runs(flusher_scene)
async def test_what_comes_during_a_sync_goes_into_the_next_at_once(s: FlusherScene) -> None:
    s.append()
    await turn()
    s.append(5)
    await turn()
    assert len(s.workers.out) == 1
    s.workers.finish()
    assert [task.end for task in s.log.begun] == [1, 6]
    s.workers.finish()
    assert s.durable == [1, 6]


@runs(flusher_scene)
async def test_a_snapshot_is_asked_for_once(s: FlusherScene) -> None:
    s.append()
    s.commit.request(snapshot=True)
    await turn()
    s.append()
    s.workers.finish()
    assert [task.snapshot for task in s.log.begun] == [True, False]


@runs(flusher_scene)
async def test_jobs_run_between_syncs(s: FlusherScene) -> None:
    seen: list[tuple[str, int]] = []
    s.commit.between_syncs(lambda: seen.append(("idle", len(s.workers.out))))
    s.append()
    await turn()
    s.append()
    s.commit.between_syncs(lambda: seen.append(("busy", len(s.workers.out))))
    assert seen == [("idle", 0)]
    s.workers.finish()
    assert seen == [("idle", 0), ("busy", 0)]
    assert len(s.workers.out) == 1


@runs(flusher_scene)
async def test_after_stop_no_sync_begins(s: FlusherScene) -> None:
    s.append()
    await turn()
    s.append()
    s.commit.stop()
    quiet: list[bool] = []
    s.commit.between_syncs(lambda: quiet.append(True))
    s.workers.finish()
    assert quiet == [True]
    s.append()
    await turn()
    assert len(s.log.begun) == 1


@runs(flusher_scene)
async def test_stopping_before_the_turn_ends_begins_none(s: FlusherScene) -> None:
    s.append()
    s.commit.stop()
    await turn()
    assert s.log.begun == []


@runs(flusher_scene)
async def test_a_failed_sync_is_the_last(s: FlusherScene) -> None:
    s.append()
    await turn()
    s.append()
    jobs: list[bool] = []
    s.commit.between_syncs(lambda: jobs.append(True))
    s.workers.finish(OSError(5, "Input/output error"))
    assert len(s.failed) == 1
    assert s.durable == []
    assert jobs == [True]
    s.append()
    await turn()
    assert s.workers.out == []


@runs(flusher_scene)
async def test_any_error_in_a_sync_leaves_its_outcome_unknown(s: FlusherScene) -> None:
    s.append()
    await turn()
    s.workers.finish(ValueError("a bug of ours"))
    assert "a bug of ours" in str(s.failed[0])


# -- disk problems ---------------------------------------------------------------------------------
#
# For how long a disk has held a log up, and how much later giving way comes when it is in vain.


class Watch:
    """What the time is."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_is_overdue_when_nothing_was_appended_for_so_long() -> None:
    watch = Watch()
    disk_problem = DiskProblem(watch)
    assert not disk_problem.is_short
    assert not disk_problem.is_overdue(leads=True)
    disk_problem.refused()
    assert disk_problem.is_short
    watch.now += FULL_SECONDS - 0.01
    disk_problem.refused()
    assert not disk_problem.is_overdue(leads=True)
    watch.now += 0.01
    assert disk_problem.is_overdue(leads=True)
    assert disk_problem.is_overdue(leads=False)


def test_what_is_appended_ends_it() -> None:
    watch = Watch()
    disk_problem = DiskProblem(watch)
    disk_problem.refused()
    watch.now += FULL_SECONDS - 0.1
    disk_problem.found()
    assert not disk_problem.is_short
    disk_problem.refused()
    watch.now += FULL_SECONDS - 0.1
    assert not disk_problem.is_overdue(leads=True), "it counts from the first one since then"


def test_how_long_it_lasts_is_counted_over_all_roles() -> None:
    watch = Watch()
    disk_problem = DiskProblem(watch)
    assert disk_problem.seconds == 0
    disk_problem.refused()
    watch.now += 5
    disk_problem.yielded(leads=True)
    disk_problem.begin_role()
    disk_problem.refused()
    watch.now += 5
    assert disk_problem.seconds == 10
    disk_problem.found()
    assert disk_problem.seconds == 0


def test_a_new_role_counts_anew() -> None:
    watch = Watch()
    disk_problem = DiskProblem(watch)
    disk_problem.refused()
    watch.now += FULL_SECONDS
    disk_problem.begin_role()
    assert not disk_problem.is_overdue(leads=True)
    watch.now += FULL_SECONDS
    assert not disk_problem.is_overdue(leads=True), "nothing was refused in it"


@pytest.mark.parametrize("leads", [True, False])
def test_each_time_in_vain_is_rarer(leads: bool) -> None:
    watch = Watch()
    disk_problem = DiskProblem(watch)
    waits = []
    for _ in range(1_000):
        disk_problem.refused()
        begun = watch.now
        while not disk_problem.is_overdue(leads=leads):
            watch.now += 0.5
        waits.append(watch.now - begun)
        disk_problem.yielded(leads=leads)
        assert not disk_problem.is_overdue(leads=leads)
    assert waits[:3] == [FULL_SECONDS, FULL_SECONDS * SLOWER, FULL_SECONDS * SLOWER**2]
    assert set(waits[3:]) == {FULL_SECONDS_MAX}
    disk_problem.found()
    disk_problem.refused()
    watch.now += FULL_SECONDS
    assert disk_problem.is_overdue(leads=leads), "there was a problem in between"


def test_to_have_led_in_vain_keeps_nobody_in_sync_for_longer() -> None:
    watch = Watch()
    disk_problem = DiskProblem(watch)
    disk_problem.refused()
    disk_problem.yielded(leads=True)
    disk_problem.refused()
    watch.now += FULL_SECONDS
    assert disk_problem.is_overdue(leads=False)
    assert not disk_problem.is_overdue(leads=True)


# -- log compaction --------------------------------------------------------------------------------
#
# Compacting one log: when it is begun, how it is run, and what ends it early.


LOG_COMPACTION_GONE = BrokerUnavailableError("gone")
TERMS = Terms(now_ms=1_700_000_000_000, chance_seed=7, memory_bytes=1 << 20)


class FakeTicket:
    """Work of three steps."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.steps = 0
        self.is_stale = False

    def run(self, pause: Callable[[int], None]) -> None:
        for _ in range(3):
            pause(100)
            self.steps += 1
        if self.error is not None:
            raise self.error


class LogOfFakeCompactions:
    """Notes what it is asked for."""

    def __init__(self, *tasks: FakeTicket | Exception | None) -> None:
        self.tasks = list(tasks)
        self.asked: list[dict[str, int]] = []
        self.ends: list[tuple[str, FakeTicket]] = []
        self.refuses: Exception | None = None  # at the end of a compaction

    def begin_compaction(self, **terms: int) -> FakeTicket | None:
        self.asked.append(terms)
        task = self.tasks.pop(0)
        if isinstance(task, Exception):
            raise task
        return task

    def complete_compaction(self, task: FakeTicket) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.ends.append(("completed", task))

    def abandon_compaction(self, task: FakeTicket) -> None:
        self.ends.append(("abandoned", task))


class Compacting:
    """The compaction of a fake log, beside the syncs of a real one."""

    def __init__(self, s: Scene, *tasks: FakeTicket | Exception | None) -> None:
        self.s = s
        self.synced = s.log()
        self.commit = LogFlusher(
            self.synced,
            s.loop,
            s.workers,
            on_durable=lambda: None,
            on_failed=s.failures.append,
            counters=Counters(),
        )
        self.log = LogOfFakeCompactions(*tasks)
        self.compaction = LogCompaction(cast(Log, self.log), self.commit)
        self.passes: list[Pass] = []
        self.high_watermark = 10

    def begin(self) -> None:
        self.compaction.begin(
            TERMS,
            high_watermark=lambda: self.high_watermark,
            tombstones_kept_from=lambda: 7,
            workers=self.s.workers,
            pause=Pace(lambda: self.compaction.is_given_up, sleep=lambda _s: None),
            finished=self.passes.append,
        )


@runs(play)
async def test_a_ticket_is_run_and_given_back(s: Scene) -> None:
    task = FakeTicket()
    c = Compacting(s, task)
    c.begin()
    assert c.log.asked == [{**TERMS._asdict(), "high_watermark": 10, "tombstones_kept_from": 7}]
    assert c.passes == []
    await s.come_to_rest()
    assert c.log.ends == [("completed", task)]
    assert c.passes == [Pass(is_done=True)]


@runs(play)
async def test_there_may_be_nothing_to_do_and_it_may_fail_to_begin(s: Scene) -> None:
    error = OSError(errno.ENOSPC, "full")
    c = Compacting(s, None, error)
    c.begin()
    c.begin()
    assert c.passes == [Pass(), Pass(error=error)]
    assert c.log.ends == []


@runs(play)
async def test_it_begins_and_ends_between_two_syncs(s: Scene) -> None:
    c = Compacting(s, FakeTicket())
    write_unsynced(c.synced)
    s.workers.hold()
    c.commit.request()
    await s.come_to_rest()
    c.begin()
    assert c.log.asked == []
    c.high_watermark = 20
    assert s.workers.held is not None
    work, done = s.workers.held.pop()
    done(work(), None)
    assert [asked["high_watermark"] for asked in c.log.asked] == [20], "as it is by then"
    compaction = s.workers.held.pop(0)
    write_unsynced(c.synced)
    c.commit.request()
    await s.come_to_rest()
    compaction[1](compaction[0](), None)
    assert c.log.ends == []
    s.workers.release()
    await s.come_to_rest()
    assert [how for how, _ in c.log.ends] == ["completed"]


@runs(play)
async def test_who_waits_for_its_end_has_it_given_up(s: Scene) -> None:
    task = FakeTicket()
    c = Compacting(s, task)
    noted: list[str] = []
    s.workers.hold()
    c.begin()
    c.compaction.when_over(lambda: noted.append("over"))
    assert c.compaction.is_given_up
    assert noted == []
    s.workers.release()
    await s.come_to_rest()
    assert task.steps == 0
    assert c.log.ends == [("abandoned", task)]
    assert noted == ["over"]
    assert c.passes == [Pass()]
    assert not c.compaction.is_given_up
    c.compaction.when_over(lambda: noted.append("at once"))
    assert noted[1:] == ["at once"]


@runs(play)
async def test_one_that_is_done_when_it_is_given_up_counts_for_nothing(s: Scene) -> None:
    """What waits will cut the log: what was compacted may be what is cut."""
    task = FakeTicket()
    c = Compacting(s, task)
    s.workers.hold()
    c.begin()
    assert s.workers.held is not None
    work, done = s.workers.held.pop()
    work()
    c.compaction.when_over(lambda: None)
    done(None, None)
    assert c.log.ends == [("abandoned", task)]
    assert c.passes == [Pass()]


@runs(play)
async def test_one_that_the_log_has_no_use_for_is_not_done(s: Scene) -> None:
    task = FakeTicket()
    c = Compacting(s, task)
    c.begin()
    task.is_stale = True
    await s.come_to_rest()
    assert c.log.ends == [("abandoned", task)]
    assert c.passes == [Pass()]


@runs(play)
async def test_one_that_has_yet_to_begin_is_given_up_too(s: Scene) -> None:
    c = Compacting(s, FakeTicket())
    write_unsynced(c.synced)
    s.workers.hold()
    c.commit.request()
    await s.come_to_rest()
    c.begin()
    c.compaction.closed = LOG_COMPACTION_GONE
    s.workers.release()
    await s.come_to_rest()
    assert c.log.asked == []
    assert c.passes == [Pass()]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad"), DamagedLogError("rot")])
@runs(play)
async def test_an_error_abandons_it_and_is_told(s: Scene, *, error: Exception) -> None:
    task = FakeTicket(error)
    c = Compacting(s, task)
    c.begin()
    await s.come_to_rest()
    assert c.log.ends == [("abandoned", task)]
    assert c.passes == [Pass(error=error)]


@runs(play)
async def test_an_error_at_its_very_end_is_told(s: Scene) -> None:
    c = Compacting(s, FakeTicket())
    c.log.refuses = OSError(errno.ENOSPC, "full")
    c.begin()
    await s.come_to_rest()
    assert c.passes == [Pass(error=c.log.refuses)]
    noted: list[str] = []
    c.compaction.when_over(lambda: noted.append("over"))
    assert noted == ["over"]


# -- the thread's manners --------------------------------------------------------------------------


class Slow:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def pace(self, is_given_up: Any = lambda: False, **options: Any) -> Pace:
        return Pace(is_given_up, sleep=self.sleep, monotonic=lambda: self.now, **options)


def test_it_makes_way_after_so_much_work_however_small_its_steps() -> None:
    slow = Slow()
    pace = slow.pace()
    for _ in range(100):
        slow.now += WORK_SECONDS_MAX / 10
        pace(100)
    assert 8 <= len(slow.sleeps) <= 10
    assert set(slow.sleeps) == {YIELD_SECONDS}


def test_a_limit_is_kept_over_time() -> None:
    slow = Slow()
    pace = slow.pace(bytes_per_second=1_000)
    for _ in range(10):
        pace(100)
    assert slow.now == pytest.approx(101.0)
    slow.now += 50  # a long time with nothing done gives no credit
    pace(500)
    pace(500)
    assert slow.now == pytest.approx(152.0)


def test_a_throttled_thread_hears_soon_that_it_is_not_wanted() -> None:
    slow = Slow()
    given_up = [False]

    def sleep(seconds: float) -> None:
        slow.sleep(seconds)
        given_up[0] = slow.now > 100.5

    pace = Pace(lambda: given_up[0], bytes_per_second=1, sleep=sleep, monotonic=lambda: slow.now)
    with pytest.raises(GivenUpError):
        pace(1_000)
    assert slow.now < 100.5 + 2 * SLEEP_SECONDS_MAX
    with pytest.raises(GivenUpError):
        pace(0)


# -- log start -------------------------------------------------------------------------------------
#
# How a log loses its old end: the start moves at once, the files go in a thread.


LOG_START_GONE = BrokerUnavailableError("gone")


class Dropping:
    """A log of four segments with a record each."""

    def __init__(self, s: Scene) -> None:
        self.s = s
        self.failures: list[StorageFailedError] = []
        self.noted: list[RaftlogError | None] = []
        self.starts: list[int] = []  # that are durable
        self.log: Log = s.log(segment_bytes=1, retention_bytes=1)
        write(self.log, b"a", b"b", b"c", b"d")
        self.commit = LogFlusher(
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
        self.drops.advance_log_start(offset, self.noted.append)

    def segments(self) -> list[str]:
        names = self.s.disk.list_dir(self.log.directory)
        return sorted(name for name in names if name.endswith(".log"))


@runs(play)
async def test_the_start_moves_at_once_and_is_answered_when_it_is_durable(s: Scene) -> None:
    d = Dropping(s)
    s.workers.hold()
    d.drop(2)
    assert (d.log.log_start_offset, d.log.durable_start_offset) == (2, 0)
    assert d.noted == []
    s.workers.release()
    await s.come_to_rest()
    assert (d.noted, d.starts) == ([None], [2])
    assert len(d.segments()) == 2


@runs(play)
async def test_what_is_dropped_already_is_answered_too(s: Scene) -> None:
    d = Dropping(s)
    d.drop(3)
    d.drop(1)
    await s.come_to_rest()
    assert d.log.log_start_offset == 3
    assert d.noted == [None, None]


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
    assert d.noted == [None]


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
    assert d.noted == [None]


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
    assert [type(error) for error in d.noted] == [DiskFullError]
    assert d.failures == []
    d.drop(2)
    await s.come_to_rest()
    assert d.noted[1:] == [None]


@runs(play)
async def test_a_deletion_that_found_no_room_is_completed_later(s: Scene) -> None:
    """Else its files stay until the next start, no compaction begins, and readers below the start
    wait for its commit."""
    d = Dropping(s)
    s.disk.faults.append(Fault(error=errno.EMFILE))
    d.drop(2)
    await s.come_to_rest()
    assert (d.starts, len(d.segments())) == ([], 4)
    s.workers.hold()
    d.drops.go_on()
    d.drops.go_on()
    assert len(s.workers.held or ()) == 1, "it is under way"
    s.workers.release()
    await s.come_to_rest()
    assert (d.starts, len(d.segments())) == ([2], 2)
    d.drops.go_on()
    await s.come_to_rest()
    assert (d.starts, len(d.noted)) == ([2], 1)


@runs(play)
async def test_a_start_that_moves_above_the_end_of_a_truncation_leaves_an_empty_log(
    s: Scene,
) -> None:
    """The deletion is of the former leader, the truncation of one that was elected unclean. Both
    wait for a slow sync, and the replica copies nothing before they are over."""
    log = s.log()
    write(log, b"a", b"b", b"c")
    host = s.host(log)
    host.follow(2, 1)
    write_unsynced(log)
    s.workers.hold()
    host.save_snapshot()
    await s.come_to_rest()
    host.advance_log_start(2, lambda _error: None)
    host.follow(3, 2)
    noted: list[str] = []
    host.truncate(1, lambda: noted.append("truncated"))
    assert (log.log_start_offset, log.log_end_offset) == (0, 4)
    s.workers.release()
    await s.come_to_rest()
    assert noted == ["truncated"]
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)


@runs(play)
async def test_each_replica_completes_its_deletions(s: Scene) -> None:
    log = s.log(segment_bytes=1)
    write(log, b"a", b"b", b"c")
    host = s.host(log)
    host.follow(2, 1)
    s.disk.faults.append(Fault(error=errno.EMFILE))
    host.advance_log_start(2, lambda _error: None)
    await s.come_to_rest()
    assert (log.log_start_offset, log.durable_start_offset) == (2, 0)
    host.apply_retention()
    await s.come_to_rest()
    assert log.durable_start_offset == 2


@runs(play)
async def test_a_disk_that_fails_is_reported_once_for_each_failure(s: Scene) -> None:
    d = Dropping(s)
    s.disk.faults.append(Fault(error=errno.EIO))
    d.drop(2)
    await s.come_to_rest()
    assert [type(error) for error in d.noted] == [StorageFailedError]
    assert d.failures == d.noted


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
    d.drops.closed = LOG_START_GONE
    d.drop(2)
    assert d.noted == [LOG_START_GONE]
    assert d.log.log_start_offset == 0


@runs(play)
async def test_it_is_quiet_when_no_thread_works_on_its_files(s: Scene) -> None:
    d = Dropping(s)
    quiet: list[str] = []
    s.workers.hold()
    d.drop(1)
    d.drop(2)
    d.drops.closed = LOG_START_GONE
    d.drops.when_quiet(lambda: quiet.append("one"))
    await s.come_to_rest()
    assert quiet == []
    s.workers.release()
    await s.come_to_rest()
    assert quiet == ["one"]
    assert d.noted == [None, None]
    d.drops.when_quiet(lambda: quiet.append("two"))
    assert quiet == ["one", "two"]
