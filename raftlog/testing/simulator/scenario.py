"""One seed, from a new simulation to a verdict.

Safety mode: faults until near the end; then all faults end, clients end, new consumers read all
records, and the checker runs. Liveness mode: after some time, the faults of a core of hosts end,
and the other brokers keep their faults permanently. Every client in the core must make progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import count
from random import Random
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import CorruptBatchError
from raftlog.record import BATCH_START, decode_lists, parse_header
from raftlog.replication.partition_state import PartitionState
from raftlog.storage import Log
from raftlog.storage.checkpoint import CheckpointFile
from raftlog.storage.inspect import scan
from raftlog.storage.opening import live_bases
from raftlog.storage.segment import LOG_SUFFIX, base_offsets, file_name
from raftlog.testing import history as format1
from raftlog.testing.checker.gather import FORMER, NEVER
from raftlog.testing.checker.judge import Limits, judge
from raftlog.testing.checker.run import NO_APPENDS
from raftlog.testing.disk import CachedFile, SimDisk
from raftlog.testing.history import STRANGE, AnyEntry, are_tombstones, keys_of
from raftlog.testing.simulator import history as simulated
from raftlog.testing.simulator.faults import HANGS, FaultPlan, Nemesis
from raftlog.testing.simulator.history import (
    NEVER_NS,
    AnyOperation,
    Commit,
    History,
    Outcome,
    Poll,
    Seen,
    Send,
    Violation,
)
from raftlog.testing.simulator.loop import SimulationError
from raftlog.testing.simulator.network import Latency
from raftlog.testing.simulator.observer import VOTERS_MIN, Observer, node_of
from raftlog.testing.simulator.operators import (
    Growing,
    GrowthPlan,
    Moving,
    Recreating,
    Revoking,
    admit,
    joining_config,
    recover,
    still_changing,
    still_moving,
)
from raftlog.testing.simulator.workload import (
    GROUP,
    PREFIX,
    RACKS,
    RETENTIONS_MS,
    CompactionPlan,
    GroupPlan,
    Members,
    Reading,
    Workload,
    WorkloadPlan,
    ask_once,
    create_topic,
    read_all,
    record_name,
)
from raftlog.testing.simulator.world import (
    DRIFT_MAX,
    LOG_DIRECTORY,
    BrokerMachine,
    ClientMachine,
    MakeBroker,
    Program,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from raftlog.types import Offset, TopicPartition

# -- entries ---------------------------------------------------------------------------------------
#
# Conversion of a simulated run to the format of ``raftlog.testing.history``, and its check.
#
# Each value gets a number. In a compacted topic, the number determines the key and whether the
# record is a tombstone, so each send gets a number that matches its key and kind.


VALUES_PER_CHUNK: Final = 1 << 16
Timed: TypeAlias = tuple[int, AnyEntry]  # ns
Row: TypeAlias = tuple[int, int, int, AnyEntry]  # ns, index of operation and entry


class Copy(NamedTuple):
    """Records of a partition at the end of the run, from log start to log end: as received by a new
    consumer, or as stored in the files of a replica."""

    who: str
    partition: TopicPartition
    records: Sequence[Seen]
    start: Offset
    end: Offset
    is_in_sync: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Final state of a run, and facts that clients cannot observe.

    ``retained_from``: retention may delete the records below these offsets. ``keys``: number of
    keys per partition of a compacted topic; else 0. ``keeps_tombstones``: the run is too short for
    the removal of tombstones. ``topic_id``: ID of the topic at the end. For a deleted topic of the
    same name: ``former_led_ns``, the last time at which a broker led a partition of it, and
    ``former_known_ns``, the last time at which a group coordinator had it in its metadata.
    ``drift_ns``: see ``Limits``.
    """

    readers: Sequence[Copy]
    replicas: Sequence[Copy] = ()
    retained_from: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    keys: int = 0
    keeps_tombstones: bool = False
    topic_id: str = ""
    former_led_ns: int = -1
    former_known_ns: int = -1
    drift_ns: int = 0


def check(
    history: History, ending: Ending, *, durable_acks: Collection[int] = (-1,)
) -> list[Violation]:
    """Check a run. Returns all anomalies; empty if the run is valid.

    ``durable_acks``: values of ``acks`` whose acknowledgement guarantees that no record is lost.
    """
    limits = Limits(
        outage_max_ns=NEVER,  # ``scenario`` requires progress
        lag_ns=0,
        durable_acks=tuple(durable_acks),
        drift_ns=ending.drift_ns,
    )
    verdict = judge(entries(history, ending), limits)
    found = [Violation(anomaly.kind, anomaly.message) for anomaly in verdict.anomalies]
    troubles = [text for text in verdict.troubles if text != NO_APPENDS]
    return found + [Violation("HISTORY", text) for text in troubles]


def entries(history: History, ending: Ending) -> list[AnyEntry]:
    """Return the entries of a run in time order."""
    return list(_Conversion(history, ending).run())


