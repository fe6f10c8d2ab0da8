"""Topic changes of one broker: one at a time, in the order of arrival."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    OutcomeUnknownError,
    RaftlogError,
    ThrottledError,
)
from raftlog.protocol.schema import Message
from raftlog.server.exchange import Exchange
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.types import Buffer

HOSTS_AT_ONCE: Final = 20  # 1 ms, to create them
HUNG_CHECK_SECONDS: Final = 1.0
logger = logging.getLogger(__name__)

T = TypeVar("T")
# Returns the response message, or an ``Attached``.
Operation: TypeAlias = Callable[[], Awaitable[Any]]


class Attached(NamedTuple):
    """A response message with an attachment."""

    message: Message
    attachment: Sequence[Buffer]


class Administration:
    """Queue of topic changes: a change starts when the one before it has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed: RaftlogError | None = None

    def submit_at_once(self, operation: Operation, reply: Exchange) -> None:
        """Run ``operation`` outside the queue: the queued changes may wait for it."""
        self._begin(self._answer(operation, reply))

    def submit(self, operation: Operation, reply: Exchange) -> None:
        """Run ``operation`` in its turn and reply with its result or error."""
        self._check_room()
        self._begin(self._run(operation, reply))

    def submit_work(self, work: Callable[[], Awaitable[None]], done: Acknowledge) -> None:
        """Run ``work`` in its turn; then call ``done`` with None, or the error."""
        self._check_room()
        self._begin(self._work(work, done))

    def _check_room(self) -> None:
        if len(self._tasks) >= limits.ADMIN_REQUESTS_PENDING_MAX:
            raise ThrottledError(
                f"{len(self._tasks)} topic changes are pending, and "
                "ADMIN_REQUESTS_PENDING_MAX is reached. Try again later"
            )

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self, reason: RaftlogError) -> None:
        """Reject every change from now on, with ``reason``."""
        self._closed = reason

    async def finish(self) -> None:
        """Return once no change is running. Queued changes are rejected."""
        self.close(self._closed or BrokerUnavailableError("the broker stops"))
        await asyncio.gather(*self._tasks)

    async def _run(self, operation: Operation, reply: Exchange) -> None:
        async with self._turn:
            await self._answer(operation, reply)

    async def _work(self, work: Callable[[], Awaitable[None]], done: Acknowledge) -> None:
        failure: RaftlogError | None = None
        async with self._turn:
            try:
                if self._closed is not None:
                    raise self._closed
                await work()
            except RaftlogError as error:
                failure = error
            except Exception as error:
                logger.exception("topic change failed: reason=internal_error. Report this error")
                failure = OutcomeUnknownError(f"internal broker error ({type(error).__name__})")
        done(failure)

    async def _answer(self, operation: Operation, reply: Exchange) -> None:
        try:
            if self._closed is not None:
                raise self._closed
            message = await operation()
        except RaftlogError as error:
            reply.fail(error)
        except Exception as error:  # noqa: BLE001 - reported, logged and counted
            reply.fail_by_mistake(error)
        else:
            reply.send(*(message if isinstance(message, Attached) else (message,)))


async def _in_turns(hosts: Iterable[Partition], act: Callable[[Partition], None]) -> None:
    """Call ``act`` for each partition, ``HOSTS_AT_ONCE`` in one turn of the event loop."""
    for number, host in enumerate(hosts, start=1):
        act(host)
        if number % HOSTS_AT_ONCE == 0:
            await asyncio.sleep(0)


async def quiet(hosts: list[Partition], *, gives_up: bool = False) -> None:
    """Return once no thread uses the files of ``hosts``, which are closed.

    ``gives_up``: raise ``DiskHungError`` while the disk of one of them hangs. It may never end,
    and their files cannot be removed either. Call it again.
    """
    done = asyncio.get_running_loop().create_future()
    missing = len(hosts)

    def one_is() -> None:
        nonlocal missing
        missing -= 1
        if missing == 0:
            done.set_result(None)

    if gives_up:
        _check_disks(hosts)  # before more is added to what waits for a thread
    await _in_turns(hosts, lambda host: host.when_quiet(one_is))
    while hosts and not done.done():
        await asyncio.wait([done], timeout=HUNG_CHECK_SECONDS if gives_up else None)
        if gives_up and not done.done():
            _check_disks(hosts)


def _check_disks(hosts: list[Partition]) -> None:
    for host in hosts:
        host.check_disk()
