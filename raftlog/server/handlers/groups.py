"""Consumer group requests: conversion between messages and the calls of a shard. The shard decides.

A request with several groups is answered when each of them has a result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, cast

from raftlog.consumer_groups import (
    Commit,
    Committed,
    GroupView,
    Heartbeat,
    HeartbeatResult,
    MemberView,
    Share,
)
from raftlog.errors import RaftlogError
from raftlog.protocol import groups as wire
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.requests.groups import Listed, delete_groups, describe_groups, list_groups
from raftlog.server.turns import Steps
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


def handle_offset_commit(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.OffsetCommitRequest, request.message)
    commits = [
        Commit(to.topic, to.partition, to.offset, to.leader_epoch, to.metadata)
        for to in message.offsets
    ]

    def done(outcomes: Sequence[RaftlogError | None]) -> None:
        names = [(commit.topic, commit.partition) for commit in commits]
        reply.send(wire.OffsetCommitResponse(partitions=_outcomes(names, outcomes)))

    context.coordinator.shard(message.group).change(
        lambda groups, now, now_ms: groups.commit(
            message.group,
            message.member_id,
            message.member_epoch,
            commits,
            message.topic_ids,
            now=now,
            now_ms=now_ms,
        ),
        done,
        reply.fail,
    )


def _outcomes(
    names: Sequence[tuple[str, int]], errors: Sequence[RaftlogError | None]
) -> list[wire.CommittedPartition]:
    return [
        wire.CommittedPartition(
            topic=topic,
            partition=partition,
            failure=None if error is None else Failure.of(error),
        )
        for (topic, partition), error in zip(names, errors, strict=True)
    ]


def handle_offset_fetch(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.OffsetFetchRequest, request.message)
    wanted = message.partitions
    names = None if wanted is None else [TopicPartition(one.topic, one.partition) for one in wanted]

    def done(found: Sequence[Committed]) -> None:
        reply.send(wire.OffsetFetchResponse(offsets=[_fetched(committed) for committed in found]))

    context.coordinator.shard(message.group).ask(
        lambda groups: groups.fetch(message.group, names), done, reply.fail
    )


def _fetched(committed: Committed) -> wire.FetchedOffset:
    return wire.FetchedOffset(
        topic=committed.topic,
        partition=committed.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
    )


def handle_delete_offsets(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.DeleteOffsetsRequest, request.message)
    names = [TopicPartition(one.topic, one.partition) for one in message.partitions]

    def done(outcomes: Sequence[RaftlogError | None]) -> None:
        reply.send(wire.DeleteOffsetsResponse(partitions=_outcomes(names, outcomes)))

    context.coordinator.shard(message.group).change(
        lambda groups, now, _now_ms: groups.delete_offsets(message.group, names, now=now),
        done,
        reply.fail,
    )


# -- groups ------------------------------------------------------------------------------------


def handle_list(context: BrokerContext, request: Request, reply: Reply) -> None:  # noqa: ARG001
    """List groups. A shard that stops during the request counts as loading: the client retries."""
    shards = context.coordinator.shards()

    def send(answers: list[Listed]) -> None:
        found = [listing for answer in answers for listing in answer or ()]
        listings = [
            wire.GroupListing(group=one.group, state=one.state, members=one.members, type=one.type)
            for one in sorted(found, key=lambda one: one.group)
        ]
        loading = sum(answer is None for answer in answers)
        partitions = sorted(shard.host.topic_partition.partition for shard in shards)
        reply.send(wire.ListGroupsResponse(groups=listings, loading=loading, partitions=partitions))

    list_groups(shards, send)


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(wire.DescribeGroupsRequest, request.message)

    def send(groups: list[wire.GroupDescription]) -> None:
        reply.send(wire.DescribeGroupsResponse(groups=groups))

    return describe_groups(context, message.groups, partial(_described, context), send)


def _described(
    context: BrokerContext, group: str, found: GroupView | RaftlogError
) -> wire.GroupDescription:
    if isinstance(found, RaftlogError):
        return wire.GroupDescription(group=group, failure=Failure.of(found))
    return _description(context, found)


def _description(context: BrokerContext, view: GroupView) -> wire.GroupDescription:
    return wire.GroupDescription(
        group=view.group,
        state=view.state,
        group_epoch=view.group_epoch,
        assignor=view.assignor,
        coordinator=context.broker_id,
        members=[_member(member) for member in view.members],
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

    def send(groups: list[wire.DeletedGroup]) -> None:
        reply.send(wire.DeleteGroupsResponse(groups=groups))

    return delete_groups(context, message.groups, _deleted, send)


def _deleted(group: str, error: RaftlogError | None) -> wire.DeletedGroup:
    return wire.DeletedGroup(group=group, failure=None if error is None else Failure.of(error))
