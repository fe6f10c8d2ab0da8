"""The lives of a topic: before and after a deletion there are different logs. Pure.

A deletion takes effect between its invocation and its *cut*. An operation that completed before the
invocation belongs to the earlier life, one that was invoked after the cut to the later life. For
others the life is unknown.

Reads are less certain: a broker that does not know of the deletion yet can still respond to
consumers, and under faults this can take long. For reads, a deletion is *visible* when it was cut
and then no fault was active for some time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from raftlog.testing.checker.gather import FAIL, NEVER, OK, SECOND, Change, FaultSpan
from raftlog.testing.checker.runs import Ints

UNCLEAR = -1  # the operation cannot be assigned to a life


class Lifetimes:
    """Lives of one topic. ``invoked``, ``cut`` and ``visible``: for each deletion, in the order of
    their invocations.

    ``lag_ns``: required time without a fault.
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
        self.visible: Ints = np.array([_visible(cut, harmful, lag_ns) for cut in cuts], np.int64)

    @property
    def last(self) -> int:
        """The number of the topic's life at the end; the first one is 0."""
        return len(self.invoked)

    @property
    def is_clear(self) -> bool:
        """Whether the start of the last life is known."""
        return bool(np.all(self.cut < NEVER))

    @property
    def began(self) -> int:
        """Earliest possible start of the last life, in ns; 0 if the topic has only one."""
        return int(self.invoked[-1]) if len(self.invoked) else 0

    def at(self, invoked: Ints, completed: Ints) -> Ints:
        """Return the life that each change of the log belongs to, or ``UNCLEAR``."""
        return self._at(invoked, completed, self.cut)

    def seen_at(self, invoked: Ints, completed: Ints) -> Ints:
        """Return the life that each reading operation observed, or ``UNCLEAR``."""
        return self._at(invoked, completed, self.visible)

    def _at(self, invoked: Ints, completed: Ints, ends: Ints) -> Ints:
        if not len(self.invoked):
            return np.zeros(len(invoked), np.int64)
        over = np.searchsorted(np.sort(ends), invoked, "left")
        begun = np.searchsorted(self.invoked, completed, "right")
        return np.where(begun > over, UNCLEAR, over)


def _cut(deletion: Change, changes: Sequence[Change]) -> int:
    """Return when it had certainly taken effect. A deletion with an unknown outcome has, once the
    topic is created or deleted again; otherwise ``NEVER``."""
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


def _visible(cut: int, faults: Sequence[tuple[int, int]], lag_ns: int) -> int:
    """Return when the deletion is visible. ``faults``: start and end of each, in order."""
    quiet_since = cut
    for begun, ended in faults:
        if begun < quiet_since + lag_ns and ended > quiet_since:
            quiet_since = ended
    return min(quiet_since + lag_ns, NEVER)
