"""One connection: the choice of its protocol, and its share of a broker."""

from __future__ import annotations

import contextlib
import logging
import socket
import tracemalloc
from pathlib import Path

import pytest

from raftlog import limits
from raftlog.config import Address
from raftlog.errors import BrokerUnavailableError
from raftlog.kafka import api as kafka_apis
from raftlog.kafka.connection import KafkaConnectionState, KafkaRequest
from raftlog.protocol import api as apis
from raftlog.protocol.connection import (
    FRAME,
    MAGIC,
    Broken,
    FrameReader,
    Request,
    ServerConnectionState,
    encode_request,
)
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.records import (
    FetchPartition,
    FetchRequest,
    MetadataRequest,
    ProducePartition,
    ProduceRequest,
)
from raftlog.protocol.security import ApiVersionsRequest, Dialling
from raftlog.server import connection
from raftlog.server.connection import REFUSALS_LOGGED_MAX, Event, ProtocolChoice, address_of, bind
from raftlog.testing.kafka_wire import request
from tests.server.harness import (
    TIMEOUT_S,
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    closed_by_peer,
    running,
)

# -- the choice of the protocol --------------------------------------------------------------------

# The choice of a connection's protocol, wherever its first bytes are cut.


NATIVE = b"".join(encode_request(1, version=0, correlation_id=1, message=ApiVersionsRequest()))
KAFKA = request(kafka_apis.API_VERSIONS, 0)


class Chooser:
    """A connection as far as the choice knows it."""

    def __init__(self) -> None:
        self.scratch = memoryview(bytearray(65536))
        self.state: ProtocolChoice | ServerConnectionState | KafkaConnectionState = ProtocolChoice(
            1 << 20, self.scratch, self.chosen
        )

    def chosen(self, *, is_kafka: bool) -> ServerConnectionState | KafkaConnectionState:
        kind = KafkaConnectionState if is_kafka else ServerConnectionState
        self.state = state = kind(1 << 20, scratch=self.scratch)
        return state

    def feed(self, data: bytes) -> list[Event]:
        buffer = self.state.get_buffer()
        buffer[: len(data)] = data
        return list(self.state.received(len(data)))


@pytest.mark.parametrize(("data", "kind"), [(NATIVE, Request), (KAFKA, KafkaRequest)])
def test_the_first_request_arrives_wherever_it_is_cut(data: bytes, kind: type) -> None:
    for cut in range(1, len(data)):
        chooser = Chooser()
        events = chooser.feed(data[:cut])
        assert not events
        assert chooser.state.in_frame
        (event,) = chooser.feed(data[cut:])
        assert isinstance(event, kind)


def test_one_byte_at_a_time() -> None:
    chooser = Chooser()
    events = [event for byte in KAFKA for event in chooser.feed(bytes([byte]))]
    assert len(events) == 1


def test_noise_gets_the_answer_of_raftlogs_protocol() -> None:
    (event,) = Chooser().feed(b"GET / HTTP/1.1\r\n\r\n")
    assert isinstance(event, Broken)
    assert event.farewell


def test_a_stream_that_ends_before_the_choice() -> None:
    chooser = Chooser()
    assert chooser.state.end_of_stream() is None
    chooser.feed(b"\0\0")
    assert chooser.state.end_of_stream() is not None
    assert isinstance(chooser.state, ServerConnectionState)


# -- shares ----------------------------------------------------------------------------------------

# One connection cannot take more than its share: of memory, of requests, of time.


VALUE = b"v" * 500_000


class SlowReader:
    """Sends requests and reads nothing, until told to; the kernel holds little for it."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect(address)
        self._reader = FrameReader()

    def send(self, api: int, message: object, *, correlation_id: int) -> None:
        buffers = encode_request(
            api,
            version=0,
            correlation_id=correlation_id,
            message=message,  # type: ignore[arg-type]
        )
        self.socket.sendall(b"".join(buffers))

    def read(self, count: int) -> int:
        """Take ``count`` answers; the bytes of their attachments."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        sizes: list[int] = []
        while len(sizes) < count:
            received = self.socket.recv_into(self._reader.get_buffer())
            assert received, "the broker closed the connection"
            sizes += [len(frame.attachment) for frame in self._reader.received(received)]
        return sum(sizes)


