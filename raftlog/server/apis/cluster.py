"""Operator requests: describe, transfer leaders, move replicas, recover, verify copies."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final, cast

from raftlog import limits
from raftlog.errors import DamagedLogError, InvalidRequestError, OffsetOutOfRangeError
from raftlog.protocol.cluster import (
    AlterLogLevelsRequest,
    AlterLogLevelsResponse,
    CancelDecommissionRequest,
    ClusterStateRequest,
    DecommissionRequest,
    DescribeClusterRequest,
    DescribeEventsRequest,
    DescribeEventsResponse,
    DescribeLogLevelsResponse,
    EventStatus,
    LogLevel,
    PartitionMove,
    ProposeRequest,
    ReassignRequest,
    RecoverClusterRequest,
    ReviveRequest,
    ReviveResponse,
    SchemaRegistryRequest,
    SchemaRegistryResponse,
    SurveyRequest,
    SurveyResponse,
    ThrottleMovesRequest,
    TransferLeaderRequest,
    VerifyCopyRequest,
    VerifyCopyResponse,
)
from raftlog.protocol.connection import Request
from raftlog.registry.rest import Call
from raftlog.server import metrics
from raftlog.server.administration import Attached
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Reply, check_once
from raftlog.server.maintenance import VERIFY_BYTES_PER_TURN
from raftlog.server.partition import TimedEvent
from raftlog.server.scheduling import Steps


async def transfer_leader(context: BrokerContext, topic: str, partition: int, to: int) -> None:
    """Make an in-sync replica the leader. Raises ``InvalidRequestError`` if it cannot lead."""
    request = TransferLeaderRequest(topic=topic, partition=partition, to=to)
    await context.operations.transfer_leader(request)


async def reassign(
    context: BrokerContext, topic: str, moves: Mapping[int, list[int]], replication_factor: int
) -> None:
    """Move the replicas of these partitions of a topic, all or none. ``replication_factor``: 0 for
    that of the topic.
    """
    wanted = [PartitionMove(partition=part, replicas=ids) for part, ids in moves.items()]
    request = ReassignRequest(topic=topic, moves=wanted, replication_factor=replication_factor)
    await context.operations.reassign(request)


async def throttle_moves(context: BrokerContext, bytes_per_s: int) -> None:
    """Limit the bytes per second that moves copy to each broker; 0: no limit."""
    await context.operations.throttle_moves(ThrottleMovesRequest(bytes_per_s=bytes_per_s))


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(DescribeClusterRequest, request.message)
    reply.send((yield from context.operations.describe(message)))


def handle_transfer_leader(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(TransferLeaderRequest, request.message)
    context.check_operator(reply.connection, "transfer_leader")
    context.administration.submit(lambda: context.operations.transfer_leader(message), reply)


def handle_reassign(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(ReassignRequest, request.message)
    context.check_operator(reply.connection, "reassign")
    context.administration.submit(lambda: context.operations.reassign(message), reply)


def handle_throttle_moves(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(ThrottleMovesRequest, request.message)
    context.check_operator(reply.connection, "throttle_moves")
    context.administration.submit_at_once(lambda: context.operations.throttle_moves(message), reply)


def handle_upgrade_features(context: BrokerContext, _request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "upgrade_features")
    context.administration.submit_at_once(context.operations.upgrade_features, reply)


def handle_recover(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(RecoverClusterRequest, request.message)
    context.check_operator(reply.connection, "recover_cluster")
    # Not queued behind changes that wait for the majority that is lost.
    context.administration.submit_at_once(lambda: context.operations.recover(message), reply)


def handle_verify_copy(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    """Verify a range of this broker's copy, whether it leads or follows. New corruption is reported
    to the broker, which then replaces the copy if there are others.
    """
    message = cast(VerifyCopyRequest, request.message)
    host = context.topics.host(message.topic, message.partition)
    bytes_left = limits.VERIFIED_BYTES_MAX
    reached = message.start_offset
    while True:
        if host.closed is not None:
            raise host.closed
        log = host.log
        reached = max(reached, log.log_start_offset)
        if bytes_left <= 0 or reached >= min(message.end_offset, log.readable_end_offset):
            break
        try:
            reached = context.verifier.verify(host, reached, bytes_max=VERIFY_BYTES_PER_TURN)
        except DamagedLogError:
            reached = log.readable_end_offset
            break
        bytes_left -= VERIFY_BYTES_PER_TURN
        yield None
    chain = None
    if log.log_start_offset <= message.end_offset <= min(reached, log.log_end_offset):
        with suppress(DamagedLogError, OffsetOutOfRangeError):
            chain = log.chain_at(message.end_offset)
    reply.send(
        VerifyCopyResponse(
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            reached=min(reached, log.readable_end_offset) if log.damage else reached,
            chain=chain,
            damage=log.damage,
        )
    )


# -- membership ------------------------------------------------------------------------------------
#
# ``cluster_state``, ``propose``, ``reserve_broker_id``, ``decommission`` and
# ``cancel_decommission``: brokers that join and leave the cluster, and those without a vote.


def handle_state(context: BrokerContext, request: Request, reply: Reply) -> None:
    """Respond as soon as there is a change, outside the queue of topic changes."""
    message = cast(ClusterStateRequest, request.message)
    context.cluster.subscription.serve(message, reply.send)


def handle_propose(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(ProposeRequest, request.message)
    subscription = context.cluster.subscription
    context.administration.submit_at_once(lambda: subscription.propose(message), reply)


def handle_reserve_id(context: BrokerContext, _request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "reserve_broker_id")
    context.administration.submit_at_once(context.operations.reserve_broker_id, reply)


def handle_decommission(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(DecommissionRequest, request.message)
    context.check_operator(reply.connection, "decommission")
    context.administration.submit_at_once(lambda: context.operations.decommission(message), reply)


def handle_cancel_decommission(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(CancelDecommissionRequest, request.message)
    context.check_operator(reply.connection, "cancel_decommission")
    context.administration.submit_at_once(
        lambda: context.operations.cancel_decommission(message), reply
    )


# -- recovery --------------------------------------------------------------------------------------
#
# ``survey`` and ``revive``: requests of the broker that runs a recovery for the operator.


def handle_survey(context: BrokerContext, request: Request, reply: Reply) -> None:
    groups = cast(SurveyRequest, request.message).groups
    recovery = context.cluster.recovery

    async def survey() -> SurveyResponse:
        return SurveyResponse(reports=await recovery.survey(groups))

    context.administration.submit_at_once(survey, reply)


def handle_revive(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(ReviveRequest, request.message)
    recovery = context.cluster.recovery

    async def revive() -> ReviveResponse:
        await recovery.revive(message)
        return ReviveResponse()

    context.administration.submit_at_once(revive, reply)


# -- events ----------------------------------------------------------------------------------------
#
# ``describe_events``: the event history of this broker, in steps.


EVENTS_PER_STEP: Final = 500


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    since_ms = cast(DescribeEventsRequest, request.message).since_ms
    found: list[EventStatus] = []
    for number, timed in enumerate(tuple(context.events.events), start=1):
        if timed.at_ms >= since_ms:
            found.append(_status(timed))
        if number % EVENTS_PER_STEP == 0:
            yield None
    reply.send(DescribeEventsResponse(events=found))


def _status(timed: TimedEvent) -> EventStatus:
    event = timed.event
    return EventStatus(
        at_ms=max(0, timed.at_ms),
        kind=event.kind,
        text=event.text,
        version=event.version,
        topic=event.topic,
        topic_id=event.topic_id,
        partition=None if event.partition < 0 else event.partition,
        broker=None if event.broker < 0 else event.broker,
        leader_epoch=event.leader_epoch,
    )


# -- log levels ------------------------------------------------------------------------------------
#
# ``describe_log_levels`` and ``alter_log_levels``: what this broker logs.


def handle_describe_log_levels(_context: BrokerContext, _request: Request, reply: Reply) -> None:
    found = [
        LogLevel(logger=each.name, level=each.level, is_own=each.is_own)
        for each in metrics.describe()
    ]
    reply.send(DescribeLogLevelsResponse(levels=found))


def handle_alter(context: BrokerContext, request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "alter_log_levels")
    changes = cast(AlterLogLevelsRequest, request.message).changes
    check_once("alter_log_levels", [change.logger for change in changes])
    metrics.alter(
        {change.logger: change.level for change in changes},
        default=context.config.logging_level,
    )
    reply.send(AlterLogLevelsResponse())


# -- schema registry -------------------------------------------------------------------------------
#
# ``schema_registry``: what the HTTP port serves, too. A broker forwards it to the leader.


def handle_schema_registry(context: BrokerContext, request: Request, reply: Reply) -> None:
    registry, call = context.registry, registry_call(request)
    is_forwarded = reply.connection.peer_identity is not None

    async def ask() -> Attached:
        answer = await (registry.ask_leader(call) if is_forwarded else registry.call(call))
        return Attached(SchemaRegistryResponse(status=answer.status), [answer.body])

    context.administration.submit_at_once(ask, reply)


def registry_call(request: Request) -> Call:
    """Return the call that a request of ``schema_registry`` contains."""
    message = cast(SchemaRegistryRequest, request.message)
    if len(request.attachment) > limits.SCHEMA_REQUEST_BYTES_MAX:
        raise InvalidRequestError(
            f"a body of {len(request.attachment)} bytes is longer than "
            f"{limits.SCHEMA_REQUEST_BYTES_MAX} (SCHEMA_REQUEST_BYTES_MAX)"
        )
    body = bytes(request.attachment)
    return Call(message.method, message.path, message.query, body, message.accepts_unknown)
