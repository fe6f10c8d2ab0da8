"""Users of the cluster, for `Admin`: the client computes credentials, and sends no password."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftlog.client.cluster import Cluster
from raftlog.protocol import api as apis
from raftlog.protocol.users import (
    AlterUsersRequest,
    AlterUsersResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    UserAlteration,
)
from raftlog.security.users import Credentials, Mechanism


@dataclass(frozen=True, slots=True)
class UserListing:
    """A user. ``mechanisms``: those by which it can authenticate."""

    name: str
    mechanisms: tuple[Mechanism, ...]


def credentials_of(password: str, entropy: Callable[[int], bytes]) -> Credentials:
    """Return the credentials of a password. Takes about 10 ms of CPU.

    Raises ``InvalidRequestError`` if the password is not valid.
    """
    from raftlog.security.scram import make_credentials

    return make_credentials(password, entropy)


async def list_users(cluster: Cluster) -> list[UserListing]:
    answer = await cluster.call(apis.DESCRIBE_USERS, DescribeUsersRequest())
    assert isinstance(answer, DescribeUsersResponse)
    return [UserListing(user.name, tuple(sorted(user.iterations))) for user in answer.users]


async def alter_user(cluster: Cluster, change: UserAlteration) -> None:
    """Make the change. Raises its error."""

    async def attempt() -> None:
        connection = await cluster.any_connection()
        answer = await cluster.ask(connection, apis.ALTER_USERS, AlterUsersRequest(users=[change]))
        assert isinstance(answer, AlterUsersResponse)
        for result in answer.results:
            if result.failure is not None:
                raise result.failure.to_error()

    await cluster.persist(attempt, repeatable=False)
