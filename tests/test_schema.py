"""Producers and consumers with ``raftlog.schema``: objects in, objects out, IDs in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import struct_pb2

import raftlog
from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.aio import AsyncConsumer, AsyncProducer
from raftlog.clock import SystemClock
from raftlog.errors import DeserializationError, SchemaError
from raftlog.schema import Avro, Json, Msgpack, Protobuf
from tests.server.harness import RunningBroker, running

FIRST = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
SECOND = json.dumps(
    {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 7}],
    }
)
PROTO = 'syntax = "proto3"; message M { int32 a = 1; }'


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running(tmp_path, clock=SystemClock()) as broker:
        with Admin(str(broker.address)) as admin:
            admin.create_topics([NewTopic("t", partitions=1)])
        yield broker


def write(broker: RunningBroker, form: Any, *values: Any) -> None:
    with Producer(str(broker.address), value_serializer=form) as producer:
        for value in values:
            producer.send("t", value).result(10)


def read(broker: RunningBroker, count: int, form: Any = None) -> list[Any]:
    with Consumer(str(broker.address), value_deserializer=form) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        found: list[Any] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(5_000)]
        return found


def test_avro_is_read_by_the_id_of_each_value(broker: RunningBroker) -> None:
    write(broker, Avro(FIRST), {"a": 1}, None)
    write(broker, Avro(SECOND), {"a": 2, "b": 3})
    write(broker, Avro(), {"a": 4, "b": 5})  # the latest version
    assert read(broker, 4)[0] == b"\0\0\0\0\1\2"
    assert read(broker, 4, Avro()) == [{"a": 1}, None, {"a": 2, "b": 3}, {"a": 4, "b": 5}]
    resolved = read(broker, 4, Avro(SECOND))
    assert resolved[0] == {"a": 1, "b": 7}  # with the default of the reader's schema


def test_a_scan_has_the_fields_of_the_latest_schema(broker: RunningBroker) -> None:
    pytest.importorskip("pyarrow")

    def scan(**settings: Any) -> raftlog.Scan:
        return raftlog.scan("t", bootstrap=str(broker.address), value="typed", **settings)

    with pytest.raises(SchemaError, match="raftlog schema put t-value"):
        scan()
    write(broker, Avro(FIRST), {"a": 1}, None)
    write(broker, Avro(SECOND), {"a": 2, "b": 3})
    made = scan(columns=["offset", "b", "a"])
    rows = {"offset": [0, 1, 2], "b": [7, None, 3], "a": [1, None, 2]}
    assert made.to_arrow().to_pydict() == rows
    write(broker, None, b"plain")
    assert made.to_arrow().num_rows == 3  # the offsets are those of its start
    with pytest.raises(DeserializationError, match=r"t:0: the value at offset 3 .*zero byte"):
        scan().to_arrow()
    assert scan(on_error="null").to_arrow().column("a").to_pylist() == [1, None, 2, None]
    query = scan(on_error="null").to_duckdb().aggregate("sum(a), max(b)")
    assert query.fetchall() == [(3, 7)]


def test_json_and_protobuf(broker: RunningBroker) -> None:
    write(broker, Json('{"type": "object"}', subject="j"), {"a": 1})
    write(broker, Protobuf(PROTO, subject="p"), {"a": 2})
    # The type is that of the schema: the format of the consumer only says how to read it.
    value, message = read(broker, 2, Json())
    assert (value, message.a) == ({"a": 1}, 2)


def test_generated_classes_of_protobuf(broker: RunningBroker) -> None:
    value = struct_pb2.Value(string_value="text")
    write(broker, Protobuf(struct_pb2.Value), value)
    assert read(broker, 1, Protobuf(struct_pb2.Value)) == [value]
    (message,) = read(broker, 1, Protobuf())
    assert message.DESCRIPTOR.full_name == "google.protobuf.Value"


def test_subjects_by_the_name_of_the_type(broker: RunningBroker) -> None:
    write(broker, Avro(FIRST, strategy="record"), {"a": 1})
    titled = Json('{"title": "T"}', strategy="topic-record")
    write(broker, titled, {"a": 2})
    proto = 'syntax = "proto3"; package p; ' + PROTO.partition(";")[2]
    write(broker, Protobuf(proto, strategy="record"), {"a": 3})
    write(broker, Protobuf(struct_pb2.Value, strategy="record"), struct_pb2.Value())
    with Admin(str(broker.address)) as admin:
        subjects = admin.call_schema_registry("GET", "/subjects")
    assert set(subjects) == {"R", "t-T", "p.M", "google.protobuf.Value"}
    for form, reason in ((Avro(strategy="record"), "pass"), (Json("{}", strategy="record"), "tit")):
        with pytest.raises(SchemaError, match=reason):
            write(broker, form, {"a": 1})
    with pytest.raises(ValueError, match=r"strategy='mine' is none of topic, record"):
        Avro(strategy="mine")


def test_a_topic_has_several_types_by_a_union_of_references(broker: RunningBroker) -> None:
    with Admin(str(broker.address)) as admin:
        for name in ("A", "B"):
            schema = {"type": "record", "name": name, "fields": [{"name": name, "type": "int"}]}
            body = {"schema": json.dumps(schema)}
            admin.call_schema_registry("POST", f"/subjects/{name}/versions", body)
    references = [("A", "A", 1), ("B", "B", 1)]
    write(broker, Avro('["A", "B"]', references=references), {"A": 1}, {"B": 2})
    assert read(broker, 2, Avro()) == [{"A": 1}, {"B": 2}]
    wanted = Avro('["B", "A"]', references=references)  # of a consumer
    assert read(broker, 2, wanted) == [{"A": 1}, {"B": 2}]


def test_messagepack_has_no_schema(broker: RunningBroker) -> None:
    write(broker, Msgpack(), {"a": [1, b"x", None]}, None)
    assert read(broker, 2, Msgpack()) == [{"a": [1, b"x", None]}, None]


def test_many_records_keys_and_subjects(broker: RunningBroker) -> None:
    form = {"key_serializer": Avro('"string"'), "value_serializer": Avro(FIRST)}
    with Producer(str(broker.address), **form) as producer:
        producer.send_many("t", [{"a": n} for n in range(3)], ["x", "y", "z"]).result(10)
        with pytest.raises(SchemaError, match="does not match"):
            producer.send("t", {"a": "text"}, "x")
    with Admin(str(broker.address)) as admin:
        assert admin.call_schema_registry("GET", "/subjects") == ["t-key", "t-value"]
    with Consumer(
        str(broker.address), key_deserializer=Avro(), value_deserializer=Avro()
    ) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        records = [next(consumer) for _ in range(3)]
    assert [(record.key, record.value) for record in records] == [
        ("x", {"a": 0}),
        ("y", {"a": 1}),
        ("z", {"a": 2}),
    ]


def test_what_cannot_be_written_fails_with_the_reason(broker: RunningBroker) -> None:
    for form, reason in ((Avro(FIRST, auto_register=False), "not found"), (Avro("{"), "Invalid")):
        with Producer(str(broker.address), value_serializer=form) as producer:
            for future in (producer.send("t", {"a": 1}), producer.send_many("t", [{"a": 1}])):
                with pytest.raises(SchemaError, match=reason):
                    future.result(10)
    with pytest.raises(TypeError, match="belongs to one client"):
        Avro(FIRST).for_client("value_serializer")(1)


def test_what_cannot_be_read_can_be_skipped(broker: RunningBroker) -> None:
    write(broker, None, b"plain", b"\0\0\0\0\x63x")
    write(broker, Avro(FIRST), {"a": 1})
    with Consumer(str(broker.address), value_deserializer=Avro()) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        for reason in ("does not begin with a zero byte", "Schema 99 not found"):
            with pytest.raises(DeserializationError, match=reason) as caught:
                consumer.poll(5_000)
            caught.value.skip()
        assert [record.value for record in consumer.poll(5_000)] == [{"a": 1}]


def test_asynchronous_clients(broker: RunningBroker) -> None:
    async def run() -> list[Any]:
        address = str(broker.address)
        async with AsyncProducer(address, value_serializer=Avro(FIRST)) as producer:
            await (await producer.send("t", {"a": 1}))
            await (await producer.send_many("t", [{"a": 2}, {"a": 3}]))
        async with AsyncConsumer(address, value_deserializer=Avro()) as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            await consumer.seek_to_beginning()
            first = [(await consumer.__anext__()).value for _ in range(2)]
        async with AsyncConsumer(address, value_deserializer=Avro()) as consumer:
            await consumer.assign([TopicPartition("t", 0)])
            await consumer.seek_to_beginning()
            return first + [record.value for record in await consumer.poll(5_000)]

    assert asyncio.run(run()) == [{"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}, {"a": 3}]


def test_the_module_is_a_public_name() -> None:
    assert raftlog.schema.Avro is Avro
