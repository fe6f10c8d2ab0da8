"""Operations on a ``partition_world`` by chance: a seed is a run, and the same one every time.

Each run has its own kinds of faults (swarm testing), so that some are long and quiet and in others
everything goes wrong at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from tests.replication.partition_world import World

Operation = Callable[[World, Random], None]


def _broker(world: World, chance: Random) -> int:
    return chance.choice(list(world.nodes))


def _leader(world: World, chance: Random) -> int:
    """Mostly one that leads, at times a deposed one."""
    leading = [node.id for node in world.nodes.values() if node.leadership is not None]
    return chance.choice(leading) if leading else 1


def _hear_all(world: World, chance: Random) -> None:
    for broker in world.nodes:
        while world.nodes[broker].is_up and world.nodes[broker].heard < len(world.history) - 1:
            world.hear(broker)


def _agree(world: World, chance: Random) -> None:
    """Everything proposed is decided, told and heard."""
    while world.proposals:
        world.decide(0)
    while world.outcomes:
        world.tell_outcome(0)
    _hear_all(world, chance)


def _copy_all(world: World, chance: Random) -> None:
    for broker in world.nodes:
        world.exchange(broker)
        world.sync(broker)
        world.exchange(broker)


def _suspect(world: World, chance: Random) -> None:
    world.suspected = {broker for broker in world.nodes if chance.random() < 0.3}


def _trust(world: World, chance: Random) -> None:
    world.suspected = set()


def _fail_over(world: World, chance: Random) -> None:
    """The leader is thought dead (and may be alive), another one takes over.

    What was under way stays under way: all have just synced and fetched.
    """
    for broker in world.nodes:
        world.sync(broker)
        world.fetch(broker)
    leader = world.state.leader
    if leader is not None:
        world.suspected.add(leader)
        arbiter = _broker(world, chance)
        world.hear(arbiter, skip=len(world.history))
        world.elect(arbiter)
        world.decide(len(world.proposals) - 1)
        for broker in world.nodes:
            if chance.random() < 0.5:
                world.hear(broker, skip=len(world.history))


def _drop_and_add(world: World, chance: Random) -> None:
    """A replica is dropped, deletes its copy and is added again, before others have heard of it."""
    arbiter = _broker(world, chance)
    for _ in range(2):
        world.hear(arbiter, skip=len(world.history))
        before = world.state
        world.swap_roles(arbiter, chance.randrange(9), -1)
        world.decide(len(world.proposals) - 1)
        for broker in set(before.replicas) - set(world.state.replicas):
            world.hear(broker, skip=len(world.history))


def _elect(world: World, chance: Random) -> None:
    arbiter = _broker(world, chance)
    world.hear(arbiter, skip=len(world.history))
    world.elect(arbiter)


def _restart(world: World, chance: Random) -> None:
    down = [broker for broker, node in world.nodes.items() if not node.is_up]
    if down:
        world.restart(chance.choice(down), forgets=chance.choice((0, 0, 1, 2, 5, 99)))


def _heal(world: World, chance: Random) -> None:
    """Nearly everything works again for a while."""
    _trust(world, chance)
    for broker in world.nodes:
        if chance.random() < 0.8:
            world.restart(broker)
        world.register(broker)
    _agree(world, chance)
    for _ in range(3):
        _elect(world, chance)
        _agree(world, chance)
        for broker in world.nodes:
            world.give_up(broker)
            _agree(world, chance)
        _copy_all(world, chance)
        world.review_isr(_leader(world, chance))
        _agree(world, chance)


def _set_min_isr(world: World, chance: Random) -> None:
    world.min_isr = chance.randint(1, world.replication_factor)


ALWAYS: dict[str, tuple[int, Operation]] = {
    "append": (12, lambda w, c: w.append(_leader(w, c), c.randint(1, 2))),
    "sync": (10, lambda w, c: w.sync(_broker(w, c), c.choice((0, 0, 0, 1)))),
    "fetch": (10, lambda w, c: w.fetch(_broker(w, c))),
    "deliver": (14, lambda w, c: w.deliver(c.randrange(40))),
    "deliver_and_repeat": (3, lambda w, c: w.deliver(c.randrange(40), again=True)),
    "exchange": (10, lambda w, c: w.exchange(_broker(w, c))),
    "hear": (10, lambda w, c: w.hear(_broker(w, c), c.choice((0, 0, 0, 1, 9)))),
    "review_isr": (4, lambda w, c: w.review_isr(_leader(w, c), c.choice((0.0, 1.0, 6.0)))),
    "decide": (5, lambda w, c: w.decide(c.randrange(40))),
    "tell_outcome": (4, lambda w, c: w.tell_outcome(c.randrange(40))),
    "elect": (2, _elect),
    "agree": (2, _agree),
    "fail_over": (3, _fail_over),
    "copy_all": (2, _copy_all),
    "trust": (2, _trust),
    "restart": (6, _restart),
    "heal": (2, _heal),
    "give_up": (3, lambda w, c: w.give_up(_broker(w, c))),
    "register": (2, lambda w, c: w.register(_broker(w, c))),
}
FAULTS: dict[str, tuple[int, Operation]] = {
    "suspect": (3, _suspect),
    "crash": (3, lambda w, c: w.crash(_broker(w, c))),
    "power_cut": (4, lambda w, c: w.power_cut(_broker(w, c), c.randint(0, 3))),
    "wipe": (3, lambda w, c: w.wipe(_broker(w, c))),
    "damage": (2, lambda w, c: w.damage(_broker(w, c))),
    "forget_outcome": (3, lambda w, c: w.forget_outcome(c.randrange(40))),
    "lose_proposal": (2, lambda w, c: w.lose_proposal(c.randrange(40))),
    "trim": (2, lambda w, c: w.trim(_leader(w, c), c.randrange(40))),
    "set_min_isr": (3, _set_min_isr),
    "swap_roles": (2, lambda w, c: w.swap_roles(_broker(w, c), c.randrange(9), c.randrange(9))),
    "drop_and_add": (2, _drop_and_add),
    "replace_replica": (2, lambda w, c: w.replace_replica(_broker(w, c))),
    "transfer": (2, lambda w, c: w.transfer(_broker(w, c), _broker(w, c))),
}


def converge(world: World) -> None:
    """Every fault ends. What the cluster needs then has to come by itself, in a few rounds."""
    chance = Random(0)
    world.messages = []
    for broker in world.nodes:
        world.restart(broker)
        world.register(broker)
    for _ in range(2 * len(world.nodes) + 4):
        _heal(world, chance)
        for _ in range(max(node.end for node in world.nodes.values())):
            _copy_all(world, chance)
        world.replace_replica(chance.choice(list(world.nodes)))
        for broker in world.nodes:
            world.review_isr(broker, seconds=1.0)
        _agree(world, chance)
        world.check()


def run(
    seed: int, steps: int, make_world: type[World] = World, faults: Iterable[str] = ()
) -> World:
    """One run. Raises AssertionError where a promise is broken.

    ``faults``: those that happen, and often; without any, chance decides which.
    """
    chance = Random(seed)
    replicas = chance.choice((2, 2, 3, 3, 3))
    world = make_world(replicas, chance.choice((0, 1, 2)), chance.randint(1, replicas))
    share = chance.choice((0.2, 0.4, 0.7))
    rows = [row for row in FAULTS.values() if chance.random() < share]
    if faults:
        rows = [(3 * weight, fault) for weight, fault in (FAULTS[name] for name in faults)]
    table = [*ALWAYS.values(), *rows]
    weights = [weight * chance.choice((0.1, 0.5, 1, 3)) for weight, _ in table]
    for operation in chance.choices([operation for _, operation in table], weights, k=steps):
        operation(world, chance)
        world.check()
    return world
