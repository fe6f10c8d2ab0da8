"""Memory over all connections is bounded, and somebody can always go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.config import BrokerConfig
from raftlog.errors import ClosedError, CorruptBatchError, NotLeaderError, RaftlogError
from raftlog.limits import SHARE_SECONDS, TURN_SECONDS
from raftlog.protocol import api as apis
from raftlog.protocol.connection import ClientConnectionState, Request
from raftlog.protocol.records import MetadataRequest, MetadataResponse
from raftlog.server.connection import Connection, Connections
from raftlog.server.metrics import Counters
from raftlog.server.partition import Partition
from raftlog.server.purgatory import CHECKED_AT_ONCE_MAX, Purgatory
from raftlog.server.scheduling import (
    LONG_S,
    SLACK_S,
    Acknowledge,
    Done,
    OffsetWaiters,
    RequestBudget,
    ResponseBudget,
    Rounds,
    Steps,
    Turns,
    Workers,
    coalesced_deadline,
)
from tests.running import runs


class Conn:
    """A connection, as the request budget sees it."""

    def __init__(self) -> None:
        self.paused = False

    def pause_for_memory(self) -> None:
        self.paused = True

    def resume_from_memory(self) -> None:
        self.paused = False


def test_over_the_budget_only_the_oldest_request_goes_on() -> None:
    budget = RequestBudget(100)
    first, second, third = Conn(), Conn(), Conn()
    budget.set(first, 60)
    budget.set(second, 30)
    assert [first.paused, second.paused] == [False, False]
    budget.set(second, 50)
    budget.set(first, 80)
    budget.set(third, 1)
    assert [c.paused for c in (first, second, third)] == [False, True, True]
    assert budget.bytes == 131
    budget.set(first, 0)  # it is complete
    assert [c.paused for c in (first, second, third)] == [False, False, False]
    assert budget.bytes == 51


def test_when_the_oldest_goes_the_next_goes_on_even_over_the_budget() -> None:
    budget = RequestBudget(100)
    first, second, third = Conn(), Conn(), Conn()
    for conn in (first, second, third):
        budget.set(conn, 90)
    assert [c.paused for c in (first, second, third)] == [False, True, True]
    budget.forget(first)
    assert [c.paused for c in (second, third)] == [False, True]
    budget.forget(third)
    assert budget.bytes == 90
    budget.forget(second)
    assert budget.bytes == 0


def test_a_connection_that_is_gone_is_not_resumed() -> None:
    budget = RequestBudget(10)
    first, second = Conn(), Conn()
    budget.set(first, 10)
    budget.set(second, 10)
    budget.forget(second)
    budget.forget(second)
    budget.set(first, 0)
    assert second.paused
    assert budget.bytes == 0


def test_fetches_wait_for_room_in_their_order() -> None:
    budget = ResponseBudget(100)
    reader, other, turns = object(), object(), list[str]()

    def fill() -> None:
        turns.append("second")
        budget.set(other, 200)

    assert not budget.full
    budget.set(reader, 150)
    assert budget.full
    budget.when_room(lambda: turns.append("first"))
    budget.when_room(fill)
    budget.when_room(lambda: turns.append("third"))
    budget.set(reader, 100)
    assert turns == []
    budget.set(reader, 20)
    assert turns == ["first", "second"]  # the second filled it again
    budget.set(other, 0)
    assert turns == ["first", "second", "third"]
    budget.set(reader, 0)
    assert budget.bytes == 0


# -- offset waiters --------------------------------------------------------------------------------
#
# Who waits for an offset.


GONE = ClosedError("gone")


class Scene:
    def __init__(self) -> None:
        self.waiters = OffsetWaiters()
        self.noted: list[tuple[str, RaftlogError | None]] = []

    def note(self, name: str) -> Callable[[RaftlogError | None], None]:
        return lambda error: self.noted.append((name, error))


def test_they_are_told_in_their_order_as_far_as_the_log_has_come() -> None:
    s = Scene()
    for name, offset in (("a", 3), ("b", 5), ("c", 9)):
        s.waiters.add(offset, s.note(name))
    s.waiters.reached(2)
    assert s.noted == []
    s.waiters.reached(5)
    s.waiters.reached(5)
    assert s.noted == [("a", None), ("b", None)]


def test_a_duplicate_behind_newer_ones_waits_for_its_turn() -> None:
    s = Scene()
    s.waiters.add(9, s.note("new"))
    s.waiters.add(3, s.note("duplicate"))
    s.waiters.reached(5)
    assert s.noted == []
    s.waiters.reached(9)
    assert s.noted == [("new", None), ("duplicate", None)]


def test_refused_they_are_told_why_and_only_once() -> None:
    s = Scene()
    s.waiters.add(3, s.note("a"))
    s.waiters.add(5, s.note("b"))
    s.waiters.refuse(GONE)
    s.waiters.reached(9)
    assert s.noted == [("a", GONE), ("b", GONE)]


def test_who_comes_while_others_are_refused_is_refused_too() -> None:
    s = Scene()
    s.waiters.add(3, lambda _error: s.waiters.add(4, s.note("late")))
    s.waiters.refuse(GONE)
    assert s.noted == [("late", GONE)]


# -- rounds ----------------------------------------------------------------------------------------
#
# One question for all who came before it was asked, and none for those who came after.


class Asked:
    """Questions that wait for their answers, and what those who wait were told."""

    def __init__(self) -> None:
        self.questions: list[Acknowledge] = []
        self.noted: list[tuple[str, RaftlogError | None]] = []
        self.rounds = Rounds(self.questions.append)

    def ask(self, name: str, since: int | None = None) -> None:
        self.rounds.ask(lambda error: self.noted.append((name, error)), since=since)

    def answer(self, error: RaftlogError | None = None) -> None:
        self.questions.pop(0)(error)


def test_who_comes_while_a_question_is_under_way_waits_for_the_next() -> None:
    a = Asked()
    a.ask("first")
    a.ask("second")
    a.ask("third")
    assert len(a.questions) == 1
    a.answer()
    assert a.noted == [("first", None)]
    assert len(a.questions) == 1
    a.answer()
    assert a.noted == [("first", None), ("second", None), ("third", None)]
    assert not a.questions


def test_an_error_is_told_to_those_who_waited_for_it() -> None:
    a = Asked()
    a.ask("first")
    a.ask("second")
    error = NotLeaderError("not any more")
    a.answer(error)
    a.answer()
    assert a.noted == [("first", error), ("second", None)]


def test_who_asks_again_when_told_has_a_question_of_its_own() -> None:
    a = Asked()
    a.rounds.ask(lambda _error: a.ask("again"))
    a.answer()
    assert (a.noted, len(a.questions)) == ([], 1)
    a.answer()
    assert a.noted == [("again", None)]


def test_an_answer_counts_for_all_that_came_before_its_question() -> None:
    a = Asked()
    before = a.rounds.mark
    a.ask("first")
    during = a.rounds.mark
    a.answer()
    a.ask("from before", since=before)
    assert a.noted == [("first", None), ("from before", None)]
    assert not a.questions
    a.ask("from the time it was out", since=during)
    assert len(a.questions) == 1
    a.answer()
    a.ask("now", since=a.rounds.mark)
    assert len(a.questions) == 1
    assert [name for name, _ in a.noted] == ["first", "from before", "from the time it was out"]


def test_an_error_counts_for_nobody_else() -> None:
    a = Asked()
    before = a.rounds.mark
    a.ask("first")
    a.answer(NotLeaderError("not any more"))
    a.ask("second", since=before)
    assert len(a.questions) == 1


# -- timer coalescing ------------------------------------------------------------------------------
#
# When long waits end: late by little, and together.


nows = st.floats(0, 1e9)


@given(now=nows, wait_s=st.floats(0, LONG_S, exclude_max=True))
def test_a_short_wait_ends_when_it_was_said_to(now: float, wait_s: float) -> None:
    assert coalesced_deadline(now, wait_s) == now + wait_s


@given(now=nows, wait_s=st.floats(LONG_S, 60.0))
def test_a_long_wait_is_never_cut_short_and_ends_soon(now: float, wait_s: float) -> None:
    late_s = coalesced_deadline(now, wait_s) - (now + wait_s)
    assert -1e-6 < late_s < SLACK_S + 1e-6


def test_long_waits_end_together() -> None:
    ends = {coalesced_deadline(1_000.0 + number / 1_000, 5.0) for number in range(1_000)}
    assert len(ends) == 1_000 / 1_000 / SLACK_S + 1


# -- turns -----------------------------------------------------------------------------------------
#
# Requests that are done in steps: they give way, stay in order, and end with their connection.


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


class TurnsScene:
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
    scene = TurnsScene(in_steps)
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

    scene = TurnsScene(counted)
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
    scene = TurnsScene(in_steps)
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

    scene = TurnsScene(noted)
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

    scene = TurnsScene(handle)
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

    scene = TurnsScene(handle)
    connection, state = scene.connect("a")
    ask(connection, state, steps=1)
    connection.connection_lost(None)
    assert ended == ["a"]
    scene.threads.finish()  # and nobody waits for it
    assert scene.answered == []
    scene.connections.abort("over")


# -- workers ---------------------------------------------------------------------------------------
#
# Blocking work in threads: outcomes come back to the loop, errors too.


def test_outcomes_arrive_on_the_loop_in_order() -> None:
    async def work() -> list[object]:
        loop = asyncio.get_running_loop()
        workers = Workers(loop, count=1, name="test")
        outcomes: list[object] = []
        done = asyncio.Event()

        def note(result: object, error: Exception | None) -> None:
            assert threading.current_thread() is threading.main_thread()
            outcomes.append(error or result)
            if len(outcomes) == 3:
                done.set()

        workers.submit(lambda: 1, note)
        workers.submit(lambda: 1 // 0, note)
        workers.submit(threading.current_thread, note)
        await done.wait()
        workers.stop()
        return outcomes

    first, error, thread = asyncio.run(work())
    assert first == 1
    assert isinstance(error, ZeroDivisionError)
    assert isinstance(thread, threading.Thread)
    assert thread.name == "raftlog-test-0"
    assert not thread.is_alive()


def test_run_returns_or_raises() -> None:
    async def work() -> None:
        workers = Workers(asyncio.get_running_loop(), count=2, name="test")
        assert await workers.run(lambda: "done") == "done"
        with pytest.raises(OSError, match="broken"):
            await workers.run(raise_os_error)
        workers.stop()

    def raise_os_error() -> None:
        raise OSError("broken")

    asyncio.run(work())


def test_a_caller_that_is_cancelled_does_not_disturb_the_thread() -> None:
    async def work() -> None:
        workers = Workers(asyncio.get_running_loop(), count=1, name="test")
        gate = threading.Event()
        waiting = asyncio.ensure_future(workers.run(gate.wait))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        gate.set()
        assert await workers.run(lambda: 2) == 2
        workers.stop()

    asyncio.run(work())


# -- purgatory -------------------------------------------------------------------------------------
#
# Waiting fetches: woken, timed out, cancelled; each ends once and leaves nothing behind.


PURGATORY_LONG_S = 100.0


class FakeHost:
    """Something to watch."""

    def __init__(self) -> None:
        self.watchers: list[Any] = []

    def watch(self, watcher: Any) -> None:
        self.watchers.append(watcher)

    def unwatch(self, watcher: Any) -> None:
        self.watchers.remove(watcher)

    def move(self) -> None:
        for watcher in list(self.watchers):
            watcher.wake()


class Fetch:
    """Worth to be resumed when it was looked at often enough."""

    def __init__(self, enough_after: int) -> None:
        self.looks = 0
        self.resumed: list[bool] = []  # whether it had to be the last time
        self._enough_after = enough_after
        self.answered = asyncio.Event()

    def may_be_enough(self) -> bool:
        self.looks += 1
        return self.looks >= self._enough_after

    def resume(self, *, final: bool = False) -> None:
        self.resumed.append(final)
        self.answered.set()


def on_a_loop(test: Callable[[Purgatory, list[FakeHost]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        hosts = [FakeHost(), FakeHost()]
        purgatory = Purgatory(asyncio.get_running_loop(), 100)
        await test(purgatory, hosts)
        assert len(purgatory) == 0
        assert all(host.watchers == [] for host in hosts)

    asyncio.run(run())


def park(
    purgatory: Purgatory,
    hosts: list[FakeHost],
    fetch: Fetch,
    *,
    owner: str = "c",
    s: float = PURGATORY_LONG_S,
    size_bytes: int = 0,
) -> None:
    watched = cast(list[Partition], hosts)
    purgatory.park(owner, watched, fetch, timer_seconds=s, size_bytes=size_bytes)


@runs(on_a_loop)
async def test_a_fetch_is_looked_at_whenever_a_partition_moves_until_it_is_answered(
    purgatory: Purgatory, hosts: list[FakeHost]
) -> None:
    fetch = Fetch(enough_after=2)
    park(purgatory, hosts, fetch)
    hosts[0].move()
    assert len(purgatory) == 1
    hosts[1].move()
    hosts[1].move()
    assert (fetch.looks, fetch.resumed) == (2, [False])


@runs(on_a_loop)
async def test_when_time_is_up_the_last_attempt_answers(
    purgatory: Purgatory, hosts: list[FakeHost]
) -> None:
    fetch = Fetch(enough_after=99)
    park(purgatory, hosts, fetch, s=0.001)
    await asyncio.wait_for(fetch.answered.wait(), PURGATORY_LONG_S)
    hosts[0].move()
    assert (fetch.looks, fetch.resumed) == (0, [True])


@runs(on_a_loop)
async def test_a_closed_connections_fetches_are_forgotten_and_no_others(
    purgatory: Purgatory, hosts: list[FakeHost]
) -> None:
    gone, other = Fetch(enough_after=1), Fetch(enough_after=1)
    park(purgatory, hosts, gone)
    park(purgatory, hosts, gone)
    park(purgatory, hosts, other, owner="d")
    purgatory.cancel("c")
    assert len(purgatory) == 1
    hosts[0].move()
    assert (gone.resumed, other.resumed) == ([], [False])


@runs(on_a_loop)
async def test_all_are_answered_when_the_broker_stops(
    purgatory: Purgatory, hosts: list[FakeHost]
) -> None:
    fetches = [Fetch(enough_after=99) for _ in range(3)]
    for number, fetch in enumerate(fetches):
        park(purgatory, hosts, fetch, owner=f"c{number % 2}")
    purgatory.expire_all()
    assert [fetch.resumed for fetch in fetches] == [[True]] * 3


@runs(on_a_loop)
async def test_a_wide_fetch_is_looked_at_once_in_a_turn_of_the_loop(
    purgatory: Purgatory, hosts: list[FakeHost]
) -> None:
    fetch = Fetch(enough_after=2)
    park(purgatory, hosts * CHECKED_AT_ONCE_MAX, fetch)
    for _ in range(2):
        for _ in range(5):
            hosts[0].move()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert (fetch.looks, fetch.resumed) == (2, [False])


@runs(on_a_loop)
async def test_over_the_bound_who_has_most_is_answered_before_its_time(
    purgatory: Purgatory, hosts: list[FakeHost]
) -> None:
    small, many = Fetch(enough_after=99), [Fetch(enough_after=99) for _ in range(3)]
    park(purgatory, hosts, small, owner="modest", size_bytes=10)
    for fetch in many:
        park(purgatory, hosts, fetch, owner="greedy", size_bytes=40)
    assert purgatory.bytes == 90
    assert [fetch.resumed for fetch in (small, *many)] == [[], [True], [], []]
    park(purgatory, hosts, Fetch(enough_after=99), owner="another", size_bytes=11)
    assert [fetch.resumed for fetch in (small, *many)] == [[True], [True], [], []]
    purgatory.expire_all()
    assert purgatory.bytes == 0
