"""Access control: the rules and quotas of the cluster state, as the requests of clients meet them.

``AccessControl`` has them indexed. A ``Caller`` is the client of one request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from raftlog import limits
from raftlog.errors import (
    AccessDeniedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    ThrottledError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    counted,
)
from raftlog.replication.cluster_state import ClusterChange
from raftlog.security.acl import (
    CLUSTER_NAME,
    Authorizer,
    Decision,
    Operation,
    Principal,
    Question,
    ResourceType,
)
from raftlog.security.producer_ids import NAMED_ID_BASE, is_owner, named_id
from raftlog.security.quota import Quotas
from raftlog.server.cluster.topics import ClusterTopics
from raftlog.server.connection import Connection, Meter
from raftlog.types import NO_PRODUCER_ID

_ERRORS: Final[dict[ResourceType, type[AccessDeniedError]]] = {
    "TOPIC": TopicAuthorizationFailedError,
    "GROUP": GroupAuthorizationFailedError,
    "CLUSTER": ClusterAuthorizationFailedError,
    "TRANSACTIONAL_ID": TransactionalIdAuthorizationFailedError,
}
_MAPPED: Final = "::ffff:"  # an IPv4 address, as an IPv6 socket has it


class AccessControl:
    """Access rules and quotas of a broker. Follows the committed changes."""

    def __init__(
        self,
        authority: ClusterTopics,
        *,
        is_enforced: bool,
        super_users: Iterable[str],
        now: Callable[[], float],
    ) -> None:
        """``is_enforced``: whether clients authenticate. Otherwise, they may do everything.

        ``now``: monotonic seconds.
        """
        self.authority = authority
        self.is_enforced = is_enforced
        self.authorizer = Authorizer(map(Principal.parse, super_users))
        self.quotas = Quotas()
        self._now = now
        self._has_quotas = False
        self._users: dict[Connection, str] = {}  # of the counted connections
        self._counts: Counter[str] = Counter()  # of connections, by user

    def applies_to(self, connection: Connection) -> bool:
        """Whether rules or quotas apply to the requests of a connection. They do not to other
        brokers.
        """
        return (self.is_enforced or self._has_quotas) and connection.peer_identity is None

    def may_connect(self, connection: Connection) -> bool:
        """Count a new connection. Returns False if its address opens too many."""
        return self.quotas.connect(host_of(connection), self._now())

    def measure(self, connection: Connection) -> Meter | None:
        """Return the meter of a connection, for its client as it is known now; None without
        quotas.

        Raises ``ThrottledError`` if the user has too many connections.
        """
        if not self._has_quotas:
            connection.meter = None
            return None
        meter = connection.meter
        if meter is None:
            meter = connection.meter = Meter(self.quotas, self._now)
        meter.user, meter.client_id = connection.principal.name, connection.client_id
        self._count(connection, meter.user)
        return meter

    def _count(self, connection: Connection, user: str) -> None:
        if self._users.get(connection) == user or not self.quotas.has("connections"):
            return
        self.forget(connection)
        limit = self.quotas.rate("connections", user)
        # guard: the connections of a user are limited by its quota
        if limit is not None and self._counts[user] >= limit:
            raise ThrottledError(
                f"user {user} has {counted(self._counts[user], 'connection')} to this broker, and "
                "its quota "
                f"is {limit:g}. Close some, or increase the quota with `raftlog quota set`"
            )
        self._users[connection] = user
        self._counts[user] += 1

    def forget(self, connection: Connection) -> None:
        """Stop to count a connection, which has ended."""
        user = self._users.pop(connection, None)
        if user is not None:
            self._counts[user] -= 1
            if not self._counts[user]:
                del self._counts[user]

    def changed(self, change: ClusterChange) -> None:
        """Follow a committed change."""
        machine = self.authority.machine
        for acl in change.acls:
            if acl in machine.acls:
                self.authorizer.add(acl)
            else:
                self.authorizer.remove(acl)
        for entity in change.quotas:
            self.quotas.put(entity, machine.quotas.get(entity, {}))
        self._has_quotas = bool(machine.quotas)


class Client(Protocol):
    """Who sends a request. ``is_operator``: it has proved that it knows the cluster secret."""

    @property
    def principal(self) -> Principal: ...
    @property
    def peer_host(self) -> str: ...
    @property
    def is_operator(self) -> bool: ...


def host_of(client: Client) -> str:
    """Return the client's IP address, in the form that rules and quotas have."""
    return client.peer_host.removeprefix(_MAPPED)


