"""Workloads of topics on real brokers, one of which is killed; and clients of a run."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from raftlog import Producer
from raftlog.aio import AsyncProducer
from raftlog.errors import InvalidRequestError, NotLeaderError
from raftlog.testing import Cluster, cluster
from raftlog.testing import history as entries
from raftlog.testing.cluster import free_port
from raftlog.testing.history import (
    STRANGE,
    Admin,
    AnyEntry,
    Append,
    Delete,
    Ends,
    Note,
    Poll,
    Read,
    Recorder,
    read,
)
from raftlog.types import TopicPartition
from raftlog_jepsen.plan import ConsumerShape, ProducerShape, WorkloadShape
from raftlog_jepsen.workload import admin, base
from raftlog_jepsen.workload import append as compact
from raftlog_jepsen.workload.admin import AdminWorkload
from raftlog_jepsen.workload.append import (
    AppendWorkload,
    CompactWorkload,
    consume,
    draw_padding,
    observe_ends,
    pause_s,
)
from raftlog_jepsen.workload.base import (
    WorkloadContext,
    administrate,
    create_topics,
    existing_partitions,
    run_all,
)
from raftlog_jepsen.workload.replay import ReplayWorkload
from tests.jepsen_like.arena import (
    CONSUMERS,
    PRODUCERS,
    TOPICS,
    History,
    Play,
    context_of,
    plan,
    until,
    watch,
)

# -- clients ---------------------------------------------------------------------------------------

# Clients of a run: each has its own chance, one that fails is told of, and topics come in time.


NO_CLIENTS = WorkloadShape(name="append", producers=(), consumers=())


@pytest.fixture
def context(tmp_path: Path) -> Iterator[WorkloadContext]:
    made = context_at("127.0.0.1:1", tmp_path)
    yield made
    with suppress(ValueError):  # it is closed already
        made.recorder.close()


def context_at(bootstrap: str, directory: Path) -> WorkloadContext:
    counter = itertools.count()
    return WorkloadContext(
        plan=plan(NO_CLIENTS, *TOPICS),
        bootstrap=bootstrap,
        brokers={1: "a:1", 2: "b:1", 3: "c:1"},
        recorder=Recorder(directory / "history.jsonl", lambda: next(counter)),
        random=Random(1),
        stopping=asyncio.Event(),
    )


def base_entries(context: WorkloadContext) -> list[AnyEntry]:
    context.recorder.close()
    return list(read(context.recorder.path))


def test_targets_are_the_partitions_of_the_plan(context: WorkloadContext) -> None:
    assert list(map(str, context.targets)) == ["three:0", "three:1", "one:0"]


def test_each_client_has_a_chance_of_its_own(context: WorkloadContext) -> None:
    def drawn(name: str) -> float:
        return context.fork(name).random()

    assert drawn("producer-1") == drawn("producer-1") != drawn("producer-2")


def test_who_is_pinned_knows_one_broker(context: WorkloadContext) -> None:
    random = context.fork("consumer-1")
    assert {context.entrance(random, pinned=True) for _ in range(99)} == {"a:1", "b:1", "c:1"}
    assert context.entrance(random, pinned=False) == "127.0.0.1:1"


def test_a_client_that_fails_is_noted_and_the_others_go_on(context: WorkloadContext) -> None:
    ended: list[str] = []

    async def good() -> None:
        await context.stopping.wait()
        ended.append("good")

    async def bad() -> None:
        context.stopping.set()
        raise ZeroDivisionError("it divides")

    with pytest.raises(ExceptionGroup) as raised:
        asyncio.run(run_all(context, {"good": good, "bad": bad}))
    assert [type(error) for error in raised.value.exceptions] == [ZeroDivisionError]
    assert ended == ["good"]
    (note,) = base_entries(context)
    assert isinstance(note, Note)
    assert note.is_trouble
    assert note.text.startswith("bad failed: ")
    assert "ZeroDivisionError: it divides" in note.text


def test_clients_end_with_whom_they_work_for(context: WorkloadContext) -> None:
    ended: list[str] = []

    async def patient() -> None:
        try:
            await context.stopping.wait()
        finally:
            ended.append("patient")

    async def main() -> None:
        running = asyncio.create_task(run_all(context, {"patient": patient}))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert ended == ["patient"]


def test_who_sleeps_is_woken_when_the_load_is_to_end(context: WorkloadContext) -> None:
    async def main() -> None:
        sleeping = asyncio.create_task(context.sleep(1e6))
        await asyncio.sleep(0)
        context.stopping.set()
        await sleeping
        await context.sleep(1e6)

    asyncio.run(main())


def test_a_change_that_fails_may_have_been_made(context: WorkloadContext) -> None:
    async def act() -> None:
        raise NotLeaderError("another is")

    problem = asyncio.run(administrate(context, "operator", "delete", "t", {"a": 1}, act))
    assert problem == "NotLeaderError: another is"
    invoked, done = base_entries(context)
    assert isinstance(done, Admin)
    assert (invoked.type, done.type, done.error) == ("invoke", "info", problem)
    assert (done.what, done.topic, done.args) == ("delete", "t", {"a": 1})


def test_where_nobody_answers_topics_are_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "PREPARE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(base, "REQUEST_TIMEOUT_MS", 100)
    context = context_at(f"127.0.0.1:{free_port()}", tmp_path)
    with pytest.raises(TimeoutError, match="no topic three"):
        asyncio.run(create_topics(context, TOPICS))
    with pytest.raises(TimeoutError, match="no list of topics"):
        asyncio.run(existing_partitions(context, timeout_s=0.2))
    assert any(isinstance(entry, Note) and entry.is_trouble for entry in base_entries(context))


@pytest.mark.integration
def test_topics_are_made_as_planned_and_found(tmp_path: Path) -> None:
    with cluster(1) as running:
        context = context_at(running.bootstrap, tmp_path)

        async def main() -> list[TopicPartition]:
            await create_topics(context, TOPICS[1:])
            await create_topics(context, TOPICS[1:])  # an attempt whose answer was lost did it
            return await existing_partitions(context)

        assert asyncio.run(main()) == [TopicPartition("one", 0)]
        with Producer(running.bootstrap) as producer:
            producer.send("one", b"of an earlier run").result()
        with pytest.raises(InvalidRequestError, match="raftlog topic delete one"):
            asyncio.run(create_topics(context, TOPICS[1:]))
    done = [entry for entry in base_entries(context) if isinstance(entry, Admin)]
    assert [entry.type for entry in done] == ["invoke", "ok"] * 3
    assert done[0].args["config"]["min.insync.replicas"] == "1"


# -- append ----------------------------------------------------------------------------------------

# Producers and consumers on real brokers, one of which is killed.


SHAPE = WorkloadShape(name="append", producers=PRODUCERS, consumers=CONSUMERS)


@pytest.mark.integration
def test_what_was_acknowledged_while_a_leader_was_killed_is_read_at_the_end(tmp_path: Path) -> None:
    history = Play(tmp_path, AppendWorkload(), plan(SHAPE, *TOPICS)).run()
    history.check()
    appended = history.of(Append)
    assert {entry.idempotent for entry in appended} == {True, False}
    assert {entry.partition for entry in appended} == {"three:0", "three:1", "one:0"}
    assert {entry.source for entry in history.of(Poll)} == {"leader", "replica"}
    assert any(entry.records for entry in history.of(Poll))
    assert any(entry.ends for entry in history.of(Ends))


# -- compact ---------------------------------------------------------------------------------------
#
# Records with keys are compacted under way; what is last of each key stays.


KEYS = 30
TOPIC = replace(
    TOPICS[0],
    config=(("cleanup.policy", "compact"), ("segment.bytes", "16384")),
    keys=KEYS,
)
COMPACT_SHAPE = WorkloadShape(name="compact", producers=PRODUCERS[:2], consumers=CONSUMERS[:1])


@pytest.mark.integration
def test_what_is_last_of_each_key_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "REST_S", 0.0)

    async def until_there_is_much(context: WorkloadContext) -> None:
        acked = context.clients.acked
        await until(lambda: all(acked[str(tp)] > 1_000 for tp in context.targets))

    made = plan(COMPACT_SHAPE, TOPIC)
    history = Play(tmp_path, CompactWorkload(), made).run(until_there_is_much)
    assert not history.troubles
    history.check_form()
    assert history.found(made) == {}
    found = [value for rows in history.reads("reader-1").values() for value, _ in rows.values()]
    assert STRANGE not in found
    assert any(entries.is_tombstone(value) for value in found)
    assert len({entries.key_of(value, KEYS) for value in found}) > KEYS / 2
    assert {entry.partition for entry in history.of(Read)} == {"three:0", "three:1"}
    # Those of the last calls have no outcome, though they were acknowledged.
    assert sum(append.count for append in history.of(Append)) >= 1_500


# -- consuming -------------------------------------------------------------------------------------
#
# Consumers begin where they should, and each session is a process of its own.


RECORDS = 40
CONSUMING_CONSUMERS = {
    "first": ConsumerShape(begin="earliest", wait_ms=50, session_s=0.2, records_max=7),
    "last": ConsumerShape(begin="latest", wait_ms=50, session_s=0.2),
    "between": ConsumerShape(begin="middle", wait_ms=50, session_s=0.1, source="replica"),
}


async def read_for_a_while(context: WorkloadContext, running: Cluster) -> None:
    await create_topics(context, TOPICS[1:])
    async with AsyncProducer(running.bootstrap) as producer:
        records = [entries.encode_value(value, 0) for value in range(1, RECORDS + 1)]
        await (await producer.send_many("one", records))
    seen: set[str] = set()
    watch(context, lambda entry: seen.add(entry.process))
    async with asyncio.TaskGroup() as tasks:
        for name, shape in CONSUMING_CONSUMERS.items():
            tasks.create_task(consume(context, name, shape))
        tasks.create_task(observe_ends(context, "ends", pinned=True))
        await until(lambda: seen >= {"ends/1", *(f"{name}/4" for name in CONSUMING_CONSUMERS)})
        context.stopping.set()


@pytest.mark.integration
def test_sessions_begin_where_they_should(tmp_path: Path) -> None:
    workload = WorkloadShape(
        name="append", producers=(), consumers=tuple(CONSUMING_CONSUMERS.values())
    )
    recorder = Recorder(tmp_path / "history.jsonl", time.monotonic_ns)
    with cluster(1) as running:
        context = context_of(plan(workload, TOPICS[1]), recorder, running)
        asyncio.run(read_for_a_while(context, running))
    recorder.close()
    history = History(list(read(recorder.path)))
    history.check_form()
    began: dict[str, dict[str, int]] = {}
    for poll in history.of(Poll, "invoke"):
        began.setdefault(poll.process, poll.positions)
    starts = {
        name: {began[p]["one:0"] for p in began if p.startswith(name)}
        for name in CONSUMING_CONSUMERS
    }
    assert starts["first"] == {0}
    assert starts["last"] == {RECORDS}
    assert starts["between"] <= set(range(RECORDS + 1))
    assert len(starts["between"]) > 1
    got = [poll for poll in history.of(Poll) if poll.process == "first/1"]
    runs = [run[:3] for poll in got for run in poll.records.get("one:0", [])]
    assert runs[:2] == [(0, 7, 1), (7, 7, 8)]


# -- producing -------------------------------------------------------------------------------------
#
# When a producer sends, how much, and what it does about what came of it.


STEADY = ProducerShape()
BURSTS = ProducerShape(bursts=True)


@pytest.mark.parametrize(
    ("shape", "now", "due_at", "wanted"),
    [
        (STEADY, 10.0, 10.5, 0.5),
        (STEADY, 11.0, 10.5, 0.0),
        (BURSTS, 10.25, 10.5, 0.25),
        (BURSTS, 10.25, 9.0, 0.0),
        (BURSTS, 11.25, 9.0, 0.75),
        (BURSTS, 11.25, 12.5, 1.25),
    ],
)
def test_a_pause_lasts_until_the_next_is_due_and_a_burst_begins(
    shape: ProducerShape, now: float, due_at: float, wanted: float
) -> None:
    assert pause_s(shape, now, due_at) == pytest.approx(wanted)


def test_paddings_are_small_as_often_as_large(seed: int) -> None:
    random = Random(seed)
    drawn = [draw_padding(random, 10_000) for _ in range(2_000)]
    assert min(drawn) == 0
    assert 5_000 < max(drawn) <= 10_000
    assert 800 < sum(padding < 100 for padding in drawn) < 1_200
    assert {draw_padding(random, 0) for _ in range(50)} == {0}


# -- an operator -----------------------------------------------------------------------------------

# An operator changes topics under load, while one of the brokers is killed.


ADMIN_SHAPE = WorkloadShape(
    name="admin", producers=PRODUCERS[:2], consumers=CONSUMERS[:2], admin_rate=20.0
)
WHATS = {"create", "delete", "add-partitions", "transfer", "alter"}


def changes(history: History, topics: set[str]) -> set[str]:
    """What was certainly done to these topics."""
    return {entry.what for entry in history.of(Admin) if entry.topic in topics}


@pytest.mark.integration
def test_topics_are_changed_while_they_are_used(tmp_path: Path) -> None:
    done: set[str] = set()

    async def until_all_was_done(context: WorkloadContext) -> None:
        def see(entry: AnyEntry) -> None:
            if isinstance(entry, Admin) and entry.type == "ok":
                done.add(entry.what)
            elif isinstance(entry, Delete) and entry.type == "ok":
                done.add("delete records")
            elif isinstance(entry, Append) and entry.process.startswith("operator"):
                done.add("append")

        watch(context, see)
        await until(lambda: {*WHATS, "delete records", "append"} <= done)

    history = Play(tmp_path, AdminWorkload(), plan(ADMIN_SHAPE, TOPICS[0])).run(until_all_was_done)
    history.check()
    sides = set(admin.SIDE_TOPICS)
    assert changes(history, sides) >= {"create", "delete"}
    by_operator = {e.partition for e in history.of(Append) if e.process.startswith("operator")}
    assert by_operator
    assert {partition.rpartition(":")[0] for partition in by_operator} <= sides
    by_others = {e.partition for e in history.of(Append) if e.process.startswith("producer")}
    assert by_others > {"three:0", "three:1"}, "what was added is written to"
    assert history.of(Delete)


# -- readers of whole topics -----------------------------------------------------------------------

# Whole topics are read from leaders and replicas while one of the brokers is killed.


REPLAY_SHAPE = WorkloadShape(name="replay", producers=PRODUCERS[:2], consumers=CONSUMERS[:1])


def readings(history: History) -> dict[str, list[Poll]]:
    """The polls of each reading."""
    found: dict[str, list[Poll]] = {}
    for poll in history.of(Poll):
        if poll.process.startswith("replay-"):
            found.setdefault(poll.process, []).append(poll)
    return found


@pytest.mark.integration
def test_topics_are_read_from_their_start_by_turns_from_leaders_and_replicas(
    tmp_path: Path,
) -> None:
    seen: set[str] = set()

    def see(entry: AnyEntry) -> None:
        if isinstance(entry, Poll) and entry.process.startswith("replay-") and entry.records:
            seen.add(entry.source)

    async def until_both_were_read(context: WorkloadContext) -> None:
        watch(context, see)
        await until(lambda: seen == {"leader", "replica"})

    history = Play(tmp_path, ReplayWorkload(), plan(REPLAY_SHAPE, TOPICS[0])).run(
        until_both_were_read
    )
    history.check()
    found = readings(history)
    assert {poll.source for polls in found.values() for poll in polls} == {"leader", "replica"}
    for polls in found.values():
        firsts = {}
        for poll in polls:
            for partition, runs in poll.records.items():
                firsts.setdefault(partition, runs[0][0])
        assert set(firsts.values()) <= {0}, "a reading begins at the log's start"
