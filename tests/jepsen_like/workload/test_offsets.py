"""Offsets are committed and read back by others, while one of the brokers is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.history.entries import AnyEntry, Commit, Committed
from raftlog_jepsen.plan import GroupShape, WorkloadShape
from raftlog_jepsen.workload.base import WorkloadContext
from raftlog_jepsen.workload.groups import FINAL_READERS, OffsetsWorkload
from tests.jepsen_like.arena import PRODUCERS, TOPICS, Play, plan, until, watch

GROUPS = (GroupShape(name="g1", topics=("three",)), GroupShape(name="g2", topics=("three",)))
SHAPE = WorkloadShape(name="offsets", producers=PRODUCERS[:2], consumers=(), groups=GROUPS)


@pytest.mark.integration
def test_what_is_committed_is_read_back(tmp_path: Path) -> None:
    told: set[str] = set()

    def see(entry: AnyEntry) -> None:
        if isinstance(entry, Committed) and max(entry.offsets.values(), default=-1) > 0:
            told.add(entry.group)

    async def until_both_were_told(context: WorkloadContext) -> None:
        watch(context, see)
        await until(lambda: told == {"g1", "g2"})

    made = plan(SHAPE, TOPICS[0])
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
    assert len(final) == FINAL_READERS * len(GROUPS)
    for entry in final:
        assert set(entry.offsets) == {"three:0", "three:1"}
        for partition, offset in entry.offsets.items():
            assert offset >= last[entry.group, partition]
