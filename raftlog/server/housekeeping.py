"""Periodic work of a broker: retention, segment rolls, snapshots and checks of the files.

Each check of a log is short, and the loop continues in between; blocking work is in the log's
tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftlog import limits
from raftlog.config import BrokerConfig
from raftlog.server.log_cleaner import LogCleaner
from raftlog.server.partition import Partition
from raftlog.server.scrubber import STEP_SECONDS, LogVerifier, Scrubber

PLACE_INTERVAL_MS: Final = 1_000
HOSTS_PER_TURN: Final = 50  # checked before the event loop serves other work


class Housekeeping:
    """Rounds over all partitions, each with a separate interval."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        hosts: Callable[[], Sequence[Partition]],
        verifier: LogVerifier,
        compactor: LogCleaner,
        save_copies: Callable[[], Awaitable[None]],
    ) -> None:
        """``save_copies``: save the record of all copies (``storage.copies``)."""
        self._hosts = hosts
        self.compactor = compactor
        self.scrub = Scrubber(hosts, verifier, interval_ms=config.log_scrub_interval_ms)
        self._tasks = [
            loop.create_task(self._repeat(config.log_retention_check_interval_ms, self.retire)),
            loop.create_task(self._repeat(config.log_checkpoint_interval_ms, self.save)),
            loop.create_task(self._repeat(limits.COPIES_SAVE_MS, save_copies)),
            loop.create_task(self._repeat(config.log_cleaner_interval_ms, compactor.step)),
            loop.create_task(self._repeat(PLACE_INTERVAL_MS, self.check_places)),
        ]
        if config.log_scrub_interval_ms:
            scrubbing = self._repeat(int(STEP_SECONDS * 1_000), self.scrub.step)
            self._tasks.append(loop.create_task(scrubbing))

    async def retire(self) -> None:
        """Apply every topic's retention and segment age."""
        await self._visit(Partition.apply_retention)

    async def save(self) -> None:
        """Save the indexes and producers of every log, if they have changed."""
        await self._visit(Partition.save_snapshot)

    async def check_places(self) -> None:
        """Detect logs whose files are missing, also without reads and writes."""
        await self._visit(lambda host: host.log.check_place())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            await work()

    async def _visit(self, visit: Callable[[Partition], None]) -> None:
        for number, host in enumerate(tuple(self._hosts()), start=1):
            if host.closed is None:
                visit(host)
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
