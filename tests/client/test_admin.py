"""The synchronous admin client: what ``AsyncAdmin`` does, from a thread that waits."""

from __future__ import annotations

import gc
import inspect
import warnings

import pytest

from raftlog.client.administration.admin import Admin, AsyncAdmin
from raftlog.client.base import ClientEnvironment
from raftlog.client.descriptions import BrokerDescription, TopicListing
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    TopicExistsError,
    UnknownGroupError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    AddPartitionsRequest,
    AlterTopicsRequest,
    DeletedRecords,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DescribeTopicsResponse,
    TopicDescription,
    TopicResult,
    TopicsResponse,
)
from raftlog.protocol.schema import Failure
from raftlog.types import NewTopic, OffsetAndMetadata, OffsetAndTimestamp
from tests.client.consumer_groups.coordinated import Coordination
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, answer_with


@pytest.fixture
def fake() -> FakeCluster:
    made = FakeCluster()
    made.create("t", 2)
    fill(made, 4)
    return made


def admin_of(fake: FakeCluster) -> Admin:
    return Admin(
        fake.bootstrap, host=ClientEnvironment(connector=fake.connect), bootstrap_timeout_ms=50
    )


def done(*names: str) -> TopicsResponse:
    return TopicsResponse(results=[TopicResult(name=name, id=f"{name}-id") for name in names])


def test_every_call(fake: FakeCluster) -> None:
    fake.next(apis.CREATE_TOPICS, answer_with(done("a", "b")))
    fake.next(apis.DELETE_TOPICS, answer_with(done("a")))
    fake.next(apis.ALTER_TOPICS, answer_with(done("t")))
    fake.next(apis.ADD_PARTITIONS, answer_with(done("t")))
    described = DescribeTopicsResponse(topics=[TopicDescription(name="t", id="x")])
    fake.next(apis.DESCRIBE_TOPICS, answer_with(described))
    deleted = DeletedRecords(topic="t", partition=0, log_start_offset=2)
    fake.next(apis.DELETE_RECORDS, answer_with(DeleteRecordsResponse(partitions=[deleted])))
    with admin_of(fake) as admin:
        assert admin.create_topics([NewTopic("a"), NewTopic("b")]) == {"a": "a-id", "b": "b-id"}
        a = fake.create("a")
        admin.delete_topics(["a"])
        del fake.topics["a"]
        admin.alter_topic("t", {"retention.ms": "5", "segment.ms": None})
        admin.add_partitions("t", 3)
        assert admin.list_topics() == ["t"]
        listed = {"t": TopicListing("t", fake.topics["t"].id, 2)}
        assert admin.find_topics() == admin.find_topics(["t", "none"]) == listed
        assert [topic.name for topic in admin.describe_topics(["t"])] == ["t"]
        assert admin.delete_records({A: 2}) == {A: 2}
        assert admin.list_offsets({A: "latest"}) == {A: OffsetAndTimestamp(4, -1)}
        assert admin.offsets("t") == {0: 4, 1: 0}
        assert admin.offsets("t", "earliest") == {0: 0, 1: 0}
        assert admin.offsets("t", 1_900_000_000_000) == {0: None, 1: None}
        fake.grow("t")
        assert admin.offsets("t") == {0: 4, 1: 0, 2: 0}
        cluster = admin.describe_cluster()
        assert cluster.brokers == (
            BrokerDescription(1, "broker-1", 9100, None, "directory-1", broker_epoch=1),
        )
        assert [part.high_watermark for part in cluster.partitions] == [4, 0, 0]
    assert fake.asked(DeleteTopicsRequest)[0].ids == {"a": a.id}
    assert fake.asked(AlterTopicsRequest)[0].topics[0].config == {
        "retention.ms": "5",
        "segment.ms": None,
    }
    assert fake.asked(AddPartitionsRequest)[0].topics[0].partitions == 3


def test_errors_come_through(fake: FakeCluster) -> None:
    failure = Failure.of(TopicExistsError("topic t exists"))
    fake.next(
        apis.CREATE_TOPICS,
        answer_with(TopicsResponse(results=[TopicResult(name="t", failure=failure)])),
    )
    with admin_of(fake) as admin:
        with pytest.raises(TopicExistsError, match="topic t exists"):
            admin.create_topics([NewTopic("t")])
        with pytest.raises(UnknownTopicError):
            admin.offsets("nope")


def test_a_call_with_wrong_arguments_is_refused_as_any_function_does(fake: FakeCluster) -> None:
    with admin_of(fake) as admin, pytest.raises(TypeError, match="unexpected keyword"):
        admin.create_topics([], timeout_ms=5)  # type: ignore[call-arg]


def test_nobody_there(fake: FakeCluster) -> None:
    fake.down.add(1)
    told = pytest.raises(BrokerUnavailableError, match="broker-1:9100")
    with admin_of(fake) as admin, told:
        admin.list_topics()


def test_closing(fake: FakeCluster) -> None:
    admin = admin_of(fake)
    admin.list_topics()
    admin.close()
    admin.close()
    with pytest.raises(ClosedError):
        admin.list_topics()
    Admin(fake.bootstrap).close()


def test_an_unclosed_one_warns(fake: FakeCluster) -> None:
    admin = admin_of(fake)
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


def test_every_call_about_groups() -> None:
    fake = FakeCluster()
    Coordination(fake)
    fake.create("t", 2)
    fill(fake, 10)
    with Admin(fake.bootstrap, host=ClientEnvironment(connector=fake.connect)) as admin:
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
