"""Admission of requests: the one place where access rules meet the requests of both protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from raftlog.errors import ThrottledError
from raftlog.kafka.connection import KafkaRequest
from raftlog.protocol.connection import Request
from raftlog.server.access.control import Caller
from raftlog.server.access.rules import Rule
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Exchange
from raftlog.server.turns import Steps

RequestT = TypeVar("RequestT", Request, KafkaRequest)
ReplyT = TypeVar("ReplyT", bound=Exchange)


def admit(
    context: BrokerContext,
    rule: Rule[RequestT],
    handle: Callable[[BrokerContext, RequestT, ReplyT], Steps | None],
    request: RequestT,
    reply: ReplyT,
) -> Steps:
    """Handle what is permitted of a request, and count what it uses of the client's quotas.

    Raises ``AccessDeniedError`` if it is denied as a whole, and ``ThrottledError`` if the user has
    too many connections. In the second case, the connection is closed.
    """
    access, connection = context.access, reply.connection
    try:
        meter = access.measure(connection)
    except ThrottledError:
        context.counters.quota_refusals += 1
        context.loop.call_soon(connection.drain)  # after this response
        raise
    if meter is not None and request.attachment:
        meter.use("producer_byte_rate", len(request.attachment))
    if access.is_enforced:
        admitted = yield from rule(context, Caller(access, connection), request)
        if admitted.request is None:
            reply.amend = admitted.amend
            reply.send(None)
            return
        reply.amend, request = admitted.amend, admitted.request
    steps = handle(context, request, reply)
    if steps is not None:
        yield from steps
