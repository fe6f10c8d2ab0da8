"""Planning of reads: ranges of tasks, sizes of batches, detection of lost records. Pure functions.

The caller queries the cluster, passes the time, and logs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, TypeAlias

from pyspark_raftlog.offsets import StreamOffset
from raftlog.errors import InvalidRequestError, RefusedError
from raftlog.types import Offset, TopicPartition

TASKS_GATHERED: Final = 32  # tasks of a plan at least, before small pieces share one
TASK_OFFSETS: Final = 100_000  # of the small pieces that share a task
TASKS_MAX: Final = 100_000  # pieces of one plan; Spark keeps each in the driver's memory
NO_OFFSET: Final = -1


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """The records of one partition from offset ``start`` to before ``end``.

    Compaction and retention may have left fewer than ``size``: a range ends by its offset, never by
    a count. ``topic_id`` is empty where it is not known.
    """

    topic: str
    topic_id: str
    partition: int
    start: Offset
    end: Offset

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """Number of offsets; 0 if there is nothing to read."""
        return max(0, self.end - self.start)


# -- splits ----------------------------------------------------------------------------------------


def split(
    ranges: Sequence[PartitionRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[PartitionRange]:
    """Split ranges into at least ``min_partitions`` pieces of at most ``max_records`` offsets.

    The rules are those of Spark's KafkaOffsetRangeCalculator: empty ranges are removed, a range is
    cut into pieces that differ by at most one offset, a large range into more pieces than a small
    one. Kafka's rounding returns about ``min_partitions``. Here each further piece goes to the
    range whose pieces are the largest (D'Hondt's method), so the number is exact, unless there are
    fewer offsets. The order of the ranges and of their offsets is kept.

    Raises ``InvalidRequestError`` when there would be more than ``TASKS_MAX`` pieces.
    """
    kept = [each for each in ranges if each.size]
    sizes = [each.size for each in kept]
    counts = [-(-size // max_records) if max_records else 1 for size in sizes]
    if sum(counts) > TASKS_MAX:
        raise InvalidRequestError(
            f"{sum(sizes)} offsets of {len(kept)} partitions make {sum(counts)} tasks with "
            f"maxRecordsPerPartition={max_records}: {TASKS_MAX} are allowed. Increase it, or "
            "read less at once"
        )
    _raise_to(min(min_partitions or 0, TASKS_MAX), counts, sizes)
    return [
        piece for whole, count in zip(kept, counts, strict=True) for piece in _cut(whole, count)
    ]


Task: TypeAlias = PartitionRange | tuple[PartitionRange, ...]  # the ranges that it reads


def plan_tasks(
    ranges: Sequence[PartitionRange],
    *,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[Task]:
    """Return what each task reads of ``ranges``. The arguments and errors are those of ``split``.

    A task costs Spark about as much as reading 100,000 records. So small pieces share one, up to so
    many offsets and ``max_records``, if the plan would have more than ``TASKS_GATHERED`` tasks, and
    ``min_partitions`` remain.
    """
    pieces = split(ranges, min_partitions=min_partitions, max_records=max_records)
    least = min_partitions or 0
    most = min(
        TASK_OFFSETS,
        sum(piece.size for piece in pieces) // max(TASKS_GATHERED, least),
        max_records or TASK_OFFSETS,
    )
    if len(pieces) <= TASKS_GATHERED:
        most = 0
    found: list[Task] = []
    gathered: list[PartitionRange] = []
    size = 0
    for number, piece in enumerate(pieces):
        is_spare = len(found) + len(pieces) - number >= least  # without a task for this piece
        if gathered and (size + piece.size > most or not is_spare):
            found.append(gathered[0] if len(gathered) == 1 else tuple(gathered))
            gathered, size = [], 0
        gathered.append(piece)
        size += piece.size
    if gathered:
        found.append(gathered[0] if len(gathered) == 1 else tuple(gathered))
    return found


def _raise_to(wanted: int, counts: list[int], sizes: list[int]) -> None:
    """Add each missing piece to the range whose pieces are the largest."""
    missing = wanted - sum(counts)
    if missing <= 0:
        return
    # Only ranges that can be cut further; equal ones in their order.
    heap = [
        (-sizes[index] / count, index) for index, count in enumerate(counts) if count < sizes[index]
    ]
    heapq.heapify(heap)
    while missing and heap:
        _, index = heap[0]
        counts[index] += 1
        missing -= 1
        if counts[index] < sizes[index]:
            heapq.heapreplace(heap, (-sizes[index] / counts[index], index))
        else:
            heapq.heappop(heap)


def _cut(whole: PartitionRange, count: int) -> list[PartitionRange]:
    edges = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [replace(whole, start=edges[index], end=edges[index + 1]) for index in range(count)]


# -- batch size ------------------------------------------------------------------------------------

Positions = Mapping[TopicPartition, Offset]


def backlog(start: Positions, end: Positions) -> int:
    """Return the number of offsets from ``start`` to ``end`` in all partitions of ``end``."""
    return sum(max(0, offset - start[tp]) for tp, offset in end.items())


def limit_offsets(start: Positions, end: Positions, max_offsets: int) -> dict[TopicPartition, int]:
    """Return end offsets at most ``max_offsets`` (at least 1) from ``start`` in total.

    A partition's share is proportional to its backlog, and at least one record, so that every
    partition with a backlog advances. Kafka's connector rounds a share below one up and others
    down. Here the larger partitions absorb the rounding error, so the limit is met exactly. Only
    if more than ``max_offsets`` partitions have a backlog, each of them gets one record.

    No result is above ``end`` or below ``start``. ``start`` has every partition of ``end``.
    """
    sizes = {tp: max(0, offset - start[tp]) for tp, offset in end.items()}
    if sum(sizes.values()) <= max_offsets:
        return {tp: start[tp] + size for tp, size in sizes.items()}
    shares = _shares(sizes, max_offsets)
    return {tp: start[tp] + shares[tp] for tp in sizes}


def _shares(sizes: Mapping[TopicPartition, int], wanted: int) -> dict[TopicPartition, int]:
    shares = {tp: min(size, 1) for tp, size in sizes.items()}
    # In ascending order of size: a share below one becomes one; the larger ones share the rest.
    large = sorted((tp for tp, size in sizes.items() if size), key=lambda tp: (sizes[tp], tp))
    if wanted <= len(large):
        return shares
    total = sum(sizes.values())
    first = 0
    while sizes[large[first]] * wanted < total:
        total -= sizes[large[first]]
        wanted -= 1
        first += 1
    for tp in large[first:]:
        shares[tp] = sizes[tp] * wanted // total
    left = wanted - sum(shares[tp] for tp in large[first:])
    by_remainder = sorted(large[first:], key=lambda tp: (-(sizes[tp] * wanted % total), tp))
    for tp in by_remainder[:left]:
        shares[tp] += 1
    return shares


def limit_bytes(
    start: Positions,
    end: Positions,
    max_bytes: int,
    bytes_per_record: Mapping[TopicPartition, float],
) -> dict[TopicPartition, Offset]:
    """Return end offsets with about ``max_bytes`` (at least 1) bytes from ``start`` in total.

    A partition's share is proportional to its backlog in bytes, by its estimate (see
    ``bytes_per_record_of``); a partition without an estimate uses the mean of the others. So all
    partitions process the same fraction of their backlog, rounded down, but at least one record.
    """
    sizes = {tp: max(0, offset - start[tp]) for tp, offset in end.items()}
    known = [each for tp in end if (each := bytes_per_record.get(tp, 0)) > 0]
    mean = sum(known) / len(known) if known else 1.0
    total = sum(size * (bytes_per_record.get(tp, 0) or mean) for tp, size in sizes.items())
    if total <= max_bytes:
        return {tp: start[tp] + size for tp, size in sizes.items()}
    part = max_bytes / total
    return {tp: start[tp] + min(size, max(int(size * part), 1)) for tp, size in sizes.items()}


def bytes_per_record_of(size_bytes: int, earliest: Offset, latest: Offset) -> float:
    """Return the mean stored bytes of a partition's records; 0 while it is empty."""
    return size_bytes / (latest - earliest) if size_bytes > 0 and latest > earliest else 0.0


