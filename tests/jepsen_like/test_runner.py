"""One run from beginning to end, and what can go wrong before there is anything to judge."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import raftlog
from raftlog.aio import AsyncProducer
from raftlog.config import Address
from raftlog.protocol.cluster import BrokerStatus, DescribeClusterResponse, ReplicaStatus
from raftlog.protocol.cluster import PartitionStatus as WireStatus
from raftlog.protocol.records import (
    DescribeTopicsResponse,
    PartitionDescription,
    PartitionInfo,
    TopicDescription,
)
from raftlog.testing import Cluster, cluster
from raftlog.testing import history as keys
from raftlog.testing import history as values
from raftlog.testing.checker.judge import judge, judge_file
from raftlog.testing.cluster import wait_until
from raftlog.testing.history import (
    AnyEntry,
    Append,
    Dump,
    Fault,
    Note,
    Phase,
    Poll,
    Read,
    Recorder,
    Seen,
    Start,
    read,
)
from raftlog.types import TopicPartition
from raftlog_jepsen import final, runner, status
from raftlog_jepsen.final import _Reader, dump_replicas, final_reads
from raftlog_jepsen.nemesis.driver import KINDS, expand, needs_of
from raftlog_jepsen.plan import TRANSACTIONAL, WORKLOADS, WorkloadName, WorkloadShape
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
from raftlog_jepsen.status import Answers, Asking, PartitionStatus, lacking, missing, until_nothing
from raftlog_jepsen.workload.base import WorkloadContext, create_topics
from tests.jepsen_like.arena import TOPICS, context_of, plan


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


@pytest.mark.integration
def test_ctrl_c_ends_the_runs_and_starts_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, notes = tmp_path / "program", tmp_path / "notes"
    program.write_text(
        f"#!/bin/sh\ntrap 'echo ended >> {notes}; exit 143' TERM\n"
        f"echo started >> {notes}\nwhile :; do sleep 0.01; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(runner.sys, "executable", str(program))

    def interrupt() -> None:
        wait_until(notes.exists, what="a run has started")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    user = threading.Thread(target=interrupt)
    user.start()
    with pytest.raises(KeyboardInterrupt):
        campaign(campaign_options(tmp_path))
    user.join()
    assert notes.read_text().split() == ["started", "ended"]


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


def test_replicas_fit_on_machines_of_workers() -> None:
    for seed in range(30):
        shape = draw_plan(run_options_options(brokers=3, workers=3, seed=seed)).shape
        assert shape.machines == ((1, 2, 3), (4, 5, 6), (7, 8, 9))
        assert max(topic.replication_factor for topic in shape.topics) <= 3


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
        ({"workers": 0}, "1 to 3"),
        ({"brokers": 9, "workers": 2}, "more than 15 brokers"),
        ({"nemeses": ("wipe",), "brokers": 2, "workers": 2}, "for three replicas: 2"),
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
        is_coordinated = bool(plan.workload.groups) or name in TRANSACTIONAL
        assert bool(plan.shape.coordinators) == is_coordinated
        partitions = dict(plan.settings).get("transaction.state.log.num.partitions", "0")
        assert int(partitions) == plan.shape.coordinators


@pytest.mark.parametrize("workload", sorted(TRANSACTIONAL))
def test_transactions_are_those_of_raftlog_s_clients(workload: WorkloadName) -> None:
    with pytest.raises(ValueError, match="needs --client raftlog"):
        draw_plan(run_options_options(workload=workload, client="kafka"))


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


# -- final -----------------------------------------------------------------------------------------
#
# The end as readers and as files have it, and that what is missing there is told.


ZERO = TopicPartition("t", 0)
COUNT = 200


def fill(directory: Path, *, first: int = 1, count: int = COUNT, name: str = "t") -> None:
    """A directory as a broker's, with values in batches of ten."""
    with raftlog.open(directory) as log:
        log.create_topic(name, config={"segment.bytes": "16384"}, if_not_exists=True)
        with log.producer(linger_ms=0) as producer:
            for start in range(first, first + count, 10):
                records = [values.encode_value(value, 500) for value in range(start, start + 10)]
                producer.send_many(name, records).result()


