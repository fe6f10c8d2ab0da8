"""Administration of consumer groups: list and describe groups, change committed offsets.

The coordinator of a group handles requests about this group. The list of all groups is merged from
all coordinators. It is complete, or the call fails: users take a group that is missing from a list
for deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.client.consumer_groups.coordinator import Coordinators
from raftlog.client.consumer_groups.lag import partition_lags, subscribed
from raftlog.client.describe_cluster import PATIENCE_S
from raftlog.client.group_descriptions import (
    GroupDescription,
    GroupListing,
    group_description,
    group_listing,
    readers,
    shared,
)
from raftlog.client.metadata import ClusterView
from raftlog.client.partition_requests import list_offsets
from raftlog.errors import (
    CoordinatorLoadingError,
    FencedMemberError,
    GroupNotEmptyError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    RaftlogError,
    RefusedError,
    UnknownGroupError,
    UnknownMemberError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.groups import (
    CommittedPartition,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteOffsetsRequest,
    DeleteOffsetsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
    PartitionName,
)
from raftlog.protocol.schema import Failure, Message
from raftlog.types import (
    OFFSETS_TOPIC,
    LeaderEpoch,
    Offset,
    OffsetAndMetadata,
    TimestampMs,
    TopicPartition,
)

T = TypeVar("T")

_AT_ONCE_MAX: Final = 16  # groups with concurrent requests

_Leaders = tuple[tuple[int | None, LeaderEpoch], ...]  # of the partitions of __consumer_offsets


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """Return all groups, sorted. Waits for coordinators that are still loading.

    Raises ``LeaderNotAvailableError`` or a coordinator's error if the list would be incomplete.
    """

    async def attempt() -> list[GroupListing]:
        leaders = await _coordinating(cluster)
        found: dict[str, GroupListing] = {}
        for broker, answer in (await _ask_coordinators(cluster, leaders)).items():
            if answer.loading:
                raise CoordinatorLoadingError(
                    f"broker {broker} is still loading the groups that it coordinates "
                    f"({answer.loading} partitions of {OFFSETS_TOPIC}). Try again in a moment"
                )
            for listing in answer.groups:
                found[listing.group] = group_listing(listing, broker)
        if await _coordinating(cluster) != leaders:
            raise LeaderNotAvailableError("the coordinators have just changed. Try again")
        return [found[group] for group in sorted(found)]

    return await cluster.persist(attempt, repeatable=True)


async def _coordinating(cluster: Cluster) -> _Leaders:
    """Return the current coordinators; empty until the first group is created."""
    view = await cluster.refresh([OFFSETS_TOPIC])
    topic = view.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return ()
    return tuple((part.leader, part.leader_epoch) for part in topic.partitions)


async def _ask_coordinators(
    cluster: Cluster, leaders: _Leaders
) -> Mapping[int, ListGroupsResponse]:
    """Return the response of each coordinator. Raises if one cannot be reached."""
    for number, (leader, _) in enumerate(leaders):
        if leader is None or leader not in cluster.view.brokers:
            raise LeaderNotAvailableError(
                f"the groups of {OFFSETS_TOPIC}:{number} have no coordinator. Check whether its "
                "brokers are running: `raftlog cluster partitions --unavailable`"
            )
    brokers = cluster.view.brokers
    answers = await cluster.ask_all(
        apis.LIST_GROUPS,
        ListGroupsRequest(),
        brokers={leader: brokers[leader] for leader, _ in leaders if leader is not None},
        patience_s=PATIENCE_S,
    )
    found: dict[int, ListGroupsResponse] = {}
    for broker, answer in answers.items():
        if isinstance(answer, RaftlogError):
            cluster.mark_suspect(broker)
            raise type(answer)(
                f"cannot list the groups that broker {broker} at {brokers[broker]} coordinates: "
                f"{answer}"
            ) from answer
        assert isinstance(answer, ListGroupsResponse)
        found[broker] = answer
    for number, (leader, _) in enumerate(leaders):
        spoken_for = None if leader is None else found[leader].partitions
        if spoken_for is not None and number not in spoken_for:
            raise LeaderNotAvailableError(
                f"broker {leader} has not yet started to coordinate the groups of "
                f"{OFFSETS_TOPIC}:{number}. Try again in a moment"
            )
    return found


async def describe_groups(
    cluster: Cluster,
    coordinators: Coordinators,
    groups: Sequence[str],
    *,
    now_ms: Callable[[], TimestampMs],
) -> list[GroupDescription]:
    """Describe each group. Processes all groups before it raises the first error."""

    async def describe(group: str) -> GroupDescription:
        return await _describe_group(cluster, coordinators, group, now_ms=now_ms)

    return await _all_of(groups, describe)


async def _all_of(groups: Sequence[str], work: Callable[[str], Awaitable[T]]) -> list[T]:
    """Run ``work`` for all groups, up to 16 at a time. Raises the first error at the end."""
    gate = asyncio.Semaphore(_AT_ONCE_MAX)

    async def one(group: str) -> T:
        async with gate:
            return await work(group)

    outcomes = await asyncio.gather(*map(one, groups), return_exceptions=True)
    done: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
        done.append(outcome)
    return done


async def _describe_group(
    cluster: Cluster,
    coordinators: Coordinators,
    group: str,
    *,
    now_ms: Callable[[], TimestampMs],
) -> GroupDescription:
    request = DescribeGroupsRequest(groups=[group])
    answer = await _ask(coordinators, group, apis.DESCRIBE_GROUPS, request)
    assert isinstance(answer, DescribeGroupsResponse)
    (described,) = answer.groups
    _raise(group, described.failure)
    committed = await _committed(coordinators, group)
    topics = {topic for member in described.members for topic in member.topics}

    async def refresh() -> ClusterView:
        return await cluster.refresh(topics)

    view = await cluster.persist(refresh, repeatable=True) if topics else cluster.view
    targets = [tp for member in described.members for tp in shared(member.target)]
    lags = await partition_lags(
        cluster,
        committed,
        [*subscribed(view, sorted(topics)), *targets],
        readers(described.members),
        now_ms=now_ms(),
    )
    return group_description(described, lags)


async def _committed(coordinators: Coordinators, group: str) -> list[FetchedOffset]:
    request = OffsetFetchRequest(group=group, partitions=None)
    answer = await _ask(coordinators, group, apis.OFFSET_FETCH, request)
    assert isinstance(answer, OffsetFetchResponse)
    for found in answer.offsets:
        _raise(group, found.failure)
    return [found for found in answer.offsets if found.offset >= 0]


async def group_offsets(
    coordinators: Coordinators, group: str
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return all committed offsets of the group.

    Raises ``UnknownGroupError`` if the group does not exist.
    """
    request = DescribeGroupsRequest(groups=[group])
    answer = await _ask(coordinators, group, apis.DESCRIBE_GROUPS, request)
    assert isinstance(answer, DescribeGroupsResponse)
    _raise(group, answer.groups[0].failure)
    committed = await _committed(coordinators, group)
    return {
        TopicPartition(found.topic, found.partition): OffsetAndMetadata(
            found.offset, found.metadata, found.leader_epoch
        )
        for found in sorted(committed, key=lambda found: (found.topic, found.partition))
    }