def is_enough(backlog: int, since_s: float, min_offsets: int | None, max_delay_s: float) -> bool:
    """Return whether a batch is due: a backlog of ``min_offsets``, or any after ``max_delay_s``.

    ``since_s``: seconds since the previous batch. Without a backlog no batch is due.
    """
    return backlog > 0 and (backlog >= (min_offsets or 0) or since_s >= max_delay_s)


# -- data loss -------------------------------------------------------------------------------------


class LossKind(Enum):
    """Reasons why requested records are missing."""

    AGED_OUT = "aged out"
    TRUNCATED = "truncated"
    BEYOND_END = "beyond the end"
    RECREATED = "topic recreated"
    TOPIC_GONE = "topic gone"
    PARTITION_GONE = "partition gone"
    DAMAGED = "damaged"


class DataLossError(RefusedError):
    """Requested records are missing. The message contains the offsets, the cause and the remedy."""

    def __init__(self, message: str, kind: LossKind | None = None) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Loss:
    """Describe the loss for an error or a log line."""

    kind: LossKind
    what: str  # a sentence without a full stop
    going_on: str  # effect of failOnDataLoss=false

    def error(self) -> DataLossError:
        """For ``failOnDataLoss=true``."""
        return DataLossError(
            f"data loss ({self.kind.value}): {self.what}. To continue without these records, set "
            f"failOnDataLoss=false: {self.going_on}. {_ADVICE[self.kind]}",
            self.kind,
        )

    def warning(self) -> str:
        """For ``failOnDataLoss=false``: a line for the log."""
        return f"data loss ({self.kind.value}): {self.what}; failOnDataLoss=false: {self.going_on}"


