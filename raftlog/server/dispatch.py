"""Dispatch of requests: the table of handlers, and the handling of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.errors import AccessDeniedError, SessionEndedError, UnsupportedApiError
from raftlog.protocol import api
from raftlog.protocol.connection import Request
from raftlog.server.access.admission import admit
from raftlog.server.access.rules import RULES
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.handlers import (
    access,
    api_versions,
    cluster,
    delegation_tokens,
    describe_producers,
    events,
    fetch,
    groups,
    init_producer_id,
    list_offsets,
    list_producers,
    log_levels,
    membership,
    metadata,
    operator,
    peer,
    produce,
    records,
    recovery,
    replica,
    sasl,
    topics,
    users,
)
from raftlog.server.reply import Reply
from raftlog.server.turns import Steps

# Responds with ``reply``, once: now, in its steps, or later. Raises RaftlogError only before that.
Handler: TypeAlias = Callable[[BrokerContext, Request, Reply], Steps | None]

HANDLERS: Final[dict[int, Handler]] = {
    api.API_VERSIONS.number: api_versions.handle_api_versions,
    api.METADATA.number: metadata.handle,
    api.PRODUCE.number: produce.handle,
    api.FETCH.number: fetch.handle,
    api.LIST_OFFSETS.number: list_offsets.handle,
    api.INIT_PRODUCER_ID.number: init_producer_id.handle_init_producer_id,
    api.CREATE_TOPICS.number: topics.handle_create,
    api.DELETE_TOPICS.number: topics.handle_delete,
    api.DESCRIBE_TOPICS.number: topics.handle_describe,
    api.ALTER_TOPICS.number: topics.handle_alter,
    api.ADD_PARTITIONS.number: topics.handle_add_partitions,
    api.DELETE_RECORDS.number: records.handle_delete_records,
    api.PEER_HELLO.number: peer.handle_hello,
    api.PEER_PROVE.number: peer.handle_prove,
    api.RAFT.number: peer.handle_raft,
    api.PEER_PING.number: peer.handle_ping,
    api.REPLICA_FETCH.number: replica.handle_fetch,
    api.REPLICA_PROGRESS.number: replica.handle_progress,
    api.PARTITION_STATES.number: replica.handle_states,
    api.DESCRIBE_CLUSTER.number: cluster.handle_describe,
    api.TRANSFER_LEADER.number: cluster.handle_transfer_leader,
    api.REASSIGN.number: cluster.handle_reassign,
    api.RECOVER_CLUSTER.number: cluster.handle_recover,
    api.FIND_COORDINATORS.number: groups.handle_find_coordinators,
    api.GROUP_HEARTBEAT.number: groups.handle_heartbeat,
    api.OFFSET_COMMIT.number: groups.handle_offset_commit,
    api.OFFSET_FETCH.number: groups.handle_offset_fetch,
    api.LIST_GROUPS.number: groups.handle_list,
    api.DESCRIBE_GROUPS.number: groups.handle_describe,
    api.DELETE_GROUPS.number: groups.handle_delete,
    api.DELETE_OFFSETS.number: groups.handle_delete_offsets,
    api.DESCRIBE_PRODUCERS.number: describe_producers.handle,
    api.LIST_PRODUCERS.number: list_producers.handle_list_producers,
    api.SURVEY.number: recovery.handle_survey,
    api.REVIVE.number: recovery.handle_revive,
    api.OPERATOR_HELLO.number: operator.handle_hello,
    api.OPERATOR_PROVE.number: operator.handle_prove,
    api.DESCRIBE_COPIES.number: replica.handle_copies,
    api.VERIFY_COPY.number: cluster.handle_verify_copy,
    api.DESCRIBE_EVENTS.number: events.handle,
    api.SASL_AUTHENTICATE.number: sasl.handle,
    api.DESCRIBE_USERS.number: users.handle_describe,
    api.ALTER_USERS.number: users.handle_alter,
    api.CREATE_ACLS.number: access.handle_create_acls,
    api.DESCRIBE_ACLS.number: access.handle_describe_acls,
    api.DELETE_ACLS.number: access.handle_delete_acls,
    api.CHECK_ACL.number: access.handle_check_acl,
    api.DESCRIBE_QUOTAS.number: access.handle_describe_quotas,
    api.ALTER_QUOTAS.number: access.handle_alter_quotas,
    api.CLUSTER_STATE.number: membership.handle_state,
    api.PROPOSE.number: membership.handle_propose,
    api.RESERVE_BROKER_ID.number: membership.handle_reserve_id,
    api.DECOMMISSION.number: membership.handle_decommission,
    api.DESCRIBE_LOG_LEVELS.number: log_levels.handle_describe_log_levels,
    api.ALTER_LOG_LEVELS.number: log_levels.handle_alter,
    api.CANCEL_DECOMMISSION.number: membership.handle_cancel_decommission,
    api.THROTTLE_MOVES.number: cluster.handle_throttle_moves,
    api.UPGRADE_FEATURES.number: cluster.handle_upgrade_features,
    api.CREATE_TOKEN.number: delegation_tokens.handle_create,
    api.DESCRIBE_TOKENS.number: delegation_tokens.handle_describe_tokens,
    api.RENEW_TOKEN.number: delegation_tokens.handle_renew,
    api.EXPIRE_TOKEN.number: delegation_tokens.handle_expire,
}

# Numbers of the APIs that a connection may use before it has authenticated.
BEFORE_AUTHENTICATION: Final = frozenset(
    (
        api.API_VERSIONS.number,
        api.SASL_AUTHENTICATE.number,
        api.PEER_HELLO.number,
        api.PEER_PROVE.number,
        api.OPERATOR_HELLO.number,
        api.OPERATOR_PROVE.number,
    )
)


def dispatch(context: BrokerContext, connection: Connection, request: Request) -> Steps | None:
    """Handle one request, or return the steps that do. Every error is returned to the client; the
    connection continues.
    """
    reply = Reply(connection, request)
    if connection.peer_identity is None:
        try:
            _check_access(context, connection, request)
        except (AccessDeniedError, SessionEndedError) as error:
            _deny(connection, request, reply, error)
            return None
    handle = HANDLERS.get(request.api.number, _refuse_api)
    if context.access.applies_to(connection):
        rule = RULES[request.api.number]
        return reply.guarded(admit(context, rule, handle, request, reply))
    return reply.run(handle, context, request)


def _check_access(context: BrokerContext, connection: Connection, request: Request) -> None:
    """Raise ``AccessDeniedError`` if the connection, which is no broker's, has not authenticated as
    required, and ``SessionEndedError`` if its session has ended.
    """
    if request.api.number not in BEFORE_AUTHENTICATION:
        context.authenticator.check(connection)
    if request.api.peer_only:
        raise AccessDeniedError(
            f"{request.api.name} is for brokers of this cluster: send peer_hello and peer_prove "
            "first"
        )


def _refuse_api(_context: BrokerContext, request: Request, _reply: Reply) -> Steps | None:
    raise UnsupportedApiError(f"this broker does not serve {request.api.name}")


def _deny(
    connection: Connection,
    request: Request,
    reply: Reply,
    error: AccessDeniedError | SessionEndedError,
) -> None:
    """Reject a request from a connection that has not authenticated as required, and close it."""
    connection.note_refusal(request.api.name, error, request.correlation_id)
    if request.expects_response:
        reply.fail(error)
    else:
        reply.none()
    connection.end(error)
