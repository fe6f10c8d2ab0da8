"""Common parts of all workloads: the context of the run, clients, and topics.

Clients are coroutines on one event loop. Each client has a separate random generator, seeded with
the run's seed and the client's name, so that its draws do not depend on other clients.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final, Protocol, TypeAlias, TypeVar

from raftlog.aio import AsyncAdmin, AsyncConsumer
from raftlog.errors import InvalidRequestError, RaftlogError, TopicExistsError
from raftlog.testing.history import Admin, Note, Recorder
from raftlog.types import NewTopic, TopicPartition
from raftlog_jepsen.client import AnyConsumer, Clients, Source, describe
from raftlog_jepsen.members import Members
from raftlog_jepsen.plan import RunPlan, TopicShape, WorkloadName

PATIENCE_S: Final = 0.2  # after an error, before the next attempt; seconds
PREPARE_TIMEOUT_S: Final = 60.0
REQUEST_TIMEOUT_MS: Final = 5_000
METADATA_MAX_AGE_MS: Final = 3_000
CLOSE_TIMEOUT_S: Final = 10.0
TRACE_LINES: Final = 6

Client: TypeAlias = Callable[[], Awaitable[None]]
T = TypeVar("T", bound=AnyConsumer)


@dataclass
class WorkloadContext:
    """One run as its clients see it.

    ``brokers``: addresses by id, for clients that bootstrap from one broker. ``bootstrap``: all
    addresses. ``stopping``: set when the load must end. ``targets``: partitions that are currently
    written and read; can grow. ``keys``: number of keys per partition, of topics with keys.
    ``members``: the processes of consumer groups; None without members.
    """

    plan: RunPlan
    bootstrap: str
    brokers: Mapping[int, str]
    recorder: Recorder
    random: Random
    stopping: asyncio.Event
    members: Members | None = None
    clients: Clients = field(init=False)
    targets: list[TopicPartition] = field(init=False)
    keys: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.clients = Clients(self.recorder)
        self.keys = {topic.name: topic.keys for topic in self.plan.shape.topics if topic.keys}
        self.targets = [
            TopicPartition(topic.name, number)
            for topic in self.plan.shape.topics
            for number in range(topic.partitions)
        ]

    def fork(self, name: str) -> Random:
        """Return the random generator of the client ``name``."""
        return Random(f"{self.plan.seed}/{name}")

    def entrance(self, random: Random, *, pinned: bool) -> str:
        """Return the bootstrap servers of a client: one broker if it is ``pinned``, else all."""
        return random.choice(sorted(self.brokers.values())) if pinned else self.bootstrap

    async def sleep(self, seconds: float) -> None:
        """Wait for this time, or until the load must end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.stopping.wait()

    def note(self, text: str, *, is_trouble: bool = False) -> None:
        self.recorder.record(
            Note(time=0, process="clients", type="info", text=text, is_trouble=is_trouble)
        )


class Workload(Protocol):
    """The operations of clients in a run. ``drains``: it has a phase after healing."""

    @property
    def name(self) -> WorkloadName: ...

    @property
    def drains(self) -> bool: ...

    async def prepare(self, context: WorkloadContext) -> None:
        """Create the topics. Raises ``TimeoutError`` after recording a note."""
        ...

    async def run(self, context: WorkloadContext) -> None:
        """Run until ``context.stopping`` is set. Ends within a minute after that, also if no broker
        responds. Raises ``ExceptionGroup`` with the clients' exceptions that are not errors of
        raftlog."""
        ...

    async def drain(self, context: WorkloadContext) -> bool:
        """Wait for lagging clients, for a limited time. Called after all faults were healed.

        Returns whether all clients caught up.
        """
        ...


class LoadOnly:
    """A workload without a phase after the load."""

    drains: bool = False

    async def drain(self, _context: WorkloadContext) -> bool:
        """Return True: no client lags."""
        return True


async def run_all(context: WorkloadContext, clients: Mapping[str, Client]) -> None:
    """Run clients, by name, until all have ended. An exception of one does not end the others.

    Records each exception as a note immediately, and raises ``ExceptionGroup`` of all.
    """
    tasks = [asyncio.create_task(_guarded(context, name, main)) for name, main in clients.items()]
    try:
        raised = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    failures = [error for error in raised if error is not None]
    if failures:
        raise ExceptionGroup("clients failed", failures)


async def _guarded(context: WorkloadContext, name: str, main: Client) -> Exception | None:
    try:
        await main()
    except Exception as error:  # noqa: BLE001 - any bug makes the verdict unknown
        trace = "".join(traceback.format_exception(error)).strip().splitlines()
        context.note(f"{name} failed: " + "\n".join(trace[-TRACE_LINES:]), is_trouble=True)
        return error
    return None


# -- topics ----------------------------------------------------------------------------------------


