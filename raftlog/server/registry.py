"""Schema registry of a broker: the state in ``__schemas`` while it leads it, else the way there.

``raftlog.registry`` decides. The leader of the topic's one partition is the only writer: it makes
one decision at a time in a thread, appends its records, applies them, and answers once they are
committed. A read is answered once all that it shows is committed, and no other broker can have led
when it arrived. So an answer is never taken back, and an ID is never given twice: the next leader
has all records of this one before it decides anything.

Any broker accepts calls. It forwards them to the leader, and repeats those that may be repeated
while leaders change.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from raftlog import __version__, limits
from raftlog.config.topic import TopicConfig
from raftlog.errors import (
    CommitUnknownError,
    LeaderNotAvailableError,
    NotCoordinatorError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RecordSchemaError,
    RequestTimedOutError,
    RetriableError,
    SchemaError,
    ThrottledError,
    UnsupportedFeatureError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import SchemaRegistryRequest, SchemaRegistryResponse
from raftlog.record import parse_header
from raftlog.registry import rest
from raftlog.registry.formats import subject_of, type_names
from raftlog.registry.rest import Answer, Call
from raftlog.registry.state import Registry
from raftlog.registry.values import KEY, VALUE, Decode, SchemaKey, decoder_of, ids_of, rows_of
from raftlog.server.groups.coordinator import TopicMaker
from raftlog.server.log_shard import PendingResponses, batches_of, load
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge, Rounds, Workers
from raftlog.types import SCHEMAS_TOPIC, Buffer, Offset

if TYPE_CHECKING:
    from raftlog.server.context import BrokerContext

T = TypeVar("T")

logger = logging.getLogger(__name__)

CALL_SECONDS: Final = 8.0  # of a call with all its repetitions, less than HTTP_CONNECTION_S
REPEAT_SECONDS: Final = 6.0  # since the call, after which a failure is answered
PAUSE_SECONDS: Final = 0.1  # before a repetition


class SchemaRegistry:
    """Exists as long as the broker, on its event loop. Call ``poll`` when leaders change."""

    def __init__(
        self,
        context: BrokerContext,
        maker: TopicMaker,
        workers: Workers,
        *,
        confirm: Callable[[Partition, Acknowledge], None],
        on_unreadable: Callable[[Partition, Offset], None],
    ) -> None:
        """``workers``: for decisions, which may take long."""
        self._context = context
        self._maker = maker
        self._workers = workers
        self._confirm = confirm
        self._on_unreadable = on_unreadable
        self._active: ActiveRegistry | None = None
        self._calls = 0
        self.checks = RecordChecks(self, context.loop)

    def poll(self) -> None:
        """Forget the state, which may be large, if another broker leads now."""
        if self._active is not None and self._active.is_over:
            self._active.close()
            self._active = None

    def close(self) -> None:
        """Decide nothing more."""
        if self._active is not None:
            self._active.close()

    async def call(self, call: Call) -> Answer:
        """Return the answer to a call. Raises no ``RaftlogError``: an error is an answer."""
        try:
            return await self._bounded(self._repeat, call)
        except RaftlogError as error:
            return rest.failed(error)

    async def ask_leader(self, call: Call) -> Answer:
        """Return the answer of this broker, which must lead, to a call that another one forwards
        and repeats. Raises ``NotLeaderError``, or the errors of ``ActiveRegistry.call``.
        """
        return await self._bounded(lambda call: self._lead().call(call), call)

    async def _bounded(self, work: Callable[[Call], Awaitable[Answer]], call: Call) -> Answer:
        if self._calls >= limits.SCHEMA_CALLS_WAITING_MAX:
            raise ThrottledError(
                f"{self._calls} calls of the schema registry are in progress, and "
                "SCHEMA_CALLS_WAITING_MAX is reached. Try again later"
            )
        self._calls += 1
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await work(call)
        except TimeoutError:
            raise RequestTimedOutError(
                f"{SCHEMAS_TOPIC}:0 has not answered within {CALL_SECONDS:g} s. Check its "
                "replicas with `raftlog cluster status`"
            ) from None
        finally:
            self._calls -= 1

    async def _repeat(self, call: Call) -> Answer:
        """Repeat a call while leaders change. A registration that has happened is found by its
        repetition; a deletion is not.
        """
        give_up_at = self._context.loop.time() + REPEAT_SECONDS
        while True:
            try:
                await self._made()
                return await self._once(call)
            except (RetriableError, OutcomeUnknownError) as error:
                is_done = isinstance(error, OutcomeUnknownError) and call.method == "DELETE"
                if is_done or self._context.is_stopping or self._context.loop.time() > give_up_at:
                    raise
                logger.debug("schema registry call repeated: error=%s", error)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _once(self, call: Call) -> Answer:
        context = self._context
        topic = context.topics.topic(SCHEMAS_TOPIC)
        leader = context.topics.info(topic, 0).leader
        if leader is None:
            raise LeaderNotAvailableError(f"{SCHEMAS_TOPIC}:0 has no leader")
        if leader == context.broker_id:
            return await self._lead().call(call)
        request = SchemaRegistryRequest(
            method=call.method,
            path=call.path,
            query=dict(call.query),
            accepts_unknown=call.accepts_unknown,
        )
        links = context.cluster.links
        answer = await links.request(leader, apis.SCHEMA_REGISTRY, request, [call.body])
        assert isinstance(answer.message, SchemaRegistryResponse)
        return Answer(answer.message.status, bytes(answer.attachment))

    async def _made(self) -> None:
        if SCHEMAS_TOPIC in self._context.topics:
            return
        made: asyncio.Future[None] = self._context.loop.create_future()

        def done(error: RaftlogError | None) -> None:
            if made.done():
                return
            if error is None:
                made.set_result(None)
            else:
                made.set_exception(error)

        self._maker.when_made(done)
        await made

    def _lead(self) -> ActiveRegistry:
        """Return the state. Raises ``NotLeaderError`` if another broker leads."""
        self.poll()
        if self._active is None:
            topic = self._context.topics.get(SCHEMAS_TOPIC)
            host = None if topic is None else topic.hosts[0]
            if host is None or host.leadership is None or host.closed is not None:
                raise NotLeaderError(f"this broker does not lead {SCHEMAS_TOPIC}:0")
            self._active = ActiveRegistry(
                host,
                self._context.loop,
                self._workers,
                confirm=self._confirm,
                on_unreadable=self._on_unreadable,
                wall_ms=self._context.clock.wall_ms,
                cluster_id=self._context.operations.cluster_id,
            )
        return self._active


class ActiveRegistry:
    """The state, from the first call of a time in which this broker leads the partition, to its
    end.

    Invariant: all decisions of ``_registry`` are in the log below ``_end``, or it is None.
    """

    def __init__(
        self,
        host: Partition,
        loop: asyncio.AbstractEventLoop,
        workers: Workers,
        *,
        confirm: Callable[[Partition, Acknowledge], None],
        on_unreadable: Callable[[Partition, Offset], None],
        wall_ms: Callable[[], int],
        cluster_id: str,
    ) -> None:
        self._host = host
        self._epoch = host.leader_epoch
        self._loop = loop
        self._workers = workers
        self._on_unreadable = on_unreadable
        self._wall_ms = wall_ms
        self._cluster_id = cluster_id
        self._registry: Registry | None = None  # None: not loaded, or to be loaded again
        self._end: Offset = 0
        self._turn = asyncio.Lock()  # of loads, decisions and slow reads
        self._confirmations = Rounds(partial(confirm, host))
        self._answers = PendingResponses(host, self._confirmations, loop, what="schema registry")
        self._is_closed = False

    @property
    def is_over(self) -> bool:
        """Whether this broker is no longer the leader, or leads in another epoch."""
        host = self._host
        return (
            self._is_closed
            or host.closed is not None
            or host.leadership is None
            or host.leader_epoch != self._epoch
        )

    def close(self) -> None:
        self._is_closed = True
        self._registry = None

    async def call(self, call: Call) -> Answer:
        """Return the answer, once it is true of the committed log.

        Raises ``NotLeaderError``, ``NotEnoughReplicasError``, ``CommitUnknownError``, errors of the
        disk.
        """
        mark = self._confirmations.mark
        registry = self._registry
        if registry is not None and rest.is_quick(call):
            self._check_leads()
            answer, end = self._answer(registry, call), self._end
        else:
            async with self._turn:
                answer = await self._decide(call)
                end = self._end
        is_written = bool(answer.records)
        await self._committed(end, None if is_written else mark, is_written=is_written)
        return answer

    def _answer(self, registry: Registry, call: Call) -> Answer:
        return rest.answer(registry, call, version=__version__, cluster_id=self._cluster_id)

    async def _decide(self, call: Call) -> Answer:
        self._check_leads()
        registry = self._registry or await self._load()
        if rest.is_write(call):
            self._host.check_committable()
        answer = await self._workers.run(partial(self._answer, registry, call))
        self._check_leads()
        if answer.records:
            self._append(registry, answer)
        return answer

    def _append(self, registry: Registry, answer: Answer) -> None:
        host, is_begun = self._host, False
        batches = batches_of(
            answer.records, now_ms=self._wall_ms(), bytes_max=host.log.config.max_message_bytes
        )
        try:
            for batch in batches:
                self._end = host.append(batch, parse_header(batch)).last_offset + 1
                is_begun = True
        except RaftlogError as error:
            if not is_begun:  # nothing has changed
                raise
            self._registry = None
            raise CommitUnknownError(f"the change was written partially: {error}") from error
        for key, value in answer.records:
            registry.replay(key, value)

    async def _load(self) -> Registry:
        registry, began = Registry(), self._loop.time()
        await load(
            registry,
            self._host,
            turn=asyncio.Lock(),
            on_unreadable=self._on_unreadable,
            what="schema registry",
        )
        self._check_leads()
        self._end = self._host.log.log_end_offset
        self._registry = registry
        logger.info(
            "schema registry loaded: next_id=%d seconds=%.3f",
            registry.next_id,
            self._loop.time() - began,
        )
        return registry

    def _check_leads(self) -> None:
        if self.is_over:
            raise NotLeaderError(f"this broker no longer leads {SCHEMAS_TOPIC}:0")

    async def _committed(self, end: Offset, mark: int | None, *, is_written: bool) -> None:
        """Return once everything below ``end`` is committed, and this broker is known to have led
        after ``mark``.
        """
        self._check_committing(is_written=is_written)
        future: asyncio.Future[None] = self._loop.create_future()

        def go() -> None:
            if not future.done():
                future.set_result(None)

        def failed(error: RaftlogError) -> None:
            if not future.done():
                future.set_exception(error)

        self._answers.resolve(go, failed, end=end, confirmed_since=mark, is_appended=is_written)
        try:
            await future
        except NotCoordinatorError as error:  # of shards, which share the wait
            raise NotLeaderError(f"this broker no longer leads {SCHEMAS_TOPIC}:0") from error

    def _check_committing(self, *, is_written: bool) -> None:
        """Raise if commits from now on would be another leader's."""
        if self.is_over:
            text = f"this broker no longer leads {SCHEMAS_TOPIC}:0"
            raise CommitUnknownError(text) if is_written else NotLeaderError(text)


