"""First user of a new cluster: created once, from the credentials that its brokers start with."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from raftlog.errors import RaftlogError, UserExistsError
from raftlog.replication.cluster_commands import PutUser
from raftlog.replication.cluster_state import ClusterMachine
from raftlog.server.cluster.administration import ClusterTopics
from raftlog.server.workers import Workers

logger = logging.getLogger(__name__)


class PlainCredentials(NamedTuple):
    """A user and its password, as an operator configures them."""

    name: str
    password: str

    def __repr__(self) -> str:
        return f"PlainCredentials(name={self.name!r}, password=(hidden))"


class FirstUser:
    """Proposes the first user until the cluster has had one; then it forgets the password."""

    def __init__(
        self,
        credentials: PlainCredentials | None,
        machine: ClusterMachine,
        topics: ClusterTopics,
        worker: Workers,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._credentials = credentials
        self._machine = machine
        self._topics = topics
        self._worker = worker
        self._entropy = entropy
        self._task: asyncio.Task[None] | None = None

    def poll(self) -> None:
        """Propose the user if it is missing. Called while this broker has the current state."""
        if self._machine.user_secret:
            self._credentials = None
        if self._credentials is not None and (self._task is None or self._task.done()):
            self._task = asyncio.ensure_future(self._create(self._credentials))

    async def stop(self) -> None:
        """Cancel a proposal in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _create(self, credentials: PlainCredentials) -> None:
        from raftlog.security.scram import make_credentials

        try:
            made = await self._worker.run(
                partial(make_credentials, credentials.password, self._entropy)
            )
            await self._topics.propose(
                PutUser(
                    name=credentials.name,
                    credentials=made,
                    expected="never",
                    secret=self._entropy(32),
                )
            )
        except UserExistsError:
            self._credentials = None  # of another broker
        except RaftlogError as error:
            logger.warning("first user not created yet: user=%s error=%s", credentials.name, error)
            await asyncio.sleep(1.0)
        else:
            logger.info("first user created: user=%s", credentials.name)
