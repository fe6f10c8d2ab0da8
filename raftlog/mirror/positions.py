"""Position from which the copy of a partition continues, or the reason why it must not. Pure.

The end of the copy is the position: the copy has the same offsets as its source. The state of the
mirror's producer proves that no other producer has written. The last records of both logs,
compared, prove that the copy belongs to this source, and replace an expired producer state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from raftlog.client.consumer_core import Checked
from raftlog.protocol.produce import DescribedProducer
from raftlog.record import decode_records
from raftlog.types import ConsumerRecord, Offset


@dataclass(frozen=True, slots=True)
class Place:
    """State of a partition and its copy, queried in the order of the fields.

    ``end``: end offset of the copy. ``written``: state of the mirror's producer in it.
    """

    start: Offset
    end: Offset
    written: DescribedProducer
    source_start: Offset
    source_end: Offset

    @property
    def is_known(self) -> bool:
        return self.written.last_offset >= 0

    @property
    def position(self) -> Offset:
        """The next offset to copy. The state is younger than ``end``."""
        return max(self.end, self.written.last_offset + 1)

    @property
    def is_empty(self) -> bool:
        """True if the copy has no records, or if all are deleted."""
        return self.start == self.position

    @property
    def is_comparable(self) -> bool:
        """True if both logs have the last copied offset."""
        return not self.is_empty and self.position > self.source_start


class Sequence(NamedTuple):
    """Epoch of the mirror's producer, and the number of offsets that it has written in it."""

    epoch: int
    offsets: int


def sequence_of(place: Place) -> Sequence:
    if not place.is_known:
        return Sequence(0, 0)
    return Sequence(place.written.producer_epoch, place.written.last_sequence + 1)


def refusal(place: Place) -> str:
    """Return why the copy must not be continued, from the known state; "" if there is no reason."""
    if place.is_known and place.written.last_offset + 1 < place.end:
        return (
            f"another producer has written the offsets {place.written.last_offset + 1} to "
            f"{place.end - 1} of the copy. Stop it and delete the topic, or mirror with --prefix"
        )
    if place.position > place.source_end:
        return (
            f"the copy ends at offset {place.position}, beyond the end {place.source_end} of its "
            "source: the source topic was created again, or has lost records. Delete the copy to "
            "mirror it again"
        )
    if not (place.is_known or place.is_empty or place.is_comparable):
        return (
            f"the topic may have records that this mirror has not written, and its source "
            f"has deleted the offset {place.position - 1} to compare. Delete the topic, or mirror "
            "with --prefix"
        )
    return ""


def difference(place: Place, source: Checked, copy: Checked) -> str:
    """Return why the copy does not belong to its source; "" if the records are equal.

    ``source``, ``copy``: the batches with the last copied offset. Compaction may have removed
    different records of them: those that both have are compared.
    """
    times = not (source[0].log_append_time or copy[0].log_append_time)
    ours, theirs = _by_offset(source), _by_offset(copy)
    common = sorted(ours.keys() & theirs.keys())
    for offset in common:
        if _content(ours[offset], times=times) != _content(theirs[offset], times=times):
            return (
                f"the record at offset {offset} differs from the source: the source topic was "
                "created again, or the topic is not a copy. Delete the topic, or mirror with "
                "--prefix"
            )
    if common or place.is_known:
        return ""
    return (
        "the topic may have records that this mirror has not written, and compaction has "
        "left none at its end to compare. Delete the topic, or mirror with --prefix"
    )


def _by_offset(batch: Checked) -> dict[Offset, ConsumerRecord]:
    records = decode_records(batch[1], topic="", partition=0, check_crc=False)
    return {record.offset: record for record in records}


def _content(record: ConsumerRecord, *, times: bool) -> tuple[object, ...]:
    time = record.timestamp_ms if times else None
    return (record.key, record.value, tuple(map(tuple, record.headers)), time)
