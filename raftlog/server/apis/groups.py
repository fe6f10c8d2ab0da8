"""Consumer group requests: conversion between messages and the calls of a shard. The shard decides.

A request with several groups is answered when each of them has a result.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

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
from raftlog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    OutcomeUnknownError,
    RaftlogError,
    RetriableError,
    UnstableOffsetError,
)
from raftlog.protocol import records
from raftlog.protocol.connection import Request
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Outcomes, Reply
from raftlog.server.groups.coordinator import Lookup
from raftlog.server.groups.shard import ActiveShard
from raftlog.server.log_shard import Failed
from raftlog.server.scheduling import Steps, in_steps
from raftlog.transactions import TransactionPart
from raftlog.types import TopicPartition

# Maximum wait of a heartbeat as a share of the session timeout: so that one may be lost.
WAIT_SHARE_MAX: Final = 1 / 3


def handle_find_coordinators(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.FindCoordinatorsRequest, request.message)
    find_coordinators(context, reply, context.lookup, message.groups)


def find_coordinators(
    context: BrokerContext, reply: Reply, lookup: Lookup, names: Sequence[str]
) -> None:
    """Send the coordinator of each group, or transactional id, once their topic exists."""

    def made(error: RaftlogError | None) -> None:
        if error is None:
            brokers = {b.id: b for b in context.brokers(reply.connection.local_host)}
            found = [lookup.find(name, brokers) for name in names]
        else:
            failure = Failure.of(error)
            found = [records.CoordinatorInfo(group=name, failure=failure) for name in names]
        reply.send(records.FindCoordinatorsResponse(coordinators=found))

    lookup.maker.when_made(made)


# -- members -----------------------------------------------------------------------------------


def handle_heartbeat(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(records.GroupHeartbeatRequest, request.message)
    connection = reply.connection
    wait_ms = min(message.wait_ms, message.session_timeout_ms * WAIT_SHARE_MAX)

    def done(beat: HeartbeatResult) -> None:
        reply.send(
            records.GroupHeartbeatResponse(
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


def _to_wire(shares: Iterable[Share]) -> list[records.TopicShare]:
    return [
        records.TopicShare(
            topic=share.topic, topic_id=share.topic_id, partitions=list(share.partitions)
        )
        for share in shares
    ]


# -- offsets -----------------------------------------------------------------------------------


def handle_offset_commit(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(records.OffsetCommitRequest, request.message)
    commits = yield from in_steps(message.offsets, commit_of)

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
        reply.go_on(send_committed(reply, message.offsets, outcomes))

    yield from change_offsets(context, message.group, commits, change, done, reply.fail)


def commit_of(to: records.OffsetToCommit) -> Commit:
    """Return the offset of a message."""
    return Commit(to.topic, to.partition, to.offset, to.leader_epoch, to.metadata, to.expected)


def send_committed(
    reply: Reply,
    offsets: Sequence[records.OffsetToCommit],
    outcomes: Sequence[RaftlogError | None],
) -> Steps:
    """Send the outcome of each offset of a commit."""
    return _send_outcomes(reply, records.OffsetCommitResponse, offsets, outcomes)


def _send_outcomes(
    reply: Reply,
    response: type[records.OffsetCommitResponse] | type[records.DeleteOffsetsResponse],
    parts: Sequence[records.OffsetToCommit | records.PartitionName],
    outcomes: Sequence[RaftlogError | None],
) -> Steps:
    found = yield from in_steps(zip(parts, outcomes, strict=True), _outcome)
    reply.send(response(partitions=found))


def _outcome(
    one: tuple[records.OffsetToCommit | records.PartitionName, RaftlogError | None],
) -> records.CommittedPartition:
    part, error = one
    return records.CommittedPartition(
        topic=part.topic,
        partition=part.partition,
        failure=None if error is None else Failure.of(error),
    )


def handle_offset_fetch(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(records.OffsetFetchRequest, request.message)
    names = None
    if message.partitions is not None:
        names = yield from in_steps(message.partitions, _name)

    def done(found: list[Committed]) -> None:
        reply.go_on(_send_fetched(reply, found))

    stable = message.require_stable
    yield from fetch_offsets(context, message.group, names, done, reply.fail, require_stable=stable)


UNSTABLE: Final = Failure.of(
    UnstableOffsetError("an open transaction commits another offset. Try again when it has ended")
)


def _name(one: records.PartitionName) -> TopicPartition:
    return TopicPartition(one.topic, one.partition)


def _send_fetched(reply: Reply, found: list[Committed]) -> Steps:
    offsets = yield from in_steps(found, _fetched)
    reply.send(records.OffsetFetchResponse(offsets=offsets))


def _fetched(committed: Committed) -> records.FetchedOffset:
    if not committed.is_stable:
        return records.FetchedOffset(
            topic=committed.topic, partition=committed.partition, failure=UNSTABLE
        )
    if committed.offset < 0:
        return records.FetchedOffset(topic=committed.topic, partition=committed.partition)
    return records.FetchedOffset(
        topic=committed.topic,
        partition=committed.partition,
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        committed_at_ms=committed.committed_at_ms,
    )


def handle_delete_offsets(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(records.DeleteOffsetsRequest, request.message)
    names = yield from in_steps(message.partitions, _name)

    def change(
        groups: GroupShard, part: Sequence[TopicPartition], now: float, _now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        return groups.delete_offsets(message.group, part, now=now)

    def done(outcomes: list[RaftlogError | None]) -> None:
        reply.go_on(
            _send_outcomes(reply, records.DeleteOffsetsResponse, message.partitions, outcomes)
        )

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
    reply.send(records.ListGroupsResponse(groups=listings, loading=loading, partitions=partitions))


def _listing(one: GroupListing) -> records.GroupListing:
    return records.GroupListing(
        group=one.group, state=one.state, members=one.members, type=one.type
    )


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(records.DescribeGroupsRequest, request.message)

    def send(found: list[GroupView | RaftlogError]) -> None:
        reply.go_on(_send_described(context, reply, message.groups, found))

    return describe_groups(context, message.groups, send)


def _send_described(
    context: BrokerContext, reply: Reply, groups: list[str], found: list[GroupView | RaftlogError]
) -> Steps:
    described: list[records.GroupDescription] = []
    for group, view in zip(groups, found, strict=True):
        if isinstance(view, RaftlogError):
            described.append(records.GroupDescription(group=group, failure=Failure.of(view)))
        else:
            members = yield from in_steps(view.members, _member)
            described.append(_description(context, view, members))
        yield None
    reply.send(records.DescribeGroupsResponse(groups=described))


def _description(
    context: BrokerContext, view: GroupView, members: list[records.MemberDescription]
) -> records.GroupDescription:
    return records.GroupDescription(
        group=view.group,
        state=view.state,
        group_epoch=view.group_epoch,
        assignor=view.assignor,
        coordinator=context.broker_id,
        members=members,
        type=view.type,
    )


def _member(member: MemberView) -> records.MemberDescription:
    return records.MemberDescription(
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
    message = cast(records.DeleteGroupsRequest, request.message)

    def send(outcomes: list[RaftlogError | None]) -> None:
        deleted = map(_deleted, message.groups, outcomes)
        reply.send(records.DeleteGroupsResponse(groups=list(deleted)))

    return delete_groups(context, message.groups, send)


def _deleted(group: str, error: RaftlogError | None) -> records.DeletedGroup:
    return records.DeletedGroup(group=group, failure=None if error is None else Failure.of(error))


# -- groups ----------------------------------------------------------------------------------------
#
# Requests about many consumer groups, each of which has its shard, or about many offsets of one
# group. The shards decide.


T = TypeVar("T")
R = TypeVar("R")
Item = TypeVar("Item")

OFFSETS_PER_STEP: Final = 500  # of a commit, fetch or deletion: takes 2 ms at most
# Groups of one shard; None while it loads, or if it stops during the request.
Listed: TypeAlias = list[GroupListing] | None


def list_groups(shards: Sequence[ActiveShard], send: Callable[[list[Listed]], None]) -> Steps:
    """Call ``send`` with the groups of each shard."""
    outcomes: Outcomes[Listed] = Outcomes(len(shards), send)
    for index, shard in enumerate(shards):
        failed = partial(_resolve_without, outcomes, index)
        try:
            groups = shard.loaded
            names = () if groups is None else groups.names()
            found = yield from in_steps(names, partial(_group_listing, groups))
            listed = [one for one in found if one is not None]
            shard.ask(partial(_as_listed, listed), partial(outcomes.resolve, index), failed)
        except RaftlogError as error:
            failed(error)
        yield None


def _group_listing(groups: GroupShard | None, name: str) -> GroupListing | None:
    return None if groups is None else groups.listing(name)


def _as_listed(listed: list[GroupListing], _groups: GroupShard) -> list[GroupListing]:
    return listed


def _resolve_without(outcomes: Outcomes[Listed], index: int, _error: RaftlogError) -> None:
    outcomes.resolve(index, None)


def describe_groups(
    context: BrokerContext,
    groups: Sequence[str],
    send: Callable[[list[GroupView | RaftlogError]], None],
) -> Steps:
    """Call ``send`` with the description of each group, or its error."""

    def ask(group: str, done: Callable[[GroupView | RaftlogError], None]) -> None:
        context.coordinator.shard(group).ask(_describing(group), done, done)

    return _each(groups, ask, send)


def _describing(group: str) -> Callable[[GroupShard], GroupView]:
    return lambda groups: groups.describe(group)


def delete_groups(
    context: BrokerContext,
    groups: Sequence[str],
    send: Callable[[list[RaftlogError | None]], None],
) -> Steps:
    """Delete groups without members. Call ``send`` with the error of each group, or None."""

    def ask(group: str, done: Callable[[RaftlogError | None], None]) -> None:
        context.coordinator.shard(group).change(_deleting(group), done, done)

    return _each(groups, ask, send)


def _deleting(group: str) -> Callable[[GroupShard, float, int], StateChange[None]]:
    return lambda groups, _now, _now_ms: groups.delete_group(group)


# -- offsets of one group --------------------------------------------------------------------------


def fetch_offsets(
    context: BrokerContext,
    group: str,
    names: Sequence[TopicPartition] | None,
    done: Callable[[list[Committed]], None],
    failed: Failed,
    *,
    require_stable: bool = False,
    expect: Callable[[int], None] = lambda _count: None,
) -> Steps:
    """Call ``done`` with the committed offsets of ``names``, or all of the group if it is None.

    ``require_stable``: see ``GroupShard.fetch``. ``expect``: called before with their number.
    """
    shard = context.coordinator.shard(group)
    if names is None:
        names = yield from _committed(shard.loaded, group)
    expect(len(names))

    def ask(part: Sequence[TopicPartition], resolve: Callable[..., None], fail: Failed) -> None:
        shard.ask(
            lambda groups: groups.fetch(group, part, require_stable=require_stable), resolve, fail
        )

    yield from _in_parts(names, ask, done, failed)


def _committed(groups: GroupShard | None, group: str) -> Generator[None, Any, list[TopicPartition]]:
    """Return the partitions of which a group has committed offsets."""
    names: list[TopicPartition] = []
    if groups is None:
        return names  # the request is refused
    for topic in groups.committed_topics(group):
        numbers = sorted(partition for partition, _ in groups.committed_in(group, topic))
        names += [TopicPartition(topic, partition) for partition in numbers]
        yield None
    return names


def change_offsets(
    context: BrokerContext,
    group: str,
    items: Sequence[Item],
    change: Callable[
        [GroupShard, Sequence[Item], float, int], StateChange[list[RaftlogError | None]]
    ],
    done: Callable[[list[RaftlogError | None]], None],
    failed: Failed,
) -> Steps:
    """Commit or delete offsets of a group, ``OFFSETS_PER_STEP`` at a time. Call ``done`` with the
    results of all ``items`` when they are committed.

    Each part is a decision. If some parts fail, the items of these have the error, and the others
    have taken effect. If all parts fail, ``failed`` is called with the first error.
    """
    begun, refusals = 0, list[RaftlogError]()

    def ask(
        part: Sequence[Item], resolve: Callable[[list[RaftlogError | None]], None], _fail: Failed
    ) -> None:
        nonlocal begun

        def refused(error: RaftlogError) -> None:
            refusals.append(error)
            resolve([error] * len(part))

        begun += 1
        try:
            context.coordinator.shard(group).change(
                lambda groups, now, now_ms: change(groups, part, now, now_ms), resolve, refused
            )
        except RaftlogError as error:
            if begun == 1:
                raise
            refused(error)

    def ended(results: list[RaftlogError | None]) -> None:
        if len(refusals) == begun:
            failed(refusals[0])
        else:
            done(results)

    return _in_parts(items, ask, ended, failed)


class PendingCommit(NamedTuple):
    """Offsets of a group that a transaction commits: see ``GroupShard.commit_pending``.

    ``adds``: whether the commit extends the transaction to the group (KIP-890). Otherwise it must
    extend to it already.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    adds: bool
    group: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    offsets: Sequence[Commit]
    topic_ids: Mapping[str, str]


