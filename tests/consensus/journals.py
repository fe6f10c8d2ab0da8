"""Journals for tests: on which disk, changed how, and what they hold. No assertions here."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from raftlog.consensus import journal as journal_file
from raftlog.consensus.journal import Journal, JournalSyncTask, RaftJournal
from raftlog.testing.disk import SimDisk

PATH: Final = "data/consensus.journal"
SMALL_REWRITE: Final = 2_000  # bytes: a few dozen records


def disk_of(seed: int = 1, *, capacity_bytes: int | None = None) -> SimDisk:
    disk = SimDisk(Random(seed), capacity_bytes=capacity_bytes)
    disk.make_dirs("data")
    return disk


def open_journal(disk: SimDisk, **options: Any) -> Journal:
    return Journal.open(disk, PATH, **options)


def after_power_cut(disk: SimDisk, **options: Any) -> Journal:
    disk.power_cut()
    return open_journal(disk, **options)


def fill_group(journal: Journal, raft_id: str, count: int, *, size: int = 20) -> RaftJournal:
    """Append so many entries in the group's term, which becomes at least 1."""
    group = journal.group(raft_id)
    if group.is_new:
        group.begin_generation(0, {1: "one", 2: "two", 3: "three"}, b"")
    if not group.getCurrentTerm():
        group.setCurrentTerm(1, 2)
    for _ in range(count):
        index = len(group) + 1
        group.add((b"%d " % index).ljust(size, b"."), index, group.getCurrentTerm())
    return group


def contents(journal: Journal) -> dict[str, Any]:
    """All that a journal says, but for its boot."""
    held: dict[str, Any] = {"peers": dict(journal.peers)}
    for raft_id in journal.raft_ids():
        group = journal.group(raft_id)
        held[raft_id] = (
            group.generation,
            dict(group.voters),
            group.base,
            group.getCurrentTerm(),
            group.getVotedForNodeId(),
            list(group[:]),
        )
    return held


def task_of(journal: Journal) -> JournalSyncTask:
    """The task that there is."""
    task = journal.begin_sync()
    if task is None:
        raise LookupError("nothing to sync, or a task is out")
    return task


def block_ends(data: bytes) -> list[int]:
    """Where the blocks of a journal end, in bytes."""
    ends, end = [], 0
    while (header := journal_file.decode_header(data, end)) is not None:
        end += journal_file.HEADER_BYTES + header.length
        ends.append(end)
    return ends
