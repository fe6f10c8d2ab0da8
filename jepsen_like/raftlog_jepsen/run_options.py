"""Conversion of the options of a run to its plan. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from raftlog_jepsen import generator
from raftlog_jepsen.nemesis.registry import GROUPS, expand
from raftlog_jepsen.plan import CLIENTS, WORKLOADS, ClientName, RunPlan, WorkloadName

# These kinds lose stored data: topics need replicas on other brokers.
LOSSY: Final = frozenset(
    ("corrupt", "truncate", "rollback", "wipe", "swap-disks", "old-backup", "vanish", "disk-error")
)
# Faults that a control script can inject into an external cluster, or that need only a client.
ELSEWHERE: Final = frozenset(
    ("kill", "storm", "pause", "partition", "one-way", "transfer", "topics", "settings",
     "member-kill", "member-pause", "member-churn")
)  # fmt: skip
MEMBER_KINDS: Final = frozenset(GROUPS["members"])
# While these change the voters, the fault budget does not know them.
MEMBERSHIP_KINDS: Final = frozenset(GROUPS["membership"])
BROKERS_MAX: Final = 9
AVAILABLE: Final = 0.75  # share of runs whose topics accept writes while a replica is down
FACTOR_LEAST: Final = 3  # replication factor of such a topic
TIME_MAX_S: Final = 7 * 86_400.0


def _silent(_text: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. ``directory``: contains all files of the run.

    ``time_s``: seconds of load, 5 to 604,800. ``brokers``: 1 to 9. ``rate``: records per second of
    all producers; default: drawn from the seed. ``pairs``: two kinds of fault overlap. ``client``:
    "kafka" for clients with Kafka's protocol. ``source``: a directory with another raftlog package,
    which brokers run. ``bootstrap``, ``control``: an external cluster, and the script that injects
    faults into it. ``secure``: brokers with TLS, users and access rules.
    """

    workload: WorkloadName
    nemeses: tuple[str, ...]
    time_s: float
    seed: int
    directory: Path
    brokers: int = 3
    rate: float | None = None
    pairs: bool = False
    client: ClientName = "raftlog"
    source: Path | None = None
    bootstrap: str | None = None
    control: Path | None = None
    without_root: bool = False
    secure: bool = False
    say: Callable[[str], None] = _silent
    progress: Callable[[Any], None] | None = None


def draw_plan(options: RunOptions) -> RunPlan:
    """Draw the plan of a run. The same options give the same plan.

    Raises ``ValueError`` if an option is out of range or contradicts another. The text names it.
    """
    if options.workload not in WORKLOADS:
        raise ValueError(f"unknown workload {options.workload!r}. Use {', '.join(WORKLOADS)}")
    if options.client not in CLIENTS:
        raise ValueError(f"unknown client {options.client!r}. Use {', '.join(CLIENTS)}")
    if not 5 <= options.time_s <= TIME_MAX_S:
        raise ValueError(f"--time is {options.time_s:g} s. Use 5 s to {TIME_MAX_S:g} s")
    if not 1 <= options.brokers <= BROKERS_MAX:
        raise ValueError(f"--brokers is {options.brokers}. Use 1 to {BROKERS_MAX}")
    kinds = _kinds(options)
    if options.bootstrap is not None and not ELSEWHERE.issuperset(kinds):
        others = ", ".join(sorted({*kinds} - ELSEWHERE))
        raise ValueError(
            f"not possible on an external cluster: {others}. Use {', '.join(sorted(ELSEWHERE))}"
        )
    random = Random(f"{options.seed}/{options.workload}/{options.brokers}")
    mode = generator.draw_rate_mode(random)
    is_available = random.random() < AVAILABLE
    shape = generator.draw_shape(
        random,
        brokers=options.brokers,
        workload=options.workload,
        mode=mode,
        lossy=not LOSSY.isdisjoint(kinds),
        available=is_available and options.brokers >= FACTOR_LEAST,
    )
    rate = options.rate
    if rate is None:
        rate = generator.draw_rate(random, workload=options.workload)
    clients = generator.draw_workload(random, name=options.workload, mode=mode, rate=rate)
    groups = generator.draw_groups(random, workload=options.workload, topics=shape.topics)
    settings = generator.draw_settings(random, workload=options.workload)
    if options.client == "kafka":
        groups = generator.with_protocols(groups, Random(f"{options.seed}/kafka"))
        settings += generator.KAFKA_SETTINGS
    if shape.coordinators:
        factor = max(topic.replication_factor for topic in shape.topics)
        factor = max(factor, min(FACTOR_LEAST, options.brokers))
        settings += (
            ("offsets.topic.num.partitions", str(shape.coordinators)),
            ("offsets.topic.replication.factor", str(factor)),
        )
    return RunPlan(
        seed=options.seed,
        shape=shape,
        workload=replace(clients, groups=groups),
        nemeses=kinds,
        requested=tuple(
            tuple(kind for kind in expand([name]) if kind in kinds) for name in options.nemeses
        ),
        time_s=options.time_s,
        rate=options.rate,
        pairs=options.pairs,
        settings=settings,
        client=options.client,
    )


def _kinds(options: RunOptions) -> tuple[str, ...]:
    """Return the kinds of fault. Excludes those of members from ``all`` without consumer groups,
    and changes of the membership if another kind loses data. Raises ``ValueError`` if such a kind
    was requested by name."""
    kinds = expand(options.nemeses)
    if not LOSSY.isdisjoint(kinds):
        named = sorted(MEMBERSHIP_KINDS & set(expand([n for n in options.nemeses if n != "all"])))
        if named:
            raise ValueError(
                f"{', '.join(named)}: not together with faults that lose data, such as "
                f"{min(LOSSY & {*kinds})}. Run them separately"
            )
        kinds = tuple(kind for kind in kinds if kind not in MEMBERSHIP_KINDS)
    if options.workload == "groups":
        return kinds
    named = sorted(MEMBER_KINDS & {*options.nemeses})
    if named:
        raise ValueError(f"{', '.join(named)} needs consumer groups. Add --workload groups")
    return tuple(kind for kind in kinds if kind not in MEMBER_KINDS)
