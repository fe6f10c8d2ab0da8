"""DescribeClientQuotas and AlterClientQuotas."""

from __future__ import annotations

from typing import Any

import pytest

from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.security.quota import DEFAULT, QuotaEntity
from tests.server.access.acting import access_of
from tests.server.harness import RunningBroker
from tests.server.kafka.kafka_client import KafkaClient

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
