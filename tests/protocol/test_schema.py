"""Messages, and the table of the APIs that they belong to."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import errors, limits
from raftlog.errors import (
    InvalidRequestError,
    RetriableError,
    UnknownTopicError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import schema
from raftlog.protocol.api import APIS, METADATA, Api
from raftlog.protocol.records import FetchPartition, FetchRequest, MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Failure, Message, NoResponse, slices
from tests.protocol import strategies

# -- messages --------------------------------------------------------------------------------------

# Messages: any bytes give one that is inside its bounds, or an error that names the field.


TYPES = strategies.message_types()
of_any_type = st.sampled_from(TYPES)


def pack(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


@pytest.mark.parametrize("message_type", TYPES, ids=lambda one: one.__name__)
@settings(max_examples=max(10, settings().max_examples // 5))
@given(data=st.data())
def test_every_message_comes_back_as_it_was(
    message_type: type[Message], data: st.DataObject
) -> None:
    message = data.draw(strategies.messages(message_type))
    encoded = schema.encode(message)
    assert schema.decode(encoded, message_type) == message
    assert schema.decode(memoryview(encoded), message_type) == message


def decode_or_refuse(data: bytes, message_type: type[Message]) -> None:
    try:
        message = schema.decode(data, message_type)
    except InvalidRequestError:
        return
    assert schema.decode(schema.encode(message), message_type) == message


@given(st.binary(max_size=60), of_any_type)
def test_any_bytes_give_a_message_or_are_refused(data: bytes, message_type: type[Message]) -> None:
    decode_or_refuse(data, message_type)


@given(of_any_type, st.data())
def test_damaged_messages_are_messages_or_refused(
    message_type: type[Message], data: st.DataObject
) -> None:
    encoded = bytearray(schema.encode(data.draw(strategies.messages(message_type))))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(encoded)))
        size = data.draw(st.integers(0, 2))
        encoded[position : position + size] = data.draw(st.binary(max_size=2))
    decode_or_refuse(bytes(encoded), message_type)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "truncated"),
        (b"\x80\x80", "trailing"),
        (b"\x90", "Expected `object`, got `array`"),
        (pack({"topics": 1}), r"\$.topics"),
        (pack({"topics": ["a", 2]}), r"\$.topics\[1\]"),
        (b"\x81\xa6topics\x91\xa2\xff\xff", "utf"),
        (b"\x81\xa6topics\x91\xa2\xff", "truncated"),
        (b"\x81\xa6topics\xdd\xff\xff\xff\xff", "length <= 1000"),
        (b"\x81\xa1x" + b"\x91" * 100_000, "recursion"),
        (b"\x81\xa1x\xc1", "invalid opcode"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"(?i)MetadataRequest.*{words}"):
        schema.decode(data, MetadataRequest)


def test_an_older_peer_ignores_what_it_does_not_know() -> None:
    data = pack({"topics": ["a"], "added_in_2031": [{"deep": [1, 2]}]})
    assert schema.decode(data, MetadataRequest) == MetadataRequest(topics=["a"])


def test_a_newer_peer_takes_the_default_of_what_an_older_one_left_out() -> None:
    data = pack({"partitions": [{"topic": "a", "partition": 0, "offset": 7}]})
    assert schema.decode(data, FetchRequest) == FetchRequest([FetchPartition("a", 0, offset=7)])


def test_a_field_without_a_default_has_to_be_there() -> None:
    with pytest.raises(InvalidRequestError, match="missing required field `cluster_id`"):
        schema.decode(b"\x80", MetadataResponse)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(MetadataRequest(topics=["\ud800"]), id="no text"),
        pytest.param(FetchRequest([FetchPartition("a", 0, offset=1 << 70)]), id="no number"),
    ],
)
def test_what_the_wire_cannot_carry_is_refused(message: Message) -> None:
    with pytest.raises(InvalidRequestError, match=type(message).__name__):
        schema.encode(message)


# -- failures --------------------------------------------------------------------------------------


def test_every_error_travels() -> None:
    for error_type in errors.ERRORS_BY_CODE.values():
        encoded = schema.encode(Failure.of(error_type("do this next")))
        error = schema.decode(encoded, Failure).to_error()
        assert type(error) is error_type
        assert str(error) == "do this next"


def test_an_error_of_a_newer_peer_keeps_its_class() -> None:
    error = Failure(code=77, message="try again").to_error()
    assert type(error) is RetriableError
    assert str(error) == "try again (error code 77)"


def test_a_failure_is_bounded_and_always_text() -> None:
    long = Failure.of(UnknownTopicError("x" * 10_000))
    assert len(long.message) == limits.ERROR_MESSAGE_CHARS_MAX
    assert Failure.of(UnknownTopicError("in /data/\udcff")).message == "in /data/?"


RACE = """
import sys, threading
from raftlog.protocol import schema
from raftlog.protocol.records import PartitionInfo
from raftlog.protocol.records import (
    DescribeTopicsResponse, PartitionDescription, TopicDescription
)

sys.setswitchinterval(1e-6)
info = PartitionInfo(partition=0, leader=1, leader_epoch=1, replicas=[1], isr=[1])
topic = TopicDescription(name="t", config={"a": "b"}, partitions=[PartitionDescription(info=info)])
message = DescribeTopicsResponse(topics=[topic])
data = schema.encode(message)
barrier = threading.Barrier(8)

