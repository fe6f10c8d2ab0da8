"""The asynchronous admin client: what it asks for, what it refuses, which failure it raises."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.aio.admin import AsyncAdmin
from raftlog.errors import (
    ClosedError,
    ConnectionLostError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    RaftlogError,
    TopicExistsError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.schema import Failure
from raftlog.protocol.topics import (
    CreateTopicsRequest,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    TopicDescription,
    TopicResult,
    TopicsResponse,
)
from raftlog.types import NewTopic, OffsetAndTimestamp
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A
from tests.client.world import FakeCluster, answer_with, run, vanish


def admin_of(fake: FakeCluster) -> AsyncAdmin:
    return AsyncAdmin(fake.bootstrap, host=fake.host)


def results(*outcomes: tuple[str, RaftlogError | None]) -> TopicsResponse:
    return TopicsResponse(
        results=[
            TopicResult(name=name, id=f"{name}-id", failure=error and Failure.of(error))
            for name, error in outcomes
        ]
    )


def test_creating_sends_what_was_asked_for() -> None:
    async def test(fake: FakeCluster) -> None:
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

    run(test)


def test_all_topics_are_tried_and_the_first_failure_is_raised_with_its_name() -> None:
    async def test(fake: FakeCluster) -> None:
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

    run(test)


def test_a_bad_name_does_not_hold_up_its_neighbours() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.next(apis.CREATE_TOPICS, answer_with(results(("good", None))))
        async with admin_of(fake) as admin:
            with pytest.raises(InvalidTopicError, match=r"a b"):
                await admin.create_topics(
                    [NewTopic("a b"), NewTopic("x" * 5_000), NewTopic("good")]
                )
            (request,) = fake.asked(CreateTopicsRequest)
            assert [topic.name for topic in request.topics] == ["good"]

    run(test)


def test_many_topics_take_several_requests() -> None:
    async def test(fake: FakeCluster) -> None:
        names = [f"t{number}" for number in range(limits.TOPICS_PER_REQUEST_MAX + 1)]
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

    run(test)


def test_describing() -> None:
    async def test(fake: FakeCluster) -> None:
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

    run(test)


def test_an_unknown_outcome_is_told_and_not_repeated() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.next(apis.CREATE_TOPICS, vanish)
        async with admin_of(fake) as admin:
            with pytest.raises(ConnectionLostError):
                await admin.create_topics([NewTopic("a")])
            assert len(fake.asked(CreateTopicsRequest)) == 1

    run(test)


def test_offsets() -> None:
    async def test(fake: FakeCluster) -> None:
        fake.create("t")
        fill(fake, 3)
        fake.next(apis.LIST_OFFSETS, vanish)
        async with admin_of(fake) as admin:
            found = await admin.list_offsets({A: 1_700_000_000_000})
            assert found == {A: OffsetAndTimestamp(0, 1_700_000_000_000)}
            assert await admin.offsets("t") == {0: 3}
            assert await admin.list_offsets({A: 1_900_000_000_000}) == {A: None}
            assert await admin.list_offsets({}) == {}

    run(test)


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
def test_arguments_are_checked_before_anything_is_asked(call: Any, error: type[Exception]) -> None:
    async def test(fake: FakeCluster) -> None:
        async with admin_of(fake) as admin:
            with pytest.raises(error):
                await call(admin)
            assert not fake.requests

    run(test)


def test_closing() -> None:
    async def test(fake: FakeCluster) -> None:
        admin = admin_of(fake)
        await admin.list_topics()
        await admin.close()
        await admin.close()
        with pytest.raises(ClosedError):
            await admin.list_topics()
        await AsyncAdmin("a:1").close()

    run(test)


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
