"""Rules and quotas are created, described, checked and deleted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from raftlog import limits
from raftlog.errors import AccessDeniedError, InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol import security
from raftlog.protocol.records import MetadataRequest
from raftlog.replication.cluster_commands import DeleteAcls
from raftlog.security.acl import Acl, AclFilter
from raftlog.server.apis.security import SELECTED_PER_STEP, delete_acls, select_acls
from tests.server.access.acting import access_of, acting, guarded
from tests.server.harness import Client, RunningBroker, finished, running

ORDERS = MetadataRequest(topics=["orders"])


def test_a_rule_applies_until_it_is_deleted(tmp_path: Path) -> None:
    acl = Acl("User:alice", "READ", "TOPIC", "orders", host="127.0.0.1")
    check = security.CheckAclRequest(
        principal="User:alice",
        operation="DESCRIBE",
        resource_type="TOPIC",
        resource_name="orders",
        host="127.0.0.1",
    )
    chosen = security.AclFilter(principal="User:alice")
    with (
        guarded(tmp_path) as broker,
        acting(broker, "admin") as admin,
        acting(broker, "alice") as alice,
    ):
        admin.create("orders")
        admin.ask(apis.CREATE_ACLS, security.CreateAclsRequest(acls=[acl]))
        assert alice.ask(apis.METADATA, ORDERS).topics[0].failure is None
        decision = admin.ask(apis.CHECK_ACL, check)
        assert decision == security.CheckAclResponse(is_allowed=True, acl=acl)
        found = admin.ask(apis.DESCRIBE_ACLS, security.DescribeAclsRequest(filter=chosen))
        assert found.acls == [acl]
        gone = admin.ask(apis.DELETE_ACLS, security.DeleteAclsRequest(filters=[chosen]))
        assert gone.acls == [acl]
        assert alice.ask(apis.METADATA, ORDERS).topics[0].failure is not None
        decision = admin.ask(apis.CHECK_ACL, check)
        assert decision == security.CheckAclResponse(is_allowed=False)
        root = msgspec.structs.replace(check, principal="User:admin")
        assert admin.ask(apis.CHECK_ACL, root).is_super_user
        with pytest.raises(InvalidRequestError, match="not a principal"):
            admin.ask(apis.CHECK_ACL, msgspec.structs.replace(check, principal="alice"))


def quotas_of(client: Client) -> dict[security.QuotaEntity, dict[security.QuotaKey, float]]:
    answer = client.ask(apis.DESCRIBE_QUOTAS, security.DescribeQuotasRequest())
    return {one.entity: one.limits for one in answer.quotas}


def test_quotas_are_altered_all_or_none(broker: RunningBroker, client: Client) -> None:
    alice, bob = security.QuotaEntity("alice"), security.QuotaEntity(None, "app")
    both = [
        security.QuotaAlteration(entity=alice, changes={"connections": 5.0}),
        security.QuotaAlteration(entity=bob, changes={"connections": 5.0}),
    ]
    with pytest.raises(InvalidRequestError, match="no connections"):
        client.ask(apis.ALTER_QUOTAS, security.AlterQuotasRequest(quotas=both))
    assert quotas_of(client) == {}
    client.ask(apis.ALTER_QUOTAS, security.AlterQuotasRequest(quotas=both[:1]))
    assert quotas_of(client) == {alice: {"connections": 5.0}}
    assert access_of(broker).quotas.rate("connections", "alice") == 5.0


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        (
            apis.CREATE_ACLS,
            security.CreateAclsRequest(acls=[Acl("User:a", "READ", "TOPIC", "t")]),
        ),
        (apis.DELETE_ACLS, security.DeleteAclsRequest(filters=[security.AclFilter()])),
        (
            apis.ALTER_QUOTAS,
            security.AlterQuotasRequest(
                quotas=[security.QuotaAlteration(entity=security.QuotaEntity("a"), changes={})]
            ),
        ),
    ],
)
def test_without_authentication_changes_need_the_cluster_secret(
    tmp_path: Path, api: apis.Api, request_: security.Message
) -> None:
    with (
        running(tmp_path, cluster_secret="a secret of brokers") as broker,
        broker.client() as client,
        pytest.raises(AccessDeniedError, match="requires the cluster secret"),
    ):
        client.ask(api, request_)


# -- access ----------------------------------------------------------------------------------------
#
# Selection and deletion of access rules.


ACLS = {
    Acl(f"User:u{number}", operation, "TOPIC", "t")
    for number in range(600)
    for operation in ("READ", "WRITE")
}


class Authority:
    """Deletes everything."""

    def __init__(self) -> None:
        self.machine = SimpleNamespace(acls=ACLS)
        self.sizes: list[int] = []

    async def propose(self, command: DeleteAcls) -> tuple[Acl, ...]:
        self.sizes.append(len(command.acls))
        return command.acls


def context(authority: Authority) -> Any:
    return cast(Any, SimpleNamespace(access=SimpleNamespace(authority=authority)))


def test_rules_are_selected_in_steps_and_each_once() -> None:
    filters = [AclFilter(operation="READ"), AclFilter(principal="User:u1"), AclFilter()]
    steps = select_acls(context(Authority()), filters)
    assert len(list(steps)) == len(ACLS) * len(filters) // SELECTED_PER_STEP
    assert finished(select_acls(context(Authority()), filters)) == sorted(ACLS)
    (found,) = {
        len(finished(select_acls(context(Authority()), [chosen]))) for chosen in filters[:1]
    }
    assert found == 600


async def deleted(authority: Authority) -> list[Acl]:
    return await delete_acls(context(authority), sorted(ACLS))


def test_a_command_has_a_bounded_number_of_rules() -> None:
    authority = Authority()
    assert asyncio.run(deleted(authority)) == sorted(ACLS)
    assert authority.sizes == [limits.ACLS_PER_REQUEST_MAX, 200]
