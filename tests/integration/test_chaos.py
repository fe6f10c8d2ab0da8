"""A smoke of the harness: a few kinds of fault, a few seconds each, against real clusters.

Each run is a process, as a user would make it. ``make chaos`` makes them for an hour.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from raftlog_jepsen.control import namespaces
from tests.secrets_in import files_with

RUN_SECONDS_MAX = 240
# Kinds, and other words of the command line. `make test` has the first.
WITHOUT_ROOT = (
    ("kill,pause", "--seed", "15", "--workload", "offsets", "--pairs"),
    ("storm,crash-at", "--seed", "11", "--pairs", "--secure"),
    ("wipe", "--seed", "13", "--brokers", "5"),
    ("kill,transfer", "--seed", "14", "--workload", "admin", "--pairs"),
    ("crash-at", "--seed", "16", "--workload", "compact"),
)
WITH_ROOT = (
    ("power", "--seed", "21", "--workload", "replay"),
    ("partition,one-way", "--seed", "22", "--pairs"),
    ("members", "--seed", "23", "--workload", "groups"),
)
TIME_S = 10

pytestmark = pytest.mark.integration


def each_but_one_nightly(runs: Sequence[tuple[str, ...]]) -> list[ParameterSet]:
    """The parameters of a test: those after the first are for `make nightly`."""
    marks: list[list[pytest.MarkDecorator]] = [[], *([pytest.mark.nightly] for _ in runs[1:])]
    return [pytest.param(r, marks=m, id=r[0]) for r, m in zip(runs, marks, strict=True)]


def made(directory: Path, kinds: str, *words: str) -> dict[str, object]:
    """The summary of a run, which has to be a valid one."""
    command = [sys.executable, "-m", "raftlog", "chaos", "run", "--nemesis", kinds, *words]
    done = subprocess.run(
        [*command, "--time", str(TIME_S), "--report", str(directory)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n(the reports: {directory})"
    if "--secure" in words:
        assert_no_secrets(directory)
    summary: dict[str, object] = json.loads((directory / "summary.json").read_bytes())
    return summary


def assert_no_secrets(directory: Path) -> None:
    """Only the files that are for secrets contain them: no history, report, log or data."""
    profiles = [directory / name for name in ("admin.toml", "chaos.toml")]
    secrets = [tomllib.loads(path.read_text())["sasl_password"] for path in profiles]
    secrets.append((directory / "cluster.secret").read_text().strip())
    keys = list((directory / "tls").glob("*.key"))
    secrets += [path.read_text().splitlines()[1] for path in keys]
    for_secrets = {"admin.toml", "chaos.toml", "admin.credentials", "cluster.secret"}
    assert files_with(directory, secrets) == for_secrets | {f"tls/{path.name}" for path in keys}
    for name in for_secrets:
        assert (directory / name).stat().st_mode & 0o077 == 0, name


@pytest.mark.parametrize("words", each_but_one_nightly(WITHOUT_ROOT))
def test_nothing_is_lost(tmp_path: Path, words: tuple[str, ...]) -> None:
    kinds, *others = words
    summary = made(tmp_path / "run", kinds, *others)
    assert summary["injected"], summary
    assert summary["acknowledged"]


@pytest.mark.nightly
@pytest.mark.parametrize("words", WITH_ROOT, ids=lambda words: words[0])
def test_nothing_is_lost_to_what_takes_root(tmp_path: Path, words: tuple[str, ...]) -> None:
    why_not = namespaces.why_no_sandbox()
    if why_not:
        pytest.skip(f"not injected: {why_not}")
    kinds, *others = words
    summary = made(tmp_path / "run", kinds, *others)
    assert summary["injected"], summary
    assert summary["acknowledged"]
