"""The journal of a broker: nothing that was synced goes, nothing is half there, no room is no end.

Blocks and torn ends: test_journal_file. One group's view: test_raft_journal.
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any, Final

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus import journal
from raftlog.consensus import journal as journal_file
from raftlog.consensus.journal import (
    HEADER_BYTES,
    SECTOR_BYTES,
    CommittedEntryError,
    Found,
    Journal,
    PeerSeen,
    RaftJournal,
    RaftLog,
    is_consistent,
)
from raftlog.consensus.settings import APPEND_BYTES, APPEND_ENTRIES_MAX
from raftlog.consensus.transport import COMMAND, encode_seal
from raftlog.disk import NO_ROOM, TEMPORARY_SUFFIX, OsDisk
from raftlog.errors import DamagedJournalError, DiskFullError, StorageFailedError
from raftlog.testing.disk import FOREVER, Fault, SimDisk, SimFile
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
from tests.storage.crashes import chances_of, sweep

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


def test_changes_of_a_refused_block_are_reported_once_they_are_durable() -> None:
    """Otherwise peers would not recognize an older copy that lacks them, a vote for example."""
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 1)
    disk.faults.append(Fault({"write"}, errno.ENOSPC))
    with pytest.raises(DiskFullError):
        journal.sync()
    journal.sync()
    assert journal.reported_sequence == journal.sequence


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
    noted = journal.sequence
    assert noted == 3 + 2 * 100
    journal.note_peer(2, "two", 6)  # and never synced
    journal = after_power_cut(disk)
    assert (journal.opened_sequence, journal.sequence) == (noted, noted + 1)


def test_a_journal_cut_between_two_blocks_opens_and_is_known_by_its_sequence() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    ends = []
    for number in range(5):
        journal.note_peer(2, "two", number)
        journal.sync()
        ends.append(journal.size_bytes)
    noted = journal.sequence
    disk.cut_off(PATH, ends[1])
    journal = after_power_cut(disk)
    assert journal.notes == []
    assert journal.opened_sequence == noted - 3


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
    assert journal.raft_ids() == []
    fill_group(journal, "b", 1)
    fill_group(journal, "a", 1)
    assert journal.raft_ids() == ["a", "b"]
    journal.sync()
    assert after_power_cut(disk).raft_ids() == ["a", "b"]


def test_a_dropped_group_is_gone_and_may_be_made_anew() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    old = fill_group(journal, "a", 3)
    journal.sync()
    journal.drop("a")
    journal.drop("never there")
    assert journal.is_dirty
    assert journal.raft_ids() == []
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
    assert open_journal(disk).raft_ids() == []


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


# -- journal file ----------------------------------------------------------------------------------
#
# Blocks in a file: what was synced is found or the file is refused; what was torn is cut.


JOURNAL_FILE_PATH: Final = "journal"
# Around one sector, across several, with zeros in plenty.
PAYLOADS: Final = (b"first", b"x" * 470, bytes(1_300), b"", b"last" + bytes(700) + b"\1")


def disk_with(data: bytes) -> SimDisk:
    disk = SimDisk(Random(1))
    file = disk.open(JOURNAL_FILE_PATH, create=True)
    file.append([data])
    file.sync()
    disk.sync_dir(".")
    return disk


def read(data: bytes) -> Found:
    return journal.read(disk_with(data).open(JOURNAL_FILE_PATH))


def blocks(payloads: Sequence[bytes] = PAYLOADS, *, first: int = 7) -> list[bytes]:
    made: list[bytes] = []
    for number, payload in enumerate(payloads):
        position = sum(map(len, made))
        made.append(journal.encode(payload, sequence=first + number, position=position))
    return made


def test_what_was_written_is_read() -> None:
    made = blocks()
    found = read(b"".join(made))
    assert found.payloads == list(PAYLOADS)
    assert (found.sequence, found.end, found.torn) == (11, sum(map(len, made)), "")


@given(payloads=st.lists(st.binary(max_size=1_200), min_size=1, max_size=6))
def test_any_payloads_are_read(payloads: list[bytes]) -> None:
    found = read(b"".join(blocks(payloads)))
    assert (found.payloads, found.torn) == (payloads, "")


def test_the_format_is_the_one_drawn() -> None:
    block = journal.encode(b"\x90", sequence=3, position=0)
    assert block.hex(" ", 2) == (
        "726a 0200 0000 0300 0000 0000 0000 0000 0000 fb2f 1a98 dbfb 9a3c 7631 90ff"
    )


@pytest.mark.parametrize("last", PAYLOADS)
def test_no_flipped_bit_goes_unnoticed(last: bytes) -> None:
    """Not one is taken for a torn block either, though half of them are in the last one."""
    data = b"".join(blocks([b"one", bytes(600), last]))
    verdicts: Counter[str] = Counter()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(flipped))
        except DamagedJournalError:
            verdicts["refused"] += 1
        else:
            verdicts["cut" if found.torn else "unnoticed"] += 1
    assert verdicts == {"refused": 8 * len(data)}


def test_a_bit_that_was_alone_in_its_sector_is_the_one_that_cannot_be_told() -> None:
    """The last block then looks as if that sector had not been written; a block before it not."""
    lonely = bytes(900) + b"\1" + bytes(600)
    for following, verdict in ((), "cut"), ((b"next",), "refused"):
        data = bytearray(b"".join(blocks([b"one", lonely, *following])))
        data[data.index(b"\1" + bytes(600))] = 0
        try:
            found = read(bytes(data))
        except DamagedJournalError:
            assert verdict == "refused"
        else:
            assert (verdict, found.payloads) == ("cut", [b"one"])


@pytest.mark.parametrize("last", PAYLOADS)
def test_a_file_cut_off_anywhere_in_its_last_block_was_torn(last: bytes) -> None:
    made = blocks([b"one", b"two", last])
    whole = b"".join(made)
    start = len(whole) - len(made[-1])
    for size in range(start + 1, len(whole)):
        found = read(whole[:size])
        assert found.torn
        assert (found.payloads, found.end) == ([b"one", b"two"], start)


def test_any_sectors_of_the_last_block_may_be_unwritten() -> None:
    """Each subset, wherever the sectors' borders fall; one that changes nothing is no tear."""
    for shift in range(0, SECTOR_BYTES, 13):
        for last in PAYLOADS:
            made = blocks([b"-" * shift, last])
            whole = b"".join(made)
            start = len(made[0])
            borders = [
                start,
                *(b for b in range(0, len(whole), SECTOR_BYTES) if b > start),
                len(whole),
            ]
            pieces = list(pairwise(borders))
            for mask in range(1 << len(pieces)):
                data = bytearray(whole)
                for number, (begin, end) in enumerate(pieces):
                    if mask >> number & 1:
                        data[begin:end] = bytes(end - begin)
                found = read(bytes(data))
                assert bool(found.torn) == (data != whole)
                assert found.end == (start if found.torn else len(whole))


