"""A follower's process may end before any change to the disk: it is never a mix, never damage.

What the next process finds is a prefix of what its leader had, the old one or the new one, with all
that was durable; and from there it catches up with the new leader, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from raftlog import limits
from raftlog.record import parse_header
from raftlog.storage import Log, inspect
from raftlog.testing.disk import SimDisk
from tests.storage.crashes import chances_of, sweep
from tests.storage.harm import problems
from tests.storage.logs import DIRECTORY, after_power_cut, append, files, open_log, stored
from tests.storage.model import as_model
from tests.storage.replicas import SEGMENTED, Leader, copy, follow, leader_of

chances = chances_of(1, 10)


@dataclass
class Legal:
    """A state that the follower may be found in: a leader's batches from ``start`` on, up to an
    end that is ``end_min`` at least."""

    leader: Leader
    start: int = 0
    end_min: int = 0

    def fits(self, log: Log) -> bool:
        end = log.log_end_offset
        return (
            log.log_start_offset == self.start
            and self.end_min <= end
            and stored(log) == [b for b in self.leader.after(self.start) if ends_at(b) <= end]
        )


def ends_at(batch: bytes) -> int:
    return parse_header(batch).next_offset


@dataclass
class Follower:
    """``legal`` is what a crash at this moment may leave; ``target`` what it catches up with."""

    log: Log
    target: Leader
    target_start: int = 0
    legal: list[Legal] = field(default_factory=list)


def check_follower(disk: SimDisk, follower: Follower) -> None:
    log = open_log(disk, SEGMENTED)
    assert log.damage == ""
    assert any(legal.fits(log) for legal in follower.legal)
    assert problems_but_indexes(disk) == set()
    target, start = follower.target, follower.target_start
    catch_up(log, target, start)
    log.sync()
    log = after_power_cut(disk, SEGMENTED)
    assert log.damage == ""
    assert stored(log) == target.after(start)
    check_state(log, target.after(start))
    follower.legal = [Legal(target, start, target.end)]
    log.abandon()


def problems_but_indexes(disk: SimDisk) -> set[str]:
    with suppress(inspect.DataDirectoryError):
        return problems(disk) - {inspect.INDEX}
    return set()


def catch_up(log: Log, leader: Leader, start: int) -> None:
    """As a follower does: cut what the leader does not have, begin anew below its log start."""
    if log.log_end_offset < start:
        log.restart_at(start)
    common = max((b for b in boundaries(leader) if has(log, leader, b)), default=-1)
    if common < log.log_start_offset:
        log.restart_at(max(start, 0))
    else:
        log.truncate_to(common)
    follow(log, leader)
    if log.log_start_offset < start:
        log.advance_log_start(start).run()


def boundaries(leader: Leader) -> list[int]:
    return [leader.base, *map(ends_at, leader.batches)]


def has(log: Log, leader: Leader, offset: int) -> bool:
    """Whether the log holds what the leader does below ``offset``, as the chain tells."""
    if not log.log_start_offset <= offset <= log.log_end_offset:
        return False
    below = leader.fork(offset)
    return log.chain_at(offset) in (None, below.chain)


def check_state(log: Log, batches: list[bytes]) -> None:
    """Epochs and producers are those of the batches."""
    for header in map(parse_header, batches):
        assert log.epochs.epoch_at(header.base_offset) == header.leader_epoch
    assert log.last_epoch == parse_header(batches[-1]).leader_epoch
    sent = [h.base_offset for h in map(parse_header, batches) if h.producer_id == 7][-5:]
    assert [row.base_offset for row in as_model(log.producers)[7].sent][-len(sent) :] == sent


# -- copying ---------------------------------------------------------------------------------------


def new_follower(
    leader: Leader, durable: int, *, target: Leader | None = None
) -> Callable[[SimDisk], Follower]:
    """One that holds ``durable`` of the leader's batches, durably, and the rest only written."""

    def prepare(disk: SimDisk) -> Follower:
        log = open_log(disk, SEGMENTED)
        if durable:
            copy(log, leader.batches[:durable])
            log.sync()
        rest = leader.batches[durable:]
        if rest and target is not None:
            copy(log, rest)
        return Follower(log, target or leader, legal=[Legal(leader, 0, durable)])

    return prepare


