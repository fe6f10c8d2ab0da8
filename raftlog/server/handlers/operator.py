"""``operator_hello`` and ``operator_prove``: a client proves that it may change the cluster."""

from __future__ import annotations

from typing import cast

from raftlog.errors import AccessDeniedError, UnsupportedFeatureError
from raftlog.protocol.connection import Request
from raftlog.protocol.operator_auth import (
    Granting,
    OperatorHelloRequest,
    OperatorProveRequest,
    OperatorProveResponse,
)
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply


def handle_hello(context: BrokerContext, request: Request, reply: Reply) -> None:
    """Answer the client's challenge, and send one."""
    message = cast(OperatorHelloRequest, request.message)
    secret = context.operator_secret or context.cluster_secret
    if not secret:
        raise UnsupportedFeatureError("this broker has no cluster secret and requires none")
    granting = Granting(
        secret, context.broker_id, context.operations.cluster_id, context.entropy(32)
    )
    reply.connection.granting = granting
    reply.send(granting.answer(message))


def handle_prove(_context: BrokerContext, request: Request, reply: Reply) -> None:
    """Verify the proof. If it is valid, the connection has operator rights from now on."""
    message = cast(OperatorProveRequest, request.message)
    granting, reply.connection.granting = reply.connection.granting, None
    if granting is None:
        raise AccessDeniedError("send operator_prove once, after operator_hello")
    granting.check(message)
    reply.connection.is_operator = True
    reply.connection.permit_long_requests()
    reply.send(OperatorProveResponse())