def fetch_of(topic: str, bytes_max: int) -> FetchRequest:
    part = FetchPartition(topic=topic, partition=0, offset=0, bytes_max=bytes_max)
    return FetchRequest(partitions=[part], wait_ms_max=0)


def unsent_bytes(broker: RunningBroker) -> int:
    """What the broker holds of answers, beyond what the kernel took."""

    def look() -> int:
        return sum(
            connection._unwritten_bytes + connection._transport.get_write_buffer_size()
            for connection in broker.broker.connections._open
            if connection._transport is not None
        )

    return broker.call(look)


def test_a_client_that_takes_no_answers_costs_one_answer(
    broker: RunningBroker, client: Client
) -> None:
    client.create("t")
    client.produce("t", batch_of(VALUE))
    slow = SlowReader(broker.address)
    for number in range(100):
        slow.send(apis.FETCH.number, fetch_of("t", 1 << 20), correlation_id=number)
    broker.wait_until(lambda: broker.broker.context.responses.bytes > 0)
    for _ in range(20):
        assert client.fetch("t")[1] == [VALUE]
    assert unsent_bytes(broker) < 2 * len(VALUE)
    assert slow.read(100) == 100 * len(batch_of(VALUE))
    assert broker.call(lambda: broker.broker.context.responses.bytes) == 0
    slow.socket.close()


def test_long_answers_that_are_not_taken_hold_up_the_requests_behind_them(
    broker: RunningBroker, client: Client
) -> None:
    client.create("t", partitions=1_000)
    slow = SlowReader(broker.address)
    for number in range(500):
        slow.send(apis.METADATA.number, MetadataRequest(), correlation_id=number)
    context = broker.broker.context
    answered = context.counters.request_seconds
    broker.wait_until(lambda: "metadata" in answered and sum(answered["metadata"].counts) > 10)
    for _ in range(20):
        client.offset("t", "latest")
    assert unsent_bytes(broker) < 4 * limits.WRITE_BUFFER_HIGH_BYTES
    slow.read(500)
    slow.socket.close()


def test_requests_over_the_most_in_flight_wait_their_turn(
    client: Client, disk: FaultyDisk, broker: RunningBroker
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"first"))
    disk.faults.sync_gate.clear()
    count = 3 * limits.REQUESTS_IN_FLIGHT_MAX
    sent = [client.send_batch("t", batch_of(b"%d" % number)) for number in range(count)]
    connections = broker.broker.connections._open
    broker.wait_until(lambda: max(c.in_flight for c in connections) > 0)
    with broker.client() as other:
        other.offset("t", "latest")
    assert broker.call(lambda: max(c.in_flight for c in connections)) <= (
        limits.REQUESTS_IN_FLIGHT_MAX
    )
    disk.faults.sync_gate.set()
    assert [client.produced(id_).base_offset for id_ in sent] == list(range(1, count + 1))


def test_large_requests_share_a_budget_and_all_arrive(tmp_path: Path) -> None:
    settings = {"queued_max_request_bytes": str(limits.MIB)}
    with running(tmp_path, **settings) as broker, broker.client() as client:  # type: ignore[arg-type]
        client.create("t", max_message_bytes=str(8 * limits.MIB))
        batch = batch_of(b"x" * (3 * limits.MIB))
        part = ProducePartition(topic="t", partition=0, length=len(batch))
        message = ProduceRequest(acks=-1, partitions=[part])
        senders = [broker.client() for _ in range(5)]
        ids, rests = [], []
        budget = broker.broker.connections.requests
        for sender in senders:
            id_, buffers = sender._state.send(apis.PRODUCE, message, [batch])
            whole = b"".join(buffers)
            sender.socket.sendall(whole[: 2 * limits.MIB])
            ids.append(id_)
            rests.append(whole[2 * limits.MIB :])
        broker.wait_until(lambda: budget.is_waited_for)
        assert client.produce("t", batch_of(b"small")).base_offset == 0
        # In the opposite order: those that wait must not keep the one that may go on.
        for sender, rest in reversed(list(zip(senders, rests, strict=True))):
            sender.socket.setblocking(False)
            taken = sender.socket.send(rest)
            rests[senders.index(sender)] = rest[taken:]
            sender.socket.settimeout(TIMEOUT_S)
        for sender, id_, rest in zip(senders, ids, rests, strict=True):
            sender.socket.sendall(rest)
            assert sender.produced(id_).failure is None
            sender.close()
        assert client.offset("t", "latest").offset == 6
        assert broker.call(lambda: budget.bytes) == 0


