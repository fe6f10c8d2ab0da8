"""Replacement of a copy that is corrupt or may lack acknowledged records, step by step.

There is no step while the partition has no leader, or a leader whose own copy is not complete: this
copy may be the best one left, and the election decides that (``surveys``). If this broker is the
leader, it transfers leadership to a better copy. Then it reports its copy as lost: it leaves the
ISR and the ELR, and the leader epoch increases, so that no earlier acknowledgement of this broker
can return it to the ISR. Only then may the copy be quarantined and copied again, or its torn write
be truncated (P6). This module decides only; it changes nothing.

The files of an offline copy may return with all their records. It is not replaced until its log
directory is repaired. It leaves the ISR only if enough other members remain: otherwise the leader
removes it when it lags, and it stays in the ELR.
"""

from __future__ import annotations

from collections.abc import Callable

from raftlog.replication.commands import BrokerId, ChangeIsr, Command, Elect, ElectUnclean
from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.hosted_partition import CopyChange
from raftlog.types import LeaderEpoch


def next_step(
    state: PartitionState,
    broker_id: int,
    *,
    fenced_in: LeaderEpoch | None,
    has_leader: bool,
    is_offline: bool,
    is_sound: Callable[[BrokerId], bool],
    choose_other: Callable[[], Elect | ElectUnclean | None],
) -> Command | CopyChange | None:
    """Return the command to propose now, or the replacement of the copy; None while no other broker
    can lead.

    ``fenced_in``: the epoch that began when this broker's own proposal reported the copy as lost.
    Since before that epoch, this broker has not reported the log of that copy. ``is_offline``:
    whether the log directory of the copy has failed. ``is_sound``:
    whether a broker has reported its copy as complete, as of ``state``. ``choose_other``: the
    election of another broker whose copy is complete or, if there is none, longer than this one.
    """
    if broker_id not in state.replicas or not has_leader:
        return None  # not a replica: the copy is removed anyway
    if state.leader == broker_id:
        return choose_other()
    if state.leader is None or not is_sound(state.leader):
        return None
    if is_offline and (broker_id not in state.isr or len(state.isr) <= state.min_isr):
        return None
    is_member = broker_id in state.isr or broker_id in state.elr
    if fenced_in is not None and state.leader_epoch >= fenced_in and not is_member:
        return CopyChange.REPLACE
    isr = {broker: directory for broker, directory in state.isr.items() if broker != broker_id}
    return ChangeIsr(state.version, state.leader_epoch, isr, state.min_isr, (broker_id,))
