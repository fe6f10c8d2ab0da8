"""Group work in the application's thread: callbacks, revoked and assigned partitions, commits.

Coroutines for both consumers. They wait only for the application's callbacks; ``run_now`` runs them
without a loop. The I/O loop does everything else that takes time.
"""

from __future__ import annotations

import inspect
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from raftlog.client.consumer_groups.member import Member, Reading
from raftlog.client.consumer_groups.membership import Change, Owned, Phase
from raftlog.client.consumer_groups.offsets import Offsets
from raftlog.client.subscription import Subscription
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.types import RebalanceListener

logger: Final = logging.getLogger(__name__)

T = TypeVar("T")
# Called with the offsets, and with None or the error of the commit.
CommitCallback: TypeAlias = Callable[[Offsets, RaftlogError | None], object]


@dataclass(frozen=True, slots=True)
class Listeners:
    """Callbacks of the application, each called with a list of partitions."""

    on_assign: RebalanceListener | None = None
    on_revoke: RebalanceListener | None = None
    on_lost: RebalanceListener | None = None  # default: on_revoke


class Rebalancer:
    """Rebalance steps of one consumer. Runs in the application's thread, except ``committed``."""

    def __init__(
        self, member: Member, subscription: Subscription, *, now: Callable[[], float]
    ) -> None:
        self.listeners = Listeners()
        self.is_busy = False  # True during a callback
        self._member = member
        self._membership = member.membership
        self._subscription = subscription
        self._now = now
        self._was_cut_short = False  # KeyboardInterrupt interrupted ``attend``
        self._done: deque[Callable[[], object]] = deque()  # callbacks of completed commits

    # -- around each poll

    def polling(self) -> None:
        """Enter a poll: the application has processed all returned records.

        Raises ``InvalidRequestError`` within a callback.
        """
        if self.is_busy:
            raise InvalidRequestError("a rebalance or commit callback must not call poll()")
        self._subscription.all_processed()
        membership = self._membership
        membership.polling()
        if (now := self._now()) >= membership.expires_at:
            membership.tick(now=now)
            self._subscription.interrupt()

    def polled(self) -> None:
        self._membership.polled(now=self._now())

    # -- work before records are returned

    async def attend(self) -> None:
        """Act on all changes. Raises the first exception of a callback at the end."""
        subscription, membership = self._subscription, self._membership
        subscription.interrupted = False
        errors: list[Exception] = []
        try:
            if self._was_cut_short:
                self._mend()
            await self._call_done(errors)
            while (change := membership.take()) is not None:
                await self._act_on(change, errors)
            if self._member.commit_due:
                self._member.commit_automatically()
            if (problem := self._member.take_problem()) is not None:
                errors.append(problem)
            _raise_first(errors)
            if membership.phase is Phase.ENDED and membership.error is not None:
                raise type(membership.error)(*membership.error.args)
        except Exception:
            subscription.interrupted = True  # there may be more changes, or the error repeats
            raise
        except BaseException:
            self._was_cut_short = subscription.interrupted = True
            raise

    def _mend(self) -> None:
        """Restore consistency after KeyboardInterrupt between taking a change and acting on it."""
        subscription, membership = self._subscription, self._membership
        had, releasing = membership.holdings()
        if membership.phase is not Phase.OUT:
            subscription.remove([tp for tp in subscription.parts if tp not in had])
            self._member.add({tp: of for tp, of in had.items() if tp not in subscription.parts})
            if releasing:
                self._member.release(releasing)
            membership.rejoin(now=self._now())
            self._member.wake()
        self._was_cut_short = False

    async def _act_on(self, change: Change, errors: list[Exception]) -> None:
        listeners = self.listeners
        if change.is_out or change.error is not None:
            try:
                await self._notify(listeners.on_lost or listeners.on_revoke, change.lost, errors)
            finally:
                self._subscription.remove(list(self._subscription.parts))
                self._membership.rejoin(now=self._now())
                self._member.wake()
        if change.revoked:
            try:
                await self._notify(listeners.on_revoke, change.revoked, errors)
            finally:
                self._member.release(change.revoked)
        if change.assigned:
            self._member.add(change.assigned)
            await self._notify(listeners.on_assign, change.assigned, errors)

    async def _notify(
        self, listener: RebalanceListener | None, partitions: Owned, errors: list[Exception]
    ) -> None:
        if listener is not None and partitions:
            await self._call(partial(listener, sorted(partitions)), errors)

    async def _call(self, callback: Callable[[], object], errors: list[Exception]) -> None:
        was_busy, self.is_busy = self.is_busy, True
        try:
            result = callback()
            if inspect.iscoroutine(result):
                await result
        except Exception as error:  # noqa: BLE001 - poll raises it
            errors.append(error)
        finally:
            self.is_busy = was_busy

    # -- commits

    def committed(
        self, callback: CommitCallback, offsets: Offsets, error: RaftlogError | None
    ) -> None:
        """Queue the callback of a completed commit for the application. Runs on the loop."""
        self._done.append(partial(callback, offsets, error))
        self._subscription.interrupt()

    async def _call_done(self, errors: list[Exception]) -> None:
        while self._done:
            await self._call(self._done.popleft(), errors)

    # -- the end

    async def give_up(self, errors: list[Exception], *, only_processed: bool) -> Reading:
        """Call ``on_revoke`` or ``on_lost`` for all partitions. Returns what to commit."""
        self._subscription.interrupted = False
        if only_processed:
            self._subscription.forget_unprocessed()
        membership = self._membership
        if membership.phase is Phase.IN:
            held = dict.fromkeys(self._subscription.parts, "")
            await self._notify(self.listeners.on_revoke, held, errors)
        elif membership.phase is Phase.LOST and (change := membership.take()) is not None:
            await self._notify(
                self.listeners.on_lost or self.listeners.on_revoke, change.lost, errors
            )
        offsets: Offsets | None = None if self._member.settings.auto_commit else {}
        return self._member.reading(offsets, automatic=True)

    async def end(self, errors: list[Exception]) -> None:
        """Call the remaining commit callbacks, and raise the first exception of a callback."""
        await self._call_done(errors)
        _raise_first(errors)


def _raise_first(errors: list[Exception]) -> None:
    for error in errors[1:]:
        logger.error("additional consumer callback failed", exc_info=error)
    if errors:
        raise errors[0]


def check_listener(name: str, listener: Any, *, coroutines: bool) -> None:
    if listener is None:
        return
    if not callable(listener):
        raise TypeError(f"{name}={listener!r} is not a function (list of TopicPartition) or None")
    if not coroutines and inspect.iscoroutinefunction(listener):
        raise TypeError(f"{name}={listener!r} is a coroutine function. Use raftlog.aio for it")


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing, and return its result."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise TypeError("a callback returned an awaitable. Use raftlog.aio for coroutine callbacks")
