"""Dispatch of requests: the table of handlers, and the handling of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.errors import AccessDeniedError, SessionEndedError, UnsupportedApiError
from raftlog.protocol import api
from raftlog.protocol.connection import Request
from raftlog.server.access.admission import admit
from raftlog.server.access.rules import RULES
from raftlog.server.apis import (
    cluster,
    fetch,
    groups,
    metadata,
    offsets,
    peer,
    produce,
    producers,
    security,
    topics,
    transactions,
)
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Reply
from raftlog.server.scheduling import Steps

# Responds with ``reply``, once: now, in its steps, or later. Raises RaftlogError only before that.
Handler: TypeAlias = Callable[[BrokerContext, Request, Reply], Steps | None]

HANDLERS: Final[dict[int, Handler]] = {
    api.API_VERSIONS.number: metadata.handle_api_versions,
    api.METADATA.number: metadata.handle,
    api.PRODUCE.number: produce.handle,
    api.FETCH.number: fetch.handle,
    api.LIST_OFFSETS.number: offsets.handle,
    api.INIT_PRODUCER_ID.number: produce.handle_init_producer_id,
    api.CREATE_TOPICS.number: topics.handle_create,
    api.DELETE_TOPICS.number: topics.handle_delete,
    api.DESCRIBE_TOPICS.number: topics.handle_describe,
    api.ALTER_TOPICS.number: topics.handle_alter,
    api.ADD_PARTITIONS.number: topics.handle_add_partitions,
    api.DELETE_RECORDS.number: topics.handle_delete_records,
    api.PEER_HELLO.number: peer.handle_hello,
    api.PEER_PROVE.number: peer.handle_prove,
    api.RAFT.number: peer.handle_raft,
    api.PEER_PING.number: peer.handle_ping,
    api.REPLICA_FETCH.number: peer.handle_fetch,
    api.REPLICA_PROGRESS.number: peer.handle_progress,
    api.PARTITION_STATES.number: peer.handle_states,
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
    api.DESCRIBE_PRODUCERS.number: producers.handle,
    api.LIST_PRODUCERS.number: producers.handle_list_producers,
    api.SURVEY.number: cluster.handle_survey,
    api.REVIVE.number: cluster.handle_revive,
    api.OPERATOR_HELLO.number: security.handle_hello,
    api.OPERATOR_PROVE.number: security.handle_prove,
    api.DESCRIBE_COPIES.number: peer.handle_copies,
    api.VERIFY_COPY.number: cluster.handle_verify_copy,
    api.DESCRIBE_EVENTS.number: cluster.handle,
    api.SASL_AUTHENTICATE.number: security.handle,
    api.DESCRIBE_USERS.number: security.handle_describe,
    api.ALTER_USERS.number: security.handle_alter,
    api.CREATE_ACLS.number: security.handle_create_acls,
    api.DESCRIBE_ACLS.number: security.handle_describe_acls,
    api.DELETE_ACLS.number: security.handle_delete_acls,
    api.CHECK_ACL.number: security.handle_check_acl,
    api.DESCRIBE_QUOTAS.number: security.handle_describe_quotas,
    api.ALTER_QUOTAS.number: security.handle_alter_quotas,
    api.CLUSTER_STATE.number: cluster.handle_state,
    api.PROPOSE.number: cluster.handle_propose,
    api.RESERVE_BROKER_ID.number: cluster.handle_reserve_id,
    api.DECOMMISSION.number: cluster.handle_decommission,
    api.DESCRIBE_LOG_LEVELS.number: cluster.handle_describe_log_levels,
    api.ALTER_LOG_LEVELS.number: cluster.handle_alter,
    api.CANCEL_DECOMMISSION.number: cluster.handle_cancel_decommission,
    api.THROTTLE_MOVES.number: cluster.handle_throttle_moves,
    api.UPGRADE_FEATURES.number: cluster.handle_upgrade_features,
    api.CREATE_TOKEN.number: security.handle_create,
    api.DESCRIBE_TOKENS.number: security.handle_describe_tokens,
    api.RENEW_TOKEN.number: security.handle_renew,
    api.EXPIRE_TOKEN.number: security.handle_expire,
    api.SCHEMA_REGISTRY.number: cluster.handle_schema_registry,
    api.FIND_TRANSACTION_COORDINATORS.number: transactions.handle_find_coordinators,
    api.INIT_TRANSACTIONS.number: transactions.handle_init,
    api.END_TRANSACTION.number: transactions.handle_end,
    api.TRANSACTION_OFFSET_COMMIT.number: transactions.handle_offset_commit,
    api.LIST_TRANSACTIONS.number: transactions.handle_list,
    api.DESCRIBE_TRANSACTION.number: transactions.handle_describe,
    api.ABORT_TRANSACTION.number: transactions.handle_abort,
    api.VERIFY_TRANSACTIONS.number: peer.handle_verify_transactions,
    api.TRANSACTION_MARKERS.number: peer.handle_transaction_markers,
    api.TRANSACTION_OWNERS.number: peer.handle_transaction_owners,
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
    # guard: peer requests require an authenticated peer
    if connection.peer_identity is None:
        try:
            _check_access(context, connection, request)
        except (AccessDeniedError, SessionEndedError) as error:
            _deny(connection, request, reply, error)
            return None
    handle = HANDLERS.get(request.api.number, _refuse_api)
    # guard: access rules decide about each request
    if context.access.applies_to(connection):
        rule = RULES[request.api.number]
        return reply.guarded(admit(context, rule, handle, request, reply))
    return reply.run(handle, context, request)


def _check_access(context: BrokerContext, connection: Connection, request: Request) -> None:
    """Raise ``AccessDeniedError`` if the connection, which is no broker's, has not authenticated as
    required, and ``SessionEndedError`` if its session has ended.
    """
    if request.api.number not in BEFORE_AUTHENTICATION:
        # guard: a dispatched request is checked
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
