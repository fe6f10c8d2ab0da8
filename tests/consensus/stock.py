"""PySyncObj as it is released, in virtual time, with messages moved by hand. No layer of ours."""

from __future__ import annotations

import collections
import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated, syncobj
from pysyncobj.node import Node
from pysyncobj.transport import Transport

PREFIX = "_SyncObj__"
SUCCESS = 0


class Clock:
    """The library's, for as long as a schedule takes."""

    now = 1_000.0
    step = 0.0  # that looking at it takes

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Wires(Transport):  # type: ignore[misc]  # the library has no types
    def __init__(self, net: Net, owner: Any, node: Any, others: Any) -> None:
        super().__init__(owner, node, others)
        self.net, self.name = net, node.id

    def send(self, node: Any, message: Any) -> bool:
        if (self.name, node.id) not in self.net.up:
            return False
        self.net.queues[self.name, node.id].append(copy.deepcopy(message))
        return True


class Store(SyncObj):  # type: ignore[misc]  # the library has no types
    """A replicated dict."""

    def __init__(self, net: Net, name: str, others: Iterable[str], **options: Any) -> None:
        self.wires: Any = None
        settings = {"autoTick": False, "raftMinTimeout": 0.4, "raftMaxTimeout": 1.4,
                    "commandsWaitLeader": False, **options}  # fmt: skip

        def connect(owner: Any, node: Any, peers: Any) -> Wires:
            self.wires = Wires(net, owner, node, peers)
            return self.wires

        super().__init__(
            Node(name),
            [Node(other) for other in others],
            conf=SyncObjConf(**settings),
            nodeClass=Node,
            transportClass=connect,
        )
        self.values: dict[Any, Any] = {}
        net.nodes[name] = self

    @replicated  # type: ignore[untyped-decorator]
    def put(self, key: Any, value: Any) -> None:
        if key == "poison":
            raise ValueError("a defect in apply")
        self.values[key] = value

    def get(self, name: str) -> Any:
        return getattr(self, PREFIX + name)

    def set(self, name: str, value: Any) -> None:
        setattr(self, PREFIX + name, value)

    def log(self) -> list[tuple[int, int]]:
        return [(index, term) for _command, index, term in self.get("raftLog")[:]]

    def tick(self) -> None:
        self.doTick(0.0)


class Net:
    """Stores by name, and a queue for each direction. Nothing moves by itself."""

    def __init__(self, clock: Clock, names: str = "", *, link: bool = True, **options: Any) -> None:
        self.clock = clock
        self.nodes: dict[str, Store] = {}
        self.queues: dict[tuple[str, str], Any] = collections.defaultdict(collections.deque)
        self.up: set[tuple[str, str]] = set()
        for name in names:
            Store(self, name, [other for other in names if other != name], **options)
        for a in names if link else "":
            for b in names:
                if a < b:
                    self.connect(a, b)

    def __getitem__(self, name: str) -> Store:
        return self.nodes[name]

    def connect(self, a: str, b: str) -> None:
        self.up |= {(a, b), (b, a)}
        for one, other in ((a, b), (b, a)):
            self.nodes[one].wires._onNodeConnected(Node(other))

    def cut(self, a: str, b: str) -> None:
        self.up -= {(a, b), (b, a)}
        for one, other in ((a, b), (b, a)):
            self.queues[one, other].clear()
            if one in self.nodes:
                self.nodes[one].wires._onNodeDisconnected(Node(other))

    def cut_off(self, name: str, *, but: str = "") -> None:
        for other in self.nodes:
            if (name, other) in self.up and other not in but:
                self.cut(name, other)

    def deliver(self, a: str, b: str, count: int | None = None) -> None:
        queue = self.queues[a, b]
        for _ in range(len(queue) if count is None else count):
            self.nodes[b].wires._onMessageReceived(Node(a), queue.popleft())

    def settle(self, names: str = "", ticks: int = 6) -> None:
        """Tick, and deliver everything between the named."""
        names = names or "".join(self.nodes)
        for _ in range(ticks):
            self.clock.now += 0.11
            for name in names:
                with contextlib.suppress(ValueError):
                    self.nodes[name].tick()
            for _ in range(4):
                for a in names:
                    for b in names:
                        if (a, b) in self.up:
                            self.deliver(a, b)

    def elect(self, name: str, voters: str) -> Store:
        """Have ``name`` win an election by exactly these votes."""
        for other in self.nodes.values():
            other.set("raftElectionDeadline", self.clock.now + 1e6)
        node = self.nodes[name]
        node.set("raftElectionDeadline", 0)
        self.clock.now += 0.01
        node.tick()
        for voter in voters:
            self.deliver(name, voter)
            self.deliver(voter, name)
        return node


def acks(into: list[int]) -> Callable[[Any, int], None]:
    return lambda result, error: into.append(error)


@contextlib.contextmanager
def in_virtual_time() -> Iterator[Clock]:
    """Virtual time and fixed chance for the stock library."""
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock()
        patch.setattr(syncobj, "monotonicTime", clock)
        patch.setattr(syncobj, "random", Random(1))
        yield clock


def alone(clock: Clock, path: Path, **options: Any) -> Store:
    """A cluster of one with a journal file, leading."""
    node = Net(clock)
    store = Store(node, "A", [], journalFile=str(path / "journal"), **options)
    store.set("raftElectionDeadline", 0)
    for _ in range(3):
        clock.now += 0.11
        store.tick()
    return store