def test_the_first_block_is_never_torn() -> None:
    """A file is named only once its first block is durable: a part of one is damage."""
    (block,) = blocks([b"x" * 600])
    for size in (0, 1, HEADER_BYTES, len(block) - 1):
        with pytest.raises(DamagedJournalError, match="corrupt at byte 0"):
            read(block[:size])


def test_a_blank_sector_before_a_good_block_is_damage() -> None:
    made = blocks([b"one", b"-" * 1_500, b"three"])
    data = bytearray(b"".join(made))
    for begin in (len(made[0]), SECTOR_BYTES, 2 * SECTOR_BYTES):
        harmed = bytearray(data)
        end = (begin // SECTOR_BYTES + 1) * SECTOR_BYTES
        harmed[begin:end] = bytes(end - begin)
        with pytest.raises(DamagedJournalError, match=f"corrupt at byte {len(made[0])}"):
            read(bytes(harmed))


def test_a_block_that_is_missing_or_there_twice_is_damage() -> None:
    one, two, three = blocks([b"a" * 484, b"b" * 484, b"c" * 484])
    for wrong in (one + three, one + one, one + two + two):
        with pytest.raises(DamagedJournalError, match="expected block"):
            read(wrong)


def test_zeros_after_the_last_block_are_a_block_that_was_not_written() -> None:
    made = b"".join(blocks())
    for count in (1, HEADER_BYTES, SECTOR_BYTES, 5_000):
        found = read(made + bytes(count))
        assert (found.end, bool(found.torn)) == (len(made), True)


def test_garbage_after_the_last_block_is_damage() -> None:
    made = b"".join(blocks())
    with pytest.raises(DamagedJournalError, match=f"corrupt at byte {len(made)}"):
        read(made + b"\xaa" * 600)


def test_the_error_says_where_and_what_to_do() -> None:
    data = bytearray(b"".join(blocks([b"one", b"two"])))
    data[-2] ^= 4
    with pytest.raises(DamagedJournalError) as caught:
        read(bytes(data))
    text = str(caught.value)
    assert text.startswith("journal is corrupt at byte 32: the checksum of block 8")
    for words in ("does not start", "restore", "delete the data directory", "older copy"):
        assert words in text


def test_a_block_that_cannot_be_read_is_damage() -> None:
    disk = disk_with(b"".join(blocks()))
    file: SimFile = disk.open(JOURNAL_FILE_PATH)
    disk.faults.append(Fault({"read"}, skip=2, times=FOREVER))
    with pytest.raises(DamagedJournalError, match="cannot be read"):
        journal.read(file)


# -- raft journal ----------------------------------------------------------------------------------
#
# One group's view of the journal: the library's interface, and what it may not do.


def journal_of(
    entries: int, *, term: int = 1, records: list[list[Any]] | None = None
) -> RaftJournal:
    """A group in generation 1 with so many entries; ``records`` takes down its changes."""
    taken: list[list[Any]] = [] if records is None else records

    def record(change: list[Any]) -> None:
        taken.append(change)
        kind, _group, *fields = change
        journal.apply(kind, fields)

    journal = RaftJournal("g", record)
    journal.begin_generation(1, {2: "b", 1: "a"}, b"base")
    journal.setCurrentTerm(term, None)
    for index in range(1, entries + 1):
        journal.add(b"%d" % index, index, term)
    return journal


def test_a_new_group_has_nothing() -> None:
    journal = RaftJournal("g", lambda change: None)
    assert journal.is_new
    assert (journal.generation, journal.voters, journal.base) == (0, {}, b"")
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId(), len(journal)) == (0, None, 0)
    assert journal.live_records() == []


