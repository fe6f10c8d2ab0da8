"""What raftlog's own consumer reads."""

from __future__ import annotations

from typing import Any

import raftlog


def native_records(address: str, topic: str, count: int) -> list[Any]:
    """The first records of partition 0."""
    with raftlog.Consumer(address, auto_offset_reset="earliest") as consumer:
        consumer.assign([raftlog.TopicPartition(topic, 0)])
        records: list[Any] = []
        while len(records) < count:
            found = consumer.poll(timeout_ms=10_000)
            assert found, f"{len(records)} of {count} records"
            records += found
    return records
