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
from raftlog.security.quota import DEFAULT, QuotaEntity
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


# -- quotas ----------------------------------------------------------------------------------------
#
# DescribeClientQuotas and AlterClientQuotas.


Alter = codec.structs("request", apis.ALTER_CLIENT_QUOTAS.key)
Describe = codec.structs("request", apis.DESCRIBE_CLIENT_QUOTAS.key)


def entry(entity: dict[str, str | None], **values: float | None) -> Any:
    return Alter.EntryData(
        entity=[
            Alter.EntityData(entity_type=kind.replace("_", "-"), entity_name=name)
            for kind, name in entity.items()
        ],
        ops=[
            Alter.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in values.items()
        ],
    )


def alter(client: KafkaClient, *entries: Any, validate_only: bool = False) -> list[int]:
    message = Alter.root(entries=list(entries), validate_only=validate_only)
    answer = client.ask(apis.ALTER_CLIENT_QUOTAS, 1, message)
    return [each.error_code for each in answer.entries]


def describe(client: KafkaClient, *components: tuple[str, int, str | None], strict: bool = False):  # type: ignore[no-untyped-def]
    message = Describe.root(
        components=[
            Describe.ComponentData(entity_type=kind, match_type=match_type, match=name)
            for kind, match_type, name in components
        ],
        strict=strict,
    )
    answer = client.ask(apis.DESCRIBE_CLIENT_QUOTAS, 1, message)
    assert answer.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in answer.entries
    ]


@pytest.fixture
def quotas(kafka_broker: RunningBroker, kafka_client: KafkaClient) -> KafkaClient:
    codes = alter(
        kafka_client,
        entry({"user": "alice"}, producer_byte_rate=1e9),
        entry({"user": "alice", "client_id": None}, consumer_byte_rate=2e9),
        entry({"user": None}, connections=1e6),
        entry({"ip": "10.0.0.1"}, connection_creation_rate=1e6),
    )
    assert codes == [0, 0, 0, 0]
    return kafka_client


def test_quotas_are_selected_by_their_entities(quotas: KafkaClient) -> None:
    alice = ({"user": "alice"}, {"producer_byte_rate": 1e9})
    both = ({"user": "alice", "client-id": None}, {"consumer_byte_rate": 2e9})
    default = ({"user": None}, {"connections": 1e6})
    address = ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1e6})
    found = describe(quotas)
    assert all(one in found for one in (alice, both, default, address))
    assert describe(quotas, ("user", 0, "alice")) == [alice, both]
    assert describe(quotas, ("user", 0, "alice"), strict=True) == [alice]
    assert describe(quotas, ("user", 1, None)) == [default]
    assert describe(quotas, ("user", 2, None), ("client-id", 1, None)) == [both]
    assert describe(quotas, ("ip", 2, None)) == [address]


def test_each_entity_has_a_result(quotas: KafkaClient, kafka_broker: RunningBroker) -> None:
    codes = alter(
        quotas,
        entry({"user": "bob"}, producer_byte_rate=-1.0),
        entry({"user": "bob"}, unknown=1.0),
        entry({"group": "g"}, producer_byte_rate=1.0),
        entry({"user": "alice"}, producer_byte_rate=None),
        entry({}, producer_byte_rate=None),
    )
    bad = errors.INVALID_REQUEST
    assert codes == [bad, bad, bad, 0, bad]
    held = access_of(kafka_broker).authority.machine.quotas
    assert QuotaEntity("alice") not in held
    assert QuotaEntity("alice", DEFAULT) in held


def test_a_change_can_be_checked_only(quotas: KafkaClient, kafka_broker: RunningBroker) -> None:
    assert alter(quotas, entry({"user": "eve"}, connections=1.0), validate_only=True) == [0]
    assert QuotaEntity("eve") not in access_of(kafka_broker).authority.machine.quotas


# -- users -----------------------------------------------------------------------------------------
#
# DescribeUserScramCredentials of a broker that has no users.


UsersDescribe = codec.structs("request", apis.DESCRIBE_USER_SCRAM_CREDENTIALS.key)


def test_a_refusal_names_each_user(kafka_client: KafkaClient) -> None:
    """librdkafka crashes if the response has an error for the request as a whole."""
    names = [UsersDescribe.UserName(name=name) for name in ("alice", "bob")]
    answer = kafka_client.ask(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, UsersDescribe.root(users=names)
    )
    assert answer.error_code == 0
    assert [(each.user, each.error_code) for each in answer.results] == [
        ("alice", errors.RESOURCE_NOT_FOUND),
        ("bob", errors.RESOURCE_NOT_FOUND),
    ]
    of_all = kafka_client.ask(
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, UsersDescribe.root(users=None)
    )
    assert (of_all.error_code, of_all.results) == (errors.NONE, [])
