"""Kafka's APIs that a broker serves, and their messages."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import errors as own
from raftlog import limits
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import InvalidConfigError
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import IGNORED_KEYS, Api, own_settings
from raftlog.kafka.codec import (
    READ_ERRORS,
    BadMessageError,
    Field,
    Kind,
    Message,
    definitions,
    is_flexible,
    is_kafka,
    is_struct,
    read_client_id,
    response,
)
from raftlog.kafka.errors import Place, code_of
from raftlog.protocol.connection import encode_request
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.testing.kafka_wire import encoded, request
from tests.kafka.fuzz import codes_of
from tests.kafka.requests import api_and_version, recorded
from tests.server.harness import RunningBroker, running
from tests.server.kafka.group_client import grouped

# -- APIs ------------------------------------------------------------------------------------------

# The APIs that a broker serves are those in the manual.


PAGE = Path(__file__).parents[2] / "docs/explanation/kafka.md"


def versions(api: Api) -> str:
    if api.version_min == api.version_max:
        return str(api.version_min)
    return f"{api.version_min}-{api.version_max}"


def test_the_manual_lists_the_apis_and_their_versions() -> None:
    section = PAGE.read_text().partition("## APIs")[2].partition("\n## ")[0]
    listed = dict(re.findall(r"\| (\w+) \| (\d+(?:-\d+)?)(?= )", section))
    assert listed == {api.name: versions(api) for api in apis.APIS.values()}


# -- names -----------------------------------------------------------------------------------------
#
# Settings of Kafka that have no effect in raftlog.


# The topic settings of Kafka 4.4, with its defaults.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "errors.deadletterqueue.group.enable": "false",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.decompressed.message.bytes": "2147483639",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.copy.lag.bytes": "-1",
    "remote.copy.lag.ms": "0",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
OWN = {key.name for key in TOPIC_KEYS}


def test_the_settings_are_those_of_kafka() -> None:
    names = OWN | {key.name for key in IGNORED_KEYS}
    assert names == KAFKA_DEFAULTS.keys() | {
        "flush.policy",
        "schema.subjects",
        "schema.subjects.keys",
        "schema.validation",
        "schema.validation.keys",
    }
    for key in IGNORED_KEYS:
        assert key.parse(key.show(key.default)) == key.default, "it can be written back"


def test_a_setting_without_effect_is_not_stored() -> None:
    given = {name: KAFKA_DEFAULTS[name] for name in KAFKA_DEFAULTS.keys() - OWN}
    given |= {"preallocate": "TRUE", "segment.jitter.ms": "1000", "message.format.version": "3.0"}
    given["leader.replication.throttled.replicas"] = "0:1,1:2"
    given["unclean.leader.election.enable"] = "true"
    assert own_settings({**given, "retention.ms": "5"}) == {"retention.ms": "5"}
    assert own_settings({"compression.type": "zstd"}) == {"compression.type": None}


def test_a_setting_that_does_not_exist() -> None:
    with pytest.raises(InvalidConfigError, match=r"Unknown topic config name: no\.such"):
        own_settings({"no.such": "1"})


@pytest.mark.parametrize(("part", "suffix"), [("value", ""), ("key", ".keys")])
def test_confluents_settings_of_schemas(part: str, suffix: str) -> None:
    name, own = f"confluent.{part}.schema.validation", f"schema.validation{suffix}"
    for value, stated in (("true", "id"), ("false", "none"), (None, None)):
        assert own_settings({name: value}) == {own: stated}
    with pytest.raises(InvalidConfigError, match="true, false"):
        own_settings({name: "full"})
    name = f"confluent.{part}.subject.name.strategy"
    value = "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy"
    assert own_settings({name: value}) == {f"schema.subjects{suffix}": "topic-record"}
    with pytest.raises(InvalidConfigError, match=r"Accepted: .*\.RecordNameStrategy"):
        own_settings({name: "com.example.Mine"})


def test_any_setting_can_be_deleted() -> None:
    deleted = {"retention.ms": None, "flush.ms": None, "no.such": None}
    assert own_settings(deleted) == {"retention.ms": None}


def test_a_limit_above_the_highest_is_the_highest() -> None:
    most = str(limits.BATCH_BYTES_MAX)
    assert own_settings({"max.message.bytes": "104857600"}) == {"max.message.bytes": most}
    assert own_settings({"retention.bytes": "-2"}) == {"retention.bytes": "-1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.index.bytes", "3"),
        ("max.message.bytes", "2147483648"),
        ("retention.ms", "soon"),
        ("preallocate", "x"),
        ("compression.type", "none"),
        ("follower.replication.throttled.replicas", "x"),
        ("follower.replication.throttled.replicas", "1:x"),
        ("remote.storage.enable", "true"),
    ],
)
def test_what_kafka_refuses_or_raftlog_would_not_do(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=f"Invalid value {value} for configuration {name}"):
        own_settings({name: value})


# -- messages --------------------------------------------------------------------------------------

# Messages of every served API and version: bytes there and back, golden bytes, and bad input.


ALL: list[tuple[Kind, Api, int]] = [
    (kind, api, version)
    for api in apis.APIS.values()
    for version in range(api.version_min, api.version_max + 1)
    for kind in ("request", "response")
]
INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def _values(kind: Kind, api: Api, version: int, name: str) -> st.SearchStrategy[Message]:
    """Instances of a structure with any values in the fields that ``version`` has."""
    definition = definitions()[kind, api.key]
    fields = {
        field.name: _value(kind, api, version, field)
        for field in definition.structs[name]
        if version in field.versions
    }
    return st.builds(getattr(codec.structs(kind, api.key), name), **fields)


def _value(kind: Kind, api: Api, version: int, field: Field) -> st.SearchStrategy[object]:
    element: st.SearchStrategy[object]
    if is_struct(field.element):
        element = _values(kind, api, version, field.element)
    elif field.element in INTEGERS:
        bits = INTEGERS[field.element]
        element = st.integers(-(1 << bits), (1 << bits) - 1)
    else:
        element = {
            "bool": st.booleans(),
            "uint16": st.integers(0, 65535),
            "float64": st.floats(allow_nan=False),
            "string": st.text(max_size=5),
            "bytes": st.binary(max_size=5),
            "records": st.binary(max_size=5).map(lambda data: [data]),
            "uuid": st.binary(min_size=16, max_size=16),
        }[field.element]
    value = st.lists(element, max_size=3) if field.is_array else element
    return st.none() | value if version in field.nullable else value


def _plain(message: Message) -> Message:
    """The message with its records, which are read as a view and written as a list, as bytes."""
    if isinstance(message, memoryview):
        return bytes(message)
    if isinstance(message, list) and message and isinstance(message[0], bytes):
        return b"".join(message) if len(message) == 1 else message
    if isinstance(message, list):
        return [_plain(each) for each in message]
    if hasattr(message, "__struct_fields__"):
        return {name: _plain(getattr(message, name)) for name in message.__struct_fields__}
    return message


def _read(kind: Kind, api: Api, version: int) -> Callable[[memoryview, int], tuple[Any, int]]:
    read = codec.reader(kind, api.key, version)
    return lambda data, at: codec.finish(read(data, at))


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
@settings(max_examples=max(5, settings().max_examples // 10))
@given(data=st.data())
def test_what_is_written_is_read_again(api: Api, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(("request", "response")))
    version = data.draw(st.integers(api.version_min, api.version_max))
    message = data.draw(_values(kind, api, version, definitions()[kind, api.key].name))
    written = encoded(kind, api, version, message)
    read, end = _read(kind, api, version)(memoryview(written), 0)
    assert end == len(written)
    assert _plain(read) == _plain(message)


@pytest.mark.parametrize("api", apis.APIS.values(), ids=lambda api: api.name)
@settings(max_examples=max(8, settings().max_examples // 6))
@given(data=st.data())
def test_tampered_bytes_are_refused_or_read(api: Api, data: st.DataObject) -> None:
    version = data.draw(st.integers(api.version_min, api.version_max))
    message = data.draw(_values("request", api, version, api.name))
    written = bytearray(encoded("request", api, version, message))
    for _ in range(data.draw(st.integers(1, 3))):
        if written:
            written[data.draw(st.integers(0, len(written) - 1))] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(written)))
    read = _read("request", api, version)
    try:
        _, end = read(memoryview(bytes(written[:kept])), 0)
    except READ_ERRORS:
        return
    assert end <= kept


def test_lengths_are_compared_with_the_bytes_before_memory_is_taken() -> None:
    """20 bytes that claim 2^32 - 2 topics."""
    read = _read("request", apis.PRODUCE, 9)
    data = b"\0" + b"\xff\xff" + bytes(4) + b"\xff\xff\xff\xff\x0f" + bytes(8)
    with pytest.raises(BadMessageError, match="array length"):
        read(memoryview(data), 0)


def test_an_array_of_numbers_has_at_most_so_many() -> None:
    read = _read("request", apis.OFFSET_FETCH, 1)
    count = limits.KAFKA_ITEMS_MAX + 1
    with pytest.raises(BadMessageError, match="array length"):
        read(memoryview(bytes(2) + b"\0\0\0\1" + bytes(2) + count.to_bytes(4, "big")
                        + bytes(4 * count)), 0)  # fmt: skip


def test_the_elements_of_a_request_have_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real tools ask for 50,000 partitions in one request: no number of elements is the limit."""
    structs = codec.structs("request", apis.LIST_OFFSETS.key)

    def read(partitions: int) -> Any:
        part = structs.ListOffsetsPartition()
        topic = structs.ListOffsetsTopic(name="t", partitions=[part] * partitions)
        data = encoded("request", apis.LIST_OFFSETS, 11, structs.root(topics=[topic]))
        return _read("request", apis.LIST_OFFSETS, 11)(memoryview(data), 0)[0]

    assert len(read(50_000).topics[0].partitions) == 50_000
    monkeypatch.setattr(limits, "KAFKA_DECODED_BYTES_MAX", 50_000)
    assert read(200)
    with pytest.raises(BadMessageError, match="KAFKA_DECODED_BYTES_MAX"):
        read(300)


