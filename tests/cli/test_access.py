"""Commands of access: ``raftlog acl``, ``raftlog quota``, ``raftlog security``, and TLS options."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from raftlog.client import profiles
from raftlog.config import Address
from raftlog.testing import BrokerProcess
from raftlog.testing.certificates import Certificates
from raftlog.testing.cluster import free_port
from raftlog_cli import user
from tests.cli.conftest import Raftlog

# -- user ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_a_line_is_no_part_of_a_password(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for password in ("correct horse", "x" * 256):
        monkeypatch.setattr(sys, "stdin", io.StringIO(password + end, newline="\n"))
        assert user._password(from_stdin=True) == password
    monkeypatch.setattr(sys, "stdin", io.StringIO("x" * 257 + end, newline="\n"))
    assert len(user._password(from_stdin=True)) > 256


# -- acl -------------------------------------------------------------------------------------------


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


# -- quota -----------------------------------------------------------------------------------------


@pytest.mark.integration
def test_quotas_are_set_listed_and_deleted(raftlog: Raftlog, bootstrap: str) -> None:
    bob = ("--user", "cli-bob")
    raftlog("quota", "set", *bob, "--produce-bytes", "1000", "--connections", "5")
    raftlog("quota", "set", *bob, "--client-id", "app", "--fetch-bytes", "7.5kB")
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
            "limits": {"consumer_byte_rate": 7500.0},
        },
    ]
    listed = raftlog("quota", "list").out.decode()
    assert "produce-bytes" in listed
    assert all(f" {shown}" in listed for shown in ("1,000", "7,500", "1,000,000"))
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
def test_quota_wrong_usage_is_explained(
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


# -- security --------------------------------------------------------------------------------------

# ``raftlog security init``, and the TLS options of every command.


def test_it_prints_the_settings_of_brokers_and_clients(raftlog: Raftlog, tmp_path: Path) -> None:
    directory = tmp_path / "tls"
    made = raftlog("security", "init", directory, "--hosts", "log1.example.com,10.0.0.1", "--json")
    files = Certificates(directory)
    credentials = directory / "admin.credentials"
    assert made.json["broker"] == files.broker_settings() | {
        "authentication.required": "true",
        "admin.credentials.file": str(credentials),
    }
    assert made.json["environment"] == {"RAFTLOG_PROFILE": str(directory / "admin.toml")}
    profile = profiles.load(str(directory / "admin.toml"))
    assert profile["bootstrap"] == "log1.example.com:9100,10.0.0.1:9100"
    assert f"admin:{profile['sasl_password']}" == credentials.read_text().strip()
    printed = raftlog("security", "init", directory)
    assert printed.status == 0
    assert f'tls.key.file = "{files.broker_key}"' in printed.out.decode()


def test_each_broker_gets_a_certificate_of_its_own(raftlog: Raftlog, tmp_path: Path) -> None:
    made = raftlog("security", "init", tmp_path, "--brokers", "1,7", "--json")
    files = Certificates(tmp_path)
    assert made.json["brokers"].keys() == {"1", "7"}
    assert made.json["brokers"]["7"]["tls.certificate.file"] == str(tmp_path / "broker-7.pem")
    assert made.json["brokers"]["7"]["tls.broker.id.required"] == "true"
    assert files.of_broker(1)[1].stat().st_mode & 0o777 == 0o600
    assert not files.broker.exists()
    printed = raftlog("security", "init", tmp_path, "--brokers", "7")
    assert "Settings of broker 7:" in printed.out.decode()
    assert raftlog("security", "init", tmp_path, "--brokers", "1,1").status == 2


def test_no_host_is_wrong_usage(raftlog: Raftlog, tmp_path: Path) -> None:
    assert raftlog("security", "init", tmp_path, "--hosts", ",").status == 2


@pytest.mark.integration
def test_options_and_the_environment_select_tls(
    raftlog: Raftlog,
    tmp_path: Path,
    certificates: Certificates,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = BrokerProcess(
        id=1,
        address=Address("127.0.0.1", free_port()),
        data_dir=tmp_path / "broker",
        settings=certificates.broker_settings(),
    )
    broker.start()
    try:
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", str(broker.address))
        options = ("--security-protocol", "SSL", "--ssl-cafile", certificates.ca)
        assert raftlog("topic", "create", "t", *options).status == 0
        assert "RAFTLOG_SSL_CAFILE" not in os.environ, "options count for their command only"
        for name, value in certificates.environment().items():
            monkeypatch.setenv(name, value)
        assert raftlog("produce", "t", stdin=b"hello\n").status == 0
        assert raftlog("tail", "t", "-o", "earliest", "-n", 1).out == b"hello\n"
        refused = raftlog("topic", "list", "--security-protocol", "PLAINTEXT")
        assert refused.status == 1
        assert "requires TLS" in refused.err
        assert os.environ["RAFTLOG_SECURITY_PROTOCOL"] == "SSL", "it is set again afterwards"
    finally:
        broker.kill()
