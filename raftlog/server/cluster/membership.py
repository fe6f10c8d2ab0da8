"""Cluster membership of this broker: its registration, and fencing of failed brokers (KIP-903).

A broker registers at every start, with its address, its data directory and its incarnation (boot
number). It is fenced until it is ready to serve and requests to be unfenced. The leader of the
``cluster`` group fences each broker without a message for ``broker.session.timeout.ms``. A fenced
broker leads no partition and joins no ISR until it returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from raftlog import limits
from raftlog.config import Address, BrokerConfig, Voter
from raftlog.consensus import Applied, NotProposed, Outcome, Unknown
from raftlog.consensus.journal import Journal
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    DiskFullError,
    RaftlogError,
    StorageFailedError,
    UnsupportedApiError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    ClusterStateRequest,
    ClusterStateResponse,
    ProposeRequest,
    ProposeResponse,
    Seat,
)
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.schema import Failure
from raftlog.protocol.security import PEER_PROTOCOL_VERSION
from raftlog.replication.cluster_commands import (
    ClusterCommand,
    FenceBroker,
    RegisterBroker,
    SetKafkaAddress,
    UnfenceBroker,
    founding_state,
)
from raftlog.replication.cluster_state import (
    BrokerRecord,
    ClusterMachine,
    Done,
    Refused,
    next_voters,
)
from raftlog.server.consensus_plane import ConsensusPlane, OutcomeDone
from raftlog.server.peers import PeerLinks, PeerRegistry
from raftlog.server.scheduling import Saver, Workers
from raftlog.server.topic_table import TopicTable
from raftlog.storage import Store
from raftlog.types import Buffer

# -- subscription ----------------------------------------------------------------------------------
#
# Cluster state on a broker without a vote in the ``cluster`` group, and its commands to the group.
#
# Such a broker asks a broker with a vote for all changes after the version that it knows, and waits
# for the response (long polling): commands, or an encoded state if too many are missing. The
# version orders all states of a cluster, so an older response is ignored. It is the leader that is
# asked, if it is known. A command to the group takes the same way; its outcome is reported when
# this broker has received the state that contains the effect.


logger = logging.getLogger(__name__)

WAIT_SECONDS: Final = 1.0  # of a request for changes
# Seconds: without a response after that, another broker is asked.
ANSWER_SECONDS_MAX: Final = 3.0
# Seconds: the outcome of a forwarded command is unknown after that.
OUTCOME_SECONDS_MAX: Final = 10.0
SUBSCRIPTION_RETRY_SECONDS: Final = 0.05
ATTEMPTS_MAX: Final = 20  # to have a command proposed


class ClusterSubscription:
    """Both sides: asks while this broker has no vote, and responds while it has one."""

    def __init__(
        self,
        broker_id: int,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        links: PeerLinks,
        *,
        loop: asyncio.AbstractEventLoop,
        brokers: Callable[[], list[int]],
    ) -> None:
        """``brokers``: IDs of all known brokers."""
        self._broker_id = broker_id
        self._machine = machine
        self._plane = plane
        self._links = links
        self._loop = loop
        self._brokers = brokers
        # Requests for changes, in their order: a simulation is a function of its seed.
        self._waiting: dict[asyncio.Future[None], None] = {}
        # Forwarded commands whose effect this broker has not received, and its version.
        self._unseen: dict[asyncio.Future[None], int] = {}
        self._task: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._known: ClusterStateResponse | None = None  # the last response
        self._is_closed = False
        self._requests = 0  # count: brokers take turns
        self._stored_generation = -1  # of the group, in this broker's journal and synced
        self._stored_history = machine.history
        plane.forward_proposals(CLUSTER_GROUP, self._forward)

    # -- known state of the group ------------------------------------------------------------------

    @property
    def has_vote(self) -> bool:
        return self._plane.has_vote(CLUSTER_GROUP)

    @property
    def leader(self) -> int | None:
        """Raft leader of the cluster group, if one is known."""
        if self.has_vote or self._known is None:
            try:
                return self._plane.status(CLUSTER_GROUP).leader
            except KeyError:
                return None  # consensus has stopped, or has not started
        return self._known.leader

    @property
    def voters(self) -> dict[int, str]:
        """Voters of the cluster group with their data directories; empty if none are known."""
        if not self.has_vote and self._known is not None:
            return {seat.broker: seat.directory_id for seat in self._known.voters}
        try:
            voters = self._plane.status(CLUSTER_GROUP).voters
        except KeyError:
            return {}
        return {broker: directory for broker, directory in voters.items() if directory}

    @property
    def is_stored(self) -> bool:
        """Whether a restart of this broker would find the generation that its state is from.

        A recovery and a founding change the state before the journal has them. If the disk fails
        then, that generation never was: no other broker may have received it.
        """
        try:
            return self._plane.status(CLUSTER_GROUP).generation == self._stored_generation
        except KeyError:
            return False

    @property
    def history(self) -> tuple[str, ...]:
        """The recoveries that this broker's state has passed, without one that is not stored."""
        return self._stored_history if self.has_vote else self._machine.history

    # -- a broker with a vote ----------------------------------------------------------------------

    def stored(self) -> None:
        """Note that the journal has been synced after a change of the generation or the leader."""
        self._stored_generation = self._plane.status(CLUSTER_GROUP).generation
        self._stored_history = self._machine.history
        self.changed()

    def changed(self) -> None:
        """Note that the known state, the leader or the voters have changed."""
        if not self.has_vote:  # the state of brokers that had stored it
            self._stored_history = self._machine.history
        waiting, self._waiting = self._waiting, {}
        for each in waiting:
            if not each.done():
                each.set_result(None)
        for seen, version in list(self._unseen.items()):
            if version <= self._machine.version and not seen.done():
                seen.set_result(None)

    def serve(
        self,
        request: ClusterStateRequest,
        send: Callable[[ClusterStateResponse, list[Buffer]], None],
    ) -> None:
        """Respond to the request with ``send``, as soon as there are changes."""

        async def serve() -> None:
            send(*await self.respond(request))

        self._start(serve())

    async def respond(
        self, request: ClusterStateRequest
    ) -> tuple[ClusterStateResponse, list[Buffer]]:
        """Return the changes after the requested version, as soon as there are some."""
        is_news = (self._machine.version, self.leader) != (request.version, request.leader)
        if not is_news and not self._is_closed:
            change = self._loop.create_future()
            self._waiting[change] = None
            try:
                async with asyncio.timeout(request.wait_ms / 1_000):
                    await change
            except TimeoutError:
                pass
            finally:
                self._waiting.pop(change, None)
        # guard: other brokers receive a recovery only once it is stored
        while self.has_vote and not self.is_stored and not self._is_closed:
            change = self._loop.create_future()
            self._waiting[change] = None
            await change
        machine = self._machine
        response = ClusterStateResponse(
            cluster_id=machine.cluster_id,
            version=machine.version,
            has_vote=self.has_vote,
            leader=self.leader,
            voters=[Seat(broker=b, directory_id=d) for b, d in self.voters.items()],
        )
        if machine.version <= request.version or not self.has_vote:
            return response, []
        commands = machine.changes.since(request.version)
        if commands is None:
            return response, [machine.known()]
        return ClusterStateResponse(
            cluster_id=response.cluster_id,
            version=response.version,
            has_vote=response.has_vote,
            leader=response.leader,
            voters=response.voters,
            commands=commands,
        ), []

    async def propose(self, request: ProposeRequest) -> ProposeResponse:
        """Propose a command for a broker without a vote.

        Raises ``ClusterNotReadyError`` if it was certainly not proposed, also because this broker
        has no vote, and ``CommitUnknownError``.
        """
        if not self.has_vote:
            raise ClusterNotReadyError(
                f"broker {self._broker_id} has no vote in the cluster group. Ask another broker"
            )
        outcome = await self._plane.propose(CLUSTER_GROUP, request.command)
        failure = None
        if isinstance(outcome, Refused):
            failure = Failure(code=outcome.code, message=outcome.message)
        return ProposeResponse(version=self._machine.version, failure=failure)

    # -- a broker without a vote -------------------------------------------------------------------

    def poll(self) -> None:
        """Ask for changes while this broker has no vote. Called often; cheap."""
        if self._task is None and not self.has_vote:
            self._task = self._loop.create_task(self._follow())

    def answer_all(self) -> None:
        """Let no request wait any longer: this broker stops."""
        self._is_closed = True
        self.changed()

    def close(self) -> None:
        self.answer_all()
        for task in (*self._tasks, *filter(None, [self._task])):
            task.cancel()

    async def _follow(self) -> None:
        try:
            while not self.has_vote:
                peer = self._choose()
                if peer is None or not await self._ask(peer):
                    await asyncio.sleep(SUBSCRIPTION_RETRY_SECONDS)
        finally:
            self._task = None

    def _choose(self) -> int | None:
        """Return the broker to ask: the leader, else the voters and then all brokers in turn."""
        up = [b for b in self._brokers() if b != self._broker_id and self._links.is_up(b)]
        known = self._known
        if known is not None:
            if known.leader in up:
                return known.leader
            up = [seat.broker for seat in known.voters if seat.broker in up] or up
        self._requests += 1
        return up[self._requests % len(up)] if up else None

    async def _ask(self, peer: int) -> bool:
        """Return whether the broker had news, so that there may be more."""
        known = self._known
        request = ClusterStateRequest(
            version=self._machine.version,
            wait_ms=int(WAIT_SECONDS * 1_000),
            leader=None if known is None else known.leader,
        )
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                answer = await self._links.request(peer, apis.CLUSTER_STATE, request)
            response = answer.message
            assert isinstance(response, ClusterStateResponse)
            return self._take(request, response, bytes(answer.attachment))
        except (TimeoutError, RaftlogError) as error:
            logger.debug("no cluster state: broker=%d error=%s", peer, error)
            self._known = None  # then another one is asked
            return False

    def _take(
        self, request: ClusterStateRequest, response: ClusterStateResponse, snapshot: bytes
    ) -> bool:
        # guard: only the group's log changes the state of a voter
        if self.has_vote:
            return True  # the group's own log is what counts now
        if not response.has_vote or not response.cluster_id:
            self._known = None
            return False
        known = self._known
        is_next = self._machine.version == request.version
        self._machine.follow(snapshot, response.commands if is_next else ())
        is_news = known is None or response.version > request.version
        self._known = response
        self.changed()
        return is_news and response.leader is not None

    def _forward(self, command: bytes, done: OutcomeDone) -> None:
        self._start(self._propose_elsewhere(command, done))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _propose_elsewhere(self, command: bytes, done: OutcomeDone) -> None:
        """Have a broker with a vote propose the command, and wait for its effect here.

        A broker that has certainly not proposed it is not the last one that is asked.
        """
        outcome: Outcome = NotProposed("no broker with a vote in the cluster group is connected")
        try:
            async with asyncio.timeout(OUTCOME_SECONDS_MAX):
                for _attempt in range(ATTEMPTS_MAX):
                    outcome = await self._propose_at(self._choose(), command)
                    if not isinstance(outcome, NotProposed):
                        break
                    await asyncio.sleep(SUBSCRIPTION_RETRY_SECONDS)
        except TimeoutError:
            outcome = Unknown("no outcome in time")
        done(outcome)

    async def _propose_at(self, peer: int | None, command: bytes) -> Outcome:
        if peer is None:
            return NotProposed("no broker with a vote in the cluster group is connected")
        try:
            request = ProposeRequest(command=command)
            response = (await self._links.request(peer, apis.PROPOSE, request)).message
            assert isinstance(response, ProposeResponse)
            await self._until_seen(response.version)
        except (BrokerUnavailableError, ClusterNotReadyError, UnsupportedApiError) as error:
            self._known = None  # then another one is asked
            return NotProposed(str(error))
        except RaftlogError as error:
            return Unknown(f"broker {peer} did not report the outcome: {error}")
        failure = response.failure
        return Applied(Done() if failure is None else Refused(failure.code, failure.message))

    async def _until_seen(self, version: int) -> None:
        if self._machine.version < version:
            seen = self._loop.create_future()
            self._unseen[seen] = version
            try:
                await seen
            finally:
                del self._unseen[seen]


