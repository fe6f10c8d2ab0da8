"""Elections, moves of replicas, the quorum, followers that serve: in a simulated cluster, whose
brokers are in three racks. Features and metrics of clients.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from raftlog.config.broker import RACK_AWARE_SELECTOR
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import Message
from raftlog.server.kafka.topics import BROKER, DELETE, SET
from raftlog.server.scheduling import ITEMS_PER_STEP
from raftlog.testing.simulator.kafka import KafkaClient as SimulatedClient
from raftlog.testing.simulator.world import (
    BrokerMachine,
    ClientMachine,
    RunningBroker,
    World,
    broker_config,
    start_broker,
)
from tests.server.cluster.simulated import Cluster
from tests.server.harness import RunningBroker as HostedBroker
from tests.server.kafka.kafka_client import KafkaClient

Elections = codec.structs("request", apis.ELECT_LEADERS.key)
Moves = codec.structs("request", apis.ALTER_PARTITION_REASSIGNMENTS.key)
Quorum = codec.structs("request", apis.DESCRIBE_QUORUM.key)
Features = codec.structs("request", apis.UPDATE_FEATURES.key)
Subscriptions = codec.structs("request", apis.GET_TELEMETRY_SUBSCRIPTIONS.key)
Push = codec.structs("request", apis.PUSH_TELEMETRY.key)
Fetch = codec.structs("request", apis.FETCH.key)
Configs = codec.structs("request", apis.INCREMENTAL_ALTER_CONFIGS.key)

UNCLEAN = 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Topic t with three replicas, on brokers 1 to 4. Clients need no secret for operations."""

    async def start(machine: BrokerMachine) -> RunningBroker:
        config = replace(
            broker_config(machine, rack=f"rack-{machine.broker_id}"),
            operations_require_secret=False,
            replica_selector_class=RACK_AWARE_SELECTOR,
        )
        return await start_broker(machine, config=config)

    with World(31, brokers=4, make_broker=start) as world:
        cluster = Cluster(world)
        cluster.create()
        cluster.send(b"a", b"b")
        yield cluster


def ask(cluster: Cluster, api: Api, message: Message, *, broker: int = 1) -> Message:
    """What that broker responds, in the newest version."""

    async def run(machine: ClientMachine) -> Message:
        addresses = [each.address for each in cluster.world.brokers]
        client = SimulatedClient(machine, addresses, "t")
        connection = await client.connection(addresses[broker - 1])
        found = await connection.send(api, api.version_max, message, timeout_s=30.0)
        client.close()
        return found

    return cluster.client(run)


def elect(cluster: Cluster, *partitions: int, kind: int = 0, broker: int = 1) -> list[int]:
    """The error of each election."""
    named = [Elections.TopicPartitions(topic="t", partitions=list(partitions))]
    request = Elections.root(election_type=kind, topic_partitions=named)
    (topic,) = ask(cluster, apis.ELECT_LEADERS, request, broker=broker).replica_election_results
    return [each.error_code for each in topic.partition_result]


def outsider(cluster: Cluster) -> int:
    """The broker without a replica of the partition."""
    (found,) = {1, 2, 3, 4} - set(cluster.state(1).replicas)
    return found


@pytest.mark.parametrize("api", [apis.ELECT_LEADERS, apis.ALTER_PARTITION_REASSIGNMENTS])
def test_a_request_about_many_partitions_does_not_hold_up_others(
    kafka_broker: HostedBroker,
    kafka_client: KafkaClient,
    monkeypatch: pytest.MonkeyPatch,
    api: Api,
) -> None:
    count, turns, is_over = 5_000, 0, False
    loop = kafka_broker.broker.context.loop

    def turn() -> None:
        nonlocal turns
        turns += 1
        if not is_over:
            loop.call_soon(turn)

    if api is apis.ELECT_LEADERS:
        asked = Elections.TopicPartitions(topic="missing", partitions=list(range(count)))
        message = Elections.root(topic_partitions=[asked])
    else:
        parts = [Moves.ReassignablePartition(partition_index=n) for n in range(count)]
        message = Moves.root(topics=[Moves.ReassignableTopic(name="missing", partitions=parts)])
    context = kafka_broker.broker.context
    begun = context.administration._begin

    async def counted(work: Coroutine[Any, Any, None]) -> None:
        nonlocal is_over
        turn()
        await work
        is_over = True

    monkeypatch.setattr(context.administration, "_begin", lambda work: begun(counted(work)))
    assert kafka_client.ask(api, api.version_max, message).error_code == errors.NONE
    assert turns > count / ITEMS_PER_STEP


