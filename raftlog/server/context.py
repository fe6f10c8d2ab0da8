"""State that a broker's components and request handlers share. It decides nothing."""

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
from raftlog.security.principal import Principal
from raftlog.server.access.audit import Audit
from raftlog.server.access.control import AccessControl
from raftlog.server.administration import Administration, TopicAuthority
from raftlog.server.authentication import Authenticator
from raftlog.server.broker_clock import BrokerClock
from raftlog.server.budgets import ResponseBudget
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.connection import Connection
from raftlog.server.consumer_groups.coordinator import Coordinator
from raftlog.server.consumer_groups.lookup import Lookup
from raftlog.server.event_log import EventLog
from raftlog.server.metrics import Counters
from raftlog.server.operations import Operations
from raftlog.server.peers.peering import Peering
from raftlog.server.purgatory import Purgatory
from raftlog.server.scrubber import LogVerifier
from raftlog.server.topic_table import TopicTable


@dataclass(slots=True)
class BrokerContext:
    """Exists as long as the broker; used on its event loop only."""

    config: BrokerConfig
    clock: BrokerClock
    loop: AbstractEventLoop
    broker_id: int
    topics: TopicTable
    administration: Administration
    authority: TopicAuthority
    access: AccessControl
    operations: Operations
    purgatory: Purgatory
    responses: ResponseBudget
    counters: Counters
    events: EventLog
    verifier: LogVerifier
    authenticator: Authenticator
    audit: Audit = field(init=False)  # the broker sets these before it serves
    coordinator: Coordinator = field(init=False)
    lookup: Lookup = field(init=False)
    operator_secret: bytes = b""  # required for changes of the cluster; b"": not required
    cluster_secret: bytes = b""  # authenticates operators; b"": authentication is not required
    entropy: Callable[[int], bytes] = os.urandom
    address: Address = Address("", 0)  # address of this broker for clients
    kafka_address: Address = Address("", 0)  # for Kafka clients; port 0: ``address``
    is_stopping: bool = False  # True: respond where possible, start no new waits
    cluster: ClusterNode | None = None  # None: single-broker mode
    # Names of topics that are being created for Kafka clients that requested their metadata.
    creating: set[str] = field(default_factory=set)
    _turns: Iterator[int] = field(default_factory=count)

    def clustered(self) -> ClusterNode:
        """Return the cluster components. Raises ``UnsupportedFeatureError`` in single-broker
        mode.
        """
        if self.cluster is None:
            raise UnsupportedFeatureError(
                "this broker runs in single-broker mode. Start brokers with `voters` to create "
                "a cluster (raftlog up --brokers 3)"
            )
        return self.cluster

    @property
    def peering(self) -> Peering | None:
        """Return the state of the handlers for other brokers."""
        return None if self.cluster is None else self.cluster.peering

    def brokers(self, local_host: str, *, for_kafka: bool = False) -> list[BrokerInfo]:
        """Return the brokers that clients can connect to, this one first. ``local_host``: its host
        if it listens on every interface. ``for_kafka``: with the addresses for Kafka clients.
        """
        address = self.kafka_address if for_kafka and self.kafka_address.port else self.address
        me = BrokerInfo(
            id=self.broker_id,
            host=address.host or local_host,
            port=address.port,
            rack=self.config.rack or None,
        )
        return [me, *self.operations.other_brokers(for_kafka=for_kafka)]

    def check_operator(self, connection: Connection, what: str) -> None:
        """Raise ``AccessDeniedError`` unless the connection is an operator's or another broker's,
        or operators have no secret to prove. With access rules, they have decided before.
        """
        if self.access.is_enforced:
            return
        is_proved = connection.is_operator or connection.peer_identity is not None
        if self.operator_secret and not is_proved:
            raise AccessDeniedError(
                f"{what} requires the cluster secret. Set --cluster-secret-file or "
                "RAFTLOG_CLUSTER_SECRET_FILE (Admin: cluster_secret_file)"
            )

    def owner(self, connection: Connection) -> Principal | None:
        """Return the owner of what the client creates; None if clients do not authenticate."""
        return connection.principal if self.access.is_enforced else None

    def next_turn(self) -> int:
        """Return an increasing number, to rotate the first partition."""
        return next(self._turns)
