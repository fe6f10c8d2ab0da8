"""``sasl_authenticate``: a client proves who it is."""

from __future__ import annotations

from typing import cast

from raftlog.errors import AuthenticationError, ThrottledError
from raftlog.protocol.authentication import SaslAuthenticateRequest, SaslAuthenticateResponse
from raftlog.protocol.connection import Request
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.requests.authenticate import fail_later
from raftlog.server.turns import Steps


def handle(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    message = cast(SaslAuthenticateRequest, request.message)
    authenticator, connection = context.authenticator, reply.connection
    try:
        if message.mechanism:
            yield from authenticator.begin(connection, message.mechanism)
        progress = yield from authenticator.proceed(connection, message.data)
    except (AuthenticationError, ThrottledError) as error:
        fail_later(reply, error)
        return
    reply.send(
        SaslAuthenticateResponse(
            data=progress.data,
            is_complete=progress.is_complete,
            session_lifetime_ms=progress.session_lifetime_ms,
        )
    )
