"""How a broker gives up a copy that is damaged, or may lack acknowledged records: step by step.

It does nothing while the partition has no leader, or one whose own copy is not sound: its copy may
be the best that is left, and the election decides that (``surveys``). If it leads, it hands
leadership over to a better copy. Then it says that its copy is lost: it leaves the ISR and the ELR,
and the leader epoch grows, so that nothing which it acknowledged before can bring it back. Only
then may the copy be set aside and copied again, or its torn end be cut (P6). Decides only; nothing
is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.replication.commands import BrokerId, ChangeIsr, Command, Elect, ElectUnclean
from raftlog.replication.partition_state import PartitionState
from raftlog.types import LeaderEpoch

# What ``next_step`` says when the copy may go.
SET_ASIDE: Final = "set aside"


def next_step(
    state: PartitionState,
    broker_id: int,
    *,
    fenced_in: LeaderEpoch | None,
    has_leader: bool,
    is_sound: Callable[[BrokerId], bool],
    choose_other: Callable[[], Elect | ElectUnclean | None],
) -> Command | str | None:
    """What to propose now, or ``SET_ASIDE``; None while no other broker can lead.

    ``fenced_in``: the epoch that began when this broker's own proposal said that the copy is lost.
    It has not reported that copy's log since before then. ``is_sound``: whether a broker has
    reported that its copy is, as of ``state``. ``choose_other``: the election of another
    broker, whose copy is sound or, if there is none, longer than this one.
    """
    if broker_id not in state.replicas or not has_leader:
        return None  # not a replica: the copy goes anyway
    if state.leader == broker_id:
        return choose_other()
    if state.leader is None or not is_sound(state.leader):
        return None
    is_member = broker_id in state.isr or broker_id in state.elr
    if fenced_in is not None and state.leader_epoch >= fenced_in and not is_member:
        return SET_ASIDE
    isr = {broker: directory for broker, directory in state.isr.items() if broker != broker_id}
    return ChangeIsr(state.version, state.leader_epoch, isr, state.min_isr, (broker_id,))
