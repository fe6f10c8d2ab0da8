"""A process may end before any change to the disk: what the next one finds is always legal."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import DiskFullError, UnknownTopicError
from raftlog.record import split
from raftlog.storage import Log, Store, inspect, state_files
from raftlog.storage.checkpoint import Checkpoint, decode_slots
from raftlog.testing.disk import Fault, SimDisk, Stopped
from tests.storage.crashes import chances_of, sweep
from tests.storage.directories import add_partitions, create_topic, delete_topic
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    ONE_SEGMENT,
    SMALL,
    after_power_cut,
    append,
    base_offsets_of,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
    values,
)
from tests.storage.model import as_model

chances = chances_of(1, 10)


# -- one log ---------------------------------------------------------------------------------------


@dataclass
class Promise:
    """What a log is held to: nothing that was durable goes, nothing that never was comes."""

    log: Log
    batches: list[bytes] = field(default_factory=list)  # from offset 0, also those that were cut
    durable_end: int = 0
    start_max: int = 0  # where the log may start at the latest, and at the earliest
    durable_start: int = 0

    def note(self) -> None:
        self.batches += stored(self.log, self.log.log_end_offset - 1)

    def append(self, size: int = 300, **options: int) -> None:
        append(self.log, value_at(self.log.log_end_offset, size), producer=self._next(), **options)
        self.note()

    def _next(self) -> tuple[int, int, int]:
        return (7, 0, self.log.log_end_offset)

    def sync(self) -> None:
        self.log.sync()
        self.durable_end = self.log.log_end_offset


def log_of(count: int) -> Callable[[SimDisk], Promise]:
    """A log of ``count`` durable batches in segments of three."""

    def prepare(disk: SimDisk) -> Promise:
        config = TopicConfig(segment_bytes=1_300, index_interval_bytes=300, retention_bytes=2_000)
        promise = Promise(open_log(disk, config))
        for number in range(count):
            promise.append()
            if number % 2:
                promise.sync()
        promise.sync()
        return promise

    return prepare


def check_log(disk: SimDisk, promise: Promise) -> None:
    """The log is sound, holds what was promised and goes on; and what it holds is durable now."""
    log = open_log(disk, promise.log.config)
    assert not log.damage
    start, end = log.log_start_offset, log.log_end_offset
    assert promise.durable_start <= start <= promise.start_max
    assert promise.durable_end <= end <= len(promise.batches)
    found = stored(log)
    assert found == promise.batches[start:end]
    assert [row.kind for row in _problems(disk) if row.kind != inspect.INDEX] == []
    sent = as_model(log.producers).get(7)
    assert (sent.sent[-1].last_offset if sent else -1) == end - 1
    assert not found or log.epochs.epoch_at(end - 1) == 0
    append(log, b"and on it goes", producer=(7, 0, end))
    log.sync()
    kept = stored(log)
    disk.power_cut()
    log = open_log(disk, promise.log.config)
    assert not log.damage
    assert stored(log) == kept
    # As if that had not been: a second check may follow, and what was found stays found.
    log.truncate_to(end)
    log.abandon()
    promise.durable_end, promise.durable_start = end, start


def _problems(disk: SimDisk) -> list[inspect.Problem]:
    with suppress(inspect.DataDirectoryError):
        return [p for report in inspect.verify(disk, DIRECTORY) for p in report.problems]
    return []


def append_roll_and_sync(disk: SimDisk, promise: Promise) -> None:
    for _ in range(3):
        promise.append()
        promise.append()
        promise.sync()


def test_the_first_batches_of_a_log(chances: int, seed: int) -> None:
    sweep(log_of(0), append_roll_and_sync, check_log, seed=seed, chances=chances)


def test_appending_rolling_and_syncing(chances: int, seed: int) -> None:
    sweep(log_of(5), append_roll_and_sync, check_log, seed=seed, chances=chances)


def test_two_segments_under_way_at_once(chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        for _ in range(7):
            promise.append()
        promise.sync()

    sweep(log_of(2), act, check_log, seed=seed, chances=chances)


def test_s37_kill_during_snapshot_at_every_step(chances: int, seed: int) -> None:
    """An orderly end saves what makes the next start quick."""

    def act(disk: SimDisk, promise: Promise) -> None:
        promise.append()
        promise.append()
        promise.log.close()
        promise.durable_end = len(promise.batches)

    sweep(log_of(4), act, check_log, seed=seed, chances=chances)


def test_a_drop_by_retention(chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        task = promise.log.apply_retention(
            now_ms=NOW_MS, high_watermark=promise.log.durable_end_offset
        )
        assert task is not None
        promise.start_max = task.log_start_offset
        task.run()
        promise.durable_start = task.log_start_offset
        promise.append()
        promise.sync()

    sweep(log_of(10), act, check_log, seed=seed, chances=chances)


def test_deleting_every_record(chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        promise.start_max = promise.log.log_end_offset
        promise.log.advance_log_start(promise.start_max).run()
        promise.durable_start = promise.start_max
        promise.append()
        promise.sync()

    sweep(log_of(5), act, check_log, seed=seed, chances=chances)


def test_deleting_up_to_the_middle_of_a_segment(chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        for offset in (4, 5):
            promise.start_max = offset
            promise.log.advance_log_start(offset).run()
            promise.durable_start = offset

    sweep(log_of(7), act, check_log, seed=seed, chances=chances)


@pytest.mark.parametrize(
    "offset", [3, *(pytest.param(each, marks=pytest.mark.seeds) for each in (1, 6, 7))]
)
def test_truncating(offset: int, chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        promise.durable_end = offset
        promise.log.truncate_to(offset)
        del promise.batches[offset:]
        promise.append(size=310)
        promise.sync()

    sweep(log_of(8), act, check_log, seed=seed, chances=chances)


def test_a_new_epoch(chances: int, seed: int) -> None:
    def act(disk: SimDisk, promise: Promise) -> None:
        promise.append(leader_epoch=3)
        promise.sync()

    def check(disk: SimDisk, promise: Promise) -> None:
        log = open_log(disk, promise.log.config)
        end = log.log_end_offset
        assert promise.durable_end <= end <= 3
        assert not log.damage
        assert [log.epochs.epoch_at(offset) for offset in range(end)] == [0, 0, 3][:end]
        assert log.leader_epoch >= log.epochs.epoch_at(end - 1)
        promise.durable_end = end
        log.abandon()

    sweep(log_of(2), act, check, seed=seed, chances=chances)


# -- one store -------------------------------------------------------------------------------------


def open_store(disk: SimDisk) -> Store:
    ids = iter(f"id{number}" for number in range(1_000))
    taken = {name for topic in disk.list_dir("data/topics") for name in names_below(disk, topic)}
    return Store.open(disk, "data", new_id=lambda: next(id_ for id_ in ids if id_ not in taken))


def names_below(disk: SimDisk, topic: str) -> list[str]:
    return disk.list_dir(f"data/topics/{topic}")


def write(store: Store, topic: str, partition: int = 0, count: int = 2) -> None:
    log = store.log(topic, partition)
    fill(log, count)


@dataclass
class Topics:
    """Topics by name, and how many partitions each has: as they were, and as they are to be."""

    store: Store
    before: dict[str, int]
    after: dict[str, int]
    done: bool = False
    first_id: str = ""


def store_with(after: dict[str, int]) -> Callable[[SimDisk], Topics]:
    def prepare(disk: SimDisk) -> Topics:
        store = open_store(disk)
        topic = create_topic(store, "old", partitions=2, config={})
        write(store, "old")
        return Topics(store, {"old": 2}, after, first_id=topic.id)

    return prepare


def check_topics(disk: SimDisk, state: Topics) -> None:
    """Either as before or as after, whole; every log works; and no files are left over."""
    store = open_store(disk)
    found = {topic.name: topic.partitions for topic in store.topics.values()}
    assert found in ([state.after] if state.done else [state.before, state.after])
    state.done |= found == state.after
    for name, partitions in found.items():
        logs = [store.log(name, partition) for partition in range(partitions)]
        assert not any(log.damage for log in logs)
        if name == "old":
            assert values(logs[0])[:2] == [value_at(0), value_at(1)]
        for partition in range(partitions):
            write(store, name, partition)
        kept = [stored(log) for log in logs]
        disk.power_cut()
        store = open_store(disk)
        assert [stored(store.log(name, partition)) for partition in range(partitions)] == kept
    if found == state.before and "new" in state.after:
        assert create_topic(store, "new", partitions=1, config={}).partitions == 1
        delete_topic(store, "new")
    store.abandon()
    disk.crash()


def test_creating_a_topic(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Topics) -> None:
        create_topic(state.store, "new", partitions=2, config={"retention.ms": "5"})
        state.done = True

    sweep(store_with({"old": 2, "new": 2}), act, check_topics, seed=seed, chances=chances)


def test_the_first_topic_of_a_new_directory(chances: int, seed: int) -> None:
    """The directory itself, its identity and its catalog are all new."""

    def act(disk: SimDisk, state: list[Store]) -> None:
        store = open_store(disk)
        create_topic(store, "new", partitions=1, config={})
        write(store, "new")
        state.append(store)

    def check(disk: SimDisk, state: list[Store]) -> None:
        store = open_store(disk)
        if state:
            assert store.identity.directory_id == state[-1].identity.directory_id
            assert len(values(store.log("new", 0))) >= 2
        if "new" not in store.topics:
            create_topic(store, "new", partitions=1, config={})
        write(store, "new")
        state.append(store)

    sweep(lambda disk: [], act, check, seed=seed, chances=chances)


def test_adding_partitions(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Topics) -> None:
        add_partitions(state.store, "old", 4)
        state.done = True

    sweep(store_with({"old": 4}), act, check_topics, seed=seed, chances=chances)


def test_deleting_a_topic(chances: int, seed: int) -> None:
    """Once it is gone, so are its files, after one more start at the latest."""

    def act(disk: SimDisk, state: Topics) -> None:
        delete_topic(state.store, "old")
        state.done = True

    def check(disk: SimDisk, state: Topics) -> None:
        check_topics(disk, state)
        if state.done:
            assert names_below(disk, "old") == []
            store = open_store(disk)
            with pytest.raises(UnknownTopicError):
                store.log("old", 0)
            store.abandon()
            disk.crash()

    sweep(store_with({}), act, check, seed=seed, chances=chances)


def test_deleting_a_topic_and_creating_it_again(chances: int, seed: int) -> None:
    """The new one never meets records of the old one (S19)."""

    def act(disk: SimDisk, state: Topics) -> None:
        delete_topic(state.store, "old")
        state.done = True  # from here on, the first one never comes back
        create_topic(state.store, "old", partitions=2, config={})

    def check(disk: SimDisk, state: Topics) -> None:
        store = open_store(disk)
        topic = store.topics.get("old")
        if topic is not None:
            is_the_first = topic.id == state.first_id
            assert len(values(store.log("old", 0))) == (2 if is_the_first else 0)
            assert not (state.done and is_the_first)
            state.done |= not is_the_first
            assert names_below(disk, "old") == [topic.id]
        store.abandon()
        disk.crash()

    sweep(store_with({}), act, check, seed=seed, chances=chances)


def test_altering_a_topic(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Topics) -> None:
        state.store.update_topic(
            state.first_id, overrides={"retention.ms": "5"}, total_partitions=2
        )
        state.done = True

    def check(disk: SimDisk, state: Topics) -> None:
        store = open_store(disk)
        overrides = dict(store.topic("old").overrides)
        assert overrides in ([{"retention.ms": "5"}] if state.done else [{}, {"retention.ms": "5"}])
        state.done |= bool(overrides)
        assert store.log("old", 1).config == store.topic("old").config
        store.abandon()
        disk.crash()

    sweep(store_with({}), act, check, seed=seed, chances=chances)


# -- durability ------------------------------------------------------------------------------------
#
# The orders of operations that guarantees depend on (docs/contributing/storage.md), a test each.
#
# Each stops the process just before the later operation and looks at what is durable by then, on
# the simulated disk: no kill can show it, and a power cut shows it only sometimes.


DURABILITY_CHANCES = range(12)


def stop_before(
    disk: SimDisk, operations: Collection[str], path: str, act: Callable[[], object]
) -> None:
    """Run ``act`` until it is about to do one of ``operations`` on ``path``."""
    disk.faults.append(Fault(operations, error=None, path=path))
    with pytest.raises(Stopped):
        act()


def durable_checkpoint(disk: SimDisk) -> Checkpoint:
    found = decode_slots(disk.durable_bytes(f"{DIRECTORY}/checkpoint") or b"")
    assert found is not None
    return found[1]


def durable_batches(disk: SimDisk) -> list[bytes]:
    """All batches that every power cut would leave, segment by segment."""
    segments = [disk.durable_bytes(path) or b"" for path in files(disk, ".log")]
    return [bytes(batch) for segment in segments for batch in split(segment)]


def producer_at(log: Log) -> tuple[int, int, int]:
    """The next batch of a producer that has written every batch of the log."""
    return (7, 0, log.log_end_offset)


# -- a sync, before what follows from it -----------------------------------------------------------


def test_data_is_durable_when_the_durable_end_moves() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20, sync=False)
    assert (log.durable_end_offset, log.log_end_offset) == (0, 20)
    task = log.begin_sync()
    assert task is not None
    task.run()
    assert log.durable_end_offset == 0  # not before its owner has the task back
    assert durable_batches(disk) == stored(log)
    log.complete_sync(task)
    assert log.durable_end_offset == 20


def test_a_ticket_covers_what_came_before_it_and_nothing_that_came_after() -> None:
    log = open_log(sim_disk())
    fill(log, 3, sync=False)
    first = log.begin_sync()
    assert first is not None
    fill(log, 9, sync=False)  # across a roll
    assert log.begin_sync() is None  # one at a time
    first.run()
    log.complete_sync(first)
    assert log.durable_end_offset == 3
    second = log.begin_sync()
    assert second is not None
    assert second.end_offset == 12


def test_a_new_segments_name_is_durable_when_the_durable_end_reaches_into_it() -> None:
    """Before the snapshot of producers is written, which syncs the directory as well."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 1)
    fill(log, 20, sync=False)
    task = log.begin_sync()
    assert task is not None
    stop_before(disk, {"create", "write"}, "*.producers.tmp", task.run)
    assert all(disk.durable_bytes(path) is not None for path in files(disk, ".log"))
    assert log.segment_count > 3


