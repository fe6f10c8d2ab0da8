"""Records with keys are compacted under way; what is last of each key stays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raftlog.testing.history import entries
from raftlog.testing.history.entries import STRANGE, Append, Read
from raftlog_jepsen.plan import WorkloadShape
from raftlog_jepsen.workload import append as compact
from raftlog_jepsen.workload.append import CompactWorkload
from raftlog_jepsen.workload.base import WorkloadContext
from tests.jepsen_like.arena import CONSUMERS, PRODUCERS, TOPICS, Play, plan, until

KEYS = 30
TOPIC = replace(
    TOPICS[0],
    config=(("cleanup.policy", "compact"), ("segment.bytes", "16384")),
    keys=KEYS,
)
SHAPE = WorkloadShape(name="compact", producers=PRODUCERS[:2], consumers=CONSUMERS[:1])


@pytest.mark.integration
def test_what_is_last_of_each_key_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "REST_S", 0.0)

    async def until_there_is_much(context: WorkloadContext) -> None:
        acked = context.clients.acked
        await until(lambda: all(acked[str(tp)] > 1_000 for tp in context.targets))

    made = plan(SHAPE, TOPIC)
    history = Play(tmp_path, CompactWorkload(), made).run(until_there_is_much)
    assert not history.troubles
    history.check_form()
    assert history.found(made) == {}
    found = [value for rows in history.reads("reader-1").values() for value, _ in rows.values()]
    assert STRANGE not in found
    assert any(entries.is_tombstone(value) for value in found)
    assert len({entries.key_of(value, KEYS) for value in found}) > KEYS / 2
    assert {entry.partition for entry in history.of(Read)} == {"three:0", "three:1"}
    assert sum(append.count for append in history.of(Append)) >= 2_000
