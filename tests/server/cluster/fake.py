"""What surrounds the parts of a broker in a cluster, as fakes: consensus, links, replies, threads.

The loop's time is virtual. A proposal is decided when the test says so, and how; logs are real, on
a simulated disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from raftlog.config import Address, TopicConfig
from raftlog.consensus import Applied, GroupStatus, NotProposed, Outcome, Unknown
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    CommitUnknownError,
    RaftlogError,
    StorageFailedError,
)
from raftlog.record import validate
from raftlog.replication.cluster_commands import ClusterCommand, RegisterBroker, UnfenceBroker
from raftlog.replication.cluster_state import ClusterMachine, Done
from raftlog.replication.election import CopyReport, Reports, Standing
from raftlog.replication.partition_state import (
    Command,
    PartitionMachine,
    PartitionState,
    decode_command,
)
from raftlog.server.clock import BrokerClock
from raftlog.server.cluster.elections import HostedPartition, Surveys
from raftlog.server.cluster.membership import Incarnation, Liveness
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.disks import DiskWatch
from raftlog.server.exchange import Reply
from raftlog.server.partition import Partition, ReplicaServices
from raftlog.server.peers import PeerLinks
from raftlog.server.scheduling import Done as WorkDone
from raftlog.server.scheduling import Steps, Workers
from raftlog.storage import Log
from raftlog.testing.disk import SimDisk
from raftlog.types import TopicPartition
from tests.client.virtual import LoopClock, VirtualLoop
from tests.server.harness import batch_of

DISKS = {1: "disk-1", 2: "disk-2", 3: "disk-3", 4: "disk-4", 5: "disk-5"}
TOPIC_ID = "T1"


@dataclass
class Proposal:
    """One that has no outcome yet."""

    raft_id: str
    command: bytes
    done: Callable[[Outcome], None]
    seal: dict[int, str] | None = None  # the voters, of a seal

    @property
    def decoded(self) -> Command:
        return decode_command(self.command)


class FakePlane:
    """A ``ConsensusPlane`` that agrees on what the test says."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.machines: dict[str, Any] = {}
        self.leading: set[str] = set()
        self.journal: set[str] = set()
        self.statuses: dict[str, GroupStatus] = {}
        self.proposals: list[Proposal] = []
        self.closed: list[tuple[str, bool]] = []
        self.forced: list[tuple[str, dict[int, str]]] = []
        self.has_ended = False

    @property
    def as_plane(self) -> ConsensusPlane:
        return cast(ConsensusPlane, self)

    def open_group(
        self,
        raft_id: str,
        machine: Any,
        *,
        voters: Mapping[int, str],
        base: bytes,
        needs_leader: bool = True,
    ) -> None:
        assert base
        if not self.has_ended:
            self.machines[raft_id] = machine
            self.statuses.setdefault(raft_id, status(voters=voters))

    def close_group(self, raft_id: str, *, forget: bool) -> None:
        self.closed.append((raft_id, forget))
        self.machines.pop(raft_id, None)
        self.leading.discard(raft_id)

    def status(self, raft_id: str) -> GroupStatus:
        return self.statuses[raft_id]

    def voters(self, raft_id: str) -> Mapping[int, str]:
        return self.statuses[raft_id].voters

    def has_journaled(self, raft_id: str) -> bool:
        return raft_id in self.journal

    def journaled_groups(self) -> list[str]:
        return sorted(self.journal)

    def leads(self, raft_id: str) -> bool:
        return raft_id in self.leading

    def force_generation(self, raft_id: str, voters: Mapping[int, str]) -> None:
        self.forced.append((raft_id, dict(voters)))
        self.statuses[raft_id] = status(voters=voters)

    def propose_bytes(self, raft_id: str, command: bytes, done: Callable[[Outcome], None]) -> None:
        if self.has_ended:
            self._loop.call_soon(done, NotProposed("the broker stops"))
        else:
            self.proposals.append(Proposal(raft_id, command, done))

    def seal(
        self, raft_id: str, voters: Mapping[int, str], done: Callable[[Outcome], None]
    ) -> None:
        self.proposals.append(Proposal(raft_id, b"", done, seal=dict(voters)))

    async def propose(self, raft_id: str, command: bytes) -> object:
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self.propose_bytes(raft_id, command, future.set_result)
        outcome = await future
        if isinstance(outcome, Applied):
            return outcome.result
        if isinstance(outcome, NotProposed):
            raise ClusterNotReadyError(outcome.reason)
        raise CommitUnknownError(outcome.reason)

    # -- what the test decides

    def agree(self, number: int = 0) -> Any:
        """Apply a proposal; what that gave."""
        proposal = self.proposals.pop(number)
        if proposal.seal is not None:
            self.statuses[proposal.raft_id] = status(voters=proposal.seal)
            proposal.done(Applied(1))
            return None
        result = self.machines[proposal.raft_id].apply(proposal.command)
        proposal.done(Applied(result))
        return result

    def refuse(self, number: int = 0) -> None:
        self.proposals.pop(number).done(NotProposed("no leader in time"))

    def lose(self, number: int = 0, *, applied: bool = False) -> None:
        """Nobody can say what became of it."""
        proposal = self.proposals.pop(number)
        if applied:
            self.machines[proposal.raft_id].apply(proposal.command)
        proposal.done(Unknown("the leader changed"))

    def commands(self, raft_id: str | None = None) -> list[Command]:
        """What is proposed to partitions' groups; without what only asks for an answer."""
        return [
            proposal.decoded
            for proposal in self.proposals
            if proposal.command and raft_id in (None, proposal.raft_id)
        ]


