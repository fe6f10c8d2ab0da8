"""Clients of a run: each has its own chance, one that fails is told of, and topics come in time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from raftlog import Producer
from raftlog.errors import InvalidRequestError, NotLeaderError
from raftlog.testing import cluster
from raftlog.testing.cluster import free_port
from raftlog.testing.history.entries import Admin, AnyEntry, Note, Recorder, read
from raftlog.types import TopicPartition
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload import base
from raftlog_jepsen.workload.base import (
    WorkloadContext,
    administrate,
    create_topics,
    existing_partitions,
    run_all,
)
from tests.jepsen_like.arena import TOPICS, plan

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


def entries(context: WorkloadContext) -> list[AnyEntry]:
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
    (note,) = entries(context)
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
    invoked, done = entries(context)
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
    assert any(isinstance(entry, Note) and entry.is_trouble for entry in entries(context))


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
    done = [entry for entry in entries(context) if isinstance(entry, Admin)]
    assert [entry.type for entry in done] == ["invoke", "ok"] * 3
    assert done[0].args["config"]["min.insync.replicas"] == "1"