assert WAIT_SECONDS * 1_000 <= limits.CLUSTER_STATE_WAIT_MS_MAX


# -- founding --------------------------------------------------------------------------------------
#
# Founding of a cluster: only a broker whose disk cannot belong to an existing cluster may do it.
#
# A data directory without a cluster id is either new, or replaces one that was lost. Two such
# directories are a majority of three voters, and must not found a second cluster while the third
# voter has the old one. So exactly one broker founds the cluster: the voter with the lowest id, and
# only while every configured voter is linked and reports that it has no cluster id either. It
# records itself and those directories as the voters of the first generation; the others take part
# once they receive that generation (``HostedGroup.found``). A broker that connects to a voter with
# a cluster id founds nothing and joins that cluster, without a vote until it is readmitted.
#
# An operator can list voters that are not waited for (``bootstrap.without``).


# Before a broker that waits for no other voter founds a cluster, it listens for this time to
# brokers that have another list of voters. Any broker listens again after such a broker was
# refused.
LISTEN_SECONDS: Final = 1.0
JOINS: Final = "this broker has not received the state of the cluster that it joins yet"


@dataclass(frozen=True, slots=True)
class Found:
    """Found the cluster, with these data directories as its voters. ``peer_protocol``: version of
    the protocol between brokers that all of them support.
    """

    voters: Mapping[int, str]
    peer_protocol: int


