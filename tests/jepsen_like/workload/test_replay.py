"""Whole topics are read from leaders and replicas while one of the brokers is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.history.entries import AnyEntry, Poll
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload.base import WorkloadContext
from raftlog_jepsen.workload.replay import ReplayWorkload
from tests.jepsen_like.arena import CONSUMERS, PRODUCERS, TOPICS, History, Play, plan, until, watch

SHAPE = WorkloadShape(name="replay", producers=PRODUCERS[:2], consumers=CONSUMERS[:1])


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

    history = Play(tmp_path, ReplayWorkload(), plan(SHAPE, TOPICS[0])).run(until_both_were_read)
    history.check()
    found = readings(history)
    assert {poll.source for polls in found.values() for poll in polls} == {"leader", "replica"}
    for polls in found.values():
        firsts = {}
        for poll in polls:
            for partition, runs in poll.records.items():
                firsts.setdefault(partition, runs[0][0])
        assert set(firsts.values()) <= {0}, "a reading begins at the log's start"
