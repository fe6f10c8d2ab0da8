"""A client's hold on its cluster: connecting, refreshing, retrying, giving up in time."""

from __future__ import annotations

import asyncio

import pytest

from raftlog.client.cluster import Cluster
from raftlog.client.settings import ConnectionSettings, parse_bootstrap
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    ConnectionLostError,
    FrameError,
    NotLeaderError,
    RequestTimedOutError,
    ThrottledError,
    UnknownTopicError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    CreateTopicsRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    TopicToCreate,
)
from tests.client.world import FakeCluster, do_and_vanish, ignore, refuse, run, vanish
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
    cluster.forget_topics([])
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
