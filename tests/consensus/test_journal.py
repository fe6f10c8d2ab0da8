"""The journal of a broker: nothing that was synced goes, nothing is half there, no room is no end.

Blocks and torn ends: test_journal_file. One group's view: test_raft_journal.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from typing import Any

import msgpack
import pytest

from raftlog.consensus import journal as journal_file
from raftlog.consensus.journal import Journal, PeerSeen
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, OsDisk
from raftlog.errors import DamagedJournalError, DiskFullError, StorageFailedError
from raftlog.testing.disk import FOREVER, Fault
from tests.consensus.journals import (
    PATH,
    SMALL_REWRITE,
    after_power_cut,
    contents,
    disk_of,
    fill_group,
    open_journal,
    task_of,
)

# -- what is kept ----------------------------------------------------------------------------------


def test_what_was_synced_is_there_after_a_power_cut() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 3)
    fill_group(journal, "b", 2).setCurrentTerm(7, None)
    journal.group("a").deleteEntriesFrom(1)
    journal.note_peer(2, "two", 5)
    journal.sync()
    held = contents(journal)
    voters = {1: "one", 2: "two", 3: "three"}
    assert held["a"] == (0, voters, b"", 1, 2, [(b"1 " + b"." * 18, 1, 1)])
    assert contents(after_power_cut(disk)) == held


def test_what_peers_have_reported_is_kept_and_not_reported_in_turn() -> None:
    """Otherwise two idle brokers would store each other's reports endlessly."""
    disk = disk_of()
    journal = open_journal(disk)
    journal.note_peer(2, "two", 5)
    journal.sync()
    reported = journal.reported_sequence
    assert reported == journal.sequence
    journal.note_heard(2, 7)
    journal.sync()
    assert (journal.sequence, journal.reported_sequence) == (reported + 1, reported)
    journal.note_heard(2, 7)
    assert not journal.is_dirty, "it is known"
    journal.note_peer(2, "two", 6)
    journal.note_heard(2, 8)
    journal.sync()
    assert journal.reported_sequence == journal.sequence
    assert after_power_cut(disk).peers == {2: PeerSeen("two", 6, "", 8)}
    journal.note_peer(2, "another", 1)
    assert journal.peers == {2: PeerSeen("another", 1)}


def test_what_was_not_synced_is_gone_all_of_it(seed: int) -> None:
    disk = disk_of(seed)
    journal = open_journal(disk)
    fill_group(journal, "a", 3)
    journal.sync()
    held = contents(journal)
    fill_group(journal, "a", 30, size=500)
    assert journal.is_dirty
    task = task_of(journal)
    task._append = lambda: None  # type: ignore[method-assign]  # the machine stops before it
    task.run()
    assert contents(after_power_cut(disk)) == held


def test_a_generation_begins_in_one_piece_or_not_at_all() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    group = fill_group(journal, "a", 4)
    journal.sync()
    group.begin_generation(1, {4: "four"}, b"state")
    group.setCurrentTerm(1, None)
    journal.sync()
    journal = after_power_cut(disk)
    group = journal.group("a")
    assert (group.generation, group.voters, group.base) == (1, {4: "four"}, b"state")
    assert len(group) == 0


def test_the_boot_number_grows_by_one_at_every_open() -> None:
    disk = disk_of()
    boots = [open_journal(disk).boot]
    for way in (disk.crash, disk.power_cut, disk.power_cut, disk.crash):
        way()
        boots.append(open_journal(disk).boot)
    assert boots == [1, 2, 3, 4, 5]


def test_the_boot_number_is_durable_before_open_returns() -> None:
    disk = disk_of()
    assert not open_journal(disk).is_dirty
    assert after_power_cut(disk).boot == 2


def test_the_sequence_is_of_what_is_durable_and_goes_on_over_boots_and_rewrites() -> None:
    disk = disk_of()
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    assert (journal.opened_sequence, journal.sequence) == (1, 2)
    journal.note_peer(2, "two", 5)
    task = task_of(journal)
    task.run()
    assert journal.sequence == 2, "the caller has not heard yet that it is durable"
    journal.complete_sync(task)
    assert journal.sequence == 3
    churn(journal, 100)
    assert journal.size_bytes < 2 * SMALL_REWRITE, "it was rewritten"
    told = journal.sequence
    assert told == 3 + 2 * 100
    journal.note_peer(2, "two", 6)  # and never synced
    journal = after_power_cut(disk)
    assert (journal.opened_sequence, journal.sequence) == (told, told + 1)


def test_a_journal_cut_between_two_blocks_opens_and_is_known_by_its_sequence() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    ends = []
    for number in range(5):
        journal.note_peer(2, "two", number)
        journal.sync()
        ends.append(journal.size_bytes)
    told = journal.sequence
    disk.cut_off(PATH, ends[1])
    journal = after_power_cut(disk)
    assert journal.notes == []
    assert journal.opened_sequence == told - 3


