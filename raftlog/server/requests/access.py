"""Selection and deletion of access rules."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final

from raftlog import limits
from raftlog.replication.cluster_commands import DeleteAcls
from raftlog.security.acl import Acl, AclFilter
from raftlog.server.context import BrokerContext

SELECTED_PER_STEP: Final = 2_000  # comparisons of a rule with a filter


def select_acls(
    context: BrokerContext, filters: Sequence[AclFilter]
) -> Generator[None, Any, list[Acl]]:
    """Return the rules that any of the filters selects, sorted; a few in each step."""
    found: set[Acl] = set()
    acls, compared = tuple(context.access.authority.machine.acls), 0
    for chosen in filters:
        for acl in acls:
            if chosen.selects(acl):
                found.add(acl)
            compared += 1
            if compared % SELECTED_PER_STEP == 0:
                yield None
    return sorted(found)


async def delete_acls(context: BrokerContext, acls: Sequence[Acl]) -> list[Acl]:
    """Delete rules. Returns those that existed; all of them if this broker has no vote."""
    gone: list[Acl] = []
    for part in _parts(acls, limits.ACLS_PER_REQUEST_MAX):
        deleted = await context.access.authority.propose(DeleteAcls(acls=part))
        gone += part if deleted is None else deleted
    return gone


def _parts(acls: Sequence[Acl], size: int) -> Iterator[tuple[Acl, ...]]:
    """Return the rules in parts of at most ``size``."""
    for start in range(0, len(acls), size):
        yield tuple(acls[start : start + size])
