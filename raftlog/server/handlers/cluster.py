"""Operator requests: describe, transfer leaders, move replicas, recover, verify copies."""

from __future__ import annotations

from contextlib import suppress
from typing import cast

from raftlog import limits
from raftlog.errors import DamagedLogError, OffsetOutOfRangeError
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    ReassignRequest,
    RecoverClusterRequest,
    ThrottleMovesRequest,
    TransferLeaderRequest,
    VerifyCopyRequest,
    VerifyCopyResponse,
)
from raftlog.protocol.connection import Request
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.scrubber import VERIFY_BYTES_PER_TURN
from raftlog.server.turns import Steps


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
