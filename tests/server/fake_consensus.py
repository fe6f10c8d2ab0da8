"""A plane with fakes around it: a node that notes its calls, and workers.

The loop's time is virtual, and a sync is done when the test says so.
"""

from __future__ import annotations

import asyncio
import errno
import math
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, cast

from raftlog.consensus import ConsensusNode, Outcome
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.scheduling import Workers
from tests.client.virtual import VirtualLoop


class Ticket:
    """What would be synced."""

    def run(self) -> None:
        pass


class FakeNode:
    """Notes what it is told. Every input but a tick makes its journal dirty."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.dirty = False
        self.out: Ticket | None = None
        self.outbox: list[str] = []
        self.sent: list[str] = []
        self.done: deque[Callable[[Outcome], None]] = deque()
        self.next_tick_at = math.inf
        self.on_receive: Callable[[], None] = lambda: None
        self.on_complete: Callable[[], None] = lambda: None
        self.role = "follower"
        self.open: set[str] = set()  # groups
        self.is_busy = False

    def _input(self, *call: Any) -> None:
        self.calls.append(call)
        self.dirty = True
        self.outbox.append(str(call[0]))

    def receive(self, peer: int, envelope: bytes, now: float) -> None:
        self._input("receive", peer, envelope, now)
        self.on_receive()

    def peer_up(
        self, peer: int, directory_id: str, boot: int, now: float, *, run: str = ""
    ) -> None:
        self._input("peer_up", peer, directory_id, boot, now)

    def peer_down(self, peer: int, now: float) -> None:
        self._input("peer_down", peer, now)

    def open_group(
        self,
        group_id: str,
        machine: Any,
        *,
        voters: Any,
        base: bytes,
        now: float,
        needs_leader: bool = True,
    ) -> None:
        self._input("open_group", group_id, dict(voters), base, now)
        self.open.add(group_id)

    def close_group(self, group_id: str, *, forget: bool) -> None:
        self._input("close_group", group_id, forget)
        self.open.discard(group_id)

    def force_generation(
        self,
        group_id: str,
        voters: Any,
        now: float,
        *,
        base: bytes | None = None,
        above: int = 0,
    ) -> None:
        self._input("force_generation", group_id, dict(voters), now, base, above)

    def propose(
        self, group_id: str, command: bytes, done: Callable[[Outcome], None], now: float
    ) -> None:
        self._input("propose", group_id, command, now)
        self.done.append(done)

    def seal(
        self,
        group_id: str,
        voters: Any,
        done: Callable[[Outcome], None],
        now: float,
        generation: int,
    ) -> None:
        self._input("seal", group_id, dict(voters), now, generation)
        self.done.append(done)

    def status(self, group_id: str) -> Any:
        status = {"role": self.role, "group_id": group_id, "generation": 4}
        return type("Status", (), status)()

    def leads(self, group_id: str) -> bool:
        return group_id in self.open and self.role == "leader"

    def tick(self, now: float) -> None:
        assert self.out is None, "a tick while the disk is at work"
        self.calls.append(("tick", now))
        if now >= self.next_tick_at:
            self.next_tick_at = math.inf

    def next_tick(self, now: float) -> float:
        return self.next_tick_at

    def begin_sync(self) -> Ticket | None:
        assert self.out is None, "two tasks at a time"
        if not self.dirty:
            self.sent += self.outbox
            self.outbox = []
            return None
        self.dirty = False
        self.out = Ticket()
        return self.out

    def complete_sync(self, task: Ticket, now: float) -> None:
        assert task is self.out
        self.out = None
        self.sent += self.outbox
        self.outbox = []
        self.on_complete()

    def failed_sync(self, task: Ticket, error: OSError) -> DiskFullError | StorageFailedError:
        assert task is self.out
        assert isinstance(error, OSError)
        self.out = None
        if error.errno == errno.ENOSPC:
            self.dirty = True
            return DiskFullError("no room")
        return StorageFailedError(str(error))

    def inputs(self) -> list[str]:
        return [call[0] for call in self.calls if call[0] != "tick"]

    def ticks(self) -> list[float]:
        return [call[1] for call in self.calls if call[0] == "tick"]


class FakeWorkers:
    """Runs nothing until it is told that a sync is done."""

    def __init__(self) -> None:
        self.out: list[Callable[[Any, Exception | None], None]] = []
        self.begun = 0

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        self.begun += 1
        self.out.append(done)

    def finish(self, error: Exception | None = None) -> None:
        self.out.pop()(None, error)


class Scene:
    """A plane with fakes around it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.node = FakeNode()
        self.workers = FakeWorkers()
        self.failed: list[StorageFailedError] = []
        self.outcomes: list[Outcome] = []
        self.plane = ConsensusPlane(
            cast(ConsensusNode, self.node),
            loop,
            cast(Workers, self.workers),
            on_failed=self.failed.append,
            disk_full_pause_s=0.5,
            propose_seconds_max=15.0,
        )

    async def turn(self) -> None:
        await asyncio.sleep(0)

    async def come_to_rest(self) -> None:
        """Sync whatever there is to sync."""
        await self.turn()
        while self.workers.out:
            self.workers.finish()
            await self.turn()


def play(test: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(test(Scene(loop)))
    finally:
        loop.close()
