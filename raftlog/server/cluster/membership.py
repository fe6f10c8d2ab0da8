"""Cluster membership of this broker: its registration, and fencing of failed brokers (KIP-903).

A broker registers at every start, with its address, its data directory and its incarnation (boot
number). It is fenced until it is ready to serve and requests to be unfenced. The leader of the
``cluster`` group fences each broker without a message for ``broker.session.timeout.ms``. A fenced
broker leads no partition and joins no ISR until it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from raftlog.config import Address
from raftlog.consensus import Applied, Outcome
from raftlog.replication.cluster_commands import (
    ClusterCommand,
    FenceBroker,
    RegisterBroker,
    SetKafkaAddress,
    UnfenceBroker,
)
from raftlog.replication.cluster_state import BrokerRecord, ClusterMachine, Refused
from raftlog.replication.cluster_voters import next_voters
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.consensus_plane import ConsensusPlane

logger = logging.getLogger(__name__)

CLUSTER_GROUP: Final = "cluster"


class Membership:
    """``poll`` proposes the next command that this broker's membership needs, one at a time."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        rack: str,
        voters: Sequence[int],
        address: Callable[[], Address],
        kafka_address: Callable[[], Address],
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        session_seconds: float,
        is_ready: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """``voters``: first voters of the cluster group, by configuration.

        ``address``, ``kafka_address``: of this broker for clients; see ``SetKafkaAddress``.
        ``is_ready``: whether every replica that the cluster assigns to this broker is open.
        """
        self._broker_id = broker_id
        self._me = me
        self._rack = rack
        self._voters = voters
        self._address = address
        self._kafka_address = kafka_address
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._session_seconds = session_seconds
        self._is_ready = is_ready
        self._now = now
        self._deciding = False
        # Rejected command, and the state version at which this broker learned that.
        self._refused: tuple[ClusterCommand, int] | None = None
        self._refused_until = 0.0  # monotonic seconds
        self.refusal = ""  # reason why the cluster rejects this broker, for the operator
        self.is_leaving = False

    @property
    def is_registered(self) -> bool:
        record = self._machine.brokers.get(self._broker_id)
        return (
            record is not None
            and record.directory_id == self._me.directory_id
            and record.boot == self._me.boot
            and (record.host, record.port) == tuple(self._address())
        )

    @property
    def is_in(self) -> bool:
        """Whether this broker is registered in this incarnation, and not fenced."""
        return self.is_registered and not self._machine.brokers[self._broker_id].fenced

    def poll(self) -> None:
        """Propose the next command. Called often; does nothing while a proposal is in flight."""
        if self._deciding:
            return
        command = self._wanted()
        if command is not None:
            self._propose(command)
        elif self._plane.leads(CLUSTER_GROUP):
            self._seal_if_due()

    def _wanted(self) -> ClusterCommand | None:
        machine = self._machine
        if not machine.cluster_id or self.is_leaving:
            return None
        if self._me.directory_id in machine.removed:
            return None  # this broker was decommissioned, and stops
        command: ClusterCommand | None = None
        if not self.is_registered:
            command = self._registration()
        elif not self._has_kafka_address():
            command = self._with_kafka_address()
        elif machine.brokers[self._broker_id].fenced and self._is_ready():
            mine = machine.brokers[self._broker_id]
            command = UnfenceBroker(id=mine.id, broker_epoch=mine.broker_epoch)
        is_refused = self._refused == (command, machine.version)
        if command is not None and (not is_refused or self._now() >= self._refused_until):
            return command
        return self._fencing() if self._plane.leads(CLUSTER_GROUP) else None

    def _registration(self) -> RegisterBroker:
        address = self._address()
        return RegisterBroker(
            id=self._broker_id,
            host=address.host,
            port=address.port,
            rack=self._rack,
            directory_id=self._me.directory_id,
            boot=self._me.boot,
        )

    def _has_kafka_address(self) -> bool:
        mine = self._machine.brokers[self._broker_id]
        return (mine.kafka_host, mine.kafka_port) == tuple(self._kafka_address())

    def _with_kafka_address(self) -> SetKafkaAddress:
        mine, address = self._machine.brokers[self._broker_id], self._kafka_address()
        return SetKafkaAddress(
            id=mine.id, broker_epoch=mine.broker_epoch, host=address.host, port=address.port
        )

    def _fencing(self) -> FenceBroker | None:
        for _, record in sorted(self._machine.brokers.items()):
            if record.fenced:
                continue
            silent = self._liveness.silent_seconds(record.id)
            if silent >= self._session_seconds:
                logger.warning(
                    "broker fenced: broker=%d reason=session_timeout silent_s=%.1f",
                    record.id,
                    silent,
                )
                return FenceBroker(id=record.id, broker_epoch=record.broker_epoch)
            if self._is_on_another_disk(record):
                logger.warning("broker fenced: broker=%d reason=directory_id_changed", record.id)
                return FenceBroker(id=record.id, broker_epoch=record.broker_epoch)
        return None

    def _is_on_another_disk(self, record: BrokerRecord) -> bool:
        """Whether a registered broker is connected with another data directory. The registered one
        no longer exists, even after a short interruption, and must be fenced for the new one to
        register.
        """
        seen = self._liveness.incarnation_of(record.id)
        return (
            seen is not None
            and self._liveness.is_linked(record.id)
            and seen.directory_id != record.directory_id
        )

    def _seal_if_due(self) -> None:
        """End the generation of the cluster group if its voters change (``next_voters``)."""
        machine, liveness = self._machine, self._liveness
        voters = self._plane.voters(CLUSTER_GROUP)
        wanted = next_voters(
            voters,
            brokers=machine.brokers,
            removed=frozenset(machine.removed.values()),
            configured=self._voters,
            linked=liveness.linked_directory,
        )
        if wanted is None:
            return
        logger.info(
            "voters changed: group=%s admitted=%s removed=%s",
            CLUSTER_GROUP,
            sorted(b for b, directory in wanted.items() if voters.get(b) != directory),
            sorted(voters.keys() - wanted.keys()),
        )
        self._deciding = True

        def done(_outcome: Outcome) -> None:
            self._deciding = False

        self._plane.seal(CLUSTER_GROUP, wanted, done)

    def _propose(self, command: ClusterCommand) -> None:
        self._deciding = True

        def done(outcome: Outcome) -> None:
            self._deciding = False
            if not isinstance(outcome, Applied):
                logger.debug("proposal failed: command=%s outcome=%s", command, outcome)
                return
            if isinstance(outcome.result, Refused):
                if self.refusal != outcome.result.message:
                    logger.error("cluster rejected the command: reason=%s", outcome.result.message)
                self.refusal = outcome.result.message
                # A retry is mostly pointless until the state has changed. But the command may have
                # been rejected in an older state than the one that this broker knows by now.
                self._refused = command, self._machine.version
                self._refused_until = self._now() + self._session_seconds
                return
            self.refusal = ""
            self.poll()

        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), done)