def settle(cluster: Cluster) -> None:
    cluster.until(lambda: len(cluster.state(1).isr) == 3)
    cluster.world.run_for(2.0)  # a partition's leadership is transferred once a second


@pytest.mark.parametrize("has_replica", [True, False])
def test_the_preferred_replica_is_elected(cluster: Cluster, has_replica: bool) -> None:
    settle(cluster)
    preferred, other, _ = cluster.state(1).replicas
    cluster.admin(lambda admin: admin.transfer_leader("t", 0, to=other))
    cluster.until(lambda: cluster.state(1).leader == other)
    settle(cluster)
    asked = preferred if has_replica else outsider(cluster)
    assert elect(cluster, 0, 7, broker=asked) == [0, errors.UNKNOWN_TOPIC_OR_PARTITION]
    cluster.until(lambda: cluster.state(1).leader == preferred)
    assert elect(cluster, 0, broker=asked) == [errors.ELECTION_NOT_NEEDED]
    everything = Elections.root(topic_partitions=None)
    assert ask(cluster, apis.ELECT_LEADERS, everything).replica_election_results == []
    assert elect(cluster, 0, kind=UNCLEAN) == [errors.ELECTION_NOT_NEEDED]


def reassign(cluster: Cluster, *moves: tuple[int, list[int] | None], **facts: Any) -> list[int]:
    parts = [Moves.ReassignablePartition(partition_index=n, replicas=r) for n, r in moves]
    topic = Moves.ReassignableTopic(name="t", partitions=parts)
    request = Moves.root(topics=[topic], **facts)
    (found,) = ask(cluster, apis.ALTER_PARTITION_REASSIGNMENTS, request).responses
    return [each.error_code for each in found.partitions]


def test_replicas_move_and_moves_are_cancelled(cluster: Cluster) -> None:
    settle(cluster)
    before = list(cluster.state(1).replicas)
    new = [*before[:2], outsider(cluster)]
    assert reassign(cluster, (0, before)) == [0], "nothing moves"
    assert reassign(cluster, (0, None)) == [errors.NO_REASSIGNMENT_IN_PROGRESS]
    cluster.world.brokers[new[2] - 1].pause()  # so that the move does not end
    try:
        assert reassign(cluster, (0, new)) == [0]
        assert reassign(cluster, (0, None)) == [0]
    finally:
        cluster.world.brokers[new[2] - 1].resume()
    cluster.until(lambda: set(cluster.state(1).replicas) == set(before))
    assert reassign(cluster, (0, new)) == [0]
    cluster.until(lambda: set(cluster.state(1).replicas) == set(new))


@pytest.mark.parametrize(
    ("moves", "facts", "error"),
    [
        ([(7, [1, 2, 3])], {}, errors.UNKNOWN_TOPIC_OR_PARTITION),
        ([(0, [])], {}, errors.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 1, 2])], {}, errors.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 2, 9])], {}, errors.INVALID_REPLICA_ASSIGNMENT),
        ([(0, [1, 2, 3]), (0, [1, 2, 4])], {}, errors.INVALID_REQUEST),
        (
            [(0, [1, 2])],
            {"allow_replication_factor_change": False},
            errors.INVALID_REPLICATION_FACTOR,
        ),
    ],
)
def test_wrong_moves_change_nothing(
    cluster: Cluster, moves: Any, facts: dict[str, Any], error: int
) -> None:
    before = cluster.state(1).replicas
    assert set(reassign(cluster, *moves, **facts)) == {error}
    assert cluster.state(1).replicas == before


@pytest.mark.parametrize(
    ("name", "operation", "value", "throttle"),
    [
        ("follower.replication.throttled.rate", SET, "2000000", 2_000_000),
        ("leader.replication.throttled.rate", SET, "3000000", 2_000_000),
        ("follower.replication.throttled.rate", DELETE, None, 0),
    ],
)
def test_the_rates_of_moves_are_the_throttle(
    cluster: Cluster, name: str, operation: int, value: str | None, throttle: int
) -> None:
    assert alter_broker(cluster, name, operation, value) == errors.NONE
    cluster.until(lambda: cluster.node(1).machine.move_throttle == throttle)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("follower.replication.throttled.rate", "fast"),
        ("follower.replication.throttled.rate", "-1"),
        ("num.io.threads", "8"),
    ],
)
def test_other_settings_of_brokers_are_read_only(cluster: Cluster, name: str, value: str) -> None:
    assert alter_broker(cluster, name, SET, value) == errors.INVALID_CONFIG
    assert cluster.node(1).machine.move_throttle == 0


