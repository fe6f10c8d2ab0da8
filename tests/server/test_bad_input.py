"""The issue's list of bad input: a clear error, nothing lost, and nobody else notices.

A bystander has a connection and records of its own throughout. After each offence it must find all
of them, and be able to go on.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import (
    CorruptBatchError,
    DataDirectoryError,
    DiskFullError,
    FrameError,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordTooLargeError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
    UnsupportedApiError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.connection import (
    FAREWELL_CORRELATION_ID,
    FRAME,
    MAGIC,
    Broken,
    ClientConnectionState,
    Response,
)
from raftlog.protocol.security import ApiVersionsRequest
from raftlog.record import Codec
from tests.record.batches import forged, payload_of, resealed
from tests.server.harness import (
    TIMEOUT_S,
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    closed_by_peer,
    error_of,
    only,
    running,
)


class Bystander:
    """A producer and consumer that does nothing wrong."""

    def __init__(self, broker: RunningBroker) -> None:
        self._client = broker.client()
        self._client.create("bystander")
        self._written: list[bytes] = []
        self.write()

    def write(self) -> None:
        for _ in range(3):
            value = b"record %d" % len(self._written)
            answer = self._client.produce("bystander", batch_of(value))
            assert answer.base_offset == len(self._written)
            self._written.append(value)

    def check(self) -> None:
        """Everything is there, on the connection that it had all along, and it goes on."""
        self.write()
        assert self._client.fetch("bystander")[1] == self._written
        self._client.close()


@pytest.fixture(autouse=True)
def bystander(broker: RunningBroker) -> Iterator[Bystander]:
    bystander = Bystander(broker)
    yield bystander
    bystander.check()
    assert broker.fatal == []
    assert broker.broker.context.counters.mistakes == 0


def talk(broker: RunningBroker, data: bytes, *, end: bool = False) -> bytes:
    """Send bytes; what the broker says until it closes the connection."""
    with socket.create_connection(broker.address, timeout=TIMEOUT_S) as raw:
        raw.sendall(data)
        if end:
            raw.shutdown(socket.SHUT_WR)
        said = b""
        while piece := raw.recv(65_536):
            said += piece
        return said


def farewell_of(said: bytes) -> RaftlogError:
    """The broker's last words, as a client of ours reads them."""
    state = ClientConnectionState()
    view = state.get_buffer()
    view[: len(said)] = said
    event = only(state.received(len(said)))
    assert isinstance(event, Broken)
    return event.error


def frame(api: int, version: int, header: bytes, *, correlation_id: int = 5) -> bytes:
    length = FRAME.size - 4 + len(header)
    return FRAME.pack(length, MAGIC, api, version, 0, correlation_id, len(header)) + header


# -- what is no frame ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [b"\xff" * 100, b"hello, is anybody there?\n", b"\x00" * 4_000, bytes(range(256)) * 2_000],
    ids=["ones", "text", "zeros", "half a megabyte"],
)
def test_garbage_bytes(broker: RunningBroker, garbage: bytes) -> None:
    error = farewell_of(talk(broker, garbage))
    assert isinstance(error, FrameError)
    assert "raftlog" in str(error) or "frame" in str(error)


def test_an_http_request_is_answered_in_http(broker: RunningBroker) -> None:
    said = talk(broker, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400 ")
    assert b"not HTTP" in said


def test_a_tls_client(broker: RunningBroker) -> None:
    error = farewell_of(talk(broker, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)))
    assert "TLS" in str(error)


@pytest.mark.parametrize("length", [1 << 31, (1 << 32) - 1, limits.FRAME_BYTES_MAX + 1])
def test_a_frame_of_two_gibibytes_takes_no_memory(broker: RunningBroker, length: int) -> None:
    error = farewell_of(talk(broker, FRAME.pack(length, MAGIC, 2, 0, 0, 1, 10) + bytes(1_000)))
    assert isinstance(error, FrameError)
    assert str(length) in str(error)
    assert "limit" in str(error)
    assert broker.broker.connections.requests.bytes == 0


def test_a_length_that_lies_within_the_limit_takes_little_memory(broker: RunningBroker) -> None:
    lying = FRAME.pack(limits.FRAME_BYTES_MAX, MAGIC, 2, 0, 0, 1, 10) + bytes(100_000)
    with broker.client() as client:
        client.socket.sendall(lying)
        budget = broker.broker.connections.requests
        broker.wait_until(lambda: budget.bytes > 0)
        assert broker.call(lambda: budget.bytes) <= 2 * len(lying)
    broker.wait_until(lambda: budget.bytes == 0)


@pytest.mark.parametrize("cut", [1, 5, 19, 21])
def test_a_truncated_frame(broker: RunningBroker, cut: int) -> None:
    whole = frame(apis.METADATA.number, 0, msgpack.packb({"topics": None}))
    assert talk(broker, whole[:cut], end=True) == b""
    broker.wait_until(lambda: len(broker.broker.connections) == 1)


