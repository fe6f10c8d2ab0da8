"""Cost of consumer groups: rebalances, throughput compared with assigned partitions, idle CPU."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from raftlog import Consumer, Producer, TopicPartition
from raftlog.bench.broker import cpu_s, read
from raftlog.bench.figures import Figure, fill, new_topic, target
from raftlog.testing.cluster import wait_until

BROKERS: Final = 3
SESSION_TIMEOUT_MS: Final = 6_000
QUIET_S: Final = 5.0  # duration of each observed phase
PERIOD_S: Final = 0.02  # between two records of one partition
BALANCE_S_MAX: Final = 60.0
PARTITIONS: Final = 4  # of the throughput measurement
IDLE_PROCESSES: Final = 4
REST_S: Final = 10.0  # until the groups are stable, and have committed their first offsets
# No fdatasync per batch, so that the disk does not limit the results.
TOPIC_CONFIG: Final = {"flush.policy": "os"}


# -- rebalances ------------------------------------------------------------------------------------


class Member:
    """A process of ``group_member``, and the events that it has reported."""

    def __init__(self, number: int, home: Path, arguments: Sequence[str]) -> None:
        self._path = home / f"member-{number}.jsonl"
        with self._path.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "raftlog.bench.group_member", *arguments],
                stdout=output,
            )

    def events(self) -> list[dict[str, Any]]:
        """Return the reported events. The last line may be incomplete."""
        lines = self._path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def owned(self) -> set[int]:
        """Return the partitions that the member has reported as assigned."""
        owned: set[int] = set()
        for event in self.events():
            if event["event"] == "assigned":
                owned |= set(event["partitions"])
            elif event["event"] == "revoked":
                owned -= set(event["partitions"])
        return owned

    def moves(self, since: float, until: float) -> Iterator[tuple[float, list[int]]]:
        """Yield the times at which partitions were assigned or revoked, with the partitions."""
        for event in self.events():
            if event["event"] in {"assigned", "revoked"} and since <= event["at"] <= until:
                yield event["at"], event["partitions"]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(timeout=30)


def rebalances(directory: Path | None, *, partitions: int = 64, members: int = 16) -> Figure:
    """Measure a member that joins and one that is killed, with steady traffic in all partitions.

    ``after_death_s``: from the latest end of the session until all partitions are read again;
    negative if the session ended earlier. Gaps: the longest time between two records of a partition
    that kept its member. ``quiet_gap_ms``: the same without a rebalance.
    """
    group = f"group-{uuid.uuid4().hex[:8]}"
    with (
        target(directory, brokers=BROKERS) as brokers,
        new_topic(brokers.bootstrap, partitions, config=TOPIC_CONFIG) as topic,
    ):
        arguments = (brokers.bootstrap, group, topic, str(SESSION_TIMEOUT_MS))
        running: list[Member] = []
        try:
            with _steady_traffic(brokers.bootstrap, topic, partitions):
                running += [Member(n, brokers.directory, arguments) for n in range(members)]
                _await_balance(running, partitions)
                quiet_from = time.monotonic()
                time.sleep(QUIET_S)
                joined_from = time.monotonic()
                running.append(Member(members, brokers.directory, arguments))
                _await_balance(running, partitions)
                time.sleep(QUIET_S)
                died_from = time.monotonic()
                victim = running.pop(0)
                victim.process.kill()
                victim.process.wait()
                _await_balance(running, partitions)
                time.sleep(QUIET_S)
                ended = time.monotonic()
        finally:
            for member in running:
                member.end()
        return _figure(running, partitions, quiet_from, joined_from, died_from, ended)


def _await_balance(members: Sequence[Member], partitions: int) -> None:
    """Wait until all partitions are assigned and balanced."""

    def is_balanced() -> bool:
        owned = [member.owned() for member in members]
        sizes = [len(share) for share in owned]
        return len(set().union(*owned)) == sum(sizes) == partitions and (
            max(sizes) - min(sizes) <= 1
        )

    wait_until(is_balanced, timeout_s=BALANCE_S_MAX, what="every partition is read")


@contextmanager
def _steady_traffic(bootstrap: str, topic: str, partitions: int) -> Iterator[None]:
    """Send a record to each partition every ``PERIOD_S`` seconds."""
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


def _figure(
    members: Sequence[Member],
    partitions: int,
    quiet_from: float,
    joined_from: float,
    died_from: float,
    ended: float,
) -> Figure:
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
    # The killed member has not reported the records that it received.
    kept = set(range(partitions)) - moved_by_join - moved_by_death
    session_end = died_from + SESSION_TIMEOUT_MS / 1_000
    join_s = max(at for at, _ in by_join) - newcomer
    after_death_s = max(at for at, _ in by_death) - session_end
    quiet_ms, join_ms, death_ms = (
        _gap_ms(arrivals, kept, since, until)
        for since, until in pairwise((quiet_from, joined_from, died_from, ended))
    )
    return Figure(
        {
            "partitions": partitions,
            "members": len(members),
            "join_s": join_s,
            "after_death_s": after_death_s,
            "moved_by_join": len(moved_by_join),
            "moved_by_death": len(moved_by_death),
            "quiet_gap_ms": quiet_ms,
            "join_gap_ms": join_ms,
            "death_gap_ms": death_ms,
        },
        {
            "benchmark": f"{len(members)} members, {partitions} partitions",
            "join s": f"{join_s:.2f}",
            "after a session's end s": f"{after_death_s:.2f}",
            "moved": f"{len(moved_by_join)} + {len(moved_by_death)}",
            "longest gap ms: quiet, join, death": (
                f"{quiet_ms:.0f}, {join_ms:.0f}, {death_ms:.0f}"
            ),
        },
    )


def _gap_ms(
    arrivals: Mapping[int, Sequence[float]], kept: set[int], since: float, until: float
) -> float:
    """Return the longest time between two polls with records of one of the kept partitions."""
    longest = 0.0
    for partition in kept:
        times = [at for at in arrivals.get(partition, ()) if since <= at <= until]
        edges = [since, *times, until]
        gaps = (after - before for before, after in pairwise(edges))
        longest = max(longest, *gaps)
    return longest * 1_000


# -- throughput ------------------------------------------------------------------------------------


def share(directory: Path | None, *, records: int, rounds: int = 3) -> Figure:
    """Measure reads of the same 100-byte records with and without a group, in alternate rounds."""
    grouped, assigned = [], []
    with target(directory) as broker, new_topic(broker.bootstrap, PARTITIONS) as topic:
        fill(broker.bootstrap, topic, records, b"x" * 100, partitions=PARTITIONS)
        for number in range(rounds):
            with Consumer(
                broker.bootstrap, group=f"g{number}", auto_offset_reset="earliest"
            ) as consumer:
                consumer.subscribe([topic])
                grouped.append(_rate(consumer, records))
            with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
                assigned.append(_rate(consumer, records))
    rate, floor = statistics.median(grouped), statistics.median(assigned)
    return Figure(
        {
            "records": records,
            "rounds": rounds,
            "group_records_per_s": rate,
            "assigned_records_per_s": floor,
            "ratio": rate / floor,
        },
        {
            "benchmark": "group consumption",
            "records/s": f"{rate:,.0f}",
            "assigned records/s": f"{floor:,.0f}",
            "share of assigned": f"{rate / floor:.0%}",
        },
    )


def _rate(consumer: Consumer, records: int) -> float:
    """Return records per second from the first to the last, without the time to join the group."""
    seen = 0
    while not seen:
        seen = len(consumer.poll(timeout_ms=10_000, max_records=1))
    start = time.perf_counter()
    read(consumer, records - seen)
    return records / (time.perf_counter() - start)


# -- idle members ----------------------------------------------------------------------------------


def idle(
    directory: Path | None, *, groups: int = 100, members: int = 10, seconds: float = 20.0
) -> Figure:
    """Measure the CPU of three brokers while all members wait for records: 1.0 is one core.

    ``assigned_cores``: with the same number of consumers without groups, whose fetches also wait.
    """
    found = []
    for kind in ("group", "assigned"):
        with (
            target(directory, brokers=BROKERS) as brokers,
            new_topic(brokers.bootstrap, members, config=TOPIC_CONFIG) as topic,
            _idlers(brokers.bootstrap, kind, topic, groups, members),
        ):
            time.sleep(REST_S)
            before = sum(map(cpu_s, brokers.pids))
            time.sleep(seconds)
            found.append((sum(map(cpu_s, brokers.pids)) - before) / seconds)
    cores, assigned_cores = found
    return Figure(
        {"groups": groups, "members": members, "cores": cores, "assigned_cores": assigned_cores},
        {
            "benchmark": f"{groups} groups of {members} idle members",
            "brokers' CPU": f"{cores:.1%} of a core",
            "without groups": f"{assigned_cores:.1%} of a core",
        },
    )


@contextmanager
def _idlers(bootstrap: str, kind: str, topic: str, groups: int, members: int) -> Iterator[None]:
    """Run idle consumers in a few processes. The block starts when all have their partitions."""
    running: list[subprocess.Popen[bytes]] = []
    command = [sys.executable, "-P", "-m", "raftlog.bench.group_idlers"]
    try:
        for number in range(IDLE_PROCESSES):
            names = [f"g{group}" for group in range(groups) if group % IDLE_PROCESSES == number]
            arguments = [bootstrap, kind, topic, str(members), *names]
            running.append(subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE))
        for process in running:
            assert process.stdout is not None
            if process.stdout.readline().strip() != b"ready":
                raise RuntimeError("a process of idle consumers failed. Its error output is above")
        yield
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.communicate(timeout=60)
