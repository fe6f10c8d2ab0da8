"""Admission checks for producer batches. Pure functions, no I/O.

A batch is rejected if it is too large, if its timestamps are too far from the broker's clock, or
if it is marked as compacted.
"""

from __future__ import annotations

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import HEADER_BYTES, BatchHeader, columns
from raftlog.types import TimestampMs


def check(header: BatchHeader, config: TopicConfig, *, now_ms: TimestampMs) -> None:
    """Raise ``RecordTooLargeError``, or ``InvalidRequestError``: for a timestamp out of bounds, and
    for a batch that says that it was compacted.
    """
    if header.is_compacted:
        raise InvalidRequestError(
            "the batch is marked as compacted. Only brokers write compacted batches: clear the "
            "flag and send the records again"
        )
    if header.length > config.max_message_bytes:
        raise RecordTooLargeError(
            f"batch of {header.length} bytes is over max.message.bytes="
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
    if config.message_timestamp_type == "LogAppendTime":
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
