"""``raftlog bench compact``, as short as it can be."""

from __future__ import annotations

import json

from click.testing import CliRunner

from raftlog.cli.bench import bench


def test_a_figure_comes_out() -> None:
    arguments = "compact --records 10000 --rounds 1 --trips 0 --json"
    result = CliRunner().invoke(bench, arguments.split())
    assert result.exit_code == 0, result.output
    (figure,) = json.loads(result.output)
    assert figure["records"] == 10_000


def test_too_few_records_are_refused() -> None:
    assert CliRunner().invoke(bench, ["compact", "--records", "10"]).exit_code == 2
