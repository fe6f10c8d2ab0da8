"""Administration of consumer groups: list and describe groups, change committed offsets.

The coordinator of a group handles requests about this group. The list of all groups is merged from
all coordinators. It is complete, or the call fails: users take a group that is missing from a list
for deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from raftlog import limits
from raftlog.client.administration.describe import PATIENCE_S
from raftlog.client.cluster import Cluster, ClusterView
from raftlog.client.groups.coordinator import Coordinators
from raftlog.client.requests import list_offsets, try_offsets
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
    counted,
)
from raftlog.protocol import api as apis
from raftlog.protocol import records
from raftlog.protocol.api import Api
from raftlog.protocol.records import (
    CommittedPartition,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteOffsetsRequest,
    DeleteOffsetsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FetchedOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetAnswer,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
    PartitionName,
)
from raftlog.protocol.schema import Failure, Message, slices
from raftlog.record import decode_records, parse_header, split
from raftlog.types import (
    OFFSETS_TOPIC,
    LeaderEpoch,
    Offset,
    OffsetAndMetadata,
    TimestampMs,
    TopicPartition,
)

T = TypeVar("T")

_AT_ONCE_MAX: Final = 16  # names with concurrent requests

Leaders = tuple[tuple[int | None, LeaderEpoch], ...]  # of the partitions of an internal topic


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """Return all groups, sorted. Waits for coordinators that are still loading.

    Raises ``LeaderNotAvailableError`` or a coordinator's error if the list would be incomplete.
    """

    async def attempt() -> list[GroupListing]:
        leaders = await coordinating(cluster, OFFSETS_TOPIC)
        found: dict[str, GroupListing] = {}
        request = ListGroupsRequest()
        answers = await ask_coordinators(
            cluster, leaders, apis.LIST_GROUPS, request, topic=OFFSETS_TOPIC, what="groups"
        )
        for broker, answer in answers.items():
            assert isinstance(answer, ListGroupsResponse)
            if answer.loading:
                raise CoordinatorLoadingError(
                    f"broker {broker} is still loading the groups that it coordinates "
                    f"({answer.loading} partitions of {OFFSETS_TOPIC}). Try again in a moment"
                )
            for listing in answer.groups:
                found[listing.group] = group_listing(listing, broker)
        if await coordinating(cluster, OFFSETS_TOPIC) != leaders:
            raise LeaderNotAvailableError("the coordinators have just changed. Try again")
        return [found[group] for group in sorted(found)]

    return await cluster.persist(attempt, repeatable=True)


async def coordinating(cluster: Cluster, topic: str) -> Leaders:
    """Return the current coordinators, whose states are in ``topic``; empty until it is created."""
    view = await cluster.refresh([topic])
    found = view.topics.get(topic)
    if found is None:
        return ()
    return tuple((part.leader, part.leader_epoch) for part in found.partitions)


async def ask_coordinators(
    cluster: Cluster, leaders: Leaders, api: Api, request: Message, *, topic: str, what: str
) -> Mapping[int, Message]:
    """Return the response of each coordinator. Raises if one cannot be reached.

    ``what``: what is listed, as errors call it. A response has ``partitions``: those of ``topic``
    that it covers, or None.
    """
    for number, (leader, _) in enumerate(leaders):
        if leader is None or leader not in cluster.view.brokers:
            raise LeaderNotAvailableError(
                f"the {what} of {topic}:{number} have no coordinator. Check whether its "
                "brokers are running: `raftlog cluster partitions --unavailable`"
            )
    brokers = cluster.view.brokers
    answers = await cluster.ask_all(
        api,
        request,
        brokers={leader: brokers[leader] for leader, _ in leaders if leader is not None},
        patience_s=PATIENCE_S,
    )
    found: dict[int, Message] = {}
    for broker, answer in answers.items():
        if isinstance(answer, RaftlogError):
            cluster.mark_suspect(broker)
            raise type(answer)(
                f"cannot list the {what} that broker {broker} at {brokers[broker]} coordinates: "
                f"{answer}"
            ) from answer
        found[broker] = answer
    for number, (leader, _) in enumerate(leaders):
        covered = None if leader is None else getattr(found[leader], "partitions", None)
        if covered is not None and number not in covered:
            raise LeaderNotAvailableError(
                f"broker {leader} has not yet started to coordinate the {what} of "
                f"{topic}:{number}. Try again in a moment"
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

    return await all_of(groups, describe)


async def all_of(names: Sequence[str], work: Callable[[str], Awaitable[T]]) -> list[T]:
    """Run ``work`` for all names, up to 16 at a time. Raises the first error at the end."""
    gate = asyncio.Semaphore(_AT_ONCE_MAX)

    async def one(name: str) -> T:
        async with gate:
            return await work(name)

    outcomes = await asyncio.gather(*map(one, names), return_exceptions=True)
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

    await all_of(groups, delete)


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


# -- lag -------------------------------------------------------------------------------------------
#
# Lag of a consumer group, in offsets and in seconds.
#
# The committed offsets are read before the end offsets, and end offsets only grow. So no lag is
# negative, and none is larger than the actual lag when the call returns. The lag in seconds is the
# age of the first unconsumed record. Reading that record usually costs one small fetch per broker.
# A problem with one partition is reported for this partition, and does not delay the others.


PATIENCE_MS: Final = 5_000  # time limit for partitions without a leader
_FETCH_BYTES_MAX: Final = 4 * limits.MIB  # of one response, unless one batch is larger
_NO_OFFSET: Final = -1

_Offsets = Mapping[TopicPartition, OffsetAnswer | RaftlogError]


async def partition_lags(
    cluster: Cluster,
    committed: Sequence[FetchedOffset],
    others: Iterable[TopicPartition],
    readers: Mapping[TopicPartition, str],
    *,
    now_ms: TimestampMs,
) -> list[PartitionLag]:
    """Return the lag of each partition in ``committed`` and ``others``, sorted.

    ``readers``: the member id of each assigned partition. ``now_ms``: wall clock.
    """
    by_partition = {TopicPartition(found.topic, found.partition): found for found in committed}
    partitions = sorted({*by_partition, *others, *readers})
    topics = {tp.topic for tp in partitions}

    async def refresh() -> ClusterView:
        return await cluster.refresh(topics)

    view = await cluster.persist(refresh, repeatable=True)
    there = [tp for tp in partitions if not _absence(view, tp)]
    begins, ends = await asyncio.gather(
        try_offsets(cluster, dict.fromkeys(there, "earliest"), patience_ms=PATIENCE_MS),
        try_offsets(cluster, dict.fromkeys(there, "latest"), patience_ms=PATIENCE_MS),
    )
    unread = {
        tp: found.offset
        for tp, found in by_partition.items()
        if _known(begins, tp) <= found.offset < _known(ends, tp) and _known(begins, tp) >= 0
    }
    times = await oldest_unread(cluster, unread)
    return [
        _lag(
            tp,
            by_partition.get(tp),
            begins.get(tp),
            ends.get(tp),
            age_ms=None if tp not in times else max(0, now_ms - times[tp]),
            member_id=readers.get(tp),
            absence=_absence(view, tp),
        )
        for tp in partitions
    ]


def subscribed(view: ClusterView, topics: Iterable[str]) -> list[TopicPartition]:
    """Return all partitions of the topics that exist."""
    return [
        TopicPartition(name, number)
        for name in topics
        if name in view.topics
        for number in range(view.topics[name].partition_count)
    ]


def _absence(view: ClusterView, tp: TopicPartition) -> str:
    """Return why the partition does not exist; empty if it exists."""
    topic = view.topics.get(tp.topic)
    if topic is None:
        return f"topic {tp.topic!r} does not exist"
    if tp.partition >= topic.partition_count:
        return f"the topic has only {counted(topic.partition_count, 'partition')}"
    return ""


def _known(offsets: _Offsets, tp: TopicPartition) -> Offset:
    answer = offsets.get(tp)
    return answer.offset if isinstance(answer, OffsetAnswer) else _NO_OFFSET


def _lag(
    tp: TopicPartition,
    committed: FetchedOffset | None,
    begin: OffsetAnswer | RaftlogError | None,
    end: OffsetAnswer | RaftlogError | None,
    *,
    age_ms: int | None,
    member_id: str | None,
    absence: str,
) -> PartitionLag:
    start_offset = begin.offset if isinstance(begin, OffsetAnswer) else _NO_OFFSET
    end_offset = end.offset if isinstance(end, OffsetAnswer) else _NO_OFFSET
    errors = [answer for answer in (begin, end) if isinstance(answer, RaftlogError)]
    offset = committed.offset if committed is not None and committed.offset >= 0 else None
    problem = absence or next(map(str, errors), "")
    lag: int | None = None
    if offset is not None and not problem:
        lag = max(0, end_offset - max(offset, start_offset))
        problem = _out_of_range(offset, start_offset, end_offset)
    seconds = None if age_ms is None else age_ms / 1_000
    return PartitionLag(
        topic=tp.topic,
        partition=tp.partition,
        offset=offset,
        log_start_offset=start_offset,
        log_end_offset=end_offset,
        lag=lag,
        lag_seconds=0.0 if lag == 0 and not problem else seconds,
        leader_epoch=-1 if committed is None else committed.leader_epoch,
        metadata="" if committed is None else committed.metadata,
        committed_at_ms=-1 if committed is None else committed.committed_at_ms,
        member_id=member_id,
        problem=problem,
    )


def _out_of_range(offset: Offset, start_offset: Offset, end_offset: Offset) -> str:
    if offset < start_offset:
        return f"out of range: below the log start by {start_offset - offset}"
    if offset > end_offset:
        return f"out of range: beyond the end by {offset - end_offset}"
    return ""


async def oldest_unread(
    cluster: Cluster, offsets: Mapping[TopicPartition, Offset]
) -> dict[TopicPartition, TimestampMs]:
    """Return the time of the first record at or after an offset, for each partition.

    Partitions that cannot be read are omitted. If a compacted batch contains no records, the
    following batches are read.
    """
    found: dict[TopicPartition, TimestampMs] = {}
    left = dict(offsets)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_MS / 1_000
    while left and loop.time() < deadline:
        by_leader: dict[int, list[TopicPartition]] = {}
        for tp in left:
            try:
                by_leader.setdefault(cluster.view.leader(*tp), []).append(tp)
            except LeaderNotAvailableError:
                continue
        reads = await asyncio.gather(
            *(
                _read(cluster, leader, {tp: left[tp] for tp in led}, found)
                for leader, led in by_leader.items()
            )
        )
        # Partitions without progress are dropped, unless the request had no space for them.
        left = {tp: offset for read in reads for tp, offset in read.items() if tp not in found}
    return found


async def _read(
    cluster: Cluster,
    leader: int,
    offsets: Mapping[TopicPartition, Offset],
    found: dict[TopicPartition, TimestampMs],
) -> dict[TopicPartition, Offset]:
    """Read once from a leader. Returns what to read next; empty after no progress."""
    asked = list(offsets)[: limits.PARTITIONS_PER_REQUEST_MAX]
    request = FetchRequest(
        partitions=[
            FetchPartition(topic=tp.topic, partition=tp.partition, offset=offsets[tp], bytes_max=1)
            for tp in asked
        ],
        wait_ms_max=0,
        bytes_max=_FETCH_BYTES_MAX,
    )
    try:
        connection = await cluster.connection(leader)
        answer = await connection.request(apis.FETCH, request, timeout_ms=PATIENCE_MS)
        response = answer.message
        assert isinstance(response, FetchResponse)
        parts = slices(answer.attachment, [part.length for part in response.partitions])
    except RaftlogError:
        return {}
    left = dict(offsets)
    for part, data in zip(response.partitions, parts, strict=True):
        tp = TopicPartition(part.topic, part.partition)
        offset = left.pop(tp, None)
        if offset is None or part.failure is not None or not part.length:
            continue
        next_offset = _first_time(data, tp, offset, found)
        if next_offset is not None and next_offset > offset:
            left[tp] = next_offset
    return left if left != dict(offsets) else {}


def _first_time(
    data: memoryview,
    tp: TopicPartition,
    offset: Offset,
    found: dict[TopicPartition, TimestampMs],
) -> Offset | None:
    """Store the time of the first record; else return the next offset, or None without progress."""
    next_offset: Offset | None = None
    try:
        for batch in split(data):
            records = decode_records(
                batch, topic=tp.topic, partition=tp.partition, from_offset=offset
            )
            if records:
                found[tp] = records[0].timestamp_ms
                return None
            next_offset = parse_header(batch).next_offset
    except RaftlogError:
        return None
    return next_offset


# -- group descriptions ----------------------------------------------------------------------------
#
# Descriptions of consumer groups that ``Admin`` returns, and their construction.


@dataclass(frozen=True, slots=True)
class GroupListing:
    """Short description of one consumer group.

    ``state``: "empty" (no members), "reconciling" (members are releasing partitions or waiting for
    them) or "stable"; a classic group is "preparing_rebalance" or "completing_rebalance" instead of
    "reconciling". ``coordinator``: id of the broker that coordinates the group. ``type``:
    "consumer", or "classic" if members of Kafka clients assign the partitions.
    """

    group: str
    state: str
    members: int
    coordinator: int
    type: str = "consumer"


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a consumer group.

    ``assigned``: its current partitions; ``target``: its target assignment. ``instance_id``: of a
    static member, else None. ``host``: the host that it connects from. ``member_epoch``: the epoch
    of the group that the member has reached. ``is_away``: True for a static member that is
    temporarily absent; its partitions stay reserved until its session ends.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    member_epoch: int
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]
    session_timeout_ms: int
    is_away: bool = False


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Progress of a consumer group in one partition.

    ``offset``: committed offset, which is that of the next record to read; None without one.
    ``lag``: number of offsets from there to the end, never negative; None if unknown.
    ``lag_seconds``: age of the first unread record; 0 without lag, None if unknown.
    ``log_start_offset`` and ``log_end_offset`` (after the last committed record) are -1 if unknown.
    ``member_id``: the member that reads it, or None. ``problem``: why a value is unknown, or why
    the offset cannot be read; empty without a problem.
    """

    topic: str
    partition: int
    offset: Offset | None
    log_start_offset: Offset = -1
    log_end_offset: Offset = -1
    lag: int | None = None
    lag_seconds: float | None = None
    leader_epoch: LeaderEpoch = -1
    metadata: str = ""
    committed_at_ms: TimestampMs = -1
    member_id: str | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """One consumer group: its members, and every partition that it reads or has read.

    ``state`` and ``type`` are as in ``GroupListing``. ``group_epoch`` increases when the members or
    the available partitions change. Of a classic group, ``group_epoch`` is the generation and
    ``assignor`` the name that its members agreed on.
    """

    group: str
    state: str
    group_epoch: int
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...] = ()
    partitions: tuple[PartitionLag, ...] = field(default=())
    type: str = "consumer"

    @property
    def lag(self) -> int:
        """Sum of the known lags of the partitions."""
        return sum(partition.lag or 0 for partition in self.partitions)

    @property
    def unknown_lags(self) -> int:
        """Number of partitions without a known lag: no committed offset, or a problem."""
        return sum(partition.lag is None for partition in self.partitions)

    @property
    def lag_seconds(self) -> float | None:
        """Largest known lag of the partitions in seconds; None without one."""
        known = [part.lag_seconds for part in self.partitions if part.lag_seconds is not None]
        return max(known, default=None)


