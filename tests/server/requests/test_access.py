"""Selection and deletion of access rules."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from raftlog import limits
from raftlog.replication.cluster_commands import DeleteAcls
from raftlog.security.acl import Acl, AclFilter
from raftlog.server.apis.security import SELECTED_PER_STEP, delete_acls, select_acls
from tests.server.harness import finished

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