def commit_pending(
    context: BrokerContext,
    commit: PendingCommit,
    done: Callable[[list[RaftlogError | None]], None],
    failed: Failed,
    go_on: Callable[[Steps], None],
) -> Steps:
    """Commit offsets with a transaction. The first time, its coordinator must confirm that it
    extends to the group's partition, so that its marker will arrive there.

    ``done``, ``failed``: as in ``change_offsets``. ``go_on``: runs steps later.
    """
    shard = context.coordinator.shard(commit.group)
    guard = shard.guard(
        commit.producer_id,
        commit.producer_epoch,
        coordinator_epoch=context.transactions.coordinator_epoch(commit.transactional_id),
    )

    def change(
        groups: GroupShard, part: Sequence[Commit], now: float, now_ms: int
    ) -> StateChange[list[RaftlogError | None]]:
        return groups.commit_pending(
            guard,
            commit.group,
            commit.member_id,
            commit.member_epoch,
            part,
            commit.topic_ids,
            instance_id=commit.instance_id,
            now=now,
            now_ms=now_ms,
        )

    def write() -> Steps:
        return change_offsets(context, commit.group, commit.offsets, change, done, failed)

    def verified(error: RaftlogError | None) -> None:
        if error is None:
            go_on(write())
        else:
            failed(_unverified(error))

    if guard.has_begun:
        yield from write()
        return
    where = shard.host.topic_partition
    context.transactions.verify(
        commit.transactional_id,
        commit.producer_id,
        commit.producer_epoch,
        [TransactionPart(where.topic, shard.host.topic_id, where.partition)],
        add=commit.adds,
        done=verified,
    )