# -- checks of records -----------------------------------------------------------------------------
#
# ``schema.validation`` of a topic: the IDs in the values of a batch are versions of the subject
# ``TOPIC-value`` (``id``), and each value matches its schema (``full``); the same of keys; subjects
# can have other names by ``schema.subjects``. It runs in the threads that validate large batches;
# the connection's later requests wait. What the leader of the registry has said is kept for a
# while: nothing is asked for a batch whose schemas are known.


CHECK_SECONDS: Final = 3.0  # for the answers of the registry about one batch
KEPT_SECONDS: Final = 60.0  # then the registry is asked again: a version may have been deleted


class _Check(NamedTuple):
    """What is checked of the values, or of the keys, of a topic. See ``TopicConfig``."""

    topic: str
    part: str
    strategy: str
    mode: str

    def key(self, schema: SchemaKey) -> tuple[str, str, str, SchemaKey]:
        return self.topic, self.part, self.strategy, schema


class RecordChecks:
    """The checks of a broker. ``check`` may run in several threads."""

    def __init__(self, registry: SchemaRegistry, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = registry
        self._loop = loop
        # Until when a schema is known to be of a topic; how to decode its values, and their types.
        self._known: dict[tuple[str, str, str, SchemaKey], float] = {}
        self._parsed: dict[SchemaKey, tuple[Decode, list[str]]] = {}

    def check(self, topic: str, config: TopicConfig, batch: Buffer) -> None:
        """Check a batch that is valid otherwise. Blocks; never call it on the event loop.

        Raises ``RecordSchemaError`` with the rows of the first records that do not match, and
        ``LeaderNotAvailableError`` if the registry does not answer.
        """
        for each in (
            _Check(topic, KEY, config.schema_subjects_keys, config.schema_validation_keys),
            _Check(topic, VALUE, config.schema_subjects, config.schema_validation),
        ):
            if each.mode != "none":
                self._check(each, batch)

    def _check(self, check: _Check, batch: Buffer) -> None:
        ids, without = ids_of(batch, check.part)
        if check.mode == "id" and not without and all(self._is_known(check, each) for each in ids):
            return
        problems: dict[int, str] = {}
        for row, schema, body in rows_of(batch, check.part):
            problem = self._problem(check, schema, body)
            if problem:
                problems[row] = problem
            if len(problems) >= limits.KEYLESS_ROWS_MAX:
                break
        if problems:
            row, problem = next(iter(problems.items()))
            setting = "schema.validation" + (".keys" if check.part == KEY else "")
            raise RecordSchemaError(
                f"record {row} of the batch does not match topic {check.topic!r} with {setting}="
                f"{check.mode}: {problem}",
                tuple(problems),
            )

    def _problem(self, check: _Check, schema: SchemaKey | None, body: bytes) -> str:
        """Return why a value does not match; "" if it does."""
        if schema is None:
            what = "its key" if check.part == KEY else "it"
            return (
                f"{what} has no schema ID. Send it with a serializer that uses the schema registry"
            )
        try:
            if not self._is_known(check, schema):
                self._ask(self._learn(check, schema))
            if check.mode == "full":
                decode, _ = self._parsed.get(schema) or self._ask(self._parse(schema))
                decode(body)
        except (SchemaError, UnsupportedFeatureError) as error:
            return str(error)
        return ""

    def _is_known(self, check: _Check, schema: SchemaKey) -> bool:
        return self._known.get(check.key(schema), 0.0) > self._loop.time()

    def _ask(self, questions: Coroutine[Any, Any, T]) -> T:
        asked = asyncio.run_coroutine_threadsafe(questions, self._loop)
        try:
            return asked.result(CHECK_SECONDS)
        except TimeoutError:
            asked.cancel()
            raise LeaderNotAvailableError(
                f"the schema registry has not answered within {CHECK_SECONDS:g} s. Check "
                f"{SCHEMAS_TOPIC} with `raftlog cluster status`"
            ) from None

    async def _learn(self, check: _Check, schema: SchemaKey) -> None:
        """Note that the schema is of the topic. Raises ``SchemaError`` if it is not."""
        ids = [schema]
        if isinstance(schema, str):
            ids = [each["id"] for each in await self._get(f"/schemas/guids/{schema}/ids")]
        found = {each["subject"] for each in await self._get(f"/schemas/ids/{ids[0]}/versions")}
        names = [""]
        if check.strategy != "topic":
            _, names = self._parsed.get(schema) or await self._parse(schema)
        subjects = [subject_of(check.strategy, check.topic, check.part, name) for name in names]
        if not subjects:
            raise SchemaError(f"schema {schema} is of no named type, which gives its subject")
        if found.isdisjoint(subjects):
            raise SchemaError(
                f"schema {schema} is no version of subject {subjects[0]}. Register it: `raftlog "
                f"schema put {subjects[0]} FILE`"
            )
        if len(self._known) >= limits.SCHEMA_IDS_KEPT_MAX:
            self._known.clear()
        self._known[check.key(schema)] = self._loop.time() + KEPT_SECONDS

    async def _parse(self, schema: SchemaKey) -> tuple[Decode, list[str]]:
        kind = "guids" if isinstance(schema, str) else "ids"
        parsed = await rest.fetch_schema(self._get, f"/schemas/{kind}/{schema}")
        if len(self._parsed) >= limits.SCHEMAS_PARSED_KEPT_MAX:
            self._parsed.clear()
        self._parsed[schema] = found = decoder_of(parsed), type_names(parsed)
        return found

    async def _get(self, path: str) -> Any:
        answer = await self._registry.call(Call("GET", path))
        content = json.loads(answer.body)
        if answer.status == 200:
            return content
        if answer.status < 500:
            raise SchemaError(content["message"], content["error_code"])
        raise LeaderNotAvailableError(f"the schema registry does not answer: {content['message']}")
