"""Messages: any bytes give one that is inside its bounds, or an error that names the field."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raftlog import errors, limits
from raftlog.errors import InvalidRequestError, RetriableError, UnknownTopicError
from raftlog.protocol import schema
from raftlog.protocol.records import FetchPartition, FetchRequest, MetadataRequest, MetadataResponse
from raftlog.protocol.schema import Failure, Message
from tests.protocol import strategies

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
