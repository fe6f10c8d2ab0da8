"""Admission of requests: the one place where access rules meet the requests of both protocols."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from raftlog.errors import ThrottledError
from raftlog.kafka.connection import KafkaRequest
from raftlog.protocol.connection import Request
from raftlog.server.access.audit import resources_of
from raftlog.server.access.control import Caller
from raftlog.server.access.rules import Rule
from raftlog.server.context import BrokerContext
from raftlog.server.exchange import Exchange
from raftlog.server.scheduling import Steps

# Requests that change something else than records and committed offsets.
ADMINISTRATION: Final = frozenset(
    (
        *("create_topics", "delete_topics", "alter_topics", "add_partitions", "delete_records"),
        *("transfer_leader", "reassign", "throttle_moves", "recover_cluster", "decommission"),
        *("cancel_decommission", "upgrade_features", "delete_groups", "delete_offsets"),
        *("create_acls", "delete_acls", "alter_quotas"),
        *("CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "AlterConfigs"),
        *("IncrementalAlterConfigs", "DeleteGroups", "OffsetDelete", "CreateAcls", "DeleteAcls"),
        *("AlterClientQuotas", "alter_users", "AlterUserScramCredentials"),
        *("alter_log_levels", "create_token", "renew_token", "expire_token"),
        *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken"),
        *("ElectLeaders", "AlterPartitionReassignments", "UpdateFeatures"),
        *("abort_transaction", "WriteTxnMarkers"),
    )
)

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
        caller = Caller(access, connection)
        try:
            admitted = yield from rule(context, caller, request)
        finally:
            if caller.denied:
                context.audit.note(
                    "denial",
                    principal=str(caller.principal),
                    host=caller.host,
                    request=request.api.name,
                    resources=caller.denied,
                    outcome="AccessDeniedError",
                )
        if request.api.name in ADMINISTRATION:
            reply.audit = partial(_note, context, caller, request)
        if admitted.request is None:
            reply.amend = admitted.amend
            reply.send(None)
            return
        reply.amend, request = admitted.amend, admitted.request
    steps = handle(context, request, reply)
    if steps is not None:
        yield from steps


def _note(
    context: BrokerContext, caller: Caller, request: Request | KafkaRequest, outcome: str
) -> None:
    """Note an administrative request that has ended."""
    context.audit.note(
        "administration",
        principal=str(caller.principal),
        host=caller.host,
        request=request.api.name,
        resources=resources_of(request.message),
        outcome=outcome,
    )
