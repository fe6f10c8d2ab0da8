"""What consumer groups cost: rebalances, group consumption next to assigned, members at rest."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.testing.bench.figures import Figure
from raftlog.testing.bench.target import target
from raftlog.testing.probes import wait_until

BROKERS: Final = 3
SESSION_TIMEOUT_MS: Final = 6_000
QUIET_S: Final = 5.0  # how long is looked at before anything happens
PERIOD_S: Final = 0.02  # between the records of one partition
SETTLE_S: Final = 60.0
CHUNK_RECORDS: Final = 10_000
IDLE_PROCESSES: Final = 4
REST_S: Final = 10.0  # until members have settled, and have committed where they begin
# A figure of throughput needs no disk that other work keeps busy.
TOPIC_CONFIG: Final = {"flush.policy": "os"}


@dataclass(frozen=True, slots=True)
class Rebalances(Figure):
    """A member joins, another one is killed. ``quiet_gap_ms`` is what gaps are without either.

    ``after_death_s``: from the end of the session, at the latest, until all is read again: below
    zero when the session ended sooner. Gaps are the longest between two records of a partition
    that stayed with its member.
    """

    partitions: int
    members: int
    join_s: float
    after_death_s: float
    moved_by_join: int
    moved_by_death: int
    quiet_gap_ms: float
    join_gap_ms: float
    death_gap_ms: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": f"{self.members} members, {self.partitions} partitions",
            "join s": f"{self.join_s:.2f}",
            "after a session's end s": f"{self.after_death_s:.2f}",
            "moved": f"{self.moved_by_join} + {self.moved_by_death}",
            "longest gap ms: quiet, join, death": (
                f"{self.quiet_gap_ms:.0f}, {self.join_gap_ms:.0f}, {self.death_gap_ms:.0f}"
            ),
        }


@dataclass(frozen=True, slots=True)
class GroupShare(Figure):
    """Records per second of one consumer in a group, next to one with assigned partitions."""

    records: int
    rounds: int
    group_records_per_s: float
    assigned_records_per_s: float
    ratio: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": "group consumption",
            "records/s": f"{self.group_records_per_s:,.0f}",
            "assigned records/s": f"{self.assigned_records_per_s:,.0f}",
            "share of assigned": f"{self.ratio:.0%}",
        }


@dataclass(frozen=True, slots=True)
class IdleGroups(Figure):
    """What members that have nothing to read cost all brokers: 1.0 is one core.

    ``assigned_cores``: the same number of consumers without groups, whose fetches wait likewise.
    """

    groups: int
    members: int
    cores: float
    assigned_cores: float

    def table(self) -> dict[str, str]:
        return {
            "benchmark": f"{self.groups} groups of {self.members} members at rest",
            "brokers' CPU": f"{self.cores:.1%} of a core",
            "without groups": f"{self.assigned_cores:.1%} of a core",
        }


# -- rebalances ------------------------------------------------------------------------------------


class Member:
    """A process of ``group_member``, and what it has said so far."""

    def __init__(self, number: int, home: Path, arguments: Sequence[str]) -> None:
        self._path = home / f"member-{number}.jsonl"
        with self._path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "raftlog.testing.bench.group_member", *arguments],
                stdout=output,
            )

    def events(self) -> list[dict[str, Any]]:
        """Its lines; the last one may still be on its way."""
        lines = self._path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def owned(self) -> set[int]:
        """The partitions that it reads, by its own account."""
        owned: set[int] = set()
        for event in self.events():
            if event["event"] == "assigned":
                owned |= set(event["partitions"])
            elif event["event"] == "revoked":
                owned -= set(event["partitions"])
        return owned

    def moves(self, since: float, until: float) -> Iterator[tuple[float, list[int]]]:
        """When it got or gave up which partitions."""
        for event in self.events():
            if event["event"] in {"assigned", "revoked"} and since <= event["at"] <= until:
                yield event["at"], event["partitions"]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(timeout=30)


def rebalances(directory: Path | None, *, partitions: int = 64, members: int = 16) -> Rebalances:
    """Measure one join and one death in a group whose partitions all have steady traffic."""
    topic, group = f"bench-{uuid.uuid4().hex[:8]}", f"group-{uuid.uuid4().hex[:8]}"
    with target(directory, brokers=BROKERS) as brokers:
        with Admin(brokers.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, partitions, config=TOPIC_CONFIG)])
        arguments = (brokers.bootstrap, group, topic, str(SESSION_TIMEOUT_MS))
        running: list[Member] = []
        try:
            with _steady_traffic(brokers.bootstrap, topic, partitions):
                running += [Member(n, brokers.directory, arguments) for n in range(members)]
                _settle(running, partitions)
                quiet_from = time.monotonic()
                time.sleep(QUIET_S)
                joined_from = time.monotonic()
                running.append(Member(members, brokers.directory, arguments))
                _settle(running, partitions)
                time.sleep(QUIET_S)
                died_from = time.monotonic()
                victim = running.pop(0)
                victim.process.kill()
                victim.process.wait()
                _settle(running, partitions)
                time.sleep(QUIET_S)
                ended = time.monotonic()
        finally:
            for member in running:
                member.end()
        return _judge(running, partitions, quiet_from, joined_from, died_from, ended)


def _settle(members: Sequence[Member], partitions: int) -> None:
    """Wait until all partitions are read, and no member has more than its share."""

    def is_settled() -> bool:
        owned = [member.owned() for member in members]
        sizes = [len(share) for share in owned]
        return len(set().union(*owned)) == sum(sizes) == partitions and (
            max(sizes) - min(sizes) <= 1
        )

    wait_until(is_settled, timeout_s=SETTLE_S, what="every partition is read")


@contextmanager
def _steady_traffic(bootstrap: str, topic: str, partitions: int) -> Iterator[None]:
    """A record for each partition every ``PERIOD_S`` seconds."""
    is_over = threading.Event()

    def send() -> None:
        with Producer(bootstrap, linger_ms=0) as producer:
            due = time.monotonic()
            while not is_over.is_set():
                for partition in range(partitions):
                    producer.send(topic, b"x" * 100, partition=partition)
                due += PERIOD_S
                is_over.wait(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=send, name="steady-traffic")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _judge(
    members: Sequence[Member],
    partitions: int,
    quiet_from: float,
    joined_from: float,
    died_from: float,
    ended: float,
) -> Rebalances:
    arrivals: dict[int, list[float]] = {}
    for member in members:
        for event in member.events():
            if event["event"] == "arrivals":
                for partition, times in event["arrivals"].items():
                    arrivals.setdefault(int(partition), []).extend(times)
    for times in arrivals.values():
        times.sort()
    newcomer = members[-1].events()[0]["at"]
    by_join, by_death = (
        [move for member in members for move in member.moves(since, until)]
        for since, until in ((joined_from, died_from), (died_from, ended))
    )
    moved_by_join, moved_by_death = (
        {partition for _, moved in moves for partition in moved} for moves in (by_join, by_death)
    )
    # What a member that was killed had to say of arrivals is lost with it.
    kept = set(range(partitions)) - moved_by_join - moved_by_death
    session_end = died_from + SESSION_TIMEOUT_MS / 1_000
    return Rebalances(
        partitions=partitions,
        members=len(members),
        join_s=max(at for at, _ in by_join) - newcomer,
        after_death_s=max(at for at, _ in by_death) - session_end,
        moved_by_join=len(moved_by_join),
        moved_by_death=len(moved_by_death),
        quiet_gap_ms=_gap_ms(arrivals, kept, quiet_from, joined_from),
        join_gap_ms=_gap_ms(arrivals, kept, joined_from, died_from),
        death_gap_ms=_gap_ms(arrivals, kept, died_from, ended),
    )


def _gap_ms(
    arrivals: Mapping[int, Sequence[float]], kept: set[int], since: float, until: float
) -> float:
    """The longest time between two polls that brought records of one of the partitions kept."""
    longest = 0.0
    for partition in kept:
        times = [at for at in arrivals.get(partition, ()) if since <= at <= until]
        edges = [since, *times, until]
        gaps = (after - before for before, after in pairwise(edges))
        longest = max(longest, *gaps)
    return longest * 1_000


# -- throughput ------------------------------------------------------------------------------------


def share(directory: Path | None, *, records: int, rounds: int = 3) -> GroupShare:
    """Read the same 100-byte records with and without a group, in alternate rounds."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    partitions = [TopicPartition(topic, partition) for partition in range(4)]
    chunks = max(1, records // CHUNK_RECORDS)
    with target(directory) as broker:
        with Admin(broker.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, len(partitions))])
        with Producer(broker.bootstrap) as producer:
            for number in range(chunks):
                values = [b"x" * 100] * CHUNK_RECORDS
                producer.send_many(topic, values, partition=number % len(partitions))
            producer.flush(timeout=300)
        total = chunks * CHUNK_RECORDS
        grouped, assigned = [], []
        for number in range(rounds):
            with Consumer(
                broker.bootstrap, group=f"g{number}", auto_offset_reset="earliest"
            ) as consumer:
                consumer.subscribe([topic])
                grouped.append(_rate(consumer, total))
            with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
                consumer.assign(partitions)
                assigned.append(_rate(consumer, total))
    rate, floor = statistics.median(grouped), statistics.median(assigned)
    return GroupShare(total, rounds, rate, floor, rate / floor)


