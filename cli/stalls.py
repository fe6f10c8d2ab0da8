"""The notice that a producer waits, and why: on stderr, while the program goes on trying."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from raftlog import Admin
from raftlog.cli import health, output
from raftlog.errors import RaftlogError

STALL_SECONDS: Final = 3.0  # without an acknowledgement, while records wait for one
AGAIN_SECONDS: Final = 15.0  # between two notices of one stall
CHECK_SECONDS: Final = 0.5


class Stall:
    """Decides when a notice is due. Time is an argument: monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._delivered: int | None = None
        self._since = now
        self._due_after = STALL_SECONDS

    def is_due(self, now: float, *, delivered: int, waiting: int) -> bool:
        """Whether to print a notice now, at most once per ``AGAIN_SECONDS`` of a stall."""
        if delivered != self._delivered or not waiting:
            self._delivered, self._since, self._due_after = delivered, now, STALL_SECONDS
            return False
        if now - self._since < self._due_after:
            return False
        self._since, self._due_after = now, AGAIN_SECONDS
        return True


@contextmanager
def noted(
    sent: Callable[[], int], waiting: Callable[[], int], explain: Callable[[], str]
) -> Iterator[None]:
    """Print a notice while the block runs and nothing of what was sent is acknowledged."""
    ended = threading.Event()

    def watch() -> None:
        stall = Stall(time.monotonic())
        while not ended.wait(CHECK_SECONDS):
            count = waiting()
            if stall.is_due(time.monotonic(), delivered=sent() - count, waiting=count):
                reason = explain()
                if not ended.is_set():
                    output.note(f"raftlog: {count:,} records wait to be acknowledged: {reason}")

    threading.Thread(target=watch, name="raftlog-stalls", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def reason(bootstrap: str, topic: str) -> str:
    """Why nothing is acknowledged, as the cluster describes the topic's partitions."""
    try:
        with Admin(bootstrap) as admin:
            partitions = admin.describe_cluster([topic]).partitions
    except RaftlogError as error:
        return f"{error} (still trying)"
    stuck = [
        f"{part.topic}:{part.partition} has no leader that answers"
        f" (replicas {health.ids(part.replicas)}, in sync {health.ids(part.isr)})"
        for part in partitions
        if not part.is_available
    ]
    if not stuck:
        return "the brokers answer slowly (still trying)"
    return f"{'; '.join(stuck[:3])} (still trying; see `raftlog cluster status`)"
