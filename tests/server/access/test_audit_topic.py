"""The topic of the audit: what a broker writes to it, itself or through the leader."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.errors import InvalidTopicError, LeaderNotAvailableError, NotLeaderError, RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.records import ProducedPartition, ProduceRequest, ProduceResponse
from raftlog.protocol.schema import Failure
from raftlog.protocol.security import CreateAclsRequest
from raftlog.security.acl import Acl
from raftlog.server.broker import AuditTopic
from raftlog.types import AUDIT_TOPIC
from tests.server.access.acting import acting, guarded
from tests.server.harness import Client, RunningBroker, batch_of, error_of


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
