"""Finding a group's coordinator, and asking it, while brokers come and go. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.groups import coordinator
from raftlog.client.groups.coordinator import (
    Coordinator,
    Coordinators,
    check_ends,
    check_offsets,
    fetch_offsets,
)
from raftlog.errors import (
    BrokerUnavailableError,
    ConnectionLostError,
    CoordinatorLoadingError,
    GroupNotEmptyError,
    InvalidGroupError,
    InvalidRequestError,
    NotCoordinatorError,
    RaftlogError,
    StaleMemberEpochError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    CommittedPartition,
    CoordinatorInfo,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    FindCoordinatorsRequest,
    FindCoordinatorsResponse,
    GroupDescription,
    GroupHeartbeatRequest,
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.types import OffsetAndMetadata, TopicPartition
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.test_cluster import cluster_of
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, answer_with, ignore, refuse, run, vanish
from tests.running import runs

FETCH = OffsetFetchRequest(group="g", partitions=[])
COMMIT = OffsetCommitRequest(group="g", offsets=[OffsetToCommit(topic="t", partition=0, offset=0)])


def asked(fake: FakeCluster, kind: type[Message]) -> list[int]:
    """The brokers that got such a request, in order."""
    return [broker for broker, message in fake.requests if isinstance(message, kind)]


def now() -> float:
    return asyncio.get_running_loop().time()


@runs(run, brokers=3)
async def test_it_is_found_once_and_again_when_it_has_moved(fake: FakeCluster) -> None:
    fake.create("t")
    groups = FakeCoordinator(fake, broker=2)
    coordinators = Coordinators(cluster_of(fake))
    assert await coordinators.find(["g", "h"]) == dict.fromkeys(
        "gh", Coordinator(2, fake.addresses[2])
    )
    for _ in range(3):
        await coordinators.call("g", apis.OFFSET_FETCH, FETCH)
    assert len(asked(fake, FindCoordinatorsRequest)) == 1
    groups.move(3)
    await coordinators.call("g", apis.OFFSET_FETCH, FETCH)
    assert asked(fake, OffsetFetchRequest) == [2, 2, 2, 2, 3]
    assert len(asked(fake, FindCoordinatorsRequest)) == 2


@runs(run, brokers=3)
async def test_news_that_are_old_are_waited_out(fake: FakeCluster) -> None:
    fake.create("t")
    groups = FakeCoordinator(fake, broker=1)
    groups.move(2, noted=False)
    coordinators = Coordinators(cluster_of(fake))
    asking = asyncio.ensure_future(coordinators.call("g", apis.OFFSET_FETCH, FETCH))
    await asyncio.sleep(3)
    assert not asking.done()
    assert len(asked(fake, OffsetFetchRequest)) < 20, "with pauses"
    groups.noted = 2
    await asking


@pytest.mark.parametrize(
    "trouble",
    [vanish, *map(refuse, [CoordinatorLoadingError("soon"), NotCoordinatorError("not me")])],
)
@runs(run)
async def test_what_passes_is_tried_again(fake: FakeCluster, *, trouble: Any) -> None:
    fake.create("t")
    FakeCoordinator(fake)
    coordinators = Coordinators(cluster_of(fake))
    for api, message in ((apis.OFFSET_FETCH, FETCH), (apis.OFFSET_COMMIT, COMMIT)):
        fake.next(api, trouble, trouble)
        await coordinators.call("g", api, message)


@runs(run, brokers=3)
async def test_one_that_goes_on_loading_is_given_up_when_there_is_another(
    fake: FakeCluster,
) -> None:
    """A former coordinator that reaches no broker loads its groups for as long as that lasts."""
    fake.create("t")
    groups = FakeCoordinator(fake, broker=2)
    coordinators = Coordinators(cluster_of(fake))
    await coordinators.call("g", apis.OFFSET_FETCH, FETCH)
    groups.move(3)
    fake.next(apis.OFFSET_FETCH, refuse(CoordinatorLoadingError("soon")))
    await coordinators.call("g", apis.OFFSET_FETCH, FETCH)
    assert asked(fake, OffsetFetchRequest) == [2, 2, 3]


@runs(run, brokers=3)
async def test_one_that_says_nothing_is_given_up_when_there_is_another(fake: FakeCluster) -> None:
    fake.create("t")
    groups = FakeCoordinator(fake, broker=2)
    coordinators = Coordinators(cluster_of(fake))
    await coordinators.call("g", apis.OFFSET_FETCH, FETCH)
    fake.pause(2)
    start = now()
    asking = asyncio.ensure_future(coordinators.call("g", apis.OFFSET_FETCH, FETCH))
    await asyncio.sleep(5)
    assert not asking.done(), "slow is not dead"
    groups.move(3)
    await asking
    assert now() - start < 6.5
    assert asked(fake, OffsetFetchRequest)[-1] == 3


@runs(run, brokers=3)
async def test_an_answer_that_may_take_its_time_is_waited_for(fake: FakeCluster) -> None:
    fake.create("t")
    FakeCoordinator(fake, broker=2)
    coordinators = Coordinators(cluster_of(fake))
    beat = GroupHeartbeatRequest(
        group="g", member_id="m", member_epoch=0, sequence=1, topics=[], wait_ms=0
    )
    await coordinators.ask("g", apis.GROUP_HEARTBEAT, beat)
    waiting = GroupHeartbeatRequest(
        group="g", member_id="m", member_epoch=1, sequence=2, topics=[], wait_ms=10_000
    )
    start = now()
    await coordinators.ask("g", apis.GROUP_HEARTBEAT, waiting, wait_ms=10_000)
    assert now() - start == pytest.approx(10, abs=0.5)
    assert len(asked(fake, FindCoordinatorsRequest)) == 1


@runs(run)
async def test_what_only_the_member_can_put_right_is_raised_at_once(fake: FakeCluster) -> None:
    fake.create("t")
    FakeCoordinator(fake)
    coordinators = Coordinators(cluster_of(fake))
    fake.next(apis.OFFSET_COMMIT, refuse(StaleMemberEpochError("newer")))
    start = now()
    with pytest.raises(StaleMemberEpochError):
        await coordinators.call("g", apis.OFFSET_COMMIT, COMMIT)
    fake.next(
        apis.OFFSET_COMMIT,
        answer_with(
            OffsetCommitResponse(
                partitions=[
                    CommittedPartition(
                        topic="t",
                        partition=0,
                        failure=Failure.of(StaleMemberEpochError("newer")),
                    )
                ]
            )
        ),
    )
    with pytest.raises(StaleMemberEpochError):
        await coordinators.call("g", apis.OFFSET_COMMIT, COMMIT)
    assert now() == start
    assert len(asked(fake, FindCoordinatorsRequest)) == 1, "its coordinator is a good one"


@runs(run)
async def test_failures_within_an_answer_are_tried_again_or_left_to_the_caller(
    fake: FakeCluster,
) -> None:
    coordinators = Coordinators(cluster_of(fake))
    FakeCoordinator(fake)

    def described(error: RaftlogError | None) -> Any:
        failure = None if error is None else Failure.of(error)
        return answer_with(
            DescribeGroupsResponse(groups=[GroupDescription(group="g", failure=failure)])
        )

    fake.next(
        apis.DESCRIBE_GROUPS,
        described(CoordinatorLoadingError("soon")),
        described(NotCoordinatorError("another")),
        described(None),
    )
    request = DescribeGroupsRequest(groups=["g"])
    answer = await coordinators.call("g", apis.DESCRIBE_GROUPS, request)
    assert isinstance(answer, DescribeGroupsResponse)
    assert answer.groups[0].failure is None
    left = DeleteGroupsResponse(
        groups=[DeletedGroup(group="g", failure=Failure.of(GroupNotEmptyError("members")))]
    )
    fake.next(apis.DELETE_GROUPS, answer_with(left))
    delete = DeleteGroupsRequest(groups=["g"])
    assert await coordinators.call("g", apis.DELETE_GROUPS, delete) == left
    fake.next(apis.DELETE_GROUPS, vanish)
    with pytest.raises(ConnectionLostError):
        await coordinators.call("g", apis.DELETE_GROUPS, delete)


@runs(run)
async def test_who_cannot_be_found_is_told_in_the_end(fake: FakeCluster) -> None:
    coordinators = Coordinators(cluster_of(fake))
    failure = Failure.of(InvalidGroupError("no such name"))
    fake.next(
        apis.FIND_COORDINATORS,
        answer_with(
            FindCoordinatorsResponse(coordinators=[CoordinatorInfo(group="g", failure=failure)])
        ),
    )
    with pytest.raises(InvalidGroupError):
        await coordinators.call("g", apis.OFFSET_FETCH, FETCH)
    nobody = answer_with(FindCoordinatorsResponse(coordinators=[]))
    fake.always[apis.FIND_COORDINATORS] = nobody
    with pytest.raises(NotCoordinatorError, match="returned no coordinator"):
        await coordinators.call("g", apis.OFFSET_FETCH, FETCH, timeout_ms=1_000)
    fake.kill(1)
    with pytest.raises(BrokerUnavailableError):
        await coordinators.call("g", apis.OFFSET_FETCH, FETCH, timeout_ms=1_000)


@runs(run)
async def test_another_broker_at_its_address_is_no_coordinator(fake: FakeCluster) -> None:
    FakeCoordinator(fake, broker=1)
    wrong = CoordinatorInfo(group="g", broker_id=7, host="broker-1", port=9100)
    fake.next(apis.FIND_COORDINATORS, answer_with(FindCoordinatorsResponse(coordinators=[wrong])))
    coordinators = Coordinators(cluster_of(fake))
    with pytest.raises(NotCoordinatorError, match="broker 1 is"):
        await coordinators.ask("g", apis.OFFSET_FETCH, FETCH)
    fake.next(apis.OFFSET_FETCH, ignore)
    with pytest.raises(RaftlogError):
        await coordinators.call("g", apis.OFFSET_FETCH, FETCH, timeout_ms=100)


# -- offsets ---------------------------------------------------------------------------------------
#
# Offsets that users pass, and what the coordinator has. In virtual time.


def test_offsets_are_taken_as_numbers_or_with_a_note() -> None:
    noted = OffsetAndMetadata(7, "x" * limits.OFFSET_METADATA_CHARS_MAX, 3)
    assert check_offsets({A: 5, ("t", 1): noted}) == {A: OffsetAndMetadata(5), B: noted}
    assert check_offsets({}) == {}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([A], TypeError),
        ({"t:0": 1}, TypeError),
        ({A: "1"}, TypeError),
        ({A: None}, TypeError),
        ({A: True}, TypeError),
        ({A: 1.0}, TypeError),
        ({A: -1}, InvalidRequestError),
        ({A: limits.OFFSET_MAX + 1}, InvalidRequestError),
        ({("t", -1): 1}, InvalidRequestError),
        ({A: OffsetAndMetadata(1, 5)}, TypeError),  # type: ignore[arg-type]
        ({A: OffsetAndMetadata(1, "", -2)}, InvalidRequestError),
        (
            {A: OffsetAndMetadata(1, "x" * (limits.OFFSET_METADATA_CHARS_MAX + 1))},
            InvalidRequestError,
        ),
    ],
)
def test_what_is_no_offset_is_refused(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        check_offsets(given)


@runs(run)
async def test_ends_are_looked_up_only_where_they_are_not_known(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 5)
    cluster = cluster_of(fake)
    await check_ends(cluster, check_offsets({A: 4, B: 0}), known={A: 4})
    assert not fake.asked(ListOffsetsRequest)
    await check_ends(cluster, check_offsets({A: 5, B: 0}), known={A: 4})
    assert len(fake.asked(ListOffsetsRequest)) == 1
    with pytest.raises(InvalidRequestError, match="t:1: offset 1 is beyond the end offset 0"):
        await check_ends(cluster, check_offsets({A: 4, B: 1}), known={A: 4})
    with pytest.raises(UnknownTopicError):
        await check_ends(cluster, check_offsets({("nope", 0): 0}), known={})


def test_committed_offsets_come_in_as_many_requests_as_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "_STEP", 2)

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 5)
        FakeCoordinator(fake)
        partitions = [TopicPartition("t", number) for number in range(5)]
        coordinators = Coordinators(cluster_of(fake))
        found = await fetch_offsets(coordinators, "g", partitions)
        assert found == dict.fromkeys(partitions)
        assert len(fake.asked(OffsetFetchRequest)) == 3
        assert await fetch_offsets(coordinators, "g", []) == {}

    run(test)


@runs(run)
async def test_one_that_cannot_be_had_is_told(fake: FakeCluster) -> None:
    FakeCoordinator(fake)
    failure = Failure.of(UnknownTopicError("no such topic"))
    fake.next(
        apis.OFFSET_FETCH,
        answer_with(
            OffsetFetchResponse(offsets=[FetchedOffset(topic="t", partition=0, failure=failure)])
        ),
    )
    with pytest.raises(UnknownTopicError):
        await fetch_offsets(Coordinators(cluster_of(fake)), "g", [A])
