"""``raftlog bench spark``: what it prints. What it measures: tests/spark_source/bench."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from raftlog.cli.bench import bench
from raftlog.spark_source.bench import suite
from raftlog.spark_source.bench.figures import PlanTime, Rate


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the benchmark was asked for, when it is there; it gives the same figures at once."""
    seen: dict[str, object] = {}

    def everything(directory: Path | None, **asked: object) -> Iterator[list[object]]:
        seen.update(asked, directory=directory)
        yield [PlanTime(1_000, 2.0, 0.5, 0.25)]
        yield [
            Rate("read a topic", 10_000, 100, 1, 3e6, "Arrow read", 1.0),
            Rate("read Parquet", 10_000, 100, 1, 6e6, "Arrow read", 0.5),
        ]

    monkeypatch.setattr(suite, "everything", everything)
    return seen


def test_tables_come_out_one_after_the_other(arguments: dict[str, object], tmp_path: Path) -> None:
    asked = ["spark", "--records", "10000", "--partitions", "2", "--directory", str(tmp_path)]
    result = CliRunner().invoke(bench, asked)
    assert result.exit_code == 0, result.output
    assert "plan 1,000 partitions" in result.output
    assert "Arrow read over it" in result.output
    assert arguments == {
        "directory": tmp_path,
        "records": 10_000,
        "value_bytes": 100,
        "partitions": 2,
        "rounds": 3,
    }


def test_figures_come_out_as_json(arguments: dict[str, object]) -> None:
    result = CliRunner().invoke(bench, ["spark", "--json"])
    assert result.exit_code == 0, result.output
    plans, rates = (json.loads(line) for line in result.output.strip().split("\n"))
    assert plans[0]["later_s"] == 0.5
    assert [rate["ratio"] for rate in rates] == [1.0, 0.5]
    assert arguments["records"] == 10_000_000


def test_no_partitions_at_all_are_refused() -> None:
    assert CliRunner().invoke(bench, ["spark", "--partitions", "0"]).exit_code == 2