def decode():
    barrier.wait()
    assert schema.decode(data, DescribeTopicsResponse) == message

threads = [threading.Thread(target=decode) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.integration
def test_threads_that_are_the_first_to_decode_a_message_do_not_end_the_process() -> None:
    """Found by a run of chaos that ended by SIGSEGV: one in two processes here did so."""
    processes = [subprocess.Popen([sys.executable, "-c", RACE]) for _ in range(10)]
    assert [process.wait(timeout=60) for process in processes] == [0] * 10


# -- APIs ------------------------------------------------------------------------------------------

# The API table: complete, unambiguous, and the only judge of numbers and versions.


def test_every_row_that_is_named_is_in_the_table() -> None:
    named = [row for row in vars(apis).values() if isinstance(row, Api)]
    assert named == list(APIS.values())


def test_numbers_and_names_are_unambiguous() -> None:
    assert list(APIS) == list(range(len(APIS))), "numbers are never given twice, nor left out"
    assert len({api.name for api in APIS.values()}) == len(APIS)


def test_names_are_those_that_stand_in_the_source() -> None:
    assert all(getattr(apis, api.name.upper()) is api for api in APIS.values())


def test_a_row_is_whole() -> None:
    for api in APIS.values():
        assert issubclass(api.request, Message)
        assert issubclass(api.response, Message)
        assert 0 <= api.version_min <= api.version_max < 1 << 16
        assert apis.lookup(api.number, api.version_min) is api
        assert apis.lookup(api.number, api.version_max) is api


@pytest.mark.parametrize("number", [len(APIS), 0xFFFF])
def test_an_unknown_api_is_named(number: int) -> None:
    last = len(APIS) - 1
    with pytest.raises(UnsupportedApiError, match=f"not support API {number} .* 0 to {last}\\b"):
        apis.lookup(number, 0)


@pytest.mark.parametrize("version", [0, 4, 0xFFFF])
def test_an_unknown_version_is_answered_with_the_known_ones(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = dataclasses.replace(METADATA, version_min=1, version_max=3)
    monkeypatch.setitem(APIS, METADATA.number, newer)
    with pytest.raises(UnsupportedVersionError, match=f"version {version} of metadata .* 1 to 3"):
        apis.lookup(METADATA.number, version)


def test_what_may_be_repeated_is_said() -> None:
    once = {api.name for api in APIS.values() if not api.idempotent}
    assert once == {
        *("produce", "create_topics", "delete_topics", "add_partitions"),
        *("transfer_leader", "reassign", "recover_cluster", "revive", "propose"),
        *("operator_prove", "sasl_authenticate", "alter_users"),
        *("create_token", "expire_token"),
        # Somebody else may have changed the group in between.
        *("offset_commit", "delete_groups", "delete_offsets", "delete_acls", "schema_registry"),
        "transaction_offset_commit",
        "abort_transaction",  # the producer may have begun another one in between
        # What one connection knows of another broker is not known to the next.
        *("peer_hello", "peer_prove", "raft", "replica_fetch"),
    }


def test_what_is_for_peers_only_is_said() -> None:
    for_peers = [api.name for api in APIS.values() if api.peer_only]
    assert for_peers == [
        *("raft", "peer_ping", "replica_fetch", "replica_progress", "partition_states"),
        *("survey", "revive", "describe_copies", "cluster_state", "propose"),
        *("verify_transactions", "transaction_markers", "transaction_owners"),
    ]


def test_what_is_never_answered_is_said() -> None:
    one_way = {api.name for api in APIS.values() if api.one_way}
    assert one_way == {"raft", "replica_progress", "partition_states"}


def test_the_request_alone_tells_whether_it_is_answered() -> None:
    for api in APIS.values():
        assert (api.response is NoResponse) == api.one_way
        if api.one_way:
            users = [row.name for row in APIS.values() if row.request is api.request]
            assert users == [api.name]


# -- attachments -----------------------------------------------------------------------------------
#
# Attachments are cut exactly, or refused.


@given(st.lists(st.binary(max_size=40)))
def test_parts_come_back_as_they_were_joined(parts: list[bytes]) -> None:
    joined = b"".join(parts)
    found = slices(memoryview(joined), [len(part) for part in parts])
    assert found == parts
    assert all(part.obj is joined for part in found), "views, not copies"


@pytest.mark.parametrize(
    ("size", "lengths"),
    [(0, [1]), (1, []), (4, [3]), (4, [3, 2]), (4, [4, 1]), (4, [0]), (4, [5, -1]), (2, [-1, 3])],
)
def test_lengths_that_do_not_add_up_are_refused(size: int, lengths: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="bytes"):
        slices(bytes(size), lengths)


@given(st.binary(max_size=20), st.lists(st.integers(-5, 30), max_size=6))
def test_any_lengths_cut_exactly_or_are_refused(data: bytes, lengths: list[int]) -> None:
    try:
        parts = slices(data, lengths)
    except InvalidRequestError:
        assert sum(lengths) != len(data) or min(lengths) < 0
    else:
        assert [len(part) for part in parts] == lengths
        assert b"".join(parts) == data
