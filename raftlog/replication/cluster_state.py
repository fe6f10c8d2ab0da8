"""Replicated state of the cluster: brokers, topics, assignments and settings.

The state machine of the ``cluster`` group. Every broker applies the same commands in the same order
and reaches the same state, so the code uses no clock, random numbers or set order. The group of
each partition decides its leader and ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, Final, TypeVar

import msgspec

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    BrokerIdInUseError,
    BrokerRemovedError,
    ClusterNotReadyError,
    DeclaredLostError,
    InvalidPartitionsError,
    RaftlogError,
    RefusedError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTokenError,
    UnknownTopicError,
    UnknownUserError,
    UnsupportedFeatureError,
    UserExistsError,
    WrongClusterError,
    counted,
)
from raftlog.replication.cluster_commands import (
    PEER_PROTOCOL_FIRST_LEADERS,
    PEER_PROTOCOL_LOST,
    PEER_PROTOCOL_TOKENS,
    AddPartitions,
    AlterGroup,
    AlterQuotas,
    AlterTopic,
    BrokerRecord,
    CancelDecommission,
    ClusterChange,
    ClusterCommand,
    ClusterRecords,
    CreateAcls,
    CreateToken,
    CreateTopic,
    DeclareLost,
    DecommissionBroker,
    DeleteAcls,
    DeleteTopic,
    DeleteUser,
    Done,
    FenceBroker,
    GroupSetting,
    InitialState,
    Move,
    PlacementRange,
    PutUser,
    RaisePeerProtocol,
    Reassign,
    Refused,
    RegisterBroker,
    RemoveBroker,
    ReserveBrokerId,
    SetKafkaAddress,
    SetMoveThrottle,
    SetReplicas,
    SetTokenExpiry,
    TopicRecord,
    UnfenceBroker,
    check_registration,
    decode_command,
    decode_records,
    encode_records,
    joined,
    lost_text,
    removed_text,
)
from raftlog.replication.partition_state import BrokerId, DirectoryId
from raftlog.replication.placement import Assignment, Loads, Target, place
from raftlog.security.acl import USER, Acl, Principal
from raftlog.security.credentials import DelegationToken, User, check_user_name, with_expiry
from raftlog.security.quota import Quota, QuotaEntity
from raftlog.types import check_topic_name

__all__ = [
    "Assignment",
    "BrokerRecord",
    "ClusterChange",
    "ClusterMachine",
    "Done",
    "InitialState",
    "Refused",
    "TopicRecord",
]


class ClusterMachine:
    """State machine of the cluster group.

    Invariant: ``version`` increases by 1 with each change, and only then. Records are replaced,
    never modified in place.

    All states of a cluster are ordered by their version: a recovery that may lose changes skips
    versions (``cluster_commands.recovered``). A broker without a vote receives the state by
    ``follow``. It may be ahead of the base of the generation in which it gets one. Until the
    group's log has reached the version that is known, queries return the known state, and commands
    are applied to the group's state only. The known version never decreases.
    """

    def __init__(self, on_change: Callable[[ClusterChange], None] | None = None) -> None:
        """``on_change``: called after each change, and after a restore with all differences."""
        self.on_change = on_change
        self.changes = ClusterChanges()
        self._group: ClusterMachine | None = None  # the group's state while it lags
        self._records = ClusterRecords()
        self._names: dict[str, str] = {}  # by topic id
        self._loads = Loads()
        self._partition_count = 0

    # -- queries -----------------------------------------------------------------------------------

    @property
    def cluster_id(self) -> str:
        """Cluster ID; empty before the cluster is created."""
        return self._records.cluster_id

    @property
    def version(self) -> int:
        return self._records.version

    @property
    def brokers(self) -> Mapping[BrokerId, BrokerRecord]:
        """All brokers that have registered and were not removed, by ID."""
        return self._records.brokers

    @property
    def removed(self) -> Mapping[DirectoryId, BrokerId]:
        """Data directories of decommissioned brokers, and their IDs at that time."""
        return self._records.removed

    @property
    def lost(self) -> Mapping[DirectoryId, BrokerId]:
        """Data directories that recoveries have declared lost, and the IDs of their brokers."""
        return self._records.lost

    @property
    def history(self) -> tuple[str, ...]:
        """IDs of the recoveries that the state has passed; see ``replication.histories``."""
        return self._records.history

    @property
    def next_broker_id(self) -> BrokerId:
        """An ID that no broker had; at least 1."""
        return max(self._records.next_broker_id, *(b + 1 for b in self.brokers), 1)

    @property
    def topics(self) -> Mapping[str, TopicRecord]:
        """All topics, by name."""
        return self._records.topics

    @property
    def move_throttle(self) -> int:
        """Bytes per second that moves copy to each broker; 0 for no limit."""
        return self._records.move_throttle

    @property
    def peer_protocol(self) -> int:
        """Version of the protocol between brokers that each broker must support; at least 1."""
        return self._records.peer_protocol

    @property
    def users(self) -> Mapping[str, User]:
        """All users, by name."""
        return self._records.users

    @property
    def user_secret(self) -> bytes:
        """Secret that hides which users exist; empty before the first user was created."""
        return self._records.user_secret

    @property
    def tokens(self) -> Mapping[str, DelegationToken]:
        """All delegation tokens, by ID. Expired ones are removed later."""
        return self._records.tokens

    @property
    def acls(self) -> Set[Acl]:
        """All access rules."""
        return self._records.acls

    @property
    def quotas(self) -> Mapping[QuotaEntity, Quota]:
        """All quotas; none is empty."""
        return self._records.quotas

    @property
    def groups(self) -> Mapping[str, Mapping[GroupSetting, int]]:
        """Settings of groups, by group; none is empty."""
        return self._records.groups

    def topic(self, name: str) -> TopicRecord | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: str) -> TopicRecord | None:
        name = self._names.get(topic_id)
        return None if name is None else self.topics[name]

    def assignment(self, topic_id: str, partition: int) -> Assignment | None:
        """Return None for a partition that does not exist, also one that a recovery has lost."""
        topic = self.topic_by_id(topic_id)
        if topic is None or partition >= len(topic.partitions):
            return None
        return topic.partitions[partition]

    def live(self) -> list[BrokerRecord]:
        """Return the brokers that are not fenced, sorted by ID."""
        return [record for _, record in sorted(self.brokers.items()) if not record.fenced]

    def broker_epochs(self) -> tuple[tuple[BrokerId, int], ...]:
        """Return the IDs of all registered brokers and their broker epochs, sorted by ID."""
        return tuple((broker, held.broker_epoch) for broker, held in sorted(self.brokers.items()))

    def staying(self) -> list[BrokerId]:
        """Return the brokers that are not being decommissioned, sorted, also fenced ones."""
        return [broker for broker, record in sorted(self.brokers.items()) if not record.draining]

    def placeable(self) -> list[BrokerRecord]:
        # guard: a broker that leaves gets no new replicas
        return [record for record in self.live() if not record.draining]

    def directory_of(self, broker: BrokerId) -> DirectoryId | None:
        """Return the last registered data directory of the broker; None for an unknown broker."""
        record = self.brokers.get(broker)
        return None if record is None else record.directory_id

    # -- the state machine -------------------------------------------------------------------------

    def apply(self, command: bytes) -> Done | Refused:
        """Apply an encoded command. Returns ``Refused`` with the reason for invalid commands."""
        if self._group is not None:
            return self._apply_behind(self._group, command)
        version = self.version
        try:
            decoded = decode_command(command)
            value, change = _HANDLERS[type(decoded)](self, decoded)
        except RaftlogError as error:
            assert self.version == version, "a refused command changes nothing"
            return Refused(error.code, str(error))
        if self.version != version:
            self.changes.add(self.version, command)
            if self.on_change is not None:
                self.on_change(change)
        return Done(value)

    def _apply_behind(self, group: ClusterMachine, command: bytes) -> Done | Refused:
        result = group.apply(command)
        if group.version >= self.version:
            self._group = None
            self._replace(group._records)
        return result

    def snapshot(self) -> bytes:
        """Return the encoded state of the group. Equal states have equal bytes."""
        return self.known() if self._group is None else self._group.snapshot()

    def known(self) -> bytes:
        """Return the encoded state that queries return."""
        return encode_records(self._records)

    def follow(self, snapshot: bytes, commands: Sequence[bytes]) -> None:
        """Process a state, or commands that follow the known one, from a broker with a vote.

        For a broker without a vote. ``snapshot``: empty for none; an older one is ignored. Raises
        the errors of ``restore``.
        """
        self._group = None  # only a broker with a vote has a group's state, after a ``restore``
        if snapshot:
            after = self._checked(snapshot)
            # guard: an older cluster state is ignored
            if after.version > self.version:
                self._replace(after)
        for command in commands:
            self.apply(command)

    def restore(self, snapshot: bytes) -> None:
        """Replace the state by a snapshot. Empty bytes are the state before the first command.

        Raises the errors of ``decode_records``, and ``WrongClusterError`` if the snapshot is of
        another cluster. The state is then unchanged. An older state than the known one is not
        visible until the group has reached that one.
        """
        after = self._checked(snapshot)
        self._group = None
        # guard: a known cluster state never goes back
        if after.version < self.version:
            self._group = ClusterMachine()
            self._group.restore(snapshot)
            return
        self._replace(after)

    def _checked(self, snapshot: bytes) -> ClusterRecords:
        before, after = self._records, decode_records(snapshot)
        # guard: a state of another cluster is not taken over
        if before.cluster_id not in {"", after.cluster_id}:
            raise WrongClusterError(
                f"snapshot of cluster {after.cluster_id or '(none)'}, but this broker belongs to "
                f"cluster {before.cluster_id}"
            )
        return after

    def _replace(self, after: ClusterRecords) -> None:
        before = self._records
        self._records = after
        # guard: a restored state has no changes since nothing
        self.changes = ClusterChanges(after.version)
        self._names = {topic.id: name for name, topic in after.topics.items()}
        self._loads = Loads()
        self._partition_count = 0
        for topic in after.topics.values():
            self._loads.add(topic.partitions)
            self._partition_count += len(topic.partitions)
        change = ClusterChange(
            topics=_differing(before.topics, after.topics),
            brokers=_differing(before.brokers, after.brokers)
            | {after.lost[directory] for directory in after.lost.keys() - before.lost.keys()},
            users=_differing(before.users, after.users),
            tokens=_differing(before.tokens, after.tokens),
            acls=frozenset(before.acls ^ after.acls),
            quotas=_differing(before.quotas, after.quotas),
            is_upgrade=after.peer_protocol > before.peer_protocol,
        )
        if self.on_change is not None:
            self.on_change(change)

    # -- brokers -----------------------------------------------------------------------------------

    def _register(self, command: RegisterBroker) -> tuple[int, ClusterChange]:
        held = self.brokers.get(command.id)
        # guard: a broker that leaves stays marked when it registers again
        # guard: a registration begins fenced
        wanted = BrokerRecord(
            id=command.id,
            host=command.host,
            port=command.port,
            rack=command.rack,
            directory_id=command.directory_id,
            boot=command.boot,
            broker_epoch=self.version + 1,
            fenced=True,
            draining=held is not None and held.draining,
            kafka_host="" if held is None else held.kafka_host,
            kafka_port=0 if held is None else held.kafka_port,
        )
        # guard: a removed directory never registers again
        if command.directory_id in self.removed:
            raise BrokerRemovedError(removed_text(command.id, command.directory_id))
        # guard: a lost directory never registers again
        if command.directory_id in self.lost:
            raise DeclaredLostError(lost_text(command.id, command.directory_id))
        if held is not None:
            same = msgspec.structs.replace(
                wanted, broker_epoch=held.broker_epoch, fenced=held.fenced
            )
            if same == held:
                return held.broker_epoch, ClusterChange()
            check_registration(held, wanted)
        elif len(self.brokers) >= limits.BROKERS_PER_CLUSTER_MAX:
            raise RefusedError(
                f"broker {command.id} cannot join: this cluster has {len(self.brokers)} brokers, "
                "which is the limit"
            )
        return wanted.broker_epoch, self._put_broker(wanted)

    def _registered(self, command: FenceBroker | UnfenceBroker | SetKafkaAddress) -> BrokerRecord:
        """Return the registration that the command names. Raises ``RefusedError``."""
        held = self.brokers.get(command.id)
        if held is None:
            raise RefusedError(f"broker {command.id} has never registered")
        # guard: fencing is for one registration
        if held.broker_epoch != command.broker_epoch:
            raise RefusedError(
                f"broker {command.id} has broker epoch {held.broker_epoch}, not "
                f"{command.broker_epoch}: it has registered again"
            )
        return held

    def _set_kafka_address(self, command: SetKafkaAddress) -> tuple[None, ClusterChange]:
        held = self._registered(command)
        wanted = msgspec.structs.replace(held, kafka_host=command.host, kafka_port=command.port)
        return None, ClusterChange() if wanted == held else self._put_broker(wanted)

    def _fence(self, command: FenceBroker | UnfenceBroker) -> tuple[None, ClusterChange]:
        held = self._registered(command)
        fenced = isinstance(command, FenceBroker)
        if held.fenced == fenced:
            return None, ClusterChange()
        return None, self._put_broker(msgspec.structs.replace(held, fenced=fenced))

    def _put_broker(self, record: BrokerRecord) -> ClusterChange:
        self._records.next_broker_id = max(self._records.next_broker_id, record.id + 1)
        self._records.brokers[record.id] = record
        self._records.version += 1
        return ClusterChange(brokers=frozenset((record.id,)))

    # -- brokers that join and leave ---------------------------------------------------------------

    def _reserve_id(self, command: ReserveBrokerId) -> tuple[None, ClusterChange]:
        if command.id != self.next_broker_id:
            raise BrokerIdInUseError(
                f"broker ID {command.id} was assigned already; the next one is "
                f"{self.next_broker_id}"
            )
        self._records.next_broker_id = command.id + 1
        self._records.version += 1
        return None, ClusterChange()

    def _decommission(self, command: DecommissionBroker) -> tuple[None, ClusterChange]:
        if command.id not in self.brokers and command.id in self.removed.values():
            return None, ClusterChange()  # the command was repeated
        held = self._broker(command.id)
        if held.draining:
            return None, ClusterChange()
        others = [broker for broker in self.staying() if broker != command.id]
        if not others:
            raise RefusedError(
                f"broker {command.id} is the only broker of the cluster: its data would be lost. "
                "Stop it to stop the cluster"
            )
        for name, topic in sorted(self.topics.items()):
            # guard: topics need as many brokers as replicas
            if topic.replication_factor > len(others):
                raise RefusedError(
                    f"broker {command.id} cannot be removed: topic {name!r} has "
                    f"{topic.replication_factor} replicas, and {len(others)} brokers would remain. "
                    "Add a broker, or change the topic with `raftlog topic alter "
                    f"{name} --replication-factor {len(others)}`"
                )
        return None, self._put_broker(msgspec.structs.replace(held, draining=True))

    def _cancel_decommission(self, command: CancelDecommission) -> tuple[None, ClusterChange]:
        held = self._broker(command.id)
        if not held.draining:
            return None, ClusterChange()
        change = self._put_broker(msgspec.structs.replace(held, draining=False))
        staying = set(self.staying())
        restored = {
            name: replace(topic, partitions=partitions)
            for name, topic in self.topics.items()
            if (partitions := _restored(topic, command.id, staying)) != topic.partitions
        }
        self._records.topics.update(restored)
        return None, replace(change, topics=frozenset(restored))

    def _remove(self, command: RemoveBroker) -> tuple[None, ClusterChange]:
        held = self._broker(command.id)
        # guard: a removal is rejected after its decommission was cancelled
        # guard: a removal is for one registration
        if not held.draining or held.broker_epoch != command.broker_epoch:
            raise RefusedError(
                f"broker {command.id} has registered again, or is not being decommissioned"
            )
        # guard: a broker with a part in a partition is not removed
        if uses := self.uses_of(command.id):
            raise RefusedError(
                f"broker {command.id} is a current or future voter of {counted(uses, 'partition')}"
            )
        records = self._records
        del records.brokers[command.id]
        removed = [*records.removed.items(), (held.directory_id, held.id)]
        records.removed = dict(removed[-limits.REMOVED_BROKERS_MAX :])
        records.version += 1
        return None, ClusterChange(brokers=frozenset((command.id,)))

    def _declare_lost(self, command: DeclareLost) -> tuple[None, ClusterChange]:
        records = self._records
        if all(directory in self.lost for directory, _ in command.directories):
            return None, ClusterChange()
        is_upgrade = self.peer_protocol < PEER_PROTOCOL_LOST
        records.declare_lost(command.directories)
        records.peer_protocol = max(records.peer_protocol, PEER_PROTOCOL_LOST)
        records.version += 1
        lost = frozenset(broker for _, broker in command.directories)
        return None, ClusterChange(brokers=lost, is_upgrade=is_upgrade)

    def uses_of(self, broker: BrokerId) -> int:
        """Return the number of partitions of which the broker is, or will be, a voter."""
        return sum(
            broker in held.voters or (held.target is not None and broker in held.target.replicas)
            for topic in self.topics.values()
            for held in topic.partitions
        )

    def _broker(self, broker: BrokerId) -> BrokerRecord:
        held = self.brokers.get(broker)
        if held is None:
            raise RefusedError(f"there is no broker {broker}, but {sorted(self.brokers)}")
        return held

    # -- topics ------------------------------------------------------------------------------------

    def _create(self, command: CreateTopic) -> tuple[TopicRecord, ClusterChange]:
        name = check_topic_name(command.name)
        held = self.topics.get(name)
        if held is not None and held.id == command.topic_id:
            return held, ClusterChange()
        if held is not None:
            raise TopicExistsError(f"topic {name!r} exists already")
        if command.topic_id in self._names:
            raise TopicExistsError(f"topic id {command.topic_id} is in use. Create another id")
        if not 1 <= command.partitions <= limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitionsError(
                f"{command.partitions} partitions: a topic has 1 to "
                f"{limits.PARTITIONS_PER_TOPIC_MAX}"
            )
        live = self.placeable()
        default = min(limits.REPLICATION_FACTOR_DEFAULT, len(live))
        replication_factor = command.replication_factor or default
        self._check_replication_factor(replication_factor, live)
        topic = TopicRecord(
            name=name,
            id=command.topic_id,
            replication_factor=replication_factor,
            partitions=(),
            overrides=command.overrides,
            config=_config(command.overrides, replication_factor),
            eras=(),
        )
        topic = self._with_partitions(topic, command.partitions, live)
        return topic, self._put_topic(None, topic)

    def _delete(self, command: DeleteTopic) -> tuple[TopicRecord, ClusterChange]:
        topic = self._existing(command.name)
        # guard: a deletion is of one topic id
        if command.topic_id not in (None, topic.id):
            raise UnknownTopicError(
                f"topic {command.name!r} has the id {topic.id}, not {command.topic_id}"
            )
        return topic, self._put_topic(topic, None)

    def _alter(self, command: AlterTopic) -> tuple[TopicRecord, ClusterChange]:
        topic = self._existing(command.name)
        # A reset of an unknown key is rejected, like a change of it.
        defaults = TopicConfig().to_text()
        TopicConfig.from_text(
            {k: defaults.get(k, "") if v is None else v for k, v in command.changes.items()}
        )
        merged = {**topic.overrides, **command.changes}
        overrides = {key: value for key, value in merged.items() if value is not None}
        if overrides == topic.overrides:
            return topic, ClusterChange()
        config = _config(overrides, topic.replication_factor)
        altered = replace(topic, overrides=overrides, config=config)
        return altered, self._put_topic(topic, altered)

    def _add_partitions(self, command: AddPartitions) -> tuple[TopicRecord, ClusterChange]:
        topic = self._existing(command.name)
        if command.total > limits.PARTITIONS_PER_TOPIC_MAX:
            raise InvalidPartitionsError(
                f"{command.total} partitions: a topic has 1 to {limits.PARTITIONS_PER_TOPIC_MAX}"
            )
        count = len(topic.partitions)
        if command.total <= count:
            raise InvalidPartitionsError(
                f"topic {command.name!r} has {counted(count, 'partition')} and cannot have "
                f"{command.total}: "
                "partitions cannot be removed. Specify a new total that is larger"
            )
        live = self.placeable()
        self._check_replication_factor(topic.replication_factor, live)
        extended = self._with_partitions(topic, command.total - count, live)
        return extended, self._put_topic(topic, extended)

    def _set_replicas(self, command: SetReplicas) -> tuple[TopicRecord, ClusterChange]:
        topic = self._with_id(command.topic_id)
        held = _assignment(topic, command.partition)
        self._check_members(command.replicas, command.witnesses)
        is_same = (command.replicas, command.witnesses) == (held.replicas, held.witnesses)
        is_reached = held.target is not None and held.target.replicas == command.replicas
        ends_move = is_same and is_reached and command.version == held.version
        # guard: replicas are recorded by version
        if command.version <= held.version and not ends_move:
            if is_same:
                return topic, ClusterChange()
            raise RefusedError(
                f"{topic.name}:{command.partition} has replicas of version {held.version}: "
                f"version {command.version} is not newer"
            )
        assignment = Assignment(
            replicas=command.replicas,
            witnesses=command.witnesses,
            version=command.version,
            first=held.first or (held.replicas, held.witnesses),
            target=None if is_reached else held.target,
        )
        partitions = list(topic.partitions)
        partitions[command.partition] = assignment
        self._loads.add((held,), times=-1)
        self._loads.add((assignment,))
        changed = replace(topic, partitions=tuple(partitions))
        return changed, self._put_topic(topic, changed)

    def _reassign(self, command: Reassign) -> tuple[TopicRecord, ClusterChange]:
        topic = self._with_id(command.topic_id)
        factor = command.replication_factor or topic.replication_factor
        partitions = list(topic.partitions)
        if factor != topic.replication_factor:
            missing = set(range(len(partitions))) - {move.partition for move in command.moves}
            if missing:
                raise InvalidPartitionsError(
                    f"replication factor {factor} of topic {topic.name!r} requires a move of each "
                    f"partition, and partition {min(missing)} has none"
                )
        topic.config.check_replication(factor)
        if len({move.partition for move in command.moves}) < len(command.moves):
            raise InvalidPartitionsError("a partition is listed twice")
        for move in command.moves:
            target = self._target(topic, move, factor)
            partitions[move.partition] = msgspec.structs.replace(
                partitions[move.partition], target=target
            )
        changed = replace(topic, replication_factor=factor, partitions=tuple(partitions))
        if changed == topic:
            return topic, ClusterChange()
        return changed, self._put_topic(topic, changed)

    def _target(self, topic: TopicRecord, move: Move, factor: int) -> Target | None:
        held, name = _assignment(topic, move.partition), f"{topic.name}:{move.partition}"
        if len(move.replicas) != factor:
            raise InvalidPartitionsError(
                f"{name}: {counted(len(move.replicas), 'replica was', 'replicas were')} requested, "
                f"and topic {topic.name!r} "
                f"has replication factor {factor}. Change it with `raftlog topic alter "
                f"{topic.name} --replication-factor {len(move.replicas)}`"
            )
        self._check_members(move.replicas)
        for broker in move.replicas:
            # guard: no move goes to a broker that leaves
            if self.brokers[broker].draining:
                raise InvalidPartitionsError(
                    f"{name}: broker {broker} is being decommissioned, and gets no replicas"
                )
        current = () if held.target is None else held.target.replicas
        # guard: a move is made for one assignment
        if (move.version, move.expected) != (held.version, current):
            moving = f", and moves to {list(current)}" if current else ""
            raise RefusedError(
                f"{name} has replicas {list(held.replicas)} of version {held.version}{moving}: the "
                f"request was made for version {move.version}. Create the plan again"
            )
        if held.target is None:
            is_there = move.replicas == held.replicas
            return None if is_there else Target(move.replicas, held.replicas)
        return Target(move.replicas, held.target.origin)

    def _set_move_throttle(self, command: SetMoveThrottle) -> tuple[None, ClusterChange]:
        rate = command.bytes_per_s
        if 0 < rate < limits.MOVE_THROTTLE_BYTES_PER_S_MIN:
            raise RefusedError(
                f"a throttle of {rate} bytes per second would stop moves. Use at least "
                f"{limits.MOVE_THROTTLE_BYTES_PER_S_MIN}, or 0 for no limit"
            )
        if rate != self.move_throttle:
            self._records.move_throttle = rate
            self._records.version += 1
        return None, ClusterChange()

    def _raise_peer_protocol(self, command: RaisePeerProtocol) -> tuple[None, ClusterChange]:
        if command.version <= self.peer_protocol:
            return None, ClusterChange()
        # guard: the protocol is raised for the brokers that were asked
        if command.broker_epochs != self.broker_epochs():
            raise RefusedError(
                f"brokers {[broker for broker, _ in command.broker_epochs]} support version "
                f"{command.version} of the protocol between brokers, but a broker has registered "
                "or left since. Try again"
            )
        self._records.peer_protocol = command.version
        self._records.version += 1
        return None, ClusterChange(is_upgrade=True)

    def _check_members(
        self, replicas: tuple[BrokerId, ...], witnesses: tuple[BrokerId, ...] = ()
    ) -> None:
        voters = (*replicas, *witnesses)
        if not replicas:
            raise InvalidPartitionsError("a partition must have at least one replica")
        if len(replicas) > limits.REPLICATION_FACTOR_MAX:
            raise InvalidPartitionsError(
                f"{len(replicas)} replicas: the maximum is {limits.REPLICATION_FACTOR_MAX}"
            )
        if any(one == other for one, other in pairwise(sorted(voters))):
            raise InvalidPartitionsError(f"a broker is listed twice in {voters}")
        unknown = sorted(voter for voter in voters if voter not in self.brokers)
        if unknown:
            raise InvalidPartitionsError(f"brokers {unknown} were never registered")

    def _with_id(self, topic_id: str) -> TopicRecord:
        topic = self.topic_by_id(topic_id)
        if topic is None:
            raise UnknownTopicError(f"there is no topic with the id {topic_id}")
        return topic

    def _existing(self, name: str) -> TopicRecord:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopicError(
                f"there is no topic {name!r}; create it with `raftlog topic create {name}`"
            )
        return topic

    def _check_replication_factor(self, wanted: int, live: list[BrokerRecord]) -> None:
        if wanted > limits.REPLICATION_FACTOR_MAX:
            raise InvalidPartitionsError(
                f"replication factor {wanted}: the maximum is {limits.REPLICATION_FACTOR_MAX}"
            )
        if not live:
            raise ClusterNotReadyError(
                "no broker can store replicas yet: all are fenced. Try again when `raftlog cluster "
                "brokers` shows them as up"
            )
        if not 1 <= wanted <= len(live):
            brokers = "1 broker" if len(self.brokers) == 1 else f"{len(self.brokers)} brokers"
            alive = "" if len(live) == len(self.brokers) else f", of which {len(live)} are live"
            refusal = (
                ClusterNotReadyError if wanted <= len(self.brokers) else InvalidPartitionsError
            )
            raise refusal(
                f"replication factor {wanted} cannot be met: this cluster has {brokers}{alive}"
            )

    def _with_partitions(
        self, topic: TopicRecord, count: int, live: list[BrokerRecord]
    ) -> TopicRecord:
        """Return the topic with ``count`` additional partitions, placed on live brokers."""
        total = self._partition_count + count
        if total > limits.PARTITIONS_PER_CLUSTER_MAX:
            raise InvalidPartitionsError(
                f"the cluster would have {total} partitions, over the limit of "
                f"{limits.PARTITIONS_PER_CLUSTER_MAX}"
            )
        placed = place(
            count,
            topic.replication_factor,
            live,
            load=self._loads,
            existing=topic.partitions,
            reserves=[broker for broker in self.staying() if self.brokers[broker].fenced],
        )
        voters = sorted({voter for assignment in placed for voter in assignment.voters})
        # guard: partitions have first leaders once all brokers support it
        names_leaders = self.peer_protocol >= PEER_PROTOCOL_FIRST_LEADERS
        era = PlacementRange(
            first_partition=len(topic.partitions),
            min_isr=topic.config.effective_min_isr(topic.replication_factor),
            directories={voter: self.brokers[voter].directory_id for voter in voters},
            boots={voter: self.brokers[voter].boot for voter in voters} if names_leaders else {},
        )
        return replace(topic, partitions=(*topic.partitions, *placed), eras=joined(topic.eras, era))

    def _put_topic(self, before: TopicRecord | None, after: TopicRecord | None) -> ClusterChange:
        """Add, replace or delete a topic, and update the loads."""
        old = () if before is None else before.partitions
        new = () if after is None else after.partitions
        self._loads.add(old[len(new) :], times=-1)
        self._loads.add(new[len(old) :])
        self._partition_count += len(new) - len(old)
        topic = after or before
        assert topic is not None
        if after is not None:
            self._records.topics[topic.name] = after
            self._names[topic.id] = topic.name
        else:
            del self._records.topics[topic.name], self._names[topic.id]
        self._records.version += 1
        return ClusterChange(topics=frozenset((topic.name,)))

    # -- users -------------------------------------------------------------------------------------

    def _put_user(self, command: PutUser) -> tuple[User, ClusterChange]:
        name = check_user_name(command.name)
        held = self.users.get(name)
        credentials = {**({} if held is None else held.credentials), **command.credentials}
        user = User(name, dict(sorted(credentials.items())))
        if held == user:
            return user, ClusterChange()  # the command was repeated
        # guard: the first user is created once
        if command.expected == "never" and self.user_secret:
            raise UserExistsError("this cluster has had users: its administrator creates others")
        if command.expected == "absent" and held is not None:
            raise UserExistsError(
                f"user {name!r} exists already. Set a new password with `raftlog user rotate`"
            )
        if command.expected == "present" and held is None:
            raise UnknownUserError(f"there is no user {name!r}")
        if held is None and len(self.users) >= limits.USERS_PER_CLUSTER_MAX:
            raise RefusedError(f"this cluster has {len(self.users)} users, which is the limit")
        self._records.user_secret = self._records.user_secret or command.secret
        return user, self._set_user(name, user)

    def _delete_user(self, command: DeleteUser) -> tuple[None, ClusterChange]:
        held = self.users.get(command.name)
        gone = set(command.mechanisms) & set(() if held is None else held.credentials)
        if held is None or not gone:
            raise UnknownUserError(
                f"there is no user {command.name!r} with a credential of "
                f"{', '.join(command.mechanisms)}"
            )
        kept = {each: found for each, found in held.credentials.items() if each not in gone}
        return None, self._set_user(command.name, User(command.name, kept) if kept else None)

    def _set_user(self, name: str, user: User | None) -> ClusterChange:
        """Store or delete a user. The delegation tokens of the user are removed."""
        if user is None:
            del self._records.users[name]
        else:
            self._records.users[name] = user
        owner = str(Principal(USER, name))
        revoked = [token.id for token in self.tokens.values() if token.owner == owner]
        # guard: a changed user loses its tokens
        for token_id in revoked:
            del self._records.tokens[token_id]
        self._records.version += 1
        return ClusterChange(users=frozenset((name,)), tokens=frozenset(revoked))

    # -- delegation tokens -------------------------------------------------------------------------

    def check_new_token(self, owner: str, at_ms: int) -> dict[str, DelegationToken]:
        """Return the tokens that remain if ``owner`` creates another one at this time.

        Raises ``UnsupportedFeatureError`` if a broker may not support tokens, and ``RefusedError``
        if there are too many.
        """
        # guard: tokens require brokers that support them
        if self.peer_protocol < PEER_PROTOCOL_TOKENS:
            raise UnsupportedFeatureError(
                "delegation tokens require that all brokers support them. Upgrade them, then run "
                "`raftlog cluster features --upgrade`"
            )
        since_ms = at_ms - limits.DELEGATION_TOKEN_KEPT_MS
        kept = {key: held for key, held in self.tokens.items() if held.expires_ms > since_ms}
        if len(kept) >= limits.DELEGATION_TOKENS_PER_CLUSTER_MAX:
            raise RefusedError(
                f"this cluster has {len(kept)} delegation tokens, which is the limit"
            )
        owned = sum(held.owner == owner for held in kept.values())
        # guard: a user has a limited number of tokens
        if owned >= limits.DELEGATION_TOKENS_PER_OWNER_MAX:
            raise RefusedError(
                f"{owner} has {owned} delegation tokens, which is the limit. Remove some with "
                "`raftlog token expire`"
            )
        return kept

    def _create_token(self, command: CreateToken) -> tuple[None, ClusterChange]:
        token = command.token
        if self.tokens.get(token.id) == token:
            return None, ClusterChange()  # the command was repeated
        kept = self.check_new_token(token.owner, token.issued_ms)
        expired = self.tokens.keys() - kept.keys()
        self._records.tokens = {**kept, token.id: token}
        self._records.version += 1
        return None, ClusterChange(tokens=frozenset((*expired, token.id)))

    def _set_token_expiry(self, command: SetTokenExpiry) -> tuple[int, ClusterChange]:
        held = self.tokens.get(command.id)
        if held is None and command.expires_ms <= command.at_ms:
            return command.expires_ms, ClusterChange()  # the command was repeated
        if held is None:
            raise UnknownTokenError(f"there is no delegation token {command.id}")
        changed = with_expiry(held, command.expires_ms, command.at_ms)
        if changed == held:
            return held.expires_ms, ClusterChange()
        if changed is None:
            del self._records.tokens[held.id]
        else:
            self._records.tokens[held.id] = changed
        self._records.version += 1
        expires_ms = command.expires_ms if changed is None else changed.expires_ms
        return expires_ms, ClusterChange(tokens=frozenset((held.id,)))

    # -- access rules and quotas -------------------------------------------------------------------

    def _create_acls(self, command: CreateAcls) -> tuple[None, ClusterChange]:
        held = self._records.acls
        new = frozenset(acl.checked() for acl in command.acls) - held
        if len(held) + len(new) > limits.ACLS_PER_CLUSTER_MAX:
            raise RefusedError(
                f"{len(new)} more access rules: this cluster has {len(held)}, and the limit is "
                f"{limits.ACLS_PER_CLUSTER_MAX}. Use prefixed rules, or delete some"
            )
        held |= new
        return None, self._security_changed(ClusterChange(acls=new))

    def _delete_acls(self, command: DeleteAcls) -> tuple[tuple[Acl, ...], ClusterChange]:
        held = self._records.acls
        gone = tuple(acl for acl in dict.fromkeys(command.acls) if acl in held)
        held.difference_update(gone)
        return gone, self._security_changed(ClusterChange(acls=frozenset(gone)))

    def _alter_quotas(self, command: AlterQuotas) -> tuple[None, ClusterChange]:
        held = self._records.quotas
        after: dict[QuotaEntity, Quota] = {}
        for change in command.changes:
            entity = change.entity.checked()
            for key in change.changes:
                entity.check_key(key)
            merged = {**after.get(entity, held.get(entity, {})), **change.changes}
            after[entity] = {key: value for key, value in merged.items() if value is not None}
        changed = frozenset(each for each in after if after[each] != held.get(each, {}))
        added = sum(bool(quota) for entity, quota in after.items() if entity not in held)
        if len(held) + added > limits.QUOTAS_PER_CLUSTER_MAX:
            raise RefusedError(
                f"{added} more quotas: this cluster has {len(held)}, and the limit is "
                f"{limits.QUOTAS_PER_CLUSTER_MAX}. Use defaults, or delete some"
            )
        for entity in changed:
            if after[entity]:
                held[entity] = after[entity]
            else:
                held.pop(entity, None)
        return None, self._security_changed(ClusterChange(quotas=changed))

    # -- groups ------------------------------------------------------------------------------------

    def _alter_group(self, command: AlterGroup) -> tuple[None, ClusterChange]:
        held = self._records.groups
        before = held.get(command.group, {})
        merged = {**before, **command.changes}
        after = {name: value for name, value in sorted(merged.items()) if value is not None}
        if after == before:
            return None, ClusterChange()
        if not before and len(held) >= limits.GROUPS_WITH_SETTINGS_MAX:
            raise RefusedError(
                f"this cluster has settings of {len(held)} groups, which is the limit. Delete some"
            )
        held.pop(command.group, None)
        if after:
            held[command.group] = after
        self._records.version += 1
        return None, ClusterChange()

    def _security_changed(self, change: ClusterChange) -> ClusterChange:
        if change.acls or change.quotas:
            self._records.version += 1
        return change


class ClusterChanges:
    """The last commands that changed the state, for brokers without a vote."""

    def __init__(self, version: int = 0) -> None:
        self._commands: deque[bytes] = deque()  # the last one led to ``_version``
        self._version = version
        self._bytes = 0

    def add(self, version: int, command: bytes) -> None:
        self._commands.append(command)
        self._version = version
        self._bytes += len(command)
        while (
            len(self._commands) > limits.CLUSTER_CHANGES_KEPT_MAX
            or self._bytes > limits.CLUSTER_CHANGES_KEPT_BYTES_MAX
        ):
            self._bytes -= len(self._commands.popleft())

    def since(self, version: int) -> list[bytes] | None:
        """Return the commands after ``version``; None if some of them are not kept."""
        missing = self._version - version
        if not 0 <= missing <= len(self._commands):
            return None
        return list(islice(self._commands, len(self._commands) - missing, None))


def _restored(
    topic: TopicRecord, broker: BrokerId, staying: Set[BrokerId]
) -> tuple[Assignment, ...]:
    """Return the partitions of a topic; moves away from ``broker`` restore the former replicas.

    A move continues if it changes the replication factor, or if a former replica has been removed
    or is being decommissioned itself.
    """
    # guard: a cancelled decommission restores only replicas that can stay
    return tuple(
        msgspec.structs.replace(held, target=Target(held.target.origin, held.target.origin))
        if held.target is not None
        and broker in held.target.origin
        and broker not in held.target.replicas
        and len(held.target.origin) == topic.replication_factor
        and staying >= set(held.target.origin)
        else held
        for held in topic.partitions
    )


def _assignment(topic: TopicRecord, partition: int) -> Assignment:
    if partition >= len(topic.partitions):
        raise UnknownPartitionError(
            f"topic {topic.name!r} has {counted(len(topic.partitions), 'partition')}: there is no "
            f"{partition}"
        )
    return topic.partitions[partition]


def _config(overrides: Mapping[str, str], replication_factor: int) -> TopicConfig:
    config = TopicConfig.from_text(overrides)
    config.check_replication(replication_factor)
    return config


Key = TypeVar("Key", bound=Hashable)


def _differing(before: Mapping[Key, object], after: Mapping[Key, object]) -> frozenset[Key]:
    keys = {*before, *after}
    return frozenset(key for key in keys if before.get(key) != after.get(key))


_HANDLERS: Final[
    dict[type[ClusterCommand], Callable[[ClusterMachine, Any], tuple[object, ClusterChange]]]
] = {
    RegisterBroker: ClusterMachine._register,
    FenceBroker: ClusterMachine._fence,
    UnfenceBroker: ClusterMachine._fence,
    SetKafkaAddress: ClusterMachine._set_kafka_address,
    CreateTopic: ClusterMachine._create,
    DeleteTopic: ClusterMachine._delete,
    AlterTopic: ClusterMachine._alter,
    AddPartitions: ClusterMachine._add_partitions,
    SetReplicas: ClusterMachine._set_replicas,
    Reassign: ClusterMachine._reassign,
    SetMoveThrottle: ClusterMachine._set_move_throttle,
    RaisePeerProtocol: ClusterMachine._raise_peer_protocol,
    PutUser: ClusterMachine._put_user,
    DeleteUser: ClusterMachine._delete_user,
    CreateToken: ClusterMachine._create_token,
    SetTokenExpiry: ClusterMachine._set_token_expiry,
    CreateAcls: ClusterMachine._create_acls,
    DeleteAcls: ClusterMachine._delete_acls,
    AlterQuotas: ClusterMachine._alter_quotas,
    AlterGroup: ClusterMachine._alter_group,
    ReserveBrokerId: ClusterMachine._reserve_id,
    DecommissionBroker: ClusterMachine._decommission,
    CancelDecommission: ClusterMachine._cancel_decommission,
    RemoveBroker: ClusterMachine._remove,
    DeclareLost: ClusterMachine._declare_lost,
}


# -- cluster voters --------------------------------------------------------------------------------
#
# Voters of the cluster group: the next change, one broker at a time.
#
# The leader of the cluster group ends the generation with a seal that names the voters of the next
# one. Consecutive sets differ by one broker, as in the single-server changes of Ongaro's Raft
# thesis (section 4.1), so a majority of the former voters contains one that stays and has the seal.
# Several voters change at the same time only if their data directories changed.


# (brokers from this number on, voters of the cluster group): few, because every change of the
# cluster state waits for a majority of them.
_VOTERS_BY_BROKERS: Final = ((5, 5), (3, 3), (0, 1))


def voters_wanted(brokers: int) -> int:
    """Return the number of voters up to which brokers that join become voters."""
    return next(voters for least, voters in _VOTERS_BY_BROKERS if brokers >= least)


def next_voters(
    voters: Mapping[BrokerId, DirectoryId],
    *,
    brokers: Mapping[BrokerId, BrokerRecord],
    removed: Collection[BrokerId],
    configured: Collection[BrokerId],
    linked: Callable[[BrokerId], DirectoryId | None],
) -> dict[BrokerId, DirectoryId] | None:
    """Return the voters of the next generation; None if the current ones remain.

    ``removed``: IDs of decommissioned brokers. ``configured``: voters of the first generation, by
    configuration. ``linked``: data directory of a connected broker, else None.

    - A voter that is connected with another data directory votes with it, and so does a configured
      voter that had no vote yet.
    - A broker that is being decommissioned is replaced, or removed if no other broker is available.
    - Up to ``voters_wanted``, another broker is added.

    A broker gets a vote only while it is registered, not fenced, and connected. A majority of the
    next voters is connected.
    """
    draining = {broker for broker, record in brokers.items() if record.draining}
    wanted = {*voters, *configured} - draining
    wanted -= {broker for broker in removed if broker not in brokers and broker not in voters}
    returned = {
        broker: directory
        for broker in sorted(wanted)
        if (directory := linked(broker)) is not None and directory != voters.get(broker)
    }
    if returned:
        return dict(sorted({**voters, **returned}.items()))
    # guard: a broker that is fenced or leaves gets no vote
    ready = [
        record.id
        for _, record in sorted(brokers.items())
        if not (record.fenced or record.draining)
        and record.id not in voters
        and linked(record.id) == record.directory_id
    ]
    recruit = {broker: brokers[broker].directory_id for broker in ready[:1]}
    # One that was removed without its consent, while it was down, is a voter without a record.
    leaving = [b for b in sorted(voters) if b in draining or (b in removed and b not in brokers)]
    if leaving:
        left = min(leaving, key=lambda broker: (linked(broker) == voters[broker], broker))
        others = {broker: at for broker, at in voters.items() if broker != left}
        staying = len(brokers) - len(draining)
        is_replaced = len(others) < voters_wanted(staying)
        choices = [{**others, **recruit}] if is_replaced else [others]
        choices.append(others)
    elif len(voters) < voters_wanted(sum(not record.draining for record in brokers.values())):
        choices = [{**voters, **recruit}] if recruit else []
    else:
        choices = []
    for choice in choices:
        there = [broker for broker, directory in choice.items() if linked(broker) == directory]
        # guard: a majority of the next voters is connected
        if choice and 2 * len(there) > len(choice):
            return dict(sorted(choice.items()))
    return None
