"""Finding a group's coordinator, and asking it, while brokers come and go. In virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.client.groups.coordinator import Coordinator, Coordinators
from raftlog.errors import (
    BrokerUnavailableError,
    ConnectionLostError,
    CoordinatorLoadingError,
    GroupNotEmptyError,
    InvalidGroupError,
    NotCoordinatorError,
    RaftlogError,
    StaleMemberEpochError,
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
    FindCoordinatorsRequest,
    FindCoordinatorsResponse,
    GroupDescription,
    GroupHeartbeatRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetToCommit,
)
from raftlog.protocol.schema import Failure, Message
from tests.client.consumer_groups.fake_coordinator import FakeCoordinator
from tests.client.test_cluster import cluster_of
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
    groups.move(2, told=False)
    coordinators = Coordinators(cluster_of(fake))
    asking = asyncio.ensure_future(coordinators.call("g", apis.OFFSET_FETCH, FETCH))
    await asyncio.sleep(3)
    assert not asking.done()
    assert len(asked(fake, OffsetFetchRequest)) < 20, "with pauses"
    groups.told = 2
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
