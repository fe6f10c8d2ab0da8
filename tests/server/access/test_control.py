"""A client of the broker as access rules see it, and the admission of its requests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog import limits
from raftlog.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidRequestError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import security
from raftlog.protocol.records import ListOffsetsRequest, OffsetQuery
from raftlog.replication.cluster_commands import AlterQuotas, CreateAcls, DeleteAcls, QuotaChange
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.security.acl import Acl, Principal
from raftlog.security.producer_ids import named_id, owned_id
from raftlog.security.quota import QuotaEntity
from raftlog.server.access.control import AccessControl, Caller
from tests.server.access.acting import access_of, acting, allowing, guarded
from tests.server.harness import RunningBroker, error_of

# -- clients ---------------------------------------------------------------------------------------

# A client of the broker, as access rules see it.


ALICE = Principal("User", "alice")


def control(*acls: Acl) -> tuple[AccessControl, ClusterMachine]:
    machine = ClusterMachine()
    made = AccessControl(
        cast(Any, SimpleNamespace(machine=machine)),
        is_enforced=True,
        super_users=["User:admin"],
        now=lambda: 0.0,
    )
    machine.on_change = made.changed
    machine.apply(CreateAcls(acls=acls).encode())
    return made, machine


def caller(access: AccessControl, user: str = "alice", **more: Any) -> Caller:
    connection: dict[str, Any] = {"peer_host": "127.0.0.1", "is_operator": False}
    principal = Principal("User", user)
    return Caller(access, cast(Any, SimpleNamespace(principal=principal, **connection | more)))


def test_it_follows_the_state() -> None:
    acl = Acl("User:alice", "READ", "TOPIC", "t")
    access, machine = control(acl)
    assert caller(access).may("READ", "TOPIC", "t")
    change = QuotaChange(QuotaEntity("alice"), {"connections": 1.0})
    machine.apply(AlterQuotas(changes=(change,)).encode())
    assert access.quotas.rate("connections", "alice") == 1.0
    newer = ClusterMachine()
    for number in range(machine.version + 1):
        newer.apply(CreateAcls(acls=(Acl("User:bob", "READ", "TOPIC", f"{number}"),)).encode())
    machine.restore(newer.snapshot())
    assert not caller(access).may("READ", "TOPIC", "t")
    assert not access.quotas.has("connections")
    machine.apply(CreateAcls(acls=(acl,)).encode())
    machine.apply(DeleteAcls(acls=(acl,)).encode())
    assert not caller(access).may("READ", "TOPIC", "t")


@pytest.mark.parametrize(
    ("resource_type", "error"),
    [
        ("TOPIC", TopicAuthorizationFailedError),
        ("GROUP", GroupAuthorizationFailedError),
        ("CLUSTER", ClusterAuthorizationFailedError),
        ("TRANSACTIONAL_ID", TransactionalIdAuthorizationFailedError),
    ],
)
def test_a_denial_names_who_and_what_and_no_rule(resource_type: Any, error: Any) -> None:
    deny = Acl("User:*", "DESCRIBE", "TOPIC", "x", permission="DENY")
    access, _ = control(deny)
    with pytest.raises(error, match="User:alice may not DESCRIBE") as caught:
        caller(access).require("DESCRIBE", resource_type, "x")
    assert "DENY" not in str(caught.value)


def test_a_proof_of_the_cluster_secret_permits_the_cluster_only() -> None:
    access, _ = control()
    operator = caller(access, is_operator=True)
    operator.require_of_cluster("ALTER")
    with pytest.raises(TopicAuthorizationFailedError):
        operator.require("READ", "TOPIC", "t")


def test_rules_do_not_apply_to_other_brokers() -> None:
    access, _ = control()
    assert access.applies_to(cast(Any, SimpleNamespace(peer_identity=None)))
    assert not access.applies_to(cast(Any, SimpleNamespace(peer_identity="a broker")))


def test_an_ipv4_address_is_the_same_at_an_ipv6_socket() -> None:
    access, _ = control(Acl("User:alice", "READ", "TOPIC", "t", host="10.0.0.1"))
    assert caller(access, peer_host="::ffff:10.0.0.1").may("READ", "TOPIC", "t")
    assert not caller(access, peer_host="::ffff:10.0.0.2").may("READ", "TOPIC", "t")


def test_producer_ids_are_those_of_the_caller() -> None:
    access, _ = control()
    alice = caller(access)
    alice.check_producer_id(-1)
    alice.check_producer_id(owned_id(ALICE, 7))
    alice.check_producer_id(named_id("name"), "name")
    not_own = [
        (owned_id(Principal("User", "bob"), 7), ""),
        (owned_id(Principal("User", "bob"), 7), "name"),
        (named_id("name"), ""),
        (named_id("name"), "other"),
    ]
    for id_, name in not_own:
        with pytest.raises(TransactionalIdAuthorizationFailedError, match=f"id {id_} "):
            alice.check_producer_id(id_, name)


# -- authority -------------------------------------------------------------------------------------
#
# Rules and quotas of the cluster state.


ACL = Acl("User:alice", "READ", "TOPIC", "t")


def test_rules_and_quotas_outlive_a_restart(tmp_path: Path) -> None:
    entity = security.QuotaEntity("alice")
    with guarded(tmp_path) as broker, acting(broker, "admin") as admin:
        admin.ask(apis.CREATE_ACLS, security.CreateAclsRequest(acls=[ACL]))
        change = security.QuotaAlteration(entity=entity, changes={"producer_byte_rate": 5.0})
        admin.ask(apis.ALTER_QUOTAS, security.AlterQuotasRequest(quotas=[change]))
    with guarded(tmp_path) as broker, acting(broker, "admin") as admin:
        found = admin.ask(
            apis.DESCRIBE_ACLS, security.DescribeAclsRequest(filter=security.AclFilter())
        )
        assert found.acls == [ACL]
        assert len(access_of(broker).authorizer) == 1
        assert access_of(broker).quotas.rate("producer_byte_rate", "alice") == 5.0


def test_a_refused_change_changes_nothing(broker: RunningBroker) -> None:
    authority = access_of(broker).authority
    bad = CreateAcls(acls=(ACL, Acl("alice", "READ", "TOPIC", "t")))
    with pytest.raises(InvalidRequestError):
        broker.await_(authority.propose(bad))
    assert not authority.machine.acls


# -- admission -------------------------------------------------------------------------------------

# Admission of requests, before their handlers.


def test_a_request_with_many_topics_does_not_hold_the_loop(broker: RunningBroker) -> None:
    """It takes as many steps that other connections can run in between."""
    access_of(broker).is_enforced = True
    count = limits.PARTITIONS_PER_REQUEST_MAX
    queries = [OffsetQuery(topic=f"t{n}", partition=0, at="latest") for n in range(count)]
    turns = broker.broker.connections.turns
    with (
        allowing(broker, Acl("User:alice", "DESCRIBE", "TOPIC", "t7")),
        acting(broker, "alice") as alice,
    ):
        asked, has_time = 0, turns.has_time

        def counted() -> bool:
            nonlocal asked
            asked += 1
            return has_time()

        turns.has_time = counted  # type: ignore[method-assign]
        answers = alice.ask(apis.LIST_OFFSETS, ListOffsetsRequest(queries=queries)).answers
    assert asked >= count / 256
    assert [answer.topic for answer in answers] == [query.topic for query in queries]
    denied = [
        answer for answer in answers if isinstance(error_of(answer), TopicAuthorizationFailedError)
    ]
    assert len(denied) == count - 1
