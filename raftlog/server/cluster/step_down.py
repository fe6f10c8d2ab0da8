"""How a broker whose disk is full, or hangs, makes way for others: what it has to propose.

A leader hands its leadership to a member of the ISR, a follower leaves the ISR, and one that is
needed to commit anything has a witness take its place: nothing that is committed is given up by any
of these. Decides only; for how long is ``server.hindrance``'s.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.replication.commands import ChangeIsr, ChangeReplicas, Elect
from raftlog.replication.election import choose_replacement, transfer
from raftlog.replication.partition_state import PartitionState


def next_step(
    state: PartitionState,
    broker_id: int,
    *,
    is_live: Callable[[int], bool],
    directory_of: Callable[[int], str | None],
    boot_of: Callable[[int], int | None],
) -> Elect | ChangeIsr | None:
    """What to propose; None while nobody else could do more.

    The leader asks the replicas after it, in a ring: with several full disks, all get their turn.
    A follower stays where ``min.insync.replicas`` could not be met without it: it is left to lag.
    """
    if broker_id not in state.isr or broker_id not in state.replicas:
        return None
    if state.leader == broker_id:
        place = state.replicas.index(broker_id)
        for other in state.replicas[place + 1 :] + state.replicas[:place]:
            elect = transfer(
                state, other, is_live=is_live, directory_of=directory_of, boot_of=boot_of
            )
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
    """As of a replica that is gone: a witness that takes its place, or copies beside it.

    Only while too few are in sync for anything to be committed. For a disk that has let nothing
    grow for ``replica.replacement.delay.ms``.
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
