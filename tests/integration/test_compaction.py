"""Compacted topics on real processes: what is left is exactly what was written last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.config import TopicConfig
from raftlog.disk import OsDisk
from raftlog.errors import InvalidRequestError, KeyRequiredError
from raftlog.record import decode_lists, split
from raftlog.storage import Log, inspect
from raftlog.testing import Cluster, cluster, wait_until

pytestmark = pytest.mark.integration

TOPIC: Final = "state"
PARTITIONS: Final = [TopicPartition(TOPIC, number) for number in range(2)]
KEYS: Final = 40
SETTINGS: Final = {"log.cleaner.interval.ms": "50", "log.retention.check.interval.ms": "100"}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.1",
}

State = dict[bytes, bytes | None]


class Load:
    """Writes to keys, over and over; knows what was written last of each, and where."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.sent = 0
        self.last: dict[int, State] = {tp.partition: {} for tp in PARTITIONS}

    def run(self, count: int) -> None:
        """Each record is one of a key that only one partition has. All are acknowledged."""
        futures = []
        for _ in range(count):
            partition = self.sent % len(PARTITIONS)
            key = b"key-%d" % (self.sent * 7 % KEYS)
            value = None if self.sent % 11 == 5 else b"%d " % self.sent + b"x" * 200
            self.last[partition][key] = value
            futures.append(self._producer.send(TOPIC, value, key, partition=partition))
            self.sent += 1
        for future in futures:
            future.result(30)


def read_all(bootstrap: str, *, read_from: str = "leader") -> tuple[dict[int, State], int]:
    """The last value of each key, by partition, and how many records there were to read."""
    found: dict[int, State] = {tp.partition: {} for tp in PARTITIONS}
    count = 0
    with Consumer(bootstrap, auto_offset_reset="earliest", read_from=read_from) as consumer:
        consumer.assign(PARTITIONS)
        ends = consumer.end_offsets(PARTITIONS)
        deadline = time.monotonic() + 30
        while any(consumer.position(tp) < ends[tp] for tp in PARTITIONS):
            assert time.monotonic() < deadline, "it does not come to the end"
            for record in consumer.poll(500, 1_000):
                assert record.key is not None
                found[record.partition][record.key] = record.value
                count += 1
    return found, count


def logs_of(data_dir: Path) -> Iterator[tuple[int, Log]]:
    for directory in sorted(data_dir.glob(f"topics/{TOPIC}/*/*")):
        if directory.is_dir():
            yield int(directory.name), Log.open(OsDisk(), str(directory), TopicConfig())


def states_on_disk(data_dir: Path) -> dict[int, State]:
    """The same, from a stopped broker's files."""
    found: dict[int, State] = {}
    for partition, log in logs_of(data_dir):
        state = found.setdefault(partition, {})
        parts = log.read(
            start_offset=log.log_start_offset, end_offset=log.log_end_offset, bytes_max=1 << 30
        )
        for part in parts:
            for batch in split(part):
                lists = decode_lists(batch)
                state |= {
                    key or b"": value for key, value in zip(lists.keys, lists.values, strict=True)
                }
        assert log.compaction.clean_end_offset > 0
        log.abandon()
    return found


def create(running: Cluster, **config: str) -> None:
    with Admin(running.bootstrap) as admin:
        copies = len(running.brokers)
        topic = NewTopic(TOPIC, len(PARTITIONS), copies, {**COMPACTED, **config})
        admin.create_topics([topic])


def test_the_last_value_of_each_key_survives_kills_of_brokers(tmp_path: Path) -> None:
    with cluster(brokers=3, directory=tmp_path, settings=SETTINGS, with_relays=False) as running:
        create(running)
        with Producer(running.bootstrap, linger_ms=0) as producer:
            load = Load(producer)
            load.run(1_000)
            for broker in running.brokers:
                broker.kill()
                load.run(600)
                broker.start()
                load.run(200)
            load.run(400)
        for tp in PARTITIONS:
            wait_until(
                lambda tp=tp: running.is_in_sync(*tp),  # type: ignore[misc]
                timeout_s=30,
                what=f"{tp} is in sync",
            )
        wait_until(
            lambda: read_all(running.bootstrap)[1] < load.sent / 3,
            timeout_s=30,
            what="most of it is compacted away",
        )
        assert read_all(running.bootstrap)[0] == load.last
        running.stop()
        for broker in running.brokers:
            assert states_on_disk(broker.data_dir) == load.last, broker.id
            reports = inspect.verify(OsDisk(), str(broker.data_dir))
            assert not [problem for report in reports for problem in report.problems]


def test_every_way_of_reading_knows_of_the_holes(tmp_path: Path) -> None:
    with cluster(directory=tmp_path, settings=SETTINGS) as running:
        # They are of 1970: while it is not compacted, retention would take them.
        create(running, **{"cleanup.policy": "delete", "retention.ms": "-1"})
        tp = PARTITIONS[0]
        with (
            Admin(running.bootstrap) as admin,
            Producer(running.bootstrap, linger_ms=0) as producer,
        ):
            for number in range(600):
                key = b"last" if number == 0 else b"key-%d" % (number % 5)
                producer.send(TOPIC, b"x" * 200, key, None, 1_000_000 + number, 0)
            producer.flush()
            producer.send(TOPIC, b"no key", partition=0).result(20)
            admin.alter_topic(TOPIC, {"cleanup.policy": "compact"})
            wait_until(
                lambda: _count(running.bootstrap, tp) < 200, timeout_s=30, what="it is compacted"
            )
            with pytest.raises(InvalidRequestError, match="has no key"):
                producer.send(TOPIC, b"no key", partition=0).result(20)
        with Producer(running.bootstrap, linger_ms=100) as producer:  # it knows of the compaction
            good = producer.send(TOPIC, b"value", b"key-0", partition=0)
            bad = producer.send(TOPIC, b"no key", partition=0)
            mixed = producer.send_many(TOPIC, [b"1", b"2"], [b"key-1", None], partition=0)
            for future in (bad, mixed):
                with pytest.raises(KeyRequiredError, match="has no key"):
                    future.result(20)
            assert good.result(20).offset == 601, "a record without a key fails alone"
        with Consumer(running.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            end = consumer.end_offsets([tp])[tp]
            assert end == 603
            polled = []
            while consumer.position(tp) < end:
                polled += consumer.poll(500, 7)
            offsets = [record.offset for record in polled]
            assert offsets[0] == 0, "the only one of its key"
            assert offsets == sorted(set(offsets))
            assert offsets[-1] == 602
            consumer.seek(tp, 0)
            iterated = []
            for record in consumer:
                iterated.append(record.offset)
                if record.offset == offsets[-1]:
                    break
            assert iterated == offsets
            # A time whose record is gone leads to the next one that is left.
            for number in (0, 1, 7, 333, 599):
                found = consumer.offsets_for_times({tp: 1_000_000 + number})[tp]
                expected = next(r for r in polled if r.timestamp_ms >= 1_000_000 + number)
                assert found == (expected.offset, expected.timestamp_ms)
            consumer.seek(tp, 1)
            assert consumer.poll(5_000, 1)[0].offset == offsets[1]


def _count(bootstrap: str, tp: TopicPartition) -> int:
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end, count = consumer.end_offsets([tp])[tp], 0
        while consumer.position(tp) < end:
            count += len(consumer.poll(500, 1_000))
    return count
