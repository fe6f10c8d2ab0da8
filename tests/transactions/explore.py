"""Breadth-first exploration of the coordinator's own code, with a model of clients and leaders.

One transactional id, two instances that use it, two partitions. A message, once sent, may be
delivered at any later time, any number of times, or never: that is a network that loses, delays and
repeats, and a client that sends again. The coordinator fails over, a transaction times out, and
producer ids end after three epochs, as often as ``Bounds`` says. Every state is checked:

    I1   of each transaction, at most one result is decided
    I2   a leader ends a transaction with the decided result
    I3   a complete transaction is open at no leader
    I4   a leader has an open transaction only if the coordinator has its partition in it, so none
         hangs; a partition that a commit has reserved is in the next transaction
    I10  after an instance was answered its epoch, nothing of an older one takes effect

    python -m tests.transactions.explore [STATES] [VERSION]
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, TypeAlias

from raftlog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerMappingError,
    ProducerFencedError,
    RaftlogError,
)
from raftlog.transactions import (
    BUMPING_VERSION,
    COMPLETION_SECONDS,
    FIRST_VERSION,
    Marker,
    Part,
    ProducerIdentity,
    StateChange,
    TransactionSettings,
    TransactionShard,
    encode_key,
)

NAME: Final = "x"
PARTS: Final[tuple[Part, ...]] = (("t", 0), ("t", 1))
SETTINGS: Final = TransactionSettings(epoch_max=3)
NEVER: Final = 1e9  # seconds: every time limit has passed
KEY: Final = encode_key(NAME)
Message: TypeAlias = tuple[Any, ...]
Who: TypeAlias = tuple[int, int]


class Bounds(NamedTuple):
    """How often something may happen."""

    instances: int = 2
    parts: int = 2  # partitions
    transactions: int = 2  # that each instance begins
    inits: int = 3  # of all
    failovers: int = 1
    timeouts: int = 1
    guards: int = 4  # batches that a leader asks about, with repeated ones


class Client(NamedTuple):
    """``asked``: the request whose answer it waits for. ``sent``: partitions of its transaction."""

    who: Who | None = None
    asked: Message | None = None
    sent: frozenset[int] = frozenset()
    transactions: int = 0
    must_abort: bool = False


class Leader(NamedTuple):
    """What the leader of a partition knows of one producer id. ``guard``: number of the batch that
    waits for its verification, 0 for none. ``number``: of the newest transaction that it ended.
    """

    producer_id: int
    epoch: int = -1
    is_open: bool = False
    guard: int = 0
    coordinator_epoch: int = 0
    number: int = 0
    reserved: int = -1  # epoch of the next transaction, which has this partition


class World(NamedTuple):
    """One state. ``value``: the newest record in the log. ``confirmed``: partitions with a marker,
    and a completion that is not written: in the coordinator's memory. ``decided``: results by
    number.
    """

    value: bytes | None = None
    coordinator_epoch: int = 1
    confirmed: frozenset[Part] = frozenset()
    clients: tuple[Client, ...] = (Client(), Client())
    leaders: tuple[tuple[Leader, ...], ...] = ((), ())
    messages: frozenset[Message] = frozenset()
    guards: int = 0
    inits: int = 0
    failovers: int = 0
    timeouts: int = 0
    decided: frozenset[tuple[int, bool]] = frozenset()
    answered: Who = (0, 0)


class Explorer:
    """Explores one version of transactions. ``seen``: what happened at least once."""

    def __init__(self, version: int, bounds: Bounds = Bounds()) -> None:  # noqa: B008 - immutable
        self.version = version
        self.bounds = bounds
        self.seen: set[str] = set()
        self.states = 0

    def run(self, states_max: int) -> None:
        """Visit up to ``states_max`` states, the nearest first. Raises ``AssertionError`` with the
        way to a state that breaks an invariant.
        """
        first = World()
        came_from: dict[World, tuple[World, str] | None] = {first: None}
        queue = deque([first])
        while queue and len(came_from) < states_max:
            world = queue.popleft()
            for what, following in self._steps(world):
                if following in came_from:
                    continue
                came_from[following] = (world, what)
                queue.append(following)
                try:
                    self._check(following)
                except AssertionError as error:
                    raise AssertionError(f"{error}\n{_way(came_from, following)}") from None
        self.states = len(came_from)

    # -- steps -------------------------------------------------------------------------------------

    def _steps(self, world: World) -> Iterator[tuple[str, World]]:
        for index, client in enumerate(world.clients[: self.bounds.instances]):
            yield from self._of_client(world, index, client)
        for message in world.messages:
            for following in self._delivered(world, message):
                yield f"deliver {message}", following
        if world.failovers < self.bounds.failovers:
            yield (
                "fail over",
                world._replace(
                    coordinator_epoch=world.coordinator_epoch + 1,
                    confirmed=frozenset(),
                    failovers=world.failovers + 1,
                ),
            )
        if world.timeouts < self.bounds.timeouts:
            shard = self._shard(world)
            step = shard.tick(now=NEVER, now_ms=0, expiry_ms=None)
            if step.records:
                yield "time out", self._applied(world._replace(timeouts=1), shard, step)
        shard = self._shard(world)
        ending = shard.ending(NAME)
        if ending is not None:
            marks = {
                ("mark", part, ending.marker, ending.number, part in ending.reserved)
                for part in ending.parts
            }
            if not marks <= world.messages:
                yield "send markers", world._replace(messages=world.messages | marks)
        if world.confirmed and ending is None:
            step = shard.tick(now=COMPLETION_SECONDS, now_ms=0, expiry_ms=None)
            yield "write the completion", self._applied(world, shard, step)

    def _of_client(self, world: World, index: int, client: Client) -> Iterator[tuple[str, World]]:
        def with_(new: Client, message: Message) -> World:
            clients = (*world.clients[:index], new, *world.clients[index + 1 :])
            return world._replace(clients=clients, messages=world.messages | {message})

        if client.asked is not None:
            return
        if world.inits < self.bounds.inits and not client.sent:
            init = ("init", index, client.who)
            following = with_(client._replace(asked=init), init)
            yield f"{index} initializes", following._replace(inits=world.inits + 1)
        if client.who is None:
            return
        for part in range(self.bounds.parts):
            is_new = not client.sent and client.transactions == self.bounds.transactions
            if part in client.sent or is_new or client.must_abort:
                continue
            begun = client.transactions + (not client.sent)
            new = client._replace(sent=client.sent | {part}, transactions=begun)
            yield f"{index} produces", with_(new, ("batch", part, *client.who))
        if client.sent:
            for is_commit in (False,) if client.must_abort else (True, False):
                end = ("end", index, client.who, is_commit)
                yield f"{index} ends", with_(client._replace(asked=end), end)

    def _delivered(self, world: World, message: Message) -> Iterator[World]:
        match message:
            case "init", index, expected:
                yield from self._asked(world, message, index, expected, self._init)
            case "end", index, who, is_commit:
                yield from self._asked(world, message, index, (who, is_commit), self._end)
            case "batch", part, producer_id, epoch:
                yield from self._batch(world, part, producer_id, epoch)
            case "verify", part, producer_id, epoch, _number:
                yield from self._verify(world, message, part, (producer_id, epoch))
            case "verified", part, producer_id, epoch, number:
                leader = _leader(world, part, producer_id)
                if leader.guard == number:
                    yield self._append(world, part, leader, epoch)
            case "mark", part, marker, number, reserves:
                yield from self._mark(world, part, marker, number, reserves)
            case "marked", epoch, number, part:
                if epoch == world.coordinator_epoch:
                    shard = self._shard(world)
                    step = shard.marked(NAME, number, [part], now=0.0, now_ms=0)
                    yield self._applied(world, shard, step)

    def _asked(
        self, world: World, message: Message, index: int, what: Any, operation: Any
    ) -> Iterator[World]:
        """Process a request: the client gets the answer, or it is lost."""
        shard = self._shard(world)
        client = world.clients[index]
        try:
            step: StateChange[Any] = operation(world, shard, what)
        except RaftlogError as error:
            self.seen.add(f"{message[0]} {type(error).__name__}")
            if client.asked != message or isinstance(error, ConcurrentTransactionsError):
                return
            is_dead = isinstance(error, ProducerFencedError | InvalidProducerMappingError)
            new = client._replace(
                asked=None,
                who=None if is_dead else client.who,
                sent=frozenset() if is_dead else client.sent,
                must_abort=not is_dead,
            )
            yield _with_client(world, index, new)
            return
        self.seen.add(f"{message[0]} {'again' if not step.records else 'done'}")
        lost = self._applied(world, shard, step)
        if step.records:
            yield lost
        if client.asked == message and step.result is not None:
            who = tuple(step.result)
            new = client._replace(asked=None, who=who, sent=frozenset(), must_abort=False)
            known = _with_client(lost, index, new)
            if message[0] == "init":
                known = known._replace(answered=max(known.answered, who))
            yield known

    def _init(self, world: World, shard: TransactionShard, expected: Who | None) -> Any:
        return shard.init(
            NAME,
            timeout_ms=1_000,
            new_id=_newest_id(world) + 1,
            expected=None if expected is None else ProducerIdentity(*expected),
            now=0.0,
            now_ms=0,
        )

    def _end(self, world: World, shard: TransactionShard, what: tuple[Who, bool]) -> Any:
        who, is_commit = what
        step = shard.end(
            NAME,
            ProducerIdentity(*who),
            is_commit=is_commit,
            version=self.version,
            new_id=_newest_id(world) + 1,
            reserved=PARTS,
            now=0.0,
            now_ms=0,
        )
        assert not step.records or who >= world.answered, f"I10: {who} ends a transaction"
        return step

    # -- leaders -----------------------------------------------------------------------------------

    def _batch(self, world: World, part: int, producer_id: int, epoch: int) -> Iterator[World]:
        leader = _leader(world, part, producer_id)
        if epoch < leader.epoch:
            self.seen.add("batch fenced")
        elif leader.is_open:
            yield self._append(world, part, leader, epoch)
        elif epoch == leader.reserved:
            self.seen.add("batch of a reserved partition")
            yield self._append(world, part, leader, epoch)
        elif world.guards < self.bounds.guards:
            guard = world.guards + 1
            verify = ("verify", part, producer_id, epoch, guard)
            guarded = _with_leader(world, part, leader._replace(guard=guard))
            yield guarded._replace(messages=world.messages | {verify}, guards=guard)

    def _verify(self, world: World, message: Message, part: int, who: Who) -> Iterator[World]:
        """Version 1 has asked before it sent the batch; here, the verification adds, too."""
        shard = self._shard(world)
        try:
            step = shard.add(
                NAME,
                ProducerIdentity(*who),
                [PARTS[part]],
                version=self.version,
                topics_version=0,
                now=0.0,
                now_ms=0,
            )
        except RaftlogError as error:
            self.seen.add(f"add {type(error).__name__}")
            return
        assert who >= world.answered, f"I10: {who} adds a partition"
        added = self._applied(world, shard, step)
        yield added._replace(messages=added.messages | {("verified", *message[1:])})

    def _append(self, world: World, part: int, leader: Leader, epoch: int) -> World:
        self.seen.add("batch appended")
        assert (leader.producer_id, epoch) >= world.answered, "I10: a batch is appended"
        new = leader._replace(epoch=epoch, is_open=True, guard=0)
        return _with_leader(world, part, new)

    def _mark(
        self, world: World, part: Part, marker: Marker, number: int, reserves: bool
    ) -> Iterator[World]:
        leader = _leader(world, part[1], marker.producer_id)
        done = ("marked", marker.coordinator_epoch, number, part)
        confirmed = world._replace(messages=world.messages | {done})
        if marker.coordinator_epoch < leader.coordinator_epoch:
            self.seen.add("mark stale")
        elif number <= leader.number:
            self.seen.add("mark again")
            yield confirmed
        elif marker.producer_epoch >= leader.epoch:
            assert (number, marker.is_commit) in world.decided, "I2: a marker without a decision"
            new = leader._replace(
                epoch=marker.producer_epoch,
                is_open=False,
                guard=0,
                coordinator_epoch=marker.coordinator_epoch,
                number=number,
                reserved=marker.producer_epoch if reserves else -1,
            )
            yield _with_leader(confirmed, part[1], new)

    # -- the coordinator ---------------------------------------------------------------------------

    def _shard(self, world: World) -> TransactionShard:
        shard = TransactionShard(SETTINGS, world.coordinator_epoch)
        if world.value is not None:
            shard.replay(KEY, world.value)
        shard.start(now=0.0, now_ms=0)
        ending = shard.ending(NAME)
        if ending is not None and world.confirmed:
            shard.marked(NAME, ending.number, world.confirmed, now=0.0, now_ms=0)
        return shard

    def _applied(self, world: World, shard: TransactionShard, step: StateChange[Any]) -> World:
        """Return the world in which the records are committed."""
        ending = shard.ending(NAME)
        confirmed: frozenset[Part] = frozenset()
        if ending is not None:
            confirmed = frozenset(shard.view(NAME).parts) - ending.parts
        elif step.ended or world.confirmed:
            confirmed = frozenset(PARTS)
        if not step.records:
            return world._replace(confirmed=confirmed)
        status = shard.view(NAME).status
        self.seen.add(status)
        decided = world.decided
        if ending is not None:
            decided |= {(ending.number, ending.marker.is_commit)}
        value = step.records[-1].value
        return world._replace(value=value, confirmed=confirmed, decided=decided)

    # -- invariants --------------------------------------------------------------------------------

    def _check(self, world: World) -> None:
        numbers = [number for number, _ in world.decided]
        assert len(numbers) == len(set(numbers)), "I1: two results of a transaction"
        if world.value is None:
            return
        shard = self._shard(world)
        view = shard.view(NAME)
        ending = shard.ending(NAME)
        is_open = view.status in ("ongoing", "prepare_commit", "prepare_abort")
        for part, leaders in zip(PARTS, world.leaders, strict=True):
            for leader in leaders:
                if leader.is_open:
                    assert is_open, f"I3: {part} is open after the transaction is {view.status}"
                    is_next = ending is not None and leader.epoch == leader.reserved == view.epoch
                    parts = ending.reserved if ending is not None and is_next else view.parts
                    assert part in parts, f"I4: {part} is open, and not in the transaction"
                    assert leader.producer_id == view.producer_id, "I4: another producer"


def _newest_id(world: World) -> int:
    """Return the highest producer id so far: one that a lost answer had is in no other message."""
    known = [leader.producer_id for leaders in world.leaders for leader in leaders]
    shard = TransactionShard(SETTINGS, 0)
    if world.value is not None:
        shard.replay(KEY, world.value)
        known.append(shard.view(NAME).producer_id)
    return max(known, default=0)


def _leader(world: World, part: int, producer_id: int) -> Leader:
    for leader in world.leaders[part]:
        if leader.producer_id == producer_id:
            return leader
    return Leader(producer_id)


def _with_leader(world: World, part: int, new: Leader) -> World:
    others = [each for each in world.leaders[part] if each.producer_id != new.producer_id]
    leaders = list(world.leaders)
    leaders[part] = tuple(sorted([*others, new]))
    return world._replace(leaders=tuple(leaders))


def _with_client(world: World, index: int, new: Client) -> World:
    clients = (*world.clients[:index], new, *world.clients[index + 1 :])
    return world._replace(clients=clients)


def _way(came_from: dict[World, tuple[World, str] | None], world: World) -> str:
    steps: list[str] = []
    at: World | None = world
    while at is not None and (before := came_from[at]) is not None:
        steps.append(before[1])
        at = before[0]
    return "\n".join(reversed(steps))


def main(states_max: int, versions: tuple[int, ...]) -> None:
    for version in versions:
        explorer = Explorer(version, Bounds(transactions=3, inits=4))
        began = time.process_time()
        explorer.run(states_max)
        seconds = time.process_time() - began
        sys.stdout.write(
            f"version {version}: {explorer.states:,} states, {seconds:.1f} s, no problem\n"
            f"  {', '.join(sorted(explorer.seen))}\n"
        )


if __name__ == "__main__":
    chosen = tuple(map(int, sys.argv[2:])) or (FIRST_VERSION, BUMPING_VERSION)
    main(int(sys.argv[1]) if sys.argv[1:] else 1_000_000, chosen)
