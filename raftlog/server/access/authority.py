"""Changes of access rules and quotas: commands of the cluster state.

Every broker has the state, and applies the committed changes in the same order. In single-broker
mode, the broker stores the state in a file of its data directory.
"""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable
from typing import Any, Protocol

from raftlog.errors import StorageFailedError, from_code
from raftlog.replication.cluster_commands import ClusterCommand
from raftlog.replication.cluster_state import ClusterChange, ClusterMachine, Done, Refused
from raftlog.server.workers import Workers
from raftlog.storage import Store


class AccessAuthority(Protocol):
    """The authority over access rules and quotas: this broker's file, or the cluster."""

    @property
    def machine(self) -> ClusterMachine:
        """The state, for reading only."""
        ...

    async def propose(self, command: ClusterCommand) -> Any:
        """Return the value of the command, which is durable and applied on this broker; None if
        a broker with a vote proposed it.

        Raises the refusal, or the reason why it was not decided.
        """
        ...


class LocalAccess:
    """The ``AccessAuthority`` in single-broker mode."""

    def __init__(
        self, store: Store, worker: Workers, on_failed: Callable[[StorageFailedError], None]
    ) -> None:
        self.machine = ClusterMachine()
        self._store = store
        self._worker = worker
        self._on_failed = on_failed
        self._turn = Lock()

    def load(self, on_change: Callable[[ClusterChange], None]) -> None:
        """Take the stored state, at the start of the broker. ``on_change``: called for it, and for
        each later change.
        """
        self.machine.on_change = on_change
        self.machine.restore(self._store.saved_access)

    async def propose(self, command: ClusterCommand) -> Any:
        async with self._turn:
            changed = ClusterMachine()
            changed.restore(self.machine.snapshot())
            outcome = value_of(changed.apply(command.encode()))
            state = changed.snapshot()
            try:
                await self._worker.run(lambda: self._store.save_access(state))
            except StorageFailedError as error:
                self._on_failed(error)
                raise
            self.machine.restore(state)
            return outcome


def value_of(outcome: Done | Refused | Any) -> Any:
    """Return the value of an applied command. Raises the error of a refused one."""
    if isinstance(outcome, Refused):
        raise from_code(outcome.code, outcome.message)
    return getattr(outcome, "value", None)
