"""Options: their names, their values, defaults, and settings of the client."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.cloudpickle import dumps
from pyspark.serializers import CloudPickleSerializer, CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_raftlog import options as client_options
from pyspark_raftlog import options as module
from pyspark_raftlog.offsets import Offsets, Time, Word
from pyspark_raftlog.options import (
    CONNECTION_SETTINGS,
    READ_SETTINGS,
    SECURITY_SETTINGS,
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    WRITE_SETTINGS,
    Assigned,
    Pattern,
    Setting,
    SinkOptions,
    SourceOptions,
    Texts,
    Topics,
    check_names,
    check_no_secrets,
    choice,
    dotted,
    flag,
    integer,
    notices,
    parse_address_list,
    parse_settings,
)
from raftlog import Admin, Consumer, Producer, limits
from raftlog.client.readers import RangeReader
from raftlog.client.settings import SecurityArguments
from raftlog.errors import InvalidRequestError
from raftlog.record import Codec

# -- options ---------------------------------------------------------------------------------------

# The options of reads and writes: defaults, every one of them, what excludes what.


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
    assert dict(found.connection) == {"client_id": "x"}
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
        ({"raftlog.compression.level": "0", "codec": "lz4"}, "level: 0 is not a level of lz4"),
        ({"raftlog.compression.level": "1", "codec": "none"}, "without a compression"),
        ({"raftlog.delivery.timeout.ms": "29999"}, "less than raftlog.request.timeout.ms=30000"),
        ({"raftlog.request.timeout.ms": "120001"}, "option raftlog.delivery.timeout.ms=120000"),
        ({"idempotenceId": "a"}, "go together"),
        ({"idempotenceVersion": "1"}, "go together"),
        ({"idempotenceId": "a", "idempotenceVersion": "-1"}, "is not from 0"),
        ({"idempotenceId": "a" * 201, "idempotenceVersion": "1"}, "1 to 200 printable"),
        ({"idempotenceId": "a\nb", "idempotenceVersion": "1"}, "1 to 200 printable"),
        ({"subscribe": "t"}, "option subscribe is for reads"),
        ({"partitioner": "x"}, "unknown option partitioner"),
        ({"filterPushdown": "true"}, "option filterPushdown does not exist any longer"),
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


# -- names -----------------------------------------------------------------------------------------

# An option that there is not, or not here, is refused or noted; none is ignored in silence.


MODES = [(False, False), (False, True), (True, False), (True, True)]


def option_names_refused(name: str, *, writing: bool = False, streaming: bool = False) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        check_names(Texts({name: "1"}), writing=writing, streaming=streaming)
    return str(caught.value)


def noted(*names: str, writing: bool = False, streaming: bool = False) -> tuple[str, ...]:
    texts = Texts(dict.fromkeys(names, "true"))
    check_names(texts, writing=writing, streaming=streaming)
    return notices(texts, writing=writing, streaming=streaming)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("subscribepatern", "did you mean subscribePattern?"),
        ("StartingOffset", "did you mean startingOffsets?"),
        ("boostrap.servers", "did you mean bootstrap.servers?"),
        ("include_headers", "did you mean includeHeaders?"),
        ("groupIdPrefix", "is called groupId here"),
        ("quite.another", "there are subscribe, subscribePattern, assign, "),
    ],
)
def test_an_unknown_option_is_refused_with_what_may_be_meant(name: str, meant: str) -> None:
    message = option_names_refused(name)
    assert name.lower() in message
    assert meant in message


@pytest.mark.parametrize("streaming", [False, True])
def test_options_of_the_other_direction_are_refused(streaming: bool) -> None:
    for name in SINK_OPTIONS:
        assert f"option {name} is for writes" in option_names_refused(name, streaming=streaming)
    for name in SOURCE_OPTIONS:
        message = option_names_refused(name, writing=True, streaming=streaming)
        assert f"option {name} is for reads" in message
    assert "name it in the option subscribe" in option_names_refused("topic")


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert f"option {name} is for batch reads" in option_names_refused(name, streaming=True)
    assert noted(name) == ()


@pytest.mark.parametrize(("writing", "streaming"), MODES)
def test_what_spark_adds_is_let_through(writing: bool, streaming: bool) -> None:
    names = ("queryName", "checkpointLocation", "asyncProgressTrackingEnabled")
    assert noted(*names, writing=writing, streaming=streaming) == ()


@pytest.mark.parametrize("name", ["path", "paths"])
def test_a_path_has_no_effect_and_that_is_said(name: str) -> None:
    assert noted(name) == ("the path has no effect: name topics by the option subscribe",)
    assert "by the option topic" in noted(name, writing=True)[0]


def test_options_without_effect_in_a_batch_read_are_noted() -> None:
    names = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId",
             "maxBytesPerTrigger", "commitOffsets")  # fmt: skip
    found = noted(*names)
    assert sorted(found) == sorted(f"option {name} has no effect in a batch read" for name in names)
    assert noted(*names, streaming=True) == ()


def test_options_without_effect_in_a_stream_are_noted() -> None:
    assert noted("groupId", "maxTriggerDelay", streaming=True) == (
        "option groupId has no effect without commitOffsets=true",
        "option maxTriggerDelay has no effect without minOffsetsPerTrigger",
    )


def test_the_option_that_comes_first_is_named() -> None:
    assert noted("startingOffsets", "startingTimestamp", "endingOffsets") == (
        "option startingOffsets has no effect if startingTimestamp is set",
    )


@pytest.mark.parametrize(
    "name", ["raftlog.sasl.password", "sasl_password", "kafka.sasl.password",
             "RAFTLOG.sasl.oauthbearer.token.command"],
)  # fmt: skip
def test_a_secret_in_the_options_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"SHOW CREATE TABLE prints.*'raftlog\.profile'"):
        check_no_secrets({"bootstrap.servers": "a:1", name: "the secret"})
    check_no_secrets({"bootstrap.servers": "a:1", "sasl_username": "alice"})


# -- values ----------------------------------------------------------------------------------------

# One option's text becomes a value, or an error that names the option and what it takes.


NAME = "maxTriggerDelay"


def test_names_have_any_case_and_values_no_spaces_around_them() -> None:
    texts = Texts({"MaxTriggerDelay": " 5 ", "b": "x"})
    assert texts.get(NAME) == texts.get("MAXTRIGGERDELAY") == "5"
    assert NAME in texts
    assert "c" not in texts
    assert texts.get("c") is None
    assert texts.names == ["b", "maxtriggerdelay"]


def test_a_name_in_two_cases_is_refused_unless_they_agree() -> None:
    assert Texts({"Ab": "1", "aB": "1"}).get("ab") == "1"
    with pytest.raises(InvalidRequestError, match="given twice"):
        Texts({"Ab": "1", "aB": "2"})


def test_an_option_of_kafkas_connector_is_the_same_by_its_other_name() -> None:
    texts = Texts({"compression": "lz4", "fetchOffset.numRetries": "5", "numRetries": "5"})
    assert (texts.get("codec"), texts.get("numRetries")) == ("lz4", "5")
    assert texts.names == ["codec", "numretries"]
    with pytest.raises(InvalidRequestError, match="'compression' is given twice, by two names"):
        Texts({"codec": "zstd", "compression": "lz4"})


def test_an_empty_option_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="option groupId is empty: set a value"):
        Texts({"groupid": "  "}).get("groupId")


def test_a_long_text_is_refused() -> None:
    texts = Texts({"columns": "a" * (limits.MIB + 1)})
    with pytest.raises(InvalidRequestError, match="option columns has 1048577 characters"):
        texts.short("columns")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2 min", 120_000),
     ("2h", 7_200_000), ("1D", 86_400_000)],
)  # fmt: skip
def test_durations_are_written_as_in_spark(text: str, ms: int) -> None:
    assert Texts({NAME: text}).duration_ms(NAME, 0) == ms


@pytest.mark.parametrize(
    "text", ["-1", "1.5s", "s", "5 weeks", "5us", "1s 2s", "٣s", "9" * 30, "9999999999999d", "1e3"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="option maxTriggerDelay="):
        Texts({NAME: text}).duration_ms(NAME, 0)


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1_024), ("4k", 4_096), ("4MB", 4 << 20), ("1g", 1 << 30)]
)
def test_sizes_are_written_as_in_spark(text: str, size: int) -> None:
    assert Texts({"batchMaxBytes": text}).size("batchMaxBytes", 1_024, 1 << 30) == size


@pytest.mark.parametrize("text", ["1023", "2g", "-4k", "4x", "k", "1.5m"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"option batchMaxBytes='{text}'"):
        Texts({"batchMaxBytes": text}).size("batchMaxBytes", 1_024, 1 << 30)


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "true", "1_000", "0x10", "٣", "9" * 5_000])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="a whole number from 1 to 5") as caught:
        integer("n", text, 1, 5)
    assert len(str(caught.value)) < 500


def test_a_number_out_of_range_is_refused_with_the_range() -> None:
    assert integer("n", "+5", 1, 5) == 5
    for text in ("0", "6", "-2"):
        with pytest.raises(InvalidRequestError, match=f"option n='{text}' is not from 1 to 5"):
            integer("n", text, 1, 5)
    assert Texts({}).integer("n", 1, 5) is None
    assert Texts({}).size("n", 1, 5) is Texts({}).duration_ms("n", 1) is None


def test_flags_are_true_or_false() -> None:
    assert flag("f", "TRUE") is True
    assert Texts({"f": "False"}).flag("f", True) is False
    assert Texts({}).flag("f", True) is True
    for text in ("1", "yes", "t"):
        with pytest.raises(InvalidRequestError, match="it is true or false"):
            flag("f", text)


def test_a_choice_is_one_of_the_words() -> None:
    assert choice("isolation", "Committed", ("committed",)) == "committed"
    with pytest.raises(InvalidRequestError, match="option s='x': it is error or latest"):
        choice("s", "x", ("error", "latest"))


# -- settings of the client ------------------------------------------------------------------------

# Settings go to the client under its own names; what is not for users is refused by name.


def settings(writing: bool = False, **options: str) -> dict[str, Setting]:
    texts = {name.replace("__", "."): text for name, text in options.items()}
    return dict(parse_settings(Texts(texts), writing=writing))


@pytest.mark.parametrize(
    "name", ["bootstrap.servers", "raftlog.bootstrap.servers", "kafka.bootstrap.servers",
             "Bootstrap.Servers", "raftlog.bootstrap_servers"],
)  # fmt: skip
def test_the_address_has_several_names(name: str) -> None:
    assert parse_address_list(Texts({name: "a:1, [::1]:2,a:1,"})) == "a:1,[::1]:2"


def test_addresses_that_disagree_are_refused_and_their_order_does_not_matter() -> None:
    options = {"bootstrap.servers": "a:1,b:2", "kafka.bootstrap.servers": "b:2,a:1"}
    assert parse_address_list(Texts(options)) == "a:1,b:2"
    assert parse_address_list(Texts({"kafka.bootstrap-servers": "b:2"})) == "b:2"
    options["kafka.bootstrap.servers"] = "b:2"
    with pytest.raises(InvalidRequestError, match="name different brokers: leave all but one out"):
        parse_address_list(Texts(options))


@pytest.mark.parametrize("name", ["raftlog.profile", "profile"])
def test_a_profile_has_the_address_if_no_option_has(name: str, tmp_path: Path) -> None:
    profile = tmp_path / "cluster.toml"
    profile.write_text('bootstrap = "a:1,b:2"\n')
    assert parse_address_list(Texts({name: str(profile)})) == "a:1,b:2"
    assert parse_address_list(Texts({name: str(profile), "bootstrap.servers": "c:3"})) == "c:3"
    profile.write_text('sasl_username = "alice"\n')
    with pytest.raises(InvalidRequestError, match=r"cluster\.toml' has no bootstrap: add it"):
        parse_address_list(Texts({name: str(profile)}))


def test_without_an_address_there_is_an_example() -> None:
    with pytest.raises(InvalidRequestError, match=r"bootstrap\.servers is missing.*broker-1:9100"):
        parse_address_list(Texts({}))


@pytest.mark.parametrize("text", ["a", "a:b", "a:70000", "a:0", ",", "::1:9100", "a:1;b:2"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"option raftlog\.bootstrap\.servers='"):
        parse_address_list(Texts({"raftlog.bootstrap.servers": text}))


def test_settings_are_named_with_dots_or_underscores() -> None:
    found = parse_settings(
        Texts(
            {
                "raftlog.request.timeout.ms": "5000",
                "raftlog.client_id": "job-7",
                "Raftlog.Check.Crcs": "false",
                "raftlog.read.from": "leader",
                "raftlog.bootstrap.servers": "a:1",
                "subscribe": "t",
            }
        ),
        writing=False,
    )
    assert found == (
        ("check_crcs", False),
        ("client_id", "job-7"),
        ("read_from", "leader"),
        ("request_timeout_ms", 5_000),
    )


def test_kafkas_names_are_accepted_for_what_both_have() -> None:
    given = {"kafka.security.protocol": "ssl", "kafka.client.id": "job", "kafka.check.crcs": "true"}
    assert dict(parse_settings(Texts(given), writing=False)) == {
        "security_protocol": "SSL",
        "client_id": "job",
        "check_crcs": True,
    }
    with pytest.raises(InvalidRequestError, match="given twice, by two names"):
        parse_settings(Texts({**given, "raftlog.client.id": "other"}), writing=False)
    options = {
        "bootstrap.servers": "a:1",
        "kafka.compression.type": "lz4",
        "kafka.acks": "-1",
        "kafka.buffer.memory": "1000000",
    }
    sink = SinkOptions.parse(options, streaming=False)
    assert (sink.codec, sink.settings) == (Codec.LZ4, (("buffer_memory", 1_000_000),))


def test_every_setting_is_one_of_the_client() -> None:
    for client, names in (
        (Admin, CONNECTION_SETTINGS),
        (RangeReader, {**CONNECTION_SETTINGS, **READ_SETTINGS}),
        (Producer, {**CONNECTION_SETTINGS, **WRITE_SETTINGS}),
    ):
        security = set(SecurityArguments.__annotations__)
        assert set(names) <= set(inspect.signature(client).parameters) | security


@pytest.mark.parametrize("client", [Admin, Consumer, Producer])
def test_every_parameter_of_a_client_is_a_setting_or_refused_with_advice(
    client: type[object],
) -> None:
    parameters = inspect.signature(client).parameters.values()
    security = SecurityArguments.__annotations__
    names = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]
    for name in (*names, *security):
        if name in {**CONNECTION_SETTINGS, **READ_SETTINGS, **WRITE_SETTINGS}:
            continue
        for writing in (False, True):
            with pytest.raises(InvalidRequestError, match="is not supported here: "):
                parse_settings(Texts({dotted(name): "1"}), writing=writing)


def test_a_setting_given_in_two_ways_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="given twice, by two names"):
        settings(raftlog__client__id="a", raftlog__client_id="a")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("raftlog.auto.offset.reset", "latest", "set startingOffsets to earliest or latest"),
        ("raftlog.enable.auto.commit", "true", "are stored in the query's checkpoint"),
        ("raftlog.isolation.level", "read_uncommitted", "only committed records are ever read"),
        ("raftlog.group.id", "g", "groupId with commitOffsets=true"),
        ("raftlog.key.deserializer", "x", "key and value are binary columns"),
        ("raftlog.request.timeout", "1", r"did you mean raftlog\.request\.timeout\.ms\?"),
        ("raftlog.zzz", "1", r"there is raftlog\.client\.id"),
        ("raftlog.buffer.memory", "1", "a setting of writing"),
        ("raftlog.request.timeout.ms", "0", "is not from 1 to"),
        ("raftlog.request.timeout.ms", "1.5", "a whole number"),
        ("raftlog.request.timeout.ms", " ", "is empty"),
        ("raftlog.check.crcs", "1", "true or false"),
        ("raftlog.read.from", "follower", "leader or replica"),
        ("raftlog.client.id", "x" * 257, "256 are allowed"),
        ("kafka.buffer.memory", "5", "raftlog has no setting of that name"),
        ("kafka.group.id", "g", "groupId with commitOffsets=true"),
        ("kafka.auto.offset.reset", "x", "set startingOffsets"),
        ("kafka.sasl.jaas.config", "x", "there is profile, security_protocol"),
        ("raftlog.ssl.truststore.location", "x", "there is profile, security_protocol"),
        ("raftlog.security.protocol", "TLS", "SSL or SASL_PLAINTEXT or SASL_SSL"),
        ("kafka.fetch.max.wait", "5", r"there is raftlog\.fetch\.max\.wait\.ms"),
        ("kafka.zzz", "5", "raftlog has no setting of that name"),
    ],
)
def test_what_is_no_setting_of_a_read_is_refused(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as caught:
        parse_settings(Texts({name: text}), writing=False)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raftlog.acks", "set acks"),
        ("raftlog.compression.type", "set codec"),
        ("raftlog.partitioner.class", "write a column `partition`"),
        ("raftlog.enable.idempotence", "always idempotent"),
        ("raftlog.fetch.max.bytes", "a setting of reading"),
        ("raftlog.linger.ms", "sends batches without a delay"),
        ("kafka.transactional.id", "set transactional=true"),
    ],
)
def test_what_is_no_setting_of_a_write_is_refused(name: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parse_settings(Texts({name: "1"}), writing=True)


def test_a_write_has_settings_of_its_own() -> None:
    found = settings(True, raftlog__buffer__memory="2048", raftlog__compression__level="-5")
    assert found == {"buffer_memory": 2_048, "compression_level": -5}


def test_a_rack_needs_replicas_to_choose_from() -> None:
    assert settings(raftlog__client__rack="r1") == {"client_rack": "r1"}
    with pytest.raises(InvalidRequestError, match=r"requires raftlog\.read\.from=replica"):
        settings(raftlog__client__rack="r1", raftlog__read__from="leader")


def test_no_name_is_both_a_setting_and_refused() -> None:
    known = {**CONNECTION_SETTINGS, **READ_SETTINGS, **WRITE_SETTINGS}
    assert not known.keys() & client_options._OWNED.keys()


def test_a_password_stays_out_of_every_text() -> None:
    read = {"bootstrap.servers": "a:1", "subscribe": "t", "sasl_password": "the secret"}
    options = SourceOptions.parse({**read, "sasl_username": "alice"}, streaming=False)
    assert dict(options.connection)["sasl_password"] == "the secret"
    assert "the secret" not in repr(options)
    pickler: Any = CPickleSerializer()
    again = pickler.loads(pickler.dumps(options))  # as it goes to the tasks
    assert again == options
    assert "the secret" not in repr(again)
    for wrong in ({"sasl_password": "the secret" * 30}, {"sasl_passwort": "the secret"}):
        with pytest.raises(InvalidRequestError) as caught:
            SourceOptions.parse(read | wrong, streaming=False)
        assert "the secret" not in str(caught.value)


def test_a_password_keeps_its_spaces() -> None:
    for name in ("sasl_password", "raftlog.sasl.password", "kafka.SASL.password"):
        found = parse_settings(Texts({name: " the secret "}), writing=False)
        assert found == (("sasl_password", " the secret "),)


def test_spark_hides_passwords_by_their_names() -> None:
    """``spark.redaction.regex`` has this value by default."""
    hides = re.compile("(?i)secret|password|token|access[.]?key")
    for name in (*SECURITY_SETTINGS, *map(dotted, SECURITY_SETTINGS)):
        assert bool(hides.search(name)) == ("password" in name or "token" in name)
