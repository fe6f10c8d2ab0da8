"""Each record once, on real processes: producers with a name, and transactions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.resumable import ResumableProducer
from raftlog.errors import OutOfOrderSequenceError
from raftlog.record import BatchBody, encode
from raftlog.testing import Cluster, cluster
from raftlog.testing.cluster import wait_until
from tests.integration.load import TOPIC, create, leader_of, read_all, until_in_sync

# -- producers with a name -------------------------------------------------------------------------

# A producer with a name, on real processes: runs and leaders die, each record is there once.


TP = TopicPartition(TOPIC, 0)
RECORDS = 3_000
VALUES = [b"%d" % number for number in range(RECORDS)]


def producer_of(running: Cluster) -> ResumableProducer:
    return ResumableProducer(
        running.bootstrap, name="the work of a night", request_timeout_ms=5_000
    )


def bodies(values: Sequence[bytes], size: int) -> Iterator[BatchBody]:
    for first in range(0, len(values), size):
        yield encode(values[first : first + size], timestamps_ms=1_700_000_000_000)


def append_and_kill_the_leader(
    running: Cluster, producer: ResumableProducer, values: Sequence[bytes], size: int
) -> list[DeliveryFuture]:
    """What a run does; when half of it is under way, the leader is killed."""
    start = producer.stored([TP])[TP]
    batches = list(bodies(values[start:], size))
    half = len(batches) // 2
    futures = [producer.append(TP, batch) for batch in batches[:half]]
    futures[half // 2].result(20)
    running.broker(leader_of(running)).kill()
    return futures + [producer.append(TP, batch) for batch in batches[half:]]


@pytest.mark.integration
def test_runs_that_die_under_leaders_that_die_store_everything_once(tmp_path: Path) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        zombie = producer_of(running)
        assert zombie.stored([TP]) == {TP: 0}

        first = producer_of(running)
        killed = leader_of(running)
        append_and_kill_the_leader(running, first, VALUES[: RECORDS // 2], 7)
        first.close(timeout=0)  # as if it had died: what is on its way may be stored, or not
        running.broker(killed).start()
        until_in_sync(running)

        with producer_of(running) as second:
            futures = append_and_kill_the_leader(running, second, VALUES, 11)
            second.flush(30)
            offsets = [future.result(0).offset for future in futures]
            assert 0 < offsets[0] <= RECORDS // 2
            assert offsets == list(range(offsets[0], RECORDS, 11))
            assert second.stored([TP]) == {TP: RECORDS}

        late = zombie.append(TP, next(bodies(VALUES, 13)))
        assert isinstance(late.exception(20), OutOfOrderSequenceError)
        zombie.close()
        found = read_all(running.bootstrap, TP)
    assert [value for _, value in found] == VALUES


# -- transactions ----------------------------------------------------------------------------------

# Exactly once from one topic to another: the program of the manual, killed as brokers are.


PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/transactions.md"
MARK = "<!-- run by tests/integration/test_exactly_once.py -->\n"
ADDRESS = "127.0.0.1:9100"  # what the example says
SECONDS_MAX = 90.0


def program(bootstrap: str) -> str:
    """The program, with small transactions, and a session that is over soon when it is killed."""
    text = PAGE.read_text(encoding="utf-8")
    (found,) = re.findall(re.escape(MARK) + r"```python\n(.*?)```\n", text, re.DOTALL)
    small = str(found).replace("timeout_ms=5_000", "timeout_ms=3_000, max_records=20")
    short = small.replace('group="', 'session_timeout_ms=500, group="')
    return short.replace(ADDRESS, bootstrap)


def start(text: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", text, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def written(bootstrap: str) -> Counter[bytes | None]:
    found: Counter[bytes | None] = Counter()
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["invoices"])
        while records := consumer.poll(2_000, RECORDS):
            found.update(record.value for record in records)
    return found


def await_more(bootstrap: str, by: Collection[subprocess.Popen[bytes]], count: int = 300) -> None:
    """Return when so many more results are written, or the programs have ended."""
    partitions = [TopicPartition("invoices", number) for number in range(3)]
    with Consumer(bootstrap) as consumer:

        def end() -> int:
            return sum(consumer.end_offsets(partitions).values())

        before = end()
        wait_until(
            lambda: end() >= before + count or all(one.poll() is not None for one in by),
            timeout_s=60,
            what="more results",
        )


@pytest.mark.integration
@pytest.mark.seeds
@pytest.mark.raftlog_cluster(brokers=3)
def test_the_program_of_the_manual_writes_each_result_once(raftlog_cluster: Cluster) -> None:
    bootstrap = raftlog_cluster.bootstrap
    with Admin(bootstrap) as admin:
        topics = [
            NewTopic(name, partitions=3, replication_factor=3) for name in ("orders", "invoices")
        ]
        admin.create_topics(topics)
    values = [b"%d" % number for number in range(RECORDS)]
    with Producer(bootstrap) as producer:
        producer.send_many("orders", values, values).result(60)
    text = program(bootstrap)
    running = {name: start(text, name) for name in ("a", "b")}
    try:
        for victim in raftlog_cluster.brokers[1:]:
            await_more(bootstrap, running.values())
            running["a"].kill()
            running["a"].wait()
            victim.kill()
            running["a"] = start(text, "a")
            await_more(bootstrap, running.values())
            victim.start()
        for process in running.values():
            process.wait(SECONDS_MAX)
        # They end when they get no record for a while: perhaps while a broker was down.
        running["a"] = start(text, "a")
        assert running["a"].wait(SECONDS_MAX) == 0
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    found = written(bootstrap)
    assert {value for value in found if found[value] != 1} == set()
    assert set(found) == {b"invoice of " + value for value in values}
