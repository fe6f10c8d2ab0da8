"""The asynchronous admin client: what it asks for, what it refuses, which failure it raises."""

from __future__ import annotations

import asyncio
import gc
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.administration import transactions
from raftlog.client.administration.admin import Admin, AsyncAdmin, reassignment
from raftlog.client.base import ClientEnvironment
from raftlog.client.descriptions import (
    BrokerDescription,
    LeaderDescription,
    LogLevel,
    RecoveryDescription,
    TopicListing,
)
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ClusterNotReadyError,
    CommitUnknownError,
    ConnectionLostError,
    CoordinatorLoadingError,
    InvalidConfigError,
    InvalidGroupError,
    InvalidRequestError,
    InvalidTopicError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    TopicExistsError,
    UnknownGroupError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import cluster
from raftlog.protocol.cluster import (
    PartitionMove,
    ReassignRequest,
    ReassignResponse,
    RecoverClusterRequest,
    RecoverClusterResponse,
    ThrottleMovesRequest,
    ThrottleMovesResponse,
    TransferLeaderRequest,
    TransferLeaderResponse,
    UpgradeFeaturesRequest,
    UpgradeFeaturesResponse,
)
from raftlog.protocol.connection import Request
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    CreateTopicsRequest,
    DeletedRecords,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    MetadataResponse,
    OffsetCommitRequest,
    TopicDescription,
    TopicInfo,
    TopicResult,
    TopicsResponse,
    TransactionListing,
)
from raftlog.protocol.schema import Failure
from raftlog.types import TRANSACTIONS_TOPIC, NewTopic, OffsetAndMetadata, OffsetAndTimestamp
from tests.client.consumer_groups.coordinated import Coordination
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, Peer, answer_with, refuse, run, vanish
from tests.running import runs

# -- topics, brokers, users ------------------------------------------------------------------------


def admin_of(fake: FakeCluster) -> AsyncAdmin:
    return AsyncAdmin(fake.bootstrap, host=fake.host)


def results(*outcomes: tuple[str, RaftlogError | None]) -> TopicsResponse:
    return TopicsResponse(
        results=[
            TopicResult(name=name, id=f"{name}-id", failure=error and Failure.of(error))
            for name, error in outcomes
        ]
    )


@runs(run)
async def test_creating_sends_what_was_asked_for(fake: FakeCluster) -> None:
    fake.next(apis.CREATE_TOPICS, answer_with(results(("a", None))))
    async with admin_of(fake) as admin:
        topic = NewTopic("a", partitions=6, replication_factor=3, config={"retention.ms": "1"})
        assert await admin.create_topics([topic], validate_only=True) == {"a": "a-id"}
        (request,) = fake.asked(CreateTopicsRequest)
        assert request.validate_only
        (sent,) = request.topics
        assert (sent.name, sent.partitions, sent.replication_factor) == ("a", 6, 3)
        assert sent.config == {"retention.ms": "1"}
        assert await admin.create_topics([]) == {}


@runs(run)
async def test_all_topics_are_tried_and_the_first_failure_is_raised_with_its_name(
    fake: FakeCluster,
) -> None:
    fake.next(
        apis.CREATE_TOPICS,
        answer_with(
            results(
                ("good", None),
                ("old", TopicExistsError("it is there already")),
                ("odd", InvalidConfigError("x is no setting")),
            )
        ),
    )
    async with admin_of(fake) as admin:
        with pytest.raises(TopicExistsError, match="old: it is there already"):
            await admin.create_topics([NewTopic("good"), NewTopic("old"), NewTopic("odd")])


@runs(run)
async def test_a_bad_name_does_not_hold_up_its_neighbours(fake: FakeCluster) -> None:
    fake.next(apis.CREATE_TOPICS, answer_with(results(("good", None))))
    async with admin_of(fake) as admin:
        with pytest.raises(InvalidTopicError, match=r"a b"):
            await admin.create_topics([NewTopic("a b"), NewTopic("x" * 5_000), NewTopic("good")])
        (request,) = fake.asked(CreateTopicsRequest)
        assert [topic.name for topic in request.topics] == ["good"]