async def commit_offsets(
    cluster: Cluster,
    coordinators: Coordinators,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    expected: Mapping[TopicPartition, Offset] | None = None,
) -> None:
    """Commit offsets for a group without members. Creates the group if needed.

    ``expected``: committed offsets that they replace; a partition that is missing has none. None:
    any. Sends all
    requests before it raises the first error: ``GroupNotEmptyError``, ``OffsetMovedError``,
    ``UnknownTopicError`` or ``UnknownPartitionError``.
    """
    topics = {tp.topic for tp in offsets}

    async def refresh() -> ClusterView:
        view = await cluster.refresh(topics)
        for tp in offsets:
            view.topic(tp.topic).check_partition(tp.partition)
        return view

    view = await cluster.persist(refresh, repeatable=True) if topics else cluster.view
    failures: list[Failure] = []
    for part in _parts(list(offsets)):
        request = _commit_request(group, {tp: offsets[tp] for tp in part}, view, expected)
        answer = await _ask(coordinators, group, apis.OFFSET_COMMIT, request)
        assert isinstance(answer, OffsetCommitResponse)
        failures += _failures(answer.partitions)
    _raise_first(group, failures)


def _commit_request(
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    view: ClusterView,
    expected: Mapping[TopicPartition, Offset] | None,
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group=group,
        offsets=[
            OffsetToCommit(
                topic=tp.topic,
                partition=tp.partition,
                offset=wanted.offset,
                leader_epoch=wanted.leader_epoch,
                metadata=wanted.metadata,
                expected=None if expected is None else expected.get(tp, -1),
            )
            for tp, wanted in offsets.items()
        ],
        topic_ids={tp.topic: view.topic(tp.topic).id for tp in offsets},
    )


