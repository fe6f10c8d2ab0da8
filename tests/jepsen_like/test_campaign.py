"""A campaign makes runs in turn, each in a process of its own, and sums up what came of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from raftlog_jepsen import runner
from raftlog_jepsen.nemesis.driver import KINDS, expand
from raftlog_jepsen.runner import MIXES, CampaignOptions, Mix, Row, campaign, run_campaign, table

SUMMARY = {
    "acknowledged": 1_500,
    "load_s": 1_800.0,
    "injected": {"kill": 3, "pause": 1},
    "effects": {"SIGKILLs of brokers": 4},
    "longest_outage_s": 1.25,
    "anomalies": {},
}
MIX = Mix(name="two words", nemeses=("kill", "pause"), rate=50.0, pairs=True)


def test_every_kind_of_fault_is_in_a_mix_of_few() -> None:
    few = [mix for mix in MIXES if mix.nemeses != ("all",)]
    named = {kind for mix in few for kind in expand(mix.nemeses)}
    # A topic made and deleted beside the load is what the admin workload does; one by failpoints is
    # what the disks' mix does, by the file system.
    assert set(KINDS) - named == {"topics", "disk-error-at"}


def test_a_mix_says_how_to_run_it() -> None:
    assert " ".join(MIX.arguments()) == (
        "--workload append --nemesis kill,pause --brokers 3 --rate 50 --pairs"
    )


def stand_in(directory: Path, status: int, summary: object) -> Path:
    """A program in the place of ``python -m raftlog chaos run``."""
    program = directory / "program"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        'report = pathlib.Path(sys.argv[sys.argv.index("--report") + 1])\n'
        "report.mkdir()\n"
        '(report / "history.jsonl").write_text("{}")\n'
        '(report / "report.html").write_text("<p>")\n'
        '(report / "broker-1").mkdir()\n'
        f"summary = {summary!r}\n"
        "if summary is not None:\n"
        '    (report / "summary.json").write_text(json.dumps(summary))\n'
        'print("arguments:", sys.argv[1:])\n'
        f"sys.exit({status})\n"
    )
    program.chmod(0o755)
    return program


def options(directory: Path) -> CampaignOptions:
    (directory / "reports").mkdir()
    return CampaignOptions(directory=directory / "reports", time_s=1e9, run_s=7)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "verdict"),
    [(0, "valid"), (1, "invalid"), (3, "unknown"), (9, "exit status 9"), (-9, "exit status -9")],
)
def test_the_exit_status_is_the_verdict_and_only_what_was_right_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, verdict: str
) -> None:
    program = stand_in(tmp_path, max(status, 0), SUMMARY)
    if status < 0:
        program.write_text(f"#!/bin/sh\nkill {status} $$\n")
    monkeypatch.setattr(runner.sys, "executable", str(program))
    made = options(tmp_path)
    row = run_campaign(MIX, 12, made)
    assert row.verdict == verdict
    said = made.directory / "00012-two-words.txt"
    assert said.exists() == (status != 0)
    if status < 0:
        assert row.summary == {}
        return
    kept = {path.name for path in said.with_suffix("").iterdir()}
    evidence = {"history.jsonl", "broker-1"} if status else set()
    assert kept == {"report.html", "summary.json"} | evidence
    assert row.summary == json.loads(json.dumps(SUMMARY))


@pytest.mark.integration
def test_options_that_are_refused_end_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no such workload\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(program))
    with pytest.raises(ValueError, match="no such workload"):
        campaign(options(tmp_path))


def test_the_table_has_every_run_and_the_sums() -> None:
    rows = [
        Row(MIX, 2, "invalid", 3_600, {**SUMMARY, "anomalies": {"LOST-tail": 2}}),
        Row(MIX, 1, "valid", 1_800, SUMMARY),
        Row(MIX, 3, "it hung", 60),
    ]
    lines = table(rows).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:5]] == ["1", "2", "3"]
    assert lines[2].endswith("| kill 3, pause 1 | 1,500 | 1.2 s | valid |")
    assert lines[3].endswith("| invalid: LOST-tail 2 |")
    assert lines[4].endswith("|  | 0 |  | it hung |")
    assert "3 runs, 1 valid; 1.00 hours of load" in lines[6]
    assert "3,000 records acknowledged" in lines[6]
    assert lines[8] == "Faults injected: kill 6, pause 2."
    assert lines[10] == "Effects observed: SIGKILLs of brokers 8."


@pytest.mark.integration
def test_runs_go_on_until_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = stand_in(tmp_path, 0, SUMMARY)
    monkeypatch.setattr(runner.sys, "executable", str(program))
    # Each look at the clock is a second: two for a run, one for the loop.
    ticks = iter(range(1_000))
    monkeypatch.setattr(runner.time, "monotonic", lambda: float(next(ticks)))
    said: list[str] = []
    rows = campaign(
        CampaignOptions(directory=tmp_path / "reports", time_s=8, seed=5, say=said.append)
    )
    assert [row.seed for row in rows] == [5, 6, 7]
    assert len({row.mix.name for row in rows}) >= 2
    assert len(said) == 3
    assert (tmp_path / "reports" / "campaign.md").read_text() == table(rows)
