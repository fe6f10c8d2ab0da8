"""Voters of the cluster group: the next change, one broker at a time.

The leader of the cluster group ends the generation with a seal that names the voters of the next
one. Consecutive sets differ by one broker, as in the single-server changes of Ongaro's Raft thesis
(section 4.1), so a majority of the former voters contains one that stays and has the seal. Several
voters change at the same time only if their data directories changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from raftlog.replication.cluster_records import BrokerRecord
from raftlog.replication.commands import BrokerId, DirectoryId

# (brokers from this number on, voters of the cluster group): few, because every change of the
# cluster state waits for a majority of them.
_VOTERS_BY_BROKERS: Final = ((5, 5), (3, 3), (0, 1))


def voters_wanted(brokers: int) -> int:
    """Return the number of voters up to which brokers that join become voters."""
    return next(voters for least, voters in _VOTERS_BY_BROKERS if brokers >= least)


def next_voters(
    voters: Mapping[BrokerId, DirectoryId],
    *,
    brokers: Mapping[BrokerId, BrokerRecord],
    removed: Collection[BrokerId],
    configured: Collection[BrokerId],
    linked: Callable[[BrokerId], DirectoryId | None],
) -> dict[BrokerId, DirectoryId] | None:
    """Return the voters of the next generation; None if the current ones remain.

    ``removed``: IDs of decommissioned brokers. ``configured``: voters of the first generation, by
    configuration. ``linked``: data directory of a connected broker, else None.

    - A voter that is connected with another data directory votes with it, and so does a configured
      voter that had no vote yet.
    - A broker that is being decommissioned is replaced, or removed if no other broker is available.
    - Up to ``voters_wanted``, another broker is added.

    A broker gets a vote only while it is registered, not fenced, and connected. A majority of the
    next voters is connected.
    """
    draining = {broker for broker, record in brokers.items() if record.draining}
    wanted = {*voters, *configured} - draining
    wanted -= {broker for broker in removed if broker not in brokers and broker not in voters}
    returned = {
        broker: directory
        for broker in sorted(wanted)
        if (directory := linked(broker)) is not None and directory != voters.get(broker)
    }
    if returned:
        return dict(sorted({**voters, **returned}.items()))
    ready = [
        record.id
        for _, record in sorted(brokers.items())
        if not (record.fenced or record.draining)
        and record.id not in voters
        and linked(record.id) == record.directory_id
    ]
    recruit = {broker: brokers[broker].directory_id for broker in ready[:1]}
    # One that was removed without its consent, while it was down, is a voter without a record.
    leaving = [b for b in sorted(voters) if b in draining or (b in removed and b not in brokers)]
    if leaving:
        left = min(leaving, key=lambda broker: (linked(broker) == voters[broker], broker))
        others = {broker: at for broker, at in voters.items() if broker != left}
        staying = len(brokers) - len(draining)
        is_replaced = len(others) < voters_wanted(staying)
        choices = [{**others, **recruit}] if is_replaced else [others]
        choices.append(others)
    elif len(voters) < voters_wanted(sum(not record.draining for record in brokers.values())):
        choices = [{**voters, **recruit}] if recruit else []
    else:
        choices = []
    for choice in choices:
        there = [broker for broker, directory in choice.items() if linked(broker) == directory]
        if choice and 2 * len(there) > len(choice):
            return dict(sorted(choice.items()))
    return None
