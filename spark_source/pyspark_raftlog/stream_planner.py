"""Planning of a stream's batches, from offsets and the state of the cluster. No I/O, no clock.

The sequence of one run of a query. The owner of the planner queries the cluster between the steps:

    initial offsets -> the first batch, which is empty -> end, end, end ...
                       |                                  |
                       v                                  v
              the checkpoint has them            each is the start of the next

- *Spark keeps only the end of each batch.* If a query restarts before its first batch is committed,
  Spark requests the start of that batch again, and "latest" is another offset by then. So the
  first batch ends where it starts: its end is the exact start of the second.
- *A new partition is added in the same way*: at its earliest offset, in a batch that reads none of
  it. So is a topic that was recreated with the same name (``failOnDataLoss=false``).
- *So a range is between two offsets of the same topic id*, and the same two offsets always produce
  the same ranges.
- *A partition that is no longer selected keeps its position* in the offset, so that no record is
  skipped or read twice when it is selected again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark_raftlog.offsets import StreamOffset
from pyspark_raftlog.planning import (
    NO_OFFSET,
    DataLossError,
    Loss,
    LossKind,
    PartitionNow,
    PartitionRange,
    backlog,
    is_enough,
    judge_position,
    limit_bytes,
    limit_offsets,
)
from raftlog.types import Offset, TopicPartition

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
