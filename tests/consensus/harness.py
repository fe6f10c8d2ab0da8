"""Brokers that agree, in one process: virtual time, links of explicit delivery, simulated disks.

Nothing moves by itself. ``connect`` and ``cut`` change links, ``deliver`` moves envelopes, ``tick``
moves time; ``run`` does all of that until nothing is left to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any

import msgpack

from raftlog.consensus import (
    Applied,
    ConsensusNode,
    ConsensusSettings,
    Journal,
    NotProposed,
    Outcome,
    Unknown,
)
from raftlog.consensus.transport import Envelope, decode
from raftlog.testing.disk import SimDisk

PATH = "data/consensus.journal"
GROUP = "topic/0"
SETTINGS = ConsensusSettings()


class ListMachine:
    """Remembers every command, in order; its answer to each is how many there are."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []

    def apply(self, command: bytes) -> object:
        self.commands.append(command)
        return len(self.commands)

    def snapshot(self) -> bytes:
        return bytes(msgpack.packb(self.commands))

    def restore(self, snapshot: bytes) -> None:
        self.commands = msgpack.unpackb(snapshot)


class Broker:
    """One broker: a disk that outlives it, a journal, a node, and a machine for each group."""

    def __init__(
        self, network: Network, broker_id: int, directory_id: str, *, settings: ConsensusSettings
    ) -> None:
        self.network = network
        self.id = broker_id
        self.directory_id = directory_id
        self.settings = settings
        self.disk = SimDisk(Random(broker_id))
        self.random = Random(1_000 + broker_id)
        self.disk.make_dirs("data")
        self.is_held = False  # tasks stay out
        self.task: Any = None
        self.news: list[str] = []
        self.start()

    def start(self) -> None:
        self.machines: dict[str, ListMachine] = {}
        self.opened: dict[str, tuple[dict[int, str], bytes]] = {}
        self.journal = Journal.open(self.disk, PATH)
        self.node = ConsensusNode(
            self.id,
            self.directory_id,
            self.journal,
            settings=self.settings,
            chance=self.random.random,
            send=lambda peer, data: self.network.send(self.id, peer, data),
            on_state=self.news.append,
        )

    def open(
        self,
        raft_id: str = GROUP,
        voters: Mapping[int, str] | None = None,
        base: bytes = b"",
        machine: Any = None,
    ) -> None:
        voters = self.network.voters() if voters is None else voters
        self.opened[raft_id] = dict(voters), base
        self.machines[raft_id] = machine or ListMachine()
        self.node.open_group(
            raft_id,
            self.machines[raft_id],
            voters=voters,
            base=base,
            now=self.network.now,
        )
        self.sync()

    def sync(self) -> None:
        """Sync and send until there is nothing more to; with a held disk only begin."""
        while self.task is None:
            while self.node.is_busy:
                self.node.tick(self.network.now)
            self.task = self.node.begin_sync()
            if self.task is None:
                return
            if not self.is_held:
                self._finish_sync()

    def _finish_sync(self) -> None:
        task, self.task = self.task, None
        task.run()
        self.node.complete_sync(task, self.network.now)

    def finish_one_sync(self) -> None:
        """End the sync that is held, and begin the next one."""
        self._finish_sync()
        self.sync()

    def hold_disk(self) -> None:
        """From now on a sync begins and does not end."""
        self.is_held = True

    def free_disk(self) -> None:
        self.is_held = False
        if self.task is not None:
            self._finish_sync()
        self.sync()

    def restart(self, *, power_cut: bool = False) -> None:
        """End the process and start another: the same groups, no links."""
        opened, machines = self.opened, self.machines
        self.network.cut_all(self.id)
        self.is_held, self.task = False, None
        if power_cut:
            self.disk.power_cut()
        else:
            self.disk.crash()
        self.start()
        for raft_id, (voters, base) in opened.items():
            self.open(raft_id, voters, base, type(machines[raft_id])())

    def propose(self, command: bytes, raft_id: str = GROUP) -> list[Outcome]:
        outcomes: list[Outcome] = []
        self.node.propose(raft_id, command, outcomes.append, self.network.now)
        self.sync()
        return outcomes

    def seal(self, voters: Mapping[int, str], raft_id: str = GROUP) -> list[Outcome]:
        outcomes: list[Outcome] = []
        generation = self.node.status(raft_id).generation
        self.node.seal(raft_id, voters, outcomes.append, self.network.now, generation)
        self.sync()
        return outcomes

    def status(self, raft_id: str = GROUP) -> Any:
        """Raises ``KeyError`` when the group is not open here."""
        return self.node.status(raft_id)

    def is_leader(self, raft_id: str = GROUP) -> bool:
        return bool(self.status(raft_id).role == "leader")

    def commands(self, raft_id: str = GROUP) -> list[bytes]:
        return self.machines[raft_id].commands


