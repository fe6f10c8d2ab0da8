"""A connection: answers find their requests; every way it can end leaves nobody waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from raftlog import memory_transport
from raftlog.client.connection import Connection, SocketConnector
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    FrameError,
    NotLeaderError,
    RaftlogError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    MetadataRequest,
    MetadataResponse,
    ProducePartition,
    ProduceRequest,
)
from raftlog.protocol.schema import Message
from tests.client.world import FakeCluster, Peer, hold, ignore, refuse, run, vanish

ADDRESS = Address("broker-1", 9100)
METADATA = MetadataRequest(topics=[])
FETCH = FetchRequest(partitions=[FetchPartition(topic="t", partition=0, offset=0, bytes_max=1)])


async def connected(cluster: FakeCluster) -> Connection:
    connection = await cluster.connect("broker-1", 9100)
    await connection.handshake("me", timeout_ms=1_000)
    return connection


def test_the_handshake_says_who_the_broker_is() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        assert connection.broker_id == 1
        await connection.close()

    run(test)


def test_answers_find_their_requests_in_any_order() -> None:
    async def test(cluster: FakeCluster) -> None:
        cluster.create("a")
        cluster.create("b")
        connection = await connected(cluster)
        gate = asyncio.Event()
        cluster.next(apis.METADATA, hold(gate))
        first = connection.start(apis.METADATA, MetadataRequest(topics=["a"]), timeout_ms=1_000)
        second = await connection.request(
            apis.METADATA, MetadataRequest(topics=["b"]), timeout_ms=1_000
        )
        assert not first.done()
        gate.set()
        assert [names(second.message), names((await first).message)] == [["b"], ["a"]]
        await connection.close()

    run(test)


def names(message: Message) -> list[str]:
    assert isinstance(message, MetadataResponse)
    return [topic.name for topic in message.topics]


def test_a_brokers_failure_is_raised_as_what_it_is() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        cluster.next(apis.METADATA, refuse(NotLeaderError("not me")))
        with pytest.raises(NotLeaderError, match="not me"):
            await connection.request(apis.METADATA, METADATA, timeout_ms=1_000)
        await connection.request(apis.METADATA, METADATA, timeout_ms=1_000)
        await connection.close()

    run(test)


def test_a_client_over_its_quota_waits_for_as_long_as_the_broker_says() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        writable = asyncio.Event()
        connection.on_writable = writable.set
        answered = FetchResponse(partitions=[], throttle_ms=7_000)
        cluster.next(
            apis.FETCH, lambda peer, request: peer.write(peer.state.reply(request, answered))
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        await connection.request(apis.FETCH, FETCH, timeout_ms=1_000)
        assert not connection.writable
        connection.resume_writing()
        assert not connection.writable
        connection.start(apis.METADATA, METADATA, timeout_ms=50_000)
        assert not connection.is_silent
        writable.clear()
        await writable.wait()
        assert connection.writable
        assert loop.time() - began == pytest.approx(7.0, abs=0.1)
        await connection.close()

    run(test)


def test_silence_ends_the_connection_and_all_that_waits_on_it() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        cluster.next(apis.METADATA, ignore, ignore)
        slow = connection.start(apis.METADATA, METADATA, timeout_ms=50_000)
        with pytest.raises(RequestTimedOutError, match=r"broker-1:9100 .* metadata within 2000 ms"):
            await connection.request(apis.METADATA, METADATA, timeout_ms=2_000)
        with pytest.raises(RequestTimedOutError):
            await slow
        assert connection.closed
        with pytest.raises(BrokerUnavailableError, match="broker-1:9100"):
            connection.start(apis.METADATA, METADATA, timeout_ms=1_000)

    run(test)


def test_a_lost_connection_leaves_outcomes_unknown() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        cluster.next(apis.METADATA, ignore, vanish)
        waiting = [connection.start(apis.METADATA, METADATA, timeout_ms=9_000) for _ in range(2)]
        for future in waiting:
            with pytest.raises(ConnectionLostError, match="broker-1:9100"):
                await future
        assert connection.closed

    run(test)


def test_closing_fails_what_waits_and_is_idempotent() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        cluster.next(apis.METADATA, ignore)
        waiting = connection.start(apis.METADATA, METADATA, timeout_ms=9_000)
        await connection.close()
        await connection.close()
        with pytest.raises(ClosedError):
            await waiting
        await Connection(ADDRESS).close()  # one that was never made is closed as easily

    run(test)


def test_a_request_that_nobody_awaits_any_more_is_forgotten() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        gate = asyncio.Event()
        cluster.next(apis.METADATA, hold(gate))
        task = asyncio.ensure_future(connection.request(apis.METADATA, METADATA, timeout_ms=9_000))
        await asyncio.sleep(0.01)
        task.cancel()
        gate.set()
        await connection.request(apis.METADATA, METADATA, timeout_ms=9_000)
        await connection.close()

    run(test)


def test_a_version_that_the_broker_does_not_speak_is_told_before_it_is_sent() -> None:
    async def test(cluster: FakeCluster) -> None:
        cluster.api_ranges[apis.METADATA.number] = (7, 9)
        connection = await connected(cluster)
        with pytest.raises(UnsupportedVersionError, match="metadata"):
            connection.start(apis.METADATA, METADATA, timeout_ms=1_000)
        assert not cluster.requests
        await connection.close()

    run(test)


def test_without_acks_nothing_is_waited_for() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        request = ProduceRequest(
            acks=0, partitions=[ProducePartition(topic="t", partition=0, length=3)]
        )
        future = connection.start(apis.PRODUCE, request, [b"abc"], timeout_ms=1_000)
        assert future.done()
        await connection.close()

    run(test)


class Stranger(Peer):
    """Something else that listens there: answers everything with the same bytes."""

    answer = b""

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(self.answer)


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", FrameError, "HTTP server"),
        (b"\x15\x03\x01\x00\x02\x02\x16" * 4, FrameError, "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n........", FrameError, "not a raftlog frame"),
    ],
)
def test_a_stranger_is_recognised(answer: bytes, error: type[RaftlogError], says: str) -> None:
    async def test(cluster: FakeCluster) -> None:
        connection, peer = Connection(ADDRESS), Stranger(cluster, 1)
        peer.answer = answer
        memory_transport.join(asyncio.get_running_loop(), connection, peer)
        with pytest.raises(error, match=says) as caught:
            await connection.handshake("me", timeout_ms=1_000)
        assert "broker-1:9100" in str(caught.value)
        assert connection.closed

    run(test)


def test_garbage_later_on_leaves_outcomes_unknown() -> None:
    async def test(cluster: FakeCluster) -> None:
        connection = await connected(cluster)
        cluster.next(apis.METADATA, lambda peer, _request: peer.write([b"x" * 40]))
        with pytest.raises(ConnectionLostError, match="not a raftlog frame"):
            await connection.request(apis.METADATA, METADATA, timeout_ms=1_000)

    run(test)


class Sink:
    """A transport that counts calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def write(self, data: bytes) -> None:
        self.calls.append(("write", len(data)))

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.calls.append(("writelines", sum(map(len, parts))))

    def set_write_buffer_limits(self, high: int) -> None:
        assert high > 0