def status(
    *,
    role: str = "follower",
    leader: int | None = None,
    term: int = 0,
    voters: Mapping[int, str] | None = None,
    commit_index: int = 0,
    applied_index: int = 0,
) -> GroupStatus:
    return GroupStatus(role, leader, term, 0, dict(voters or {}), commit_index, applied_index, 0)


class FakeLinks:
    """Notes what is sent."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *up: int) -> None:
        self._loop = loop
        self.up = set(up)
        self.silent: set[int] = set()  # up still, and not heard of for some time
        self.takes = True  # else what is told is dropped
        self.noted: list[tuple[int, Any]] = []
        self.asked: list[tuple[int, Any, asyncio.Future[Any]]] = []

    @property
    def as_links(self) -> PeerLinks:
        return cast(PeerLinks, self)

    def is_up(self, broker_id: int) -> bool:
        return broker_id in self.up

    def is_heard(self, broker_id: int) -> bool:
        return broker_id in self.up - self.silent

    def notify(self, broker_id: int, _api: Any, message: Any) -> bool:
        if self.takes and broker_id in self.up:
            self.noted.append((broker_id, message))
            return True
        return False

    def request(self, broker_id: int, _api: Any, message: Any) -> asyncio.Future[Any]:
        if broker_id not in self.up:
            raise BrokerUnavailableError("down")
        future: asyncio.Future[Any] = self._loop.create_future()
        self.asked.append((broker_id, message, future))
        return future


class FakeWorkers(Workers):
    """Does its work in the next turn of the loop, or when the test lets it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.held: list[tuple[Callable[[], Any], WorkDone]] | None = None

    def submit(self, work: Callable[[], Any], done: WorkDone) -> None:
        if self.held is None:
            self._loop.call_soon(self._do, work, done)
        else:
            self.held.append((work, done))

    def hold(self) -> None:
        self.held = []

    def release(self) -> None:
        held, self.held = self.held, None
        for work, done in held or ():
            self._do(work, done)

    def stop(self) -> None:
        pass

    def _do(self, work: Callable[[], Any], done: WorkDone) -> None:
        result, failure = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as the real ones do
            failure = error
        done(result, failure)


class FakeConnection:
    """The connection of a request, as far as an answer needs it."""

    def __init__(self) -> None:
        self.is_closed = False
        self.may_answer_at_length = True
        self.is_operator = False
        self.peer_identity: object = None
        self.ready: list[Callable[[], None]] = []

    def when_writable(self, ready: Callable[[], None]) -> None:
        self.ready.append(ready)

    def drain(self) -> None:
        self.may_answer_at_length = True
        ready, self.ready = self.ready, []
        for each in ready:
            each()


@dataclass
class FakeReply:
    """Keeps the answer."""

    connection: FakeConnection = field(default_factory=FakeConnection)
    answers: list[tuple[Any, Sequence[bytes]]] = field(default_factory=list)
    errors: list[RaftlogError] = field(default_factory=list)
    ends: int = 0

    @property
    def as_reply(self) -> Reply:
        return cast(Reply, self)

    @property
    def is_wanted(self) -> bool:
        return not self.connection.is_closed

    def send(self, message: Any, attachment: Sequence[bytes] = ()) -> None:
        assert not self.answers, "answered twice"
        self.answers.append((message, attachment))

    def go_on(self, steps: Steps) -> None:
        for _ in steps:
            pass

    def fail(self, error: RaftlogError) -> None:
        self.errors.append(error)

    def none(self) -> None:
        self.ends += 1

    @property
    def parts(self) -> list[Any]:
        """What the answer to a replica_fetch has."""
        assert len(self.answers) == 1
        return list(self.answers[0][0].partitions)