def test_it_is_a_list_of_entries_as_the_library_wants_it() -> None:
    journal = journal_of(5, term=3)
    assert len(journal) == 5
    assert journal[0] == (b"1", 1, 3)
    assert journal[-1] == (b"5", 5, 3)
    assert journal[1:3] == [(b"2", 2, 3), (b"3", 3, 3)]
    assert journal[7:] == []
    with pytest.raises(IndexError):
        journal[5]


def test_entries_are_cut_from_the_end_only() -> None:
    journal = journal_of(5)
    journal.deleteEntriesFrom(3)
    assert [index for _, index, _ in journal[:]] == [1, 2, 3]
    with pytest.raises(NotImplementedError):
        journal.deleteEntriesTo(1)
    journal.clear()
    assert len(journal) == 0


def test_cutting_nothing_is_no_change() -> None:
    records: list[list[Any]] = []
    journal = journal_of(2, records=records)
    before = len(records)
    journal.deleteEntriesFrom(2)
    journal.deleteEntriesFrom(9)
    assert len(records) == before


@pytest.mark.parametrize(("index", "term"), [(7, 1), (5, 1), (6, 0)])
def test_an_entry_comes_next_or_not_at_all(index: int, term: int) -> None:
    journal = journal_of(5)
    with pytest.raises(AssertionError):
        journal.add(b"x", index, term)
    assert len(journal) == 5


def test_a_vote_is_given_once_in_a_term_and_terms_only_grow() -> None:
    records: list[list[Any]] = []
    journal = journal_of(0, term=4, records=records)
    journal.setCurrentTerm(4, 2)
    before = len(records)
    journal.setCurrentTerm(4, 2)  # the same again is no change
    assert len(records) == before
    for term, vote in ((4, 1), (4, None), (3, None), (3, 2)):
        with pytest.raises(AssertionError):
            journal.setCurrentTerm(term, vote)
    journal.setCurrentTerm(5, 1)
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId()) == (5, 1)


def test_a_generation_begins_with_nothing_of_the_one_before() -> None:
    journal = journal_of(5, term=9)
    journal.setCurrentTerm(9, 1)
    journal.begin_generation(2, {3: "c"}, b"sealed")
    assert (journal.generation, journal.voters, journal.base) == (2, {3: "c"}, b"sealed")
    assert (journal.getCurrentTerm(), journal.getVotedForNodeId(), len(journal)) == (0, None, 0)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_generation_never_comes_back(generation: int) -> None:
    journal = journal_of(1)
    with pytest.raises(AssertionError):
        journal.begin_generation(generation, {}, b"")