@pytest.mark.parametrize("path", ["*/checkpoint", "*.index.tmp", "*.producers.tmp"])
def test_nothing_is_noted_before_what_it_speaks_of_is_durable(path: str) -> None:
    """A mark, an index or a snapshot ahead of the truth makes a torn tail look like damage."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 8)
    append(log, b"x" * 1_500, producer=(7, 0, 0))  # a roll: the task has an index to write
    append(log, b"y", producer=(7, 0, 1))
    expected = stored(log)
    task = log.begin_sync()
    assert task is not None
    stop_before(disk, {"create", "write"}, path, task.run)
    assert durable_batches(disk) == expected


@pytest.mark.parametrize("path", ["*/checkpoint", "*.index.tmp", "*.producers.tmp"])
def test_epochs_are_durable_before_their_batches_are_noted_as_durable(path: str) -> None:
    """KAFKA-15046: an append does not wait for it, because the batches contain their epochs."""
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"x", leader_epoch=3)
    log.sync()
    append(log, b"x" * 1_500, leader_epoch=5)  # in a new segment
    append(log, b"y", leader_epoch=6)
    task = log.begin_sync(snapshot=True)
    assert task is not None
    stop_before(disk, {"create", "write"}, path, task.run)
    epochs = state_files.decode(disk.durable_bytes(f"{DIRECTORY}/epochs") or b"", path="epochs")
    assert epochs == {"epochs": [[3, 0], [5, 1], [6, 2]]}


# -- recovery, before anything is served -----------------------------------------------------------


def test_what_a_killed_process_left_is_durable_before_it_is_served() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 1)  # else the epochs are saved too, with a sync of the directory
    fill(log, 20, sync=False)
    log = killed(disk)
    assert log.durable_end_offset == 21
    assert durable_batches(disk) == stored(log)


def test_what_a_failed_sync_dropped_is_durable_before_it_is_served() -> None:
    """The kernel keeps the pages, takes them for clean, and a second sync says that all is well."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 4)
    fill(log, 9, sync=False)
    task = log.begin_sync()
    assert task is not None
    disk.faults.append(Fault({"sync"}, forgets=True, times=2))
    with pytest.raises(OSError, match="Input/output"):
        task.run()
    disk.faults.clear()
    log = killed(disk)
    assert values(log)[4:]
    assert durable_batches(disk) == stored(log)


