"""Tests of cli.bench_options."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from raftlog.cli.bench_options import common, records, rounds, size


@click.command()
@records(20_000)
@size
@rounds
@common
def probe(count: int, value_bytes: int, rounds: int, directory: Path | None, as_json: bool) -> None:
    click.echo(f"{count} {value_bytes} {rounds} {directory} {as_json}")


def test_defaults() -> None:
    assert CliRunner().invoke(probe).output == "20000 100 3 None False\n"


@pytest.mark.parametrize(
    "arguments", [["--records", "1"], ["--size", "0"], ["--rounds", "0"], ["--directory", "/no"]]
)
def test_values_out_of_range_are_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(probe, arguments).exit_code == 2
