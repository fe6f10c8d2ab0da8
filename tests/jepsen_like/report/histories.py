"""Histories made up for tests of reports: plain, hostile, and large ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any

from raftlog.testing.history import (
    AnyEntry,
    Append,
    Fault,
    Note,
    Phase,
    Poll,
    Start,
)

NS = 1_000_000_000
BASE = 7_000 * NS  # a monotonic clock does not begin at zero
HOSTILE = '</svg><script>alert("1")</script>&amp; \x00\x1b[31m \ud800 ]]> <!--'

PLAN: dict[str, Any] = {
    "seed": 42,
    "shape": {
        "brokers": 3,
        "topics": [
            {"name": "chaos-a", "partitions": 4, "replication_factor": 3, "min_isr": 2},
            {"name": "chaos-b", "partitions": 1, "replication_factor": 3, "min_isr": 1},
        ],
        "flush_policy": "durable",
    },
    "workload": {"name": "append", "producers": [{}, {}, {}], "consumers": [{}, {}]},
    "nemeses": ["kill", "partition", "power", "disk-full"],
    "time_s": 60.0,
    "pairs": True,
}


def start(at_s: float = 0.0, plan: dict[str, Any] | None = None) -> Start:
    facts = {"raftlog": "0.4.0", "python": "3.11.9", "network": "namespaces"}
    return Start(time=at(at_s), process="runner", type="info", plan=plan or PLAN, facts=facts)


def at(seconds: float) -> int:
    return BASE + round(seconds * NS)


def append(
    begin_s: float, took_s: float, first: int, count: int, outcome: Any = "ok", **other: Any
) -> list[Append]:
    """An append and its completion."""
    process = other.pop("process", "p1")
    partition = other.pop("partition", "chaos-a:0")
    common: dict[str, Any] = {"process": process, "partition": partition, "first": first}
    offsets = [(first, count, first)] if outcome == "ok" else []
    return [
        Append(time=at(begin_s), type="invoke", count=count, **common),
        Append(
            time=at(begin_s + took_s),
            type=outcome,
            count=count,
            offsets=other.pop("offsets", offsets),
            **common,
            **other,
        ),
    ]


def fault(
    number: int,
    kind: str,
    begin_s: float,
    end_s: float | None,
    *,
    targets: tuple[int, ...] = (),
    effect: dict[str, Any] | None = None,
    effect_end: dict[str, Any] | None = None,
    **other: Any,
) -> list[Fault]:
    """A fault as the driver writes it: two entries for its beginning, two for its end."""
    common: dict[str, Any] = {"process": "nemesis", "id": number, "kind": kind}
    made = [
        Fault(time=at(begin_s), type="invoke", phase="begin", **common),
        Fault(
            time=at(begin_s + 0.1),
            type="info",
            phase="begin",
            targets=list(targets),
            effect=effect or {},
            **common,
            **other,
        ),
    ]
    if end_s is not None:
        ended = {"phase": "end", "targets": list(targets), **common}
        made.append(Fault(time=at(end_s - 0.1), type="invoke", **ended))
        made.append(Fault(time=at(end_s), type="info", effect=effect_end or {}, **ended))
    return made


def phases(load_s: float = 60.0) -> list[Phase]:
    times = {
        "setup": 0.0,
        "load": 4.0,
        "heal": 4.0 + load_s,
        "quiesce": 6.0 + load_s,
        "read": 10.0 + load_s,
        "dump": 13.0 + load_s,
        "end": 15.0 + load_s,
    }
    return [Phase(time=at(t), process="runner", type="info", name=n) for n, t in times.items()]


def sorted_by_time(*groups: list[Any]) -> list[AnyEntry]:
    return sorted((entry for group in groups for entry in group), key=lambda entry: entry.time)


def lively(load_s: float = 60.0, faults_per_kind: int = 3, rate: int = 40) -> list[AnyEntry]:
    """A run with some of everything: what a person looks at when the report is changed."""
    random = Random(1)
    groups: list[list[Any]] = [[start()], list(phases(load_s))]
    value = 0
    outages = [(4 + load_s * 0.3, 4 + load_s * 0.34), (4 + load_s * 0.7, 4 + load_s * 0.78)]
    for step in range(int(load_s * rate)):
        begin = 4 + step / rate
        count = random.randint(1, 100)
        took = math.exp(random.gauss(-5.5, 0.8))
        outcome = "info" if random.random() < 0.01 else "ok"
        if any(left <= begin <= right for left, right in outages):
            outcome = random.choice(["info", "info", "fail", "none"])
        if outcome == "none":
            continue
        error = "" if outcome == "ok" else "TimeoutError: no answer within 1 s"
        took = 1.0 if outcome == "info" else took
        process = f"p{step % 8}"
        made = append(begin, took, value, count, outcome, process=process, error=error)
        groups.append(made)
        seen = [(value, count, value, int(begin / 13))]
        records = {"chaos-a:0": seen} if outcome == "ok" else {}
        groups.append(
            [
                Poll(time=at(begin), process=f"c{step % 3}", type="invoke"),
                Poll(
                    time=at(begin + took + 0.01), process=f"c{step % 3}", type="ok", records=records
                ),
            ]
        )
        value += count
    groups += list(_faults(random, load_s, faults_per_kind))
    note = Note(time=at(66), process="runner", type="info", text="not quiet after 60 s: chaos-a:1")
    groups.append([note])
    return sorted_by_time(*groups)


def _faults(random: Random, load_s: float, per_kind: int) -> Iterator[list[Fault]]:
    number = 0
    for kind in ("kill", "partition", "power", "pause", "link-delay", "corrupt", "transfer"):
        for _ in range(per_kind):
            number += 1
            begin = 5 + random.random() * (load_s - 12)
            end = begin + random.uniform(0.5, 8)
            targets = tuple(sorted(random.sample([1, 2, 3], random.randint(1, 2))))
            effect = {"killed": len(targets), "pid": 4711, "bytes_dropped": 12_345}
            yield fault(number, kind, begin, end, targets=targets, effect=effect)
    for _ in range(2):
        number += 1
        begin = 5 + random.random() * (load_s - 12)
        why = {"why": "no loop devices here"}
        yield fault(number, "disk-full", begin, begin + 3, effect=why, injected=False)
    yield fault(number + 1, "wipe", 20, 30, targets=(2,), budget="beyond", effect={"files": 31})


def large(operations: int) -> Iterator[AnyEntry]:
    """``operations`` appends of ten records, and as many polls, at 2,000 a second."""
    yield start()
    for number in range(operations):
        begin = number / 2_000
        yield from append(begin, 0.004, number * 10, 10, process=f"p{number % 16}")
        yield Poll(time=at(begin), process="c", type="invoke", positions={"chaos-a:0": number})
        seen = [(number * 10, 10, number * 10, number // 100_000)]
        yield Poll(time=at(begin + 0.004), process="c", type="ok", records={"chaos-a:0": seen})