def test_a_cut_of_a_torn_tail_is_durable_before_the_log_goes_on() -> None:
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    fill(log, 3)
    whole = stored(log)
    (path,) = files(disk, ".log")
    disk.open(path).append([b"half of a batch"])
    killed(disk, ONE_SEGMENT)
    assert disk.durable_bytes(path) == b"".join(whole)


def test_a_taken_back_write_is_gone_for_good_before_the_log_goes_on_in_a_new_segment() -> None:
    """Else a power cut brings it back, in the middle of the log."""
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk)
        fill(log, 3)
        disk.capacity_bytes = limits.GIB
        disk.capacity_bytes -= disk.free_bytes(DIRECTORY) - 100  # room for so much
        with pytest.raises(DiskFullError):
            append(log, b"x" * 700)
        disk.capacity_bytes = None
        log.sync()
        (path,) = files(disk, ".log")
        whole = b"".join(stored(log))
        disk.power_cut()
        assert disk.durable_bytes(path) == whole


# -- dropping --------------------------------------------------------------------------------------


def log_to_drop(disk: SimDisk) -> Log:
    """Twenty durable batches of one producer, in several segments."""
    log = open_log(disk)
    for _ in range(20):
        append(log, b"x" * 200, producer=producer_at(log))
    log.sync()
    return log


