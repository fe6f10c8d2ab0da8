"""Responses say what the client may do, if it requests that (KIP-430)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.kafka.api import Api
from raftlog.security.acl import CLUSTER_NAME, OPERATIONS, Acl
from raftlog.server.kafka.metadata import NOT_REQUESTED
from tests.server.access.acting import acting, allowing, guarded, kafka_acting
from tests.server.harness import RunningBroker, running
from tests.server.kafka.kafka_client import KafkaClient

NUMBERS = {name: number for number, name in enumerate(OPERATIONS, start=2)}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with guarded(tmp_path_factory.mktemp("guarded")) as broker:
        with acting(broker, "admin") as admin:
            assert admin.create("clicks").failure is None
        yield broker


def bits(*operations: Any) -> int:
    return sum(1 << NUMBERS[each] for each in operations)


def metadata(client: KafkaClient, version: int, *, asked: bool = True) -> tuple[int, int]:
    """The operations with the cluster, and with the topic."""
    structs = codec.structs("request", apis.METADATA.key)
    message = structs.root(
        topics=[structs.MetadataRequestTopic(name="clicks")],
        include_cluster_authorized_operations=asked,
        include_topic_authorized_operations=asked,
    )
    answer = client.ask(apis.METADATA, version, message)
    return answer.cluster_authorized_operations, answer.topics[0].topic_authorized_operations


def cluster(client: KafkaClient, *, asked: bool = True) -> int:
    structs = codec.structs("request", apis.DESCRIBE_CLUSTER.key)
    message = structs.root(include_cluster_authorized_operations=asked, endpoint_type=1)
    version = apis.DESCRIBE_CLUSTER.version_max
    found: int = client.ask(apis.DESCRIBE_CLUSTER, version, message).cluster_authorized_operations
    return found


def test_the_operations_are_those_of_the_rules(broker: RunningBroker) -> None:
    read = Acl("User:alice", "READ", "TOPIC", "cli", "PREFIXED")
    refused = Acl("User:alice", "DELETE", "TOPIC", "clicks", permission="DENY")
    everything = Acl("User:alice", "ALL", "CLUSTER", CLUSTER_NAME)
    with kafka_acting(broker, "alice") as client:
        with allowing(broker, read):
            assert metadata(client, 10) == (0, bits("READ", "DESCRIBE"))
            assert metadata(client, 10, asked=False) == (NOT_REQUESTED, NOT_REQUESTED)
            assert metadata(client, 12) == (NOT_REQUESTED, bits("READ", "DESCRIBE"))
            assert metadata(client, 7) == (NOT_REQUESTED, NOT_REQUESTED)
            assert (cluster(client), cluster(client, asked=False)) == (0, NOT_REQUESTED)
        with allowing(broker, Acl("User:alice", "ALL", "TOPIC", "*"), refused, everything):
            of_topic = {"READ", "WRITE", "CREATE", "ALTER", "DESCRIBE"}
            assert metadata(client, 10)[1] == bits(*of_topic, "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
            assert cluster(client) == metadata(client, 10)[0] != 0


def commit(broker: RunningBroker, group: str) -> None:
    """Create a group by a commit."""
    with kafka_acting(broker, "admin") as admin:
        find = codec.structs("request", apis.FIND_COORDINATOR.key)
        version = apis.FIND_COORDINATOR.version_max
        admin.ask(apis.FIND_COORDINATOR, version, find.root(coordinator_keys=[group]))
        broker.wait_until(lambda: bool(broker.broker.context.coordinator.shards()))
        structs = codec.structs("request", apis.OFFSET_COMMIT.key)
        place = structs.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
        message = structs.root(
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[structs.OffsetCommitRequestTopic(name="clicks", partitions=[place])],
        )

        def is_done() -> bool:
            (topic,) = admin.ask(apis.OFFSET_COMMIT, 8, message).topics
            return not topic.partitions[0].error_code

        while not is_done():
            pass


@pytest.mark.parametrize("api", [apis.DESCRIBE_GROUPS, apis.CONSUMER_GROUP_DESCRIBE])
def test_the_operations_with_groups(broker: RunningBroker, api: Api) -> None:
    commit(broker, "g")
    rules = [Acl("User:alice", each, "GROUP", "g") for each in ("DESCRIBE", "DELETE")]
    structs = codec.structs("request", api.key)
    name = "groups" if api is apis.DESCRIBE_GROUPS else "group_ids"
    with kafka_acting(broker, "alice") as client, allowing(broker, *rules):
        for asked, expected in ((True, bits("DESCRIBE", "DELETE")), (False, NOT_REQUESTED)):
            message = structs.root(**{name: ["g"]}, include_authorized_operations=asked)
            (group,) = client.ask(api, api.version_max, message).groups
            assert (group.error_code, group.authorized_operations) == (0, expected)


def test_without_rules_everything_is_permitted(tmp_path: Path) -> None:
    with running(tmp_path) as broker:
        with broker.client() as admin:
            admin.create("clicks")
        client = KafkaClient(broker.address)
        of_cluster, of_topic = metadata(client, 10)
        client.close()
    assert of_cluster == bits(
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
        "IDEMPOTENT_WRITE",
    )
    assert of_topic & bits("READ", "WRITE", "DELETE") == bits("READ", "WRITE", "DELETE")