@runs(run)
async def test_many_topics_take_several_requests(fake: FakeCluster) -> None:
    names = [f"t{number}" for number in range(limits.TOPICS_PER_REQUEST_MAX + 1)]
    for name in names:
        fake.create(name)
    fake.next(
        apis.DELETE_TOPICS,
        answer_with(results(*[(name, None) for name in names[:-1]])),
        answer_with(results((names[-1], None))),
    )
    described = [TopicDescription(name=name) for name in names]
    fake.next(
        apis.DESCRIBE_TOPICS,
        answer_with(DescribeTopicsResponse(topics=described[:-1])),
        answer_with(DescribeTopicsResponse(topics=described[-1:])),
    )
    async with admin_of(fake) as admin:
        await admin.delete_topics(names)
        assert [topic.name for topic in await admin.describe_topics(names)] == names


@runs(run)
async def test_a_deletion_names_the_topic_that_is_meant(fake: FakeCluster) -> None:
    """A request that arrives late then deletes no newer topic of the same name."""
    starting = TopicInfo(name="a", failure=Failure.of(ClusterNotReadyError("soon")))
    known = MetadataResponse(cluster_id="", brokers=[], topics=[starting])
    fake.next(apis.METADATA, answer_with(known))
    fake.next(apis.DELETE_TOPICS, answer_with(results(("a", None))))
    topic = fake.create("a")
    async with admin_of(fake) as admin:
        with pytest.raises(UnknownTopicError, match="b"):
            await admin.delete_topics(["a", "b"])
    (request,) = fake.asked(DeleteTopicsRequest)
    assert (request.topics, request.ids) == (["a"], {"a": topic.id})


@runs(run)
async def test_describing(fake: FakeCluster) -> None:
    gone = TopicDescription(name="b", failure=Failure.of(UnknownTopicError("no such topic")))
    here = TopicDescription(name="a")
    fake.next(
        apis.DESCRIBE_TOPICS,
        answer_with(DescribeTopicsResponse(topics=[here])),
        answer_with(DescribeTopicsResponse(topics=[here, gone])),
    )
    async with admin_of(fake) as admin:
        assert [topic.name for topic in await admin.describe_topics()] == ["a"]
        assert fake.asked(DescribeTopicsRequest)[0].topics is None
        with pytest.raises(UnknownTopicError, match="b: no such topic"):
            await admin.describe_topics(["a", "b"])


@runs(run)
async def test_an_unknown_outcome_is_told_and_not_repeated(fake: FakeCluster) -> None:
    fake.next(apis.CREATE_TOPICS, vanish)
    async with admin_of(fake) as admin:
        with pytest.raises(ConnectionLostError):
            await admin.create_topics([NewTopic("a")])
        assert len(fake.asked(CreateTopicsRequest)) == 1


@runs(run)
async def test_offsets(fake: FakeCluster) -> None:
    fake.create("t")
    fill(fake, 3)
    fake.next(apis.LIST_OFFSETS, vanish)
    async with admin_of(fake) as admin:
        found = await admin.list_offsets({A: 1_700_000_000_000})
        assert found == {A: OffsetAndTimestamp(0, 1_700_000_000_000)}
        assert await admin.offsets("t") == {0: 3}
        assert await admin.list_offsets({A: 1_900_000_000_000}) == {A: None}
        assert await admin.list_offsets({}) == {}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda admin: admin.create_topics(NewTopic("a")), TypeError),
        (lambda admin: admin.create_topics(["a"]), TypeError),
        (lambda admin: admin.create_topics([NewTopic("a", partitions=0)]), InvalidRequestError),
        (lambda admin: admin.create_topics([NewTopic("a", partitions="6")]), TypeError),
        (lambda admin: admin.create_topics([NewTopic("a", config={"x": 1})]), TypeError),
        (lambda admin: admin.create_topics([NewTopic("a", config="x=1")]), TypeError),
        (lambda admin: admin.delete_topics("a"), TypeError),
        (lambda admin: admin.delete_topics(["a/b"]), InvalidTopicError),
        (lambda admin: admin.alter_topic("a", ["x"]), TypeError),
        (lambda admin: admin.alter_topic("a", {None: "x"}), TypeError),
        (lambda admin: admin.add_partitions("a", 10_001), InvalidRequestError),
        (lambda admin: admin.delete_records([A]), TypeError),
        (lambda admin: admin.delete_records({A: -2}), InvalidRequestError),
        (lambda admin: admin.list_offsets([A]), TypeError),
        (lambda admin: admin.list_offsets({A: "newest"}), TypeError),
        (lambda admin: admin.list_offsets({A: -1}), InvalidRequestError),
        (lambda admin: admin.offsets("a b"), InvalidTopicError),
    ],
)
@runs(run)
async def test_arguments_are_checked_before_anything_is_asked(
    fake: FakeCluster, *, call: Any, error: type[Exception]
) -> None:
    async with admin_of(fake) as admin:
        with pytest.raises(error):
            await call(admin)
        assert not fake.requests