def group_listing(listing: records.GroupListing, coordinator: int) -> GroupListing:
    return GroupListing(listing.group, listing.state, listing.members, coordinator, listing.type)


def group_description(
    described: records.GroupDescription, partitions: Sequence[PartitionLag]
) -> GroupDescription:
    return GroupDescription(
        group=described.group,
        state=described.state,
        group_epoch=described.group_epoch,
        assignor=described.assignor,
        coordinator=described.coordinator,
        members=tuple(member_description(member) for member in described.members),
        partitions=tuple(partitions),
        type=described.type,
    )


def member_description(member: records.MemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        member_epoch=member.member_epoch,
        topics=tuple(member.topics),
        assigned=shared(member.assigned),
        target=shared(member.target),
        session_timeout_ms=member.session_timeout_ms,
        is_away=member.is_away,
    )


def shared(shares: Sequence[records.TopicShare]) -> tuple[TopicPartition, ...]:
    """Return the partitions of all entries, sorted."""
    return tuple(
        sorted(
            TopicPartition(share.topic, number) for share in shares for number in share.partitions
        )
    )


def readers(members: Sequence[records.MemberDescription]) -> Mapping[TopicPartition, str]:
    """Return the member id of each assigned partition."""
    return {tp: member.member_id for member in members for tp in shared(member.assigned)}
