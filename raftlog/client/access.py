"""Access rules and quotas of the admin client: requests, checks of arguments, descriptions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from raftlog import limits
from raftlog.client.cluster import Cluster
from raftlog.errors import InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol.access import (
    AlterQuotasRequest,
    CheckAclRequest,
    CheckAclResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeQuotasRequest,
    DescribeQuotasResponse,
    QuotaAlteration,
)
from raftlog.security.acl import Acl, AclFilter, Decision, Operation, ResourceType
from raftlog.security.quota import QuotaEntity, QuotaKey


@dataclass(frozen=True, slots=True)
class AclDecision:
    """Whether a principal may do an operation.

    ``acl``: the rule that decides; None for a super user, and if no rule applies. ``reason``: in
    words. ``is_enforced``: False if the brokers do not require authentication; then, every client
    may do everything.
    """

    is_allowed: bool
    acl: Acl | None
    is_super_user: bool
    is_enforced: bool
    reason: str


async def describe_acls(cluster: Cluster, selection: AclFilter) -> list[Acl]:
    answer = await cluster.call(apis.DESCRIBE_ACLS, DescribeAclsRequest(filter=selection))
    assert isinstance(answer, DescribeAclsResponse)
    return answer.acls


async def describe_quotas(cluster: Cluster) -> dict[QuotaEntity, dict[QuotaKey, float]]:
    answer = await cluster.call(apis.DESCRIBE_QUOTAS, DescribeQuotasRequest())
    assert isinstance(answer, DescribeQuotasResponse)
    return {one.entity: one.limits for one in answer.quotas}


async def check_acl(
    cluster: Cluster,
    principal: str,
    operation: Operation,
    resource_type: ResourceType,
    resource_name: str,
    host: str,
) -> AclDecision:
    request = CheckAclRequest(
        principal=principal,
        operation=operation,
        resource_type=resource_type,
        resource_name=resource_name,
        host=host,
    )
    answer = await cluster.call(apis.CHECK_ACL, request)
    assert isinstance(answer, CheckAclResponse)
    return decision(answer)


def decision(answer: CheckAclResponse) -> AclDecision:
    return AclDecision(
        answer.is_allowed,
        answer.acl,
        answer.is_super_user,
        answer.is_enforced,
        str(Decision(answer.is_allowed, answer.acl, answer.is_super_user)),
    )


def checked(acls: Iterable[Acl]) -> list[Acl]:
    """Return the rules. Raises ``TypeError`` for what is none, and ``InvalidRequestError``."""
    if isinstance(acls, Acl):
        raise TypeError(f"acls={acls!r} is not a list of Acl. Pass [{acls!r}]")
    rules = list(acls)
    for acl in rules:
        if not isinstance(acl, Acl):
            raise TypeError(f"{acl!r} is not an Acl")
        acl.checked()
    return rules


def parts(acls: list[Acl]) -> Iterator[list[Acl]]:
    """Return the rules in parts that fit a request."""
    for start in range(0, len(acls), limits.ACLS_PER_REQUEST_MAX):
        yield acls[start : start + limits.ACLS_PER_REQUEST_MAX]


def selected(selections: Iterable[AclFilter]) -> list[AclFilter]:
    """Return the filters. Raises ``TypeError`` for what is none, and ``InvalidRequestError``."""
    if isinstance(selections, AclFilter):
        raise TypeError(f"selections={selections!r} is not a list of AclFilter")
    filters = list(selections)
    if not 1 <= len(filters) <= limits.ACL_FILTERS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"{len(filters)} filters: pass 1 to {limits.ACL_FILTERS_PER_REQUEST_MAX}"
        )
    return filters


def alteration(
    changes: Mapping[QuotaEntity, Mapping[QuotaKey, float | None]],
) -> AlterQuotasRequest:
    """Return the request for changes of quotas. Raises ``InvalidRequestError``."""
    if not 1 <= len(changes) <= limits.QUOTAS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"{len(changes)} entities: pass 1 to {limits.QUOTAS_PER_REQUEST_MAX}"
        )
    for entity, quota in changes.items():
        for key, value in quota.items():
            entity.checked().check_key(key)
            if value is not None and not 0 < value <= limits.QUOTA_MAX:
                raise InvalidRequestError(f"{key}={value} is not a limit above 0")
    return AlterQuotasRequest(
        quotas=[
            QuotaAlteration(entity=entity, changes=dict(quota)) for entity, quota in changes.items()
        ]
    )