def log_without_snapshot(disk: SimDisk) -> Log:
    """Twenty durable batches of one producer, in the segment that is being written."""
    log = open_log(disk, ONE_SEGMENT)
    for _ in range(20):
        append(log, b"x" * 200, producer=producer_at(log))
    log.sync()
    assert files(disk, ".producers") == []
    return log


@pytest.mark.parametrize("start", [14, 20])
def test_a_new_log_start_is_durable_before_files_go(start: int) -> None:
    """Segments missing above the log start would be damage."""
    disk = sim_disk()
    task = log_to_drop(disk).advance_log_start(start)
    assert task.paths
    stop_before(disk, {"remove"}, "*", task.run)
    assert durable_checkpoint(disk).log_start_offset == start


def test_the_segment_that_carries_the_end_has_a_durable_name_before_the_others_go() -> None:
    disk = sim_disk()
    task = log_to_drop(disk).advance_log_start(20)
    stop_before(disk, {"remove"}, "*", task.run)
    assert disk.durable_bytes(f"{DIRECTORY}/{20:020d}.log") == b""


def test_producers_are_saved_before_the_batches_go_that_tell_of_them() -> None:
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        task = log_without_snapshot(disk).advance_log_start(20)
        stop_before(disk, {"remove"}, "*.log", task.run)
        disk.faults.clear()
        log = after_power_cut(disk)
        assert append(log, b"next", producer=producer_at(log)).duplicate is False


