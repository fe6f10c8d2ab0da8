"""Guards of named producers: stored sequences and their order."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, never, replace, value
from tests.mutation.guard import Guard

_TABLE: Final = "raftlog/storage/producer_state.py"
_SINK: Final = "spark_source/pyspark_raftlog/writer.py"
_RECALL: Final = "spark_source/pyspark_raftlog/routing.py"
_ROUTING: Final = "spark_source/pyspark_raftlog/routing.py"
_STEPS: Final = "raftlog/client/steps.py"
_TEST_STEPS: Final = "tests/spark_source/test_transactional.py"
_RANGES: Final = "raftlog/client/readers.py"
_TEST_TABLE: Final = "tests/storage/test_producer_state.py"
_TEST_RECALL: Final = "tests/spark_source/test_recall.py"
_TEST_ROUTING: Final = "tests/spark_source/test_routing.py"
_TEST_SINK: Final = "tests/spark_source/test_writer.py"
_TEST_TASKS: Final = (
    f"{_TEST_SINK}::test_a_write_is_stored_once_in_any_tasks_on_any_number_of_partitions"
)
_HANDLER: Final = "raftlog/server/apis/producers.py"
_LIST: Final = "raftlog/server/apis/producers.py"
_TEST_LIST: Final = "tests/server/apis/test_producers.py"
_FLIGHT: Final = "raftlog/client/sender.py"
_CLIENT: Final = "raftlog/client/resumable.py"
_TEST_HANDLER: Final = "tests/server/apis/test_producers.py"
_TEST_FLIGHT: Final = "tests/client/test_failover.py"
_TEST_CLIENT: Final = "tests/client/test_resumable.py"

GUARDS: Final = [
    Guard(
        name="the sequence of a named producer is committed",
        why="a run skips records that the next leader truncates: they are lost",
        module=_HANDLER,
        function="_Describing.begin",
        change=replace(
            "call when_committed",
            "self._committed(_.args[1].args[1], _.args[1].args[2], _.func.value, "
            "_.args[1].args[4], None)",
        ),
        tests=(
            f"{_TEST_HANDLER}::test_what_is_not_committed_is_waited_for",
            f"{_TEST_HANDLER}::test_the_followers_have_to_have_it_first",
        ),
    ),
    Guard(
        name="all producers of a response are waited for",
        why="the end of the last producer counts for all: another one's is not committed",
        module=_HANDLER,
        function="_described",
        change=value("assign last_offset", "_.args[1]"),
        tests=(f"{_TEST_HANDLER}::test_the_last_of_all_that_are_asked_for_is_waited_for",),
    ),
    Guard(
        name="only the leader reports a named producer's sequence",
        why="a replica that lags has less, and a run is rejected without need",
        module=_HANDLER,
        function="_Describing.begin",
        change=value("assign check_leading", "_.func.value.leadership"),
        tests=(f"{_TEST_HANDLER}::test_who_leads_no_more_says_that_it_is_not_known",),
    ),
    Guard(
        name="a named producer's sequence is confirmed",
        why="an isolated leader reports less than its successor has",
        module=_HANDLER,
        function="_Describing._committed",
        change=value("if _confirmed", "_.values[0] or _.values[1].left is not None or _.values[1]"),
        tests=(f"{_TEST_HANDLER}::test_nobody_else_may_lead_by_then",),
    ),
    Guard(
        name="only the leader lists producers",
        why="a replica that lags reports older sequences as those of now",
        module=_LIST,
        function="list_producers",
        change=drop("call check_readable"),
        tests=(f"{_TEST_LIST}::test_each_partition_has_its_own_outcome_in_list_producers",),
    ),
    Guard(
        name="a list of producers compares leader epochs",
        why="a client with newer metadata gets the list of a deposed leader",
        module=_LIST,
        function="list_producers",
        change=drop("call check_epoch"),
        tests=(f"{_TEST_LIST}::test_an_older_leader_epoch_is_fenced",),
    ),
    Guard(
        name="a lost batch breaks its partition",
        why="later batches are sent after a gap, which another run could fill",
        module=_FLIGHT,
        function="ResumableInFlightBatches.lose",
        change=argument("call _break", 0, "1 << 62"),
        tests=(f"{_TEST_FLIGHT}::test_what_is_refused_takes_all_later_ones_with_it",),
    ),
    Guard(
        name="a recreated topic breaks its partitions",
        why="a run continues in a log that has none of its records",
        module=_FLIGHT,
        function="ResumableInFlightBatches.begin_anew",
        change=argument("call _break", 0, "1 << 62"),
        tests=(f"{_TEST_FLIGHT}::test_in_another_topic_of_the_name_nothing_goes_on",),
    ),
    Guard(
        name="a sequence is not reused after Ctrl-C",
        why="two batches have one sequence: the second counts as a duplicate, and is lost",
        module=_CLIENT,
        function="ResumableProducer._place",
        change=replace("name RaftlogError", "BaseException"),
        tests=(f"{_TEST_CLIENT}::test_an_interrupt_between_a_number_and_its_batch_is_no_repeat",),
    ),
    Guard(
        name="the sequence of a named producer ends",
        why=(
            "the sequence after the last is 0: a late run is accepted, and stores all records twice"
        ),
        module=_CLIENT,
        function="ResumableProducer._place",
        change=never("if RECORDS_MAX"),
        tests=(f"{_TEST_CLIENT}::test_no_sequence_begins_again_from_0",),
    ),
    Guard(
        name="the stored sequence is requested before the first append",
        why="a run starts at 0, and counts as a repetition of the first",
        module=_CLIENT,
        function="ResumableProducer._place",
        change=value("assign get", "self._next.get(_.args[0], 0)"),
        tests=(f"{_TEST_CLIENT}::test_what_is_stored_has_to_be_asked_first",),
    ),
    Guard(
        name="a later epoch is detected before anything is appended",
        why="a run that is over counts its records from 0, as if none were stored",
        module=_CLIENT,
        function="ResumableProducer._count",
        change=never("if epoch"),
        tests=(f"{_TEST_CLIENT}::test_a_later_epoch_counts_anew_and_ends_the_earlier_ones",),
    ),
    Guard(
        name="a duplicate has the same checksum",
        why="another run's records under the same sequences are acknowledged, and not stored",
        module=_TABLE,
        function="ProducerTable.check",
        change=never("if crc32c"),
        tests=(
            f"{_TEST_TABLE}::test_other_records_in_the_place_of_a_stored_batch_are_no_duplicate",
            f"{_TEST_TABLE}::test_runs_of_one_name_store_each_record_once_in_whatever_order",
        ),
    ),
    Guard(
        name="a named producer has one batch in flight",
        why="the second is accepted behind another run's batch, and may repeat what is in that",
        module=_FLIGHT,
        function="ResumableInFlightBatches.full_for",
        change=value(
            "return in_flight", "len(self.in_flight) >= limits.PRODUCER_BATCHES_REMEMBERED"
        ),
        tests=(
            f"{_TEST_FLIGHT}::test_the_next_one_waits_until_the_one_before_is_stored",
            f"{_TEST_CLIENT}::test_one_batch_of_a_partition_is_in_flight_at_a_time",
        ),
    ),
    Guard(
        name="only the named producer's batches are read back",
        why=("a row counts as stored because another producer wrote the same record: it is lost"),
        module=_RANGES,
        function="Range.add",
        change=never("if producers"),
        tests=(
            "tests/client/test_range_reader.py::test_only_the_batches_of_one_producer_are_read",
        ),
    ),
    Guard(
        name="a stored record matches one row",
        why="of equal rows only one is stored after a retry",
        module=_RECALL,
        function="Multiset.take",
        change=drop("call at"),
        tests=(f"{_TEST_RECALL}::test_a_multiset_gives_none_again_in_a_later_call",),
    ),
    Guard(
        name="equal rows of one batch are counted",
        why="of equal rows in one Arrow batch only one is stored after a retry",
        module=_RECALL,
        function="Multiset.take",
        change=value("assign _counts", "_.comparators[0] > 0"),
        tests=(f"{_TEST_RECALL}::test_a_multiset_gives_each_as_often_as_it_has_it",),
    ),
    Guard(
        name="stored records that were deleted end the attempt",
        why="their rows are written again without an error",
        module=_SINK,
        function="check_all",
        change=never("if allow_duplicates"),
        tests=(f"{_TEST_SINK}::test_stored_records_that_were_deleted_end_the_attempt",),
    ),
    Guard(
        name="rows are looked for among the records of the other tasks",
        why="a write that is repeated with another number of tasks is stored again",
        module=_SINK,
        function="Attempt._not_stored",
        change=never("if bool_"),
        tests=(_TEST_TASKS,),
    ),
    Guard(
        name="rows that were held back and are missing are appended",
        why="of equal rows in two tasks one is lost after an interrupted run",
        module=_SINK,
        function="Settlement._settle",
        change=never("if contents"),
        tests=(_TEST_TASKS,),
    ),
    Guard(
        name="stored records that are no rows fail the write",
        why="a job succeeds and its topic has records that are none of its rows",
        module=_SINK,
        function="settle",
        change=never("if allow_duplicates"),
        tests=(
            f"{_TEST_SINK}::test_rows_that_differ_are_stored_and_fail_the_write_unless_allowed",
        ),
    ),
    Guard(
        name="a row without a key is routed by its content",
        why="another order sends it to another partition: two attempts at once store it twice",
        module=_ROUTING,
        function="Router._evenly",
        change=value("assign hashes_of", "np.arange(_.args[0].num_rows, dtype=np.uint64)"),
        tests=(f"{_TEST_ROUTING}::test_records_without_a_key_are_spread_by_what_they_are",),
    ),
    Guard(
        name="a step that is stored is not stored again",
        why="a batch of Spark that is repeated is in the topic twice",
        module=_STEPS,
        function="StepProducer.store",
        change=never("if _is_stored"),
        tests=(f"{_TEST_STEPS}::test_a_write_is_stored_as_a_whole_and_once_with_any_rows",),
    ),
    Guard(
        name="a step before the last one is refused",
        why="a checkpoint that is an older copy stores its batches again",
        module=_STEPS,
        function="StepProducer._is_stored",
        change=never("if ProducerFencedError"),
        tests=(f"{_TEST_STEPS}::test_a_write_is_stored_as_a_whole_and_once_with_any_rows",),
    ),
    Guard(
        name="a step is stored in the topic that was planned",
        why="rows of a topic that was created again have other partitions",
        module=_STEPS,
        function="StepProducer._append_encoded",
        change=never("if UnknownTopicError"),
        tests=(f"{_TEST_STEPS}::test_a_write_that_fails_in_the_midst_leaves_nothing",),
    ),
]