@dataclass(frozen=True, slots=True)
class Await:
    """Not yet: these voters have not connected."""

    voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitFounder:
    """All voters have connected; this other broker founds the cluster."""

    founder: int


@dataclass(frozen=True, slots=True)
class Join:
    """A voter is in a cluster: wait for its state."""

    voter: int
    cluster_id: str


Step: TypeAlias = Found | Await | AwaitFounder | Join


def next_step(
    broker_id: int,
    directory_id: str,
    *,
    voters: Collection[int],
    without: Collection[int],
    seen: Mapping[int, PeerIdentity],
) -> Step:
    """Return the next step of a broker without a cluster. Deterministic.

    ``voters``: voters of the configuration, including this broker. ``without``: voters that the
    operator excludes from the wait. ``seen``: the peers with an authenticated link, by id.
    """
    for voter in sorted(voters):
        # guard: a broker that sees a cluster does not found one
        if voter in seen and seen[voter].cluster_id:
            return Join(voter, seen[voter].cluster_id)
    founders = sorted(set(voters) - (set(without) - {broker_id}))
    missing = tuple(voter for voter in founders if voter != broker_id and voter not in seen)
    # guard: a cluster is founded once every voter was seen
    if missing:
        return Await(missing)
    # guard: one broker founds the cluster
    if founders[0] != broker_id:
        return AwaitFounder(founders[0])
    # guard: a cluster is founded with what all voters support
    return Found(
        {v: directory_id if v == broker_id else seen[v].directory_id for v in founders},
        min([PEER_PROTOCOL_VERSION, *(peer.protocol_version for peer in seen.values())]),
    )


