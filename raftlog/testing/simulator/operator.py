"""The operator of a simulated cluster: recovers it after the loss of a majority of its disks."""

from __future__ import annotations

import asyncio
from typing import Final

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.client.descriptions import RecoveryDescription
from raftlog.errors import RaftlogError
from raftlog.testing.simulator.observer import node_of
from raftlog.testing.simulator.process import BrokerMachine, ClientMachine
from raftlog.testing.simulator.world import CLUSTER_SECRET, World

PAUSE_S: Final = 1.0  # between two attempts
PATIENCE_S: Final = 20.0  # timeout of one attempt: the broker may have no power


async def recover(world: World, machine: ClientMachine) -> bool:
    """Run ``raftlog cluster recover`` until every partition has a leader.

    Only for clusters in which an in-sync replica of each partition remains: then no record is lost,
    even if the brokers cannot determine this. The operator accepts a loss only while all brokers
    are connected to each other, because a disconnected or restarted broker may store the records.
    Returns whether there was a loss to accept.
    """
    has_accepted = False
    while True:
        async with AsyncAdmin(
            world.bootstrap,
            request_timeout_ms=2_000,
            client_id=machine.name,
            cluster_secret=CLUSTER_SECRET,
            host=machine.host(),
        ) as admin:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    done = await admin.recover_cluster(dry_run=True)
                    if _are_all_there(world):
                        accepted = done.loss_id or False
                        has_accepted |= bool(accepted)
                        done = await admin.recover_cluster(lost=done.lost, accept_loss=accepted)
            except (RaftlogError, TimeoutError) as error:
                world.trace(f"{machine.name}: recovery failed: {error!r}")
            else:
                world.trace(f"{machine.name}: recovered: {done}")
                if _is_whole(done):
                    return has_accepted
        await asyncio.sleep(PAUSE_S)


def _are_all_there(world: World) -> bool:
    is_cut = any(
        {*link} <= {machine.name for machine in world.members} for link in world.network.cuts
    )
    return not is_cut and all(_is_connected(world, machine) for machine in world.members)


def _is_connected(world: World, machine: BrokerMachine) -> bool:
    node = node_of(machine)
    return node is not None and all(
        node.liveness.is_linked(other.broker_id) for other in world.members
    )


def _is_whole(done: RecoveryDescription) -> bool:
    return not done.needs_loss and all(
        part.leader is not None and not part.problem for part in done.partitions
    )
