"""The audit: its events, and the topic that they are written to."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidTopicError,
    LeaderNotAvailableError,
    NotLeaderError,
    RaftlogError,
    RecordTooLargeError,
)
from raftlog.kafka import api as kafka_apis
from raftlog.kafka import codec
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    AbortTransactionRequest,
    CreateTopicsRequest,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    TopicToCreate,
)
from raftlog.protocol.schema import Failure
from raftlog.protocol.security import CreateAclsRequest
from raftlog.record import decode_lists, split
from raftlog.security.acl import Acl
from raftlog.server.access.admission import ADMINISTRATION
from raftlog.server.access.audit import RETRY_SECONDS, Audit, resources_of
from raftlog.server.broker import AuditTopic
from raftlog.server.metrics import Counters
from raftlog.types import AUDIT_TOPIC
from tests.client.virtual import VirtualLoop
from tests.server.access.acting import acting, guarded
from tests.server.harness import Client, RunningBroker, batch_of, error_of

# -- events ----------------------------------------------------------------------------------------

# Events of the audit: what is noted, what is dropped, and that nothing waits for it.


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


def incompressible(chars: int, seed: int) -> str:
    numbers = random.Random(seed)
    return "".join(chr(numbers.randrange(0x4E00, 0x9FFF)) for _ in range(chars))


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


def test_events_that_are_too_large_together_are_written_apart() -> None:
    """Clients choose the names of resources. One batch over max.message.bytes held up
    all later events.
    """

    async def test() -> None:
        log = Log()
        made = audit(log)

        async def write(batch: bytes) -> None:
            if len(batch) > 4_000:
                raise RecordTooLargeError("over max.message.bytes")
            await Log.write(log, batch)

        cast(Any, log).write = write
        for number in range(9):
            note(made, incompressible(60, number))
        made.note("denial", principal=incompressible(5_000, 0), host="", request="fetch")
        note(made, "after")
        await asyncio.sleep(RETRY_SECONDS)
        assert len(log.events) == 10
        assert log.events[-1]["resources"][0] == "after"
        assert max(log.sizes) > 1
        assert dropped(made) == 1

    run(test)


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
    structs = codec.structs("request", kafka_apis.ELECT_LEADERS.key)
    elected = structs.TopicPartitions(topic="t", partitions=[0])
    assert resources_of(structs.root(topic_partitions=[elected])) == ["t"]
    structs = codec.structs("request", kafka_apis.ALTER_USER_SCRAM_CREDENTIALS.key)
    deletion, upsertion = structs.ScramCredentialDeletion, structs.ScramCredentialUpsertion
    changed = structs.root(deletions=[deletion(name="a")], upsertions=[upsertion(name="b")])
    assert resources_of(changed) == ["a", "b"]
    structs = codec.structs("request", kafka_apis.ALTER_CLIENT_QUOTAS.key)
    entity = [
        structs.EntityData(entity_type="user", entity_name="a"),
        structs.EntityData(entity_type="client-id", entity_name=None),
    ]
    assert resources_of(structs.root(entries=[structs.EntryData(entity=entity)])) == [
        "user a, client-id <default>"
    ]
    assert resources_of(AbortTransactionRequest(transactional_id="x")) == ["x"]


def test_administration_of_either_protocol_is_recorded() -> None:
    """What one protocol records, the other one does for the same change."""
    for names in (
        ("transfer_leader", "ElectLeaders"),
        ("reassign", "AlterPartitionReassignments"),
        ("upgrade_features", "UpdateFeatures"),
        ("abort_transaction", "WriteTxnMarkers"),
    ):
        assert set(names) <= ADMINISTRATION


# -- the topic -------------------------------------------------------------------------------------

# The topic of the audit: what a broker writes to it, itself or through the leader.


def events(broker: RunningBroker, client: Client, count: int) -> list[dict[str, Any]]:
    """The first events, once they are there."""
    topics = broker.broker.context.topics

    def is_there() -> bool:
        hosts = topics.hosts() if AUDIT_TOPIC in topics else []
        audits = [host for host in hosts if host.topic_partition.topic == AUDIT_TOPIC]
        return any(host.high_watermark >= count for host in audits)

    broker.wait_until(is_there)
    return [json.loads(value) for value in client.fetch(AUDIT_TOPIC)[1]]


def test_denials_and_administration_are_recorded(tmp_path: Path) -> None:
    acl = Acl("User:alice", "READ", "TOPIC", "u")
    with guarded(tmp_path) as broker, acting(broker, "admin") as admin:
        admin.create("t")
        with acting(broker, "alice") as alice:
            alice.fetch("t")
            with pytest.raises(RaftlogError):
                alice.ask(apis.CREATE_ACLS, CreateAclsRequest(acls=[acl]))
        bad = Acl("alice", "READ", "TOPIC", "u")
        with pytest.raises(RaftlogError):
            admin.ask(apis.CREATE_ACLS, CreateAclsRequest(acls=[bad]))
        found = events(broker, admin, 4)
    shown = [
        (event["kind"], event["principal"], event["request"], event["resources"], event["outcome"])
        for event in found
    ]
    assert shown == [
        ("administration", "User:admin", "create_topics", ["t"], "ok"),
        ("denial", "User:alice", "fetch", ["READ TOPIC t"], "AccessDeniedError"),
        (
            "denial",
            "User:alice",
            "create_acls",
            ["ALTER CLUSTER kafka-cluster"],
            "AccessDeniedError",
        ),
        ("administration", "User:admin", "create_acls", [str(bad)], "InvalidRequestError"),
    ]
    assert {event["host"] for event in found} == {"127.0.0.1"}


def test_clients_cannot_write_to_it(broker: RunningBroker, client: Client) -> None:
    """Only another broker can."""
    refused = client.produce(AUDIT_TOPIC, batch_of(b"forged"))
    assert isinstance(error_of(refused), InvalidTopicError)


class Links:
    """To one other broker, which leads the topic."""

    def __init__(self, failure: Failure | None) -> None:
        self.failure = failure
        self.sent: list[tuple[int, ProduceRequest, list[bytes]]] = []

    async def request(
        self, broker_id: int, api: Any, message: ProduceRequest, attachment: list[bytes]
    ) -> Any:
        assert api is apis.PRODUCE
        self.sent.append((broker_id, message, attachment))
        part = ProducedPartition(topic=AUDIT_TOPIC, partition=0, failure=self.failure)
        return SimpleNamespace(message=ProduceResponse(partitions=[part]))


def topic(links: Links, leader: int | None) -> AuditTopic:
    info = SimpleNamespace(leader=leader)
    topics = SimpleNamespace(get=lambda _name: "topic", info=lambda _topic, _index: info)
    cluster = SimpleNamespace(links=links)
    context = SimpleNamespace(topics=topics, broker_id=1, cluster=cluster)
    return AuditTopic(cast(Any, context))


def test_another_broker_leads_it() -> None:
    links = Links(None)
    asyncio.run(topic(links, 2).write(b"batch"))
    ((broker_id, request, attachment),) = links.sent
    assert (broker_id, attachment) == (2, [b"batch"])
    assert (request.acks, request.partitions[0].length) == (-1, 5)
    with pytest.raises(NotLeaderError):
        asyncio.run(topic(Links(Failure.of(NotLeaderError("moved"))), 2).write(b"batch"))
    with pytest.raises(LeaderNotAvailableError):
        asyncio.run(topic(links, None).write(b"batch"))
