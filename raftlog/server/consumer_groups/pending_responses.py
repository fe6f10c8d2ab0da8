"""Responses that wait for the commit of earlier decisions, and for a leadership check.

An isolated leader commits nothing, and gets no notification of that. So a response that has waited
for long triggers a leadership check. If it fails, all waiting responses fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from raftlog.errors import (
    CommitUnknownError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    RaftlogError,
)
from raftlog.server.partition import Partition
from raftlog.server.rounds import Rounds
from raftlog.types import Offset

PATIENCE_SECONDS: Final = 2.0

Failed = Callable[[RaftlogError], None]


class _Answer:
    """One response. It ends once: by ``go``, or by ``failed``."""

    __slots__ = ("failed", "go", "is_appended", "missing", "since")

    def __init__(
        self, go: Callable[[], None], failed: Failed, *, is_appended: bool, missing: int, now: float
    ) -> None:
        self.go = go
        self.failed = failed
        self.is_appended = is_appended
        self.missing = missing  # number of unmet conditions
        self.since = now


class PendingResponses:
    """Waiting responses of one shard."""

    def __init__(
        self,
        host: Partition,
        confirmations: Rounds,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._host = host
        self._confirmations = confirmations
        self._loop = loop
        self._waiting: dict[_Answer, None] = {}  # in order of arrival
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def resolve(
        self,
        go: Callable[[], None],
        failed: Failed,
        *,
        end: Offset,
        confirmed_since: int | None = None,
        is_appended: bool = False,
    ) -> Callable[[], object]:
        """Call ``go`` once everything below ``end`` is committed; ``failed`` if it will not be.

        ``confirmed_since``: also wait for the confirmation that this broker still led after that
        mark of the confirmations. ``is_appended``: the response is about written records. If their
        commit cannot be determined, ``failed`` reports that.

        Returns a function that cancels both calls.
        """
        answer = _Answer(
            go,
            failed,
            is_appended=is_appended,
            missing=1 if confirmed_since is None else 2,
            now=self._loop.time(),
        )
        self._waiting[answer] = None
        on_condition = partial(self._on_condition, answer)
        self._host.when_committed(end, on_condition)
        if confirmed_since is not None and answer in self._waiting:
            self._confirmations.ask(on_condition, since=confirmed_since)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience)
        return partial(self._waiting.pop, answer, None)

    def _on_condition(self, answer: _Answer, error: RaftlogError | None) -> None:
        if answer not in self._waiting:
            return
        answer.missing -= 1
        if error is not None:
            del self._waiting[answer]
            answer.failed(self._failure(answer, error))
        elif answer.missing == 0:
            del self._waiting[answer]
            answer.go()

    def _failure(self, answer: _Answer, error: RaftlogError) -> RaftlogError:
        if answer.is_appended:
            return CommitUnknownError(str(error))
        if isinstance(error, NotEnoughReplicasError):
            return error
        return not_coordinator(self._host, str(error))

    def _lose_patience(self) -> None:
        self._timer = None
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return
        left = oldest.since + PATIENCE_SECONDS - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._lose_patience)
        else:
            self._confirmations.ask(self._patience_lost)

    def _patience_lost(self, error: RaftlogError | None) -> None:
        leadership = self._host.leadership
        if error is None and leadership is not None and not leadership.has_quorum:
            error = NotEnoughReplicasError(
                f"{self._host.topic_partition}: cannot commit the changes of its consumer groups: "
                "too few in-sync replicas. Start the missing brokers"
            )
        if error is not None:
            for answer in tuple(self._waiting):
                self._on_condition(answer, error)
        if self._waiting and self._timer is None:
            self._timer = self._loop.call_later(PATIENCE_SECONDS, self._lose_patience)


def not_coordinator(host: Partition, why: str) -> NotCoordinatorError:
    return NotCoordinatorError(
        f"this broker no longer coordinates the consumer groups of {host.topic_partition}: {why}"
    )
