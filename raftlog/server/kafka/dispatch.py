"""Dispatch of Kafka requests: the table of handlers, and the handling of their errors.

The table has a handler for each API of ``raftlog.kafka.api``, so that what is advertised is served.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from raftlog.errors import AuthenticationError, SessionEndedError
from raftlog.kafka import api
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place
from raftlog.server.access.admission import admit
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext
from raftlog.server.kafka import (
    cluster,
    consumer_protocol,
    fetch,
    group_offsets,
    groups,
    metadata,
    produce,
    security,
    topics,
    transactions,
)
from raftlog.server.kafka.access import RULES
from raftlog.server.kafka.reply import KafkaReply, Refusal, refused_by_code
from raftlog.server.scheduling import Steps

# Responds with ``reply``, once: now, in its steps, or later. Raises RaftlogError only before that.
Handler: TypeAlias = Callable[[BrokerContext, KafkaRequest, KafkaReply], Steps | None]


class Served(NamedTuple):
    """An API's handler, and the response to a request that fails as a whole."""

    handle: Handler
    refuse: Refusal


_admin: Final = refused_by_code(Place.ADMIN)
_groups: Final = refused_by_code(Place.GROUPS)
_classic: Final = refused_by_code(Place.CLASSIC_GROUPS)

HANDLERS: Final[dict[int, Served]] = {
    api.API_VERSIONS.key: Served(metadata.handle_api_versions, refused_by_code(Place.METADATA)),
    api.METADATA.key: Served(metadata.handle_metadata, metadata.refuse_metadata),
    api.DESCRIBE_CLUSTER.key: Served(metadata.handle_describe, refused_by_code(Place.METADATA)),
    api.FIND_COORDINATOR.key: Served(
        groups.handle_find_coordinator, groups.refuse_find_coordinator
    ),
    api.PRODUCE.key: Served(produce.handle, produce.refuse),
    api.FETCH.key: Served(fetch.handle, fetch.refuse),
    api.LIST_OFFSETS.key: Served(fetch.handle_list, fetch.refuse_list),
    api.OFFSET_FOR_LEADER_EPOCH.key: Served(fetch.handle_epochs, fetch.refuse_epochs),
    api.DESCRIBE_PRODUCERS.key: Served(
        produce.handle_describe_producers, produce.refuse_describe_producers
    ),
    api.CREATE_TOPICS.key: Served(topics.handle_create, topics.refuse_create),
    api.DELETE_TOPICS.key: Served(topics.handle_delete, topics.refuse_delete),
    api.CREATE_PARTITIONS.key: Served(topics.handle_extend, topics.refuse_extend),
    api.DELETE_RECORDS.key: Served(topics.handle_delete_records, topics.refuse_delete_records),
    api.DESCRIBE_CONFIGS.key: Served(topics.handle_describe, topics.refuse_describe),
    api.ALTER_CONFIGS.key: Served(topics.handle_alter, topics.refuse_alter),
    api.INCREMENTAL_ALTER_CONFIGS.key: Served(topics.handle_incremental, topics.refuse_alter),
    api.LIST_CONFIG_RESOURCES.key: Served(topics.handle_list, topics.refuse_list),
    api.ALTER_REPLICA_LOG_DIRS.key: Served(
        metadata.handle_alter_log_dirs, metadata.refuse_alter_log_dirs
    ),
    api.DESCRIBE_LOG_DIRS.key: Served(metadata.handle_log_dirs, metadata.refuse_log_dirs),
    api.LIST_PARTITION_REASSIGNMENTS.key: Served(
        metadata.handle_moves, refused_by_code(Place.METADATA)
    ),
    api.DESCRIBE_TOPIC_PARTITIONS.key: Served(
        metadata.handle_partitions, metadata.refuse_partitions
    ),
    api.ELECT_LEADERS.key: Served(cluster.handle_elections, _admin),
    api.ALTER_PARTITION_REASSIGNMENTS.key: Served(cluster.handle_reassignments, _admin),
    api.DESCRIBE_QUORUM.key: Served(cluster.handle_quorum, _admin),
    api.UPDATE_FEATURES.key: Served(cluster.handle_features, _admin),
    api.GET_TELEMETRY_SUBSCRIPTIONS.key: Served(cluster.handle_subscriptions, _admin),
    api.PUSH_TELEMETRY.key: Served(cluster.handle_metrics, _admin),
    api.JOIN_GROUP.key: Served(groups.handle_join, groups.refuse_join),
    api.SYNC_GROUP.key: Served(groups.handle_sync, _classic),
    api.HEARTBEAT.key: Served(groups.handle_heartbeat, _classic),
    api.LEAVE_GROUP.key: Served(groups.handle_leave, _classic),
    api.OFFSET_COMMIT.key: Served(group_offsets.handle_commit, group_offsets.refuse_commit),
    api.TXN_OFFSET_COMMIT.key: Served(
        group_offsets.handle_txn_commit, group_offsets.refuse_txn_commit
    ),
    api.OFFSET_FETCH.key: Served(group_offsets.handle_fetch, group_offsets.refuse_fetch),
    api.OFFSET_DELETE.key: Served(group_offsets.handle_delete, _groups),
    api.CONSUMER_GROUP_HEARTBEAT.key: Served(consumer_protocol.handle_heartbeat, _groups),
    api.CONSUMER_GROUP_DESCRIBE.key: Served(
        consumer_protocol.handle_describe, consumer_protocol.refuse_describe
    ),
    api.LIST_GROUPS.key: Served(groups.handle_list, _groups),
    api.DESCRIBE_GROUPS.key: Served(groups.handle_describe, groups.refuse_describe),
    api.DELETE_GROUPS.key: Served(groups.handle_delete, groups.refuse_delete),
    api.SASL_HANDSHAKE.key: Served(security.handle_handshake, refused_by_code(Place.ADMIN)),
    api.SASL_AUTHENTICATE.key: Served(security.handle_authenticate, security.refuse),
    api.DESCRIBE_USER_SCRAM_CREDENTIALS.key: Served(
        security.handle_describe_users, security.refuse_describe_users
    ),
    api.ALTER_USER_SCRAM_CREDENTIALS.key: Served(
        security.handle_alter_users, security.refuse_alter_users
    ),
    api.CREATE_DELEGATION_TOKEN.key: Served(security.handle_create_token, _admin),
    api.RENEW_DELEGATION_TOKEN.key: Served(security.handle_renew, _admin),
    api.EXPIRE_DELEGATION_TOKEN.key: Served(security.handle_expire, _admin),
    api.DESCRIBE_DELEGATION_TOKEN.key: Served(security.handle_describe_tokens, _admin),
    api.DESCRIBE_ACLS.key: Served(security.handle_describe, security.refuse_describe),
    api.CREATE_ACLS.key: Served(security.handle_create, security.refuse_create),
    api.DELETE_ACLS.key: Served(security.handle_delete, security.refuse_delete),
    api.DESCRIBE_CLIENT_QUOTAS.key: Served(
        security.handle_describe_quotas, security.refuse_describe_quotas
    ),
    api.ALTER_CLIENT_QUOTAS.key: Served(security.handle_alter, security.refuse_alter),
    api.INIT_PRODUCER_ID.key: Served(produce.handle_producer_ids, transactions.refuse_init),
    api.ADD_PARTITIONS_TO_TXN.key: Served(transactions.handle_add, transactions.refuse_add),
    api.ADD_OFFSETS_TO_TXN.key: Served(transactions.handle_add_offsets, transactions.refuse),
    api.END_TXN.key: Served(transactions.handle_end, transactions.refuse),
    api.WRITE_TXN_MARKERS.key: Served(transactions.handle_markers, transactions.refuse_markers),
    api.DESCRIBE_TRANSACTIONS.key: Served(
        transactions.handle_describe, transactions.refuse_describe
    ),
    api.LIST_TRANSACTIONS.key: Served(transactions.handle_list, transactions.refuse),
}


# A connection may send these before it has authenticated.
BEFORE_AUTHENTICATION: Final = frozenset(
    (api.API_VERSIONS, api.SASL_HANDSHAKE, api.SASL_AUTHENTICATE)
)


def dispatch(context: BrokerContext, connection: Connection, request: KafkaRequest) -> Steps | None:
    """Handle one request, or return the steps that do. Every error becomes a response; the
    connection continues.
    """
    # guard: a request of a Kafka client is checked
    if request.api not in BEFORE_AUTHENTICATION:
        try:
            context.authenticator.check(connection)
        except (AuthenticationError, SessionEndedError) as error:  # as Kafka does
            connection.abort(str(error))
            return None
    served = HANDLERS[request.api.key]
    reply = KafkaReply(connection, request, served.refuse)
    # guard: access rules decide about each Kafka request
    if context.access.applies_to(connection):
        connection.client_id = request.client_id
        rule = RULES[request.api.key]
        steps = admit(context, rule, served.handle, request, reply)
        # guard: a request for all topics waits for them, also with access rules
        if metadata.awaits_topics(context, request):
            metadata.await_topics(context, reply, steps)
            return None
        return reply.guarded(steps)
    return reply.run(served.handle, context, request)
