"""Topic changes as commands of the ``cluster`` Raft group. Any broker accepts them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.consensus import Applied, Outcome
from raftlog.errors import (
    ClusterNotReadyError,
    CommitUnknownError,
    InvalidConfigError,
    InvalidPartitionsError,
    RaftlogError,
    TopicExistsError,
    UnknownTopicError,
    UserExistsError,
    from_code,
)
from raftlog.replication.cluster_commands import (
    AddPartitions,
    AlterTopic,
    BrokerRecord,
    ClusterCommand,
    CreateTopic,
    DeleteTopic,
    Move,
    PutUser,
    Reassign,
    TopicRecord,
)
from raftlog.replication.cluster_state import ClusterMachine, Done, Refused
from raftlog.replication.placement import PlacedPartition, change_replication_factor, usual_copies
from raftlog.server.cluster.membership import CLUSTER_GROUP, Liveness
from raftlog.server.cluster.replicas import Partitions
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.scheduling import Workers
from raftlog.server.topic_table import HostedTopic
from raftlog.types import OFFSETS_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC

# Maximum number of commands of one request that are proposed together. They share the round trips
# and syncs of the cluster group, and the elections of new partitions run in parallel.
CHANGES_AT_ONCE: Final = 32
NO_TOPIC_ID: Final = "-"  # matches no topic id
LEADERS_TIMEOUT_SECONDS: Final = 5.0
LEADERS_POLL_SECONDS: Final = 0.01


class Deletion(NamedTuple):
    """A topic to delete, or one that was deleted."""

    name: str
    id: str


NamedTopic: TypeAlias = TopicRecord | Deletion | HostedTopic  # the result of a change


class ClusterTopics:
    """A change is acknowledged when it is committed and this broker has applied it. A new topic is
    acknowledged when its partitions have leaders, or after ``LEADERS_TIMEOUT_SECONDS`` without
    leaders (clients retry).
    """

    changes_at_once = CHANGES_AT_ONCE

    def __init__(
        self,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        partitions: Partitions,
        *,
        new_id: Callable[[], str],
        loop: asyncio.AbstractEventLoop,
        default_replication_factor: int = 0,
        founders: int = 0,
        is_member: Callable[[], bool] = lambda: True,
    ) -> None:
        """``default_replication_factor``: 0 means 3, or the number of brokers if there are
        fewer. ``founders``: number of configured voters. ``is_member``: whether this broker has a
        vote, or is registered and not fenced.
        """
        self._is_member = is_member
        self._machine = machine
        self._plane = plane
        self._partitions = partitions
        self._new_id = new_id
        self._default_replication_factor = default_replication_factor
        self._founders = founders
        self._loop = loop

    @property
    def machine(self) -> ClusterMachine:
        """The cluster state, for reading only."""
        return self._machine

    async def plan(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> TopicRecord:
        command = self._creation(name, partitions, replication_factor, config)
        rehearsal = ClusterMachine()
        rehearsal.restore(self._machine.snapshot())
        outcome = rehearsal.apply(command.encode())
        if isinstance(outcome, Refused):
            raise from_code(outcome.code, outcome.message)
        assert isinstance(outcome.value, TopicRecord)
        return outcome.value

    async def create(
        self, name: str, *, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> TopicRecord:
        creation = self._creation(name, partitions, replication_factor, config)
        try:
            await self.propose(creation)
        except CommitUnknownError:
            await self._create_again(creation)
        record = await self._seen(name)
        await self._until_led(record)
        return record

    async def _create_again(self, creation: CreateTopic) -> None:
        """Propose a creation again whose outcome is unknown, unless the topic was created."""
        # Another client may have deleted the topic since. A broker that was down would take its
        # copies of a topic with the same ID for copies of the new one, and serve their records.
        # guard: a topic that is created again has another ID
        again = replace(creation, topic_id=self._new_id())
        try:
            await self.propose(again)
        except TopicExistsError:
            held = self._machine.topics.get(creation.name)
            if held is None or held.id != creation.topic_id:
                raise

    async def delete(self, name: str, topic_id: str | None) -> Deletion:
        """Delete the topic that this broker knows by this name, and no later topic of the same
        name. ``topic_id``: ID of the topic that is meant, also if this broker does not know it.

        If this broker knows no topic of this name, none is deleted, even if one is created before
        the group commits the command.
        """
        record = self._machine.topics.get(name)
        known = NO_TOPIC_ID if record is None else record.id
        deletion = Deletion(name, topic_id or known)
        try:
            # guard: a deletion applies to the topic that it was requested for
            await self.propose(DeleteTopic(name=name, topic_id=deletion.id))
        except UnknownTopicError as error:
            if deletion.id == NO_TOPIC_ID and name in self._machine.topics:
                raise ClusterNotReadyError(
                    f"this broker received topic {name!r} during the request. Delete it again"
                ) from error
            raise
        await self._partitions.until_seen(name)
        return deletion

    async def alter(self, name: str, changes: Mapping[str, str | None]) -> TopicRecord:
        resets = {key: value for key, value in changes.items() if value is None}
        given = {key: value for key, value in changes.items() if value is not None}
        await self.propose(AlterTopic(name=name, changes={**resets, **_in_short(given)}))
        return await self._seen(name)

    async def add_partitions(self, name: str, total: int) -> TopicRecord:
        await self.propose(AddPartitions(name=name, total=total))
        record = await self._seen(name)
        await self._until_led(record)
        return record

    async def reassign(self, command: Reassign) -> TopicRecord:
        """Store replicas that partitions are to have. Returns the topic with its moves."""
        await self.propose(command)
        record = self._machine.topic_by_id(command.topic_id)
        if record is None:
            raise UnknownTopicError("the topic was deleted during the request")
        return record

    async def persist(self, command: ClusterCommand) -> None:
        """Commit a command of the cluster group that can be repeated: again if its outcome is
        unknown. Raises as ``propose``.
        """
        try:
            await self.propose(command)
        except CommitUnknownError:
            await self.propose(command)

    # -- inside

    def _creation(
        self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]
    ) -> CreateTopic:
        if partitions < 1:
            raise InvalidPartitionsError(f"{partitions} partitions: a topic has at least 1")
        return CreateTopic(
            name=name,
            topic_id=self._new_id(),
            partitions=partitions,
            replication_factor=(
                replication_factor or self._default_replication_factor or self._usual_copies(name)
            ),
            overrides=_in_short(config),
        )

    def _usual_copies(self, name: str) -> int:
        wanted = usual_copies(self._machine.brokers.values(), founders=self._founders)
        live = len(self._machine.placeable())
        # guard: a topic without a replication factor counts brokers that are down
        if live < wanted:
            raise ClusterNotReadyError(
                f"topic {name!r} needs {wanted} brokers, as no replication factor was given, and "
                f"{live} of them {'is' if live == 1 else 'are'} up. Start the others, or pass a "
                "replication factor"
            )
        return wanted

    async def propose(self, command: ClusterCommand) -> Any:
        """Return the value of the command; None if a broker with a vote proposed it. Raises the
        refusal, or the reason why it was not decided.
        """
        if not self._is_member():
            raise ClusterNotReadyError("this broker has not joined the cluster yet")
        return _value_of(await self._plane.propose(CLUSTER_GROUP, command.encode()))

    async def _seen(self, name: str) -> TopicRecord:
        await self._partitions.until_seen(name)
        record = self._machine.topics.get(name)
        if record is None:
            raise RaftlogError(f"topic {name!r} was deleted during the request")
        return record

    async def _until_led(self, record: TopicRecord) -> None:
        deadline = self._loop.time() + LEADERS_TIMEOUT_SECONDS
        leaderless = list(range(len(record.partitions)))
        while self._loop.time() < deadline:
            while self._is_led(record.id, leaderless[-1]):
                leaderless.pop()
                if not leaderless:
                    return
            await asyncio.sleep(LEADERS_POLL_SECONDS)

    def _is_led(self, topic_id: str, partition: int) -> bool:
        """Whether a partition has a leader, or its topic was deleted."""
        state = self._partitions.state_of(topic_id, partition)
        return state is None or bool(state.leader_boot)


def _in_short(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings, long ones in their shortest text. A number may have thousands of spaces
    around it: in enough topics, no broker could start, as the files with them would be too long.
    Short ones stay: programs compare what they have set with what is shown.
    """
    try:
        text = TopicConfig.from_text(settings).to_text()
    except InvalidConfigError:
        return dict(settings)  # the group refuses them, after other reasons
    kept = limits.CONFIG_VALUE_CHARS_KEPT
    return {name: value if len(value) <= kept else text[name] for name, value in settings.items()}


