"""``describe_users`` and ``alter_users``: the users of the cluster and their SCRAM credentials.

A client sends the keys of a new credential, and no password.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from raftlog import limits
from raftlog.protocol.schema import Failure, Message
from raftlog.security.users import SCRAM_MECHANISMS, Credentials, Mechanism

_User = Annotated[str, Meta(min_length=1, max_length=limits.PRINCIPAL_NAME_CHARS_MAX)]


class DescribeUsersRequest(Message):
    """Request these users, or all of them. Names that no user has are left out of the response."""

    users: Annotated[list[_User], Meta(max_length=limits.USERS_PER_REQUEST_MAX)] | None = None


class UserDescription(Message):
    """A user. ``iterations``: of its SCRAM credentials, by mechanism."""

    name: _User
    iterations: dict[Mechanism, int]


class DescribeUsersResponse(Message):
    """Users, sorted by name."""

    users: Annotated[list[UserDescription], Meta(max_length=limits.USERS_PER_CLUSTER_MAX)]


class UserAlteration(Message):
    """Set ``credentials`` of a user, or delete those of the mechanisms ``delete``.

    ``expected``: "absent" or "present" to set credentials only of a new or an existing user.
    """

    name: _User
    credentials: Credentials = {}
    delete: Annotated[list[Mechanism], Meta(max_length=len(SCRAM_MECHANISMS))] = []
    expected: Literal["any", "absent", "present"] = "any"


class AlterUsersRequest(Message):
    """Change users, one after the other. Each has a separate result."""

    users: Annotated[list[UserAlteration], Meta(max_length=limits.USERS_PER_REQUEST_MAX)]


class UserResult(Message):
    """Result for one user. ``failure``: None if the change is committed."""

    name: _User
    failure: Failure | None = None


class AlterUsersResponse(Message):
    """Results, in the order of the request."""

    results: Annotated[list[UserResult], Meta(max_length=limits.USERS_PER_REQUEST_MAX)]
