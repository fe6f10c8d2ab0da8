"""confluent-kafka with three broker processes, whose leader is killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from raftlog.testing.cluster import cluster

TIMEOUT_S = 30
COUNT = 3_000


@pytest.mark.integration
def test_an_idempotent_producer_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with cluster(3, directory=tmp_path, with_relays=False) as brokers:
        address = {"bootstrap.servers": brokers.bootstrap}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("t", 1, 3)])["t"].result(TIMEOUT_S)
        producer = Producer({**address, "enable.idempotence": True, "linger.ms": 1})
        delivered: list[int] = []
        failed: list[object] = []
        for number in range(COUNT):
            producer.produce(
                "t",
                b"%d" % number,
                on_delivery=lambda error, message: (
                    delivered.append(message.offset()) if error is None else failed.append(error)
                ),
            )
            producer.poll(0)
            if number == COUNT // 2:
                while not delivered:
                    producer.poll(0.1)
                leader = brokers.leader("t", 0)
                assert leader is not None
                brokers.broker(leader).kill()
        assert producer.flush(TIMEOUT_S) == 0
        assert not failed
        assert delivered == list(range(COUNT))
        consumer = Consumer({**address, "group.id": "none", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
        values: list[bytes] = []
        while len(values) < COUNT:
            messages = consumer.consume(COUNT, 1.0)
            values += [message.value() for message in messages if message.error() is None]
        consumer.close()
        assert values == [b"%d" % number for number in range(COUNT)]
