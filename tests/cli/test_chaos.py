"""Tests of ``raftlog chaos``."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pytest

from raftlog.errors import UnknownTopicError
from raftlog.testing.checker import judge
from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Anomaly, Valid, Verdict
from raftlog.testing.history import Recorder
from raftlog_cli import chaos as chaos_module
from raftlog_cli.chaos import STATUSES, NothingKnownError, Rate
from raftlog_jepsen import runner
from raftlog_jepsen.control import namespaces
from raftlog_jepsen.runner import (
    CampaignOptions,
    ChaosError,
    Mix,
    Outcome,
    Progress,
    Row,
    RunOptions,
    draw_plan,
)
from tests.cli.conftest import Raftlog
from tests.testing.checker import synthetic


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
    monkeypatch.setattr(namespaces, "is_inside", lambda: True)
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
        "seed 5, all files are in chaos-5",
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


@pytest.mark.integration  # what the machine has is found by trying it
def test_a_list_of_kinds_says_which_can_be_injected_here(raftlog: Raftlog) -> None:
    text = raftlog("chaos", "run", "--list", "--without-root").out.decode()
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert rows["kill"].endswith("  yes")
    assert "no: " in rows["power"]
    found = raftlog("chaos", "run", "--list", "--without-root", "--json").json
    assert {kind["name"] for kind in found} == rows.keys() - {"kind"}
    assert all(kind["description"] for kind in found)


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
    noted = " ".join(json.loads(ran.out)["troubles"])
    assert "line 2: Expected `int`, got `str` - at `$.time`" in noted


def test_a_history_that_is_not_there_is_wrong_usage(raftlog: Raftlog) -> None:
    assert raftlog("chaos", "check", "/nowhere/history.jsonl").status == 2


@pytest.mark.nightly
def test_the_judge_is_tested_with_every_anomaly(raftlog: Raftlog) -> None:
    ran = raftlog("chaos", "selftest")
    assert ran.status == 0, ran.out
    lines = ran.out.decode().splitlines()
    assert lines[0].split() == ["history", "expected", "found"]
    assert lines[-1].endswith("checked; wrong verdicts: none")
    found = raftlog("chaos", "selftest", "--json").json
    assert all(result["passed"] for result in found)
    assert len(found) == len(lines) - 3


def test_a_judge_that_misses_something_fails_its_test(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = judge.Result("moved record", "MOVED", passed=False)
    monkeypatch.setattr(judge, "run", lambda: (blind,))
    ran = raftlog("chaos", "selftest")
    assert ran.status == 1
    assert "moved record  MOVED     NO" in ran.out.decode()
    assert ran.out.decode().endswith("wrong verdicts: 1\n")


@pytest.mark.integration
def test_help_loads_nothing_of_the_harness() -> None:
    code = (
        "import sys; from raftlog_cli.main import run; run(['chaos', 'run', '--help']); "
        "sys.exit(' '.join(m for m in sys.modules if m.startswith('raftlog_jepsen')) or 0)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


# -- chaos campaign --------------------------------------------------------------------------------


MIX = Mix(name="kill", nemeses=("kill",))


class Fake:
    """Takes the place of the campaign."""

    def __init__(self, *verdicts: str) -> None:
        self.asked: list[CampaignOptions] = []
        self._rows = [
            Row(MIX, seed, verdict, 9.0, {"acknowledged": 50, "injected": {"kill": 2}})
            for seed, verdict in enumerate(verdicts, start=1)
        ]

    def __call__(self, options: CampaignOptions) -> list[Row]:
        self.asked.append(options)
        options.say("1 kill: valid")
        return self._rows


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Kinds that cannot be injected on this machine."""
    kinds: dict[str, str] = {}
    monkeypatch.setattr(runner, "kinds_missing_here", lambda: kinds)
    return kinds


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (("valid", "valid"), 0),
        (("valid", "invalid", "unknown"), 1),
        (("valid", "unknown"), 3),
        (("valid", "it hung"), 3),
        ((), 3),
    ],
)
def test_the_worst_run_decides(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, verdicts: tuple[str, ...], status: int
) -> None:
    monkeypatch.setattr(runner, "campaign", Fake(*verdicts))
    ran = raftlog("chaos", "campaign")
    assert ran.status == status
    assert f"{len(verdicts)} runs, {verdicts.count('valid')} valid" in ran.out.decode()


