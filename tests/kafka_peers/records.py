"""Records for the tests of Kafka's clients, written and read by raftlog's own."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import raftlog

TIMEOUT_S = 30


def some_records(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Records for two partitions: with and without keys, values and headers.

    Each has a key or a value: some clients write no others.
    """
    return [
        {
            "partition": number % 2,
            "key": None if number % 5 == 0 else f"key-{number}",
            "value": None if number % 5 == 1 else f"value {number} é " + "x" * (number % 40),
            "headers": [["name", f"{number}"]] if number % 3 == 0 else [],
        }
        for number in range(start, start + count)
    ]


def in_order(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: (record["partition"], record["offset"]))


def stored(
    records: Iterable[dict[str, Any]], answers: Iterable[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The records with the offsets that the broker gave them, in order."""
    by_number = {answer["number"]: answer for answer in answers}
    return in_order(
        {**record, "offset": by_number[number]["offset"]} for number, record in enumerate(records)
    )


def native_write(
    bootstrap: str, topic: str, records: list[dict[str, Any]], codec: str = "none"
) -> list[dict[str, Any]]:
    """Write with raftlog's producer. Returns the records with their offsets."""
    with raftlog.Producer(bootstrap, compression=codec) as producer:
        sent = [
            producer.send(
                topic,
                None if one["value"] is None else one["value"].encode(),
                None if one["key"] is None else one["key"].encode(),
                [(name, text.encode()) for name, text in one["headers"]],
                partition=one["partition"],
            )
            for one in records
        ]
        offsets = [each.result(TIMEOUT_S).offset for each in sent]
    return [{**one, "offset": offset} for one, offset in zip(records, offsets, strict=True)]


def native_read(
    bootstrap: str, topic: str, count: int, group: str | None = None
) -> list[dict[str, Any]]:
    """Read with raftlog's consumer: all partitions, or as a member of a group, which commits."""
    own = {} if group is None else {"group": group, "auto_commit": False}
    with raftlog.Consumer(bootstrap, auto_offset_reset="earliest", **own) as consumer:
        if group is None:
            partitions = consumer.partitions_for(topic)
            consumer.assign([raftlog.TopicPartition(topic, number) for number in partitions])
        else:
            consumer.subscribe([topic])
        found: list[dict[str, Any]] = []
        end = time.monotonic() + TIMEOUT_S
        while len(found) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} records"
            found += map(_plain, consumer.poll(timeout_ms=500))
        if group is not None:
            consumer.commit()
    return in_order(found)


def _plain(record: Any) -> dict[str, Any]:
    return {
        "partition": record.partition,
        "offset": record.offset,
        "key": None if record.key is None else record.key.decode(),
        "value": None if record.value is None else record.value.decode(),
        "headers": [[name, content.decode()] for name, content in record.headers],
    }