def dump(directory: Path, *data: Path, isr: set[int] | None = None) -> list[AnyEntry]:
    counter = itertools.count()
    recorder = Recorder(directory / "history.jsonl", lambda: next(counter))
    hosts = dict(enumerate(data, start=1))
    dump_replicas(recorder, hosts, {ZERO: {1} if isr is None else isr})
    recorder.close()
    return list(read(recorder.path))


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("topics/t/*/0/*.log"))


def records(entries: list[AnyEntry]) -> list[Seen]:
    return [seen for entry in entries if isinstance(entry, Dump | Read) for seen in entry.records]


# -- files -----------------------------------------------------------------------------------------


def test_a_dump_has_all_that_the_files_have(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    assert len(segments(tmp_path / "data")) > 2
    (found,) = dump(tmp_path, tmp_path / "data")
    assert isinstance(found, Dump)
    assert (found.broker, found.partition, found.start, found.end) == (1, "t:0", 0, COUNT)
    assert found.records == [(0, COUNT, 1, 1)]
    assert (found.should_be_whole, found.problem) == (True, "")
    assert len(found.chain) == 16


def test_a_long_dump_comes_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(final, "RUNS_MAX", 2)
    for first in (1, 100, 900, 300, 700):
        fill(tmp_path / "data", first=first, count=10)
    found = dump(tmp_path, tmp_path / "data")
    assert len(found) == 3
    assert len({entry.chain for entry in found if isinstance(entry, Dump)}) == 1
    assert [seen[2] for seen in records(found)] == [1, 100, 900, 300, 700]


def test_keys_and_tombstones_are_dumped_as_what_they_were_sent_for(tmp_path: Path) -> None:
    sent = range(1, 40)
    assert any(map(keys.is_tombstone, sent))
    with raftlog.open(tmp_path / "data") as log:
        log.create_topic("t", config={"cleanup.policy": "compact"})
        with log.producer(linger_ms=0) as producer:
            for value in sent:
                key, record, headers = keys.encode(value, 10, 7)
                producer.send("t", record, key, headers).result()
    assert records(dump(tmp_path, tmp_path / "data")) == [(0, 39, 1, 1)]


def test_what_brokers_keep_for_themselves_is_only_looked_at(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(final, "is_internal", lambda topic: topic == "t")
        (found,) = dump(tmp_path, tmp_path / "data")
    assert isinstance(found, Dump)
    assert (found.end, found.records, len(found.chain)) == (COUNT, [], 16)


def test_what_was_deleted_is_not_dumped(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    fill(tmp_path / "data", name="other", count=10)
    with raftlog.open(tmp_path / "data") as log, log.admin() as admin:
        admin.delete_records({ZERO: 155})
        admin.delete_topics(["other"])
    (found,) = dump(tmp_path, tmp_path / "data")
    assert isinstance(found, Dump)
    assert (found.start, found.end) == (155, COUNT)
    assert found.records == [(155, COUNT - 155, 156, 1)]


def test_damage_is_told_and_the_rest_is_dumped(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    second = segments(tmp_path / "data")[1]
    damaged = bytearray(second.read_bytes())
    damaged[-100] ^= 1
    second.write_bytes(damaged)
    (found,) = dump(tmp_path, tmp_path / "data")
    assert isinstance(found, Dump)
    assert found.problem
    assert 0 < sum(seen[1] for seen in found.records) < COUNT
    assert found.end == COUNT


def test_a_torn_end_is_no_damage(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    with segments(tmp_path / "data")[-1].open("ab") as file:
        file.write(b"RL half of a batch")
    note, found = dump(tmp_path, tmp_path / "data")
    assert isinstance(note, Note)
    assert not note.is_trouble
    assert isinstance(found, Dump)
    assert (found.problem, found.end) == ("", COUNT)


def test_a_replica_whose_files_are_gone_has_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    for path in segments(tmp_path / "data")[0].parent.iterdir():
        path.unlink()
    (found,) = dump(tmp_path, tmp_path / "data", isr=set())
    assert isinstance(found, Dump)
    assert (found.start, found.end, found.records) == (0, 0, [])
    assert not found.should_be_whole


def test_an_empty_directory_has_no_replica_and_a_bad_catalog_is_trouble(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    (tmp_path / "data" / "catalog").write_bytes(b"00000000 {}\n")
    (note,) = dump(tmp_path, tmp_path / "data", tmp_path / "empty")
    assert isinstance(note, Note)
    assert note.is_trouble
    assert "catalog" in note.text


# -- readers ---------------------------------------------------------------------------------------


@pytest.mark.integration
def test_a_topic_that_came_and_went_is_not_waited_for(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history.jsonl", time.monotonic_ns)
    workload = WorkloadShape(name="admin", producers=(), consumers=())
    with cluster(1) as running:
        context = context_of(plan(workload, TOPICS[1]), recorder, running)

        async def main() -> bool:
            await create_topics(context, TOPICS[1:])
            partitions = [*context.targets, TopicPartition("side-1", 0)]
            return await final_reads(context, partitions, timeout_s=30.0)

        assert asyncio.run(main())
    recorder.close()
    reads = [entry for entry in read(recorder.path) if isinstance(entry, Read)]
    assert [(entry.partition, entry.start, entry.end) for entry in reads] == [("one:0", 0, 0)] * 3


async def final_context(
    recorder: Recorder, running: Cluster, acked_beyond: int
) -> tuple[WorkloadContext, bool]:
    """A topic of ``COUNT`` records, of which ``acked_beyond`` more are said to have been there."""
    workload = WorkloadShape(name="append", producers=(), consumers=())
    context = context_of(plan(workload, TOPICS[1]), recorder, running)
    await create_topics(context, TOPICS[1:])
    async with AsyncProducer(running.bootstrap) as producer:
        group = [values.encode_value(value, 50) for value in range(1, COUNT + 1)]
        await (await producer.send_many("one", group))
    context.clients.acked["one:0"] = COUNT + acked_beyond
    is_whole = await final_reads(context, context.targets, timeout_s=3.0 if acked_beyond else 30.0)
    return context, is_whole


@pytest.mark.integration
@pytest.mark.parametrize("acked_beyond", [0, 3])
def test_three_readers_read_everything_and_tell_what_is_missing(
    tmp_path: Path, acked_beyond: int
) -> None:
    recorder = Recorder(tmp_path / "history.jsonl", time.monotonic_ns)
    with cluster(1) as running:
        _, is_whole = asyncio.run(final_context(recorder, running, acked_beyond))
    recorder.close()
    entries = list(read(recorder.path))
    assert is_whole == (acked_beyond == 0)
    reads = [entry for entry in entries if isinstance(entry, Read)]
    assert {entry.process for entry in reads} == {"reader-1", "reader-2", "reader-3"}
    for entry in reads:
        assert (entry.start, entry.end) == (0, COUNT)
        assert [seen[:3] for seen in entry.records] == [(0, COUNT, 1)]
    notes = [entry for entry in entries if isinstance(entry, Note)]
    assert len(notes) == (3 if acked_beyond else 0)
    for note in notes:
        assert note.is_trouble
        assert note.text.startswith("STUCK: reader-")
        assert "one:0" in note.text


@pytest.mark.integration
def test_a_reader_that_takes_long_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final, "SLOW_S", -1.0)
    monkeypatch.setattr(final, "SLOWER", 0)
    recorder = Recorder(tmp_path / "history.jsonl", time.monotonic_ns)
    with cluster(1) as running:
        assert asyncio.run(final_context(recorder, running, 0))[1]
    recorder.close()
    notes = [entry for entry in read(recorder.path) if isinstance(entry, Note)]
    assert [note.is_trouble for note in notes] == [True] * 3
    assert "reader-3 took 0 s, from replicas, to catch up" in notes[2].text


def test_an_end_below_that_of_another_reader_is_read_again() -> None:
    """A request that a closed producer has left in a connection is appended between the two."""
    one, recorded = TopicPartition("one", 0), list[AnyEntry]()
    context = SimpleNamespace(
        clients=SimpleNamespace(acked={}),
        plan=SimpleNamespace(shape=SimpleNamespace(topics=TOPICS)),
        recorder=SimpleNamespace(record=recorded.append),
    )
    farthest = {one: 5}
    reader = _Reader(cast(WorkloadContext, context), "reader-1", "leader", 1, {one}, farthest)
    reader.starts, reader.found = {one: 0}, {one: []}
    for end in (3, 5):
        reader.ends = reader.positions = {one: end}
        assert not reader._take_whole()
        assert len(recorded) == (end == 5)
    assert not reader.left


# -- status ----------------------------------------------------------------------------------------
#
# What brokers say is put together: the newest word counts, and who is silent holds nothing up.


NAME = TopicPartition("t", 0)
IDS = (1, 2, 3)


def said(
    leader: int | None = 1,
    epoch: int = 5,
    isr: tuple[int, ...] = IDS,
    ends: dict[int, int] | None = None,
    **rest: Any,
) -> WireStatus:
    """One broker's word on partition t:0. ``ends``: what a leader knows of replicas' logs."""
    return WireStatus(
        **{
            "topic": "t",
            "topic_id": "id-1",
            "partition": 0,
            "leader": leader,
            "leader_epoch": epoch,
            "replicas": list(IDS),
            "isr": list(isr),
            "witnesses": [4, 5],
            "elr": [],
            "min_isr": 2,
            "replica_status": [
                ReplicaStatus(broker=broker, log_end_offset=end)
                for broker, end in (ends or {}).items()
            ],
            **rest,
        }
    )


def broker(broker_id: int, **rest: Any) -> BrokerStatus:
    facts = {"directory_id": "", "broker_epoch": 1, "fenced": False, "live": True, **rest}
    return BrokerStatus(id=broker_id, host="h", port=1, **facts)


def answer(*parts: WireStatus, controller: int | None = 1, **out: Any) -> DescribeClusterResponse:
    """``out``: what is wrong with broker 3, if anything."""
    brokers = [broker(1), broker(2), broker(3, **out)]
    return DescribeClusterResponse(
        cluster_id="c", controller=controller, brokers=brokers, partitions=list(parts)
    )


def log(end: int, *, epoch: int = 5, topic_id: str = "id-1", damage: str = "") -> Any:
    info = PartitionInfo(
        partition=0, leader=1, leader_epoch=epoch, replicas=list(IDS), isr=list(IDS)
    )
    part = PartitionDescription(info=info, log_end_offset=end, damage=damage)
    topic = TopicDescription(name="t", id=topic_id, partitions=[part])
    return DescribeTopicsResponse(topics=[topic])


def merged(
    clusters: dict[int, DescribeClusterResponse],
    logs: dict[int, DescribeTopicsResponse] | None = None,
) -> PartitionStatus:
    (part,) = Answers(clusters, logs or {}).status().values()
    return part


def test_all_agree() -> None:
    leading = answer(said(ends={1: 7, 2: 3}, high_watermark=6))
    part = merged(
        {1: leading, 2: answer(said()), 3: answer(said())}, {1: log(7), 2: log(9), 3: log(7)}
    )
    assert part == PartitionStatus(
        topic="t",
        partition=0,
        leader=1,
        leader_epoch=5,
        replicas=IDS,
        isr=frozenset(IDS),
        witnesses=(4, 5),
        high_watermark=6,
        topic_id="id-1",
        min_isr=2,
        log_end_offset=7,
        agreed=frozenset(IDS),
        caught_up=frozenset(IDS),
    )
    assert part.is_whole
    assert part.name == NAME
    assert part.voters == {1, 2, 3, 4, 5}


def test_the_newest_leader_epoch_counts() -> None:
    old = answer(said(leader=1, epoch=5, ends={1: 100}, high_watermark=90))
    new = answer(said(leader=2, epoch=6, isr=(2, 3), ends={2: 10}, high_watermark=10))
    part = merged({1: old, 2: new, 3: old}, {1: log(100), 2: log(10, epoch=6), 3: log(10, epoch=6)})
    assert (part.leader, part.isr, part.log_end_offset) == (2, {2, 3}, 10)
    assert part.agreed == {2}
    assert part.caught_up == {2, 3}  # by what 3 says of its own log, a moment later


def test_of_one_epoch_its_leader_knows_best() -> None:
    leading = answer(said(isr=(1, 2), ends={1: 4}))
    part = merged({2: answer(said()), 1: leading, 3: answer(said(isr=(1, 2)))})
    assert part.isr == {1, 2}
    assert part.agreed == {1, 3}


@pytest.mark.parametrize(
    ("own", "is_caught_up"),
    [
        (log(7), True),
        (log(6), False),
        (log(8, epoch=4), False),
        (log(8, topic_id="id-0"), False),
        (log(8, damage="segment 0"), False),
        (DescribeTopicsResponse(topics=[]), False),
    ],
)
def test_who_has_caught_up_says_so_itself(own: DescribeTopicsResponse, is_caught_up: bool) -> None:
    part = merged({1: answer(said(ends={1: 7, 2: 7}))}, {1: log(7), 2: own})
    assert part.caught_up == ({1, 2} if is_caught_up else {1})


def test_without_the_leaders_word_nobody_has_caught_up() -> None:
    part = merged({2: answer(said()), 3: answer(said())}, {2: log(7), 3: log(7)})
    assert part.leader == 1
    assert part.log_end_offset == -1
    assert part.caught_up == frozenset()


def test_a_topic_made_again_is_another() -> None:
    """The old one had later epochs; who still tells of it has not heard of its end."""
    old = answer(said(leader=2, epoch=9), controller=None)
    new = answer(said(topic_id="id-2", epoch=1))
    assert merged({1: new, 2: old, 3: old}).topic_id == "id-2"
    assert merged({2: old, 3: old}).topic_id == "id-1"
    mixed = {1: answer(said(topic_id="id-2", epoch=1), controller=None), 2: old, 3: old}
    assert merged(mixed).topic_id == "id-1"  # nobody decides: what most say
    assert Answers({1: answer(), 2: old}, {}).status() == {}


def test_members_are_those_of_the_controller() -> None:
    assert Answers({1: answer(), 2: answer()}, {}).members == {1, 2, 3}
    assert Answers({1: answer(live=False)}, {}).members == {1, 2}
    assert Answers({1: answer(fenced=True)}, {}).members == {1, 2}
    assert Answers({2: answer()}, {}).members == frozenset()
    assert Answers({}, {}).members == frozenset()


def test_what_lacks_is_named() -> None:
    whole = answer(said(ends={1: 7}))
    logs = {1: log(7), 2: log(7), 3: log(7)}
    quiet = Answers({1: whole, 2: whole, 3: whole}, logs)
    assert lacking(IDS, IDS, quiet) == []
    assert lacking(IDS, (1, 3), quiet) == ["broker 2 down"]
    assert lacking((1, 2, 3, 4), IDS, quiet) == [
        "broker 4 down",
        "broker 4 not alive for controller 1",
    ]
    assert lacking(IDS, IDS, Answers({2: answer()}, {})) == [
        "brokers 1, 3 not responding",
        "the cluster has no controller",
    ]


@pytest.mark.parametrize(
    ("word", "logs", "lack"),
    [
        (said(leader=None), {}, "t:0 has no leader"),
        (said(leader=2), {}, "t:0: leader 2 does not respond as the leader"),
        (said(isr=(1, 2), ends={1: 7}), {}, "t:0: broker 3 not in the ISR"),
        (said(ends={1: 7}), {1: log(7), 2: log(6)}, "t:0: brokers 2, 3 not caught up"),
    ],
)
def test_what_a_partition_lacks_is_named(
    word: WireStatus, logs: dict[int, DescribeTopicsResponse], lack: str
) -> None:
    assert missing(Answers({1: answer(word)}, logs).status()) == [lack]


def test_looking_ends_when_nothing_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "POLL_S", 0.0)
    looks = iter([["a", "b"], ["b"], []])
    assert until_nothing(lambda: next(looks), timeout_s=60) == []
    assert until_nothing(lambda: ["b"], timeout_s=0) == ["b"]


@pytest.fixture(scope="module")
def running() -> Any:
    with cluster() as one:
        yield one


@pytest.mark.integration
def test_who_is_mute_holds_nobody_up(
    running: Cluster, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(status, "ROUND_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as mute, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        places = {
            1: running.brokers[0].address,
            2: Address(*mute.getsockname()),
            3: Address(*closed.getsockname()),
        }
        asking = Asking(places)
        try:
            for _ in range(3):
                found = asking.answers(places)
                assert found.clusters.keys() == found.topics.keys() == {1}
                assert found.controller == 1
        finally:
            mute.close()  # nobody waits for it any more
            asking.close()
