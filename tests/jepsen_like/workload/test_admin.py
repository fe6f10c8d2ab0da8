"""An operator changes topics under load, while one of the brokers is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.testing.history.entries import Admin, AnyEntry, Append, Delete
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload import admin
from raftlog_jepsen.workload.admin import AdminWorkload
from raftlog_jepsen.workload.base import WorkloadContext
from tests.jepsen_like.arena import CONSUMERS, PRODUCERS, TOPICS, History, Play, plan, until, watch

SHAPE = WorkloadShape(
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

    history = Play(tmp_path, AdminWorkload(), plan(SHAPE, TOPICS[0])).run(until_all_was_done)
    history.check()
    sides = set(admin.SIDE_TOPICS)
    assert changes(history, sides) >= {"create", "delete"}
    by_operator = {e.partition for e in history.of(Append) if e.process.startswith("operator")}
    assert by_operator
    assert {partition.rpartition(":")[0] for partition in by_operator} <= sides
    by_others = {e.partition for e in history.of(Append) if e.process.startswith("producer")}
    assert by_others > {"three:0", "three:1"}, "what was added is written to"
    assert history.of(Delete)
