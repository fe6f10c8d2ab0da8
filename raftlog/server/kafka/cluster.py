"""Operators' requests about the cluster: elections, moves of replicas, the quorum, features; and
the subscriptions of clients' metrics.

What they do is that of the native operations (``raftlog.server.operations``), with their rules.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Final

from raftlog import limits
from raftlog.errors import (
    InvalidPartitionsError,
    InvalidRequestError,
    RaftlogError,
    ThrottledError,
    UnknownPartitionError,
    UnsupportedFeatureError,
)
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.server.apis import cluster
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply, check_count
from raftlog.server.scheduling import ITEMS_PER_STEP
from raftlog.server.topic_table import HostedTopic

_Elections = codec.structs("response", api.ELECT_LEADERS.key)
_Reassigned = codec.structs("response", api.ALTER_PARTITION_REASSIGNMENTS.key)
_Quorum = codec.structs("response", api.DESCRIBE_QUORUM.key)
_Features = codec.structs("response", api.UPDATE_FEATURES.key)
_Subscriptions = codec.structs("response", api.GET_TELEMETRY_SUBSCRIPTIONS.key)
_Pushed = codec.structs("response", api.PUSH_TELEMETRY.key)

PREFERRED: Final = 0  # election types; UNCLEAN is the other one
RETRY_S: Final = 0.1  # until the rate of transfers permits the next one
QUORUM_TOPIC: Final = "__cluster_metadata"  # Kafka's name of the log of the cluster's state
METRICS_INTERVAL_MS: Final = 300_000  # after which a client asks again for subscriptions


async def _pause(done: int) -> None:
    """Let other work run after some of many partitions. ``done``: those before."""
    if done % ITEMS_PER_STEP == ITEMS_PER_STEP - 1:
        await asyncio.sleep(0)


# -- ElectLeaders ----------------------------------------------------------------------------------


def handle_elections(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Make the preferred replicas the leaders, of the requested partitions or of all.

    Of all, the response has only those that another replica led. There are no unclean elections: a
    partition that has lost its in-sync replicas is recovered by an operator.
    """
    context.check_operator(reply.connection, reply.name)
    message = request.message
    asked = message.topic_partitions
    if asked is None:
        wanted = [(topic.name, list(range(len(topic.hosts)))) for topic in context.topics]
    else:
        wanted = [(each.topic, list(dict.fromkeys(each.partitions))) for each in asked]
        check_count(reply.name, sum(len(numbers) for _, numbers in wanted))
    is_preferred = message.election_type == PREFERRED
    deadline = context.loop.time() + max(message.timeout_ms, 0) / 1_000

    async def elect_all() -> Message:
        results: list[Message] = []
        done = count()
        for name, numbers in wanted:
            found: list[Message] = []
            for number in numbers:
                await _pause(next(done))
                code, text = await _elect(context, name, number, deadline, preferred=is_preferred)
                if asked is None and code == errors.ELECTION_NOT_NEEDED:
                    continue
                found.append(
                    _Elections.PartitionResult(
                        partition_id=number, error_code=code, error_message=text
                    )
                )
            if found:
                result = _Elections.ReplicaElectionResult(topic=name, partition_result=found)
                results.append(result)
        return _Elections.root(replica_election_results=results)

    # Not in the queue of changes, which would wait for the rate of transfers.
    context.administration.submit_at_once(elect_all, reply)


async def _elect(
    context: BrokerContext, name: str, number: int, deadline: float, *, preferred: bool
) -> tuple[int, str | None]:
    """Return the error of one election, and its text."""
    try:
        topic = _topic_with(context, name, number)
        info = context.topics.info(topic, number)
        if not preferred:
            if info.leader is not None:
                return errors.ELECTION_NOT_NEEDED, "it has a leader"
            return errors.ELIGIBLE_LEADERS_NOT_AVAILABLE, (
                "there are no unclean elections. Start a broker of the partition's replicas, or "
                "see `raftlog cluster recover --help`"
            )
        if not info.replicas or info.leader == info.replicas[0]:
            return errors.ELECTION_NOT_NEEDED, "the preferred replica leads"
        while True:
            try:
                await cluster.transfer_leader(context, name, number, info.replicas[0])
            except ThrottledError:
                if context.loop.time() + RETRY_S >= deadline:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                return errors.NONE, None
    except InvalidRequestError as error:
        return errors.PREFERRED_LEADER_NOT_AVAILABLE, error.wire_text
    except RaftlogError as error:
        return code_of(error, Place.ADMIN), error.wire_text


