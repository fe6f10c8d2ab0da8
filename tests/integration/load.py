"""A load on a cluster and its ledger: what was sent, what was acknowledged, what is found at last.

The judge is a function of plain lists; ``test_load`` shows that it sees each thing that it is for.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.client.delivery import DeliveryFuture
from raftlog.errors import OutcomeUnknownError, RaftlogError
from raftlog.testing import Cluster, wait_until
from raftlog.types import Offset

TOPIC = "load"
PACE_S = 0.002  # between two rounds of one record to each partition
PATIENCE_S = 60.0
POLL_MS = 1_000
POLL_RECORDS_MAX = 10_000

Found = tuple[Offset, bytes]


@dataclass
class Ledger:
    """One partition's. Values are unique, and sent in the order of ``sent`` by one thread."""

    sent: list[bytes] = field(default_factory=list)
    acknowledged: dict[bytes, Offset] = field(default_factory=dict)
    failed: dict[bytes, RaftlogError] = field(default_factory=dict)

    def judge(self, found: Sequence[Found], *, strangers: Container[bytes] = ()) -> list[str]:
        """What is wrong with the log from its start to its end; empty if it keeps all promises.

        ``strangers``: what others may have sent.
        """
        problems = []
        places: dict[bytes, list[Offset]] = {}
        for offset, value in found:
            places.setdefault(value, []).append(offset)
        for value, offset in self.acknowledged.items():
            if value not in places:
                problems.append(f"lost: {value!r}, acknowledged at {offset}")
            elif offset not in places[value]:
                problems.append(f"moved: {value!r} from {offset} to {places[value]}")
        turns = {value: turn for turn, value in enumerate(self.sent)}
        for value, offsets in places.items():
            error = self.failed.get(value)
            if len(offsets) > 1:
                problems.append(f"twice: {value!r} at {offsets}")
            if value not in turns and value not in strangers:
                problems.append(f"from nowhere: {value!r} at {offsets}")
            if error is not None and not isinstance(error, OutcomeUnknownError):
                problems.append(f"refused, and there: {value!r} at {offsets}, {error!r}")
        problems += _disorder(found, turns)
        return problems


def _disorder(found: Sequence[Found], turns: dict[bytes, int]) -> Iterable[str]:
    for place, (offset, _) in enumerate(found):
        if offset != place:
            yield f"a gap, or a step back: record {place} has offset {offset}"
            break
    latest = -1
    for offset, value in found:
        if turns.get(value, latest) < latest:
            yield f"out of order: {value!r} at {offset}, behind one that was sent after it"
        latest = max(latest, turns.get(value, latest))


