"""Events of the audit: what is noted, what is dropped, and that nothing waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import BrokerUnavailableError
from raftlog.kafka import api as kafka_apis
from raftlog.kafka import codec
from raftlog.protocol.records import CreateTopicsRequest, TopicToCreate
from raftlog.protocol.security import CreateAclsRequest
from raftlog.record import decode_lists, split
from raftlog.security.acl import Acl
from raftlog.server.access.audit import RETRY_SECONDS, Audit, resources_of
from raftlog.server.metrics import Counters
from tests.client.virtual import VirtualLoop


class Log:
    """Stores what it gets, after some errors."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.events: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    async def write(self, batch: bytes) -> None:
        if self.errors:
            raise self.errors.pop(0)
        (one,) = split(batch)
        values = [json.loads(value) for value in decode_lists(one).values if value is not None]
        self.events += values
        self.sizes.append(len(values))


def audit(log: Log) -> Audit:
    loop = asyncio.get_running_loop()
    return Audit(loop, log, broker_id=1, counters=Counters(), wall_ms=lambda: 7, now=loop.time)


def dropped(of: Audit) -> int:
    return of._counters.audit_dropped


def note(of: Audit, resource: str = "t", count: int = 1) -> None:
    for _ in range(count):
        of.note(
            "denial",
            principal="User:alice",
            host="::1",
            request="fetch",
            resources=[resource] * 30,
            outcome="AccessDeniedError",
        )


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(test())


def test_events_are_written_together() -> None:
    async def test() -> None:
        log = Log()
        made = audit(log)
        note(made, count=2)
        assert log.events == []
        await asyncio.sleep(1)
        assert log.sizes == [2]
        assert log.events[0] == {
            "at_ms": 7,
            "broker": 1,
            "kind": "denial",
            "principal": "User:alice",
            "host": "::1",
            "request": "fetch",
            "resources": ["t"] * limits.AUDIT_RESOURCES_MAX,
            "outcome": "AccessDeniedError",
        }
        note(made)
        await made.stop()
        await asyncio.sleep(1)
        assert log.sizes == [2]

    run(test)


def test_a_failed_batch_is_written_again() -> None:
    async def test() -> None:
        log = Log(BrokerUnavailableError("not now"), BrokerUnavailableError("not now"))
        made = audit(log)
        note(made)
        await asyncio.sleep(1)
        note(made)
        await asyncio.sleep(RETRY_SECONDS)
        assert log.events == []
        await asyncio.sleep(RETRY_SECONDS)
        assert log.sizes == [2]
        assert dropped(made) == 0

    run(test)


def test_events_that_cannot_be_written_do_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        log = Log(ValueError("a bug"))
        made = audit(log)
        note(made)
        await asyncio.sleep(1)
        assert dropped(made) == 1
        note(made, "after")
        await asyncio.sleep(1)
        assert log.events[0]["resources"][0] == "after"

    run(test)
    assert "a bug" in caplog.text


def test_events_are_bounded_and_dropped_ones_are_counted() -> None:
    """Per second, and in memory while the topic has no leader."""

    async def test() -> None:
        per_s, pending_max = int(limits.AUDIT_EVENTS_PER_S), limits.AUDIT_EVENTS_PENDING_MAX
        log = Log(*[BrokerUnavailableError("not now")] * 100)
        made = audit(log)
        note(made, count=1_000)
        assert dropped(made) == 1_000 - per_s - 1
        for _ in range(20):
            await asyncio.sleep(1)
            note(made, "x" * 1_000, count=per_s)
        assert dropped(made) >= 1_000 + 20 * per_s - pending_max - per_s
        log.errors.clear()
        await asyncio.sleep(60)
        assert len(log.events) == pending_max
        assert max(log.sizes) == limits.AUDIT_EVENTS_PER_BATCH

    run(test)


def test_a_request_is_shown_by_the_names_in_it() -> None:
    acl = Acl("User:a", "READ", "TOPIC", "t")
    assert resources_of(CreateAclsRequest(acls=[acl])) == ["ALLOW User:a READ on TOPIC 't'"]
    topics = [TopicToCreate(name=name, config={"secret": "x"}) for name in ("a", "b")]
    assert resources_of(CreateTopicsRequest(topics=topics)) == ["a", "b"]
    structs = codec.structs("request", kafka_apis.DELETE_TOPICS.key)
    assert resources_of(structs.root(topic_names=["a"])) == ["a"]
    structs = codec.structs("request", kafka_apis.INCREMENTAL_ALTER_CONFIGS.key)
    resource = structs.AlterConfigsResource(resource_type=2, resource_name="t")
    assert resources_of(structs.root(resources=[resource])) == ["t"]
