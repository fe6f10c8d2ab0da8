"""A client's hold on its cluster: connecting, refreshing, retrying, giving up in time."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from raftlog.client.cluster import Cluster, ClusterView, Connections, PartitionView, unreachable
from raftlog.client.connection import keep_authenticated
from raftlog.client.settings import ConnectionSettings, SaslSettings, parse_bootstrap
from raftlog.config import Address
from raftlog.errors import (
    AuthenticationError,
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    ConnectionLostError,
    FrameError,
    LeaderNotAvailableError,
    NotLeaderError,
    RaftlogError,
    RequestTimedOutError,
    ThrottledError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedVersionError,
    WrongClusterError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    BrokerInfo,
    CreateTopicsRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionInfo,
    TopicInfo,
    TopicToCreate,
)
from raftlog.protocol.schema import Failure
from tests.client.world import (
    FakeCluster,
    answer_with,
    do_and_vanish,
    ignore,
    refuse,
    run,
    vanish,
)
from tests.running import runs


def cluster_of(fake: FakeCluster, bootstrap: str | None = None) -> Cluster:
    host = fake.host
    return Cluster(
        ConnectionSettings(
            bootstrap=parse_bootstrap(bootstrap or fake.bootstrap),
            client_id="me",
            request_timeout_ms=30_000,
            bootstrap_timeout_ms=3_000,
            metadata_max_age_ms=30_000,
        ),
        connector=host.connector,
        chance=host.chance,
    )


def now() -> float:
    return asyncio.get_running_loop().time()


@runs(run)
async def test_a_topic_is_asked_for_once(fake: FakeCluster) -> None:
    fake.create("t", 3)
    cluster = cluster_of(fake)
    first, second = await asyncio.gather(cluster.topic("t"), cluster.topic("t"))
    assert first is second
    assert await cluster.topic("t") is first
    assert len(fake.asked(MetadataRequest)) == 1
    await cluster.close()


@runs(run)
async def test_concurrent_refreshes_share_a_request_and_miss_no_topic(fake: FakeCluster) -> None:
    for name in "abc":
        fake.create(name)
    cluster = cluster_of(fake)
    await asyncio.gather(
        cluster.refresh(["a"]),
        cluster.refresh(["b"]),
        cluster.refresh(["a"]),
        cluster.refresh(),
    )
    asked = [request.topics for request in fake.asked(MetadataRequest)]
    assert len(asked) <= 2
    assert set(cluster.view.topics) == {"a", "b"}
    await cluster.close()


@runs(run)
async def test_an_unknown_topic_is_refused_at_once_and_not_asked_for_again(
    fake: FakeCluster,
) -> None:
    cluster = cluster_of(fake)
    start = now()
    with pytest.raises(UnknownTopicError, match="no topic t"):
        await cluster.topic("t")
    assert now() == start
    await cluster.refresh()
    assert fake.asked(MetadataRequest)[-1].topics == []
    fake.create("t")
    assert (await cluster.topic("t")).name == "t"
    await cluster.close()


@runs(run)
async def test_a_topic_that_was_created_during_a_request_is_found(fake: FakeCluster) -> None:
    """A request that began before the creation does not answer one that began after it."""
    known = fake._metadata(1, MetadataRequest(topics=["t"]))
    fake.next(apis.METADATA, answer_with(known))
    cluster = cluster_of(fake)
    earlier = asyncio.ensure_future(cluster.refresh(["t"]))
    await asyncio.sleep(0)
    fake.create("t")
    assert (await cluster.topic("t")).name == "t"
    await earlier
    await cluster.close()


@runs(run)
async def test_a_topic_that_was_missing_is_asked_for_after_a_request_for_others(
    fake: FakeCluster,
) -> None:
    """The end of that request says nothing of topics that it did not ask for."""
    cluster = cluster_of(fake)
    await cluster.refresh(["t"])
    others = asyncio.ensure_future(cluster.refresh(["others"]))
    await asyncio.sleep(0)
    fake.create("t")
    assert (await cluster.topic("t")).name == "t"
    await others
    await cluster.close()


@runs(run)
async def test_a_topic_that_a_broker_is_about_to_know_is_asked_for_again(
    fake: FakeCluster,
) -> None:
    """It was just created, or the broker has just started: who reads the topic waits for it."""
    not_ready = TopicInfo(name="t", failure=Failure.of(ClusterNotReadyError("wait")))
    known = fake._metadata(1, MetadataRequest(topics=[]))
    fake.next(apis.METADATA, answer_with(structs.replace(known, topics=[not_ready])))
    cluster = cluster_of(fake)
    await cluster.refresh(["t"])
    fake.create("t")
    await cluster.refresh()
    assert "t" in cluster.view.topics
    await cluster.close()


@runs(run, brokers=2)
async def test_nothing_reachable_names_every_address_and_gives_up_soon(fake: FakeCluster) -> None:
    fake.down = {1, 2}
    cluster = cluster_of(fake)
    start = now()
    with pytest.raises(BrokerUnavailableError) as caught:
        await cluster.topic("t")
    assert 0 < now() - start <= 3
    for part in ("broker-1:9100", "broker-2:9100", "refused", "raftlog up"):
        assert part in str(caught.value)
    await cluster.close()


@runs(run, brokers=2)
async def test_any_bootstrap_address_will_do(fake: FakeCluster) -> None:
    fake.create("t")
    fake.down = {1}
    cluster = cluster_of(fake)
    assert (await cluster.topic("t")).name == "t"
    assert fake.connects == ["broker-1", "broker-2"]
    await cluster.close()


@runs(run)
async def test_one_connection_for_each_broker_even_over_two_addresses(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    one, two = await asyncio.gather(cluster.connection(1), cluster.connection(1))
    assert one is two
    assert len(fake.peers) == 1
    await cluster.close()
    await asyncio.sleep(0.01)
    assert not fake.peers


@runs(run)
async def test_a_broker_that_goes_away_is_waited_for_once_the_cluster_was_reached(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.kill(1)
    asyncio.get_running_loop().call_later(20, fake.down.clear)
    start = now()
    answer = await cluster.call(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
    assert isinstance(answer, InitProducerIdResponse)
    assert 19 < now() - start < 23
    fake.kill(1)
    start = now()
    with pytest.raises(BrokerUnavailableError):
        await cluster.call(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
    assert 25 < now() - start <= 30
    await cluster.close()


@pytest.mark.parametrize("fault", [vanish, do_and_vanish, ignore, refuse(ThrottledError("full"))])
@runs(run)
async def test_an_idempotent_request_is_repeated_after_any_passing_fault(
    fake: FakeCluster, *, fault: object
) -> None:
    fake.next(apis.INIT_PRODUCER_ID, fault)  # type: ignore[arg-type]
    cluster = cluster_of(fake)
    answer = await cluster.call(apis.INIT_PRODUCER_ID, InitProducerIdRequest(), timeout_ms=60_000)
    assert isinstance(answer, InitProducerIdResponse)
    await cluster.close()


@pytest.mark.parametrize(
    ("fault", "error"), [(vanish, ConnectionLostError), (ignore, RequestTimedOutError)]
)
@runs(run)
async def test_another_request_is_not_repeated_when_its_outcome_is_unknown(
    fake: FakeCluster, *, fault: object, error: type[Exception]
) -> None:
    fake.next(apis.CREATE_TOPICS, fault)  # type: ignore[arg-type]
    cluster = cluster_of(fake)
    with pytest.raises(error):
        await cluster.call(
            apis.CREATE_TOPICS, CreateTopicsRequest(topics=[TopicToCreate(name="t")])
        )
    assert len(fake.asked(CreateTopicsRequest)) == 1
    await cluster.close()


@runs(run)
async def test_a_stranger_at_the_address_is_told_at_once(fake: FakeCluster) -> None:
    fake.next(apis.API_VERSIONS, lambda peer, _request: peer.write([b"HTTP/1.1 400 Bad Request"]))
    cluster = cluster_of(fake)
    start = now()
    with pytest.raises(FrameError, match="broker-1:9100: an HTTP server"):
        await cluster.topic("t")
    assert now() == start
    await cluster.close()


@runs(run)
async def test_a_broker_without_a_needed_version_is_told_at_once(fake: FakeCluster) -> None:
    fake.api_ranges[apis.METADATA.number] = (5, 6)
    cluster = cluster_of(fake)
    with pytest.raises(UnsupportedVersionError, match="Upgrade"):
        await cluster.topic("t")
    await cluster.close()


@runs(run)
async def test_a_broker_that_takes_connections_and_says_nothing_is_unavailable(
    fake: FakeCluster,
) -> None:
    fake.next(apis.API_VERSIONS, *[ignore] * 10)
    cluster = cluster_of(fake)
    with pytest.raises(BrokerUnavailableError, match="no handshake response"):
        await cluster.topic("t")
    await cluster.close()


@runs(run, brokers=2)
async def test_an_unknown_broker_and_one_that_cannot_be_reached_are_named(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    cluster = cluster_of(fake, "broker-1:9100")
    await cluster.topic("t")
    with pytest.raises(BrokerUnavailableError, match="broker 7"):
        await cluster.connection(7)
    fake.down.add(2)
    with pytest.raises(BrokerUnavailableError, match="cannot connect to broker 2 at bro"):
        await cluster.connection(2)
    await cluster.close()


@runs(run)
async def test_keeping_fresh_sees_what_no_error_tells(fake: FakeCluster) -> None:
    topic = fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    keeper = asyncio.ensure_future(cluster.keep_fresh())
    topic.leaders.append(1)
    fake.next(apis.METADATA, refuse(NotLeaderError("not now")))
    await asyncio.sleep(61)
    assert cluster.view.topic("t").partition_count == 2
    keeper.cancel()
    cluster.want_only([])
    await cluster.close()


@runs(run)
async def test_a_closed_one_says_so_and_leaves_no_task(fake: FakeCluster) -> None:
    fake.next(apis.METADATA, ignore)
    cluster = cluster_of(fake)
    waiting = asyncio.ensure_future(cluster.topic("t"))
    await asyncio.sleep(0.1)
    await cluster.close()
    await cluster.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await cluster.call(apis.METADATA, MetadataRequest())
    cluster.refresh_soon()
    assert asyncio.all_tasks() == {asyncio.current_task()}


# -- several brokers -------------------------------------------------------------------------------


def asked_for_metadata(fake: FakeCluster) -> list[int]:
    return [broker for broker, m in fake.requests if isinstance(m, MetadataRequest)]


@runs(run, brokers=2)
async def test_a_broker_that_stops_holds_nothing_up(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.pause(1)
    start = now()
    await cluster.refresh()
    assert now() - start == pytest.approx(1, abs=0.1), "then another is asked beside it"
    start = now()
    await cluster.refresh()
    await cluster.call(apis.INIT_PRODUCER_ID, InitProducerIdRequest())
    assert now() - start < 0.1, "it is silent: the other one first"
    fake.resume(1)
    await cluster.close()


@runs(run, brokers=3)
async def test_what_may_not_be_repeated_goes_to_a_broker_that_answers(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.pause(1)
    await cluster.refresh()
    assert (await cluster.any_connection()).broker_id == 2
    fake.next(apis.CREATE_TOPICS, refuse(ClusterNotReadyError("alone")), vanish)
    with pytest.raises(ConnectionLostError):
        await cluster.call(
            apis.CREATE_TOPICS, CreateTopicsRequest(topics=[TopicToCreate(name="u")])
        )
    asked = [broker for broker, m in fake.requests if isinstance(m, CreateTopicsRequest)]
    assert asked == [2, 3], "who is not ready is not asked again at once"
    fake.resume(1)
    await cluster.close()


@runs(run, brokers=3)
async def test_keeping_fresh_asks_another_broker_each_time(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    keeper = asyncio.ensure_future(cluster.keep_fresh())
    await asyncio.sleep(151)
    assert asked_for_metadata(fake) == [1, 2, 3, 1, 2, 3]
    keeper.cancel()
    await cluster.close()


@runs(run, brokers=3)
async def test_old_news_change_nothing_and_another_broker_is_asked_at_once(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.cut_off(1)
    topic.leaders[0] = 2
    cluster.mark_suspect(1)
    await cluster.refresh()
    assert cluster.view.partition("t", 0).leader_epoch == 4
    assert set(cluster.view.brokers) == {1, 2, 3}
    fake.requests.clear()
    await asyncio.sleep(6)
    fake.kill(2)
    fake.kill(3)
    await cluster.refresh()
    assert asked_for_metadata(fake) == [1]
    assert cluster.view.partition("t", 0).leader_epoch == 4
    assert cluster.view.leader("t", 0) == 2
    fake.down.clear()
    topic.leaders[0] = 3
    fake.requests.clear()
    await asyncio.sleep(6)
    await cluster.refresh()
    assert asked_for_metadata(fake)[0] == 1, "it is the one that is connected"
    assert len(asked_for_metadata(fake)) == 2
    assert cluster.view.leader("t", 0) == 3
    await cluster.close()


@runs(run, brokers=3)
async def test_where_a_broker_in_doubt_is_said_to_lead_another_broker_is_asked_too(
    fake: FakeCluster,
) -> None:
    topic = fake.create("t", leaders=[2])
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.cut_off(1)
    fake.cut_off(2)
    topic.leaders[0] = 3
    fake.requests.clear()
    await cluster.refresh()
    assert (asked_for_metadata(fake), cluster.view.leader("t", 0)) == ([1], 2)
    cluster.mark_suspect(2)
    await cluster.refresh()
    assert (asked_for_metadata(fake), cluster.view.leader("t", 0)) == ([1, 1, 3], 3)
    await cluster.close()


@runs(run, brokers=3)
async def test_a_topic_that_one_broker_does_not_know_is_asked_for_at_another(
    fake: FakeCluster,
) -> None:
    fake.cut_off(1)
    fake.create("t")
    cluster = cluster_of(fake)
    cluster.view = cluster.view.merge(fake._metadata(2, MetadataRequest(topics=[])), asked=[])
    assert (await cluster.topic("t")).name == "t", "it was just made"
    assert asked_for_metadata(fake) == [1, 2]
    with pytest.raises(UnknownTopicError):
        await cluster.topic("u")
    await cluster.close()


@runs(run, brokers=3)
async def test_a_topic_that_is_gone_is_gone_after_two_brokers_say_so(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    del fake.topics["t"]
    await cluster.refresh()
    assert asked_for_metadata(fake) == [1, 1, 2]
    with pytest.raises(UnknownTopicError):
        cluster.view.topic("t")
    await cluster.close()


@runs(run, brokers=3)
async def test_with_nobody_else_to_ask_a_known_topic_is_kept(fake: FakeCluster) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    del fake.topics["t"]
    fake.down = {2}
    fake.unreachable = {3}
    start = now()
    await cluster.refresh()
    assert now() - start <= 1
    assert cluster.view.leader("t", 0) == 1
    await cluster.close()


@runs(run, brokers=3)
async def test_a_broker_that_is_not_where_it_was_is_not_taken_for_another(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.addresses[2], fake.addresses[3] = fake.addresses[3], fake.addresses[2]
    with pytest.raises(BrokerUnavailableError, match="at broker-2:9100, not broker 2"):
        await cluster.connection(2)
    await cluster.refresh()
    assert (await cluster.connection(2)).broker_id == 2
    await cluster.close()


@runs(run, brokers=6)
async def test_many_dead_addresses_and_one_that_lives(fake: FakeCluster) -> None:
    fake.create("t")
    fake.down, fake.unreachable = {1, 3, 5}, {2, 4}
    cluster = cluster_of(fake)
    start = now()
    assert (await cluster.topic("t")).name == "t"
    assert now() - start < 1
    await cluster.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@runs(run, brokers=4)
async def test_all_are_asked_and_who_is_slow_is_left_out(fake: FakeCluster) -> None:
    fake.down, fake.unreachable = {2}, {3}
    fake.pause(4)
    cluster = cluster_of(fake)
    start = now()
    answers = await cluster.ask_all(
        apis.METADATA, MetadataRequest(topics=[]), brokers=fake.addresses, patience_s=2
    )
    assert now() - start == 2
    assert isinstance(answers[1], MetadataResponse)
    for broker, reason in ((2, "refused"), (3, "within 2 s"), (4, "within 2 s")):
        assert isinstance(answers[broker], BrokerUnavailableError)
        assert reason in str(answers[broker])
    await cluster.close()


@runs(run, brokers=2)
async def test_what_one_broker_says_counts_more_than_that_others_are_gone(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    cluster = cluster_of(fake)
    await cluster.topic("t")
    fake.kill(2)
    fake.next(apis.INIT_PRODUCER_ID, *[refuse(ClusterNotReadyError("1 of 3 voters"))] * 99)
    with pytest.raises(ClusterNotReadyError, match="1 of 3"):
        await cluster.call(apis.INIT_PRODUCER_ID, InitProducerIdRequest(), timeout_ms=1_000)
    await cluster.close()


# -- connections -----------------------------------------------------------------------------------
#
# A client's connections: one for each broker, opened once, by the first address that answers.


def connections_of(fake: FakeCluster) -> Connections:
    settings = ConnectionSettings(
        bootstrap=parse_bootstrap(fake.bootstrap),
        client_id="me",
        request_timeout_ms=30_000,
        bootstrap_timeout_ms=3_000,
        metadata_max_age_ms=30_000,
    )
    return Connections(settings, fake.connect)


@runs(run)
async def test_one_is_opened_however_many_wait(fake: FakeCluster) -> None:
    connections = connections_of(fake)
    one, two = await asyncio.gather(*(connections.to(fake.addresses[1]) for _ in range(2)))
    assert one is two
    assert connections.of(1) is one
    assert connections.of(2) is None
    assert connections.reached
    assert fake.connects == ["broker-1"]
    await connections.close()


@runs(run, brokers=4)
async def test_dead_addresses_do_not_hold_up_the_live_one(fake: FakeCluster) -> None:
    fake.down = {1, 3}
    fake.unreachable = {2}
    connections = connections_of(fake)
    start = now()
    connection = await connections.first_of(list(fake.addresses.values()))
    assert connection.broker_id == 4
    assert now() - start < 1, "the one that does not refuse costs a moment"
    assert fake.connects == ["broker-1", "broker-2", "broker-3", "broker-4"]
    await connections.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@runs(run, brokers=2)
async def test_a_slow_one_is_there_when_it_comes(fake: FakeCluster) -> None:
    fake.pause(1)
    connections = connections_of(fake)
    assert (await connections.first_of(list(fake.addresses.values()))).broker_id == 2
    assert connections.of(1) is None
    fake.resume(1)
    await asyncio.sleep(0.1)
    assert connections.of(1) is not None, "its handshake went on"
    await connections.close()


@runs(run)
async def test_an_address_that_never_answers_is_given_up_in_the_end(fake: FakeCluster) -> None:
    fake.unreachable = {1}
    connections = connections_of(fake)
    start = now()
    with pytest.raises(BrokerUnavailableError, match="no connection within 10000 ms"):
        await connections.to(fake.addresses[1])
    assert now() - start == 10
    fake.unreachable = set()
    fake.next(apis.API_VERSIONS, ignore)
    with pytest.raises(BrokerUnavailableError, match="no handshake response"):
        await connections.to(fake.addresses[1])
    await connections.close()


@runs(run)
async def test_two_addresses_of_one_broker_share_a_connection(fake: FakeCluster) -> None:
    alias = Address("localhost", 9100)
    connections = connections_of(fake)
    first = await connections.to(fake.addresses[1])
    fake.addresses[1] = alias
    assert await connections.to(alias) is first, "what it carries must not be overtaken"
    await asyncio.sleep(0.01)
    assert len(fake.peers) == 1
    await connections.close()


@runs(run)
async def test_a_broker_of_another_cluster_is_refused(fake: FakeCluster) -> None:
    connections = connections_of(fake)
    connections.cluster_id = "ours"
    with pytest.raises(WrongClusterError, match=r"cluster fake, .* to cluster ours"):
        await connections.to(fake.addresses[1])
    await asyncio.sleep(0.01)
    assert not fake.peers
    await connections.close()


@runs(run)
async def test_a_client_that_was_rejected_is_not_only_throttled(fake: FakeCluster) -> None:
    """The broker refuses further attempts without a comparison: the first reason still holds."""
    throttled, rejected = refuse(ThrottledError("T")), refuse(AuthenticationError("E"))
    fake.next(apis.API_VERSIONS, throttled, rejected, throttled, throttled)
    fake.next(apis.API_VERSIONS, refuse(ClusterNotReadyError("C")))
    connections = connections_of(fake)
    expected = (
        BrokerUnavailableError,  # other clients of this address have failed
        *(AuthenticationError,) * 3,
        BrokerUnavailableError,  # the broker restarts
    )
    for error in expected:
        with pytest.raises(error):
            await connections.to(fake.addresses[1])
    (await connections.to(fake.addresses[1])).abort(ClosedError("E"))
    fake.next(apis.API_VERSIONS, throttled)
    with pytest.raises(BrokerUnavailableError):
        await connections.to(fake.addresses[1])
    await connections.close()


@pytest.mark.parametrize("error", [ThrottledError("E"), AuthenticationError("E")])
@runs(run)
async def test_requests_that_wait_while_a_session_is_not_renewed_have_an_unknown_outcome(
    fake: FakeCluster, *, error: RaftlogError
) -> None:
    connections = connections_of(fake)
    connection = await connections.to(fake.addresses[1])
    fake.next(apis.METADATA, ignore)
    waiting = connection.start(apis.METADATA, MetadataRequest(topics=None), timeout_ms=9_000)
    fake.next(apis.SASL_AUTHENTICATE, refuse(error))
    sasl = SaslSettings(mechanism="SCRAM-SHA-256", username="alice", password="p")
    await keep_authenticated(connection, sasl, bytes, 1.0, timeout_ms=9_000)
    with pytest.raises(ConnectionLostError, match=r"could not authenticate again: .*E"):
        await waiting
    await connections.close()


@pytest.mark.parametrize("others", [{2, 3}, set()])
@runs(run, brokers=3)
async def test_one_rejection_is_the_reason_of_all(fake: FakeCluster, *, others: set[int]) -> None:
    """The brokers have the same users, so the ones that cannot be reached are not waited for."""
    fake.down = others
    fake.always[apis.API_VERSIONS] = refuse(ThrottledError("T"))
    fake.next(apis.API_VERSIONS, refuse(AuthenticationError("E")))
    connections = connections_of(fake)
    with pytest.raises(AuthenticationError):
        await connections.first_of(list(fake.addresses.values()))
    await connections.close()


@runs(run, brokers=2)
async def test_strangers_everywhere_are_told_as_such(fake: FakeCluster) -> None:
    fake.next(apis.API_VERSIONS, *[lambda peer, _: peer.write([b"HTTP/1.1 400 Bad"])] * 2)
    connections = connections_of(fake)
    with pytest.raises(FrameError, match="an HTTP server"):
        await connections.first_of(list(fake.addresses.values()))
    await connections.close()


@runs(run, brokers=2)
async def test_closing(fake: FakeCluster) -> None:
    fake.unreachable = {2}
    connections = connections_of(fake)
    await connections.to(fake.addresses[1])
    waiting = asyncio.ensure_future(connections.to(fake.addresses[2]))
    await asyncio.sleep(0.1)
    await connections.close()
    await connections.close()
    with pytest.raises(ClosedError):
        await waiting
    with pytest.raises(ClosedError):
        await connections.to(fake.addresses[1])
    assert connections.all_open() == []


# -- metadata --------------------------------------------------------------------------------------
#
# A client's view of the cluster: merging news, finding leaders, saying why not.


def response(*topics: TopicInfo) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c", brokers=[BrokerInfo(id=1, host="::1", port=9)], topics=list(topics)
    )


def topic(name: str, *leaders: int | None) -> TopicInfo:
    return TopicInfo(
        name=name,
        id="x",
        max_message_bytes=100,
        partitions=[
            PartitionInfo(partition=number, leader=leader, leader_epoch=0, replicas=[], isr=[])
            for number, leader in reversed(list(enumerate(leaders)))
        ],
    )


def missing(name: str) -> TopicInfo:
    return TopicInfo(name=name, failure=Failure.of(UnknownTopicError(f"no {name}")))


def test_news_are_merged() -> None:
    view = ClusterView().merge(response(topic("a", 1, 2), topic("b", 1)), asked=["a", "b"])
    assert view.brokers == {1: Address("::1", 9)}
    assert view.topic("a").leaders == (1, 2)
    later = view.merge(response(topic("a", 2, 2, None)), asked=["a"])
    assert later.topic("a").partition_count == 3
    assert later.topic("b") == view.topic("b")
    assert view.topic("a").partition_count == 2, "a view never changes"


def test_an_answer_for_all_topics_replaces_all() -> None:
    view = ClusterView().merge(response(topic("a", 1), missing("c")), asked=["a", "c"])
    assert set(view.merge(response(topic("b", 1)), asked=None).topics) == {"b"}
    assert not view.merge(response(), asked=None).failures


def test_a_broker_that_has_just_started_refuses_no_partition() -> None:
    """A topic was given up, and may be there again; who waits for it goes on waiting."""
    not_ready = TopicInfo(name="a", failure=Failure.of(ClusterNotReadyError("just started")))
    view = ClusterView().merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError):
        view.partition("a", 0)
    later = view.merge(response(not_ready), asked=["a"])
    assert later.partition("a", 0) == PartitionView(None)
    with pytest.raises(ClusterNotReadyError):
        later.topic("a")


def test_a_topic_comes_and_goes() -> None:
    view = ClusterView().merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError, match="no a"):
        view.topic("a")
    view = view.merge(response(topic("a", 1)), asked=["a"])
    assert view.leader("a", 0) == 1
    view = view.merge(response(missing("a")), asked=["a"])
    with pytest.raises(UnknownTopicError):
        view.leader("a", 0)
    with pytest.raises(UnknownTopicError, match="raftlog topic create zz"):
        view.topic("zz")


def test_leaders() -> None:
    view = ClusterView().merge(response(topic("a", 1, None)), asked=["a"])
    assert view.leader("a", 0) == 1
    with pytest.raises(LeaderNotAvailableError, match="a:1"):
        view.leader("a", 1)
    for partition in (-1, 2):
        with pytest.raises(UnknownPartitionError, match=rf"no partition {partition}\. It has 2"):
            view.leader("a", partition)


def test_what_cannot_be_reached_is_named_with_its_reason_and_what_to_do() -> None:
    error = unreachable(
        {
            Address("a", 1): BrokerUnavailableError("connection refused"),
            Address("::1", 2): FrameError("an HTTP server"),
        }
    )
    assert isinstance(error, BrokerUnavailableError)
    for part in ("a:1 (connection refused)", "[::1]:2 (an HTTP server)", "raftlog up"):
        assert part in str(error)
    assert "check the argument bootstrap (RAFTLOG_BOOTSTRAP)" in str(error)


def test_a_stranger_at_every_address_is_no_reason_to_wait() -> None:
    error = unreachable({Address("a", 1): FrameError("a:1: an HTTP server")})
    assert isinstance(error, FrameError)


# -- several brokers, some of which are behind -----------------------------------------------------


def cluster_says(*topics: TopicInfo, brokers: tuple[int, ...] = (1, 2, 3)) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c",
        brokers=[BrokerInfo(id=broker, host=f"b{broker}", port=9) for broker in brokers],
        topics=list(topics),
    )


def led(
    leader: int | None, epoch: int, *, name: str = "a", id_: str = "x", partitions: int = 1
) -> TopicInfo:
    return TopicInfo(
        name=name,
        id=id_,
        partitions=[
            PartitionInfo(
                partition=number, leader=leader, leader_epoch=epoch, replicas=[1, 2, 3], isr=[1, 2]
            )
            for number in range(partitions)
        ],
    )


def seen(*answers: tuple[int, MetadataResponse]) -> ClusterView:
    view = ClusterView()
    for source, answer in answers:
        view = view.merge(answer, asked=["a"], source=source)
    return view


def test_replicas_and_epochs_are_known() -> None:
    known = seen((1, cluster_says(led(1, 5)))).partition("a", 0)
    assert known == PartitionView(1, 5, (1, 2, 3), (1, 2))


@pytest.mark.parametrize(
    ("known", "news", "leader", "epoch"),
    [
        ((1, 5), (2, 6), 2, 6),
        ((2, 6), (1, 5), 2, 6),  # cut off, or behind: KIP-320
        ((2, 6), (None, -1), 2, 6),  # it knows nothing of the partition yet
        ((2, 6), (None, 6), 2, 6),  # it cannot see the leader; nobody else can be that now
        ((2, 6), (None, 7), None, 7),
        ((None, 7), (2, 7), 2, 7),
        ((None, -1), (1, 0), 1, 0),
    ],
)
def test_the_newer_epoch_counts(
    known: tuple[int | None, int], news: tuple[int | None, int], leader: int | None, epoch: int
) -> None:
    view = seen((1, cluster_says(led(*known))), (2, cluster_says(led(*news))))
    found = view.partition("a", 0)
    assert (found.leader, found.leader_epoch) == (leader, epoch)


def test_who_is_behind_is_noticed() -> None:
    view = seen((1, cluster_says(led(1, 5, partitions=2))))
    assert view.is_ahead_of(cluster_says(led(1, 4, partitions=2)))
    assert view.is_ahead_of(cluster_says(led(1, 6, partitions=1)))
    assert view.is_ahead_of(cluster_says(missing("a")))
    assert view.is_ahead_of(cluster_says(led(1, 9, id_="y", partitions=2)))
    assert not view.is_ahead_of(cluster_says(led(2, 6, partitions=3)))
    assert not view.is_ahead_of(cluster_says(led(1, 0, name="b")))


def test_partitions_are_only_ever_added() -> None:
    view = seen((1, cluster_says(led(1, 5, partitions=3))), (2, cluster_says(led(2, 6))))
    assert view.topic("a").leaders == (2, 1, 1)


def test_one_broker_alone_does_not_take_a_topic_away() -> None:
    view = seen((1, cluster_says(led(1, 5))), (2, cluster_says(missing("a"))))
    assert view.leader("a", 0) == 1
    assert set(view.doubts) == {"a"}
    again = view.merge(cluster_says(missing("a")), asked=["a"], source=2)
    assert again.leader("a", 0) == 1, "the same broker again is no second opinion"
    gone = again.merge(cluster_says(missing("a")), asked=["a"], source=3)
    with pytest.raises(UnknownTopicError):
        gone.topic("a")
    assert not gone.doubts
    kept = again.merge(cluster_says(led(1, 5)), asked=["a"], source=3)
    assert not kept.doubts
    assert kept.merge(cluster_says(missing("a")), asked=["a"], source=3).leader("a", 0) == 1


def test_a_topic_made_anew_counts_when_two_say_so_whatever_its_epoch() -> None:
    new = cluster_says(led(3, 0, id_="y"))
    view = seen((1, cluster_says(led(1, 5))), (2, new))
    assert view.topic("a").id == "x"
    view = view.merge(new, asked=["a"], source=3)
    assert (view.topic("a").id, view.leader("a", 0)) == ("y", 3)
    old = view.merge(cluster_says(led(1, 5)), asked=["a"], source=1)
    assert old.topic("a").id == "y", "one that is cut off does not bring the old one back"


def test_a_broker_that_stands_alone_is_believed() -> None:
    alone = (1,)
    view = seen(
        (1, cluster_says(led(1, 5), brokers=alone)), (1, cluster_says(led(1, 4), brokers=alone))
    )
    assert view.partition("a", 0).leader_epoch == 4, "its disk has lost the end; there is no other"


def test_a_topic_that_nobody_knows_is_refused_even_if_one_alone_says_so() -> None:
    view = seen((1, cluster_says(missing("a"))))
    with pytest.raises(UnknownTopicError, match="no a"):
        view.topic("a")
    assert set(view.doubts) == {"a"}, "another may be asked"
    assert view.merge(cluster_says(led(1, 5)), asked=["a"], source=2).leader("a", 0) == 1


def test_brokers_with_partitions_stay_known_when_one_that_is_cut_off_names_itself_alone() -> None:
    view = seen((1, cluster_says(led(1, 5), brokers=(1, 2, 3, 4))), (3, cluster_says(brokers=(3,))))
    assert set(view.brokers) == {1, 2, 3, 4}
    view = view.merge(cluster_says(brokers=(1, 5)), asked=["a"], source=1)
    assert set(view.brokers) == {1, 2, 3, 5}, "four has left"
    moved = view.merge(
        MetadataResponse(
            cluster_id="c", brokers=[BrokerInfo(id=2, host="new", port=8, rack="r")], topics=[]
        ),
        asked=[],
        source=2,
    )
    assert set(moved.brokers) == {1, 2, 3, 5}
    assert moved.brokers[2] == Address("new", 8)
    assert moved.racks == {2: "r"}
