"""Moves of a partition's replicas to other brokers: the next step, and the voters that fit.

An operator's target is stored in the cluster state (``cluster_state.Target``). The partition
controller calls ``next_step`` until the partition has the target's replicas, so a move continues
after any crash: each step depends on committed state only. One copy moves at a time:

1. A new replica joins and copies all records (a *learner*). It has a vote only after the command
   that made it a replica was committed, in the next Raft group generation.
2. Once it is in sync, one replica that leaves is removed. A leader that leaves transfers its
   leadership first.
3. The next generation has exactly the replicas and the witnesses as voters. Then the next step.

Two consecutive generations differ by one replica, as in the single-server changes of Ongaro's Raft
thesis (section 4.1). A new voter may fail, and an even number of voters tolerates as many failures
as one voter fewer. So another broker becomes a witness until the move ends, where the cluster has
one: a partition then survives the failure of the learner in addition to all failures that it
survived before. A replica that leaves and is not in sync does not count, so a new one
replaces it immediately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from raftlog.replication.commands import BrokerId, ChangeReplicas, DirectoryId, Elect
from raftlog.replication.election import BrokerView, IsLive, accepted, transfer
from raftlog.replication.partition_state import PartitionState


def next_step(
    state: PartitionState,
    target: Sequence[BrokerId],
    view: BrokerView,
    *,
    copies_before: int,
    voters_wanted: int,
    brokers: Sequence[BrokerId],
) -> ChangeReplicas | Elect | None:
    """Return the next step towards ``target``, or None if there is none or it must wait.

    ``copies_before``: number of replicas before the move. ``voters_wanted``: voters of the
    partition after the move (``placement.voters_count``). ``brokers``: brokers that can become a
    witness during the move. The caller must apply a change of the voters in a new generation before
    it calls this function again.
    """
    leaving = [broker for broker in state.replicas if broker not in target]
    joining = [broker for broker in target if broker not in state.replicas]
    if not leaving and not joining:
        return _in_order(state, target)
    spare = [b for b in leaving if b not in state.isr and b not in state.elr]
    recruit = next((broker for broker in joining if view.is_live(broker)), None)
    if spare and (recruit is not None or not joining):
        return _changed(state, target, joined=recruit, left=spare[0], voters_wanted=voters_wanted)
    in_sync = {broker for broker in state.isr if view.is_live(broker)}
    if any(broker in state.replicas and broker not in in_sync for broker in target):
        return None  # a learner copies, or a replica of the target has failed
    most = max(len(target), copies_before)
    if joining and len(state.replicas) <= most:
        surplus = surplus_witness(state, voters_most=voters_wanted, is_live=view.is_live)
        if recruit is None or surplus is not None:
            return surplus
        grown = _changed(state, target, joined=recruit, left=None, voters_wanted=voters_wanted)
        return grown and _with_odd_voters(state, grown, filter(view.is_live, brokers))
    least = most if joining else len(target)
    others = [b for b in reversed(state.replicas) if b in leaving and b != state.leader]
    left = others[0] if others else state.leader
    if left is None or len(in_sync - {left}) < least:
        return None
    if left != state.leader:
        return _changed(state, target, joined=None, left=left, voters_wanted=voters_wanted)
    elects = (transfer(state, broker, view) for broker in target)
    return next((each for each in elects if isinstance(each, Elect)), None)


def surplus_witness(
    state: PartitionState, *, voters_most: int, is_live: IsLive
) -> ChangeReplicas | None:
    """Return the change that removes one witness if the partition has more than ``voters_most``
    voters. One that is not live is removed first.
    """
    if len(state.replicas) + len(state.witnesses) <= voters_most or not state.witnesses:
        return None
    gone = next((w for w in state.witnesses if not is_live(w)), state.witnesses[-1])
    witnesses = tuple(witness for witness in state.witnesses if witness != gone)
    return accepted(state, ChangeReplicas(state.version, state.replicas, witnesses))


def relocated_witness(
    state: PartitionState, *, leaving: Collection[BrokerId], brokers: Iterable[BrokerId]
) -> ChangeReplicas | None:
    """Return the change that replaces a witness on a broker that is being decommissioned, or None.

    ``leaving``: such brokers. ``brokers``: those that can become a witness. If there is none, the
    witness is removed, and with it another one if the number of voters were even.
    """
    gone = next((witness for witness in state.witnesses if witness in leaving), None)
    if gone is None:
        return None
    voters = {*state.replicas, *state.witnesses}
    recruit = next((broker for broker in brokers if broker not in voters), None)
    witnesses = [witness for witness in state.witnesses if witness != gone]
    if recruit is not None:
        witnesses.append(recruit)
    elif witnesses and (len(state.replicas) + len(witnesses)) % 2 == 0:
        witnesses.pop()
    return accepted(state, ChangeReplicas(state.version, state.replicas, tuple(witnesses)))


def fitting_voters(
    state: PartitionState,
    voters: Mapping[BrokerId, DirectoryId],
    linked: Callable[[BrokerId], DirectoryId | None],
) -> dict[BrokerId, DirectoryId]:
    """Return the voters of the generation that fits ``state``: its replicas and witnesses.

    ``voters``: of the current generation. ``linked``: data directory of a connected broker, else
    None. A connected broker votes with its current directory. A broker that is not connected keeps
    its vote, and receives none.
    """
    fitting = {}
    for broker in sorted({*state.replicas, *state.witnesses}):
        directory = linked(broker) or voters.get(broker)
        if directory is not None:
            fitting[broker] = directory
    return fitting or dict(voters)


def _in_order(state: PartitionState, target: Sequence[BrokerId]) -> ChangeReplicas | None:
    if state.replicas == tuple(target):
        return None
    return accepted(state, ChangeReplicas(state.version, tuple(target), state.witnesses))


def _changed(
    state: PartitionState,
    target: Sequence[BrokerId],
    *,
    joined: BrokerId | None,
    left: BrokerId | None,
    voters_wanted: int,
) -> ChangeReplicas | None:
    """Return the change with one more replica, one fewer, or both. Replicas of the target are
    first, in its order. A replica that leaves becomes a witness if a voter would be missing.
    """
    replicas = [b for b in target if b in state.replicas or b == joined]
    replicas += [b for b in state.replicas if b not in target and b != left]
    witnesses = [witness for witness in state.witnesses if witness != joined]
    if left is not None and len(replicas) + len(witnesses) < voters_wanted:
        witnesses.append(left)
    return accepted(state, ChangeReplicas(state.version, tuple(replicas), tuple(witnesses)))


def _with_odd_voters(
    state: PartitionState, command: ChangeReplicas, brokers: Iterable[BrokerId]
) -> ChangeReplicas:
    """Return the command with one more witness if its number of voters is even."""
    voters = {*command.replicas, *command.witnesses}
    helper = next((broker for broker in brokers if broker not in voters), None)
    if helper is None or len(voters) % 2:
        return command
    return ChangeReplicas(state.version, command.replicas, (*command.witnesses, helper))
