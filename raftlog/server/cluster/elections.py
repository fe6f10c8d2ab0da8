"""One partition on this broker: the state of its Raft group, and its log if it stores one."""

from __future__ import annotations

import asyncio
import logging
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from itertools import islice
from typing import Final, Generic, TypeVar, cast

from raftlog import limits
from raftlog.config.keys import INT64_MAX
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.peer import (
    CopyDescription,
    DescribeCopiesRequest,
    DescribeCopiesResponse,
    EncodedPartitionState,
    PartitionStatesRequest,
    TopicIdPartition,
)
from raftlog.replication.election import CopyReport, Reports, Standing, choose_member, choose_unsure
from raftlog.replication.partition_state import (
    Elect,
    ElectUnclean,
    PartitionMachine,
    PartitionState,
    decode_state,
)
from raftlog.server.cluster.membership import Incarnation, Liveness
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.partition import Partition
from raftlog.server.peers import Answer, PeerLinks
from raftlog.storage import Log
from raftlog.types import LeaderEpoch

REST_SECONDS: Final = 10.0  # seconds between two checks of a partition at rest


class Stage(Enum):
    """Permission of this broker to act on the partition's state.

    After a start, the committed state is replayed step by step. A broker that followed an old
    leader during this time would acknowledge, or truncate, records that it must keep for a newer
    leader. So a no-op is proposed first: once it is applied, everything that an earlier incarnation
    acted on is applied too.
    """

    REPLAYED = auto()  # the state may be older than one that an earlier incarnation acted on
    VERIFYING = auto()  # as REPLAYED; the no-op is in flight
    CURRENT = auto()  # the role follows the state
    YIELDING = auto()  # as CURRENT; a proposal to stop leading or to leave the ISR is in flight


class Event(Enum):
    """Cause of a change of the stage."""

    NO_OP_PROPOSED = auto()
    NO_OP_APPLIED = auto()
    NO_OP_FAILED = auto()
    FOUNDED = auto()  # the group has no earlier term: no earlier incarnation can have known more
    ELECTED = auto()  # this incarnation was elected: its election is in the state
    YIELD_PROPOSED = auto()
    YIELD_ENDED = auto()  # applied or not


# An event that is not listed for a stage does not change it: an election can overtake the no-op.
TRANSITIONS: Final[Mapping[Stage, Mapping[Event, Stage]]] = {
    Stage.REPLAYED: {
        Event.NO_OP_PROPOSED: Stage.VERIFYING,
        Event.FOUNDED: Stage.CURRENT,
        Event.ELECTED: Stage.CURRENT,
    },
    Stage.VERIFYING: {
        Event.NO_OP_APPLIED: Stage.CURRENT,
        Event.NO_OP_FAILED: Stage.REPLAYED,
        Event.ELECTED: Stage.CURRENT,
    },
    Stage.CURRENT: {Event.YIELD_PROPOSED: Stage.YIELDING},
    Stage.YIELDING: {Event.YIELD_ENDED: Stage.CURRENT},
}


class CopyChange(Enum):
    """A change of this broker's copy, which waits for the disk."""

    CREATE = auto()  # a witness became a replica
    ACCEPT = auto()  # elected uncleanly: lead with the records that the copy has
    REPLACE = auto()  # reported as lost: quarantine it, or truncate its torn write
    DELETE = auto()  # no longer a replica


@dataclass(slots=True)
class ControllerNotes:
    """Notes of this broker on a partition as its controller. Times are monotonic seconds."""

    is_proposing: bool = False  # a proposal of the controller is in flight
    # Since then the preferred leader could lead, and another leads.
    nonpreferred_since: float | None = None
    # Since then the ISR is too small, and another broker could lead.
    under_min_isr_since: float | None = None
    transfers: int = 0  # leadership transfers for that reason, without a known success
    transferred_at: float = 0.0


def raft_id(topic_id: str, partition: int) -> str:
    """Return the name of a partition's Raft group."""
    return f"{topic_id}/{partition}"


