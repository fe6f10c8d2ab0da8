"""Guards of compaction: kept records, order of durable steps, recovery."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, calls, drop, never, replace, swap, value
from tests.mutation.guard import Guard

_CLEANER: Final = "raftlog/storage/compaction.py"
_FILES: Final = "raftlog/storage/compaction.py"
_LOG: Final = "raftlog/storage/log.py"
_COMPACTOR: Final = "raftlog/storage/compaction.py"
_TEST_CLEANER: Final = "tests/storage/test_compaction.py"
_TEST_FILES: Final = "tests/storage/test_compaction.py"
_TEST_COMPACTOR: Final = "tests/storage/test_compaction.py"
_TEST_TASKS: Final = "tests/storage/test_compaction_tasks.py"
_TEST_CRASHES: Final = "tests/storage/test_compaction_crashes.py"

KEPT: Final = [
    Guard(
        name="a newer record of the same key",
        why="the last value of a key is removed, or an older one stays",
        module=_CLEANER,
        function="CompactionTask._kept",
        change=swap("compare +", "<"),
        tests=(f"{_TEST_COMPACTOR}::test_the_last_record_of_each_key_is_kept_at_its_offset",),
    ),
    Guard(
        name="tombstones wait",
        why="a reader in progress keeps a deleted key",
        module=_CLEANER,
        function="CompactionTask._kept",
        change=replace("compare due_below", "_.left >= 0"),
        tests=(
            f"{_TEST_COMPACTOR}::test_a_tombstone_stays_for_its_time_after_the_pass_that_met_it_first",
        ),
    ),
    Guard(
        name="tombstones wait from the first pass that kept them",
        why="a later pass restarts their wait, or ends it",
        module="raftlog/storage/compaction.py",
        function="CompactionState.tombstones_due_below",
        change=replace("binop", "_.left"),
        tests=(
            (
                "tests/storage/test_compaction.py"
                "::test_tombstones_are_due_once_their_part_is_clean_for_long_enough"
            ),
        ),
    ),
    Guard(
        name="records without a key stay",
        why="records that no record replaces are lost",
        module=_CLEANER,
        function="CompactionTask._kept",
        change=value("assign <=", "_.right"),
        tests=(f"{_TEST_COMPACTOR}::test_a_record_without_a_key_is_kept",),
    ),
    Guard(
        name="the batch with a producer's newest sequence stays",
        why="a replica without a snapshot appends a producer's retry as a new batch",
        module=_CLEANER,
        function="CompactionTask._rewrite_chunk",
        change=never("compare remembered"),
        tests=(f"{_TEST_COMPACTOR}::test_producers_are_known_from_the_compacted_log_alone",),
    ),
    Guard(
        name="a compacted batch counts its sequences by offsets",
        why="a producer's next batch is rejected, or its retry is appended as a new one",
        module="raftlog/storage/producer_state.py",
        function="_written",
        change=argument("call last_sequence", 1, "_.args[0].value.record_count"),
        tests=(f"{_TEST_COMPACTOR}::test_producers_are_known_from_the_compacted_log_alone",),
    ),
    Guard(
        name="a compacted batch has one epoch",
        why="the epochs of records change, and replicas truncate at the wrong offset",
        module="raftlog/record/compaction.py",
        function="Rewriter._has_room",
        change=swap("compare last", "<"),
        tests=("tests/record/test_compaction.py::test_no_batch_spans_two_epochs",),
    ),
    Guard(
        name="only a broker writes compacted batches",
        why="a producer's batch is accepted without the checks of its position",
        module="raftlog/storage/log.py",
        function="check",
        change=never("if is_compacted"),
        tests=("tests/storage/test_log.py::test_a_compacted_batch_is_not_a_producers",),
    ),
    Guard(
        name="a compacted batch is no proof",
        why="a part of a segment counts as complete",
        module="raftlog/storage/opening.py",
        function="_follows",
        change=drop("not is_compacted"),
        tests=("tests/storage/test_opening.py::test_a_compacted_batch_does_not_prove_a_torn_tail",),
    ),
]

BOUNDS: Final = [
    Guard(
        name="no pass before a deletion is durable",
        why=(
            "a crash restores records below the clean end, and their tombstones are removed first"
        ),
        module=_LOG,
        function="Log._may_get_back_more",
        change=replace("and is_done", "_.values[0].value.log_start_offset < 0"),
        tests=(f"{_TEST_COMPACTOR}::test_no_pass_begins_before_a_deletion_of_segments_is_durable",),
    ),
    Guard(
        name="only committed, durable records in a snapshot are compacted",
        why="a record that replaces another one is truncated, and both are lost",
        module=_LOG,
        function="Log._cleanable",
        change=calls("call min", "max"),
        tests=(
            f"{_TEST_COMPACTOR}::test_only_what_is_committed_durable_and_in_a_snapshot_is_compacted",
        ),
    ),
    Guard(
        name="segments that wait for their index are not compacted",
        why="the index of the old segment is written next to the new one",
        module=_LOG,
        function="Log._cleanable",
        change=drop("compare _sealed"),
        tests=(f"{_TEST_COMPACTOR}::test_segments_that_a_sync_has_yet_to_index_wait",),
    ),
    Guard(
        name="young records stay",
        why="records are removed before min.compaction.lag.ms",
        module=_COMPACTOR,
        function="Compactor._old_enough",
        change=never("if _append_ms"),
        tests=(f"{_TEST_COMPACTOR}::test_young_records_stay_by_the_time_of_their_append",),
    ),
    Guard(
        name="a pass ends where its map is full",
        why="keys that are not in the map count as newest, and the records as clean",
        module=_CLEANER,
        function="CompactionTask._learn",
        change=never("if flush"),
        tests=(f"{_TEST_COMPACTOR}::test_any_number_of_keys_is_compacted_in_little_memory",),
    ),
    Guard(
        name="compacted batches continue the hash chain",
        why="a segment of an earlier log becomes part of the log, with valid checksums",
        module=_CLEANER,
        function="CompactionTask._originals",
        change=never("if CorruptBatchError #2/2"),
        tests=(f"{_TEST_TASKS}::test_batches_that_do_not_follow_on_each_other_are_damage",),
    ),
    Guard(
        name="corruption that compaction finds is recorded",
        why="the log continues to serve a corrupt batch",
        module=_LOG,
        function="Log.abandon_compaction",
        change=replace("call note_damage", "_.args[0]"),
        tests=(f"{_TEST_TASKS}::test_damage_is_noted_and_nothing_past_it_is_compacted",),
    ),
    Guard(
        name="a truncated log discards earlier tasks",
        why="truncated records are restored",
        module=_COMPACTOR,
        function="Compactor.cancel",
        change=replace("assign _task", "_.targets[0] |= False"),
        tests=(
            f"{_TEST_TASKS}::test_a_log_that_was_cut_meanwhile_has_no_use_for_it",
            f"{_TEST_TASKS}::test_a_log_that_was_dropped_from_meanwhile_has_no_use_for_it",
        ),
    ),
]

ORDERS: Final = [
    Guard(
        name="a cleaned file is synced",
        why="a power failure leaves an empty segment",
        module=_CLEANER,
        function="_Writing.finish",
        change=calls("call sync", "size"),
        tests=(
            (
                f"{_TEST_CLEANER}::test_cleaned_files_are_durable_before_it_is_decided_"
                "that_they_take_their_places"
            ),
        ),
    ),
    Guard(
        name="a cleaned file has a durable name before the plan",
        why="segments are removed, and their replacement is lost as well",
        module=_CLEANER,
        function="CompactionTask._plan",
        change=drop("call sync_dir"),
        tests=(
            (
                f"{_TEST_CLEANER}::test_cleaned_files_are_durable_before_it_is_decided_"
                "that_they_take_their_places"
            ),
        ),
    ),
    Guard(
        name="old indexes are removed before the plan",
        why="an index is used for another segment",
        module=_CLEANER,
        function="CompactionTask._plan",
        change=drop("call remove_indexes"),
        tests=(f"{_TEST_CLEANER}::test_old_indexes_are_gone_for_good_before_it_is_decided",),
    ),
    Guard(
        name="the durable end is saved before an index is removed",
        why="a corrupt batch counts as a torn write, and is truncated",
        module=_CLEANER,
        function="CompactionTask._plan",
        change=replace("call update", "self.checkpoint.prepare()"),
        tests=(f"{_TEST_CLEANER}::test_what_old_indexes_say_is_durable_elsewhere_before_they_go",),
    ),
    Guard(
        name="the plan is written before segments are removed",
        why="a kill leaves some segments replaced and some not: records are stored twice",
        module=_CLEANER,
        function="CompactionTask._plan",
        change=value("if state", "_.values[1] and (not _.values[0])"),
        tests=(f"{_TEST_CRASHES}::test_s37_kill_during_compaction_at_every_step",),
    ),
    Guard(
        name="a start performs the planned swaps",
        why="segments are missing, which counts as corruption",
        module=_FILES,
        function="CompactionFiles.recover",
        change=drop("call carry_out"),
        tests=(
            f"{_TEST_FILES}::test_a_start_carries_out_what_was_decided_and_removes_what_was_not",
        ),
    ),
    Guard(
        name="new names are durable before a start removes the plan",
        why="a power failure restores replaced segments",
        module=_FILES,
        function="CompactionFiles.recover",
        change=drop("call sync_dir"),
        tests=(f"{_TEST_FILES}::test_names_are_durable_before_the_swaps_are_forgotten",),
    ),
    Guard(
        name="a cleaned file of the wrong size replaces nothing",
        why="segments are removed for an incomplete file",
        module=_FILES,
        function="CompactionFiles.carry_out",
        change=always("if rename"),
        tests=(
            f"{_TEST_FILES}::test_a_cleaned_file_that_is_not_what_it_should_be_replaces_nothing",
        ),
    ),
    Guard(
        name="an unreadable plan is corruption",
        why="cleaned files are removed whose segments are already gone",
        module=_FILES,
        function="CompactionFiles.recover",
        change=never("if CompactionState"),
        tests=(
            (
                f"{_TEST_FILES}::test_a_damaged_state_in_the_middle_of_a_compaction_is_damage_"
                "and_nothing_is_touched"
            ),
        ),
    ),
    Guard(
        name="swaps are settled before a file of the same name is created",
        why="a start replaces a segment by a partial cleaned file",
        module=_CLEANER,
        function="CompactionTask._run",
        change=drop("call write"),
        tests=(f"{_TEST_CLEANER}::test_swaps_are_settled_before_a_file_of_the_same_name_is_made",),
    ),
    Guard(
        name="new names are durable before swaps are settled",
        why="a power failure restores replaced segments",
        module=_CLEANER,
        function="CompactionTask._run",
        change=drop("call sync_dir"),
        tests=(f"{_TEST_CLEANER}::test_new_names_are_durable_before_swaps_are_settled",),
    ),
    Guard(
        name="new names are durable before a truncation removes the plan",
        why="a power failure restores replaced segments",
        module=_COMPACTOR,
        function="Compactor.lower_clean_end",
        change=drop("if _disk"),
        tests=(f"{_TEST_CLEANER}::test_new_names_are_durable_before_swaps_are_forgotten",),
    ),
    Guard(
        name="new names are durable before a clean stop removes the plan",
        why="a power failure restores replaced segments",
        module=_COMPACTOR,
        function="Compactor.finish_swaps",
        change=drop("call sync_dir"),
        tests=(f"{_TEST_CLEANER}::test_new_names_are_durable_before_swaps_are_forgotten",),
    ),
    Guard(
        name="the clean end is lowered before a truncation",
        why="records after the truncation count as clean: tombstones are removed too early",
        module="raftlog/storage/log.py",
        function="Log.truncate_to",
        change=replace("call lower_clean_end", "self._compactor.cancel()"),
        tests=(f"{_TEST_CLEANER}::test_the_clean_end_is_lowered_durably_before_the_log_is_cut",),
    ),
    Guard(
        name="a plan that may have been written is left to the next start",
        why="it removes segments for files that are missing",
        module=_CLEANER,
        function="CompactionTask.discard",
        change=value("if is_unsure", "self.is_stale and _"),
        tests=(
            f"{_TEST_CLEANER}::test_a_plan_that_was_not_written_for_sure_is_left_to_the_next_start",
        ),
    ),
]

GUARDS: Final[tuple[Guard, ...]] = (*KEPT, *BOUNDS, *ORDERS)
