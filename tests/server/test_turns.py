"""Requests that are done in steps: they give way, stay in order, and end with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raftlog.config import BrokerConfig
from raftlog.errors import CorruptBatchError, RaftlogError
from raftlog.limits import SHARE_SECONDS, TURN_SECONDS
from raftlog.protocol import api as apis
from raftlog.protocol.connection import ClientConnectionState, Request
from raftlog.protocol.records import MetadataRequest, MetadataResponse
from raftlog.server.connection import Connection, Connections
from raftlog.server.metrics import Counters
from raftlog.server.scheduling import Done, ResponseBudget, Steps, Turns, Workers
from tests.running import runs

TICK_S = SHARE_SECONDS / 4
ANSWER = MetadataResponse(cluster_id="c", brokers=[], topics=[])


class Transport:
    """What a connection uses of a transport; it notes when something was written."""

    def __init__(self, wrote: Callable[[], None]) -> None:
        self.wrote = wrote

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_options: 0

    def is_closing(self) -> bool:
        return False

    def write(self, _data: bytes) -> None:
        self.wrote()


class ByHand:
    """Threads whose work is done when the test says so."""

    def __init__(self) -> None:
        self.given: list[tuple[Callable[[], Any], Done]] = []

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        self.given.append((work, done))

    def finish(self) -> None:
        work, done = self.given.pop(0)
        try:
            result = work()
        except RaftlogError as error:
            done(None, error)
        else:
            done(result, None)


class Scene:
    """A broker's connections without a broker; each read of the clock takes a tick."""

    def __init__(self, handle: Callable[[Connection, Request], Steps | None]) -> None:
        self.answered: list[str] = []
        self.threads = ByHand()
        self.waits: list[float] = []
        self._now_s = 0.0
        loop = asyncio.get_running_loop()
        self.connections = Connections(
            BrokerConfig(),
            loop,
            responses=ResponseBudget(1 << 20),
            counters=Counters(),
            turns=Turns(loop, self._tick, self.waits.append),
            workers=cast(Workers, self.threads),
            on_request=handle,
            on_kafka_request=lambda _connection, _request: None,
            on_lost=lambda _connection: None,
        )

    def _tick(self) -> float:
        self._now_s += TICK_S
        return self._now_s

    def connect(self, name: str) -> tuple[Connection, ClientConnectionState]:
        connection = self.connections.make()
        transport = Transport(lambda: self.answered.append(name))
        connection.connection_made(cast(asyncio.Transport, transport))
        return connection, ClientConnectionState()


def ask(connection: Connection, state: ClientConnectionState, *, steps: int) -> None:
    """Send a request that says in its topics' number how many steps it takes."""
    message = MetadataRequest(topics=["t"] * steps)
    data = b"".join(state.send(apis.METADATA, message)[1])
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def steps_of(request: Request) -> int:
    return len(cast(MetadataRequest, request.message).topics or ())


def in_steps(connection: Connection, request: Request) -> Steps:
    for _ in range(steps_of(request)):
        yield None
    connection.respond(request, ANSWER)


def play(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


async def until(condition: Callable[[], bool]) -> int:
    """How many turns of the loop it took until ``condition()``."""
    for turns in range(1_000):
        if condition():
            return turns
        await asyncio.sleep(0)
    raise AssertionError("it never came to pass")


@runs(play)
async def test_a_long_request_gives_way_to_a_short_one_of_another_connection() -> None:
    scene = Scene(in_steps)
    ask(*scene.connect("long"), steps=100)
    ask(*scene.connect("short"), steps=1)
    await until(lambda: len(scene.answered) == 2)
    assert scene.answered == ["short", "long"]
    assert scene.waits
    assert min(scene.waits) > 0
    scene.connections.abort("over")


@runs(play)
async def test_one_turn_of_the_loop_does_no_more_than_its_share() -> None:
    done: list[int] = []

    def counted(connection: Connection, request: Request) -> Steps:
        for step in range(steps_of(request)):
            done.append(step)
            yield None
        connection.respond(request, ANSWER)

    scene = Scene(counted)
    for number in range(10):
        ask(*scene.connect(str(number)), steps=50)
    assert len(done) * TICK_S <= TURN_SECONDS  # they were read in one turn of the loop
    before = len(done)
    while len(scene.answered) < 10:
        await asyncio.sleep(0)
        assert (len(done) - before) * TICK_S <= TURN_SECONDS + SHARE_SECONDS
        before = len(done)
    scene.connections.abort("over")


@runs(play)
async def test_those_that_wait_take_turns() -> None:
    scene = Scene(in_steps)
    for name in ("a", "b", "c"):
        ask(*scene.connect(name), steps=90 if name == "a" else 40)
    await until(lambda: len(scene.answered) == 3)
    assert scene.answered == ["b", "c", "a"]
    scene.connections.abort("over")


@runs(play)
async def test_requests_of_one_connection_are_done_one_after_the_other() -> None:
    order: list[int] = []

    def noted(connection: Connection, request: Request) -> Steps:
        yield from in_steps(connection, request)
        order.append(steps_of(request))

    scene = Scene(noted)
    connection, state = scene.connect("a")
    for steps in (50, 1, 20):
        ask(connection, state, steps=steps)
    await until(lambda: len(order) == 3)
    assert order == [50, 1, 20]
    scene.connections.abort("over")


@runs(play)
async def test_work_for_a_thread_gives_its_result_or_its_error() -> None:
    got: list[object] = []

    def fail() -> None:
        raise CorruptBatchError("bad")

    def handle(connection: Connection, request: Request) -> Steps:
        got.append((yield lambda: 5))
        try:
            yield fail
        except CorruptBatchError as error:
            got.append(str(error))
        connection.respond(request, ANSWER)

    scene = Scene(handle)
    connection, state = scene.connect("a")
    ask(connection, state, steps=1)
    ask(connection, state, steps=1)
    assert len(scene.threads.given) == 1, "the second request waits for the first"
    scene.threads.finish()
    scene.threads.finish()
    assert got == [5, "bad"]
    await until(lambda: len(scene.answered) == 1)
    scene.threads.finish()
    scene.threads.finish()
    await until(lambda: len(scene.answered) == 2)
    scene.connections.abort("over")


@runs(play)
async def test_a_connection_that_is_lost_ends_what_it_began() -> None:
    ended: list[str] = []

    def handle(connection: Connection, request: Request) -> Steps:
        try:
            yield lambda: 5
            connection.respond(request, ANSWER)
        finally:
            ended.append("a")

    scene = Scene(handle)
    connection, state = scene.connect("a")
    ask(connection, state, steps=1)
    connection.connection_lost(None)
    assert ended == ["a"]
    scene.threads.finish()  # and nobody waits for it
    assert scene.answered == []
    scene.connections.abort("over")
