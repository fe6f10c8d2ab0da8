"""Blocking work in threads: outcomes come back to the loop, errors too."""

from __future__ import annotations

import asyncio
import threading

import pytest

from raftlog.server.scheduling import Workers


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