class _Conversion:
    def __init__(self, history: History, ending: Ending) -> None:
        self._history = history
        self._ending = ending
        self._numbers = _numbers(history.sends, ending.keys)
        self._partitions = sorted({copy.partition for copy in ending.readers})
        self._rows: list[Row] = []
        self._members: set[str] = set()
        self._commits = 0
        self._how: dict[type[AnyOperation], Callable[[Any], list[Timed]]] = {
            Send: self._append,
            simulated.Poll: self._poll,
            simulated.EndOffsets: self._ends,
            simulated.Deletion: self._deletion,
            simulated.Commit: self._commit,
            simulated.Committed: self._committed,
            simulated.Owning: self._owning,
            simulated.Recreation: self._recreation,
        }
        recreated = [e for e in history if isinstance(e, simulated.Recreation)]
        self._deleted_ns = recreated[0].invoked_ns if recreated else NEVER_NS
        owned = [e.topic_id for e in history if isinstance(e, simulated.Owning)]
        former = next((topic_id for topic_id in owned if topic_id != ending.topic_id), "")
        self._former_ids = dict.fromkeys(self._partitions, former)

    def run(self) -> Iterator[AnyEntry]:
        yield self._start()
        for partition, before in self._ending.retained_from.items():
            add = partial(format1.Delete, time=0, process="retention", partition=str(partition))
            yield from (add(type="invoke", before=before), add(type="info", before=before))
        for number, operation in enumerate(self._history):
            self._convert(number, operation)
        rows = sorted(self._rows, key=lambda row: row[:3])
        yield from (entry for *_, entry in rows)
        last = rows[-1][0] if rows else 0
        for copy in self._ending.readers:
            yield format1.Read(
                time=last,
                process=copy.who,
                type="ok",
                partition=str(copy.partition),
                start=copy.start,
                end=copy.end,
                records=self._seen(copy.records),
            )
        for copy in self._ending.replicas:
            yield format1.Dump(
                time=last,
                process="runner",
                type="info",
                broker=int(copy.who.rpartition("-")[2]),
                partition=str(copy.partition),
                start=copy.start,
                end=copy.end,
                should_be_whole=copy.is_in_sync,
                records=self._seen(copy.records),
            )
        yield format1.Phase(time=last, process="runner", type="info", name="end")

    def _start(self) -> format1.Start:
        ending = self._ending
        config = {"cleanup.policy": "compact" if ending.keys else "delete"}
        if ending.keeps_tombstones:
            config["delete.retention.ms"] = str(7 * 86_400_000)
        topics = [
            {"name": name, "keys": ending.keys, "config": config}
            for name in sorted({partition.topic for partition in self._partitions})
        ]
        plan = {"shape": {"topics": topics}}
        return format1.Start(time=0, process="runner", type="info", plan=plan)

    def _seen(self, records: Sequence[Seen]) -> list[format1.Seen]:
        number = self._numbers.get
        return [(seen.offset, 1, number(seen.value, STRANGE), seen.epoch) for seen in records]

    def _name(self, partition: TopicPartition, topic_ids: Mapping[TopicPartition, str]) -> str:
        topic_id = topic_ids.get(partition, "")
        if topic_id in ("", self._ending.topic_id):
            return str(partition)
        return f"{partition.topic}{FORMER}{topic_id}:{partition.partition}"

    # -- operations

    def _convert(self, number: int, operation: AnyOperation) -> None:
        how = self._how.get(type(operation))
        for place, (ns, entry) in enumerate(how(operation) if how is not None else ()):
            if ns < NEVER_NS:
                entry.time = max(ns, operation.invoked_ns)
                self._rows.append((entry.time, number, place, entry))

    def _append(self, send: Send) -> list[Timed]:
        value = self._numbers[send.value]
        make = partial(
            format1.Append,
            partition=str(send.partition),
            first=value,
            acks=send.acks,
            idempotent=send.idempotent,
        )
        is_known = send.is_ok and send.offset >= 0
        return _both(send, make, offsets=[(value, 1, send.offset)] if is_known else [])

    def _poll(self, poll: simulated.Poll) -> list[Timed]:
        is_member = poll.process.startswith(PREFIX)
        return _both(
            poll,
            partial(format1.Poll, group=GROUP if is_member else ""),
            poll.process.replace("@", "#"),
            resets_to_latest=poll.resets_to_latest,
            records={
                self._name(tp, poll.topic_ids): self._seen(records)
                for tp, records in poll.records.items()
            },
        )

    def _ends(self, asked: simulated.EndOffsets) -> list[Timed]:
        return _both(asked, format1.Ends, ends={str(tp): end for tp, end in asked.ends.items()})

    def _deletion(self, deletion: simulated.Deletion) -> list[Timed]:
        partition = str(deletion.partition)
        make = partial(format1.Delete, partition=partition, before=deletion.before)
        return _both(deletion, make)

    def _commit(self, commit: simulated.Commit) -> list[Timed]:
        self._commits += 1
        offsets = {self._name(tp, commit.topic_ids): at for tp, at in commit.offsets.items()}
        make = partial(format1.Commit, group=GROUP, offsets=offsets)
        return _both(commit, make, f"{commit.process}#{self._commits}")  # several are in flight

    def _committed(self, asked: simulated.Committed) -> list[Timed]:
        """Omit responses that may refer to the deleted or to the new topic."""
        is_former = asked.completed_ns < self._deleted_ns < NEVER_NS
        if not is_former and asked.invoked_ns <= self._ending.former_known_ns:
            return []
        topic_ids = self._former_ids if is_former else {}
        offsets = {
            self._name(tp, topic_ids): asked.offsets.get(tp, -1)
            for tp in self._partitions
            if asked.is_ok
        }
        return _both(asked, partial(format1.Committed, group=GROUP), offsets=offsets)

    def _owning(self, owning: simulated.Owning) -> list[Timed]:
        name = self._name(owning.partition, {owning.partition: owning.topic_id})
        make = partial(format1.Member, time=0, process=owning.process, type="info", group=GROUP)
        found: list[Timed] = []
        if owning.process not in self._members:
            self._members.add(owning.process)
            topics = [owning.partition.topic]
            found.append((owning.invoked_ns, make(what="start", args={"topics": topics})))
        found.append((owning.invoked_ns, make(what="assigned", partitions=[name])))
        how = "revoked" if owning.outcome is Outcome.OK else "lost"
        found.append((owning.completed_ns, make(what=how, partitions=[name])))
        return found

    def _recreation(self, recreation: simulated.Recreation) -> list[Timed]:
        """Return the deletion. It ends when no broker leads a partition of the former topic."""
        make = partial(format1.Admin, time=0, process=recreation.process, what="delete")
        topic = self._partitions[0].topic
        return [
            (recreation.invoked_ns, make(type="invoke", topic=topic)),
            (self._ending.former_led_ns, make(type="ok", topic=topic)),
        ]


def _both(
    done: AnyOperation, make: Callable[..., AnyEntry], process: str = "", **result: object
) -> list[Timed]:
    """Return the invocation and the completion of an operation. ``result``: of the completion."""
    make = partial(make, time=0, process=process or done.process)
    return [
        (done.invoked_ns, make(type="invoke")),
        (done.completed_ns, make(type=done.outcome.value, **result)),
    ]


# -- values ----------------------------------------------------------------------------------------


