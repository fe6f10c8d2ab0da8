"""Authentication in the simulation: a user is created and deleted repeatedly while it produces.

A broker that has applied the deletion rejects all requests of the user. A broker that is isolated
from the majority applies the deletion later. A checked period therefore starts when all running
brokers have applied the deletion, and ends before the user is created again. No write that the user
starts and completes in this period may be acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.errors import RaftlogError, UnknownUserError, UserExistsError
from raftlog.security.acl import ANY, CLUSTER_NAME, Acl
from raftlog.testing.simulator.history import Outcome, Send, Violation
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.plans import ProducerPlan
from raftlog.testing.simulator.process import ClientMachine
from raftlog.testing.simulator.workload import (
    ADMINISTRATOR,
    PASSWORD,
    PATIENCE_S,
    TOPIC,
    USER,
    Workload,
    produce,
)
from raftlog.testing.simulator.world import CLUSTER_SECRET

REVOKED: Final = "revoked"  # name of the user, and of its machine
POLL_S: Final = 0.05  # interval of the checks whether all brokers have applied a deletion
STAY_S: Final = (0.3, 1.5)  # range of the time for which the user exists, and then does not exist
PLAN: Final = ProducerPlan(
    acks=-1,
    idempotent=True,
    compression="none",
    linger_ms=0,
    burst_max=1,
    pause_s=0.05,
    padding_max=0,
    many=0.0,
    waits=0.0,
    session_s=1e6,
    close_s=1.0,
    delivery_timeout_ms=6_000,
)


async def admit(workload: Workload, machine: ClientMachine) -> None:
    """Create the users of the workload and their access rules. Retries without a time limit."""
    admin = AsyncAdmin(
        workload.world.bootstrap,
        request_timeout_ms=2_000,
        client_id=machine.name,
        cluster_secret=CLUSTER_SECRET,
        host=machine.host(),
    )
    rules = [
        *(Acl(f"User:{USER}", "ALL", kind, ANY) for kind in ("TOPIC", "GROUP", "TRANSACTIONAL_ID")),
        Acl(f"User:{USER}", "ALL", "CLUSTER", CLUSTER_NAME),
        Acl(f"User:{REVOKED}", "WRITE", "TOPIC", TOPIC),
    ]
    await _persist(workload, lambda: admin.create_acls(rules))
    for name in (ADMINISTRATOR, USER):
        await _persist(workload, partial(admin.create_user, name, PASSWORD))
    await admin.close()


async def _persist(workload: Workload, change: Callable[[], Awaitable[object]]) -> bool:
    """Retry ``change`` until it has taken effect. Returns False if the workload ended before."""
    while not workload.is_over:
        try:
            await change()
        except (UserExistsError, UnknownUserError):
            return True
        except RaftlogError as error:
            workload.world.trace(f"users: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            return True
    return False


class Revoking:
    """The user that is created and deleted, and the client that creates and deletes it."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._revoked_ns: list[tuple[int, int]] = []  # the user exists on no running broker

    def start(self) -> None:
        self._workload.add("revoker", self._run)
        self._workload.add(REVOKED, partial(produce, self._workload, PLAN, user=REVOKED))

    async def _run(self, machine: ClientMachine) -> None:
        workload, random = self._workload, machine.random
        admin = workload.admin(machine)
        while await _persist(workload, lambda: admin.create_user(REVOKED, PASSWORD)):
            await asyncio.sleep(random.uniform(*STAY_S))
            other = workload.history.other(machine.name, "revoke")
            is_deleted = await _persist(workload, lambda: admin.delete_user(REVOKED))
            workload.history.end(other, Outcome.OK if is_deleted else Outcome.INFO)
            while self._is_known() and not workload.is_over:  # noqa: ASYNC110 - brokers have no event
                await asyncio.sleep(POLL_S)
            since_ns = workload.world.time.now_ns
            await asyncio.sleep(random.uniform(*STAY_S))
            if not self._is_known():  # a creation with unknown outcome may take effect late
                self._revoked_ns.append((since_ns, workload.world.time.now_ns))
        await admin.close()

    def _is_known(self) -> bool:
        """Return whether the user exists on a running broker."""
        nodes = map(node_of, self._workload.world.brokers)
        return any(REVOKED in node.machine.users for node in nodes if node is not None)

    def violations(self) -> list[Violation]:
        """Return the acknowledged writes that the user started and completed while deleted."""
        return [
            Violation("REVOKED", f"{entry.process} wrote {entry.value} after its user was deleted")
            for entry in self._workload.history.operations
            if isinstance(entry, Send) and entry.is_ok and entry.process.startswith(f"{REVOKED}/")
            if any(
                since <= entry.invoked_ns and entry.completed_ns <= until
                for since, until in self._revoked_ns
            )
        ]
