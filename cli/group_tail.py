"""``raftlog tail --group``: reading as a member of a consumer group, which keeps the place.

What was printed is committed: after the next poll, and when the group is left, also by Ctrl-C and
SIGTERM. What was taken and not printed is not, so the next one who reads it prints it: at least
once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from raftlog import Consumer
from raftlog.cli import output
from raftlog.cli.formats import Formatter
from raftlog.cli.interrupts import HeldInterrupt
from raftlog.cli.reading import POLL_MS, POLL_RECORDS_MAX, SILENCE_S_MAX
from raftlog.errors import BrokerUnavailableError
from raftlog.types import Offset, TopicPartition

UNASSIGNED_S_MAX: Final = 15.0  # without -f: so long a member waits for a partition


def copy(
    consumer: Consumer,
    topic: str,
    partitions: Sequence[TopicPartition],
    *,
    is_member: bool,
    write: Formatter,
    pattern: re.Pattern[bytes] | None,
    count: int | None,
    follow: bool,
) -> KeyboardInterrupt | None:
    """Print what the group has not read yet, at most ``count`` records.

    What interrupted it, if all that was taken had been printed: then ``consumer`` is to be left as
    ever, which commits it. Else the interrupt is raised, and the rest is not committed.

    ``is_member``: share the topic's partitions with the group's other members; else read
    ``partitions`` and commit for the group. Without ``follow``, up to the ends that there are now.
    """
    ends = {} if follow else consumer.end_offsets(partitions)
    if is_member:
        consumer.subscribe([topic])
    else:
        consumer.assign(partitions)
    heard = time.monotonic()
    is_printed = True
    try:
        while count != 0:
            # No more than is printed: what is handed out counts as read.
            records_max = POLL_RECORDS_MAX if count is None else min(count, POLL_RECORDS_MAX)
            is_printed = False
            records = consumer.poll(timeout_ms=POLL_MS, max_records=records_max)
            chosen = [rec for rec in records if pattern is None or pattern.search(rec.value or b"")]
            # Who waits for the output, and interrupts at once, is faster than the write returns.
            with HeldInterrupt() as held:
                if chosen:
                    output.write_bytes(b"".join(map(write, chosen)))
                is_printed = True
            if held.has_come is not None:
                return held.has_come
            if count is not None:
                count -= len(chosen)
            now = time.monotonic()
            heard = now if records else heard
            if not follow and _is_over(consumer, ends, silent_s=now - heard):
                break
    except KeyboardInterrupt as interrupt:
        if not is_printed:
            raise
        return interrupt
    return None


def _is_over(consumer: Consumer, ends: Mapping[TopicPartition, Offset], *, silent_s: float) -> bool:
    """Whether all that there was is read; raises when the brokers have nothing more to say."""
    assigned = consumer.assignment()
    if not assigned:
        if silent_s > UNASSIGNED_S_MAX:
            output.note("raftlog: the group's other members read all partitions of the topic")
        return silent_s > UNASSIGNED_S_MAX
    left = unread(consumer, assigned, ends)
    if left and silent_s > SILENCE_S_MAX:
        raise BrokerUnavailableError(
            f"{left[0]} gave no record for {SILENCE_S_MAX:g} s, though it has more: "
            "is its broker up?"
        )
    return not left


def unread(
    consumer: Consumer,
    assigned: Collection[TopicPartition],
    ends: Mapping[TopicPartition, Offset],
) -> list[TopicPartition]:
    """The partitions that are not read to their ends; later partitions have none."""
    return [tp for tp in sorted(assigned) if consumer.position(tp) < ends.get(tp, 0)]
