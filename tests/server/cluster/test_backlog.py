"""Items that wait to be processed, some in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from raftlog.server.cluster.elections import Backlog
from tests.running import runs


class Scene:
    """``calls``: what was processed in each turn."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.then: Callable[[], None] = lambda: None
        self.backlog = Backlog(asyncio.get_running_loop(), self._process, at_once=3)

    def _process(self, items: list[int]) -> None:
        self.calls.append(items)
        self.then()


def play(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def scene() -> None:
        await test(Scene())

    asyncio.run(scene())


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@runs(play)
async def test_some_items_are_processed_in_each_turn(s: Scene) -> None:
    s.backlog.add(range(7))
    assert s.calls == []
    await turns(1)
    assert s.calls == [[0, 1, 2]]
    await turns(1)
    assert s.calls == [[0, 1, 2], [3, 4, 5]]
    await turns(5)
    assert s.calls == [[0, 1, 2], [3, 4, 5], [6]]


@runs(play)
async def test_an_item_waits_once_and_keeps_its_place(s: Scene) -> None:
    s.backlog.add([1, 2, 3, 4])
    s.backlog.add([4, 1, 5])
    await turns(1)
    s.backlog.add([1])
    await turns(5)
    assert s.calls == [[1, 2, 3], [4, 5, 1]]


@runs(play)
async def test_items_that_are_added_during_the_work_are_processed_in_the_next_turn(
    s: Scene,
) -> None:
    s.then = lambda: s.backlog.add([2]) if len(s.calls) == 1 else None
    s.backlog.add([1])
    await turns(1)
    assert s.calls == [[1]]
    await turns(5)
    assert s.calls == [[1], [2]]


@runs(play)
async def test_an_error_does_not_stop_the_others(s: Scene) -> None:
    errors: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: errors.append(context["exception"]))

    def fails() -> None:
        if len(s.calls) == 1:
            raise ValueError("of the first three")

    s.then = fails
    s.backlog.add(range(4))
    await turns(5)
    assert s.calls == [[0, 1, 2], [3]]
    assert [str(error) for error in errors] == ["of the first three"]


@runs(play)
async def test_nothing_to_do_takes_no_turn(s: Scene) -> None:
    s.backlog.add([])
    await turns(3)
    assert s.calls == []
