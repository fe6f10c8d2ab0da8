"""A log and the model of it, driven side by side by Hypothesis: operations and what they must give.

On which disk, and what may happen to that, is for the subclasses to say.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import Disk
from raftlog.errors import (
    DiskFullError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from raftlog.record import validate
from raftlog.storage import Appended, DeleteTask, Log, SyncTask, inspect
from raftlog.storage.checkpoint import SLOT_BYTES, SLOTS
from tests.storage.logs import NOW_MS, batch_of, searched, stored
from tests.storage.model import (
    BATCHES_REMEMBERED,
    SEQUENCES,
    LogModel,
    as_model,
)

FULL = 1_000
fractions = st.integers(0, FULL)
SEGMENT_MS = 1_000_000

configs = st.builds(
    TopicConfig,
    segment_bytes=st.sampled_from((500, 1_500, 5_000)),
    segment_ms=st.just(SEGMENT_MS),
    index_interval_bytes=st.sampled_from((0, 250, 1_000)),
    flush_policy=st.sampled_from(("fsync", "fsync", "os")),
    message_timestamp_type=st.sampled_from(("CreateTime", "CreateTime", "LogAppendTime")),
    retention_ms=st.sampled_from((-1, -1, 800)),
    retention_bytes=st.sampled_from((-1, 0, 1_500)),
    cleanup_policy=st.sampled_from(("delete", "compact", "compact", "compact,delete")),
    delete_retention_ms=st.sampled_from((0, 1_000)),
    min_compaction_lag_ms=st.sampled_from((0, 0, 500)),
    max_compaction_lag_ms=st.sampled_from(((1 << 63) - 1, 2_000)),
    min_cleanable_dirty_ratio=st.sampled_from((0.0, 0.0, 0.5)),
)
keys = st.sampled_from((b"a", b"a", b"b", b"c", b"", None))


class LogMachine(RuleBasedStateMachine):
    """What holds on every disk. Subclasses say which one, and what else may happen to it."""

    disk: Disk
    directory: str

    def make_disk(self, seed: int) -> None:
        raise NotImplementedError

    @initialize(config=configs, seed=st.integers(0, 1 << 32))
    def start(self, config: TopicConfig, seed: int) -> None:
        self.make_disk(seed)
        self.config = config
        self.had_power_cut = False
        self.producers_may_be_lost = False
        self.now_ms = NOW_MS
        self.leader_epoch = 0
        self.model = LogModel()
        self.sent: dict[int, bytes] = {}  # batches as producers sent them, by their offsets
        self.task: SyncTask | None = None
        self.task_has_run = False
        self.drops: list[DeleteTask] = []
        self.start_compacting()
        self.log = self.open_log()

    def open_log(self) -> Log:
        return Log.open(self.disk, self.directory, self.config)

    # -- appending ---------------------------------------------------------------------------------

    @rule(
        values=st.lists(
            st.sampled_from((None, b"", b"x" * 30, b"y" * 400)), min_size=1, max_size=4
        ),
        keys=st.lists(keys, min_size=4, max_size=4),
        producer_id=st.sampled_from((-1, 7, 8)),
        how=st.sampled_from(("next", "next", "next", "again", "gap", "newer", "older")),
        age_ms=st.integers(-500, 1_500),
        pause_ms=st.integers(0, 400),
        pick=st.integers(0, 4),
    )
    def append(
        self,
        values: list[bytes | None],
        keys: list[bytes | None],
        producer_id: int,
        how: str,
        age_ms: int,
        pause_ms: int,
        pick: int,
    ) -> None:
        self.now_ms += pause_ms
        known = self.model.producers().get(producer_id)
        epoch, sequence = 0, 0
        expected: type[Exception] | None = None
        earlier = None
        if known is not None:
            epoch = known.epoch
            sequence = (known.sent[-1].last_sequence + 1) % SEQUENCES
            if how == "again":
                earlier = known.sent[pick % len(known.sent)]
            elif how == "newer":
                epoch, sequence = epoch + 1, 0
            elif how == "older" and epoch > 0:
                epoch, expected = epoch - 1, ProducerFencedError
        if how == "gap" and producer_id >= 0:
            sequence, expected = sequence + 1, OutOfOrderSequenceError
        producer = (producer_id, epoch, sequence) if producer_id >= 0 else (-1, -1, -1)
        timestamps = [self.now_ms - age_ms + 10 * number for number in range(len(values))]
        batch = batch_of(
            values, keys=keys[: len(values)], timestamps_ms=timestamps, producer=producer
        )
        if earlier is not None:
            batch = self.sent[earlier.base_offset]
        before = self.log.log_end_offset
        try:
            appended = self.append_to_log(batch)
        except DiskFullError:
            assert self.is_full
            assert self.log.log_end_offset == before
            return
        except (ProducerFencedError, OutOfOrderSequenceError) as error:
            raised = type(error)
        else:
            raised = None
        # A gap of an unknown producer raises a subclass.
        assert issubclass(raised or type(None), expected or type(None))
        if raised is not None:
            return
        if earlier is not None:
            assert appended == Appended(*earlier[2:], duplicate=True)
            return
        self.note(batch)
        self.sent[before] = batch
        assert appended == Appended(before, self.model.end - 1, self.now_ms)

    def append_to_log(self, batch: bytes) -> Appended:
        header = validate(batch)
        return self.log.append(batch, header, leader_epoch=self.leader_epoch, now_ms=self.now_ms)

    def note(self, batch: bytes) -> None:
        self.model.append(
            batch,
            leader_epoch=self.leader_epoch,
            now_ms=self.now_ms,
            log_append_time=self.config.message_timestamp_type == "LogAppendTime",
        )

    @property
    def is_full(self) -> bool:
        return False

    @rule(step=st.integers(1, 3))
    def elect(self, step: int) -> None:
        self.leader_epoch += step

    def lacks_checkpoint(self) -> bool:
        """A full disk has no room for the first one, nor for another where a bad disk lost it."""
        path = f"{self.directory}/checkpoint"
        return self.is_full and (
            not self.disk.exists(path)
            or len(self.disk.read_file(path, bytes_max=limits.MIB)) < SLOTS * SLOT_BYTES
        )

    @rule()
    def roll(self) -> None:
        with suppress(DiskFullError):
            self.log.roll_if_due(now_ms=self.now_ms + SEGMENT_MS)

    # -- syncing -----------------------------------------------------------------------------------

    @precondition(lambda self: self.task is None)
    @rule(snapshot=st.booleans())
    def begin_sync(self, snapshot: bool) -> None:
        self.task = self.log.begin_sync(snapshot=snapshot)
        self.task_has_run = False

    @precondition(lambda self: self.task is not None and not self.task_has_run)
    @rule()
    def run_sync(self) -> None:
        assert self.task is not None
        self.task.run()
        self.task_has_run = True

    @precondition(lambda self: self.task is not None and self.task_has_run)
    @rule()
    def complete_sync(self) -> None:
        assert self.task is not None
        self.log.complete_sync(self.task)
        self.model.durable_end = max(self.model.durable_end, self.task.end_offset)
        self.task = None

    @precondition(lambda self: self.task is None)
    @rule()
    def sync(self) -> None:
        self.log.sync()
        self.model.durable_end = self.model.end

    # -- reading -----------------------------------------------------------------------------------

    @rule(first=fractions, last=fractions, bytes_max=st.integers(0, 4_000))
    def read(self, first: int, last: int, bytes_max: int) -> None:
        start = self.offset_between(self.model.start, self.model.end, first)
        end = self.offset_between(start, self.model.end, last)
        parts = self.log.read(start_offset=start, end_offset=end, bytes_max=bytes_max)
        assert b"".join(parts) == b"".join(self.model.read(start, end, bytes_max))
        assert all(parts)

    @rule()
    def read_outside(self) -> None:
        for offset in (self.model.start - 1, self.model.end + 1):
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(start_offset=offset, end_offset=self.model.end, bytes_max=1)

    @rule(age_ms=st.integers(-700, 3_000), last=fractions)
    def find_timestamp(self, age_ms: int, last: int) -> None:
        end = self.offset_between(self.model.start, self.model.end, last)
        timestamp_ms = self.now_ms - age_ms
        found = searched(self.log.offset_for_timestamp(timestamp_ms, end_offset=end))
        assert found == self.model.find_timestamp(timestamp_ms, end)

    @staticmethod
    def offset_between(first: int, last: int, fraction: int) -> int:
        return first + (last - first) * fraction // FULL

    # -- dropping and cutting ----------------------------------------------------------------------

    @rule(fraction=fractions)
    def advance_log_start(self, fraction: int) -> None:
        end = self.log.acknowledged_end_offset
        offset = self.offset_between(self.model.start, max(end, self.model.start), fraction)
        self.drops.append(self.log.advance_log_start(offset))
        self.model.start = offset

    @rule()
    def apply_retention(self) -> None:
        watermark = max(self.log.acknowledged_end_offset, self.model.start)
        task = self.log.apply_retention(now_ms=self.now_ms, high_watermark=watermark)
        if task is not None:
            self.drops.append(task)
            self.check_retention(task.log_start_offset, watermark)
            self.model.start = task.log_start_offset

    def check_retention(self, start: int, watermark: int) -> None:
        """What went had served its time, or stood in the way of the size."""
        assert self.model.start <= start <= watermark
        assert self.config.is_deleted_by_age or start == self.model.start
        kept = [batch for batch in self.model.batches if batch.end > start]
        gone = [b for b in self.model.live() if b.end <= start and b.base >= self.model.start]
        if self.config.retention_bytes < 0:
            assert all(
                min(b.header.newest_timestamp_ms, b.header.append_timestamp)
                < self.now_ms - self.config.retention_ms
                for b in gone
            )
        if self.config.retention_ms < 0 and gone:
            assert sum(len(b.data) for b in kept) >= self.config.retention_bytes >= 0

    @precondition(lambda self: self.drops)
    @rule(pick=st.integers(0, 9))
    def run_drop(self, pick: int) -> None:
        if self.lacks_checkpoint():
            return
        task = self.drops.pop(pick % len(self.drops))
        task.run()
        self.model.durable_start = max(self.model.durable_start, task.log_start_offset)

    @precondition(lambda self: self.task is None)
    @rule(fraction=fractions)
    def truncate(self, fraction: int) -> None:
        if self.lacks_checkpoint():
            return
        offset = self.offset_between(self.model.start, self.model.end, fraction)
        forgets = self.truncation_forgets(offset)
        self.log.truncate_to(offset)
        if offset == self.model.end:
            return  # nothing is cut, and no drop is done for it: what it drops may come back
        # Drops that were out are done by then; running them later does nothing more.
        starts = [drop.log_start_offset for drop in self.drops]
        self.model.durable_start = max([self.model.durable_start, *starts])
        self.model.cut(offset)
        self.model.durable_start = min(self.model.durable_start, self.model.start)
        self.cut_clean()
        for drop in self.drops:
            drop.run()
        self.drops.clear()
        if forgets:
            self.adopt_producers()
        assert as_model(self.log.producers) == self.model.producers()
        self.producers_may_be_lost |= self.is_full
        self.settle()

    def truncation_forgets(self, offset: int) -> bool:
        """Whether batches that are to be cut had made the log forget earlier ones for good.

        It remembers a few batches of one epoch; those before may be deleted by now, or compacted.
        """
        cut = [header for header in self.model.history if header.next_offset > offset]
        counts = Counter(header.producer_id for header in cut)
        return (
            offset < self.clean_end
            or max(counts.values(), default=0) >= BATCHES_REMEMBERED
            or any(header.producer_epoch > 0 and header.base_sequence == 0 for header in cut)
            or any(header.base_offset < self.model.producers_from for header in cut)
        )

    def settle(self) -> None:
        """A log without a batch has forgotten which chain it follows."""
        model = self.model
        if not model.live():
            # A compacted batch may begin among the deleted records.
            model.start = end = min(model.end, self.log.log_end_offset)
            model.durable_start = min(model.durable_start, end)
            model.durable_end = min(model.durable_end, end)
            model.forget_batches(chain=self.log.chain, producers=model.producers())
        self.leader_epoch = max(self.leader_epoch, self.log.leader_epoch)

    # -- starting again ----------------------------------------------------------------------------

    @precondition(lambda self: self.task is None)
    @rule()
    def close(self) -> None:
        self.log.close()
        self.model.durable_end = self.model.end
        self.reopen(power_cut=False)

    def kill(self) -> None:
        self.log.abandon()

    @rule()
    def crash(self) -> None:
        self.kill()
        self.reopen(power_cut=False)

    def reopen(self, *, power_cut: bool) -> None:
        """A kill keeps all, a power cut what was synced."""
        model, self.task, self.drops = self.model, None, []
        self.had_power_cut |= power_cut
        self.log = log = self.open_log()
        assert log.damage == ""
        self.adopt_compaction()
        assert model.durable_start <= log.log_start_offset <= model.start
        assert log.log_end_offset >= (model.durable_end if power_cut else model.end)
        # Records that were deleted before they were synced take what they told of producers along.
        self.producers_may_be_lost |= power_cut and log.log_start_offset > model.durable_end
        model.start = model.durable_start = log.log_start_offset
        if log.log_end_offset in model.boundaries():
            model.cut(log.log_end_offset)
        else:
            assert self.config.flush_policy == "os"
            assert log.log_end_offset == model.start
            model.keep_up_to(model.start)
        model.durable_end = log.log_end_offset
        if self.producers_may_be_lost:
            self.adopt_producers()
        if log.log_start_offset == log.log_end_offset:
            model.forget_batches(chain=log.chain, producers=model.producers())
        self.leader_epoch = max(self.leader_epoch, log.leader_epoch)
        self.check_all()

    # -- compaction: see compacting_machine --------------------------------------------------------

    clean_end = 0

    def start_compacting(self) -> None: ...

    def adopt_compaction(self) -> None:
        """The process that ended may have left one that this start has carried out."""

    def cut_clean(self) -> None:
        """The log was cut."""

    # -- starting again, once more -----------------------------------------------------------------

    def adopt_producers(self) -> None:
        """What the log knows of producers now is as good as any."""
        self.model.producers_before = as_model(self.log.producers)
        self.model.producers_from = self.model.end
        self.producers_may_be_lost = False

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def offsets_are_the_models(self) -> None:
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert model.durable_end <= log.durable_end_offset <= log.log_end_offset
        assert log.chain == model.chain

    def check_all(self) -> None:
        log, model = self.log, self.model
        live = model.live()
        assert stored(log) == [batch.data for batch in live]
        for batch in live:
            assert log.epochs.epoch_at(batch.base) == batch.header.leader_epoch
            assert log.epochs.epoch_at(batch.end - 1) == batch.header.leader_epoch
        assert log.leader_epoch >= max((b.header.leader_epoch for b in live), default=-1)
        assert as_model(log.producers) == model.producers()
        if self.disk.exists(f"{self.directory}/checkpoint"):
            (report,) = inspect.verify(self.disk, self.directory)
            # An index is not synced: a power cut may tear it, and the next start rebuilds it.
            kinds = {problem.kind for problem in report.problems}
            assert kinds <= ({inspect.INDEX} if self.had_power_cut else set())
            assert report.log_end_offset == model.end

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.abandon()
