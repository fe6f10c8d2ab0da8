"""A tour through everything that a broker of three does, for tests that stop it on its way.

Each stop of the tour (``Step``) is something that happens to one broker, the target, or that it is
asked for, while a load goes on. ``visit`` runs one with failpoints armed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.consensus.journal import REWRITE_BYTES, Journal
from raftlog.consumer_groups import partition_of_group
from raftlog.disk import OsDisk
from raftlog.errors import BrokerUnavailableError, RaftlogError
from raftlog.testing import Cluster, wait_until
from raftlog.testing.cluster import BrokerProcess, FailpointSwitch, answers, local_cluster
from raftlog.types import OFFSETS_TOPIC
from tests.integration.load import TOPIC, Load, read_all, same_everywhere, until_in_sync

TARGET: Final = 2
PARTITIONS: Final = 3  # of the load's topic: each broker leads one
KEPT: Final = "kept"  # a topic whose oldest records are deleted
SETTINGS: Final = {
    "broker.heartbeat.interval.ms": "100",
    "broker.session.timeout.ms": "1000",
    "log.retention.check.interval.ms": "200",
    "log.checkpoint.interval.ms": "200",
    "log.cleaner.interval.ms": "100",
}
HIT_S: Final = 20.0  # within which what a step does comes by its failpoints
PADDING_BYTES: Final = 1 << 20
TORN_BYTES: Final = 30


@dataclass
class World:
    """A cluster under load, one of whose brokers has failpoints."""

    cluster: Cluster
    load: Load
    kept: Load
    switch: FailpointSwitch
    number: int = 0  # of topics made so far
    saved_ns: int = 0  # when the target had last saved its time, as it started

    @property
    def target(self) -> BrokerProcess:
        return self.cluster.broker(TARGET)

    @property
    def is_down(self) -> bool:
        return not self.target.running

    def led_by(self, broker: int) -> int:
        """A partition of the load's topic that this broker leads, made so if need be."""
        for partition in range(PARTITIONS):
            if self.cluster.leader(TOPIC, partition) == broker:
                return partition
        with Admin(self.cluster.bootstrap) as admin:
            admin.transfer_leader(TOPIC, 0, broker)
        return 0

    def hit(self, site: str) -> bool:
        """Whether something acted at ``site`` since hits were last forgotten."""
        return any(hit.site == site for hit in self.switch.hits)

    def start(self) -> None:
        self.saved_ns = self._time_saved_ns()
        self.target.start()

    def _time_saved_ns(self) -> int:
        try:
            return (self.target.data_dir / "clock").stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    # -- afterwards

    def recover(self) -> None:
        """Switch failpoints off and start the target; writes go on, and it catches up."""
        self.switch.disarm()
        if self.is_down:
            self.start()
        # Copies can be in sync before the clocks are compared, and no time is saved until then.
        wait_until(
            lambda: self._time_saved_ns() != self.saved_ns, timeout_s=HIT_S, what="a time is saved"
        )
        self.load.goes_on(count=5)
        for topic, partitions in ((TOPIC, PARTITIONS), (KEPT, 1)):
            for partition in range(partitions):
                until_in_sync(self.cluster, topic, partition)

    def check(self) -> None:
        """Nothing acknowledged is lost, nothing is there twice, all replicas are the same."""
        bootstrap = self.cluster.bootstrap
        self.load.check(bootstrap)
        for topic in (TOPIC, KEPT):
            same_everywhere(self.cluster, topic)
        with Admin(bootstrap) as admin:
            start = admin.offsets(KEPT, "earliest")[0] or 0
        found = dict(read_all(bootstrap, TopicPartition(KEPT, 0)))
        (ledger,) = self.kept.ledgers
        lost = [
            (value, offset)
            for value, offset in ledger.acknowledged.items()
            if offset >= start and found.get(offset) != value
        ]
        assert not lost, lost[:5]
        assert not ledger.failed, list(ledger.failed.items())[:3]
        assert len(set(found.values())) == len(found)


