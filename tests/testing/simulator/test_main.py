"""The command: one line for a good seed, all that is needed to look closer for a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from raftlog.testing.checker.gather import NEVER
from raftlog.testing.checker.judge import Limits, judge_file
from raftlog.testing.simulator import __main__ as command
from raftlog.testing.simulator.history import Violation
from raftlog.testing.simulator.scenario import Scenario, Verdict

COMMAND = [sys.executable, "-W", "error", "-m", "raftlog.testing.simulator"]


def output_of(*arguments: str, hash_seed: str) -> str:
    """What it says, be it good or bad."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.integration
@pytest.mark.parametrize("brokers", ["1", "3"])
def test_a_seed_is_the_same_in_every_process(brokers: str) -> None:
    arguments = ("--seed", "3", "--count", "3", "--brokers", brokers, "--trace")
    first = output_of(*arguments, hash_seed="1")
    assert first == output_of(*arguments, hash_seed="2")
    assert "seed 5: " in first
    assert "of 3 seeds passed" in first


def test_a_good_seed_takes_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "6"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("seed 6: good ")
    assert "send ok" in line


def test_a_bad_seed_says_why_and_how_to_see_it_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bad(scenario: Scenario, **_: object) -> Verdict:
        return Verdict(scenario, violations=[Violation("LOST", f"t:0 {n}") for n in range(50)])

    monkeypatch.setattr(command, "run", bad)
    assert command.main(["--seed", "7", "--mode", "liveness", "--brokers", "3"]) == 1
    printed = capsys.readouterr().out
    assert "seed 7: BAD" in printed
    assert "LOST: t:0 0" in printed
    assert "violations: 50" in printed
    assert printed.count("LOST") == command.VIOLATIONS_SHOWN_MAX
    assert "--seed 7 --mode liveness --brokers 3 --trace" in printed
    assert command.main(["--seed", "7", "--compacted"]) == 1
    assert "--brokers 1 --compacted --trace" in capsys.readouterr().out
    assert command.main(["--seed", "7", "--brokers", "3", "--light"]) == 1
    assert "--seed 7 --mode safety --brokers 3 --light --trace" in capsys.readouterr().out


def test_the_history_is_one_of_the_common_format(tmp_path: Path) -> None:
    command.main(["--seed", "6", "--history", str(tmp_path / "history.jsonl")])
    verdict = judge_file(tmp_path / "history.jsonl", Limits(outage_max_ns=NEVER))
    assert (verdict.valid, verdict.troubles) == ("valid", ())
    assert verdict.stats["records_acknowledged"] > 0


def test_tracing_says_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    command.main(["--seed", "1", "--trace"])
    printed = capsys.readouterr().out
    assert "Scenario(seed=1" in printed
    assert "broker-1 is up" in printed
