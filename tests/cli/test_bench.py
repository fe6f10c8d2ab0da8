"""Tests of cli.bench."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftlog.cli.bench import bench


@pytest.mark.integration
def test_floor_prints_a_table_or_json(tmp_path: Path) -> None:
    arguments = ["floor", "--rounds", "1", "--directory", str(tmp_path)]
    table = CliRunner().invoke(bench, arguments)
    assert table.exit_code == 0, table.output
    assert "streamed MB/s" in table.output
    (figure,) = json.loads(CliRunner().invoke(bench, [*arguments, "--json"]).output)
    assert figure["streamed_megabytes_per_s"] > 0


@pytest.mark.integration
def test_produce_prints_its_share_of_the_floor(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        bench, ["produce", "--records", "10000", "--rounds", "1", "--directory", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert "share of floor" in result.output


def test_wrong_usage_is_told() -> None:
    assert CliRunner().invoke(bench, ["produce", "--size", "0"]).exit_code == 2
