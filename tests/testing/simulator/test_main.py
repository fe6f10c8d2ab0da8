"""The command: one line for a good seed, all that is needed to look closer for a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.errors import DataDirectoryError
from raftlog.server.cluster.fetcher import ReplicaFetcher
from raftlog.storage.disk_tasks import SyncTask
from raftlog.storage.log import Log
from raftlog.storage.producer_state import ProducerTable
from raftlog.testing.checker.gather import NEVER
from raftlog.testing.checker.judge import Limits, judge_file
from raftlog.testing.disk import SimFile
from raftlog.testing.simulator import __main__ as command
from raftlog.testing.simulator.faults import FaultPlan
from raftlog.testing.simulator.history import Violation
from raftlog.testing.simulator.scenario import Scenario, Verdict, run
from raftlog.testing.simulator.world import BrokerMachine, RunningBroker, start_broker

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


# -- scenario --------------------------------------------------------------------------------------
#
# Seeds: a good build is good, the same seed is the same run, and a broken build is caught.


SEEDS = range(2, 12)
BROKEN_WITHIN_SEEDS = 100
POWER_CUTS = FaultPlan(kinds=("power_cut", "power_cut_in_disk_operation", "slow_disk"), every_s=0.5)
CALM = FaultPlan(kinds=(), every_s=1.0)


def assert_good(verdict: Verdict) -> None:
    assert verdict.is_good, (verdict.scenario, verdict.violations[:10])


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_broker_keeps_its_promises(seed: int) -> None:
    verdict = run(Scenario.draw(seed))
    assert_good(verdict)
    assert verdict.operations["send ok"] > 0


@pytest.mark.parametrize("seed", range(4))
def test_a_single_broker_that_is_healed_works(seed: int) -> None:
    assert_good(run(Scenario.draw(seed, mode="liveness")))


def test_seeds_meet_faults_of_all_kinds_and_still_get_things_done() -> None:
    verdicts = [run(Scenario.draw(seed)) for seed in SEEDS]
    met = {kind for verdict in verdicts for kind in verdict.faults}
    assert len(met) >= 10
    ok = sum(verdict.operations.get("send ok", 0) for verdict in verdicts)
    sent = sum(n for v in verdicts for what, n in v.operations.items() if what.startswith("send "))
    assert ok > sent / 2


def test_the_same_seed_is_the_same_run() -> None:
    for seed in (3, 5, 8):
        first, again = run(Scenario.draw(seed)), run(Scenario.draw(seed))
        assert (first.digest, first.events) == (again.digest, again.events)
        assert first.operations == again.operations
    assert run(Scenario.draw(4)).digest != first.digest


def test_looking_on_changes_nothing() -> None:
    said: list[str] = []
    scenario = Scenario.draw(3)
    assert run(scenario, on_trace=said.append).digest == run(scenario).digest
    assert said


@pytest.mark.parametrize("last_words", ["stop", "kill", "power cut"])
def test_brokers_end_in_several_ways(last_words: str) -> None:
    assert_good(run(replace(Scenario.draw(2), last_words=last_words)))


def test_a_light_scenario_is_short() -> None:
    for seed in range(20):
        scenario = Scenario.draw(seed, brokers=3)
        light = Scenario.draw(seed, brokers=3, light=True)
        assert (light.faults, light.mode, light.light) == (scenario.faults, "safety", True)
        assert light.duration_s <= 4.0
        after_s = light.workload.recreates_after_s
        # Deleted after the same share of the time, which is shorter.
        share = scenario.workload.recreates_after_s / scenario.duration_s
        assert after_s / light.duration_s == pytest.approx(share)
        assert light.workload == replace(scenario.workload.lightened(), recreates_after_s=after_s)


def test_a_core_may_be_written_to_and_replaces_what_is_gone_in_time() -> None:
    drawn = [Scenario.draw(seed, mode="liveness", brokers=3) for seed in range(30)]
    assert {scenario.replacement_ms for scenario in drawn} == {1_000, 5_000}
    assert not any("min.insync.replicas" in s.workload.topic_config for s in drawn)
    drawn = [Scenario.draw(seed, brokers=5) for seed in range(30)]
    assert {scenario.replacement_ms for scenario in drawn} == {1_000, 5_000, 600_000}
    sound = [s.workload for s in drawn if not s.faults.harmed]
    assert {w.topic_config.get("min.insync.replicas") for w in sound} == {None, "2"}
    # Where stored bytes are harmed, one copy of all that is acknowledged stays good.
    harmed = [s.workload for s in drawn if s.faults.harmed]
    assert harmed
    assert all(w.topic_config["min.insync.replicas"] == str(w.replication_factor) for w in harmed)


def test_what_is_never_copied_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaFetcher, "_run", lambda _self: None)
    scenario = replace(Scenario.draw(1, brokers=3, duration_s=3.0), faults=CALM)
    # No leadership is transferred: a leader that lacks records can tell no reader where they end.
    scenario = replace(scenario, workload=replace(scenario.workload, administrates=0.0))
    (violation,) = run(scenario).violations
    assert violation.kind == "STUCK"
    assert "replicas do not converge" in violation.message


def test_three_brokers_are_a_cluster() -> None:
    scenario = replace(Scenario.draw(1, brokers=3, duration_s=3.0), faults=CALM)
    verdict = run(scenario)
    assert_good(verdict)
    assert verdict.operations["send ok"] > 0
    factors = [Scenario.draw(seed, brokers=3).workload.replication_factor for seed in range(50)]
    assert factors.count(2) > factors.count(3) > 0


def test_a_broker_may_start_late_or_be_left_out_at_first() -> None:
    scenario = replace(Scenario.draw(1, brokers=3, duration_s=3.0), faults=CALM)
    few = replace(scenario, workload=replace(scenario.workload, replication_factor=2))
    assert_good(run(replace(few, absent=1)))
    assert_good(run(replace(few, absent=3, is_left_out=True)))
    drawn = [Scenario.draw(seed, brokers=3) for seed in range(60)]
    assert {(bool(each.absent), each.is_left_out) for each in drawn} == {
        (False, False),
        (True, False),
        (True, True),
    }


def test_a_replica_that_is_added_while_brokers_stop_need_not_be_complete() -> None:
    """One broker took seconds to stop, and a witness took its place."""
    assert_good(run(Scenario.draw(9811375, brokers=3, light=True, kafka=False)))


# -- broken builds ---------------------------------------------------------------------------------


def kinds_found(faults: FaultPlan | None, wanted: str) -> int | None:
    """The first seed that finds an anomaly of that kind; None when none does."""
    for seed in range(BROKEN_WITHIN_SEEDS):
        scenario = Scenario.draw(seed, duration_s=4.0)
        if faults is not None:
            scenario = replace(scenario, faults=faults)
        if any(violation.kind.startswith(wanted) for violation in run(scenario).violations):
            return seed
    return None


def test_a_disk_that_does_not_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    sync = SimFile.sync

    def sync_all_but_segments(self: SimFile) -> None:
        if not self.path.endswith(".log"):
            sync(self)

    monkeypatch.setattr(SimFile, "sync", sync_all_but_segments)
    assert kinds_found(POWER_CUTS, "LOST") is not None


def test_acknowledging_what_the_sync_did_not_cover_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    complete_sync = Log.complete_sync

    def complete_all(self: Log, task: SyncTask) -> None:
        complete_sync(self, task)
        self.durable_end_offset = self.log_end_offset

    monkeypatch.setattr(Log, "complete_sync", complete_all)
    assert kinds_found(POWER_CUTS, "LOST") is not None


def test_storing_a_retried_batch_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProducerTable, "check", lambda *_: None)
    assert kinds_found(None, "DUPLICATE") is not None


# -- what is no wrong answer, and wrong all the same -----------------------------------------------


class Boots:
    """Starts brokers so many times, and refuses from then on."""

    def __init__(self, times: int) -> None:
        self.left = times

    async def __call__(self, machine: BrokerMachine) -> RunningBroker:
        self.left -= 1
        if self.left < 0:
            raise DataDirectoryError("not again")
        return await start_broker(machine)


KILL_ONCE = FaultPlan(kinds=("kill",), every_s=0.5)


def test_a_broker_that_does_not_come_back_is_caught_and_the_log_judged_nevertheless() -> None:
    scenario = replace(Scenario.draw(1), faults=KILL_ONCE)
    verdict = run(scenario, make_broker=Boots(1))
    assert [violation.kind for violation in verdict.violations] == ["STUCK"]
    assert "broker-1" in verdict.violations[0].message


def test_a_healed_core_that_does_not_work_is_caught() -> None:
    scenario = replace(Scenario.draw(1, mode="liveness"), faults=KILL_ONCE)
    verdict = run(scenario, make_broker=Boots(1))
    assert verdict.violations[0].kind == "UNAVAILABLE"


def test_an_exception_in_a_broker_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(Log, "complete_sync", fails)
    (violation,) = run(replace(Scenario.draw(1), faults=CALM)).violations
    assert violation.kind == "CRASH"
    assert "a mistake" in violation.message


def test_leaders_and_min_isr_change_under_clients() -> None:
    drawn = Scenario.draw(4, brokers=3)
    workload = replace(drawn.workload, administrates=10.0, alters_min_isr=True, deletes=True)
    faults = FaultPlan(kinds=(), every_s=1)
    verdict = run(replace(drawn, duration_s=8.0, faults=faults, workload=workload))
    assert verdict.is_good, verdict.violations
    done = {what.removesuffix(" ok") for what in verdict.operations if what.endswith(" ok")}
    assert done >= {"transfer", "alter_min_isr", "delete_records", "deletion"}
