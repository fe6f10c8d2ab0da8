"""``raftlog bench groups``, as short as it can be."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from raftlog.cli.bench import bench
from raftlog.testing.bench import groups


@pytest.mark.integration
def test_figures_come_out_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "QUIET_S", 0.2)
    monkeypatch.setattr(groups, "SESSION_TIMEOUT_MS", 1_500)
    arguments = "groups --records 10000 --partitions 3 --members 2 --groups 0 --rounds 1 --json"
    result = CliRunner().invoke(bench, arguments.split())
    assert result.exit_code == 0, result.output
    rebalances, share = (json.loads(line)[0] for line in result.output.strip().split("\n"))
    assert rebalances["members"] == 2
    assert share["records"] == 10_000


def test_a_group_of_one_has_nothing_to_share() -> None:
    assert CliRunner().invoke(bench, ["groups", "--members", "1"]).exit_code == 2


def test_the_member_that_joins_has_to_have_a_share() -> None:
    result = CliRunner().invoke(bench, ["groups", "--members", "4", "--partitions", "4"])
    assert result.exit_code == 2
    assert "more than --members 4" in result.output
