"""Which valid batches a topic's settings refuse: too large, or stamped too far from now. Pure."""

from __future__ import annotations

from raftlog.config import TopicConfig
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import BatchHeader
from raftlog.types import TimestampMs


def check(header: BatchHeader, config: TopicConfig, *, now_ms: TimestampMs) -> None:
    """Raise ``RecordTooLargeError``, or ``InvalidRequestError`` for a timestamp out of bounds."""
    if header.length > config.max_message_bytes:
        raise RecordTooLargeError(
            f"a batch of {header.length} bytes is over max.message.bytes="
            f"{config.max_message_bytes}; send smaller batches or raise the topic's setting"
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
