"""Rules and quotas are created, described, checked and deleted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from raftlog.errors import AccessDeniedError, InvalidRequestError
from raftlog.protocol import access as wire
from raftlog.protocol import api as apis
from raftlog.protocol.metadata import MetadataRequest
from raftlog.security.acl import Acl
from tests.server.access.acting import access_of, acting, guarded
from tests.server.harness import Client, RunningBroker, running

ORDERS = MetadataRequest(topics=["orders"])


def test_a_rule_applies_until_it_is_deleted(tmp_path: Path) -> None:
    acl = Acl("User:alice", "READ", "TOPIC", "orders", host="127.0.0.1")
    check = wire.CheckAclRequest(
        principal="User:alice",
        operation="DESCRIBE",
        resource_type="TOPIC",
        resource_name="orders",
        host="127.0.0.1",
    )
    chosen = wire.AclFilter(principal="User:alice")
    with (
        guarded(tmp_path) as broker,
        acting(broker, "admin") as admin,
        acting(broker, "alice") as alice,
    ):
        admin.create("orders")
        admin.ask(apis.CREATE_ACLS, wire.CreateAclsRequest(acls=[acl]))
        assert alice.ask(apis.METADATA, ORDERS).topics[0].failure is None
        decision = admin.ask(apis.CHECK_ACL, check)
        assert decision == wire.CheckAclResponse(is_allowed=True, acl=acl)
        found = admin.ask(apis.DESCRIBE_ACLS, wire.DescribeAclsRequest(filter=chosen))
        assert found.acls == [acl]
        gone = admin.ask(apis.DELETE_ACLS, wire.DeleteAclsRequest(filters=[chosen]))
        assert gone.acls == [acl]
        assert alice.ask(apis.METADATA, ORDERS).topics[0].failure is not None
        decision = admin.ask(apis.CHECK_ACL, check)
        assert decision == wire.CheckAclResponse(is_allowed=False)
        root = msgspec.structs.replace(check, principal="User:admin")
        assert admin.ask(apis.CHECK_ACL, root).is_super_user
        with pytest.raises(InvalidRequestError, match="not a principal"):
            admin.ask(apis.CHECK_ACL, msgspec.structs.replace(check, principal="alice"))


def quotas_of(client: Client) -> dict[wire.QuotaEntity, dict[wire.QuotaKey, float]]:
    answer = client.ask(apis.DESCRIBE_QUOTAS, wire.DescribeQuotasRequest())
    return {one.entity: one.limits for one in answer.quotas}


def test_quotas_are_altered_all_or_none(broker: RunningBroker, client: Client) -> None:
    alice, bob = wire.QuotaEntity("alice"), wire.QuotaEntity(None, "app")
    both = [
        wire.QuotaAlteration(entity=alice, changes={"connections": 5.0}),
        wire.QuotaAlteration(entity=bob, changes={"connections": 5.0}),
    ]
    with pytest.raises(InvalidRequestError, match="no connections"):
        client.ask(apis.ALTER_QUOTAS, wire.AlterQuotasRequest(quotas=both))
    assert quotas_of(client) == {}
    client.ask(apis.ALTER_QUOTAS, wire.AlterQuotasRequest(quotas=both[:1]))
    assert quotas_of(client) == {alice: {"connections": 5.0}}
    assert access_of(broker).quotas.rate("connections", "alice") == 5.0


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (
            apis.CREATE_ACLS,
            wire.CreateAclsRequest(acls=[Acl("User:a", "READ", "TOPIC", "t")]),
        ),
        (apis.DELETE_ACLS, wire.DeleteAclsRequest(filters=[wire.AclFilter()])),
        (
            apis.ALTER_QUOTAS,
            wire.AlterQuotasRequest(
                quotas=[wire.QuotaAlteration(entity=wire.QuotaEntity("a"), changes={})]
            ),
        ),
    ],
)
def test_without_authentication_changes_need_the_cluster_secret(
    tmp_path: Path, api: apis.Api, request_: wire.Message
) -> None:
    with (
        running(tmp_path, cluster_secret="a secret of brokers") as broker,
        broker.client() as client,
        pytest.raises(AccessDeniedError, match="requires the cluster secret"),
    ):
        client.ask(api, request_)
