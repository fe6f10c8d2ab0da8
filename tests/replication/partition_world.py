"""A whole partition in memory: brokers, a network and disks that fail, and what must hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from raftlog.replication import election, partition_state
from raftlog.replication import leadership as following
from raftlog.replication.leadership import Diverged, Leadership, OutOfRange, last_epoch
from raftlog.replication.partition_state import (
    Accepted,
    BrokerId,
    ChangeIsr,
    ChangeReplicas,
    Command,
    PartitionMachine,
    PartitionState,
    initial_state,
)
from raftlog.storage.segment import EpochCache
from tests.replication.samples import View

# -- brokers ---------------------------------------------------------------------------------------

# What the brokers of ``partition_world`` are made of, and what they say to each other.


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


# -- invariants ------------------------------------------------------------------------------------

# What must hold in a ``partition_world``, by books of its own: the invariants of the design.
#
# It sees all disks at once, which nobody in the world does. A broken promise is an AssertionError.


class Oracle:
    """``trimmed``: below which records were deleted on purpose."""

    def __init__(self, nodes: dict[BrokerId, Node]) -> None:
        self.nodes = nodes
        self.committed: dict[int, Entry] = {}
        self.committed_by_epoch: dict[int, int] = {}
        self.chains: dict[tuple[int, int], int] = {}
        self.leaders: dict[int, tuple[BrokerId, int]] = {}
        self.trimmed = 0
        self.lost: dict[tuple[BrokerId, str], int] = {}  # copies, and what they held by then

    @property
    def true_end(self) -> int:
        """The highest offset that was ever committed, and one."""
        return max(self.committed, default=-1) + 1

    def is_sound(self, broker: BrokerId, directory_id: str) -> bool:
        node = self.nodes[broker]
        return node.directory_id == directory_id and not node.is_damaged

    def holders(self, state: PartitionState) -> set[BrokerId]:
        """Who may be elected, and can be: the budget of losses is to leave one."""
        eligible = {**state.elr, **state.isr}
        return {broker for broker in eligible if self.is_sound(broker, eligible[broker])}

    def note_leader(self, epoch: int, node: Node) -> None:
        led = (node.id, node.boot)
        assert self.leaders.setdefault(epoch, led) == led, "I1: two leaders in one epoch"
        assert node.id in node.state.replicas, "I10: a witness leads"

    def note_entry(self, offset: int, entry: Entry, before: int | None) -> None:
        if before is not None:
            assert entry.chain == hash((before, entry.epoch, entry.value)), "I5: another log below"
        known = self.chains.setdefault((offset, entry.epoch), entry.chain)
        assert known == entry.chain, "I5: the same offset and epoch, and another log"

    def note_progress(self, node: Node, leadership: Leadership, current: PartitionState) -> None:
        """The leader's high watermark may have moved: what lies below it is committed for good."""
        self.check_maximal(leadership, current)
        before, after = node.high_watermark, leadership.high_watermark
        assert after >= before, "I7: the high watermark went back"
        epoch = leadership.leader_epoch
        if after > before:
            self.check_copies(leadership, current)
            for offset in range(max(before, node.start), after):
                entry = node.log[offset - node.start]
                assert self.committed.setdefault(offset, entry) == entry, "I9: another record"
            self.committed_by_epoch[epoch] = max(after, self.committed_by_epoch.get(epoch, 0))
        if leadership.is_ready:
            older = [end for e, end in self.committed_by_epoch.items() if e < epoch]
            assert after >= max(older, default=0), "P3: ready, and behind an earlier leader"

    def check_maximal(self, leadership: Leadership, current: PartitionState) -> None:
        if leadership.leader_epoch == current.leader_epoch:
            known = set(current.isr.items())
            assert leadership.maximal_isr() >= known, "I6: a member that does not count"

    def note_lost(self, node: Node) -> None:
        """This copy was wiped, found to be damaged, or deleted."""
        copy = (node.id, node.directory_id)
        self.lost[copy] = max(node.durable, self.lost.get(copy, 0))

    def check_copies(self, leadership: Leadership, current: PartitionState) -> None:
        """I7: as many as min_isr were durable when it was acknowledged."""
        isr = leadership.state.isr
        assert len(isr) >= leadership.state.min_isr, "I7: fewer members than min_isr"
        if leadership.leader_epoch == current.leader_epoch:
            assert len(isr) >= current.min_isr, "I7: fewer members than min_isr is by now"
        for copy in isr.items():
            node = self.nodes[copy[0]]
            held = self.lost.get(copy, -1)
            if node.directory_id == copy[1]:
                held = max(held, node.durable)
            assert held >= leadership.high_watermark, "I7: not durable everywhere"

    def check_command(
        self, before: PartitionState, after: PartitionState, command: Command
    ) -> None:
        """Once for every command that is accepted."""
        isr, elr, former = after.isr.keys(), after.elr.keys(), after.former.keys()
        stores = set(after.replicas)
        assert after.version == before.version + 1
        assert after.leader_epoch - before.leader_epoch in {0, 1}
        assert after.leader in isr, "I1: a leader that is not in sync"
        assert len(isr) + len(elr) + len(former) == len(isr | elr | former)
        assert (isr | elr | former) <= stores, "I10: a member that stores nothing"
        assert not stores & set(after.witnesses), "I10: a witness that stores"
        assert not elr or len(isr) < after.min_isr
        if isinstance(command, ChangeIsr) and len(isr) < after.min_isr:
            left = before.elr.keys() | before.isr.keys()
            assert left <= isr | elr | set(command.lost), "KIP-966: eligible no more"

    def check_copies_of(self, state: PartitionState) -> None:
        """I4 and I8: every copy that may be elected holds all that was ever committed."""
        true_end, holders = self.true_end, self.holders(state)
        assert holders, "the budget of losses was exceeded: the world's own mistake"
        for broker in holders:
            node = self.nodes[broker]
            assert node.durable >= true_end, "I4: eligible, and not all is durable"
            assert node.start <= self.trimmed, "I8: records are missing at the start"
            for offset in range(node.start, true_end):
                assert node.log[offset - node.start] == self.committed[offset], "I8: another log"


