"""A broker on its own thread, raw clients on real sockets, and disks that fail when told to.

The clients speak the protocol and nothing else: what they see is what any client would.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from raftlog.clock import Clock
from raftlog.config import Address, BrokerConfig
from raftlog.disk import Disk, OsDisk, OsFile
from raftlog.errors import RaftlogError, StorageFailedError
from raftlog.protocol import api as apis
from raftlog.protocol.api import Api
from raftlog.protocol.connection import Broken, ClientConnectionState, Response
from raftlog.protocol.records import (
    CreateTopicsRequest,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetAnswer,
    OffsetQuery,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    TopicResult,
    TopicsResponse,
    TopicToCreate,
)
from raftlog.protocol.schema import Message
from raftlog.protocol.security import ApiVersionsRequest, ApiVersionsResponse
from raftlog.record import Codec, decode_lists, split
from raftlog.replication.partition_state import PartitionState, initial_state
from raftlog.server.broker import Broker
from raftlog.server.connection import address_of, bind
from raftlog.types import Buffer
from tests.record import batches

TIMEOUT_S = 20.0  # of everything that is waited for: a test that gets there has failed
T = TypeVar("T")


class FakeClock:
    """Both clocks stand still until they are moved."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = wall_ms

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1_000


@dataclass
class Faults:
    """What a ``FaultyDisk`` does, from now on, to segment files."""

    no_room: bool = False  # appends and new files raise ENOSPC
    sync_error: int = 0  # an errno for syncs
    sync_gate: threading.Event = field(
        default_factory=threading.Event
    )  # syncs wait until it is set
    syncs: int = 0

    def __post_init__(self) -> None:
        self.sync_gate.set()


class FaultyFile(OsFile):
    """A file of ``FaultyDisk``."""

    faults: Faults

    def append(self, buffers: Sequence[Buffer]) -> None:
        if self.faults.no_room:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        super().append(buffers)

    def sync(self) -> None:
        if self.path.endswith(".log"):
            assert self.faults.sync_gate.wait(TIMEOUT_S), "nobody opened the gate"
            self.faults.syncs += 1
            if self.faults.sync_error:
                raise OSError(self.faults.sync_error, "Input/output error", self.path)
        super().sync()


class FaultyDisk(OsDisk):
    """The machine's disk, until it is told to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.faults = Faults()

    def open(
        self, path: str, *, create: bool = False, write: bool = True, pooled: bool = False
    ) -> OsFile:
        if create and self.faults.no_room and not self.exists(path):
            raise OSError(errno.ENOSPC, "No space left on device", path)
        file = super().open(path, create=create, write=write)
        # The same file, with the same state, that also knows of the faults.
        file.__class__ = FaultyFile
        assert isinstance(file, FaultyFile)
        file.faults = self.faults
        return file

    def write_atomic(self, path: str, data: bytes) -> None:
        if self.faults.no_room:
            raise OSError(errno.ENOSPC, "No space left on device", path)
        super().write_atomic(path, data)


class RunningBroker:
    """A broker that listens on a free port, on a thread of its own."""

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str], clock: Clock, disk: Disk
    ) -> None:
        overrides = {"data.dir": str(data_dir), "listen": "127.0.0.1:0", **settings}
        self.config = BrokerConfig.from_text(overrides)
        self.clock = clock
        self.disk = disk
        self.fatal: list[StorageFailedError] = []
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-broker")
        self._thread.start()
        try:
            self.broker, self.address = self.await_(self._start())
        except BaseException:
            self._end_loop()
            raise

    async def _start(self) -> tuple[Broker, Address]:
        listening = bind(self.config.listen)
        kafka_listen = self.config.kafka_listen
        try:
            broker = await Broker.start(
                self.config,
                clock=self.clock,
                disk=self.disk,
                on_fatal=self.fatal.append,
                listening=[listening],
                kafka_listening=None if kafka_listen is None else bind(kafka_listen),
            )
        except BaseException:
            listening.close()
            raise
        return broker, address_of(listening)

    def await_(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs on the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S)

    def call(self, function: Callable[[], T]) -> T:
        """The result of a function that runs on the broker's loop."""

        async def run() -> T:
            return function()

        return self.await_(run())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition()``, looked at on the broker's loop, is true."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self.call(condition):
            assert time.monotonic() < deadline, "it never came to pass"

    def stop(self) -> None:
        """Gracefully. Does nothing a second time."""
        if self._loop.is_closed():
            return
        try:
            self.await_(self.broker.stop())
        finally:
            self._end_loop()

    def expect_failed_stop(self) -> StorageFailedError:
        """Stop a broker whose disk has failed; the error that it ends with."""
        with pytest.raises(StorageFailedError) as caught:
            self.stop()
        return caught.value

    def client(self) -> Client:
        return Client(self.address)

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()


