"""One run from beginning to end, and what can go wrong before there is anything to judge."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from raftlog.testing.checker.judge import judge, judge_file
from raftlog.testing.history.entries import AnyEntry, Append, Fault, Note, Phase, Poll, Start, read
from raftlog_jepsen import runner
from raftlog_jepsen.nemesis.driver import KINDS, expand, needs_of
from raftlog_jepsen.plan import WORKLOADS, WorkloadName
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.runner import (
    HISTORY,
    KILLS,
    LOSSY,
    MEMBER_KINDS,
    MEMBERSHIP_KINDS,
    MIXES,
    SUMMARY,
    VERDICT,
    CampaignOptions,
    ChaosError,
    Mix,
    Progress,
    Row,
    RunOptions,
    campaign,
    draw_plan,
    facts,
    needs,
    run,
    run_campaign,
    summarise,
    table,
)


def options(directory: Path, **others: Any) -> RunOptions:
    given = {
        "workload": "append",
        "nemeses": ("kill",),
        "time_s": 7.0,
        "seed": 4,
        "rate": 200.0,
        "without_root": True,
        **others,
    }
    return RunOptions(directory=directory, **given)


@pytest.mark.integration
def test_a_whole_run(tmp_path: Path) -> None:
    said: list[str] = []
    shown: list[Progress] = []
    directory = tmp_path / "run"
    outcome = run(options(directory, say=said.append, progress=shown.append))
    assert outcome.verdict.valid == "valid", outcome.verdict

    entries = list(read(directory / HISTORY))
    assert isinstance(entries[0], Start)
    assert entries[0].plan["seed"] == 4
    phases = [entry.name for entry in entries if isinstance(entry, Phase)]
    assert phases == ["setup", "load", "heal", "quiesce", "read", "dump", "end"]
    assert [text for text in said if text in phases] == phases
    faults = [entry for entry in entries if isinstance(entry, Fault)]
    assert {fault.kind for fault in faults} == {"kill"}
    assert sum(isinstance(entry, Append | Poll) for entry in entries) > 50

    summary = json.loads((directory / SUMMARY).read_bytes())
    assert summary["verdict"] == "valid"
    assert summary["injected"]["kill"] >= 1
    assert summary["effects"]["SIGKILLs of brokers"] >= 1
    assert 0 < shown[-1].acknowledged <= summary["acknowledged"]
    verdict = json.loads((directory / VERDICT).read_bytes())
    assert verdict["counts"] == dict(judge_file(directory / HISTORY).counts), "anybody may judge"
    assert outcome.report.read_text().startswith("<!")


@pytest.mark.integration
def test_a_cluster_that_does_not_start_is_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "source" / "raftlog").mkdir(parents=True)
    (tmp_path / "source" / "raftlog" / "__init__.py").write_text("raise SystemExit('too old')\n")
    with pytest.raises(ChaosError, match=r"did not start.*too old"):
        run(options(tmp_path / "run", source=tmp_path / "source"))
    assert not (tmp_path / "run" / VERDICT).exists()


def test_the_clients_thread_ends_though_a_client_waits_for_a_task_that_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a producer does that is closed after the tasks that deliver its records."""
    monkeypatch.setattr(runner, "CLOSE_SECONDS", 0.01)
    thread = runner._LoopThread()
    begun = asyncio.Event()

    async def client() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    thread.start(client())
    thread.wait(begun.wait())
    thread.close()
    assert not thread._thread.is_alive()


def test_kinds_say_what_a_cluster_is_made_with() -> None:
    assert needs(("kill",), with_root=True) == needs((), with_root=False)
    power = needs(("power",), with_root=True)
    assert power.loop_disks
    assert not power.namespaces
    everything = needs(KINDS, with_root=True)
    assert all(getattr(everything, name) for name in needs_of(KINDS))


@pytest.mark.parametrize("kind", ["partition", "one-way", "slow-link"])
def test_without_root_the_network_is_cut_in_relays(kind: str) -> None:
    assert needs((kind,), with_root=True).namespaces
    made = needs((kind,), with_root=False)
    assert made.relays
    assert not made.namespaces
    assert not needs(("power", "clock-bases"), with_root=False).loop_disks


def test_facts_have_all_versions() -> None:
    found = facts()
    assert {"raftlog", "pysyncobj", "python", "system", "processors"} == found.keys()
    assert all(found.values())


