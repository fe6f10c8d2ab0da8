"""A process may end before any change to the disk: what the next one finds is always legal."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from raftlog.consensus import journal as journal_file
from raftlog.consensus.journal import Journal
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.testing.disk import Fault, SimDisk
from tests.consensus.journals import (
    PATH,
    SMALL_REWRITE,
    contents,
    disk_of,
    fill_group,
    open_journal,
)
from tests.storage.crashes import sweep

CHANCES = 1
CHANCES_SEEDS = 10


@pytest.fixture(
    params=[pytest.param(CHANCES), pytest.param(CHANCES_SEEDS, marks=pytest.mark.seeds)]
)
def chances(request: pytest.FixtureRequest) -> int:
    """How many outcomes of each power cut are looked at."""
    count: int = request.param
    return count


@dataclass
class Promise:
    """What a journal may be found to hold: what was durable, or with that the sync under way."""

    journal: Journal
    legal: list[dict[str, Any]] = field(default_factory=list)
    boot: int = 0

    def sync(self) -> None:
        self.legal.append(contents(self.journal))
        self.journal.sync()
        del self.legal[:-1]


def started(disk: SimDisk) -> Promise:
    """A journal with a history, about to be rewritten."""
    disk.make_dirs("data")
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    promise = Promise(journal, boot=journal.boot)
    fill_group(journal, "a", 3)
    for number in range(8):
        fill_group(journal, f"brief {number}", 4)
        promise.sync()
        journal.drop(f"brief {number}")
    promise.sync()
    return promise


def change(promise: Promise) -> None:
    """Rounds of every kind of change, each synced; at some of them the file is rewritten."""
    journal = promise.journal
    for number in range(8):
        group = fill_group(journal, "a", 2, size=30 + 200 * (number % 3))
        promise.sync()
        group.setCurrentTerm(group.getCurrentTerm() + 1, 1 + number % 3)
        group.deleteEntriesFrom(2)
        journal.note_peer(2, "two", number)
        fill_group(journal, f"brief {number}", 3, size=60)
        promise.sync()
        if number == 5:
            group.begin_generation(group.generation + 1, {1: "one", 5: "five"}, bytes(700))
        journal.drop(f"brief {number}")
        promise.sync()


def check(disk: SimDisk, promise: Promise) -> None:
    """The journal opens, holds what is legal, and goes on; and what it holds is durable now."""
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    found = contents(journal)
    assert found in promise.legal
    assert journal.boot > promise.boot
    fill_group(journal, "on it goes", 1)
    journal.sync()
    journal.drop("on it goes")
    journal.sync()
    disk.power_cut()
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    assert contents(journal) == found
    journal.close()
    promise.legal, promise.boot = [found], journal.boot


def test_a_crash_at_any_change_to_the_disk_loses_nothing(chances: int, seed: int) -> None:
    rewrites = 0

    def act(disk: SimDisk, promise: Promise) -> None:
        nonlocal rewrites
        file = promise.journal._file
        change(promise)
        rewrites += promise.journal._file is not file

    changes = sweep(started, act, check, seed=seed, chances=chances)
    assert changes > 50
    assert rewrites > 0


def test_a_crash_while_a_journal_is_made(chances: int, seed: int) -> None:
    def prepare(disk: SimDisk) -> list[Journal]:
        disk.make_dirs("data")
        return []

    def act(disk: SimDisk, opened: list[Journal]) -> None:
        opened.append(open_journal(disk))

    def look(disk: SimDisk, opened: list[Journal]) -> None:
        boot = opened[-1].boot if opened else 0
        journal = open_journal(disk)
        assert contents(journal) == {"peers": {}}
        assert journal.boot > boot
        opened.append(journal)

    sweep(prepare, act, look, seed=seed, chances=chances)


def test_a_crash_while_a_torn_end_is_cut(chances: int, seed: int) -> None:
    def prepare(disk: SimDisk) -> Promise:
        promise = started(disk)
        promise.journal.close()
        position = len(disk.durable_bytes(PATH) or b"")
        block = journal_file.encode(
            bytes(3_000), sequence=promise.journal._sequence + 1, position=position
        )
        disk.open(PATH).append([block[:2_000]])
        disk.crash()
        return promise

    def act(disk: SimDisk, promise: Promise) -> None:
        journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
        promise.boot = journal.boot
        assert "truncated 2000 torn bytes" in journal.notes[0]

    sweep(prepare, act, check, seed=seed, chances=chances)


# -- at random -------------------------------------------------------------------------------------


def random_change(random: Random, journal: Journal) -> None:
    name = random.choice("abc")
    group = journal.group(name)
    roll = random.random()
    if roll < 0.5 or group.is_new:
        fill_group(journal, name, random.randrange(1, 4), size=random.choice((20, 200, 700)))
    elif roll < 0.65:
        group.deleteEntriesFrom(random.randrange(len(group) + 1))
    elif roll < 0.8:
        group.setCurrentTerm(group.getCurrentTerm() + 1, random.choice((None, 1, 2)))
    elif roll < 0.87:
        group.begin_generation(group.generation + 1, {1: "x"}, random.randbytes(40))
    elif roll < 0.93:
        journal.drop(name)
    else:
        journal.note_peer(random.randrange(4), "d", random.randrange(9))


def live_a_life(seed: int) -> int:
    """Changes, syncs, rewrites, full disks, crashes and power cuts; how many lives it took."""
    random = Random(seed)
    disk = disk_of(seed)
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    legal = [contents(journal)]
    for _ in range(80):
        random_change(random, journal)
        if random.random() < 0.5:
            continue
        legal.append(contents(journal))
        ending = random.random() < 0.25
        if ending:
            operations = random.choice((("write",), ("sync",), ("rename", "sync_dir")))
            disk.faults.append(Fault(operations, errno.EIO, forgets=random.random() < 0.5))
        elif random.random() < 0.2:
            disk.capacity_bytes = (1 << 40) - disk.free_bytes(".") + random.randrange(900)
        try:
            journal.sync()
            del legal[:-1]
        except DiskFullError:
            del legal[-1]
        except StorageFailedError:
            pass
        disk.faults.clear()
        disk.capacity_bytes = None
        if ending:
            boot = journal.boot
            random.choice((disk.crash, disk.power_cut, disk.power_cut))()
            journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
            assert contents(journal) in legal, f"seed {seed}"
            assert journal.boot == boot + 1
            legal = [contents(journal)]
    return journal.boot


def test_a_random_life_loses_nothing(seed: int) -> None:
    assert sum(live_a_life(seed + number) for number in range(60)) > 300


@pytest.mark.seeds
def test_many_random_lives_lose_nothing(seed: int) -> None:
    assert sum(live_a_life(seed + number) for number in range(2_000)) > 12_000
