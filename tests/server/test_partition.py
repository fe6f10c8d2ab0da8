"""The owner of a log: who waits for what, and in which order they are told."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raftlog.config import TopicConfig
from raftlog.config.address import Watermark
from raftlog.errors import (
    CommitUnknownError,
    DamagedLogError,
    DiskFullError,
    DiskHungError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    StorageFailedError,
    UnknownTopicError,
)
from raftlog.record import validate
from raftlog.server.disks import DiskSpace, DiskWatch
from raftlog.server.partition import BrokerClock, HostServices, Partition
from raftlog.server.scheduling import Workers
from raftlog.storage import Log
from raftlog.storage.log_dirs import DiskMeasure, LogDir
from raftlog.types import TopicPartition
from tests.server.harness import TIMEOUT_S, FakeClock, FaultyDisk, batch_of, values_of

GONE = UnknownTopicError("gone")


class Scene:
    """A host over a real log."""

    def __init__(self, directory: Path, policy: str) -> None:
        self.disk = FaultyDisk()
        self.failures: list[StorageFailedError] = []
        self.damaged: list[Partition] = []
        self.told: list[tuple[str, RaftlogError | None]] = []
        loop = asyncio.get_running_loop()
        self.workers = Workers(loop, count=2, name="test")
        self.watch = DiskWatch(loop, sync=self.workers, journal=self.workers, timeout_s=5.0)
        self.space = DiskSpace(producers=Watermark(10), replication=Watermark(5))
        services = HostServices(
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
        self.host.lead_alone(1, "directory")

    def append(self, *values: bytes) -> int:
        """The offset after the batch."""
        batch = batch_of(*values)
        return self.host.append(batch, validate(batch)).last_offset + 1

    def note(self, name: str) -> Callable[[RaftlogError | None], None]:
        return lambda error: self.told.append((name, error))

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
    def play(test: Callable[[Scene], Coroutine[Any, Any, None]], *, policy: str = "fsync") -> None:
        async def run() -> None:
            s = Scene(tmp_path / "log", policy)
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
    async def test(s: Scene) -> None:
        s.disk.faults.sync_gate.clear()
        for name in ("a", "b", "c"):
            end = s.append(name.encode())
            s.host.when_committed(end, s.note(name))
        assert s.told == []
        assert s.host.high_watermark == 0
        s.disk.faults.sync_gate.set()
        await s.until(lambda: len(s.told) == 3)
        assert s.told == [("a", None), ("b", None), ("c", None)]
        assert s.host.high_watermark == 3
        s.host.when_committed(2, s.note("at once"))
        s.host.when_on_disk(3, s.note("this too"))
        assert s.told[3:] == [("at once", None), ("this too", None)]

    scene(test)


def test_readers_see_only_what_is_committed(scene: Callable[..., None]) -> None:
    async def test(s: Scene) -> None:
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
    async def test(s: Scene) -> None:
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
    async def test(s: Scene) -> None:
        s.append(b"x")
        await s.until(lambda: s.host.log.durable_end_offset == 1)  # of the first segment
        s.append(b"x")
        assert s.host.log.durable_end_offset == 1
        monkeypatch.setattr(s.disk, "has_surplus", lambda: True)
        s.append(b"x")
        await s.until(lambda: s.host.log.durable_end_offset == 3)

    scene(test, policy="os")


def test_closing_ends_every_wait_and_refuses_what_comes(scene: Callable[..., None]) -> None:
    async def test(s: Scene) -> None:
        s.disk.faults.sync_gate.clear()
        end = s.append(b"a")
        s.host.when_committed(end, s.note("commit"))
        s.host.when_on_disk(end, s.note("disk"))
        await asyncio.sleep(0)
        s.host.delete_records(0, s.note("deletion"))
        s.host.close(GONE)
        assert sorted(s.told) == [("commit", GONE), ("disk", GONE)]
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
        assert s.told[2:] == [("deletion", GONE)]
        s.host.save_snapshot()
        s.host.reconsider()
        s.host.apply_retention()
        await s.quiet()

    scene(test)


def test_only_what_is_committed_can_be_deleted(scene: Callable[..., None]) -> None:
    async def test(s: Scene) -> None:
        s.disk.faults.sync_gate.clear()
        s.append(b"a")
        with pytest.raises(OffsetOutOfRangeError, match="high watermark is 0"):
            s.host.delete_records(1, s.note("deletion"))
        s.disk.faults.sync_gate.set()
        await s.until(lambda: s.host.high_watermark == 1)
        s.host.delete_records(1, s.note("deletion"))
        await s.until(lambda: bool(s.told))
        assert s.told == [("deletion", None)]
        assert s.host.log.log_start_offset == 1

    scene(test)


def test_that_there_is_no_room_is_noted_until_something_is_appended(
    scene: Callable[..., None],
) -> None:
    async def test(s: Scene) -> None:
        first = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
        s.host.append(first, validate(first))
        s.disk.faults.no_room = True
        with pytest.raises(DiskFullError):
            s.append(b"b")
        assert s.host.hindrance.is_short
        assert s.host.append(first, validate(first)).duplicate
        assert s.host.hindrance.is_short, "nothing was written"
        assert "no space" in s.space.reason, "status and health say that writes fail"
        s.disk.faults.no_room = False
        s.append(b"b")
        assert not s.space.reason
        assert not s.host.hindrance.is_short

    scene(test)


def test_below_a_watermark_nothing_grows_and_retries_are_answered(
    scene: Callable[..., None],
) -> None:
    async def test(s: Scene) -> None:
        first = batch_of(b"a", producer_id=1, producer_epoch=0, base_sequence=0)
        s.host.append(first, validate(first))
        s.space.measured(DiskMeasure(9, 100))
        with pytest.raises(DiskFullError, match=r"t:0: producers are refused"):
            s.append(b"b")
        assert s.host.hindrance.is_short, "so that another broker becomes the leader"
        assert s.host.append(first, validate(first)).duplicate
        s.space.measured(DiskMeasure(12, 100))
        s.append(b"b")
        assert not s.host.hindrance.is_short
        assert s.host.log.log_end_offset == 2

    scene(test)


@pytest.mark.parametrize(
    ("replicas", "refusal"), [((1,), DamagedLogError), ((1, 2, 3), NotLeaderError)]
)
def test_who_appends_to_a_damaged_log_is_told_to_ask_another_if_there_is_one(
    scene: Callable[..., None], replicas: tuple[int, ...], refusal: type[RaftlogError]
) -> None:
    """Until its roles are looked at, the broker leads on, with a log that takes nothing more."""

    async def test(s: Scene) -> None:
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
    async def test(s: Scene) -> None:
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
            assert [type(error) for _, error in s.told] == [CommitUnknownError] * 2
            assert s.host.high_watermark == 1
        s.host.close(GONE)
        await s.quiet()

    scene(test, policy=policy)


def test_records_of_a_removed_directory_are_not_deleted_at_the_others_cost(
    scene: Callable[..., None],
) -> None:
    async def test(s: Scene) -> None:
        s.append(b"a")
        await s.until(lambda: s.host.high_watermark == 1)
        shutil.rmtree(s.host.log.directory)
        s.host.delete_records(1, s.note("deletion"))
        await s.until(lambda: bool(s.told))
        assert isinstance(s.told[0][1], DamagedLogError)
        assert (s.damaged, s.failures) == ([s.host], [])

    scene(test)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_told_once_and_nothing_is_acknowledged(
    scene: Callable[..., None], code: int
) -> None:
    """Even no room: after a failed fsync nobody knows what is on the disk."""

    async def test(s: Scene) -> None:
        s.disk.faults.sync_error = code
        s.host.when_committed(s.append(b"a"), s.note("a"))
        await s.until(lambda: bool(s.failures))
        assert s.told == []
        assert s.host.high_watermark == 0
        with pytest.raises(StorageFailedError):
            s.append(b"b")
        s.host.close(s.failures[0])
        assert s.told == [("a", s.failures[0])]

    scene(test)


def test_nobody_waits_for_a_disk_that_hangs(scene: Callable[..., None]) -> None:
    async def test(s: Scene) -> None:
        s.disk.faults.sync_gate.clear()
        end = s.append(b"a")
        s.host.when_committed(end, s.note("commit"))
        s.host.when_on_disk(end, s.note("disk"))
        s.watch.is_hung = True
        s.host.disk_hangs()
        assert [(name, type(error)) for name, error in s.told] == [
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
    async def test(s: Scene) -> None:
        s.watch.is_hung = True
        s.host.disk_hangs()
        assert not s.host.must_yield()
        assert s.append(b"a") == 1

    scene(test, policy="os")


def test_an_offline_log_answers_nothing(scene: Callable[..., None]) -> None:
    """Not even where it ends: it is not known after a start without its disk."""

    async def test(s: Scene) -> None:
        s.host.when_committed(s.append(b"a"), s.note("a"))
        await s.until(lambda: s.told == [("a", None)])
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
