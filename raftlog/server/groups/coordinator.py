"""Group coordinator of the consumer groups in the ``__consumer_offsets`` partitions led here.

It creates and closes the shards, and forwards topic changes to them. The shards manage the groups.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from raftlog import limits
from raftlog.consumer_groups import (
    BUILT_IN,
    DEFAULT_ASSIGNOR,
    Assignor,
    GroupShard,
    TopicInfo,
    named,
    partition_of_group,
)
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    InvalidConfigError,
    LeaderNotAvailableError,
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    ThrottledError,
    TopicExistsError,
    counted,
)
from raftlog.protocol.records import BrokerInfo, CoordinatorInfo
from raftlog.protocol.schema import Failure
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.administration import Administration
from raftlog.server.clock import BrokerClock
from raftlog.server.cluster.topics import ClusterTopics
from raftlog.server.groups.shard import ActiveShard, ShardServices
from raftlog.server.log_shard import LedShards
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.server.topic_table import TopicTable
from raftlog.types import OFFSETS_TOPIC, Offset, check_group_id

# -- topics ----------------------------------------------------------------------------------------
#
# A coordinator removes the committed offsets of deleted topics. So it must not treat a topic as
# deleted that this broker has not received yet. The log contains the version of the cluster's state
# that its last coordinator had, and ``GroupShard`` waits until this broker has that version.


def agreed_topics(machine: ClusterMachine) -> Topics:
    """Return the topics of the cluster's state, with its version."""
    infos = {
        name: TopicInfo(topic.id, len(topic.partitions)) for name, topic in machine.topics.items()
    }
    return Topics(infos, machine.version)


# -- coordinator -----------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

# Seconds from a change of topics to the notification of the shards. Changes in this time are
# combined, unless a request needs them first.
TOPICS_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class CoordinatorServices:
    """Broker functions that the coordinator uses."""

    loop: asyncio.AbstractEventLoop
    clock: BrokerClock
    topics: TopicTable
    agreed: Callable[[], Topics]  # the committed topics that this broker has received
    new_groups: Callable[[], GroupShard]
    confirm: Callable[[Partition, Acknowledge], None]
    on_unreadable: Callable[[Partition, Offset], None]


class Coordinator:
    """Exists as long as the broker, on its event loop."""

    def __init__(self, services: CoordinatorServices) -> None:
        self._services = services
        self._loop = services.loop
        self._known: Topics | None = None  # None: must be read again
        self._topics_timer: asyncio.TimerHandle | None = None
        self._unnotified: dict[int, None] = {}  # partitions whose shards do not know the topics yet
        self._is_notifying = False  # one shard after the other
        shard_services = ShardServices(
            loop=services.loop,
            clock=services.clock,
            new_groups=services.new_groups,
            topics=self._topics_now,
            confirm=services.confirm,
            on_unreadable=services.on_unreadable,
            reading=asyncio.Lock(),
        )
        self._shards = LedShards(
            OFFSETS_TOPIC,
            services.topics,
            services.loop,
            lambda host: ActiveShard(host, shard_services),
            what=ActiveShard.what,
        )

    # -- calls of the broker ---------------------------------------------------------------------

    def poll_soon(self) -> None:
        """Check soon whether partitions have another leader."""
        self._shards.poll_soon()

    def topics_changed(self) -> None:
        """Notify the shards that topics were added, removed or extended; several changes at
        once, one shard in a turn of the loop.
        """
        self._known = None
        self._unnotified.update(dict.fromkeys(self._shards.by_partition))
        self.poll_soon()
        self._notify_later()

    def version_changed(self) -> None:
        """Note a new version of the cluster's state without topic changes: a shard may wait for
        it.
        """
        if any(shard.is_loading for shard in self._shards.by_partition.values()):
            self.topics_changed()

    def forget(self, connection: Hashable) -> None:
        """Forget a closed connection."""
        for shard in self._shards.by_partition.values():
            shard.forget(connection)

    def close(self, reason: RaftlogError) -> None:
        """Coordinate nothing more. Responses that wait for the log are sent when it is
        committed.
        """
        if self._topics_timer is not None:
            self._topics_timer.cancel()
        self._shards.close(reason)

    async def stop(self) -> None:
        """Close, and return once no task of it runs."""
        self.close(BrokerUnavailableError("the broker stops"))
        await self._shards.stop()

    # -- requests ----------------------------------------------------------------------------------

    @property
    def metadata_version(self) -> int:
        """Version that increases when topics are added, removed or extended; in a cluster, also
        with any other change of the cluster's state.
        """
        return self._known_topics().version

    def shard(self, group: str) -> ActiveShard:
        """Return the shard of a consumer group.

        Raises ``InvalidGroupError``, or ``NotCoordinatorError`` with the leader of its partition.
        """
        check_group_id(group)
        partition, shard = self._shards.find(group, partition_of_group)
        # guard: a request's shard knows the topics that the client knows
        if partition in self._unnotified:
            # Otherwise the shard might not know a topic that the client already knows.
            self._notify(partition, self._known_topics())
        return shard

    def shard_of(self, partition: int) -> ActiveShard:
        """Return the shard of a partition. Raises ``NotCoordinatorError``."""
        return self._shards.find(f"{OFFSETS_TOPIC}:{partition}", lambda _name, _count: partition)[1]

    def shards(self) -> list[ActiveShard]:
        """Return the shards of all partitions that this broker leads."""
        return self._shards.all()

    # -- inside ------------------------------------------------------------------------------------

    def _topics_now(self) -> Topics:
        """Return the current topics. The known ones may have an older version, if only brokers have
        changed since. Then a state from a coordinator with a newer version would wait indefinitely.
        """
        # guard: a coordinator starts with current topics
        self._known = None
        return self._known_topics()

    def _known_topics(self) -> Topics:
        if self._known is None:
            self._known = self._services.agreed()
        return self._known

    def _notify_later(self) -> None:
        is_idle = self._topics_timer is None and not self._is_notifying
        if self._unnotified and is_idle and self._shards.closed is None:
            self._topics_timer = self._loop.call_later(TOPICS_SECONDS, self._notify_all)

    def _notify_all(self) -> None:
        self._topics_timer = None
        self._is_notifying = True
        self._notify_next(self._known_topics(), deque(self._unnotified))

    def _notify_next(self, topics: Topics, left: deque[int]) -> None:
        """Notify the next shard. Changes in the meantime wait until all of this round know this."""
        if left and self._shards.closed is None:
            self._notify(left.popleft(), topics)
            self._loop.call_soon(self._notify_next, topics, left)
            return
        self._is_notifying = False
        if self._unnotified:
            self._notify_later()

    def _notify(self, partition: int, topics: Topics) -> None:
        if partition not in self._unnotified:
            return  # a request needed it first
        if topics is self._known:  # otherwise they have changed again
            del self._unnotified[partition]
        shard = self._shards.by_partition.get(partition)
        if shard is not None:
            shard.set_topics(topics)


