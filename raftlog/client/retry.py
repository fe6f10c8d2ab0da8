"""What may be tried again, and after how long. Pure: chance and time are arguments.

The class of an error decides, as drawn in ``raftlog.errors``:

    RetriableError        nothing was done: again, until the deadline
    OutcomeUnknownError   again only where repeating is harmless (idempotent API, sequenced batch)
    anything else         raised at once: the same again gives the same answer
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.errors import OutcomeUnknownError, RetriableError

Chance: TypeAlias = Callable[[], float]  # as random.random: 0 <= x < 1

_DOUBLINGS_MAX: Final = 30  # 2**30 times any first delay is over any longest one


def may_retry(error: BaseException, *, repeatable: bool) -> bool:
    """Whether the same request may be sent again after ``error``.

    ``repeatable``: doing it twice does no more than doing it once.
    """
    if isinstance(error, RetriableError):
        return True
    return repeatable and isinstance(error, OutcomeUnknownError)


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
