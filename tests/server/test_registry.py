"""The schema registry of a broker: answers are of the committed log, and no decision is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from raftlog import limits
from raftlog.clock import SystemClock
from raftlog.errors import (
    DiskFullError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    RecordSchemaError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProducePartition, ProduceRequest
from raftlog.registry.rest import Call
from raftlog.registry.values import with_id
from raftlog.server.registry import SchemaRegistry
from raftlog.types import SCHEMAS_TOPIC
from tests.record import batches
from tests.server.harness import TIMEOUT_S, Client, RunningBroker, batch_of, running


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running(tmp_path, clock=SystemClock()) as broker:
        yield broker


def registry_of(broker: RunningBroker) -> SchemaRegistry:
    return broker.broker.context.registry


def call(broker: RunningBroker, request: str, body: Any = None) -> Any:
    """Send "METHOD /path". Returns the content of the answer, or the code of its error."""
    method, _, path = request.partition(" ")
    content = b"" if body is None else json.dumps(body).encode()
    found = broker.await_(registry_of(broker).call(Call(method, path, {}, content)))
    decoded = json.loads(found.body)
    return decoded if found.status == 200 else decoded["error_code"]


def put(broker: RunningBroker, text: str) -> Any:
    return call(broker, f"POST /subjects/{text.strip(chr(34))}/versions", {"schema": text})


def test_a_broker_that_does_not_lead_answers_no_forwarded_call(broker: RunningBroker) -> None:
    with pytest.raises(NotLeaderError):  # the topic does not exist yet
        broker.await_(registry_of(broker).ask_leader(Call("GET", "/subjects")))
    assert call(broker, "GET /subjects") == []
    broker.await_(registry_of(broker).ask_leader(Call("GET", "/subjects")))


def test_a_decision_that_is_not_written_changes_nothing(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(broker, '"int"') == {"id": 1}
    host = broker.broker.context.topics.host(SCHEMAS_TOPIC, 0)

    def full(*_: Any) -> Any:
        raise DiskFullError("no space")

    monkeypatch.setattr("raftlog.server.registry.REPEAT_SECONDS", 0.2)
    with monkeypatch.context() as patched:
        patched.setattr(type(host), "append", full)
        assert put(broker, '"long"') == 50003
    assert call(broker, "GET /subjects") == ["int"]
    assert put(broker, '"string"') == {"id": 2}


def test_a_new_leadership_reads_the_log_again(broker: RunningBroker) -> None:
    assert put(broker, '"int"') == {"id": 1}
    before = broker.broker.context.registry._active
    assert before is not None
    broker.call(before.close)
    assert put(broker, '"long"') == {"id": 2}
    assert call(broker, "GET /subjects/int/versions/1")["id"] == 1
    with pytest.raises(NotLeaderError):
        broker.await_(before.call(Call("GET", "/schemas/ids/1")))


def test_writes_are_refused_while_nothing_can_be_committed(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert put(broker, '"int"') == {"id": 1}
    host = broker.broker.context.topics.host(SCHEMAS_TOPIC, 0)
    monkeypatch.setattr(type(host), "commit_problem", "too few brokers")
    active = registry_of(broker)._active
    assert active is not None
    with pytest.raises(NotEnoughReplicasError, match="too few brokers"):
        broker.await_(active.call(Call("DELETE", "/subjects/int")))
    assert call(broker, "GET /subjects") == ["int"]


def test_calls_have_a_limit(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCHEMA_CALLS_WAITING_MAX", 0)
    assert call(broker, "GET /subjects") == 50003


# -- checks of records -----------------------------------------------------------------------------


RECORD = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]})
GOOD, BAD = with_id(1, b"\x02"), with_id(1, b"\x80")  # one is no complete number


@pytest.fixture
def checked(broker: RunningBroker) -> Iterator[Client]:
    """Topics checked by ID and in full, and a schema of both."""
    with broker.client() as client:
        for topic, mode in (("by-id", "id"), ("in-full", "full")):
            assert client.create(topic, schema_validation=mode).failure is None
            body = {"schema": RECORD}
            assert call(broker, f"POST /subjects/{topic}-value/versions", body) == {"id": 1}
        assert put(broker, '"int"') == {"id": 2}
        yield client


def refusal(client: Client, topic: str, *values: bytes | None) -> str:
    """Why a batch is refused; "" if it is stored."""
    failure = client.produce(topic, batch_of(*values)).failure
    if failure is None:
        return ""
    assert isinstance(failure.to_error(), RecordSchemaError)
    return str(failure.message)


def test_ids_are_checked(checked: Client) -> None:
    assert refusal(checked, "by-id", GOOD, BAD, None) == ""
    assert "record 1 " in refusal(checked, "by-id", GOOD, b"plain")
    assert "no version of subject by-id-value" in refusal(checked, "by-id", with_id(2, b"\x02"))
    assert "Schema 99 not found" in refusal(checked, "by-id", GOOD, with_id(99, b""))


def test_values_are_checked(checked: Client) -> None:
    assert refusal(checked, "in-full", GOOD, None) == ""
    assert "record 1 " in refusal(checked, "in-full", GOOD, BAD)


def test_keys_are_checked(broker: RunningBroker, checked: Client) -> None:
    def refused(key: bytes | None, value: bytes | None) -> str:
        batch = batches.batch_of([value], keys=[key])
        failure = checked.produce("keyed", batch).failure
        return "" if failure is None else str(failure.message)

    checked.create("keyed", schema_validation_keys="full")
    assert call(broker, "POST /subjects/keyed-key/versions", {"schema": RECORD}) == {"id": 1}
    assert refused(GOOD, b"plain") == refused(None, b"plain") == refused(GOOD, None) == ""
    assert "schema.validation.keys=full: its key has no schema ID" in refused(b"plain", b"")
    assert "does not match its schema" in refused(BAD, b"")
    assert "no version of subject keyed-key" in refused(with_id(2, b"\x02"), b"")


@pytest.mark.parametrize(("strategy", "subject"), [("record", "n.S"), ("topic-record", "own-n.S")])
def test_subjects_can_have_the_name_of_the_type(
    broker: RunningBroker, checked: Client, strategy: str, subject: str
) -> None:
    checked.create("own", schema_validation="id", schema_subjects=strategy)
    schema = {"type": "record", "name": "S", "namespace": "n", "fields": []}
    body = {"schema": json.dumps(schema)}
    assert call(broker, "POST /subjects/other/versions", body) == {"id": 3}
    text = refusal(checked, "own", with_id(3, b""))
    assert f"schema 3 is no version of subject {subject}. Register it" in text
    assert call(broker, f"POST /subjects/{subject}/versions", body) == {"id": 3}
    assert refusal(checked, "own", with_id(3, b"")) == ""
    assert "of no named type" in refusal(checked, "own", with_id(2, b"\x02"))


def test_nothing_is_asked_while_the_schemas_are_known(
    broker: RunningBroker, checked: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refusal(checked, "by-id", GOOD) == ""
    monkeypatch.setattr(limits, "SCHEMA_CALLS_WAITING_MAX", 0)
    assert refusal(checked, "by-id", GOOD) == ""
    failure = checked.produce("in-full", batch_of(GOOD)).failure
    assert failure is not None
    assert isinstance(failure.to_error(), LeaderNotAvailableError)  # it can be sent again
    monkeypatch.setattr("raftlog.server.registry.KEPT_SECONDS", 0.0)
    broker.broker.context.registry.checks._known.clear()
    failure = checked.produce("by-id", batch_of(GOOD)).failure
    assert failure is not None


def test_a_mirror_copies_records_that_are_not_checked_here(checked: Client) -> None:
    batch = batch_of(b"plain")
    part = ProducePartition(topic="by-id", partition=0, length=len(batch), base_offset=0)
    request = ProduceRequest(acks=-1, partitions=[part])
    assert checked.ask(apis.PRODUCE, request, [batch]).partitions[0].failure is None


def test_kafka_clients_get_the_rows(broker: RunningBroker, checked: Client) -> None:
    errors: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": str(broker.address)})
    for value in (GOOD, b"plain"):
        producer.produce("by-id", value, callback=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT_S)
    assert errors[0] is None
    assert errors[1].code() == confluent_kafka.KafkaError.INVALID_RECORD


def test_a_topic_may_be_deleted_during_the_check_of_a_kafka_client(
    broker: RunningBroker, checked: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, the failed answer for one partition ended the whole request."""

    def check(topic: str, *_: object) -> None:
        broker.await_(broker.broker.context.cluster.topics.delete(topic, None))
        raise RecordSchemaError("no")

    monkeypatch.setattr(broker.broker.context.registry.checks, "check", check)
    errors: list[Any] = []
    checked.create("plain")
    settings = {"bootstrap.servers": str(broker.address), "linger.ms": 100}
    producer = confluent_kafka.Producer(settings)
    for topic in ("by-id", "plain"):
        producer.produce(topic, GOOD, callback=lambda error, _: errors.append(error))
    producer.flush(TIMEOUT_S)
    assert sorted(error.code() if error else 0 for error in errors) == [
        0,
        confluent_kafka.KafkaError.INVALID_RECORD,
    ]
