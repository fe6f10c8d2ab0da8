"""Guards of batches of Kafka's clients: the checks before they are stored, and at a read."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import Change, always, drop, never, value
from tests.mutation.guard import Guard

_BATCH: Final = "tests/record/test_kafka_batch.py"
_ROWS: Final = "tests/record/test_kafka_rows.py"
_PACKED: Final = "tests/record/test_kafka_compression.py"


def _batch(name: str, why: str, function: str, change: Change, test: str) -> Guard:
    return Guard(
        name=f"Kafka batch: {name}",
        why=why,
        module="raftlog/record/kafka_batch.py",
        function=function,
        change=change,
        tests=(f"{_BATCH}::{test}",),
    )


def _rows(name: str, why: str, function: str, change: Change, test: str) -> Guard:
    return Guard(
        name=f"Kafka records: {name}",
        why=why,
        module="raftlog/record/kafka_rows.py",
        function=function,
        change=change,
        tests=(f"{_ROWS}::{test}",),
    )


def _codec(name: str, why: str, function: str, change: Change, test: str) -> Guard:
    return Guard(
        name=f"Kafka codecs: {name}",
        why=why,
        module="raftlog/record/kafka_compression.py",
        function=function,
        change=change,
        tests=(f"{_PACKED}::{test}",),
    )


_UNREADABLE: Final = "a batch is acknowledged that no consumer can read"
_REFUSED: Final = "test_what_is_refused_and_why"

GUARDS: Final = [
    _batch(
        "CRC",
        "records that changed on their way to the broker are acknowledged",
        "_check_whole",
        never("if _SEALED_POSITION"),
        "test_every_flipped_bit_of_what_the_crc_covers_is_found",
    ),
    _batch("format", _UNREADABLE, "_check_whole", never("if _MAGIC"), _REFUSED),
    _batch(
        "one batch",
        "the records of the second batch are lost",
        "_check_whole",
        never("if _LENGTH_END"),
        "test_two_batches_are_not_one",
    ),
    _batch(
        "size",
        "a batch is appended that no broker can read back",
        "_check_whole",
        never("if BATCH_BYTES_MAX"),
        "test_a_batch_over_the_limit_is_refused_unread",
    ),
    _batch(
        "control batches",
        "control batches are stored as plain records",
        "_check_fields",
        never("if CONTROL"),
        _REFUSED,
    ),
    _batch(
        "offsets are dense",
        "offsets are assigned to no record, or twice",
        "_check_fields",
        never("if last_offset_delta"),
        _REFUSED,
    ),
    _batch(
        "number of records",
        "a broker allocates memory for any number of records",
        "_check_fields",
        never("if RECORDS_PER_BATCH_MAX"),
        "test_too_many_records_are_refused_before_they_are_read",
    ),
    _batch(
        "producer fields",
        "a batch is stored whose sequence cannot be checked",
        "_check_fields",
        never("if producer_id"),
        _REFUSED,
    ),
    _batch(
        "keys",
        "a compacted topic contains records that compaction cannot attribute to a key",
        "check_batch",
        never("if keyless"),
        "test_records_without_keys_are_listed",
    ),
    _batch(
        "timestamps",
        "a timestamp out of range is stored",
        "check_batch",
        never("if TIMESTAMP_MS_MAX"),
        _REFUSED,
    ),
    _batch(
        "the highest timestamp",
        "a wrong maxTimestamp hides records from queries for a time",
        "check_batch",
        value("assign _replace #1/2", "_.func.value"),
        "test_what_clients_leave_inconsistent_is_corrected",
    ),
    _batch(
        "room for columns",
        "compaction of the batch fails",
        "_check_columns_size",
        never("if BATCH_BYTES_MAX"),
        "test_what_cannot_be_stored_as_columns_is_refused",
    ),
    _batch(
        "CRC before LogAppendTime",
        "damaged records are returned with a new, valid CRC",
        "_rows_as_stored",
        never("if _SEALED"),
        "test_damaged_records_get_no_crc_that_agrees",
    ),
    _rows(
        "the last record ends the section",
        _UNREADABLE,
        "_parts",
        never("if RecordsError #2/2"),
        "test_refused",
    ),
    _rows(
        "names are UTF-8, one by one",
        _UNREADABLE,
        "_check_names",
        never("if _lengths"),
        "test_refused",
    ),
    _rows(
        "headers are limited",
        "the columns of a stored batch are over the limit of readers",
        "_parts",
        never("if HEADERS_PER_BATCH_MAX"),
        "test_headers_over_the_limit_are_refused",
    ),
    *(
        _rows(
            f"{name}, read by {reader}", _UNREADABLE, f"_part_in_{reader}", change, "test_refused"
        )
        for name, reader, change in (
            ("offset deltas", "python", never("if != #1/2")),
            ("offset deltas", "numpy", never("if arange")),
            ("ends of records", "python", never("if != #2/2")),
            ("ends of records", "numpy", never("if array_equal #2/2")),
            ("keys", "python", never("if 1 #1/2")),
            ("values", "python", never("if 1 #2/2")),
            ("header counts", "numpy", never("if 0")),
        )
    ),
    _rows(
        "every length in a run",
        _UNREADABLE,
        "_run",
        always("condition all"),
        "test_runs_of_equal_length_are_found_as_by_single_steps",
    ),
    _rows(
        "lengths, read by numpy",
        _UNREADABLE,
        "_check_lengths",
        never("if RecordsError"),
        "test_refused",
    ),
    _rows(
        "header counts, read by python",
        "a header count of 2^33 is a loop of minutes",
        "_headers_in_python",
        never("if RecordsError #1/3"),
        "test_refused",
    ),
    _rows(
        "stored timestamps",
        "retention and queries for a time use other timestamps than the records have",
        "_columns",
        never("if max_timestamp"),
        "test_a_stored_header_has_to_agree",
    ),
    _codec(
        "size of gzip and lz4",
        "a small batch takes gigabytes of memory",
        "_check_end",
        never("if CorruptBatchError #1/3"),
        "test_a_size_over_the_bound_is_refused",
    ),
    _codec(
        "a cut stream",
        "a batch is acknowledged without its last records",
        "_check_end",
        never("if CorruptBatchError #2/3"),
        "test_a_cut_stream_is_refused",
    ),
    _codec(
        "nothing follows a stream",
        "records in a second stream are lost",
        "_check_end",
        never("if CorruptBatchError #3/3"),
        "test_nothing_may_follow",
    ),
    _codec(
        "nothing follows a zstd frame without a size",
        "records in a second frame are lost",
        "_zstd_size_max",
        never("if CorruptBatchError"),
        "test_nothing_may_follow",
    ),
    _codec(
        "size of zstd",
        "a small batch takes gigabytes of memory",
        "_unpack_zstd",
        never("if CorruptBatchError"),
        "test_a_size_over_the_bound_is_refused",
    ),
    _codec(
        "size of snappy",
        "a small batch takes gigabytes of memory",
        "_unpack_snappy",
        never("if CorruptBatchError #1/2"),
        "test_a_size_over_the_bound_is_refused",
    ),
    Guard(
        name="rows do not come by raftlog's own produce",
        why="the event loop of a broker stops for each record of a large batch",
        module="raftlog/server/apis/produce.py",
        function="_check_layout",
        change=never("if KAFKA_ROWS"),
        tests=("tests/server/test_kafka_batches.py::test_a_raftlog_client_cannot_send_rows",),
    ),
    Guard(
        name="records without timestamps get the time of the append",
        why="their segment is never deleted by retention, or at once",
        module="raftlog/record/batch.py",
        function="stamp",
        change=drop("operand not"),
        tests=(f"{_BATCH}::test_records_without_timestamps_get_the_time_of_the_append",),
    ),
]
