"""PySyncObj as it is released, in virtual time, and schedules that break it."""

from __future__ import annotations

import collections
import contextlib
import copy
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pysyncobj import SyncObj, SyncObjConf, replicated, syncobj
from pysyncobj.journal import FileJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

# -- the library -----------------------------------------------------------------------------------

# PySyncObj as it is released, in virtual time, with messages moved by hand. No layer of ours.


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


# -- schedules -------------------------------------------------------------------------------------

# Schedules that break PySyncObj as it is released: what the hazard tests are about.
#
# Each function plays one on the unmodified library, and says whether what must not happen did. They
# show that a test of the same hazard on our layer is able to fail. No assertions here.


def snapshot_false_ack(clock: Clock, path: Path) -> bool:
    """A deposed leader applies and acknowledges its own entry on a snapshot's first chunk."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut_off("A")
    acked: list[int] = []
    net["A"].put("lost", 1, callback=acks(acked))
    net["A"].tick()
    net.elect("B", "C")
    net.settle("BC")
    for number in range(20):
        net["B"].put(number, number)
    net.settle("BC")
    net["B"].forceLogCompaction()
    net.settle("BC", 12)
    net.connect("A", "B")
    clock.now += 0.2
    net["B"].tick()
    net.deliver("B", "A", 1)
    net["A"].tick()
    return acked == [SUCCESS] and "lost" not in net["B"].values


def truncated_suffix(clock: Clock, path: Path) -> bool:
    """A resent first batch cuts what was acknowledged after it; then the leader dies."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut("A", "C")
    acked: list[int] = []
    for number in range(6):
        net["A"].put(number, "x" * 40_000, callback=acks(acked))
    for _ in range(2):
        net["A"].tick()
        clock.now += 0.11
    net.cut("A", "B")
    net.connect("A", "B")
    for _ in range(2):
        clock.now += 0.11
        net["A"].tick()
    net.deliver("A", "B")
    for _ in range(2):
        net.deliver("B", "A", 1)
        clock.now += 0.11
        net["A"].tick()
        if len(net["B"].log()) < 8:
            net.deliver("A", "B")
    net.deliver("B", "A")
    net["A"].tick()
    net.deliver("A", "B", 1)
    return acked == [SUCCESS] * 6 and len(net["B"].log()) < 8


def dump_without_journal(clock: Clock, path: Path) -> bool:
    """The process ends when the dump has its name and the journal is not trimmed yet."""
    store = alone(clock, path, fullDumpFile=str(path / "dump"), useFork=False)
    for number in range(5):
        store.put(f"early {number}", number)
    for _ in range(4):
        clock.now += 0.11
        store.tick()
    store.forceLogCompaction()
    store.tick()
    store.get("serializer").checkSerializing = lambda: (1, 0)  # the parent has not looked yet
    acked: list[int] = []
    store.put("late", 1, callback=acks(acked))
    for _ in range(4):
        clock.now += 0.11
        store.tick()
    store.get("raftLog")._destroy()
    again = alone(clock, path, fullDumpFile=str(path / "dump"), useFork=False)
    return acked == [SUCCESS] and "early 4" in again.values and "late" not in again.values


def interrupted_rewrite(clock: Clock, path: Path) -> bool:
    """A journal that is trimmed in place loses what it had not written back."""
    journal = FileJournal(str(path / "journal"))
    for index in range(1, 101):
        journal.add(b"command", index, 1)
    add, added = journal.add, []

    def stop(*entry: Any) -> None:
        added.append(entry)
        if len(added) == 4:
            raise InterruptedError
        add(*entry)

    journal.add = stop
    with contextlib.suppress(InterruptedError):
        journal.deleteEntriesTo(50)
    return len(FileJournal(str(path / "journal"))) < 50


def duplicate_vote(clock: Clock, path: Path) -> bool:
    """One vote that arrives twice makes a second leader in the same term."""
    net = Net(clock, "ABCDE")
    for name in "BCE":
        net[name].set("raftElectionDeadline", clock.now + 1e6)
    for name in "AD":
        net[name].set("raftElectionDeadline", 0)
    clock.now += 0.01
    net["A"].tick()
    net["D"].tick()
    net.deliver("A", "B")
    queue = net.queues["B", "A"]
    queue.append(queue[0])
    net.deliver("B", "A")
    for voter in "CE":
        net.deliver("D", voter)
        net.deliver(voter, "D")
    leaders = [net[name] for name in "AD" if net[name]._isLeader()]
    return len(leaders) == 2 and leaders[0].get("raftCurrentTerm") == 1