def test_producers_are_saved_before_the_new_start_is_durable() -> None:
    """From then on the next process may find it, and finish the deletion."""
    disk = sim_disk()
    task = log_without_snapshot(disk).advance_log_start(20)
    stop_before(disk, {"write"}, "*/checkpoint", task.run)
    assert disk.durable_bytes(f"{DIRECTORY}/{20:020d}.producers")


def test_a_segment_waits_until_a_snapshot_can_keep_its_producers() -> None:
    """One of batches that are not durable yet would not outlive a power cut."""
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk)
        for _ in range(2):
            append(log, b"x" * 800, producer=producer_at(log))
        fill(log, 1, size=800)
        assert [segment.base_offset for segment in log._segments] == [0, 2]
        log._files.cut_snapshots(0)
        log = killed(disk)
        fill(log, 1, sync=False)
        log.advance_log_start(2).run()
        log = after_power_cut(disk)
        assert append(log, b"next", producer=(7, 0, 2)).duplicate is False


def test_a_start_that_a_killed_process_had_not_synced_is_durable_before_files_go() -> None:
    disk = sim_disk()
    task = log_to_drop(disk).advance_log_start(14)
    stop_before(disk, {"sync"}, "*/checkpoint", task.run)
    disk.crash()
    disk.faults.clear()
    assert durable_checkpoint(disk).log_start_offset == 0
    stop_before(disk, {"remove"}, "*.log", lambda: open_log(disk))
    assert durable_checkpoint(disk).log_start_offset == 14


