"""Guards of the disk, of batches, and of the log's files: what is durable when."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

SYSTEM: Final = [
    Guard(
        name="file sync is fdatasync",
        why="a sync returns and nothing is on the disk",
        module="raftlog/disk.py",
        old="        os.fdatasync(fd)\n",
        new="        os.fstat(fd)\n",
        tests=("tests/test_guards_disk.py::test_a_files_sync_is_an_fdatasync_of_that_file",),
    ),
    Guard(
        name="directory sync is fsync",
        why="a power cut takes new files and renames back",
        module="raftlog/disk.py",
        old=" os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:\n            sync_all(fd)\n",
        new=" os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:\n            os.fstat(fd)\n",
        tests=("tests/test_disk.py::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="a directory is synced without a descriptor to be had",
        why="a broker that has run out of descriptors has to end: it cannot tell what is durable",
        module="raftlog/disk.py",
        old="            if error.errno not in NO_DESCRIPTOR:\n",
        new="            if error.errno:\n",
        tests=("tests/test_disk.py::test_a_directory_is_synced_without_a_descriptor_to_be_had",),
    ),
    Guard(
        name="atomic write syncs the new file",
        why="a power cut leaves a name with nothing behind it",
        module="raftlog/disk.py",
        old="                view = view[os.write(fd, view) :]\n            sync_all(fd)\n",
        new="                view = view[os.write(fd, view) :]\n            os.fstat(fd)\n",
        tests=("tests/test_disk.py::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="atomic write syncs the directory",
        why="a power cut brings the old file back",
        module="raftlog/disk.py",
        old="        os.replace(temporary, path)\n        self.sync_dir(os.path.dirname(path)",
        new="        os.replace(temporary, path)\n        self.exists(os.path.dirname(path)",
        tests=("tests/test_disk.py::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="new directory is synced",
        why="a power cut takes a new directory back, with all that is in it",
        module="raftlog/disk.py",
        old='        self.sync_dir(parent or ".")\n',
        new='        self.exists(parent or ".")\n',
        tests=("tests/test_disk.py::test_what_durability_is_promised_is_asked_of_the_system",),
    ),
    Guard(
        name="data directory is locked",
        why="two brokers write to one directory",
        module="raftlog/disk.py",
        old="            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        new="            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)\n",
        tests=("tests/test_disk.py::test_a_lock_is_held_by_one_until_it_is_released",),
    ),
]

BATCHES: Final = [
    Guard(
        name="batch CRC, one batch",
        why="bytes that rotted pass for what was written",
        module="raftlog/record/batch.py",
        old="    if checksum.crc32c(memoryview(data)[_SEALED_POSITION:]) != header.crc32c:\n",
        new="    if len(data) < _SEALED_POSITION:\n",
        tests=("tests/record/test_batch.py::test_check_finds_every_flipped_bit",),
    ),
    Guard(
        name="batch CRC, what was copied",
        why="a follower stores bytes that changed on the way",
        module="raftlog/record/batch.py",
        old="        if checksum.crc32c(view[position + _SEALED_POSITION : end]) != "
        "header.crc32c:\n",
        new="        if end < position + _SEALED_POSITION:\n",
        tests=(
            (
                "tests/storage/test_replicated_append.py"
                "::test_a_flipped_bit_anywhere_is_found_before_anything_is_written"
            ),
        ),
    ),
    Guard(
        name="leader section CRC",
        why="a flipped bit of an offset or an epoch goes unnoticed",
        module="raftlog/record/batch.py",
        old="    if checksum.crc32c(data[position : position + _LEADER.size]) != "
        "header.leader_crc:\n",
        new="    if header.leader_crc < 0:\n",
        tests=("tests/record/test_batch.py::test_check_finds_every_flipped_bit",),
    ),
    Guard(
        name="chain value",
        why="two logs that differ cannot be told apart",
        module="raftlog/record/batch.py",
        old="    return header.chain == checksum.chain(previous_chain, link)\n",
        new="    return header.chain == checksum.chain(previous_chain, link) or bool(link)\n",
        tests=("tests/record/test_batch.py::test_stamp_changes_the_leaders_section_alone",),
    ),
]

SYNCS: Final = [
    Guard(
        name="segment data is synced",
        why="acknowledged records are in the page cache only",
        module="raftlog/storage/tickets.py",
        old="            file.sync()\n",
        new="            file.size()\n",
        tests=(
            "tests/storage/test_durability.py::test_data_is_durable_when_the_durable_end_moves",
        ),
    ),
    Guard(
        name="new segment's name is synced",
        why="a power cut takes a whole new segment",
        module="raftlog/storage/tickets.py",
        old="        if self.new_names:\n            self.disk.sync_dir(self.directory)\n",
        new="        if self.new_names:\n            self.disk.exists(self.directory)\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_a_new_segments_name_is_durable_when_the_durable_end_reaches_into_it"
            ),
        ),
    ),
    Guard(
        name="noted only once it is durable",
        why="the checkpoint names a durable end that a power cut takes back: a torn tail is damage",
        module="raftlog/storage/tickets.py",
        old="    def run(self) -> None:\n        for file in self.data:\n",
        new="    def run(self) -> None:\n        self._note()\n        for file in self.data:\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_nothing_is_noted_before_what_it_speaks_of_is_durable"
            ),
        ),
    ),
    Guard(
        name="durable end moves only with a sync",
        why="records are acknowledged before they are on the disk",
        module="raftlog/storage/log.py",
        old="        self.log_end_offset = stored[-1].next_offset\n",
        new="        self.log_end_offset = self.durable_end_offset = stored[-1].next_offset\n",
        tests=(
            "tests/storage/test_durability.py::test_data_is_durable_when_the_durable_end_moves",
        ),
    ),
    Guard(
        name="durable end is what the ticket covers",
        why="what was appended while a sync ran counts as synced",
        module="raftlog/storage/log_syncing.py",
        old="max(self.durable_end_offset, ticket.end_offset)\n",
        new="self.log_end_offset\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_a_ticket_covers_what_came_before_it_and_nothing_that_came_after"
            ),
        ),
    ),
    Guard(
        name="acknowledged is what is durable",
        why="with flush.policy=fsync, what is only written is acknowledged",
        module="raftlog/storage/log_reading.py",
        old='self.log_end_offset if self.config.flush_policy == "os" else',
        new='self.log_end_offset if self.config.flush_policy != "" else',
        tests=(
            "tests/storage/test_log.py::test_what_may_be_acknowledged_depends_on_the_flush_policy",
        ),
    ),
    Guard(
        name="failed fsync is fatal",
        why="the next fsync says that all is well, and the pages are gone",
        module="raftlog/storage/log_syncing.py",
        old='        return self._failed(f"syncing {self.directory}", error)\n',
        new='        return StorageFailedError(f"syncing {self.directory}: {error}")\n',
        tests=(
            (
                "tests/storage/test_bad_disk.py"
                "::test_a_failed_sync_ends_all_writing_and_is_not_tried_again"
            ),
        ),
    ),
    Guard(
        name="failed write is fatal",
        why="a disk that fails writes is trusted with more",
        module="raftlog/storage/log_syncing.py",
        old="        if isinstance(failure, StorageFailedError):\n"
        "            self._failure = failure",
        new="        if self._failure is not None:\n            self._failure = failure",
        tests=("tests/storage/test_bad_disk.py::test_a_failed_write_ends_all_writing",),
    ),
    Guard(
        name="only no room passes",
        why="a broken disk is taken for a full one, and used again",
        module="raftlog/storage/faults.py",
        old="    if error.errno in NO_ROOM:\n",
        new="    if error.errno != 0:\n",
        tests=(
            (
                "tests/storage/test_faults.py"
                "::test_any_other_error_means_the_disk_is_not_to_be_trusted"
            ),
        ),
    ),
    Guard(
        name="half a write is taken back",
        why="half a batch stands in the middle of the log",
        module="raftlog/storage/log.py",
        old="            active.file.truncate(active.size_bytes)\n",
        new="            active.file.size()\n",
        tests=("tests/storage/test_full_disk.py::test_half_a_batch_leaves_no_trace",),
    ),
    Guard(
        name="a write that was taken back is synced",
        why="a power cut brings it back behind a segment that the log has left",
        module="raftlog/storage/log.py",
        old="        self._note_unsynced(active)\n        try:\n",
        new="        try:\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_a_taken_back_write_is_gone_for_good_before_the_log_goes_on_in_a_new_"
                "segment"
            ),
        ),
    ),
    Guard(
        name="epoch is durable before its batches",
        why="after a crash a replica answers for an epoch that it does not know",
        module="raftlog/storage/log.py",
        old="        grown.assign(leader_epoch, self.log_end_offset)\n"
        "        self._files.write_epochs(grown)\n",
        new="        grown.assign(leader_epoch, self.log_end_offset)\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_an_epoch_is_durable_before_its_first_batch_is_written"
            ),
        ),
    ),
    Guard(
        name="copied epoch is durable before its batches",
        why="after a crash a follower says that its batches are of another epoch",
        module="raftlog/storage/log.py",
        old="                grown.assign(header.leader_epoch, header.base_offset)\n"
        "        self._files.write_epochs(grown)\n",
        new="                grown.assign(header.leader_epoch, header.base_offset)\n",
        tests=(
            (
                "tests/storage/test_replicated_append.py"
                "::test_epochs_are_durable_before_their_first_batch_is_written"
            ),
        ),
    ),
    Guard(
        name="old leader may not append",
        why="a batch carries an epoch that ended before it",
        module="raftlog/storage/log.py",
        old='            assert leader_epoch == self.epochs.latest, "an append with an old '
        'leader epoch"\n',
        new="",
        tests=("tests/storage/test_log.py::test_an_old_leader_may_not_append",),
    ),
]

STATE_FILES: Final = [
    Guard(
        name="checkpoint is synced when asked",
        why="a power cut brings deleted records back, or a durable end that was cut",
        module="raftlog/storage/checkpoint.py",
        old="            if sync:\n                file.sync()\n",
        new="            if sync:\n                file.size()\n",
        tests=(
            (
                "tests/storage/test_checkpoint.py"
                "::test_a_synced_change_survives_a_power_cut_and_later_ones_are_old_or_new"
            ),
        ),
    ),
    Guard(
        name="durable change is in both slots",
        why="losing one sector takes a durable change back",
        module="raftlog/storage/checkpoint.py",
        old="        for _ in range(SLOTS if sync else 1):\n",
        new="        for _ in range(1):\n",
        tests=(
            (
                "tests/storage/test_checkpoint.py"
                "::test_a_synced_change_survives_the_loss_of_either_slot"
            ),
        ),
    ),
    Guard(
        name="checkpoint's slots alternate",
        why="a torn write destroys the only slot there is",
        module="raftlog/storage/checkpoint.py",
        old="            slot = self._sequence % SLOTS\n",
        new="            slot = 0\n",
        tests=(
            (
                "tests/storage/test_checkpoint.py"
                "::test_a_synced_change_survives_the_loss_of_either_slot"
            ),
        ),
    ),
    Guard(
        name="checkpoint's CRC",
        why="a torn slot is believed",
        module="raftlog/storage/checkpoint.py",
        old="    if magic != _MAGIC or crc != crc32c(body):\n",
        new="    if magic != _MAGIC:\n",
        tests=("tests/storage/test_checkpoint.py::test_a_changed_bit_gives_the_other_slot",),
    ),
    Guard(
        name="checkpoint's file is made durably",
        why="slots are written to a file that a power cut takes away",
        module="raftlog/storage/checkpoint.py",
        old="                file.sync()\n                self._disk.sync_dir(",
        new="                file.size()\n                self._disk.list_dir(",
        tests=(
            (
                "tests/storage/test_checkpoint.py"
                "::test_a_synced_change_survives_a_power_cut_and_later_ones_are_old_or_new"
            ),
        ),
    ),
    Guard(
        name="log start never goes back",
        why="two deletions that end out of order bring records back",
        module="raftlog/storage/checkpoint.py",
        old="            start = max(log_start_offset, latest.log_start_offset)\n",
        new="            start = log_start_offset\n",
        tests=("tests/storage/test_checkpoint.py::test_raising_the_log_start_never_lowers_it",),
    ),
    Guard(
        name="state file is replaced durably",
        why="a power cut takes a topic, an identity or an epoch back",
        module="raftlog/storage/state_file.py",
        old="        disk.write_atomic(path, encode(state))\n",
        new="        (file := disk.open(path, create=True)).truncate(0)\n"
        "        file.append([encode(state)])\n"
        "        file.close()\n",
        tests=(
            "tests/storage/test_state_file.py::test_what_was_written_is_read_after_a_power_cut",
        ),
    ),
    Guard(
        name="state file's CRC",
        why="a state file that rotted is believed",
        module="raftlog/storage/state_file.py",
        old="    if data != _sealed(text):\n",
        new="    if len(data) <= _TEXT_POSITION:\n",
        tests=("tests/storage/test_state_file.py::test_no_damaged_byte_goes_unnoticed",),
    ),
    Guard(
        name="clean mark is taken durably",
        why="after a power cut a directory that was in use passes for clean",
        module="raftlog/storage/clean_mark.py",
        old="    disk.remove(path)\n    disk.sync_dir(directory)\n",
        new="    disk.remove(path)\n",
        tests=("tests/storage/test_clean_mark.py::test_a_clean_stop_is_remembered_for_one_start",),
    ),
    Guard(
        name="clean mark is of this directory",
        why="a mark that was copied from elsewhere counts",
        module="raftlog/storage/clean_mark.py",
        old='    return mark == {"directory_id": directory_id}\n',
        new="    return mark is not None\n",
        tests=(
            (
                "tests/storage/test_clean_mark.py"
                "::test_a_damaged_mark_or_one_of_another_directory_is_none"
            ),
        ),
    ),
    Guard(
        name="only what is durable is left clean",
        why="a directory whose disk has failed passes for clean",
        module="raftlog/storage/store.py",
        old="            if all(log.is_all_durable and not log.doubt for log "
        "in self._logs.logs()):\n",
        new="            if self._logs is not None:\n",
        tests=(
            (
                "tests/storage/test_clean_mark.py"
                "::test_a_log_that_has_failed_before_or_is_damaged_leaves_none_either"
            ),
        ),
    ),
    Guard(
        name="directory of another broker is refused",
        why="a broker answers with another one's records and votes",
        module="raftlog/storage/identity.py",
        old="        if broker_id is not None and broker_id != found.broker_id:\n",
        new="        if broker_id is not None and broker_id < 0:\n",
        tests=("tests/storage/test_store.py::test_the_directory_of_another_is_refused",),
    ),
    Guard(
        name="directory of another cluster is refused",
        why="a disk that was swapped brings another cluster's records",
        module="raftlog/storage/identity.py",
        old="        if identity.cluster_id != CLUSTER_UNKNOWN:\n",
        new="        if identity.broker_id < 0:\n",
        tests=(
            "tests/storage/test_identity.py::test_a_directory_without_a_cluster_adopts_one_once",
        ),
    ),
    Guard(
        name="a doubt outlives a clean stop",
        why="a replica that may lack acknowledged records is elected after one more restart",
        module="raftlog/storage/store.py",
        old="            if all(log.is_all_durable and not log.doubt for log "
        "in self._logs.logs()):\n",
        new="            if all(log.is_all_durable for log in self._logs.logs()):\n",
        tests=(
            (
                "tests/storage/test_clean_mark.py"
                "::test_a_doubt_that_is_not_settled_outlives_a_clean_stop"
            ),
        ),
    ),
    Guard(
        name="unsynced replicas are in doubt after a crash",
        why="with flush.policy=os, a replica whose page cache was lost is elected (S12)",
        module="raftlog/storage/store.py",
        old="                if has_peers and not store.was_clean:\n",
        new="                if not has_peers:\n",
        tests=(
            (
                "tests/storage/test_clean_mark.py"
                "::test_unsynced_logs_of_a_replica_are_in_doubt_after_a_crash"
            ),
        ),
    ),
    Guard(
        name="a replica's torn end is not cut unasked",
        why="a bit that flipped in acknowledged records is taken for a torn write, and cut",
        module="raftlog/storage/recovery.py",
        old="        if cuts_torn:\n",
        new="        if trouble:\n",
        tests=(
            (
                "tests/storage/test_recovery.py"
                "::test_the_torn_end_of_a_replica_stays_until_it_is_decided_on"
            ),
        ),
    ),
    Guard(
        name="quarantine is durable before the new log",
        why="a power cut puts the damaged log back under what was copied since",
        module="raftlog/storage/quarantine.py",
        old="    disk.sync_dir(parent)\n",
        new="",
        tests=(
            (
                "tests/storage/test_quarantine.py"
                "::test_the_move_is_durable_before_the_empty_log_is_begun"
            ),
        ),
    ),
    Guard(
        name="a killed process's renames are synced",
        why="what a start has read, and acted on, goes back in a power cut",
        module="raftlog/storage/store.py",
        old="                disk.sync_dir(directory)\n                store._open_logs()\n",
        new="                store._open_logs()\n",
        tests=("tests/storage/test_crash_points.py::test_creating_a_topic",),
    ),
    Guard(
        name="topic's directories are durable before its name",
        why="after a power cut the catalog names a topic without its logs",
        module="raftlog/storage/store.py",
        old="            self._logs.open_all(topic)\n"
        "            self._logs.make_names_durable(topic)\n",
        new="            self._logs.open_all(topic)\n",
        tests=("tests/storage/test_crash_points.py::test_the_first_topic_of_a_new_directory",),
    ),
    Guard(
        name="hosted copy's directories are durable before its name",
        why="after a power cut a broker believes it has copies that are empty",
        module="raftlog/storage/store.py",
        old="            if is_new:\n                self._logs.make_names_durable(topic)\n",
        new="",
        tests=(
            (
                "tests/storage/test_hosting.py"
                "::test_a_partition_that_a_killed_process_had_begun_to_host_is_durable_too"
            ),
        ),
    ),
]

GUARDS: Final = [*SYSTEM, *BATCHES, *SYNCS, *STATE_FILES]
