"""Guards of the log: what a start believes, what is copied and cut, and its producers."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

OPENING: Final = [
    Guard(
        name="epochs of batches that were not written are forgotten",
        why="a follower whose disk was full cannot begin the next epoch: it starts before this one",
        module="raftlog/storage/log.py",
        old="            self.epochs.cut(self.log_end_offset)  # noted before a batch that",
        new="            # noted before a batch that",
        tests=(
            (
                "tests/storage/test_replicated_append.py"
                "::test_epochs_of_batches_that_were_not_written_are_forgotten"
            ),
        ),
    ),
    Guard(
        name="what lies below an empty log goes",
        why="a torn segment that nobody will read waits for a later start",
        module="raftlog/storage/opening.py",
        old="    return recovered.segments[0].base_offset if recovered.segments else ",
        new="    return recovered.segments[0].base_offset if recovered.segments else 0 * ",
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
        module="raftlog/storage/recovery.py",
        old="        return check(self._take(position, header.length))\n",
        new="        return header if self._take(position, header.length) else header\n",
        tests=(
            "tests/storage/test_damage.py::test_a_flipped_bit_above_the_durable_end_is_a_torn_tail",
        ),
    ),
    Guard(
        name="chain of what is recovered",
        why="a segment of an earlier life is served",
        module="raftlog/storage/recovery.py",
        old="            if chain_known and not verify_chain(header, "
        "previous_chain=before.chain):\n",
        new="            if chain_known and header.length < 0:\n",
        tests=(
            "tests/storage/test_damage.py::test_a_segment_of_an_earlier_life_is_no_part_of_the_log",
        ),
    ),
    Guard(
        name="epochs of what is recovered",
        why="batches of an old leader follow those of a newer one",
        module="raftlog/storage/recovery.py",
        old="            if header.leader_epoch < before.leader_epoch:\n",
        new="            if header.length < 0:\n",
        tests=("tests/storage/test_damage.py::test_an_epoch_does_not_go_back",),
    ),
    Guard(
        name="damage is told from a torn tail",
        why="records that were promised are cut as if they had never been",
        module="raftlog/storage/recovery.py",
        old="    if end < result.durable_offset:\n",
        new="    if end < 0:\n",
        tests=("tests/storage/test_damage.py::test_a_bad_batch_below_the_durable_end_is_damage",),
    ),
    Guard(
        name="an index proves what was durable",
        why="with an old checkpoint, damage under an index is cut",
        module="raftlog/storage/recovery.py",
        old="        durable_offset = max(durable_offset, covered)\n",
        new="        durable_offset = max(durable_offset, min(covered, 0))\n",
        tests=(
            (
                "tests/storage/test_recovery.py"
                "::test_an_index_is_proof_that_what_it_covers_was_durable"
            ),
        ),
    ),
    Guard(
        name="an index fits its segment",
        why="the index of another log says where batches are",
        module="raftlog/storage/recovery.py",
        old="        if not _fits(segment, index, summary):\n",
        new="        if index is None:\n",
        tests=("tests/storage/test_rebuilding.py::test_the_index_of_another_log_is_not_believed",),
    ),
    Guard(
        name="a missing segment is damage",
        why="a hole in the log is served as if nothing had been there",
        module="raftlog/storage/recovery.py",
        old="        if segment.base_offset > expected:\n",
        new="        if segment.base_offset < 0:\n",
        tests=(
            "tests/storage/test_damage.py::test_a_log_that_starts_with_a_hole_was_never_promised",
        ),
    ),
    Guard(
        name="what a start found is synced",
        why="a power cut takes back what was served after this start",
        module="raftlog/storage/opening.py",
        old="        segment.file.sync()\n",
        new="        segment.file.size()\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_what_a_killed_process_left_is_durable_before_it_is_served"
            ),
        ),
    ),
    Guard(
        name="what a failed sync dropped is written again",
        why="the kernel takes pages for written that are not on the disk",
        module="raftlog/storage/opening.py",
        old="        segment.file.pwrite(data, position)\n",
        new="",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_what_a_failed_sync_dropped_is_durable_before_it_is_served"
            ),
        ),
    ),
    Guard(
        name="a cut of a torn tail is synced",
        why="torn bytes come back behind what was written in their place",
        module="raftlog/storage/opening.py",
        old="    if recovered.scanned or recovered.notes:\n        disk.sync_dir(directory)\n",
        new="",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_what_a_killed_process_left_is_durable_before_it_is_served"
            ),
        ),
    ),
    Guard(
        name="snapshots beyond the end are removed at a start",
        why="producers of batches that are gone pass for true once the log has grown past them",
        module="raftlog/storage/opening.py",
        old="            files.cut_snapshots(end)\n",
        new="",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_a_snapshot_beyond_the_end_that_a_start_finds_never_counts_again"
            ),
        ),
    ),
    Guard(
        name="epochs fit the log at a start",
        why="a cache that is older than the log answers questions about its end",
        module="raftlog/storage/opening.py",
        old="        if epochs is not None and _fits(epochs, recovered.segments, self._start):\n",
        new="        if epochs is not None:\n",
        tests=(
            "tests/storage/test_rebuilding.py::test_a_bad_epoch_cache_is_rebuilt_from_the_batches",
        ),
    ),
    Guard(
        name="a damaged log takes no writes",
        why="a log goes on behind a hole",
        module="raftlog/storage/log_syncing.py",
        old="        if self.damage:\n            raise DamagedLogError(self.damage)\n",
        new="",
        tests=("tests/storage/test_damage.py::test_a_bad_batch_below_the_durable_end_is_damage",),
    ),
    Guard(
        name="reads stop at damage",
        why="a consumer is given bad bytes",
        module="raftlog/storage/log_reading.py",
        old="        return self.log_end_offset if self._readable_end is None else "
        "self._readable_end\n",
        new="        return self.log_end_offset\n",
        tests=(
            "tests/storage/test_log_syncing.py::test_a_bad_batch_is_found_noted_and_served_no_more",
        ),
    ),
    Guard(
        name="a scrub checks chains",
        why="a batch of another log is never found",
        module="raftlog/storage/log_syncing.py",
        old="                    if header.base_offset != offset or not follows:\n",
        new="                    if header.base_offset != offset:\n",
        tests=(
            "tests/storage/test_log_syncing.py::test_a_batch_of_another_log_is_found_by_its_chain",
        ),
    ),
]

COPYING: Final = [
    Guard(
        name="chain of what is copied",
        why="a follower goes on from records that its leader does not have (S28)",
        module="raftlog/storage/log.py",
        old="            if chain is not None and not verify_chain(header, "
        "previous_chain=chain):\n",
        new="            if chain is not None and header.length < 0:\n",
        tests=(
            (
                "tests/storage/test_replicated_append.py"
                "::test_a_log_that_differs_below_is_told_by_the_chain"
            ),
        ),
    ),
    Guard(
        name="offsets of what is copied",
        why="a follower has a gap, or two records of one offset",
        module="raftlog/storage/log.py",
        old="            if header.base_offset != offset:\n",
        new="            if header.length < 0:\n",
        tests=(
            "tests/storage/test_replicated_append.py::test_a_gap_inside_what_is_copied_is_refused",
        ),
    ),
    Guard(
        name="epochs of what is copied",
        why="a follower takes batches of an old leader behind those of a newer one",
        module="raftlog/storage/log.py",
        old="            if header.leader_epoch < max(epoch, 0) or header.append_timestamp < 0:\n",
        new="            if header.append_timestamp < 0:\n",
        tests=("tests/storage/test_replicated_append.py::test_an_epoch_that_goes_back_is_refused",),
    ),
    Guard(
        name="the durable end goes back before a cut",
        why="a crash during a cut looks like damage",
        module="raftlog/storage/log_cutting.py",
        old="        self._lower_ends(end)\n        self._remove_indexes(end)\n        while len(",
        new="        self._remove_indexes(end)\n        self._lower_ends(end)\n        while len(",
        tests=(
            (
                "tests/storage/test_log_cutting.py"
                "::test_the_ends_on_disk_go_back_before_anything_else_does"
            ),
        ),
    ),
    Guard(
        name="the durable end goes back durably",
        why="a power cut during a cut looks like damage",
        module="raftlog/storage/log_cutting.py",
        old="            durable_end_offset=self.durable_end_offset,\n            sync=True,\n",
        new="            durable_end_offset=self.durable_end_offset,\n",
        tests=(
            "tests/storage/test_durability.py::test_the_durable_end_goes_back_before_anything_goes",
        ),
    ),
    Guard(
        name="indexes go before what they cover",
        why="an index that outlives its batches says that durable bytes are gone",
        module="raftlog/storage/log_cutting.py",
        old="                segment.remove_index()\n        self._disk.sync_dir(self.directory)\n",
        new="                segment.remove_index()\n",
        tests=(
            (
                "tests/storage/test_log_cutting.py"
                "::test_indexes_are_gone_for_good_before_any_segment_goes"
            ),
        ),
    ),
    Guard(
        name="segments go durably, the last one first",
        why="a power cut in the middle of a cut leaves a hole",
        module="raftlog/storage/log_cutting.py",
        old="            self._segments.pop_last().remove()\n"
        "        self._disk.sync_dir(self.directory)\n"
        "        last =",
        new="            self._segments.pop_last().remove()\n        last =",
        tests=("tests/storage/test_durability.py::test_a_cut_is_durable_when_it_returns",),
    ),
    Guard(
        name="a cut segment is synced",
        why="a power cut brings records back that the leader does not have",
        module="raftlog/storage/segment.py",
        old="        self.file.truncate(self.size_bytes)\n        self.file.sync()\n",
        new="        self.file.truncate(self.size_bytes)\n",
        tests=("tests/storage/test_durability.py::test_a_cut_is_durable_when_it_returns",),
    ),
    Guard(
        name="epochs are cut with their batches",
        why="a replica answers for an epoch of which nothing is left",
        module="raftlog/storage/log_cutting.py",
        old="        if self.epochs.cut(end - 1):\n",
        new="        if self.epochs.cut(end + (1 << 62)):\n",
        tests=("tests/storage/test_log_cutting.py::test_an_epoch_that_starts_at_the_cut_goes_too",),
    ),
    Guard(
        name="the file of epochs is cut too",
        why="epochs that were cut come back with the next start",
        module="raftlog/storage/log_cutting.py",
        old="        if self.epochs.cut(end - 1):\n"
        "            self._files.replace_epochs(self.epochs)\n",
        new="        self.epochs.cut(end - 1)\n",
        tests=(
            (
                "tests/storage/test_guards_epochs.py"
                "::test_an_epoch_that_starts_at_the_cut_is_gone_from_the_disk_too"
            ),
        ),
    ),
    Guard(
        name="snapshots are cut",
        why="sequences of batches that were cut pass for true later",
        module="raftlog/storage/log_cutting.py",
        old="        self._files.cut_snapshots(end)\n",
        new="",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_producers_as_of_the_cut_are_saved_before_later_snapshots_go"
            ),
        ),
    ),
    Guard(
        name="snapshots are cut durably",
        why="a power cut brings snapshots back of batches that were cut",
        module="raftlog/storage/log_files.py",
        old="        if beyond:\n            self._disk.sync_dir(self.directory)\n",
        new="",
        tests=(
            "tests/storage/test_log_files.py::test_snapshots_beyond_the_end_are_deleted_for_good",
        ),
    ),
    Guard(
        name="producers are cut",
        why="a producer's record is taken for a duplicate of one that was cut",
        module="raftlog/storage/log_cutting.py",
        old="        self.producers.cut(end, rebuilt)\n",
        new="",
        tests=(
            (
                "tests/storage/test_log_cutting.py"
                "::test_producers_are_as_of_the_cut_whatever_newer_snapshots_say"
            ),
        ),
    ),
    Guard(
        name="drops end before a cut",
        why="a deletion that ends later speaks of records that are gone",
        module="raftlog/storage/log_cutting.py",
        old="            drop.run()\n",
        new="            assert drop\n",
        tests=(
            (
                "tests/storage/test_log_cutting.py"
                "::test_a_drop_that_is_out_is_done_before_the_cut_and_never_after"
            ),
        ),
    ),
    Guard(
        name="no cut while a ticket is out",
        why="a ticket makes an end durable that was cut",
        module="raftlog/storage/log_cutting.py",
        old='        assert self._ticket is None, "a ticket is out: take it back first"\n'
        "        assert self.log_start_offset",
        new="        assert self.log_start_offset",
        tests=("tests/storage/test_log_cutting.py::test_a_ticket_that_is_out_forbids_it",),
    ),
    Guard(
        name="a new beginning is durable",
        why="after a power cut an empty log is where the old one was",
        module="raftlog/storage/log_cutting.py",
        old="            anchor=self._anchor,\n            sync=True,\n",
        new="            anchor=self._anchor,\n",
        tests=(
            (
                "tests/storage/test_log_cutting.py"
                "::test_an_old_drop_does_not_reach_into_the_new_beginning"
            ),
        ),
    ),
    Guard(
        name="new log start before its files go",
        why="after a crash segments are missing above the start that is known: damage",
        module="raftlog/storage/tickets.py",
        old="        self.checkpoint.raise_log_start(self.log_start_offset, self.anchor)\n"
        "        self.disk.sync_dir(self.directory)\n"
        "        for path in self.paths:\n"
        "            if self.disk.exists(path):\n"
        "                with suppress(FileNotFoundError):  # a compaction removes indexes, too\n"
        "                    self.disk.remove(path)\n",
        new="        for path in self.paths:\n"
        "            if self.disk.exists(path):\n"
        "                with suppress(FileNotFoundError):  # a compaction removes indexes, too\n"
        "                    self.disk.remove(path)\n"
        "        self.checkpoint.raise_log_start(self.log_start_offset, self.anchor)\n"
        "        self.disk.sync_dir(self.directory)\n",
        tests=(
            "tests/storage/test_durability.py::test_a_new_log_start_is_durable_before_files_go",
        ),
    ),
    Guard(
        name="the log's end has a durable name before old files go",
        why="a power cut leaves no segment at all, and offsets begin anew",
        module="raftlog/storage/tickets.py",
        old="self.anchor)\n        self.disk.sync_dir(self.directory)\n",
        new="self.anchor)\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_the_segment_that_carries_the_end_has_a_durable_name_before_the_others_go"
            ),
        ),
    ),
    Guard(
        name="producers are saved before their batches go",
        why="retention forgets sequences, and a retry is appended twice",
        module="raftlog/storage/tickets.py",
        old="        saved = self.snapshot is None or "
        "self.files.try_write_snapshot(*self.snapshot)\n",
        new="        saved = self.snapshot is None\n",
        tests=(
            (
                "tests/storage/test_durability.py"
                "::test_producers_are_saved_before_the_new_start_is_durable"
            ),
        ),
    ),
    Guard(
        name="segments wait for a snapshot of their producers",
        why="retention forgets sequences that no snapshot has",
        module="raftlog/storage/log_cutting.py",
        old="self._segments.drop_below(min(offset, saved_offset))\n",
        new="self._segments.drop_below(offset)\n",
        tests=(
            (
                "tests/storage/test_durability.py"
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
        old="            earlier = self.producers.check(header)\n",
        new="            earlier = None\n",
        tests=(
            (
                "tests/storage/test_idempotence.py"
                "::test_a_duplicate_is_answered_with_where_the_first_is"
            ),
        ),
    ),
    Guard(
        name="a gap in a producer's sequence",
        why="records are lost between two batches, and nobody is told",
        module="raftlog/storage/producer_state.py",
        old="        if header.base_sequence != expected:\n",
        new="        if header.base_sequence < 0:\n",
        tests=("tests/storage/test_producer_state.py::test_an_unknown_producer_starts_at_0",),
    ),
    Guard(
        name="a duplicate batch",
        why="a retry whose answer was lost is refused, and looks lost",
        module="raftlog/storage/producer_state.py",
        old="                if (batch.base_sequence, batch.last_sequence) == "
        "(header.base_sequence, last):\n",
        new="                if batch.last_offset < 0:\n",
        tests=(
            (
                "tests/storage/test_producer_state.py"
                "::test_a_duplicate_of_the_last_few_is_answered_with_where_it_is"
            ),
        ),
    ),
    Guard(
        name="an old epoch of a producer",
        why="an instance that was replaced goes on writing",
        module="raftlog/storage/producer_state.py",
        old="        if known is not None and header.producer_epoch < known.epoch:\n",
        new="        if known is not None and header.producer_epoch < 0:\n",
        tests=(
            (
                "tests/storage/test_producer_state.py"
                "::test_a_new_epoch_starts_at_0_and_fences_the_old_one"
            ),
        ),
    ),
    Guard(
        name="copied producers are noted",
        why="after a failover the new leader takes retries for new records",
        module="raftlog/storage/log.py",
        old="                self.producers.note(header)\n",
        new="                self.producers.expire(now_ms=0)\n",
        tests=(
            "tests/storage/test_replicated_append.py::test_producers_are_noted_and_not_checked",
        ),
    ),
    Guard(
        name="producers are replayed at a start",
        why="a restart forgets sequences",
        module="raftlog/storage/opening.py",
        old="        _replay(producers, headers)\n",
        new="",
        tests=("tests/storage/test_idempotence.py::test_a_restart_forgets_no_producer",),
    ),
]

_COPIES: Final = "tests/storage/test_copies.py"

COPIES: Final = [
    Guard(
        name="a copy without its checkpoint is damaged",
        why="an empty replica keeps its seat in the ISR, leads, and makes intact ones truncate",
        module="raftlog/storage/checkpoint.py",
        old="        if not self.is_written:\n            what =",
        new='        if not self.is_written:\n            return ""\n            what =',
        tests=(f"{_COPIES}::test_files_that_vanish_are_damage",),
    ),
    Guard(
        name="a copy with another id is damaged",
        why="what was in quarantine, put back, passes for the copy that took its place",
        module="raftlog/storage/checkpoint.py",
        old="        elif self.latest.copy_id != known.copy_id:\n",
        new="        elif self.latest.copy_id == -1:\n",
        tests=(f"{_COPIES}::test_the_files_of_an_earlier_copy_are_damage",),
    ),
    Guard(
        name="a copy older than its record is damaged",
        why="a partial restore takes back acknowledged records",
        module="raftlog/storage/checkpoint.py",
        old="        elif self._sequence < known.sequence:\n",
        new="        elif self._sequence < 0:\n",
        tests=(f"{_COPIES}::test_files_from_before_the_last_start_are_damage",),
    ),
    Guard(
        name="a damaged copy keeps no id",
        why="a second start takes what a damaged copy has written for the copy on record",
        module="raftlog/storage/checkpoint.py",
        old="        self.latest = replace(self.latest, copy_id=UNIDENTIFIED)\n        return f",
        new="        return f",
        tests=(f"{_COPIES}::test_files_from_before_the_last_start_are_damage",),
    ),
    Guard(
        name="a copy is recorded before its first acknowledgement",
        why="files that vanish soon after the first records look like a new partition",
        module="raftlog/storage/checkpoint.py",
        old="        sync = sync or self._is_unrecorded\n",
        new="",
        tests=(f"{_COPIES}::test_files_that_vanish_are_damage",),
    ),
    Guard(
        name="a dropped copy is forgotten",
        why="a partition that comes back to a broker is refused as damaged",
        module="raftlog/storage/topic_logs.py",
        old="        self._copies.forget(drop.id, drop.partition)\n",
        new="",
        tests=(f"{_COPIES}::test_a_partition_that_was_dropped_is_forgotten",),
    ),
]

READING: Final = [
    Guard(
        name="a segment that cannot be opened is damage",
        why="its readers fail for as long as the broker runs, and no replica is copied again",
        module="raftlog/storage/segment.py",
        old="            if error.errno in NO_DESCRIPTOR:\n",
        new="            if error.errno:\n",
        tests=(f"{_COPIES}::test_a_sealed_segment_that_cannot_be_read_is_damage",),
    ),
    Guard(
        name="a segment that cannot be opened at a start is no torn tail",
        why="what may hold acknowledged records is cut",
        module="raftlog/storage/recovery.py",
        old="        result.durable_offset = max(result.durable_offset, segment.next_offset + 1)\n",
        new="        assert result.durable_offset >= 0\n",
        tests=(f"{_COPIES}::test_the_last_segment_that_cannot_be_opened_is_not_cut",),
    ),
]

GUARDS: Final = [*OPENING, *COPIES, *READING, *COPYING, *PRODUCER_STATE]