# -- lookup ----------------------------------------------------------------------------------------
#
# Coordinator lookup: creates ``__consumer_offsets`` at the first request for a coordinator.
#
# The broker that receives the request creates it. If another broker does so at the same time, that
# is not an error.


MESSAGE_BYTES_MAX: Final = 8 * limits.MIB  # so that one step is one batch, however large
# Seconds to wait for brokers that have not registered yet, so that they get replicas.
PATIENCE_SECONDS: Final = 10.0


class TopicMaker:
    """Creates an internal topic at the first request that needs it. Call ``when_made``."""

    def __init__(
        self,
        topic: str,
        topics: TopicTable,
        administration: Administration,
        *,
        partitions: int,
        replication_factor: int,
        settings: Mapping[str, str],
        authority: ClusterTopics,
        copies: Callable[[], tuple[int, int]],
        now: Callable[[], float],
    ) -> None:
        """``replication_factor``: 0: as many as ``copies`` says, which are the number of replicas
        that the topic should have, and that it can have now. ``settings``: besides those of every
        such topic.
        """
        self.topic = topic
        self.copies = copies
        self._topics = topics
        self._administration = administration
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._settings = {
            "cleanup.policy": "compact",
            "max.message.bytes": str(MESSAGE_BYTES_MAX),
            **settings,
        }
        self._authority = authority
        self._now = now
        self._first_request_at: float | None = None
        self._waiting: list[Acknowledge] = []

    def when_made(self, done: Acknowledge) -> None:
        """Call ``done`` once the topic exists, or with the error."""
        if self.topic in self._topics:
            done(None)
            return
        if len(self._waiting) >= limits.COORDINATOR_LOOKUPS_MAX:
            raise ThrottledError(
                f"{len(self._waiting)} requests wait for the creation of {self.topic}, and "
                "COORDINATOR_LOOKUPS_MAX is reached. Try again later"
            )
        self._waiting.append(done)
        if len(self._waiting) == 1:
            try:
                self._administration.submit_work(self._make, self._made)
            except RaftlogError as error:
                self._made(error)

    def _made(self, error: RaftlogError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)

    async def _make(self) -> None:
        """Create the topic. Raises retriable errors only, except errors of this broker's disk."""
        self._topics.check_complete()
        if self.topic in self._topics:
            return
        try:
            await self._authority.create(
                self.topic,
                partitions=self._partitions,
                replication_factor=self._replication_factor or self._possible_copies(),
                config=self._settings,
            )
        except TopicExistsError:
            pass
        except (RefusedError, OutcomeUnknownError) as error:  # more brokers may join soon
            raise ClusterNotReadyError(f"cannot create {self.topic} now: {error}") from error

    def _possible_copies(self) -> int:
        """Wait for brokers for some time, and then go on with those that are there: consumers could
        not commit while one is down. The topic gets the other replicas when they are back
        (``server.cluster.topics``).
        """
        if self._first_request_at is None:
            self._first_request_at = self._now()
        wanted, possible = self.copies()
        # guard: the topic of groups waits for all brokers
        if possible < wanted and self._now() - self._first_request_at < PATIENCE_SECONDS:
            missing = wanted - possible
            raise ClusterNotReadyError(
                f"{counted(missing, 'broker of the cluster is', 'brokers of the cluster are')} not "
                f"up: {self.topic} is created when they are, or {PATIENCE_SECONDS:g} s after "
                "the first request for it"
            )
        return max(1, min(wanted, possible))