def test_the_commit_index_is_not_kept() -> None:
    records: list[list[Any]] = []
    journal = journal_of(5, records=records)
    before = len(records)
    journal.setRaftCommitIndex(5)
    journal.onOneSecondTimer()
    journal._destroy()
    assert journal.getRaftCommitIndex() == 1
    assert len(records) == before


def test_a_dropped_group_takes_no_changes() -> None:
    journal = journal_of(2)
    journal.mark_dropped()
    for change in (
        lambda: journal.add(b"x", 3, 1),
        lambda: journal.setCurrentTerm(5, None),
        lambda: journal.begin_generation(2, {}, b""),
        journal.clear,
    ):
        with pytest.raises(AssertionError, match="dropped"):
            change()


def test_live_records_make_the_same_journal() -> None:
    journal = journal_of(3, term=2)
    journal.setCurrentTerm(6, 2)
    copy = RaftJournal("g", lambda change: None)
    for kind, group, *fields in journal.live_records():
        assert group == "g"
        copy.apply(kind, fields)
    assert copy[:] == journal[:]
    assert (copy.getCurrentTerm(), copy.getVotedForNodeId()) == (6, 2)
    assert (copy.generation, copy.voters, copy.base) == (1, {1: "a", 2: "b"}, b"base")
    assert not copy.is_new


# -- raft log --------------------------------------------------------------------------------------
#
# What of a log matches a leader's, what is cut, what seals it.


VOTERS = {1: "one", 2: "two", 3: "three"}


def command(text: str) -> bytes:
    return bytes([COMMAND]) + text.encode()


def log_of(*terms: int) -> RaftLog:
    """A log with these terms from index 2 on; each command is its index."""
    journal = open_journal(disk_of()).group("group")
    journal.begin_generation(0, VOTERS, b"")
    journal.add(b"\x01", 1, 0)
    for index, term in enumerate(terms, start=2):
        journal.add(command(str(index)), index, term)
    return RaftLog(journal)


def terms(log: RaftLog) -> list[int | None]:
    return [log.term_at(index) for index in range(2, len(log) + 1)]


def entries(*pairs: tuple[int, str]) -> list[list[Any]]:
    return [[term, command(text)] for term, text in pairs]


@pytest.mark.parametrize(
    ("mine", "index", "term", "guess"),
    [
        ((1, 1, 1), 4, 1, None),
        ((1, 1, 1), 1, 0, None),
        ((1, 1, 1), 5, 1, 5),  # ends before
        ((1, 1, 1), 99, 7, 5),
        ((1, 2, 2, 2), 5, 3, 3),  # the first of term 2
        ((2, 2, 2), 4, 3, 2),  # back to the first entry that can differ
    ],
)
def test_a_conflict_is_answered_with_the_beginning_of_its_term(
    mine: tuple[int, ...], index: int, term: int, guess: int | None
) -> None:
    assert log_of(*mine).conflict(index, term) == guess


def test_a_matching_suffix_stays() -> None:
    log = log_of(1, 1, 1, 1)  # hazard 2
    log.merge(2, entries((1, "3")), commit_index=1)
    assert terms(log) == [1, 1, 1, 1]
    log.merge(1, [], commit_index=1)
    assert terms(log) == [1, 1, 1, 1]


def test_what_conflicts_is_cut_with_all_after_it() -> None:
    log = log_of(1, 2, 2, 2)
    log.merge(2, entries((3, "x"), (3, "y")), commit_index=2)
    assert terms(log) == [1, 3, 3]
    assert log.entries_from(3) == entries((3, "x"), (3, "y"))


def test_nothing_committed_is_ever_cut() -> None:
    log = log_of(1, 2, 2)
    with pytest.raises(CommittedEntryError):
        log.merge(2, entries((3, "x")), commit_index=3)
    assert terms(log) == [1, 2, 2]


def test_the_first_seal_is_remembered_until_it_is_cut() -> None:
    log = log_of(1)
    assert log.seal_index is None
    log.add(encode_seal(VOTERS), 3, 1)
    log.add(encode_seal(VOTERS), 4, 1)
    assert log.seal_index == 3
    log.merge(3, entries((2, "x")), commit_index=1)
    assert log.seal_index == 3, "the first one stays"
    log.merge(2, entries((3, "x")), commit_index=1)
    assert log.seal_index is None


