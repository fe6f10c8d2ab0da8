"""DescribeProducers: of each partition that this broker leads."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from tests.server.harness import RunningBroker, batch_of
from tests.server.kafka.kafka_client import KafkaClient

Producers = codec.structs("request", apis.DESCRIBE_PRODUCERS.key)


@pytest.fixture(scope="module")
def topic(kafka_broker: RunningBroker) -> str:
    with kafka_broker.client() as native:
        native.create("written", partitions=2)
        for producer_id, values in ((5, 3), (6, 1), (7, 2)):
            batch = batch_of(
                *[b"v"] * values, producer_id=producer_id, producer_epoch=4, base_sequence=0
            )
            assert native.produce("written", batch).failure is None
    return "written"


def ask(client: KafkaClient, *topics: tuple[str, list[int]]) -> list[Any]:
    wanted = [Producers.TopicRequest(name=name, partition_indexes=parts) for name, parts in topics]
    answer = client.ask(apis.DESCRIBE_PRODUCERS, 0, Producers.root(topics=wanted))
    return [part for topic in answer.topics for part in topic.partitions]


def test_the_producers_of_a_partition(kafka_client: KafkaClient, topic: str) -> None:
    first, second = ask(kafka_client, (topic, [0, 1]))
    assert [
        (each.producer_id, each.producer_epoch, each.last_sequence)
        for each in first.active_producers
    ] == [(7, 4, 1), (6, 4, 0), (5, 4, 2)]
    newest = first.active_producers[0]
    assert newest.last_timestamp > 0
    assert (newest.coordinator_epoch, newest.current_txn_start_offset) == (-1, -1)
    assert (second.partition_index, second.error_code, second.active_producers) == (1, 0, [])


def test_a_partition_that_does_not_exist_has_an_error(
    kafka_client: KafkaClient, topic: str
) -> None:
    found = ask(kafka_client, (topic, [9, -1]), ("no-such", [0]))
    assert [part.error_code for part in found] == [errors.UNKNOWN_TOPIC_OR_PARTITION] * 3
    assert "no partition 9" in found[0].error_message


def test_a_response_has_a_bounded_number_of_producers(
    kafka_client: KafkaClient, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_REQUEST_MAX", 4)
    found = ask(kafka_client, (topic, [0, 0]))
    assert [len(part.active_producers) for part in found] == [3, 1]
