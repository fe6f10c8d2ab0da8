"""Pages of producers over the partitions of a topic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import Admin, NewTopic, Producer
from raftlog.client.administration.admin import AsyncAdmin, windows
from raftlog.client.descriptions import ProducerPage
from raftlog.errors import (
    InvalidRequestError,
    NotLeaderError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    ListedProducer,
    ListedProducers,
    ListProducersRequest,
    ListProducersResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.security.producer_ids import named_id
from raftlog.testing import cluster
from raftlog.types import TopicPartition
from tests.client.world import FakeCluster, Peer
from tests.client.world import run as run_fake


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