def _numbers(sends: Sequence[Send], keys: int) -> dict[str, int]:
    """Return a number for each value."""
    if not keys:
        return {send.value: number for number, send in enumerate(sends, start=1)}
    taken: dict[tuple[int, bool], Iterator[int]] = {}
    found: dict[str, int] = {}
    for send in sends:
        kind = int(send.key.lstrip("k")), send.is_tombstone
        if kind not in taken:
            taken[kind] = _numbers_of(keys, *kind)
        found[send.value] = next(taken[kind])
    return found


def _numbers_of(keys: int, key: int, is_tombstone: bool) -> Iterator[int]:
    for chunk in count():
        yield from _chunk(keys, chunk).get((key, is_tombstone), ())


@lru_cache(maxsize=64)
def _chunk(keys: int, chunk: int) -> dict[tuple[int, bool], list[int]]:
    """Return the numbers of a chunk by key and kind (True: tombstone)."""
    start = 1 + chunk * VALUES_PER_CHUNK
    values = np.arange(start, start + VALUES_PER_CHUNK, dtype=np.int64)
    found: dict[tuple[int, bool], list[int]] = {}
    for value, key, is_tombstone in zip(
        values.tolist(),
        keys_of(values, keys).tolist(),
        are_tombstones(values).tolist(),
        strict=True,
    ):
        found.setdefault((key, is_tombstone), []).append(value)
    return found


# -- scenario --------------------------------------------------------------------------------------


Mode: TypeAlias = Literal["safety", "liveness"]
MODES: Final[tuple[Mode, ...]] = ("safety", "liveness")

