"""SaslHandshake and SaslAuthenticate: a client proves who it is (KIP-152, KIP-368)."""

from __future__ import annotations

from raftlog.errors import (
    AuthenticationError,
    ClusterNotReadyError,
    RaftlogError,
    ThrottledError,
    UnsupportedFeatureError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests.authenticate import fail_later
from raftlog.server.turns import Steps

_Handshake = codec.structs("response", api.SASL_HANDSHAKE.key)
_Authenticate = codec.structs("response", api.SASL_AUTHENTICATE.key)


def handle_handshake(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Begin an exchange of the mechanism, or return the mechanisms that there are."""
    authenticator, connection = context.authenticator, reply.connection
    code = errors.NONE
    try:
        yield from authenticator.begin(connection, request.message.mechanism)
    except UnsupportedFeatureError as error:
        connection.note_refusal(reply.name, error, reply.request_id)
        code = errors.UNSUPPORTED_SASL_MECHANISM
    except (AuthenticationError, ThrottledError) as error:
        fail_later(reply, error)
        return
    except ClusterNotReadyError as error:  # clients try again, at another broker
        connection.abort(str(error))
        return
    mechanisms = list(authenticator.mechanisms(connection))
    reply.send(_Handshake.root(error_code=code, mechanisms=mechanisms))


def handle_authenticate(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    try:
        progress = yield from context.authenticator.proceed(
            reply.connection, bytes(request.message.auth_bytes)
        )
    except AuthenticationError as error:
        fail_later(reply, error)
        return
    except ClusterNotReadyError as error:  # of a token: clients try again
        reply.connection.abort(str(error))
        return
    reply.send(
        _Authenticate.root(
            error_message=None,
            auth_bytes=progress.data,
            session_lifetime_ms=progress.session_lifetime_ms,
        )
    )


def refuse(_request: KafkaRequest, error: RaftlogError) -> Message:
    is_failure = isinstance(error, AuthenticationError)
    return _Authenticate.root(
        error_code=errors.SASL_AUTHENTICATION_FAILED if is_failure else errors.ILLEGAL_SASL_STATE,
        error_message=error.wire_text,
        auth_bytes=b"",
    )