_NEW_CHECKPOINT: Final = (
    "To read the topic as it is now, start the query with a new checkpointLocation and "
    "startingOffsets"
)
_ADVICE: Final[Mapping[LossKind, str]] = {
    LossKind.AGED_OUT: "To prevent this, read sooner, or increase the topic's retention.ms and "
    "retention.bytes",
    LossKind.TRUNCATED: "A healthy cluster never loses committed records: check the disks of its "
    f"brokers. {_NEW_CHECKPOINT}",
    LossKind.BEYOND_END: "Set offsets that exist, or latest",
    LossKind.RECREATED: _NEW_CHECKPOINT,
    LossKind.TOPIC_GONE: "Or create the topic again, and start the query with a new "
    "checkpointLocation",
    LossKind.PARTITION_GONE: _NEW_CHECKPOINT,
    LossKind.DAMAGED: "Check the replicas of the partition in the cluster",
}


@dataclass(frozen=True, slots=True)
class PartitionNow:
    """Current state of a partition, confirmed by a second query.

    ``topic_id`` is empty if the topic does not exist; ``earliest`` and ``latest`` (one after the
    offset of the last record) are ``NO_OFFSET`` if the partition does not exist.
    """

    topic_id: str = ""
    earliest: Offset = NO_OFFSET
    latest: Offset = NO_OFFSET


@dataclass(frozen=True, slots=True)
class Verdict:
    """Readable part of a range, which can be empty, and the loss, if there is one."""

    range: PartitionRange
    loss: Loss | None = None

    def allowed(self, *, fail_on_data_loss: bool) -> PartitionRange:
        """Return the range to read. With ``fail_on_data_loss``, a loss raises its error."""
        if self.loss is not None and fail_on_data_loss:
            raise self.loss.error()
        return self.range


def judge(wanted: PartitionRange, now: PartitionNow, *, asked_by: str = "") -> Verdict:
    """Return the part of a range that can still be read, and why the rest is missing.

    An empty range has no loss. A range without a topic id is not compared with the topic's id.
    ``asked_by``: the option that named these offsets (``endingOffsets``); then an end above the log
    end is reported as an error in the option, not as a truncated log.
    """
    if not wanted.size:
        return Verdict(wanted)
    gone = _gone(wanted, now)
    if gone is not None:
        return Verdict(replace(wanted, start=wanted.end), gone)
    start, end = max(wanted.start, now.earliest), min(wanted.end, now.latest)
    left = replace(wanted, start=min(start, wanted.end), end=max(min(start, wanted.end), end))
    if wanted.end > now.latest:
        return Verdict(left, _beyond(wanted, now, left, asked_by))
    if wanted.start < now.earliest:
        return Verdict(left, _aged_out(wanted, now, left))
    return Verdict(wanted)


def judge_position(
    tp: TopicPartition, position: Offset, topic_id: str, now: PartitionNow
) -> tuple[Offset | None, Loss | None]:
    """Return the offset at which a stream at ``position`` can continue, and the loss, if any.

    None: the partition does not exist any more. In a recreated topic, and if retention has deleted
    records that were not read: the earliest record. If the log end has decreased: that end.
    """
    here = PartitionRange(tp.topic, topic_id, tp.partition, position, position)
    gone = _gone(here, now)
    if gone is not None:
        return (None if now.latest == NO_OFFSET else now.earliest), gone
    if position > now.latest:
        left = replace(here, start=now.latest, end=now.latest)
        return now.latest, _beyond(here, now, left, "")
    if position < now.earliest:
        left = replace(here, start=now.earliest, end=now.earliest)
        return now.earliest, _aged_out(here, now, left)
    return position, None


