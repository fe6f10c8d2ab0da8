"""Which valid batches are not for a producer to send, or not to this topic. Pure.

Too large, stamped too far from now, or written by a broker.
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
            "a producer's batch is marked as compacted, as only a broker's are: send the records "
            "as they are"
        )
    if header.length > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch of {header.length} bytes is over max.message.bytes="
            f"{config.max_message_bytes}; send smaller batches or raise the topic's setting"
        )
    # Compaction leaves holes, and then each record that is left says its offset.
    offsets_bytes = header.record_count * columns.U32_BYTES
    if HEADER_BYTES + header.uncompressed_length + offsets_bytes > limits.BATCH_BYTES_MAX:
        raise RecordTooLargeError(
            f"{header.record_count} records take {header.uncompressed_length} bytes uncompressed, "
            f"and with {columns.U32_BYTES} more for each they are over {limits.BATCH_BYTES_MAX}: "
            "send fewer at a time, or smaller ones"
        )
    if config.message_timestamp_type == "LogAppendTime":
        return
    for distance_ms, limit_ms, side in (
        (header.max_timestamp - now_ms, config.message_timestamp_after_max_ms, "after"),
        (now_ms - header.first_timestamp, config.message_timestamp_before_max_ms, "before"),
    ):
        if distance_ms > limit_ms:
            raise InvalidRequestError(
                f"a timestamp is {distance_ms} ms {side} the broker's clock, over "
                f"message.timestamp.{side}.max.ms={limit_ms}; check the producer's clock"
            )