def _parts(partitions: Sequence[TopicPartition]) -> Iterable[Sequence[TopicPartition]]:
    step = limits.PARTITIONS_PER_REQUEST_MAX
    return (partitions[start : start + step] for start in range(0, len(partitions), step))


async def check_in_range(
    cluster: Cluster, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> None:
    """Raise ``OffsetOutOfRangeError`` for the first offset that its partition does not have."""
    begins = await list_offsets(cluster, dict.fromkeys(offsets, "earliest"))
    ends = await list_offsets(cluster, dict.fromkeys(offsets, "latest"))
    for tp, wanted in offsets.items():
        begin, end = begins[tp].offset, ends[tp].offset
        if not begin <= wanted.offset <= end:
            raise OffsetOutOfRangeError(
                f"offset {wanted.offset} is out of range of {tp}. Use an offset from {begin} to "
                f"{end}"
            )


async def delete_groups(coordinators: Coordinators, groups: Sequence[str]) -> None:
    """Delete groups and their offsets. Processes all groups before it raises the first error."""

    async def delete(group: str) -> None:
        request = DeleteGroupsRequest(groups=[group])
        answer = await _ask(coordinators, group, apis.DELETE_GROUPS, request)
        assert isinstance(answer, DeleteGroupsResponse)
        _raise(group, answer.groups[0].failure)

    await _all_of(groups, delete)


async def delete_offsets(
    coordinators: Coordinators, group: str, partitions: Sequence[TopicPartition]
) -> None:
    """Delete the committed offsets of these partitions, which no member reads."""
    failures: list[Failure] = []
    for part in _parts(partitions):
        request = DeleteOffsetsRequest(
            group=group,
            partitions=[PartitionName(topic=tp.topic, partition=tp.partition) for tp in part],
        )
        answer = await _ask(coordinators, group, apis.DELETE_OFFSETS, request)
        assert isinstance(answer, DeleteOffsetsResponse)
        failures += _failures(answer.partitions)
    _raise_first(group, failures)


def _failures(partitions: Iterable[CommittedPartition]) -> list[Failure]:
    return [part.failure for part in partitions if part.failure is not None]


def _raise_first(group: str, failures: Sequence[Failure]) -> None:
    _raise(group, failures[0] if failures else None)


def _raise(group: str, failure: Failure | None) -> None:
    if failure is not None:
        raise _explained(group, failure.to_error())


async def _ask(coordinators: Coordinators, group: str, api: Api, message: Message) -> Message:
    """Return the coordinator's response. Adds the group and a hint to refused requests."""
    try:
        return await coordinators.call(group, api, message)
    except RefusedError as error:
        raise _explained(group, error) from error


def _explained(group: str, error: RaftlogError) -> RaftlogError:
    """Return the error with the group's name, and what to do next."""
    text = str(error) if group in str(error) else f"group {group!r}: {error}"
    if isinstance(error, UnknownGroupError):
        return UnknownGroupError(
            f"consumer group {group!r} does not exist. `raftlog group list` lists all groups"
        )
    if isinstance(error, UnknownMemberError | FencedMemberError):
        error = GroupNotEmptyError()  # a group with members accepts commits of its members only
        text = f"group {group!r} has members. Stop its consumers first"
    if isinstance(error, GroupNotEmptyError):
        text += f" (`raftlog group describe {group} --members` lists them)"
    return type(error)(text)
