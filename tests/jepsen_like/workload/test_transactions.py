"""Producers write transactions, workers copy records, and a reader reads all of them at the end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster
from raftlog.testing.checker.judge import judge
from raftlog.testing.history.entries import AnyEntry, Phase, Recorder, Transact, TxnRead, read
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload import transactions
from tests.jepsen_like.arena import CONSUMERS, PRODUCERS, TOPICS, context_of, plan, until, watch

SHAPE = WorkloadShape(name="etl", producers=PRODUCERS, consumers=CONSUMERS[:1])
WANTED = {"writer ok", "writer fail", "worker ok", "worker fail", "fenced", "read"}


@pytest.mark.integration
def test_transactions_are_written_copied_fenced_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "SESSION_S", (0.5, 2.0))
    recorder = Recorder(tmp_path / "history.jsonl", time.monotonic_ns)
    with cluster(3, directory=tmp_path / "cluster", with_relays=False) as running:
        asyncio.run(_play(recorder, running))
    recorder.close()
    entries = list(read(recorder.path))
    verdict = judge(entries)
    assert (verdict.valid, verdict.troubles) == ("valid", ()), verdict.anomalies
    (end,) = [entry for entry in entries if isinstance(entry, TxnRead) and entry.is_complete]
    assert end.has_group
    assert end.committed


async def _play(recorder: Recorder, running: Cluster) -> None:
    context = context_of(plan(SHAPE, *TOPICS), recorder, running)
    seen: set[str] = set()

    def see(entry: AnyEntry) -> None:
        if isinstance(entry, Transact) and entry.type != "invoke":
            seen.add(f"{entry.process.partition('-')[0]} {entry.type}")
            seen.update({"fenced"} if "ProducerFencedError" in entry.error else ())
        elif isinstance(entry, TxnRead):
            seen.add("read")

    watch(context, see)
    workload = transactions.etl()
    await workload.prepare(context)
    load = asyncio.create_task(workload.run(context))
    await until(lambda: seen >= WANTED)
    context.stopping.set()
    await load
    assert await workload.drain(context)
    recorder.record(Phase(time=0, process="test", type="info", name="end"))