async def create_topics(context: WorkloadContext, topics: Iterable[TopicShape]) -> None:
    """Create each topic, with retries for a minute: the cluster may still be starting.

    Raises ``TimeoutError`` with the missing topic and the reason, and ``InvalidRequestError`` for
    one that holds records: those of an earlier run would count as duplicates and phantoms.
    """
    problem = ""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PREPARE_TIMEOUT_S
    async with AsyncAdmin(context.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin:
        for topic in topics:
            while problem := await create_topic(context, admin, "setup", topic, may_exist=True):
                if loop.time() > deadline:
                    text = f"no topic {topic.name} after {PREPARE_TIMEOUT_S:g} s: {problem}"
                    context.note(text, is_trouble=True)
                    raise TimeoutError(text)
                await asyncio.sleep(PATIENCE_S)
            ends = await admin.offsets(topic.name)
            if any(ends.values()):
                text = (
                    f"topic {topic.name} holds records of an earlier run, which would spoil the "
                    f"verdict. Delete it first (raftlog topic delete {topic.name})"
                )
                context.note(text, is_trouble=True)
                raise InvalidRequestError(text)


async def create_topic(
    context: WorkloadContext,
    admin: AsyncAdmin,
    process: str,
    topic: TopicShape,
    *,
    may_exist: bool = False,
) -> str:
    """Create a topic and record it. Returns an empty text if it exists, else why it may not exist.

    ``may_exist``: accept an existing topic, because an attempt with a lost response may have
    created it.
    """
    config = {"min.insync.replicas": str(topic.min_isr), **dict(topic.config)}
    wanted = NewTopic(topic.name, topic.partitions, topic.replication_factor, config)
    args = {"partitions": topic.partitions, "replication_factor": topic.replication_factor}

    async def create() -> None:
        with suppress(*((TopicExistsError,) if may_exist else ())):
            await admin.create_topics([wanted])

    return await administrate(
        context, process, "create", topic.name, args | {"config": config}, create
    )


async def administrate(
    context: WorkloadContext,
    process: str,
    what: str,
    topic: str,
    args: dict[str, object],
    act: Callable[[], Awaitable[object]],
) -> str:
    """Make one change and record it. Returns an empty text on success, else why the outcome is
    unknown."""
    record = context.recorder.record
    record(Admin(time=0, process=process, type="invoke", what=what, topic=topic, args=args))
    done = Admin(time=0, process=process, type="ok", what=what, topic=topic, args=args)
    try:
        await act()
    except RaftlogError as error:
        # Any error can be caused by the effect of an earlier attempt, so the outcome is unknown.
        done.type, done.error = "info", describe(error)
    record(done)
    return done.error


async def existing_partitions(
    context: WorkloadContext, topics: Sequence[str] | None = None, *, timeout_s: float = 60.0
) -> list[TopicPartition]:
    """Return all partitions, or those of ``topics``, without internal topics.

    Retries until a broker responds. Raises ``TimeoutError``.
    """
    problem = ""
    try:
        async with (
            asyncio.timeout(timeout_s),
            AsyncAdmin(context.bootstrap, request_timeout_ms=REQUEST_TIMEOUT_MS) as admin,
        ):
            while True:
                try:
                    found = await admin.describe_topics(topics)
                except RaftlogError as error:
                    problem = describe(error)
                    await asyncio.sleep(PATIENCE_S)
                else:
                    return [
                        TopicPartition(topic.name, part.partition)
                        for topic in found
                        if not is_internal(topic.name)
                        for part in topic.partitions
                    ]
    except TimeoutError:
        raise TimeoutError(f"no list of topics after {timeout_s:g} s: {problem}") from None


def is_internal(topic: str) -> bool:
    """Return whether brokers store internal state in the topic: no client writes there."""
    return topic.startswith("__")


# -- readers ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _closing(consumer: T) -> AsyncIterator[T]:
    try:
        yield consumer
    finally:
        await consumer.close()


def consumer_of(
    bootstrap: str, *, source: Source = "leader", wait_ms: int = 500, fetch_bytes_max: int = 1 << 20
) -> AbstractAsyncContextManager[AsyncConsumer]:
    """Return a consumer that raises if its position is out of range, instead of resetting it."""
    return _closing(
        AsyncConsumer(
            bootstrap,
            auto_offset_reset="error",
            read_from=source,
            fetch_max_wait_ms=wait_ms,
            max_partition_fetch_bytes=fetch_bytes_max,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
    )


def reader_of(
    context: WorkloadContext,
    bootstrap: str,
    *,
    source: Source = "leader",
    wait_ms: int = 500,
    fetch_bytes_max: int = 1 << 20,
) -> AbstractAsyncContextManager[AnyConsumer]:
    """Return a consumer like ``consumer_of``, of the client implementation under test."""
    if context.plan.client == "raftlog":
        return consumer_of(
            bootstrap, source=source, wait_ms=wait_ms, fetch_bytes_max=fetch_bytes_max
        )
    from raftlog_jepsen.kafka_clients import KafkaConsumer

    return _closing(
        KafkaConsumer(
            bootstrap,
            wait_ms=wait_ms,
            fetch_bytes_max=fetch_bytes_max,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
    )


def group_consumer_of(
    context: WorkloadContext, bootstrap: str, group: str
) -> AbstractAsyncContextManager[AnyConsumer]:
    """Return a consumer that commits and fetches offsets of a group only when it is called."""
    if context.plan.client == "kafka":
        from raftlog_jepsen.kafka_clients import KafkaConsumer

        return _closing(
            KafkaConsumer(
                bootstrap,
                group=group,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                metadata_max_age_ms=METADATA_MAX_AGE_MS,
            )
        )
    return _closing(
        AsyncConsumer(
            bootstrap,
            group=group,
            auto_offset_reset="earliest",
            auto_commit=False,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
    )