def test_mixes_that_the_machine_cannot_run_are_left_out(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, missing: dict[str, str]
) -> None:
    missing["clock-jump"] = "no libfaketimeMT.so.1"
    fake = Fake("valid")
    monkeypatch.setattr(runner, "campaign", fake)
    ran = raftlog("chaos", "campaign")
    names = {mix.name for mix in fake.asked[0].mixes}
    assert names == {mix.name for mix in runner.MIXES} - {
        *("clocks", "everything", "everything with groups")
    }
    assert "the mix 'clocks' is left out. clock-jump: no libfaketimeMT.so.1" in ran.err
    assert raftlog("chaos", "campaign", "--mix", "clocks").status == 3


@pytest.mark.usefixtures("missing")
def test_options_are_passed_on(
    raftlog: Raftlog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = Fake("valid")
    monkeypatch.setattr(runner, "campaign", fake)
    words = "--time 60 --run-time 20 --jobs 3 --seed 7 --mix member --secure --client kafka --json"
    ran = raftlog("chaos", "campaign", *words.split(), "--report", str(tmp_path / "here"))
    (asked,) = fake.asked
    assert (asked.time_s, asked.run_s, asked.jobs, asked.seed) == (60, 20, 3, 7)
    assert asked.directory == tmp_path / "here"
    assert {mix.name for mix in asked.mixes} >= {"membership", "members and brokers"}
    assert all("member" in mix.name for mix in asked.mixes)
    assert all({"--client", "kafka", "--secure"} <= {*mix.arguments()} for mix in asked.mixes)
    (row,) = json.loads(ran.out)
    assert row["verdict"] == "valid"
    assert row["arguments"][:4] == ["--workload", "append", "--nemesis", "kill"]
    assert row["acknowledged"] == 50


def test_a_mix_without_a_match_is_refused(raftlog: Raftlog) -> None:
    ran = raftlog("chaos", "campaign", "--mix", "membershop")
    assert ran.status == 2
    assert "no mix has 'membershop' in its name" in ran.err
    assert "membership and faults" in ran.err


# -- chaos options ---------------------------------------------------------------------------------


def checked(**changed: Any) -> RunOptions:
    asked: dict[str, Any] = {
        "workload": "append",
        "nemeses": "kill",
        "time_s": 60.0,
        "seed": 1,
        "directory": None,
        "brokers": 3,
        "rate": None,
        "pairs": False,
        "bootstrap": None,
        "control": None,
        "source": None,
        "without_root": False,
    }
    return chaos_module.checked(**{**asked, **changed})


def test_without_a_seed_one_is_drawn_that_can_be_repeated() -> None:
    seeds = {checked(seed=None).seed for _ in range(20)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**chaos_module.SEED_BITS for seed in seeds)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [("kill", ("kill",)), (" kill , pause,", ("kill", "pause")), ("none", ()), ("", ())],
)
def test_kinds_are_named_with_commas(text: str, kinds: tuple[str, ...]) -> None:
    assert checked(nemeses=text).nemeses == kinds


def test_a_directory_of_its_own_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert checked().directory == Path("chaos-1")
    (tmp_path / "chaos-1").mkdir()
    (tmp_path / "chaos-1-2").mkdir()
    assert checked().directory == Path("chaos-1-3")


def test_a_directory_in_use_is_refused_and_an_empty_one_is_not(tmp_path: Path) -> None:
    assert checked(directory=tmp_path).directory == tmp_path
    (tmp_path / "history.jsonl").touch()
    with pytest.raises(click.BadParameter, match="is not empty"):
        checked(directory=tmp_path)