def _rate(consumer: Consumer, records: int) -> float:
    """Records per second, from the first to the last: finding the group is no throughput."""
    seen = 0
    while not seen:
        seen = len(consumer.poll(timeout_ms=10_000, max_records=1))
    start = time.perf_counter()
    while seen < records:
        seen += len(consumer.poll(timeout_ms=10_000, max_records=CHUNK_RECORDS))
    return records / (time.perf_counter() - start)


# -- at rest ---------------------------------------------------------------------------------------


def idle(
    directory: Path | None, *, groups: int = 100, members: int = 10, seconds: float = 20.0
) -> IdleGroups:
    """CPU of three brokers while every member waits for records that do not come."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    cores = []
    for kind in ("group", "assigned"):
        with target(directory, brokers=BROKERS) as brokers:
            with Admin(brokers.bootstrap) as admin:
                admin.create_topics([NewTopic(topic, members, config=TOPIC_CONFIG)])
            with _idlers(brokers.bootstrap, kind, topic, groups, members):
                pids = brokers.pids
                time.sleep(REST_S)
                before = sum(map(_cpu_s, pids))
                time.sleep(seconds)
                cores.append((sum(map(_cpu_s, pids)) - before) / seconds)
    return IdleGroups(groups, members, *cores)


@contextmanager
def _idlers(bootstrap: str, kind: str, topic: str, groups: int, members: int) -> Iterator[None]:
    """The consumers, in a few processes; all have their partitions when this begins."""
    running: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-P", "-m", "raftlog.testing.bench.group_idlers"]
    try:
        for number in range(IDLE_PROCESSES):
            names = [f"g{group}" for group in range(groups) if group % IDLE_PROCESSES == number]
            arguments = [bootstrap, kind, topic, str(members), *names]
            running.append(subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE))
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise RuntimeError("a process of idle consumers ended; its words are above")
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate(timeout=60)


def _cpu_s(pid: int) -> float:
    """Processor time that a process has had, in seconds. Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