def test_a_frame_that_never_ends_is_timed_out(tmp_path: Path) -> None:
    settings = {"request_receive_timeout_ms": "50"}
    with running(tmp_path / "other", **settings) as impatient:  # type: ignore[arg-type]
        whole = frame(apis.METADATA.number, 0, msgpack.packb({"topics": None}))
        with socket.create_connection(impatient.address, timeout=TIMEOUT_S) as raw:
            raw.sendall(whole[:-1])
            assert closed_by_peer(raw)
        with impatient.client() as client:
            assert client.create("t").failure is None


# -- frames that make no sense -------------------------------------------------------------------


def answer_to(broker: RunningBroker, data: bytes) -> tuple[RaftlogError, Client]:
    """The error that answers a hand-made frame, and the client, whose connection goes on."""
    client = broker.client()
    correlation_id, _ = client._state.send(apis.API_VERSIONS, ApiVersionsRequest())
    client.socket.sendall(data[:12] + struct.pack("<I", correlation_id) + data[16:])
    message = client.answer(correlation_id).message
    assert isinstance(message, RaftlogError)
    return message, client


@pytest.mark.parametrize(
    ("api", "version", "header", "error", "words"),
    [
        (999, 0, b"\x80", UnsupportedApiError, "999"),
        (apis.FETCH.number, 77, b"\x80", UnsupportedVersionError, "77"),
        (apis.FETCH.number, 0, b"\xc1 no msgpack", InvalidRequestError, "FetchRequest"),
        (apis.FETCH.number, 0, b"\x80", InvalidRequestError, "partitions"),
        (apis.PRODUCE.number, 0, msgpack.packb({"acks": 5}), InvalidRequestError, "acks"),
        (
            apis.METADATA.number,
            0,
            msgpack.packb({"topics": ["x"] * 1_001}),
            InvalidRequestError,
            "topics",
        ),
        (
            apis.FETCH.number,
            0,
            msgpack.packb({"partitions": [{"topic": "t", "partition": -1, "offset": 0}]}),
            InvalidRequestError,
            "partition",
        ),
    ],
)
def test_a_request_that_makes_no_sense(
    broker: RunningBroker,
    api: int,
    version: int,
    header: bytes,
    error: type[RaftlogError],
    words: str,
) -> None:
    found, client = answer_to(broker, frame(api, version, header))
    assert isinstance(found, error)
    assert words in str(found)
    assert client.create("still-good").failure is None
    client.close()


def test_a_farewell_is_no_answer_to_a_request(broker: RunningBroker) -> None:
    said = talk(broker, frame(0, 0, b"\x80", correlation_id=FAREWELL_CORRELATION_ID))
    assert isinstance(farewell_of(said), FrameError)


HEADERS = [msgpack.packb({"topics": None}), msgpack.packb({"acks": -1, "partitions": []}), b""]
mangled = st.builds(
    lambda api, version, header, position, byte: replaced(
        frame(api, version, header), position, byte
    ),
    st.integers(0, 12),
    st.integers(0, 1),
    st.sampled_from(HEADERS) | st.binary(max_size=40),
    st.integers(0, 60),
    st.integers(0, 255),
)


def replaced(data: bytes, position: int, byte: int) -> bytes:
    changed = bytearray(data)
    changed[position % len(changed)] = byte
    return bytes(changed)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=100) | st.lists(mangled, max_size=5).map(b"".join))
def test_any_bytes_whatever_end_in_order(broker: RunningBroker, data: bytes) -> None:
    """Answered, refused or hung up on; never a mistake of the broker's (the fixture looks)."""
    talk(broker, data, end=True)


# -- batches -------------------------------------------------------------------------------------


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


SOUND = batch_of(b"a" * 50, b"b" * 50)
COMPRESSED = batch_of(b"a" * 5_000, codec=Codec.ZSTD)
BOMB = batch_of(bytes(1 << 20), codec=Codec.ZSTD)


@pytest.mark.parametrize(
    "batch",
    [
        b"",
        b"short",
        SOUND[:-1],
        SOUND + b"\0",
        SOUND + SOUND,
        flipped(SOUND, 0),
        flipped(SOUND, 5),
        flipped(SOUND, 45),
        flipped(SOUND, len(SOUND) - 1),
        resealed(SOUND, record_count=1, last_offset_delta=0),
        resealed(SOUND, record_count=3, last_offset_delta=2),
        resealed(SOUND, record_count=1 << 20, last_offset_delta=(1 << 20) - 1),
        resealed(SOUND, record_count=(1 << 32) - 1),
        resealed(SOUND, uncompressed_length=len(SOUND)),
        resealed(COMPRESSED, uncompressed_length=100),
        resealed(COMPRESSED, uncompressed_length=1 << 30),
        resealed(BOMB, uncompressed_length=200),
        resealed(COMPRESSED, attributes=int(Codec.LZ4)),
        forged(payload_of(2)),
        forged(b"\xc1" * 20),
    ],
)
def test_a_batch_that_lies(client: Client, batch: bytes) -> None:
    client.create("t")
    error = error_of(client.produce("t", batch))
    assert isinstance(error, CorruptBatchError)
    assert client.offset("t", "latest").offset == 0
    assert client.produce("t", SOUND).base_offset == 0


