"""What a task gives to Spark, and what it does when records are not there any more."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
)

from pyspark_raftlog import clients
from pyspark_raftlog.catalog import Catalog
from pyspark_raftlog.clients import ClientPool, Connection
from pyspark_raftlog.options import SourceOptions
from pyspark_raftlog.planning import DataLossError, LossKind, PartitionRange
from pyspark_raftlog.reader import ReadSettings, Rows, read_partition, settings_of
from pyspark_raftlog.schema import arrow_schema, check_schema, read_schema
from raftlog import TopicPartition
from raftlog.errors import (
    CorruptBatchError,
    DamagedLogError,
    DeserializationError,
    OffsetOutOfRangeError,
    RaftlogError,
    RequestTimedOutError,
    UnknownTopicError,
)
from tests.spark_source.fakes import FakeAdmin, FakePartition, catalog_of

WANTED = PartitionRange("t", "t-id", 0, 0, 10)
SCHEMA = read_schema(["value", "timestampType"])
TYPES = {"offset": pa.int64(), "value": pa.binary(), "timestamp_type": pa.int32()}


@dataclass
class FakeLog:
    """A log of records that are named after their offsets, in portions of four.

    ``errors``: raised, once each, before the record at an offset is given. ``reads``: what was
    asked for.
    """

    partition: FakePartition
    errors: list[tuple[int, RaftlogError]] = field(default_factory=list)
    reads: list[dict[str, Any]] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)  # by compaction
    closed: int = 0

    def __call__(self, connection: Connection) -> FakeLog:
        return self

    def read(
        self, tp: TopicPartition, start: int, end: int, *, columns: Sequence[str], **asked: Any
    ) -> Iterator[pa.RecordBatch]:
        self.reads.append({"tp": tp, "start": start, "end": end, **asked})
        for first in range(start, end, 4):
            for at, error in self.errors:
                if first <= at < first + 4:
                    self.errors.remove((at, error))
                    raise error
            offsets = [o for o in range(first, min(end, first + 4)) if o not in self.lost]
            data = {
                "offset": offsets,
                "value": [b"%d" % offset for offset in offsets],
                "timestamp_type": [0] * len(offsets),
            }
            if offsets:
                arrays = [pa.array(data[name], TYPES[name]) for name in columns]
                yield pa.RecordBatch.from_arrays(arrays, names=list(columns))

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> FakeLog:
    """Offsets 0 to 9 of ``t:0``."""
    made = FakeLog(FakePartition(0, 10))
    admin = FakeAdmin({"t": [made.partition]})

    def catalog(connection: Connection) -> Catalog:
        return catalog_of(admin)

    monkeypatch.setattr(clients, "range_readers", ClientPool(made))
    monkeypatch.setattr(clients, "catalogs", ClientPool(catalog))
    return made


def settings(*, fail: bool = True) -> ReadSettings:
    options = SourceOptions.parse(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "subscribe": "t",
            "batchMaxRows": "77",
            "batchMaxBytes": "7777",
            "fetchTimeoutMs": "777",
            "failOnDataLoss": str(fail),
        },
        streaming=False,
    )
    return settings_of(options, SCHEMA)


def json_rows(*values: bytes | None, schema: StructType, **given: str) -> list[dict[str, Any]]:
    """What a task makes of these values at the offsets 5, 6 ..."""
    options = SourceOptions.parse(
        {"bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "value": "json", **given},
        streaming=False,
    )
    rows = Rows(TopicPartition("t", 0), settings_of(options, check_schema(schema, json=True)))
    columns = {"offset": list(range(5, 5 + len(values))), "value": list(values)}
    batch = pa.RecordBatch.from_arrays(
        [pa.array(columns[name], TYPES[name]) for name in rows.columns], names=rows.columns
    )
    return list(rows.of(batch).to_pylist())


def test_fields_of_json_values_are_columns() -> None:
    item = StructType().add("id", IntegerType()).add("tags", ArrayType(StringType()))
    wanted = StructType().add("page", StringType()).add("offset", LongType())
    wanted = wanted.add("value_offset", DoubleType())
    assert json_rows(
        b'{"page": "/", "offset": 1.5, "more": [], "item": {"id": 7, "tags": ["x"]}}',
        None,
        b"{}",
        schema=wanted.add("item", item),
    ) == [
        {"page": "/", "offset": 5, "value_offset": 1.5, "item": {"id": 7, "tags": ["x"]}},
        {"page": None, "offset": 6, "value_offset": None, "item": None},
        {"page": None, "offset": 7, "value_offset": None, "item": None},
    ]


def test_a_value_that_does_not_match_is_named_or_null() -> None:
    bad = (b'{"ms": 1}', b'{"ms": "x"}', b"{", b'{"ms": 4}')
    wanted = StructType().add("ms", IntegerType())
    with pytest.raises(DeserializationError, match=r"t:0: the value at offset 6 .*onError=null"):
        json_rows(*bad, schema=wanted)
    assert [row["ms"] for row in json_rows(*bad, schema=wanted, onError="null")] == [
        1, None, None, 4
    ]  # fmt: skip


def values(wanted: PartitionRange = WANTED, *, fail: bool = True) -> list[int]:
    batches = read_partition(InputPartition(wanted), settings(fail=fail))
    return [int(value) for batch in batches for value in batch.column("value").to_pylist()]


def test_a_range_in_sparks_schema_and_nothing_else(log: FakeLog) -> None:
    batches = list(read_partition(InputPartition(WANTED), settings()))
    assert all(batch.schema.equals(arrow_schema(SCHEMA)) for batch in batches)
    table = pa.Table.from_batches(batches)
    assert table.to_pydict() == {
        "value": [b"%d" % offset for offset in range(10)],
        "timestampType": [0] * 10,
    }
    assert log.reads == [
        {
            "tp": TopicPartition("t", 0),
            "start": 0,
            "end": 10,
            "topic_id": "t-id",
            "rows_max": 77,
            "bytes_max": 7_777,
            "timeout_ms": 777,
        }
    ]


def test_nothing_to_read(log: FakeLog) -> None:
    assert list(read_partition(InputPartition(None), settings())) == []
    assert values(replace(WANTED, end=0)) == []
    assert log.reads == []


def test_a_client_that_has_read_to_the_end_is_kept(log: FakeLog) -> None:
    assert values() == values() == [*range(10)]
    assert not log.closed


def test_compaction_is_no_loss(log: FakeLog) -> None:
    log.lost = [0, 3, 4, 5, 6, 7, 9]
    assert values() == [1, 2, 8]


def test_an_error_that_says_nothing_about_loss_goes_through(log: FakeLog) -> None:
    log.errors = [(5, RequestTimedOutError("silence"))]
    with pytest.raises(RequestTimedOutError, match="silence"):
        values()
    assert log.closed == 1


def test_what_retention_takes_in_mid_read_fails_and_is_named(log: FakeLog) -> None:
    log.errors = [(4, OffsetOutOfRangeError("gone"))]
    log.partition.earliest = 6
    with pytest.raises(DataLossError, match="'t' partition 0: requested offsets 4 to 9") as raised:
        values()
    assert raised.value.kind is LossKind.AGED_OUT
    assert "its log has offsets 6 to 9" in str(raised.value)
    assert "failOnDataLoss=false" in str(raised.value)


def test_or_is_left_out_with_one_warning(log: FakeLog, caplog: pytest.LogCaptureFixture) -> None:
    log.errors = [(4, OffsetOutOfRangeError("gone")), (8, OffsetOutOfRangeError("gone"))]
    log.partition.earliest = 6
    with caplog.at_level(logging.WARNING):
        assert values(fail=False) == [*range(4), *range(6, 10)]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "deleted offsets 4 to 5" in caplog.text


def test_a_log_whose_end_went_back_is_read_to_its_end(log: FakeLog) -> None:
    log.errors = [(8, OffsetOutOfRangeError("beyond the end"))]
    log.partition.latest = 9
    with pytest.raises(DataLossError, match="its end decreased to 9"):
        values()
    log.errors = [(8, OffsetOutOfRangeError("beyond the end"))]
    assert values(fail=False) == [*range(9)]


@pytest.mark.parametrize("topic_id", ["", "older-id"])
def test_a_topic_that_is_gone_or_made_anew(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch, topic_id: str
) -> None:
    admin = FakeAdmin({"t": [log.partition]} if topic_id else {})
    monkeypatch.setattr(clients, "catalogs", ClientPool(lambda connection: catalog_of(admin)))
    wanted = replace(WANTED, topic_id=topic_id or "t-id")
    log.errors = [(4, UnknownTopicError("gone"))]
    with pytest.raises(DataLossError) as raised:
        values(wanted)
    assert raised.value.kind is (LossKind.RECREATED if topic_id else LossKind.TOPIC_GONE)
    log.errors = [(4, UnknownTopicError("gone"))]
    assert values(wanted, fail=False) == [*range(4)]


@pytest.mark.parametrize("error", [CorruptBatchError("bad crc at 5"), DamagedLogError("bad crc")])
def test_damage_is_told_from_loss(
    log: FakeLog, error: RaftlogError, caplog: pytest.LogCaptureFixture
) -> None:
    log.errors = [(5, error)]
    with pytest.raises(DataLossError, match=r"\(damaged\): .*offsets 4 to 9.*bad crc") as raised:
        values()
    assert raised.value.kind is LossKind.DAMAGED
    log.errors = [(5, error)]
    with caplog.at_level(logging.WARNING):
        assert values(fail=False) == [*range(4)]
    assert "damaged" in caplog.text


def test_a_false_alarm_is_tried_again_where_it_was(log: FakeLog) -> None:
    """A broker that is behind may say that offsets do not exist, which the leader has."""
    log.errors = [(4, OffsetOutOfRangeError("behind")), (4, OffsetOutOfRangeError("behind"))]
    assert values() == [*range(10)]
    assert [read["start"] for read in log.reads] == [0, 4, 4]


def test_but_not_for_ever(log: FakeLog) -> None:
    log.errors = [(4, OffsetOutOfRangeError(f"behind {number}")) for number in range(9)]
    with pytest.raises(OffsetOutOfRangeError, match="behind 2"):
        values()


def test_a_task_of_several_ranges_reads_them_in_turn(log: FakeLog) -> None:
    task = InputPartition((replace(WANTED, end=3), replace(WANTED, start=8)))
    batches = read_partition(task, settings())
    found = [int(value) for batch in batches for value in batch.column("value").to_pylist()]
    assert found == [0, 1, 2, 8, 9]