def test_a_seal_is_found_in_a_log_that_is_read_again() -> None:
    journal = open_journal(disk_of()).group("group")
    journal.begin_generation(0, VOTERS, b"")
    journal.add(b"\x01", 1, 0)
    journal.add(encode_seal(VOTERS), 2, 1)
    assert RaftLog(journal).seal_index == 2


def test_an_append_is_bounded_but_never_empty() -> None:
    log = log_of()
    for index in range(2, 3 * APPEND_ENTRIES_MAX):
        log.add(command("x"), index, 1)
    assert len(log.entries_from(2)) == APPEND_ENTRIES_MAX
    large = log_of()
    for index in range(2, 6):
        large.add(command("x" * APPEND_BYTES), index, 1)
    assert len(large.entries_from(2)) == 1


@pytest.mark.parametrize(
    ("previous", "previous_term", "added", "leader_term", "holds"),
    [
        (1, 0, [], 1, True),
        (0, 0, [], 1, False),  # there is no entry 0
        (1, 1, [], 1, False),  # the first entry is of term 0
        (3, 2, [], 1, False),  # of a term after the leader's
        (3, 2, [(1, "x")], 2, False),  # terms descend
        (3, 2, [(2, "x"), (3, "y")], 2, False),
        (1, 0, [(0, "x")], 2, False),  # only the first entry is of term 0
        (3, 2, [(2, "x"), (3, "y")], 3, True),
    ],
)
def test_what_no_leader_would_send(
    previous: int, previous_term: int, added: list[tuple[int, str]], leader_term: int, holds: bool
) -> None:
    assert is_consistent(previous, previous_term, entries(*added), leader_term) is holds


# -- journal crashes -------------------------------------------------------------------------------
#
# A process may end before any change to the disk: what the next one finds is always legal.


chances = chances_of(1, 10)


@dataclass
class Promise:
    """What a journal may be found to hold: what was durable, or with that the sync under way."""

    journal: Journal
    legal: list[dict[str, Any]] = field(default_factory=list)
    boot: int = 0

    def sync(self) -> None:
        self.legal.append(contents(self.journal))
        self.journal.sync()
        del self.legal[:-1]


def started(disk: SimDisk) -> Promise:
    """A journal with a history, about to be rewritten."""
    disk.make_dirs("data")
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    promise = Promise(journal, boot=journal.boot)
    fill_group(journal, "a", 3)
    for number in range(8):
        fill_group(journal, f"brief {number}", 4)
        promise.sync()
        journal.drop(f"brief {number}")
    promise.sync()
    return promise


def change(promise: Promise) -> None:
    """Rounds of every kind of change, each synced; at some of them the file is rewritten."""
    journal = promise.journal
    for number in range(8):
        group = fill_group(journal, "a", 2, size=30 + 200 * (number % 3))
        promise.sync()
        group.setCurrentTerm(group.getCurrentTerm() + 1, 1 + number % 3)
        group.deleteEntriesFrom(2)
        journal.note_peer(2, "two", number)
        fill_group(journal, f"brief {number}", 3, size=60)
        promise.sync()
        if number == 5:
            group.begin_generation(group.generation + 1, {1: "one", 5: "five"}, bytes(700))
        journal.drop(f"brief {number}")
        promise.sync()


def check(disk: SimDisk, promise: Promise) -> None:
    """The journal opens, holds what is legal, and goes on; and what it holds is durable now."""
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    found = contents(journal)
    assert found in promise.legal
    assert journal.boot > promise.boot
    fill_group(journal, "on it goes", 1)
    journal.sync()
    journal.drop("on it goes")
    journal.sync()
    disk.power_cut()
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    assert contents(journal) == found
    journal.close()
    promise.legal, promise.boot = [found], journal.boot


def test_a_crash_at_any_change_to_the_disk_loses_nothing(chances: int, seed: int) -> None:
    rewrites = 0

    def act(disk: SimDisk, promise: Promise) -> None:
        nonlocal rewrites
        file = promise.journal._file
        change(promise)
        rewrites += promise.journal._file is not file

    changes = sweep(started, act, check, seed=seed, chances=chances)
    assert changes > 50
    assert rewrites > 0


