"""Guards of mirrors, backups and compared copies: a copy has the batches of its source only."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, never, replace, value
from tests.mutation.guard import Guard

GROUPS: Final = "tests/mirror/test_groups.py"

_TEST_PRODUCE: Final = "tests/server/apis/test_produce.py"
_POSITIONS: Final = "raftlog/mirror/mirror.py"
_TEST_POSITIONS: Final = "tests/mirror/test_mirror.py"
_COPIES: Final = "raftlog/client/administration/describe.py"
_TEST_COPIES: Final = "tests/client/test_ranges.py"
_SESSION: Final = "raftlog/mirror/mirror.py"
_TEST_MIRROR: Final = "tests/mirror/test_mirror.py"
_WRITER: Final = "raftlog/backup/writer.py"
_BACKUP: Final = "raftlog/backup/writer.py"
_TEST_BACKUP: Final = "tests/backup/test_backup.py"
_OTHER_BACKUP: Final = f"{_TEST_BACKUP}::test_a_backup_of_something_else_is_not_continued"
_OTHER_BATCHES: Final = f"{_TEST_BACKUP}::test_files_of_other_batches_are_found"

GUARDS: Final = [
    Guard(
        name="a mirrored batch goes to its offset or nowhere",
        why="records of another producer move all later records of the copy",
        module="raftlog/storage/log.py",
        function="Log._append",
        change=never("if not_at_end"),
        tests=(
            f"{_TEST_PRODUCE}::test_only_the_end_of_the_log_suits_a_mirrored_batch_without_a_sequence",
        ),
    ),
    Guard(
        name="only a mirror sends batches with gaps",
        why="a producer makes offsets without records",
        module="raftlog/server/apis/produce.py",
        function="_check_producible",
        change=never("if is_dense"),
        tests=(
            f"{_TEST_PRODUCE}::test_a_mirrored_batch_is_appended_at_its_offset_or_refused",
            f"{_TEST_PRODUCE}::test_a_producer_cannot_send_what_only_compaction_makes",
        ),
    ),
    Guard(
        name="a copy with records of another producer is not continued",
        why="records of two logs are mixed",
        module=_POSITIONS,
        function="refusal",
        change=never("if last_offset"),
        tests=(
            f"{_TEST_POSITIONS}::test_a_copy_continues_at_its_end_unless_it_is_not_ours",
            f"{_TEST_MIRROR}::test_a_copy_that_another_producer_has_written_to_is_refused",
        ),
    ),
    Guard(
        name="a copy that is longer than its source is not continued",
        why="the records of a source that was created again follow those of the former one",
        module=_POSITIONS,
        function="refusal",
        change=never("if source_end"),
        tests=(
            f"{_TEST_POSITIONS}::test_a_copy_continues_at_its_end_unless_it_is_not_ours",
            f"{_TEST_MIRROR}::test_a_source_that_was_created_again_is_refused",
        ),
    ),
    Guard(
        name="the last records of a copy and its source are compared",
        why="a topic that is not a copy, or a copy of a former source, is continued",
        module=_POSITIONS,
        function="difference",
        change=never("if _content"),
        tests=(
            f"{_TEST_POSITIONS}::test_records_are_compared_by_offset",
            f"{_TEST_MIRROR}::test_records_of_others_are_not_mixed_with_a_copy",
        ),
    ),
    Guard(
        name="an epoch of a mirror ends before its sequence wraps",
        why="the producer rejects all later batches of the partition",
        module=_SESSION,
        function="Session._append",
        change=never("if SPAN_MAX"),
        tests=(f"{_TEST_MIRROR}::test_an_epoch_of_the_producer_ends_before_its_sequence_wraps",),
    ),
    Guard(
        name="chain values of copies are compared",
        why="copies that differ are reported as equal",
        module=_COPIES,
        function="_compared",
        change=always("if =="),
        tests=(f"{_TEST_COPIES}::test_copies_with_other_chain_values_differ",),
    ),
    Guard(
        name="a copied offset of a group never moves back",
        why="consumers that continued in the target read records again",
        module="raftlog/mirror/mirror.py",
        function="commits_due",
        change=always("compare >"),
        tests=(f"{GROUPS}::test_offsets_never_move_back",),
    ),
    Guard(
        name="a copied offset of a group is not beyond the copied records",
        why="consumers in the target skip records that are copied later",
        module="raftlog/mirror/mirror.py",
        function="commits_due",
        change=value("assign offset #1/2", "_.args[0]"),
        tests=(f"{GROUPS}::test_offsets_advance_up_to_the_end_of_the_copy",),
    ),
    Guard(
        name="a copy has all tombstones of what it has read",
        why="a key that was deleted comes back for good in a mirror or a backup",
        module="raftlog/mirror/compacted.py",
        function="is_whole",
        change=replace("call must_restart", "False"),
        tests=("tests/mirror/test_compacted.py",),
    ),
    Guard(
        name="another leader has removed other tombstones",
        why="a copy from two leaders keeps a key that both have deleted",
        module="raftlog/mirror/compacted.py",
        function="is_whole",
        change=always("compare epoch"),
        tests=("tests/mirror/test_compacted.py",),
    ),
    Guard(
        name="a mirror looks for removed tombstones before it ends",
        why="a key that was deleted comes back for good in a mirror",
        module=_SESSION,
        function="Session.finish",
        change=never("if _delete_stale"),
        tests=(f"{_TEST_MIRROR}::test_a_copy_that_lacks_removed_tombstones_is_made_anew",),
    ),
    Guard(
        name="a mirror looks for removed tombstones when it begins",
        why="a key that was deleted while the mirror was down comes back for good",
        module=_SESSION,
        function="Session.start",
        change=never("if _delete_stale"),
        tests=(f"{_TEST_MIRROR}::test_a_copy_that_lacks_removed_tombstones_is_made_anew",),
    ),
    Guard(
        name="a backup looks for removed tombstones",
        why="a key that was deleted between two backups comes back for good when it is restored",
        module=_WRITER,
        function="_write",
        change=replace("call _stale", "dict[TopicPartition, _Part]()"),
        tests=(f"{_TEST_BACKUP}::test_a_backup_that_lacks_removed_tombstones_is_made_anew",),
    ),
    Guard(
        name="one run at a time writes to a directory of backups",
        why="two runs that overlap both continue one backup, and the work of one is lost",
        module="raftlog/backup/writer.py",
        function="Directory.hold",
        change=replace("call lock", "self._disk.lock(str(self._path / str(id(self))))"),
        tests=(f"{_TEST_BACKUP}::test_a_second_run_is_refused_while_one_writes",),
    ),
    Guard(
        name="one run at a time writes to a URL of backups",
        why="two runs that overlap both continue one backup, and the work of one is lost",
        module="raftlog/backup/writer.py",
        function="FileSystem._check_lease",
        change=never("if InvalidRequestError"),
        tests=("tests/backup/test_writer.py",),
    ),
    Guard(
        name="a backup file is replaced by no other content",
        why="of two runs that overlap, the manifest of one describes the files of the other",
        module="raftlog/backup/writer.py",
        function="chunk_name",
        change=replace("call sha256", "hashlib.sha256()"),
        tests=(f"{_TEST_BACKUP}::test_runs_that_overlap_leave_a_backup_that_is_whole",),
    ),
    Guard(
        name="a backup replaces the manifest that it began with",
        why="a run that overlaps, where nothing keeps it out, takes back a newer backup",
        module=_WRITER,
        function="_write",
        change=never("if InvalidRequestError"),
        tests=(f"{_TEST_BACKUP}::test_runs_that_overlap_leave_a_backup_that_is_whole",),
    ),
    Guard(
        name="a backup reads what it has written",
        why="a backup that its storage has lost a part of ends well",
        module=_WRITER,
        function="_Verified.write",
        change=never("if CorruptBatchError"),
        tests=(f"{_TEST_BACKUP}::test_a_store_that_loses_what_is_written_is_noticed",),
    ),
    Guard(
        name="a backup continues the log that it has",
        why="a backup mixes records of two logs, if the cluster has lost some that the backup has",
        module=_WRITER,
        function="_add",
        change=never("if chain"),
        tests=(_OTHER_BATCHES,),
    ),
    Guard(
        name="a backup is of one cluster",
        why="records of another cluster are appended to a backup",
        module=_WRITER,
        function="_opened",
        change=never("if cluster_id"),
        tests=(_OTHER_BACKUP,),
    ),
    Guard(
        name="a backup of a topic ends when it is created again",
        why="records of a new topic are appended to those of a deleted one",
        module=_WRITER,
        function="_topic_files",
        change=never("if InvalidRequestError"),
        tests=(_OTHER_BACKUP,),
    ),
    Guard(
        name="the batches of a backup file form one log",
        why="a restored topic has records twice, or in another order",
        module=_BACKUP,
        function="read_chunk",
        change=never("if base_offset"),
        tests=(_OTHER_BATCHES,),
    ),
    Guard(
        name="a backup file ends with the batch that the list names",
        why="a restored topic has the records of another file",
        module=_BACKUP,
        function="read_chunk",
        change=never("if chain #2/2"),
        tests=(_OTHER_BATCHES,),
    ),
]