def _value_of(outcome: Done | Refused | Any) -> Any:
    """Return the value of an applied command. Raises the error of a refused one."""
    if isinstance(outcome, Refused):
        raise from_code(outcome.code, outcome.message)
    return getattr(outcome, "value", None)


# -- first user ------------------------------------------------------------------------------------
#
# First user of a new cluster: created once, from the credentials that its brokers start with.


logger = logging.getLogger(__name__)


class PlainCredentials(NamedTuple):
    """A user and its password, as an operator configures them."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials(name={self.name!r}, password=(hidden))"


class FirstUser:
    """Proposes the first user until the cluster has had one; then it forgets the password."""

    def __init__(
        self,
        credentials: PlainCredentials | None,
        machine: ClusterMachine,
        topics: ClusterTopics,
        worker: Workers,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._credentials = credentials
        self._machine = machine
        self._topics = topics
        self._worker = worker
        self._entropy = entropy
        self._task: asyncio.Task[None] | None = None

    def poll(self) -> None:
        """Propose the user if it is missing. Called while this broker has the current state."""
        if self._machine.user_secret:
            self._credentials = None
        if self._credentials is not None and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._create(self._credentials))

    async def stop(self) -> None:
        """Cancel a proposal in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _create(self, credentials: PlainCredentials) -> None:
        from raftlog.security.sasl import make_credentials

        try:
            made = await self._worker.run(
                partial(make_credentials, credentials.password, self._entropy)
            )
            await self._topics.propose(
                PutUser(
                    name=credentials.name,
                    credentials=made,
                    expected="never",
                    secret=self._entropy(32),
                )
            )
        except UserExistsError:
            self._credentials = None  # of another broker
        except RaftlogError as error:
            logger.warning("first user not created yet: user=%s error=%s", credentials.name, error)
            await asyncio.sleep(1.0)
        else:
            logger.info("first user created: user=%s", credentials.name)


