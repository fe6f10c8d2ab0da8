"""Exactly once from one topic to another: the program of the manual, killed as brokers are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.testing import Cluster
from raftlog.testing.cluster import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.seeds]

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/transactions.md"
MARK = "<!-- run by tests/integration/test_transactions.py -->\n"
ADDRESS = "127.0.0.1:9100"  # what the example says
RECORDS = 3_000
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