@runs(run)
async def test_closing(fake: FakeCluster) -> None:
    admin = admin_of(fake)
    await admin.list_topics()
    await admin.close()
    await admin.close()
    with pytest.raises(ClosedError):
        await admin.list_topics()
    await AsyncAdmin("a:1").close()


def test_an_unclosed_one_warns() -> None:
    async def test(fake: FakeCluster) -> None:
        admin = admin_of(fake)
        await admin.list_topics()
        del admin
        gc.collect()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        run(test)
        gc.collect()
    assert [w.category for w in warned] == [ResourceWarning]


# -- several brokers -------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [0, None])
@runs(run)
async def test_the_clusters_default_replication_factor(fake: FakeCluster, *, factor: Any) -> None:
    fake.next(apis.CREATE_TOPICS, answer_with(results(("a", None))))
    async with admin_of(fake) as admin:
        await admin.create_topics([NewTopic("a", replication_factor=factor)])
        assert fake.asked(CreateTopicsRequest)[0].topics[0].replication_factor == 0
        with pytest.raises(InvalidRequestError, match="replication_factor=-1"):
            await admin.create_topics([NewTopic("a", replication_factor=-1)])


@runs(run, brokers=2)
async def test_what_may_pass_is_asked_for_again_and_only_that_and_elsewhere(
    fake: FakeCluster,
) -> None:
    fake.create("t")
    early = ClusterNotReadyError("no quorum")
    fake.next(
        apis.CREATE_TOPICS,
        answer_with(results(("a", None), ("b", early), ("c", InvalidConfigError("odd")))),
        answer_with(results(("b", None))),
    )
    async with admin_of(fake) as admin:
        await admin.list_topics()
        with pytest.raises(InvalidConfigError, match="c: odd"):
            await admin.create_topics([NewTopic("a"), NewTopic("b"), NewTopic("c")])
        asked = [
            (broker, [topic.name for topic in message.topics])
            for broker, message in fake.requests
            if isinstance(message, CreateTopicsRequest)
        ]
        assert asked == [(1, ["a", "b", "c"]), (2, ["b"])]


@runs(run)
async def test_what_does_not_pass_in_time_is_told(fake: FakeCluster) -> None:
    answer = answer_with(results(("a", ClusterNotReadyError("no quorum"))))
    fake.next(apis.CREATE_TOPICS, *[answer] * 1_000)
    async with admin_of(fake) as admin:
        with pytest.raises(ClusterNotReadyError, match="a: no quorum"):
            await admin.create_topics([NewTopic("a")])
        assert 28 < asyncio.get_running_loop().time() - 1_000 < 31
        fake._next.clear()
        fake.next(apis.CREATE_TOPICS, answer, vanish)
        with pytest.raises(ConnectionLostError):
            await admin.create_topics([NewTopic("a")])
        fake.next(apis.CREATE_TOPICS, answer_with(results(("a", CommitUnknownError("maybe")))))
        with pytest.raises(CommitUnknownError, match="maybe"):
            await admin.create_topics([NewTopic("a")])