READERS: Final = 2
REST_LIMIT_S: Final = 120.0  # after healing, for brokers to start and for clients to end
CONVERGENCE_CHECK_S: Final = 1.0  # between two comparisons of all logs
SYNC_S: Final = 2.0  # for all replicas to sync all records, and to report it
LIGHT_DURATION_S: Final = 4.0
LATE_S_MAX: Final = 20.0  # after the others, for a broker that starts late
ALTERS_MIN_ISR: Final = 0.3  # the share of scenarios
STRANDED_LONGER_S: Final = 12.0  # added to a run with stranded brokers
INTERLEAVINGS: Final = (0.0, 0.0, 0.2, 1.0)
SLOW_SHARE: Final = 0.2  # of the brokers of a core have disks that sometimes stall
OPERATIONS_PER_BATCH: Final = 4  # of a disk, until a batch is acknowledged
SICK_SHARE: Final = 0.5  # of the brokers outside of a core have a bad disk as their only fault
VOTERS_LIMIT_S: Final = 20.0  # for groups to elect a leader and to add a voter
QUIET_S: Final = 10.0  # for brokers to receive all leaders; longer than any of their timeouts
CACHE_LOSSY_SHARE: Final = 0.12  # of the clusters in safety mode
HARMED_SHARE: Final = 0.2
REPLICA_READS_SHARE: Final = 0.3  # of the clusters
GROUP_SHARE: Final = 0.2  # of the clusters without corruption of stored bytes
RECREATION_SHARE: Final = 0.12  # of the clusters in safety mode
RETAINED_BYTES_SHARE: Final = 0.15  # of those without group, recreation, compaction
# Of group members in liveness mode: every change of a group waits for the disks of the ISR, and a
# replica whose syncs take up to ``replica.lag.time.max.ms`` remains in the ISR.
PATIENT_SESSION_MS: Final = 8_000
GROUP_LONGER_S: Final = 6.0  # for members to join, and for sessions to end
TWO_DISKS_SHARE: Final = 0.25  # of all seeds
MOVES_SHARE: Final = 0.25  # of the clusters in safety mode
GROWTH_SHARE: Final = 0.15  # of those that ``_with_growth`` permits
SECURED_SHARE: Final = 0.12  # of the clusters in safety mode
KAFKA_SHARE: Final = 0.5  # of all seeds
NEVER_MS: Final = 604_800_000
SCRUB_INTERVAL_MS: Final = 3_000  # with corruption of stored bytes: detects all of it in time
PROGRESS_LIMIT_S: Final = 60.0  # for every client of a healed core to make progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Parameters of a simulated run. A seed determines all of them; each can be set instead."""

    seed: int
    mode: Mode
    brokers: int
    duration_s: float
    latency: Latency
    socket_bytes: int
    slicing: float
    faults: FaultPlan
    workload: WorkloadPlan
    last_words: str  # how brokers stop before their files are checked
    replacement_ms: int = 600_000  # delay before a witness replaces a lost replica
    interleaving: float = 0.0  # share of disk work during which time passes
    light: bool = False  # short, and with a light workload
    absent: int = 0  # a broker that does not start with the others; 0: all do
    has_racks: bool = False  # each broker is in one of ``RACKS``
    growth: GrowthPlan | None = None  # brokers that join and leave
    two_disks: tuple[int, ...] = ()  # brokers with a second directory for logs
    is_left_out: bool = False  # the others create the cluster without it; it starts at the end

    @classmethod
    def draw(
        cls,
        seed: int,
        *,
        mode: Mode = "safety",
        brokers: int = 1,
        duration_s: float | None = None,
        light: bool = False,
        compacted: bool = False,
        kafka: bool = True,
    ) -> Scenario:
        """Derive a scenario from a seed, in most cases with n replicas on 2n - 1 brokers.

        ``compacted``: the same scenario with a compacted topic. ``kafka``: whether some clients may
        speak Kafka's protocol.
        """
        random = Random(f"{seed}/scenario")
        factor, settings = (brokers + 1) // 2, Random(f"{seed}/settings")
        # ``min_isr`` of writable partitions: not more than the replicas that a core may have,
        # unless lost ones are replaced.
        is_strict = mode == "safety" and brokers > 1 and settings.random() < 0.3
        delays = (1_000, 5_000) if mode == "liveness" else (1_000, 5_000, 600_000)
        drawn_s = random.choice((3.0, 6.0, 10.0))
        scenario = cls(
            seed=seed,
            mode=mode,
            brokers=brokers,
            duration_s=drawn_s if duration_s is None else duration_s,
            latency=random.choice((Latency(), Latency(0.5e-3, 2e-3), Latency(5e-3, 20e-3))),
            socket_bytes=random.choice((4, 64, 1024)) * limits.KIB,
            slicing=random.choice((0.0, 0.0, 0.5)),
            faults=FaultPlan.draw(random, brokers=brokers).with_apart(seed),
            workload=WorkloadPlan.draw(
                random, replication_factor=factor, min_isr=min(2, factor) if is_strict else 0
            ),
            last_words=random.choice(("stop", "kill", "power cut")),
            replacement_ms=settings.choice(delays),
            interleaving=Random(f"{seed}/interleaving").choice(INTERLEAVINGS),
        )
        if brokers > 1:
            scenario = scenario._with_strangers(settings, may_be_longer=duration_s is None)
            scenario = scenario._with_cluster(Random(f"{seed}/cluster"))
        if mode == "safety" and brokers > 1:
            scenario = scenario._with_losses(Random(f"{seed}/losses"))
        if compacted:
            plan = CompactionPlan.draw(Random(f"{seed}/compaction"))
            scenario = replace(scenario, workload=scenario.workload.with_compaction(plan))
        retention_ms = Random(f"{seed}/retention").choice(RETENTIONS_MS)
        scenario = replace(scenario, workload=scenario.workload.with_retention(retention_ms))
        if light:
            scenario = scenario.lightened()
        if brokers > 1:
            scenario = scenario._with_replica_reads(Random(f"{seed}/replica reads"))
            scenario = scenario._with_group(Random(f"{seed}/group"))
            scenario = scenario._with_recreation(Random(f"{seed}/recreation"))
            scenario = scenario._with_retained_bytes(Random(f"{seed}/retained bytes"))
            scenario = scenario._with_moves(Random(f"{seed}/moves"))
            scenario = scenario._with_growth(Random(f"{seed}/growth"))
            scenario = scenario._with_users(Random(f"{seed}/users"))
        scenario = scenario._with_two_disks(Random(f"{seed}/two disks"))
        return scenario._with_kafka(Random(f"{seed}/kafka")) if kafka else scenario

    def _with_strangers(self, random: Random, *, may_be_longer: bool) -> Scenario:
        """Add clients that reach one broker only. Make runs with stranded brokers longer."""
        askers = random.choice((0, 1, 2))
        is_longer = may_be_longer and "strand" in self.faults.kinds
        longer_s = STRANDED_LONGER_S if is_longer else 0.0
        return replace(
            self,
            duration_s=self.duration_s + longer_s,
            workload=replace(
                self.workload,
                askers=askers,
                # A core that must make progress need not have all replicas.
                alters_min_isr=self.mode == "safety" and random.random() < ALTERS_MIN_ISR,
            ),
        )

    def _with_cluster(self, random: Random) -> Scenario:
        """Let a broker start later in some scenarios; in fewer, place replicas on all brokers."""
        has_all = random.random() < 0.2
        is_absent = random.random() < 0.3
        chosen = random.randint(1, self.brokers)
        factor = self.brokers if has_all else self.workload.replication_factor
        return replace(
            self,
            absent=chosen if is_absent else 0,
            is_left_out=is_absent and not has_all and random.random() < 0.5,
            workload=replace(self.workload, replication_factor=factor),
        )

    def _with_replica_reads(self, random: Random) -> Scenario:
        """Let consumers read from replicas in some scenarios, in some of those with racks."""
        if random.random() >= REPLICA_READS_SHARE:
            return self
        has_racks = random.random() < 0.5
        workload = self.workload.with_replica_reads(random)
        return replace(self, has_racks=has_racks, workload=workload)

    def _with_group(self, random: Random) -> Scenario:
        """Add a consumer group to some scenarios, and make them longer.

        Not if a counted copy may be corrupted: the topic of the group has a separate configuration.
        """
        plan = GroupPlan.draw(random)
        if self.mode == "liveness":
            plan = replace(plan, session_timeout_ms=PATIENT_SESSION_MS)
        is_sound = not (self.faults.harmed or self.absent)
        if random.random() >= GROUP_SHARE or not is_sound:
            return self
        return replace(
            self,
            duration_s=self.duration_s + GROUP_LONGER_S,
            workload=replace(self.workload, group=plan),
        )

    def _with_recreation(self, random: Random) -> Scenario:
        """Recreate the topic in some scenarios, but not in liveness mode."""
        after_s = self.duration_s * random.uniform(0.1, 0.9)
        if random.random() >= RECREATION_SHARE or self.mode == "liveness":
            return self
        return replace(self, workload=replace(self.workload, recreates_after_s=after_s))

    def _with_retained_bytes(self, random: Random) -> Scenario:
        """Return the scenario, in some cases with a topic with ``retention.bytes``."""
        workload = self.workload.with_retained_bytes(random)
        is_other = self.mode == "liveness" or self.is_compacted or self.workload.group is not None
        is_other |= bool(self.workload.recreates_after_s)
        if random.random() >= RETAINED_BYTES_SHARE or is_other:
            return self
        return replace(self, workload=workload)

    def _with_moves(self, random: Random) -> Scenario:
        """Return the scenario, in some cases with an operator who moves replicas. The number of
        replicas is constant if acknowledged bytes may be lost: it determines the fault budget.
        """
        every_s = random.choice((0.3, 1.0, 3.0))
        if random.random() >= MOVES_SHARE or self.mode == "liveness":
            return self
        is_sound = not (self.faults.harmed or self.faults.is_cache_lossy)
        workload = replace(self.workload, moves_every_s=every_s, changes_factor=is_sound)
        return replace(self, workload=workload)

    def _with_growth(self, random: Random) -> Scenario:
        """Return the scenario, in some cases with brokers that join and leave.

        Not with a recreated topic: a broker starts with the state before the last change of the
        voters. Until it has applied all later changes, it has the deleted topic again, without its
        files.
        """
        plan = GrowthPlan.draw(random)
        is_sound = not (self.faults.harmed or self.faults.is_cache_lossy or self.absent)
        is_sound &= not self.workload.recreates_after_s
        if random.random() >= GROWTH_SHARE or self.mode == "liveness" or not is_sound:
            return self
        return replace(self, growth=plan)

    def _with_users(self, random: Random) -> Scenario:
        """Return the scenario, in some cases with clients that authenticate, and a user that is
        created and deleted repeatedly.
        """
        if random.random() >= SECURED_SHARE or self.mode == "liveness":
            return self
        return replace(self, workload=replace(self.workload, is_secured=True))

    def _with_two_disks(self, random: Random) -> Scenario:
        """Return the scenario, in some cases with brokers that have two log directories."""
        some = [broker for broker in range(1, self.brokers + 1) if random.random() < 0.6]
        if random.random() >= TWO_DISKS_SHARE:
            return self
        return replace(self, two_disks=tuple(some), faults=self.faults.with_two_disks(random))

    def _with_kafka(self, random: Random) -> Scenario:
        """Return the scenario, in some cases with clients that speak Kafka's protocol."""
        if random.random() >= KAFKA_SHARE:
            return self
        return replace(self, workload=self.workload.with_kafka(random))

    def _with_losses(self, random: Random) -> Scenario:
        """Corrupt stored bytes in some scenarios; in others, power cuts lose acknowledged records.

        Acknowledged records are then on more replicas than may lose them.
        """
        drawn, factor = random.random(), self.workload.replication_factor
        config = self.workload.topic_config
        faults = self.faults.with_harm(random, brokers=self.brokers, replicas=factor)
        last_words = "kill" if self.last_words == "power cut" else self.last_words
        if drawn < CACHE_LOSSY_SHARE:
            if factor == 1:  # brokers refuse the policy: there would be no other copy
                return self
            config = {**config, "flush.policy": "os"}
            faults = replace(self.faults.on_its_own(), is_cache_lossy=True)
        elif drawn < CACHE_LOSSY_SHARE + HARMED_SHARE:
            config = {**config, "min.insync.replicas": str(factor)}
        else:
            return self
        workload = replace(self.workload, topic_config=config)
        return replace(self, faults=faults, workload=workload, last_words=last_words)

    @property
    def is_compacted(self) -> bool:
        return self.workload.compaction is not None

    async def start_broker(self, machine: BrokerMachine) -> RunningBroker:
        """Start a broker of the scenario (``MakeBroker``)."""
        compaction = self.workload.compaction
        is_without = self.is_left_out and machine.broker_id != self.absent
        config = broker_config(
            machine,
            replacement_delay_ms=self.replacement_ms,
            cleaner_interval_ms=15_000 if compaction is None else compaction.interval_ms,
            scrub_interval_ms=SCRUB_INTERVAL_MS if self.faults.harmed else NEVER_MS,
            bootstrap_without=(self.absent,) if is_without else (),
            offsets_partitions=1,
            rack=RACKS[machine.broker_id % len(RACKS)] if self.has_racks else "",
            # Some disks become completely full, others refuse writes before.
            has_watermarks=machine.broker_id % 2 == 1,
            is_secured=self.workload.is_secured,
        )
        if self.growth is not None:
            config = joining_config(machine, config, self.brokers)
        return await start_broker(machine, config=config)

    def lightened(self) -> Scenario:
        """Return the scenario with less work, for runs of many seeds."""
        return replace(
            self,
            light=True,
            duration_s=min(self.duration_s, LIGHT_DURATION_S),
            workload=self.workload.lightened(),
        )