def damaged(wanted: PartitionRange, problem: str) -> Loss:
    """Return the loss for a range that no replica can return intact. ``problem``: the cause."""
    return Loss(
        LossKind.DAMAGED,
        f"{_asked(wanted)}, but the stored batches are corrupt: {problem}",
        "unreadable records are skipped",
    )


def _gone(wanted: PartitionRange, now: PartitionNow) -> Loss | None:
    if not now.topic_id:
        return Loss(
            LossKind.TOPIC_GONE,
            f"{_asked(wanted)}, but the topic was deleted",
            "the topic is skipped",
        )
    if wanted.topic_id and wanted.topic_id != now.topic_id:
        there = (
            "the new one has no such partition"
            if now.latest == NO_OFFSET
            else f"the new one has offsets {_offsets(now.earliest, now.latest)}"
        )
        return Loss(
            LossKind.RECREATED,
            f"{_asked(wanted)}, but the topic was deleted and recreated since (its id was "
            f"{wanted.topic_id}, and is {now.topic_id}); {there}",
            # Of a planned range, the new topic has nothing; only a stream continues.
            "none of these records is read"
            if wanted.size
            else "it continues with the new topic's earliest record",
        )
    if now.latest == NO_OFFSET:
        return Loss(
            LossKind.PARTITION_GONE,
            f"{_asked(wanted)}, but the topic no longer has this partition",
            "the partition is skipped",
        )
    return None


def _aged_out(wanted: PartitionRange, now: PartitionNow, left: PartitionRange) -> Loss:
    lost_end = min(wanted.end, now.earliest) if wanted.size else now.earliest
    return Loss(
        LossKind.AGED_OUT,
        f"{_asked(wanted)}, but its log has offsets {_offsets(now.earliest, now.latest)}: "
        f"retention or an operator has deleted offsets {_offsets(wanted.start, lost_end)}",
        _reading(left, now),
    )


def _beyond(wanted: PartitionRange, now: PartitionNow, left: PartitionRange, asked_by: str) -> Loss:
    there = f"its log has offsets {_offsets(now.earliest, now.latest)}"
    if asked_by:
        return Loss(
            LossKind.BEYOND_END,
            f"{asked_by}: {_asked(wanted)}, but {there}",
            _reading(left, now),
        )
    return Loss(
        LossKind.TRUNCATED,
        f"{_asked(wanted)}, but {there}: its end decreased to {now.latest}",
        _reading(left, now),
    )


def _asked(wanted: PartitionRange) -> str:
    where = f"topic {wanted.topic!r} partition {wanted.partition}"
    if wanted.size:
        return f"{where}: requested offsets {_offsets(wanted.start, wanted.end)}"
    return f"{where}: requested offset {wanted.start} and later"


def _offsets(start: Offset, end: Offset) -> str:
    """Format a range for messages, with both ends included."""
    if end <= start:
        return f"none (it is empty, at {start})"
    return f"{start} to {end - 1}" if end - start > 1 else f"{start}"


def _reading(left: PartitionRange, now: PartitionNow) -> str:
    if left.size:
        return f"offsets {_offsets(left.start, left.end)} are read"
    return f"it continues from offset {min(max(left.start, now.earliest), now.latest)}"


# -- stream planner --------------------------------------------------------------------------------
#
# Planning of a stream's batches, from offsets and the state of the cluster. No I/O, no clock.
#
# The sequence of one run of a query. The owner of the planner queries the cluster between the
# steps:
#
#     initial offsets -> the first batch, which is empty -> end, end, end ...
#                        |                                  |
#                        v                                  v
#               the checkpoint has them            each is the start of the next
#
# - *Spark keeps only the end of each batch.* If a query restarts before its first batch is
# committed,   Spark requests the start of that batch again, and "latest" is another offset by then.
# So the   first batch ends where it starts: its end is the exact start of the second. - *A new
# partition is added in the same way*: at its earliest offset, in a batch that reads none of   it.
# So is a topic that was recreated with the same name (``failOnDataLoss=false``). - *So a range is
# between two offsets of the same topic id*, and the same two offsets always produce   the same
# ranges. - *A partition that is no longer selected keeps its position* in the offset, so that no
# record is   skipped or read twice when it is selected again.