@contextmanager
def world(directory: Path) -> Iterator[World]:
    """Ends with everything judged, unless the block raised."""
    running = local_cluster(directory, brokers=3, settings=SETTINGS, with_relays=True)
    switch = FailpointSwitch(directory / "failpoints")
    switch.disarm()
    running.broker(TARGET).environment = switch.environment
    try:
        running.start()
        with Admin(running.bootstrap) as admin:
            tiny = {"segment.bytes": "16384"}
            kept = {**tiny, "retention.bytes": "32768", "min.insync.replicas": "2"}
            admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, tiny), NewTopic(KEPT, 1, 3, kept)])
        for partition in range(PARTITIONS):
            until_in_sync(running, TOPIC, partition)
        until_in_sync(running, KEPT)
        load = Load(running.bootstrap, partitions=PARTITIONS, pace_s=0.01)
        other = Load(running.bootstrap, topic=KEPT, pace_s=0.005)
        with load, other:
            made = World(running, load, other, switch)
            yield made
            running.heal()
            made.recover()
        made.check()
    finally:
        running.close()


@dataclass(frozen=True)
class Step:
    """One stop. Either the target is up (``act``), or it is stopped and started (``down``).

    ``act``: runs in a thread of its own; what goes wrong in it is not of interest, for the target
        may be gone.
    ``down``: what is done to it between its end and its next start; ``stops``: it ends by SIGTERM,
        with failpoints on, not by SIGKILL.
    ``rules``: failpoints that are on as well.
    """

    name: str
    act: Callable[[World], None] | None = None
    down: Callable[[World], None] | None = None
    stops: bool = False
    rules: Sequence[str] = field(default=())


def visit(world: World, step: Step, rules: Sequence[str], is_over: Callable[[], bool]) -> None:
    """Run a step with ``rules`` in force until ``is_over``, or until there is nothing more to do.

    A target that ends on the way stays down.
    """
    armed = [*rules, *step.rules]
    if step.act is not None:
        world.switch.arm(armed)
        _in_thread(step.act, world, is_over)
        return
    if step.stops:
        world.switch.arm(armed)
        world.target.stop()
    else:
        world.target.kill()
    if is_over():
        return
    assert step.down is not None
    step.down(world)
    world.switch.arm(armed)
    with suppress(BrokerUnavailableError):
        world.start()
        with suppress(TimeoutError):
            wait_until(lambda: is_over() or _is_back(world), timeout_s=HIT_S)


def _is_back(world: World) -> bool:
    return all(world.cluster.is_in_sync(TOPIC, partition) for partition in range(PARTITIONS))


def _in_thread(act: Callable[[World], None], world: World, is_over: Callable[[], bool]) -> None:
    def run() -> None:
        with suppress(RaftlogError, OSError, TimeoutError):
            act(world)

    thread = threading.Thread(target=run, name="tour")
    thread.start()
    try:
        with suppress(TimeoutError):
            wait_until(lambda: is_over() or world.is_down or not thread.is_alive(), timeout_s=HIT_S)
        if world.is_down:
            world.switch.disarm()
            world.start()  # what is asked of it waits for it
    finally:
        world.cluster.heal()
        thread.join()


# -- what happens to a broker that is up -----------------------------------------------------------


def traffic(world: World) -> None:
    """Enough to roll segments and to delete some."""
    for load in (world.load, world.kept):
        load.goes_on(count=400)


def ask(world: World, work: Callable[[Admin], object]) -> None:
    """By a client that knows no other broker yet. Returns when what follows the answer is done."""
    try:
        with Admin(str(world.target.address)) as admin:
            work(admin)
    finally:
        answers(world.target.address)


