"""Who may found the cluster: nobody whose disk may have been in one that still lives elsewhere.

A data directory without a cluster id knows nothing: it may be new, or may have taken the place of
one that is lost. Two such directories are a majority of three voters, and must not make a cluster
of their own while the third voter has the old one. So one broker founds the cluster, the voter with
the lowest id, and only while every configured voter is linked and says that it has no cluster id
either. It names itself and those directories as the voters of the first generation; the others take
part once they are offered that (``HostedGroup.found``). A broker that meets a voter with a cluster
id founds nothing and joins that cluster, without a vote until it is re-admitted.

An operator may name voters that are not waited for (``bootstrap.without``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from raftlog.config import BrokerConfig
from raftlog.consensus.journal import Journal
from raftlog.errors import DiskFullError, StorageFailedError
from raftlog.protocol.peer import PeerIdentity
from raftlog.replication.cluster_records import founding_state
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.cluster.membership import CLUSTER_GROUP
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.topic_table import TopicTable
from raftlog.storage import Store

logger = logging.getLogger(__name__)


# So long a broker that waits for nobody listens, before it founds a cluster, to those that have
# another list of voters; and any broker after one of those was refused.
LISTEN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Found:
    """Found the cluster, with these data directories as its voters."""

    voters: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Await:
    """Not yet: these voters were not seen."""

    voters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AwaitFounder:
    """All were seen; this broker founds the cluster, and is another one."""

    founder: int


@dataclass(frozen=True, slots=True)
class Join:
    """A voter is in a cluster: wait for what it says."""

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
    """What a broker without a cluster does. Deterministic.

    ``voters``: of the configuration, this broker among them. ``without``: of those, the ones that
    an operator says not to wait for. ``seen``: the peers with a proved link, by id.
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
    return Found({v: directory_id if v == broker_id else seen[v].directory_id for v in founders})


def told(step: Await | AwaitFounder | Join) -> str:
    """The step as a sentence for people."""
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
    """Takes the steps of a broker without a cluster, and writes down which one it is in then."""

    def __init__(
        self,
        config: BrokerConfig,
        store: Store,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        journal: Journal,
        peer: Callable[[int], PeerIdentity | None],
        topics: TopicTable,
        now: Callable[[], float],
        new_id: Callable[[], str],
        on_failed: Callable[[StorageFailedError], None],
    ) -> None:
        """``peer``: who is at the other end of the link to a broker; None while it is down.
        ``on_failed``: the disk failed: the broker has to end.
        """
        self._store = store
        self._machine = machine
        self._plane = plane
        self._journal = journal
        self._peer = peer
        self._topics = topics
        self._now = now
        self._new_id = new_id
        self._on_failed = on_failed
        self._voters = [voter.id for voter in config.voters]
        self._without = config.bootstrap_without
        self._listens_until = now() + LISTEN_SECONDS * (len(self._voters) == 1)
        self._has_founded = False  # and the journal may be at work on it
        self._told: Step | None = None

    def refused(self) -> None:
        """A broker was met that has the cluster's secret and does not fit this one."""
        self._listens_until = self._now() + LISTEN_SECONDS

    def look(self) -> None:
        """Take the next step. Called often; cheap once there is a cluster."""
        if self._machine.cluster_id:
            self._adopt()
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
            if not self._has_founded and self._now() >= self._listens_until:
                self._found(step)
        elif step != self._told:
            self._told = step
            self._topics.waits_for = told(step)
            logger.warning("no cluster yet: waits_for=%s", self._topics.waits_for)

    def _found(self, step: Found) -> None:
        self._has_founded = True
        # One that is known comes from a founding that the journal has not kept.
        cluster_id = self._store.identity.cluster_id or self._new_id()
        voters = ",".join(map(str, step.voters))
        logger.warning("founding a cluster: cluster_id=%s voters=%s", cluster_id, voters)
        self._plane.found(CLUSTER_GROUP, step.voters, founding_state(cluster_id))

    def _adopt(self) -> None:
        """Write the id down once the journal has durably what makes this broker a part of it."""
        known = self._machine.cluster_id
        if self._store.identity.cluster_id != known and not self._journal.is_dirty:
            try:
                self._store.adopt_cluster_id(known)
            except DiskFullError as error:  # tried again at the next check
                self._topics.waits_for = str(error)
                return
            except StorageFailedError as error:
                self._on_failed(error)
                return
            self._topics.waits_for = ""