def _unverified(error: RaftlogError) -> RaftlogError:
    """Return the error of a commit that is not verified. An error of the other coordinator says
    nothing about that of the group.
    """
    is_transient = isinstance(error, RetriableError | OutcomeUnknownError)
    if is_transient and not isinstance(error, ConcurrentTransactionsError):
        return CoordinatorLoadingError(f"the transaction's coordinator has not confirmed: {error}")
    return error


def _in_parts(
    items: Sequence[Item],
    ask: Callable[[Sequence[Item], Callable[[list[R]], None], Failed], None],
    done: Callable[[list[R]], None],
    failed: Failed,
) -> Steps:
    """Call ``ask`` for a part of the items in each step, at least once. Then call ``done`` with all
    results, or ``failed`` with the first error. Raises an error of the first ``ask``.
    """
    parts = [
        items[start : start + OFFSETS_PER_STEP]
        for start in range(0, max(len(items), 1), OFFSETS_PER_STEP)
    ]
    errors: list[RaftlogError] = []

    def fail(error: RaftlogError) -> None:
        errors.append(error)
        if len(errors) == 1:
            failed(error)

    results: Outcomes[list[R]] = Outcomes(len(parts), lambda found: done(list(chain(*found))))
    for index, part in enumerate(parts):
        if errors:
            return
        try:
            ask(part, partial(results.resolve, index), fail)
        except RaftlogError as error:
            if not index:
                raise
            fail(error)
        yield None


# -- several groups --------------------------------------------------------------------------------


def _each(
    groups: Sequence[str],
    ask: Callable[[str, Callable[[T | RaftlogError], None]], None],
    send: Callable[[list[T | RaftlogError]], None],
) -> Steps:
    outcomes: Outcomes[T | RaftlogError] = Outcomes(len(groups), send)
    for index, group in enumerate(groups):
        done = partial(outcomes.resolve, index)
        yield None
        try:
            ask(group, done)
        except RaftlogError as error:
            done(error)
