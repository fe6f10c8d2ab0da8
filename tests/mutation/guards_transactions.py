"""Guards of transactions in the log of a partition, and at its leader."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import drop, never, value
from tests.mutation.guard import Guard

_LOG: Final = "tests/storage/test_transactions.py"
_LEADER: Final = "tests/server/kafka/test_transactional_produce.py"

GUARDS: Final = [
    Guard(
        name="a marker counts once it is committed",
        why="readers get records whose marker the next leader may lack",
        module="raftlog/storage/transactions.py",
        function="LogTransactions.end",
        change=drop("call append _Ending"),
        tests=(f"{_LOG}::test_a_marker_counts_once_it_is_committed",),
    ),
    Guard(
        name="an open transaction holds the last stable offset",
        why="readers get records of a transaction that is aborted later",
        module="raftlog/storage/transactions.py",
        function="LogTransactions.last_stable_offset",
        change=never("if _open"),
        tests=(f"{_LOG}::test_the_stable_offset_waits_for_the_oldest_transaction",),
    ),
    Guard(
        name="a bumped marker ends an older epoch only",
        why="a repeated marker ends the next transaction of the producer (KIP-1228)",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable.needs",
        change=drop("operand is_bumped and"),
        tests=(f"{_LOG}::test_which_markers_a_log_needs",),
    ),
    Guard(
        name="a replaced coordinator ends nothing",
        why="its late marker ends a transaction that the new one continues",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable.needs",
        change=never("if coordinator_epoch"),
        tests=(f"{_LOG}::test_which_markers_a_log_needs",),
    ),
    Guard(
        name="open transactions outlive the expiry of producers",
        why="their markers are not needed, and the last stable offset never moves",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable._may_go",
        change=value("return transactions", "True"),
        tests=(f"{_LOG}::test_open_transactions_outlive_expiry_and_the_limit_of_producers",),
    ),
    Guard(
        name="truncation opens transactions again",
        why="a marker that was truncated still ends its transaction here",
        module="raftlog/storage/producer_state.py",
        function="ProducerTable.cut",
        change=drop("assign transactions"),
        tests=(f"{_LOG}::test_truncation_opens_a_transaction_again",),
    ),
    Guard(
        name="a marker refuses batches that wait for their verification",
        why="a late batch begins a transaction that no marker ends (KIP-890)",
        module="raftlog/server/partition.py",
        function="Partition.append_marker",
        change=drop("call _end_verification #2/2"),
        tests=(f"{_LEADER}::test_a_marker_refuses_the_batches_that_are_not_verified_yet",),
    ),
    Guard(
        name="a leader verifies the first batch of a transaction",
        why="a partition has records of a transaction whose coordinator sends it no marker",
        module="raftlog/server/apis/produce.py",
        function="append_in_transaction",
        change=value("if has_open", "True"),
        tests=(f"{_LEADER}::test_the_first_batch_of_a_transaction_waits_for_its_coordinator",),
    ),
    Guard(
        name="readers of committed records end at the last stable offset",
        why="they get records of open transactions",
        module="raftlog/server/partition.py",
        function="Partition.read",
        change=value("assign last_stable_offset", "_.orelse"),
        tests=(f"{_LEADER}::test_readers_of_committed_records",),
    ),
    Guard(
        name="aborted records replace no others",
        why="compaction removes the committed record of a key whose newer one was aborted",
        module="raftlog/storage/compaction.py",
        function="CompactionTask._is_keyed",
        change=drop("operand is_aborted"),
        tests=(f"{_LOG}::test_compaction_removes_aborted_records_and_keeps_what_readers_get",),
    ),
    Guard(
        name="compaction ends at the last stable offset",
        why="records of an open transaction replace those that readers get",
        module="raftlog/storage/log.py",
        function="Log._cleanable",
        change=value("assign last_stable_offset", "high_watermark"),
        tests=(f"{_LOG}::test_nothing_above_the_stable_offset_is_compacted",),
    ),
    Guard(
        name="transactions without their markers are forgotten",
        why="readers drop the producer's next records, up to its next marker",
        module="raftlog/storage/log.py",
        function="Log._forget_cleaned_markers",
        change=drop("call keep_aborted"),
        tests=(f"{_LOG}::test_markers_go_when_no_replica_needs_them",),
    ),
    Guard(
        name="markers stay while a replica may need them",
        why="a replica that copies the log keeps the transaction open",
        module="raftlog/storage/compaction.py",
        function="Pass.keeps_marker",
        change=drop("operand due_below"),
        tests=(f"{_LOG}::test_markers_go_when_no_replica_needs_them",),
    ),
    Guard(
        name="readers drop aborted records",
        why="they get records of aborted transactions",
        module="raftlog/client/fetcher.py",
        function="_Dropped.has",
        change=drop("call add"),
        tests=("tests/client/test_fetcher.py::test_markers_and_aborted_batches_have_no_records",),
    ),
]