def describe_step(step: Await | AwaitFounder | Join) -> str:
    """Describe the step for people."""
    match step:
        case Await(voters):
            names = ", ".join(map(str, voters))
            return (
                f"a new cluster starts when all its voters are connected, and brokers {names} "
                "have not connected yet. Start them, or list voters that are permanently lost in "
                "bootstrap.without"
            )
        case AwaitFounder(founder):
            return f"broker {founder} has not founded the cluster yet"
        case Join(voter, cluster_id):
            return (
                f"broker {voter} is in cluster {cluster_id}: this broker joins it, without a vote "
                "until a majority of the voters of that cluster admits it"
            )


class Founder:
    """Runs the steps of a broker without a cluster, and stores the cluster id when it has one."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        journal: Journal,
        peer: Callable[[int], PeerIdentity | None],
        peers: Callable[[], Iterable[PeerIdentity]],
        topics: TopicTable,
        now: Callable[[], float],
        new_id: Callable[[], str],
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``peer``: the broker at the other end of a link; None while the link is down.
        ``peers``: all brokers that have connected to this one. ``on_failed``: called when the disk
        has failed: the broker must stop.
        """
        self._store = store
        self._machine = machine
        self._plane = plane
        self._journal = journal
        self._peer = peer
        self._peers = peers
        self._topics = topics
        self._now = now
        self._new_id = new_id
        self._on_failed = on_failed
        self._voters = [voter.id for voter in config.voters]
        self._without = config.bootstrap_without
        # Without a secret, no broker can connect to this one.
        may_be_known = len(self._voters) == 1 and config.has_secret
        self._listens_until = now() + LISTEN_SECONDS * may_be_known
        self._has_founded = False  # True: the journal may be writing it
        self._reported: Step | None = None

    def refused(self) -> None:
        """Note that a broker with the cluster's secret was refused because it does not fit this
        one.
        """
        self._listens_until = self._now() + LISTEN_SECONDS

    def poll(self) -> None:
        """Run the next step. Called often; cheap once there is a cluster."""
        if self._machine.cluster_id:
            self._adopt()
            return
        if not self._voters:
            self._topics.waits_for = self._topics.waits_for or JOINS
            return
        seen = {voter: peer for voter in self._voters if (peer := self._peer(voter)) is not None}
        identity = self._store.identity
        step = next_step(
            identity.broker_id,
            identity.directory_id,
            voters=self._voters,
            without=self._without,
            seen=seen,
        )
        if isinstance(step, Found):
            # guard: a broker creates no cluster while it knows a member of one
            if self._is_known_elsewhere():
                return
            if not self._has_founded and self._now() >= self._listens_until:
                self._found(step)
        elif step != self._reported:
            self._reported = step
            self._topics.waits_for = describe_step(step)
            logger.warning("no cluster yet: waits_for=%s", self._topics.waits_for)

    def _is_known_elsewhere(self) -> bool:
        """Whether this data directory, or a broker that connected to it, is in a cluster: possibly
        one whose voters are no longer the configured ones.
        """
        return bool(self._store.identity.cluster_id) or any(p.cluster_id for p in self._peers())

    def _found(self, step: Found) -> None:
        self._has_founded = True
        cluster_id = self._new_id()
        voters = ",".join(map(str, step.voters))
        logger.warning("founding a cluster: cluster_id=%s voters=%s", cluster_id, voters)
        base = founding_state(cluster_id, peer_protocol=step.peer_protocol)
        self._plane.found(CLUSTER_GROUP, step.voters, base)

    def _adopt(self) -> None:
        """Store the cluster id, once the journal durably holds this broker's membership."""
        known = self._machine.cluster_id
        if self._store.identity.cluster_id != known and not self._journal.is_dirty:
            try:
                self._store.adopt_cluster_id(known)
            except DiskFullError as error:  # retried at the next check
                self._topics.waits_for = str(error)
                return
            except StorageFailedError as error:
                self._on_failed(error)
                return
            self._topics.waits_for = ""


