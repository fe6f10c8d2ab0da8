"""Tests of ``raftlog bench``: what it prints. What it measures: tests/bench."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raftlog.bench import groups as groups_bench
from raftlog.bench import spark as spark_bench
from raftlog.bench.figures import Figure
from raftlog_cli import options
from raftlog_cli.bench import Scope, bench, scope

IMPORTS = """import time: self [us] | cumulative | imported package
import time:       200 |        200 |   raftlog.limits
import time:       300 |        500 | raftlog
"""


@pytest.mark.integration
def test_floor_prints_a_table_or_json(tmp_path: Path) -> None:
    arguments = ["floor", "--rounds", "1", "--directory", str(tmp_path)]
    table = CliRunner().invoke(bench, arguments)
    assert table.exit_code == 0, table.output
    assert "streamed MB/s" in table.output
    (figure,) = json.loads(CliRunner().invoke(bench, [*arguments, "--json"]).output)
    assert figure["streamed_megabytes_per_s"] > 0


def test_imports_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftlog.bench.imports._run", lambda _code, *, times: (0.02, IMPORTS))
    table = CliRunner().invoke(bench, ["imports", "--rounds", "1"])
    assert table.exit_code == 0, table.output
    assert "from raftlog import Producer" in table.output
    first, *_ = json.loads(CliRunner().invoke(bench, ["imports", "--json"]).output)
    assert (first["cpu_ms"], first["import_ms"], first["modules"]) == (20, 0.5, 2)


@pytest.mark.integration
def test_produce_prints_its_share_of_the_floor(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        bench, ["produce", "--records", "10000", "--rounds", "1", "--directory", str(tmp_path)]
    )
    assert result.exit_code == 0, result.output
    assert "share of floor" in result.output


@pytest.mark.integration
def test_a_kafka_client_is_measured(tmp_path: Path) -> None:
    arguments = [
        "kafka",
        "--records",
        "10000",
        "--rounds",
        "1",
        "--trips",
        "100",
        "--json",
        "--directory",
    ]
    result = CliRunner().invoke(bench, [*arguments, str(tmp_path)])
    assert result.exit_code == 0, result.output
    (figure,) = json.loads(result.output)
    assert figure["produce_records_per_s"] > 0


def test_a_command_that_needs_confluent_kafka_tells_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _name: None)
    result = CliRunner().invoke(bench, ["kafka"])
    assert result.exit_code == 2
    assert "pip install confluent-kafka" in result.output


def test_wrong_usage_is_told() -> None:
    assert CliRunner().invoke(bench, ["produce", "--size", "0"]).exit_code == 2


@pytest.mark.integration
def test_figures_of_three_brokers_as_json() -> None:
    result = CliRunner().invoke(bench, ["cluster", "--records", "10000", "--rounds", "1", "--json"])
    assert result.exit_code == 0, result.output
    figures = [figure for line in result.output.splitlines() for figure in json.loads(line)]
    assert len(figures) == 3
    assert all(figure["ratio"] > 0 for figure in figures)


def test_compact_prints_a_figure() -> None:
    arguments = "compact --records 10000 --rounds 1 --trips 0 --json"
    result = CliRunner().invoke(bench, arguments.split())
    assert result.exit_code == 0, result.output
    (figure,) = json.loads(result.output)
    assert figure["records"] == 10_000


def test_too_few_records_are_refused() -> None:
    assert CliRunner().invoke(bench, ["compact", "--records", "10"]).exit_code == 2


@pytest.mark.integration
def test_figures_come_out_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_bench, "QUIET_S", 0.2)
    monkeypatch.setattr(groups_bench, "SESSION_TIMEOUT_MS", 1_500)
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
    assert "must exceed --members 4" in result.output


@pytest.fixture
def arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What the benchmark was asked for, when it is there; it gives the same figures at once."""
    seen: dict[str, object] = {}

    def everything(directory: Path | None, **asked: object) -> Iterator[list[Figure]]:
        seen.update(asked, directory=directory)
        yield [Figure({"later_s": 0.5}, {"benchmark": "plan 1,000 partitions"})]
        yield [
            Figure({"ratio": 1.0}, {"Arrow read over it": "1.00"}),
            Figure({"ratio": 0.5}, {"Arrow read over it": "0.50"}),
        ]

    monkeypatch.setattr(spark_bench, "everything", everything)
    return seen


def test_tables_of_spark_come_out_one_after_the_other(
    arguments: dict[str, object], tmp_path: Path
) -> None:
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
        "kafka_jars": None,
    }


def test_figures_of_spark_come_out_as_json(arguments: dict[str, object]) -> None:
    result = CliRunner().invoke(bench, ["spark", "--json"])
    assert result.exit_code == 0, result.output
    plans, rates = (json.loads(line) for line in result.output.strip().split("\n"))
    assert plans[0]["later_s"] == 0.5
    assert [rate["ratio"] for rate in rates] == [1.0, 0.5]
    assert arguments["records"] == 10_000_000


def test_no_partitions_at_all_are_refused() -> None:
    assert CliRunner().invoke(bench, ["spark", "--partitions", "0"]).exit_code == 2


@click.command()
@scope(records=20_000, has_size=True)
def probe(run: Scope) -> None:
    click.echo(f"{run.records} {run.value_bytes} {run.rounds} {run.directory} {run.as_json}")


def test_defaults() -> None:
    assert CliRunner().invoke(probe).output == "20000 100 3 None False\n"


@pytest.mark.parametrize(
    "arguments", [["--records", "1"], ["--size", "0"], ["--rounds", "0"], ["--directory", "/no"]]
)
def test_values_out_of_range_are_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(probe, arguments).exit_code == 2