def test_a_record_over_the_topics_limit(client: Client) -> None:
    client.create("t")
    error = error_of(client.produce("t", batch_of(b"x" * (1 << 20) + b"y" * 100)))
    assert isinstance(error, RecordTooLargeError)
    assert "max.message.bytes" in str(error)
    assert client.produce("t", SOUND).base_offset == 0


def test_a_wrong_sequence(client: Client) -> None:
    client.create("t")

    def send(number: int) -> Any:
        batch = batch_of(b"v", producer_id=1, producer_epoch=0, base_sequence=number)
        return client.produce("t", batch)

    assert isinstance(error_of(send(3)), OutOfOrderSequenceError)
    assert send(0).base_offset == 0
    assert isinstance(error_of(send(2)), OutOfOrderSequenceError)
    assert send(1).base_offset == 1


# -- names and numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["a/b", "..", ".", "two words", "x" * 300, "grün", "a\0b", "~", "日本", "a\nb"]
)
def test_a_name_that_is_no_topics(client: Client, name: str) -> None:
    errors = [
        error_of(client.create(name)),
        error_of(client.produce(name, SOUND)),
        error_of(only(client.fetch(name)[0])),
        error_of(client.offset(name, "latest")),
    ]
    for error in errors:
        assert isinstance(error, InvalidTopicError)
        assert "a-z" in str(error)


def test_topics_that_exist_or_do_not(client: Client) -> None:
    client.create("t")
    assert isinstance(error_of(client.create("t")), TopicExistsError)
    assert isinstance(error_of(client.produce("nope", SOUND)), UnknownTopicError)
    assert "topic create" in str(error_of(client.produce("nope", SOUND)))


def test_partitions_and_offsets_out_of_range(client: Client) -> None:
    client.create("t", partitions=2)
    client.produce("t", SOUND)
    for error in (
        error_of(client.produce("t", SOUND, partition=2)),
        error_of(only(client.fetch("t", partition=9_999)[0])),
        error_of(client.offset("t", "latest", partition=2)),
    ):
        assert isinstance(error, UnknownPartitionError)
        assert "0 to 1" in str(error)
    error = error_of(only(client.fetch("t", 1 << 62)[0]))
    assert isinstance(error, OffsetOutOfRangeError)
    assert "0 to 2" in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("no.such.key", "1"),
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("segment.bytes", "1"),
        ("flush.policy", "never"),
        ("max.message.bytes", "9" * 30),
    ],
)
def test_settings_that_do_not_exist(client: Client, key: str, value: str) -> None:
    error = error_of(client.create("t", **{key.replace(".", "_"): value}))
    assert isinstance(error, InvalidConfigError)
    assert key in str(error)


# -- the disk ------------------------------------------------------------------------------------


def test_a_full_disk(client: Client, disk: FaultyDisk, bystander: Bystander) -> None:
    client.create("t")
    client.produce("t", batch_of(b"before", producer_id=1, producer_epoch=0, base_sequence=0))
    disk.faults.no_room = True
    refused = batch_of(b"after", producer_id=1, producer_epoch=0, base_sequence=1)
    for _ in range(3):
        error = error_of(client.produce("t", refused))
        assert isinstance(error, DiskFullError)
        assert "Free disk space" in str(error)
    assert client.fetch("t")[1] == [b"before"]
    disk.faults.no_room = False
    assert client.produce("t", refused).base_offset == 1
    assert client.fetch("t")[1] == [b"before", b"after"]
    assert client.create("other").failure is None


def test_a_data_directory_that_is_in_use(broker: RunningBroker, tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="in use"), running(tmp_path / "data"):
        pass


def test_a_data_directory_of_another_broker(tmp_path: Path) -> None:
    with running(tmp_path / "other", id="2"):
        pass
    with pytest.raises(DataDirectoryError, match="broker id 2"), running(tmp_path / "other"):
        pass


def test_a_response_is_never_mixed_up(broker: RunningBroker, client: Client) -> None:
    """Refused and served requests of one connection, interleaved: each gets its own answer."""
    client.create("t")
    good = [client.send_batch("t", SOUND) for _ in range(5)]
    bad = [client.send_batch("t", flipped(SOUND, 60)) for _ in range(5)]
    fetch = client.send_fetch("t", 0, wait_ms_max=0)
    for id_ in bad:
        assert isinstance(error_of(client.produced(id_)), CorruptBatchError)
    assert [client.produced(id_).base_offset for id_ in good] == [0, 2, 4, 6, 8]
    assert isinstance(client.answer(fetch), Response)
