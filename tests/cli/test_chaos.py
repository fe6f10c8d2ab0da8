"""``raftlog chaos``: what it asks of the harness, and how it ends for each verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from raftlog.cli.chaos_output import STATUSES
from raftlog.jepsen_like import runner
from raftlog.jepsen_like.checker import selftest, synthetic
from raftlog.jepsen_like.checker import verdict as checker
from raftlog.jepsen_like.checker.verdict import Anomaly, Valid, Verdict
from raftlog.jepsen_like.control import sandbox
from raftlog.jepsen_like.drawing import RunOptions, draw_plan
from raftlog.jepsen_like.history import Recorder
from raftlog.jepsen_like.runner import ChaosError, Outcome, Progress
from tests.cli.conftest import Raftlog


@dataclass
class FakeRunner:
    """Takes the place of the runner: notes what it was asked, and gives the verdict it was told."""

    valid: Valid = "valid"
    error: Exception | None = None
    asked: list[RunOptions] = field(default_factory=list)

    def __call__(self, options: RunOptions) -> Outcome:
        self.asked.append(options)
        options.say("load")
        if options.progress is not None:
            options.progress(Progress("load", 1.0, 60.0, 500, 0, ("kill",)))
        if self.error is not None:
            raise self.error
        counts = dict.fromkeys(checker.KINDS, 0)
        anomalies = ()
        if self.valid == "invalid":
            counts["MOVED"] = 4
            anomalies = (Anomaly("MOVED", "17 is elsewhere"),)
        troubles = ("it broke",) if self.valid == "unknown" else ()
        found = Verdict(valid=self.valid, counts=counts, anomalies=anomalies, troubles=troubles)
        report = options.directory / "report.html"
        return Outcome(draw_plan(options), found, options.directory, report)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRunner:
    made = FakeRunner()
    monkeypatch.setattr(runner, "run", made)
    monkeypatch.setattr(sandbox, "is_inside", lambda: True)
    monkeypatch.chdir(tmp_path)
    return made


@pytest.fixture
def history(tmp_path: Path) -> Callable[..., Path]:
    """``history()``: the file of a run in which nothing went wrong."""

    def write(*, without: str = "") -> Path:
        times = iter(synthetic.history(1))
        recorder = Recorder(tmp_path / "history.jsonl", lambda: current)
        for entry in times:
            current = entry.time
            if type(entry).__name__ != without:
                recorder.record(entry)
        recorder.close()
        return recorder.path

    return write


@pytest.mark.parametrize("valid", ["valid", "invalid", "unknown"])
def test_the_verdict_is_the_exit_status(raftlog: Raftlog, fake: FakeRunner, valid: Valid) -> None:
    fake.valid = valid
    ran = raftlog("chaos", "run", "--seed", 5)
    assert ran.status == STATUSES[valid]
    text = ran.out.decode()
    assert f"verdict  {valid.upper()}. " in text
    assert "report  chaos-5/report.html" in text
    assert ("MOVED: 17 is elsewhere" in text) == (valid == "invalid")
    assert ("trouble  it broke" in text) == (valid == "unknown")


def test_unknown_is_neither_success_nor_an_anomaly() -> None:
    assert STATUSES == {"valid": 0, "invalid": 1, "unknown": 3}


def test_what_is_asked_for_reaches_the_runner(
    raftlog: Raftlog, fake: FakeRunner, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    ran = raftlog(
        "chaos", "run", "--workload", "replay", "--nemesis", "kill, network", "--time", "12.5",
        "--seed", 7, "--report", "here", "--brokers", 5, "--rate", 900, "--pairs",
        "--source", source, "--without-root",
    )  # fmt: skip
    assert ran.status == 0
    (asked,) = fake.asked
    assert (asked.workload, asked.nemeses) == ("replay", ("kill", "network"))
    assert (asked.time_s, asked.seed, asked.directory) == (12.5, 7, Path("here"))
    assert (asked.brokers, asked.rate, asked.pairs, asked.source) == (5, 900, True, source)
    assert asked.without_root
    assert asked.bootstrap is None


def test_json_is_the_verdict_and_where_all_of_it_is(raftlog: Raftlog, fake: FakeRunner) -> None:
    found = raftlog("chaos", "run", "--seed", 5, "--json").json
    assert (found["valid"], found["seed"], found["directory"]) == ("valid", 5, "chaos-5")
    assert found["report"] == "chaos-5/report.html"
    assert found["counts"].keys() == checker.KINDS.keys()


def test_progress_is_told_on_stderr_and_not_when_quiet(raftlog: Raftlog, fake: FakeRunner) -> None:
    assert raftlog("chaos", "run", "--seed", 5).err.splitlines() == [
        "seed 5, everything goes to chaos-5",
        "load",
    ]
    assert raftlog("chaos", "run", "-q").err == ""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ChaosError("no cluster"), "raftlog: no verdict: no cluster\n"),
        (PermissionError(13, "Permission denied", "/d"), "no verdict: /d: Permission denied\n"),
        (ZeroDivisionError("0"), "no verdict, a bug of the harness: ZeroDivisionError: 0\n"),
    ],
)
def test_a_run_that_fails_by_itself_is_unknown(
    raftlog: Raftlog, fake: FakeRunner, error: Exception, line: str
) -> None:
    fake.error = error
    ran = raftlog("chaos", "run", "--quiet")
    assert ran.status == 3
    assert ran.err.endswith(line)
    assert ("Traceback" in ran.err) == isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workload", "sleep"], "sleep"),
        (["--nemesis", "kill,meteorite"], "meteorite"),
        (["--time", "1"], "5 s"),
        (["--brokers", "12"], "1 to 9"),
        (["--rate", "0"], "--rate"),
        (["--source", "/nowhere"], "/nowhere"),
        (["--control", __file__], "--bootstrap"),
        (["--bootstrap", "a:1", "--source", "/"], "--source"),
    ],
)
def test_wrong_usage_is_status_2(
    raftlog: Raftlog, fake: FakeRunner, arguments: list[str], reason: str
) -> None:
    ran = raftlog("chaos", "run", *arguments)
    assert ran.status == 2
    assert reason in ran.err
    assert fake.asked == []


def test_a_list_of_kinds_says_which_can_be_injected_here(raftlog: Raftlog) -> None:
    text = raftlog("chaos", "run", "--list", "--without-root").out.decode()
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert rows["kill"].endswith("  yes")
    assert "no: " in rows["power"]
    found = raftlog("chaos", "run", "--list", "--without-root", "--json").json
    assert {kind["name"] for kind in found} == rows.keys() - {"kind"}
    assert all(kind["told"] for kind in found)


def test_a_stored_history_is_judged_again(
    raftlog: Raftlog, history: Callable[..., Path], tmp_path: Path
) -> None:
    path = history()
    ran = raftlog("chaos", "check", path, "--report", tmp_path / "again")
    assert ran.status == 0, ran.out
    assert "verdict  VALID. " in ran.out.decode()
    assert (tmp_path / "again" / "report.html").stat().st_size > 10_000
    assert raftlog("chaos", "check", path, "--json").json["valid"] == "valid"
    every = raftlog("chaos", "check", path, "--all").out.decode()
    assert all(kind in every for kind in checker.KINDS)


def test_a_history_without_an_end_is_unknown(
    raftlog: Raftlog, history: Callable[..., Path]
) -> None:
    ran = raftlog("chaos", "check", history(without="Read"))
    assert ran.status == 3
    assert "verdict  UNKNOWN. " in ran.out.decode()


def test_a_line_that_cannot_be_read_is_named(raftlog: Raftlog, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    good = {"f": "note", "time": 1, "process": "p", "type": "info", "text": "hello"}
    bad = {"f": "append", "time": "noon", "process": "p", "type": "ok", "partition": "t:0"}
    path.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    ran = raftlog("chaos", "check", path, "--json")
    assert ran.status == 3
    told = " ".join(json.loads(ran.out)["troubles"])
    assert "line 2: Expected `int`, got `str` - at `$.time`" in told


def test_a_history_that_is_not_there_is_wrong_usage(raftlog: Raftlog) -> None:
    assert raftlog("chaos", "check", "/nowhere/history.jsonl").status == 2


def test_the_judge_is_tested_with_every_anomaly(raftlog: Raftlog) -> None:
    ran = raftlog("chaos", "selftest", "--seeds", 1)
    assert ran.status == 0, ran.out
    lines = ran.out.decode().splitlines()
    assert lines[0].split("  ")[0] == "put in"
    assert any(line.startswith("none ") and "1 of 1" in line for line in lines)
    assert lines[-1].endswith("checks of the judge: none failed")
    found = raftlog("chaos", "selftest", "--seeds", 1, "--json").json
    assert all(result["passed"] for result in found)
    assert len(found) == len(lines) - 3


def test_a_judge_that_misses_something_fails_its_test(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = selftest.Result("moved record", "MOVED", 3, missed=(2, 3))
    monkeypatch.setattr(selftest, "run", lambda seeds: (blind,))
    ran = raftlog("chaos", "selftest", "--seeds", 3)
    assert ran.status == 1
    assert "moved record  MOVED            1 of 3  MISSED in 2, 3" in ran.out.decode()
    assert ran.out.decode().endswith("1 failed\n")


def test_help_loads_nothing_of_the_harness() -> None:
    code = (
        "import sys; from cli.main import run; run(['chaos', 'run', '--help']); "
        "sys.exit(' '.join(m for m in sys.modules if m.startswith('jepsen_like')) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
