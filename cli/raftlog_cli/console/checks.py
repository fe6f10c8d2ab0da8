"""Checks of the copies of partitions: brokers verify them, and their chain values must be equal.

A check continues in steps of ``CONSOLE_CHECK_STEP_MS``, one for each request of the page. Without a
request, it does nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from raftlog import Admin, limits
from raftlog.client.descriptions import CopyVerification, PartitionOverview, PartitionVerification
from raftlog.clock import SystemClock
from raftlog.errors import UnknownPartitionError, UnknownTopicError
from raftlog.types import Offset, check_topic_name
from raftlog_cli import health
from raftlog_cli.console.paging import PARTITION_ROWS, page_of
from raftlog_cli.http_parameters import choice, whole

if TYPE_CHECKING:
    from raftlog_cli.console.pages import Pages

# Of one copy, the worst first.
STATES: Final = ("corrupt", "differs", "unverified", "partial", "equal")


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy. ``detail``: description for people. ``share``: verified part of the copy, 0 to 1.

    ``up_to``: the copy is equal to the reference below this offset, or was verified below it.
    """

    topic: str
    partition: int
    copy: CopyVerification
    is_leader: bool
    state: str
    detail: str
    up_to: Offset
    share: float


class Check:
    """Check of the copies of some partitions. Thread-safe; one step runs at a time."""

    def __init__(self, partitions: list[PartitionOverview]) -> None:
        self.partitions = partitions
        self.started_ms = SystemClock().wall_ms()
        self.is_stopped = False
        self._results: list[PartitionVerification] = []  # only the last one may be partial
        self._turn = threading.Lock()

    @property
    def done(self) -> int:
        """The number of partitions whose result is final."""
        return len(self._results) - (bool(self._results) and self._results[-1].is_partial)

    @property
    def is_running(self) -> bool:
        return not self.is_stopped and self.done < len(self.partitions)

    def step(self, admin: Admin) -> None:
        """Continue for ``CONSOLE_CHECK_STEP_MS``. Raises the errors of the client.

        Does nothing while another step runs.
        """
        if not self._turn.acquire(blocking=False):
            return
        try:
            clock = SystemClock()
            until = clock.monotonic() + limits.CONSOLE_CHECK_STEP_MS / 1_000
            while self.is_running and (left_s := until - clock.monotonic()) > 0:
                before = None
                if self._results and self._results[-1].is_partial:
                    before = self._results[-1]
                found = admin.verify_copies(
                    self.partitions[self.done], before, time_ms=round(1_000 * left_s)
                )
                self._results[self.done :] = [found]
        finally:
            self._turn.release()

    def rows(self) -> list[CopyRow]:
        """Return the copies that were verified, the worst first."""
        found = [
            _row(partition, result, copy)
            for partition, result in zip(self.partitions, list(self._results), strict=False)
            for copy in result.copies
        ]
        return sorted(found, key=lambda row: STATES.index(row.state))


def _row(
    partition: PartitionOverview, result: PartitionVerification, copy: CopyVerification
) -> CopyRow:
    end = result.high_watermark
    state, detail = health.copy_state(copy, end)
    if state == "equal" and result.is_partial:
        state = "partial"  # it is compared when the other copies are verified
    return CopyRow(
        result.topic,
        result.partition,
        copy,
        copy.broker == partition.leader,
        state,
        detail,
        copy.end_offset if copy.differs_at < 0 else copy.differs_at,
        min(copy.end_offset / end, 1.0) if end else 1.0,
    )


class Checks:
    """The last ``CONSOLE_CHECKS_MAX`` checks of one user. Thread-safe."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int | None], Check] = OrderedDict()

    def find(self, topic: str, partition: int | None) -> Check | None:
        """Return the last check of a partition, or of a topic (None)."""
        with self._lock:
            return self._kept.get((topic, partition))

    def start(self, topic: str, partition: int | None) -> Check:
        """Replace the last check by a new one.

        Raises ``UnknownTopicError`` or ``UnknownPartitionError``.
        """
        check_exists(self._admin, topic, partition)
        found = [
            each
            for each in self._admin.describe_cluster([topic]).partitions
            if partition in (None, each.partition)
        ]
        made = Check(sorted(found, key=lambda each: each.partition))
        with self._lock:
            self._kept[topic, partition] = made
            self._kept.move_to_end((topic, partition))
            while len(self._kept) > limits.CONSOLE_CHECKS_MAX:
                self._kept.popitem(last=False)
        return made


def check_exists(admin: Admin, topic: str, partition: int | None) -> None:
    """Raise ``UnknownTopicError`` or ``UnknownPartitionError`` for what does not exist."""
    known = admin.find_topics([topic]).get(topic)
    if known is None:
        raise UnknownTopicError(f"topic {topic!r} does not exist")
    if partition is not None and partition >= known.partition_count:
        raise UnknownPartitionError(
            f"{topic} has no partition {partition}: it has 0 to {known.partition_count - 1}"
        )


# -- page ------------------------------------------------------------------------------------------


def _place(values: Mapping[str, str]) -> tuple[str, int | None]:
    number = whole(values, "partition", 0) if values.get("partition") else None
    return check_topic_name(values["name"]), number


def check(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of the check of a topic or a partition."""
    topic, partition = _place(parameters)
    found = pages.checks.find(topic, partition)
    if found is None:
        check_exists(pages.admin, topic, partition)
    rows = [] if found is None else found.rows()
    path = f"/topics/{topic}/check"
    return {
        "topic": topic,
        "partition": parameters.get("partition", ""),
        "check": found,
        "counts": {state: sum(row.state == state for row in rows) for state in STATES},
        "page": page_of(
            rows,
            PARTITION_ROWS,
            path,
            {name: parameters.get(name, "") for name in ("partition", "page")},
        ),
    }


def continue_check(pages: Pages, form: Mapping[str, str]) -> str:
    """Start, continue or stop a check. Returns the URL of its page."""
    topic, partition = _place(form)
    action = choice(form, "action", ("continue", "start", "stop"))
    found = pages.checks.find(topic, partition)
    if action == "start":
        found = pages.checks.start(topic, partition)
    if found is not None and action == "stop":
        found.is_stopped = True
    elif found is not None:
        found.step(pages.admin)
    kept = {name: form.get(name, "") for name in ("partition", "page")}
    query = urlencode({name: value for name, value in kept.items() if value})
    return f"/topics/{topic}/check" + (f"?{query}" if query else "")
