"""Rules and quotas of a broker without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from raftlog.errors import DiskFullError, InvalidRequestError
from raftlog.protocol import api as apis
from raftlog.protocol import security
from raftlog.replication.cluster_commands import CreateAcls
from raftlog.security.acl import Acl
from tests.server.access.acting import access_of, acting, guarded
from tests.server.harness import FaultyDisk, RunningBroker

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


def test_a_change_that_cannot_be_stored_does_not_apply(
    broker: RunningBroker, disk: FaultyDisk
) -> None:
    access = access_of(broker)
    disk.faults.no_room = True
    with pytest.raises(DiskFullError):
        broker.await_(access.authority.propose(CreateAcls(acls=(ACL,))))
    assert len(access.authorizer) == 0
    disk.faults.no_room = False
    broker.await_(access.authority.propose(CreateAcls(acls=(ACL,))))
    assert len(access.authorizer) == 1
