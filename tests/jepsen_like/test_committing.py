"""Commits, and what is told about them, get into the history as they were."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from raftlog import errors
from raftlog.aio import AsyncConsumer
from raftlog.errors import RaftlogError
from raftlog.testing.history.entries import AnyEntry, Commit, Committed, Recorder, read
from raftlog.types import OffsetAndMetadata, TopicPartition
from raftlog_jepsen.client import MISMATCH, NOTHING, commit, commit_outcome_of, committed, offset_of

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeConsumer:
    """Keeps what is committed; raises ``error`` if it has one."""

    def __init__(self, error: RaftlogError | None = None) -> None:
        self.error = error
        self.kept: dict[TopicPartition, OffsetAndMetadata] = {}

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.error is not None:
            raise self.error
        self.kept |= offsets

    async def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: bool
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        assert metadata
        if self.error is not None:
            raise self.error
        return {tp: self.kept.get(tp) for tp in partitions}


def told(tmp_path: Path, work: Any) -> tuple[Any, list[AnyEntry]]:
    recorder = Recorder(tmp_path / "history.jsonl", itertools.count(1).__next__)
    result = asyncio.run(work(recorder))
    recorder.close()
    return result, list(read(recorder.path))


def test_a_commit_and_what_is_read_back(tmp_path: Path) -> None:
    consumer = cast(AsyncConsumer, FakeConsumer())

    async def work(recorder: Recorder) -> Any:
        assert await commit(recorder, consumer, "c", "g", {ONE: 7})
        return await committed(recorder, consumer, "c", "g", [ONE, OTHER])

    result, entries = told(tmp_path, work)
    assert result == {ONE: 7, OTHER: NOTHING}
    kinds = [(type(entry), entry.type) for entry in entries]
    assert kinds == [
        (Commit, "invoke"), (Commit, "ok"), (Committed, "invoke"), (Committed, "ok"),
    ]  # fmt: skip
    done = entries[-1]
    assert isinstance(done, Committed)
    assert (done.group, done.offsets) == ("g", {"t:0": 7, "t:1": -1})


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (errors.UnknownMemberError("gone"), "info"),
        (errors.RequestTimedOutError("late"), "info"),
        (errors.InvalidGroupError("a bad name"), "fail"),
    ],
)
def test_only_what_is_certain_is_a_failure(tmp_path: Path, error: RaftlogError, ended: str) -> None:
    consumer = cast(AsyncConsumer, FakeConsumer(error))
    assert commit_outcome_of(error) == ended

    async def work(recorder: Recorder) -> Any:
        is_ok = await commit(recorder, consumer, "c", "g", {ONE: 7})
        return is_ok, await committed(recorder, consumer, "c", "g", [ONE])

    result, entries = told(tmp_path, work)
    assert result == (False, None)
    assert [entry.type for entry in entries] == ["invoke", ended, "invoke", "fail"]
    assert str(error) in getattr(entries[1], "error", "")


def test_an_offset_with_the_note_of_another_is_none_that_was_committed() -> None:
    assert offset_of(OffsetAndMetadata(7, "7")) == 7
    assert offset_of(OffsetAndMetadata(7, "")) == 7
    assert offset_of(OffsetAndMetadata(7, "8")) > MISMATCH
    assert offset_of(None) == NOTHING
