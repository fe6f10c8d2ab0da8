"""Guards of compaction in brokers: scheduling, and replication of compacted logs."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, replace, value
from tests.mutation.guard import Guard

_COPIES: Final = "tests/server/cluster/test_copies.py"
_ONE_LOG: Final = "tests/server/test_partition.py"
_HOST: Final = "tests/server/test_host_compaction.py"

GUARDS: Final = [
    Guard(
        name="a compacted topic accepts only records with keys",
        why="records that no record can replace fill it",
        module="raftlog/server/apis/produce.py",
        function="_Produce.append",
        change=drop("keyword config"),
        tests=(
            (
                "tests/server/apis/test_produce.py"
                "::test_a_compacted_topic_takes_only_records_with_keys"
            ),
        ),
    ),
    Guard(
        name="a key may be missing in a few records",
        why="a batch in which some records have a key counts as one in which all have",
        module="raftlog/record/codec.py",
        function="validate",
        change=drop("compare key_nulls #1/2"),
        tests=("tests/record/test_decoder.py::test_keys_may_be_required_of_every_record",),
    ),
    Guard(
        name="only committed records are compacted",
        why="a record is removed for one that is truncated: the key has lost both",
        module="raftlog/server/maintenance.py",
        function="LogCleaner._compact",
        change=argument(
            "call begin",
            "high_watermark",
            "lambda: _.keywords[0].value.body.value.log.log_end_offset",
        ),
        tests=(f"{_HOST}::test_only_what_is_committed_is_compacted",),
    ),
    Guard(
        name="a log is not truncated while it is compacted",
        why="compacted records reappear in a log that no longer has them",
        module="raftlog/server/partition.py",
        function="Partition.truncate",
        change=replace("call when_over", "_.args[0].body"),
        tests=(f"{_HOST}::test_a_cut_waits_for_the_end_of_a_compaction_which_counts_for_nothing",),
    ),
    Guard(
        name="files stay until their compaction is over",
        why="a thread writes into the directory of a deleted topic",
        module="raftlog/server/partition.py",
        function="Partition.when_quiet",
        change=replace("call when_over", "_.args[0].body"),
        tests=(f"{_HOST}::test_a_host_that_closes_is_quiet_when_the_compaction_is_over",),
    ),
    Guard(
        name="an abandoned compaction has no effect",
        why="it replaces segments that will be truncated",
        module="raftlog/server/partition.py",
        function="LogCompaction._end",
        change=drop("not is_given_up"),
        tests=(f"{_ONE_LOG}::test_one_that_is_done_when_it_is_given_up_counts_for_nothing",),
    ),
    Guard(
        name="compaction begins and ends between syncs",
        why="segments are replaced during a sync of their files",
        module="raftlog/server/partition.py",
        function="LogCompaction._begin.came_back",
        change=replace(
            "call between_syncs",
            "self._end(_.args[0].args[1], _.args[0].args[2], _.args[0].args[3])",
        ),
        tests=(f"{_ONE_LOG}::test_it_begins_and_ends_between_two_syncs",),
    ),
    Guard(
        name="a copy that lacks removed tombstones restarts",
        why="a key that was deleted while a replica was down reappears once it leads",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._append",
        change=argument("call must_restart", "removed_below", "0"),
        tests=(
            f"{_COPIES}::test_a_copy_restarts_that_never_received_tombstones_which_its_leader_removed",
        ),
    ),
    Guard(
        name="a copy restarts once",
        why="a copy restarts at every batch, and is never complete",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher._truncate.done",
        change=drop("assign copied_below"),
        tests=(f"{_COPIES}::test_a_copy_restarts_once_and_not_again_while_it_copies",),
    ),
    Guard(
        name="a copy records what its leader lacks",
        why="it leads later, and its followers miss tombstones that it never had",
        module="raftlog/server/partition.py",
        function="Partition.truncate.work",
        change=replace("compare >", "_.left > 1 << 62"),
        tests=(f"{_COPIES}::test_a_new_copy_notes_durably_what_its_leader_lacks",),
    ),
    Guard(
        name="what a copy lacks counts in one leader epoch",
        why="the next leader still has records whose tombstones a third one has removed",
        module="raftlog/server/cluster/fetcher.py",
        function="_Copy.__init__",
        change=value("assign copied_below", "self.host.log.tombstones_removed_below"),
        tests=(f"{_COPIES}::test_a_copy_in_progress_restarts_when_another_broker_leads",),
    ),
    Guard(
        name="tombstones wait for a copy in progress",
        why="a copy that is slower than compaction restarts again and again",
        module="raftlog/server/maintenance.py",
        function="LogCleaner._compact",
        change=argument("call begin", "tombstones_kept_from", "lambda: 1 << 62"),
        tests=(f"{_HOST}::test_tombstones_stay_that_a_follower_still_needs",),
    ),
    Guard(
        name="only compacted batches are accepted in part",
        why="a log that differs from its leader's continues with a part of a batch",
        module="raftlog/server/cluster/fetcher.py",
        function="_fitted",
        change=drop("not is_compacted"),
        tests=(f"{_COPIES}::test_batches_that_do_not_fit_for_another_reason_are_damage",),
    ),
    Guard(
        name="a batch of another epoch is not accepted in part",
        why="a log whose end another leader wrote continues with an unrelated batch",
        module="raftlog/server/cluster/fetcher.py",
        function="_fitted",
        change=drop("compare last_epoch"),
        tests=(f"{_COPIES}::test_batches_that_do_not_fit_for_another_reason_are_damage",),
    ),
    Guard(
        name="a part of a batch has only new offsets",
        why="a record is stored twice, at decreasing offsets",
        module="raftlog/record/compaction.py",
        function="tail_of",
        change=value("assign offsets", "_.left >= 0"),
        tests=(f"{_COPIES}::test_the_rest_may_hold_no_record_and_still_covers_its_offsets",),
    ),
]
