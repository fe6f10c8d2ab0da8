"""Guards of the disk, of batches and of the files of a log: order of durable steps."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, argument, both, calls, drop, never, replace, value
from tests.mutation.guard import Guard

BAD_DISK: Final = "tests/storage/test_damage.py"
BATCH: Final = "tests/record/test_batch.py"
CHECKPOINT: Final = "tests/storage/test_catalog.py"
CLEAN_MARK: Final = "tests/storage/test_state_files.py"
CRASH_POINTS: Final = "tests/storage/test_crash_points.py"
DISK: Final = "tests/test_disk.py"
DURABILITY: Final = "tests/storage/test_crash_points.py"
_CATALOG: Final = "tests/storage/test_catalog.py"
HOSTING: Final = "tests/storage/test_store.py"
LOG: Final = "tests/storage/test_log.py"
REPLICATED_APPEND: Final = "tests/storage/test_replicated_append.py"
STATE_FILE: Final = "tests/storage/test_state_files.py"

POOL: Final = [
    Guard(
        name="a file that was written is synced before its descriptor is closed",
        why="the error of the write is not reported to the descriptor that is opened later",
        module="raftlog/disk.py",
        function="FilePool._close_clean",
        change=never("if is_dirty"),
        tests=(f"{DISK}::test_a_written_file_is_synced_before_it_is_closed",),
    ),
    Guard(
        name="the error of a sync by the pool reaches the owner of the file",
        why="records are acknowledged that the disk has lost",
        module="raftlog/disk.py",
        function="FilePool._raise_error",
        change=never("if"),
        tests=(f"{DISK}::test_the_error_of_a_sync_before_a_close_is_raised_by_the_next_sync",),
    ),
    Guard(
        name="a file that is opened again is the same file",
        why="records are written into a file that was put in its place",
        module="raftlog/disk.py",
        function="PooledFile.reopened",
        change=never("if st_ino"),
        tests=(f"{DISK}::test_another_file_at_the_path_of_a_closed_one_is_not_written",),
    ),
    Guard(
        name="a file is written until the end of the write",
        why="a sync that began before is taken for a sync of it, and the file is closed unsynced",
        module="raftlog/disk.py",
        function="FilePool.unpin",
        change=drop("assign writes"),
        tests=(f"{DISK}::test_a_write_that_ends_after_a_sync_began_is_not_counted_as_synced",),
    ),
]

SYSTEM: Final = [
    Guard(
        name="file sync is fdatasync",
        why="a sync returns and nothing is on the disk",
        module="raftlog/disk.py",
        function="sync_data",
        change=calls("call fdatasync", "fstat"),
        tests=("tests/test_disk.py::test_a_files_sync_is_an_fdatasync_of_that_file",),
    ),
    Guard(
        name="directory sync is fsync",
        why="a power failure removes new files and reverts renames",
        module="raftlog/disk.py",
        function="OsDisk.sync_dir",
        change=calls("call sync_all", "os.fstat"),
        tests=(f"{DISK}::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="directory sync works without a free descriptor",
        why="a broker without free file descriptors stops: it does not know what is durable",
        module="raftlog/disk.py",
        function="SpareDescriptor.opened",
        change=value("if NO_DESCRIPTOR", "_.left"),
        tests=(f"{DISK}::test_a_directory_is_synced_without_a_descriptor_to_be_had",),
    ),
    Guard(
        name="atomic write syncs the new file",
        why="a power failure leaves a name without data",
        module="raftlog/disk.py",
        function="OsDisk.write_atomic",
        change=calls("call sync_all", "os.fstat"),
        tests=(f"{DISK}::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="atomic write syncs the directory",
        why="a power failure restores the old file",
        module="raftlog/disk.py",
        function="OsDisk.write_atomic",
        change=calls("call sync_dir", "exists"),
        tests=(f"{DISK}::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="new directory is synced",
        why="a power failure removes a new directory with its files",
        module="raftlog/disk.py",
        function="OsDisk.make_dirs",
        change=calls("call sync_dir", "exists"),
        tests=(f"{DISK}::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="data directory is locked",
        why="two brokers write to one directory",
        module="raftlog/disk.py",
        function="OsDisk.lock",
        change=argument("call flock", 1, "fcntl.LOCK_SH | fcntl.LOCK_NB"),
        tests=(f"{DISK}::test_a_lock_is_held_by_one_until_it_is_released",),
    ),
]

BATCHES: Final = [
    Guard(
        name="batch CRC, one batch",
        why="corrupt bytes are accepted as valid",
        module="raftlog/record/batch.py",
        function="check",
        change=value("if _SEALED_POSITION", "len(_.left.args[0].value.args[0]) < _SEALED_POSITION"),
        tests=(f"{BATCH}::test_check_finds_every_flipped_bit",),
    ),
    Guard(
        name="batch CRC of replicated batches",
        why="a follower stores bytes that changed in transit",
        module="raftlog/record/batch.py",
        function="split_checked",
        change=value("if _SEALED_POSITION", "len(_.left.args[0].value) < _SEALED_POSITION"),
        tests=(
            f"{REPLICATED_APPEND}::test_a_flipped_bit_anywhere_is_found_before_anything_is_written",
        ),
    ),
    Guard(
        name="leader section CRC",
        why="a flipped bit of an offset or an epoch goes unnoticed",
        module="raftlog/record/batch.py",
        function="parse_header",
        change=never("if _LEADER"),
        tests=(f"{BATCH}::test_check_finds_every_flipped_bit",),
    ),
    Guard(
        name="hash-chain value",
        why="two different logs cannot be distinguished",
        module="raftlog/record/batch.py",
        function="verify_chain",
        change=value("return chain", "_ or bool(_.comparators[0].args[1])"),
        tests=(f"{BATCH}::test_stamp_changes_the_leaders_section_alone",),
    ),
]

SYNCS: Final = [
    Guard(
        name="segment data is synced",
        why="acknowledged records are in the page cache only",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=calls("call sync", "size"),
        tests=(f"{DURABILITY}::test_data_is_durable_when_the_durable_end_moves",),
    ),
    Guard(
        name="new segment's name is synced",
        why="a power failure removes a new segment",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=calls("call sync_dir", "exists"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_a_new_segments_name_is_durable_when_the_durable_end_reaches_into_it"
            ),
        ),
    ),
    Guard(
        name="the checkpoint is updated after the sync",
        why=(
            "after a power failure the checkpoint names a durable end above the data: a torn "
            "write counts as corruption"
        ),
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=replace("for data", "self._note()\n_"),
        tests=(f"{DURABILITY}::test_nothing_is_noted_before_what_it_speaks_of_is_durable",),
    ),
    Guard(
        name="durable end moves only with a sync",
        why="records are acknowledged before they are on the disk",
        module="raftlog/storage/log.py",
        function="Log._write",
        change=replace(
            "assign log_end_offset", "self.log_end_offset = self.durable_end_offset = _.value"
        ),
        tests=(f"{DURABILITY}::test_data_is_durable_when_the_durable_end_moves",),
    ),
    Guard(
        name="durable end is what the task covers",
        why="what was appended while a sync ran counts as synced",
        module="raftlog/storage/log.py",
        function="Log.complete_sync",
        change=value("assign durable_end_offset", "self.log_end_offset"),
        tests=(
            f"{DURABILITY}::test_a_ticket_covers_what_came_before_it_and_nothing_that_came_after",
        ),
    ),
    Guard(
        name="acknowledged is what is durable",
        why="with flush.policy=fsync, what is only written is acknowledged",
        module="raftlog/storage/log.py",
        function="Log.acknowledged_end_offset",
        change=replace("compare config", "_.left != ''"),
        tests=(f"{LOG}::test_what_may_be_acknowledged_depends_on_the_flush_policy",),
    ),
    Guard(
        name="failed fsync is fatal",
        why="the next fsync succeeds, although the kernel has dropped the pages",
        module="raftlog/storage/log.py",
        function="Log.failed_sync",
        change=value(
            "return _failed", "StorageFailedError(f'syncing {self.directory}: {_.args[1]}')"
        ),
        tests=(f"{BAD_DISK}::test_a_failed_sync_ends_all_writing_and_is_not_tried_again",),
    ),
    Guard(
        name="failed write is fatal",
        why="more records are written to a disk that rejects writes",
        module="raftlog/storage/log.py",
        function="Log._failed",
        change=both(
            replace("assign StorageFailedError", "return _.value"), drop("return _failure")
        ),
        tests=(f"{BAD_DISK}::test_a_failed_write_ends_all_writing",),
    ),
    Guard(
        name="only disk-full errors are not fatal",
        why="a failed disk is treated as a full one, and is used again",
        module="raftlog/storage/state_files.py",
        function="storage_error",
        change=value("if NO_ROOM", "_.left != 0"),
        tests=(
            (
                "tests/storage/test_state_files.py"
                "::test_any_other_error_means_the_disk_is_not_to_be_trusted"
            ),
        ),
    ),
    Guard(
        name="a partial write is truncated",
        why="half a batch stays in the middle of the log",
        module="raftlog/storage/log.py",
        function="Log._undo",
        change=replace("call truncate", "_.func.value.size()"),
        tests=("tests/storage/test_store.py::test_half_a_batch_leaves_no_trace",),
    ),
    Guard(
        name="the truncation of a partial write is synced",
        why="a power failure restores it after the log has continued in another segment",
        module="raftlog/storage/log.py",
        function="Log._undo",
        change=drop("call _note_unsynced"),
        tests=(
            (
                "tests/storage/test_crash_points.py"
                "::test_a_taken_back_write_is_gone_for_good_before_the_log_goes_on_in_a_new_"
                "segment"
            ),
        ),
    ),
    Guard(
        name="epochs are durable before their batches count as durable",
        why="after a crash a replica responds about an epoch that it does not know",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=drop("call write_epochs"),
        tests=(f"{DURABILITY}::test_epochs_are_durable_before_their_batches_are_noted_as_durable",),
    ),
    Guard(
        name="a sync saves the leader's new epoch",
        why="the start after next must read all batches, or does not know the epoch",
        module="raftlog/storage/log.py",
        function="Log._begin_epoch",
        change=drop("assign _new_epochs"),
        tests=(f"{DURABILITY}::test_epochs_are_durable_before_their_batches_are_noted_as_durable",),
    ),
    Guard(
        name="a sync saves the epochs of copied batches",
        why="after a crash a follower reports another epoch for its batches",
        module="raftlog/storage/log.py",
        function="Log._note_epochs",
        change=drop("assign _new_epochs"),
        tests=(f"{REPLICATED_APPEND}::test_epochs_are_saved_with_the_next_sync",),
    ),
    Guard(
        name="epochs without batches do not cover others' batches",
        why="after a crash a follower reports another epoch for its batches",
        module="raftlog/storage/opening.py",
        function="_Opening._add_epochs",
        change=drop("if epoch_at"),
        tests=(
            (
                "tests/storage/test_rebuilding.py"
                "::test_an_epoch_that_gave_way_does_not_cover_the_batches_since_the_last_sync"
            ),
        ),
    ),
    Guard(
        name="old leader may not append",
        why="a batch carries an epoch that ended before it",
        module="raftlog/storage/log.py",
        function="Log._begin_epoch",
        change=drop("assert epochs"),
        tests=(f"{LOG}::test_an_old_leader_may_not_append",),
    ),
]

STATE_FILES: Final = [
    Guard(
        name="checkpoint is synced on request",
        why="a power failure restores deleted records, or a durable end that was lowered",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=calls("call sync", "size"),
        tests=(
            (
                "tests/storage/test_catalog.py"
                "::test_a_synced_change_survives_a_power_cut_and_later_ones_are_old_or_new"
            ),
        ),
    ),
    Guard(
        name="durable change is in both slots",
        why="the loss of one sector reverts a durable change",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=argument("call range", 0, "1"),
        tests=(f"{CHECKPOINT}::test_a_synced_change_survives_the_loss_of_either_slot",),
    ),
    Guard(
        name="checkpoint's slots alternate",
        why="a torn write destroys the only slot there is",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=value("assign SLOTS", "0"),
        tests=(f"{CHECKPOINT}::test_a_synced_change_survives_the_loss_of_either_slot",),
    ),
    Guard(
        name="checkpoint's CRC",
        why="a torn slot is used",
        module="raftlog/storage/checkpoint.py",
        function="_decode_slot",
        change=drop("compare crc32c"),
        tests=(f"{CHECKPOINT}::test_a_changed_bit_gives_the_other_slot",),
    ),
    Guard(
        name="checkpoint's file is created durably",
        why="slots are written to a file that a power failure removes",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._write",
        change=drop("call sync_dir"),
        tests=(f"{CHECKPOINT}::test_the_name_is_durable_before_the_first_slot_is_written",),
    ),
    Guard(
        name="a log's directory is durable before its checkpoint",
        why="after a power failure, a copy with records is corrupt, and its records are lost",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._finish_names",
        change=drop("call sync"),
        tests=(
            (
                f"{HOSTING}::"
                "test_names_are_durable_before_a_slot_is_written_and_the_slots_before_the_record"
            ),
        ),
    ),
    Guard(
        name="names are durable before the acknowledgement, also on a full disk",
        why="errors of a full disk are ignored afterwards: an acknowledged record is lost",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=drop("call sync_parent"),
        tests=(f"{HOSTING}::test_a_full_disk_does_not_excuse_a_name_that_is_not_durable",),
    ),
    Guard(
        name="a sync covers only the names from before it",
        why="after a power failure, the checkpoint of a copy with records is missing",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=always("if checkpoint"),
        tests=(
            (
                f"{HOSTING}::"
                "test_a_checkpoint_that_is_created_while_a_task_runs_is_not_covered_by_it"
            ),
        ),
    ),
    Guard(
        name="a new checkpoint without a new segment has a durable name, too",
        why="after a power failure, the checkpoint of a copy with records is missing",
        module="raftlog/storage/disk_tasks.py",
        function="SyncTask.run",
        change=value("if new_names", "self.new_names"),
        tests=(f"{HOSTING}::test_a_checkpoint_that_is_created_before_a_truncation_is_named",),
    ),
    Guard(
        name="without a slot, the names of a killed process count as not durable",
        why="a power failure removes the directory with acknowledged records",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._open",
        change=value("assign _sequence", "False"),
        tests=(f"{HOSTING}::test_names_that_a_killed_process_has_created_are_made_durable",),
    ),
    Guard(
        name="names of a killed process are durable before its records are served",
        why="a power failure removes the directory with records that were acknowledged since",
        module="raftlog/storage/opening.py",
        function="_Opening.run",
        change=drop("call settle"),
        tests=(
            (
                f"{HOSTING}::"
                "test_records_of_a_killed_process_have_a_durable_directory_once_they_are_open"
            ),
        ),
    ),
    Guard(
        name="a shared sync began after the creation of the name",
        why="a directory that was created during the sync is removed by a power failure",
        module="raftlog/storage/state_files.py",
        function="NameSyncs.sync",
        change=value("assign _synced", "self._created"),
        tests=(
            (
                "tests/storage/test_state_files.py"
                "::test_a_sync_does_not_cover_a_name_that_is_created_while_it_runs"
            ),
        ),
    ),
    Guard(
        name="a shared sync is of the same directory",
        why="the directory of a partition of another topic is removed by a power failure",
        module="raftlog/storage/state_files.py",
        function="NameSyncs.sync",
        change=replace("call get", "max(self._synced.values(), default=0)"),
        tests=("tests/storage/test_state_files.py::test_a_sync_does_not_cover_another_directory",),
    ),
    Guard(
        name="a found directory counts as created now",
        why="an earlier sync counts for it: a power failure removes acknowledged records",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile._open",
        change=drop("assign _name"),
        tests=(f"{HOSTING}::test_names_that_a_killed_process_has_created_are_made_durable",),
    ),
    Guard(
        name="only a log that never had a record gets a directory",
        why="a copy whose files are lost continues as an empty one, and is counted",
        module="raftlog/storage/opening.py",
        function="open_log",
        change=always("compare known"),
        tests=(f"{HOSTING}::test_a_partition_gets_its_directory_with_its_first_record",),
    ),
    Guard(
        name="log start never decreases",
        why="two deletions that end out of order restore records",
        module="raftlog/storage/checkpoint.py",
        function="CheckpointFile.raise_log_start",
        change=value("assign log_start_offset", "_.args[0]"),
        tests=(f"{CHECKPOINT}::test_raising_the_log_start_never_lowers_it",),
    ),
    Guard(
        name="state file is replaced durably",
        why="a power failure reverts a topic, an identity or an epoch",
        module="raftlog/storage/state_files.py",
        function="write",
        change=replace(
            "call write_atomic",
            "(file := _.func.value.open(_.args[0], create=True)).truncate(0)\n"
            "file.append([_.args[1]])\n"
            "file.close()",
        ),
        tests=(f"{STATE_FILE}::test_what_was_written_is_read_after_a_power_cut",),
    ),
    Guard(
        name="state file's CRC",
        why="a corrupt state file is used",
        module="raftlog/storage/state_files.py",
        function="decode",
        change=value("if _sealed", "len(_.left) <= _TEXT_POSITION"),
        tests=(f"{STATE_FILE}::test_no_damaged_byte_goes_unnoticed",),
    ),
    Guard(
        name="clean mark is removed durably",
        why="after a power failure a directory that was in use counts as clean",
        module="raftlog/storage/state_files.py",
        function="take",
        change=drop("call sync_dir"),
        tests=(f"{CLEAN_MARK}::test_a_clean_stop_is_remembered_for_one_start",),
    ),
    Guard(
        name="clean mark is of this directory",
        why="a mark that was copied from elsewhere counts",
        module="raftlog/storage/state_files.py",
        function="take",
        change=value("return 'directory_id'", "_.left is not None"),
        tests=(f"{CLEAN_MARK}::test_a_damaged_mark_or_one_of_another_directory_is_none",),
    ),
    Guard(
        name="only a durable directory is marked clean",
        why="a directory whose disk has failed counts as clean",
        module="raftlog/storage/store.py",
        function="Store.close",
        change=value("if _logs", "self._logs is not None"),
        tests=(
            f"{CLEAN_MARK}::test_a_log_that_has_failed_before_or_is_damaged_leaves_none_either",
        ),
    ),
    Guard(
        name="directory of another broker is rejected",
        why="a broker serves the records and votes of another one",
        module="raftlog/storage/state_files.py",
        function="IdentityFile.take",
        change=never("compare broker_id"),
        tests=("tests/storage/test_store.py::test_the_directory_of_another_is_refused",),
    ),
    Guard(
        name="directory of another cluster is rejected",
        why="a replaced disk adds the records of another cluster",
        module="raftlog/storage/state_files.py",
        function="IdentityFile.adopt",
        change=never("if CLUSTER_UNKNOWN"),
        tests=(
            "tests/storage/test_state_files.py::test_a_directory_without_a_cluster_adopts_one_once",
        ),
    ),
    Guard(
        name="a doubt outlives a clean stop",
        why="a replica that may lack acknowledged records is elected after one more restart",
        module="raftlog/storage/store.py",
        function="Store.close",
        change=drop("not doubt"),
        tests=(f"{CLEAN_MARK}::test_a_doubt_that_is_not_settled_outlives_a_clean_stop",),
    ),
    Guard(
        name="unsynced replicas are in doubt after a crash",
        why="with flush.policy=os, a replica whose page cache was lost is elected (S12)",
        module="raftlog/storage/store.py",
        function="Store.open",
        change=value("if was_clean", "not _.values[0]"),
        tests=(f"{CLEAN_MARK}::test_unsynced_logs_of_a_replica_are_in_doubt_after_a_crash",),
    ),
    Guard(
        name="a replica's torn write is not truncated without its group",
        why="a flipped bit in acknowledged records counts as a torn write, and is truncated",
        module="raftlog/storage/opening.py",
        function="recover",
        change=always("if _cut"),
        tests=(
            (
                "tests/storage/test_opening.py"
                "::test_the_torn_end_of_a_replica_stays_until_it_is_decided_on"
            ),
        ),
    ),
    Guard(
        name="quarantine is durable before the new log",
        why="a power failure puts the corrupt log below the records that were copied since",
        module="raftlog/storage/quarantine.py",
        function="_rename",
        change=drop("call sync_dir"),
        tests=(
            (
                "tests/storage/test_damage.py"
                "::test_the_move_is_durable_before_the_empty_log_is_begun"
            ),
        ),
    ),
    Guard(
        name="a killed process's renames are synced",
        why="a power failure reverts what a start has read and acted on",
        module="raftlog/storage/store.py",
        function="Store.open",
        change=drop("call sync_dir"),
        tests=(f"{CRASH_POINTS}::test_altering_a_topic",),
    ),
    Guard(
        name="a batch without records is as old as its append",
        why="compaction moves the log start above the committed offsets of groups",
        module="raftlog/storage/segment.py",
        function="Segment.note",
        change=always("if record_count"),
        tests=(
            "tests/storage/test_compaction.py::test_a_segment_without_records_is_as_old_as_its_appends",
        ),
    ),
    Guard(
        name="a removed copy that a restore brings back is quarantined",
        why="a new replica continues with records that its partition has changed since",
        module="raftlog/storage/store.py",
        function="Store._open_logs",
        change=drop("assign quarantine_strays"),
        tests=(f"{HOSTING}::test_a_restored_copy_that_was_removed_is_quarantined",),
    ),
    Guard(
        name="a restored copy with a record is kept",
        why="an older catalog makes a broker quarantine copies that are counted",
        module="raftlog/storage/store.py",
        function="TopicLogs._quarantine_stray",
        change=replace("compare known", "False"),
        tests=(f"{HOSTING}::test_a_copy_that_an_older_catalog_lacks_is_kept",),
    ),
    Guard(
        name="hosted copy's directories are durable before its name",
        why="after a power failure a broker counts copies that are empty",
        module="raftlog/storage/store.py",
        function="Store.host_partitions",
        change=drop("if make_names_durable"),
        tests=(
            f"{HOSTING}::test_a_partition_that_a_killed_process_had_begun_to_host_is_durable_too",
        ),
    ),
    Guard(
        name="a full disk can be freed by the deletion of a topic",
        why="the ways out that the manual names are refused",
        module="raftlog/storage/state_files.py",
        function="Spare.write",
        change=drop("call rename"),
        tests=(f"{_CATALOG}::test_a_full_disk_leaves_room_for_the_changes_that_free_it",),
    ),
]

GUARDS: Final = [*POOL, *SYSTEM, *BATCHES, *SYNCS, *STATE_FILES]
