"""Admission checks for batches of producers and of leaders. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Sequence

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    ChainMismatchError,
    CorruptBatchError,
    InvalidRequestError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)
from raftlog.record import HEADER_BYTES, BatchHeader, columns, verify_chain
from raftlog.types import LeaderEpoch, Offset, TimestampMs


def check(
    header: BatchHeader, config: TopicConfig, *, now_ms: TimestampMs, is_mirrored: bool = False
) -> None:
    """Check a batch of a producer. Raises ``RecordTooLargeError``, or ``InvalidRequestError`` if a
    timestamp is too far from the broker's clock or the batch is marked as compacted.

    ``is_mirrored``: another cluster has admitted the records. They may be old, and compaction may
    have joined them in a batch that exceeds max.message.bytes.
    """
    if header.is_compacted:
        raise InvalidRequestError(
            "the batch is marked as compacted. Only brokers write compacted batches: clear the "
            "flag and send the records again"
        )
    if is_mirrored:
        return
    if header.sent_bytes > config.max_message_bytes:
        raise RecordTooLargeError(
            f"batch of {header.sent_bytes} bytes is over max.message.bytes="
            f"{config.max_message_bytes}. Send smaller batches or increase the topic setting"
        )
    # Compaction leaves gaps in the offsets. Each remaining record then stores its own offset.
    offsets_bytes = header.record_count * columns.U32_BYTES
    if HEADER_BYTES + header.uncompressed_length + offsets_bytes > limits.BATCH_BYTES_MAX:
        raise RecordTooLargeError(
            f"{header.record_count} records of {header.uncompressed_length} bytes uncompressed, "
            f"plus {columns.U32_BYTES} bytes each, are over {limits.BATCH_BYTES_MAX} bytes. "
            "Send fewer or smaller records in a batch"
        )
    if config.message_timestamp_type == "LogAppendTime" or not header.has_timestamps:
        return
    for distance_ms, limit_ms, side in (
        (header.max_timestamp - now_ms, config.message_timestamp_after_max_ms, "after"),
        (now_ms - header.first_timestamp, config.message_timestamp_before_max_ms, "before"),
    ):
        if distance_ms > limit_ms:
            raise InvalidRequestError(
                f"timestamp is {distance_ms} ms {side} the broker's clock, over "
                f"message.timestamp.{side}.max.ms={limit_ms}. Check the producer's clock"
            )


def not_at_end(at_offset: Offset, log_end_offset: Offset) -> OutOfOrderSequenceError:
    """Return the error of a mirrored batch whose offset is not the end of the log."""
    return OutOfOrderSequenceError(
        f"mirrored batch for offset {at_offset} was rejected, because the log ends at offset "
        f"{log_end_offset}: another producer has written, or records are missing. Stop other "
        "producers of the topic, and restart the mirror"
    )


def check_replicated(
    headers: Sequence[BatchHeader],
    directory: str,
    offset: Offset,
    chain: int | None = None,
    epoch: LeaderEpoch = -1,
) -> None:
    """Check that batches of a leader continue the log in ``directory``.

    ``offset``, ``chain``, ``epoch``: end of that log; hash-chain value and epoch of its last batch.
    ``chain`` is None if it is unknown. Raises ``CorruptBatchError`` for a gap, an epoch that
    decreases or a missing append time, and ``ChainMismatchError``.
    """
    for header in headers:
        if header.base_offset != offset:
            raise CorruptBatchError(
                f"replicated batch has base offset {header.base_offset}, expected {offset}"
            )
        if chain is not None and not verify_chain(header, previous_chain=chain):
            raise ChainMismatchError(
                f"{directory}: the hash chain of the leader's batch at offset {offset} "
                "does not match the batches of this replica below it"
            )
        if header.leader_epoch < max(epoch, 0) or header.append_timestamp < 0:
            raise CorruptBatchError(
                f"replicated batch at offset {offset} has epoch {header.leader_epoch} and "
                f"append time {header.append_timestamp}, after epoch {epoch}"
            )
        offset, chain, epoch = header.next_offset, header.chain, header.leader_epoch