def test_a_block_that_was_refused_is_not_counted() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    journal.note_peer(2, "two", 1)
    disk.faults.append(Fault({"write"}, errno.ENOSPC))
    with pytest.raises(DiskFullError):
        journal.sync()
    assert journal.sequence == 2
    journal.sync()
    assert journal.sequence == 3


def test_peers_are_remembered_as_last_noted() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    journal.note_peer(2, "two", 1)
    journal.note_peer(3, "three", 9)
    journal.note_peer(2, "other", 1)
    journal.sync()
    expected = {2: PeerSeen("other", 1), 3: PeerSeen("three", 9)}
    assert journal.peers == expected
    journal.note_peer(3, "three", 9)
    assert not journal.is_dirty
    assert after_power_cut(disk).peers == expected


def test_groups_are_made_when_asked_for_and_listed_once_they_hold_something() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    assert journal.group("b") is journal.group("b")
    assert journal.group_ids() == []
    fill_group(journal, "b", 1)
    fill_group(journal, "a", 1)
    assert journal.group_ids() == ["a", "b"]
    journal.sync()
    assert after_power_cut(disk).group_ids() == ["a", "b"]


def test_a_dropped_group_is_gone_and_may_be_made_anew() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    old = fill_group(journal, "a", 3)
    journal.sync()
    journal.drop("a")
    journal.drop("never there")
    assert journal.is_dirty
    assert journal.group_ids() == []
    with pytest.raises(AssertionError, match="dropped"):
        old.setCurrentTerm(8, None)
    fresh = journal.group("a")
    assert fresh.is_new
    fresh.begin_generation(0, {9: "nine"}, b"")
    journal.sync()
    assert contents(after_power_cut(disk))["a"] == (0, {9: "nine"}, b"", 0, None, [])


def test_a_group_that_never_held_anything_is_dropped_without_a_trace() -> None:
    journal = open_journal(disk_of())
    group = journal.group("a")
    journal.drop("a")
    assert not journal.is_dirty
    with pytest.raises(AssertionError, match="dropped"):
        group.begin_generation(0, {}, b"")


# -- syncing ---------------------------------------------------------------------------------------


def test_a_sync_is_one_write_and_one_fdatasync_for_all_groups() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    for number in range(50):
        fill_group(journal, f"g{number}", 2)
    before = disk.changes
    journal.sync()
    assert disk.changes - before == 2


def test_nothing_to_sync_is_no_task() -> None:
    journal = open_journal(disk_of())
    assert not journal.is_dirty
    assert journal.begin_sync() is None


def test_there_is_one_ticket_at_a_time_and_memory_is_ahead_while_it_is_out() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 1)
    task = task_of(journal)
    fill_group(journal, "a", 1)
    assert journal.begin_sync() is None
    assert journal.is_dirty
    task.run()
    journal.complete_sync(task)
    assert journal.is_dirty
    journal.sync()
    assert not journal.is_dirty
    assert len(after_power_cut(disk).group("a")) == 2


def test_a_ticket_covers_what_was_there_when_it_was_made() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 1)
    task = task_of(journal)
    fill_group(journal, "a", 1)
    task.run()
    assert len(after_power_cut(disk).group("a")) == 1


def test_a_ticket_runs_in_any_thread() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 8)
    task = task_of(journal)
    thread = threading.Thread(target=task.run)
    thread.start()
    fill_group(journal, "a", 8)
    thread.join()
    journal.complete_sync(task)
    journal.sync()
    assert len(after_power_cut(disk).group("a")) == 16


def test_a_closed_journal_takes_no_changes() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 1)
    journal.close()
    with pytest.raises(AssertionError, match="closed"):
        fill_group(journal, "a", 1)
    disk.crash()
    assert open_journal(disk).group_ids() == []


def test_it_works_on_a_real_disk(tmp_path: Any) -> None:
    path = str(tmp_path / "consensus.journal")
    journal = Journal.open(OsDisk(), path, rewrite_bytes=SMALL_REWRITE)
    for number in range(200):
        journal.group("a")
        fill_group(journal, "a", 2)
        journal.note_peer(1, "one", number)
        if number % 10 == 9:
            journal.group("a").deleteEntriesFrom(1)
        journal.sync()
    held = contents(journal)
    assert journal.size_bytes < 4 * SMALL_REWRITE
    journal.close()
    journal = Journal.open(OsDisk(), path, create=False)
    assert (contents(journal), journal.boot) == (held, 2)
    journal.close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["consensus.journal"]


# -- rewriting -------------------------------------------------------------------------------------


def churn(journal: Journal, rounds: int) -> None:
    """Sync much that is true no more, and a little that is."""
    group = fill_group(journal, "kept", 2)
    for number in range(rounds):
        group.setCurrentTerm(group.getCurrentTerm() + 1, None)
        fill_group(journal, f"brief {number}", 3)
        journal.sync()
        journal.drop(f"brief {number}")
        journal.sync()


