"""Append of a validated batch, and its acknowledgement as ``acks`` requires."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from raftlog.errors import CorruptBatchError, RaftlogError, UnsupportedFeatureError
from raftlog.record import BatchHeader
from raftlog.server.partition import Partition
from raftlog.storage import Appended
from raftlog.types import NO_BASE_OFFSET, NO_TIMESTAMP, Buffer, Offset, TimestampMs

ACKS_ALL: Final = -1
ACKS_LEADER: Final = 1
ACKS_NONE: Final = 0


class Stored(NamedTuple):
    """An acknowledged batch. ``append_timestamp_ms``: ``NO_TIMESTAMP`` unless the topic stamps
    records with the leader's time.
    """

    base_offset: Offset
    append_timestamp_ms: TimestampMs
    log_start_offset: Offset


# Called with the batch, or with the reason why it is not acknowledged.
OnStored: TypeAlias = Callable[[Stored | RaftlogError], None]


def append(
    host: Partition,
    batch: Buffer,
    header: BatchHeader,
    acks: int,
    done: OnStored,
    *,
    at_offset: Offset = NO_BASE_OFFSET,
) -> Offset:
    """Append a batch of a producer, and call ``done`` once it is as durable as ``acks`` requires.
    Returns the offset after its last record.

    ``at_offset``: as in ``Log.append``. Raises the errors of ``Partition.append``; ``done`` is
    then not called.
    """
    _check_producible(header, at_offset)
    appended = host.append(batch, header, to_be_committed=acks == ACKS_ALL, at_offset=at_offset)
    acknowledge = partial(_acknowledge, host, appended, done)
    end_offset = appended.last_offset + 1
    if acks == ACKS_ALL:
        host.when_committed(end_offset, acknowledge)
    elif acks == ACKS_LEADER:
        host.when_on_disk(end_offset, acknowledge)
    else:
        acknowledge(None)
    return end_offset


def _acknowledge(
    host: Partition, appended: Appended, done: OnStored, error: RaftlogError | None
) -> None:
    """Call ``done``: the batch is durable; ``error`` is the reason if it will not be."""
    if error is not None:
        done(error)
        return
    log = host.log
    stamped = log.config.message_timestamp_type == "LogAppendTime"
    timestamp_ms = appended.append_timestamp_ms if stamped else NO_TIMESTAMP
    done(Stored(appended.base_offset, timestamp_ms, log.log_start_offset))


def _check_producible(header: BatchHeader, at_offset: Offset) -> None:
    """Reject batches that are valid, and that a producer must not send."""
    if header.is_transactional or header.is_control:
        raise UnsupportedFeatureError(
            "transactional and control batches are not accepted: this release has no transactions"
        )
    if not header.is_dense and at_offset == NO_BASE_OFFSET:
        raise CorruptBatchError(
            f"a batch of {header.record_count} records spans {header.last_offset_delta + 1} "
            "offsets. Only a mirror, which requests the base offset, may send a batch with gaps"
        )
