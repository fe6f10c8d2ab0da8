"""``describe_cluster``, ``transfer_leader`` and ``recover_cluster``: operator requests."""

from __future__ import annotations

from typing import cast

from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    RecoverClusterRequest,
    TransferLeaderRequest,
)
from raftlog.protocol.connection import Request
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.turns import Steps


def handle_describe(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(DescribeClusterRequest, request.message)
    reply.send((yield from context.operations.describe(message)))


def handle_transfer_leader(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(TransferLeaderRequest, request.message)
    context.check_operator(reply.connection, "transfer_leader")
    context.administration.submit(lambda: context.operations.transfer_leader(message), reply)


def handle_recover(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(RecoverClusterRequest, request.message)
    context.check_operator(reply.connection, "recover_cluster")
    # Not queued behind changes that wait for the majority that is lost.
    context.administration.submit_at_once(lambda: context.operations.recover(message), reply)