# -- joining ---------------------------------------------------------------------------------------
#
# The first contact of a broker with its cluster: the brokers at the addresses that it was given.
#
# A broker that joins, or returns, may know addresses only. This module asks the broker at each of
# them for its ID, with the handshake of ``protocol.peer_auth``, until the cluster state is known:
# from then on, that has all addresses.


RETRY_SECONDS: Final = 0.5


class Joining:
    """Call ``start`` once. ``found``: the addresses of brokers by ID, as far as they responded."""

    def __init__(
        self,
        addresses: Sequence[Address],
        links: PeerLinks,
        *,
        loop: asyncio.AbstractEventLoop,
        is_known: Callable[[], bool],
        on_found: Callable[[], None],
        on_waiting: Callable[[str], None],
    ) -> None:
        """``is_known``: whether the cluster state is known. ``on_waiting``: called with the reason
        why no broker was found yet, for the operator.
        """
        self.found: dict[int, Address] = {}
        self._addresses = addresses
        self._links = links
        self._loop = loop
        self._is_known = is_known
        self._on_found = on_found
        self._on_waiting = on_waiting
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._addresses:
            self._task = self._loop.create_task(self._search())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _search(self) -> None:
        reported = ""
        while not self._is_known():
            problems = []
            for address in self._addresses:
                try:
                    identity = await self._links.identify(address)
                except (OSError, TimeoutError, RaftlogError) as error:
                    problems.append(f"{address}: {str(error) or 'no response'}")
                    continue
                if self.found.get(identity.broker_id) != address:
                    self.found[identity.broker_id] = address
                    self._on_found()
            text = "; ".join(problems) if not self.found else ""
            if text and text != reported:
                logger.warning("no broker of the cluster found: reason=%s", text)
                self._on_waiting(f"no broker of the cluster was found: {text}")
            reported = text
            await asyncio.sleep(RETRY_SECONDS)