@dataclass(slots=True, eq=False)
class HostedPartition:
    """``host`` is None on a witness, and until the log is open."""

    topic: str
    topic_id: str
    partition: int
    replication_factor: int
    machine: PartitionMachine
    host: Partition | None = None
    # The state was received in this incarnation, not recovered from an older one.
    is_known: bool = False
    noted: PartitionState | None = None  # the last state whose events were derived
    stage: Stage = Stage.REPLAYED
    fenced_in: LeaderEpoch | None = None  # the damaged log is not reported from this epoch on
    closing: Partition | None = None  # host of a copy that is deleted once no thread uses it
    control: ControllerNotes = field(default_factory=ControllerNotes)
    # The state at the last check, if that found nothing to do or to wait for.
    settled: PartitionState | None = None
    checked_at: float = 0.0  # monotonic seconds
    raft_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.raft_id = raft_id(self.topic_id, self.partition)

    @property
    def state(self) -> PartitionState:
        return self.machine.state

    @property
    def is_current(self) -> bool:
        """Whether the state is no older than any that an earlier incarnation acted on."""
        return self.stage in {Stage.CURRENT, Stage.YIELDING}

    @property
    def awaits_leader(self) -> bool:
        """Whether this broker has a sound copy and follows no leader, nor leads."""
        host = self.host
        return (
            host is not None
            and host.closed is None
            and host.leadership is None
            and host.leader is None
            and not (host.log.doubt or host.log.is_offline)
        )

    def checked(self, now: float) -> None:
        """Note that this broker has checked its role, the ISR, and what the group's leader does."""
        state, notes = self.state, self.control
        is_settled = (
            self.is_known
            and self.stage is Stage.CURRENT
            and len(state.isr) == len(state.replicas)
            and state.leader == state.replicas[0]
            and not (notes.is_proposing or notes.transfers)
        )
        self.settled, self.checked_at = state if is_settled else None, now

    def is_at_rest(self, now: float) -> bool:
        """Whether a check would find nothing: the last one did not, and nothing has happened. What
        lasts for some time without an event is found ``REST_SECONDS`` later.
        """
        # guard: a partition at rest is checked again
        return (
            self.settled is self.machine.state
            and now - self.checked_at < REST_SECONDS
            and (self.host is None or self.host.is_at_rest)
        )

    def on(self, event: Event) -> None:
        """Go to the next stage (``TRANSITIONS``)."""
        self.stage = TRANSITIONS[self.stage].get(event, self.stage)

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}"


# -- state broadcast -------------------------------------------------------------------------------
#
# Broadcast of partition states to the brokers that are not voters of the partition.
#
# Those brokers respond to metadata requests with them. The leader of a partition's group sends its
# state, and so does the leader of the partition: a new partition has a leader before its group has
# one (ADR 64). The version shows which of two states is newer, so a state may arrive twice, or
# late. All states are sent again periodically, to replace lost ones.


AT_ONCE: Final = 500  # partitions, in one turn of the loop

logger = logging.getLogger(__name__)


class StateBroadcast:
    """``received``: states received from other brokers, by topic id and partition."""

    def __init__(
        self,
        broker_id: int,
        loop: AbstractEventLoop,
        plane: ConsensusPlane,
        links: PeerLinks,
        *,
        brokers: Callable[[], Iterable[int]],
        recovery: Callable[[], str] = str,
    ) -> None:
        """``recovery``: the last one in this broker's history of the cluster."""
        self._broker_id = broker_id
        self._plane = plane
        self._links = links
        self._brokers = brokers
        self._recovery = recovery
        self._unsent = Backlog(loop, self.send, at_once=AT_ONCE)
        self.received: dict[tuple[str, int], PartitionState] = {}

    def send_all(self, partitions: Iterable[HostedPartition]) -> None:
        """``send``, soon, for some of the partitions at a time."""
        self._unsent.add(partitions)

    def send(self, partitions: list[HostedPartition]) -> None:
        """Send the states to brokers that are not voters of these partitions, if this broker leads
        the group or the partition.
        """
        others = [b for b in self._brokers() if b != self._broker_id and self._links.is_up(b)]
        by_broker: dict[int, list[EncodedPartitionState]] = {}
        for hosted in partitions:
            state = hosted.state
            voters = {*state.replicas, *state.witnesses}
            strangers = [broker for broker in others if broker not in voters]
            leads = hosted.is_known and state.leader == self._broker_id
            if not strangers or not (leads or self._plane.leads(hosted.raft_id)):
                continue
            encoded = EncodedPartitionState(
                topic_id=hosted.topic_id,
                partition=hosted.partition,
                version=state.version,
                state=state.encode(),
            )
            for broker in strangers:
                by_broker.setdefault(broker, []).append(encoded)
        for broker, states in by_broker.items():
            request = PartitionStatesRequest(states=states, recovery=self._recovery())
            self._links.notify(broker, apis.PARTITION_STATES, request)

    def receive(self, states: Iterable[EncodedPartitionState], recovery: str = "") -> None:
        """Store states that are newer than the known ones. Bytes that are not a state are ignored,
        and the states of another history: their versions are higher than all of this one, although
        the cluster may not accept that history. They are sent again, should it do so.
        """
        # guard: states of another history are ignored
        if recovery != self._recovery():
            return
        for encoded in states:
            key = encoded.topic_id, encoded.partition
            known = self.received.get(key)
            if known is not None and known.version >= encoded.version:
                continue
            try:
                state = decode_state(encoded.state)
            except ValueError as error:
                logger.warning(
                    "state broadcast rejected: topic_id=%s partition=%d error=%s", *key, error
                )
                continue
            # guard: broadcast states have versions
            if known is None or known.version < state.version:
                self.received[key] = state

    def forget(self, topic_id: str, *, first: int = 0) -> None:
        """Forget the partitions of a topic from ``first`` on: they are deleted."""
        for key in [key for key in self.received if key[0] == topic_id and key[1] >= first]:
            del self.received[key]


