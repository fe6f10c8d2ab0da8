"""Tests of ``raftlog quota``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Raftlog

UNREACHABLE = "127.0.0.1:1"  # no broker: errors are found before a connection


@pytest.mark.integration
def test_quotas_are_set_listed_and_deleted(raftlog: Raftlog, bootstrap: str) -> None:
    bob = ("--user", "cli-bob")
    raftlog("quota", "set", *bob, "--produce-bytes", "1000", "--connections", "5")
    raftlog("quota", "set", *bob, "--client-id", "app", "--fetch-bytes", "7.5")
    raftlog("quota", "set", "--address", "<default>", "--connection-rate", "1e6")
    found = [one for one in raftlog("quota", "list", "--json").json if one["user"] == "cli-bob"]
    assert found == [
        {
            "user": "cli-bob",
            "client_id": None,
            "address": None,
            "limits": {"producer_byte_rate": 1000.0, "connections": 5.0},
        },
        {
            "user": "cli-bob",
            "client_id": "app",
            "address": None,
            "limits": {"consumer_byte_rate": 7.5},
        },
    ]
    listed = raftlog("quota", "list").out.decode()
    assert "produce-bytes" in listed
    assert all(f" {shown}" in listed for shown in ("1,000", "7.5", "1,000,000"))
    for entity in ((*bob, "--client-id", "app"), bob, ("--address", "<default>")):
        assert raftlog("quota", "delete", *entity).status == 0
    assert b"cli-bob" not in raftlog("quota", "list").out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("set", "--user", "a"), "pass a limit"),
        (("set", "--connections", "5"), "--user, --client-id"),
        (("set", "--user", "a", "--default", "--connections", "5"), "not both"),
        (("set", "--user", "a", "--connections", "0"), "0"),
        (("delete",), "--user, --client-id"),
    ],
)
def test_wrong_usage_is_explained(
    raftlog: Raftlog, arguments: tuple[str, ...], complaint: str
) -> None:
    ran = raftlog("quota", *arguments, "--bootstrap", UNREACHABLE)
    assert ran.status == 2
    assert complaint in ran.err


def test_a_limit_that_cannot_be_enforced_is_refused(raftlog: Raftlog) -> None:
    ran = raftlog(
        "quota", "set", "--client-id", "a", "--connections", "5", "--bootstrap", UNREACHABLE
    )
    assert ran.status == 1
    assert "has no connections" in ran.err
