"""Fields ``authorized_operations`` of responses: what the client may do (KIP-430)."""

from __future__ import annotations

from typing import Final

from raftlog.security.acl import CLUSTER_NAME, OPERATIONS, OPERATIONS_OF, ResourceType
from raftlog.server.access.control import AccessControl, Caller, Client

NOT_REQUESTED: Final = -(1 << 31)
# Each operation has the bit of its number in Kafka.
_BITS: Final = {operation: 1 << number for number, operation in enumerate(OPERATIONS, start=2)}


class AuthorizedOperations:
    """Computes the fields of one response."""

    def __init__(self, access: AccessControl, client: Client, *, is_requested: bool) -> None:
        """``is_requested``: otherwise the fields have the value for that."""
        self._is_requested = is_requested
        self._caller = Caller(access, client) if access.is_enforced else None

    def of(self, resource_type: ResourceType, name: str = CLUSTER_NAME) -> int:
        """Return the bits of what the client may do; none if it may not describe the resource."""
        if not self._is_requested:
            return NOT_REQUESTED
        caller = self._caller
        permitted = OPERATIONS_OF[resource_type] - {"ALL"}
        if caller is not None:
            if not caller.may("DESCRIBE", resource_type, name):
                return 0
            return sum(_BITS[one] for one in permitted if caller.may(one, resource_type, name))
        return sum(_BITS[each] for each in permitted)