def stale_answer(clock: Clock, path: Path) -> bool:
    """An answer of two terms ago counts for entries of this one."""
    net = Net(clock, "ABCDE")
    net.elect("A", "BCDE")
    net.settle(ticks=4)
    net.cut_off("A", but="E")
    for number in range(3):
        net["A"].put(f"old {number}", number)
    net["A"].tick()
    clock.now += 0.11
    net["A"].tick()
    net.deliver("A", "E")  # its answer stays on the way
    net.cut_off("E", but="A")
    net.elect("B", "CD")
    net.settle("BCD", 3)
    net.connect("A", "B")
    net.settle("AB", 4)
    net.cut_off("B", but="A")
    net.connect("A", "C")
    net.connect("A", "D")
    net.elect("A", "CD")
    net.queues["A", "E"].clear()
    net.cut("A", "C")
    net.cut("A", "D")
    acked: list[int] = []
    net["A"].put("new", 1, callback=acks(acked))
    net["A"].tick()
    clock.now += 0.11
    net["A"].tick()
    net.deliver("A", "B")
    net.deliver("B", "A")
    net.deliver("E", "A")
    net["A"].tick()
    return acked == [SUCCESS] and net["E"].log()[-1][1] == 1


def forgotten_vote(clock: Clock, path: Path) -> bool:
    """A vote file that cannot be read is taken for no vote at all."""
    journal = FileJournal(str(path / "journal"))
    journal.setCurrentTerm(7, "B")
    (path / "journal.meta").write_bytes(b"")  # it was renamed, and its bytes never synced
    again = FileJournal(str(path / "journal"))
    return (again.getCurrentTerm(), again.getVotedForNodeId()) == (0, None)


def trusted_commit_index(clock: Clock, path: Path) -> bool:
    """A commit index that outlived its entries commits whatever comes in their place."""
    journal = FileJournal(str(path / "journal"))
    for index in range(1, 6):
        journal.add(b"\1", index, 0 if index == 1 else 1)
    journal.setRaftCommitIndex(8)
    journal.setCurrentTerm(1, None)
    journal._destroy()
    net = Net(clock, "AB")
    Store(net, "C", "AB", journalFile=str(path / "journal"))
    leader = {
        "type": "append_entries", "term": 2, "commit_index": 5, "prevLogIdx": 5, "prevLogTerm": 1,
        "entries": [(b"\1", index, 2) for index in (6, 7, 8)],
    }  # fmt: skip
    net["C"].wires._onMessageReceived(Node("A"), leader)
    net["C"].tick()
    return int(net["C"].raftLastApplied) == 8


def silent_corruption(clock: Clock, path: Path) -> bool:
    """A flipped bit is applied."""
    store = alone(clock, path)
    store.put("leader", "broker-1")
    for _ in range(4):
        clock.now += 0.11
        store.tick()
    store.get("raftLog")._destroy()
    data = bytearray((path / "journal").read_bytes())
    data[data.index(b"broker-1") + 7] ^= 2
    (path / "journal").write_bytes(data)
    store = alone(clock, path)
    return store.values == {"leader": "broker-3"}


def dump_in_memory(clock: Clock, path: Path) -> bool:
    """Compaction trims the file and keeps the state in memory only."""
    store = alone(clock, path)
    for number in range(10):
        store.put(number, number)
    for _ in range(4):
        clock.now += 0.11
        store.tick()
    store.forceLogCompaction()
    for _ in range(4):
        clock.now += 0.11
        store.tick()
    store.get("raftLog")._destroy()
    return alone(clock, path).values == {}


def overlapping_membership(clock: Clock, path: Path) -> bool:
    """Changes of voters are in force before the one ahead of them is committed."""
    net = Net(clock, "ABC", dynamicMembershipChange=True)
    net.elect("A", "BC")
    net.settle()
    net.cut_off("A")
    for name in "DEFG":
        net["A"].addNodeToCluster(Node(name))
    net["A"].tick()
    return len(net["A"].otherNodes) == 6


