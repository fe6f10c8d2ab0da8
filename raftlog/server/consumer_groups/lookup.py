"""Coordinator lookup: creates ``__consumer_offsets`` at the first request for a coordinator.

The broker that receives the request creates it. If another broker does so at the same time, that is
not an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog import limits
from raftlog.config import BrokerConfig
from raftlog.consumer_groups import partition_of_group
from raftlog.errors import (
    ClusterNotReadyError,
    LeaderNotAvailableError,
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    ThrottledError,
    TopicExistsError,
    counted,
)
from raftlog.protocol.groups import CoordinatorInfo
from raftlog.protocol.metadata import BrokerInfo
from raftlog.protocol.schema import Failure
from raftlog.server.administration import Administration, TopicAuthority
from raftlog.server.offset_waiters import Acknowledge
from raftlog.server.topic_table import TopicTable
from raftlog.types import OFFSETS_TOPIC, check_group_id

MESSAGE_BYTES_MAX: Final = 8 * limits.MIB  # so that one step is one batch, however large
# Seconds to wait for brokers that have not registered yet, so that they get replicas.
PATIENCE_SECONDS: Final = 10.0


class Lookup:
    """Call ``when_made``, then ``find``."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        administration: Administration,
        *,
        authority: Callable[[], TopicAuthority],
        copies: Callable[[], tuple[int, int]],
        now: Callable[[], float],
    ) -> None:
        """``copies``: number of replicas that the topic should have, and that it can have now."""
        self._config = config
        self._topics = topics
        self._administration = administration
        self._authority = authority
        self._copies = copies
        self._now = now
        self._first_request_at: float | None = None
        self._waiting: list[Acknowledge] = []

    def default_replication_factor(self) -> int:
        """Return the replication factor of a topic that is created without one now."""
        wanted, _ = self._copies()
        return wanted

    def when_made(self, done: Acknowledge) -> None:
        """Call ``done`` once the topic for consumer groups exists, or with the error."""
        if OFFSETS_TOPIC in self._topics:
            done(None)
            return
        if len(self._waiting) >= limits.COORDINATOR_LOOKUPS_MAX:
            raise ThrottledError(
                f"{len(self._waiting)} requests wait for the creation of {OFFSETS_TOPIC}, and "
                "COORDINATOR_LOOKUPS_MAX is reached. Try again later"
            )
        self._waiting.append(done)
        if len(self._waiting) == 1:
            try:
                self._administration.submit_work(self._make, self._made)
            except RaftlogError as error:
                self._made(error)

    def find(self, group: str, brokers: dict[int, BrokerInfo]) -> CoordinatorInfo:
        """Return the result of ``coordinator``, or its error, for a response."""
        try:
            broker = self.coordinator(group, brokers)
        except RaftlogError as error:
            return CoordinatorInfo(group=group, failure=Failure.of(error))
        return CoordinatorInfo(group=group, broker_id=broker.id, host=broker.host, port=broker.port)

    def coordinator(self, group: str, brokers: dict[int, BrokerInfo]) -> BrokerInfo:
        """Return the coordinator of the consumer group, out of ``brokers``: those that clients can
        connect to. Raises ``InvalidGroupError`` or ``LeaderNotAvailableError``.
        """
        check_group_id(group)
        topic = self._topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise LeaderNotAvailableError(
                f"this broker has not received metadata of {OFFSETS_TOPIC} yet"
            )
        partition = partition_of_group(group, len(topic.hosts))
        state = self._topics.state(topic, partition)
        broker = None if state is None or state.leader is None else brokers.get(state.leader)
        if broker is None:
            raise LeaderNotAvailableError(
                f"{OFFSETS_TOPIC}:{partition}, which stores the consumer group, has no leader"
            )
        return broker

    # -- inside

    def _made(self, error: RaftlogError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done(error)

    async def _make(self) -> None:
        """Create the topic. Raises retriable errors only, except errors of this broker's disk."""
        self._topics.check_complete()
        if OFFSETS_TOPIC in self._topics:
            return
        config = self._config
        replication_factor = config.offsets_topic_replication_factor or self._possible_copies()
        try:
            await self._authority().create(
                OFFSETS_TOPIC,
                partitions=config.offsets_topic_num_partitions,
                replication_factor=replication_factor,
                config={
                    "cleanup.policy": "compact",
                    "segment.bytes": str(config.offsets_topic_segment_bytes),
                    "max.message.bytes": str(MESSAGE_BYTES_MAX),
                },
            )
        except TopicExistsError:
            pass
        except (RefusedError, OutcomeUnknownError) as error:  # more brokers may join soon
            raise ClusterNotReadyError(f"cannot create {OFFSETS_TOPIC} now: {error}") from error

    def _possible_copies(self) -> int:
        """Wait for brokers for some time, and then go on with those that are there: consumers could
        not commit while one is down. The topic gets the other replicas when they are back
        (``server.cluster.internal_topics``).
        """
        if self._first_request_at is None:
            self._first_request_at = self._now()
        wanted, possible = self._copies()
        if possible < wanted and self._now() - self._first_request_at < PATIENCE_SECONDS:
            missing = wanted - possible
            raise ClusterNotReadyError(
                f"{counted(missing, 'broker of the cluster is', 'brokers of the cluster are')} not "
                f"up: {OFFSETS_TOPIC} is created when they are, or {PATIENCE_SECONDS:g} s after "
                "the first request for it"
            )
        return max(1, min(wanted, possible))
