"""What every synchronous client has: whose thread it uses, and what becomes of it in the end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from raftlog.client.base import ClientEnvironment
from raftlog.client.threaded import PlainClient, ThreadedClient
from raftlog.client.threads import LoopThread

NAME = "raftlog-test-of-threads"
PATIENCE_S = 10.0


class Work:
    """What a client would have to close."""

    def __init__(self) -> None:
        self.ends = 0
        self.ended = threading.Event()

    async def answer(self) -> int:
        return 42

    async def end(self) -> None:
        self.ends += 1
        self.ended.set()


class Client(PlainClient):
    def __init__(self, work: Work, host: ClientEnvironment | None = None) -> None:
        self._work = work
        self._take_thread(host or ClientEnvironment(), NAME)
        self._closed = False

    def ask(self) -> int:
        self._used = True
        return self._thread.call(self._work.answer)

    def _end(self) -> None:
        self._thread.call(self._work.end)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._work.end


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_a_thread_of_its_own_ends_with_the_client() -> None:
    work = Work()
    with Client(work) as client:
        assert threads() == [], "not before it is needed"
        assert client.ask() == 42
        assert len(threads()) == 1
    assert threads() == []
    assert work.ends == 1
    client.close()
    assert work.ends == 1, "closed once"


def test_a_client_that_was_never_used_has_nothing_to_close() -> None:
    work = Work()
    Client(work).close()
    assert work.ends == 0
    assert threads() == []


def test_the_thread_of_a_host_is_left_running() -> None:
    lent = LoopThread("raftlog-test-lent")
    try:
        work = Work()
        with Client(work, ClientEnvironment(loop_thread=lent)) as client:
            assert client.ask() == 42
            assert threads() == []
        assert work.ends == 1
        assert lent.call(work.answer) == 42
    finally:
        lent.stop()


def test_the_thread_ends_even_if_the_end_fails() -> None:
    class Failing(Client):
        def _end(self) -> None:
            raise OSError("the network is gone")

    client = Failing(Work())
    client.ask()
    with pytest.raises(OSError, match="the network is gone"):
        client.close()
    assert threads() == []


def test_one_that_is_forgotten_warns_and_is_closed() -> None:
    work = Work()
    client = Client(work)
    client.ask()
    (thread,) = threads()
    last_hold = [client]
    del client
    with pytest.warns(ResourceWarning, match="unclosed"):
        last_hold.clear()
    assert work.ended.wait(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_one_that_is_forgotten_unused_or_half_made_says_nothing(
    recwarn: pytest.WarningsRecorder,
) -> None:
    client = Client(Work())
    del client
    half_made = Client.__new__(Client)
    del half_made
    gc.collect()
    assert [w for w in recwarn if w.category is ResourceWarning] == []


def test_what_a_client_must_say_for_itself() -> None:
    with pytest.raises(NotImplementedError):
        ThreadedClient()._end_of_forgotten()
    with pytest.raises(NotImplementedError):
        PlainClient()._end()
