"""A client that deletes and recreates the checked topic once."""

from __future__ import annotations

import asyncio

from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.testing.simulator.history import Outcome, Recreation
from raftlog.testing.simulator.process import ClientMachine
from raftlog.testing.simulator.workload import PATIENCE_S, TOPIC, Workload, create_topic


class Recreating:
    """Deletes and recreates the topic once. Continues after a kill and restart of its process."""

    def __init__(self, workload: Workload, after_s: float) -> None:
        self._workload = workload
        self._after_s = after_s
        self._recreation: Recreation | None = None
        self._is_deleted = False

    async def run(self, machine: ClientMachine) -> None:
        workload = self._workload
        if self._recreation is None:
            await asyncio.sleep(self._after_s)
            self._recreation = workload.history.recreation(machine.name)
        while not self._is_deleted:
            await self._delete(machine)
        await create_topic(workload, machine)
        workload.history.end(self._recreation, Outcome.OK)

    async def _delete(self, machine: ClientMachine) -> None:
        admin = self._workload.admin(machine)
        try:
            await admin.delete_topics([TOPIC])
        except UnknownTopicError:
            self._is_deleted = True
        except RaftlogError as error:
            self._workload.world.trace(f"topic deletion failed, retrying: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            self._is_deleted = True
        await admin.close()
