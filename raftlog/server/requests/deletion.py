"""Deletion of records below an offset, on every in-sync replica.

A result without an error guarantees that no later leader has the records. A replica that does
not confirm usually leaves the ISR, and the remaining ones then decide. A replica that is slow only
with this is waited for until ``DELETE_SECONDS_MAX``. After that, the outcome on a later leader is
unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from raftlog.errors import (
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    ThrottledError,
)
from raftlog.server.context import BrokerContext
from raftlog.server.partition import Partition
from raftlog.server.reply import Exchange
from raftlog.server.turns import ITEMS_PER_STEP, Steps
from raftlog.types import Offset, check_not_internal

# Longer than the defaults of replica.lag.time.max.ms and broker.session.timeout.ms take to remove a
# replica from the ISR; shorter than the request timeout of clients.
DELETE_SECONDS_MAX: Final = 15.0
# Each deletion uses the threads that sync logs for a moment: producers must be served in between.
DELETIONS_AT_ONCE: Final = 8
TO_HIGH_WATERMARK: Final = -1

# The new log start offset, or the reason why it is not known.
Deleted: TypeAlias = Offset | RaftlogError


class Part(Protocol):
    """``before_offset``: ``TO_HIGH_WATERMARK`` for the high watermark."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def before_offset(self) -> Offset: ...


def _before(host: Partition, offset: Offset) -> Offset:
    """Return the offset up to which records are deleted. Raises ``OffsetOutOfRangeError``."""
    if offset < TO_HIGH_WATERMARK:
        raise OffsetOutOfRangeError(
            f"offset {offset} of {host.topic_partition}: records are deleted before an offset of 0 "
            f"or more, or before the high watermark ({TO_HIGH_WATERMARK})"
        )
    return host.high_watermark if offset == TO_HIGH_WATERMARK else offset


class Deletion:
    """One request. ``done`` is called when every partition has a result."""

    __slots__ = (
        "_answers",
        "_begun",
        "_check",
        "_context",
        "_done",
        "_parts",
        "_reply",
        "_running",
        "_timer",
        "_waiting",
    )

    def __init__(
        self,
        context: BrokerContext,
        reply: Exchange,
        parts: Sequence[Part],
        done: Callable[[list[Deleted]], None],
        *,
        check: Callable[[Partition], None] = lambda _host: None,
    ) -> None:
        """``parts``: at least one. ``check`` raises the error of a partition whose records must
        stay.
        """
        self._context = context
        self._check = check
        self._done = done
        self._reply = reply
        self._parts = parts
        # By the index of the partition in the request.
        self._answers: dict[int, Deleted] = {}
        self._waiting: dict[int, tuple[Partition, Offset]] = {}
        self._begun = 0
        self._running = False
        self._timer = context.loop.call_later(DELETE_SECONDS_MAX, self._expire)

    def steps(self) -> Steps:
        """Start deletions up to the limit. The end of one starts the next."""
        self._running = True
        while self._begun < min(len(self._parts), len(self._answers) + DELETIONS_AT_ONCE):
            index = self._begun
            self._begun += 1
            self._begin(index, self._parts[index])
            yield None
        self._running = False

    def _begin(self, index: int, part: Part) -> None:
        try:
            check_not_internal(part.topic)
            host = self._context.topics.host(part.topic, part.partition)
            self._check(host)
            before = _before(host, part.before_offset)
            self._waiting[index] = host, before
            host.delete_records(before, partial(self._deleted, index))
        except RaftlogError as error:
            self._answer(index, error=error)

    def _deleted(self, index: int, error: RaftlogError | None) -> None:
        if index in self._answers:  # it timed out
            return
        host, before = self._waiting[index]
        leadership = host.leadership
        start = before if leadership is None else max(before, leadership.committed_start)
        self._answer(index, start, error=error)

    def _expire(self) -> None:
        begun, self._begun = self._begun, len(self._parts)
        self._running = True  # from now on, the end of a deletion starts no other
        self._reply.go_on(self._give_up(begun))

    def _give_up(self, begun: int) -> Steps:
        for index, part in enumerate(self._parts):
            if not index % ITEMS_PER_STEP:
                yield None
            if index in self._answers:
                continue
            where = f"{part.topic}:{part.partition}"
            if index >= begun:
                error: RaftlogError = ThrottledError(
                    f"{where}: nothing was deleted, because the deletions before it took "
                    f"{DELETE_SECONDS_MAX:g} s. Try again with fewer partitions per request"
                )
            else:
                _, before = self._waiting[index]
                error = OutcomeUnknownError(
                    f"{where}: this broker has deleted the records before offset {before}, but "
                    f"not all in-sync replicas have confirmed the deletion within "
                    f"{DELETE_SECONDS_MAX:g} s. After a failover the records may be visible "
                    "again. Delete them again"
                )
            self._answer(index, error=error)

    def _answer(self, index: int, start: Offset = -1, *, error: RaftlogError | None) -> None:
        self._answers[index] = start if error is None else error
        if len(self._answers) == len(self._parts):
            self._timer.cancel()
            self._done([self._answers[number] for number in range(len(self._parts))])
        elif not self._running:
            self._reply.go_on(self.steps())