def administration(world: World) -> None:
    """Everything that can be asked of topics, asked of the target first."""
    world.number += 1
    name, bootstrap = f"tour-{world.number}", str(world.target.address)
    # Brokers that have no vote on a partition are told of it: there are some, of one copy.
    new = [NewTopic(name, 3, 3), NewTopic(f"{name}-one", 3, 1)]
    ask(world, lambda admin: admin.create_topics(new))
    ask(world, lambda admin: admin.alter_topic(name, {"retention.ms": "1000000"}))
    ask(world, lambda admin: admin.add_partitions(name, 4))
    ask(world, lambda admin: admin.describe_topics([name]))
    with Producer(bootstrap) as producer:
        for number in range(40):
            producer.send(name, b"%d" % number, partition=number % 4)
    for partition in range(4):
        read_all(bootstrap, TopicPartition(name, partition))
    everything = {TopicPartition(name, number): -1 for number in range(4)}
    ask(world, lambda admin: admin.delete_records(everything))
    ask(world, lambda admin: admin.delete_topics([name, f"{name}-one"]))
    wait_until(
        lambda: not [*world.target.data_dir.glob(f"topics/{name}/*")],
        timeout_s=HIT_S,
        what="the topic's files are gone",
    )


def compaction(world: World) -> None:
    """Two passes over the target's log: the second one begins by settling the first."""
    world.number += 1
    name = f"tour-{world.number}"
    settings = {"cleanup.policy": "compact", "segment.bytes": "16384"}
    settings["min.cleanable.dirty.ratio"] = "0.01"
    ask(world, lambda admin: admin.create_topics([NewTopic(name, 1, 3, settings)]))
    with Producer(world.cluster.bootstrap) as producer:
        for _ in range(2):
            for number in range(200):
                producer.send(name, b"x" * 400, b"%d" % (number % 5))
                if number % 50 == 49:  # four segments, each full: the last one is not compacted yet
                    producer.flush()
            wait_until(
                lambda: bytes_of_log(world, name) < 100 * 400,
                timeout_s=HIT_S,
                what="a pass",
            )
    ask(world, lambda admin: admin.delete_topics([name]))


def bytes_of_log(world: World, topic: str) -> int:
    """Of all segments that the target has of a topic of one partition."""
    total = 0
    for path in world.target.data_dir.glob(f"topics/{topic}/*/0/*.log"):
        with suppress(OSError):  # gone meanwhile
            total += path.stat().st_size
    return total


def groups(world: World) -> None:
    """A group that the target coordinates: a member comes, reads, commits and goes."""
    world.number += 1
    group, first = f"tour-{world.number}", TopicPartition(TOPIC, 0)
    ask(world, lambda admin: admin.commit_offsets(group, {first: 0}))
    coordinate(world, group)
    with Consumer(
        str(world.target.address), group=group, auto_offset_reset="earliest", auto_commit=False
    ) as consumer:
        consumer.subscribe([TOPIC])
        for _ in range(200):
            if consumer.poll(100):
                break
        consumer.commit()
        consumer.committed(first)
        ask(world, lambda admin: admin.describe_groups([group]))
    ask(world, lambda admin: admin.list_groups())
    ask(world, lambda admin: admin.delete_group_offsets(group, [first]))
    ask(world, lambda admin: admin.delete_groups([group]))


def coordinate(world: World, group: str) -> None:
    """Have the target lead the group's partition."""
    with Admin(world.cluster.bootstrap) as admin:
        partition = partition_of_group(group, len(admin.offsets(OFFSETS_TOPIC)))
    if world.cluster.leader(OFFSETS_TOPIC, partition) != TARGET:
        until_in_sync(world.cluster, OFFSETS_TOPIC, partition)
        ask(world, lambda admin: admin.transfer_leader(OFFSETS_TOPIC, partition, TARGET))


def leadership(world: World) -> None:
    partition = world.led_by(TARGET)
    ask(world, lambda admin: admin.transfer_leader(TOPIC, partition, TARGET % 3 + 1))
    ask(world, lambda admin: admin.transfer_leader(TOPIC, partition, TARGET))
    ask(world, lambda admin: admin.cancel_reassignment(TOPIC))
    ask(world, lambda admin: admin.describe_cluster([TOPIC]))
    for broker in (world.target, world.cluster.broker(TARGET % 3 + 1)):  # it asks, and is asked
        with suppress(RaftlogError):  # refused: no broker is lost
            ask(world, lambda admin, at=str(broker.address): admin.recover_cluster(broker=at))