# -- membership ------------------------------------------------------------------------------------


CLUSTER_GROUP: Final = "cluster"


class Membership:
    """``poll`` proposes the next command that this broker's membership needs, one at a time."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        rack: str,
        voters: Sequence[int],
        address: Callable[[], Address],
        kafka_address: Callable[[], Address],
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        session_seconds: float,
        is_ready: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """``voters``: first voters of the cluster group, by configuration.

        ``address``, ``kafka_address``: of this broker for clients; see ``SetKafkaAddress``.
        ``is_ready``: whether every replica that the cluster assigns to this broker is open.
        """
        self._broker_id = broker_id
        self._me = me
        self._rack = rack
        self._voters = voters
        self._address = address
        self._kafka_address = kafka_address
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._session_seconds = session_seconds
        self._is_ready = is_ready
        self._now = now
        self._deciding = False
        # Rejected command, and the state version at which this broker learned that.
        self._refused: tuple[ClusterCommand, int] | None = None
        self._refused_until = 0.0  # monotonic seconds
        self.refusal = ""  # reason why the cluster rejects this broker, for the operator
        self.is_leaving = False

    @property
    def is_registered(self) -> bool:
        record = self._machine.brokers.get(self._broker_id)
        # guard: a registration is of this incarnation
        return (
            record is not None
            and record.directory_id == self._me.directory_id
            and record.boot == self._me.boot
            and (record.host, record.port) == tuple(self._address())
        )

    @property
    def is_in(self) -> bool:
        """Whether this broker is registered in this incarnation, and not fenced."""
        return self.is_registered and not self._machine.brokers[self._broker_id].fenced

    def poll(self) -> None:
        """Propose the next command. Called often; does nothing while a proposal is in flight."""
        if self._deciding:
            return
        command = self._wanted()
        if command is not None:
            self._propose(command)
        elif self._plane.leads(CLUSTER_GROUP):
            self._seal_if_due()

    def _wanted(self) -> ClusterCommand | None:
        machine = self._machine
        if not machine.cluster_id or self.is_leaving:
            return None
        if self._me.directory_id in machine.removed:
            return None  # this broker was decommissioned, and stops
        command: ClusterCommand | None = None
        if not self.is_registered:
            command = self._registration()
        elif not self._has_kafka_address():
            command = self._with_kafka_address()
        # guard: a broker is unfenced when it serves
        elif machine.brokers[self._broker_id].fenced and self._is_ready():
            mine = machine.brokers[self._broker_id]
            command = UnfenceBroker(id=mine.id, broker_epoch=mine.broker_epoch)
        is_refused = self._refused == (command, machine.version)
        if command is not None and (not is_refused or self._now() >= self._refused_until):
            return command
        return self._fencing() if self._plane.leads(CLUSTER_GROUP) else None

    def _registration(self) -> RegisterBroker:
        address = self._address()
        return RegisterBroker(
            id=self._broker_id,
            host=address.host,
            port=address.port,
            rack=self._rack,
            directory_id=self._me.directory_id,
            boot=self._me.boot,
        )

    def _has_kafka_address(self) -> bool:
        mine = self._machine.brokers[self._broker_id]
        return (mine.kafka_host, mine.kafka_port) == tuple(self._kafka_address())

    def _with_kafka_address(self) -> SetKafkaAddress:
        mine, address = self._machine.brokers[self._broker_id], self._kafka_address()
        return SetKafkaAddress(
            id=mine.id, broker_epoch=mine.broker_epoch, host=address.host, port=address.port
        )

    def _fencing(self) -> FenceBroker | None:
        for _, record in sorted(self._machine.brokers.items()):
            if record.fenced:
                continue
            silent = self._liveness.silent_seconds(record.id)
            # guard: an unresponsive broker is fenced
            if silent >= self._session_seconds:
                logger.warning(
                    "broker fenced: broker=%d reason=session_timeout silent_s=%.1f",
                    record.id,
                    silent,
                )
                return FenceBroker(id=record.id, broker_epoch=record.broker_epoch)
            if self._is_on_another_disk(record):
                logger.warning("broker fenced: broker=%d reason=directory_id_changed", record.id)
                return FenceBroker(id=record.id, broker_epoch=record.broker_epoch)
        return None

    def _is_on_another_disk(self, record: BrokerRecord) -> bool:
        """Whether a registered broker is connected with another data directory. The registered one
        no longer exists, even after a short interruption, and must be fenced for the new one to
        register.
        """
        seen = self._liveness.incarnation_of(record.id)
        return (
            seen is not None
            and self._liveness.is_linked(record.id)
            and seen.directory_id != record.directory_id
        )

    def _seal_if_due(self) -> None:
        """End the generation of the cluster group if its voters change (``next_voters``)."""
        machine, liveness = self._machine, self._liveness
        voters = self._plane.voters(CLUSTER_GROUP)
        wanted = next_voters(
            voters,
            brokers=machine.brokers,
            removed=frozenset(machine.removed.values()),
            configured=self._voters,
            linked=liveness.linked_directory,
        )
        if wanted is None:
            return
        logger.info(
            "voters changed: group=%s admitted=%s removed=%s",
            CLUSTER_GROUP,
            sorted(b for b, directory in wanted.items() if voters.get(b) != directory),
            sorted(voters.keys() - wanted.keys()),
        )
        self._deciding = True

        def done(_outcome: Outcome) -> None:
            self._deciding = False

        self._plane.seal(CLUSTER_GROUP, wanted, done)

    def _propose(self, command: ClusterCommand) -> None:
        self._deciding = True

        def done(outcome: Outcome) -> None:
            self._deciding = False
            if not isinstance(outcome, Applied):
                logger.debug("proposal failed: command=%s outcome=%s", command, outcome)
                return
            if isinstance(outcome.result, Refused):
                if self.refusal != outcome.result.message:
                    logger.error("cluster rejected the command: reason=%s", outcome.result.message)
                self.refusal = outcome.result.message
                # A retry is mostly pointless until the state has changed. But the command may have
                # been rejected in an older state than the one that this broker knows by now.
                self._refused = command, self._machine.version
                self._refused_until = self._now() + self._session_seconds
                return
            self.refusal = ""
            self.poll()

        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), done)


# -- addresses -------------------------------------------------------------------------------------
#
# Addresses of the other brokers, as far as this broker knows them, and the links to them.
#
# The cluster state has the address of every registered broker. This broker may know an old state:
# one that was down for long, or that joins, learns from brokers at addresses that it was given,
# that it has saved (``storage.state_files``), or that connected to it.


class BrokerAddresses:
    """Call ``update`` when something may have changed."""

    def __init__(
        self,
        store: Store,
        machine: ClusterMachine,
        links: PeerLinks,
        registry: PeerRegistry,
        *,
        voters: Sequence[Voter],
        found: Mapping[int, Address],
        worker: Workers,
        loop: asyncio.AbstractEventLoop,
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``voters``: of the configuration. ``found``: see ``Joining``. ``on_failed``: called when
        the disk has failed: the broker must stop.
        """
        self._store = store
        self._machine = machine
        self._links = links
        self._registry = registry
        self._voters = voters
        self._found = found
        self._saver = Saver(worker, loop, on_failed)
        self._saved: dict[int, Address] = dict(store.saved_brokers)
        self.stop = self._saver.stop
        self.brokers: list[int] = []  # IDs of those with an address, sorted
        self.is_current = False  # the known state contains the registration of this broker

    def update(self) -> None:
        """Connect to all known brokers.

        The first voters have their configured address, unless a broker with that ID was removed;
        all others their registered address, or that of a newer incarnation that has connected: a
        voter must be reached before it can register. Other addresses count until the known state is
        current, those of brokers that connected also later.
        """
        machine = self._machine
        addresses = {} if self.is_current else {**self._saved, **self._found}
        addresses.update(self._registered())
        for peer in self._registry.all_latest():
            if peer.directory_id not in machine.removed and self._is_ahead(peer):
                addresses[peer.broker_id] = Address(peer.host, peer.port)
        removed = frozenset(machine.removed.values())
        for voter in self._voters:
            if voter.id not in removed:
                addresses[voter.id] = voter.address
        self.brokers = sorted(addresses)
        self._links.set_addresses(addresses)

    def _is_ahead(self, peer: PeerIdentity) -> bool:
        """Whether the registration of a broker that has connected is not known."""
        held = self._machine.brokers.get(peer.broker_id)
        return held is None or (peer.directory_id == held.directory_id and peer.boot > held.boot)

    def save(self) -> None:
        """Save the registered addresses for the next start, if they have changed."""
        addresses = self._registered()
        if not self._saver.is_busy and addresses != self._saved:
            save = partial(self._store.save_brokers, addresses)
            self._saver.save(save, partial(self._take, addresses))

    def _registered(self) -> dict[int, Address]:
        return {b.id: Address(b.host, b.port) for b in self._machine.brokers.values()}

    def _take(self, addresses: dict[int, Address]) -> None:
        self._saved = addresses


