"""Founding of a cluster: only a broker whose disk cannot belong to an existing cluster may do it.

A data directory without a cluster id is either new, or replaces one that was lost. Two such
directories are a majority of three voters, and must not found a second cluster while the third
voter has the old one. So exactly one broker founds the cluster: the voter with the lowest id, and
only while every configured voter is linked and reports that it has no cluster id either. It records
itself and those directories as the voters of the first generation; the others take part once they
receive that generation (``HostedGroup.found``). A broker that connects to a voter with a cluster id
founds nothing and joins that cluster, without a vote until it is readmitted.

An operator can list voters that are not waited for (``bootstrap.without``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.config import BrokerConfig
from raftlog.consensus.journal import Journal
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.protocol.peer import PeerIdentity
from raftlog.protocol.peer_auth import PEER_PROTOCOL_VERSION
from raftlog.replication.cluster_records import founding_state
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.topic_table import TopicTable
from raftlog.storage import Store

logger = logging.getLogger(__name__)


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
        if voter in seen and seen[voter].cluster_id:
            return Join(voter, seen[voter].cluster_id)
    founders = sorted(set(voters) - (set(without) - {broker_id}))
    missing = tuple(voter for voter in founders if voter != broker_id and voter not in seen)
    if missing:
        return Await(missing)
    if founders[0] != broker_id:
        return AwaitFounder(founders[0])
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
        self._listens_until = now() + LISTEN_SECONDS * (len(self._voters) == 1)
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
