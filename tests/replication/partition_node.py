"""What the brokers of ``partition_world`` are made of, and what they say to each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from raftlog.replication.leadership import Diverged, Leadership, OutOfRange, last_epoch
from raftlog.replication.partition_state import BrokerId, Command, PartitionState
from raftlog.storage.segment import EpochCache


class Entry(NamedTuple):
    """One record. ``chain`` stands for everything up to it, as a batch's does."""

    epoch: int
    value: int
    chain: int


class Position(NamedTuple):
    """What a follower asks with."""

    last_epoch: int
    fetch_offset: int


@dataclass(frozen=True)
class Message:
    source: BrokerId
    to: BrokerId
    epoch: int


@dataclass(frozen=True)
class Fetch(Message):
    directory_id: str
    position: Position
    durable: int


@dataclass(frozen=True)
class Answer(Message):
    position: Position  # the one asked with
    differs: Diverged | OutOfRange | None
    chain: int | None  # of what lies below the entries, or below the new start
    entries: tuple[Entry, ...]
    high_watermark: int
    log_start: int


@dataclass
class Proposal:
    command: Command
    leadership: Leadership | None  # whose change of the ISR it is
    is_forgotten: bool = False  # its outcome will not be told any more


@dataclass
class Node:
    """One broker's process, its log, and what it has heard of the group."""

    id: BrokerId
    directory_id: str
    state: PartitionState
    boot: int = 0
    is_up: bool = True
    heard: int = 0  # the last state in the group's history that it knows
    acted_on: int = 0  # the last one that it took a role by; kept over a restart
    start: int = 0
    durable: int = 0
    log: list[Entry] = field(default_factory=list)
    chain_before: int | None = 0  # of what lay below ``start``; None: not known
    epochs: EpochCache = field(default_factory=EpochCache)
    high_watermark: int = 0
    leadership: Leadership | None = None
    asked: Position | None = None
    damaged_in: int | None = None  # the epoch; noted durably: it neither leads nor fetches

    @property
    def is_damaged(self) -> bool:
        return self.damaged_in is not None

    @property
    def end(self) -> int:
        return self.start + len(self.log)

    @property
    def chain(self) -> int | None:
        return self.log[-1].chain if self.log else self.chain_before

    @property
    def position(self) -> Position:
        return Position(last_epoch(self.epochs, log_end=self.end), self.end)

    def chain_at(self, offset: int) -> int | None:
        """Of everything below ``offset``."""
        if offset <= self.start:
            return self.chain_before
        return self.log[offset - self.start - 1].chain if offset <= self.end else None

    def begin_anew(self, offset: int, chain: int | None) -> None:
        self.start = self.durable = self.high_watermark = offset
        self.log, self.epochs, self.chain_before = [], EpochCache(), chain

    def cut(self, offset: int) -> None:
        del self.log[max(offset - self.start, 0) :]
        self.epochs.cut(self.end)
        self.durable = min(self.durable, self.end)
        self.high_watermark = min(self.high_watermark, self.end)

    def trim(self, offset: int) -> None:
        if offset > self.start:
            self.chain_before = self.chain_at(offset)
            del self.log[: offset - self.start]
            self.start = offset
            self.epochs.advance_start(offset)
