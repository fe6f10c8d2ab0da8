"""Access rules and quotas: the bounds in their fields."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import limits
from raftlog.protocol.security import (
    AlterQuotasRequest,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from tests.protocol.fields import accepted, refused

ACL: dict[str, Any] = {
    "principal": "User:a",
    "operation": "READ",
    "resource_type": "TOPIC",
    "resource_name": "t",
}


@pytest.mark.parametrize(
    "bad",
    [
        {"principal": "x" * 513},
        {"operation": "read"},
        {"resource_type": "USER"},
        {"resource_name": "x" * 513},
        {"pattern_type": "MATCH"},
        {"permission": "MAYBE"},
        {"host": "x" * 256},
    ],
)
def test_a_rule_has_bounds(bad: dict[str, Any]) -> None:
    accepted(CreateAclsRequest, {"acls": [ACL]})
    refused(CreateAclsRequest, {"acls": [ACL | bad]}, path=next(iter(bad)))


def test_the_number_of_rules_and_filters_is_bounded() -> None:
    refused(CreateAclsRequest, {"acls": []}, path="acls")
    many = [ACL] * (limits.ACLS_PER_REQUEST_MAX + 1)
    refused(CreateAclsRequest, {"acls": many}, path="acls")
    accepted(DescribeAclsRequest, {"filter": {}})
    many = [{}] * (limits.ACL_FILTERS_PER_REQUEST_MAX + 1)
    refused(DeleteAclsRequest, {"filters": many}, path="filters")


@pytest.mark.parametrize("rate", [0.0, -1.0, 1e16, float("nan"), "5"])
def test_a_limit_has_bounds(rate: Any) -> None:
    quota: dict[str, Any] = {"entity": {"user": "a"}, "changes": {"connections": 1.5}}
    accepted(AlterQuotasRequest, {"quotas": [quota]})
    quota["changes"] = {"connections": rate}
    refused(AlterQuotasRequest, {"quotas": [quota]}, path="changes")