# -- liveness --------------------------------------------------------------------------------------
#
# Liveness of the brokers, as this broker sees it: peer links and the committed fencing state.
#
# It affects only liveness, never safety: every decision that follows is a compare-and-set in a Raft
# group. So a short break of a link is ignored, and a broker that is only slow is not fenced.


# Seconds: a link that is restored within this time counts as up. A dropped connection alone causes
# no election.
GRACE_SECONDS: Final = 0.3
# Seconds after the start during which brokers that have not connected yet count as live.
START_GRACE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One incarnation of a broker on one data directory. A restart or a wiped disk is a new one."""

    directory_id: str
    boot: int


class Liveness:
    """Liveness from link events. ``now`` returns monotonic seconds."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        now: Callable[[], float],
        is_fenced: Callable[[int], bool],
        is_heard: Callable[[int], bool],
    ) -> None:
        """``is_fenced``: by the committed state; True for a broker that never registered.

        ``is_heard``: whether a message of a peer arrived recently (``PeerLinks.is_heard``).
        """
        self._broker_id = broker_id
        self._now = now
        self._is_fenced = is_fenced
        self._is_heard = is_heard
        self._started = now()
        self._up: dict[int, Incarnation] = {broker_id: me}
        self._last: dict[int, Incarnation] = {broker_id: me}
        self._down_since: dict[int, float] = {}

    def link_up(self, broker_id: int, incarnation: Incarnation) -> None:
        self._up[broker_id] = self._last[broker_id] = incarnation
        self._down_since.pop(broker_id, None)

    def link_down(self, broker_id: int) -> None:
        self._up.pop(broker_id, None)
        self._down_since.setdefault(broker_id, self._now())

    def is_linked(self, broker_id: int) -> bool:
        return broker_id in self._up

    def is_heard(self, broker_id: int) -> bool:
        """Whether a message of the broker arrived recently: links without traffic time out one by
        one.
        """
        return broker_id == self._broker_id or self._is_heard(broker_id)

    def incarnation_of(self, broker_id: int) -> Incarnation | None:
        """Return the last incarnation that was connected; None for a broker that never
        connected.
        """
        return self._last.get(broker_id)

    def linked_directory(self, broker_id: int) -> str | None:
        """Return the data directory of a connected broker; None for one that is not connected."""
        incarnation = self._up.get(broker_id)
        return None if incarnation is None else incarnation.directory_id

    def directory_of(self, broker_id: int) -> str | None:
        incarnation = self._last.get(broker_id)
        return None if incarnation is None else incarnation.directory_id

    def boot_of(self, broker_id: int) -> int | None:
        incarnation = self._last.get(broker_id)
        # guard: the leader knows the incarnation of its followers
        return None if incarnation is None else incarnation.boot

    def silent_seconds(self, broker_id: int) -> float:
        """Return for how many seconds the link has been down; 0 while it is up."""
        if broker_id in self._up:
            return 0.0
        return self._now() - self._down_since.get(broker_id, self._started)

    def is_live(self, broker_id: int) -> bool:
        """Whether the broker can lead or follow: registered, not fenced, and connected or only
        briefly disconnected.
        """
        # guard: a fenced broker is not live
        if self._is_fenced(broker_id):
            return False
        if broker_id in self._up:
            return True
        grace = GRACE_SECONDS if broker_id in self._last else START_GRACE_SECONDS
        return self.silent_seconds(broker_id) < grace

    def expect(self, brokers: Iterable[int]) -> None:
        """Note brokers that are known from now on: they have time to connect."""
        for broker in brokers:
            if broker not in self._up:
                self._down_since.setdefault(broker, self._now())
