"""Guards of the log: recovery, replicated batches, truncation and producer state."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, both, calls, drop, move, never, replace, value
from tests.mutation.guard import Guard

OPENING: Final = [
    Guard(
        name="epochs of batches that were not written are forgotten",
        why="a follower whose disk was full cannot begin the next epoch: it starts before this one",
        module="raftlog/storage/log.py",
        function="Log._write",
        change=drop("call cut"),
        tests=(
            (
                "tests/storage/test_replicated_append.py"
                "::test_epochs_of_batches_that_were_not_written_are_forgotten"
            ),
        ),
    ),
    Guard(
        name="files below an empty log are removed",
        why="a torn segment that is never read stays until a later start",
        module="raftlog/storage/opening.py",
        function="_live_offset",
        change=value("return base_offset", "_.body if _.test else 0 * _.orelse"),
        tests=(
            (
                "tests/storage/test_opening.py"
                "::test_what_lies_below_an_empty_log_goes_even_where_its_last_segment_held_nothing"
            ),
        ),
    ),
    Guard(
        name="CRC of what is recovered",
        why="a torn batch is served",
        module="raftlog/storage/opening.py",
        function="_Window.batch_at",
        change=value(
            "return _take", "_.args[0].args[1].value if _.args[0] else _.args[0].args[1].value"
        ),
        tests=(
            "tests/storage/test_damage.py::test_a_flipped_bit_above_the_durable_end_is_a_torn_tail",
        ),
    ),
    Guard(
        name="chain of what is recovered",
        why="a segment of an earlier life is served",
        module="raftlog/storage/opening.py",
        function="_scan",
        change=never("not chain"),
        tests=(
            "tests/storage/test_damage.py::test_a_segment_of_an_earlier_life_is_no_part_of_the_log",
        ),
    ),
    Guard(
        name="epochs of what is recovered",
        why="batches of an old leader follow those of a newer one",
        module="raftlog/storage/opening.py",
        function="_scan",
        change=never("if leader_epoch"),
        tests=("tests/storage/test_damage.py::test_an_epoch_does_not_go_back",),
    ),
    Guard(
        name="corruption is distinguished from a torn write",
        why="acknowledged records are truncated as a torn write",
        module="raftlog/storage/opening.py",
        function="recover",
        change=never("if durable_offset"),
        tests=("tests/storage/test_damage.py::test_a_bad_batch_below_the_durable_end_is_damage",),
    ),
    Guard(
        name="an index proves what was durable",
        why="with an old checkpoint, corruption under an index is truncated",
        module="raftlog/storage/opening.py",
        function="recover",
        change=argument("call max", 1, "min(_.args[1], 0)"),
        tests=(
            (
                "tests/storage/test_opening.py"
                "::test_an_index_is_proof_that_what_it_covers_was_durable"
            ),
        ),
    ),
    Guard(
        name="an index fits its segment",
        why="the index of another log locates the batches",
        module="raftlog/storage/opening.py",
        function="_take_index",
        change=value("if _index_fits", "_.operand.args[1] is None"),
        tests=("tests/storage/test_rebuilding.py::test_the_index_of_another_log_is_not_believed",),
    ),
    Guard(
        name="a missing segment is corruption",
        why="a hole in the log is served as if it had never contained records",
        module="raftlog/storage/opening.py",
        function="_load",
        change=never("if base_offset #1/2"),
        tests=(
            "tests/storage/test_damage.py::test_a_log_that_starts_with_a_hole_was_never_promised",
        ),
    ),
    Guard(
        name="recovered segments are synced",
        why="a power failure reverts what was served after this start",
        module="raftlog/storage/opening.py",
        function="_make_durable",
        change=calls("call sync", "size"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_what_a_killed_process_left_is_durable_before_it_is_served"
            ),
        ),
    ),
    Guard(
        name="bytes after a failed sync are written again",
        why="the kernel marks pages as written that are not on the disk",
        module="raftlog/storage/opening.py",
        function="_write_again",
        change=drop("call pwrite"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_what_a_failed_sync_dropped_is_durable_before_it_is_served"
            ),
        ),
    ),
    Guard(
        name="the truncation of a torn write is synced",
        why="torn bytes reappear after what was written in their place",
        module="raftlog/storage/opening.py",
        function="_make_durable",
        change=drop("if notes"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_what_a_killed_process_left_is_durable_before_it_is_served"
            ),
        ),
    ),
    Guard(
        name="snapshots beyond the end are removed at a start",
        why="producer state of deleted batches counts once the log has grown past them",
        module="raftlog/storage/opening.py",
        function="_Opening.run",
        change=drop("call cut_snapshots"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_a_snapshot_beyond_the_end_that_a_start_finds_never_counts_again"
            ),
        ),
    ),
    Guard(
        name="epochs fit the log at a start",
        why="a cache that is older than the log answers requests about its end",
        module="raftlog/storage/opening.py",
        function="_Opening._epochs",
        change=drop("call _fits"),
        tests=(
            "tests/storage/test_rebuilding.py::test_a_bad_epoch_cache_is_rebuilt_from_the_batches",
        ),
    ),
    Guard(
        name="a corrupt log rejects writes",
        why="a log continues behind a hole",
        module="raftlog/storage/log.py",
        function="Log._check_writable",
        change=drop("if damage"),
        tests=("tests/storage/test_damage.py::test_a_bad_batch_below_the_durable_end_is_damage",),
    ),
    Guard(
        name="reads stop at corruption",
        why="a consumer receives corrupt bytes",
        module="raftlog/storage/log.py",
        function="Log.readable_end_offset",
        change=value("return _readable_end", "_.body"),
        tests=("tests/storage/test_damage.py::test_a_bad_batch_is_found_noted_and_served_no_more",),
    ),
    Guard(
        name="a scrub checks chains",
        why="a batch of another log is never found",
        module="raftlog/storage/log.py",
        function="Log._check_batches",
        change=value("if base_offset", "_.values[0]"),
        tests=("tests/storage/test_damage.py::test_a_batch_of_another_log_is_found_by_its_chain",),
    ),
]

COPYING: Final = [
    Guard(
        name="hash chain of replicated batches",
        why="a follower continues from records that its leader does not have (S28)",
        module="raftlog/storage/log.py",
        function="check_replicated",
        change=never("not verify_chain"),
        tests=(
            (
                "tests/storage/test_replicated_append.py"
                "::test_a_log_that_differs_below_is_told_by_the_chain"
            ),
        ),
    ),
    Guard(
        name="offsets of replicated batches",
        why="a follower has a gap, or two records of one offset",
        module="raftlog/storage/log.py",
        function="check_replicated",
        change=never("if base_offset"),
        tests=(
            "tests/storage/test_replicated_append.py::test_a_gap_inside_what_is_copied_is_refused",
        ),
    ),
    Guard(
        name="epochs of replicated batches",
        why="a follower accepts batches of an old leader after those of a newer one",
        module="raftlog/storage/log.py",
        function="check_replicated",
        change=never("if append_timestamp"),
        tests=("tests/storage/test_replicated_append.py::test_an_epoch_that_goes_back_is_refused",),
    ),
    Guard(
        name="the durable end is lowered before a truncation",
        why="a crash during a truncation counts as corruption",
        module="raftlog/storage/log.py",
        function="Log._truncate",
        change=move("call _lower_ends", after="call _remove_indexes"),
        tests=(
            ("tests/storage/test_log.py::test_the_ends_on_disk_go_back_before_anything_else_does"),
        ),
    ),
    Guard(
        name="the durable end is lowered durably",
        why="a power failure during a truncation counts as corruption",
        module="raftlog/storage/log.py",
        function="Log._lower_ends",
        change=drop("keyword True"),
        tests=(
            "tests/storage/test_crash_points.py::test_the_durable_end_goes_back_before_anything_goes",
        ),
    ),
    Guard(
        name="indexes are removed before their batches",
        why="an index that outlives its batches reports missing durable bytes",
        module="raftlog/storage/log.py",
        function="Log._remove_indexes",
        change=drop("call sync_dir"),
        tests=(
            ("tests/storage/test_log.py::test_indexes_are_gone_for_good_before_any_segment_goes"),
        ),
    ),
    Guard(
        name="segments are removed durably, the last one first",
        why="a power failure during a truncation leaves a hole",
        module="raftlog/storage/log.py",
        function="Log._truncate",
        change=drop("call sync_dir"),
        tests=("tests/storage/test_crash_points.py::test_a_cut_is_durable_when_it_returns",),
    ),
    Guard(
        name="a truncated segment is synced",
        why="a power failure restores records that the leader does not have",
        module="raftlog/storage/segment.py",
        function="Segment.truncate",
        change=drop("call sync"),
        tests=("tests/storage/test_crash_points.py::test_a_cut_is_durable_when_it_returns",),
    ),
    Guard(
        name="epochs are truncated with their batches",
        why="a replica responds about an epoch that has no batches left",
        module="raftlog/storage/log.py",
        function="Log._truncate",
        change=argument("condition epochs", 0, "_.args[0].left + (1 << 62)"),
        tests=("tests/storage/test_log.py::test_an_epoch_that_starts_at_the_cut_goes_too",),
    ),
    Guard(
        name="the epoch file is truncated too",
        why="the next start restores truncated epochs",
        module="raftlog/storage/log.py",
        function="Log._truncate",
        change=replace("if epochs", "_.test"),
        tests=(
            (
                "tests/storage/test_log.py"
                "::test_an_epoch_that_starts_at_the_cut_is_gone_from_the_disk_too"
            ),
        ),
    ),
    Guard(
        name="snapshots are truncated",
        why="sequences of truncated batches count later",
        module="raftlog/storage/log.py",
        function="Log._truncate",
        change=drop("call cut_snapshots"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_producers_as_of_the_cut_are_saved_before_later_snapshots_go"
            ),
        ),
    ),
    Guard(
        name="snapshots are truncated durably",
        why="a power failure restores snapshots of truncated batches",
        module="raftlog/storage/segment.py",
        function="LogFiles.cut_snapshots",
        change=drop("if _disk"),
        tests=(
            "tests/storage/test_segment.py::test_snapshots_beyond_the_end_are_deleted_for_good",
        ),
    ),
    Guard(
        name="producers are truncated",
        why="a producer's record counts as a duplicate of a truncated one",
        module="raftlog/storage/log.py",
        function="Log._cut_producers",
        change=drop("call cut"),
        tests=(
            (
                "tests/storage/test_log.py"
                "::test_producers_are_as_of_the_cut_whatever_newer_snapshots_say"
            ),
        ),
    ),
    Guard(
        name="deletions end before a truncation",
        why="a later deletion refers to truncated records",
        module="raftlog/storage/log.py",
        function="Log._finish_drops",
        change=replace("call run", "assert _.func.value"),
        tests=(
            (
                "tests/storage/test_log.py"
                "::test_a_drop_that_is_out_is_done_before_the_cut_and_never_after"
            ),
        ),
    ),
    Guard(
        name="no truncation during a sync",
        why="a sync makes an end durable that was truncated",
        module="raftlog/storage/log.py",
        function="Log.truncate_to",
        change=drop("assert _task"),
        tests=("tests/storage/test_log.py::test_a_ticket_that_is_out_forbids_it",),
    ),
    Guard(
        name="a restart from an empty log is durable",
        why="after a power failure an empty log is at the old offset",
        module="raftlog/storage/log.py",
        function="Log._begin_at",
        change=drop("keyword True"),
        tests=(
            ("tests/storage/test_log.py::test_an_old_drop_does_not_reach_into_the_new_beginning"),
        ),
    ),
    Guard(
        name="the new log start is durable before its files are removed",
        why="after a crash segments are missing above the known log start: corruption",
        module="raftlog/storage/disk_tasks.py",
        function="DeleteTask._drop",
        change=both(
            move("call sync_dir", after="for paths"),
            move("call raise_log_start", after="for paths"),
        ),
        tests=(
            "tests/storage/test_crash_points.py::test_a_new_log_start_is_durable_before_files_go",
        ),
    ),
    Guard(
        name="the log's end has a durable name before old files are removed",
        why="a power failure leaves no segment, and offsets restart at 0",
        module="raftlog/storage/disk_tasks.py",
        function="DeleteTask._drop",
        change=drop("call sync_dir"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_the_segment_that_carries_the_end_has_a_durable_name_before_the_others_go"
            ),
        ),
    ),
    Guard(
        name="producers are saved before their batches are deleted",
        why="retention removes sequences, and a retry is appended twice",
        module="raftlog/storage/disk_tasks.py",
        function="DeleteTask._drop",
        change=drop("operand files"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_producers_are_saved_before_the_new_start_is_durable"
            ),
        ),
    ),
    Guard(
        name="segments wait for a snapshot of their producers",
        why="retention removes sequences that no snapshot contains",
        module="raftlog/storage/log.py",
        function="Log.advance_log_start",
        change=argument("call drop_below", 0, "_.args[0].args[0]"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_a_segment_waits_until_a_snapshot_can_keep_its_producers"
            ),
        ),
    ),
]

PRODUCER_STATE: Final = [
    Guard(
        name="producers are checked",
        why="retries are appended twice",
        module="raftlog/storage/log.py",
        function="Log.append",
        change=value("assign check", "None"),
        tests=(
            (
                "tests/storage/test_producer_state.py"
                "::test_a_duplicate_is_answered_with_where_the_first_is"
            ),
        ),
    ),
    Guard(
        name="a gap in a producer's sequence",
        why="records between two batches are lost without an error",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable.check",
        change=never("if OutOfOrderSequenceError"),
        tests=("tests/storage/test_producer_state.py::test_an_unknown_producer_starts_at_0",),
    ),
    Guard(
        name="a duplicate batch",
        why="a retry after a lost response is rejected, and counts as failed",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable.check",
        change=never("if last_sequence #2/2"),
        tests=(
            (
                "tests/storage/test_producer_state.py"
                "::test_a_duplicate_of_the_last_few_is_answered_with_where_it_is"
            ),
        ),
    ),
    Guard(
        name="an old epoch of a producer",
        why="an instance that was replaced continues to write",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable.check",
        change=never("compare epoch #1/2"),
        tests=(
            (
                "tests/storage/test_producer_state.py"
                "::test_a_new_epoch_starts_at_0_and_fences_the_old_one"
            ),
        ),
    ),
    Guard(
        name="producers of replicated batches are recorded",
        why="after a failover the new leader appends retries as new records",
        module="raftlog/storage/log.py",
        function="Log._write",
        change=replace("call note", "self.producers.expire(now_ms=0)"),
        tests=(
            "tests/storage/test_replicated_append.py::test_producers_are_noted_and_not_checked",
        ),
    ),
    Guard(
        name="producers are replayed at a start",
        why="a restart removes sequences",
        module="raftlog/storage/opening.py",
        function="_Opening._producers",
        change=drop("call _replay #2/2"),
        tests=("tests/storage/test_producer_state.py::test_a_restart_forgets_no_producer",),
    ),
]

_COPIES: Final = "tests/storage/test_catalog.py"
_RECORDED_END: Final = f"{_COPIES}::test_a_bad_batch_below_the_recorded_end_"
_SYNCING: Final = "tests/storage/test_damage.py"

COPIES: Final = [
    Guard(
        name="a copy without its checkpoint is corrupt",
        why="an empty replica stays in the ISR, leads, and makes complete ones truncate",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.mismatch",
        change=replace("if is_written", "if _.test:\n    return ''\n_"),
        tests=(f"{_COPIES}::test_files_that_vanish_are_damage",),
    ),
    Guard(
        name="a copy at a dangling link is corrupt",
        why="a broker stops at every start, or writes to the file system below a mount point",
        module="raftlog/storage/opening.py",
        function="open_log",
        change=value("assign dangling_link", "''"),
        tests=(f"{_COPIES}::test_a_link_that_leads_nowhere_is_damage_until_it_leads_somewhere",),
    ),
    Guard(
        name="a lone broker does not start if `topics` is a dangling link",
        why="it starts without any of its records, and new ones are written elsewhere",
        module="raftlog/storage/store.py",
        function="Store.open",
        change=never("if dangling_text"),
        tests=(f"{_COPIES}::test_a_lone_broker_does_not_start_without_the_place_of_its_topics",),
    ),
    Guard(
        name="a copy with another id is corrupt",
        why="a copy restored from quarantine counts as the one that replaced it",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.mismatch",
        change=never("if copy_id"),
        tests=(f"{_COPIES}::test_the_files_of_an_earlier_copy_are_damage",),
    ),
    Guard(
        name="a copy older than its record is corrupt",
        why="a partial restore removes acknowledged records",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.mismatch",
        change=never("if sequence"),
        tests=(f"{_COPIES}::test_files_from_before_the_last_start_are_damage",),
    ),
    Guard(
        name="a corrupt copy keeps no id",
        why="a second start accepts what a corrupt copy has written as the copy on record",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.mismatch",
        change=drop("assign UNIDENTIFIED"),
        tests=(f"{_COPIES}::test_files_from_before_the_last_start_are_damage",),
    ),
    Guard(
        name="a copy is recorded before its first acknowledgement",
        why="files that vanish soon after the first records look like a new partition",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=drop("assign _is_unrecorded"),
        tests=(f"{_COPIES}::test_files_that_vanish_are_damage",),
    ),
    Guard(
        name="the durable end on record is of the last group commit",
        why=("a power failure and a flipped bit remove records that were acknowledged long before"),
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=drop("call note_end"),
        tests=(f"{_RECORDED_END}is_damage_after_a_power_cut",),
    ),
    Guard(
        name="the durable end on record counts if it is newer than the checkpoint",
        why="a log that was truncated since is rejected as corrupt",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.mismatch",
        change=value("if end_sequence", "_.left"),
        tests=(f"{_COPIES}::test_a_log_that_is_cut_below_the_recorded_end_is_no_damage",),
    ),
    Guard(
        name="a checkpoint continues from the sequence on record",
        why=(
            "a log that is truncated after a power failure, on a full disk, is rejected as corrupt"
        ),
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.mismatch",
        change=drop("assign _sequence"),
        tests=(f"{_COPIES}::test_a_cut_that_could_not_be_recorded_is_no_damage",),
    ),
    Guard(
        name="the durable end is recorded at an interval",
        why="it is recorded at a clean stop only",
        module="raftlog/server/maintenance.py",
        function="Housekeeping.__init__",
        change=drop("call create_task COPIES_SAVE_MS"),
        tests=(
            "tests/server/test_maintenance.py::test_the_durable_end_is_recorded_at_an_interval",
        ),
    ),
    Guard(
        name="the record of a deleted copy is removed",
        why="a partition that returns to a broker is rejected as corrupt",
        module="raftlog/storage/store.py",
        function="Store._remove_partitions",
        change=drop("call forget"),
        tests=(f"{_COPIES}::test_a_partition_that_was_dropped_is_forgotten",),
    ),
    Guard(
        name="copies are in doubt once the record of them is lost",
        why="brokers that lost their files lead before the one that did not is back",
        module="raftlog/storage/checkpoint.py",
        function="Copies.is_unknown",
        change=never("not is_complete"),
        tests=(f"{_COPIES}::test_copies_are_in_doubt_once_the_record_of_them_is_lost",),
    ),
    Guard(
        name="a copy in doubt is not recorded",
        why="the second start after the loss of the record has no doubt",
        module="raftlog/storage/checkpoint.py",
        function="Copies.record",
        change=drop("if is_unknown"),
        tests=(f"{_COPIES}::test_a_copy_in_doubt_that_is_synced_stays_in_doubt",),
    ),
    Guard(
        name="synced files are at the path that a start reads",
        why="records are acknowledged that are in a file without a name",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=drop("if is_in_place"),
        tests=(f"{_SYNCING}::test_what_no_start_would_find_does_not_become_durable",),
    ),
    Guard(
        name="the checkpoint is at the path that a start reads",
        why="records are acknowledged that the next start counts as lost",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=drop("if is_in_place"),
        tests=(f"{_SYNCING}::test_what_no_start_would_find_does_not_become_durable",),
    ),
    Guard(
        name="missing files are corruption of their log",
        why="a broker stops, with all its partitions, because one of them was removed",
        module="raftlog/storage/log.py",
        function="Log._failed",
        change=never("compare MISSING"),
        tests=(f"{_SYNCING}::test_a_change_that_finds_no_directory_is_damage_of_the_log_alone",),
    ),
    Guard(
        name="a broker checks the files of its logs",
        why="a copy without writes stays lost unnoticed",
        module="raftlog/server/maintenance.py",
        function="Housekeeping.__init__",
        change=drop("call create_task PLACE_INTERVAL_MS"),
        tests=("tests/server/test_maintenance.py::test_files_that_vanish_are_noticed",),
    ),
]

READING: Final = [
    Guard(
        name="a segment that cannot be opened is corruption",
        why="its readers fail as long as the broker runs, and no replica is copied again",
        module="raftlog/storage/segment.py",
        function="Segment.pread",
        change=value("if NO_DESCRIPTOR", "_.left"),
        tests=(f"{_COPIES}::test_a_sealed_segment_that_cannot_be_read_is_damage",),
    ),
    Guard(
        name="a segment that cannot be opened at a start is no torn write",
        why="acknowledged records may be truncated",
        module="raftlog/storage/opening.py",
        function="_load_segment",
        change=replace("assign durable_offset", "assert _.value.args[0] >= 0"),
        tests=(f"{_COPIES}::test_the_last_segment_that_cannot_be_opened_is_not_cut",),
    ),
]

GUARDS: Final = [*OPENING, *COPIES, *READING, *COPYING, *PRODUCER_STATE]
