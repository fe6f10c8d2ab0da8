"""What a broker does now and then: retention, rolling by age, compaction, snapshots for a quick
next start, and a look at what lies on its disk.

Each look at a log is short, and in between the loop goes on; what blocks is in the log's tickets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from raftlog.config import BrokerConfig
from raftlog.server.compacting import Compactor
from raftlog.server.replica_host import PartitionHost
from raftlog.server.verifying import STEP_SECONDS, Scrub, Verifier

HOSTS_PER_TURN: Final = 50  # looked at before the loop serves others


class Housekeeping:
    """Rounds over all partitions, each at its own interval."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        hosts: Callable[[], Sequence[PartitionHost]],
        verifier: Verifier,
        compactor: Compactor,
        save_copies: Callable[[], None],
    ) -> None:
        """``save_copies``: ask for the record of all copies to be saved (``storage.copies``)."""
        self._hosts = hosts
        self._save_copies = save_copies
        self.compactor = compactor
        self.scrub = Scrub(hosts, verifier, interval_ms=config.log_scrub_interval_ms)
        self._tasks = [
            loop.create_task(self._repeat(config.log_retention_check_interval_ms, self.retire)),
            loop.create_task(self._repeat(config.log_checkpoint_interval_ms, self.save)),
            loop.create_task(self._repeat(config.log_cleaner_interval_ms, compactor.step)),
        ]
        if config.log_scrub_interval_ms:
            scrubbing = self._repeat(int(STEP_SECONDS * 1_000), self.scrub.step)
            self._tasks.append(loop.create_task(scrubbing))

    async def retire(self) -> None:
        """Apply every topic's retention and segment age."""
        await self._visit(PartitionHost.apply_retention)

    async def save(self) -> None:
        """Save every log's indexes and producers, as far as they have changed. What is known of all
        copies is as of the round before.
        """
        self._save_copies()
        await self._visit(PartitionHost.save_snapshot)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, interval_ms: int, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1_000)
            await work()

    async def _visit(self, look: Callable[[PartitionHost], None]) -> None:
        for number, host in enumerate(tuple(self._hosts()), start=1):
            if host.closed is None:
                look(host)
            if number % HOSTS_PER_TURN == 0:
                await asyncio.sleep(0)