@dataclass(slots=True)
class Verdict:
    """Result of a seed. ``digest``: the same for the same seed and the same program."""

    scenario: Scenario
    digest: str = ""
    events: int = 0
    virtual_s: float = 0.0
    faults: dict[str, int] = field(default_factory=dict)
    operations: dict[str, int] = field(default_factory=dict)
    violations: list[Violation] = field(default_factory=list)
    workload: Workload | None = None  # contains the history
    ending: Ending | None = None

    @property
    def is_good(self) -> bool:
        return not self.violations


def run(
    scenario: Scenario,
    *,
    make_broker: MakeBroker | None = None,
    durable_acks: Collection[int] | None = None,
    on_trace: Callable[[str], None] | None = None,
) -> Verdict:
    """Run a scenario. An exception of the simulated program is a violation, and not raised.

    ``make_broker``: starts the broker of a machine. ``durable_acks``: the values of ``acks`` whose
    acknowledgement guarantees that no record is lost. Default: all but 0 with one broker, else -1.
    """
    verdict = Verdict(scenario)
    if make_broker is None:
        make_broker = scenario.start_broker
    with World(
        scenario.seed,
        brokers=scenario.brokers + (0 if scenario.growth is None else scenario.growth.joins),
        make_broker=make_broker,
        latency=scenario.latency,
        socket_bytes=scenario.socket_bytes,
        slicing=scenario.slicing,
        interleaving=scenario.interleaving,
        on_trace=on_trace,
    ) as world:
        for machine in world.brokers:
            if machine.broker_id in scenario.two_disks:
                machine.log_dirs = (LOG_DIRECTORY,)
        workload = verdict.workload = Workload(world, scenario.workload)
        observer = Observer(world, workload.partitions)
        nemesis = Nemesis(
            world,
            scenario.faults,
            may_wipe=lambda lost: scenario.mode == "safety" and observer.may_lose(lost),
            on_wipe=observer.disk_lost,
            on_vanish=observer.files_lost,
            on_most_wiped=lambda: _call_operator(world),
            leaders=observer.leaders,
            fewest_voters=VOTERS_MIN if scenario.growth is not None else 0,
        )
        acks = durable_acks or ((-1, 1) if scenario.brokers == 1 else (-1,))
        if scenario.brokers > 1:
            workload.history.on_begin = observer.began
            workload.history.on_end = observer.ended
        try:
            _prepare(world, workload, scenario)
            members = Members(workload)
            members.start()
            workload.start()
            revoking = _start_operators(workload, observer, scenario)
            nemesis.start()
            world.run_for(scenario.duration_s)
            nemesis.stop()
            if scenario.mode == "liveness":
                verdict.violations += _progress(world, workload, members, observer, scenario)
            verdict.ending, stuck = _end(world, workload, observer, scenario)
            verdict.violations += [Violation("STUCK", stuck)] if stuck else []
            verdict.violations += check(workload.history, verdict.ending, durable_acks=acks)
            verdict.violations += [] if revoking is None else revoking.violations()
            world.check()
        except SimulationError as error:
            verdict.violations.append(Violation("CRASH", str(error)))
        verdict.violations += observer.violations
        verdict.faults = dict(sorted(nemesis.counts.items()))
        verdict.operations = workload.history.counts()
        verdict.digest = world.time.digest()
        verdict.events, verdict.virtual_s = world.time.events, world.time.now
    return verdict