def test_a_file_that_says_little_that_is_true_is_rewritten() -> None:
    disk = disk_of()
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    churn(journal, 200)
    held = contents(journal)
    assert held["kept"][3] == 201
    assert journal.size_bytes < 2 * SMALL_REWRITE
    assert disk.list_dir("data") == ["consensus.journal"]
    journal = after_power_cut(disk, rewrite_bytes=SMALL_REWRITE)
    assert (contents(journal), journal.boot) == (held, 2)


def test_a_file_that_is_mostly_true_is_left_alone() -> None:
    disk = disk_of()
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    sizes = []
    for _ in range(100):
        fill_group(journal, "a", 5)
        journal.sync()
        sizes.append(journal.size_bytes)
    assert sizes == sorted(sizes)
    journal.group("a").clear()
    churn(journal, 400)
    assert journal.size_bytes < 2 * sizes[-1]


def test_a_small_file_is_never_rewritten() -> None:
    journal = open_journal(disk_of())
    churn(journal, 200)
    assert journal.size_bytes > 4 * SMALL_REWRITE


def test_where_there_is_no_room_to_rewrite_the_file_goes_on_as_it_is() -> None:
    for code in sorted(NO_ROOM):
        for step in ["create", "truncate", "write", "sync", "rename"]:
            disk = disk_of()
            journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
            fault = Fault({step}, code, path=f"*{TEMPORARY_SUFFIX}", times=FOREVER)
            disk.faults.append(fault)
            churn(journal, 100)
            assert journal.size_bytes > 4 * SMALL_REWRITE
            assert disk.list_dir("data") == ["consensus.journal"]
            disk.faults.clear()
            churn(journal, 30)
            assert journal.size_bytes < 2 * SMALL_REWRITE
            held = contents(journal)
            assert contents(after_power_cut(disk)) == held


def test_a_rewrite_whose_name_may_not_be_durable_is_a_failed_sync() -> None:
    disk = disk_of()
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    disk.faults.append(Fault({"sync_dir"}, errno.ENOSPC, times=FOREVER))
    with pytest.raises(StorageFailedError):
        churn(journal, 100)


def test_what_a_crash_left_of_a_rewrite_is_swept_away() -> None:
    disk = disk_of()
    open_journal(disk)
    disk.open(PATH + TEMPORARY_SUFFIX, create=True).append([b"half"])
    disk.crash()
    open_journal(disk)
    assert disk.list_dir("data") == ["consensus.journal"]


# -- damage ----------------------------------------------------------------------------------------


def test_every_flipped_bit_of_a_synced_journal_is_found() -> None:
    """Whichever block it is in, the last one too: refused, and the file named."""
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 2)
    journal.sync()
    fill_group(journal, "b", 1).setCurrentTerm(4, None)
    journal.note_peer(2, "two", 1)
    journal.sync()
    journal.close()
    size = journal.size_bytes
    verdicts: Counter[str] = Counter()
    for bit in range(8 * size):
        disk.flip_bit(PATH, bit)
        before = disk.changes
        with pytest.raises(DamagedJournalError, match=r"consensus\.journal is corrupt at byte"):
            open_journal(disk)
        verdicts["refused"] += 1
        assert disk.changes == before + 1, "only names are synced: a damaged file is left alone"
        disk.flip_bit(PATH, bit)
        disk.crash()
    assert verdicts == {"refused": 8 * size}
    assert len(open_journal(disk).group("a")) == 2


def test_a_journal_that_must_be_there_and_is_not_is_damage() -> None:
    """A broker that has voted before may not start as if it never had."""
    disk = disk_of()
    with pytest.raises(DamagedJournalError, match="the file does not exist"):
        open_journal(disk, create=False)
    open_journal(disk).close()
    assert open_journal(disk, create=False).boot == 2


@pytest.mark.parametrize(
    "payload",
    [b"\x91\x92\x63\x01", b"\x91\x91\x00", b"\x91\x92\x06\xa1x", b"\xc1", b"\x91\x01", b"\x05"],
)
def test_a_record_of_another_version_is_refused(payload: bytes) -> None:
    disk = disk_of()
    file = disk.open(PATH, create=True)
    file.append([journal_file.encode(payload, sequence=1, position=0)])
    with pytest.raises(DamagedJournalError, match="a record that this version does not know"):
        open_journal(disk)


def test_records_are_msgpack_and_nothing_else() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 1, size=2)
    journal.sync()
    payloads = journal_file.read(disk.open(PATH)).payloads
    assert [msgpack.unpackb(payload, strict_map_key=False) for payload in payloads] == [
        [],
        [[0, 1]],
        [
            [2, "a", 0, [[1, "one"], [2, "two"], [3, "three"]], b""],
            [3, "a", 1, 2],
            [4, "a", 1, 1, b"1 "],
        ],
    ]
