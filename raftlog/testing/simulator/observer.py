"""Invariant checks of all brokers of a cluster, during a simulation.

After each event of a broker, the observer checks the broker's replicas of one topic: the stored
records, the high watermark, and the agreed state of each partition's Raft group. Without a change
this costs a few comparisons. The observer changes no state and adds no event: a simulation has the
same events with and without it.

``INVARIANTS`` are the invariants of Kafka's KRaft simulation and of Vanlightly's specifications
that can be observed from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

from raftlog.errors import RaftlogError
from raftlog.replication.partition_state import PartitionState
from raftlog.server.broker import Broker
from raftlog.server.cluster.elections import raft_id
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.cluster.node import ClusterNode
from raftlog.server.partition import Partition
from raftlog.storage import Log
from raftlog.testing.simulator.history import (
    Deletion,
    EndOffsets,
    Operation,
    Poll,
    Send,
    StartOffsets,
    TimeLookup,
    Violation,
)
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.testing.simulator.world import BrokerMachine, World
from raftlog.types import OFFSETS_TOPIC, LeaderEpoch, Offset, TimestampMs, TopicPartition

INVARIANTS: Final[Mapping[str, str]] = {
    "TWO-CLUSTERS": "all brokers belong to the same cluster, permanently",
    "TWO-LEADERS": "in each epoch of a partition, at most one incarnation of one broker leads",
    "EPOCH-BACK": "in one incarnation of a broker, leader epoch and state version do not decrease",
    "SPLIT-STATE": "all brokers have the same agreed state of a partition at the same version",
    "WITNESS-LEADS": "the leader of a partition is one of its replicas",
    "INCOMPLETE": "every member of the ISR and of the ELR has all committed records, as durably as "
    "flush.policy requires, or reports that records may be missing",
    "TOO-FEW-COPIES": "committed records are durable on min.insync.replicas members of the ISR",
    "NOT-MAXIMAL": "for a commit, a leader counts all members of the agreed ISR",
    "WATERMARK-AHEAD": "no broker treats records as committed that no leader committed",
    "WATERMARK-BACK": "in one incarnation, a replica's high watermark does not decrease, unless it "
    "is in neither ISR nor ELR and restarts from an empty log",
    "CHAIN": "logs that end at the same offset in the same epoch have the same content",
    "EARLY-ACK": "records acknowledged with acks=all are committed",
    "EARLY-READ": "records returned to consumers are committed",
    "STALE-END": "an end offset is not lower than the committed offset when the request began",
    "DELETED-TOO-MUCH": "a leader deletes no more than retention and clients have requested",
    "EARLIEST-REGRESSION": "the log start offsets that clients receive do not decrease",
    "TIME-MISSED": "a time lookup covers all records that were committed when it began",
}
VIOLATIONS_MAX: Final = 20
VOTERS_MIN: Final = 3  # of a group, so that a majority remains without one of them


class _Copy:
    """The replica of a partition in one incarnation of a broker, after the broker's last event."""

    __slots__ = ("boots", "host", "seen", "state")

    def __init__(self, boots: int) -> None:
        self.boots = boots
        self.state: PartitionState | None = None
        self.host: Partition | None = None
        self.seen: tuple[object, ...] = ()


class _Known(NamedTuple):
    """Offsets when an operation began, by partition: highest committed, and highest log start."""

    committed: dict[int, Offset]
    starts: dict[int, Offset]


