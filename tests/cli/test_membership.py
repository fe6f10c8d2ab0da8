"""Brokers that join and leave, and plans of moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from raftlog import Admin
from raftlog.client.descriptions import DecommissionProgress
from raftlog.config import Address, BrokerConfig
from raftlog.disk import OsDisk
from raftlog.errors import DataDirectoryError, InvalidConfigError, RaftlogError
from raftlog.replication.placement import PlannedMove
from raftlog.storage import Store
from raftlog.testing.cluster import free_port
from raftlog_cli import (
    cluster,
)
from raftlog_cli import cluster as removal
from raftlog_cli.broker import with_id
from tests.cli.conftest import Raftlog

# -- joining ---------------------------------------------------------------------------------------

# The ID of a broker without one: that of its directory; else the default, or the cluster's.


def test_a_directory_has_the_id_of_its_broker(tmp_path: Path) -> None:
    config = BrokerConfig(data_dir=str(tmp_path / "data"))
    assert with_id(config).id == 1, "a new broker alone"
    Store.open(OsDisk(), config.data_dir, broker_id=7).close()
    assert with_id(config).id == 7
    assert with_id(replace(config, join=(Address("127.0.0.1", 9),))).id == 7


def test_a_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(b"nonsense")
    with pytest.raises(DataDirectoryError, match="identity cannot be read"):
        with_id(BrokerConfig(data_dir=str(tmp_path)))


def test_a_certificate_that_names_the_id_needs_the_id(tmp_path: Path) -> None:
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        join=(Address("127.0.0.1", free_port()),),
        cluster_secret="a secret of this test",
        tls_certificate_file="broker.pem",
        tls_key_file="broker.key",
        tls_ca_file="ca.pem",
        tls_broker_id_required=True,
    )
    with pytest.raises(InvalidConfigError, match=r"Set --id to the ID in the certificate"):
        with_id(config)


def test_without_a_broker_that_responds_there_is_no_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = BrokerConfig(
        data_dir=str(tmp_path / "data"),
        join=(Address("127.0.0.1", free_port()),),
        cluster_secret="a secret of this test",
    )
    monkeypatch.setattr("raftlog_cli.broker.TIMEOUT_MS", 100)
    with pytest.raises(RaftlogError):
        with_id(config)


# -- moves -----------------------------------------------------------------------------------------

# Plans of replica moves as text, and what is no plan.


def test_a_printed_plan_is_read_again() -> None:
    plan = [PlannedMove("t", 0, (1, 2), (1, 3)), PlannedMove("u", 4, (), (2,))]
    assert cluster.parse(cluster.output.to_json({"moves": cluster.rows(plan)})) == plan
    assert cluster.parse('[{"topic": "t", "partition": 1, "to": [2]}]') == [
        PlannedMove("t", 1, (), (2,))
    ]


@pytest.mark.parametrize(
    ("arguments", "plan", "reason"),
    [
        (["--topic", "t"], "", "--brokers"),
        (["--verify", "--cancel"], "", "one of"),
        (["--cancel", "--dry-run"], "", "--cancel cannot be combined with --dry-run"),
        (["--cancel", "--topic", "t:0"], "", "--verify prints the moves"),
        (["--plan", "-", "--topic", "t"], "[]", "--plan cannot be combined"),
        (["--topic", "t:0", "--brokers", "1,1"], "", "different broker ids"),
        (["--throttle", "fast"], "", "is not a rate"),
        (["--throttle", "1MB", "--verify"], "", "only prints"),
        (["--plan", "-"], "{", "the plan is not JSON: invalid from line 1, column 2 on"),
        (["--plan", "-"], "{}", 'no list "moves"'),
        (["--plan", "-"], '[{"topic": "t", "partition": 0}]', 'is not an object with "topic"'),
        (["--plan", "-"], '[{"topic": "t", "partition": "0", "to": [1]}]', "are numbers"),
        (["--plan", "-"], '["t"]', 'is not an object with "topic"'),
        (["--plan", "-"], '[{"topic": ["t"], "partition": 0, "to": [1]}]', '"topic" is text'),
    ],
)
def test_what_is_no_plan_is_wrong_usage(
    raftlog: Raftlog, arguments: list[str], plan: str, reason: str
) -> None:
    ran = raftlog("cluster", "reassign", *arguments, stdin=plan.encode())
    assert (ran.status, reason in ran.err) == (2, True), ran.err


# -- removal ---------------------------------------------------------------------------------------

# ``raftlog cluster decommission``: it waits, says what for, and can be repeated.


class Answers:
    """An ``Admin`` that returns one progress after the other."""

    def __init__(self, *answers: DecommissionProgress) -> None:
        self.answers = list(answers)

    def decommission_broker(self, broker: int) -> DecommissionProgress:
        assert broker == 3
        return self.answers.pop(0)


def test_it_waits_until_the_broker_is_removed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(removal, "POLL_INTERVAL_S", 0)
    hindered = DecommissionProgress(False, 1, has_vote=True, waits_for="t:0 has no leader")
    done = DecommissionProgress(True, 0, has_vote=False, waits_for="")
    admin = Answers(hindered, hindered, done)
    first = DecommissionProgress(False, 2, has_vote=True, waits_for="")
    assert removal.wait_for_removal(cast(Admin, admin), 3, first) == done
    assert admin.answers == []
    assert capsys.readouterr().err.count("t:0 has no leader") == 1