@runs(run, brokers=3)
async def test_transferring_a_leader_asks_the_one_that_leads(fake: FakeCluster) -> None:
    topic = fake.create("t", 2, leaders=[1, 2])
    fake.next(
        apis.TRANSFER_LEADER,
        refuse(NotLeaderError("it has moved")),
        answer_with(TransferLeaderResponse(leader=3, leader_epoch=7)),
    )
    async with admin_of(fake) as admin:
        assert await admin.transfer_leader("t", 1, to=3) == LeaderDescription(3, 7)
        asked = [(b, m.to) for b, m in fake.requests if isinstance(m, TransferLeaderRequest)]
        assert asked == [(2, 3), (2, 3)]
        fake.kill(2)
        answer = answer_with(TransferLeaderResponse(leader=3, leader_epoch=8))
        fake.next(apis.TRANSFER_LEADER, answer)
        assert (await admin.transfer_leader("t", 1)).leader_epoch == 8, "another that votes"
        topic.leaders[0] = None
        fake.next(apis.TRANSFER_LEADER, vanish)
        with pytest.raises(ConnectionLostError):
            await admin.transfer_leader("t", 0)
        with pytest.raises(UnknownTopicError):
            await admin.transfer_leader("u", 0)
        with pytest.raises(UnknownPartitionError):
            await admin.transfer_leader("t", 2)


@runs(run)
async def test_moving_replicas(fake: FakeCluster) -> None:
    moving = ReassignResponse(moving=[PartitionMove(partition=1, replicas=[3, 1])])
    fake.next(apis.REASSIGN, answer_with(moving), answer_with(ReassignResponse()), vanish)
    async with admin_of(fake) as admin:
        found = await admin.reassign_partitions("t", {1: [3, 1]}, before={1: (1, 2)})
        assert found == {1: (3, 1)}
        assert await admin.cancel_reassignment("t") == {}
        move = PartitionMove(partition=1, replicas=[3, 1], before=[1, 2])
        asked = [m for _, m in fake.requests if isinstance(m, ReassignRequest)]
        assert asked == [
            ReassignRequest(topic="t", moves=[move]),
            ReassignRequest(topic="t", cancel=True),
        ]
        with pytest.raises(ConnectionLostError):
            await admin.reassign_partitions("t", {0: [1]}, replication_factor=1)
        for partition, broker in ((-1, 1), (0, -1)):
            with pytest.raises(InvalidRequestError):
                await admin.reassign_partitions("t", {partition: [broker]})
        fake.next(apis.UPGRADE_FEATURES, answer_with(UpgradeFeaturesResponse(peer_protocol=2)))
        assert await admin.upgrade_features() == 2
        assert fake.requests[-1][1] == UpgradeFeaturesRequest()
        fake.next(apis.THROTTLE_MOVES, answer_with(ThrottleMovesResponse()))
        await admin.throttle_moves(10_000)
        assert fake.requests[-1][1] == ThrottleMovesRequest(bytes_per_s=10_000)
        with pytest.raises(InvalidRequestError):
            await admin.throttle_moves(-1)


@runs(run, brokers=3)
async def test_recovering_a_cluster(fake: FakeCluster) -> None:
    fake.down = {1, 3}
    answer = answer_with(RecoverClusterResponse(partitions=[], cluster_note="2 votes alone"))
    fake.next(apis.RECOVER_CLUSTER, answer, answer, vanish)
    async with admin_of(fake) as admin:
        found = await admin.recover_cluster()
        assert found == RecoveryDescription((), "2 votes alone")
        await admin.recover_cluster(
            lost=[3, 1], accept_loss="0f", topics=["t"], broker="broker-2:9100", dry_run=True
        )
        asked = fake.asked(RecoverClusterRequest)
        assert [(m.lost, m.accept_loss, m.loss_id, m.topics, m.dry_run) for m in asked] == [
            ([], False, "", None, False),
            ([1, 3], True, "0f", ["t"], True),
        ]
        with pytest.raises(ConnectionLostError):
            await admin.recover_cluster()
        with pytest.raises(BrokerUnavailableError):
            await admin.recover_cluster(broker="broker-1:9100")
        assert len(fake.asked(RecoverClusterRequest)) == 3