def _start_operators(workload: Workload, observer: Observer, scenario: Scenario) -> Revoking | None:
    """Start the clients that delete the topic, move replicas, add and remove brokers, and create
    and delete a user; return the last one.
    """
    plan = scenario.workload
    if plan.recreates_after_s:
        workload.add("recreator", Recreating(workload, plan.recreates_after_s).run)
    if every_s := plan.moves_every_s:
        moving = Moving(workload, every_s=every_s, changes_factor=plan.changes_factor)
        workload.add("mover", moving.run)
    if scenario.growth is not None:
        growing = Growing(workload, observer, scenario.growth, founders=scenario.brokers)
        workload.add("grower", growing.run)
    if not plan.is_secured:
        return None
    revoking = Revoking(workload)
    revoking.start()
    return revoking


def _call_operator(world: World) -> None:
    name = f"operator-{len(world.clients) + 1}"
    world.add_client(name, lambda machine: recover(world, machine)).start()


def _prepare(world: World, workload: Workload, scenario: Scenario) -> None:
    for machine in world.brokers:
        machine.is_outside = machine.broker_id > scenario.brokers
        machine.is_kept_down = machine.is_outside or machine.broker_id == scenario.absent
    world.boot()
    if scenario.absent and not scenario.is_left_out:
        late = world.brokers[scenario.absent - 1]
        late.is_kept_down = False
        late.start_later(world.random("late").uniform(0.0, LATE_S_MAX))

    async def begin(machine: ClientMachine) -> None:
        if scenario.workload.is_secured:
            await admit(workload, machine)
        await create_topic(workload, machine)

    admin = world.add_client("admin-0", begin)
    admin.start()
    if not world.run_until(lambda: admin.is_done, limit_s=REST_LIMIT_S):
        raise SimulationError("the topic could not be created without faults")


# -- liveness --------------------------------------------------------------------------------------