@pytest.mark.parametrize(("topics", "partitions"), [(1, 1_000), (1_000, 1), (30, 40)])
def test_no_step_reads_or_writes_more_than_some_elements(topics: int, partitions: int) -> None:
    structs = codec.structs("response", apis.LIST_OFFSETS.key)
    part = structs.ListOffsetsPartitionResponse()
    topic = structs.ListOffsetsTopicResponse(name="t", partitions=[part] * partitions)
    message = structs.root(topics=[topic] * topics)
    pieces: list[Any] = []
    steps, longest = 0, 0
    for _ in codec.writer("response", apis.LIST_OFFSETS.key, 7)(message, pieces.append):
        longest = max(longest, len(pieces) - steps)
        steps = len(pieces)
    assert longest <= 4 * codec.ITEMS_PER_STEP  # pieces
    data = memoryview(b"".join(pieces))
    steps = sum(1 for _ in codec.reader("response", apis.LIST_OFFSETS.key, 7)(data, 0))
    assert steps >= topics * max(partitions // codec.ITEMS_PER_STEP, 1)


def test_a_varint_of_six_bytes_is_refused() -> None:
    with pytest.raises(BadMessageError, match="varint"):
        codec.read_varint(memoryview(b"\x80\x80\x80\x80\x80\x01"), 0)


def test_a_tagged_field_fills_its_size() -> None:
    read = _read("request", apis.FETCH, 12)
    fixed = bytes(4) + bytes(4) * 3 + b"\0" + bytes(8) + b"\1" + b"\1" + b"\1"
    good = fixed + b"\1" + b"\0\3\3ab"  # cluster_id "ab"
    message, end = read(memoryview(good), 0)
    assert (message.cluster_id, end) == ("ab", len(good))
    with pytest.raises(BadMessageError, match="size of a tagged field"):
        read(memoryview(fixed + b"\1" + b"\0\4\3abc"), 0)


def test_unknown_tagged_fields_are_skipped() -> None:
    read = _read("request", apis.METADATA, 9)
    message, end = read(memoryview(b"\0\1\0\0" + b"\2\x05\1x\x07\2yz"), 0)
    assert (message.topics, message.allow_auto_topic_creation, end) == (None, True, 12)


# Written out by hand after the public description of the messages.
GOLDEN: list[tuple[Kind, Api, int, dict[str, object], str]] = [
    ("request", apis.API_VERSIONS, 3, {"client_software_name": "ab"}, "03 6162 01 00"),
    ("response", apis.API_VERSIONS, 0, {"error_code": 35}, "0023 00000000"),
    (
        "request",
        apis.METADATA,
        4,
        {"topics": None, "allow_auto_topic_creation": True},
        "ffffffff 01",
    ),
    ("request", apis.METADATA, 9, {"topics": None}, "00 01 00 00 00"),
    (
        "request",
        apis.INIT_PRODUCER_ID,
        0,
        {"transactional_id": None, "transaction_timeout_ms": 9},
        "ffff 00000009",
    ),
    (
        "response",
        apis.INIT_PRODUCER_ID,
        2,
        {"producer_id": 5, "producer_epoch": 1},
        "00000000 0000 0000000000000005 0001 00",
    ),
]


@pytest.mark.parametrize(("kind", "api", "version", "fields", "golden"), GOLDEN)
def test_golden_bytes(
    kind: Kind, api: Api, version: int, fields: dict[str, object], golden: str
) -> None:
    message = codec.structs(kind, api.key).root(**fields)
    assert encoded(kind, api, version, message) == bytes.fromhex(golden)


def test_golden_produce() -> None:
    """A request with one partition, and its response, in the last version without tags."""
    request = codec.structs("request", apis.PRODUCE.key)
    part = request.PartitionProduceData(index=2, records=[b"RR"])
    message = request.root(
        acks=-1,
        timeout_ms=30,
        topic_data=[request.TopicProduceData(name="t", partition_data=[part])],
    )
    assert encoded("request", apis.PRODUCE, 8, message) == bytes.fromhex(
        "ffff ffff 0000001e 00000001 0001 74 00000001 00000002 00000002 5252"
    )
    response = codec.structs("response", apis.PRODUCE.key)
    answer = response.PartitionProduceResponse(index=2, base_offset=9)
    message = response.root(
        responses=[response.TopicProduceResponse(name="t", partition_responses=[answer])]
    )
    assert encoded("response", apis.PRODUCE, 8, message) == bytes.fromhex(
        "00000001 0001 74 00000001 00000002 0000 0000000000000009 ffffffffffffffff"
        "ffffffffffffffff 00000000 ffff 00000000"
    )


def test_golden_fetch_response() -> None:
    response = codec.structs("response", apis.FETCH.key)
    part = response.PartitionData(
        partition_index=1,
        high_watermark=3,
        last_stable_offset=3,
        log_start_offset=0,
        records=[b"R"],
    )
    part.aborted_transactions = None
    message = response.root(
        responses=[response.FetchableTopicResponse(topic_id=bytes(range(16)), partitions=[part])]
    )
    assert encoded("response", apis.FETCH, 13, message) == bytes.fromhex(
        "00000000 0000 00000000 02 000102030405060708090a0b0c0d0e0f 02 00000001 0000"
        "0000000000000003 0000000000000003 0000000000000000 00 ffffffff 02 52 00 00 00"
    )


def test_every_version_can_be_written_and_read() -> None:
    """Also so that the first use of each in a broker is known to work."""
    for kind, api, version in ALL:
        empty = codec.structs(kind, api.key).root()
        written = encoded(kind, api, version, empty)
        read, _ = _read(kind, api, version)(memoryview(written), 0)
        assert read == empty


def test_the_table_has_the_served_versions() -> None:
    served = {(api.key, api.version_min, api.version_max) for api in apis.APIS.values()}
    assert {
        (each.key, each.versions[0], each.versions[-1]) for each in codec.definitions().values()
    } == served


# -- frame -----------------------------------------------------------------------------------------
#
# Frames: the choice between two protocols, client ids, and the pieces of a response.


def test_a_kafka_request_is_known_by_its_first_bytes() -> None:
    for api in apis.APIS.values():
        assert is_kafka(request(api, api.version_max)[:6], 1 << 20)
    for unknown in (b"\0\x63", b"\1\x2c", b"\3\xff", b"\xff\xff"):
        assert is_kafka(b"\0\0\0\x20" + unknown, 1 << 20)
        assert is_kafka(b"\0\0\0\x20" + unknown + bytes(9), 1 << 20), "more has arrived"
    for other in (b"RL", b"\4\0", bytes(range(4, 6))):
        assert not is_kafka(b"\0\0\0\x20" + other, 1 << 20)


@pytest.mark.parametrize(
    "first",
    [
        b"".join(encode_request(1, version=0, correlation_id=1, message=ApiVersionsRequest()))[:6],
        b"GET / ",
        b"\x16\x03\x01\x02\x00\x01",  # TLS
        bytes(6),  # a length of 0
        b"\x00\x00\x00\x07\x00\x00",
        b"\x00\x20\x00\x00\x00\x00",  # over the limit
        b"\x00\x00\x00\x20RL",
    ],
)
def test_anything_else_is_not(first: bytes) -> None:
    assert not is_kafka(first, 1 << 20)


def test_the_client_id_and_the_tags_behind_it() -> None:
    head = bytes(8)
    assert read_client_id(memoryview(head + b"\0\2abX"), flexible=False) == ("ab", 12)
    assert read_client_id(memoryview(head + b"\xff\xffX"), flexible=False) == ("", 10)
    assert read_client_id(memoryview(head + b"\0\1a\1\5\2xyZ"), flexible=True) == ("a", 16)


@pytest.mark.parametrize(
    "tail", [b"\0\x09ab", b"\0\1a\1\5\x09xy", b"\0\1a\xff\xff\xff\x7f", b"\0\1a", b"\0\1\xff\0"]
)
def test_a_bad_header_is_refused(tail: bytes) -> None:
    with pytest.raises(READ_ERRORS):
        read_client_id(memoryview(bytes(8) + tail), flexible=True)


def test_a_response_joins_small_pieces_and_copies_no_large_ones() -> None:
    large = bytes(10_000)
    buffers = response(9, [b"a", b"b", large, b"c"], flexible=True)
    assert buffers[1] is large
    assert b"".join(buffers) == (
        (4 + 1 + 10_003).to_bytes(4, "big") + (9).to_bytes(4, "big") + b"\0ab" + large + b"c"
    )


# -- schema ----------------------------------------------------------------------------------------
#
# The table of messages, parsed.


def test_a_structure_and_its_fields() -> None:
    fetch = definitions()["request", apis.FETCH.key]
    assert list(fetch.structs) == [
        "Fetch", "ReplicaState", "FetchTopic", "FetchPartition", "ForgottenTopic"
    ]  # fmt: skip
    by_name = {field.name: field for field in fetch.structs["FetchPartition"]}
    epoch = by_name["current_leader_epoch"]
    assert (epoch.type, epoch.versions, epoch.default) == ("int32", range(9, 19), "-1")
    mark = by_name["high_watermark"]
    assert (mark.tag, mark.tagged) == (1, range(18, 19))
    topics = fetch.structs["Fetch"][-3]
    assert (topics.name, topics.is_array, topics.element) == ("topics", True, "FetchTopic")


def test_flexible_versions() -> None:
    assert not is_flexible(apis.PRODUCE.key, 8)
    assert is_flexible(apis.PRODUCE.key, 9)


# -- errors ----------------------------------------------------------------------------------------
#
# Each error of raftlog has a code of Kafka's, in every place.


def test_every_error_has_a_code() -> None:
    for place in Place:
        for error in own.ERRORS_BY_CODE.values():
            code = code_of(error("why"), place)
            assert code != errors.NONE
            assert code != errors.UNKNOWN_SERVER_ERROR or error is own.RaftlogError


@pytest.mark.parametrize(
    ("error", "place", "code"),
    [
        (own.NotLeaderError, Place.DATA, 6),
        (own.ThrottledError, Place.ADMIN, 89),
        (own.ThrottledError, Place.GROUPS, 14),
        (own.LeaderNotAvailableError, Place.METADATA, 5),
        (own.LeaderNotAvailableError, Place.DATA, 6),
        (own.LeaderNotAvailableError, Place.OFFSETS, 78),
        (own.ClusterNotReadyError, Place.ADMIN, 41),
        (own.OutOfOrderSequenceError, Place.DATA, 45),
        (own.ProducerFencedError, Place.DATA, 47),
        (own.RequestTimedOutError, Place.ADMIN, 7),
        (own.KeyRequiredError, Place.DATA, 87),
        (own.UnknownTopicError, Place.DATA, 3),
        (own.OffsetOutOfRangeError, Place.DATA, 1),
        (own.DamagedLogError, Place.DATA, 56),
    ],
)
def test_codes_that_clients_act_on(error: type[own.RaftlogError], place: Place, code: int) -> None:
    assert code_of(error("why"), place) == code


# -- requests --------------------------------------------------------------------------------------
#
# What Kafka's clients have sent to a broker, sent again: each request is understood.


# Other codes are right: members, generations and sequences are those of another broker.
NEVER = {
    errors.UNKNOWN_SERVER_ERROR,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.INVALID_TOPIC,
    errors.UNSUPPORTED_VERSION,
    errors.INVALID_REQUEST,
    errors.UNKNOWN_TOPIC_ID,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running(
        tmp_path_factory.mktemp("requests"), group_initial_rebalance_delay_ms="0"
    ) as broker:
        with broker.client() as native:
            native.create("orders")
        with grouped(broker) as client:
            client.find("readers")
        yield broker


@pytest.mark.parametrize("name", recorded())
def test_each_request_of_a_client_is_understood(broker: RunningBroker, name: str) -> None:
    topic_id, requests = recorded()[name]
    now = broker.broker.context.topics.topic("orders").id
    assert len(requests) >= 10
    with grouped(broker) as client:
        for request in requests:
            sent = bytes.fromhex(request.replace(topic_id, now))
            key, version = api_and_version(sent)
            client.send_bytes(sent)
            _, answer = client.receive(apis.APIS[key], version)
            codes = set(codes_of(answer))
            assert not codes & NEVER, f"{apis.APIS[key].name} {version}: {codes}"
