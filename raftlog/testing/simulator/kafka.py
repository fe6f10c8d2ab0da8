"""Simulated Kafka clients: a producer and a consumer that speak Kafka's protocol.

They have those methods of raftlog's asyncio clients that the workload calls, and behave as Kafka's
clients do. An idempotent producer has up to five batches of a partition in flight, repeats all of
them with the same bytes after a failure, and continues with a higher epoch after a batch whose
outcome stays unknown. Other producers repeat nothing. A consumer reads from leaders. Clients
disconnect from a broker that does not respond in time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

from raftlog.client.requests import At
from raftlog.config import Address
from raftlog.consumer_groups.values import assigned_partitions
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConnectionLostError,
    InstanceFencedError,
    InvalidRequestError,
    NotEnoughReplicasError,
    OutcomeUnknownError,
    RaftlogError,
    RequestTimedOutError,
    UnknownTopicError,
)
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import Message
from raftlog.record import Codec, encode, seal, to_kafka
from raftlog.testing.kafka_wire import assignment, batches_of, request, response, subscription
from raftlog.testing.simulator.world import ClientMachine
from raftlog.types import (
    NO_TIMESTAMP,
    ConsumerRecord,
    Headers,
    LeaderEpoch,
    Offset,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    RecordMetadata,
    TimestampMs,
    TopicPartition,
)

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 1.5
TIMEOUT_MS: Final = 1_000  # of a broker that waits for replicas
RETRY_S: Final = 0.1  # from a failure to the next attempt
METADATA_MAX_AGE_S: Final = 3.0
FETCH_FAILURES_MAX: Final = 50  # consecutive polls that fail, then one raises the error
BATCHES_IN_FLIGHT_MAX: Final = 5  # of a partition; brokers remember as many batches of a producer
BATCH_RECORDS_MAX: Final = 4  # so few that several batches are in flight
EPOCH_MAX: Final = 32_767  # of a producer
NO_EPOCH: Final = -1  # of a leader
SEQUENCES: Final = 1 << 31
LATEST, EARLIEST = -1, -2  # in place of a timestamp

# After these codes a client repeats its request, in most cases with newer metadata.
RETRIABLE: Final = (
    errors.CORRUPT_MESSAGE,
    errors.UNKNOWN_TOPIC_OR_PARTITION,
    errors.LEADER_NOT_AVAILABLE,
    errors.NOT_LEADER_OR_FOLLOWER,
    errors.REQUEST_TIMED_OUT,
    errors.NOT_ENOUGH_REPLICAS,
    errors.KAFKA_STORAGE_ERROR,
    errors.FENCED_LEADER_EPOCH,
    errors.UNKNOWN_LEADER_EPOCH,
    errors.OFFSET_NOT_AVAILABLE,
    errors.UNKNOWN_TOPIC_ID,
)
_VERSIONS: Final = {
    apis.API_VERSIONS: 2,
    apis.METADATA: 12,
    apis.INIT_PRODUCER_ID: 4,
    apis.LIST_OFFSETS: 7,
    apis.OFFSET_FOR_LEADER_EPOCH: 4,
    apis.FIND_COORDINATOR: 3,
}

_ApiVersions = codec.structs("request", apis.API_VERSIONS.key)
_Produce = codec.structs("request", apis.PRODUCE.key)
_Fetch = codec.structs("request", apis.FETCH.key)
_Offsets = codec.structs("request", apis.LIST_OFFSETS.key)
_Epochs = codec.structs("request", apis.OFFSET_FOR_LEADER_EPOCH.key)
_Metadata = codec.structs("request", apis.METADATA.key)
_InitProducerId = codec.structs("request", apis.INIT_PRODUCER_ID.key)


class CodeError(RaftlogError):
    """A broker responded with an error code of Kafka's protocol."""

    def __init__(self, code: int, text: str | None = None) -> None:
        super().__init__(f"Kafka's error code {code}: {text}")
        self.kafka_code = code

    @property
    def is_retriable(self) -> bool:
        return self.kafka_code in RETRIABLE


# -- connections and metadata ----------------------------------------------------------------------


