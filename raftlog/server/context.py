"""What a broker's parts and its request handlers share. Holds, decides nothing."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from raftlog.clock import Clock
from raftlog.config import BrokerConfig
from raftlog.config.address import Address
from raftlog.server.administration import Administration
from raftlog.server.budgets import ResponseBudget
from raftlog.server.metrics import Counters
from raftlog.server.purgatory import Purgatory
from raftlog.server.topic_table import TopicTable


@dataclass(slots=True)
class BrokerContext:
    """Lives as long as the broker; used on its event loop only."""

    config: BrokerConfig
    clock: Clock
    loop: AbstractEventLoop
    broker_id: int
    cluster_id: str
    topics: TopicTable
    administration: Administration
    purgatory: Purgatory
    responses: ResponseBudget
    counters: Counters
    address: Address = Address("", 0)  # where clients are told to find this broker
    is_stopping: bool = False  # answer what can be answered, wait for nothing new
    _turns: Iterator[int] = field(default_factory=count)

    def next_turn(self) -> int:
        """A number that grows, to take turns with."""
        return next(self._turns)