def wiped_voter(clock: Clock, path: Path) -> bool:
    """A voter that lost its disk helps to elect one that lacks what the two had agreed."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut_off("C")
    acked: list[int] = []
    net["A"].put("agreed", 1, callback=acks(acked))
    net.settle("AB")
    net.cut_off("A")
    Store(net, "B", "AC")
    net.connect("B", "C")
    net.elect("C", "B")
    net.settle("BC")
    return acked == [SUCCESS] and net["C"]._isLeader() and "agreed" not in net["C"].values


def ignored_term(clock: Clock, path: Path) -> bool:
    """A leader never learns of a newer term from an answer, and leads for 30 s without any."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut_off("A")
    net.elect("B", "C")
    for _ in range(20):
        clock.now += 1.0
        net["A"].tick()
    return bool(net["A"]._isLeader() and net["B"]._isLeader())


def inflated_term(clock: Clock, path: Path) -> bool:
    """Whoever hears nobody but is linked to somebody raises its term at every timeout."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut("A", "C")
    for _ in range(10):
        clock.now += 2.0
        net["C"].set("raftElectionDeadline", 0)
        net["C"].tick()
        net.deliver("C", "B")
    return not net["B"]._isLeader() and net["B"].get("raftCurrentTerm") > 10


def poison(clock: Clock, path: Path) -> bool:
    """A command at which apply raises stops every replica for good."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    acked: list[int] = []
    net["A"].put("poison", 1, callback=acks(acked))
    net["A"].put("after", 1, callback=acks(acked))
    for _ in range(10):
        net.settle()
    return not acked and all("after" not in node.values for node in net.nodes.values())


def snapshot_flood(clock: Clock, path: Path) -> bool:
    """While a dump is written, one tick sends messages until its time is up."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut("A", "C")
    for number in range(30):
        net["A"].put(number, number)
    net.settle("AB")
    net["A"].forceLogCompaction()
    net.settle("AB", 12)
    serializer = net["A"].get("serializer")
    serializer._Serializer__pid = os.getpid()
    serializer.checkSerializing = lambda: (1, 0)
    net.connect("A", "C")
    net["A"].get("raftNextIndex")[Node("C")] = 3
    net["A"].set("newAppendEntriesTime", 0)
    clock.step = 1e-5
    net["A"].tick()
    return len(net.queues["A", "C"]) > 1_000


def unanswered(clock: Clock, path: Path) -> bool:
    """What a leader appended and another leader overwrote without an index is never answered."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut_off("A")
    acked: list[int] = []
    net["A"].put("waits", 1, callback=acks(acked))
    for _ in range(100):
        clock.now += 1.0
        net["A"].tick()
    return not acked


def pickled_command(clock: Clock, path: Path) -> bool:
    """A command of a peer is unpickled: it calls what it likes."""
    target = path / "owned"
    command = b"\0cos\nmkdir\n(S'" + str(target).encode() + b"'\ntR."
    net = Net(clock, "AB")
    net["A"].set("raftElectionDeadline", clock.now + 1e6)
    append = {
        "type": "append_entries", "term": 1, "commit_index": 2, "prevLogIdx": 1, "prevLogTerm": 0,
        "entries": [(command, 2, 1)],
    }  # fmt: skip
    net["A"].wires._onMessageReceived(Node("B"), append)
    with contextlib.suppress(Exception):
        net["A"].tick()
    return target.exists()


def broken_chunks(clock: Clock, path: Path) -> bool:
    """An entry of nearly two batches is cut where its command would end: it never arrives."""
    net = Net(clock, "ABC", appendEntriesBatchSizeBytes=1_000)
    net.elect("A", "BC")
    net.settle()
    acked: list[int] = []
    net["A"].put("k", "x" * 1_940, callback=acks(acked))
    with contextlib.suppress(Exception):
        net.settle()
    return acked != [SUCCESS]


def one_index_at_a_time(clock: Clock, path: Path) -> bool:
    """A leader finds where a follower's log parts from its own by one entry for each round."""
    net = Net(clock, "ABC")
    net.elect("A", "BC")
    net.settle()
    net.cut_off("A")
    for number in range(40):
        net["A"].put(number, number)
    net["A"].tick()
    net.elect("B", "C")
    for number in range(60):
        net["B"].put(number, number)
    net.settle("BC")
    net.connect("A", "B")
    net["B"].get("raftNextIndex")[Node("A")] = net["B"].log()[-1][0] + 1
    rounds = 0
    while net["A"].log()[-1] != net["B"].log()[-1] and rounds < 100:
        rounds += 1
        clock.now += 0.11
        net["B"].tick()
        net.deliver("B", "A")
        net.deliver("A", "B")
    return rounds > 20