@pytest.mark.parametrize("durable", [pytest.param(0, marks=pytest.mark.seeds), 4])
def test_copying_over_segments_and_epochs(durable: int, chances: int, seed: int) -> None:
    leader = leader_of((0, 5), (1, 3), (4, 3))

    def act(disk: SimDisk, follower: Follower) -> None:
        log = follower.log
        copy(log, leader.after(log.log_end_offset)[:4])
        log.sync()
        follower.legal = [Legal(leader, 0, log.log_end_offset)]
        copy(log, leader.after(log.log_end_offset))
        log.close()
        follower.legal = [Legal(leader, 0, leader.end)]

    sweep(new_follower(leader, durable), act, check_follower, seed=seed, chances=chances)


# -- cutting ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "is_synced"),
    [
        *((5, True), (9, False)),
        *(
            pytest.param(*each, marks=pytest.mark.seeds)
            for each in ((0, True), (3, True), (8, True), (2, False))
        ),
    ],
)
def test_cutting_and_copying_other_batches(
    offset: int, is_synced: bool, chances: int, seed: int
) -> None:
    old = leader_of((0, 5), (1, 5))
    new = old.fork(offset)
    new.fill(6, epoch=3, size=310)

    def act(disk: SimDisk, follower: Follower) -> None:
        log = follower.log
        follower.legal = [Legal(old, 0, min(offset, 10 if is_synced else 4))]
        log.truncate_to(offset)
        follower.legal = [Legal(new, 0, offset)]
        copy(log, new.after(offset)[:2])
        copy(log, new.after(offset)[2:])
        log.sync()
        follower.legal = [Legal(new, 0, new.end)]

    prepare = new_follower(old, 10 if is_synced else 4, target=new)
    sweep(prepare, act, check_follower, seed=seed, chances=chances)


def test_cutting_twice(chances: int, seed: int) -> None:
    """A second leader fails before the follower has synced what it got from it."""
    old, second = leader_of((0, 8)), leader_of((0, 8)).fork(6)
    second.fill(4, epoch=1, size=290)
    third = second.fork(3)
    third.fill(7, epoch=2, size=310)

    def act(disk: SimDisk, follower: Follower) -> None:
        log = follower.log
        follower.legal = [Legal(old, 0, 6)]
        log.truncate_to(6)
        follower.legal = [Legal(second, 0, 6)]
        follow(log, second)
        follower.legal = [Legal(second, 0, 3)]
        log.truncate_to(3)
        follower.legal = [Legal(third, 0, 3)]
        follow(log, third)

    sweep(new_follower(old, 8, target=third), act, check_follower, seed=seed, chances=chances)


@pytest.mark.seeds
def test_cutting_with_a_drop_under_way(chances: int, seed: int) -> None:
    old = leader_of((0, 12))
    new = old.fork(9)
    new.fill(4, epoch=1, size=310)

    def prepare(disk: SimDisk) -> Follower:
        follower = new_follower(old, 12, target=new)(disk)
        follower.target_start = 5
        return follower

    def act(disk: SimDisk, follower: Follower) -> None:
        log = follower.log
        task = log.advance_log_start(5)
        follower.legal = [Legal(old, start, 9) for start in (0, 5)]
        log.truncate_to(9)
        follower.legal = [Legal(new, 5, 9)]
        follow(log, new)
        task.run()
        log.sync()
        follower.legal = [Legal(new, 5, new.end)]

    sweep(prepare, act, check_follower, seed=seed, chances=chances)


# -- beginning anew --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "start", [6, *(pytest.param(start, marks=pytest.mark.seeds) for start in (0, 10, 25))]
)
def test_beginning_anew(start: int, chances: int, seed: int) -> None:
    """Below, inside, at the end of and beyond what the follower holds."""
    old = leader_of((0, 5), (2, 5))
    new = Leader(base=start, chain=99 if start else 0)
    new.fill(5, epoch=1)

    def prepare(disk: SimDisk) -> Follower:
        follower = new_follower(old, 10, target=new)(disk)
        follower.target_start = start
        return follower

    def act(disk: SimDisk, follower: Follower) -> None:
        log = follower.log
        follower.legal = [Legal(old, 0, 0), Legal(new, start, start)]
        log.restart_at(start)
        follower.legal = [Legal(new, start, start)]
        copy(log, new.batches[:2])
        copy(log, new.batches[2:])
        log.sync()
        follower.legal = [Legal(new, start, new.end)]

    sweep(prepare, act, check_follower, seed=seed, chances=chances)


