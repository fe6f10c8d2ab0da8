"""Guards of the journal of a voter, and of messages that wait until it is durable."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, both, drop, never, replace, value
from tests.mutation.guard import Guard

GUARDS_SYNC: Final = "tests/consensus/test_hazards.py"
JOURNAL_FILE: Final = "tests/consensus/test_journal.py"
JOURNAL_FULL_DISK: Final = "tests/consensus/test_journal.py"
NODE: Final = "tests/consensus/test_node.py"
TURNS: Final = "tests/consensus/test_node.py"
RAFT_JOURNAL: Final = "tests/consensus/test_journal.py"
TEST_JOURNAL: Final = "tests/consensus/test_journal.py"

JOURNAL: Final = [
    Guard(
        name="journal is synced",
        why="a power failure reverts votes and entries that others count (hazard 6)",
        module="raftlog/consensus/journal.py",
        function="JournalSyncTask._append",
        change=drop("call sync #2/2"),
        tests=(f"{TEST_JOURNAL}::test_what_was_synced_is_there_after_a_power_cut",),
    ),
    Guard(
        name="a rejected journal write is truncated",
        why="a partial block counts as torn, with valid blocks after it",
        module="raftlog/consensus/journal.py",
        function="JournalSyncTask._append",
        change=drop("call truncate", "call sync #1/2"),
        tests=(
            (
                "tests/consensus/test_journal.py"
                "::test_without_room_changes_stay_pending_and_are_synced_once_there_is_some"
            ),
        ),
    ),
    Guard(
        name="the truncation of a rejected journal write is synced",
        why="a power failure restores a partial block",
        module="raftlog/consensus/journal.py",
        function="JournalSyncTask._append",
        change=drop("call sync #1/2"),
        tests=(f"{JOURNAL_FULL_DISK}::test_a_power_cut_after_a_refused_write_finds_nothing_of_it",),
    ),
    Guard(
        name="rewritten journal is synced",
        why="a power failure during a rewrite leaves an empty journal (hazard 8)",
        module="raftlog/consensus/journal.py",
        function="write_file",
        change=drop("call sync"),
        tests=(
            (
                "tests/consensus/test_journal.py"
                "::test_a_crash_at_any_change_to_the_disk_loses_nothing"
            ),
        ),
    ),
    Guard(
        name="rewritten journal's name is synced",
        why="a power failure restores the old journal, without later syncs",
        module="raftlog/consensus/journal.py",
        function="JournalSyncTask._rewrite",
        change=drop("call sync_dir"),
        tests=(f"{TEST_JOURNAL}::test_a_file_that_says_little_that_is_true_is_rewritten",),
    ),
    Guard(
        name="new journal's name is synced",
        why="a power failure removes the whole journal",
        module="raftlog/consensus/journal.py",
        function="Journal._open",
        change=replace("call sync_dir", "_.args[0]"),
        tests=(f"{TEST_JOURNAL}::test_what_was_synced_is_there_after_a_power_cut",),
    ),
    Guard(
        name="boot is durable before the journal opens",
        why="two incarnations of a broker have one number, and messages of the older count",
        module="raftlog/consensus/journal.py",
        function="Journal._open",
        change=drop("call sync"),
        tests=(f"{TEST_JOURNAL}::test_the_boot_number_grows_by_one_at_every_open",),
    ),
    Guard(
        name="boot number grows at every start",
        why="messages of an older incarnation count",
        module="raftlog/consensus/journal.py",
        function="Journal._open",
        change=replace("binop boot", "_.left or 1"),
        tests=(f"{TEST_JOURNAL}::test_the_boot_number_grows_by_one_at_every_open",),
    ),
    Guard(
        name="the last block is written again at a start",
        why="a block whose sync failed is acted on, and lost after a power failure",
        module="raftlog/consensus/journal.py",
        function="Journal._make_durable",
        change=drop("call pwrite"),
        tests=(
            (
                "tests/consensus/test_journal.py"
                "::test_what_a_failed_fdatasync_has_forgotten_is_written_again_by_the_next_process"
            ),
        ),
    ),
    Guard(
        name="recovered journal blocks are synced",
        why="a power failure reverts what this incarnation has acted on",
        module="raftlog/consensus/journal.py",
        function="Journal._make_durable",
        change=drop("call sync"),
        tests=(
            f"{JOURNAL_FULL_DISK}::test_opening_on_a_bad_disk_raises_ours_and_the_next_try_works",
        ),
    ),
    Guard(
        name="failed journal sync is fatal",
        why="the next sync succeeds, and a vote is lost",
        module="raftlog/consensus/journal.py",
        function="Journal.failed_sync",
        change=both(
            replace("assign StorageFailedError", "return _.value"), drop("return _failure")
        ),
        tests=(f"{JOURNAL_FULL_DISK}::test_a_failed_fdatasync_is_the_end",),
    ),
    Guard(
        name="rejected changes stay pending",
        why="on a full disk a vote is lost whose message the next sync sends",
        module="raftlog/consensus/journal.py",
        function="Journal.failed_sync",
        change=drop("assign _pending"),
        tests=(
            (
                "tests/consensus/test_journal.py"
                "::test_without_room_changes_stay_pending_and_are_synced_once_there_is_some"
            ),
        ),
    ),
    Guard(
        name="memory is ahead during a sync",
        why="messages are sent whose entries are not synced",
        module="raftlog/consensus/journal.py",
        function="Journal.is_dirty",
        change=drop("compare _task"),
        tests=(f"{GUARDS_SYNC}::test_a_journal_is_ahead_of_the_disk_until_its_ticket_is_back",),
    ),
    Guard(
        name="a missing journal is detected",
        why="a voter that lost its journal votes again",
        module="raftlog/consensus/journal.py",
        function="Journal._open",
        change=value("if damaged", "_.operand is None"),
        tests=(f"{TEST_JOURNAL}::test_a_journal_that_must_be_there_and_is_not_is_damage",),
    ),
    Guard(
        name="CRC of a journal block",
        why="a corrupt vote is used (hazard 10)",
        module="raftlog/consensus/journal.py",
        function="_read_block",
        change=value("if crc32c", "len(_.left.args[0]) < _.comparators[0].value.length"),
        tests=(f"{JOURNAL_FILE}::test_no_flipped_bit_goes_unnoticed",),
    ),
    Guard(
        name="CRC of a journal block's header",
        why="a corrupt length counts as a torn block",
        module="raftlog/consensus/journal.py",
        function="decode_header",
        change=replace("compare _encode_header", "_.left[:2] == _HEAD"),
        tests=(f"{JOURNAL_FILE}::test_no_flipped_bit_goes_unnoticed",),
    ),
    Guard(
        name="sequence of journal blocks",
        why="a missing or repeated block goes unnoticed",
        module="raftlog/consensus/journal.py",
        function="_read_block",
        change=never("compare sequence"),
        tests=(f"{JOURNAL_FILE}::test_a_block_that_is_missing_or_there_twice_is_damage",),
    ),
    Guard(
        name="only the last journal block is torn",
        why="a corrupt block in the middle is truncated, with all votes after it",
        module="raftlog/consensus/journal.py",
        function="_read_block",
        change=value("assign length #2/3", "True"),
        tests=(
            (
                "tests/consensus/test_journal.py"
                "::test_a_bit_that_was_alone_in_its_sector_is_the_one_that_cannot_be_told"
            ),
        ),
    ),
    Guard(
        name="a complete last block with a wrong CRC is corruption",
        why="a voter loses a vote whose bytes are corrupt, and votes again",
        module="raftlog/consensus/journal.py",
        function="_read_block",
        change=drop("compare _blank_sectors"),
        tests=(f"{JOURNAL_FILE}::test_no_flipped_bit_goes_unnoticed",),
    ),
    Guard(
        name="a corrupt header before other blocks is corruption",
        why="synced blocks are truncated as torn",
        module="raftlog/consensus/journal.py",
        function="_torn_header",
        change=never("if sequence"),
        tests=(f"{JOURNAL_FILE}::test_a_blank_sector_before_a_good_block_is_damage",),
    ),
    Guard(
        name="a generation removes the votes of the previous one",
        why="a vote of another generation counts in this one",
        module="raftlog/consensus/journal.py",
        function="RaftJournal.apply",
        change=replace("assign _entries", "self._entries = []"),
        tests=(f"{RAFT_JOURNAL}::test_a_generation_begins_with_nothing_of_the_one_before",),
    ),
    Guard(
        name="generations only increase",
        why="a broker returns to voters that have continued without it",
        module="raftlog/consensus/journal.py",
        function="RaftJournal.begin_generation",
        change=drop("assert generation"),
        tests=(f"{RAFT_JOURNAL}::test_a_generation_never_comes_back",),
    ),
    Guard(
        name="a vote is never changed",
        why="one voter votes for two candidates in one term",
        module="raftlog/consensus/journal.py",
        function="RaftJournal.setCurrentTerm",
        change=drop("assert _term"),
        tests=(f"{RAFT_JOURNAL}::test_a_vote_is_given_once_in_a_term_and_terms_only_grow",),
    ),
    Guard(
        name="entries are journaled in order",
        why="a log has a gap that no restart can explain",
        module="raftlog/consensus/journal.py",
        function="RaftJournal.add",
        change=drop("assert 1"),
        tests=(f"{RAFT_JOURNAL}::test_an_entry_comes_next_or_not_at_all",),
    ),
]

SYNC_BEFORE_SEND: Final = [
    Guard(
        name="nothing is sent while the journal is dirty",
        why="a vote or an acknowledgement is sent before it is durable (hazard 6)",
        module="raftlog/consensus/node.py",
        function="ConsensusNode.flush",
        change=drop("attribute is_dirty"),
        tests=(f"{NODE}::test_what_is_journaled_during_a_sync_waits_for_the_next",),
    ),
    Guard(
        name="nothing is sent after a failed sync",
        why="a broker whose disk failed continues to vote",
        module="raftlog/consensus/node.py",
        function="ConsensusNode.flush",
        change=drop("compare _failure"),
        tests=(f"{GUARDS_SYNC}::test_what_a_failed_sync_was_to_make_durable_is_never_sent",),
    ),
    Guard(
        name="an own entry counts only once it is durable",
        why="a leader counts itself for an entry that a power failure removes",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._work_once",
        change=always("if _journal #2/2"),
        tests=(f"{NODE}::test_an_entry_of_ours_counts_only_once_it_is_durable",),
    ),
    Guard(
        name="what is durable counts before inputs journal more",
        why="on a slow disk nothing is applied while each sync leaves inputs",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._work_once",
        change=never("if _inputs"),
        tests=(f"{NODE}::test_what_is_durable_counts_though_every_sync_leaves_more_to_journal",),
    ),
    Guard(
        name="peers with queued messages are not unresponsive",
        why="a leader with a slow disk steps down although its followers respond",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._work_once",
        change=replace("call _step _handled_at", "self._step(now)"),
        tests=(f"{NODE}::test_a_leader_that_is_behind_with_its_messages_takes_nobody_for_silent",),
    ),
    Guard(
        name="one sync serves the groups of many turns",
        why="with a slow disk the elections of 9,000 groups take 141 syncs",
        module="raftlog/consensus/node.py",
        function="ConsensusNode.begin_sync",
        change=drop("compare _pass"),
        tests=(f"{TURNS}::test_the_groups_of_many_turns_share_a_sync",),
    ),
    Guard(
        name="inputs wait while the journal is synced",
        why="what happens during a sync is sent with what that sync made durable",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._can_work",
        change=drop("compare _task"),
        tests=(f"{NODE}::test_inputs_that_arrive_during_a_sync_are_handled_after_it_in_order",),
    ),
    Guard(
        name="a failed sync ends consensus",
        why="a voter continues from state in memory only",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._can_work",
        change=drop("compare _failure"),
        tests=(f"{GUARDS_SYNC}::test_after_a_failed_sync_nothing_is_counted_or_applied",),
    ),
    Guard(
        name="a full disk stops votes",
        why="a voter grants a vote that it cannot store (hazard 19)",
        module="raftlog/consensus/node.py",
        function="ConsensusNode.failed_sync",
        change=value("assign _is_stalled", "False"),
        tests=(f"{GUARDS_SYNC}::test_a_voter_without_room_does_nothing_until_there_is_some",),
    ),
    Guard(
        name="on_state waits for the disk",
        why="a broker adopts a role that a power failure reverts",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._deliver",
        change=value("if _journal", "self._news"),
        tests=(f"{GUARDS_SYNC}::test_a_role_is_told_once_it_is_durable",),
    ),
]

GUARDS: Final = [*JOURNAL, *SYNC_BEFORE_SEND]
