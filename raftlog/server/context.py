"""State that a broker's components and request handlers share. It decides nothing."""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count

from raftlog.config import BrokerConfig
from raftlog.config.address import Address
from raftlog.consumer_groups import values
from raftlog.errors import AccessDeniedError
from raftlog.protocol.records import BrokerInfo
from raftlog.protocol.security import PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION_MIN, FeatureRange
from raftlog.record import batch
from raftlog.record.kafka_batch import ConvertedBatches
from raftlog.replication.cluster_commands import (
    SNAPSHOT_FORMAT,
    SNAPSHOT_FORMAT_MIN,
    snapshot_format,
)
from raftlog.replication.partition_state import STATE_FORMAT
from raftlog.security.acl import Principal
from raftlog.server.access.audit import Audit
from raftlog.server.access.control import AccessControl
from raftlog.server.administration import Administration
from raftlog.server.authentication import Authenticator
from raftlog.server.clock import BrokerClock
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.cluster.operations import ClusterOperations
from raftlog.server.connection import Connection
from raftlog.server.groups.coordinator import Coordinator, Lookup
from raftlog.server.maintenance import LogVerifier
from raftlog.server.metrics import Counters
from raftlog.server.partition import EventLog
from raftlog.server.purgatory import Purgatory
from raftlog.server.registry import SchemaRegistry
from raftlog.server.scheduling import ResponseBudget
from raftlog.server.topic_table import TopicTable
from raftlog.server.transactions.coordinator import TransactionCoordinator
from raftlog.storage import state_files


@dataclass(slots=True)
class BrokerContext:
    """Exists as long as the broker; used on its event loop only."""

    config: BrokerConfig
    clock: BrokerClock
    loop: AbstractEventLoop
    broker_id: int
    topics: TopicTable
    administration: Administration
    cluster: ClusterNode
    access: AccessControl
    operations: ClusterOperations
    purgatory: Purgatory
    responses: ResponseBudget
    counters: Counters
    events: EventLog
    verifier: LogVerifier
    authenticator: Authenticator
    audit: Audit = field(init=False)  # the broker sets these before it serves
    coordinator: Coordinator = field(init=False)
    lookup: Lookup = field(init=False)
    registry: SchemaRegistry = field(init=False)
    transactions: TransactionCoordinator = field(init=False)
    operator_secret: bytes = b""  # required for changes of the cluster; b"": not required
    cluster_secret: bytes = b""  # authenticates operators; b"": authentication is not required
    entropy: Callable[[int], bytes] = os.urandom
    address: Address = Address("", 0)  # address of this broker for clients
    kafka_address: Address = Address("", 0)  # for Kafka clients; port 0: ``address``
    is_stopping: bool = False  # True: respond where possible, start no new waits
    # Names of topics that are being created for Kafka clients that requested their metadata.
    creating: set[str] = field(default_factory=set)
    converted: ConvertedBatches = field(default_factory=ConvertedBatches)
    _turns: Iterator[int] = field(default_factory=count)

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
        # guard: changes of the cluster require its secret
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


# -- features --------------------------------------------------------------------------------------
#
# Features of a broker: the versions of formats and protocols that it reads and writes.
#
# The level of the protocol between brokers, and with it that of the cluster state, is part of the
# cluster state. Of the other formats, a broker writes the newest version that it has. So brokers of
# two releases can share a cluster if each reads what the other writes, which ``raftlog cluster
# features`` shows.


def _one(name: str, version: int) -> FeatureRange:
    return FeatureRange(name=name, version_min=version, version_max=version, level=version)


@cache
def features(peer_protocol: int) -> list[FeatureRange]:
    """Return all features, sorted by name. ``peer_protocol``: of the cluster state."""
    return [
        FeatureRange(
            name="cluster.state",
            version_min=SNAPSHOT_FORMAT_MIN,
            version_max=SNAPSHOT_FORMAT,
            level=snapshot_format(peer_protocol),
        ),
        FeatureRange(
            name="consumer.groups",
            version_min=values.VERSION_MIN,
            version_max=values.VERSION,
            level=values.VERSION,
        ),
        _one("data.directory", state_files.FORMAT_VERSION),
        _one("partition.state", STATE_FORMAT),
        FeatureRange(
            name="peer.protocol",
            version_min=PEER_PROTOCOL_VERSION_MIN,
            version_max=PEER_PROTOCOL_VERSION,
            level=peer_protocol,
        ),
        _one("record.batch", batch.MAGIC),
        FeatureRange(
            name="record.layout",
            version_min=batch.COLUMNS,
            version_max=batch.KAFKA_ROWS,
            level=batch.KAFKA_ROWS,
        ),
    ]
