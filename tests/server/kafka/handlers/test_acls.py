"""DescribeAcls, CreateAcls and DeleteAcls, by Kafka's own administration client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.security.acl import Acl
from tests.server.access.acting import access_of, guarded, kafka_acting
from tests.server.harness import TIMEOUT_S, RunningBroker
from tests.server.kafka.kafka_client import KafkaClient

READ = AclBinding(
    ResourceType.TOPIC,
    "clicks",
    ResourcePatternType.LITERAL,
    "User:alice",
    "*",
    AclOperation.READ,
    AclPermissionType.ALLOW,
)
DENIED = AclBinding(
    ResourceType.GROUP,
    "g-",
    ResourcePatternType.PREFIXED,
    "User:alice",
    "10.0.0.1",
    AclOperation.ALL,
    AclPermissionType.DENY,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with guarded(tmp_path_factory.mktemp("acls")) as broker:
        yield broker


def everything(**fields: Any) -> AclBindingFilter:
    chosen = {
        "restype": ResourceType.ANY,
        "name": None,
        "resource_pattern_type": ResourcePatternType.ANY,
        "principal": None,
        "host": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermissionType.ANY,
    }
    return AclBindingFilter(**chosen | fields)


def test_rules_by_confluents_client(broker: RunningBroker) -> None:
    access = access_of(broker)
    access.authorizer.add(Acl("User:ANONYMOUS", "ALL", "CLUSTER", "kafka-cluster"))
    admin = AdminClient({"bootstrap.servers": f"{broker.address.host}:{broker.address.port}"})
    created = admin.create_acls([READ, DENIED], request_timeout=TIMEOUT_S)
    assert {binding: future.result() for binding, future in created.items()} == {
        READ: None,
        DENIED: None,
    }
    assert access.authority.machine.acls == {
        Acl("User:alice", "READ", "TOPIC", "clicks"),
        Acl("User:alice", "ALL", "GROUP", "g-", "PREFIXED", "DENY", "10.0.0.1"),
    }
    assert set(admin.describe_acls(everything()).result(TIMEOUT_S)) == {READ, DENIED}
    matching = everything(
        restype=ResourceType.GROUP, name="g-1", resource_pattern_type=ResourcePatternType.MATCH
    )
    assert admin.describe_acls(matching).result(TIMEOUT_S) == [DENIED]
    (deleted,) = admin.delete_acls([everything(principal="User:alice")]).values()
    assert set(deleted.result(TIMEOUT_S)) == {READ, DENIED}
    assert not access.authority.machine.acls
    bad = AclBinding(
        ResourceType.GROUP,
        "g",
        ResourcePatternType.LITERAL,
        "alice",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    (refused,) = admin.create_acls([bad]).values()
    with pytest.raises(KafkaException, match="not a principal"):
        refused.result(TIMEOUT_S)


def test_each_rule_and_filter_has_a_result(broker: RunningBroker) -> None:
    create = codec.structs("request", apis.CREATE_ACLS.key)
    fields = {"resource_name": "t", "principal": "User:a", "host": "*", "permission_type": 3}
    creations = [
        create.AclCreation(**fields, resource_type=2, operation=operation)
        for operation in (3, 99, 9, 4)
    ]
    delete = codec.structs("request", apis.DELETE_ACLS.key)
    filters = [
        delete.DeleteAclsFilter(
            resource_type_filter=kind,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        for kind in (99, 2, 1)
    ]
    with kafka_acting(broker, "admin") as client:
        answer = client.ask(apis.CREATE_ACLS, 3, create.root(creations=creations))
        assert [each.error_code == 0 for each in answer.results] == [True, False, False, True]
        answer = client.ask(apis.DELETE_ACLS, 3, delete.root(filters=filters))
    assert [len(each.matching_acls) for each in answer.filter_results] == [0, 2, 2]
    assert answer.filter_results[0].error_code == errors.INVALID_REQUEST


def test_rules_that_are_not_enforced_are_disabled(
    kafka_broker: RunningBroker, kafka_client: KafkaClient
) -> None:
    """As by Kafka without an authorizer."""
    for api in (apis.DESCRIBE_ACLS, apis.CREATE_ACLS, apis.DELETE_ACLS):
        structs = codec.structs("request", api.key)
        message = structs.root()
        if api is apis.CREATE_ACLS:
            message.creations = [structs.AclCreation(resource_type=2)]
        elif api is apis.DELETE_ACLS:
            message.filters = [structs.DeleteAclsFilter()]
        answer = kafka_client.ask(api, 1, message)
        results = getattr(answer, "results", getattr(answer, "filter_results", [answer]))
        assert [each.error_code for each in results] == [errors.SECURITY_DISABLED]
