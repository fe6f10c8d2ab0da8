"""One picture from the answers of all brokers: the newest epoch, and in it the leader's word."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.administration.describe import APART_MS, common, merged
from raftlog.client.descriptions import FeatureDescription, FeatureVersions
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    BrokerStatus,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeEventsRequest,
    DescribeEventsResponse,
    EventStatus,
    PartitionPage,
    PartitionStatus,
    TopicSummary,
)
from raftlog.protocol.connection import Request
from raftlog.protocol.security import (
    ApiVersionRange,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FeatureRange,
)
from tests.client.test_fetcher import fill
from tests.client.world import Behaviour, FakeCluster, Peer, refuse, run
from tests.running import runs


def admin_of(fake: FakeCluster) -> AsyncAdmin:
    return AsyncAdmin(fake.bootstrap, host=fake.host)


def now() -> float:
    return asyncio.get_running_loop().time()


@runs(run, brokers=3)
async def test_every_broker_is_asked_and_the_leaders_word_counts(fake: FakeCluster) -> None:
    topic = fake.create("t", 2, leaders=[2, 3])
    fill(fake, 5)
    topic.logs[0].chain = 77
    topic.known_ends = {1: 3, 3: 4}
    topic.isr.remove(1)
    fake.racks = {2: "r"}
    async with admin_of(fake) as admin:
        found = await admin.describe_cluster()
        assert {broker for broker, m in fake.requests if type(m) is DescribeClusterRequest} == {
            1,
            2,
            3,
        }
    assert (found.cluster_id, found.controller) == ("fake", 1)
    assert [(b.id, b.host, b.rack, b.live, b.problem) for b in found.brokers] == [
        (1, "broker-1", None, True, ""),
        (2, "broker-2", "r", True, ""),
        (3, "broker-3", None, True, ""),
    ]
    assert found.brokers[1].directory_id == "directory-2"
    first, second = found.partitions
    assert (first.topic, first.partition, first.leader) == ("t", 0, 2)
    assert (second.partition, second.leader, second.is_available) == (1, 3, True)
    assert (first.leader_epoch, first.min_isr, first.high_watermark) == (3, 2, 5)
    assert first.is_available
    assert first.is_under_replicated
    assert first.is_at_min_isr
    states = [
        (s.broker, s.log_end_offset, s.lag_records, s.lag_ms, s.in_isr, s.chain)
        for s in first.replica_states
    ]
    assert states == [
        (1, 3, 2, 7, False, 77),
        (2, 5, 0, -1, True, 77),
        (3, 4, 1, 7, True, 77),
    ], "how far behind by the leader, the chain by each itself"


@runs(run, brokers=4)
async def test_a_broker_that_is_gone_or_stopped_is_told_of_and_not_waited_for(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t", leaders=[2])
    fill(fake, 5)
    topic.known_ends = {1: 3, 4: 4}
    fake.kill(2)
    fake.pause(3)
    async with admin_of(fake) as admin:
        start = now()
        found = await admin.describe_cluster()
        assert now() - start < 2.5
        assert [broker.live for broker in found.brokers] == [True, False, False, True]
        assert "refused" in found.brokers[1].problem
        assert "broker 3 at broker-3:9100 did not respond" in found.brokers[2].problem
        assert found.brokers[1].fenced
        (partition,) = found.partitions
        assert (partition.leader, partition.is_available) == (2, False)
        assert partition.high_watermark == 4, "of the replica that knows most"
        states = [(s.broker, s.log_end_offset, s.lag_ms) for s in partition.replica_states]
        assert states == [(1, 3, -1), (2, -1, -1), (3, -1, -1), (4, 4, -1)]


@runs(run, brokers=3)
async def test_a_broker_that_is_cut_off_does_not_hide_the_others(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fake.cut_off(1)
    topic.leaders[0] = 2
    async with admin_of(fake) as admin:
        found = await admin.describe_cluster()
        assert [broker.live for broker in found.brokers] == [True, True, True]
        assert (found.partitions[0].leader, found.partitions[0].leader_epoch) == (2, 4)


@runs(run, brokers=3)
async def test_the_newest_state_decides_which_brokers_there_are(fake: FakeCluster) -> None:
    """Broker 1 has just started, and not yet learned that broker 3 was removed; broker 3 runs."""

    def behave(peer: Peer, request: Request) -> None:
        answer = fake.describe(peer.broker_id, request.message)
        if peer.broker_id == 2:
            answer = replace(answer, version=8, brokers=answer.brokers[:2])
        peer.write(peer.state.reply(request, replace(answer, version=answer.version or 7)))

    fake.always[apis.DESCRIBE_CLUSTER] = behave
    async with admin_of(fake) as admin:
        assert [broker.id for broker in (await admin.describe_cluster()).brokers] == [1, 2]


@runs(run, brokers=2)
async def test_some_topics_or_none(fake: FakeCluster) -> None:
    fake.create("t")
    fake.create("u")
    async with admin_of(fake) as admin:
        found = await admin.describe_cluster(["u"])
        assert [partition.topic for partition in found.partitions] == ["u"]
        assert (await admin.describe_cluster(partitions=False)).partitions == ()
        with pytest.raises(UnknownTopicError, match="'v'"):
            await admin.describe_cluster(["u", "v"])
        with pytest.raises(TypeError):
            await admin.describe_cluster("u")


@runs(run)
async def test_nobody_answers(fake: FakeCluster) -> None:
    async with admin_of(fake) as admin:
        await admin.list_topics()
        fake.kill(1)
        with pytest.raises(BrokerUnavailableError):
            await admin.describe_cluster()


@runs(run, brokers=2)
async def test_a_broker_of_an_older_release_is_live(fake: FakeCluster) -> None:
    fake.create("t")
    fake.next(apis.DESCRIBE_CLUSTER, refuse(UnsupportedVersionError("too old")))
    async with admin_of(fake) as admin:
        found = await admin.describe_cluster()
        assert [(broker.live, broker.problem) for broker in found.brokers] == [
            (True, "too old"),
            (True, ""),
        ]


@runs(run, brokers=3)
async def test_topics_are_described_by_each_partitions_leader(fake: FakeCluster) -> None:
    topic = fake.create("t", 2, leaders=[2, 3], replicas=[2, 3])
    fill(fake, 5)
    fill(fake, 4, partition=1)
    topic.known_ends = {2: 1, 3: 1}
    fake.create("u", leaders=[3], replicas=[3])
    async with admin_of(fake) as admin:
        first, second = await admin.describe_topics()
        assert (first.name, second.name) == ("t", "u")
        assert [part.high_watermark for part in first.partitions] == [5, 4]
        assert [(part.leader, part.by_leader) for part in first.partitions] == [
            (2, True),
            (3, True),
        ]
        fake.kill(2)
        (first,) = await admin.describe_topics(["t"])
        assert [part.high_watermark for part in first.partitions] == [1, 4]
        assert [part.by_leader for part in first.partitions] == [False, True]


@runs(run, brokers=2)
async def test_a_part_of_the_partitions_is_described(fake: FakeCluster) -> None:
    """The fake lists all, as brokers of earlier releases do."""
    fake.create("t", 9)
    async with admin_of(fake) as admin:
        (topic,) = await admin.describe_topics(["t"], partitions=range(3, 6))
        assert [part.partition for part in topic.partitions] == [3, 4, 5]
        assert topic.partition_count == 9
        found = await admin.describe_cluster(["t"], partitions=range(7, 99_999))
        assert [part.partition for part in found.partitions] == [7, 8]
        assert (await admin.describe_cluster(["t"], partitions=range(9, 10))).partitions == ()
        for numbers in (range(0), range(5, 3), range(0, 9, 2), range(-1, 3)):
            with pytest.raises(InvalidRequestError, match="is not a range"):
                await admin.describe_topics(["t"], partitions=numbers)


@runs(run, brokers=2)
async def test_a_topic_that_one_broker_does_not_know_yet_is_described_by_the_others(
    fake: FakeCluster,
) -> None:
    fake.cut_off(2)
    fake.create("t")
    async with admin_of(fake) as admin:
        assert [topic.name for topic in await admin.describe_topics(["t"])] == ["t"]
        del fake.topics["t"]
        fake.rejoin(2)
        fake.create("u")
        fake.cut_off(2)
        del fake.topics["u"]
        assert await admin.describe_topics() == [], "the controller knows what there is"


def part_of(leader: int | None, number: int) -> PartitionStatus:
    return PartitionStatus(
        topic="t",
        topic_id="id",
        partition=number,
        leader=leader,
        leader_epoch=1,
        replicas=[1, 2],
        isr=[1],
        witnesses=[],
        elr=[],
        min_isr=1,
    )


def summary_of(
    broker: int,
    *topics: TopicSummary,
    page: Sequence[PartitionStatus] = (),
    **parts: PartitionStatus,
) -> Behaviour:
    """Answer with a summary by ``broker``."""
    status = BrokerStatus(
        id=broker,
        host=f"broker-{broker}",
        port=9100,
        directory_id="d",
        broker_epoch=broker,
        fenced=False,
        live=True,
        leads=4,
        replicas=6,
    )

    def behave(peer: Peer, request: Request) -> None:
        answer = DescribeClusterResponse(
            cluster_id="fake",
            controller=1,
            brokers=[status],
            partitions=list(parts.values()),
            topics=list(topics),
            page=list(page),
        )
        peer.write(peer.state.reply(request, answer))

    return behave


@runs(run, brokers=3)
async def test_a_summary_adds_what_each_leader_knows(fake: FakeCluster) -> None:
    def topic(led: int, **numbers: int) -> TopicSummary:
        return TopicSummary(topic="t", topic_id="id", partitions=10, led=led, **numbers)

    old = TopicSummary(topic="t", topic_id="deleted", partitions=99, led=99)
    behaviours = {
        1: summary_of(1, topic(4, records=5, end=7, under_replicated=1), a=part_of(2, 1)),
        2: summary_of(2, topic(3, records=1, end=1, at_min_isr=1), a=part_of(3, 2)),
        3: summary_of(3, old),
    }
    fake.always[apis.DESCRIBE_CLUSTER] = lambda peer, request: behaviours[peer.broker_id](
        peer, request
    )
    fake.kill(3)
    async with admin_of(fake) as admin:
        found = await admin.summarize_cluster()
    assert found.topics is not None
    (noted,) = found.topics
    assert (noted.name, noted.id, noted.partitions, noted.available, noted.unavailable) == (
        *("t", "id"),
        *(10, 7, 3),
    )
    assert (noted.records, noted.end, noted.under_replicated, noted.at_min_isr) == (6, 8, 1, 1)
    assert [
        (broker.id, broker.live, broker.leads, broker.replicas) for broker in found.brokers
    ] == [
        *((1, True, 4, 6), (2, True, 4, 6)),
        (3, False, None, None),
    ]
    # A leader that responds, and names no problem of the partition, leads it.
    assert [(each.partition, each.is_available) for each in found.partitions] == [
        *((1, True), (2, False))
    ]


@runs(run, brokers=2)
async def test_brokers_of_an_older_release_list_their_partitions(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fake.create("u")
    fill(fake, 5)
    async with admin_of(fake) as admin:
        found = await admin.summarize_cluster(1, skip=1, limit=1)
    assert found.topics is not None
    assert [
        (topic.name, topic.partitions, topic.available, topic.end) for topic in found.topics
    ] == [*(("t", 2, 2, 5), ("u", 1, 1, 0))]
    assert len(found.partitions) == 3
    assert found.page is not None
    assert found.page.total == 3
    assert [(each.topic, each.partition) for each in found.page.partitions] == [("t", 1)]


@runs(run, brokers=2)
async def test_a_page_of_the_partitions_of_one_broker(fake: FakeCluster) -> None:
    listed = {
        1: [part_of(1, 0), replace(part_of(2, 1), leader_epoch=3)],
        2: [part_of(1, 1), part_of(2, 2), part_of(2, 3)],  # topics of which are not deleted yet
    }
    asked: list[object] = []

    def behave(peer: Peer, request: Request) -> None:
        asked.append(request.message.page)
        summary_of(peer.broker_id, page=listed[peer.broker_id])(peer, request)

    fake.always[apis.DESCRIBE_CLUSTER] = behave
    async with admin_of(fake) as admin:
        page = (await admin.summarize_cluster(2, skip=4, limit=3)).page
        assert asked == [PartitionPage(broker=2, skip=4, limit=3)] * 2
        assert (await admin.summarize_cluster()).page is None
        for skip, limit in ((-1, 1), (0, 0), (0, 201)):
            with pytest.raises(InvalidRequestError, match="is not from"):
                await admin.summarize_cluster(2, skip=skip, limit=limit)
    assert page is not None
    assert (page.skip, page.total) == (4, 6)
    assert [(each.partition, each.leader, each.is_available) for each in page.partitions] == [
        *((0, 1, True), (1, 2, True), (2, 2, True))
    ]


# -- describe events -------------------------------------------------------------------------------
#
# Events of all brokers: each once, in order of time.


def event(at_ms: int, **fields: Any) -> EventStatus:
    standard = {"kind": "leader-elected", "text": "x", "version": 1, "topic": "t", "partition": 0}
    return EventStatus(at_ms=at_ms, **(standard | fields))


def test_the_same_event_of_several_brokers_is_one_with_the_earliest_time() -> None:
    found = merged([event(12), event(10), event(11), event(9, kind="isr-shrunk")])
    assert [(one.at_ms, one.kind) for one in found] == [(9, "isr-shrunk"), (10, "leader-elected")]


@pytest.mark.parametrize(
    "other",
    [{"version": 2}, {"partition": 1}, {"topic_id": "new"}, {"leader_epoch": 3}],
)
def test_other_events_stay_apart(other: dict[str, Any]) -> None:
    assert len(merged([event(1), event(1, **other)])) == 2


def test_an_event_of_a_broker_has_no_partition() -> None:
    fenced = {"kind": "broker-fenced", "topic": "", "partition": None}
    found = merged([event(1, broker=1, **fenced), event(2, broker=2, **fenced)])
    assert [(one.topic, one.partition, one.broker) for one in found] == [
        (None, None, 1),
        (None, None, 2),
    ]


def tell(peer: Peer, request: Request) -> None:
    """Each broker has one event that all have, and one of which only this broker knows."""
    assert isinstance(request.message, DescribeEventsRequest)
    since_ms = request.message.since_ms + APART_MS
    own = event(since_ms + peer.broker_id, version=peer.broker_id)
    shared = event(since_ms + 10 * peer.broker_id, version=9)
    slow = event(since_ms + (1 if peer.broker_id == 2 else -1), version=8)
    message = DescribeEventsResponse(events=[own, shared, slow])
    peer.write(peer.state.reply(request, message, ()))


@runs(run, brokers=3)
async def test_every_broker_is_asked_and_one_that_is_down_is_left_out(fake: FakeCluster) -> None:
    fake.always[apis.DESCRIBE_EVENTS] = tell
    fake.kill(3)
    async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
        since_ms = 10 + APART_MS
        found = await admin.describe_events(since_ms - 9)
        assert [one.at_ms - APART_MS for one in found] == [2, 3, 11]
        found = await admin.describe_events(since_ms)
        assert [one.at_ms - APART_MS for one in found] == [11, 12, 20]


@runs(run)
async def test_without_any_response_it_fails(fake: FakeCluster) -> None:
    fake.always[apis.DESCRIBE_EVENTS] = refuse(UnsupportedVersionError("too old"))
    async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
        with pytest.raises(UnsupportedVersionError):
            await admin.describe_events()
        with pytest.raises(InvalidRequestError, match="since_ms"):
            await admin.describe_events(-1)


# -- describe features -----------------------------------------------------------------------------
#
# Versions that brokers report, and what they have in common.


OLD, NEW = FeatureVersions(1, 1, 1), FeatureVersions(1, 2, 2)


def of(*reported: FeatureVersions | None) -> FeatureDescription:
    (found,) = common([{} if each is None else {"f": each} for each in reported])
    return found


def test_the_versions_in_common_are_those_that_all_read() -> None:
    assert of(NEW, NEW) == FeatureDescription("f", 1, 2, 2, compatible=True)
    assert of(OLD, NEW) == FeatureDescription("f", 1, 1, None, compatible=False)
    prepared = FeatureVersions(1, 2, 1)  # reads the new version, and still writes the old one
    assert of(OLD, prepared) == FeatureDescription("f", 1, 1, 1, compatible=True)
    assert of(prepared, NEW) == FeatureDescription("f", 1, 2, None, compatible=True)
    assert of(OLD, FeatureVersions(2, 2, 2)) == FeatureDescription(
        "f", 2, 1, None, compatible=False
    )


def test_a_broker_without_the_feature_leaves_no_level() -> None:
    assert of(NEW, None) == FeatureDescription("f", 1, 2, None, compatible=True)


def respond(peer: Peer, request: Request) -> None:
    assert isinstance(request.message, ApiVersionsRequest)
    assert request.message.client_id == "ops"  # the broker's log continues to name the client
    message = ApiVersionsResponse(
        broker_software=f"raftlog {peer.broker_id}",
        broker_id=peer.broker_id,
        cluster_id="c",
        apis=[ApiVersionRange(api=0, version_min=0, version_max=1)],
        features=[FeatureRange(name="f", version_min=1, version_max=2, level=peer.broker_id)],
    )
    peer.write(peer.state.reply(request, message, ()))


@runs(run, brokers=3)
async def test_every_broker_is_asked(fake: FakeCluster) -> None:
    async with AsyncAdmin(fake.bootstrap, host=fake.host, client_id="ops") as admin:
        await admin.describe_cluster(partitions=False)  # connects to all: handshakes as usual
        fake.always[apis.API_VERSIONS] = respond
        fake.kill(3)
        found = await admin.describe_features()
    assert [(each.id, each.software) for each in found.brokers] == [
        (1, "raftlog 1"),
        (2, "raftlog 2"),
        (3, ""),
    ]
    assert found.brokers[2].problem
    assert found.features == (FeatureDescription("f", 1, 2, None, compatible=True),)
    assert found.apis == (FeatureDescription("api_versions", 0, 1, 1, compatible=True),)