def isolation(world: World) -> None:
    """The target takes records that no other broker has, is deposed, and cuts its log."""
    cut_off(world, TARGET)


def succession(world: World) -> None:
    """Each of the others is cut off: the target elects a leader, or reports what its copies hold
    to the broker that does."""
    for broker in world.cluster.brokers:
        if broker.id != TARGET:
            cut_off(world, broker.id)


def cut_off(world: World, broker: int) -> None:
    """A broker that leads is isolated until another one leads and has taken records."""
    partition = world.led_by(broker)
    world.cluster.isolate(broker)
    wait_until(
        lambda: world.cluster.leader(TOPIC, partition) not in (None, broker),
        timeout_s=HIT_S,
        what="another leader",
    )
    world.load.goes_on(count=50)
    world.cluster.heal()
    for number in range(PARTITIONS):
        until_in_sync(world.cluster, TOPIC, number)


# -- what happens to a broker that is down ---------------------------------------------------------


def nothing(world: World) -> None:
    """It is only started again."""


def torn(world: World) -> None:
    """Writes that did not come to their end: a part of a batch, room for a block."""
    segment = newest_segment(world)
    for path, data in (
        (segment, segment.read_bytes()[:TORN_BYTES]),
        (world.target.data_dir / "consensus.journal", bytes(TORN_BYTES)),
    ):
        with path.open("ab") as file:
            file.write(data)


def damaged(world: World) -> None:
    """A bit of what was durable has changed: the log is set aside and copied again."""
    path = min(partition_dir(world).glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for index in partition_dir(world).glob("*.index"):
        index.unlink()


def half_cleaned(world: World) -> None:
    """A compaction that was not decided yet."""
    (partition_dir(world) / f"{0:020d}.cleaned").write_bytes(bytes(TORN_BYTES))


def without_state(world: World) -> None:
    """What is known of compactions cannot be read."""
    (partition_dir(world) / "compaction").write_bytes(bytes(TORN_BYTES))


def padded(world: World) -> None:
    """The consensus journal has grown to where it is rewritten."""
    path = world.target.data_dir / "consensus.journal"
    journal = Journal.open(OsDisk(), str(path), create=False, rewrite_bytes=100 * REWRITE_BYTES)
    group = journal.group("padding")
    group.begin_generation(0, {1: "nobody"}, b"")
    for index in range(1, REWRITE_BYTES // PADDING_BYTES + 2):
        group.add(bytes(PADDING_BYTES), index, 1)
    journal.drop("padding")
    journal.sync()
    journal.close()


def wiped(world: World) -> None:
    world.cluster.wipe(TARGET)


def partition_dir(world: World) -> Path:
    (found,) = world.target.data_dir.glob(f"topics/{TOPIC}/*/0")
    return found


def newest_segment(world: World) -> Path:
    return max(partition_dir(world).glob("*.log"))


CROWDED_STATE: Final = tuple(f"{name}.write.before=fail(ENOSPC)x1" for name in ("copies", "clock"))
STEPS: Final = (
    Step("traffic", act=traffic),
    Step("administration", act=administration),
    Step("compaction", act=compaction),
    Step("groups", act=groups),
    Step("leadership", act=leadership),
    Step("isolation", act=isolation),
    Step("succession", act=succession),
    Step("killed", down=nothing),
    Step("stopped", down=nothing, stops=True),
    Step("torn", down=torn),
    Step("damaged", down=damaged),
    Step("half-cleaned", down=half_cleaned),
    Step("without-state", down=without_state),
    Step("padded", down=padded),
    Step("wiped", down=wiped),
    Step("crowded", act=administration, rules=("catalog.write.before=fail(ENOSPC)x1",)),
    Step("crowded-state", down=nothing, stops=True, rules=CROWDED_STATE),
    Step("crowded-journal", down=padded, rules=("journal-draft.write.before=fail(ENOSPC)x1",)),
    Step("crowded-identity", down=wiped, rules=("identity.write.before=fail(ENOSPC)x1",)),
)