class Observer:
    """Checks one simulation. ``violations`` grows during the run. ``states``: the newest agreed
    state of each partition on any broker.

    ``committed``: the highest offset that a leader committed, by partition. ``starts``: the highest
    log start that a client received, by partition. ``retained_from``: offsets below which the
    topic's ``retention.bytes`` allows deletion. ``topic_id``: of the checked topic. When another
    topic replaces it, ``states``, ``committed`` and ``starts`` are reset. ``former_led_ns``: last
    time when a broker led a partition of a former topic; -1 if there is no former topic.
    ``former_known_ns``: last time when a group coordinator knew a former topic; -1 if there is no
    former topic.
    """

    def __init__(self, world: World, partitions: Sequence[TopicPartition]) -> None:
        """``partitions``: the partitions to check, of one topic."""
        self.violations: list[Violation] = []
        self.topic_id = ""
        self.former_led_ns = self.former_known_ns = -1
        self.states: dict[int, PartitionState] = {}
        self.committed: dict[int, Offset] = {}
        self.starts: dict[int, Offset] = {}
        self.retained_from: dict[TopicPartition, Offset] = {}
        self._deleting: dict[int, Offset] = {}  # by partition: records below may be deleted
        self._known_at: dict[int, _Known] = {}  # by ``id()`` of an operation in progress
        self._world = world
        self._cluster_id = ""
        self._topic = partitions[0].topic
        self._partitions = [partition.partition for partition in partitions]
        self._groups: list[tuple[int, str]] = []  # partitions with their Raft group IDs
        self._former: dict[str, list[str]] = {}  # Raft group IDs of former topics, by topic ID
        self._version = 0  # newest version of the cluster state that contains the topic
        self._is_deleted = False  # a newer version does not contain it
        self._first_ns: dict[str, int] = {}  # when each process began its first operation
        # Records that are certainly in the current topic, with their timestamps.
        self._stored: set[tuple[TopicPartition, Offset, TimestampMs]] = set()
        self._machines = {machine.name: machine for machine in world.brokers}
        self._directories: dict[str, str] = {}  # last directory ID of each machine
        self._lost: set[str] = set()  # IDs of directories on lost disks
        self._lost_copies: set[tuple[int, str]] = set()  # partition, directory: vanished files
        self._copies: dict[tuple[str, int], _Copy] = {}
        self._durable: dict[tuple[int, str], Offset] = {}  # by partition and directory
        self._doubtful: set[tuple[int, str]] = set()  # the same keys; records may be missing
        self._leaders: dict[tuple[int, LeaderEpoch], tuple[str, int]] = {}
        self._chains: dict[tuple[int, Offset, LeaderEpoch], tuple[int, str]] = {}
        world.time.on_event = self._after

    # -- queries -----------------------------------------------------------------------------------

    def log_ends(self, partition: int) -> set[Offset]:
        """Return the log end offsets of the replicas that running brokers have open."""
        return {
            copy.host.log.log_end_offset
            for (name, number), copy in self._copies.items()
            if number == partition
            and copy.host is not None
            and copy.boots == self._machines[name].boots
            and not self._machines[name].is_outside
        }

    def leaders(self) -> set[int]:
        """Return the leaders of the partitions, by the newest states."""
        return {state.leader for state in self.states.values() if state.leader is not None}

    def is_lost_to(self, core: Collection[int]) -> set[int]:
        """Return the partitions that no broker of ``core`` is eligible to lead."""
        return {
            partition
            for partition, state in self.states.items()
            if not {*state.isr, *state.elr} & set(core)
        }

    def has_voters(self, brokers: int) -> bool:
        """Return whether each Raft group has at least ``VOTERS_MIN`` voters, or ``brokers`` voters
        if that is less.
        """
        fewest = min(VOTERS_MIN, brokers)
        nodes = self._nodes().values()
        return all(len(voters) >= fewest for node in nodes for voters in _voters(node))

    def is_group_lost_to(self, core: Collection[int]) -> bool:
        """Return whether no broker of ``core`` is eligible to lead the consumer group's partition.

        False if no running broker knows that partition.
        """
        state = max(self._group_states(), key=lambda state: state.version, default=None)
        return state is not None and not {*state.isr, *state.elr} & set(core)

    def _nodes(self) -> dict[int, ClusterNode]:
        """Return the nodes of the running members of the cluster, by broker ID."""
        return {m.broker_id: node for m in self._world.members if (node := node_of(m))}

    def _group_states(self) -> Iterator[PartitionState]:
        """Yield the state of the consumer group's partition on each running broker."""
        for machine in self._machines.values():
            node = node_of(machine)
            topic = None if node is None else node.machine.topics.get(OFFSETS_TOPIC)
            if node is not None and topic is not None:
                state = node.partitions.state_of(topic.id, 0)
                if state is not None:
                    yield state

    def may_lose(self, machines: Collection[BrokerMachine]) -> bool:
        """Return whether all disks of ``machines`` may be lost now (fault budget). Requires that:

        - every member runs and is in the cluster;
        - every partition has a leader, and all its replicas are in sync;
        - no replica in the ISR or the ELR has lost files, even if its broker has not detected this;
        - every Raft group has enough voters, all of them on their current disks;
        - an in-sync replica of each partition and a voter of the cluster group remain. Without such
          a voter, recovery is impossible (ADR 40);
        - one that remains has the newest state of the cluster durably. A change is acknowledged on
          as many brokers as the highest replication factor, which the lost ones may be;
        - one target replica of each move remains: the old replicas may be removed at any time.
        """
        if any(
            (partition, directory) in self._lost_copies
            for partition, state in self.states.items()
            for directory in (*state.isr.values(), *state.elr.values())
        ):
            return False
        lost = {machine.broker_id for machine in machines}
        states = (*self.states.values(), *self._group_states())
        if any(set(state.isr) <= lost for state in states):
            return False
        members, nodes = self._world.members, self._nodes()
        return (
            len(nodes) == len(members)
            and all(machine.has_power for machine in members)
            and all(node.membership.is_in for node in nodes.values())
            and all(_is_whole(node, nodes) for node in nodes.values())
            and not any(node.subscription.voters.keys() <= lost for node in nodes.values())
            and _has_newest_state(nodes, lost)
            and not any(target <= lost for node in nodes.values() for target in _targets(node))
        )

    # -- events ------------------------------------------------------------------------------------

    def disk_lost(self, machine: BrokerMachine) -> None:
        """Note that the content of the machine's disk is lost."""
        directory = self._directories.get(machine.name)
        if directory is not None:
            self._lost.add(directory)

    def files_lost(self, machine: BrokerMachine) -> None:
        """Note that partition files of the machine have vanished or become older. Its replicas may
        lack committed records until they have left the ISR and the ELR.
        """
        directory = self._directories.get(machine.name)
        if directory is not None:
            self._lost_copies.update((partition, directory) for partition in self._partitions)

    def began(self, operation: Operation) -> None:
        """Note that a client has begun an operation."""
        self._first_ns.setdefault(operation.process, operation.invoked_ns)
        if isinstance(operation, EndOffsets | StartOffsets | TimeLookup):
            self._known_at[id(operation)] = _Known(dict(self.committed), dict(self.starts))
        elif isinstance(operation, Deletion):
            partition = operation.partition.partition
            self._deleting[partition] = max(self._deleting.get(partition, 0), operation.before)

    def ended(self, operation: Operation) -> None:
        """Check an operation of a client that has ended."""
        known = self._known_at.pop(id(operation), None)
        if not operation.is_ok or self._may_be_of_former(operation):
            return
        if known is not None:
            self._check_answer(operation, known)
        if isinstance(operation, StartOffsets):
            for partition, start in operation.starts.items():
                self._note_start(partition, start)
        elif isinstance(operation, Deletion):
            self._note_start(operation.partition, operation.start)
        if isinstance(operation, Send):
            self._stored.add((operation.partition, operation.offset, operation.timestamp_ms))
            if operation.acks == -1 and not self._is_committed(
                operation.partition, operation.offset
            ):
                self._violated(
                    "EARLY-ACK",
                    f"{operation.partition}: {operation.value} at {operation.offset}",
                )
        elif isinstance(operation, Poll):
            for partition, records in operation.records.items():
                if operation.topic_ids.get(partition, self.topic_id) != self.topic_id:
                    continue
                if not self._is_committed(partition, records[-1].offset):
                    self._violated(
                        "EARLY-READ", f"{partition}: {records[-1]} for {operation.process}"
                    )

    def _may_be_of_former(self, operation: Operation) -> bool:
        """Return whether ``operation`` may have used a former topic: a broker led a partition of
        that topic when the operation began, or later.

        A consumer may have fetched the records of a poll at any time since its first operation. A
        member of a consumer group knows the topic ID of its records. A time lookup used the current
        topic if the record that it must find is certainly in that topic.
        """
        since_ns = operation.invoked_ns
        if isinstance(operation, Poll) and operation.topic_ids:
            return False
        if isinstance(operation, Poll):
            since_ns = self._first_ns.get(operation.process, since_ns)
        if isinstance(operation, TimeLookup) and self._former:
            asked = operation.partition, operation.known, operation.timestamp_ms
            return asked not in self._stored
        return since_ns <= self.former_led_ns

    def _check_answer(self, operation: Operation, known: _Known) -> None:
        """Check that a response is not older than the offsets known when the operation began."""
        who = operation.process
        if isinstance(operation, EndOffsets):
            for partition, end in operation.ends.items():
                if end < (committed := known.committed.get(partition.partition, 0)):
                    self._violated("STALE-END", f"{partition}: end {end} < {committed} for {who}")
        elif isinstance(operation, StartOffsets):
            for partition, start in operation.starts.items():
                if start < (told := known.starts.get(partition.partition, 0)):
                    self._violated(
                        "EARLIEST-REGRESSION", f"{partition}: start {start} after {told} for {who}"
                    )
        elif isinstance(operation, TimeLookup):
            partition = operation.partition
            is_found = 0 <= operation.found <= operation.known
            if not is_found and self._deleting.get(partition.partition, 0) <= operation.known:
                self._violated(
                    "TIME-MISSED",
                    f"{partition}: {operation.found} for {who}, but offset {operation.known} "
                    f"has timestamp {operation.timestamp_ms}",
                )

    def _note_start(self, partition: TopicPartition, start: Offset) -> None:
        self.starts[partition.partition] = max(self.starts.get(partition.partition, 0), start)

    def _is_committed(self, partition: TopicPartition, offset: Offset) -> bool:
        return partition.topic != self._topic or offset < self.committed.get(partition[1], 0)

    def _after(self, loop: NodeLoop) -> None:
        """Check the machine of ``loop`` after an event has run on it."""
        machine = self._machines.get(loop.name)
        node = node_on(machine, loop)
        if machine is None or node is None:
            return
        known = node.machine.cluster_id
        if known != self._cluster_id and known:
            self._cluster_id = self._cluster_id or known
            if known != self._cluster_id:
                self._violated("TWO-CLUSTERS", f"{machine.name}: {known}, {self._cluster_id}")
        record = node.machine.topics.get(self._topic)
        if record is not None and record.id != self.topic_id and record.id not in self._former:
            self._begin(record.id)
        if record is not None and record.id == self.topic_id:
            self._version = max(self._version, node.machine.version)
        elif self.topic_id and node.machine.version > self._version:
            self._is_deleted = True
        members = node.partitions.hosted
        self._watch_former(machine, node)
        for number, group in self._groups:
            member = members.get(group)
            if member is not None:
                self._observe_replica(machine, node, number, member.machine.state, member.host)

    def _watch_former(self, machine: BrokerMachine, node: ClusterNode) -> None:
        """Note the time if a machine leads a partition of a former topic, or its group coordinator
        knows a former topic.
        """
        for group in chain.from_iterable(self._former.values()):
            member = node.partitions.hosted.get(group)
            if member is not None and member.host is not None and member.host.leadership:
                self.former_led_ns = self._world.time.now_ns
        if self._former and not self._former.keys().isdisjoint(_coordinated(machine)):
            self.former_known_ns = self._world.time.now_ns

    def _begin(self, topic_id: str) -> None:
        """Start to check a topic: the first one, or one that replaces the former topic."""
        if self.topic_id:
            self._former[self.topic_id] = [group for _, group in self._groups]
            self.former_led_ns = self.former_known_ns = self._world.time.now_ns
        self.topic_id, self._is_deleted = topic_id, False
        self._groups = [(number, raft_id(topic_id, number)) for number in self._partitions]
        for known in (
            self.states,
            self.committed,
            self.starts,
            self._deleting,
            self._known_at,
            self._lost_copies,
            self._copies,
            self._durable,
            self._doubtful,
            self._leaders,
            self._chains,
            self._stored,
        ):
            known.clear()

    def _observe_replica(
        self,
        machine: BrokerMachine,
        node: ClusterNode,
        partition: int,
        state: PartitionState,
        host: Partition | None,
    ) -> None:
        copy = self._copies.get((machine.name, partition))
        if copy is None or copy.boots != machine.boots:
            copy = self._copies[machine.name, partition] = _Copy(machine.boots)
            self._directories[machine.name] = node.me.directory_id
        if state is not copy.state:
            self._take_state(machine, partition, copy, state)
        if host is None:
            copy.host, copy.seen = None, ()
            return
        log = host.log
        seen = (
            log.log_start_offset,
            log.log_end_offset,
            log.acknowledged_end_offset,
            host.high_watermark,
            host.leader_epoch,
            host.leadership,
            log,
            log.damage,
            log.doubt,
        )
        if seen != copy.seen:
            self._take_host(machine, node, partition, copy, host)
            copy.host, copy.seen = host, seen

    # -- agreed states -----------------------------------------------------------------------------

    def _take_state(
        self, machine: BrokerMachine, partition: int, copy: _Copy, state: PartitionState
    ) -> None:
        before, copy.state = copy.state, state
        if before is not None and (
            state.version < before.version or state.leader_epoch < before.leader_epoch
        ):
            self._violated("EPOCH-BACK", f"{machine.name}, {partition}: {before}, then {state}")
        newest = self.states.get(partition)
        if newest is None or state.version > newest.version:
            self.states[partition] = state
            members = {*state.isr.values(), *state.elr.values()}
            self._lost_copies = {
                lost for lost in self._lost_copies if lost[0] != partition or lost[1] in members
            }
            self._check_members(partition, f"{machine.name} has applied {state}")
        elif state.version == newest.version and state != newest:
            self._violated("SPLIT-STATE", f"{machine.name}, {partition}: {newest}, and {state}")

    def _check_members(self, partition: int, why: str) -> None:
        state, committed = self.states.get(partition), self.committed.get(partition, 0)
        if state is None or self._is_deleted:
            return
        for broker, directory in (*state.isr.items(), *state.elr.items()):
            durable = self._durable.get((partition, directory), 0)
            key = partition, directory
            is_lost = directory in self._lost or key in self._lost_copies
            if durable < committed and not is_lost and key not in self._doubtful:
                self._violated(
                    "INCOMPLETE",
                    f"{partition}: broker {broker} has {durable} of {committed} offsets; {why}",
                )

    # -- content of replicas -----------------------------------------------------------------------

    def _take_host(
        self,
        machine: BrokerMachine,
        node: ClusterNode,
        partition: int,
        copy: _Copy,
        host: Partition,
    ) -> None:
        who = f"{machine.name}, {partition}"
        self._check_leader(machine, partition, host)
        if host.leadership is not None and copy.seen and copy.seen[0] != host.log.log_start_offset:
            self._check_start(who, partition, host.log)
        if copy.host is host:
            _, _, _, watermark, epoch, *_ = copy.seen
            assert isinstance(watermark, int) and isinstance(epoch, int)
            if host.leader_epoch < epoch:
                self._violated("EPOCH-BACK", f"{who}: {epoch}, then {host.leader_epoch}")
            if host.high_watermark < watermark and not self._may_cut(node, partition, host):
                self._violated("WATERMARK-BACK", f"{who}: {watermark}, then {host.high_watermark}")
        self._check_chain(who, partition, host)
        directory, durable = node.me.directory_id, host.log.acknowledged_end_offset
        key = partition, directory
        was_doubtful = key in self._doubtful
        is_doubtful = host.log.damage or host.log.doubt
        (self._doubtful.add if is_doubtful else self._doubtful.discard)(key)
        if not is_doubtful and durable >= self.committed.get(partition, 0):
            self._lost_copies.discard(key)  # the vanished files were not part of it
        has_less = durable < self._durable.get(key, 0)
        has_less |= was_doubtful and key not in self._doubtful
        self._durable[key] = durable
        if host.high_watermark > self.committed.get(partition, 0):
            self._commit(who, partition, host)
        elif has_less:
            self._check_members(partition, f"{who} has fewer records")

    def _may_cut(self, node: ClusterNode, partition: int, host: Partition) -> bool:
        """Return whether a replica may restart from an empty log: its directory is in neither ISR
        nor ELR, and it may lack tombstones (``following.must_restart``).
        """
        state = self.states.get(partition)
        return (
            state is not None
            and node.me.directory_id not in {*state.isr.values(), *state.elr.values()}
            and host.leadership is None
            and host.high_watermark <= host.log.log_end_offset
            and host.log.config.is_compacted
        )

    def _check_leader(self, machine: BrokerMachine, partition: int, host: Partition) -> None:
        if host.leadership is None:
            return
        run = machine.name, machine.boots
        first = self._leaders.setdefault((partition, host.leader_epoch), run)
        if first != run:
            self._violated("TWO-LEADERS", f"{partition}, epoch {host.leader_epoch}: {first}, {run}")
        if machine.broker_id not in host.leadership.state.replicas:
            self._violated("WITNESS-LEADS", f"{partition}: {machine.name}")

    def _check_start(self, who: str, partition: int, log: Log) -> None:
        """Check that a leader that has deleted records still has ``retention.bytes``.

        Deletions that clients requested are excepted.
        """
        start, kept = log.log_start_offset, log.config.retention_bytes
        if kept < 0 or start <= self._deleting.get(partition, 0):
            return
        left = sum(segment.size_bytes for segment in log._segments)
        if left < kept:
            self._violated("DELETED-TOO-MUCH", f"{who}: {left} bytes remain from offset {start}")
        name = TopicPartition(self._topic, partition)
        self._deleting[partition] = self.retained_from[name] = start

    def _check_chain(self, who: str, partition: int, host: Partition) -> None:
        """Compare the hash-chain value at the log end, which covers all records of the log."""
        log = host.log
        if log.log_end_offset == log.log_start_offset or log.damage:
            return
        try:
            chain = log.chain_at(log.log_end_offset)
        except RaftlogError:
            return
        if chain is None:
            return
        key = partition, log.log_end_offset, log.last_epoch
        known = self._chains.setdefault(key, (chain, who))
        if known[0] != chain:
            self._violated("CHAIN", f"{who} and {known[1]} differ: offset {key[1]}, epoch {key[2]}")

    def _commit(self, who: str, partition: int, host: Partition) -> None:
        """Check a high watermark that is above all earlier ones of the partition."""
        leadership, offset = host.leadership, host.high_watermark
        if leadership is None:
            if not self._is_deleted:  # a leader that has deleted the topic may have committed this
                self._violated("WATERMARK-AHEAD", f"{who}: high watermark {offset}")
            return
        self.committed[partition] = offset
        self._check_members(partition, f"{who} has committed")
        state, newest = leadership.state, self.states.get(partition)
        copies = [self._durable.get((partition, directory), 0) for directory in state.isr.values()]
        if sum(durable >= offset for durable in copies) < state.min_isr:
            self._violated("TOO-FEW-COPIES", f"{who} has committed {offset}; durable: {copies}")
        if newest is not None and newest.leader_epoch == state.leader_epoch:
            lacking = newest.isr.items() - leadership.maximal_isr()
            if lacking:
                self._violated("NOT-MAXIMAL", f"{who} has committed {offset} without {lacking}")

    def _violated(self, kind: str, message: str) -> None:
        assert kind in INVARIANTS
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(Violation(kind, f"{self._world.time.now:.6f} {message}"))


