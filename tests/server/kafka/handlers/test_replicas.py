"""DescribeLogDirs and ListPartitionReassignments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.server.operations import AloneOperations
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.harness import RunningBroker, batch_of, running
from tests.server.kafka.kafka_client import KafkaClient, connected

LogDirs = codec.structs("request", apis.DESCRIBE_LOG_DIRS.key)
Moves = codec.structs("request", apis.LIST_PARTITION_REASSIGNMENTS.key)


def asked(name: str, *partitions: int) -> Any:
    return LogDirs.DescribableLogDirTopic(topic=name, partitions=list(partitions))


@pytest.mark.parametrize("version", range(1, 5))
def test_log_directories(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, version: int
) -> None:
    with kafka_broker.client() as native:
        native.create(f"dirs-{version}", partitions=3)
    kafka_client.produce(f"dirs-{version}", kafka_batch([KafkaRecord(b"v")]))
    message = LogDirs.root(topics=[asked(f"dirs-{version}", 2, 0, -1, 3), asked("absent", 0)])
    (found,) = kafka_client.ask(apis.DESCRIBE_LOG_DIRS, version, message).results
    assert found.log_dir == kafka_broker.config.data_dir
    (topic,) = found.topics
    assert topic.name == f"dirs-{version}"
    assert [each.partition_index for each in topic.partitions] == [0, 2]
    assert topic.partitions[0].partition_size > topic.partitions[1].partition_size >= 0
    assert not any(each.offset_lag or each.is_future_key for each in topic.partitions)
    if version >= 4:
        assert found.total_bytes > found.usable_bytes > 0
    (found,) = kafka_client.ask(apis.DESCRIBE_LOG_DIRS, version, LogDirs.root(topics=None)).results
    assert f"dirs-{version}" in {topic.name for topic in found.topics}


def test_log_directories_on_several_disks(tmp_path: Path) -> None:
    """KAFKA_STORAGE_ERROR (56) for a failed one. What is on the others can be read and written."""
    second = tmp_path / "second"
    with running(tmp_path / "first", log_dirs=str(second)) as broker:
        with broker.client() as native:
            native.create("t", partitions=4)

        def described() -> list[tuple[str, int, list[int]]]:
            with connected(broker) as client:
                found = client.ask(apis.DESCRIBE_LOG_DIRS, 4, LogDirs.root(topics=None)).results
            return [
                (each.log_dir, each.error_code, [p.partition_index for p in topic.partitions])
                for each in found
                for topic in each.topics
            ]

        first = broker.config.data_dir
        assert described() == [(first, 0, [0, 2]), (str(second), 0, [1, 3])]
        broker.call(lambda: broker.broker.log_dirs.log_dirs[0].fail("a bad cable"))
        broker.call(lambda: None)  # a turn of the loop
        assert described() == [(first, 0, [0, 2]), (str(second), 56, [1, 3])]
        with broker.client() as native:
            assert native.produce("t", batch_of(b"a"), partition=0).failure is None
            failure = native.produce("t", batch_of(b"a"), partition=1).failure
            assert failure is not None
            assert "a bad cable" in failure.message


def test_moves_of_partitions(
    kafka_client: KafkaClient, kafka_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kafka_broker.client() as native:
        native.create("moves", partitions=2)
    everything = Moves.root(topics=None)
    answer = kafka_client.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, everything)
    assert (answer.error_code, answer.topics) == (0, [])
    moving = kafka_broker.broker.context.topics.topic("moves").id

    def target(_self: object, topic_id: str, partition: int) -> list[int]:
        return [2, 3] if (topic_id, partition) == (moving, 1) else []

    monkeypatch.setattr(AloneOperations, "target", target)
    named = Moves.ListPartitionReassignmentsTopics(name="moves", partition_indexes=[1, 0])
    for message in (everything, Moves.root(topics=[named])):
        (topic,) = kafka_client.ask(apis.LIST_PARTITION_REASSIGNMENTS, 0, message).topics
        (move,) = topic.partitions
        assert (topic.name, move.partition_index, move.replicas) == ("moves", 1, [1, 2, 3])
        assert (move.adding_replicas, move.removing_replicas) == ([2, 3], [1])