class Caller:
    """The client of one request, as access rules see it."""

    __slots__ = ("_control", "_is_operator", "_questions", "denied", "host", "principal")

    def __init__(self, control: AccessControl, client: Client) -> None:
        self._control = control
        self.principal = client.principal
        self.host = host_of(client)
        self.denied: list[str] = []  # operations that were denied, and their resources; the first
        self._is_operator = client.is_operator
        self._questions: dict[tuple[Operation, ResourceType], Question] = {}

    def _question(self, operation: Operation, resource_type: ResourceType) -> Question:
        key = (operation, resource_type)
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = self._control.authorizer.question(
                self.principal, self.host, operation, resource_type
            )
        return question

    def may(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether the client may do ``operation`` with a resource."""
        return self.decide(operation, resource_type, name).is_allowed

    def decide(self, operation: Operation, resource_type: ResourceType, name: str) -> Decision:
        """Return the decision. A client that has proved the cluster secret may do everything with
        the cluster, and describe what it contains.
        """
        # guard: a proof of the cluster secret permits nothing but the cluster
        if self._is_operator and (resource_type == "CLUSTER" or operation == "DESCRIBE"):
            return Decision(is_allowed=True)
        return self._question(operation, resource_type).decide(name)

    def may_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the client may do ``operation`` with a resource of any name."""
        return self._question(operation, resource_type).decide_any().is_allowed

    def denial(
        self, operation: Operation, resource_type: ResourceType, name: str
    ) -> AccessDeniedError | None:
        """Return the error if the client may not do ``operation`` with a resource; else None."""
        decision = self.decide(operation, resource_type, name)
        if decision.is_allowed:
            return None
        self._note(f"{operation} {resource_type} {name}")
        what = "the cluster" if resource_type == "CLUSTER" else f"{resource_type} {name[:249]!r}"
        return _ERRORS[resource_type](
            f"{self.principal} may not {operation} {what}. An administrator can allow it with "
            "`raftlog acl create`"
        )

    def _note(self, denied: str) -> None:
        if len(self.denied) < limits.AUDIT_RESOURCES_MAX:
            self.denied.append(denied)

    def require(self, operation: Operation, resource_type: ResourceType, name: str) -> None:
        """Raise the error if the client may not do ``operation`` with a resource."""
        denial = self.denial(operation, resource_type, name)
        if denial is not None:
            raise denial

    def require_of_cluster(self, operation: Operation) -> None:
        self.require(operation, "CLUSTER", CLUSTER_NAME)

    def check_producer_id(self, producer_id: int, name: str = "") -> None:
        """Raise if the client may not write batches under ``producer_id``.

        ``name``: of a named producer, for which the client may write.
        """
        if producer_id == NO_PRODUCER_ID:
            return
        if producer_id >= NAMED_ID_BASE:
            is_own = bool(name) and named_id(name) == producer_id
        else:
            is_own = is_owner(self.principal, producer_id)
        # guard: a batch has the producer id of its client
        if not is_own:
            self._note(f"WRITE producer id {producer_id}")
            raise TransactionalIdAuthorizationFailedError(
                f"producer id {producer_id} does not belong to {self.principal}. Request an id "
                "from the broker with the same user, and write under a name with a raftlog client"
            )
