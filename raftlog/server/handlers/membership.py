"""``cluster_state``, ``propose``, ``reserve_broker_id``, ``decommission`` and
``cancel_decommission``: brokers that join and leave the cluster, and those without a vote.
"""

from __future__ import annotations

from typing import cast

from raftlog.protocol.connection import Request
from raftlog.protocol.membership import (
    CancelDecommissionRequest,
    ClusterStateRequest,
    DecommissionRequest,
    ProposeRequest,
)
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply


def handle_state(context: BrokerContext, request: Request, reply: Reply) -> None:
    """Respond as soon as there is a change, outside the queue of topic changes."""
    message = cast(ClusterStateRequest, request.message)
    context.clustered().subscription.serve(message, reply.send)


def handle_propose(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(ProposeRequest, request.message)
    subscription = context.clustered().subscription
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
