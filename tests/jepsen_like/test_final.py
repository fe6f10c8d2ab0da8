"""The end as readers and as files have it, and that what is missing there is told."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import raftlog
from raftlog.aio import AsyncProducer
from raftlog.testing import Cluster, cluster
from raftlog.testing.history import entries as keys
from raftlog.testing.history import entries as values
from raftlog.testing.history.entries import AnyEntry, Dump, Note, Read, Recorder, Seen, read
from raftlog.types import TopicPartition
from raftlog_jepsen import final
from raftlog_jepsen.final import _Reader, dump_replicas, final_reads
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload.base import WorkloadContext, create_topics
from tests.jepsen_like.arena import TOPICS, context_of, plan

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
    assert found.records == [(0, COUNT, 1, 0)]
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
    assert records(dump(tmp_path, tmp_path / "data")) == [(0, 39, 1, 0)]


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
    assert found.records == [(155, COUNT - 155, 156, 0)]


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
