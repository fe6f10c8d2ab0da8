"""What the hazard tests do to brokers: elections by hand, forged envelopes. No assertions here."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from raftlog.consensus.raft_group import RaftGroup
from raftlog.consensus.transport import Envelope, decode, encode
from tests.consensus.harness import GROUP, Broker, Network
from tests.consensus.stock import in_virtual_time


def breaks_stock(schedule: Callable[..., bool], path: Path) -> bool:
    """Whether the library as it is released fails in this schedule."""
    with in_virtual_time() as clock, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of files that it leaves open
        is_broken = schedule(clock, path)
        gc.collect()
    return is_broken


def raft_of(broker: Broker) -> RaftGroup:
    """The broker's part in the generation."""
    raft = broker.node._groups[GROUP].raft
    if raft is None:
        raise LookupError(f"broker {broker.id} is no voter")
    return raft


def cluster(count: int = 3) -> Network:
    """Brokers with one group, and a leader."""
    network = Network(count)
    network.open()
    network.leader()
    return network


def campaign(broker: Broker) -> None:
    """Let a broker find that it has waited for a leader long enough."""
    raft_of(broker).campaign_at(broker.network.now)
    broker.node._touch(broker.node._groups[GROUP])
    broker.node.tick(broker.network.now)
    broker.sync()


def elect(network: Network, broker_id: int, voters: Iterable[int]) -> Broker:
    """Have a broker lead, by the votes of ``voters``. Links only among them and it are left."""
    broker, sides = network[broker_id], [broker_id, *voters]
    for other in network.brokers.values():
        if other is not broker and other.is_leader():
            network.cut_all(other.id)
            network.run(10, until=lambda other=other: not other.is_leader())
    network.split(sides)
    if not broker.is_leader():
        campaign(broker)
        network.run(10, until=broker.is_leader)
    return broker


def entries(broker: Broker) -> list[tuple[bytes, int, int]]:
    return list(broker.journal.group(GROUP)[:])


def durable_entries(broker: Broker) -> int:
    """How many a power cut leaves; the broker is another process after it."""
    broker.restart(power_cut=True)
    return len(entries(broker))


def forge(data: bytes, *, sequence: int = 0, messages: list[Any] | None = None) -> bytes:
    """The same envelope with a later number, or with other messages."""
    arrived = decode(data)
    return encode(
        Envelope(
            arrived.boot,
            arrived.link,
            arrived.sequence + sequence,
            arrived.directory_id,
            arrived.journal_sequence,
            arrived.messages if messages is None else messages,
        )
    )