class Client:
    """A raw client: blocking, one socket, requests and answers by correlation id."""

    def __init__(self, address: Address, *, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(address, timeout=TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address.host)
        self._state = ClientConnectionState()
        self._answers: dict[int, Response] = {}
        versions = self.ask(apis.API_VERSIONS, ApiVersionsRequest(client_id="test"))
        assert isinstance(versions, ApiVersionsResponse)
        self._state.agree(versions.apis)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def send(self, api: Api, message: Message, attachment: Sequence[Buffer] = ()) -> int:
        """Send a request; the id by which ``answer`` finds its answer."""
        correlation_id, buffers = self._state.send(api, message, attachment)
        self.socket.sendall(b"".join(buffers))
        return correlation_id

    def answer(self, correlation_id: int) -> Response:
        """The answer to one request; others that come first are kept."""
        while correlation_id not in self._answers:
            count = self.socket.recv_into(self._state.get_buffer())
            assert count, "the broker closed the connection"
            for event in self._state.received(count):
                assert not isinstance(event, Broken), event
                self._answers[event.correlation_id] = event
        return self._answers.pop(correlation_id)

    def ask(self, api: Api, message: Message, attachment: Sequence[Buffer] = ()) -> Any:
        """The answer's message; raises the error that the broker gave in its place."""
        answer = self.answer(self.send(api, message, attachment)).message
        if isinstance(answer, RaftlogError):
            raise answer
        return answer

    def answered(self, *correlation_ids: int) -> bool:
        """Whether an answer to one of these came before the last answer that was waited for."""
        return any(id_ in self._answers for id_ in correlation_ids)

    def is_closed_by_broker(self) -> bool:
        """Wait for the end of the stream."""
        return closed_by_peer(self.socket)

    # -- the requests that most tests need -------------------------------------------------------

    def create(self, name: str, partitions: int = 1, **config: str) -> TopicResult:
        """Create a topic; ``segment_bytes="1"`` stands for ``segment.bytes=1``."""
        named = {key.replace("_", "."): value for key, value in config.items()}
        topic = TopicToCreate(name=name, partitions=partitions, config=named)
        answer: TopicsResponse = self.ask(apis.CREATE_TOPICS, CreateTopicsRequest(topics=[topic]))
        return only(answer.results)

    def send_batch(self, topic: str, batch: bytes, *, partition: int = 0, acks: Any = -1) -> int:
        part = ProducePartition(topic=topic, partition=partition, length=len(batch))
        return self.send(apis.PRODUCE, ProduceRequest(acks=acks, partitions=[part]), [batch])

    def produced(self, correlation_id: int) -> ProducedPartition:
        message = self.answer(correlation_id).message
        assert isinstance(message, ProduceResponse), message
        return only(message.partitions)

    def produce(
        self, topic: str, batch: bytes, *, partition: int = 0, acks: Any = -1
    ) -> ProducedPartition:
        return self.produced(self.send_batch(topic, batch, partition=partition, acks=acks))

    def send_fetch(
        self,
        topic: str,
        offset: int = 0,
        *,
        partition: int = 0,
        bytes_max: int = 1 << 20,
        **limits: int,
    ) -> int:
        part = FetchPartition(topic=topic, partition=partition, offset=offset, bytes_max=bytes_max)
        return self.send(apis.FETCH, FetchRequest(partitions=[part], **limits))

    def fetched(self, correlation_id: int) -> tuple[list[FetchedPartition], list[bytes]]:
        """The answer's partitions, and the values of all records in it."""
        answer = self.answer(correlation_id)
        assert isinstance(answer.message, FetchResponse), answer.message
        return answer.message.partitions, values_of(answer.attachment)

    def fetch(
        self, topic: str, offset: int = 0, **options: int
    ) -> tuple[list[FetchedPartition], list[bytes]]:
        options.setdefault("wait_ms_max", 0)
        return self.fetched(self.send_fetch(topic, offset, **options))

    def offset(self, topic: str, at: Any, *, partition: int = 0) -> OffsetAnswer:
        query = OffsetQuery(topic=topic, partition=partition, at=at)
        answer: ListOffsetsResponse = self.ask(
            apis.LIST_OFFSETS, ListOffsetsRequest(queries=[query])
        )
        return only(answer.answers)


def leads_alone(directory_id: str) -> PartitionState:
    """The state of a partition whose only replica, broker 1, leads."""
    return initial_state((1,), (), {1: directory_id}, 1, leader_boot=1)


def closed_by_peer(raw: socket.socket) -> bool:
    """Read until the other side closes, orderly or not; ``TimeoutError`` if it does not."""
    with contextlib.suppress(ConnectionResetError):
        while raw.recv(65_536):
            pass
    return True


def finished(steps: Generator[Any, Any, T]) -> T:
    """What ``steps`` return, all taken at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


def only(items: Sequence[T]) -> T:
    """The one item there is."""
    assert len(items) == 1, items
    return items[0]


def batch_of(
    *values: bytes,
    timestamp_ms: int = 1_700_000_000_000,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A producer's batch."""
    producer = producer_id, producer_epoch, base_sequence
    return batches.batch_of(values, timestamps_ms=timestamp_ms, codec=codec, producer=producer)


def values_of(attachment: Buffer) -> list[bytes]:
    """The values of every record in a fetch's attachment."""
    found: list[bytes] = []
    for batch in split(attachment):
        found += [value for value in decode_lists(batch).values if value is not None]
    return found


def error_of(part: Any) -> RaftlogError:
    """The failure in one part of an answer, as the error it stands for."""
    assert part.failure is not None, part
    error: RaftlogError = part.failure.to_error()
    return error


@contextlib.contextmanager
def running(
    data_dir: Path,
    *,
    clock: Clock | None = None,
    disk: Disk | None = None,
    **settings: str,
) -> Iterator[RunningBroker]:
    """A broker until the block ends; ``fetch_max_bytes="1"`` stands for ``fetch.max.bytes=1``."""
    named = {key.replace("_", "."): value for key, value in settings.items()}
    broker = RunningBroker(data_dir, named, clock or FakeClock(), disk or OsDisk())
    try:
        yield broker
    finally:
        broker.stop()
