"""Members of real groups share partitions while a broker, and one of them, are killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from raftlog.testing.history.entries import AnyEntry, Commit, Committed, Member, Poll
from raftlog_jepsen.plan import GroupShape, MemberShape, WorkloadShape
from raftlog_jepsen.workload.base import WorkloadContext
from raftlog_jepsen.workload.groups import FINAL_READERS, GroupsWorkload, OffsetsWorkload
from tests.jepsen_like.arena import PRODUCERS, TOPICS, Play, plan, until, watch

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
