"""Worlds of simulated consensus for tests. No assertions about them here."""

from __future__ import annotations

from typing import Final

from raftlog.testing.simulator.consensus import Process, World, first_directory

GROUP: Final = "g0"


def world_of(brokers: int = 3, *, seed: int = 1, started: bool = True) -> World:
    voters = {number: first_directory(number) for number in range(1, brokers + 1)}
    world = World(seed, brokers, {GROUP: voters})
    if started:
        for broker in world.brokers.values():
            world.start(broker)
        world.run_until(5.0)
    return world


def process_of(world: World, number: int) -> Process:
    process = world.brokers[number].process
    if process is None:
        raise LookupError(f"broker {number} is not running")
    return process