LOSSES_NAMED_MAX: Final = 10

Sizes = Mapping[TopicPartition, float]  # the mean bytes of a partition's records


@dataclass(frozen=True, slots=True)
class View:
    """State of the selected partitions at one moment.

    ``latest``: the end of each, linearizable: one after the offset of the last committed record.
    Selected partitions that do not exist are missing. Invariant: ``topic_ids`` contains the topics
    of ``latest``.
    """

    topic_ids: Mapping[str, str]
    latest: Mapping[TopicPartition, Offset]

    def offset(self) -> StreamOffset:
        """The ends as an offset of the stream."""
        return StreamOffset(self.latest, self.topic_ids)


@dataclass(frozen=True, slots=True)
class Rate:
    """Maximum and minimum size of a batch. None: no such limit."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = math.inf  # after this time, ``min_offsets`` is ignored


UNLIMITED: Final = Rate()


@dataclass(frozen=True, slots=True)
class Step:
    """End of the next batch, and losses before its start.

    ``end`` equals the start if no batch is due.
    """

    end: StreamOffset
    losses: tuple[Loss, ...] = ()


@dataclass(slots=True)
class _Standing:
    """Next offset of each partition. ``first_left``: first readable offset of those to read."""

    positions: dict[TopicPartition, Offset] = field(default_factory=dict)
    first_left: dict[TopicPartition, Offset] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)


class StreamPlanner:
    """The decisions of one run of one streaming query.

    ``selects``: whether the options select a partition, existing or not.
    """

    def __init__(self, selects: Callable[[TopicPartition], bool]) -> None:
        self._selects = selects
        self._initial: StreamOffset | None = None
        self._has_batch = False  # the checkpoint has a batch, so the start is final
        self._target: View | None = None  # end of Trigger.AvailableNow
        self._last_rows_s: float | None = None  # when a batch with records was last planned

    # -- start and end of the query

    @property
    def initial(self) -> StreamOffset | None:
        """Start offsets of a new query. Spark queries twice: the first result is kept."""
        return self._initial

    def begin(self, initial: StreamOffset) -> StreamOffset:
        """Keep the start offsets of a new query."""
        self._initial = initial
        return initial

    def aim(self, target: View) -> None:
        """Read up to ``target`` only (Trigger.AvailableNow). Newer partitions are not read."""
        self._target = target

    def is_first(self, start: StreamOffset) -> bool:
        """Return whether a batch from ``start`` is the first, which ends where it starts."""
        return not self._has_batch and start == self._initial

    # -- the next batch

    def suspect(self, start: StreamOffset, view: View) -> list[TopicPartition]:
        """Return partitions of ``start`` that seem to have lost records: query them again."""
        return [
            tp
            for tp, position in start.positions.items()
            if self._selects(tp)
            and (not _is_same(start, view, tp) or view.latest.get(tp, NO_OFFSET) < position)
        ]

    def changed(self, start: StreamOffset, view: View) -> list[TopicPartition]:
        """Partitions whose earliest offset ``next_step`` has to know."""
        return [tp for tp in view.latest if not self._is_unchanged(tp, start, view)]

    def next_step(
        self,
        start: StreamOffset,
        view: View,
        earliest: Mapping[TopicPartition, Offset],
        *,
        rate: Rate = UNLIMITED,
        sizes: Sizes | None = None,
        now_s: float,
    ) -> Step:
        """End offsets of the batch from ``start``. ``now_s``: monotonic seconds."""
        standing = self._stand(start, view, earliest)
        positions = standing.positions
        ends = {tp: max(positions[tp], self._ceiling(tp, view)) for tp in standing.first_left}
        firsts = {tp: min(first, ends[tp]) for tp, first in standing.first_left.items()}
        waiting = backlog(firsts, ends)
        if waiting and not self._is_due(waiting, rate, now_s):
            ends = {}
        elif waiting:
            self._last_rows_s = now_s
            ends = _limited(firsts, ends, rate, sizes or {})
        ids = dict(start.topic_ids) | dict(view.topic_ids)
        return Step(StreamOffset(positions | ends, ids), tuple(standing.losses))

    def _stand(
        self, start: StreamOffset, view: View, earliest: Mapping[TopicPartition, Offset]
    ) -> _Standing:
        standing = _Standing()
        for tp, position in start.positions.items():
            if not self._selects(tp):
                known = start.topic_id(tp.topic)
                if not known or view.topic_ids.get(tp.topic, known) == known:
                    standing.positions[tp] = position
                continue
            if self._is_unchanged(tp, start, view):
                standing.positions[tp] = position
                continue
            now = _now(tp, view, earliest)
            there, loss = judge_position(tp, position, start.topic_id(tp.topic), now)
            if loss is not None:
                standing.losses.append(loss)
            if there is None or there == NO_OFFSET:
                continue
            if loss is None or loss.kind is LossKind.AGED_OUT:
                standing.positions[tp] = position  # ``judge`` of this range reports the loss
                standing.first_left[tp] = there
            else:
                standing.positions[tp] = there
        for tp in view.latest:
            is_known = tp in start.positions and _is_same(start, view, tp)
            if not is_known and tp not in standing.positions and self._may_enter(tp, view):
                standing.positions[tp] = earliest[tp]
        return standing

    def _is_unchanged(self, tp: TopicPartition, start: StreamOffset, view: View) -> bool:
        """Return whether the partition is unchanged since ``start``, without records to read."""
        return (
            tp in start.positions
            and _is_same(start, view, tp)
            and self._ceiling(tp, view) <= start.positions[tp] <= view.latest[tp]
        )

    def _may_enter(self, tp: TopicPartition, view: View) -> bool:
        """Return whether a partition that is not in ``start`` can be added."""
        target = self._target
        return target is None or (
            tp in target.latest and target.topic_ids[tp.topic] == view.topic_ids[tp.topic]
        )

    def _ceiling(self, tp: TopicPartition, view: View) -> Offset:
        """Return the end of a partition in this run; ``NO_OFFSET`` if the target excludes it."""
        if self._target is None:
            return view.latest[tp]
        if self._target.topic_ids.get(tp.topic) != view.topic_ids[tp.topic]:
            return NO_OFFSET
        return min(view.latest[tp], self._target.latest.get(tp, NO_OFFSET))

    def _is_due(self, waiting: int, rate: Rate, now_s: float) -> bool:
        """Return whether a batch of ``waiting`` offsets is due; the first one always is."""
        if self._target is not None or self._last_rows_s is None:
            return True
        since_s = now_s - self._last_rows_s
        return is_enough(waiting, since_s, rate.min_offsets, rate.max_delay_s)

    # -- one batch

    def ranges(self, start: StreamOffset, end: StreamOffset) -> list[PartitionRange]:
        """Return the ranges of a batch, by topic and partition; equal for equal offsets.

        Contains no range of a partition that only one offset has, or whose offset decreases.
        """
        self._has_batch = True
        return [
            PartitionRange(tp.topic, end.topic_id(tp.topic), tp.partition, first, last)
            for tp, last in sorted(end.positions.items())
            if start.topic_id(tp.topic) in {"", end.topic_id(tp.topic)}
            and (first := start.positions.get(tp, last)) < last
        ]


def error_of(losses: Sequence[Loss]) -> DataLossError:
    """Return one error for all losses, with the advice for the first."""
    first, others = losses[0], losses[1:]
    if not others:
        return first.error()
    named = [f"({number}) {loss.what}" for number, loss in enumerate(losses, start=1)]
    more = len(named) - LOSSES_NAMED_MAX
    text = "; ".join(named[:LOSSES_NAMED_MAX]) + (f"; and {more} more" if more > 0 else "")
    whole = Loss(first.kind, f"{len(losses)} partitions: {text}", first.going_on)
    return whole.error()


def _now(tp: TopicPartition, view: View, earliest: Mapping[TopicPartition, Offset]) -> PartitionNow:
    topic_id = view.topic_ids.get(tp.topic, "")
    if tp not in view.latest:
        return PartitionNow(topic_id)
    return PartitionNow(topic_id, earliest[tp], max(earliest[tp], view.latest[tp]))


def _is_same(start: StreamOffset, view: View, tp: TopicPartition) -> bool:
    """Return whether ``view`` has the partition with the topic id of ``start``."""
    return tp in view.latest and start.topic_id(tp.topic) in {"", view.topic_ids[tp.topic]}


def _limited(
    start: Mapping[TopicPartition, Offset],
    ends: Mapping[TopicPartition, Offset],
    rate: Rate,
    sizes: Sizes,
) -> dict[TopicPartition, Offset]:
    if rate.max_offsets is not None:
        return limit_offsets(start, ends, rate.max_offsets)
    if rate.max_bytes is not None:
        return limit_bytes(start, ends, rate.max_bytes, sizes)
    return dict(ends)