def test_a_crash_while_a_journal_is_made(chances: int, seed: int) -> None:
    def prepare(disk: SimDisk) -> list[Journal]:
        disk.make_dirs("data")
        return []

    def act(disk: SimDisk, opened: list[Journal]) -> None:
        opened.append(open_journal(disk))

    def look(disk: SimDisk, opened: list[Journal]) -> None:
        boot = opened[-1].boot if opened else 0
        journal = open_journal(disk)
        assert contents(journal) == {"peers": {}}
        assert journal.boot > boot
        opened.append(journal)

    sweep(prepare, act, look, seed=seed, chances=chances)


def test_a_crash_while_a_torn_end_is_cut(chances: int, seed: int) -> None:
    def prepare(disk: SimDisk) -> Promise:
        promise = started(disk)
        promise.journal.close()
        position = len(disk.durable_bytes(PATH) or b"")
        block = journal_file.encode(
            bytes(3_000), sequence=promise.journal._sequence + 1, position=position
        )
        disk.open(PATH).append([block[:2_000]])
        disk.crash()
        return promise

    def act(disk: SimDisk, promise: Promise) -> None:
        journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
        promise.boot = journal.boot
        assert "truncated 2000 torn bytes" in journal.notes[0]

    sweep(prepare, act, check, seed=seed, chances=chances)


# -- at random -------------------------------------------------------------------------------------


def random_change(random: Random, journal: Journal) -> None:
    name = random.choice("abc")
    group = journal.group(name)
    roll = random.random()
    if roll < 0.5 or group.is_new:
        fill_group(journal, name, random.randrange(1, 4), size=random.choice((20, 200, 700)))
    elif roll < 0.65:
        group.deleteEntriesFrom(random.randrange(len(group) + 1))
    elif roll < 0.8:
        group.setCurrentTerm(group.getCurrentTerm() + 1, random.choice((None, 1, 2)))
    elif roll < 0.87:
        group.begin_generation(group.generation + 1, {1: "x"}, random.randbytes(40))
    elif roll < 0.93:
        journal.drop(name)
    else:
        journal.note_peer(random.randrange(4), "d", random.randrange(9))


def live_a_life(seed: int) -> int:
    """Changes, syncs, rewrites, full disks, crashes and power cuts; how many lives it took."""
    random = Random(seed)
    disk = disk_of(seed)
    journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
    legal = [contents(journal)]
    for _ in range(80):
        random_change(random, journal)
        if random.random() < 0.5:
            continue
        legal.append(contents(journal))
        ending = random.random() < 0.25
        if ending:
            operations = random.choice((("write",), ("sync",), ("rename", "sync_dir")))
            disk.faults.append(Fault(operations, errno.EIO, forgets=random.random() < 0.5))
        elif random.random() < 0.2:
            disk.capacity_bytes = (1 << 40) - disk.free_bytes(".") + random.randrange(900)
        try:
            journal.sync()
            del legal[:-1]
        except DiskFullError:
            del legal[-1]
        except StorageFailedError:
            pass
        disk.faults.clear()
        disk.capacity_bytes = None
        if ending:
            boot = journal.boot
            random.choice((disk.crash, disk.power_cut, disk.power_cut))()
            journal = open_journal(disk, rewrite_bytes=SMALL_REWRITE)
            assert contents(journal) in legal, f"seed {seed}"
            assert journal.boot == boot + 1
            legal = [contents(journal)]
    return journal.boot


def test_a_random_life_loses_nothing(seed: int) -> None:
    assert sum(live_a_life(seed + number) for number in range(60)) > 300


@pytest.mark.seeds
def test_many_random_lives_lose_nothing(seed: int) -> None:
    assert sum(live_a_life(seed + number) for number in range(2_000)) > 12_000


# -- journal full disk -----------------------------------------------------------------------------
#
# S30, S31: no room is refused, kept and tried again; a failed fdatasync is the journal's end.


def test_without_room_changes_stay_pending_and_are_synced_once_there_is_some() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 3)
    journal.sync()
    disk.capacity_bytes = disk.open(PATH).size() + 100
    fill_group(journal, "a", 3, size=200)
    for _ in range(3):
        with pytest.raises(DiskFullError, match=r"disk full.*consensus\.journal"):
            journal.sync()
        assert journal.is_dirty
        fill_group(journal, "a", 1)
    assert disk.open(PATH).size() == journal.size_bytes == disk.capacity_bytes - 100
    disk.capacity_bytes = None
    journal.sync()
    held = contents(journal)
    assert len(held["a"][5]) == 9
    assert contents(after_power_cut(disk)) == held