# -- surveys ---------------------------------------------------------------------------------------
#
# Elections by the contents of the replicas: request reports, wait briefly, and select a leader.
#
# For the broker that proposes a leader. ``raftlog.replication.election`` evaluates the reports.


# Seconds. A live broker that has not responded by then is skipped: its disk or event loop hangs.
REPORT_SECONDS_MAX: Final = 1.0
FRESH_SECONDS: Final = 1.0  # then reports are requested again, if there is still no leader


@dataclass(slots=True)
class _Survey:
    """Survey of one partition, for one version of its state."""

    version: int
    began_at: float
    reports: dict[int, CopyReport] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    done_at: float | None = None


def report_of(log: Log, state: PartitionState, me: Incarnation) -> CopyReport:
    """Return this broker's report on its own copy.

    The end of an offline copy is unknown. It counts as the longest one, so that no copy with fewer
    records is elected before the log directory is repaired, or an operator decides.
    """
    version = state.version
    # guard: no shorter copy is elected for an offline one
    if log.is_offline:
        epoch = state.leader_epoch
        return CopyReport(Standing.DAMAGED, epoch, INT64_MAX, version, me.directory_id, me.boot)
    end = log.readable_end_offset if log.damage else log.acknowledged_end_offset
    at_end = end == log.log_end_offset and not log.damage
    last_epoch = log.last_epoch if at_end else log.epochs.epoch_at(end - 1)
    return CopyReport(_standing(log), last_epoch, end, version, me.directory_id, me.boot)


def _standing(log: Log) -> Standing:
    if log.damage and not log.is_torn:
        return Standing.DAMAGED
    return Standing.UNSURE if log.damage or log.doubt else Standing.SOUND


