"""The options of reads and writes: defaults, every one of them, what excludes what."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from pyspark.cloudpickle import dumps
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_raftlog import options as module
from pyspark_raftlog.offsets import Offsets, Time, Word
from pyspark_raftlog.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Assigned,
    Pattern,
    SinkOptions,
    SourceOptions,
    Topics,
)
from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.record import Codec

ADDRESS = {"bootstrap.servers": "a:1,b:2"}


def source(streaming: bool = False, **options: str) -> SourceOptions:
    chosen = {} if {"subscribePattern", "assign"} & options.keys() else {"subscribe": "t"}
    return SourceOptions.parse({**ADDRESS, **chosen, **options}, streaming=streaming)


def sink(streaming: bool = False, **options: str) -> SinkOptions:
    return SinkOptions.parse({**ADDRESS, **options}, streaming=streaming)


def refused(streaming: bool = False, **options: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        source(streaming, **options)
    return str(caught.value)


def sink_refused(streaming: bool = False, **options: str) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        sink(streaming, **options)
    return str(caught.value)


# -- reads -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
def test_the_defaults_are_the_manuals(streaming: bool) -> None:
    assert source(streaming) == SourceOptions(
        streaming=streaming,
        bootstrap="a:1,b:2",
        connection=(),
        reading=(),
        selection=Topics(("t",)),
        starting=Word.LATEST if streaming else Word.EARLIEST,
        ending=Word.LATEST,
        starting_option="startingOffsets",
        ending_option="endingOffsets",
        timestamp_strategy="error",
        include_headers=False,
        columns=None,
        json=False,
        typed_topic=None,
        null_on_error=False,
        min_partitions=None,
        max_records_per_partition=None,
        max_offsets_per_trigger=None,
        max_bytes_per_trigger=None,
        min_offsets_per_trigger=None,
        max_trigger_delay_ms=900_000,
        fail_on_data_loss=True,
        batch_max_rows=10_000,
        batch_max_bytes=4 * limits.MIB,
        fetch_timeout_ms=30_000,
        retries=3,
        retry_interval_ms=100,
        group_id=None,
        commit_offsets=False,
        notices=(),
    )


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("startingOffsets", '{"t":{"0":4}}', "starting", Offsets({"t": {0: 4}})),
        ("startingTimestamp", "1700000000000", "starting", Time(1_700_000_000_000)),
        ("startingOffsetsByTimestampStrategy", "latest", "timestamp_strategy", "latest"),
        ("includeHeaders", "TRUE", "include_headers", True),
        ("value", "JSON", "json", True),
        ("columns", "value, Offset ,", "columns", ("value", "Offset")),
        ("minPartitions", "16", "min_partitions", 16),
        ("maxRecordsPerPartition", "1000000", "max_records_per_partition", 1_000_000),
        ("maxOffsetsPerTrigger", "500", "max_offsets_per_trigger", 500),
        ("maxBytesPerTrigger", "1g", "max_bytes_per_trigger", limits.GIB),
        ("minOffsetsPerTrigger", "20", "min_offsets_per_trigger", 20),
        ("maxTriggerDelay", "30s", "max_trigger_delay_ms", 30_000),
        ("failOnDataLoss", "false", "fail_on_data_loss", False),
        ("batchMaxRows", "1", "batch_max_rows", 1),
        ("batchMaxBytes", "64k", "batch_max_bytes", 65_536),
        ("fetchTimeoutMs", "5s", "fetch_timeout_ms", 5_000),
        ("numRetries", "0", "retries", 0),
        ("retryIntervalMs", "0", "retry_interval_ms", 0),
        ("groupId", "lag", "group_id", "lag"),
    ],
)
def test_each_option_sets_its_field(option: str, text: str, field: str, value: Any) -> None:
    found = source(streaming=True, **{option: text})
    assert getattr(found, field) == value
    same = {field, "starting_option", "notices"}
    default = dataclasses.asdict(source(streaming=True))
    assert {k: v for k, v in dataclasses.asdict(found).items() if k not in same} == {
        k: v for k, v in default.items() if k not in same
    }


def test_what_a_batch_read_has_besides() -> None:
    found = source(endingTimestamp="5", isolation="Committed")
    assert (found.ending_option, found.ending) == ("endingTimestamp", Time(5))
    assert source(assign='{"t":[1]}').selection == Assigned({"t": (1,)})
    assert source(subscribePattern="^t").selection == Pattern("^t")


def test_a_group_that_is_committed_to() -> None:
    found = source(streaming=True, groupId="lag", commitOffsets="true")
    assert (found.group_id, found.commit_offsets, found.notices) == ("lag", True, ())
    assert "commitOffsets=true needs groupId" in refused(streaming=True, commitOffsets="true")


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("minPartitions", "0", "is not from 1 to 100000"),
        ("minPartitions", "100001", "is not from 1 to 100000"),
        ("maxRecordsPerPartition", "-5", "is not from 1"),
        ("maxOffsetsPerTrigger", "0", "is not from 1"),
        ("maxBytesPerTrigger", "0", "is not from 1"),
        ("maxTriggerDelay", "15 minutes", "milliseconds, or a number with"),
        ("batchMaxRows", "0", "is not from 1 to 1048576"),
        ("batchMaxBytes", "1", "is not from 1024"),
        ("batchMaxBytes", "10g", "is not from 1024"),
        ("fetchTimeoutMs", "0", "is not from 1"),
        ("numRetries", "-1", "is not from 0 to 1000"),
        ("retryIntervalMs", "1h", "is not from 0 to 600000 ms"),
        ("isolation", "read_uncommitted", "it is committed"),
        ("includeHeaders", "maybe", "true or false"),
        ("value", "avro", "raw or json or typed"),
        ("onError", "null", "for value=json"),
        ("columns", ",", "names no column"),
        ("columns", "", "is empty"),
        ("groupId", "x" * 256, "is not a name of a consumer group"),
        ("startingOffsets", "soon", "write earliest, latest, or JSON"),
        ("subscribePattern", "(", "regular expression"),
    ],
)
def test_a_value_that_will_not_do_is_refused_in_both_modes(
    option: str, text: str, words: str
) -> None:
    for streaming in (False, True):
        message = refused(streaming, **{option: text})
        assert option in message
        assert words in message


def test_what_excludes_each_other() -> None:
    both = {"maxOffsetsPerTrigger": "5", "maxBytesPerTrigger": "5"}
    assert "exclude each other: leave one out" in refused(streaming=True, **both)
    assert "minOffsetsPerTrigger=6 is higher than maxOffsetsPerTrigger=5" in refused(
        streaming=True, maxOffsetsPerTrigger="5", minOffsetsPerTrigger="6"
    )
    assert "endingOffsets is for batch reads" in refused(streaming=True, endingOffsets="latest")
    assert "startingOffsets is latest" in refused(startingOffsets="latest")
    assert "set exactly one" in refused(subscribe="a", subscribePattern="b")


def test_names_come_in_lower_case_from_spark() -> None:
    given = {**ADDRESS, "Subscribe": "t", "startingOffsets": "EARLIEST", "includeHeaders": "true"}
    found = SourceOptions.parse(CaseInsensitiveDict(given), streaming=False)
    assert found == source(startingOffsets="earliest", includeHeaders="true")


def test_an_option_without_effect_is_noted() -> None:
    assert source(maxOffsetsPerTrigger="5", path="x").notices == (
        "the path has no effect: name topics by the option subscribe",
        "option maxOffsetsPerTrigger has no effect in a batch read",
    )


def test_settings_of_the_client_are_told_apart() -> None:
    given = {"raftlog.client.id": "x", "raftlog.fetch.max.bytes": "5"}
    found = source(**given)
    assert found.connection_settings() == {"client_id": "x"}
    assert hash(found.connection + found.reading) == hash(
        (("client_id", "x"), ("fetch_max_bytes", 5))
    )


def test_no_address_no_read_and_no_write() -> None:
    for parse in (SourceOptions.parse, SinkOptions.parse):
        given = {"subscribe": "t"} if parse == SourceOptions.parse else {"topic": "t"}
        with pytest.raises(InvalidRequestError, match=r"bootstrap\.servers is missing"):
            parse(given, streaming=False)


# -- writes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [False, True])
def test_the_defaults_of_a_write(streaming: bool) -> None:
    found = sink(streaming)
    assert found == SinkOptions(
        streaming=streaming,
        bootstrap="a:1,b:2",
        settings=(),
        topic=None,
        codec=Codec.ZSTD,
        idempotence_id=None,
        idempotence_version=None,
        allow_duplicates=False,
        transactional=False,
        notices=(),
    )
    assert found.write_id is None


def test_every_option_of_a_write() -> None:
    found = sink(
        topic=" clicks ", codec="LZ4", acks="ALL", idempotenceId="job/7", idempotenceVersion="12",
        **{"raftlog.delivery.timeout.ms": "60000"},
    )  # fmt: skip
    assert (found.topic, found.codec) == ("clicks", Codec.LZ4)
    assert found.write_id == "job/7/12"
    assert found.producer_settings() == {"delivery_timeout_ms": 60_000}
    assert sink(acks="-1", topic="t", path="p", streaming=True).notices


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a b"}, "is not a topic name"),
        ({"topic": "__consumer_offsets"}, "is internal"),
        ({"codec": "snappy"}, "none or gzip or lz4 or zstd"),
        ({"acks": "1"}, "option acks='1': only all is supported"),
        ({"acks": "0"}, "option acks='0': only all is supported"),
        ({"idempotenceId": "a"}, "go together"),
        ({"idempotenceVersion": "1"}, "go together"),
        ({"idempotenceId": "a", "idempotenceVersion": "-1"}, "is not from 0"),
        ({"idempotenceId": "a" * 201, "idempotenceVersion": "1"}, "1 to 200 printable"),
        ({"idempotenceId": "a\nb", "idempotenceVersion": "1"}, "1 to 200 printable"),
        ({"subscribe": "t"}, "option subscribe is for reads"),
        ({"partitioner": "x"}, "unknown option partitioner"),
    ],
)
def test_a_write_that_will_not_do_is_refused(options: dict[str, str], words: str) -> None:
    assert words in sink_refused(**options)


def test_a_stream_has_its_own_idempotence() -> None:
    message = sink_refused(streaming=True, idempotenceId="a", idempotenceVersion="1")
    assert "uses its query id and batch number" in message


# -- both ------------------------------------------------------------------------------------------


def test_options_travel_to_the_tasks() -> None:
    for sent in (
        source(assign='{"t":[0]}', startingOffsets='{"t":{"0":4}}'),
        source(streaming=True, subscribePattern="t+"),
        sink(topic="t", idempotenceId="a", idempotenceVersion="1"),
    ):
        assert CloudPickleSerializer().loads(dumps(sent)) == sent


def test_every_option_is_in_the_table() -> None:
    text = re.sub(r"\s+", " ", module.__doc__ or "")
    short = {
        "startingTimestamp": "-Timestamp",
        "startingOffsetsByTimestamp": "-ByTimestamp",
        "endingTimestamp": "-Timestamp",
        "endingOffsetsByTimestamp": "-ByTimestamp",
        "maxOffsetsPerTrigger": "max-",
    }
    for name in (*SOURCE_OPTIONS, *SINK_OPTIONS):
        assert short.get(name, name) in text, name
