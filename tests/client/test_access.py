"""Access rules and quotas of the admin client: what is refused before a request is sent."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog import Acl, AclFilter, QuotaEntity, limits
from raftlog.client.administration.security import alteration, checked, decision, parts, selected
from raftlog.errors import InvalidRequestError
from raftlog.protocol.security import CheckAclResponse

ACL = Acl("User:alice", "READ", "TOPIC", "t")


@pytest.mark.parametrize("acls", [ACL, ["a rule"]])
def test_what_is_no_list_of_rules_is_refused(acls: Any) -> None:
    with pytest.raises(TypeError):
        checked(acls)


def test_rules_are_checked_and_sent_in_parts() -> None:
    with pytest.raises(InvalidRequestError, match="not a principal"):
        checked([ACL, Acl("alice", "READ", "TOPIC", "t")])
    rules = [ACL] * (limits.ACLS_PER_REQUEST_MAX + 1)
    assert [len(part) for part in parts(checked(rules))] == [limits.ACLS_PER_REQUEST_MAX, 1]


def test_the_number_of_filters_is_bounded() -> None:
    assert selected([AclFilter()]) == [AclFilter()]
    for filters in ([], [AclFilter()] * (limits.ACL_FILTERS_PER_REQUEST_MAX + 1)):
        with pytest.raises(InvalidRequestError, match="1 to 100"):
            selected(filters)
    with pytest.raises(TypeError):
        selected(AclFilter())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, "1 to 1000"),
        ({QuotaEntity(): {}, QuotaEntity("a"): {"connections": 0.0}}, "above 0"),
        ({QuotaEntity(None, "c"): {"connections": 1.0}}, "has no connections"),
        ({QuotaEntity("a"): {"connections": float("inf")}}, "above 0"),
    ],
)
def test_limits_are_checked(changes: Any, complaint: str) -> None:
    with pytest.raises(InvalidRequestError, match=complaint):
        alteration(changes)


def test_a_decision_has_a_reason() -> None:
    assert decision(CheckAclResponse(is_allowed=False)).reason == "no rule applies"
    found = decision(CheckAclResponse(is_allowed=True, acl=ACL))
    assert found.reason == "ALLOW User:alice READ on TOPIC 't'"
