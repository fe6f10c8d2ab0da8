"""Groups of confluent-kafka with three broker processes, whose coordinator is killed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from raftlog.consumer_groups import partition_of_group
from raftlog.testing.cluster import cluster
from raftlog.types import OFFSETS_TOPIC

TIMEOUT_S = 30
COUNT = 200
PARTITION = 3  # of the offsets topic, which has 16: both groups have one coordinator
NAMES = [name for name in map(str, range(100)) if partition_of_group(name, 16) == PARTITION]
GROUPS = {"classic": NAMES[0], "consumer": NAMES[1]}


def produce(address: str, start: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(start, start + COUNT):
        producer.produce("t", b"%d" % number, partition=number % 2)
    assert producer.flush(TIMEOUT_S) == 0


def consumed(consumer: Any) -> list[int]:
    """The next ``COUNT`` records, which are then committed."""
    found: list[int] = []
    end = time.monotonic() + TIMEOUT_S
    while len(found) < COUNT:
        assert time.monotonic() < end, f"only {len(found)} records came"
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(int(message.value()))
    consumer.commit(asynchronous=False)
    return sorted(found)


@pytest.mark.integration
def test_members_continue_with_the_next_coordinator(tmp_path: Path) -> None:
    settings = {
        "group.initial.rebalance.delay.ms": "0",
        "group.consumer.heartbeat.interval.ms": "200",
    }
    with cluster(3, directory=tmp_path, with_relays=False, settings=settings) as brokers:
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        admin.create_topics([NewTopic("t", 2, 3)])["t"].result(TIMEOUT_S)
        produce(brokers.bootstrap, 0)
        members = {}
        for protocol, group in GROUPS.items():
            members[protocol] = Consumer(
                {
                    "bootstrap.servers": brokers.bootstrap,
                    "group.id": group,
                    "group.protocol": protocol,
                    "auto.offset.reset": "earliest",
                    "enable.auto.commit": False,
                }
            )
            members[protocol].subscribe(["t"])
            assert consumed(members[protocol]) == list(range(COUNT))
        coordinator = brokers.leader(OFFSETS_TOPIC, PARTITION)
        assert coordinator is not None
        brokers.broker(coordinator).kill()
        produce(brokers.bootstrap, COUNT)
        for member in members.values():
            assert consumed(member) == list(range(COUNT, 2 * COUNT))
        for member in members.values():
            member.close()
