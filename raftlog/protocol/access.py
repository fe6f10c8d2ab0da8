"""Access rules and quotas: ``create_acls``, ``describe_acls``, ``delete_acls``, ``check_acl``,
``describe_quotas`` and ``alter_quotas``.

Rules and quotas are those of ``raftlog.security``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Message
from raftlog.security.acl import Acl, AclFilter, Operation, ResourceType
from raftlog.security.quota import QuotaEntity, QuotaKey

_Name = Annotated[str, Meta(max_length=2 * limits.ACL_RESOURCE_CHARS_MAX)]
_Host = Annotated[str, Meta(max_length=limits.HOST_CHARS_MAX)]
_Rules = Annotated[list[Acl], Meta(max_length=limits.ACLS_PER_CLUSTER_MAX)]
Rate = Annotated[float, Meta(gt=0, le=limits.QUOTA_MAX)]


class CreateAclsRequest(Message):
    """Add rules: all of them or none. Those that exist stay."""

    acls: Annotated[list[Acl], Meta(min_length=1, max_length=limits.ACLS_PER_REQUEST_MAX)]


class CreateAclsResponse(Message):
    pass


class DescribeAclsRequest(Message):
    """Return the rules that a filter selects."""

    filter: AclFilter


class DescribeAclsResponse(Message):
    acls: _Rules


class DeleteAclsRequest(Message):
    """Delete the rules that any of the filters selects."""

    filters: Annotated[
        list[AclFilter], Meta(min_length=1, max_length=limits.ACL_FILTERS_PER_REQUEST_MAX)
    ]


class DeleteAclsResponse(Message):
    """The deleted rules."""

    acls: _Rules


class CheckAclRequest(Message):
    """Ask whether a principal at a host may do an operation. ``host``: an IP address."""

    principal: _Name
    operation: Operation
    resource_type: ResourceType
    resource_name: _Name
    host: _Host


class CheckAclResponse(Message):
    """The decision. ``acl``: the rule that decides; None for super users, and if none applies.

    ``is_enforced``: False if the broker does not require authentication; then everyone may do
    everything.
    """

    is_allowed: bool
    acl: Acl | None = None
    is_super_user: bool = False
    is_enforced: bool = True


class DescribeQuotasRequest(Message):
    """Return all quotas."""


class QuotaDescription(Message):
    entity: QuotaEntity
    limits: dict[QuotaKey, Rate]


class DescribeQuotasResponse(Message):
    quotas: Annotated[list[QuotaDescription], Meta(max_length=limits.QUOTAS_PER_CLUSTER_MAX)]


class QuotaAlteration(Message):
    """Change of limits of one entity; None removes a limit."""

    entity: QuotaEntity
    changes: dict[QuotaKey, Rate | None]


class AlterQuotasRequest(Message):
    """Change quotas: all of them or none."""

    quotas: Annotated[
        list[QuotaAlteration], Meta(min_length=1, max_length=limits.QUOTAS_PER_REQUEST_MAX)
    ]


class AlterQuotasResponse(Message):
    pass