class SelectorSink(Sink):
    """One that says it is asyncio's own, which joins what it gets."""

    __module__ = "asyncio.selector_events"


@pytest.mark.parametrize(
    ("sink", "size", "calls"),
    [(Sink, 1 << 20, 1), (SelectorSink, 100, 1), (SelectorSink, 1 << 20, 2)],
)
def test_large_buffers_are_not_joined(sink: type[Sink], size: int, calls: int) -> None:
    async def test() -> list[tuple[str, int]]:
        connection, transport = Connection(ADDRESS), sink()
        connection.connection_made(transport)  # type: ignore[arg-type]
        request = ProduceRequest(
            acks=0, partitions=[ProducePartition(topic="t", partition=0, length=size)]
        )
        connection.start(apis.PRODUCE, request, [bytes(size)], timeout_ms=1_000)
        return transport.calls

    assert len(asyncio.run(test())) == calls


def test_pausing_and_resuming_is_told() -> None:
    connection = Connection(ADDRESS)
    noted: list[bool] = []
    connection.on_writable = lambda: noted.append(connection.writable)
    connection.pause_writing()
    assert not connection.writable
    connection.resume_writing()
    assert noted == [True]


def test_connecting_over_tcp() -> None:
    """The one test here with sockets: nothing answers, but the connection stands."""

    async def main() -> tuple[str, type[BaseException]]:
        heard = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.set_result(await reader.readexactly(6))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        connection = await SocketConnector()("127.0.0.1", port)
        try:
            await connection.handshake("me", timeout_ms=20_000)
        except RaftlogError as error:
            kind = type(error)
        await connection.close()
        server.close()
        await server.wait_closed()
        return (await heard)[4:].decode(), kind

    assert asyncio.run(main()) == ("RL", ConnectionLostError)