class Load:
    """Sends to every partition of a topic, from a thread of its own, until it is told to stop."""

    def __init__(
        self, bootstrap: str, *, topic: str = TOPIC, partitions: int = 1, pace_s: float = PACE_S
    ) -> None:
        self.topic = topic
        self.ledgers = [Ledger() for _ in range(partitions)]
        self._bootstrap = bootstrap
        self._pace_s = pace_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._problem: BaseException | None = None
        self._acknowledged_at: list[float] = []
        self._newest_sent_at = 0.0  # of the records that are acknowledged

    # -- while it runs

    @property
    def acknowledged(self) -> int:
        return len(self._acknowledged_at)

    def goes_on(self, *, count: int = 1, timeout_s: float = PATIENCE_S) -> None:
        """Return once ``count`` records sent from now on, or later, are acknowledged."""
        now, reached = time.monotonic(), self.acknowledged + count
        wait_until(
            lambda: self._newest_sent_at > now and self.acknowledged >= reached,
            timeout_s=timeout_s,
            what=f"the acknowledgement of {count} records sent from now on",
        )

    def silence(self, since: float) -> float:
        """The longest time without an acknowledgement from the last one before ``since`` on."""
        times = list(self._acknowledged_at)
        first = max((n for n, at in enumerate(times) if at <= since), default=0)
        later = [*times[first:], time.monotonic()]
        return max((b - a for a, b in itertools.pairwise(later)), default=0.0)

    # -- its life

    def __enter__(self) -> Load:
        self._thread.start()
        try:
            self.goes_on(count=10)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no more; return when the outcome of all that was sent is known."""
        self._stopping.set()
        self._thread.join()
        if self._problem is not None:
            raise self._problem

    def _run(self) -> None:
        try:
            with Producer(self._bootstrap, delivery_timeout_ms=int(PATIENCE_S * 1_000)) as producer:
                number = 0
                while not self._stopping.wait(self._pace_s):
                    for partition in range(len(self.ledgers)):
                        self._send(producer, partition, number)
                    number += 1
        except BaseException as problem:  # noqa: BLE001 - raised again where the test waits
            self._problem = problem

    def _send(self, producer: Producer, partition: int, number: int) -> None:
        ledger, value = self.ledgers[partition], b"%d/%d" % (partition, number)
        ledger.sent.append(value)
        sent_at = time.monotonic()

        def done(future: DeliveryFuture) -> None:
            error = future.exception()
            if error is not None:
                ledger.failed[value] = error
                return
            ledger.acknowledged[value] = future.result().offset
            self._newest_sent_at = max(self._newest_sent_at, sent_at)
            self._acknowledged_at.append(time.monotonic())

        producer.send(self.topic, value, partition=partition).add_done_callback(done)

    # -- the judgement

    def check(self, bootstrap: str, *, strangers: Container[bytes] = ()) -> None:
        """Read everything back, and judge. Every record has to have been acknowledged in the end:
        there was time.
        """
        assert self._stopping.is_set(), "stop it first"
        for partition, ledger in enumerate(self.ledgers):
            found = read_all(bootstrap, TopicPartition(self.topic, partition))
            problems = ledger.judge(found, strangers=strangers)
            assert not problems, f"{len(problems)}: {problems[:5]}"
            assert ledger.acknowledged, "nothing was acknowledged: nothing was tested"
            assert not ledger.failed, list(ledger.failed.items())[:3]


def read_all(
    bootstrap: str, partition: TopicPartition, *, read_from: str = "leader"
) -> list[Found]:
    """All records of a partition that are committed, as a new consumer reads them."""
    found: list[Found] = []
    with Consumer(bootstrap, auto_offset_reset="earliest", read_from=read_from) as consumer:
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        deadline = time.monotonic() + PATIENCE_S
        while consumer.position(partition) < end:
            records = consumer.poll(timeout_ms=POLL_MS, max_records=POLL_RECORDS_MAX)
            found += [(record.offset, record.value or b"") for record in records]
            assert time.monotonic() < deadline, f"{partition} is read up to {len(found)} of {end}"
    return found


# -- clusters


def create(cluster: Cluster, *, topic: str = TOPIC, copies: int, **config: str) -> None:
    """A topic of one partition; ``config``: with ``_`` for ``.``."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, copies, settings)])
    until_in_sync(cluster, topic)


def leader_of(cluster: Cluster, topic: str = TOPIC, partition: int = 0) -> int:
    """Who leads, by its own word; waits until somebody does."""
    wait_until(
        lambda: cluster.leader(topic, partition) is not None,
        timeout_s=PATIENCE_S,
        what=f"a leader of {topic}:{partition}",
    )
    leader = cluster.leader(topic, partition)
    assert leader is not None
    return leader


def until_in_sync(cluster: Cluster, topic: str = TOPIC, partition: int = 0) -> None:
    wait_until(
        lambda: cluster.is_in_sync(topic, partition),
        timeout_s=PATIENCE_S,
        what=f"all replicas of {topic}:{partition} in sync",
    )


def lose(cluster: Cluster, brokers: Iterable[int]) -> None:
    """SIGKILL them at once, and remove their disks."""
    lost = [cluster.broker(broker_id) for broker_id in brokers]
    for broker in lost:
        broker.send_kill()
    for broker in lost:
        broker.kill()
        cluster.wipe(broker.id)


def bring_back(cluster: Cluster, topic: str = TOPIC) -> None:
    """Start those that are down, as they are; return when all replicas are in sync."""
    for broker in cluster.brokers:
        if not broker.running:
            broker.start()
    until_in_sync(cluster, topic)


def same_everywhere(cluster: Cluster, topic: str = TOPIC) -> None:
    """All replicas come to hold the same bytes: the same chain value at the same end."""

    def is_so() -> bool:
        with Admin(cluster.bootstrap) as admin:
            parts = admin.describe_cluster([topic]).partitions
        ends = [{(s.log_end_offset, s.chain) for s in part.replica_states} for part in parts]
        return all(len(part.replica_states) == len(part.replicas) for part in parts) and all(
            len(end) == 1 and None not in {chain for _, chain in end} for end in ends
        )

    wait_until(is_so, timeout_s=PATIENCE_S, what=f"the same bytes in all replicas of {topic}")


def summary(silences: Sequence[float]) -> str:
    """For people: the times without an acknowledgement."""
    return (
        f"{len(silences)} trials: p50 {statistics.median(silences):.2f} s, "
        f"max {max(silences):.2f} s ({', '.join(f'{s:.2f}' for s in silences)})"
    )