class Surveys:
    """At most one survey per partition."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        loop: asyncio.AbstractEventLoop,
        links: PeerLinks,
        liveness: Liveness,
        unclean_recovery_seconds: float,
        find: Callable[[str], HostedPartition | None],
        on_complete: Callable[[HostedPartition], None],
    ) -> None:
        """``find``: a partition by its group. ``on_complete``: called when all replicas have
        responded.
        """
        self._broker_id = broker_id
        self._me = me
        self._loop = loop
        self._links = links
        self._liveness = liveness
        self._unclean_recovery_seconds = unclean_recovery_seconds
        self._find = find
        self._on_complete = on_complete
        self._surveys: dict[str, _Survey] = {}
        self._due: dict[int, dict[str, None]] = {}  # groups to request reports for, by broker

    # -- asking

    def reports(self, hosted: HostedPartition) -> Reports | None:
        """Return the reports of the live replicas, by broker id; None while some are missing.

        The first call requests them; ``on_complete`` is called when it is time to call again.
        """
        now, state = self._loop.time(), hosted.state
        survey = self._surveys.get(hosted.raft_id)
        if survey is None or survey.version != state.version or self._is_stale(survey, now):
            survey = self._surveys[hosted.raft_id] = _Survey(state.version, now)
        if hosted.host is not None and self._broker_id in state.replicas:
            survey.reports[self._broker_id] = report_of(hosted.host.log, state, self._me)
        missing = [
            broker
            for broker in state.replicas
            if broker not in survey.answered
            and broker != self._broker_id
            and self._liveness.is_live(broker)
        ]
        if not missing or now - survey.began_at >= REPORT_SECONDS_MAX:
            survey.done_at = now if survey.done_at is None else survey.done_at
            return survey.reports
        for broker in missing:
            if broker not in survey.asked and self._links.is_up(broker):
                survey.asked.add(broker)
                self._ask(broker, hosted.raft_id)
        return None

    def choose(
        self, hosted: HostedPartition, *, first: int | None = None, without: int | None = None
    ) -> Elect | ElectUnclean | None:
        """Return the election of a leader other than ``without``; None while reports are missing,
        or no broker can lead.

        Selects a complete copy. If there is none, it selects the longest of those that may lack
        records, once no better one is to be expected. ``first`` leads if its log is as long as any
        other.
        """
        reports = self.reports(hosted)
        if reports is None:
            return None
        liveness = self._liveness
        return choose_member(
            hosted.state, liveness, first=first, without=without, reports=reports
        ) or choose_unsure(
            hosted.state,
            reports=reports,
            directory_of=liveness.directory_of,
            gone_seconds=liveness.silent_seconds,
            wait_seconds=self._unclean_recovery_seconds,
        )

    def is_sound(self, hosted: HostedPartition, broker: int) -> bool:
        """Whether ``broker`` has reported a complete copy since it knows the partition's state."""
        report = (self.reports(hosted) or {}).get(broker)
        is_new = report is not None and report.version >= hosted.state.version
        return is_new and report is not None and report.standing is Standing.SOUND

    def _is_stale(self, survey: _Survey, now: float) -> bool:
        return survey.done_at is not None and now - survey.done_at >= FRESH_SECONDS

    def _ask(self, broker: int, group: str) -> None:
        if not self._due:
            self._loop.call_soon(self._send)
        self._due.setdefault(broker, {})[group] = None

    def _send(self) -> None:
        due, self._due = self._due, {}
        for group in [group for group in self._surveys if self._find(group) is None]:
            del self._surveys[group]
        for broker, groups in due.items():
            names, size = list(groups), limits.PARTITIONS_PER_REQUEST_MAX
            for start in range(0, len(names), size):
                self._request(broker, names[start : start + size])

    def _request(self, broker: int, groups: Sequence[str]) -> None:
        partitions = [hosted for group in groups if (hosted := self._find(group)) is not None]
        request = DescribeCopiesRequest(
            partitions=[
                TopicIdPartition(topic_id=hosted.topic_id, partition=hosted.partition)
                for hosted in partitions
            ]
        )
        try:
            future = self._links.request(broker, apis.DESCRIBE_COPIES, request)
        except RaftlogError as error:
            logger.debug("replica report request failed: broker=%d error=%s", broker, error)
            return
        timer = self._loop.call_later(REPORT_SECONDS_MAX, future.cancel)

        def done(answer: asyncio.Future[Answer]) -> None:
            timer.cancel()
            if not answer.cancelled() and answer.exception() is None:
                response = cast(DescribeCopiesResponse, answer.result().message)
                self._take(broker, partitions, response)

        future.add_done_callback(done)

    def _take(
        self, broker: int, partitions: list[HostedPartition], response: DescribeCopiesResponse
    ) -> None:
        found = {raft_id(copy.topic_id, copy.partition): copy for copy in response.copies}
        for hosted in partitions:
            survey = self._surveys.get(hosted.raft_id)
            if survey is None:
                continue
            survey.answered.add(broker)
            copy = found.get(hosted.raft_id)
            if copy is not None:
                survey.reports[broker] = _report(copy, response)
            if survey.asked <= survey.answered:
                self._loop.call_soon(partial(self._on_complete, hosted))

    # -- answering

    def describe(self, partitions: Iterable[TopicIdPartition]) -> DescribeCopiesResponse:
        """Return reports on this broker's copies of ``partitions``; those that it does not store
        are left out.
        """
        copies = []
        for key in partitions:
            hosted = self._find(raft_id(key.topic_id, key.partition))
            if hosted is None or hosted.host is None or hosted.host.closed is not None:
                continue
            report = report_of(hosted.host.log, hosted.state, self._me)
            copies.append(
                CopyDescription(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    end_offset=report.end_offset,
                    last_epoch=report.last_epoch,
                    standing=report.standing,
                    version=report.version,
                )
            )
        return DescribeCopiesResponse(
            directory_id=self._me.directory_id, boot=self._me.boot, copies=copies
        )


def _report(copy: CopyDescription, response: DescribeCopiesResponse) -> CopyReport:
    return CopyReport(
        Standing(copy.standing),
        copy.last_epoch,
        copy.end_offset,
        copy.version,
        response.directory_id,
        response.boot,
    )


# -- backlog ---------------------------------------------------------------------------------------
#
# Partitions that wait to be checked, some in each turn of the event loop.


T = TypeVar("T")

REPLICAS_AT_ONCE: Final = 64  # takes 1 to 4 ms, with changes that are proposed


class Backlog(Generic[T]):
    """Items in order, each once until it is processed.

    ``process`` is called with at most ``at_once`` of them in a turn of the loop, the first time in
    the turn after ``add``.
    """

    def __init__(
        self,
        loop: AbstractEventLoop,
        process: Callable[[list[T]], object],
        *,
        at_once: int = REPLICAS_AT_ONCE,
    ) -> None:
        self._loop = loop
        self._process = process
        self._at_once = at_once
        self._waiting: dict[T, None] = {}
        self._is_scheduled = False

    def add(self, items: Iterable[T]) -> None:
        """Process the items soon. Those that wait already keep their place."""
        self._waiting.update(dict.fromkeys(items))
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._take)

    def _take(self) -> None:
        self._is_scheduled = False
        some = list(islice(self._waiting, self._at_once))
        for item in some:
            del self._waiting[item]
        self._schedule()
        self._process(some)
