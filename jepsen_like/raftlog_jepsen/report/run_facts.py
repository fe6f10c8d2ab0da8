"""Parameters and environment of a run, from the first entry of its history. Pure.

Other histories may have no plan or a plan with other fields. Missing data is omitted.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from raftlog_jepsen.report import markup
from raftlog_jepsen.report.digest import Digest

Row = tuple[str, str]


def kinds_of(digest: Digest) -> list[str]:
    """Return the kinds of fault that were requested."""
    names = _plan(digest).get("nemeses")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def rows(digest: Digest) -> list[Row]:
    """Return name and value of each fact."""
    facts = digest.start.facts if digest.start else {}
    return [*_asked(digest), *((str(name), str(value)) for name, value in facts.items() if value)]


def repeat_commands(digest: Digest, history: str) -> list[Row]:
    """Return the commands that check the history and, if it contains the options of the run, repeat
    the run."""
    found = [("check this history again", f"raftlog chaos check {shlex.quote(history)}")]
    again = again_command(digest)
    if again:
        found.insert(0, ("run the same plan again", again))
    return found


def again_command(digest: Digest) -> str:
    """Return ``raftlog chaos run`` with the options of this run; empty without a plan."""
    plan = _plan(digest)
    if "seed" not in plan:
        return ""
    words = ["raftlog", "chaos", "run", "--seed", str(plan["seed"])]
    name = _mapping(plan.get("workload")).get("name")
    if name:
        words += ["--workload", str(name)]
    kinds = kinds_of(digest)
    words += ["--nemesis", ",".join(kinds) if kinds else "none"]
    if isinstance(plan.get("time_s"), int | float):
        words += ["--time", f"{plan['time_s']:g}"]
    brokers = _mapping(plan.get("shape")).get("brokers")
    if brokers:
        words += ["--brokers", str(brokers)]
    if plan.get("rate"):
        words += ["--rate", f"{plan['rate']:g}"]
    if plan.get("pairs"):
        words.append("--pairs")
    return shlex.join(words)


def _plan(digest: Digest) -> Mapping[str, Any]:
    return digest.start.plan if digest.start else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _asked(digest: Digest) -> Iterator[Row]:
    plan = _plan(digest)
    shape, workload = _mapping(plan.get("shape")), _mapping(plan.get("workload"))
    if "seed" in plan:
        yield "seed", str(plan["seed"])
    if workload.get("name"):
        yield "workload", str(workload["name"])
    clients = [
        markup.counted(len(workload[key]), key.removesuffix("s"))
        for key in ("producers", "consumers")
        if isinstance(workload.get(key), list | tuple)
    ]
    if clients:
        yield "clients", ", ".join(clients)
    groups = workload.get("groups")
    for one in map(_mapping, groups if isinstance(groups, list | tuple) else ()):
        yield f"group {one.get('name')}", _group(one)
    if plan:
        pairs = ", two at a time" if plan.get("pairs") else ""
        yield "kinds of fault", (", ".join(kinds_of(digest)) or "none") + pairs
    if shape.get("brokers"):
        yield "brokers", str(shape["brokers"])
    topics = shape.get("topics")
    for one in map(_mapping, topics if isinstance(topics, list | tuple) else ()):
        if "name" not in one:
            continue
        copies = f"replication factor {one.get('replication_factor')}"
        plural = "" if one.get("partitions") == 1 else "s"
        parts = f"{one.get('partitions')} partition{plural}"
        description = f"{parts}, {copies}, min ISR {one.get('min_isr')}"
        yield f"topic {one['name']}", description
    if shape.get("flush_policy"):
        yield "flush policy", str(shape["flush_policy"])
    if isinstance(plan.get("time_s"), int | float):
        yield "load", markup.seconds(plan["time_s"])
    yield "complete run", markup.seconds(digest.length_s)


def _group(group: Mapping[str, Any]) -> str:
    """Describe a consumer group of the plan."""
    members = [_mapping(member) for member in group.get("members") or ()]
    topics = ", ".join(map(str, group.get("topics") or ()))
    if not members:
        return f"without members, of {topics}"
    commits = "/".join(sorted({str(member.get("commits")) for member in members}))
    styles = ", ".join(str(member.get("style")) for member in members)
    static = ", static" if any(member.get("instance") for member in members) else ""
    return (
        f"{markup.counted(len(members), 'member')} ({styles}), {commits} commits{static}, session "
        f"timeout {group.get('session_timeout_s'):g} s, of {topics}"
    )
