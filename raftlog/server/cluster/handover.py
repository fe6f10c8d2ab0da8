"""Controlled shutdown: transfer leadership before a stop, to avoid an election timeout.

The broker transfers its partitions to live members of the ISR. Then it has itself fenced, so that
no controller elects it and leaders remove it from their ISRs. It copies until they have: the high
watermark of a partition waits for every member of its ISR. If any of this fails, nothing is lost:
the other brokers detect the stop (Kafka's controlled shutdown, KIP-841).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from raftlog.errors import RaftlogError
from raftlog.replication.cluster_commands import FenceBroker
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.replication.commands import Elect
from raftlog.replication.election import transfer
from raftlog.server.cluster.hosted_partition import HostedPartition
from raftlog.server.cluster.liveness import Liveness
from raftlog.server.cluster.membership import CLUSTER_GROUP, Membership
from raftlog.server.consensus_plane import ConsensusPlane

logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.02
TRANSFERS_AT_A_TIME: Final = 500


class Handover:
    """The shutdown of one broker. Call ``run`` once."""

    def __init__(
        self,
        broker_id: int,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        membership: Membership,
        leading: Callable[[], Iterable[HostedPartition]],
        hosted: Callable[[], Iterable[HostedPartition]],
        voters: Callable[[], Collection[int]],
    ) -> None:
        """``leading``, ``hosted``: the partitions that this broker leads, and stores or votes for,
        now. ``voters``: of the cluster group.
        """
        self._broker_id = broker_id
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._membership = membership
        self._leading = leading
        self._hosted = hosted
        self._voters = voters

    async def run(self, *, seconds_max: float) -> None:
        """Return when others lead all partitions that they can, or after ``seconds_max``. Raises
        nothing.
        """
        self._membership.is_leaving = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds_max
        work = loop.create_task(self._hand_over())
        # Without a majority nothing can be committed. Typically all brokers stop at the same time.
        while (  # noqa: ASYNC110 - what is waited for has no event
            not work.done() and loop.time() < deadline and self._has_majority()
        ):
            await asyncio.sleep(POLL_SECONDS)
        if not work.done():
            work.cancel()
            logger.warning(
                "stopping while leading partitions: reason=transfer_timeout. The other brokers "
                "elect leaders when the session of this broker ends"
            )
        await asyncio.gather(work, return_exceptions=True)
        if not work.cancelled() and (mistake := work.exception()) is not None:
            logger.error(
                "leadership transfer failed: reason=internal_error. Report this error",
                exc_info=mistake,
            )

    async def _hand_over(self) -> None:
        movable = self._movable()
        for start in range(0, len(movable), TRANSFERS_AT_A_TIME):
            await asyncio.gather(
                *(self._transfer(*each) for each in movable[start : start + TRANSFERS_AT_A_TIME])
            )
        await self._leave()
        # The partition controllers elect leaders for the failed transfers, as this broker is fenced
        # now.
        while (  # noqa: ASYNC110 - what is waited for has no event
            self._movable() or any(map(self._holds_back, self._hosted()))
        ):
            await asyncio.sleep(POLL_SECONDS)

    def _holds_back(self, hosted: HostedPartition) -> bool:
        """Whether the leader of a partition waits for this broker, and is about to remove it."""
        record, leader = self._machine.brokers.get(self._broker_id), hosted.state.leader
        return (
            record is not None
            and record.fenced
            and leader not in (None, self._broker_id)
            and self._liveness.is_live(leader)
            and self._broker_id in hosted.state.isr
        )

    def _movable(self) -> list[tuple[HostedPartition, Elect]]:
        """Return the partitions that this broker leads and another could, with the election
        command.
        """
        found = []
        for hosted in self._leading():
            state = hosted.state
            elects = (transfer(state, broker, self._liveness) for broker in state.replicas)
            elect = next((each for each in elects if isinstance(each, Elect)), None)
            if elect is not None:
                found.append((hosted, elect))
        return found

    async def _transfer(self, hosted: HostedPartition, elect: Elect) -> None:
        try:
            await self._plane.propose(hosted.group_id, elect.encode())
        except RaftlogError as error:
            logger.info("leadership transfer failed: partition=%s error=%s", hosted, error)

    async def _leave(self) -> None:
        """Have this broker fenced, so that no other broker waits for it."""
        record = self._machine.brokers.get(self._broker_id)
        if record is None or not self._membership.is_in:
            return
        command = FenceBroker(id=record.id, broker_epoch=record.broker_epoch)
        try:
            await self._plane.propose(CLUSTER_GROUP, command.encode())
        except RaftlogError as error:
            logger.info("broker not fenced before its stop: error=%s", error)

    def _has_majority(self) -> bool:
        voters = self._voters()
        there = sum(map(self._liveness.is_linked, voters))
        return 2 * there > len(voters)
