"""Users of the cluster, for `Admin`: the client computes credentials, and sends no password."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from raftlog.client.cluster import Cluster
from raftlog.protocol import api as apis
from raftlog.protocol.users import (
    AlterUsersRequest,
    AlterUsersResponse,
    DescribeUsersRequest,
    DescribeUsersResponse,
    UserAlteration,
)
from raftlog.security.users import SCRAM_MECHANISMS, Mechanism, check_user_name


@dataclass(frozen=True, slots=True)
class UserListing:
    """A user. ``mechanisms``: those by which it can authenticate."""

    name: str
    mechanisms: tuple[Mechanism, ...]


async def list_users(cluster: Cluster) -> list[UserListing]:
    answer = await cluster.call(apis.DESCRIBE_USERS, DescribeUsersRequest())
    assert isinstance(answer, DescribeUsersResponse)
    return [UserListing(user.name, tuple(sorted(user.iterations))) for user in answer.users]


async def put_user(
    cluster: Cluster,
    name: str,
    password: str,
    entropy: Callable[[int], bytes],
    *,
    expected: Literal["absent", "present"],
) -> None:
    """Set the credentials of a user. Raises ``InvalidRequestError`` for a name or a password that
    is not valid.
    """
    from raftlog.security.scram import make_credentials

    check_user_name(name)
    credentials = await asyncio.to_thread(make_credentials, password, entropy)  # 10 ms of CPU
    await _alter_user(
        cluster, UserAlteration(name=name, credentials=credentials, expected=expected)
    )


async def delete_user(cluster: Cluster, name: str) -> None:
    listed = await list_users(cluster)
    mechanisms = [each for user in listed if user.name == name for each in user.mechanisms]
    change = UserAlteration(name=name, delete=mechanisms or list(SCRAM_MECHANISMS))
    await _alter_user(cluster, change)


async def _alter_user(cluster: Cluster, change: UserAlteration) -> None:
    """Make the change. Raises its error."""

    async def attempt() -> None:
        connection = await cluster.any_connection()
        answer = await cluster.ask(connection, apis.ALTER_USERS, AlterUsersRequest(users=[change]))
        assert isinstance(answer, AlterUsersResponse)
        for result in answer.results:
            if result.failure is not None:
                raise result.failure.to_error()

    await cluster.persist(attempt, repeatable=False)