class Lookup:
    """Call ``maker.when_made``, then ``find``."""

    def __init__(
        self,
        topics: TopicTable,
        maker: TopicMaker,
        *,
        check: Callable[[str], object] = check_group_id,
        partition_of: Callable[[str, int], int] = partition_of_group,
    ) -> None:
        """``check``, ``partition_of``: of the names whose coordinators are looked up."""
        self.maker = maker
        self._topics = topics
        self._check = check
        self._partition_of = partition_of

    def default_replication_factor(self) -> int:
        """Return the replication factor of a topic that is created without one now."""
        wanted, _ = self.maker.copies()
        return wanted

    def find(self, group: str, brokers: dict[int, BrokerInfo]) -> CoordinatorInfo:
        """Return the result of ``coordinator``, or its error, for a response."""
        try:
            broker = self.coordinator(group, brokers)
        except RaftlogError as error:
            return CoordinatorInfo(group=group, failure=Failure.of(error))
        return CoordinatorInfo(group=group, broker_id=broker.id, host=broker.host, port=broker.port)

    def coordinator(self, group: str, brokers: dict[int, BrokerInfo]) -> BrokerInfo:
        """Return the coordinator of a name, out of ``brokers``: those that clients can connect to.
        Raises ``LeaderNotAvailableError``, or the error of an invalid name.
        """
        self._check(group)
        name = self.maker.topic
        topic = self._topics.get(name)
        if topic is None:
            raise LeaderNotAvailableError(f"this broker has not received metadata of {name} yet")
        partition = self._partition_of(group, len(topic.hosts))
        state = self._topics.state(topic, partition)
        broker = None if state is None or state.leader is None else brokers.get(state.leader)
        if broker is None:
            raise LeaderNotAvailableError(
                f"{name}:{partition}, which stores the state of {group!r}, has no leader"
            )
        return broker


# -- assignors -------------------------------------------------------------------------------------
#
# Assignors of a broker: the built-in ones, and those of the operator.


def load_assignors(wanted: Sequence[str]) -> tuple[Mapping[str, Assignor], str]:
    """Return the assignors by the names that consumers request, and the name of the first one in
    ``wanted``.

    ``wanted``: names of built-in assignors, or ``module:attribute``: an ``Assignor``, or a class
    that creates one. Raises ``InvalidConfigError`` with the problem.
    """
    found = [_load(name) for name in wanted]
    own = [assignor for assignor in found if assignor not in BUILT_IN.values()]
    try:
        by_name = named(own)
    except ValueError as error:
        raise InvalidConfigError(f"group.assignors={','.join(wanted)}: {error}") from error
    # The default is the fallback for others.
    offered = {DEFAULT_ASSIGNOR, *(assignor.name for assignor in found)}
    return {name: by_name[name] for name in by_name if name in offered}, found[0].name


def _load(name: str) -> Assignor:
    built_in = BUILT_IN.get(name)
    if built_in is not None:
        return built_in
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise _refused(
            name, f"it is not one of {', '.join(sorted(BUILT_IN))}, and not module:attribute"
        )
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        assignor = found() if isinstance(found, type) else found
    except Exception as error:  # an operator's module can raise anything
        raise _refused(name, f"{type(error).__name__}: {error}") from error
    if not (hasattr(assignor, "name") and callable(getattr(assignor, "assign", None))):
        raise _refused(
            name, "it is not a raftlog.consumer_groups.Assignor with `name` and `assign`"
        )
    checked: Assignor = assignor
    return checked


def _refused(name: str, why: str) -> InvalidConfigError:
    return InvalidConfigError(f"group.assignors: {name} cannot be loaded: {why}")