class Scene:
    """A loop, a disk, and everything that parts of a broker share."""

    def __init__(self, loop: VirtualLoop, broker_id: int = 1) -> None:
        self.loop = loop
        self.broker_id = broker_id
        self.disk = SimDisk(Random(1))
        self.workers = FakeWorkers(loop)
        self.plane = FakePlane(loop)
        self.links = FakeLinks(loop)
        self.machine = ClusterMachine()
        self.failures: list[StorageFailedError] = []
        self.services = ReplicaServices(
            clock=BrokerClock(LoopClock(loop)),
            loop=loop,
            sync_workers=self.workers,
            disk=DiskWatch(loop, sync=self.workers, journal=self.workers, timeout_s=5.0),
            on_failed=self.failures.append,
            on_damage=lambda _host: None,
        )
        self.fenced: set[int] = set()
        self.me = Incarnation(DISKS[broker_id], 1)
        self.liveness = Liveness(
            broker_id,
            self.me,
            now=loop.time,
            is_fenced=lambda broker: broker in self.fenced,
            is_heard=self.links.is_heard,
        )
        self._logs = 0

    def see(self, *brokers: int, boot: int = 1) -> None:
        """Links to these come up."""
        for broker in brokers:
            self.links.up.add(broker)
            self.liveness.link_up(broker, Incarnation(DISKS[broker], boot))

    def lose(self, *brokers: int) -> None:
        for broker in brokers:
            self.links.up.discard(broker)
            self.liveness.link_down(broker)

    def command(self, command: ClusterCommand) -> Any:
        """Have the cluster agree on something; what it gave."""
        result = self.machine.apply(command.encode())
        assert isinstance(result, Done), result
        return result.value

    def register(self, *brokers: int) -> None:
        for broker in brokers:
            epoch = self.command(
                RegisterBroker(
                    id=broker, host="h", port=broker, rack="", directory_id=DISKS[broker], boot=1
                )
            )
            self.command(UnfenceBroker(id=broker, broker_epoch=epoch))

    def log(self, **config: Any) -> Log:
        """A new, empty one."""
        self._logs += 1
        return Log.open(self.disk, f"/logs/{self._logs}", TopicConfig(**config))

    def host(self, log: Log | None = None, *, partition: int = 0) -> Partition:
        return Partition(
            TopicPartition("t", partition), log or self.log(), self.services, topic_id=TOPIC_ID
        )

    def hosted(
        self, state: PartitionState, host: Partition | None = None, *, partition: int = 0
    ) -> HostedPartition:
        machine = PartitionMachine(state.encode())
        hosted = HostedPartition("t", TOPIC_ID, partition, len(state.replicas), machine, host=host)
        self.plane.machines[hosted.raft_id] = machine
        self.plane.statuses[hosted.raft_id] = status(
            voters={b: DISKS[b] for b in (*state.replicas, *state.witnesses)}
        )
        return hosted

    async def come_to_rest(self) -> None:
        """Let everything happen that takes no time."""
        for _ in range(20):
            await asyncio.sleep(0)


class FakeSurveys(Surveys):
    """Every live replica has reported: a sound copy, all of one length, but for ``reported``."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(
            1,
            scene.me,
            loop=scene.loop,
            links=scene.links.as_links,
            liveness=scene.liveness,
            unclean_recovery_seconds=300,
            find=lambda _group: None,
            on_complete=lambda _member: None,
        )
        self._scene = scene
        self.reported: dict[int, CopyReport | None] = {}

    def reports(self, hosted: HostedPartition) -> Reports:
        found = {
            broker: self.reported.get(broker, self.report(broker, version=hosted.state.version))
            for broker in hosted.state.replicas
            if self._scene.liveness.is_live(broker)
        }
        return {broker: report for broker, report in found.items() if report is not None}

    def report(
        self,
        broker: int,
        end_offset: int = 10,
        *,
        standing: Standing = Standing.SOUND,
        epoch: int = 1,
        version: int = 1,
    ) -> CopyReport:
        boot = self._scene.liveness.boot_of(broker) or 0
        return CopyReport(standing, epoch, end_offset, version, DISKS[broker], boot)


def state_of(
    *replicas: int,
    witnesses: Sequence[int] = (),
    leader: int | None = None,
    epoch: int = 1,
    boot: int = 1,
    isr: Sequence[int] | None = None,
    elr: Sequence[int] = (),
    min_isr: int = 1,
    version: int = 1,
    unclean_epoch: int = -1,
) -> PartitionState:
    return PartitionState(
        replicas=replicas,
        witnesses=tuple(witnesses),
        min_isr=min_isr,
        leader=replicas[0] if leader is None else leader,
        leader_epoch=epoch,
        isr={broker: DISKS[broker] for broker in (replicas if isr is None else isr)},
        elr={broker: DISKS[broker] for broker in elr},
        former={},
        version=version,
        leader_boot=boot,
        unclean_epoch=unclean_epoch,
    )


def append(host: Partition, *values: bytes) -> int:
    """As a producer's, on the leader; the offset after it."""
    batch = batch_of(*values)
    return host.append(batch, validate(batch)).last_offset + 1


def write(log: Log, *values: bytes, epoch: int = 1) -> None:
    """Records that are there, and durable, before a test begins: each a batch."""
    for value in values:
        batch = batch_of(value)
        log.append(batch, validate(batch), leader_epoch=epoch, now_ms=1_700_000_000_000)
    log.sync()


def play(test: Callable[[Scene], Coroutine[Any, Any, None]], *, broker_id: int = 1) -> None:
    """Run a test in virtual time. What goes wrong in a callback fails it."""
    loop = VirtualLoop()
    mistakes: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: mistakes.append(context))

    async def whole() -> None:
        await asyncio.wait_for(test(Scene(loop, broker_id)), 600)

    try:
        loop.run_until_complete(whole())
    finally:
        loop.close()
    assert not mistakes, mistakes


ADDRESS = Address("h", 1)