def _progress(
    world: World, workload: Workload, members: Members, observer: Observer, scenario: Scenario
) -> list[Violation]:
    """Heal a core, give the others a permanent fault, and check that every client makes progress.

    In a cluster, all faults end first, until replicas have caught up and each partition has enough
    voters: its topic may have been created while too few brokers ran. A partition whose committed
    state has no eligible leader in the core correctly waits for one.
    """
    random = world.random("core")
    patience_s = min(plan.patience_s for plan in scenario.workload.producers)
    brokers = [machine.name for machine in world.brokers]
    core = set(random.sample(brokers, scenario.brokers - (scenario.brokers - 1) // 2))
    clients = [m.name for m in workload.machines if m.name not in members.names]
    if len(clients) > 1 and random.random() < 0.5:
        clients.remove(random.choice(clients))
    if len(core) < len(brokers):
        world.heal()
        world.run_for(QUIET_S)
        running = sum(not machine.is_kept_down for machine in world.brokers)
        if not world.run_until(lambda: observer.has_voters(running), limit_s=VOTERS_LIMIT_S):
            return [Violation("UNAVAILABLE", f"too few voters {VOTERS_LIMIT_S} s after healing")]
        for machine in world.brokers:
            if machine.name not in core:
                _freeze(world, random, machine, sorted(core), patience_s)
    world.heal({*core, *clients, *members.names})
    members.leave_one_paused()
    _slow_disks(world, sorted(core))
    world.trace(f"healed permanently: {sorted(core)} and {clients}")
    since_ns = world.time.now_ns

    core_ids = [machine.broker_id for machine in world.brokers if machine.name in core]
    workload.core = core_ids

    def missing() -> list[str]:
        able = workload.plan.partitions - len(observer.is_lost_to(core_ids))
        late = [name for name in clients if not _makes_progress(workload, name, since_ns, able)]
        if workload.plan.group is not None and not observer.is_group_lost_to(core_ids):
            advanced = sum(_has_committed(workload, name, since_ns) for name in workload.partitions)
            late += [PREFIX] * (advanced < able)
        return late

    is_well = world.run_until(lambda: not missing(), limit_s=PROGRESS_LIMIT_S, every_s=0.5)
    members.resume()
    if is_well:
        return []
    what = f"{missing()} make no progress within {PROGRESS_LIMIT_S} s of healing {sorted(core)}"
    return [Violation("UNAVAILABLE", what)]


def _freeze(
    world: World, random: Random, machine: BrokerMachine, core: list[str], patience_s: float
) -> None:
    """Give a broker outside the core a permanent fault. ``patience_s``: of the producers."""
    how = random.choice(
        ("down", "without power", "paused", "cannot send", "cannot receive", "isolated")
    )
    disks = world.random(f"core/{machine.name}/disk")
    if disks.random() < SICK_SHARE:
        _spoil_disk(world, disks, machine, patience_s)
        return
    world.trace(f"{machine.name} from now on: {how}")
    if how == "down":
        machine.is_kept_down = True
        machine.kill()
    elif how == "without power":
        machine.power_cut()
    elif how == "paused":
        machine.pause()
    for host in core:
        if how in {"cannot send", "isolated"}:
            world.network.cut(machine.name, host, one_way=True)
        if how in {"cannot receive", "isolated"}:
            world.network.cut(host, machine.name, one_way=True)


def _slow_disks(world: World, core: list[str]) -> None:
    """Let some disks of the core stall sometimes. The core must still make progress."""
    for machine in world.brokers:
        random = world.random(f"core/{machine.name}/latency")
        if machine.name in core and random.random() < SLOW_SHARE:
            machine.latency.stall_chance, machine.latency.stall_s = 0.1, random.choice((0.1, 0.5))
            world.trace(f"{machine.name}'s disk stalls for {machine.latency.stall_s} s at times")


def _spoil_disk(world: World, random: Random, machine: BrokerMachine, patience_s: float) -> None:
    """Give a broker outside the core a bad disk permanently.

    A disk that is slow, but fast enough for its broker to stay in sync, delays each acknowledgement
    by some operations: producers that do not wait so long make no progress.
    """
    how = random.choice((*HANGS, "full disk", "slow disk"))
    world.trace(f"{machine.name} from now on has a bad disk: {how}")
    if how in HANGS:
        machine.hang(HANGS[how]())
    elif how == "full disk":
        machine.disk.capacity_bytes = machine.disk.used_bytes
    else:
        machine.latency.stall_chance = random.choice((0.3, 1.0))
        machine.latency.stall_s = random.choice((1.0, 10.0))
        if patience_s < OPERATIONS_PER_BATCH * machine.latency.stall_s:
            machine.latency.stall_s = 10.0


def _makes_progress(workload: Workload, machine: str, since_ns: int, able: int) -> bool:
    """Return whether a client has completed an operation that began after ``since_ns``; a producer:
    on each of the ``able`` partitions that are writable.
    """
    plan = workload.plan
    mine = [
        entry
        for entry in reversed(workload.history.operations)
        if entry.invoked_ns > since_ns and entry.process.startswith(f"{machine}/")
    ]
    if machine.startswith("producer"):
        number = int(machine.partition("-")[2]) - 1
        if plan.producers[number].acks == 0:
            return any(isinstance(entry, Send) and entry.is_ok for entry in mine)
        done = {entry.partition for entry in mine if isinstance(entry, Send) and entry.is_ok}
        return len(done) >= able
    if machine.startswith("consumer"):
        number = int(machine.partition("-")[2]) - 1
        if plan.consumers[number].begin == "middle" and able < plan.partitions:
            return True  # it requests the end of every partition before it reads
        return any(isinstance(entry, Poll) and entry.outcome is Outcome.OK for entry in mine)
    return True


def _has_committed(workload: Workload, name: TopicPartition, since_ns: int) -> bool:
    """Return whether a member has committed an offset of a partition after ``since_ns``."""
    return any(
        isinstance(entry, Commit)
        and entry.is_ok
        and entry.invoked_ns > since_ns
        and name in entry.offsets
        for entry in reversed(workload.history.operations)
    )


# -- safety ----------------------------------------------------------------------------------------


def _end(
    world: World, workload: Workload, observer: Observer, scenario: Scenario
) -> tuple[Ending, str]:
    """End all faults and all clients, and read all records.

    Returns the final state, and a description of what did not end; "" if all ended.
    """
    readings = [Reading() for _ in range(READERS)]
    stuck = _bring_to_rest(world, workload, observer, readings)
    states = dict(observer.states)  # while brokers stop, others may replace them
    _end_brokers(world, scenario.last_words)
    names = workload.partitions
    if scenario.is_compacted:
        for machine in world.brokers:
            for name in names:
                _finish_compaction(machine, name, observer.topic_id)
    copies = [
        copy
        for machine in world.members
        for name in names
        if (copy := _copy(machine, name, observer.topic_id, states)) is not None
    ]
    if stuck:  # not all was read: use the longest log of each partition
        readers, copies = [_longest(name, copies) for name in names], []
    else:
        readers = [
            _received(f"reader-{number}", name, reading, scenario)
            for number, reading in enumerate(readings, start=1)
            for name in names
        ]
    compaction, group = workload.plan.compaction, workload.plan.group
    session_ms = 0 if group is None else group.session_timeout_ms
    ending = Ending(
        readers=readers,
        replicas=copies,
        retained_from=observer.retained_from,
        keys=0 if compaction is None else compaction.keys,
        keeps_tombstones=compaction is not None and compaction.keeps_tombstones,
        topic_id=observer.topic_id,
        former_led_ns=observer.former_led_ns,
        former_known_ns=observer.former_known_ns,
        drift_ns=round(2 * DRIFT_MAX * session_ms * 1_000_000),
    )
    return ending, stuck


def _longest(name: TopicPartition, copies: Sequence[Copy]) -> Copy:
    return max(
        (copy for copy in copies if copy.partition == name),
        key=lambda copy: (copy.end, len(copy.records)),
        default=Copy("reader", name, (), 0, 0),
    )


def _received(who: str, name: TopicPartition, reading: Reading, scenario: Scenario) -> Copy:
    """Return the records that a new consumer received. Without compaction, the log starts at the
    first record, because the start may have increased after the consumer requested it.
    """
    records, start, end = reading.records[name], reading.starts[name], reading.ends[name]
    if not scenario.is_compacted:
        start = records[0].offset if records else end
    return Copy(who, name, records, start, end)


def _empty_old_copies(world: World) -> None:
    """Start with empty directories the brokers that the others refuse for their old copy, as the
    message says. A copy of the first moments of a broker does not know where it was made, so the
    broker does not notice itself that it is one.
    """
    for machine in world.members:
        node = node_of(machine)
        if node is not None and "uses an old copy of" in node.membership.refusal:
            machine.wipe()
            machine.start()


def _bring_to_rest(
    world: World, workload: Workload, observer: Observer, readings: list[Reading]
) -> str:
    """Fill ``readings``. Returns a description of what exceeded its time limit; else ""."""
    world.heal()
    workload.is_over = True
    if not world.run_until(lambda: world.is_up() and workload.is_done, limit_s=REST_LIMIT_S):
        waiting = [machine.name for machine in workload.machines if not machine.is_done]
        down = [machine.name for machine in world.brokers if machine.broker is None]
        return f"after healing; brokers down: {down}, clients still active: {waiting}"
    world.run_for(QUIET_S)
    _empty_old_copies(world)
    readers = [
        world.add_client(f"reader-{number}", _reader(workload, reading, number))
        for number, reading in enumerate(readings, start=1)
    ]
    if workload.plan.group is not None:
        readers.append(world.add_client("group-reader", partial(ask_once, workload)))
    for reader in readers:
        reader.start()
    if not world.run_until(lambda: all(r.is_done for r in readers), limit_s=REST_LIMIT_S):
        left = [reading.left for reading in readings]
        return f"readers do not reach the end of the log: {left}"
    if len(world.brokers) > 1:
        differing = partial(_differing, world, workload, observer)
        if not world.run_until(
            lambda: not differing(), limit_s=REST_LIMIT_S, every_s=CONVERGENCE_CHECK_S
        ):
            return f"replicas do not converge: {differing()}"
        world.run_for(SYNC_S)
    return ""


def _differing(world: World, workload: Workload, observer: Observer) -> str:
    """Return the state of brokers, unless exactly the replicas have all of each partition.

    A follower may lack deleted records that its leader has: the follower was the leader when they
    were deleted, and the present leader did not receive the deletion. A follower that has more
    than its leader has not received a deletion from it.
    """
    if moving := still_moving(world):
        return f"a move does not end: {moving}"
    if changing := still_changing(world):
        return f"a change of the cluster does not end: {changing}"
    for name in workload.partitions:
        found = {
            machine.broker_id: _copy(machine, name, observer.topic_id, observer.states)
            for machine in world.members
        }
        copies = {broker: copy for broker, copy in found.items() if copy is not None}
        state = observer.states.get(name.partition)
        if state is None or copies.keys() != set(state.replicas) or state.leader is None:
            return f"{name}, in {state}: stored by brokers {list(copies)}"
        sizes = {broker: len(copy.records) for broker, copy in copies.items()}
        ends = observer.log_ends(name.partition)
        # Replicas of a compacted log may differ: each one is compacted independently.
        has_more = max(sizes.values()) > sizes[state.leader] and workload.plan.compaction is None
        if len(ends) > 1 or has_more:
            return f"{name}, led by broker {state.leader}: {sizes} records, ends: {sorted(ends)}"
    return ""


def _reader(workload: Workload, reading: Reading, number: int) -> Program:
    is_kafka = workload.plan.has_kafka_reader and number == READERS
    return lambda machine: read_all(workload, reading, machine, is_kafka=is_kafka)


def _end_brokers(world: World, how: str) -> None:
    """End all brokers, in one of three ways."""
    for machine in world.brokers:
        machine.is_kept_down = True
        if how == "stop":
            machine.stop()
        elif how == "kill":
            machine.kill()
        else:
            machine.power_cut()
    down = world.run_until(
        lambda: not any(machine.is_running for machine in world.brokers), limit_s=REST_LIMIT_S
    )
    if not down:
        raise SimulationError("a broker does not stop")


def _copy(
    machine: BrokerMachine,
    partition: TopicPartition,
    topic_id: str,
    states: Mapping[int, PartitionState],
) -> Copy | None:
    """Return the records of a partition on a machine's disk, also if it is not a replica.

    An empty directory is not a copy if the broker is not a replica: it is left by an interrupted
    creation, or by a rollback of files.
    """
    copy, state = dump(machine, partition, topic_id), states.get(partition.partition)
    is_replica = state is None or machine.broker_id in state.replicas
    if copy is None or not (is_replica or copy.records):
        return None
    return copy._replace(is_in_sync=is_replica)


def dump(machine: BrokerMachine, partition: TopicPartition, topic_id: str = "") -> Copy | None:
    """Return the records of a partition on a machine's disk; None if it stores no replica.

    The directories are those of ``raftlog.storage.store``. ``topic_id``: default: any topic of
    the name.
    """
    directories = _directories(machine, partition, topic_id)
    found = [_dump(machine, partition, directory) for directory in directories]
    # An incomplete creation may have left an empty one next to it.
    return max(found, key=lambda copy: len(copy.records), default=None)


def _directories(
    machine: BrokerMachine, partition: TopicPartition, topic_id: str = ""
) -> list[str]:
    disk = machine.disk
    topics = []
    for root in machine.directories:
        topic = f"{root}/topics/{partition.topic}"
        names = [topic_id] if topic_id else disk.list_dir(topic)
        topics += [f"{topic}/{name}" for name in names]
    paths = [f"{topic}/{partition.partition}" for topic in topics if disk.exists(topic)]
    # A partition without records may have no directory in that of its topic.
    return [path for path in paths if disk.exists(path)] or paths


def _finish_compaction(machine: BrokerMachine, partition: TopicPartition, topic_id: str) -> None:
    """Open the log, as a broker does: after an interrupted compaction it has files of two kinds."""
    for directory in _directories(machine, partition, topic_id):
        log = Log.open(machine.disk, directory, TopicConfig(cleanup_policy="compact"))
        log.abandon()


def _first_kept(disk: SimDisk, path: str, start: Offset) -> int:
    """Return the position of the first batch with records that are not deleted; 0 if there is none.
    Brokers do not read the batches before it, so that faults in them have no effect.
    """
    file = disk.image(path)
    data = bytes(file.data) if isinstance(file, CachedFile) else b""
    for found in BATCH_START.finditer(data):
        with suppress(CorruptBatchError):
            if parse_header(data, found.start()).next_offset > start:
                return found.start()
    return 0


def _dump(machine: BrokerMachine, partition: TopicPartition, directory: str) -> Copy:
    disk = machine.disk
    checkpoint = CheckpointFile(disk, f"{directory}/checkpoint")
    checkpoint.load()
    start = end = checkpoint.latest.log_start_offset
    records: list[Seen] = []
    for base in live_bases(base_offsets(disk.list_dir(directory), LOG_SUFFIX), start):
        end = max(end, base)
        path = f"{directory}/{file_name(base, LOG_SUFFIX)}"
        for row in scan(disk, path, _first_kept(disk, path, start) if base < start else 0):
            if row.header is None or row.error:
                break  # a torn write; other checks detect missing records
            lists = decode_lists(row.data)
            records += [
                Seen(offset, record_name(value, headers), row.header.leader_epoch)
                for offset, value, headers in zip(
                    lists.offsets, lists.values, lists.headers, strict=True
                )
                if offset >= start
            ]
    end = max(end, records[-1].offset + 1) if records else end
    return Copy(machine.name, partition, records, start, end)
