"""Guards of transactions in the log of a partition, and at its leader."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, never, replace, value
from tests.mutation.guard import Guard

_LOG: Final = "tests/storage/test_transactions.py"
_GROUPS: Final = "tests/server/groups/test_shard.py"
_CLIENT: Final = "tests/client/test_transactions.py"
_LEADER: Final = "tests/server/kafka/test_transactional_produce.py"

_SHARD: Final = "tests/transactions/test_shard.py"
_EXPLORE: Final = "tests/transactions/test_exploration.py"
_ACTIVE: Final = "tests/server/transactions/test_shard.py"
_CLUSTER: Final = "tests/server/transactions/test_coordinator.py"
_WIRE: Final = "tests/server/kafka/test_transactions.py"
_PENDING: Final = "tests/consumer_groups/test_pending.py"

COORDINATING: Final = [
    Guard(
        name="who asks too early waits before its epoch is checked",
        why="a client that has just ended a transaction is fenced (KAFKA-18464)",
        module="raftlog/transactions/shard.py",
        function="TransactionShard._of",
        change=never("if is_ending"),
        tests=(f"{_SHARD}::test_who_asks_too_early_waits_and_is_not_fenced",),
    ),
    Guard(
        name="an older epoch begins no transaction",
        why="a replaced instance writes on",
        module="raftlog/transactions/shard.py",
        function="TransactionShard._of",
        change=never("if _fenced"),
        tests=(f"{_SHARD}::test_who_has_another_identity_changes_nothing",),
    ),
    Guard(
        name="an older epoch ends no transaction",
        why="a replaced instance commits half of the transaction of its successor",
        module="raftlog/transactions/shard.py",
        function="TransactionShard.end",
        change=never("if _fenced"),
        tests=(f"{_SHARD}::test_who_has_another_identity_changes_nothing",),
    ),
    Guard(
        name="confirmations count for their transaction",
        why="a late one completes the next transaction, which no marker ends",
        module="raftlog/transactions/shard.py",
        function="TransactionShard.marked",
        change=drop("compare number"),
        tests=(f"{_SHARD}::test_a_late_confirmation_of_an_earlier_transaction_counts_for_none",),
    ),
    Guard(
        name="a client goes on from the epoch that no other instance has",
        why="two instances have the same epoch",
        module="raftlog/transactions/shard.py",
        function="TransactionShard.init",
        change=never("if _is_repeated"),
        tests=(
            f"{_SHARD}::test_a_client_goes_on_from_its_epoch_unless_another_instance_has_begun",
        ),
    ),
    Guard(
        name="an open transaction forgets how its epoch was asked for",
        why="a repeated request shares the epoch of an open transaction",
        module="raftlog/transactions/shard.py",
        function="TransactionShard._begin",
        change=drop("assign NO_EPOCH"),
        tests=(f"{_SHARD}::test_a_client_that_went_on_cannot_be_answered_its_epoch_twice",),
    ),
    Guard(
        name="a commit reserves partitions of its transaction only",
        why="a producer begins transactions in partitions that were never verified",
        module="raftlog/transactions/shard.py",
        function="TransactionShard.end",
        change=replace("call intersection", "set(reserved)"),
        tests=(f"{_SHARD}::test_a_commit_reserves_partitions_of_its_transaction_for_the_next",),
    ),
    Guard(
        name="a commit that has reserved can be repeated",
        why="a committed transaction is reported as fenced after the time limit of the next one",
        module="raftlog/transactions/shard.py",
        function="TransactionShard.end",
        change=never("if _is_of_client"),
        tests=(
            f"{_SHARD}::test_a_commit_that_has_reserved_can_be_repeated_until_the_next_one_is_used",
        ),
    ),
    Guard(
        name="the last epoch is followed by another producer id",
        why="epochs overflow, and nothing fences the producer",
        module="raftlog/transactions/shard.py",
        function="TransactionShard._decide",
        change=never("if _settings"),
        tests=(f"{_SHARD}::test_an_end_after_the_last_epoch_gives_another_producer_id",),
    ),
    Guard(
        name="a time limit goes on at another coordinator",
        why="a transaction whose client is gone stays open",
        module="raftlog/transactions/shard.py",
        function="TransactionShard.start",
        change=drop("assign deadline"),
        tests=(f"{_SHARD}::test_the_time_limit_goes_on_at_another_coordinator",),
    ),
    Guard(
        name="ids in use do not expire",
        why="the partitions of a transaction never get its marker",
        module="raftlog/transactions/shard.py",
        function="TransactionShard._is_expired",
        change=value("if is_ending", "expiry_ms is None"),
        tests=(f"{_SHARD}::test_an_unused_id_expires_and_one_in_use_does_not",),
    ),
    Guard(
        name="markers are sent once the decision is committed",
        why="a coordinator that is replaced commits what its successor aborts",
        module="raftlog/server/transactions/shard.py",
        function="ActiveTransactions._act",
        change=replace("call when_committed", "decided(None)"),
        tests=(f"{_ACTIVE}::test_a_decision_is_told_and_carried_out_once_it_is_committed",),
    ),
    Guard(
        name="a partition is verified by a confirmed leader",
        why="a former coordinator confirms what its successor has ended: the transaction hangs",
        module="raftlog/server/transactions/shard.py",
        function="ActiveTransactions.verify",
        change=replace("call ask", "done(None)"),
        tests=(f"{_ACTIVE}::test_a_partition_is_verified_by_a_coordinator_that_still_leads",),
    ),
    Guard(
        name="answers to markers are of the state that has sent them",
        why="a transaction is complete whose marker was lost with a failed append",
        module="raftlog/server/transactions/shard.py",
        function="ActiveTransactions._marked",
        change=drop("compare _state"),
        tests=(f"{_ACTIVE}::test_markers_that_are_missing_are_sent_after_a_reload",),
    ),
    Guard(
        name="a marker that arrives again ends no later transaction",
        why="it commits a transaction of the same epoch that is still open",
        module="raftlog/server/transactions/coordinator.py",
        function="MarkedTransactions.has",
        change=value("return is_bumped", "False"),
        tests=(
            f"{_CLUSTER}::test_a_marker_that_arrives_again_ends_no_later_transaction_of_its_epoch",
        ),
    ),
    Guard(
        name="a topic that a broker has not received yet is not deleted",
        why="a partition of a committed transaction gets no marker",
        module="raftlog/server/transactions/coordinator.py",
        function="TransactionCoordinator._find",
        change=drop("compare machine"),
        tests=(f"{_CLUSTER}::test_a_topic_that_is_not_known_yet_is_not_gone",),
    ),
    Guard(
        name="a leader aborts what no coordinator of all has",
        why="a transaction is aborted whose coordinator did not answer, and commits it",
        module="raftlog/server/transactions/hanging.py",
        function="HangingTransactions._owned",
        change=value("return None", "owned"),
        tests=(f"{_CLUSTER}::test_a_leader_waits_until_every_coordinator_has_answered",),
    ),
    Guard(
        name="a leader aborts no transaction that a coordinator has",
        why="half of a committed transaction is aborted",
        module="raftlog/server/transactions/hanging.py",
        function="HangingTransactions._resolve",
        change=value("if _abort", "written is not None and written == before[each]"),
        tests=(f"{_CLUSTER}::test_a_leader_aborts_what_no_coordinator_knows_and_nothing_else",),
    ),
    Guard(
        name="a leader aborts no transaction with new records",
        why="they may be of the producer's next transaction, which a coordinator has since",
        module="raftlog/server/transactions/hanging.py",
        function="HangingTransactions._resolve",
        change=drop("compare =="),
        tests=(f"{_CLUSTER}::test_a_producer_that_has_written_in_between_is_left_alone",),
    ),
    Guard(
        name="a guard of pending offsets outlives the marker before it",
        why="the next transaction is aborted for nothing",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard._check_guard",
        change=value("if markers_seen", "last > guard.markers_seen"),
        tests=(
            (
                f"{_PENDING}"
                "::test_a_guard_of_the_next_transaction_outlives_the_bumped_marker_of_the_last_one"
            ),
        ),
    ),
]

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
        change=drop("call _on_marker #1/2"),
        tests=(f"{_LEADER}::test_a_marker_refuses_the_batches_that_are_not_verified_yet",),
    ),
    Guard(
        name="a leader verifies the first batch of a transaction",
        why="a partition has records of a transaction whose coordinator sends it no marker",
        module="raftlog/server/apis/produce.py",
        function="append_in_transaction",
        change=value("if _is_verified", "True"),
        tests=(f"{_LEADER}::test_the_first_batch_of_a_transaction_waits_for_its_coordinator",),
    ),
    Guard(
        name="a reservation is of the epoch of its marker",
        why="a batch of a newer instance begins a transaction that no marker ends",
        module="raftlog/server/partition.py",
        function="Partition._on_marker",
        change=argument("call last_has_ended", "is_reserved", "marker.reserves"),
        tests=(f"{_LEADER}::test_a_reservation_is_of_one_epoch",),
    ),
    Guard(
        name="readers of committed records end at the last stable offset",
        why="they get records of open transactions",
        module="raftlog/server/apis/fetch.py",
        function="Read._read_one",
        change=value("assign high_watermark #2/2", "_.orelse"),
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
    *COORDINATING,
    Guard(
        name="a marker voids the confirmation of a commit of offsets",
        why="an offset is pending that no marker ends: readers of the group wait forever (KIP-890)",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard._check_guard",
        change=never("if markers_seen"),
        tests=(f"{_PENDING}::test_a_guard_ends_with_a_marker_of_the_producer",),
    ),
    Guard(
        name="a reload voids the confirmation of a commit of offsets",
        why="the state before may have seen the marker of the transaction",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard._check_guard",
        change=never("if groups"),
        tests=(f"{_PENDING}::test_a_guard_ends_with_the_state_that_has_given_it",),
    ),
    Guard(
        name="a bumped marker ends offsets of an older epoch only",
        why="a repeated marker commits the offsets of the next transaction of the producer",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard.end_transaction",
        change=replace(
            "assign is_bumped producer_epoch #2/2", "last_epoch = marker.producer_epoch"
        ),
        tests=(
            f"{_PENDING}::test_a_bumped_marker_that_comes_twice_does_not_end_the_next_transaction",
        ),
    ),
    Guard(
        name="a replaced coordinator ends no offsets",
        why="its late marker ends a transaction that the new one continues",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard.end_transaction",
        change=never("if coordinator_epoch"),
        tests=(f"{_PENDING}::test_a_marker_of_a_former_coordinator_is_refused",),
    ),
    Guard(
        name="a group with pending offsets does not expire",
        why="the marker of the transaction finds no group, and its offsets are lost",
        module="raftlog/consumer_groups/shard.py",
        function="GroupShard._tidy",
        change=drop("operand pending"),
        tests=(f"{_PENDING}::test_a_group_with_pending_offsets_does_not_expire",),
    ),
    Guard(
        name="the last written offset of a partition counts",
        why="an older transaction that commits later moves the group back",
        module="raftlog/consumer_groups/group.py",
        function="Group.end_pending",
        change=drop("call forget_pending order"),
        tests=(f"{_PENDING}::test_the_offset_that_was_written_last_counts",),
    ),
    Guard(
        name="a marker without effect is confirmed by the leader",
        why="an isolated coordinator confirms the marker of offsets that another one has",
        module="raftlog/server/groups/shard.py",
        function="ActiveShard.end_transaction",
        change=argument("call _resolve", "confirmed_since", "None"),
        tests=(f"{_GROUPS}::test_a_marker_without_effect_is_told_when_it_is_certain_who_leads",),
    ),
    Guard(
        name="a commit without a response is unknown",
        why="the next transaction begins, and the outcome of the last one is never known",
        module="raftlog/client/transactions.py",
        function="Transactions._end",
        change=drop("assign _unknown #1/3"),
        tests=(f"{_CLIENT}::test_a_commit_without_a_response_is_recovered",),
    ),
    Guard(
        name="a lost record aborts",
        why="a transaction commits without one of its records",
        module="raftlog/client/transactions.py",
        function="Transactions.note_failure",
        change=never("if _failure"),
        tests=(
            f"{_CLIENT}::test_a_record_that_is_not_stored_aborts",
            f"{_CLIENT}::test_a_record_that_was_not_queued_aborts",
        ),
    ),
]
