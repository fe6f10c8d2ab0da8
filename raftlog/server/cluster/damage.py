"""How a broker gives up a copy that is damaged: what it has to propose, one step after the other.

It hands leadership over, if it leads. Then it says that its copy is lost: it leaves the ISR and the
ELR, and the leader epoch grows, so that nothing which it acknowledged before can bring it back.
Only then may the copy be set aside, and made anew (P6). Decides only; nothing is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.replication.commands import ChangeIsr, Elect
from raftlog.replication.partition_state import PartitionState
from raftlog.types import LeaderEpoch

# What ``next_step`` says when the copy may go.
SET_ASIDE: Final = "set aside"


def next_step(
    state: PartitionState,
    broker_id: int,
    *,
    fenced_in: LeaderEpoch | None,
    is_live: Callable[[int], bool],
    directory_of: Callable[[int], str | None],
    boot_of: Callable[[int], int | None],
) -> Elect | ChangeIsr | str | None:
    """What to propose now, or ``SET_ASIDE``; None while nobody else can lead.

    ``fenced_in``: the epoch that began when this broker's own proposal said that the copy is lost.
    It has told nobody of that copy's log since before then.
    """
    if broker_id not in state.replicas:
        return None  # the copy goes anyway
    if state.leader == broker_id:
        return _hand_over(state, broker_id, is_live, directory_of, boot_of)
    is_member = broker_id in state.isr or broker_id in state.elr
    if fenced_in is not None and state.leader_epoch >= fenced_in and not is_member:
        return SET_ASIDE
    isr = {broker: directory for broker, directory in state.isr.items() if broker != broker_id}
    return ChangeIsr(state.version, state.leader_epoch, isr, state.min_isr, (broker_id,))


def _hand_over(
    state: PartitionState,
    broker_id: int,
    is_live: Callable[[int], bool],
    directory_of: Callable[[int], str | None],
    boot_of: Callable[[int], int | None],
) -> Elect | None:
    """To a member of the ISR or, if there is none, of the ELR: it holds all that is committed."""
    for members in (state.isr, state.elr):
        for broker in state.replicas:
            directory = members.get(broker)
            if broker == broker_id or directory is None:
                continue
            if is_live(broker) and directory_of(broker) == directory:
                return Elect(state.version, broker, directory, boot_of(broker) or 0)
    return None
