"""Users of the cluster: find, set credentials, delete."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from raftlog.replication.cluster_commands import DeleteUser, PutUser
from raftlog.security.users import Mechanism, ScramCredential, User, check_user_name
from raftlog.server.connection import Connection
from raftlog.server.context import BrokerContext

logger = logging.getLogger(__name__)


def check_allowed(context: BrokerContext, connection: Connection, what: str) -> None:
    """Raise ``AccessDeniedError`` unless the connection may see and change users.

    While clients need not authenticate, that requires the cluster secret.
    """
    if not (context.config.authentication_required and connection.is_authenticated):
        context.check_operator(connection, what)


def find(context: BrokerContext, names: Sequence[str] | None) -> Iterator[User]:
    """Return these users, or all of them, sorted by name."""
    users = dict(context.clustered().machine.users)
    wanted = users if names is None else set(names) & users.keys()
    return (users[name] for name in sorted(wanted))


async def put(
    context: BrokerContext,
    name: str,
    credentials: Mapping[Mechanism, ScramCredential],
    *,
    expected: Literal["any", "absent", "present"],
) -> None:
    """Set credentials of a user: see ``PutUser``. Returns once this broker uses them."""
    command = PutUser(
        name=check_user_name(name),
        credentials=dict(credentials),
        expected=expected,
        secret=context.entropy(32),
    )
    await context.clustered().topics.propose(command)
    logger.info("user changed: user=%s mechanisms=%s", name, ",".join(sorted(credentials)))


async def delete(context: BrokerContext, name: str, mechanisms: Sequence[Mechanism]) -> None:
    """Delete credentials of a user, and the user with its last one."""
    await context.clustered().topics.propose(DeleteUser(name=name, mechanisms=tuple(mechanisms)))
    logger.info("user deleted: user=%s mechanisms=%s", name, ",".join(mechanisms))
