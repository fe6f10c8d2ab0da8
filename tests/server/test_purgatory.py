"""Waiting fetches: woken, timed out, cancelled; each ends once and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raftlog.server.purgatory import Purgatory
from raftlog.server.replica_host import PartitionHost

LONG_S = 100.0


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
    """Answers when there is enough."""

    def __init__(self, enough_after: int) -> None:
        self.attempts: list[bool] = []
        self._enough_after = enough_after
        self.answered = asyncio.Event()

    def attempt(self, final: bool) -> bool:
        self.attempts.append(final)
        if final or len(self.attempts) >= self._enough_after:
            self.answered.set()
            return True
        return False


def on_a_loop(test: Callable[[Purgatory, list[FakeHost]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        hosts = [FakeHost(), FakeHost()]
        purgatory = Purgatory(asyncio.get_running_loop())
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
    s: float = LONG_S,
) -> None:
    watched = cast(list[PartitionHost], hosts)
    purgatory.park(owner, watched, fetch.attempt, timer_seconds=s)


def test_a_fetch_is_tried_whenever_a_partition_moves_until_it_is_answered() -> None:
    async def test(purgatory: Purgatory, hosts: list[FakeHost]) -> None:
        fetch = Fetch(enough_after=2)
        park(purgatory, hosts, fetch)
        hosts[0].move()
        assert len(purgatory) == 1
        hosts[1].move()
        hosts[1].move()
        assert fetch.attempts == [False, False]

    on_a_loop(test)


def test_when_time_is_up_the_last_attempt_answers() -> None:
    async def test(purgatory: Purgatory, hosts: list[FakeHost]) -> None:
        fetch = Fetch(enough_after=99)
        park(purgatory, hosts, fetch, s=0.001)
        await asyncio.wait_for(fetch.answered.wait(), LONG_S)
        hosts[0].move()
        assert fetch.attempts == [True]

    on_a_loop(test)


def test_a_closed_connections_fetches_are_forgotten_and_no_others() -> None:
    async def test(purgatory: Purgatory, hosts: list[FakeHost]) -> None:
        gone, other = Fetch(enough_after=1), Fetch(enough_after=1)
        park(purgatory, hosts, gone)
        park(purgatory, hosts, gone)
        park(purgatory, hosts, other, owner="d")
        purgatory.cancel("c")
        assert len(purgatory) == 1
        hosts[0].move()
        assert (gone.attempts, other.attempts) == ([], [False])

    on_a_loop(test)


def test_all_are_answered_when_the_broker_stops() -> None:
    async def test(purgatory: Purgatory, hosts: list[FakeHost]) -> None:
        fetches = [Fetch(enough_after=99) for _ in range(3)]
        for number, fetch in enumerate(fetches):
            park(purgatory, hosts, fetch, owner=f"c{number % 2}")
        purgatory.expire_all()
        assert [fetch.attempts for fetch in fetches] == [[True]] * 3

    on_a_loop(test)
