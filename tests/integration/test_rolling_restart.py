"""Brokers restart one after the other under load, also with another release: no client sees an
error, and no partition is unavailable for long.

The report has, for each partition and each restart, the longest time without an acknowledgement,
and the longest time between the send of a record and its delivery to a consumer.
"""

from __future__ import annotations

import io
import itertools
import math
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.client.delivery import DeliveryFuture
from raftlog.testing import BrokerProcess, Cluster, cluster, wait_until
from raftlog.testing.cluster import local_cluster

pytestmark = [pytest.mark.integration, pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT: Final = Path(__file__).resolve().parents[2]
TOPIC: Final = "restarts"
PARTITIONS: Final = 12
PACE_S: Final = 0.01  # between two records of one partition
TARGET_S: Final = 0.5  # of the 99th percentile of the times without an acknowledgement
PATIENCE_S: Final = 60.0
ROUNDS: Final = 2
REVISIONS_BACK: Final = 50  # the older release: so many commits ago


class Traffic:
    """A producer and a consumer of all partitions. Any error of theirs is a failure."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self.problems: list[BaseException] = []
        # Times of the acknowledgements, and delays of the deliveries, by partition.
        self.acknowledged: list[list[float]] = [[] for _ in range(PARTITIONS)]
        self.delivered: list[list[tuple[float, float]]] = [[] for _ in range(PARTITIONS)]
        self._values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]  # in the order of sends
        self._found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self._threads = [
            threading.Thread(target=self._guard, args=(work,)) for work in (self._send, self._read)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def goes_on(self) -> None:
        """Return once each partition has more records acknowledged and delivered."""
        before = [list(map(len, lists)) for lists in (self.acknowledged, self.delivered)]
        wait_until(
            lambda: self.problems or all(
                now > old
                for counts, lists in zip(before, (self.acknowledged, self.delivered), strict=True)
                for old, now in zip(counts, map(len, lists), strict=True)
            ),
            timeout_s=PATIENCE_S,
            what="more records of each partition",
        )  # fmt: skip

    def check(self) -> None:
        assert self.problems == []
        for found, sent in zip(self._found, self._values, strict=True):
            lost = set(sent) - set(found)
            assert not lost, f"{len(lost)} of {len(sent)} records are lost: {sorted(lost)[:5]}"
            assert len(found) == len(set(found)), "a record is there twice"
            assert found == sent, "records are not in the order of the sends"

    def silences(self, since: float, until: float) -> Iterator[float]:
        """The longest time without an acknowledgement of each partition."""
        for times in self.acknowledged:
            within = [since, *(at for at in times if since <= at <= until), until]
            yield max(later - sooner for sooner, later in itertools.pairwise(within))

    def delays(self, since: float, until: float) -> Iterator[float]:
        """The longest time from send to delivery of each partition."""
        for deliveries in self.delivered:
            yield max((delay for at, delay in deliveries if since <= at <= until), default=0.0)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:  # noqa: BLE001 - reported where the test waits
            self.problems.append(problem)

    def _send(self) -> None:
        with Producer(self._bootstrap, linger_ms=0) as producer:
            while not self._stopping.wait(PACE_S):
                for partition in range(PARTITIONS):
                    value = repr(time.monotonic()).encode()
                    self._values[partition].append(value)
                    future = producer.send(TOPIC, value, partition=partition)
                    future.add_done_callback(lambda f, p=partition: self._sent(f, p))

    def _sent(self, future: DeliveryFuture, partition: int) -> None:
        if (error := future.exception()) is not None:
            self.problems.append(error)
            return
        self.acknowledged[partition].append(time.monotonic())

    def _read(self) -> None:
        with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(TOPIC, number) for number in range(PARTITIONS)])
            while not self._is_read():
                for record in consumer.poll(timeout_ms=100):
                    assert record.value is not None
                    now = time.monotonic()
                    delivery = now, now - float(record.value)
                    self.delivered[record.partition].append(delivery)
                    self._found[record.partition].append(record.value)

    def _is_read(self) -> bool:
        """Whether the producer has ended, and all is read that it has sent."""
        both = zip(self._found, self._values, strict=True)
        return not self._threads[0].is_alive() and all(len(f) >= len(v) for f, v in both)


@contextmanager
def traffic(running: Cluster) -> Iterator[Traffic]:
    with Admin(running.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])
    until_in_sync(running)
    made = Traffic(running.bootstrap)
    made.start()
    try:
        made.goes_on()
        yield made
    finally:
        made.stop()
    made.check()


def until_in_sync(running: Cluster) -> None:
    """As `/readyz?restart` of all brokers."""

    def is_so() -> bool:
        with Admin(running.bootstrap) as admin:
            parts = admin.describe_cluster().partitions
        mine = [part for part in parts if part.topic == TOPIC]
        is_whole = all(part.leader is not None and len(part.isr) == 3 for part in mine)
        return is_whole and len(mine) == PARTITIONS

    wait_until(is_so, timeout_s=PATIENCE_S, what="all replicas in sync")


def roll(running: Cluster, load: Traffic, restart: Callable[[BrokerProcess], None]) -> str:
    """Restart the brokers in turn. Returns the report; fails above the target."""
    silences: list[float] = []
    delays: list[float] = []
    for broker in list(running.brokers):
        began = time.monotonic()
        broker.stop()
        assert broker.exit_status == 0
        restart(broker)
        until_in_sync(running)
        load.goes_on()
        ended = time.monotonic()
        silences += load.silences(began, ended)
        delays += load.delays(began, ended)
    assert load.problems == []
    report = f"without an acknowledgement: {shown(silences)}; send to delivery: {shown(delays)}"
    assert percentile(silences, 99) < TARGET_S, report
    return report


def percentile(values: Sequence[float], percent: int) -> float:
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def shown(values: Sequence[float]) -> str:
    p50, p99, most = (1_000 * percentile(values, percent) for percent in (50, 99, 100))
    return f"{len(values)} samples, p50 {p50:.0f} ms, p99 {p99:.0f} ms, max {most:.0f} ms"


def test_partitions_stay_available_during_a_rolling_restart(
    tmp_path: Path, say: Callable[[str], None]
) -> None:
    with (
        cluster(brokers=3, directory=tmp_path, with_relays=False) as running,
        traffic(running) as load,
    ):
        for _round in range(ROUNDS):
            say(roll(running, load, BrokerProcess.start))


def test_a_cluster_is_upgraded_and_downgraded_under_load(
    tmp_path: Path, say: Callable[[str], None]
) -> None:
    """Brokers of an older revision are replaced by those of this one, one after the other, and
    back: both work together, and read what the other has written.
    """
    older = checked_out(tmp_path / "older")

    def run(broker: BrokerProcess, source: Path | None) -> None:
        broker.source = source
        broker.start()

    with closing(local_cluster(tmp_path / "cluster", brokers=3)) as running:
        for broker in running.brokers:
            broker.source = older
        running.start()
        with traffic(running) as load:
            say(f"upgrade: {roll(running, load, lambda broker: run(broker, None))}")
            say(f"downgrade: {roll(running, load, lambda broker: run(broker, older))}")


def checked_out(directory: Path) -> Path:
    """The files of an older revision of this repository."""
    revision = f"HEAD~{REVISIONS_BACK}"
    try:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", revision, "raftlog", "cli", "jepsen_like"],
            check=True,
            capture_output=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no older revision to upgrade from: git cannot read {revision} ({error})")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(directory, filter="data")
    return directory