# -- internal topics -------------------------------------------------------------------------------
#
# Their replication factor follows the growth of the cluster.
#
# ``__consumer_offsets`` is created with the brokers that are up when the first group commits, and
# no operator creates it; ``__schemas`` and ``__transaction_state`` likewise. When more brokers
# join, or are back, the leader of the ``cluster`` group gives them the replicas that they would get
# now, unless a setting says how many they have.

# Seconds: not at once, because brokers join and restart one after the other.
CHECK_SECONDS: Final = 10.0
RAISED: Final = (OFFSETS_TOPIC, SCHEMAS_TOPIC, TRANSACTIONS_TOPIC)


def raised(topic: TopicRecord, brokers: Sequence[BrokerRecord], factor: int) -> Reassign | None:
    """Return the command that adds replicas to each partition, as ``change_replication_factor``
    places them. None while replicas move, and if the topic has as many.

    ``brokers``: those that can get replicas, at least ``factor``.
    """
    parts = topic.partitions
    # guard: the topic of groups gets the replicas that it lacked
    if topic.replication_factor >= factor or any(part.target is not None for part in parts):
        return None
    placed = [PlacedPartition(topic.name, n, part.replicas) for n, part in enumerate(parts)]
    moves = tuple(
        Move(each.partition, each.after, parts[each.partition].version)
        for each in change_replication_factor(placed, factor, brokers)
    )
    return Reassign(topic_id=topic.id, moves=moves, replication_factor=factor)


class InternalTopics:
    """Call ``poll`` often."""

    def __init__(
        self,
        *,
        machine: ClusterMachine,
        plane: ConsensusPlane,
        liveness: Liveness,
        founders: int,
        topics: Sequence[str],
        now: Callable[[], float],
    ) -> None:
        """``topics``: those whose replication factor no setting says."""
        self._topics = topics
        self._machine = machine
        self._plane = plane
        self._liveness = liveness
        self._founders = founders
        self._now = now
        self._deciding = False
        self._checked_at = now()

    def poll(self) -> None:
        now = self._now()
        if self._deciding or now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        if not self._plane.leads(CLUSTER_GROUP):
            return
        factor = usual_copies(self._machine.brokers.values(), founders=self._founders)
        there = [
            record for record in self._machine.placeable() if self._liveness.is_live(record.id)
        ]
        for name in self._topics if len(there) >= factor else ():
            topic = self._machine.topics.get(name)
            command = None if topic is None else raised(topic, there, factor)
            if topic is not None and command is not None:
                self._propose(topic, command, factor)
                return  # the next one at the next check

    def _propose(self, topic: TopicRecord, command: Reassign, factor: int) -> None:
        logger.info(
            "replicas are added: topic=%s replication_factor=%d before=%d",
            topic.name, factor, topic.replication_factor,
        )  # fmt: skip
        self._deciding = True
        self._plane.propose_bytes(CLUSTER_GROUP, command.encode(), self._done)

    def _done(self, outcome: Outcome) -> None:
        self._deciding = False
        if not isinstance(outcome, Applied) or isinstance(outcome.result, Refused):
            logger.debug("proposal failed: outcome=%s", outcome)