def _topic_with(context: BrokerContext, name: str, number: int) -> HostedTopic:
    """Return a topic. Raises ``UnknownTopicError``, and ``UnknownPartitionError`` if it lacks the
    partition.
    """
    topic = context.topics.topic(name)
    if not 0 <= number < len(topic.hosts):
        raise UnknownPartitionError(f"topic {name} has no partition {number}")
    return topic


# -- AlterPartitionReassignments -------------------------------------------------------------------


def handle_reassignments(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Move replicas, or cancel moves, and respond when the target is stored (KIP-455)."""
    context.check_operator(reply.connection, reply.name)
    message = request.message
    check_count(reply.name, sum(len(topic.partitions) for topic in message.topics))
    may_change_factor = message.allow_replication_factor_change

    async def reassign_all() -> Message:
        done = count()
        return _Reassigned.root(
            error_message=None,
            allow_replication_factor_change=may_change_factor,
            responses=[
                _Reassigned.ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        _Reassigned.ReassignablePartitionResponse(
                            partition_index=number, error_code=code, error_message=text
                        )
                        for number, (code, text) in (
                            await _reassign(
                                context, topic, done, may_change_factor=may_change_factor
                            )
                        ).items()
                    ],
                )
                for topic in message.topics
            ],
        )

    context.administration.submit(reassign_all, reply)
    reply.expire_after(message.timeout_ms)


async def _reassign(
    context: BrokerContext, wanted: Message, done: Iterator[int], *, may_change_factor: bool
) -> dict[int, tuple[int, str | None]]:
    """Return the error and its text for each partition. What is right of a topic is stored in one
    step, so that a new replication factor, which all its partitions have, is possible. ``done``:
    counts the partitions of all topics.
    """
    found: dict[int, tuple[int, str | None]] = {}
    moves: dict[int, list[int]] = {}
    factors: set[int] = set()
    counts = Counter(each.partition_index for each in wanted.partitions)
    for each in wanted.partitions:
        await _pause(next(done))
        number = each.partition_index
        try:
            if counts[number] > 1:
                raise InvalidRequestError(f"partition {number} is in the request several times")
            topic = _topic_with(context, wanted.name, number)
            target = _target(context, topic, number, each.replicas)
            held = len(_settled(context, topic, number))
            if len(target) != held and not may_change_factor:
                raise _FactorError(f"{len(target)} replicas, and the partition has {held}")
        except RaftlogError as error:
            found[number] = _error(error)
            continue
        found[number] = errors.NONE, None
        if len(target) != held:
            factors.add(len(target))
        if target != list(context.topics.info(topic, number).replicas) or (
            context.operations.target(topic.id, number)
        ):
            moves[number] = target
    if moves:
        try:
            await cluster.reassign(context, wanted.name, moves, max(factors, default=0))
        except RaftlogError as error:
            found |= dict.fromkeys(moves, _error(error))
    return found


class _FactorError(InvalidPartitionsError):
    """Another number of replicas, which the client does not want."""


class _NoMoveError(InvalidRequestError):
    """A move that would be cancelled, and is not in progress."""


def _error(error: RaftlogError) -> tuple[int, str | None]:
    if isinstance(error, _FactorError):
        return errors.INVALID_REPLICATION_FACTOR, error.wire_text
    if isinstance(error, _NoMoveError):
        return errors.NO_REASSIGNMENT_IN_PROGRESS, error.wire_text
    if isinstance(error, UnsupportedFeatureError | InvalidPartitionsError):
        return errors.INVALID_REPLICA_ASSIGNMENT, error.wire_text
    return code_of(error, Place.ADMIN), error.wire_text


def _settled(context: BrokerContext, topic: HostedTopic, number: int) -> list[int]:
    """Return the replicas that a partition has without the move in progress."""
    origin = context.operations.origin(topic.id, number)
    return origin or list(context.topics.info(topic, number).replicas)


def _target(
    context: BrokerContext, topic: HostedTopic, number: int, replicas: list[int] | None
) -> list[int]:
    """Return the replicas that a partition will have; None cancels its move."""
    if replicas is None:
        if not context.operations.target(topic.id, number):
            raise _NoMoveError(f"{topic.name}:{number} does not move")
        return _settled(context, topic, number)
    known = {each.id for each in context.brokers("")}
    if not replicas or len(set(replicas)) != len(replicas) or not known.issuperset(replicas):
        raise InvalidPartitionsError(
            f"replicas {replicas[: limits.BROKERS_PER_CLUSTER_MAX]} of {topic.name}:{number}: name "
            f"different brokers of {sorted(known)}"
        )
    return list(replicas)


# -- DescribeQuorum --------------------------------------------------------------------------------


def handle_quorum(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Return the voters of the cluster's state, with the last entry of each one's journal.

    An offset is -1 for a voter that does not respond. As in Kafka, the state has the name of a
    topic; it is not one.
    """
    check_count(reply.name, sum(len(topic.partitions) for topic in request.message.topics))
    if not request.message.topics:
        raise InvalidRequestError(f"name the topic {QUORUM_TOPIC}, partition 0")

    async def describe() -> Message:
        quorum = await context.operations.quorum()
        voters = [
            _Quorum.ReplicaState(
                replica_id=broker, replica_directory_id=directory_id, log_end_offset=index
            )
            for broker, directory_id, index in quorum.voters
        ]
        observers = [
            _Quorum.ReplicaState(replica_id=broker, log_end_offset=-1)
            for broker in quorum.observers
        ]

        def part(name: str, number: int) -> Message:
            if (name, number) != (QUORUM_TOPIC, 0):
                return _Quorum.PartitionData(
                    partition_index=number,
                    error_code=errors.UNKNOWN_TOPIC_OR_PARTITION,
                    error_message=f"only {QUORUM_TOPIC}, partition 0, has a quorum",
                )
            return _Quorum.PartitionData(
                partition_index=0,
                error_message=None,
                leader_id=-1 if quorum.leader is None else quorum.leader,
                leader_epoch=quorum.term,
                high_watermark=quorum.commit_index,
                current_voters=voters,
                observers=observers,
            )

        return _Quorum.root(
            error_message=None,
            topics=[
                _Quorum.TopicData(
                    topic_name=topic.topic_name,
                    partitions=[
                        part(topic.topic_name, each.partition_index) for each in topic.partitions
                    ],
                )
                for topic in request.message.topics
            ],
            nodes=list(_nodes(context, reply)),
        )

    context.administration.submit_at_once(describe, reply)


def _nodes(context: BrokerContext, reply: KafkaReply) -> Iterator[Message]:
    for each in context.brokers(reply.connection.local_host, for_kafka=True):
        listener = _Quorum.Listener(name="BROKER", host=each.host, port=each.port)
        yield _Quorum.Node(node_id=each.id, listeners=[listener])


# -- UpdateFeatures --------------------------------------------------------------------------------


def handle_features(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Refuse each feature: ApiVersions shows none, and an upgrade ends by raftlog's command."""
    context.check_operator(reply.connection, reply.name)
    names = [each.feature for each in request.message.feature_updates]
    check_count(reply.name, len(names))
    text = (
        "there is no such feature. `raftlog cluster features --upgrade` ends the upgrade of all "
        "brokers to a new release"
    )
    refused = errors.INVALID_UPDATE_VERSION if names else errors.NONE
    reply.send(
        _Features.root(
            error_code=refused if request.version >= 2 else errors.NONE,
            error_message=text if names and request.version >= 2 else None,
            results=[
                _Features.UpdatableFeatureResult(
                    feature=name, error_code=refused, error_message=text
                )
                for name in names
            ],
        )
    )


# -- metrics of clients ----------------------------------------------------------------------------
#
# GetTelemetrySubscriptions and PushTelemetry (KIP-714): no metrics are requested, so clients send
# none. What one sends without a request is dropped.


def handle_subscriptions(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    known = request.message.client_instance_id
    reply.send(
        _Subscriptions.root(
            client_instance_id=context.entropy(16) if known == codec.ZERO_UUID else known,
            accepted_compression_types=[],
            push_interval_ms=METRICS_INTERVAL_MS,
            telemetry_max_bytes=limits.MIB,
            delta_temporality=True,
            requested_metrics=[],
        )
    )


def handle_metrics(_context: BrokerContext, _request: KafkaRequest, reply: KafkaReply) -> None:
    reply.send(_Pushed.root())