# -- campaign --------------------------------------------------------------------------------------
#
# A campaign makes runs in turn, each in a process of its own, and sums up what came of them.


CAMPAIGN_SUMMARY = {
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


def campaign_options(directory: Path) -> CampaignOptions:
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
    program = stand_in(tmp_path, max(status, 0), CAMPAIGN_SUMMARY)
    if status < 0:
        program.write_text(f"#!/bin/sh\nkill {status} $$\n")
    monkeypatch.setattr(runner.sys, "executable", str(program))
    made = campaign_options(tmp_path)
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
    assert row.summary == json.loads(json.dumps(CAMPAIGN_SUMMARY))


@pytest.mark.integration
def test_options_that_are_refused_end_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no such workload\nexit 2\n")
    program.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(program))
    with pytest.raises(ValueError, match="no such workload"):
        campaign(campaign_options(tmp_path))


def test_the_table_has_every_run_and_the_sums() -> None:
    rows = [
        Row(MIX, 2, "invalid", 3_600, {**CAMPAIGN_SUMMARY, "anomalies": {"LOST-tail": 2}}),
        Row(MIX, 1, "valid", 1_800, CAMPAIGN_SUMMARY),
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
    program = stand_in(tmp_path, 0, CAMPAIGN_SUMMARY)
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


# -- run options -----------------------------------------------------------------------------------
#
# From options to a plan: the same for the same, and refused with a sentence when senseless.


def run_options_options(**others: Any) -> RunOptions:
    given = {"workload": "append", "nemeses": ("kill",), "time_s": 30.0, "seed": 1, **others}
    return RunOptions(directory=Path("reports"), **given)


def test_the_same_options_draw_the_same_plan_and_another_seed_another() -> None:
    assert draw_plan(run_options_options()) == draw_plan(run_options_options())
    plans = {repr(draw_plan(run_options_options(seed=seed))) for seed in range(20)}
    assert len(plans) == 20


def test_the_plan_has_what_was_asked_for() -> None:
    plan = draw_plan(
        run_options_options(
            workload="replay", nemeses=("process",), pairs=True, rate=50.0, brokers=5, seed=9
        )
    )
    assert plan.workload.name == "replay"
    assert plan.nemeses == ("kill", "storm", "pause")
    assert (plan.pairs, plan.rate, plan.shape.brokers, plan.seed) == (True, 50.0, 5, 9)
    assert sum(producer.rate for producer in plan.workload.producers) < 3 * 50


def test_all_kinds_include_those_that_lose_data_and_no_change_of_the_membership() -> None:
    kinds = set(draw_plan(run_options_options(nemeses=("all",))).nemeses)
    assert kinds >= LOSSY
    assert kinds.isdisjoint(MEMBERSHIP_KINDS)


@pytest.mark.parametrize("kind", sorted(LOSSY))
def test_where_disks_are_lost_everything_has_copies(kind: str) -> None:
    assert kind in KINDS
    for seed in range(30):
        shape = draw_plan(run_options_options(nemeses=("kill", kind), seed=seed)).shape
        assert all(topic.replication_factor >= 3 and topic.min_isr >= 2 for topic in shape.topics)


def test_most_runs_and_not_all_have_topics_that_go_on_without_a_replica() -> None:
    shapes = [draw_plan(run_options_options(seed=seed)).shape for seed in range(60)]
    going_on = [
        all(topic.min_isr < topic.replication_factor for topic in shape.topics) for shape in shapes
    ]
    assert 60 > sum(going_on) > 40


@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"workload": "juggle"}, "'juggle'. Use append, replay, admin"),
        ({"nemeses": ("explode",)}, "'explode'"),
        ({"nemeses": ("membership", "wipe")}, "not together with faults that lose data"),
        ({"time_s": 1.0}, "5 s to"),
        ({"time_s": float("nan")}, "5 s to"),
        ({"brokers": 0}, "1 to 9"),
        ({"brokers": 10}, "1 to 9"),
        ({"nemeses": ("kill", "power"), "bootstrap": "10.0.0.1:9100"}, "power. Use kill"),
        ({"nemeses": ("wipe",), "brokers": 1}, "for three replicas"),
        ({"nemeses": ("kill", "member-pause")}, "member-pause needs consumer groups"),
    ],
)
def test_senseless_options_are_refused_with_a_sentence(
    others: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        draw_plan(run_options_options(**others))


def test_a_plan_is_plain_data() -> None:
    assert dataclasses.asdict(draw_plan(run_options_options()))["shape"]["brokers"] == 3


def test_members_are_harmed_where_there_are_some() -> None:
    assert MEMBER_KINDS.isdisjoint(draw_plan(run_options_options(nemeses=("all",))).nemeses)
    drawn = draw_plan(run_options_options(nemeses=("all",), workload="groups"))
    assert set(drawn.nemeses) >= MEMBER_KINDS
    members = draw_plan(run_options_options(nemeses=("members",), workload="groups"))
    assert set(members.nemeses) == MEMBER_KINDS


@pytest.mark.parametrize("workload", ["offsets", "groups"])
def test_the_topic_of_groups_is_as_safe_as_the_others(workload: WorkloadName) -> None:
    for seed in range(20):
        plan = draw_plan(
            run_options_options(workload=workload, seed=seed, nemeses=("wipe",), brokers=5)
        )
        settings = dict(plan.settings)
        assert int(settings["offsets.topic.num.partitions"]) == plan.shape.coordinators > 0
        factors = [topic.replication_factor for topic in plan.shape.topics]
        assert int(settings["offsets.topic.replication.factor"]) == max(factors)


def test_groups_and_keys_are_of_their_workloads() -> None:
    for name in WORKLOADS:
        plan = draw_plan(run_options_options(workload=name))
        assert bool(plan.workload.groups) == (name in {"offsets", "groups"})
        assert any(group.members for group in plan.workload.groups) == (name == "groups")
        assert all(bool(topic.keys) == (name == "compact") for topic in plan.shape.topics)
        assert bool(plan.shape.coordinators) == bool(plan.workload.groups)


def test_kafka_clients_have_the_same_plan_and_groups_of_both_protocols() -> None:
    seen = set()
    for seed in range(10):
        ours = draw_plan(run_options_options(workload="groups", seed=seed))
        kafkas = draw_plan(run_options_options(workload="groups", seed=seed, client="kafka"))
        assert (kafkas.client, kafkas.shape) == ("kafka", ours.shape)
        assert kafkas.workload.producers == ours.workload.producers
        session_ms = int(dict(kafkas.settings)["group.consumer.session.timeout.ms"])
        for group in kafkas.workload.groups:
            seen.add(group.protocol)
            assert group.protocol == "classic" or group.session_timeout_s * 1_000 == session_ms
    assert seen == {"classic", "consumer"}
    with pytest.raises(ValueError, match="unknown client"):
        draw_plan(run_options_options(client="pulsar"))


# -- summary ---------------------------------------------------------------------------------------
#
# A run in a few figures.


S = 1_000_000_000


def fault(number: int, kind: str, at: int, *targets: int, injected: bool = True) -> list[AnyEntry]:
    seen = {"pid": 1} if injected else {"why": "no root"}
    return [
        Fault(
            time=(at + later) * S,
            process="nemesis",
            type="info",
            id=number,
            kind=kind,
            phase="end" if later else "begin",
            targets=list(targets),
            effect=seen,
            injected=injected,
        )
        for later in (0, 1)
    ]


def test_it_counts_what_was_done_and_what_was_acknowledged() -> None:
    entries: list[AnyEntry] = [
        Phase(time=0, process="runner", type="info", name="load"),
        *fault(1, "power", 1, 1, 2, 3),
        *fault(2, "wipe", 3, 2, 3),
        *fault(3, "fds", 5, 1, injected=False),
        Append(time=6 * S, process="p", type="invoke", partition="a:0", first=1, count=5),
        Append(
            time=7 * S,
            process="p",
            type="ok",
            partition="a:0",
            first=1,
            count=5,
            offsets=[(1, 5, 0)],
        ),
        Phase(time=9 * S, process="runner", type="info", name="heal"),
        Note(time=9 * S, process="runner", type="info", text=f"{KILLS}: 7 (broker 1 7)"),
    ]
    summary = summarise(digest(entries), judge(entries))
    assert summary["acknowledged"] == 5
    assert summary["load_s"] == 9.0
    assert summary["injected"] == {"power": 1, "wipe": 1}
    assert summary["not_injected"] == {"fds": 1}
    assert summary["effects"] == {
        "SIGKILLs of brokers": 7,
        "disks wiped": 2,
        "power cuts of brokers": 3,
    }
    assert summary["verdict"] == "unknown"  # nothing was read at the end
    assert summary["troubles"]
