"""Consumer group requests: conversion between messages and the calls of a shard. The shard decides.

A request with several groups is answered when each of them has a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from raftlog.consumer_groups import (
    Commit,
    Committed,
    GroupListing,
    GroupShard,
    GroupView,
    Heartbeat,
    HeartbeatResult,
    MemberView,
    Share,
    StateChange,
)
from raftlog.errors import RaftlogError
from raftlog.protocol import groups as wire
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.requests.groups import (
    Listed,
    change_offsets,
    delete_groups,
    describe_groups,
    fetch_offsets,
    list_groups,
)
from raftlog.server.turns import Steps, in_steps
from raftlog.types import TopicPartition

# Maximum wait of a heartbeat as a share of the session timeout: so that one may be lost.
WAIT_SHARE_MAX: Final = 1 / 3


def handle_find_coordinators(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.FindCoordinatorsRequest, request.message)

    def made(error: RaftlogError | None) -> None:
        if error is None:
            brokers = {b.id: b for b in context.brokers(reply.connection.local_host)}
            found = [context.lookup.find(group, brokers) for group in message.groups]
        else:
            failure = Failure.of(error)
            found = [wire.CoordinatorInfo(group=g, failure=failure) for g in message.groups]
        reply.send(wire.FindCoordinatorsResponse(coordinators=found))

    context.lookup.when_made(made)


# -- members -----------------------------------------------------------------------------------


def handle_heartbeat(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.GroupHeartbeatRequest, request.message)
    connection = reply.connection
    wait_ms = min(message.wait_ms, message.session_timeout_ms * WAIT_SHARE_MAX)

    def done(beat: HeartbeatResult) -> None:
        reply.send(
            wire.GroupHeartbeatResponse(
                member_epoch=beat.member_epoch,
                assignment=_to_wire(beat.assignment),
                metadata_version=context.coordinator.metadata_version,
            )
        )

    context.coordinator.shard(message.group).heartbeat(
        Heartbeat(
            group=message.group,
            member_id=message.member_id,
            member_epoch=message.member_epoch,
            sequence=message.sequence,
            topics=tuple(message.topics),
            owned=tuple(
                Share(share.topic, share.topic_id, tuple(share.partitions))
                for share in message.owned
            ),
            session_timeout_ms=message.session_timeout_ms,
            rebalance_timeout_ms=message.rebalance_timeout_ms,
            instance_id=message.instance_id,
            client_id=message.client_id,
            host=connection.peer_host,
            rack=message.rack,
            assignor=message.assignor,
        ),
        done,
        reply.fail,
        owner=connection,
        wait_seconds=0.0 if context.is_stopping else wait_ms / 1_000,
    )


def _to_wire(shares: Iterable[Share]) -> list[wire.TopicShare]:
    return [
        wire.TopicShare(
            topic=share.topic, topic_id=share.topic_id, partitions=list(share.partitions)
        )
        for share in shares
    ]


# -- offsets -----------------------------------------------------------------------------------


def handle_offset_commit(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(wire.OffsetCommitRequest, request.message)
    commits = yield from in_steps(message.offsets, _commit)

    def change(
        groups: GroupShard, part: Sequence[Commit], now: float, now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        return groups.commit(
            message.group,
            message.member_id,
            message.member_epoch,
            part,
            message.topic_ids,
            sequence=message.sequence,
            now=now,
            now_ms=now_ms,
        )

    def done(outcomes: list[RaftlogError | None]) -> None:
        reply.go_on(_send_outcomes(reply, wire.OffsetCommitResponse, message.offsets, outcomes))

    yield from change_offsets(context, message.group, commits, change, done, reply.fail)


def _commit(to: wire.OffsetToCommit) -> Commit:
    return Commit(to.topic, to.partition, to.offset, to.leader_epoch, to.metadata, to.expected)


def _send_outcomes(
    reply: Reply,
    response: type[wire.OffsetCommitResponse] | type[wire.DeleteOffsetsResponse],
    parts: Sequence[wire.OffsetToCommit | wire.PartitionName],
    outcomes: Sequence[RaftlogError | None],
) -> Steps:
    found = yield from in_steps(zip(parts, outcomes, strict=True), _outcome)
    reply.send(response(partitions=found))


def _outcome(
    one: tuple[wire.OffsetToCommit | wire.PartitionName, RaftlogError | None],
) -> wire.CommittedPartition:
    part, error = one
    return wire.CommittedPartition(
        topic=part.topic,
        partition=part.partition,
        failure=None if error is None else Failure.of(error),
    )


def handle_offset_fetch(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(wire.OffsetFetchRequest, request.message)
    names = None
    if message.partitions is not None:
        names = yield from in_steps(message.partitions, _name)

    def done(found: list[Committed]) -> None:
        reply.go_on(_send_fetched(reply, found))

    yield from fetch_offsets(context, message.group, names, done, reply.fail)


def _name(one: wire.PartitionName) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def _send_fetched(reply: Reply, found: list[Committed]) -> Steps:
    offsets = yield from in_steps(found, _fetched)
    reply.send(wire.OffsetFetchResponse(offsets=offsets))


def _fetched(committed: Committed) -> wire.FetchedOffset:
    if committed.offset < 0:
        return wire.FetchedOffset(topic=committed.topic, partition=committed.partition)
    return wire.FetchedOffset(
        topic=committed.topic,
        partition=committed.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
    )


def handle_delete_offsets(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(wire.DeleteOffsetsRequest, request.message)
    names = yield from in_steps(message.partitions, _name)

    def change(
        groups: GroupShard, part: Sequence[TopicPartition], now: float, _now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        return groups.delete_offsets(message.group, part, now=now)

    def done(outcomes: list[RaftlogError | None]) -> None:
        reply.go_on(_send_outcomes(reply, wire.DeleteOffsetsResponse, message.partitions, outcomes))

    yield from change_offsets(context, message.group, names, change, done, reply.fail)


# -- groups ------------------------------------------------------------------------------------


def handle_list(context: BrokerContext, request: Request, reply: Reply) -> Steps:  # noqa: ARG001
    """List groups. A shard that stops during the request counts as loading: the client retries."""
    shards = context.coordinator.shards()

    def send(answers: list[Listed]) -> None:
        partitions = sorted(shard.host.topic_partition.partition for shard in shards)
        reply.go_on(_send_listed(reply, answers, partitions))

    return list_groups(shards, send)


def _send_listed(reply: Reply, answers: list[Listed], partitions: list[int]) -> Steps:
    found = [listing for answer in answers for listing in answer or ()]
    found.sort(key=lambda one: one.group)
    yield None
    listings = yield from in_steps(found, _listing)
    loading = sum(answer is None for answer in answers)
    reply.send(wire.ListGroupsResponse(groups=listings, loading=loading, partitions=partitions))


def _listing(one: GroupListing) -> wire.GroupListing:
    return wire.GroupListing(group=one.group, state=one.state, members=one.members, type=one.type)


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(wire.DescribeGroupsRequest, request.message)

    def send(found: list[GroupView | RaftlogError]) -> None:
        reply.go_on(_send_described(context, reply, message.groups, found))

    return describe_groups(context, message.groups, send)


def _send_described(
    context: BrokerContext, reply: Reply, groups: list[str], found: list[GroupView | RaftlogError]
) -> Steps:
    described: list[wire.GroupDescription] = []
    for group, view in zip(groups, found, strict=True):
        if isinstance(view, RaftlogError):
            described.append(wire.GroupDescription(group=group, failure=Failure.of(view)))
        else:
            members = yield from in_steps(view.members, _member)
            described.append(_description(context, view, members))
        yield None
    reply.send(wire.DescribeGroupsResponse(groups=described))


def _description(
    context: BrokerContext, view: GroupView, members: list[wire.MemberDescription]
) -> wire.GroupDescription:
    return wire.GroupDescription(
        group=view.group,
        state=view.state,
        group_epoch=view.group_epoch,
        assignor=view.assignor,
        coordinator=context.broker_id,
        members=members,
        type=view.type,
    )


def _member(member: MemberView) -> wire.MemberDescription:
    return wire.MemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        member_epoch=member.member_epoch,
        topics=list(member.topics),
        assigned=_to_wire((*member.assigned, *member.revoking)),  # partitions that it still has
        target=_to_wire(member.target),
        session_timeout_ms=member.session_timeout_ms,
        is_away=member.is_away,
    )


def handle_delete(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(wire.DeleteGroupsRequest, request.message)

    def send(outcomes: list[RaftlogError | None]) -> None:
        deleted = map(_deleted, message.groups, outcomes)
        reply.send(wire.DeleteGroupsResponse(groups=list(deleted)))

    return delete_groups(context, message.groups, send)


def _deleted(group: str, error: RaftlogError | None) -> wire.DeletedGroup:
    return wire.DeletedGroup(group=group, failure=None if error is None else Failure.of(error))
