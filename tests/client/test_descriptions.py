"""Answers of brokers and of the schema registry become plain values, or errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import Acl, AclFilter, Admin, NewTopic, Producer, QuotaEntity, limits
from raftlog.client.administration.admin import AsyncAdmin, windows
from raftlog.client.administration.security import alteration, checked, decision, parts, selected
from raftlog.client.descriptions import (
    PartitionDescription,
    PartitionOverview,
    ProducerPage,
    RecoveredPartition,
    RecoveryDescription,
    TopicDescription,
    recovery_description,
    topic_description,
)
from raftlog.client.registry import path_of
from raftlog.clock import SystemClock
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    NotLeaderError,
    SchemaError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.cluster import RecoverClusterResponse
from raftlog.protocol.cluster import RecoveredPartition as WireRecovered
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    ListedProducer,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
    PartitionInfo,
)
from raftlog.protocol.schema import Failure
from raftlog.protocol.security import CheckAclResponse
from raftlog.security.producer_ids import named_id
from raftlog.testing import cluster
from raftlog.types import TopicPartition
from tests.client.world import FakeCluster, Peer
from tests.client.world import run as run_fake
from tests.server.harness import running

# -- topics and the cluster ------------------------------------------------------------------------

# Answers about topics and the cluster become plain values.


def test_a_topic() -> None:
    info = PartitionInfo(
        partition=2, leader=None, leader_epoch=4, replicas=[1, 2], isr=[2], witnesses=[3]
    )
    found = topic_description(
        records.TopicDescription(
            name="t",
            id="x",
            config={"retention.ms": "5"},
            config_overrides=["retention.ms"],
            is_internal=True,
            partition_count=1,
            partitions=[
                records.PartitionDescription(
                    info=info,
                    log_start_offset=1,
                    high_watermark=2,
                    log_end_offset=3,
                    size_bytes=4,
                    damage="bad",
                )
            ],
        )
    )
    partition = PartitionDescription(2, None, 4, (1, 2), (2,), (3,), 1, 2, 3, 4, "bad")
    assert found == TopicDescription(
        "t",
        "x",
        {"retention.ms": "5"},
        ("retention.ms",),
        (partition,),
        is_internal=True,
        partition_count=1,
    )


def overview(isr: tuple[int, ...], min_isr: int) -> PartitionOverview:
    return PartitionOverview("t", "x", 0, 1, 4, (1, 2, 3), isr, (), (), min_isr, True, 0, 9, (), "")


def test_how_a_partition_is_doing() -> None:
    assert not overview((1, 2, 3), 2).is_under_replicated
    assert not overview((1, 2, 3), 2).is_at_min_isr
    assert overview((1, 2), 2).is_under_replicated
    assert overview((1, 2), 2).is_at_min_isr


def test_a_recovery() -> None:
    response = RecoverClusterResponse(
        partitions=[
            WireRecovered(topic="t", partition=1, leader=2, log_end_offset=7, note="led by 2"),
            WireRecovered(topic="t", partition=3, may_lose=True, lost=4, note="led by 3"),
            WireRecovered(
                topic="t", partition=2, failure=Failure.of(BrokerUnavailableError("not settled"))
            ),
        ],
        cluster_note="2 votes alone",
    )
    assert recovery_description(response) == RecoveryDescription(
        (
            RecoveredPartition("t", 1, 2, 7, "led by 2", ""),
            RecoveredPartition("t", 3, None, -1, "led by 3", "", may_lose=True, lost=4),
            RecoveredPartition("t", 2, None, -1, "", "not settled"),
        ),
        "2 votes alone",
    )


# -- access ----------------------------------------------------------------------------------------
#
# Access rules and quotas of the admin client: what is refused before a request is sent.


ACL = Acl("User:alice", "READ", "TOPIC", "t")


@pytest.mark.parametrize("acls", [ACL, ["a rule"]])
def test_what_is_no_list_of_rules_is_refused(acls: Any) -> None:
    with pytest.raises(TypeError):
        checked(acls)


def test_rules_are_checked_and_sent_in_parts() -> None:
    with pytest.raises(InvalidRequestError, match="not a principal"):
        checked([ACL, Acl("alice", "READ", "TOPIC", "t")])
    rules = [ACL] * (limits.ACLS_PER_REQUEST_MAX + 1)
    assert [len(part) for part in parts(checked(rules))] == [limits.ACLS_PER_REQUEST_MAX, 1]


def test_the_number_of_filters_is_bounded() -> None:
    assert selected([AclFilter()]) == [AclFilter()]
    for filters in ([], [AclFilter()] * (limits.ACL_FILTERS_PER_REQUEST_MAX + 1)):
        with pytest.raises(InvalidRequestError, match="1 to 100"):
            selected(filters)
    with pytest.raises(TypeError):
        selected(AclFilter())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "1 to 1000"),
        ({QuotaEntity(): {}, QuotaEntity("a"): {"connections": 0.0}}, "above 0"),
        ({QuotaEntity(None, "c"): {"connections": 1.0}}, "has no connections"),
        ({QuotaEntity("a"): {"connections": float("inf")}}, "above 0"),
    ],
)
def test_limits_are_checked(changes: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        alteration(changes)


def test_a_decision_has_a_reason() -> None:
    assert decision(CheckAclResponse(is_allowed=False)).reason == "no rule applies"
    found = decision(CheckAclResponse(is_allowed=True, acl=ACL))
    assert found.reason == "ALLOW User:alice READ on TOPIC 't'"


# -- list producers --------------------------------------------------------------------------------
#
# Pages of producers over the partitions of a topic.


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(0, 60), st.integers(0, 60))
def test_windows_are_a_part_of_the_lists_in_a_row(counts: list[int], skip: int, limit: int) -> None:
    totals = {TopicPartition("t", number): count for number, count in enumerate(counts)}
    everything = [(tp, row) for tp, total in totals.items() for row in range(total)]
    found = [
        (tp, row)
        for tp, (first, count) in windows(totals, skip, limit).items()
        for row in range(first, first + count)
    ]
    assert found == everything[skip : skip + limit]


KNOWN = {0: [7, 8], 1: [], 2: [(1 << 62) + 1, 9, 7]}


def answering(peer: Peer, request: Request) -> None:
    """Partition 3 has no leader that responds."""
    asked = request.message
    assert isinstance(asked, ListProducersRequest)
    answers = []
    for part in asked.partitions:
        ids = KNOWN.get(part.partition)
        if ids is None:
            failure = Failure.of(NotLeaderError("no leader here"))
            answers.append(ListedProducers(topic="t", partition=part.partition, failure=failure))
            continue
        producers = [
            ListedProducer(
                producer_id=each,
                producer_epoch=1,
                last_sequence=number,
                last_offset=number,
                last_timestamp_ms=5,
            )
            for number, each in enumerate(ids)
        ]
        answers.append(
            ListedProducers(
                topic="t",
                partition=part.partition,
                total=len(ids),
                high_watermark=1,
                producers=producers[part.skip : part.skip + part.limit],
            )
        )
    peer.write(peer.state.reply(request, ListProducersResponse(partitions=answers)))


def page(partitions: list[int] | None = None, skip: int = 0, limit: int = 1_000) -> ProducerPage:
    async def test(fake: FakeCluster) -> ProducerPage:
        fake.create("t", 4)
        fake.always[apis.LIST_PRODUCERS] = answering
        async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
            return await admin.describe_producers("t", partitions, skip=skip, limit=limit)

    return run_fake(test)


def test_a_page_continues_in_the_next_partition() -> None:
    found = page(skip=1, limit=2)
    assert (found.skip, found.total) == (1, 5)
    assert [(each.partition, each.producer_id) for each in found.producers] == [
        (0, 8),
        (2, (1 << 62) + 1),
    ]
    assert [each.kind for each in found.producers] == ["idempotent", "named"]
    assert [each.state for each in found.producers] == ["uncommitted", "committed"]


def test_a_partition_without_a_leader_is_a_problem_of_its_own() -> None:
    found = page()
    assert len(found.producers) == found.total == 5
    assert list(found.problems) == [3]
    assert "no leader here" in found.problems[3]
    assert page([0, 1]).problems == {}


def test_arguments_are_checked() -> None:
    with pytest.raises(UnknownPartitionError):
        page([4])
    with pytest.raises(InvalidRequestError, match="limit"):
        page(limit=0)


@pytest.mark.integration
def test_producers_of_a_real_cluster(tmp_path: Path) -> None:
    with cluster(brokers=2, with_relays=False) as running, Admin(running.bootstrap) as admin:
        admin.create_topics([NewTopic("t", 3)])
        with Producer(running.bootstrap) as producer:
            for number in range(6):
                producer.send("t", b"x", partition=number % 3).result(30)
        found = admin.describe_producers("t")
        assert [each.partition for each in found.producers] == [0, 1, 2]
        assert {each.last_sequence for each in found.producers} == {1}
        assert {each.state for each in found.producers} == {"committed"}
        assert (found.total, found.problems) == (3, {})
        assert named_id("x") >= 1 << 62
        with pytest.raises(UnknownTopicError):
            admin.describe_producers("no-such")


# -- the schema registry ---------------------------------------------------------------------------

# Calls of the schema registry by a client: answers, and errors with the registry's code.


def test_answers_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of("subjects", "a/b c", "versions")
    assert path == "/subjects/a%2Fb%20c/versions"
    with pytest.raises(InvalidRequestError, match="surrogate"):
        path_of("subjects", "\udcff", "versions")
    with running(tmp_path, clock=SystemClock()) as broker, Admin(str(broker.address)) as admin:
        assert admin.call_schema_registry("POST", path, {"schema": '"int"'}) == {"id": 1}
        assert admin.call_schema_registry("GET", path + "/1/schema") == '"int"'
        query = {"deleted": "true", "subjectPrefix": "a/"}
        assert admin.call_schema_registry("GET", "/subjects", query=query) == ["a/b c"]
        of_schema = path_of("subjects", "schema")  # a subject, not the text of a schema
        admin.call_schema_registry("POST", f"{of_schema}/versions", {"schema": '"int"'})
        assert admin.call_schema_registry("POST", of_schema, {"schema": '"int"'})["version"] == 1
        admin.call_schema_registry("PUT", "/config/schema", {"compatibility": "FULL"})
        level = admin.call_schema_registry("GET", "/config/schema")
        assert level == {"compatibilityLevel": "FULL"}
        for call, code in ((("POST", path, {"schema": "{"}), 42201), (("GET", "/none"), 404)):
            with pytest.raises(SchemaError) as caught:
                admin.call_schema_registry(*call)
            assert caught.value.registry_code == code
        monkeypatch.setattr("raftlog.limits.SCHEMA_CALLS_WAITING_MAX", 0)
        with pytest.raises(BrokerUnavailableError, match="SCHEMA_CALLS_WAITING_MAX"):
            admin.call_schema_registry("GET", "/subjects")