# -- truncating ------------------------------------------------------------------------------------


def log_to_cut(disk: SimDisk) -> Log:
    log = open_log(disk)
    for _ in range(20):
        append(log, b"x" * 200, producer=producer_at(log))
    log.close()
    return open_log(disk)


@pytest.mark.parametrize(("operation", "path"), [("remove", "*"), ("truncate", "*.log")])
def test_the_durable_end_goes_back_before_anything_goes(operation: str, path: str) -> None:
    """Bytes missing below the durable end would be damage."""
    disk = sim_disk()
    log = log_to_cut(disk)
    stop_before(disk, {operation}, path, lambda: log.truncate_to(8))
    assert durable_checkpoint(disk).durable_end_offset == 8


@pytest.mark.parametrize(("operation", "path"), [("remove", "*.log"), ("truncate", "*.log")])
def test_indexes_are_gone_for_good_before_what_they_cover(operation: str, path: str) -> None:
    """An index says that what it covers is durable."""
    disk = sim_disk()
    log = log_to_cut(disk)
    disk.sync_dir(DIRECTORY)
    cut = [s.index_path for s in log._segments if s.next_offset > 8]
    assert len(cut) > 1
    assert all(disk.durable_bytes(index) is not None for index in cut)
    stop_before(disk, {operation}, path, lambda: log.truncate_to(8))
    assert all(disk.durable_bytes(index) is None for index in cut)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_producers_as_of_the_cut_are_saved_before_later_snapshots_go(is_stopped: bool) -> None:
    """The batches that tell of them may be deleted already."""
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk)
        for _ in range(3):
            append(log, b"x" * 200, producer=producer_at(log))
        fill(log, 17)
        log.advance_log_start(12).run()
        if is_stopped:
            stop_before(disk, {"remove"}, "*.producers", lambda log=log: log.truncate_to(13))
            disk.faults.clear()
        else:
            log.truncate_to(13)
        log = after_power_cut(disk)
        assert append(log, b"next", producer=(7, 0, 3)).duplicate is False


def test_a_snapshot_beyond_the_end_that_a_start_finds_never_counts_again() -> None:
    """A truncation was cut short just before it deleted that."""
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk, ONE_SEGMENT)
        append(log, b"x", producer=(9, 0, 0))
        snapshot = log.producers.snapshot()
        log.truncate_to(0)
        log._files.write_snapshot(5, snapshot)
        fill(killed(disk, ONE_SEGMENT), 9)
        log = after_power_cut(disk, ONE_SEGMENT)
        assert log.log_end_offset == 9
        assert append(log, b"x", producer=(9, 0, 0)).duplicate is False


@pytest.mark.parametrize("offset", [8, 12])  # in a segment, and between two
@pytest.mark.parametrize("with_snapshots", [True, False])
def test_a_cut_is_durable_when_it_returns(offset: int, with_snapshots: bool) -> None:
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = log_to_cut(disk)
        if not with_snapshots:
            log._files.cut_snapshots(0)
        assert (offset in [s.base_offset for s in log._segments]) == (offset == 12)
        log.truncate_to(offset)
        log = after_power_cut(disk)
        assert (log.log_end_offset, log.damage) == (offset, "")
        assert base_offsets_of(stored(log)) == list(range(offset))


def test_a_snapshot_of_batches_that_were_cut_never_counts_again() -> None:
    """The log grows past it with other batches, of another producer."""
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = log_to_cut(disk)
        log.truncate_to(8)
        for _ in range(14):
            append(log, b"y" * 200)
        log.sync()
        log = after_power_cut(disk)
        assert append(log, b"seven again", producer=(7, 0, 8)).duplicate is False


@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT])
def test_a_log_that_was_closed_is_whole_after_a_power_cut(config: TopicConfig) -> None:
    for seed in DURABILITY_CHANCES:
        disk = sim_disk(seed)
        log = open_log(disk, config)
        fill(log, 12, sync=False)
        expected = stored(log)
        log.close()
        assert stored(after_power_cut(disk, config)) == expected
