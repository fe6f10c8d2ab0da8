"""The part of the log's machine that compacts: tasks in every state, while all else goes on.

What is on the disk after a crash is what was there, or what a task had planned: the next start
says which, and the model goes on with that.
"""

from __future__ import annotations

import errno
from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from raftlog import limits
from raftlog.disk import NO_ROOM
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.storage.compaction import CLEANED_SUFFIX, CompactionTask
from raftlog.storage.segment import file_name
from raftlog.testing.disk import CHANGES, Fault, SimDisk, Stopped
from tests.storage.compacted import (
    Terms,
    all_batches,
    check_pass,
    newest_of_producers,
    segment_batches,
)
from tests.storage.log_machine import LogMachine, keys
from tests.storage.logs import batch_of, stored
from tests.storage.model import StoredBatch

memories = st.sampled_from((1, 4, 1_000))  # keys
sizes = st.sampled_from((0, 1_000, limits.GIB))


class CompactingMachine(LogMachine):
    """A log whose segments are compacted now and then."""

    compaction: CompactionTask | None = None
    has_run = False
    # What a task has made and, perhaps, planned: by the offset where it begins.
    cleaned: dict[int, list[StoredBatch]]
    forgotten: list[StoredBatch]  # by the model, for they are deleted; and still in a segment
    # Since when which part of the log is clean, as the model sees it: the earliest it could be.
    clean: list[tuple[int, int]]
    began_ms = durable_start = 0  # of the pass: when, and where the log began for sure

    def start_compacting(self) -> None:
        self.cleaned, self.clean, self.forgotten = {}, [], []

    @property
    def clean_end(self) -> int:  # type: ignore[override]
        return self.clean[-1][0] if self.clean else 0

    # -- steps -------------------------------------------------------------------------------------

    @rule(
        rows=st.lists(st.tuples(keys, st.sampled_from((None, b"1", b"2" * 150))), max_size=30),
        batch_size=st.integers(1, 5),
        pause_ms=st.sampled_from((0, 100)),
    )
    def append_many(
        self, rows: list[tuple[bytes | None, bytes | None]], batch_size: int, pause_ms: int
    ) -> None:
        for first in range(0, len(rows), batch_size):
            some_keys, values = zip(*rows[first : first + batch_size], strict=True)
            self.now_ms += pause_ms
            batch = batch_of(values, keys=some_keys, timestamps_ms=self.now_ms)
            with suppress(DiskFullError):
                self.append_to_log(batch)
                self.note(batch)

    @precondition(lambda self: self.compaction is None and self.task is None)
    @rule(
        memory_keys=memories,
        pause_ms=st.sampled_from((0, 300, 1_500)),
        task_bytes=sizes,
    )
    def begin_compaction(self, memory_keys: int, pause_ms: int, task_bytes: int) -> None:
        self.roll()  # or there is seldom anything to do
        self.sync()
        self.now_ms += pause_ms
        watermark = max(self.log.acknowledged_end_offset, self.model.start)
        self.forget_plans()
        self.compaction = self.log.begin_compaction(
            now_ms=self.now_ms,
            high_watermark=watermark,
            chance_seed=7,
            memory_bytes=32 * memory_keys,
            task_bytes=task_bytes,
        )
        self.has_run = False
        base = self.model.batches[0].base if self.model.batches else self.model.end
        self.forgotten = [batch for batch in all_batches(self.log) if batch.end <= base]
        if self.compaction is not None:
            assert self.config.is_compacted
            work = self.compaction.work
            if work.began_ms == self.now_ms:
                self.began_ms, self.durable_start = self.now_ms, self.model.durable_start
            assert work.limit <= min(watermark, self.log.durable_end_offset)
            assert work.limit <= self.log._segments[-1].base_offset
            self.check_lag(work.began_ms, work.limit, max(work.clean_end, self.model.start))

    def check_lag(self, began_ms: int, limit: int, clean_end: int) -> None:
        young = [
            header
            for header in self.model.history
            if clean_end < header.next_offset <= limit
            and header.append_timestamp > began_ms - self.config.min_compaction_lag_ms
        ]
        assert not young or not self.config.min_compaction_lag_ms

    @precondition(lambda self: self.compaction is not None and not self.has_run)
    @rule()
    def run_compaction(self) -> None:
        task = self.compaction
        assert task is not None
        try:
            task.run()
        except OSError as error:
            if error.errno not in NO_ROOM or not self.is_full:
                raise
            self.log.abandon_compaction(task)
            self.compaction = None
            assert self.log._failure is None
            self.check_nothing_changed()
            return
        self.has_run = True
        self.note_plan(task)

    @precondition(lambda self: self.compaction is None and self.task is None)
    @rule(
        memory_keys=memories,
        pause_ms=st.sampled_from((0, 300, 1_500)),
        task_bytes=sizes,
    )
    def compact(self, memory_keys: int, pause_ms: int, task_bytes: int) -> None:
        """The whole of a pass, if no more is in the way."""
        for _ in range(20):
            self.begin_compaction(memory_keys, pause_ms, task_bytes)
            if self.compaction is not None:
                self.run_compaction()
            if self.compaction is None:
                break
            self.complete_compaction()

    @precondition(lambda self: self.compaction is not None and self.task is None)
    @precondition(lambda self: self.has_run)
    @rule()
    def complete_compaction(self) -> None:
        task = self.compaction
        assert task is not None
        self.log.complete_compaction(task)
        self.compaction = None
        if task.is_stale:
            self.forget_plans()
            self.check_nothing_changed()
            return
        self.adopt(self.with_cleaned())
        self.check_all()

    @precondition(lambda self: self.compaction is not None)
    @rule()
    def abandon_compaction(self) -> None:
        assert self.compaction is not None
        self.log.abandon_compaction(self.compaction)
        self.compaction = None
        self.forget_plans()
        self.check_nothing_changed()

    # -- what they may do --------------------------------------------------------------------------

    def check_nothing_changed(self) -> None:
        assert stored(self.log) == [batch.data for batch in self.model.live()]
        names = self.disk.list_dir(self.directory)
        assert not [name for name in names if name.endswith(CLEANED_SUFFIX)]

    def forget_plans(self) -> None:
        self.cleaned, self.forgotten = {}, []

    def note_plan(self, task: CompactionTask) -> None:
        """Take down what the cleaned files hold, and see that they may."""
        self.cleaned = {}
        work = task.work
        if task.is_stale:
            return
        self.check_tombstones(work.due_below)
        if work.is_done and work.end_offset > self.clean_end:
            self.clean.append((work.end_offset, work.began_ms))
        if not task.cleaned:
            return
        for swap, segment in task.cleaned:
            path = f"{self.directory}/{file_name(swap.base_offset, CLEANED_SUFFIX)}"
            segment.path, path = path, segment.path
            self.cleaned[segment.base_offset] = segment_batches(segment)
            segment.path = path
        first = self.log._segments[0].base_offset
        known = [*self.forgotten, *self.model.batches]
        before = [batch for batch in known if batch.end > first]
        after = [batch for batch in self.with_cleaned() if batch.end > first]
        terms = Terms(work.limit, work.due_below, self.durable_start)
        check_pass(before, after, terms, end=work.end_offset if work.is_done else None)
        self.check_producers(after)

    def check_tombstones(self, due_below: int) -> None:
        """What is below has been clean for long enough."""
        start = 0
        for end, cleaned_at_ms in self.clean:
            if start < due_below:
                assert cleaned_at_ms <= self.began_ms - self.config.delete_retention_ms
            start = end
        assert due_below <= start

    def check_producers(self, after: list[StoredBatch]) -> None:
        """A replica that has only the batches knows what each producer wrote last."""
        first = after[0].base
        known = self.log.producers.newest_base_offsets()
        noted = newest_of_producers([batch.header for batch in after])
        history = [h for h in self.model.history if h.base_offset >= first]
        for producer, newest in newest_of_producers(history).items():
            header = next(h for h in reversed(history) if h.producer_id == producer)
            if header.base_offset in known:
                assert noted[producer] == newest

    def with_cleaned(self) -> list[StoredBatch]:
        """The model's batches, with the cleaned ones in place of those that they stand for."""
        made = [batch for batches in self.cleaned.values() for batch in batches]
        ranges = [(batches[0].base, batches[-1].end) for batches in self.cleaned.values()]
        kept = [
            batch
            for batch in (*self.forgotten, *self.model.batches)
            if not any(first <= batch.base < end for first, end in ranges)
        ]
        return sorted([*kept, *made], key=lambda batch: batch.base)

    def adopt(self, batches: list[StoredBatch]) -> None:
        self.model.batches = batches
        self.forget_plans()

    # -- what happens to the log meanwhile ---------------------------------------------------------

    def adopt_compaction(self) -> None:
        """What was planned, durably, is carried out by the next start."""
        task, self.compaction = self.compaction, None
        log = self.log
        names = self.disk.list_dir(self.directory)
        assert not [name for name in names if name.endswith(CLEANED_SUFFIX)]
        found = all_batches(log)
        if self.cleaned and found:
            first, end = log._segments[0].base_offset, log.log_end_offset
            planned = self.with_cleaned()
            if found == [b for b in planned if b.end > first and b.end <= end]:
                self.model.batches = planned
            else:
                assert task is None or not task.is_planned or task.is_stale
        self.forget_plans()

    def cut_clean(self) -> None:
        self.forget_plans()
        self.clean = [(min(end, self.model.end), at_ms) for end, at_ms in self.clean]


