"""Clients of the console's users: how many, for how long, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.client.settings import SECRET_FILE_VARIABLE
from raftlog.config import BrokerConfig
from raftlog.errors import RaftlogError
from raftlog.security.acl import USER, Principal
from raftlog.server.http.app import HttpUser
from raftlog_cli.console.app import Sessions
from tests.server.harness import FakeClock


def user(name: str, password: str = "a password", host: str = "10.0.0.1") -> HttpUser:
    return HttpUser(Principal(USER, name), host, "SCRAM-SHA-256", password)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sessions(clock: FakeClock) -> Iterator[Sessions]:
    made = Sessions("127.0.0.1:1", BrokerConfig(data_dir="."), clock)
    yield made
    made.close()


def test_each_user_has_a_client(sessions: Sessions) -> None:
    alice = sessions.of(user("alice"))
    assert sessions.of(user("alice", host="10.0.0.2")) is alice
    assert sessions.of(user("bob")) is not alice
    assert sessions.of(user("alice", "another one")) is not alice
    with pytest.raises(RaftlogError, match="closed"):
        alice.admin.list_topics()
    assert "a password" not in repr(alice)


def test_users_do_not_act_with_the_secret_of_the_brokers_environment(
    sessions: Sessions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("the secret of the cluster")
    monkeypatch.setenv(SECRET_FILE_VARIABLE, str(tmp_path / "secret"))
    secrets = [sessions.of(each).admin._settings.operator_secret for each in (user("alice"), None)]
    assert secrets == [b"", b""]


def test_clients_are_few_and_end_when_they_are_idle(
    sessions: Sessions, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "CONSOLE_USERS_MAX", 2)
    alice, bob = sessions.of(user("alice")), sessions.of(user("bob"))
    assert sessions.of(user("alice")) is alice
    carol = sessions.of(user("carol"))
    assert sessions.of(user("alice")) is alice
    assert sessions.of(user("bob")) is not bob  # its client was used last before the others
    clock.now_ms += int(1_000 * limits.CONSOLE_USER_IDLE_S)
    assert sessions.of(user("carol")) is not carol
