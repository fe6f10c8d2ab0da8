"""What may be tried again, and after how long. Pure: chance and time are arguments.

The class of an error decides, as drawn in ``raftlog.errors``:

    RetriableError        nothing was done: again, until the deadline
    OutcomeUnknownError   again only where repeating is harmless (idempotent API, sequenced batch)
    anything else         raised at once: the same again gives the same answer

Some errors say that somebody's news are old, the client's or the broker's: whoever leads a
partition, and whether there is one, is then to be asked of others (``is_old_news``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.errors import (
    CommitUnknownError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    RetriableError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)

Chance: TypeAlias = Callable[[], float]  # as random.random: 0 <= x < 1

# Of the broker that was taken for a partition's leader; these may pass with fresh metadata.
_OLD_NEWS: Final = (
    NotLeaderError,
    LeaderNotAvailableError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    NotEnoughReplicasError,
    CommitUnknownError,
    UnknownTopicError,
    UnknownPartitionError,
)
# Of those, the ones that a broker gives that is itself behind, or cut off.
_BEHIND: Final = (
    LeaderNotAvailableError,
    UnknownLeaderEpochError,
    NotEnoughReplicasError,
    UnknownTopicError,
    UnknownPartitionError,
)
_DOUBLINGS_MAX: Final = 30  # 2**30 times any first delay is over any longest one


def may_retry(error: BaseException, *, repeatable: bool) -> bool:
    """Whether the same request may be sent again after ``error``.

    ``repeatable``: doing it twice does no more than doing it once.
    """
    if isinstance(error, RetriableError):
        return True
    return repeatable and isinstance(error, OutcomeUnknownError)


def may_pass(error: BaseException, *, repeatable: bool) -> bool:
    """The same for a request to the leader of a partition that the metadata has.

    A broker that does not know it is behind: whether it exists is for the metadata to say.
    """
    if isinstance(error, UnknownTopicError | UnknownPartitionError):
        return True
    return may_retry(error, repeatable=repeatable)


def is_old_news(error: BaseException) -> bool:
    """Whether ``error``, about one partition, calls for fresh metadata."""
    return isinstance(error, _OLD_NEWS)


def is_behind(error: BaseException) -> bool:
    """Whether the broker that answered ``error`` may know less than others: rather ask those."""
    return isinstance(error, _BEHIND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential, with full jitter: clients that failed together do not return together."""

    first_ms: int
    longest_ms: int

    def seconds(self, attempt: int, chance: Chance) -> float:
        """How long to wait after failed attempt number ``attempt``, counted from 0."""
        ceiling_ms = min(self.longest_ms, self.first_ms << min(attempt, _DOUBLINGS_MAX))
        # At least a tenth, so that bad luck is not a busy loop.
        return ceiling_ms * (0.1 + 0.9 * chance()) / 1_000