def _has_newest_state(nodes: Mapping[int, ClusterNode], lost: Container[int]) -> bool:
    newest = max(node.machine.version for node in nodes.values())
    return any(
        node.machine.version == newest
        and (node.plane.has_vote(CLUSTER_GROUP) or node._state_copy._saved.version == newest)
        for broker, node in nodes.items()
        if broker not in lost
    )


def node_of(machine: BrokerMachine) -> ClusterNode | None:
    """Return the cluster node of a machine's broker; None while the broker is not running."""
    broker = machine.broker
    return broker.context.cluster if isinstance(broker, Broker) else None


def node_on(machine: BrokerMachine | None, loop: NodeLoop) -> ClusterNode | None:
    """Return ``node_of``; None also for the loop of another machine, or of one before a restart."""
    return None if machine is None or machine.loop is not loop else node_of(machine)


def _coordinated(machine: BrokerMachine) -> Iterator[str]:
    """Yield the IDs of the topics that a machine's group coordinator knows."""
    broker = machine.broker
    if isinstance(broker, Broker):
        for shard in broker.context.coordinator._shards.by_partition.values():
            if shard.loaded is not None:
                yield from shard.loaded._world.topics.names


def _is_whole(node: ClusterNode, nodes: Mapping[int, ClusterNode]) -> bool:
    """Return whether no voter, replica, leader or file is missing, by the state of one broker."""
    directories = {broker: other.me.directory_id for broker, other in nodes.items()}
    for voters in _voters(node):
        if len(voters) < VOTERS_MIN or voters.items() - directories.items():
            return False
    for member in node.partitions.hosted.values():
        if node.plane.status(member.raft_id).role == "observer":
            continue  # a former voter with an older state
        state, log = member.state, member.host and member.host.log
        if log and (log.damage or not all(segment.is_in_place() for segment in log._segments)):
            return False
        in_sync = {broker: directories.get(broker) for broker in state.replicas}
        leader = None if state.leader is None else nodes.get(state.leader)
        if dict(state.isr) != in_sync or leader is None or state.leader_boot != leader.me.boot:
            return False
    return True


def _targets(node: ClusterNode) -> Iterator[set[int]]:
    """Yield the target replicas of each partition whose replicas move."""
    for record in node.machine.topics.values():
        for assignment in record.partitions:
            if assignment.target is not None:
                yield set(assignment.target.replicas)


def _voters(node: ClusterNode) -> Iterator[Mapping[int, str]]:
    yield node.subscription.voters
    for group in node.partitions.hosted:
        status = node.plane.status(group)
        if status.role != "observer":
            yield status.voters
