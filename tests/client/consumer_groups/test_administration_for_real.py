"""Groups on real brokers: administration from outside, and the programs of two pages."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic, Producer, TopicPartition
from raftlog.errors import UnknownGroupError
from raftlog.testing import Cluster, cluster

pytestmark = pytest.mark.integration

# -- administration --------------------------------------------------------------------------------

# Groups from outside, on three real brokers: nothing is missing, even while one is gone.


GROUPS = [f"g{number:02}" for number in range(24)]
PARTITIONS = [TopicPartition("t", number) for number in range(6)]


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    """Three brokers, and 24 groups that have read two of the three records of each partition."""
    with cluster(brokers=3) as started:
        with Admin(started.bootstrap) as admin, Producer(started.bootstrap) as producer:
            admin.create_topics([NewTopic("t", len(PARTITIONS))])
            for tp in PARTITIONS:
                producer.send_many("t", [b"x"] * 3, partition=tp.partition)
            producer.flush(timeout=30)
            for group in GROUPS:
                admin.alter_group_offsets(group, dict.fromkeys(PARTITIONS, 2))
        yield started


def test_the_groups_of_all_coordinators_are_listed(running: Cluster) -> None:
    with Admin(running.bootstrap) as admin:
        found = admin.list_groups()
        assert [row.group for row in found] == GROUPS
        assert {row.coordinator for row in found} == {1, 2, 3}
        assert {row.state for row in found} == {"empty"}


def test_a_dead_coordinators_groups_are_neither_missing_nor_forgotten(running: Cluster) -> None:
    with Admin(running.bootstrap) as admin:
        before = {row.group: row.coordinator for row in admin.list_groups()}
        running.brokers[0].kill()
        found = admin.list_groups()
        assert [row.group for row in found] == GROUPS
        moved = [row for row in found if before[row.group] == 1]
        assert moved
        assert {row.coordinator for row in moved} <= {2, 3}
        described = admin.describe_groups(GROUPS)
        assert [group.lag for group in described] == [len(PARTITIONS)] * len(GROUPS)
        assert all(part.problem == "" for group in described for part in group.partitions)
        assert all((group.lag_seconds or 0) > 0 for group in described)
        running.brokers[0].start()


def test_what_is_set_is_set_for_all_that_come_after(running: Cluster) -> None:
    with Admin(running.bootstrap) as admin:
        admin.alter_group_offsets("set", {PARTITIONS[0]: 3, PARTITIONS[1]: 0}, metadata="note")
        admin.delete_group_offsets("set", [PARTITIONS[1]])
    with Admin(running.bootstrap) as admin:
        ((tp, committed),) = admin.group_offsets("set").items()
        assert (tp, committed.offset, committed.metadata) == (PARTITIONS[0], 3, "note")
        admin.delete_groups(["set"])
        with pytest.raises(UnknownGroupError):
            admin.describe_groups(["set"])
        assert [row.group for row in admin.list_groups()] == GROUPS


# -- the programs of the pages ---------------------------------------------------------------------

# The programs of two pages about consumer groups, run as they stand, and killed at every step.


ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs/how-to/process-in-parallel.md", ROOT / "docs/how-to/exactly-once.md"]
MARK = "<!-- run by tests/client/consumer_groups/test_administration_for_real.py -->\n"
ADDRESS = "127.0.0.1:9100"  # what the examples say; the test's own broker is elsewhere
WORDS = [b"a", b"b", b"c"] * 400

# Ends the program, as kill -9 would, before the statement of that number.
CRASH = """
import os, sqlite3
class Crashing(sqlite3.Connection):
    left = {statements}
    def execute(self, *arguments):
        Crashing.left -= 1
        if not Crashing.left:
            os._exit(9)
        return super().execute(*arguments)
real = sqlite3.connect
sqlite3.connect = lambda *a, **k: real(*a, factory=Crashing, **k)
"""


def program(index: int, bootstrap: str) -> str:
    text = PAGES[index].read_text(encoding="utf-8")
    (found,) = re.findall(re.escape(MARK) + r"```python\n(.*?)```\n", text, re.DOTALL)
    assert ADDRESS in found
    return str(found).replace(ADDRESS, bootstrap)


def run(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def words(raftlog_bootstrap: str) -> str:
    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("words", partitions=2)])
    with Producer(raftlog_bootstrap) as producer:
        for number, word in enumerate(WORDS):
            producer.send("words", word, partition=number % 2)
        producer.flush(20)
    return raftlog_bootstrap


def test_results_are_counted_exactly_once(words: str, tmp_path: Path) -> None:
    text = program(1, words)
    # A session that is over soon: one that was killed has its partitions until then.
    text = text.replace('group="', 'session_timeout_ms=500, group="')
    for statements in (700, 1_500, 1_004):
        crashed = run(CRASH.format(statements=statements) + text, tmp_path)
        assert crashed.returncode == 9, crashed.stderr
    last = run(text, tmp_path)
    assert last.returncode == 0, last.stderr
    with sqlite3.connect(tmp_path / "totals.db") as database:
        totals = dict(database.execute("SELECT word, count FROM totals"))
        places = dict(database.execute("SELECT part, next FROM places"))
    database.close()
    assert totals == {"a": 400, "b": 400, "c": 400}
    assert places == {0: 600, 1: 600}


def test_workers_take_every_record(words: str, tmp_path: Path) -> None:
    text = program(0, words)
    first = run(text, tmp_path)
    assert first.returncode == 0, first.stderr
    assert sorted(first.stdout.split()) == sorted(word.decode() for word in WORDS)
    again = run(text, tmp_path)
    assert (again.returncode, again.stdout) == (0, ""), again.stderr