@runs(run)
async def test_recovering_takes_longer_than_a_request(fake: FakeCluster) -> None:
    gate = asyncio.Event()

    def late(peer: Peer, request: Request) -> None:
        async def answer() -> None:
            await gate.wait()
            peer.write(peer.state.reply(request, RecoverClusterResponse(partitions=[])))

        fake.keep(answer())

    fake.next(apis.RECOVER_CLUSTER, late)
    async with admin_of(fake) as admin:
        asyncio.get_running_loop().call_later(300, gate.set)
        assert (await admin.recover_cluster()).partitions == ()


# -- consumer groups -------------------------------------------------------------------------------


@runs(run)
async def test_every_call_about_groups(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 2)
    fill(fake, 10)
    async with admin_of(fake) as admin:
        await admin.alter_group_offsets("g", {A: 4, B: OffsetAndMetadata(0, "own")})
        await admin.commit_offsets("g", {A: 5}, metadata="note")
        assert await admin.group_offsets("g") == {
            A: OffsetAndMetadata(5, "note", 3),
            B: OffsetAndMetadata(0, "own", 3),
        }
        assert [row.group for row in await admin.list_groups()] == ["g"]
        (described,) = await admin.describe_groups(["g", "g"])
        # The fake's records are 1,000 s old when its loop starts.
        assert (described.lag, described.lag_seconds) == (5, 1_000.0)
        await admin.delete_group_offsets("g", [B, B])
        assert list(await admin.group_offsets("g")) == [A]
        await admin.delete_groups(["g"])
        assert not world.groups
    with pytest.raises(ClosedError):
        await admin.list_groups()


@runs(run)
async def test_an_offset_out_of_range_changes_nothing(fake: FakeCluster) -> None:
    world = Coordination(fake)
    fake.create("t", 2)
    fill(fake, 10)
    async with admin_of(fake) as admin:
        with pytest.raises(OffsetOutOfRangeError, match=r"t:1\. Use an offset from 0 to 0"):
            await admin.alter_group_offsets("g", {A: 4, B: 1})
        assert not fake.asked(OffsetCommitRequest)
        # A program that keeps its place elsewhere is taken at its word.
        await admin.commit_offsets("g", {B: 1})
        assert world.groups["g"].offsets[B].offset == 1


@pytest.mark.parametrize("name", ["", "x" * 300, "two\nlines", " g"])
@runs(run)
async def test_a_name_that_is_none_is_refused_before_anything_is_asked(
    fake: FakeCluster, *, name: str
) -> None:
    async with admin_of(fake) as admin:
        for refused in (
            admin.describe_groups([name]),
            admin.delete_groups([name]),
            admin.delete_group_offsets(name, [A]),
            admin.group_offsets(name),
            admin.alter_group_offsets(name, {A: 1}),
            admin.commit_offsets(name, {A: 1}),
        ):
            with pytest.raises(InvalidGroupError, match="is not a name of a consumer group"):
                await refused
    assert not fake.connects


@pytest.mark.parametrize(
    ("groups", "message"),
    [("g", "a list of names"), (b"g", "a list of names"), ([7], "is not the name")],
)
@runs(run)
async def test_names_are_a_list_of_texts(fake: FakeCluster, *, groups: Any, message: str) -> None:
    async with admin_of(fake) as admin:
        with pytest.raises(TypeError, match=message):
            await admin.describe_groups(groups)
        with pytest.raises(TypeError, match=message):
            await admin.delete_groups(groups)


@pytest.mark.parametrize(
    ("offsets", "metadata", "error", "message"),
    [
        ([A], "", TypeError, "a dict of TopicPartition"),
        ({"t": 1}, "", TypeError, "TopicPartition"),
        ({A: "1"}, "", TypeError, "offset='1'"),
        ({A: -1}, "", InvalidRequestError, "offset=-1"),
        ({A: OffsetAndMetadata(1, leader_epoch=-2)}, "", InvalidRequestError, "leader_epoch=-2"),
        ({A: 1}, b"note", TypeError, "metadata=b'note'"),
        ({A: 1}, "x" * 4_097, InvalidRequestError, "4097 characters. Shorten it to 4096"),
        ({A: OffsetAndMetadata(1, "x" * 5_000)}, "", InvalidRequestError, "5000 characters"),
    ],
)
@runs(run)
async def test_offsets_are_checked(
    fake: FakeCluster, *, offsets: Any, metadata: Any, error: type[Exception], message: str
) -> None:
    async with admin_of(fake) as admin:
        with pytest.raises(error, match=message):
            await admin.commit_offsets("g", offsets, metadata=metadata)
        with pytest.raises(error, match=message):
            await admin.alter_group_offsets("g", offsets, metadata=metadata)
    assert not fake.connects


