"""Dispatch of requests: the table of handlers, and the handling of their errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from raftlog.errors import AccessDeniedError, UnsupportedApiError
from raftlog.protocol import api
from raftlog.protocol.connection import Request
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.handlers import (
    api_versions,
    cluster,
    describe_producers,
    events,
    fetch,
    groups,
    init_producer_id,
    list_offsets,
    membership,
    metadata,
    operator,
    peer,
    produce,
    records,
    recovery,
    replica,
    topics,
)
from raftlog.server.reply import Reply
from raftlog.server.turns import Steps

# Responds with ``reply``, once: now, in its steps, or later. Raises RaftlogError only before that.
Handler: TypeAlias = Callable[[BrokerContext, Request, Reply], Steps | None]

HANDLERS: Final[dict[int, Handler]] = {
    api.API_VERSIONS.number: api_versions.handle,
    api.METADATA.number: metadata.handle,
    api.PRODUCE.number: produce.handle,
    api.FETCH.number: fetch.handle,
    api.LIST_OFFSETS.number: list_offsets.handle,
    api.INIT_PRODUCER_ID.number: init_producer_id.handle,
    api.CREATE_TOPICS.number: topics.handle_create,
    api.DELETE_TOPICS.number: topics.handle_delete,
    api.DESCRIBE_TOPICS.number: topics.handle_describe,
    api.ALTER_TOPICS.number: topics.handle_alter,
    api.ADD_PARTITIONS.number: topics.handle_add_partitions,
    api.DELETE_RECORDS.number: records.handle_delete,
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
    api.SURVEY.number: recovery.handle_survey,
    api.REVIVE.number: recovery.handle_revive,
    api.OPERATOR_HELLO.number: operator.handle_hello,
    api.OPERATOR_PROVE.number: operator.handle_prove,
    api.DESCRIBE_COPIES.number: replica.handle_copies,
    api.VERIFY_COPY.number: cluster.handle_verify_copy,
    api.DESCRIBE_EVENTS.number: events.handle,
    api.CLUSTER_STATE.number: membership.handle_state,
    api.PROPOSE.number: membership.handle_propose,
    api.RESERVE_BROKER_ID.number: membership.handle_reserve_id,
    api.DECOMMISSION.number: membership.handle_decommission,
}


def dispatch(context: BrokerContext, connection: Connection, request: Request) -> Steps | None:
    """Handle one request, or return the steps that do. Every error is returned to the client; the
    connection continues.
    """
    context.counters.requests += 1
    reply = Reply(connection, request)
    if request.api.peer_only and connection.peer_identity is None:
        _deny(connection, request, reply)
        return None
    return reply.run(HANDLERS.get(request.api.number, _refuse_api), context, request)


def _refuse_api(_context: BrokerContext, request: Request, _reply: Reply) -> Steps | None:
    raise UnsupportedApiError(f"this broker does not serve {request.api.name}")


def _deny(connection: Connection, request: Request, reply: Reply) -> None:
    """Reject a request for authenticated peers only, from a connection that has not
    authenticated.
    """
    name = request.api.name
    error = AccessDeniedError(
        f"{name} is for brokers of this cluster: send peer_hello and peer_prove first"
    )
    connection.note_refusal(name, error)
    if request.expects_response:
        reply.fail(error)
    else:
        reply.none()
    connection.end(error)
