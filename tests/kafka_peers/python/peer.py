"""Drivers of the Kafka clients for Python; see drivers.py for the commands.

python peer.py CLIENT COMMAND ...
"""

from __future__ import annotations

import asyncio
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any, NoReturn

import aiokafka
import confluent_kafka
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of its own use of importlib
    import kafka


def show(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def lines() -> Iterator[tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes]]]]:
    """Number, partition, key, value and headers of each record of the standard input."""
    for number, line in enumerate(sys.stdin):
        one = json.loads(line)
        key, value = (
            None if each is None else each.encode() for each in (one["key"], one["value"])
        )
        headers = [(name, content.encode()) for name, content in one["headers"]]
        yield number, one["partition"], key, value, headers


def show_record(
    partition: int, offset: int, key: bytes | None, value: bytes | None, headers: Any
) -> None:
    show(
        partition=partition,
        offset=offset,
        key=None if key is None else key.decode(),
        value=None if value is None else value.decode(),
        headers=[(name, content.decode()) for name, content in headers or ()],
    )


def fail(error: object) -> NoReturn:
    sys.exit(f"failed: {error}")


# -- confluent-kafka -------------------------------------------------------------------------------


def confluent_produce(bootstrap: str, topic: str, codec: str) -> None:
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": codec,
            "linger.ms": 5,
        }
    )

    def delivered(number: int, error: Any, message: Any) -> None:
        if error is not None:
            fail(error)
        show(number=number, partition=message.partition(), offset=message.offset())

    for number, partition, key, value, headers in lines():
        producer.produce(
            topic,
            value,
            key,
            partition,
            headers=headers,
            on_delivery=lambda error, message, number=number: delivered(number, error, message),
        )
        if number == 0:
            producer.flush()
        producer.poll(0)
    producer.flush()


def confluent_consume(bootstrap: str, topic: str, group: str, protocol: str, count: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
        }
    )
    consumer.subscribe([topic])
    found = 0
    while found < int(count):
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            fail(message.error())
        found += 1
        consumer.store_offsets(message)
        show_record(
            message.partition(), message.offset(), message.key(), message.value(), message.headers()
        )
    consumer.commit(asynchronous=False)
    consumer.close()


def confluent_admin(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    new = NewTopic(topic, 3, 3, config={"retention.ms": "86400000"})
    admin.create_topics([new])[topic].result(30)
    change = ConfigEntry(
        "cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND
    )
    resource = ConfigResource("topic", topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    resource = ConfigResource("topic", topic)
    settings = admin.describe_configs([resource])[resource].result(30)
    described = admin.list_topics(topic).topics[topic]
    partition = confluent_kafka.TopicPartition(topic, 0)
    ends = admin.list_offsets({partition: confluent_kafka.admin.OffsetSpec.latest()})
    found = {
        "partitions": len(described.partitions),
        "replicas": len(described.partitions[0].replicas),
        "retention": settings["retention.ms"].value,
        "policy": settings["cleanup.policy"].value,
        "listed": topic in admin.list_topics().topics,
        "end": ends[partition].result(30).offset,
    }
    admin.delete_topics([topic])[topic].result(30)
    show(**found)


# -- kafka-python ----------------------------------------------------------------------------------


def kafka_python_produce(bootstrap: str, topic: str, codec: str) -> None:
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=5,
    )
    sent = []
    for number, partition, key, value, headers in lines():
        sent.append(producer.send(topic, value, key, headers, partition))
        if number == 0:
            producer.flush()
            sent[0].get(60)
    for number, future in enumerate(sent):
        stored = future.get(60)
        show(number=number, partition=stored.partition, offset=stored.offset)
    producer.close()


def kafka_python_consume(
    bootstrap: str, topic: str, group: str, _protocol: str, count: str
) -> None:
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    ends: dict[Any, Any] = {}
    for _ in range(int(count)):
        one = next(consumer)
        partition = kafka.TopicPartition(topic, one.partition)
        ends[partition] = kafka.OffsetAndMetadata(one.offset + 1, "", -1)
        show_record(one.partition, one.offset, one.key, one.value, one.headers)
    consumer.commit(ends)
    consumer.close()


def kafka_python_admin(bootstrap: str, topic: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
    new = kafka.admin.NewTopic(topic, 3, 3, topic_configs={"retention.ms": "86400000"})
    admin.create_topics([new])
    resource = kafka.admin.ConfigResource(
        kafka.admin.ConfigResourceType.TOPIC, topic, {"cleanup.policy": "delete,compact"}
    )
    admin.alter_configs([resource])
    admin.create_partitions({topic: kafka.admin.NewPartitions(5)})
    (described,) = admin.describe_topics([topic])
    settings = admin.describe_configs(
        [kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)]
    )
    found = settings["topic"][topic]
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","))
    partition = kafka.TopicPartition(topic, 0)
    shown = {
        "partitions": len(described["partitions"]),
        "replicas": len(described["partitions"][0]["replica_nodes"]),
        "retention": found["retention.ms"]["value"],
        "policy": found["cleanup.policy"]["value"],
        "listed": topic in admin.list_topics(),
        "end": consumer.end_offsets([partition])[partition],
    }
    admin.delete_topics([topic])
    show(**shown)


# -- aiokafka --------------------------------------------------------------------------------------


async def aiokafka_produce(bootstrap: str, topic: str, codec: str) -> None:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        compression_type=None if codec == "none" else codec,
        enable_idempotence=True,
        linger_ms=5,
    )
    async with producer:
        sent = []
        for number, partition, key, value, headers in lines():
            sent.append(
                await producer.send(topic, value, key, partition=partition, headers=headers)
            )
            if number == 0:
                await sent[0]
        for number, future in enumerate(sent):
            stored = await future
            show(number=number, partition=stored.partition, offset=stored.offset)


async def aiokafka_consume(
    bootstrap: str, topic: str, group: str, _protocol: str, count: str
) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    ends: dict[Any, int] = {}
    async with consumer:
        for _ in range(int(count)):
            one = await consumer.getone()
            ends[aiokafka.TopicPartition(topic, one.partition)] = one.offset + 1
            show_record(one.partition, one.offset, one.key, one.value, one.headers)
        await consumer.commit(ends)


COMMANDS = {
    ("confluent-kafka", "produce"): confluent_produce,
    ("confluent-kafka", "consume"): confluent_consume,
    ("confluent-kafka", "admin"): confluent_admin,
    ("kafka-python", "produce"): kafka_python_produce,
    ("kafka-python", "consume"): kafka_python_consume,
    ("kafka-python", "admin"): kafka_python_admin,
    ("aiokafka", "produce"): lambda *words: asyncio.run(aiokafka_produce(*words)),
    ("aiokafka", "consume"): lambda *words: asyncio.run(aiokafka_consume(*words)),
}

if __name__ == "__main__":
    COMMANDS[sys.argv[1], sys.argv[2]](*sys.argv[3:])
