"""Copy of the cluster state on a broker without a vote, durable, for a recovery without a voter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from raftlog.errors import StorageFailedError
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.scheduling import Saver, Workers
from raftlog.storage import Store
from raftlog.storage.state_files import ClusterCopy

SAVE_SECONDS: Final = 0.5  # seconds between two copies, at least: each contains the whole state


class StateCopy:
    """Call ``poll`` often. ``voters``: of the cluster group, as far as this broker knows."""

    def __init__(
        self,
        store: Store,
        machine: ClusterMachine,
        broker_id: int,
        *,
        has_vote: Callable[[], bool],
        voters: Callable[[], Mapping[int, str]],
        worker: Workers,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``on_failed``: called when the disk has failed: the broker must stop."""
        self._store = store
        self._machine = machine
        self._broker_id = broker_id
        self._has_vote = has_vote
        self._voters = voters
        self._saver = Saver(worker, loop, on_failed)
        self._loop = loop
        self._saved = store.saved_cluster
        self._due = 0.0
        self.stop = self._saver.stop

    def newest(self) -> ClusterCopy:
        """Return the newest state that this broker has: the known one, or that of its last run."""
        # guard: a broker that has never joined keeps no state of the cluster
        if self._machine.version < self._saved.version or not self._is_member():
            return self._saved
        voters = self._voters() or self._saved.voters
        return ClusterCopy(self._machine.version, self._machine.known(), voters)

    def poll(self) -> None:
        """Save the state if it has changed. A broker with a vote has it in its journal."""
        if self._saver.is_busy or self._has_vote() or self._loop.time() < self._due:
            return
        if not self._is_member():
            return
        voters = self._voters()
        is_new = self._machine.version > self._saved.version
        if voters and (is_new or dict(voters) != dict(self._saved.voters)):
            copy = self.newest()
            self._due = self._loop.time() + SAVE_SECONDS
            self._saver.save(partial(self._store.save_cluster, copy), partial(self._take, copy))

    def _is_member(self) -> bool:
        """Whether the state lists this broker. From another one, no recovery could continue: the
        cluster does not know the broker, so it would never notice the second history.
        """
        return self._broker_id in self._machine.brokers

    def _take(self, copy: ClusterCopy) -> None:
        self._saved = copy
