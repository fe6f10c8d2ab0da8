"""Which records ``raftlog tail`` reads, and reading them: a span of offsets for each partition."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from raftlog import Consumer
from raftlog.cli import output
from raftlog.cli.formats import Formatter
from raftlog.cli.offsets import Bound, Extent, From, Offsets, confine, resolve
from raftlog.errors import BrokerUnavailableError, OffsetOutOfRangeError, UnknownPartitionError
from raftlog.types import ConsumerRecord, Offset, TopicPartition

POLL_MS: Final = 500
POLL_RECORDS_MAX: Final = 10_000
SOUGHT_MAX: Final = 10_000  # records that are looked for by reading them
SOUGHT_STEP: Final = 10  # so many times further back each time
SILENCE_S_MAX: Final = 60.0  # without -f every record asked for exists: no news is a fault


@dataclass(frozen=True)
class Span:
    """What to read of one partition: from ``start`` to before ``stop``; None is for ever."""

    start: Offset
    stop: Offset | None


def partitions_of(consumer: Consumer, topic: str, partition: int | None) -> list[TopicPartition]:
    numbers = sorted(consumer.partitions_for(topic))
    if partition is None:
        return [TopicPartition(topic, number) for number in numbers]
    if partition not in numbers:
        raise UnknownPartitionError(
            f"{topic} has no partition {partition}: it has 0 to {numbers[-1]}"
        )
    return [TopicPartition(topic, partition)]


def plan(
    consumer: Consumer, partitions: Sequence[TopicPartition], offsets: Offsets, *, follow: bool
) -> dict[TopicPartition, Span]:
    """Where to begin and end in each partition, by what it holds now."""
    begin, end = consumer.beginning_offsets(partitions), consumer.end_offsets(partitions)
    extents = {tp: Extent(begin[tp], end[tp]) for tp in partitions}
    starts = _resolve(consumer, offsets.start, extents)
    _check_in_range(offsets.start, extents)
    stops = _resolve(consumer, offsets.stop, extents) if offsets.stop else end
    return {
        tp: Span(
            start=confine(starts[tp], extent),
            stop=None if follow else confine(stops[tp], extent),
        )
        for tp, extent in extents.items()
    }


def with_last(
    consumer: Consumer, spans: dict[TopicPartition, Span], count: int
) -> dict[TopicPartition, Span]:
    """``spans``, longer where they hold less than ``count`` records and there are more before them.

    So it is with the last offsets of a compacted topic. Records are looked for further and further
    back; of more than ``SOUGHT_MAX``, the offsets are good enough.
    """
    if not 0 < count <= SOUGHT_MAX:
        return spans
    begin = consumer.beginning_offsets(list(spans))
    left, back = {tp for tp, span in spans.items() if span.start > begin[tp]}, count
    found = dict(spans)
    while left:
        offsets = _offsets(consumer, {tp: found[tp] for tp in left}, count)
        back *= SOUGHT_STEP
        for tp in list(left):
            if len(offsets[tp]) == count:
                found[tp] = Span(offsets[tp][0], found[tp].stop)
            if len(offsets[tp]) == count or found[tp].start <= begin[tp]:
                left.remove(tp)
            else:
                found[tp] = Span(max(begin[tp], (found[tp].stop or 0) - back), found[tp].stop)
    return found


def _offsets(
    consumer: Consumer, spans: dict[TopicPartition, Span], count: int
) -> dict[TopicPartition, deque[Offset]]:
    """The offsets of the last ``count`` records in each of the spans, which have an end."""
    offsets: dict[TopicPartition, deque[Offset]] = {tp: deque(maxlen=count) for tp in spans}
    consumer.assign(sorted(spans))
    for tp, span in spans.items():
        consumer.seek(tp, span.start)
    heard = time.monotonic()
    while not all(_is_done(consumer, tp, span) for tp, span in spans.items()):
        records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
        for record in records:
            if _wanted(record, spans, None):
                offsets[TopicPartition(record.topic, record.partition)].append(record.offset)
        now = time.monotonic()
        heard = now if records else heard
        if now - heard > SILENCE_S_MAX:
            break  # whoever reads them will say so
    return offsets


def _resolve(
    consumer: Consumer, bound: Bound, extents: dict[TopicPartition, Extent]
) -> dict[TopicPartition, Offset]:
    at_times: dict[TopicPartition, Offset] = {}
    if bound.kind is From.TIME:
        found = consumer.offsets_for_times(dict.fromkeys(extents, bound.number))
        at_times = {tp: hit.offset for tp, hit in found.items() if hit is not None}
    return {tp: resolve(bound, extent, at_time=at_times.get(tp)) for tp, extent in extents.items()}


def _check_in_range(start: Bound, extents: dict[TopicPartition, Extent]) -> None:
    """An offset that is in no partition is a mistake; one that is in some begins at those."""
    if start.kind is From.OFFSET and not any(
        extent.beginning <= start.number <= extent.end for extent in extents.values()
    ):
        ranges = ", ".join(f"{tp}: {at.beginning} to {at.end}" for tp, at in extents.items())
        raise OffsetOutOfRangeError(f"offset {start.number} is out of range ({ranges})")


def copy(
    consumer: Consumer,
    spans: dict[TopicPartition, Span],
    *,
    write: Formatter,
    pattern: re.Pattern[bytes] | None,
    count: int | None,
) -> None:
    """Print the records of ``spans``, at most ``count``."""
    left = {tp for tp, span in spans.items() if span.stop is None or span.start < span.stop}
    consumer.assign(sorted(left))
    for tp in left:
        consumer.seek(tp, spans[tp].start)
    heard = time.monotonic()
    while left and count != 0:
        records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
        chosen = [record for record in records if _wanted(record, spans, pattern)][:count]
        if chosen:
            output.write_bytes(b"".join(map(write, chosen)))
        if count is not None:
            count -= len(chosen)
        for tp in [tp for tp in left if _is_done(consumer, tp, spans[tp])]:
            left.remove(tp)
            consumer.pause([tp])
        now = time.monotonic()
        heard = now if records else heard
        if now - heard > SILENCE_S_MAX and all(spans[tp].stop is not None for tp in left):
            raise BrokerUnavailableError(
                f"{min(left)} gave no record for {SILENCE_S_MAX:g} s, though it has more: "
                "is its broker up?"
            )


def _is_done(consumer: Consumer, tp: TopicPartition, span: Span) -> bool:
    return span.stop is not None and consumer.position(tp) >= span.stop


def _wanted(
    record: ConsumerRecord,
    spans: dict[TopicPartition, Span],
    pattern: re.Pattern[bytes] | None,
) -> bool:
    stop = spans[TopicPartition(record.topic, record.partition)].stop
    return (stop is None or record.offset < stop) and (
        pattern is None or pattern.search(record.value or b"") is not None
    )
