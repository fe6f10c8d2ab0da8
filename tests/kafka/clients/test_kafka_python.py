"""kafka-python against a broker."""

from __future__ import annotations

import kafka
import pytest
from kafka.admin import NewTopic

from tests.kafka.clients.native import native_records

TIMEOUT_S = 20


@pytest.mark.parametrize("kind", [None, "gzip", "lz4", "zstd"])
def test_produce_and_consume(address: str, kind: str | None) -> None:
    topic = f"kp-{kind}"
    producer = kafka.KafkaProducer(bootstrap_servers=address, compression_type=kind, linger_ms=5)
    try:
        futures = [producer.send(topic, b"%d" % number, key=b"k") for number in range(100)]
        assert [future.get(TIMEOUT_S).offset for future in futures] == list(range(100))
    finally:
        producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        enable_auto_commit=False,
        consumer_timeout_ms=TIMEOUT_S * 1_000,
        fetch_max_wait_ms=50,
    )
    try:
        partition = kafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        values = [next(consumer).value for _ in range(100)]
        assert values == [b"%d" % number for number in range(100)]
        assert consumer.end_offsets([partition]) == {partition: 100}
    finally:
        consumer.close()
    assert [each.value for each in native_records(address, topic, 100)] == values


def test_administration(address: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.create_topics([NewTopic("kp-admin", 2, 1)])
        assert "kp-admin" in admin.list_topics()
        admin.delete_topics(["kp-admin"])
        assert "kp-admin" not in admin.list_topics()
    finally:
        admin.close()
