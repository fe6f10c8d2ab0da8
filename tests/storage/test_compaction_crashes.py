"""A process may end before any change that compaction makes to the disk: nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import TEMPORARY_SUFFIX
from raftlog.record import check, parse_header, split
from raftlog.storage import Log, inspect
from raftlog.storage.compaction import CLEANED_SUFFIX
from raftlog.testing.disk import SimDisk
from tests.storage.compacted import Terms, all_batches, check_pass
from tests.storage.compactions import begin, compact, config_with, offsets, put, put_each, seal
from tests.storage.crashes import chances_of, sweep
from tests.storage.logs import DIRECTORY, NOW_MS, open_log
from tests.storage.model import StoredBatch, as_model

CONFIG = config_with(segment_bytes=1_500, delete_retention_ms=0)


chances = chances_of(1, 4)


@dataclass
class Promise:
    """A log, and every batch that it was ever given: nothing of that goes but by compaction.

    ``histories``: what it may hold, uncompacted; more than one while a cut is under way.
    """

    log: Log
    histories: list[list[StoredBatch]] = field(default_factory=lambda: [[]])
    durable_end: int = 0
    cut_off: list[StoredBatch] = field(default_factory=list)  # by a cut that is under way, or done

    def put(self, *pairs: tuple[bytes, bytes | None], sequence: int = -1) -> None:
        producer = (7, 0, sequence) if sequence >= 0 else (-1, -1, -1)
        start = self.log.log_end_offset
        put(self.log, *pairs, producer=producer)
        parts = self.log.read(
            start_offset=start, end_offset=self.log.log_end_offset, bytes_max=limits.MIB
        )
        (data,) = [bytes(batch) for part in parts for batch in split(part)]
        self.histories[-1].append(StoredBatch(data, parse_header(data)))

    def seal(self) -> None:
        seal(self.log)
        self.durable_end = self.log.log_end_offset


def log_of(count: int, config: TopicConfig = CONFIG) -> Callable[[SimDisk], Promise]:
    def prepare(disk: SimDisk) -> Promise:
        promise = Promise(open_log(disk, config))
        for number in range(count):
            key = b"k%d" % (number % 4)
            value = None if number % 5 == 4 else b"v" * 150
            promise.put((key, value), (b"own %d" % number, b"x"), sequence=2 * number)
        promise.seal()
        return promise

    return prepare


def compaction(disk: SimDisk, promise: Promise, *, task_bytes: int = limits.GIB) -> None:
    """Two passes and what follows them: the second one settles the first."""
    log = promise.log
    compact(log, task_bytes=task_bytes)
    promise.put((b"k0", b"late" * 50), sequence=log.log_end_offset)
    promise.seal()
    compact(log, task_bytes=task_bytes)
    log.sync()


def check_log(disk: SimDisk, promise: Promise) -> None:
    """All that was durable is there, as far as it was not to go; the log goes on, and compacts."""
    config = promise.log.config
    disk.capacity_bytes = None
    log = open_log(disk, config)
    check_content(log, promise)
    names = disk.list_dir(DIRECTORY)
    assert not [name for name in names if name.endswith((CLEANED_SUFFIX, TEMPORARY_SUFFIX))]
    (report,) = inspect.verify(disk, DIRECTORY)
    assert {problem.kind for problem in report.problems} <= {inspect.INDEX}
    found = all_batches(log)
    check_producers(log, found)
    log.sync()
    disk.power_cut()
    log = open_log(disk, config)
    assert all_batches(log) == found, "what was served stays"
    end = log.log_end_offset
    put_each(log, [b"k0", b"k1"])
    log.sync()
    log.truncate_to(end)
    log.sync()
    compact(log)
    check_content(log, promise)
    log.abandon()
    promise.durable_end = end


def check_content(log: Log, promise: Promise) -> None:
    assert log.damage == ""
    assert log.log_start_offset == 0
    assert log.log_end_offset >= promise.durable_end
    found = all_batches(log)
    refused: list[str] = []
    for history in promise.histories:
        before = [batch for batch in history if batch.end <= log.log_end_offset]
        terms = Terms(limits.GIB, log.log_end_offset, 0)
        try:
            check_pass(before, found, terms, end=None, cut_off=promise.cut_off)
        except AssertionError as error:
            refused.append(str(error))
        else:
            break
    else:
        raise AssertionError(refused)
    for batch in found:
        check(batch.data)


def check_producers(log: Log, found: list[StoredBatch]) -> None:
    """What the producer wrote last is known: from a snapshot, or from the batches that are left."""
    sent = as_model(log.producers)[7].sent[-1]
    assert sent.last_offset == log.log_end_offset - 1 == found[-1].end - 1


def test_s37_kill_during_compaction_at_every_step(chances: int, seed: int) -> None:
    changes = sweep(log_of(9), compaction, check_log, seed=seed, chances=chances)
    assert changes > 30


@pytest.mark.seeds
def test_a_pass_of_several_tasks(chances: int, seed: int) -> None:
    act = partial(compaction, task_bytes=1_000)
    sweep(log_of(9), act, check_log, seed=seed, chances=chances)


@pytest.mark.seeds
def test_a_pass_that_is_taken_back(chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        for has_run in (False, True):
            task = begin(promise.log)
            assert task is not None
            if has_run:
                task.run()
            promise.log.abandon_compaction(task)
            promise.log.sync()

    sweep(log_of(7), act, check_log, seed=seed, chances=chances)


@pytest.mark.seeds
@pytest.mark.parametrize("moment", ["synced", "planned", "completed"])
def test_a_cut_after_a_pass(moment: str, chances: int, seed: int) -> None:
    """What the plan would take away must not be taken from the log that comes after."""

    def act(disk: SimDisk, promise: Promise) -> None:
        log = promise.log
        task = begin(log)
        assert task is not None
        task.run()
        if moment != "planned":
            log.complete_compaction(task)
        if moment == "synced":
            log.sync()
        promise.histories.append(list(promise.histories[0]))
        promise.cut_off = promise.histories[0]
        promise.durable_end = 0  # a cut begins where a batch does, and compacted ones are long
        log.truncate_to(9)
        end = log.log_end_offset
        promise.durable_end = end
        promise.histories[-1] = [batch for batch in promise.histories[0] if batch.end <= end]
        promise.cut_off = promise.histories[0]
        if moment == "planned":
            log.complete_compaction(task)
        for number in range(6):
            promise.put((b"new %d" % number, b"n" * 600))
        promise.histories = promise.histories[-1:]
        promise.seal()

    def check_either(disk: SimDisk, promise: Promise) -> None:
        log = open_log(disk, promise.log.config)
        assert log.damage == ""
        check_content(log, promise)
        log.sync()
        disk.power_cut()  # a cut that was not promised may come undone
        log = open_log(disk, promise.log.config)
        check_content(log, promise)
        kept = all_batches(log)
        put_each(log, [b"k0"] * 8, size=400)
        seal(log)
        assert offsets(log)[-1] == log.log_end_offset - 1
        log.truncate_to(kept[-1].end if kept else 0)
        log.abandon()

    sweep(log_of(9), act, check_either, seed=seed, chances=chances)


@pytest.mark.parametrize("moment", ["completed", pytest.param("planned", marks=pytest.mark.seeds)])
def test_a_deletion_after_a_pass(moment: str, chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        log = promise.log
        task = begin(log)
        assert task is not None
        task.run()
        if moment == "completed":
            log.complete_compaction(task)
            log.sync()
        log.advance_log_start(9).run()
        if moment == "planned":
            log.complete_compaction(task)
        log.sync()

    def check_start(disk: SimDisk, promise: Promise) -> None:
        log = open_log(disk, promise.log.config)
        assert log.damage == ""
        assert log.log_start_offset in (0, 9)
        assert log.log_end_offset == 18
        state = offsets(log)
        assert set(state) >= {11, 13, 15, 17}, "each has a key of its own"
        log.sync()
        disk.power_cut()
        log = open_log(disk, promise.log.config)
        assert offsets(log) == state
        log.abandon()

    sweep(log_of(9), act, check_start, seed=seed, chances=chances)


@pytest.mark.seeds
def test_a_full_disk_and_then_a_power_cut(chances: int, seed: int) -> None:
    """Wherever the room ends, the log is as it was."""

    def act_with(room: int) -> Callable[[SimDisk, Promise], None]:
        def act(disk: SimDisk, promise: Promise) -> None:
            disk.capacity_bytes = limits.GIB
            used = limits.GIB - disk.free_bytes(".")
            disk.capacity_bytes = used + room
            task = begin(promise.log, now_ms=NOW_MS)
            assert task is not None
            try:
                task.run()
            except OSError:
                promise.log.abandon_compaction(task)
            else:
                promise.log.complete_compaction(task)
            disk.capacity_bytes = None
            promise.log.sync()

        return act

    for room in (0, 500, 2_000):
        sweep(log_of(7), act_with(room), check_log, seed=seed, chances=1)
