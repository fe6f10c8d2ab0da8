"""Proposals of a broker whose disk is full or hangs, so that other brokers replace it.

A leader transfers its leadership to a member of the ISR, and a follower leaves the ISR. A replica
without which nothing can be committed is replaced by a witness. None of these loses committed
records. This module decides only; ``server.hindrance`` measures the duration.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.replication.commands import ChangeIsr, ChangeReplicas, Elect
from raftlog.replication.election import BrokerView, choose_replacement, transfer
from raftlog.replication.partition_state import PartitionState


def next_step_down(
    state: PartitionState,
    broker_id: int,
    view: BrokerView,
) -> Elect | ChangeIsr | None:
    """Return the command to propose; None while no other broker could do more.

    The leader tries the replicas after it, in a ring: with several full disks, each gets a turn. A
    follower stays in the ISR if ``min.insync.replicas`` could not be met without it.
    """
    if broker_id not in state.isr or broker_id not in state.replicas:
        return None
    if state.leader == broker_id:
        place = state.replicas.index(broker_id)
        for other in state.replicas[place + 1 :] + state.replicas[:place]:
            elect = transfer(state, other, view)
            if isinstance(elect, Elect):
                return elect
        return None
    if state.leader is None or len(state.isr) <= state.min_isr:
        return None
    isr = {broker: directory for broker, directory in state.isr.items() if broker != broker_id}
    return ChangeIsr(state.version, state.leader_epoch, isr, state.min_isr)


def successor(
    state: PartitionState,
    broker_id: int,
    *,
    replication_factor: int,
    is_live: Callable[[int], bool],
) -> ChangeReplicas | None:
    """Return the replacement of a replica as if it had failed: by a witness, or by an additional
    copy.

    Only while too few replicas are in sync for any commit. For a disk on which no log could grow
    for ``replica.replacement.delay.ms``.
    """
    if broker_id in state.isr or len(state.isr) >= state.min_isr:
        return None
    return choose_replacement(
        state,
        replication_factor=replication_factor,
        dead_seconds=lambda broker: float(broker == broker_id),
        delay_seconds=0.0,
        is_live=lambda broker: broker != broker_id and is_live(broker),
    )