class Network:
    """Brokers 1 to ``count``. A queue for each direction of each link; envelopes stay in order."""

    def __init__(
        self, count: int = 3, *, settings: ConsensusSettings = SETTINGS, connect: bool = True
    ) -> None:
        self.now = 1_000.0
        self.settings = settings
        self.up: set[tuple[int, int]] = set()
        self.queues: dict[tuple[int, int], deque[bytes]] = {}
        self.sent = 0
        self.brokers: dict[int, Broker] = {}
        for broker_id in range(1, count + 1):
            self.add(broker_id)
        if connect:
            self.connect_all()

    def add(self, broker_id: int, directory_id: str = "") -> Broker:
        directory_id = directory_id or f"disk-{broker_id}"
        broker = Broker(self, broker_id, directory_id, settings=self.settings)
        self.brokers[broker_id] = broker
        return broker

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    def voters(self, *ids: int) -> dict[int, str]:
        return {each: self.brokers[each].directory_id for each in ids or self.brokers}

    def open(self, raft_id: str = GROUP, *ids: int) -> None:
        for broker in self.brokers.values():
            broker.open(raft_id, self.voters(*ids))

    # -- links -------------------------------------------------------------------------------------

    def connect(self, a: int, b: int) -> None:
        for one, other in ((a, b), (b, a)):
            self.up.add((one, other))
            self.queues[one, other] = deque()
        for one, other in ((a, b), (b, a)):
            peer = self.brokers[other]
            node = self.brokers[one].node
            node.peer_up(other, peer.directory_id, peer.journal.boot, self.now)
        for each in (a, b):
            self.brokers[each].sync()

    def cut(self, a: int, b: int) -> None:
        if (a, b) not in self.up:
            return
        for one, other in ((a, b), (b, a)):
            self.up.discard((one, other))
            self.queues[one, other].clear()
        for one, other in ((a, b), (b, a)):
            self.brokers[one].node.peer_down(other, self.now)
            self.brokers[one].sync()

    def pairs(self) -> Iterable[tuple[int, int]]:
        ids = sorted(self.brokers)
        return [(a, b) for a in ids for b in ids if a < b]

    def connect_all(self) -> None:
        for a, b in self.pairs():
            if (a, b) not in self.up:
                self.connect(a, b)

    def cut_all(self, broker_id: int) -> None:
        for other in self.brokers:
            if other != broker_id:
                self.cut(broker_id, other)

    def split(self, *sides: Iterable[int]) -> None:
        """Only brokers of the same side reach each other."""
        side_of = {each: number for number, side in enumerate(sides) for each in side}
        for a, b in self.pairs():
            if side_of.get(a, -a) == side_of.get(b, -b):
                if (a, b) not in self.up:
                    self.connect(a, b)
            else:
                self.cut(a, b)

    # -- envelopes ---------------------------------------------------------------------------------

    def send(self, sender: int, receiver: int, data: bytes) -> None:
        self.sent += 1
        if (sender, receiver) in self.up:
            self.queues[sender, receiver].append(data)

    def peek(self, sender: int, receiver: int) -> list[Envelope]:
        return [decode(data) for data in self.queues[sender, receiver]]

    def deliver(self, sender: int, receiver: int, count: int | None = None) -> int:
        queue = self.queues.get((sender, receiver), deque())
        moved = 0
        while queue and (count is None or moved < count):
            self.brokers[receiver].node.receive(sender, queue.popleft(), self.now)
            self.brokers[receiver].sync()
            moved += 1
        return moved

    def deliver_all(self, *, rounds_max: int = 10_000) -> None:
        for _ in range(rounds_max):
            if not sum(self.deliver(*pair, count=1) for pair in sorted(self.queues)):
                return
        raise AssertionError("envelopes without end")

    # -- time --------------------------------------------------------------------------------------

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        for broker in self.brokers.values():
            broker.node.tick(self.now)
            broker.sync()

    def run(self, seconds: float = 0.0, *, until: Callable[[], bool] | None = None) -> None:
        """Deliver everything at once and tick when asked for; stop early when ``until`` holds."""
        end = self.now + seconds
        for _ in range(1_000_000):
            self.deliver_all()
            if until is not None and until():
                return
            due = min(broker.node.next_tick(self.now) for broker in self.brokers.values())
            if due > end:
                self.now = end
                assert until is None, f"not within {seconds} s"
                return
            self.now = max(self.now, due)
            self.tick()
        raise AssertionError("ticks without end")

    # -- what tests ask ----------------------------------------------------------------------------

    def leader(self, raft_id: str = GROUP, seconds: float = 20.0) -> Broker:
        """The one broker that leads, once all that are linked to it know it."""
        found: list[Broker] = []

        def is_settled() -> bool:
            brokers = [b for b in self.brokers.values() if raft_id in b.machines]
            found[:] = [b for b in brokers if b.is_leader(raft_id)]
            return len(found) == 1 and all(
                b.status(raft_id).leader == found[0].id
                for b in brokers
                if (found[0].id, b.id) in self.up and b.status(raft_id).role != "observer"
            )

        self.run(seconds, until=is_settled)
        return found[0]

    def agree(self, command: bytes, raft_id: str = GROUP, via: int | None = None) -> Applied:
        """Have a command applied, by the leader unless by another broker."""
        broker = self.leader(raft_id) if via is None else self.brokers[via]
        outcomes = broker.propose(command, raft_id)
        self.run(20, until=lambda: bool(outcomes))
        (outcome,) = outcomes
        assert isinstance(outcome, Applied), outcome
        return outcome


def kinds(outcomes: Iterable[Outcome]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


__all__ = [
    "GROUP",
    "SETTINGS",
    "Applied",
    "Broker",
    "ListMachine",
    "Network",
    "NotProposed",
    "Unknown",
    "kinds",
]