# -- admin -----------------------------------------------------------------------------------------
#
# The synchronous admin client: what ``AsyncAdmin`` does, from a thread that waits.


@pytest.fixture
def admin_fake() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 2)
    fill(made, 4)
    return made


def the_admin_of(admin_fake: FakeCluster) -> Admin:
    return Admin(
        admin_fake.bootstrap,
        host=ClientEnvironment(connector=admin_fake.connect),
        bootstrap_timeout_ms=50,
    )


def done(*names: str) -> TopicsResponse:
    return TopicsResponse(results=[TopicResult(name=name, id=f"{name}-id") for name in names])


def test_every_call(admin_fake: FakeCluster) -> None:
    admin_fake.next(apis.CREATE_TOPICS, answer_with(done("a", "b")))
    admin_fake.next(apis.DELETE_TOPICS, answer_with(done("a")))
    admin_fake.next(apis.ALTER_TOPICS, answer_with(done("t")))
    admin_fake.next(apis.ADD_PARTITIONS, answer_with(done("t")))
    described = DescribeTopicsResponse(topics=[TopicDescription(name="t", id="x")])
    admin_fake.next(apis.DESCRIBE_TOPICS, answer_with(described))
    deleted = DeletedRecords(topic="t", partition=0, log_start_offset=2)
    admin_fake.next(apis.DELETE_RECORDS, answer_with(DeleteRecordsResponse(partitions=[deleted])))
    with the_admin_of(admin_fake) as admin:
        assert admin.create_topics([NewTopic("a"), NewTopic("b")]) == {"a": "a-id", "b": "b-id"}
        a = admin_fake.create("a")
        admin.delete_topics(["a"])
        del admin_fake.topics["a"]
        admin.alter_topic("t", {"retention.ms": "5", "segment.ms": None})
        admin.add_partitions("t", 3)
        assert admin.list_topics() == ["t"]
        listed = {"t": TopicListing("t", admin_fake.topics["t"].id, 2)}
        assert admin.find_topics() == admin.find_topics(["t", "none"]) == listed
        assert [topic.name for topic in admin.describe_topics(["t"])] == ["t"]
        assert admin.delete_records({A: 2}) == {A: 2}
        assert admin.list_offsets({A: "latest"}) == {A: OffsetAndTimestamp(4, -1)}
        assert admin.offsets("t") == {0: 4, 1: 0}
        assert admin.offsets("t", "earliest") == {0: 0, 1: 0}
        assert admin.offsets("t", 1_900_000_000_000) == {0: None, 1: None}
        admin_fake.grow("t")
        assert admin.offsets("t") == {0: 4, 1: 0, 2: 0}
        cluster = admin.describe_cluster()
        assert cluster.brokers == (
            BrokerDescription(1, "broker-1", 9100, None, "directory-1", broker_epoch=1),
        )
        assert [part.high_watermark for part in cluster.partitions] == [4, 0, 0]
    assert admin_fake.asked(DeleteTopicsRequest)[0].ids == {"a": a.id}
    assert admin_fake.asked(AlterTopicsRequest)[0].topics[0].config == {
        "retention.ms": "5",
        "segment.ms": None,
    }
    assert admin_fake.asked(AddPartitionsRequest)[0].topics[0].partitions == 3


def test_errors_come_through(admin_fake: FakeCluster) -> None:
    failure = Failure.of(TopicExistsError("topic t exists"))
    admin_fake.next(
        apis.CREATE_TOPICS,
        answer_with(TopicsResponse(results=[TopicResult(name="t", failure=failure)])),
    )
    with the_admin_of(admin_fake) as admin:
        with pytest.raises(TopicExistsError, match="topic t exists"):
            admin.create_topics([NewTopic("t")])
        with pytest.raises(UnknownTopicError):
            admin.offsets("nope")


