"""Cluster state on a broker without a vote in the ``cluster`` group, and its commands to the group.

Such a broker asks a broker with a vote for all changes after the version that it knows, and waits
for the response (long polling): commands, or an encoded state if too many are missing. The version
orders all states of a cluster, so an older response is ignored. It is the leader that is asked, if
it is known. A command to the group takes the same way; its outcome is reported when this broker has
received the state that contains the effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from raftlog import limits
from raftlog.consensus import Applied, NotProposed, Outcome, Unknown
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    RaftlogError,
    UnsupportedApiError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.membership import (
    ClusterStateRequest,
    ClusterStateResponse,
    ProposeRequest,
    ProposeResponse,
)
from raftlog.protocol.recovery import Seat
from raftlog.protocol.schema import Failure
from raftlog.replication.cluster_state import ClusterMachine, Done, Refused
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.consensus_plane import ConsensusPlane, OutcomeDone
from raftlog.server.peers.links import PeerLinks
from raftlog.types import Buffer

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

    # -- a broker with a vote ----------------------------------------------------------------------

    def changed(self) -> None:
        """Note that the known state, the leader or the voters have changed."""
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