# -- the world -------------------------------------------------------------------------------------

# A whole partition in memory: logs, disks that fail, a network that delays and repeats.
#
# The Raft group is one ``PartitionMachine`` of which everybody hears late. The rest is the
# production code with the least around it that a broker has. Operations do nothing where they make
# no sense, so that any sequence of them is a run. The invariants say what must hold.


LAG_MAX_S = 10.0
IN_FLIGHT_MAX = 30
ENTRIES_PER_ANSWER_MAX = 3


class World:
    """``replicas`` brokers store the partition, ``witnesses`` more only vote."""

    def __init__(self, replicas: int, witnesses: int, min_isr: int) -> None:
        ids = tuple(range(1, replicas + witnesses + 1))
        self.directory_of = {broker: f"disk-{broker}" for broker in ids}  # as registered
        state = initial_state(ids[:replicas], ids[replicas:], self.directory_of, min_isr)
        self.machine = PartitionMachine(state.encode())
        self.history = [state]
        self.nodes = {b: Node(b, self.directory_of[b], state) for b in ids}
        self.oracle = Oracle(self.nodes)
        self.replication_factor = replicas
        self.suspected: set[BrokerId] = set()  # thought dead, whether they are or not
        self.messages: list[Message] = []
        self.proposals: list[Proposal] = []
        self.outcomes: list[tuple[Proposal, bool]] = []
        self.min_isr = min_isr  # that the topic's settings ask for
        self.now = 0.0
        self.values = 0
        self.disks = 0
        self.cuts = 0  # of a follower's log, to what it has in common with its leader's
        for node in self.nodes.values():
            self.take_role(node)

    @property
    def state(self) -> PartitionState:
        """What the group has committed last; nobody in the world reads this."""
        return self.machine.state

    def check(self) -> None:
        self.oracle.check_copies_of(self.state)

    def is_live(self, broker: BrokerId) -> bool:
        return self.nodes[broker].is_up and broker not in self.suspected

    def boot_of(self, broker: BrokerId) -> int:
        return self.nodes[broker].boot

    # -- the group ---------------------------------------------------------------------------------

    def propose(self, command: Command | None, leadership: Leadership | None = None) -> bool:
        if command is None or len(self.proposals) >= IN_FLIGHT_MAX:
            return False
        self.proposals.append(Proposal(command, leadership))
        return True

    def decide(self, pick: int) -> None:
        """Some proposal reaches the group; they may overtake each other."""
        if not self.proposals:
            return
        proposal = self.proposals[pick % len(self.proposals)]
        before = self.state
        if not self.oracle.holders(partition_state.apply(before, proposal.command).state):
            self.lose_proposal(pick)  # beyond the budget: it drops the last copy but a lost one
            return
        self.proposals.remove(proposal)
        result = self.machine.apply(proposal.command.encode())
        if isinstance(result, Accepted):
            self.history.append(result.state)
            self.oracle.check_command(before, result.state, proposal.command)
        if not proposal.is_forgotten:
            self.outcomes.append((proposal, isinstance(result, Accepted)))

    def lose_proposal(self, pick: int) -> None:
        """It was certainly never proposed."""
        if self.proposals:
            proposal = self.proposals.pop(pick % len(self.proposals))
            if not proposal.is_forgotten:
                self.outcomes.append((proposal, False))

    def forget_outcome(self, pick: int) -> None:
        """The proposer waits no longer; the command may be applied yet, or has been."""
        waiting = [p for p in self.proposals if not p.is_forgotten]
        waiting += [proposal for proposal, _ in self.outcomes]
        if waiting:
            proposal = waiting[pick % len(waiting)]
            self.outcomes = [pair for pair in self.outcomes if pair[0] is not proposal]
            proposal.is_forgotten = True
            self.tell(proposal, None)

    def tell_outcome(self, pick: int) -> None:
        if self.outcomes:
            self.tell(*self.outcomes.pop(pick % len(self.outcomes)))

    def tell(self, proposal: Proposal, accepted: bool | None) -> None:
        for node in self.nodes.values():
            if node.leadership is not None and node.leadership is proposal.leadership:
                change = proposal.command
                assert isinstance(change, ChangeIsr)
                node.leadership.proposal_done(change, accepted)
                self.progressed(node)

    def hear(self, broker: BrokerId, skip: int = 0) -> None:
        """A node hears of the next committed state, or (after a restore) of a later one only."""
        node = self.nodes[broker]
        if node.is_up and node.heard < len(self.history) - 1:
            node.heard = min(node.heard + 1 + skip, len(self.history) - 1)
            self.take_role(node)

    def is_caught_up(self, node: Node) -> bool:
        """A node that starts again does nothing before it knows what it knew: see ``restart``."""
        return node.heard >= node.acted_on

    def take_role(self, node: Node) -> None:
        state = self.history[node.heard]
        if state.leader_epoch != node.state.leader_epoch:
            node.asked = None
        node.state = state
        if not self.is_caught_up(node):
            return
        node.acted_on = node.heard
        if node.damaged_in is not None and self.is_forgotten(node, node.damaged_in):
            node.damaged_in = None
        if node.id not in state.replicas:
            self.drop_replica(node)
        elif not self.may_lead(node):
            node.leadership = None
        elif node.leadership is not None and node.leadership.leader_epoch == state.leader_epoch:
            node.leadership.on_state(state, self.now)
            self.progressed(node)
        else:
            self.lead(node)

    def is_forgotten(self, node: Node, damaged_in: int) -> bool:
        """Whether nothing that a damaged copy acknowledged can bring it into the ISR any more."""
        state = node.state
        return state.leader_epoch > damaged_in and node.id not in {*state.isr, *state.elr}

    def may_lead(self, node: Node) -> bool:
        state = node.state
        return (
            state.leader == node.id
            and state.isr[node.id] == node.directory_id
            and state.leader_boot == node.boot
            and not node.is_damaged
        )

    def lead(self, node: Node) -> None:
        state = node.state
        self.oracle.note_leader(state.leader_epoch, node)
        node.epochs.assign(state.leader_epoch, node.end)
        node.leadership = Leadership(
            state,
            node.id,
            epoch_start=node.end,
            high_watermark=node.high_watermark,
            log_end=node.end,
            durable_end=node.durable,
            now=self.now,
            lag_max_s=LAG_MAX_S,
        )
        self.progressed(node)

    def drop_replica(self, node: Node) -> None:
        """A broker that is no replica any more deletes its copy; the disk stays what it is."""
        self.oracle.note_lost(node)
        node.leadership, node.asked, node.damaged_in = None, None, None
        node.begin_anew(0, 0)

    def progressed(self, node: Node) -> None:
        assert node.leadership is not None
        self.oracle.note_progress(node, node.leadership, self.state)
        node.high_watermark = node.leadership.high_watermark

    # -- what the arbiter and the leader propose ---------------------------------------------------

    def elect(self, arbiter: BrokerId) -> None:
        node = self.nodes[arbiter]
        if node.is_up:
            self.propose(
                election.choose_leader(
                    node.state,
                    View(
                        lambda b: self.is_live(b) and not self.nodes[b].is_damaged,
                        self.directory_of.get,
                        self.boot_of,
                    ),
                    arbiter=arbiter,
                )
            )

    def give_up(self, broker: BrokerId) -> None:
        """A damaged copy takes itself out; one that leads waits for an election first."""
        node, state = self.nodes[broker], self.nodes[broker].state
        if node.is_up and node.is_damaged and self.is_caught_up(node) and state.leader != broker:
            isr = {member: state.isr[member] for member in state.isr if member != broker}
            epoch, min_isr = state.leader_epoch, state.min_isr
            self.propose(ChangeIsr(state.version, epoch, isr, min_isr, (broker,)))

    def transfer(self, arbiter: BrokerId, to: BrokerId) -> None:
        command = election.transfer(
            self.nodes[arbiter].state,
            to,
            View(self.is_live, self.directory_of.get, self.boot_of),
        )
        if self.nodes[arbiter].is_up and not isinstance(command, str):
            self.propose(command)

    def replace_replica(self, arbiter: BrokerId) -> None:
        node = self.nodes[arbiter]
        if node.is_up:
            self.propose(
                election.choose_replacement(
                    node.state,
                    replication_factor=self.replication_factor,
                    dead_seconds=lambda broker: 0.0 if self.is_live(broker) else 60.0,
                    delay_seconds=30.0,
                    is_live=self.is_live,
                )
            )

    def swap_roles(self, arbiter: BrokerId, replica: int, witness: int) -> None:
        """An operator's wish, wise or not."""
        state = self.nodes[arbiter].state
        if self.nodes[arbiter].is_up and state.witnesses:
            out = state.replicas[replica % len(state.replicas)]
            come = state.witnesses[witness % len(state.witnesses)]
            replicas = (*(b for b in state.replicas if b != out), come)
            witnesses = (*(b for b in state.witnesses if b != come), out)
            self.propose(ChangeReplicas(state.version, replicas, witnesses))

    def review_isr(self, broker: BrokerId, seconds: float = 0.0) -> None:
        self.now += seconds
        leadership = self.nodes[broker].leadership
        if leadership is not None:
            change = leadership.isr_change(
                self.now,
                View(self.is_live, self.directory_of.get),
                min_isr=self.min_isr,
                may_propose=lambda: True,  # the worst for safety
            )
            if not self.propose(change, leadership) and change is not None:
                leadership.proposal_done(change, False)
            self.oracle.check_maximal(leadership, self.state)

    # -- records -----------------------------------------------------------------------------------

    def append(self, broker: BrokerId, count: int = 1) -> None:
        node = self.nodes[broker]
        if node.leadership is None:
            return
        for _ in range(count):
            self.values += 1
            epoch = node.leadership.leader_epoch
            chain = hash((node.chain, epoch, self.values))
            self.store(node, Entry(epoch, self.values, chain))
        self.note_local(node)

    def store(self, node: Node, entry: Entry) -> None:
        self.oracle.note_entry(node.end, entry, node.chain)
        if entry.epoch < node.epochs.latest:
            node.epochs.cut(node.end - 1)  # epochs in which nothing was written that is left
        if entry.epoch > node.epochs.latest:
            node.epochs.assign(entry.epoch, node.end)
        node.log.append(entry)

    def sync(self, broker: BrokerId, short: int = 0) -> None:
        node = self.nodes[broker]
        if node.is_up:
            node.durable = max(node.durable, node.end - short)
            self.note_local(node)

    def note_local(self, node: Node) -> None:
        if node.leadership is not None:
            node.leadership.on_local(log_end=node.end, durable_end=node.durable)
            self.progressed(node)

    def trim(self, broker: BrokerId, pick: int) -> None:
        """Retention at the leader, which the others take over."""
        node = self.nodes[broker]
        if node.leadership is not None and node.high_watermark > node.start:
            offset = node.start + 1 + pick % (node.high_watermark - node.start)
            self.oracle.trimmed = max(self.oracle.trimmed, offset)
            node.trim(offset)

    # -- copying -----------------------------------------------------------------------------------

    def fetch(self, broker: BrokerId) -> None:
        node = self.nodes[broker]
        leader, epoch = node.state.leader, node.state.leader_epoch
        if not node.is_up or leader is None or leader == broker or not self.is_caught_up(node):
            return
        if broker in node.state.replicas and not node.is_damaged:
            node.asked = node.position
            self.send(Fetch(broker, leader, epoch, node.directory_id, node.asked, node.durable))

    def send(self, message: Message) -> None:
        self.messages.append(message)
        if len(self.messages) > IN_FLIGHT_MAX:
            del self.messages[0]

    def deliver(self, pick: int, *, again: bool = False) -> None:
        """Any message, in any order; ``again``: it will come once more."""
        if self.messages:
            index = pick % len(self.messages)
            message = self.messages[index]
            if not again:
                del self.messages[index]
            self.receive(message)

    def receive(self, message: Message) -> None:
        node = self.nodes[message.to]
        if not node.is_up or not self.is_current(node, message):
            return
        match message:
            case Fetch():
                self.receive_fetch(node, message)
            case Answer():
                self.receive_answer(node, message)

    def is_current(self, node: Node, message: Message) -> bool:
        """S04 and S05: both sides refuse what was said in another epoch."""
        return message.epoch == node.state.leader_epoch

    def receive_fetch(self, node: Node, fetch: Fetch) -> None:
        if node.leadership is None:
            return
        differs = following.divergence(
            node.epochs,
            log_end=node.end,
            log_start=node.start,
            last_epoch=fetch.position.last_epoch,
            fetch_offset=fetch.position.fetch_offset,
        )
        entries: tuple[Entry, ...] = ()
        offset = fetch.position.fetch_offset
        if differs is None:
            node.leadership.on_fetch(
                fetch.source,
                fetch.directory_id,
                fetch_offset=offset,
                durable_offset=fetch.durable,
                now=self.now,
            )
            self.progressed(node)
            entries = tuple(node.log[offset - node.start :][:ENTRIES_PER_ANSWER_MAX])
        chain = node.chain_at(offset) if differs is None else node.chain_before
        self.send(
            Answer(
                node.id,
                fetch.source,
                fetch.epoch,
                position=fetch.position,
                differs=differs,
                chain=chain,
                entries=entries,
                high_watermark=node.high_watermark,
                log_start=node.start,
            )
        )

    def receive_answer(self, node: Node, answer: Answer) -> None:
        if node.is_damaged or not self.answers(node, answer):
            return
        node.asked = None
        differs = answer.differs
        if isinstance(differs, OutOfRange):
            node.begin_anew(differs.log_start, answer.chain)
        elif differs is not None:
            point = following.truncation_point(
                node.epochs, log_end=node.end, log_start=node.start, diverged=differs
            )
            assert point < node.end, "a round that cuts nothing is asked again for ever"
            self.cuts += 1
            if point > node.start:
                node.cut(point)
            else:
                node.begin_anew(point, node.chain_before if point == node.start else None)
        else:
            if not node.log and node.chain is None:
                node.chain_before = answer.chain
            for entry in answer.entries:
                self.store(node, entry)
            committed = min(answer.high_watermark, node.end)
            node.high_watermark = max(node.high_watermark, committed)
            node.trim(min(answer.log_start, node.high_watermark))

    def answers(self, node: Node, answer: Answer) -> bool:
        """Whether it is to the question asked last, about the log as it is now."""
        asks = node.leadership is None and node.state.leader == answer.source
        return asks and answer.position == node.asked == node.position

    def exchange(self, broker: BrokerId) -> None:
        """A fetch and its answer with nothing in between."""
        before = list(self.messages)
        self.messages = []
        self.fetch(broker)
        while self.messages:
            self.receive(self.messages.pop())
        self.messages = before

    # -- faults ------------------------------------------------------------------------------------

    def crash(self, broker: BrokerId) -> None:
        """The process is gone, the page cache is not."""
        node = self.nodes[broker]
        node.is_up, node.leadership, node.asked = False, None, None

    def power_cut(self, broker: BrokerId, keep: int = 0) -> None:
        """What was not synced is gone, from some point on; so is the youngest checkpoint."""
        node = self.nodes[broker]
        if node.is_up:
            self.crash(broker)
            node.cut(node.durable + keep % (node.end - node.durable + 1))
            node.high_watermark = max(node.start, node.high_watermark - keep)

    def may_lose(self, broker: BrokerId) -> bool:
        """The budget: a copy that may be elected is left."""
        return self.nodes[broker].is_up and bool(self.oracle.holders(self.state) - {broker})

    def wipe(self, broker: BrokerId) -> None:
        """Another disk, and nothing on it."""
        node = self.nodes[broker]
        if self.may_lose(broker):
            self.crash(broker)
            self.oracle.note_lost(node)
            self.disks += 1
            node.directory_id = f"disk-{broker}-{self.disks}"
            node.damaged_in = None
            node.acted_on = 0
            node.begin_anew(0, 0)

    def damage(self, broker: BrokerId) -> None:
        """A bad batch: the copy is set aside. What it said of it is still on its way."""
        node = self.nodes[broker]
        if self.may_lose(broker) and broker in node.state.replicas:
            self.oracle.note_lost(node)
            node.leadership, node.asked = None, None
            node.damaged_in = self.history[max(node.heard, node.acted_on)].leader_epoch
            node.begin_anew(0, 0)

    def restart(self, broker: BrokerId, forgets: int = 0) -> None:
        """It knows what it had heard, or for a while less: Raft's commit index is not durable."""
        node = self.nodes[broker]
        if not node.is_up:
            node.is_up = True
            node.boot += 1
            node.heard = max(0, node.heard - forgets)
            self.take_role(node)

    def register(self, broker: BrokerId) -> None:
        self.directory_of[broker] = self.nodes[broker].directory_id
