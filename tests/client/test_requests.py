"""Roads to the leaders: opened once, retried with pauses, full when they are."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.connection import Answer
from raftlog.client.requests import (
    BrokerConnection,
    BrokerConnections,
    InFlightRequest,
    delete_records,
    describe_producer,
    list_offsets,
    replica_offsets,
    try_offsets,
)
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ConnectionLostError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RaftlogError,
    RequestTimedOutError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    DeletedRecords,
    DeleteRecordsResponse,
    FetchRequest,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetAnswer,
)
from raftlog.protocol.schema import Failure
from raftlog.types import TopicPartition
from tests.client.named import ID, describe
from tests.client.samples import stored_batch
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import Rig, failing, fill, now
from tests.client.test_subscription import A
from tests.client.world import (
    FakeCluster,
    Peer,
    answer_with,
    do_and_vanish,
    ignore,
    refuse,
    run,
    vanish,
)
from tests.running import runs


class Owner:
    """Notes what becomes of its loads, which are numbers, and when something changed."""

    def __init__(self, noted: list[float]) -> None:
        self.noted = noted
        self.responses: list[int] = []
        self.failures: list[tuple[int, RaftlogError]] = []

    def on_change(self) -> None:
        self.noted.append(broker_connections_now())

    def on_response(self, link: BrokerConnection[int], load: int, answer: Answer) -> None:
        assert isinstance(answer.message, MetadataResponse)
        self.responses.append(load)

    def on_failure(self, link: BrokerConnection[int], load: int, error: RaftlogError) -> None:
        self.failures.append((load, error))


async def links_of(
    fake: FakeCluster, noted: list[float], owner: Owner | None = None
) -> BrokerConnections[int]:
    cluster = cluster_of(fake)
    await cluster.topic("t")
    return BrokerConnections(
        cluster, owner or Owner(noted), now=fake.host.clock.monotonic, in_flight_max=2
    )


def send(links: BrokerConnections[int], link: BrokerConnection[int], load: int = 0) -> bool:
    connection = links.connection(link, broker_connections_now())
    assert connection is not None
    return links.send(link, connection, load, apis.METADATA, MetadataRequest(topics=[]))


def broker_connections_now() -> float:
    return asyncio.get_running_loop().time()


@runs(run, brokers=2)
async def test_a_road_is_opened_once_and_told_of(fake: FakeCluster) -> None:
    fake.create("t", leaders=[2])
    noted: list[float] = []
    owner = Owner(noted)
    links = await links_of(fake, noted, owner)
    link = links.link(2)
    assert links.connection(link, broker_connections_now()) is None
    assert links.connection(link, broker_connections_now()) is None
    assert links.retry_at(link, broker_connections_now()) is None, "it is told"
    await asyncio.sleep(0.01)
    assert len(noted) == 1
    connection = links.connection(link, broker_connections_now())
    assert connection is not None
    assert fake.connects.count("broker-2") == 1
    assert all(send(links, link, load) for load in (7, 8))
    assert [request.load for request in links.in_flight()] == [7, 8]
    assert links.connection(link, broker_connections_now()) is None, "two are in flight"
    await asyncio.sleep(0.01)
    assert (owner.responses, list(links.in_flight())) == ([7, 8], [])
    connection.writable = False
    assert links.connection(link, broker_connections_now()) is None
    connection.resume_writing()
    assert len(noted) == 2
    assert links.connection(link, broker_connections_now()) is connection
    await links.close()


@runs(run, brokers=2)
async def test_a_road_that_cannot_be_opened_is_tried_again_later(fake: FakeCluster) -> None:
    fake.create("t", leaders=[2])
    noted: list[float] = []
    links = await links_of(fake, noted)
    fake.down.add(2)
    link = links.link(2)
    for attempt in range(1, 4):
        assert links.connection(link, broker_connections_now()) is None
        await asyncio.sleep(0.001)
        assert link.failures == attempt
        assert isinstance(link.error, BrokerUnavailableError)
        retry_at = links.retry_at(link, broker_connections_now())
        assert retry_at is not None
        assert links.connection(link, broker_connections_now()) is None
        assert fake.connects.count("broker-2") == attempt, "not before"
        await asyncio.sleep(retry_at - broker_connections_now() + 0.001)
    fake.down.clear()
    links.connection(link, broker_connections_now())
    await asyncio.sleep(0.01)
    assert links.connection(link, broker_connections_now()) is not None
    assert (link.failures, link.error) == (0, None)
    assert len(fake.asked(MetadataRequest)) > 1, "its partitions may have moved"
    await links.close()


@runs(run)
async def test_metadata_is_refreshed_with_pauses_until_something_succeeds(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    links = await links_of(fake, [])
    before = len(fake.asked(MetadataRequest))
    for _ in range(100):
        links.refresh()
        await asyncio.sleep(0.01)
    asked = len(fake.asked(MetadataRequest)) - before
    assert 2 < asked < 15
    links.succeeded()
    await asyncio.sleep(1)
    assert links.refresh() is None
    assert links.refresh() is None, "one is under way"
    await links.close()


@runs(run)
async def test_a_refresh_that_fails_leaves_its_reason(fake: FakeCluster) -> None:
    fake.create("t")
    noted: list[float] = []
    links = await links_of(fake, noted)
    fake.kill(1)
    links.refresh()
    await asyncio.sleep(0.01)
    assert isinstance(links.error, BrokerUnavailableError)
    assert noted
    fake.down.clear()
    await asyncio.sleep(2)
    links.refresh()
    await asyncio.sleep(0.01)
    assert links.error is None
    await links.close()


@runs(run, brokers=2)
async def test_closing_ends_what_is_under_way(fake: FakeCluster) -> None:
    fake.create("t", leaders=[2])
    links = await links_of(fake, [])
    fake.next(apis.API_VERSIONS, ignore)
    links.connection(links.link(2), broker_connections_now())
    await asyncio.sleep(0.01)
    await links.close()
    await links.close()


@runs(run, brokers=2)
async def test_a_broker_that_says_nothing_is_noticed_and_others_are_asked(
    fake: FakeCluster,
) -> None:
    fake.create("t", leaders=[1])
    noted: list[float] = []
    links = await links_of(fake, noted)
    link = links.link(1)
    fake.pause(1)
    send(links, link)
    start, asked = broker_connections_now(), len(fake.asked(MetadataRequest))
    assert (len(link.in_flight), link.is_overdue(broker_connections_now())) == (1, False)
    await asyncio.sleep(0.9)
    assert not noted
    assert links.is_usable(1, broker_connections_now())
    await asyncio.sleep(0.2)
    assert link.is_overdue(broker_connections_now())
    assert not links.is_usable(1, broker_connections_now())
    assert noted[0] == pytest.approx(start + 1, abs=0.01)
    await asyncio.sleep(5)
    assert 5 < len(fake.asked(MetadataRequest)) - asked < 15, "while it lasts"
    assert {broker for broker, _ in fake.requests[asked:]} == {2}
    fake.resume(1)
    await asyncio.sleep(0.01)
    assert (len(link.in_flight), link.is_overdue(broker_connections_now())) == (0, False)
    assert links.is_usable(1, broker_connections_now())
    noted.clear()
    await asyncio.sleep(5)
    assert len(noted) <= 1
    await links.close()


@runs(run)
async def test_a_wait_that_was_asked_for_is_no_silence(fake: FakeCluster) -> None:
    fake.create("t")
    links = await links_of(fake, [])
    link = links.link(1)
    connection = links.connection(link, broker_connections_now())
    assert connection is not None
    requests: list[InFlightRequest[int]] = []

    def ask(wait_ms: int) -> None:
        fake.next(apis.METADATA, ignore)
        message = MetadataRequest(topics=[])
        links.send(link, connection, 0, apis.METADATA, message, wait_ms=wait_ms)
        requests.append(list(link.in_flight)[-1])

    ask(3_000)
    await asyncio.sleep(0.5)
    ask(3_000)
    assert (
        link.overdue_at == requests[0].overdue_at == pytest.approx(broker_connections_now() + 3.5)
    )
    del link.in_flight[requests[0]]
    assert link.overdue_at == requests[1].overdue_at
    del link.in_flight[requests[1]]
    assert link.overdue_at == math.inf
    ask(3_000)
    ask(0)
    assert link.overdue_at == requests[3].overdue_at == pytest.approx(broker_connections_now() + 1)
    del link.in_flight[requests[3]]
    assert link.overdue_at == requests[2].overdue_at
    link.in_flight.clear()
    await links.close()


@runs(run, brokers=2)
async def test_a_broker_that_cannot_be_reached_is_not_usable_and_comes_back(
    fake: FakeCluster,
) -> None:
    fake.create("t", leaders=[2])
    noted: list[float] = []
    links = await links_of(fake, noted)
    fake.unreachable = {2}
    link = links.link(2)
    assert links.is_usable(2, broker_connections_now()), "nothing is known of it"
    links.connection(link, broker_connections_now())
    assert links.is_usable(2, broker_connections_now()), "it may take a moment"
    await asyncio.sleep(1.1)
    assert not links.is_usable(2, broker_connections_now())
    assert noted, "somebody may want to turn to another"
    await asyncio.sleep(10)
    assert link.failures == 1
    fake.unreachable = set()
    await asyncio.sleep(2)
    links.connection(link, broker_connections_now())
    await asyncio.sleep(0.1)
    assert links.is_usable(2, broker_connections_now())
    await links.close()


@runs(run)
async def test_a_road_that_is_lost_is_a_reason_to_ask_who_leads(fake: FakeCluster) -> None:
    fake.create("t")
    links = await links_of(fake, [])
    link = links.link(1)
    assert links.connection(link, broker_connections_now()) is not None
    asked = len(fake.asked(MetadataRequest))
    fake.peers[0].transport.abort()
    await asyncio.sleep(0.01)
    links.connection(link, broker_connections_now())
    await asyncio.sleep(0.01)
    assert len(fake.asked(MetadataRequest)) == asked + 1
    assert links.connection(link, broker_connections_now()) is not None
    await links.close()


@runs(run)
async def test_a_request_that_fails_makes_its_broker_doubtful_and_its_load_is_returned(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    owner = Owner([])
    links = await links_of(fake, [], owner)
    link = links.link(1)
    connection = links.connection(link, broker_connections_now())
    assert connection is not None
    asked = len(fake.asked(MetadataRequest))
    fake.next(apis.METADATA, ignore)
    send(links, link, 7)
    fake.peers[0].transport.abort()
    await asyncio.sleep(0.01)
    ((load, error),) = owner.failures
    assert (load, list(links.in_flight())) == (7, [])
    assert isinstance(error, ConnectionLostError)
    assert len(fake.asked(MetadataRequest)) == asked + 1, "who leads now?"
    message = MetadataRequest(topics=[])
    assert not links.send(link, connection, 8, apis.METADATA, message), "it is closed"
    assert [load for load, _ in owner.failures] == [7, 8]
    await links.close()


@runs(run)
async def test_what_ends_after_the_close_is_nobodys_business(fake: FakeCluster) -> None:
    fake.create("t")
    owner = Owner([])
    links = await links_of(fake, [], owner)
    send(links, links.link(1))
    await links.close()
    await asyncio.sleep(0.01)
    assert (owner.responses, owner.failures) == ([], [])


# -- partition requests ----------------------------------------------------------------------------
#
# Requests to the leaders of many partitions: split, joined, retried, refused.


def partition_requests_now() -> float:
    return asyncio.get_running_loop().time()


PARTITIONS = [TopicPartition("t", number) for number in range(3)]


@runs(run, brokers=2)
async def test_each_leader_is_asked_once_for_its_partitions(fake: FakeCluster) -> None:
    fake.create("t", 3, leaders=[1, 2, 1])
    fill(fake, 5, partition=2)
    cluster = cluster_of(fake)
    found = await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))
    assert {tp: answer.offset for tp, answer in found.items()} == dict(
        zip(PARTITIONS, [0, 0, 5], strict=True)
    )
    assert sorted(
        (broker, len(message.queries))
        for broker, message in fake.requests
        if isinstance(message, ListOffsetsRequest)
    ) == [(1, 2), (2, 1)]
    assert await list_offsets(cluster, {}) == {}
    await cluster.close()


@runs(run, brokers=1)
async def test_the_producers_of_many_partitions_are_asked_for_in_parts(fake: FakeCluster) -> None:
    """A broker refuses longer requests: such a topic could not be written with a name."""
    topic = "t" * limits.TOPIC_NAME_CHARS_MAX
    fake.create(topic, 2_500)
    fake.always[apis.DESCRIBE_PRODUCERS] = describe
    cluster = cluster_of(fake)
    partitions = [TopicPartition(topic, number) for number in range(2_500)]
    found = await describe_producer(cluster, partitions, ID, family_bits=8)
    assert len(found) == 2_500
    await cluster.close()


@runs(run, brokers=2)
async def test_only_what_failed_is_asked_for_again(fake: FakeCluster) -> None:
    topic = fake.create("t", 3)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    topic.leaders[1] = 2
    found = await list_offsets(cluster, dict.fromkeys(PARTITIONS, "earliest"))
    assert set(found) == set(PARTITIONS)
    asked = [[query.partition for query in m.queries] for m in fake.asked(ListOffsetsRequest)]
    assert asked[0] == [0, 1, 2]
    assert all(again == [1] for again in asked[1:])
    await cluster.close()


@pytest.mark.parametrize("fault", [vanish, do_and_vanish])
@runs(run)
async def test_a_lost_connection_is_got_over(fake: FakeCluster, *, fault: object) -> None:
    fake.create("t", 3)
    cluster = cluster_of(fake)
    fake.next(apis.LIST_OFFSETS, fault)  # type: ignore[arg-type]
    assert len(await list_offsets(cluster, dict.fromkeys(PARTITIONS, 0))) == 3
    await cluster.close()


@runs(run)
async def test_a_partition_without_a_leader_is_waited_for_and_then_told_of(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t", 3, leaders=[1, None, 1])
    cluster = cluster_of(fake)
    asyncio.get_running_loop().call_later(5, topic.leaders.__setitem__, 1, 1)
    assert len(await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))) == 3
    topic.leaders[1] = None
    await cluster.refresh()
    with pytest.raises(LeaderNotAvailableError, match="t:1"):
        await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))
    await cluster.close()


@runs(run)
async def test_what_does_not_exist_is_told_at_once(fake: FakeCluster) -> None:
    fake.create("t", 3)
    cluster = cluster_of(fake)
    with pytest.raises(UnknownTopicError):
        await list_offsets(cluster, {TopicPartition("u", 0): "latest"})
    with pytest.raises(UnknownPartitionError):
        await list_offsets(cluster, {TopicPartition("t", 3): "latest"})
    assert asyncio.get_running_loop().time() == 1_000
    await cluster.close()


@runs(run)
async def test_a_refusal_is_raised_after_all_were_tried(fake: FakeCluster) -> None:
    fake.create("t", 2)
    cluster = cluster_of(fake)
    answers = [
        DeletedRecords(
            topic="t", partition=0, failure=Failure.of(OffsetOutOfRangeError("t:0: too far"))
        ),
        DeletedRecords(topic="t", partition=1, log_start_offset=3),
    ]
    fake.next(apis.DELETE_RECORDS, answer_with(DeleteRecordsResponse(partitions=answers)))
    with pytest.raises(OffsetOutOfRangeError, match="too far"):
        await delete_records(cluster, {PARTITIONS[0]: 9, PARTITIONS[1]: 3})
    fake.next(apis.DELETE_RECORDS, answer_with(DeleteRecordsResponse(partitions=answers[1:])))
    found = await delete_records(cluster, {PARTITIONS[1]: 3})
    assert found[PARTITIONS[1]].log_start_offset == 3
    await cluster.close()


@runs(run, brokers=3)
async def test_a_leader_that_stops_is_left_for_its_successor(fake: FakeCluster) -> None:
    topic = fake.create("t", 3)
    fill(fake, 5)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    fake.pause(1)
    asyncio.get_running_loop().call_later(1.5, topic.leaders.__setitem__, 0, 2)
    start = partition_requests_now()
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert found[PARTITIONS[0]].offset == 5
    assert partition_requests_now() - start < 4, "not the request timeout of 30 s"
    fake.resume(1)
    await cluster.close()


@runs(run, brokers=3)
async def test_a_silent_leader_is_left_as_soon_as_its_successor_is_known(fake: FakeCluster) -> None:
    """Metadata that was asked for a moment earlier may tell (simulator seed 923020)."""
    topic = fake.create("t")
    fill(fake, 5)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    fake.pause(1)
    cluster.mark_suspect(1)
    start = partition_requests_now()
    asking = asyncio.ensure_future(list_offsets(cluster, {PARTITIONS[0]: "latest"}))
    await asyncio.sleep(0.1)
    topic.leaders[0] = 2
    await cluster.refresh()
    assert (await asking)[PARTITIONS[0]].offset == 5
    assert partition_requests_now() - start < 0.5, "not a second of silence"
    fake.resume(1)
    await cluster.close()


@runs(run, brokers=3)
async def test_a_leader_that_is_cut_off_and_says_so_is_left_for_its_successor(
    fake: FakeCluster,
) -> None:
    """It goes on telling everyone that it leads (simulator seed 900003)."""
    topic = fake.create("t")
    fill(fake, 5)
    nobody = LeaderNotAvailableError("t:0: brokers 2, 3 do not confirm that this broker leads")
    answer = OffsetAnswer(topic="t", partition=0, failure=Failure.of(nobody))

    def confirmed_by_others(peer: Peer, request: Request) -> None:
        if peer.broker_id == 1:
            answer_with(ListOffsetsResponse(answers=[answer]))(peer, request)
        else:
            message, _ = fake.answer(peer.broker_id, request)
            answer_with(message)(peer, request)

    fake.always[apis.LIST_OFFSETS] = confirmed_by_others
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    fake.cut_off(1)
    topic.leaders[0] = 2
    start = partition_requests_now()
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert found[PARTITIONS[0]].offset == 5
    assert partition_requests_now() - start < 2, "not the request timeout of 30 s"
    await cluster.close()


@runs(run)
async def test_the_epoch_that_is_known_goes_with_the_question(fake: FakeCluster) -> None:
    topic = fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    topic.leaders[0] = 1
    await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    epochs = [m.queries[0].leader_epoch for m in fake.asked(ListOffsetsRequest)]
    assert epochs == [3, 4], "the older one is fenced"
    await cluster.close()


@runs(run)
async def test_one_partition_without_a_leader_does_not_hold_up_the_others(
    fake: FakeCluster,
) -> None:
    fake.create("t", 3, leaders=[None, 1, 1])
    cluster = cluster_of(fake)
    with pytest.raises(LeaderNotAvailableError, match="t:0"):
        await list_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"))
    asked = [[query.partition for query in m.queries] for m in fake.asked(ListOffsetsRequest)]
    assert asked == [[1, 2]]
    await cluster.close()


@pytest.mark.parametrize("trouble", ["dies", "stops", "is unknown"])
@runs(run, brokers=3)
async def test_the_end_is_the_leaders_to_say_unless_any_replica_will_do(
    fake: FakeCluster, *, trouble: str
) -> None:
    topic = fake.create("t", 3)
    fill(fake, 5)
    topic.known_ends = {1: 4, 2: 4, 3: 3}
    cluster = cluster_of(fake)
    await cluster.topic("t")
    await cluster.connection(1)
    if trouble == "dies":
        fake.kill(1)
    elif trouble == "stops":
        fake.pause(1)
    else:
        topic.leaders[0] = None
        await cluster.refresh()
    start = partition_requests_now()
    with pytest.raises(RaftlogError, match=r"broker|t:0"):
        await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert partition_requests_now() - start > 25, "it is waited for"
    start = partition_requests_now()
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"}, any_replica=True)
    assert found[PARTITIONS[0]].offset == 4
    assert partition_requests_now() - start < 4
    with pytest.raises(RaftlogError):
        await list_offsets(cluster, {PARTITIONS[0]: 1}, any_replica=True)
    await cluster.close()


@runs(run)
async def test_a_broker_that_does_not_know_the_topic_yet_is_asked_again(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    behind = OffsetAnswer(
        topic="t", partition=0, failure=Failure.of(UnknownTopicError("no topic t"))
    )
    fake.next(apis.LIST_OFFSETS, *[answer_with(ListOffsetsResponse(answers=[behind]))] * 2)
    found = await list_offsets(cluster, {PARTITIONS[0]: "latest"})
    assert found[PARTITIONS[0]].offset == 0
    await cluster.close()


@runs(run, brokers=2)
async def test_trying_tells_of_each_partition_what_can_be_known_soon(fake: FakeCluster) -> None:
    fake.create("t", 3, leaders=[1, None, 2])
    fill(fake, 5)
    fake.pause(2)
    cluster = cluster_of(fake)
    await cluster.topic("t")
    started = partition_requests_now()
    found = await try_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"), patience_ms=3_000)
    assert partition_requests_now() - started < 6
    first, second, third = (found[tp] for tp in PARTITIONS)
    assert isinstance(first, OffsetAnswer)
    assert first.offset == 5
    assert isinstance(second, LeaderNotAvailableError)
    assert "t:1 has no leader" in str(second)
    assert isinstance(third, RequestTimedOutError)
    assert "broker 2" in str(third)
    # One that comes back within the time is heard.
    fake.resume(2)
    fake.topics["t"].leaders[1] = 1
    found = await try_offsets(cluster, dict.fromkeys(PARTITIONS, "latest"), patience_ms=3_000)
    assert all(isinstance(answer, OffsetAnswer) for answer in found.values())
    assert await try_offsets(cluster, {}, patience_ms=3_000) == {}
    await cluster.close()


@runs(run)
async def test_a_partition_that_does_not_exist_has_an_error_of_its_own(fake: FakeCluster) -> None:
    """The lag of a group was unknown for all topics once one of them was deleted."""
    fake.create("t")
    cluster = cluster_of(fake)
    first, gone = PARTITIONS[0], TopicPartition("deleted", 0)
    found = await try_offsets(cluster, {gone: "latest", first: "latest"}, patience_ms=3_000)
    assert isinstance(found[gone], UnknownTopicError)
    assert isinstance(found[first], OffsetAnswer)
    await cluster.close()


# -- replica selector ------------------------------------------------------------------------------
#
# Consumers while leaders die, stop and are cut off: who is read from, and what is not lost.


def fetched_from(fake: FakeCluster) -> list[tuple[int, bool, int]]:
    """Of each fetch: the broker, whether a replica would do, and the leader epoch."""
    return [
        (broker, message.replica_ok, message.partitions[0].leader_epoch)
        for broker, message in fake.requests
        if isinstance(message, FetchRequest)
    ]


@runs(run, brokers=3)
async def test_a_leader_that_stops_is_left_for_its_successor_in_replica_selector(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        fake.pause(1)
        topic.leaders[0] = 2
        fill(fake, 2)
        start = now()
        assert await rig.read(2) == [2, 3]
        assert now() - start < 2.5, "not the request timeout of 30 s"
        assert fetched_from(fake)[-1] == (2, False, 4)
        fake.resume(1)  # what it answers now does not count any more
        fill(fake, 1)
        assert await rig.read(1) == [4]


@runs(run, brokers=3)
async def test_a_leader_that_dies_is_left_for_its_successor(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        fake.kill(1)
        asyncio.get_running_loop().call_later(0.8, topic.leaders.__setitem__, 0, 3)
        fill(fake, 2)
        start = now()
        assert await rig.read(2) == [2, 3]
        assert now() - start < 2


@pytest.mark.parametrize("read_from", ["leader", "replica"])
@runs(run, brokers=3)
async def test_a_client_whose_credentials_the_leader_rejects_gets_the_error_at_once(
    fake: FakeCluster, *, read_from: str
) -> None:
    fake.create("t")
    fill(fake, 2)
    async with Rig(fake, read_from=read_from) as rig:
        assert await rig.read(2) == [0, 1]
        fake.always[apis.API_VERSIONS] = refuse(AuthenticationError("E"))
        start = now()
        for peer in list(fake.peers):
            peer.transport.abort()
        with pytest.raises(AuthenticationError):
            await rig.read(1)
        assert now() - start < 1


@runs(run, brokers=3)
async def test_a_leader_that_is_cut_off_is_left_when_others_are_asked(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        keeper = asyncio.ensure_future(rig.cluster.keep_fresh())
        assert await rig.read(2) == [0, 1]
        fake.cut_off(1)  # it answers all that it is asked, and has nothing new
        topic.leaders[0] = 2
        fill(fake, 2)
        assert await rig.read(2) == [2, 3]
        assert now() - 1_000 < 91, "of three brokers, another one is asked every 30 s"
        keeper.cancel()


@pytest.mark.parametrize("trouble", ["dies", "stops", "is gone without a trace", "is unknown"])
@runs(run, brokers=3)
async def test_without_a_leader_a_replica_stands_in(fake: FakeCluster, *, trouble: str) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake) as rig:
        assert await rig.read(2) == [0, 1]
        fill(fake, 3)
        topic.known_ends = {1: 5, 2: 5, 3: 5}
        if trouble == "stops":
            fake.pause(1)
        elif trouble == "is unknown":
            topic.leaders[0] = None
        else:
            fake.kill(1)
        if trouble == "is gone without a trace":
            fake.down, fake.unreachable = set(), {1}
        start = now()
        assert await rig.read(3) == [2, 3, 4]
        # A stopped one is noticed when the fetch that it has is overdue.
        assert now() - start < 3.5
        broker, replica_ok, epoch = fetched_from(fake)[-1]
        assert (replica_ok, epoch) == (True, -1)
        assert broker != topic.leaders[0]
        fill(fake, 1)
        await asyncio.sleep(10)
        assert rig.subscription.next_chunk() is None, "the replica knows no more: it waits"
        topic.leaders[0] = 2
        assert await rig.read(1) == [5]
        await asyncio.sleep(1)
        assert fetched_from(fake)[-1] == (2, False, topic.leaders.epochs[0]), "a leader again"


@runs(run, brokers=3)
async def test_without_a_leader_a_copy_waits_for_one(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 2)
    async with Rig(fake, has_stand_in=False) as rig:
        assert await rig.read(2) == [0, 1]
        fill(fake, 3)
        topic.known_ends = {1: 5, 2: 5, 3: 5}
        fake.kill(1)
        await asyncio.sleep(10)
        assert rig.subscription.next_chunk() is None
        topic.leaders[0] = 2
        assert await rig.read(3) == [2, 3, 4]
        assert not any(replica_ok for _, replica_ok, _ in fetched_from(fake))


@runs(run, brokers=3)
async def test_a_stand_in_that_has_less_is_no_reason_to_begin_anew(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 5)
    async with Rig(fake) as rig:
        assert await rig.read(5) == [0, 1, 2, 3, 4]
        topic.known_ends = {2: 3, 3: 3}
        fake.kill(1)
        await asyncio.sleep(10)
        assert rig.subscription.next_chunk() is None
        assert rig.subscription.part(A).position == 5
        fake.down.clear()
        topic.known_ends = {}
        fill(fake, 1)
        assert await rig.read(1) == [5]


@pytest.mark.parametrize("reset", ["earliest", "error"])
@runs(run, brokers=3)
async def test_below_what_is_left_a_stand_in_may_say_so(fake: FakeCluster, *, reset: Any) -> None:
    topic = fake.create("t")
    fill(fake, 2, 2, 2)
    async with Rig(fake, auto_offset_reset=reset) as rig:
        rig.subscription.seek(A, 0)
        rig.fetcher.poll()
        await rig.read(6)
        fake.kill(1)
        topic.logs[0].start = 4  # retention went on
        del topic.logs[0].batches[:2]
        rig.subscription.seek(A, 1)
        rig.fetcher.poll()
        if reset == "earliest":
            assert await rig.read(2) == [4, 5]
        else:
            await asyncio.sleep(10)
            with pytest.raises(
                OffsetOutOfRangeError, match="offset 1 is below the log start offset 4"
            ):
                rig.subscription.next_chunk()


@runs(run, brokers=3)
async def test_where_to_begin_is_found_without_a_leader(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fill(fake, 5)
    topic.known_ends = {3: 4}
    fake.kill(1)
    async with Rig(fake, auto_offset_reset="latest") as rig:
        await asyncio.sleep(5)
        assert rig.subscription.part(A).position == 5, "of the replica that knows most"


@runs(run, brokers=3)
async def test_offsets_of_replicas(fake: FakeCluster) -> None:
    topic = fake.create("t", 2, replicas=[1, 2], leaders=[None, 3])
    fill(fake, 5)
    topic.known_ends = {1: 2, 2: 4}
    topic.logs[0].start = 1
    cluster = cluster_of(fake)
    await cluster.topic("t")
    found = await replica_offsets(cluster, {A: "latest", TopicPartition("t", 1): "earliest"})
    assert [answer.offset for answer in found.values()] == [4, 0]
    assert (await replica_offsets(cluster, {A: "earliest"}))[A].offset == 1
    fake.kill(2)
    assert (await replica_offsets(cluster, {A: "latest"}))[A].offset == 2
    fake.pause(1)
    assert await replica_offsets(cluster, {A: "latest"}) == {}
    await cluster.close()


# -- reading from replicas by choice ---------------------------------------------------------------


@runs(run, brokers=3)
async def test_reading_from_replicas_spreads_the_partitions(fake: FakeCluster) -> None:
    fake.create("t", 6)
    for partition in range(6):
        fill(fake, 1, partition=partition)
    partitions = [TopicPartition("t", number) for number in range(6)]
    async with Rig(fake, *partitions, read_from="replica") as rig:
        await rig.read(6)
        read = Counter(
            (broker, part.partition)
            for broker, message in fake.requests
            if isinstance(message, FetchRequest)
            for part in message.partitions
        )
        assert {broker for broker, _ in read} == {1, 2, 3}
        assert len(read) == 6, "each from one replica only"
        assert all(ok and epoch == 3 for _, ok, epoch in fetched_from(fake))


@runs(run, brokers=3)
async def test_the_own_rack_comes_first(fake: FakeCluster) -> None:
    topic = fake.create("t")
    fake.racks = {1: "a", 2: "b", 3: "c"}
    fill(fake, 1)
    async with Rig(fake, read_from="replica", client_rack="c") as rig:
        await rig.read(1)
        assert {broker for broker, _, _ in fetched_from(fake)} == {3}
        fake.kill(3)
        fill(fake, 1)
        assert await rig.read(1) == [1], "another rack is better than none"
        fake.down.clear()
        topic.isr.remove(3)
        await rig.cluster.refresh()
        fake.requests.clear()
        fill(fake, 1)
        assert await rig.read(1) == [2]
        assert 3 not in {broker for broker, _, _ in fetched_from(fake)}, "it is not in sync"


@runs(run, brokers=2)
async def test_out_of_range_at_a_replica_is_for_the_leader_to_say(fake: FakeCluster) -> None:
    topic = fake.create("t", replicas=[2, 1])
    fill(fake, 2, 2)
    topic.known_ends = {2: 2}
    async with Rig(fake, read_from="replica") as rig:
        rig.subscription.seek(A, 3)
        rig.fetcher.poll()
        assert await rig.read(1) == [3], "the replica is behind; the leader has it"
        assert fetched_from(fake)[0][:2] == (2, True)
        assert (1, False, 3) in fetched_from(fake)
        rig.subscription.seek(A, 99)
        rig.fetcher.poll()
        assert await rig.read(4) == [0, 1, 2, 3], "the leader has it not either"


@pytest.mark.parametrize(
    "error", [UnknownLeaderEpochError("not yet"), FencedLeaderEpochError("newer")]
)
@runs(run, brokers=3)
async def test_a_replica_that_refuses_is_left_alone_for_a_while(
    fake: FakeCluster, *, error: Exception
) -> None:
    fake.create("t")
    fill(fake, 1)
    fake.next(apis.FETCH, failing(error))
    async with Rig(fake, read_from="replica") as rig:
        assert await rig.read(1) == [0]
        first, second, *_ = [broker for broker, _, _ in fetched_from(fake)]
        assert first != second


def test_seeking_back_is_no_epoch_that_goes_back(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        log.batches += [
            stored_batch(0, b"a", leader_epoch=5),
            stored_batch(1, b"b", leader_epoch=6),
        ]
        log.end = 2
        async with Rig(fake) as rig:
            assert await rig.read(2) == [0, 1]
            rig.subscription.seek(A, 0)
            rig.fetcher.poll()
            assert await rig.read(2) == [0, 1]

    run(test)
    assert not caplog.records


def test_an_epoch_that_goes_back_says_where(caplog: pytest.LogCaptureFixture) -> None:
    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        log.batches += [stored_batch(0, b"a", leader_epoch=5), stored_batch(1, b"b")]
        log.end = 2
        async with Rig(fake) as rig:
            assert await rig.read(2) == [0, 1]

    run(test)
    assert "partition=t:0 offset=1 epoch_before=5 epoch=3" in caplog.text


@pytest.mark.parametrize("read_from", ["leader", "replica"])
@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.seeds) for n in range(1, 5))]
)
def test_any_mix_of_troubles(seed: int, number: int, read_from: str) -> None:
    """Whatever happens to brokers, every record is read, once and in order."""
    chance = random.Random(seed + number)

    async def trouble(fake: FakeCluster) -> None:
        topic = fake.topics["t"]
        for _ in range(15):
            await asyncio.sleep(chance.uniform(0.05, 2))
            fill(fake, chance.randint(1, 3))
            broker = chance.choice([1, 2, 3])
            topic.known_ends = dict.fromkeys((1, 2, 3), topic.logs[0].end - 1)
            kind = chance.choice(["kill", "pause", "cut off", "nobody leads", "vanish"])
            if kind == "kill":
                fake.kill(broker)
            elif kind == "pause":
                fake.pause(broker)
            elif kind == "cut off":
                fake.cut_off(broker)
            elif kind == "nobody leads":
                topic.leaders[0] = None
            else:
                fake.next(apis.FETCH, *[vanish] * 3)
            await asyncio.sleep(chance.uniform(0, 5))
            if topic.leaders[0] in {broker, None}:
                topic.leaders[0] = chance.choice([each for each in (1, 2, 3) if each != broker])
            fill(fake, 1)
            await asyncio.sleep(chance.uniform(0, 3))
            fake.down.clear()
            if kind == "pause":
                fake.resume(broker)
            elif kind == "cut off":
                fake.rejoin(broker)
        topic.known_ends = {}
        fill(fake, 1)

    async def test(fake: FakeCluster) -> None:
        log = fake.create("t").logs[0]
        async with Rig(fake, read_from=read_from) as rig:
            keeper = asyncio.ensure_future(rig.cluster.keep_fresh())
            troubled = asyncio.ensure_future(trouble(fake))
            found: list[int] = []
            while not troubled.done() or len(found) < log.end:
                found += await rig.read(1)
            assert found == list(range(log.end))
            keeper.cancel()

    run(test, brokers=3)
