"""Producers and consumers on real brokers, one of which is killed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from raftlog.aio import AsyncProducer
from raftlog.testing import Cluster, cluster
from raftlog.testing.history import entries
from raftlog.testing.history.entries import STRANGE, Append, Ends, Poll, Read, Recorder, read
from raftlog_jepsen.plan import ConsumerShape, ProducerShape, WorkloadShape
from raftlog_jepsen.workload import append as compact
from raftlog_jepsen.workload.append import (
    AppendWorkload,
    CompactWorkload,
    consume,
    draw_padding,
    observe_ends,
    pause_s,
)
from raftlog_jepsen.workload.base import WorkloadContext, create_topics
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
