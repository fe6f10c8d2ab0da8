"""A follower's log and the leaders that it follows, driven by Hypothesis.

Leaders come and go; each holds a prefix of what one before it held, and adds its own. The follower
does what followers do: it cuts what its leader does not have, begins anew below the leader's log
start, and copies. Whatever happens to its process and its disk, it holds a prefix of one leader.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    ChainMismatchError,
    CorruptBatchError,
    DiskFullError,
    StorageFailedError,
)
from raftlog.record import parse_header
from raftlog.storage import DeleteTask, Log, SyncTask, inspect
from raftlog.testing.disk import CHANGES, Fault, SimDisk
from tests.storage.harm import problems
from tests.storage.logs import DIRECTORY, append, stored
from tests.storage.model import BATCHES_REMEMBERED, as_model
from tests.storage.replicas import Leader, copy, everything

FULL = 1_000
fractions = st.integers(0, FULL)

configs = st.builds(
    TopicConfig,
    segment_bytes=st.sampled_from((500, 1_500, 5_000)),
    index_interval_bytes=st.sampled_from((0, 250, 1_000)),
    retention_ms=st.just(-1),
)


def end_of(batch: bytes) -> int:
    return parse_header(batch).next_offset


def between(first: int, last: int, fraction: int) -> int:
    return first + (last - first) * fraction // FULL


class ReplicaMachine(RuleBasedStateMachine):
    """``held`` is what the follower took over since it last began anew, at ``base``; also what it
    has deleted since."""

    @initialize(config=configs, seed=st.integers(0, 1 << 32))
    def start_machine(self, config: TopicConfig, seed: int) -> None:
        self.disk = SimDisk(Random(seed))
        self.config = config
        self.leader = Leader()
        self.leader_start = 0
        self.epoch = 0
        self.held: list[bytes] = []
        self.base = 0
        self.start = self.durable_start = 0
        self.durable_end = 0
        self.has_deleted = self.has_truncated = False
        self.had_power_cut = False
        # Of a write that failed: until the next sync, a power cut may bring some of it back.
        self.taken_back: list[bytes] = []
        self.task: SyncTask | None = None
        self.drops: list[DeleteTask] = []
        self.log = Log.open(self.disk, DIRECTORY, config)

    @property
    def end(self) -> int:
        return end_of(self.held[-1]) if self.held else self.base

    @property
    def is_full(self) -> bool:
        return self.disk.capacity_bytes is not None

    # -- the leader --------------------------------------------------------------------------------

    @rule(
        counts=st.lists(st.integers(1, 4), min_size=1, max_size=5),
        size=st.sampled_from((0, 30, 400)),
        producer_id=st.sampled_from((-1, 7, 8)),
    )
    def lead(self, counts: list[int], size: int, producer_id: int) -> None:
        for count in counts:
            producer = (producer_id, 0, self.leader.end) if producer_id >= 0 else (-1, -1, -1)
            self.leader.append(*[b"v" * size] * count, epoch=self.epoch, producer=producer)

    @rule(fraction=fractions, step=st.integers(1, 2))
    def fail_over(self, fraction: int, step: int) -> None:
        """The next leader has all that the last one had deleted, and some of the rest."""
        ends = [self.leader.base, *map(end_of, self.leader.batches)]
        kept = [end for end in ends if end >= self.leader_start]
        self.leader = self.leader.fork(kept[between(0, len(kept) - 1, fraction)])
        self.epoch += step

    @rule(fraction=fractions)
    def delete_on_the_leader(self, fraction: int) -> None:
        self.leader_start = between(self.leader_start, self.leader.end, fraction)

    # -- following ---------------------------------------------------------------------------------

    @precondition(lambda self: self.task is None)
    @rule(batches=st.integers(1, 12), at_once=st.integers(1, 6))
    def follow(self, batches: int, at_once: int) -> None:
        try:
            self.reconcile()
            self.copy(batches, at_once)
        except DiskFullError:  # not even room for the first checkpoint
            assert self.is_full

    @precondition(lambda self: self.is_reconciled())
    @rule(batches=st.integers(1, 12), at_once=st.integers(1, 6))
    def copy(self, batches: int, at_once: int) -> None:
        """May be done while a task is out."""
        missing = self.leader.after(max(self.end, self.leader_start))[:batches]
        for first in range(0, len(missing), at_once):
            piece = missing[first : first + at_once]
            begins = parse_header(piece[0]).base_offset
            if begins < self.end and self.task is not None:
                return
            with suppress(DiskFullError):
                copy(self.log, piece)
            if begins < self.base:
                self.began_anew(self.log.log_start_offset)
            self.held += [b for b in piece if end_of(b) <= self.log.log_end_offset]
            if self.end < end_of(piece[-1]):
                assert self.is_full
                self.taken_back = piece
                return

    def is_reconciled(self) -> bool:
        return self.end >= self.leader_start and self.common() == self.end

    def common(self) -> int | None:
        """Up to where the follower holds what the leader has."""
        theirs = {end_of(batch): batch for batch in self.leader.batches}
        same = (end_of(b) for b in reversed(self.held) if theirs.get(end_of(b)) == b)
        return next(same, self.base if self.agrees_at_base() else None)

    def agrees_at_base(self) -> bool:
        if self.base != self.end:
            return self.base <= self.leader.end
        chain, below = self.log.chain_at(self.base), self.leader.fork(self.base)
        is_known = below.end == self.base
        return self.base <= self.leader.end and (
            chain is None or (is_known and chain == below.chain)
        )

    def reconcile(self) -> None:
        common = self.common()
        if self.restarts(common):
            self.log.restart_at(self.leader_start)
            self.began_anew(self.leader_start)
        elif common is not None and common < self.end:
            self.log.truncate_to(common)
            self.cut(common)
            self.has_truncated = True

    def restarts(self, common: int | None) -> bool:
        return common is None or common < max(self.start, self.leader_start)

    def began_anew(self, offset: int) -> None:
        self.drops_are_done()
        self.held, self.base = [], offset
        self.start = self.durable_start = self.durable_end = offset
        self.has_deleted = self.has_truncated = False

    def cut(self, offset: int) -> None:
        self.held = [batch for batch in self.held if end_of(batch) <= offset]
        self.drops_are_done()
        self.start = min(self.start, self.end)
        self.durable_start = min(self.start, self.durable_start)
        self.durable_end = min(self.durable_end, self.end)

    def drops_are_done(self) -> None:
        """The log has run them itself; that they are run again changes nothing."""
        if self.drops:
            self.durable_start = max(d.log_start_offset for d in self.drops)
            changes = self.disk.changes
            for drop in self.drops:
                drop.run()
            assert self.disk.changes == changes
            self.drops = []

    @rule(batches=st.integers(1, 3))
    def copy_what_does_not_follow(self, batches: int) -> None:
        """Of a leader that holds something else below, or from elsewhere: nothing changes."""
        other = Leader(base=self.end, chain=self.log.chain ^ 1)
        other.fill(batches, epoch=self.epoch)
        before = everything(self.log)
        if self.log.chain_at(self.end) is not None:
            with pytest.raises(ChainMismatchError):
                copy(self.log, other.batches)
        other = Leader(base=self.end + 1, chain=self.log.chain)
        other.fill(batches, epoch=self.epoch)
        with pytest.raises(CorruptBatchError):
            copy(self.log, other.batches)
        assert everything(self.log) == before

    @precondition(lambda self: self.is_reconciled() and self.end == self.leader.end)
    @rule(step=st.integers(1, 2), appends=st.booleans())
    def take_over(self, step: int, appends: bool) -> None:
        """The follower is elected, and its log is the leader's."""
        if self.log.chain_at(self.end) is None:
            return  # others would have to begin anew
        self.epoch += step
        with suppress(DiskFullError, OSError):
            self.log._begin_epoch(self.epoch)
            assert self.log.leader_epoch == self.epoch
            if appends:
                append(self.log, b"mine", leader_epoch=self.epoch)
                self.held += stored(self.log, self.log.log_end_offset - 1)
                self.leader.batches.append(self.held[-1])

    # -- syncing and deleting ----------------------------------------------------------------------

    @precondition(lambda self: self.task is None)
    @rule(snapshot=st.booleans())
    def begin_sync(self, snapshot: bool) -> None:
        self.log.note_high_watermark(self.end)
        self.task = self.log.begin_sync(snapshot=snapshot)

    @precondition(lambda self: self.task is not None)
    @rule()
    def finish_sync(self) -> None:
        assert self.task is not None
        self.task.run()
        self.log.complete_sync(self.task)
        self.durable_end = max(self.durable_end, self.task.end_offset)
        self.task = None

    @rule(fraction=fractions)
    def delete(self, fraction: int) -> None:
        offset = between(self.start, max(self.log.durable_end_offset, self.start), fraction)
        self.drops.append(self.log.advance_log_start(offset))
        self.has_deleted |= offset > self.base
        self.start = offset

    @precondition(lambda self: self.drops)
    @rule(pick=st.integers(0, 9))
    def run_drop(self, pick: int) -> None:
        task = self.drops[pick % len(self.drops)]
        try:
            task.run()
        except OSError:  # no room for the first checkpoint
            assert self.is_full
            return
        self.drops.remove(task)
        self.durable_start = max(self.durable_start, task.log_start_offset)

    # -- the disk ----------------------------------------------------------------------------------

    @precondition(lambda self: not self.is_full)
    @rule(bytes_left=st.integers(0, 2_000))
    def fill_disk(self, bytes_left: int) -> None:
        self.disk.capacity_bytes = limits.GIB
        used = limits.GIB - self.disk.free_bytes(".")
        self.disk.capacity_bytes = used + bytes_left

    @precondition(lambda self: self.is_full)
    @rule()
    def make_room(self) -> None:
        self.disk.capacity_bytes = None

    @precondition(lambda self: self.task is None)
    @rule()
    def close(self) -> None:
        self.log.close()
        self.durable_end = self.end
        self.disk.crash()
        self.reopen(self.end)

    @rule()
    def kill(self) -> None:
        self.disk.crash()
        self.reopen(self.end)

    @rule()
    def power_cut(self) -> None:
        self.disk.power_cut()
        self.had_power_cut = True
        self.reopen(self.durable_end)

    @precondition(lambda self: self.task is None)
    @rule(skip=st.integers(0, 25), batches=st.integers(1, 9))
    def follow_on_a_bad_disk(self, skip: int, batches: int) -> None:
        """And then power goes: the follower is at some point of all this, whole."""
        common = self.common()
        missing = self.leader.after(max(self.end, self.leader_start))
        begins = parse_header(missing[0]).base_offset if missing else self.end
        anew = self.restarts(common) or begins < self.base
        before, base, start = list(self.held), self.base, self.durable_start
        end_min = 0 if anew else min(self.durable_end, common or 0)
        self.disk.faults.append(Fault(CHANGES, skip=skip))
        with suppress(StorageFailedError):
            self.follow(batches, 4)
        self.disk.faults.clear()
        self.disk.power_cut()
        self.had_power_cut = True
        log = Log.open(self.disk, DIRECTORY, self.config)
        log.abandon()
        self.disk.crash()
        found, end = stored(log), log.log_end_offset
        theirs = [batch for batch in self.leader.batches if anew or end_of(batch) > base]
        self.base, self.held = next(
            (where, held)
            for where, held in (
                (base, [batch for batch in before if end_of(batch) <= end]),
                (base, [batch for batch in theirs if end_of(batch) <= end]),
                (parse_header(found[0]).base_offset if found else end, found),
            )
            if (end_of(held[-1]) if held else where) == end
            and [batch for batch in held if end_of(batch) > log.log_start_offset] == found
        )
        # What a full disk had room for in part was taken back, and that may not have lasted.
        known = (before, theirs, [*before, *self.taken_back])
        assert any(is_part(found, batches) for batches in known)
        assert end_min <= end
        assert anew or log.log_start_offset >= min(start, end)
        self.has_deleted = True
        self.start = self.durable_start = log.log_start_offset
        self.reopen(end)

    def reopen(self, end_min: int) -> None:
        self.task, self.drops = None, []
        self.log = log = Log.open(self.disk, DIRECTORY, self.config)
        assert log.damage == ""
        assert self.durable_start <= log.log_start_offset <= self.start, (
            self.durable_start,
            log.log_start_offset,
            self.start,
        )
        if log.log_end_offset > self.end:
            self.held += [b for b in self.taken_back if end_of(b) > self.end]
        assert end_min <= log.log_end_offset <= self.end
        self.start = self.durable_start = log.log_start_offset
        self.held = [batch for batch in self.held if end_of(batch) <= log.log_end_offset]
        self.durable_end = self.end
        self.check_all()

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def the_ends_are_right(self) -> None:
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert self.durable_end <= log.durable_end_offset <= log.log_end_offset
        assert log.log_start_offset <= log.high_watermark <= log.log_end_offset
        if self.held:
            assert log.chain in (parse_header(self.held[-1]).chain, 0)

    def check_all(self) -> None:
        log = self.log
        live = [batch for batch in self.held if end_of(batch) > self.start]
        assert stored(log) == live
        headers = [parse_header(batch) for batch in live]
        for header in headers:
            assert log.epochs.epoch_at(header.base_offset) == header.leader_epoch
            assert log.chain_at(header.next_offset) == header.chain
        if headers:
            assert log.last_epoch == headers[-1].leader_epoch
        if not self.has_deleted:
            self.check_producers()
        if self.disk.exists(f"{DIRECTORY}/checkpoint"):
            assert problems(self.disk) <= ({inspect.INDEX} if self.had_power_cut else set())

    def check_producers(self) -> None:
        sent: dict[int, list[int]] = {}
        for header in map(parse_header, self.held):
            if header.producer_id >= 0:
                sent.setdefault(header.producer_id, []).append(header.base_offset)
        last = {id_: offsets[-BATCHES_REMEMBERED:] for id_, offsets in sent.items()}
        known = as_model(self.log.producers)
        found = {id_: [row.base_offset for row in p.sent] for id_, p in known.items()}
        if self.has_truncated:  # no producer sends again what is older than those that were removed
            assert found.keys() == last.keys()
            assert all(
                found[id_] == offsets[-len(found[id_]) :] != [] for id_, offsets in last.items()
            )
        else:
            assert found == last

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.abandon()


def is_part(found: list[bytes], batches: list[bytes]) -> bool:
    """Whether ``found`` are some of ``batches`` in a row."""
    if not found:
        return True
    at = batches.index(found[0]) if found[0] in batches else -1
    return at >= 0 and batches[at : at + len(found)] == found
