"""A process may end before any change to the disk: what the next one finds is always legal."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import UnknownTopicError
from raftlog.storage import Log, Store, inspect
from raftlog.testing.disk import SimDisk
from tests.storage.crashes import sweep
from tests.storage.logs import (
    DIRECTORY,
    NOW_MS,
    append,
    fill,
    open_log,
    stored,
    value_at,
    values,
)
from tests.storage.model import as_model

CHANCES = 1
CHANCES_SEEDS = 10


@pytest.fixture(
    params=[pytest.param(CHANCES), pytest.param(CHANCES_SEEDS, marks=pytest.mark.seeds)]
)
def chances(request: pytest.FixtureRequest) -> int:
    """How many outcomes of each power cut are looked at."""
    count: int = request.param
    return count


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
        topic = store.create_topic("old", partitions=2, config={})
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
        assert store.create_topic("new", partitions=1, config={}).partitions == 1
        store.discard(store.delete_topic("new"))
    store.abandon()
    disk.crash()


def test_creating_a_topic(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Topics) -> None:
        state.store.create_topic("new", partitions=2, config={"retention.ms": "5"})
        state.done = True

    sweep(store_with({"old": 2, "new": 2}), act, check_topics, seed=seed, chances=chances)


def test_the_first_topic_of_a_new_directory(chances: int, seed: int) -> None:
    """The directory itself, its identity and its catalog are all new."""

    def act(disk: SimDisk, state: list[Store]) -> None:
        store = open_store(disk)
        store.create_topic("new", partitions=1, config={})
        write(store, "new")
        state.append(store)

    def check(disk: SimDisk, state: list[Store]) -> None:
        store = open_store(disk)
        if state:
            assert store.identity.directory_id == state[-1].identity.directory_id
            assert len(values(store.log("new", 0))) >= 2
        if "new" not in store.topics:
            store.create_topic("new", partitions=1, config={})
        write(store, "new")
        state.append(store)

    sweep(lambda disk: [], act, check, seed=seed, chances=chances)


def test_adding_partitions(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Topics) -> None:
        state.store.add_partitions("old", 4)
        state.done = True

    sweep(store_with({"old": 4}), act, check_topics, seed=seed, chances=chances)


def test_deleting_a_topic(chances: int, seed: int) -> None:
    """Once it is gone, so are its files, after one more start at the latest."""

    def act(disk: SimDisk, state: Topics) -> None:
        topic = state.store.delete_topic("old")
        state.done = True
        state.store.discard(topic)

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
        old = state.store.delete_topic("old")
        state.done = True  # from here on, the first one never comes back
        state.store.create_topic("old", partitions=2, config={})
        state.store.discard(old)

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
        state.store.alter_topic("old", {"retention.ms": "5"})
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
