"""Events for operators, derived from two successive committed states. Pure.

Every broker that applies the committed states derives the same events, so the events of a cluster
remain available after the loss of a broker. Events of several brokers with the same kind, object
and version are the same event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from raftlog.replication.cluster_records import BrokerRecord
from raftlog.replication.commands import BrokerId
from raftlog.replication.partition_state import PartitionState

LEADER_ELECTED: Final = "leader-elected"
UNCLEAN_LEADER_ELECTED: Final = "unclean-leader-elected"
LEADER_LOST: Final = "leader-lost"
ISR_SHRUNK: Final = "isr-shrunk"
ISR_EXPANDED: Final = "isr-expanded"
REPLICAS_CHANGED: Final = "replicas-changed"
BROKER_REGISTERED: Final = "broker-registered"
BROKER_FENCED: Final = "broker-fenced"
BROKER_UNFENCED: Final = "broker-unfenced"
DISK_LEVEL_CHANGED: Final = "disk-level-changed"
KINDS: Final = (
    LEADER_ELECTED, UNCLEAN_LEADER_ELECTED, LEADER_LOST, ISR_SHRUNK, ISR_EXPANDED,
    REPLICAS_CHANGED, BROKER_REGISTERED, BROKER_FENCED, BROKER_UNFENCED, DISK_LEVEL_CHANGED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """A committed change. ``topic`` is empty and ``partition`` -1 for an event of a broker.

    ``broker``: the new leader, or the broker of a broker event; -1 for other events. ``version``:
    of the state after the change, which identifies the event within its partition or broker.
    """

    kind: str
    text: str
    topic: str = ""
    partition: int = -1
    broker: int = -1
    leader_epoch: int = -1
    version: int = 0
    topic_id: str = ""


def partition_events(
    topic: str, topic_id: str, partition: int, before: PartitionState, after: PartitionState
) -> list[Event]:
    """Return the events of one partition, the election first."""
    found: list[Event] = []

    def add(kind: str, text: str, broker: int = -1) -> None:
        epoch, version = after.leader_epoch, after.version
        found.append(Event(kind, text, topic, partition, broker, epoch, version, topic_id))

    if after.leader is None:
        if before.leader is not None:
            add(LEADER_LOST, f"broker {before.leader} is no longer the leader; no broker leads")
    elif (before.leader, before.leader_epoch) != (after.leader, after.leader_epoch):
        is_unclean = after.unclean_epoch == after.leader_epoch
        previous = "no broker" if before.leader is None else f"broker {before.leader}"
        text = f"broker {after.leader} leads in epoch {after.leader_epoch}, after {previous}"
        if is_unclean:
            text += ". Acknowledged records may be lost: an operator accepted that"
        add(UNCLEAN_LEADER_ELECTED if is_unclean else LEADER_ELECTED, text, after.leader)
    isr = f"the ISR is {_ids(after.isr)}"
    if left := before.isr.keys() - after.isr.keys():
        add(ISR_SHRUNK, f"broker {_ids(left)} left the ISR; {isr}")
    if joined := after.isr.keys() - before.isr.keys():
        add(ISR_EXPANDED, f"broker {_ids(joined)} joined the ISR; {isr}")
    if set(before.replicas) != set(after.replicas):
        add(REPLICAS_CHANGED, f"the replicas are {_ids(after.replicas)}, after "
                              f"{_ids(before.replicas)}")  # fmt: skip
    return found


def broker_events(
    before: Mapping[BrokerId, BrokerRecord], after: Mapping[BrokerId, BrokerRecord], version: int
) -> list[Event]:
    """Return the events of the brokers, by id. ``version``: of the cluster state after them."""
    found: list[Event] = []
    for broker, now in sorted(after.items()):
        was = before.get(broker)
        if was == now:
            continue
        if was is None or was.broker_epoch != now.broker_epoch:
            where = f"{now.host}:{now.port}"
            text = f"broker {broker} registered at {where}, incarnation {now.boot}"
            found.append(Event(BROKER_REGISTERED, text, broker=broker, version=version))
        if now.fenced and was is not None and not was.fenced:
            text = f"broker {broker} was fenced: it leads and follows nothing"
            found.append(Event(BROKER_FENCED, text, broker=broker, version=version))
        if not now.fenced and (was is None or was.fenced):
            text = f"broker {broker} was unfenced: it can lead and follow"
            found.append(Event(BROKER_UNFENCED, text, broker=broker, version=version))
    return found


def disk_event(broker: BrokerId, text: str, number: int) -> Event:
    """Return the event of a broker whose disk crossed a watermark. Only that broker
    records it.     ``number``: identifies the event among those of the broker.
    """
    return Event(DISK_LEVEL_CHANGED, text, broker=broker, version=number)


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ",".join(map(str, sorted(brokers)))