class _Connection(asyncio.Protocol):
    """A connection to a broker, which responds in the order of the requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client_id: str) -> None:
        self._loop = loop
        self._client_id = client_id.encode()
        self._received = bytearray()
        self._sent = 0
        self._waiting: deque[tuple[int, Api, int, asyncio.Future[Message]]] = deque()
        self.is_lost = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(
        self,
        api: Api,
        version: int,
        message: Message,
        *,
        has_response: bool = True,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> asyncio.Future[Message]:
        """Send a request immediately. Returns its response, or None if it has none."""
        self._sent += 1
        future: asyncio.Future[Message] = self._loop.create_future()
        if self.is_lost:
            future.set_exception(ConnectionLostError("the connection is lost"))
            return future
        self._transport.write(
            request(api, version, message, correlation_id=self._sent, client_id=self._client_id)
        )
        if has_response:
            self._waiting.append((self._sent, api, version, future))
            timer = self._loop.call_later(timeout_s, self._expire, future)
            future.add_done_callback(lambda _: timer.cancel())
        else:
            future.set_result(None)
        return future

    def _expire(self, future: asyncio.Future[Message]) -> None:
        if not future.done():
            future.set_exception(RequestTimedOutError("no response in time"))
            self.close()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            end = 4 + int.from_bytes(self._received[:4], "big")
            if len(self._received) < end:
                return
            number, api, version, future = self._waiting.popleft()
            found, message = response(api, version, bytes(self._received[:end]))
            assert found == number, f"response {found} to {api.name} {number}: not in order"
            del self._received[:end]
            if not future.done():
                future.set_result(message)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        for _, _, _, future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionLostError(f"connection lost: {error}"))
        self._waiting.clear()

    def close(self) -> None:
        self._transport.abort()
        self.connection_lost(None)


class _Leader(NamedTuple):
    broker: Address
    epoch: int


class KafkaClient:
    """Connections of one client to all brokers, and the leaders of one topic's partitions."""

    def __init__(self, machine: ClientMachine, bootstrap: Sequence[Address], topic: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.machine = machine
        self.topic = topic
        self.topic_id = bytes(16)  # until the first metadata
        self.leaders: dict[int, _Leader] = {}
        self.partitions = 0
        self._addresses = list(bootstrap)
        self._connections: dict[Address, asyncio.Task[_Connection]] = {}
        self._read_at = -METADATA_MAX_AGE_S
        self.is_stale = True
        self._reading: asyncio.Task[None] | None = None
        self._is_closed = False

    def part(self, number: int) -> TopicPartition:
        return TopicPartition(self.topic, number)

    async def connection(self, address: Address) -> _Connection:
        """Return the connection to a broker. Raises ``BrokerUnavailableError``, or the error of the
        first request.
        """
        known = self._connections.get(address)
        if known is None or (known.done() and (known.exception() or known.result().is_lost)):
            known = self._connections[address] = self._begin(self._connect(address))
        return await asyncio.shield(known)

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin what several callers may wait for, or none that is left when it fails."""
        task = self.loop.create_task(work)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return task

    async def _connect(self, address: Address) -> _Connection:
        make = partial(_Connection, self.loop, self.machine.name)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                _, made = await self.loop.create_connection(make, address.host, address.port)
        except OSError as error:  # includes TimeoutError
            raise BrokerUnavailableError(f"{address}: {error}") from error
        if self._is_closed:
            made.close()
        versions = await self._ask(made, apis.API_VERSIONS, _ApiVersions.root())
        assert versions.error_code == errors.NONE, versions
        return made

    async def ask_any(self, api: Api, message: Message) -> Message:
        """Send a request to a random broker."""
        address = self.machine.random.choice(self._addresses)
        return await self._ask(await self.connection(address), api, message)

    async def ask(self, address: Address, api: Api, message: Message) -> Message:
        return await self._ask(await self.connection(address), api, message)

    async def _ask(self, connection: _Connection, api: Api, message: Message) -> Message:
        return await connection.send(api, _VERSIONS[api], message)

    async def leader(self, partition: int) -> _Leader:
        """Return the leader of a partition. Raises ``BrokerUnavailableError`` without one."""
        await self.refresh()
        if partition not in self.leaders:
            self.is_stale = True
            raise BrokerUnavailableError(f"{self.part(partition)} has no leader")
        return self.leaders[partition]

    async def refresh(self) -> None:
        """Request metadata if it is stale or too old. Raises the error of the request."""
        is_old = self.loop.time() - self._read_at >= METADATA_MAX_AGE_S
        if not (self.is_stale or is_old):
            return
        if self._reading is None or self._reading.done():
            self._reading = self._begin(self._read_metadata())
        await asyncio.shield(self._reading)

    async def _read_metadata(self) -> None:
        wanted = _Metadata.root(
            topics=[_Metadata.MetadataRequestTopic(name=self.topic)],
            allow_auto_topic_creation=False,
        )
        found = await self.ask_any(apis.METADATA, wanted)
        (topic,) = found.topics
        brokers = {each.node_id: Address(each.host, each.port) for each in found.brokers}
        self._addresses = sorted({*self._addresses, *brokers.values()})
        if topic.error_code:
            raise CodeError(topic.error_code)
        if topic.topic_id != self.topic_id:
            self.topic_id = topic.topic_id
            self.leaders.clear()
        self.partitions = len(topic.partitions)
        for each in topic.partitions:
            if each.leader_id in brokers:
                self._learn(each.partition_index, brokers[each.leader_id], each.leader_epoch)
        self.is_stale, self._read_at = False, self.loop.time()

    async def list_offset(
        self, broker: Address, partition: int, at: TimestampMs, epoch: LeaderEpoch = NO_EPOCH
    ) -> Offset:
        """Return the offset at a time, or at ``EARLIEST`` or ``LATEST``; -1 if there is none."""
        part = _Offsets.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=epoch, timestamp=at
        )
        topic = _Offsets.ListOffsetsTopic(name=self.topic, partitions=[part])
        wanted = _Offsets.root(replica_id=-1, topics=[topic])
        answer = (await self.ask(broker, apis.LIST_OFFSETS, wanted)).topics[0].partitions[0]
        if answer.error_code:
            raise CodeError(answer.error_code)
        return cast("Offset", answer.offset)

    def hint(self, partition: int, part: Message, endpoints: Collection[Message]) -> None:
        """Use the leader in a response that refuses a request (KIP-951)."""
        for each in endpoints:
            if each.node_id == part.current_leader.leader_id:
                address = Address(each.host, each.port)
                self._learn(partition, address, part.current_leader.leader_epoch)

    def _learn(self, partition: int, leader: Address, epoch: int) -> None:
        known = self.leaders.get(partition)
        if known is None or epoch >= known.epoch:
            self.leaders[partition] = _Leader(leader, epoch)

    def close(self) -> None:
        """Close all connections, also those that are being created. Requests fail."""
        self._is_closed = True
        for known in self._connections.values():
            if known.done() and known.exception() is None:
                known.result().close()


# -- producer --------------------------------------------------------------------------------------


class _Record(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: Headers
    timestamp_ms: TimestampMs
    future: asyncio.Future[RecordMetadata]


@dataclass(slots=True)
class _Batch:
    records: list[_Record]
    data: bytes
    expires_at: float
    may_be_stored: bool = False  # by an attempt without a response, or with some errors


@dataclass(slots=True)
class _Stream:
    """The records of one partition. ``identity``: producer ID and epoch; None: needs a new ID."""

    partition: int
    queue: deque[_Record] = field(default_factory=deque)
    batches: list[_Batch] = field(default_factory=list)  # sealed, and without an outcome
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    identity: tuple[int, int] | None = None
    topic_id: bytes = b""
    next_sequence: int = 0


class KafkaProducer:
    """See ``AsyncProducer``."""

    def __init__(
        self,
        client: KafkaClient,
        *,
        acks: int,
        idempotent: bool,
        compression: str,
        linger_ms: int,
        delivery_timeout_ms: int,
    ) -> None:
        self._client = client
        self._acks = acks
        self._idempotent = idempotent
        self._codec = Codec.parse(compression)
        self._linger_s = linger_ms / 1_000
        self._delivery_s = delivery_timeout_ms / 1_000
        self._version = client.machine.random.choice((9, 13))  # by name, by topic ID
        self._streams: dict[int, _Stream] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._pending: dict[asyncio.Future[RecordMetadata], None] = {}

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers = (),
        *,
        partition: int,
    ) -> asyncio.Future[RecordMetadata]:
        assert topic == self._client.topic
        stream = self._streams.get(partition)
        if stream is None:
            stream = self._streams[partition] = _Stream(partition)
            task = self._client.loop.create_task(self._run(stream))
            task.add_done_callback(_check)
            self._tasks.append(task)
        future: asyncio.Future[RecordMetadata] = self._client.loop.create_future()
        self._pending[future] = None
        future.add_done_callback(self._pending.pop)
        now_ms = self._client.machine.clock.wall_ms()
        stream.queue.append(_Record(value, key, headers, now_ms, future))
        stream.wake.set()
        return future

    async def flush(self) -> None:
        if self._pending:
            await asyncio.wait(list(self._pending))

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - as AsyncProducer
        if self._pending:
            await asyncio.wait(list(self._pending), timeout=timeout)
        for task in self._tasks:
            task.cancel()
        self._client.close()
        for future in list(self._pending):
            if not future.done():
                future.set_exception(ClosedError("the producer was closed"))

    async def _run(self, stream: _Stream) -> None:
        """Send the records of a partition, until the task is cancelled."""
        while True:
            if not stream.queue and not stream.batches:
                stream.wake.clear()
                await stream.wake.wait()
                await asyncio.sleep(self._linger_s)
            try:
                await self._client.refresh()
                await self._identify(stream)
                self._seal(stream)
                is_good = await self._attempt(stream)
            except RaftlogError as error:  # before anything was sent
                self._client.is_stale = True
                self._resolve(stream, [(batch, error) for batch in stream.batches])
                is_good = False
            if not is_good:
                await asyncio.sleep(RETRY_S)

    async def _identify(self, stream: _Stream) -> None:
        """Get a producer ID, and start a new sequence in a new topic."""
        client = self._client
        if stream.topic_id != client.topic_id and not stream.batches:
            if stream.topic_id:
                self._raise_epoch(stream)
            stream.topic_id = client.topic_id
        if not self._idempotent or stream.identity is not None:
            return
        wanted = _InitProducerId.root(transactional_id=None, transaction_timeout_ms=60_000)
        found = await client.ask_any(apis.INIT_PRODUCER_ID, wanted)
        if found.error_code:
            raise CodeError(found.error_code)
        stream.identity, stream.next_sequence = (found.producer_id, found.producer_epoch), 0

    def _raise_epoch(self, stream: _Stream) -> None:
        """Start a new sequence, with a higher epoch (KIP-360) or with a new ID."""
        stream.next_sequence = 0
        if stream.identity is not None:
            producer_id, epoch = stream.identity
            is_new = epoch == EPOCH_MAX or self._client.machine.random.random() < 0.2
            stream.identity = None if is_new else (producer_id, epoch + 1)

    def _seal(self, stream: _Stream) -> None:
        """Create batches of queued records, which then keep their bytes."""
        while stream.queue and len(stream.batches) < BATCHES_IN_FLIGHT_MAX:
            count = min(BATCH_RECORDS_MAX, len(stream.queue))
            records = [stream.queue.popleft() for _ in range(count)]
            body = encode(
                [record.value for record in records],
                keys=[record.key for record in records],
                timestamps_ms=[record.timestamp_ms for record in records],
                headers=[record.headers for record in records],
                codec=self._codec,
            )
            producer_id, epoch = stream.identity or (-1, -1)
            sequence = stream.next_sequence if stream.identity else -1
            header = seal(
                body, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
            )
            stream.next_sequence = (stream.next_sequence + count) % SEQUENCES
            expires_at = self._client.loop.time() + self._delivery_s
            batch = b"".join(to_kafka(header + body.payload))
            stream.batches.append(_Batch(records, batch, expires_at))

    async def _attempt(self, stream: _Stream) -> bool:
        """Send all batches of a partition to its leader. Returns whether all are stored."""
        client = self._client
        leader = await client.leader(stream.partition)
        connection = await client.connection(leader.broker)
        sent = [
            connection.send(
                apis.PRODUCE,
                self._version,
                self._request(stream, batch),
                has_response=self._acks != 0,
            )
            for batch in stream.batches
        ]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        failures: list[tuple[_Batch, RaftlogError]] = []
        for batch, outcome in zip(stream.batches, outcomes, strict=True):
            error = self._outcome(stream, batch, outcome)
            if error is not None:
                failures.append((batch, error))
        stream.batches = [batch for batch, _ in failures]
        if failures:
            client.is_stale = True
            self._resolve(stream, failures)
        return not failures

    def _request(self, stream: _Stream, batch: _Batch) -> Message:
        part = _Produce.PartitionProduceData(index=stream.partition, records=[batch.data])
        topic = _Produce.TopicProduceData(
            name=self._client.topic, topic_id=stream.topic_id, partition_data=[part]
        )
        return _Produce.root(
            transactional_id=None, acks=self._acks, timeout_ms=TIMEOUT_MS, topic_data=[topic]
        )

    def _outcome(
        self, stream: _Stream, batch: _Batch, outcome: Message | BaseException
    ) -> RaftlogError | None:
        """Resolve the records of a stored batch, or return the error of the attempt."""
        if isinstance(outcome, RaftlogError):
            batch.may_be_stored = True
            return outcome
        assert not isinstance(outcome, BaseException), outcome
        base_offset, append_time_ms = -1, NO_TIMESTAMP
        if outcome is not None:
            part = outcome.responses[0].partition_responses[0]
            if part.error_code:
                self._client.hint(stream.partition, part, outcome.node_endpoints)
                is_refused = part.error_code == errors.NOT_ENOUGH_REPLICAS
                batch.may_be_stored |= not is_refused
                if is_refused and not batch.may_be_stored:
                    return NotEnoughReplicasError(part.error_message)
                return CodeError(part.error_code, part.error_message)
            base_offset, append_time_ms = part.base_offset, part.log_append_time_ms
        for index, record in enumerate(batch.records):
            offset = base_offset + index if base_offset >= 0 else -1
            time_ms = record.timestamp_ms if append_time_ms == NO_TIMESTAMP else append_time_ms
            record.future.set_result(
                RecordMetadata(*self._client.part(stream.partition), offset, time_ms)
            )
        return None

    def _resolve(self, stream: _Stream, failures: list[tuple[_Batch, RaftlogError]]) -> None:
        """Fail batches that must not be repeated, and then those after them."""
        now = self._client.loop.time()
        for index, (batch, error) in enumerate(failures):
            if not self._idempotent or not _may_repeat(error, is_first=not index):
                break
            if batch.expires_at <= now:
                break
        else:
            return
        for batch, error in failures:
            _fail(batch, error)
        stream.batches = []
        self._raise_epoch(stream)


def _check(task: asyncio.Task[None]) -> None:
    """Raise the error of a task, which ends the simulation."""
    if not task.cancelled():
        task.result()


def _may_repeat(error: RaftlogError, *, is_first: bool) -> bool:
    """Return whether an attempt with this error is repeated. The failure of a batch makes those
    after it out of order. They must not be those of an unknown producer, after which a producer of
    librdkafka fails permanently.
    """
    if not isinstance(error, CodeError):
        return True
    assert is_first or error.kafka_code != errors.UNKNOWN_PRODUCER_ID, error
    return error.is_retriable or (
        error.kafka_code == errors.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
    )


def _fail(batch: _Batch, error: RaftlogError) -> None:
    if batch.may_be_stored:
        error = OutcomeUnknownError(str(error))
    for record in batch.records:
        record.future.set_exception(error)


# -- consumer --------------------------------------------------------------------------------------


class KafkaConsumer:
    """See ``AsyncConsumer``. Its partitions are assigned, and it commits nothing.

    The error ``UnknownTopicError`` means that the topic was deleted. A consumer never continues in
    another topic of the same name.
    """

    def __init__(
        self,
        client: KafkaClient,
        *,
        auto_offset_reset: str,
        fetch_max_wait_ms: int = 100,
        max_partition_fetch_bytes: int = 1 << 20,
        may_be_recreated: bool = False,
    ) -> None:
        """``may_be_recreated``: whether the topic is deleted and created again in this run."""
        self._client = client
        self._reset_to = LATEST if auto_offset_reset == "latest" else EARLIEST
        self._wait_ms = fetch_max_wait_ms
        self._bytes_max = max_partition_fetch_bytes
        self._version = client.machine.random.choice((16, 18))  # by topic ID
        self._topic_id = b""
        self._positions: dict[int, Offset | None] = {}  # None: to be looked up
        self._last_epochs: dict[int, LeaderEpoch] = {}  # of the last batch received
        self._validated: dict[int, LeaderEpoch] = {}  # leader epochs that have these records
        self._may_be_recreated = may_be_recreated
        self._records: deque[ConsumerRecord] = deque()
        self._failures = 0

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partition.partition for partition in partitions)

    async def seek(self, partition: TopicPartition, offset: Offset) -> None:
        assert not self._records
        self._positions[partition.partition] = offset

    async def position(self, partition: TopicPartition) -> Offset:
        """Return the offset after the last record that ``poll`` has returned, or will return."""
        found = self._positions[partition.partition]
        waiting = (each.offset for each in self._records if each.partition == partition.partition)
        return next(waiting, -1 if found is None else found)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        return await self._offsets(partitions, EARLIEST)

    async def end_offsets(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        return await self._offsets(partitions, LATEST)

    async def _offsets(
        self, partitions: Collection[TopicPartition], at: int
    ) -> dict[TopicPartition, Offset]:
        return {each: await self._offset(each.partition, at) for each in partitions}

    async def _offset(self, partition: int, at: int) -> Offset:
        leader = await self._client.leader(partition)
        self._check_topic()
        return await self._client.list_offset(leader.broker, partition, at, leader.epoch)

    async def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        if not self._records:
            self._wait_ms = min(self._wait_ms, timeout_ms)
            try:
                await self._fetch()
                self._failures = 0
            except RaftlogError as error:
                self._client.is_stale = True
                self._failures += 1
                if not _may_pass(error) or self._failures >= FETCH_FAILURES_MAX:
                    raise
                await asyncio.sleep(RETRY_S)
        count = min(max_records, len(self._records))
        return [self._records.popleft() for _ in range(count)]

    async def _fetch(self) -> None:
        """Fetch once from all leaders. Raises the first error, after the other responses."""
        wanted: dict[Address, list[tuple[int, Message]]] = {}
        for partition, position in self._positions.items():
            leader = await self._client.leader(partition)
            self._check_topic()
            if position is None:
                self._positions[partition] = await self._offset(partition, self._reset_to)
            else:
                await self._validate(partition, position, leader)
            part = _Fetch.FetchPartition(
                partition=partition,
                current_leader_epoch=leader.epoch,
                fetch_offset=self._positions[partition],
                partition_max_bytes=self._bytes_max,
            )
            wanted.setdefault(leader.broker, []).append((partition, part))
        outcomes = await asyncio.gather(
            *(self._fetch_from(*each) for each in wanted.items()), return_exceptions=True
        )
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _validate(self, partition: int, position: Offset, leader: _Leader) -> None:
        """Check that a new leader has the records before the position (KIP-320). They were
        committed, so that no leader of the topic lacks them.
        """
        client, last = self._client, self._last_epochs.get(partition)
        if last is None or self._validated.get(partition) == leader.epoch:
            return
        part = _Epochs.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader.epoch, leader_epoch=last
        )
        topic = _Epochs.OffsetForLeaderTopic(topic=client.topic, partitions=[part])
        wanted = _Epochs.root(replica_id=-1, topics=[topic])
        found = await client.ask(leader.broker, apis.OFFSET_FOR_LEADER_EPOCH, wanted)
        answer = found.topics[0].partitions[0]
        if answer.error_code:
            raise CodeError(answer.error_code)
        is_truncated = 0 <= answer.end_offset < position
        if is_truncated and self._may_be_recreated:
            raise UnknownTopicError(f"{client.topic} was deleted and created again")
        assert not is_truncated, f"{client.part(partition)}: {position}, {leader}: {answer}"
        self._validated[partition] = leader.epoch

    async def _fetch_from(self, leader: Address, parts: list[tuple[int, Message]]) -> None:
        client = self._client
        topic = _Fetch.FetchTopic(
            topic=client.topic, topic_id=self._topic_id, partitions=[part for _, part in parts]
        )
        message = _Fetch.root(
            max_wait_ms=self._wait_ms, min_bytes=1, topics=[topic], session_epoch=-1
        )
        connection = await client.connection(leader)
        found = await connection.send(apis.FETCH, self._version, message)
        if found.error_code:
            raise CodeError(found.error_code)
        failed: CodeError | None = None
        for part in found.responses[0].partitions:
            partition = part.partition_index
            if part.error_code == errors.OFFSET_OUT_OF_RANGE:
                self._positions[partition] = None
                self._last_epochs.pop(partition, None)
            elif part.error_code:
                client.hint(partition, part, found.node_endpoints)
                failed = CodeError(part.error_code)
            else:
                position = self._positions[partition]
                assert position is not None
                self._positions[partition] = self._take(partition, position, part.records)
        if failed is not None:
            raise failed

    def _take(self, partition: int, position: Offset, data: memoryview) -> Offset:
        """Queue the records of a response. Returns the offset after the last complete batch."""
        for next_offset, epoch, records in batches_of(self._client.part(partition), data):
            self._records += [record for record in records if record.offset >= position]
            self._last_epochs[partition] = epoch
            position = max(position, next_offset)
        return position

    def _check_topic(self) -> None:
        self._topic_id = self._topic_id or self._client.topic_id
        if self._topic_id != self._client.topic_id:
            raise UnknownTopicError(f"{self._client.topic} was deleted and created again")

    async def close(self) -> None:
        self._client.close()


class KafkaAsker:
    """Requests the offsets of partitions from one broker, whether it leads them or not."""

    def __init__(self, client: KafkaClient, broker: Address) -> None:
        self._client = client
        self._broker = broker

    async def list_offsets(
        self, queries: Mapping[TopicPartition, At]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """See ``AsyncAdmin.list_offsets``. Does not retry."""
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for partition, at in queries.items():
            place = at if isinstance(at, int) else {"latest": LATEST, "earliest": EARLIEST}[at]
            offset = await self._client.list_offset(self._broker, partition.partition, place)
            found[partition] = OffsetAndTimestamp(offset, NO_TIMESTAMP) if offset >= 0 else None
        return found

    async def close(self) -> None:
        self._client.close()


def _may_pass(error: RaftlogError) -> bool:
    """Return whether a consumer tries again after this error."""
    if isinstance(error, CodeError):
        return error.is_retriable
    return not isinstance(error, UnknownTopicError | InvalidRequestError)


# -- kafka member ----------------------------------------------------------------------------------
#
# Simulated members of a classic consumer group: they join, get partitions, and commit offsets.
#
# All partitions are released before each rebalance, and assigned in turn. A member owns its
# partitions until its session can have ended: for the session timeout after it sent the last
# request to the coordinator that succeeded.


REBALANCE_TIMEOUT_MS: Final = 3_000
HEARTBEATS_PER_SESSION: Final = 4
PROTOCOL: Final = "roundrobin"

# A member that gets one of these must look for the coordinator again.
OF_COORDINATOR: Final = (
    errors.COORDINATOR_LOAD_IN_PROGRESS,
    errors.COORDINATOR_NOT_AVAILABLE,
    errors.NOT_COORDINATOR,
)
# The coordinator has removed the member, or started a generation without it.
EXPELLED: Final = (errors.ILLEGAL_GENERATION, errors.UNKNOWN_MEMBER_ID)

_Join = codec.structs("request", apis.JOIN_GROUP.key)
_Sync = codec.structs("request", apis.SYNC_GROUP.key)
_FetchOffsets = codec.structs("request", apis.OFFSET_FETCH.key)
_CommitOffsets = codec.structs("request", apis.OFFSET_COMMIT.key)
_Heartbeat = codec.structs("request", apis.HEARTBEAT.key)
_Leave = codec.structs("request", apis.LEAVE_GROUP.key)
_FindCoordinator = codec.structs("request", apis.FIND_COORDINATOR.key)

OnAssign: TypeAlias = Callable[[Collection[TopicPartition]], None]
OnRevoke: TypeAlias = Callable[[Collection[TopicPartition]], Awaitable[None]]


class KafkaMember(KafkaConsumer):
    """See ``AsyncConsumer`` with a group. Callbacks run within ``poll`` and ``close``."""

    def __init__(
        self,
        client: KafkaClient,
        coordination: KafkaClient,
        *,
        group: str,
        instance_id: str | None,
        session_timeout_ms: int,
        **settings: Any,
    ) -> None:
        """``coordination``: another client, for requests to the coordinator. ``settings``: of the
        consumer.
        """
        super().__init__(client, auto_offset_reset="earliest", **settings)
        self._to_group = coordination
        self._group = group
        self._instance_id = instance_id
        self._session_ms = session_timeout_ms
        self._coordinator: Address | None = None
        self._member_id = ""
        self._generation = -1
        self._lease_ends = -1.0
        self._must_join = True
        self._is_expelled = False
        self._heart: asyncio.Task[None] | None = None
        self._topics: list[str] = []
        self._on_assign: OnAssign
        self._on_revoke: OnRevoke
        self._on_lost: OnAssign

    async def subscribe(
        self,
        topics: list[str],
        *,
        on_assign: OnAssign,
        on_revoke: OnRevoke,
        on_lost: OnAssign,
    ) -> None:
        self._topics = topics
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost

    @property
    def topic_id(self) -> str:
        """ID of the topic of the assigned partitions."""
        return self._topic_id.hex()

    async def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        self._check_lease()
        if self._must_join:
            await self._release()
            await self._join()
            return []
        if not self._positions:
            await asyncio.sleep(timeout_ms / 1_000)
        records = await super().poll(timeout_ms, max_records)
        self._check_lease()
        return records if self._owned else []

    @property
    def _owned(self) -> list[TopicPartition]:
        return [self._client.part(number) for number in self._positions]

    def _check_lease(self) -> None:
        """Lose all partitions if another member may have them."""
        if not (self._is_expelled or self._client.loop.time() >= self._lease_ends):
            return
        self._stop_heart()
        lost = self._owned
        self._forget()
        self._must_join = True
        if lost:
            self._on_lost(lost)

    def _forget(self) -> None:
        for known in (self._positions, self._records, self._last_epochs, self._validated):
            known.clear()

    async def _release(self) -> None:
        """Release all partitions, before a rebalance or the end."""
        if self._positions:
            await self._on_revoke(self._owned)
            self._forget()
        self._stop_heart()

    # -- requests to the coordinator

    async def _ask(self, api: Api, version: int, message: Message, wait_s: float = 0.0) -> Message:
        """Send a request to the coordinator. ``wait_s``: time for which it may wait for members."""
        try:
            if self._coordinator is None:
                self._coordinator = await self._find_coordinator()
            connection = await self._to_group.connection(self._coordinator)
            return await connection.send(
                api, version, message, timeout_s=REQUEST_TIMEOUT_S + wait_s
            )
        except RaftlogError:
            self._coordinator = None
            raise

    async def _find_coordinator(self) -> Address:
        wanted = _FindCoordinator.root(key=self._group)
        found = await self._to_group.ask_any(apis.FIND_COORDINATOR, wanted)
        if found.error_code:
            raise CodeError(found.error_code)
        return Address(found.host, found.port)

    def _check(self, code: int) -> None:
        """Raise the error of a response, and note what it means for the member."""
        if code in OF_COORDINATOR:
            self._coordinator = None
        elif code in EXPELLED:
            self._is_expelled = True
            if code == errors.UNKNOWN_MEMBER_ID:
                self._member_id = ""
        elif code == errors.FENCED_INSTANCE_ID:
            self._is_expelled = True
            raise InstanceFencedError(f"another member is {self._instance_id}")
        elif code == errors.REBALANCE_IN_PROGRESS:
            self._must_join = True
        elif code == errors.UNKNOWN_TOPIC_ID:
            self._client.is_stale = True
        if code:
            raise CodeError(code)

    # -- joining

    async def _join(self) -> None:
        """Try to join once, and get partitions. Waits after a failure."""
        loop = self._client.loop
        try:
            await self._client.refresh()
            self._topic_id = self._client.topic_id
            joined = await self._ask_to_join()
            sent_at = loop.time()
            numbers = await self._sync(joined)
            positions = await self._committed(numbers)
        except InstanceFencedError:
            raise
        except RaftlogError:
            await asyncio.sleep(RETRY_S)
            return
        self._generation = joined.generation_id
        self._must_join = self._is_expelled = False
        self._lease_ends = sent_at + self._session_ms / 1_000
        if loop.time() >= self._lease_ends:
            return  # the next poll joins again
        self._heart = loop.create_task(self._beat())
        self._positions = positions
        self._on_assign(self._owned)

    async def _ask_to_join(self) -> Message:
        protocol = _Join.JoinGroupRequestProtocol(
            name=PROTOCOL,
            metadata=subscription(*self._topics),
        )
        wanted = _Join.root(
            group_id=self._group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await self._ask(apis.JOIN_GROUP, 9, wanted, REBALANCE_TIMEOUT_MS / 1_000)
        if joined.error_code == errors.MEMBER_ID_REQUIRED:
            wanted.member_id = joined.member_id
            joined = await self._ask(apis.JOIN_GROUP, 9, wanted, REBALANCE_TIMEOUT_MS / 1_000)
        self._check(joined.error_code)
        self._member_id = joined.member_id
        return joined

    async def _sync(self, joined: Message) -> Sequence[int]:
        """Return the partitions of this member. The leader assigns them to all members first."""
        names = sorted(member.member_id for member in joined.members)
        is_leader = joined.leader == self._member_id and not joined.skip_assignment
        given = [
            _Sync.SyncGroupRequestAssignment(
                member_id=name,
                assignment=assignment(
                    self._client.topic, *range(place, self._client.partitions, len(names))
                ),
            )
            for place, name in enumerate(names if is_leader else ())
        ]
        wanted = _Sync.root(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=given,
        )
        synced = await self._ask(apis.SYNC_GROUP, 5, wanted, REBALANCE_TIMEOUT_MS / 1_000)
        self._check(synced.error_code)
        mine = assigned_partitions(synced.assignment)
        assert mine is not None, synced.assignment
        return mine.get(self._client.topic, ())

    async def _committed(self, numbers: Sequence[int]) -> dict[int, Offset | None]:
        """Return the committed offset of each partition; None if there is none."""
        if not numbers:
            return {}
        topic = _FetchOffsets.OffsetFetchRequestTopics(
            topic_id=self._topic_id,
            partition_indexes=list(numbers),
        )
        group = _FetchOffsets.OffsetFetchRequestGroup(group_id=self._group, topics=[topic])
        asked = _FetchOffsets.root(groups=[group])
        (found,) = (await self._ask(apis.OFFSET_FETCH, 10, asked)).groups
        self._check(found.error_code)
        positions: dict[int, Offset | None] = {}
        for part in found.topics[0].partitions:
            self._check(part.error_code)
            known = part.committed_offset
            positions[part.partition_index] = known if known >= 0 else None
        return positions

    # -- membership

    async def _beat(self) -> None:
        """Send heartbeats until the task is cancelled. ``poll`` acts on what they find."""
        loop, generation = self._client.loop, self._generation
        while True:
            await asyncio.sleep(self._session_ms / 1_000 / HEARTBEATS_PER_SESSION)
            wanted = _Heartbeat.root(
                group_id=self._group,
                generation_id=generation,
                member_id=self._member_id,
                group_instance_id=self._instance_id,
            )
            sent_at = loop.time()
            try:
                found = await self._ask(apis.HEARTBEAT, 4, wanted)
                if found.error_code in (errors.NONE, errors.REBALANCE_IN_PROGRESS):
                    self._lease_ends = sent_at + self._session_ms / 1_000
                self._check(found.error_code)
            except RaftlogError:
                if self._is_expelled:
                    return

    def _stop_heart(self) -> None:
        if self._heart is not None:
            self._heart.cancel()
            self._heart = None

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_ms: int = 0,  # noqa: ARG002
    ) -> None:
        """Commit once. ``timeout_ms`` is ignored: a request has its own timeout."""
        parts = [
            _CommitOffsets.OffsetCommitRequestPartition(
                partition_index=partition.partition,
                committed_offset=given.offset,
                committed_metadata="",
            )
            for partition, given in offsets.items()
        ]
        topic = _CommitOffsets.OffsetCommitRequestTopic(
            topic_id=self._topic_id,
            partitions=parts,
        )
        wanted = _CommitOffsets.root(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            group_instance_id=self._instance_id,
            topics=[topic],
        )
        found = await self._ask(apis.OFFSET_COMMIT, 10, wanted)
        for part in found.topics[0].partitions:
            self._check(part.error_code)

    def commit_async(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> asyncio.Task[None]:
        return self._client.loop.create_task(self.commit(offsets))

    async def close(self, timeout_ms: int = 0) -> None:  # noqa: ARG002 - a request has a timeout
        """Release all partitions, and leave the group, unless the membership is static."""
        self._check_lease()
        await self._release()
        if self._member_id and self._instance_id is None and not self._is_expelled:
            member = _Leave.MemberIdentity(member_id=self._member_id)
            wanted = _Leave.root(group_id=self._group, members=[member])
            with suppress(RaftlogError):
                await self._ask(apis.LEAVE_GROUP, 5, wanted)
        self._to_group.close()
        await super().close()
