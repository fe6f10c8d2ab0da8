"""Waiting fetches: woken, timed out, cancelled; each ends once and leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raftlog.server.partition import Partition
from raftlog.server.purgatory import CHECKED_AT_ONCE_MAX, Purgatory
from tests.running import runs

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
    s: float = LONG_S,
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
    await asyncio.wait_for(fetch.answered.wait(), LONG_S)
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