def test_kafka_clients_may_be_secured() -> None:
    made = checked(client="kafka", secure=True)
    assert (made.client, made.secure) == ("kafka", True)


def test_another_s_cluster_may_have_a_script() -> None:
    made = checked(bootstrap="a:1,b:2", control=Path("/c"))
    assert (made.bootstrap, made.control) == ("a:1,b:2", Path("/c"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"control": Path("/c")},
        {"bootstrap": "a:1", "source": Path("/s")},
        {"nemeses": "meteorite"},
        {"time_s": 0.0},
    ],
)
def test_what_makes_no_sense_is_wrong_usage(wrong: dict[str, Any]) -> None:
    with pytest.raises(click.UsageError):
        checked(**wrong)


class EnteredError(Exception):
    """The process would have become another one."""


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    calls: list[list[str]] = []

    def enter(command: list[str]) -> None:
        calls.append(command)
        raise EnteredError

    monkeypatch.setattr(namespaces, "enter", enter)
    monkeypatch.setattr(namespaces, "is_inside", lambda: False)
    monkeypatch.setattr(namespaces, "why_no_sandbox", lambda: "")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/raftlog", "chaos", "run", "--time", "9"])
    return calls


def test_the_same_command_runs_in_the_sandbox(entered: list[list[str]]) -> None:
    with pytest.raises(EnteredError):
        chaos_module.enter_sandbox()
    assert entered == [[sys.executable, "-m", "raftlog", "chaos", "run", "--time", "9"]]


def test_inside_it_goes_on(entered: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespaces, "is_inside", lambda: True)
    assert chaos_module.enter_sandbox() == ""
    assert entered == []


def test_where_there_is_none_the_reason_is_told(
    entered: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespaces, "why_no_sandbox", lambda: "it needs root")
    assert chaos_module.enter_sandbox() == "it needs root"
    assert entered == []


# -- chaos output ----------------------------------------------------------------------------------


def test_the_rate_is_that_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.at(0.0, 0) == 0.0
    assert rate.at(1.0, 1_000) == 1_000.0
    for half in range(3, 9):
        rate.at(half / 2, 1_000)
    assert rate.at(5.0, 1_000) == 0.0
    assert rate.at(6.0, 3_000) == pytest.approx(1_000.0, rel=0.01)


@pytest.mark.parametrize("error", [UnknownTopicError("t"), OSError(28, "No space left", "/d")])
def test_errors_of_the_world_are_unknown(error: Exception) -> None:
    with pytest.raises(NothingKnownError) as caught, chaos_module.failing_as_unknown():
        raise error
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    "error",
    [click.UsageError("no"), click.exceptions.Exit(0), BrokenPipeError(), KeyboardInterrupt()],
)
def test_what_others_deal_with_passes(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, chaos_module.failing_as_unknown():
        raise error
    assert caught.value is error


def test_complaints_of_clients_go_to_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "clients.log"
    logger = logging.getLogger("raftlog.client.sender")
    before = logging.getLogger("raftlog").handlers[:]
    with chaos_module.clients_log(path):
        logger.warning("broker %d is silent", 2)
    assert "WARNING raftlog.client.sender broker 2 is silent" in path.read_text()
    assert capsys.readouterr().err == ""
    assert logging.getLogger("raftlog").handlers == before
    assert logging.getLogger("raftlog").propagate


def test_on_a_terminal_one_line_lives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with chaos_module.watching(quiet=False) as (say, show):
        assert show is not None
        say("[load] begins")
        show(Progress("load", 2.0, 60.0, 5_000, 3, ("kill",)))
    noted = capsys.readouterr().err
    assert "[load] begins" in noted


def test_elsewhere_there_are_lines_and_when_quiet_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with chaos_module.watching(quiet=False) as (say, show):
        say("load")
    assert (show, capsys.readouterr().err) == (None, "load\n")
    with chaos_module.watching(quiet=True) as (say, show):
        say("load")
    assert (show, capsys.readouterr().err) == (None, "")
