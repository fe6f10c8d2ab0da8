"""Consumers begin where they should, and each session is a process of its own."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from raftlog.aio import AsyncProducer
from raftlog.testing import Cluster, cluster
from raftlog.testing.history import entries
from raftlog.testing.history.entries import Poll, Recorder, read
from raftlog_jepsen.plan import ConsumerShape, WorkloadShape
from raftlog_jepsen.workload.append import consume, observe_ends
from raftlog_jepsen.workload.base import WorkloadContext, create_topics
from tests.jepsen_like.arena import TOPICS, History, context_of, plan, until, watch

RECORDS = 40
CONSUMERS = {
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
        for name, shape in CONSUMERS.items():
            tasks.create_task(consume(context, name, shape))
        tasks.create_task(observe_ends(context, "ends", pinned=True))
        await until(lambda: seen >= {"ends/1", *(f"{name}/4" for name in CONSUMERS)})
        context.stopping.set()


@pytest.mark.integration
def test_sessions_begin_where_they_should(tmp_path: Path) -> None:
    workload = WorkloadShape(name="append", producers=(), consumers=tuple(CONSUMERS.values()))
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
    starts = {name: {began[p]["one:0"] for p in began if p.startswith(name)} for name in CONSUMERS}
    assert starts["first"] == {0}
    assert starts["last"] == {RECORDS}
    assert starts["between"] <= set(range(RECORDS + 1))
    assert len(starts["between"]) > 1
    got = [poll for poll in history.of(Poll) if poll.process == "first/1"]
    runs = [run[:3] for poll in got for run in poll.records.get("one:0", [])]
    assert runs[:2] == [(0, 7, 1), (7, 7, 8)]
