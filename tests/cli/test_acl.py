"""Tests of ``raftlog acl``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Raftlog

UNREACHABLE = "127.0.0.1:1"  # no broker: errors are found before a connection


@pytest.mark.integration
def test_rules_are_created_listed_checked_and_deleted(raftlog: Raftlog, bootstrap: str) -> None:
    alice = ("--principal", "User:cli-alice")
    read = ("--operation", "read", "--topic", "clicks")
    created = raftlog("acl", "create", *alice, *read, "--host", "10.0.0.1", "--json").json
    expected = {
        "principal": "User:cli-alice",
        "operation": "READ",
        "resource_type": "TOPIC",
        "resource_name": "clicks",
        "pattern_type": "LITERAL",
        "permission": "ALLOW",
        "host": "10.0.0.1",
    }
    assert created == [expected]
    assert raftlog("acl", "list", *alice, "--json").json == [expected]

    allowed = raftlog("acl", "check", *alice, *read, "--host", "10.0.0.1", "--json")
    assert allowed.json == {
        "allowed": True,
        "rule": expected,
        "super_user": False,
        "enforced": False,
    }
    denied = raftlog("acl", "check", *alice, *read)
    assert (denied.status, denied.out) == (3, b"denied: no rule applies\n")
    assert "enforce no rules" in denied.err
    root = raftlog("acl", "check", "--principal", "User:admin", "--operation", "ALTER", "--cluster")
    assert (root.status, root.out) == (0, b"allowed: super.users contains the principal\n")

    prefix = ("--group-prefix", "g-", "--operation", "READ", "--operation", "DESCRIBE", "--deny")
    raftlog("acl", "create", *alice, *prefix)
    table = raftlog("acl", "list", *alice, "--permission", "DENY").out.decode()
    assert table.count("PREFIXED") == 2
    assert len(raftlog("acl", "delete", *alice, "--json").json) == 3
    assert raftlog("acl", "list", *alice, "--json").json == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("create", "--principal", "User:a", "--operation", "READ"), "name a resource"),
        (
            ("create", "--principal", "User:a", "--operation", "READ", "--topic=t", "--cluster"),
            "select one resource",
        ),
        (("delete",), "select the rules"),
        (
            ("check", "--principal", "User:a", "--operation", "READ", "--topic-prefix", "t"),
            "a prefix selects several",
        ),
    ],
)
def test_wrong_usage_is_explained(
    raftlog: Raftlog, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = raftlog("acl", *arguments, "--bootstrap", UNREACHABLE)
    assert ran.status == 2
    assert complaint in ran.err


def test_a_rule_that_can_never_apply_is_refused(raftlog: Raftlog) -> None:
    rule = ("--principal", "alice", "--operation", "READ", "--topic", "t")
    ran = raftlog("acl", "create", *rule, "--bootstrap", UNREACHABLE)
    assert ran.status == 1
    assert "Write User:NAME" in ran.err