def test_a_call_with_wrong_arguments_is_refused_as_any_function_does(
    admin_fake: FakeCluster,
) -> None:
    with the_admin_of(admin_fake) as admin, pytest.raises(TypeError, match="unexpected keyword"):
        admin.create_topics([], timeout_ms=5)  # type: ignore[call-arg]


def test_nobody_there(admin_fake: FakeCluster) -> None:
    admin_fake.down.add(1)
    noted = pytest.raises(BrokerUnavailableError, match="broker-1:9100")
    with the_admin_of(admin_fake) as admin, noted:
        admin.list_topics()


def test_closing_in_admin(admin_fake: FakeCluster) -> None:
    admin = the_admin_of(admin_fake)
    admin.list_topics()
    admin.close()
    admin.close()
    with pytest.raises(ClosedError):
        admin.list_topics()
    Admin(admin_fake.bootstrap).close()


def test_an_unclosed_one_warns_in_admin(admin_fake: FakeCluster) -> None:
    admin = the_admin_of(admin_fake)
    admin.list_topics()
    io_thread = admin._thread._thread
    assert io_thread is not None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        del admin
        gc.collect()
    assert [w.category for w in warned] == [ResourceWarning]
    io_thread.join(20)
    assert not io_thread.is_alive()


# -- consumer groups -------------------------------------------------------------------------------


def test_every_call_about_groups_in_admin() -> None:
    admin_fake = FakeCluster()
    Coordination(admin_fake)
    admin_fake.create("t", 2)
    fill(admin_fake, 10)
    with Admin(admin_fake.bootstrap, host=ClientEnvironment(connector=admin_fake.connect)) as admin:
        admin.alter_group_offsets("g", {A: 4, B: 0}, metadata="note")
        admin.commit_offsets("g", {A: 5})
        assert admin.group_offsets("g") == {
            A: OffsetAndMetadata(5, "", 3),
            B: OffsetAndMetadata(0, "note", 3),
        }
        assert [row.group for row in admin.list_groups()] == ["g"]
        assert [described.lag for described in admin.describe_groups(["g"])] == [5]
        admin.delete_group_offsets("g", [B])
        assert list(admin.group_offsets("g")) == [A]
        admin.delete_groups(["g"])
        with pytest.raises(UnknownGroupError, match="consumer group 'g' does not exist"):
            admin.group_offsets("g")


def test_it_has_every_call_of_the_asynchronous_one() -> None:
    for name, method in vars(AsyncAdmin).items():
        if inspect.iscoroutinefunction(method) and not name.startswith("_") and name != "close":
            waiting = getattr(Admin, name)
            assert not inspect.iscoroutinefunction(waiting)
            assert inspect.signature(waiting) == inspect.signature(method)
            assert inspect.getdoc(waiting) == inspect.getdoc(method)


# -- log levels ------------------------------------------------------------------------------------
#
# Log levels: the broker that is asked, and the request of a change.


@runs(run, brokers=2)
async def test_the_given_broker_is_asked(fake: FakeCluster) -> None:
    asked: list[tuple[int, str, str | None]] = []

    def describe(peer: Peer, request: Request) -> None:
        noted = [cluster.LogLevel(logger="root", level=f"of {peer.broker_id}", is_own=True)]
        peer.write(peer.state.reply(request, cluster.DescribeLogLevelsResponse(levels=noted)))

    def alter(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, cluster.AlterLogLevelsRequest)
        asked.extend(
            (peer.broker_id, change.logger, change.level) for change in request.message.changes
        )
        peer.write(peer.state.reply(request, cluster.AlterLogLevelsResponse()))

    fake.always[apis.DESCRIBE_LOG_LEVELS] = describe
    fake.always[apis.ALTER_LOG_LEVELS] = alter
    async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
        for broker in (2, 1):
            found = await admin.describe_log_levels(broker)
            assert found == {"root": LogLevel(f"of {broker}", is_own=True)}
        await admin.alter_log_levels(2, {"raftlog": "debug", "root": None})
    assert asked == [(2, "raftlog", "debug"), (2, "root", None)]


# -- reassignment ----------------------------------------------------------------------------------
#
# Requests for new replicas, and their arguments.