@pytest.mark.seeds
def test_beginning_inside_the_leaders_first_batch(chances: int, seed: int) -> None:
    old, new = leader_of((0, 3)), Leader(base=10, chain=99)
    new.append(*[b"x"] * 5, producer=(7, 0, 0))
    new.fill(4)

    def prepare(disk: SimDisk) -> Follower:
        follower = new_follower(old, 3, target=new)(disk)
        follower.target_start = 12
        return follower

    def act(disk: SimDisk, follower: Follower) -> None:
        log = follower.log
        follower.legal = [Legal(old, 0, 0), Legal(new, 12, 12)]
        log.restart_at(12)
        follower.legal = [Legal(new, 12, 12), Legal(new, 10, 10)]
        follow(log, new)
        log.sync()
        follower.legal = [Legal(new, 10, new.end), Legal(new, 12, new.end)]
        log.advance_log_start(12).run()
        follower.legal = [Legal(new, 12, new.end)]

    sweep(prepare, act, check_follower, seed=seed, chances=chances)


# -- leading ---------------------------------------------------------------------------------------


def test_beginning_an_epoch(chances: int, seed: int) -> None:
    """It is stored with its first batch, or not at all; and the records stay."""
    leader = leader_of((0, 3))

    def act(disk: SimDisk, follower: Follower) -> None:
        append(follower.log, b"x", leader_epoch=4)
        follower.log.sync()
        follower.legal = []  # it is durable

    def check(disk: SimDisk, follower: Follower) -> None:
        log = open_log(disk, SEGMENTED)
        assert stored(log)[:3] == leader.batches
        has_batch = log.log_end_offset == 4
        assert list(log.epochs) in ([(0, 0), (4, 3)], [(0, 0)])
        assert (4, 3) in log.epochs or not has_batch
        assert has_batch or follower.legal
        if has_batch:
            follower.legal = []
        log.abandon()

    sweep(new_follower(leader, 3), act, check, seed=seed, chances=chances)


# -- deleting everything ---------------------------------------------------------------------------


def test_the_chain_outlives_the_batches(chances: int, seed: int) -> None:
    leader = leader_of((2, 8))

    def act(disk: SimDisk, follower: Follower) -> None:
        follower.log.advance_log_start(8).run()

    def check(disk: SimDisk, follower: Follower) -> None:
        log = open_log(disk, SEGMENTED)
        assert (log.damage, log.log_end_offset) == ("", 8)
        assert (log.chain, log.chain_at(8), log.last_epoch) == (leader.chain, leader.chain, 2)
        assert stored(log) in ([], leader.batches)
        log.abandon()

    sweep(new_follower(leader, 8), act, check, seed=seed, chances=chances)


# -- damage ----------------------------------------------------------------------------------------


def test_noting_damage(chances: int, seed: int) -> None:
    """Once it is noted, the next start finds it too; and at no moment is anything cut."""
    leader = leader_of((0, 10))

    def prepare(disk: SimDisk) -> Follower:
        follower = new_follower(leader, 10)(disk)
        follower.log.close()
        disk.crash()
        for name in disk.list_dir(DIRECTORY):  # as the system does it, in time
            disk.open(f"{DIRECTORY}/{name}").sync()
        disk.sync_dir(DIRECTORY)
        path = files(disk, ".log")[1]
        disk.flip_bit(path, 8 * 500)
        return Follower(open_log(disk, SEGMENTED), leader)

    def act(disk: SimDisk, follower: Follower) -> None:
        assert follower.log.damage == ""  # an index vouches for it
        follower.log.note_damage("a bad batch", offset=4)
        follower.legal = [Legal(leader)]  # it was noted

    def check(disk: SimDisk, follower: Follower) -> None:
        log = open_log(disk, SEGMENTED)
        assert log.log_end_offset == 10
        held = [len(disk.read_file(path, bytes_max=limits.MIB)) for path in files(disk, ".log")]
        assert sum(held) == sum(map(len, leader.batches))
        if follower.legal or log.damage:
            assert "is corrupt at byte" in log.damage
            assert stored(log) == leader.batches[:4]
        log.abandon()

    sweep(prepare, act, check, seed=seed, chances=chances)
