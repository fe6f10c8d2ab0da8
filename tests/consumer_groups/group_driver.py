"""What may happen to a group: one function each, and how often. Chance is an argument."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from raftlog.consumer_groups import AWAY_EPOCH, LEAVE_EPOCH, TopicInfo
from raftlog.consumer_groups.values import Part
from tests.consumer_groups.group_world import Actor, World

Operation: TypeAlias = Callable[[World, Random], None]

ACTORS_MAX = 6
SUBSCRIPTIONS = (("a",), ("a", "b"), ("a", "b"), ("a", "b"), ("b",))


def living(world: World) -> list[Actor]:
    return [actor for actor in world.actors if actor.is_running and not actor.is_over]


def join(world: World, random: Random) -> None:
    if len([actor for actor in world.actors if not actor.is_over]) >= ACTORS_MAX:
        return
    world.names += 1
    actor = Actor(
        id=f"m{world.names}",
        topics=random.choice(SUBSCRIPTIONS),
        instance_id=random.choice((None, None, "i1", "i2")),
        assignor=random.choice((None, None, "uniform", "range")),
        rebalance_timeout_ms=random.choice((1_000, 30_000)),
    )
    world.actors.append(actor)
    world.send(actor)


def beat(world: World, random: Random) -> None:
    if actors := living(world):
        world.send(random.choice(actors))


def release_and_beat(world: World, random: Random) -> None:
    if actors := living(world):
        actor = random.choice(actors)
        world.release(actor, random.randint(1, 4))
        world.send(actor)


def deliver(world: World, random: Random) -> None:
    if world.requests:
        world.deliver(*world.requests.pop(0))


def deliver_late(world: World, random: Random) -> None:
    if world.requests:
        world.deliver(*world.requests.pop(random.randrange(len(world.requests))))


def deliver_again(world: World, random: Random) -> None:
    """One that was delivered before, or was thought to be lost."""
    if world.sent:
        world.deliver(*random.choice(world.sent))


def deliver_stale(world: World, random: Random) -> None:
    """One that could be taken for a release, by who looks at its epoch alone."""
    members = world.members
    stale = [
        (actor, heartbeat)
        for actor, heartbeat in world.sent
        if actor.id in members
        and heartbeat.member_epoch == members[actor.id].epoch
        and members[actor.id].revoking
    ]
    if stale:
        world.deliver(*random.choice(stale))


def lose_request(world: World, random: Random) -> None:
    if world.requests:
        world.requests.pop(random.randrange(len(world.requests)))


def answer_parked(world: World, random: Random) -> None:
    if world.parked:
        world._answer_parked(random.choice(sorted(world.parked)))


def hear(world: World, random: Random) -> None:
    noted = [answer for answer in world.answers if answer.log_end <= world.committed]
    if noted:
        answer = random.choice(noted)
        world.answers.remove(answer)
        world.hear(answer)


def lose_answer(world: World, random: Random) -> None:
    if world.answers:
        world.answers.pop(random.randrange(len(world.answers)))


def commit_log(world: World, random: Random) -> None:
    world.commit_log()


def round_trip(world: World, random: Random) -> None:
    """All goes as it should, for once."""
    for actor in living(world):
        world.release(actor, 9)
        world.send(actor)
    while world.requests:
        world.deliver(*world.requests.pop(0))
    world.commit_log()
    world.hear_all()


def pass_time(world: World, random: Random) -> None:
    world.now += random.choice((0.1, 0.5, 2.0, 5.0, 11.0))
    for actor in living(world):
        actor.check_session(world.now)
    if random.random() < 0.9:
        world.tick()


def pause(world: World, random: Random) -> None:
    if actors := living(world):
        random.choice(actors).is_running = False


def resume(world: World, random: Random) -> None:
    paused = [actor for actor in world.actors if not actor.is_running and not actor.is_over]
    if paused:
        actor = random.choice(paused)
        actor.is_running = True
        actor.check_session(world.now)
        world.send(actor)


def die(world: World, random: Random) -> None:
    """It goes without a word, and does not come back. (What it owned it reads no more.)"""
    if actors := living(world):
        actor = random.choice(actors)
        actor.is_over, actor.is_running = True, False


def leave(world: World, random: Random) -> None:
    if actors := living(world):
        world.finish(random.choice(actors), LEAVE_EPOCH)


def go_away(world: World, random: Random) -> None:
    if actors := [actor for actor in living(world) if actor.instance_id]:
        world.finish(random.choice(actors), AWAY_EPOCH)


def subscribe(world: World, random: Random) -> None:
    if actors := living(world):
        actor = random.choice(actors)
        actor.topics = random.choice(SUBSCRIPTIONS)
        world.send(actor)


def forget_and_join(world: World, random: Random) -> None:
    """A member begins anew by itself."""
    if actors := living(world):
        actor = random.choice(actors)
        actor.lose()
        world.send(actor)


def commit_offset(world: World, random: Random) -> None:
    """Of something that it reads or, by mistake, of anything."""
    if actors := [actor for actor in world.actors if not actor.is_over]:
        actor = random.choice(actors)
        parts = sorted(actor.owned) if random.random() < 0.8 else every_part(world)
        if parts:
            world.commit(actor, random.choice(parts))


def send_commit(world: World, random: Random) -> None:
    if actors := [actor for actor in living(world) if actor.owned]:
        actor = random.choice(actors)
        world.send_commit(actor, random.choice(sorted(actor.owned)))


def deliver_commit(world: World, random: Random) -> None:
    """For the first time, or again."""
    if world.commits:
        world.deliver_commit(random.choice(world.commits))


def commit_by_nobody(world: World, random: Random) -> None:
    if parts := every_part(world):
        world.commit(None, random.choice(parts))


def every_part(world: World) -> list[Part]:
    return [
        (info.id, number)
        for _, info in sorted(world.topics.items())
        for number in range(info.partition_count)
    ]


def change_topics(world: World, random: Random) -> None:
    name = random.choice(("a", "b"))
    info = world.topics.get(name)
    if info is None:
        world.topics[name] = TopicInfo(f"{name}{world.topics_version + 1}", random.randint(1, 5))
    elif random.random() < 0.5 and info.partition_count < 8:
        world.topics[name] = TopicInfo(info.id, info.partition_count + 1)
    elif random.random() < 0.5:
        world.topics[name] = TopicInfo(f"{name}{world.topics_version + 1}", random.randint(1, 5))
    else:
        del world.topics[name]
    world.set_topics()


def fail_over(world: World, random: Random) -> None:
    world.fail_over(is_behind=False)


def fail_over_behind(world: World, random: Random) -> None:
    """To a broker that has not heard of the newest topics."""
    world.fail_over(is_behind=True)


def catch_up(world: World, random: Random) -> None:
    world.catch_up()


OPERATIONS: dict[str, tuple[int, Operation]] = {
    operation.__name__: (weight, operation)
    for weight, operation in (
        (6, join),
        (20, beat),
        (16, release_and_beat),
        (40, deliver),
        (8, deliver_late),
        (8, deliver_again),
        (8, deliver_stale),
        (4, lose_request),
        (8, answer_parked),
        (30, hear),
        (4, lose_answer),
        (30, commit_log),
        (6, round_trip),
        (10, pass_time),
        (3, pause),
        (4, resume),
        (2, die),
        (2, leave),
        (2, go_away),
        (2, subscribe),
        (2, forget_and_join),
        (16, commit_offset),
        (8, send_commit),
        (8, deliver_commit),
        (2, commit_by_nobody),
        (2, change_topics),
        (2, fail_over),
        (1, fail_over_behind),
        (3, catch_up),
    )
}
_NAMES = list(OPERATIONS)


def run(seed: int, steps: int) -> None:
    """One story. A failure says how to see it again.

    Each has its own mixture of what happens: some things often, some never (swarm testing: Groce
    et al., 2012), because what is rare in every story alike is never seen together.
    """
    random = Random(seed)
    world = World(random)
    weights = [weight * random.choice((0, 1, 1, 4)) for weight, _ in OPERATIONS.values()]
    for must in ("join", "deliver_late", "hear", "commit_log", "release_and_beat"):
        place = _NAMES.index(must)
        weights[place] = max(weights[place], OPERATIONS[must][0])
    for number in range(steps):
        name = random.choices(_NAMES, weights)[0]
        try:
            OPERATIONS[name][1](world, random)
            world.check(with_log=number % 8 == 0)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, step {number} ({name}): {error}") from error
    world.come_to_rest()