class CompactingOnSimDisk(CompactingMachine):
    """Disks that fail, and processes that end, in the middle of a compaction."""

    disk: SimDisk

    def end_process(self, *, power_cut: bool) -> None:
        raise NotImplementedError

    def fault(self, skip: int, *, stops: bool) -> None:
        self.disk.faults.append(Fault(CHANGES, skip=skip, error=None if stops else errno.EIO))

    @precondition(lambda self: self.compaction is not None and not self.has_run)
    @rule(skip=st.integers(0, 14), stops=st.booleans(), power_cut=st.booleans())
    def run_compaction_on_a_bad_disk(self, skip: int, stops: bool, power_cut: bool) -> None:
        task = self.compaction
        assert task is not None
        self.fault(skip, stops=stops)
        with suppress(OSError, Stopped):
            task.run()
        self.disk.faults.clear()
        if isinstance(task.error, OSError) and task.error.errno not in NO_ROOM:
            self.log.abandon_compaction(task)
            assert self.log._failure is not None
        self.disk.crash()
        paths = [self.path(swap.base_offset) for swap, _segment in task.cleaned]
        if all(map(self.disk.exists, paths)):
            self.note_plan(task)
        self.end_process(power_cut=power_cut)

    def path(self, base_offset: int) -> str:
        return f"{self.directory}/{file_name(base_offset, CLEANED_SUFFIX)}"

    @precondition(lambda self: self.compaction is not None and self.task is None)
    @precondition(lambda self: self.has_run)
    @rule(skip=st.integers(0, 6), stops=st.booleans(), power_cut=st.booleans())
    def complete_compaction_on_a_bad_disk(self, skip: int, stops: bool, power_cut: bool) -> None:
        assert self.compaction is not None
        self.fault(skip, stops=stops)
        with suppress(StorageFailedError, Stopped):
            self.log.complete_compaction(self.compaction)
        self.end_process(power_cut=power_cut)
