"""The schema registry of a broker: answers are of the committed log, and no decision is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.clock import SystemClock
from raftlog.errors import DiskFullError, NotEnoughReplicasError, NotLeaderError
from raftlog.registry.rest import Call
from raftlog.server.registry import SchemaRegistry
from raftlog.types import SCHEMAS_TOPIC
from tests.server.harness import RunningBroker, running


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
    monkeypatch.setattr(type(host), "obstacle", "too few brokers")
    active = registry_of(broker)._active
    assert active is not None
    with pytest.raises(NotEnoughReplicasError, match="too few brokers"):
        broker.await_(active.call(Call("DELETE", "/subjects/int")))
    assert call(broker, "GET /subjects") == ["int"]


def test_calls_have_a_limit(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCHEMA_CALLS_WAITING_MAX", 0)
    assert call(broker, "GET /subjects") == 50003
