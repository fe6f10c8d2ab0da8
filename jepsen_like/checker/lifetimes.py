"""The lives of a topic: what was before it was deleted is another log than what came after. Pure.

A deletion takes effect at some moment between its invocation and its *cut*. An operation that was
over before the invocation belongs to the life before, one that was invoked after the cut to the
life after; of one in between nobody can say.

What is read is less certain: a broker that has not heard of the deletion yet may go on to answer
consumers, and while there are faults it may not hear of it for long. For reading, a deletion is
*settled* when it was cut and then no fault was there for a while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from raftlog.jepsen_like.checker.gather import FAIL, NEVER, OK, SECOND, Change, FaultSpan
from raftlog.jepsen_like.checker.runs import Ints

UNCLEAR = -1  # the life of what cannot be placed


class Lifetimes:
    """``invoked``, ``cut`` and ``settled``: of each deletion, in the order of their invocations.

    ``lag_ns``: for how long there must have been no fault.
    """

    def __init__(
        self,
        changes: Iterable[Change] = (),
        faults: Iterable[FaultSpan] = (),
        lag_ns: int = 10 * SECOND,
    ) -> None:
        ordered = sorted(changes, key=lambda change: change.invoked)
        deletions = [c for c in ordered if c.what == "delete" and c.outcome != FAIL]
        cuts = [_cut(change, ordered) for change in deletions]
        harmful = sorted((f.begun, f.ended) for f in faults if f.is_harmful)
        self.invoked: Ints = np.array([change.invoked for change in deletions], np.int64)
        self.cut: Ints = np.array(cuts, np.int64)
        self.settled: Ints = np.array([_settled(cut, harmful, lag_ns) for cut in cuts], np.int64)

    @property
    def last(self) -> int:
        """The number of the life that the topic is in at the end; the first one is 0."""
        return len(self.invoked)

    @property
    def is_clear(self) -> bool:
        """Whether it is known when the last life began."""
        return bool(np.all(self.cut < NEVER))

    @property
    def began(self) -> int:
        """When the last life may have begun at the earliest, in ns; 0 for a topic's only one."""
        return int(self.invoked[-1]) if len(self.invoked) else 0

    def at(self, invoked: Ints, completed: Ints) -> Ints:
        """The life that each change of the log belongs to, or ``UNCLEAR``."""
        return self._at(invoked, completed, self.cut)

    def seen_at(self, invoked: Ints, completed: Ints) -> Ints:
        """The life that was seen by each operation that reads, or ``UNCLEAR``."""
        return self._at(invoked, completed, self.settled)

    def _at(self, invoked: Ints, completed: Ints, ends: Ints) -> Ints:
        if not len(self.invoked):
            return np.zeros(len(invoked), np.int64)
        over = np.searchsorted(np.sort(ends), invoked, "left")
        begun = np.searchsorted(self.invoked, completed, "right")
        return np.where(begun > over, UNCLEAR, over)


def _cut(deletion: Change, changes: Sequence[Change]) -> int:
    """By when it certainly had taken effect. A deletion of which nobody knows has, once the topic
    is created or deleted anew; if it never is, ``NEVER``."""
    if deletion.outcome == OK:
        return deletion.completed
    later = [
        change.completed
        for change in changes
        if change.invoked > deletion.invoked
        and change.outcome == OK
        and change.what in {"create", "delete"}
    ]
    return min(later, default=NEVER)


def _settled(cut: int, faults: Sequence[tuple[int, int]], lag_ns: int) -> int:
    """``faults``: when each began and ended, in order."""
    quiet_since = cut
    for begun, ended in faults:
        if begun < quiet_since + lag_ns and ended > quiet_since:
            quiet_since = ended
    return min(quiet_since + lag_ns, NEVER)
