"""Workloads of groups and of transactions on real brokers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster
from raftlog.testing.checker.judge import judge
from raftlog.testing.history import (
    AnyEntry,
    Commit,
    Committed,
    Member,
    Phase,
    Poll,
    Recorder,
    Transact,
    TxnRead,
    read,
)
from raftlog_jepsen.plan import GroupShape, MemberShape, WorkloadShape
from raftlog_jepsen.workload import transactions
from raftlog_jepsen.workload.base import WorkloadContext
from raftlog_jepsen.workload.groups import FINAL_READERS, GroupsWorkload, OffsetsWorkload
from tests.jepsen_like.arena import (
    CONSUMERS,
    PRODUCERS,
    TOPICS,
    Play,
    context_of,
    plan,
    until,
    watch,
)

# -- groups ----------------------------------------------------------------------------------------

# Members of real groups share partitions while a broker, and one of them, are killed.


GROUPS = (
    GroupShape(
        name="spoken",
        topics=("three",),
        members=(MemberShape(style="poll"), MemberShape(style="aio")),
        session_timeout_s=2.0,
    ),
    GroupShape(
        name="silent",
        topics=("three",),
        members=(MemberShape(style="iterate", commits="auto", auto_commit_s=0.1),),
        by_pattern=True,
        session_timeout_s=2.0,
    ),
)
SHAPE = WorkloadShape(name="groups", producers=PRODUCERS[:1], consumers=(), groups=GROUPS)


@pytest.mark.integration
@pytest.mark.timeout(180)
def test_everything_is_given_to_every_group(tmp_path: Path) -> None:
    async def kill_a_member(context: WorkloadContext) -> None:
        members = context.members
        assert members is not None
        await until(lambda: bool(members.owned(1)))
        ended = await asyncio.to_thread(members.kill, [1])
        assert ended == {1: "signal 9"}
        await until(lambda: len(members.owned(2)) == 2)
        await asyncio.to_thread(members.start, [1])
        await until(lambda: bool(members.owned(1)))

    made = plan(SHAPE, TOPICS[0])
    history = Play(tmp_path, GroupsWorkload(), made).run(kill_a_member)
    assert not history.troubles
    assert history.found(made) == {}
    members = history.of(Member, "info")
    assert {m.what for m in members} >= {"start", "assigned", "revoked", "killed", "end", "close"}
    assert {m.process for m in members if m.what == "start"} == {
        "spoken/m1.1", "spoken/m1.2", "spoken/m2.1", "silent/m3.1",
    }  # fmt: skip
    given = {poll.group for poll in history.of(Poll) if poll.group}
    assert given == {"spoken", "silent"}
    assert {commit.group for commit in history.of(Commit)} == {"spoken"}
    ends = {name: max(rows) + 1 for name, rows in history.reads("reader-1").items()}
    final = [entry for entry in history.of(Committed) if entry.process.startswith("final-")]
    assert final
    assert all(entry.offsets == ends for entry in final), "they commit all of it when they leave"


# -- offsets ---------------------------------------------------------------------------------------
#
# Offsets are committed and read back by others, while one of the brokers is killed.


OFFSETS_GROUPS = (
    GroupShape(name="g1", topics=("three",)),
    GroupShape(name="g2", topics=("three",)),
)
OFFSETS_SHAPE = WorkloadShape(
    name="offsets", producers=PRODUCERS[:2], consumers=(), groups=OFFSETS_GROUPS
)


@pytest.mark.integration
def test_what_is_committed_is_read_back(tmp_path: Path) -> None:
    noted: set[str] = set()

    def see(entry: AnyEntry) -> None:
        if isinstance(entry, Committed) and max(entry.offsets.values(), default=-1) > 0:
            noted.add(entry.group)

    async def until_both_were_told(context: WorkloadContext) -> None:
        watch(context, see)
        await until(lambda: noted == {"g1", "g2"})

    made = plan(OFFSETS_SHAPE, TOPICS[0])
    history = Play(tmp_path, OffsetsWorkload(), made).run(until_both_were_told)
    history.check()
    assert history.found(made) == {}
    last: dict[tuple[str, str], int] = {}
    for commit in history.of(Commit):
        for partition, offset in commit.offsets.items():
            assert offset >= last.get((commit.group, partition), 0), "one commits after the other"
            last[commit.group, partition] = offset
    assert {group for group, _ in last} == {"g1", "g2"}
    final = [entry for entry in history.of(Committed) if entry.process.startswith("final-")]
    assert len(final) == FINAL_READERS * len(OFFSETS_GROUPS)
    for entry in final:
        assert set(entry.offsets) == {"three:0", "three:1"}
        for partition, offset in entry.offsets.items():
            assert offset >= last[entry.group, partition]


# -- transactions ----------------------------------------------------------------------------------

# Producers write transactions, workers copy records, and a reader reads all of them at the end.


TRANSACTIONS_SHAPE = WorkloadShape(name="etl", producers=PRODUCERS, consumers=CONSUMERS[:1])
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
    context = context_of(plan(TRANSACTIONS_SHAPE, *TOPICS), recorder, running)
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
