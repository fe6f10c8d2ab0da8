"""A broker that is nothing but its end, for tests of what starts and ends brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from raftlog.errors import DataDirectoryError
from raftlog.testing.simulator.world import BrokerMachine, World


class Echo:
    """Listens, and writes to its disk whatever it is asked to."""

    def __init__(self, machine: BrokerMachine) -> None:
        self.machine = machine
        self.stopped = False

    def write(self, data: bytes, *, sync: bool) -> None:
        disk = self.machine.disk
        disk.make_dirs("d")
        file = disk.open("d/file", create=True)
        file.append([data])
        if sync:
            disk.sync_dir("d")
            file.sync()

    async def stop(self) -> None:
        self.stopped = True
        await asyncio.sleep(0.1)


async def make_echo(machine: BrokerMachine) -> Echo:
    """A broker that starts, in some time."""
    await asyncio.sleep(0.1)
    await machine.loop.create_server(asyncio.Protocol, sock=machine.listening())
    return Echo(machine)


def failing(times: int) -> Callable[[BrokerMachine], Any]:
    """Starts a broker that does not start so many times."""
    left = [times]

    async def make(machine: BrokerMachine) -> Echo:
        if left[0]:
            left[0] -= 1
            raise DataDirectoryError("not yet")
        return await make_echo(machine)

    return make


def world_of(brokers: int = 1, *, seed: int = 0, **settings: Any) -> World:
    """A world with such brokers, all of them up."""
    world = World(seed, brokers=brokers, **{"make_broker": make_echo, **settings})
    world.boot()
    return world


def broker_of(machine: BrokerMachine) -> Echo:
    assert isinstance(machine.broker, Echo)
    return machine.broker


def content(machine: BrokerMachine) -> bytes:
    """What a restart finds."""
    if not machine.disk.exists("d/file"):
        return b""
    return machine.disk.read_file("d/file", bytes_max=1_000)