def test_changes_made_while_a_refused_ticket_was_out_keep_their_place() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    group = fill_group(journal, "a", 5)
    task = task_of(journal)
    group.deleteEntriesFrom(2)
    fill_group(journal, "a", 1)
    disk.faults.append(Fault({"write"}, errno.ENOSPC))
    with pytest.raises(OSError, match="No space") as caught:
        task.run()
    assert isinstance(journal.failed_sync(task, caught.value), DiskFullError)
    journal.sync()
    held = contents(journal)
    assert contents(after_power_cut(disk)) == held


def test_a_power_cut_after_a_refused_write_finds_nothing_of_it() -> None:
    """Also when a longer block was begun in its place: the two never mix."""
    for bytes_left in [0, 1, 27, 28, 29, 300, 600, 1_100]:
        for seed in range(40):
            disk = disk_of(seed)
            journal = open_journal(disk)
            fill_group(journal, "a", 2)
            journal.sync()
            legal = [contents(journal)]
            disk.capacity_bytes = disk.open(PATH).size() + bytes_left
            fill_group(journal, "a", 1, size=1_500)
            with pytest.raises(DiskFullError):
                journal.sync()
            disk.capacity_bytes = None
            fill_group(journal, "b", 4, size=400)
            legal.append(contents(journal))
            disk.faults.append(Fault({"sync"}, errno.EIO))
            with pytest.raises(StorageFailedError):
                journal.sync()
            assert contents(after_power_cut(disk)) in legal


def test_a_refused_write_that_cannot_be_taken_back_ends_the_journal() -> None:
    for operation in ("truncate", "sync"):
        journal = open_journal(disk := disk_of())
        fill_group(journal, "a", 2)
        disk.faults += [Fault({"write"}, errno.ENOSPC), Fault({operation}, errno.ENOSPC)]
        with pytest.raises(StorageFailedError):
            journal.sync()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("forgets", [False, True])
def test_a_failed_fdatasync_is_the_end(code: int, forgets: bool) -> None:
    """Syncing again would not tell what is on the disk."""
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 2)
    disk.faults.append(Fault({"sync"}, code, forgets=forgets))
    with pytest.raises(StorageFailedError, match=r"consensus\.journal failed"):
        journal.sync()
    fill_group(journal, "a", 1)
    for _ in range(2):
        with pytest.raises(StorageFailedError):
            journal.begin_sync()
        with pytest.raises(StorageFailedError):
            journal.sync()
    disk.power_cut()
    assert len(open_journal(disk).group("a")) in (0, 2)


def test_what_a_failed_fdatasync_has_forgotten_is_written_again_by_the_next_process() -> None:
    """It reads the bytes, for they are in the page cache; the disk may never have seen them."""
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 30, size=100)
    disk.faults.append(Fault({"sync"}, errno.EIO, forgets=True))
    with pytest.raises(StorageFailedError):
        journal.sync()
    disk.crash()
    journal = open_journal(disk)
    assert len(journal.group("a")) == 30
    fill_group(journal, "b", 1)
    journal.sync()
    held = contents(journal)
    assert contents(after_power_cut(disk)) == held


def test_opening_without_room_says_so_and_changes_nothing() -> None:
    disk = disk_of()
    journal = open_journal(disk)
    fill_group(journal, "a", 3)
    journal.sync()
    disk.crash()
    before = disk.durable_bytes(PATH)
    disk.capacity_bytes = len(before or b"")
    with pytest.raises(DiskFullError):
        open_journal(disk)
    assert disk.durable_bytes(PATH) == before
    disk.capacity_bytes = None
    assert open_journal(disk).boot == 2


def test_opening_on_a_bad_disk_raises_ours_and_the_next_try_works() -> None:
    for is_new in [False, True]:
        for step in ["create", "write", "sync", "rename", "sync_dir"]:
            for code in [errno.ENOSPC, errno.EIO]:
                disk = disk_of()
                if not is_new:
                    open_journal(disk).close()
                disk.faults.append(Fault({step}, code))
                expected = DiskFullError if code == errno.ENOSPC else StorageFailedError
                if step in {"create", "rename"} and not is_new:
                    disk.faults.clear()
                else:
                    with pytest.raises(expected):
                        open_journal(disk)
                disk.crash()
                assert not disk.faults or not disk.faults[0].times
                assert open_journal(disk).raft_ids() == []
