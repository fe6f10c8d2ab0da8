"""Addresses of the other brokers, as far as this broker knows them, and the links to them.

The cluster state has the address of every registered broker. This broker may know an old state: one
that was down for long, or that joins, learns from brokers at addresses that it was given, that it
has saved (``storage.brokers_file``), or that connected to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from raftlog.config import Address, Voter
from raftlog.errors import StorageFailedError
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.peers.links import PeerLinks
from raftlog.server.peers.registry import PeerRegistry
from raftlog.server.workers import Saver, Workers
from raftlog.storage import Store


class BrokerAddresses:
    """Call ``update`` when something may have changed."""

    def __init__(
        self,
        store: Store,
        machine: ClusterMachine,
        links: PeerLinks,
        registry: PeerRegistry,
        *,
        voters: Sequence[Voter],
        found: Mapping[int, Address],
        worker: Workers,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``voters``: of the configuration. ``found``: see ``Joining``. ``on_failed``: called when
        the disk has failed: the broker must stop.
        """
        self._store = store
        self._machine = machine
        self._links = links
        self._registry = registry
        self._voters = voters
        self._found = found
        self._saver = Saver(worker, loop, on_failed)
        self._saved: dict[int, Address] = dict(store.saved_brokers)
        self.stop = self._saver.stop
        self.brokers: list[int] = []  # IDs of those with an address, sorted
        self.is_current = False  # the known state contains the registration of this broker

    def update(self) -> None:
        """Connect to all known brokers.

        The first voters have their configured address, unless a broker with that ID was removed;
        all others their registered address. Other addresses count until the known state is current,
        those of brokers that connected also later.
        """
        machine = self._machine
        addresses = {} if self.is_current else {**self._saved, **self._found}
        for peer in self._registry.all_latest():
            if peer.directory_id not in machine.removed:
                addresses[peer.broker_id] = Address(peer.host, peer.port)
        addresses.update(self._registered())
        removed = frozenset(machine.removed.values())
        for voter in self._voters:
            if voter.id not in removed:
                addresses[voter.id] = voter.address
        self.brokers = sorted(addresses)
        self._links.set_addresses(addresses)

    def save(self) -> None:
        """Save the registered addresses for the next start, if they have changed."""
        addresses = self._registered()
        if not self._saver.is_busy and addresses != self._saved:
            save = partial(self._store.save_brokers, addresses)
            self._saver.save(save, partial(self._take, addresses))

    def _registered(self) -> dict[int, Address]:
        return {b.id: Address(b.host, b.port) for b in self._machine.brokers.values()}

    def _take(self, addresses: dict[int, Address]) -> None:
        self._saved = addresses
