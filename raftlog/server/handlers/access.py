"""Access rules and quotas: create, describe, delete and check rules; describe and alter quotas."""

from __future__ import annotations

from typing import cast

from raftlog.protocol import access as wire
from raftlog.protocol.connection import Request
from raftlog.replication.cluster_commands import AlterQuotas, CreateAcls, QuotaChange
from raftlog.security.acl import canonical_host
from raftlog.security.principal import Principal
from raftlog.server.context import BrokerContext
from raftlog.server.reply import Reply
from raftlog.server.requests.access import delete_acls, select_acls
from raftlog.server.turns import Steps


def handle_create_acls(context: BrokerContext, request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "create_acls")
    acls = cast(wire.CreateAclsRequest, request.message).acls

    async def create() -> wire.CreateAclsResponse:
        await context.access.authority.propose(CreateAcls(acls=tuple(acls)))
        return wire.CreateAclsResponse()

    context.administration.submit(create, reply)


def handle_describe_acls(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    chosen = cast(wire.DescribeAclsRequest, request.message).filter
    found = yield from select_acls(context, [chosen])
    reply.send(wire.DescribeAclsResponse(acls=found))


def handle_delete_acls(context: BrokerContext, request: Request, reply: Reply) -> Steps:
    context.check_operator(reply.connection, "delete_acls")
    filters = cast(wire.DeleteAclsRequest, request.message).filters
    found = yield from select_acls(context, filters)

    async def delete() -> wire.DeleteAclsResponse:
        return wire.DeleteAclsResponse(acls=await delete_acls(context, found))

    context.administration.submit(delete, reply)


def handle_check_acl(context: BrokerContext, request: Request, reply: Reply) -> None:
    message = cast(wire.CheckAclRequest, request.message)
    question = context.access.authorizer.question(
        Principal.parse(message.principal),
        canonical_host(message.host),
        message.operation,
        message.resource_type,
    )
    decision = question.decide(message.resource_name)
    reply.send(
        wire.CheckAclResponse(
            is_allowed=decision.is_allowed,
            acl=decision.acl,
            is_super_user=decision.is_super_user,
            is_enforced=context.access.is_enforced,
        )
    )


def handle_describe_quotas(context: BrokerContext, request: Request, reply: Reply) -> None:  # noqa: ARG001
    quotas = sorted(context.access.quotas, key=lambda one: str(one[0]))
    described = [
        wire.QuotaDescription(entity=entity, limits=dict(quota)) for entity, quota in quotas
    ]
    reply.send(wire.DescribeQuotasResponse(quotas=described))


def handle_alter_quotas(context: BrokerContext, request: Request, reply: Reply) -> None:
    context.check_operator(reply.connection, "alter_quotas")
    quotas = cast(wire.AlterQuotasRequest, request.message).quotas
    changes = tuple(QuotaChange(one.entity, one.changes) for one in quotas)

    async def alter() -> wire.AlterQuotasResponse:
        await context.access.authority.propose(AlterQuotas(changes=changes))
        return wire.AlterQuotasResponse()

    context.administration.submit(alter, reply)
