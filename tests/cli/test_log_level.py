"""``raftlog cluster log-level``: shown, changed and given back on a real broker."""

from __future__ import annotations

import pytest

from raftlog.testing import Cluster, cluster
from tests.cli.conftest import Raftlog

pytestmark = pytest.mark.integration
NAME = "raftlog.server.cluster"


def test_a_level_is_changed_until_it_is_removed(
    broker: Cluster, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", broker.bootstrap)

    def shown(*arguments: str) -> dict[str, str]:
        rows = raftlog("cluster", "log-level", *arguments, "--json").json
        return {row["logger"]: row["level"] for row in rows}

    before = shown()
    assert before["root"] == "info"
    changed = shown(NAME, "debug")
    assert changed.keys() >= {NAME, f"{NAME}.node"}
    assert set(changed.values()) == {"debug"}
    assert shown() == {**before, NAME: "debug"}
    assert raftlog("cluster", "log-level").out.decode().split()[:3] == ["broker", "logger", "level"]
    assert shown(NAME, "default", "--broker", "1")[f"{NAME}.node"] == "info"
    assert shown() == before


def test_brokers_that_are_down_are_omitted(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster(brokers=3) as running:
        running.brokers[1].kill()
        monkeypatch.setenv("RAFTLOG_BOOTSTRAP", running.bootstrap)
        ran = raftlog("cluster", "log-level", NAME, "debug", "--json")
        assert {row["broker"] for row in ran.json} == {1, 3}
        assert "raftlog: broker 2 is omitted: " in ran.err


def test_an_unknown_logger_or_level_is_an_error(
    broker: Cluster, raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAFTLOG_BOOTSTRAP", broker.bootstrap)
    ran = raftlog("cluster", "log-level", "no.such", "debug")
    assert (ran.status, "no logger 'no.such'" in ran.err) == (1, True)
    assert raftlog("cluster", "log-level", "no.such").status == 1
    assert raftlog("cluster", "log-level", NAME, "loud").status == 2
