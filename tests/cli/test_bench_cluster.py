"""``raftlog bench cluster``, as short as it can be."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from raftlog.cli.bench import bench


@pytest.mark.integration
def test_figures_of_three_brokers_as_json() -> None:
    result = CliRunner().invoke(bench, ["cluster", "--records", "10000", "--rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    figures = [figure for line in result.output.splitlines() for figure in json.loads(line)]
    assert len(figures) == 3
    assert all(figure["ratio"] > 0 for figure in figures)
