"""Results of appends to a log."""

from __future__ import annotations

from typing import NamedTuple

from raftlog.types import Offset, TimestampMs


class Appended(NamedTuple):
    """Offsets of an appended batch. ``duplicate``: the batch was already stored; nothing was
    written."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp_ms: TimestampMs
    duplicate: bool = False


class ReplicatedAppend(NamedTuple):
    """Number of appended batches, and the log end after them."""

    batch_count: int
    next_offset: Offset
