"""What a broker's parts and its request handlers share. Holds, decides nothing."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from raftlog.config import BrokerConfig
from raftlog.config.address import Address
from raftlog.errors import AccessDeniedError, UnsupportedFeatureError
from raftlog.protocol.metadata import BrokerInfo
from raftlog.server.administration import Administration, TopicAuthority
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.budgets import ResponseBudget
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.connection import Connection
from raftlog.server.consumer_groups.coordinator import Coordinator
from raftlog.server.consumer_groups.lookup import Lookup
from raftlog.server.metrics import Counters
from raftlog.server.operations import Operations
from raftlog.server.peers.peering import Peering
from raftlog.server.purgatory import Purgatory
from raftlog.server.scrubber import LogVerifier
from raftlog.server.topic_table import TopicTable


@dataclass(slots=True)
class BrokerContext:
    """Lives as long as the broker; used on its event loop only."""

    config: BrokerConfig
    clock: BrokerClock
    loop: AbstractEventLoop
    broker_id: int
    topics: TopicTable
    administration: Administration
    authority: TopicAuthority
    operations: Operations
    purgatory: Purgatory
    responses: ResponseBudget
    counters: Counters
    verifier: LogVerifier
    coordinator: Coordinator = field(init=False)  # the broker sets both before it serves
    lookup: Lookup = field(init=False)
    operator_secret: bytes = b""  # who changes the cluster has to know it; b"": nobody is asked
    entropy: Callable[[int], bytes] = os.urandom
    address: Address = Address("", 0)  # where clients are told to find this broker
    is_stopping: bool = False  # answer what can be answered, wait for nothing new
    cluster: ClusterNode | None = None  # None: this broker stands alone
    _turns: Iterator[int] = field(default_factory=count)

    def clustered(self) -> ClusterNode:
        """What a broker among others has. Raises ``UnsupportedFeatureError`` on one that is not."""
        if self.cluster is None:
            raise UnsupportedFeatureError(
                "this broker runs in single-broker mode. Start brokers with `voters` to create "
                "a cluster (raftlog up --brokers 3)"
            )
        return self.cluster

    @property
    def peering(self) -> Peering | None:
        """What the handlers for other brokers work with."""
        return None if self.cluster is None else self.cluster.peering

    def brokers(self, local_host: str) -> list[BrokerInfo]:
        """Those that clients can ask, this one first, which was reached at ``local_host``."""
        me = BrokerInfo(
            id=self.broker_id,
            host=self.address.host or local_host,
            port=self.address.port,
            rack=self.config.rack or None,
        )
        return [me, *self.operations.other_brokers()]

    def check_operator(self, connection: Connection, what: str) -> None:
        """Raise ``AccessDeniedError`` unless the connection is an operator's or another broker's,
        where there is a secret to prove."""
        is_proved = connection.is_operator or connection.peer_identity is not None
        if self.operator_secret and not is_proved:
            raise AccessDeniedError(
                f"{what} requires the cluster secret. Set --cluster-secret-file or "
                "RAFTLOG_CLUSTER_SECRET_FILE (Admin: cluster_secret_file)"
            )

    def next_turn(self) -> int:
        """A number that grows, to take turns with."""
        return next(self._turns)
