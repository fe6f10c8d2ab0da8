"""A small world for client tests: a cluster in memory, and faults on order.

``FakeCluster`` speaks the real frames over in-memory transports and keeps its logs in lists. What
it is to do with the next request of a kind is queued with ``next``; else it answers as a broker
would. On a ``VirtualLoop`` time passes only when nothing else can happen, so that a test of a
minute takes no time.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

from raftlog import memory_transport
from raftlog.client.base import ClientEnvironment
from raftlog.client.connection import Connection
from raftlog.config import Address
from raftlog.errors import (
    ConnectionLostError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftlogError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.cluster import (
    BrokerStatus,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from raftlog.protocol.connection import Broken, Refusal, Request, ServerConnectionState
from raftlog.protocol.records import (
    BrokerInfo,
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    InitProducerIdResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetAnswer,
    OffsetQuery,
    ProducedPartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTimes,
)
from raftlog.protocol.schema import Failure, Message, slices
from raftlog.protocol.security import ApiVersionRange, ApiVersionsResponse
from raftlog.record import find_timestamp, parse_header
from raftlog.types import Buffer
from tests.client.fake_topics import FakeLog, FakeTopic, Leaders, not_there, undescribed
from tests.client.virtual import LoopClock, VirtualLoop

T = TypeVar("T")


def run(test: Callable[[FakeCluster], Coroutine[Any, Any, T]], **settings: Any) -> T:
    """Run ``test(cluster)`` on a virtual loop."""
    loop = VirtualLoop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: problems.append(context))
    try:
        outcome = loop.run_until_complete(test(FakeCluster(**settings)))
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        assert not problems, problems
        return outcome
    finally:
        loop.close()


# -- behaviours ------------------------------------------------------------------------------------

# What a broker does with a request instead of answering it.
Behaviour = Callable[["Peer", Request], None]


def refuse(error: RaftlogError) -> Behaviour:
    """Answer with a failure of the whole request; nothing is done."""
    return lambda peer, request: peer.write(peer.state.fail(request, error))


def vanish(peer: Peer, _request: Request) -> None:
    """Close the connection; nothing is done."""
    peer.transport.abort()


def do_and_vanish(peer: Peer, request: Request) -> None:
    """Do what is asked, and close the connection instead of answering."""
    peer.cluster.answer(peer.broker_id, request)
    peer.transport.abort()


def ignore(_peer: Peer, _request: Request) -> None:
    """Do nothing, and answer nothing."""


def do_and_ignore(peer: Peer, request: Request) -> None:
    """Do what is asked, and do not answer."""
    peer.cluster.answer(peer.broker_id, request)


def refuse_partitions(*errors: RaftlogError) -> Behaviour:
    """Answer a produce request: each of its partitions fails with its error; nothing is done."""

    def behave(peer: Peer, request: Request) -> None:
        message = request.message
        assert isinstance(message, ProduceRequest)
        failed = [
            ProducedPartition(topic=part.topic, partition=part.partition, failure=Failure.of(error))
            for part, error in zip(message.partitions, errors, strict=True)
        ]
        peer.write(peer.state.reply(request, ProduceResponse(partitions=failed)))

    return behave


def answer_with(message: Message) -> Behaviour:
    """Answer with ``message``, whatever was asked."""
    return lambda peer, request: peer.write(peer.state.reply(request, message))


def hold(gate: asyncio.Event) -> Behaviour:
    """Do what is asked, and answer when the gate opens."""

    def behave(peer: Peer, request: Request) -> None:
        message, attachment = peer.cluster.answer(peer.broker_id, request)

        async def later() -> None:
            await gate.wait()
            peer.write(peer.state.reply(request, message, attachment))

        peer.cluster.keep(later())

    return behave


# -- the cluster -----------------------------------------------------------------------------------


class FakeCluster:
    """Brokers 1 to ``brokers``, at broker-1:9100 and so on. Made on the loop that it is used on.

    A broker that is *paused* takes requests and handles them when it is resumed. One that is *cut
    off* goes on with the topics, and the other brokers, as they were then, and commits nothing.
    """

    def __init__(self, brokers: int = 1) -> None:
        self.addresses = {
            number: Address(f"broker-{number}", 9100) for number in range(1, brokers + 1)
        }
        self.topics: dict[str, FakeTopic] = {}
        self.racks: dict[int, str] = {}
        self.down: set[int] = set()  # brokers that nobody can connect to
        self.unreachable: set[int] = set()  # the same, but trying takes for ever
        self._paused: dict[int, deque[tuple[Peer, Request]]] = {}
        self._cut_off: dict[int, dict[str, FakeTopic]] = {}
        self.requests: list[tuple[int, Message]] = []  # (broker, request), handshakes left out
        self.connects: list[str] = []
        self.peers: list[Peer] = []
        self.api_ranges: dict[int, tuple[int, int]] = {}  # what differs from this release
        self.producer_ids = iter(range(1_000, 2_000))
        self._next: dict[Api, deque[Behaviour]] = defaultdict(deque)
        self.times: tuple[int, int, int, int | None] | None = (
            100,
            300,
            700,
            2,
        )  # of a traced produce request
        self.always: dict[Api, Behaviour] = {}  # for what is not planned with ``next``
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(str(address) for address in self.addresses.values())

    @property
    def host(self) -> ClientEnvironment:
        loop = asyncio.get_running_loop()
        clock = LoopClock(loop) if isinstance(loop, VirtualLoop) else None
        parts: dict[str, Any] = {"clock": clock} if clock else {}
        return ClientEnvironment(connector=self.connect, chance=random.Random(1).random, **parts)

    def create(
        self,
        name: str,
        partitions: int = 1,
        *,
        leaders: Sequence[int | None] | None = None,
        replicas: Sequence[int] | None = None,
        **more: Any,
    ) -> FakeTopic:
        topic = FakeTopic(
            name=name,
            id=f"{name}-{len(self.topics)}",
            logs=[FakeLog() for _ in range(partitions)],
            leaders=Leaders(leaders or [1] * partitions),
            replicas=list(replicas or self.addresses),
            isr=list(replicas or self.addresses),
            **more,
        )
        self.topics[name] = topic
        return topic

    def grow(self, name: str) -> None:
        """Add a partition to a topic."""
        self.topics[name].logs.append(FakeLog())
        self.topics[name].leaders.append(1)

    def next(self, api: Api, *behaviours: Behaviour) -> None:
        """What to do with the next requests of a kind, one each."""
        self._next[api].extend(behaviours)

    def asked(self, kind: type[T]) -> list[T]:
        """The requests of one type, in the order they came."""
        return [message for _, message in self.requests if isinstance(message, kind)]

    def kill(self, broker_id: int) -> None:
        """Close its connections, and take no more."""
        self.down.add(broker_id)
        for peer in [peer for peer in self.peers if peer.broker_id == broker_id]:
            peer.transport.abort()

    def pause(self, broker_id: int) -> None:
        self._paused[broker_id] = deque()

    def resume(self, broker_id: int) -> None:
        for peer, request in self._paused.pop(broker_id):
            if peer in self.peers:
                self._handle_now(peer, request)

    def cut_off(self, broker_id: int) -> None:
        self._cut_off[broker_id] = deepcopy(self.topics)

    def rejoin(self, broker_id: int) -> None:
        del self._cut_off[broker_id]

    def seen_by(self, broker_id: int) -> dict[str, FakeTopic]:
        """The topics as a broker knows them."""
        return self._cut_off.get(broker_id, self.topics)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def connect(self, host: str, port: int) -> Connection:
        self.connects.append(host)
        for broker_id, address in self.addresses.items():
            if address == (host, port) and broker_id in self.unreachable:
                await asyncio.sleep(1e6)
            if address == (host, port) and broker_id not in self.down:
                connection = Connection(address)
                peer = Peer(self, broker_id)
                memory_transport.join(asyncio.get_running_loop(), connection, peer)
                return connection
        raise ConnectionRefusedError(111, "Connection refused")

    # -- answers

    def handle(self, peer: Peer, request: Request) -> None:
        if peer.broker_id in self._paused:
            self._paused[peer.broker_id].append((peer, request))
        else:
            self._handle_now(peer, request)

    def _handle_now(self, peer: Peer, request: Request) -> None:
        if request.api is not apis.API_VERSIONS:
            self.requests.append((peer.broker_id, request.message))
        if peer.broker_id in self._cut_off and isinstance(request.message, ProduceRequest):
            return  # it waits for those that it is cut off from
        planned = self._next[request.api]
        behave = planned.popleft() if planned else self.always.get(request.api)
        if behave is not None:
            behave(peer, request)
            return
        try:
            message, attachment = self.answer(peer.broker_id, request)
        except RaftlogError as error:
            peer.write(peer.state.fail(request, error))
            return
        if not request.expects_response:
            peer.state.finish(request)
        elif isinstance(message, FetchResponse) and not message.partitions:
            self.keep(self._answer_fetch_later(peer, request))
        else:
            peer.write(peer.state.reply(request, message, attachment))

    async def _answer_fetch_later(self, peer: Peer, request: Request) -> None:
        """The long poll: look again every few milliseconds of virtual time."""
        assert isinstance(request.message, FetchRequest)
        loop = asyncio.get_running_loop()
        until = loop.time() + request.message.wait_ms_max / 1_000
        message, attachment = self.answer(peer.broker_id, request)
        while loop.time() < until and not cast_fetch(message).partitions:
            await asyncio.sleep(0.005)
            message, attachment = self.answer(peer.broker_id, request)
        peer.write(peer.state.reply(request, message, attachment))

    def answer(self, broker_id: int, request: Request) -> tuple[Message, Sequence[Buffer]]:
        message = request.message
        if isinstance(message, ProduceRequest):
            return self._produce(broker_id, message, request.attachment), ()
        if isinstance(message, FetchRequest):
            return self._fetch(broker_id, message)
        if isinstance(message, MetadataRequest):
            return self._metadata(broker_id, message), ()
        if isinstance(message, ListOffsetsRequest):
            answers = [self._offset(broker_id, query) for query in message.queries]
            return ListOffsetsResponse(answers=answers), ()
        if isinstance(message, DescribeTopicsRequest):
            topics = self.seen_by(broker_id).values()
            found = [topic.described_by(broker_id) for topic in topics if _is_in(topic, message)]
            names = {topic.name for topic in topics}
            missing = [name for name in message.topics or () if name not in names]
            return DescribeTopicsResponse(topics=found + list(map(undescribed, missing))), ()
        if isinstance(message, DescribeClusterRequest):
            return self.describe(broker_id, message), ()
        if request.api is apis.INIT_PRODUCER_ID:
            return InitProducerIdResponse(producer_id=next(self.producer_ids), producer_epoch=0), ()
        if request.api is apis.API_VERSIONS:
            return self._versions(broker_id), ()
        raise AssertionError(f"the fake knows no {request.api.name}: plan an answer with next()")

    def _versions(self, broker_id: int) -> ApiVersionsResponse:
        return ApiVersionsResponse(
            broker_software="fake",
            broker_id=broker_id,
            cluster_id="fake",
            apis=[
                ApiVersionRange(api=number, version_min=least, version_max=most)
                for number, api in apis.APIS.items()
                for least, most in [self.api_ranges.get(number, (api.version_min, api.version_max))]
            ],
        )

    def _metadata(self, broker_id: int, message: MetadataRequest) -> MetadataResponse:
        topics = self.seen_by(broker_id)
        names = list(topics) if message.topics is None else message.topics
        return MetadataResponse(
            cluster_id="fake",
            brokers=[
                BrokerInfo(
                    id=number, host=address.host, port=address.port, rack=self.racks.get(number)
                )
                for number, address in self.addresses.items()
                if broker_id not in self._cut_off or number == broker_id
            ],
            topics=[topics[name].info() if name in topics else not_there(name) for name in names],
            controller=1,
        )

    def describe(self, broker_id: int, message: DescribeClusterRequest) -> DescribeClusterResponse:
        return DescribeClusterResponse(
            cluster_id="fake",
            controller=1,
            brokers=[
                BrokerStatus(
                    id=number,
                    host=address.host,
                    port=address.port,
                    directory_id=f"directory-{number}",
                    broker_epoch=number,
                    fenced=number in self.down,
                    live=number not in self.down,
                )
                for number, address in self.addresses.items()
            ],
            partitions=[
                topic.status_by(broker_id, number)
                for topic in self.seen_by(broker_id).values()
                if message.include_partitions and _is_in(topic, message)
                for number in range(len(topic.logs))
            ],
        )

    def _topic(self, broker_id: int, name: str, partition: int) -> FakeTopic:
        found = self.seen_by(broker_id).get(name)
        if found is None:
            raise UnknownTopicError(f"no topic {name}")
        if partition >= len(found.logs):
            raise UnknownPartitionError(f"no partition {name}:{partition}")
        return found

    def _produce(
        self, broker_id: int, message: ProduceRequest, attachment: memoryview
    ) -> ProduceResponse:
        done = []
        batches = slices(attachment, [part.length for part in message.partitions])
        for part, batch in zip(message.partitions, batches, strict=True):
            produced = partial(ProducedPartition, topic=part.topic, partition=part.partition)
            try:
                topic = self._topic(broker_id, part.topic, part.partition)
                log = topic.log_at(broker_id, part.partition, part.leader_epoch)
                base = log.append(batch)
                times = ProduceTimes(*self.times) if message.traced and self.times else None
                done.append(produced(base_offset=base, times=times))
            except UnknownProducerError as error:
                done.append(produced(failure=Failure.of(error), topic_id=topic.id))
            except RaftlogError as error:
                done.append(produced(failure=Failure.of(error)))
        return ProduceResponse(partitions=done)

    def _fetch(
        self, broker_id: int, message: FetchRequest
    ) -> tuple[FetchResponse, Sequence[Buffer]]:
        found: list[FetchedPartition] = []
        attachment: list[Buffer] = []
        for part in message.partitions:
            fetched = partial(FetchedPartition, topic=part.topic, partition=part.partition)
            try:
                batches = self._read(broker_id, part, replica_ok=message.replica_ok)
            except RaftlogError as error:
                found.append(fetched(failure=Failure.of(error)))
                continue
            if batches:
                found.append(fetched(length=sum(map(len, batches))))
                attachment += batches
        return FetchResponse(partitions=found), attachment

    def _read(self, broker_id: int, part: FetchPartition, *, replica_ok: bool) -> list[bytes]:
        topic = self._topic(broker_id, part.topic, part.partition)
        if part.topic_id not in ("", topic.id):
            raise NotLeaderError(f"this is topic {topic.id}, not {part.topic_id}")
        log = topic.log_at(broker_id, part.partition, part.leader_epoch, replica_ok=replica_ok)
        end = topic.end_at(broker_id, part.partition)
        if not log.start <= part.offset <= end:
            raise OffsetOutOfRangeError(f"offset {part.offset} is outside {log.start} to {end}")
        taken: list[bytes] = []
        for batch in log.batches:
            if part.offset < parse_header(batch).next_offset <= end and (
                not taken or sum(map(len, taken)) + len(batch) <= part.bytes_max
            ):
                taken.append(batch)
        return taken

    def _offset(self, broker_id: int, query: OffsetQuery) -> OffsetAnswer:
        answer = partial(OffsetAnswer, topic=query.topic, partition=query.partition)
        try:
            topic = self._topic(broker_id, query.topic, query.partition)
            log = topic.log_at(broker_id, query.partition, query.leader_epoch)
        except RaftlogError as error:
            return answer(failure=Failure.of(error))
        if query.at == "earliest":
            return answer(offset=log.start)
        if query.at == "latest":
            return answer(offset=log.end)
        for batch in log.batches:
            found = find_timestamp(batch, query.at)
            if found is not None:
                return answer(offset=found.offset, timestamp_ms=found.timestamp_ms)
        return answer()


def _is_in(topic: FakeTopic, message: DescribeTopicsRequest | DescribeClusterRequest) -> bool:
    return message.topics is None or topic.name in message.topics


def cast_fetch(message: Message) -> FetchResponse:
    assert isinstance(message, FetchResponse)
    return message


class Peer(asyncio.BufferedProtocol):
    """The broker's end of one connection."""

    def __init__(self, cluster: FakeCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.state = ServerConnectionState()
        self.transport: memory_transport.MemoryTransport
        cluster.peers.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, memory_transport.MemoryTransport)
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.state.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        for event in self.state.received(nbytes):
            if isinstance(event, Refusal):
                self.write(event.buffers)
            elif isinstance(event, Broken):
                self.transport.write(event.farewell)
                self.transport.close()
            else:
                self.cluster.handle(self, event)

    def write(self, buffers: Sequence[Buffer]) -> None:
        if buffers:
            self.transport.writelines(buffers)

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.end_of_stream()
        if self in self.cluster.peers:
            self.cluster.peers.remove(self)


LOST = ConnectionLostError("the test lost it")