def test_when_memory_is_short_who_does_not_take_answers_has_to_go(tmp_path: Path) -> None:
    settings = {"queued_max_response_bytes": str(limits.MIB), "queued_max_wait_ms": "50"}
    with running(tmp_path, **settings) as broker, broker.client() as client:  # type: ignore[arg-type]
        client.create("t", max_message_bytes=str(8 * limits.MIB))
        big = batch_of(b"x" * (7 * limits.MIB))
        client.produce("t", big)
        slow = SlowReader(broker.address)
        slow.send(apis.FETCH.number, fetch_of("t", 1), correlation_id=0)
        broker.wait_until(lambda: broker.broker.context.responses.full)
        assert len(client.fetch("t")[1]) == 1  # waits until the slow one was hung up on
        assert closed_by_peer(slow.socket)
        slow.socket.close()


def test_batches_that_wait_for_the_disk_take_no_memory(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    batch = batch_of(VALUE)
    client.produce("t", batch)
    disk.faults.sync_gate.clear()
    tracemalloc.start()
    try:
        sent = [client.send_batch("t", batch) for _ in range(50)]
        client.offset("t", "latest")
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 10 * len(batch)
    disk.faults.sync_gate.set()
    assert [client.produced(id_).base_offset for id_ in sent] == list(range(1, 51))


def test_refusals_do_not_fill_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(100):
        client.produce("nope", batch_of(b"a"))
    refused = [record.message for record in caplog.records if "refused" in record.message]
    assert len(refused) == REFUSALS_LOGGED_MAX
    assert "not logged" in refused[-1]


def test_a_client_that_leaves_with_requests_in_flight(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_gate.clear()
    gone = broker.client()
    gone.send_batch("t", batch_of(b"b"))
    gone.send_fetch("t", 1, wait_ms_max=10_000)
    gone.offset("t", "latest")
    gone.close()
    broker.wait_until(lambda: len(broker.broker.connections) == 1)
    disk.faults.sync_gate.set()
    assert client.produce("t", batch_of(b"c")).base_offset == 2
    assert client.fetch("t")[1] == [b"a", b"b", b"c"]
    assert broker.broker.context.counters.mistakes == 0


def test_answers_of_one_turn_leave_in_one_piece(client: Client, disk: FaultyDisk) -> None:
    """The client sees what it sent together answered together, not a packet a request."""
    client.create("t")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_gate.clear()
    sent = [client.send_batch("t", batch_of(b"b")) for _ in range(50)]
    client.offset("t", "latest")
    disk.faults.sync_gate.set()
    client.produced(sent[-1])
    assert client.answered(sent[0])


# -- listener --------------------------------------------------------------------------------------
#
# Listening, and the limits on who may stay connected.


def test_port_0_picks_a_free_one() -> None:
    with contextlib.closing(bind(Address("127.0.0.1", 0))) as listening:
        host, port = address_of(listening)
        assert host == "127.0.0.1"
        assert port > 0


def test_a_port_in_use_is_named_with_a_way_out() -> None:
    with contextlib.closing(bind(Address("127.0.0.1", 0))) as listening:
        address = address_of(listening)
        with pytest.raises(BrokerUnavailableError, match=rf"port {address.port} .*--listen") as e:
            bind(address)
        assert "in use" in str(e.value)


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_machines(host: str) -> None:
    with pytest.raises(BrokerUnavailableError, match=f"{host}.*--listen"):
        bind(Address(host, 9100))


def test_connections_over_the_limit_are_refused_and_the_others_stay(tmp_path: Path) -> None:
    with running(tmp_path, max_connections="2") as broker:
        with broker.client() as first, broker.client() as second:
            with socket.create_connection(broker.address, timeout=TIMEOUT_S) as third:
                assert closed_by_peer(third)
            assert first.create("t").failure is None
            assert second.offset("t", "latest").offset == 0
            assert broker.broker.context.counters.connections_refused == 1
        connections = broker.broker.connections
        broker.wait_until(lambda: len(connections) == 0)
        with broker.client() as client:
            assert client.offset("t", "latest").offset == 0


STRANGER = PeerIdentity(
    broker_id=2,
    directory_id="d2",
    boot=1,
    host="127.0.0.1",
    port=10,
    protocol_version=1,
    voters="1,2",
)
MEMBER = {"id": "1", "voters": "1@127.0.0.1:9,2@127.0.0.1:10", "cluster_secret": "s" * 32}


def test_in_a_cluster_a_connection_beyond_the_limit_may_be_a_brokers(tmp_path: Path) -> None:
    with running(tmp_path, max_connections="1", **MEMBER) as broker, broker.client() as first:
        connections = broker.broker.connections
        with (
            broker.client() as second,  # it was told the versions
            pytest.raises(AssertionError, match=r"max\.connections=1"),
        ):
            second.ask(apis.METADATA, MetadataRequest())
        with broker.client() as third:
            hello = Dialling(b"s" * 32, STRANGER, bytes(32), expected=1)
            answer = third.ask(apis.PEER_HELLO, hello.hello())
            third.ask(apis.PEER_PROVE, hello.check(answer))
            assert broker.call(lambda: len(connections._peers)) == 1
            third.ask(apis.METADATA, MetadataRequest(topics=[]))
        first.ask(apis.METADATA, MetadataRequest(topics=[]))


def test_who_does_not_begin_a_handshake_makes_room_for_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOBBY_CONNECTIONS_MAX", 2)
    with running(tmp_path, max_connections="1", **MEMBER) as broker, broker.client():
        shaking = broker.client()
        shaking.ask(apis.PEER_HELLO, Dialling(b"s" * 32, STRANGER, bytes(32), expected=1).hello())
        with broker.client() as idle, broker.client() as another:
            assert idle.is_closed_by_broker()
            assert not another.socket._closed  # type: ignore[attr-defined]
            connections = broker.broker.connections
            assert broker.call(lambda: len(connections._lobby)) == 2
        shaking.close()


def test_those_who_send_too_little_are_closed_while_others_wait_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RELIEF_SECONDS", 0.05)
    with (
        running(tmp_path, queued_max_request_bytes=str(limits.MIB)) as broker,
        broker.client() as client,
        contextlib.ExitStack() as stack,
    ):
        client.create("t", max_message_bytes=str(2 * limits.MIB))
        slow = [stack.enter_context(broker.client()) for _ in range(8)]
        for one in slow:
            one.socket.sendall(FRAME.pack(900_000, MAGIC, 2, 0, 0, 1, 10) + bytes(300_000))
        budget = broker.broker.connections.requests
        broker.wait_until(lambda: budget.is_waited_for)
        assert client.produce("t", batch_of(bytes(1_500_000))).base_offset == 0
        assert all(one.is_closed_by_broker() for one in slow)
        broker.wait_until(lambda: budget.bytes == 0)


def test_a_silent_connection_is_closed_and_a_waiting_one_is_not(tmp_path: Path) -> None:
    with running(tmp_path, connections_max_idle_ms="1000") as broker:
        with broker.client() as admin:
            admin.create("t")
        with broker.client() as waiting:
            fetch = waiting.send_fetch("t", 0, wait_ms_max=2_500)
            with broker.client() as silent:
                assert silent.is_closed_by_broker()
            assert waiting.fetched(fetch) == ([], [])
            # The answer was a sign of life: it is not hung up on at the next look around.
            assert waiting.offset("t", "latest").offset == 0


def test_connections_are_counted(broker: RunningBroker) -> None:
    before = broker.broker.context.counters.connections_accepted
    for _ in range(3):
        broker.client().close()
    assert broker.broker.context.counters.connections_accepted == before + 3
    broker.wait_until(lambda: len(broker.broker.connections) == 0)