def alter_broker(cluster: Cluster, name: str, operation: int, value: str | None) -> int:
    change = Configs.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = Configs.AlterConfigsResource(
        resource_type=BROKER, resource_name="1", configs=[change]
    )
    request = Configs.root(resources=[resource])
    (found,) = ask(cluster, apis.INCREMENTAL_ALTER_CONFIGS, request).responses
    code: int = found.error_code
    return code


def test_the_quorum_has_the_ends_of_all_journals(cluster: Cluster) -> None:
    part = Quorum.PartitionData(partition_index=0)
    names = ["__cluster_metadata", "t"]
    request = Quorum.root(topics=[Quorum.TopicData(topic_name=n, partitions=[part]) for n in names])
    found = ask(cluster, apis.DESCRIBE_QUORUM, request)
    (quorum,), (refused,) = (topic.partitions for topic in found.topics)
    assert refused.error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert {each.replica_id for each in quorum.current_voters} == {1, 2, 3, 4}
    assert quorum.leader_id in {1, 2, 3, 4}
    assert quorum.leader_epoch > 0
    ends = {each.log_end_offset for each in quorum.current_voters}
    assert min(ends) >= quorum.high_watermark > 0
    assert {each.node_id for each in found.nodes} == {1, 2, 3, 4}


def fetch(cluster: Cluster, broker: int, rack: str) -> Message:
    topic_id = bytes.fromhex(cluster.node(1).machine.topics["t"].id)
    part = Fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000)
    topic = Fetch.FetchTopic(topic_id=topic_id, partitions=[part])
    request = Fetch.root(max_wait_ms=0, rack_id=rack, topics=[topic])
    (found,) = ask(cluster, apis.FETCH, request, broker=broker).responses
    return found.partitions[0]


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: Cluster) -> None:
    settle(cluster)
    leader = cluster.leader(1)
    near = next(each for each in cluster.state(1).replicas if each != leader)
    sent = fetch(cluster, leader, f"rack-{near}")
    assert (sent.error_code, sent.preferred_read_replica, bytes(sent.records)) == (0, near, b"")
    read = fetch(cluster, near, f"rack-{near}")
    assert (read.error_code, read.preferred_read_replica) == (0, -1)
    assert len(read.records) > 61
    for rack in ("", f"rack-{leader}", f"rack-{outsider(cluster)}"):
        assert len(fetch(cluster, leader, rack).records) > 61, "no replica is nearer"
    assert fetch(cluster, near, "").error_code == errors.NOT_LEADER_OR_FOLLOWER


# -- a single broker ---------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1, 2])
def test_features_are_refused(kafka_client: KafkaClient, version: int) -> None:
    update = Features.FeatureUpdateKey(feature="metadata.version", max_version_level=7)
    request = Features.root(feature_updates=[update])
    found = kafka_client.ask(apis.UPDATE_FEATURES, version, request)
    code = found.error_code if version == 2 else found.results[0].error_code
    assert code == errors.INVALID_UPDATE_VERSION


def test_no_metrics_of_clients_are_requested(kafka_client: KafkaClient) -> None:
    first = kafka_client.ask(apis.GET_TELEMETRY_SUBSCRIPTIONS, 0, Subscriptions.root())
    assert (first.error_code, first.requested_metrics) == (0, [])
    assert first.client_instance_id != codec.ZERO_UUID
    again = Subscriptions.root(client_instance_id=first.client_instance_id)
    second = kafka_client.ask(apis.GET_TELEMETRY_SUBSCRIPTIONS, 0, again)
    assert second.client_instance_id == first.client_instance_id
    assert kafka_client.ask(apis.PUSH_TELEMETRY, 0, Push.root(metrics=b"x")).error_code == 0


def test_a_single_broker_is_its_quorum_and_moves_nothing(kafka_client: KafkaClient) -> None:
    part = Quorum.PartitionData(partition_index=0)
    topic = Quorum.TopicData(topic_name="__cluster_metadata", partitions=[part])
    found = kafka_client.ask(apis.DESCRIBE_QUORUM, 2, Quorum.root(topics=[topic]))
    (quorum,) = found.topics[0].partitions
    assert [each.replica_id for each in quorum.current_voters] == [quorum.leader_id]