def test_moves_are_in_the_order_of_the_partitions() -> None:
    request = reassignment("t", {2: (3, 1), 0: (1,)}, {2: (1, 2)}, 2)
    assert request.moves == [
        PartitionMove(partition=0, replicas=[1]),
        PartitionMove(partition=2, replicas=[3, 1], before=[1, 2]),
    ]
    assert (request.topic, request.replication_factor) == ("t", 2)


@pytest.mark.parametrize(
    ("topic", "replicas", "factor"),
    [("a b", {0: [1]}, 0), ("t", {-1: [1]}, 0), ("t", {0: [-1]}, 0), ("t", {0: [1]}, 99)],
)
def test_wrong_arguments_are_refused(
    topic: str, replicas: Mapping[int, Sequence[int]], factor: Any
) -> None:
    with pytest.raises((RaftlogError, ValueError)):
        reassignment(topic, replicas, {}, factor)


# -- transactions ----------------------------------------------------------------------------------

# Transactions from outside: arguments, and lists that are whole.


REQUEST = transactions.listing_request(None, None, None)


def page(
    *names: str, after: int = -1, loading: int = 0, partition: int
) -> ListTransactionsResponse:
    listed = [
        TransactionListing(
            transactional_id=name, state="empty", producer_id=7, producer_epoch=0, timeout_ms=9
        )
        for name in names
    ]
    return ListTransactionsResponse(
        transactions=listed, after=after, loading=loading, partitions=[partition]
    )


@runs(run, brokers=2)
async def test_a_list_has_all_pages_of_all_coordinators(fake: FakeCluster) -> None:
    """One that is still loading is waited for, also if that begins after its first page."""
    fake.create(TRANSACTIONS_TOPIC, 2, leaders=[1, 2])
    loads = [1, 1]  # so many more times, for the first page of broker 1 and its second one
    asked: list[tuple[int, int]] = []

    def answer(broker_id: int, after: int) -> ListTransactionsResponse:
        asked.append((broker_id, after))
        if broker_id == 2:
            return page("c", partition=1)
        at = 0 if after < 0 else 1
        if loads[at]:
            loads[at] -= 1
            return page(loading=1, partition=0)
        return page("b", after=5, partition=0) if at == 0 else page("a", partition=0)

    def behave(peer: Peer, request: Request) -> None:
        assert isinstance(request.message, ListTransactionsRequest)
        peer.write(peer.state.reply(request, answer(peer.broker_id, request.message.after)))

    fake.always[apis.LIST_TRANSACTIONS] = behave
    cluster = cluster_of(fake)
    found = await transactions.list_transactions(cluster, REQUEST)
    assert [(row.transactional_id, row.coordinator) for row in found] == [
        ("a", 1),
        ("b", 1),
        ("c", 2),
    ]
    assert [after for broker, after in asked if broker == 1] == [-1, -1, 5, -1, 5]
    loads[1] = 1_000_000
    with pytest.raises(CoordinatorLoadingError, match="broker 1 is still loading"):
        await transactions.list_transactions(cluster, REQUEST)
    await cluster.close()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: transactions.transactional_ids("tx"), TypeError, r"Pass \['tx'\]"),
        (lambda: transactions.transactional_ids([7]), TypeError, "7 is not"),  # type: ignore[list-item]
        (lambda: transactions.transactional_ids([""]), InvalidRequestError, "1 to 1024"),
        (lambda: transactions.transactional_ids(["x" * 1_025]), InvalidRequestError, "not 1025"),
        (lambda: transactions.listing_request("empty", None, None), TypeError, r"\['empty'\]"),
        (lambda: transactions.listing_request(["x"], None, None), InvalidRequestError, "'x'"),
        (
            lambda: transactions.listing_request(None, [-1], None),
            InvalidRequestError,
            "producer_id",
        ),
        (
            lambda: transactions.listing_request(None, range(1_001), None),
            InvalidRequestError,
            str(limits.TRANSACTION_FILTERS_MAX),
        ),
        (lambda: transactions.listing_request(None, None, -1), InvalidRequestError, "min_duration"),
    ],
)
def test_a_wrong_argument_is_named(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        call()
