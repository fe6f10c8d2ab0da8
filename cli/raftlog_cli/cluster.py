"""``raftlog cluster``: show and change a cluster, its brokers and partitions."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final, NamedTuple

import click

from raftlog import Admin, TopicPartition
from raftlog.client.descriptions import (
    ClusterDescription,
    ClusterFeatures,
    DecommissionProgress,
    EventDescription,
    PartitionOverview,
    RecoveryDescription,
)
from raftlog.clock import SystemClock
from raftlog.config.broker import LOGGING_LEVELS
from raftlog.errors import InvalidRequestError, RaftlogError, counted
from raftlog.replication.placement import PlacedPartition, PlannedMove, rebalance
from raftlog.types import TimestampMs, is_internal_topic
from raftlog_cli import completing, options, output, overview
from raftlog_cli.main import STATUS_FAILED, Commands, Failed
from raftlog_cli.options import TIME_GRAMMAR, parse_time

# -- events ----------------------------------------------------------------------------------------
#
# ``raftlog cluster events``: print the changes of the cluster with their times.


FOLLOW_INTERVAL_S: Final = 1.0
# Milliseconds. Clocks differ and brokers can be slow, so events this much older can be new here.
LATE_MS: Final = 60_000


def parse_since(text: str) -> TimestampMs:
    """Return ``@TIME`` or ``TIME`` as milliseconds since 1970. Raises ``ValueError``."""
    found = parse_time(text.removeprefix("@"), now_ms=SystemClock().wall_ms())
    if found is None:
        raise ValueError(f"{text!r}: write @TIME; TIME is {TIME_GRAMMAR}")
    return found


@click.command(short_help="Print elections, ISR changes, joined and failed brokers.")
@click.option(
    "--since",
    metavar="@TIME",
    callback=options.parsed(parse_since),
    help=f"Print only events since this time: {TIME_GRAMMAR}.",
)
@click.option("-f", "--follow", is_flag=True, help="Print new events until interrupted.")
@options.as_json
@options.bootstrap
def events(since: TimestampMs | None, follow: bool, as_json: bool, bootstrap: str) -> None:
    """Print elections, ISR changes, and brokers that joined or failed.

    Brokers keep their last events since their start, and all voters of a partition keep the same
    events. The time is that of the first broker that applied the change. With --json, one event per
    line.

    \b
    Example:
      raftlog cluster events --since @-2h
    """
    with Admin(bootstrap) as admin:
        for event in _found(admin, since or 0, follow=follow):
            click.echo(output.to_json(asdict(event)) if as_json else event_line(event))


def _found(admin: Admin, since_ms: TimestampMs, *, follow: bool) -> Iterator[EventDescription]:
    seen: set[tuple[object, ...]] = set()
    found = admin.describe_events(since_ms)
    while True:
        for event in found:
            # Events, not times, are compared: a slow broker can report an earlier event later.
            place = event.broker if event.topic is None else event.partition
            key = event.kind, event.topic, place, event.version, event.leader_epoch
            if key not in seen:
                seen.add(key)
                yield event
        if not follow:
            return
        if found:
            since_ms = max(since_ms, found[-1].at_ms - LATE_MS)
        time.sleep(FOLLOW_INTERVAL_S)
        try:
            found = admin.describe_events(since_ms)
        except RaftlogError as error:
            output.note_error(error)
            found = []


def event_line(event: EventDescription) -> str:
    """Return the time in UTC, the kind, the partition, and the description."""
    where = "" if event.topic is None else f"{event.topic}:{event.partition}: "
    return f"{utc_time(event.at_ms)}  {event.kind:<22}  {where}{event.text}"


def utc_time(at_ms: TimestampMs) -> str:
    """Return the time in UTC, ISO 8601."""
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


# -- log level -------------------------------------------------------------------------------------
#
# ``raftlog cluster log-level``: show and change the log levels of running brokers.


INHERIT = "default"


@click.command("log-level")
@click.argument("logger", required=False)
@click.argument("level", required=False, type=click.Choice([*LOGGING_LEVELS, INHERIT]))
@click.option(
    "--broker",
    type=click.IntRange(min=0),
    shell_complete=completing.brokers,
    help="Only this broker.  [default: all that respond]",
)
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def log_level(
    logger: str | None,
    level: str | None,
    broker: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Show or change the log levels of running brokers.

    The change lasts until the broker stops. logging.level in its configuration is permanent.

    LOGGER is a logger in a log line, such as raftlog.server.connection, or a parent of it, such as
    raftlog.server or "root". LEVEL applies to LOGGER and to its children without a level; "default"
    removes the level. Without LEVEL, the command shows LOGGER and its children. Without LOGGER, it
    shows all loggers with a level.

    \b
    Example:
      raftlog cluster log-level raftlog.server.cluster debug --broker 2
      raftlog cluster log-level raftlog.server.cluster default
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        if broker is not None:
            brokers = [broker]
        else:
            described = admin.describe_cluster(partitions=False).brokers
            brokers = [each.id for each in described if each.live]
            for each in described:
                if not each.live:
                    output.note(f"raftlog: broker {each.id} is omitted: {each.problem}")
        if logger is not None and level is not None:
            changes = {logger: None if level == INHERIT else level}
            for number in brokers:
                admin.alter_log_levels(number, changes)
        rows = [row for number in brokers for row in _rows(admin, number, logger)]
    if not rows:
        raise InvalidRequestError(f"no broker has a logger {logger!r}")
    if as_json:
        output.print_json(rows)
        return
    output.print_table(
        ("broker", "logger", "level"),
        [(row["broker"], row["logger"], row["level"]) for row in rows],
    )


def _rows(admin: Admin, broker: int, logger: str | None) -> list[dict[str, Any]]:
    """Return the loggers to show: those with a level, or ``logger`` and its children."""
    return [
        {"broker": broker, "logger": name, "level": found.level, "own": found.is_own}
        for name, found in admin.describe_log_levels(broker).items()
        if (found.is_own if logger is None else f"{name}.".startswith(f"{logger}."))
    ]


# -- cluster ---------------------------------------------------------------------------------------


WATCH_INTERVAL_S: Final = 1.0
ANY_LOSS: Final = "any"  # --accept-loss without an ID
STATUS_DEGRADED: Final = 3  # exit status of `status` if there are problems


@click.group(cls=Commands, short_help="Show the cluster, move leaders and replicas, recover it.")
def cluster() -> None:
    """Show the cluster, transfer leaders, move replicas, recover from a lost majority.

    \b
    Example:
      raftlog cluster status
    """


cluster.add_command(events)
cluster.add_command(log_level)


@cluster.command(short_help="Show the health of the cluster, and all problems.")
@click.option("--watch", is_flag=True, help="Repeat every second until interrupted.")
@options.as_json
@options.bootstrap
@click.pass_context
def status(context: click.Context, watch: bool, as_json: bool, bootstrap: str) -> None:
    """Show the number of healthy brokers and partitions, and all problems.

    \b
    under-replicated  a replica is not in sync
    unavailable       no leader responds: no reads, no writes
    at min ISR        with one replica less, writes with acks=all are rejected

    Exit status 0 if there are no problems, 3 if there are any (with --json: "ok" and "problems"), 1
    if no broker responds. A replica whose broker does not respond counts as not in sync.

    \b
    Example:
      raftlog cluster status --watch
    """
    with Admin(bootstrap) as admin:
        if not watch:
            described = admin.describe_cluster()
            _print_status(described, as_json=as_json)
            if overview.problems(described):
                context.exit(STATUS_DEGRADED)
            return
        while True:
            try:
                described = admin.describe_cluster()
            except RaftlogError as error:
                output.note_error(error)
            else:
                output.clear()
                _print_status(described, as_json=as_json)
            time.sleep(WATCH_INTERVAL_S)


def _print_status(described: ClusterDescription, *, as_json: bool) -> None:
    counts = overview.summary(described)
    if as_json:
        output.print_json(counts)
        return
    fenced = f", {counts['brokers_fenced']} fenced" if counts["brokers_fenced"] else ""
    rows: list[tuple[str, Any]] = [
        ("cluster", counts["cluster_id"]),
        ("controller", "none" if described.controller is None else described.controller),
        ("brokers", f"{counts['brokers_up']} of {counts['brokers']} up{fenced}"),
        ("topics", counts["topics"]),
        ("partitions", counts["partitions"]),
        ("under-replicated", counts["under_replicated"]),
        ("unavailable", counts["unavailable"]),
        ("at min ISR", counts["at_min_isr"]),
        (
            "damage",
            "none found" if not counts["damage"] else counted(len(counts["damage"]), "replica"),
        ),
    ]
    for name, value in rows:
        click.echo(f"{name:>16}  {value}")
    for broker in described.brokers:
        if not overview.is_up(broker):
            state = ": ".join(filter(None, (overview.broker_state(broker), broker.problem)))
            click.echo(f"broker {broker.id} is {state}")
            continue
        if broker.clock_error_ms:
            click.echo(overview.clock_problem(broker))
        for problem in overview.disk_problems(broker):
            click.echo(f"broker {broker.id}: {problem}")
    for found in counts["damage"]:
        place = f"{found['topic']}:{found['partition']} on broker {found['broker']}"
        click.echo(f"corrupt: {place}: {found['damage']}")
    for lost in counts["losses"]:
        at = "an unknown offset" if lost["offset"] < 0 else f"offset {lost['offset']}"
        click.echo(
            f"loss: {lost['topic']}:{lost['partition']} lost records from {at} on in leader epoch "
            f"{lost['leader_epoch']}: an operator accepted the loss"
        )


@cluster.command(short_help="List the brokers with state, leaderships and disk space.")
@options.wide
@options.as_json
@options.bootstrap
def brokers(as_json: bool, bootstrap: str) -> None:
    """List the brokers: address, state, number of leaderships and replicas, free disk space.

    \b
    Example:
      raftlog cluster brokers
    """
    with Admin(bootstrap) as admin:
        described = admin.describe_cluster()
    rows = overview.broker_rows(described)
    if as_json:
        output.print_json(rows)
        return
    columns = ("id", "address", "rack", "state", "leads", "replicas", "directory", "controller")
    output.print_table(
        (*columns, "disk free"),
        if_set=("rack",),
        drop=("directory", "controller"),
        rows=[
            (
                row["id"],
                f"{row['host']}:{row['port']}",
                row["rack"],
                row["state"],
                row["leads"],
                row["replicas"],
                row["directory_id"],
                "yes" if row["controller"] else "",
                overview.free_space(broker.disk),
            )
            for row, broker in zip(rows, described.brokers, strict=True)
        ],
    )


@cluster.command(short_help="List the partitions of all topics.")
@click.option(
    "--under-replicated", is_flag=True, help="List only partitions with a lagging replica."
)
@click.option(
    "--unavailable", is_flag=True, help="List only partitions whose leader does not respond."
)
@click.option("--at-min-isr", is_flag=True, help="List only partitions at min.insync.replicas.")
@options.internal
@options.wide
@options.as_json
@options.bootstrap
def partitions(
    under_replicated: bool,
    unavailable: bool,
    at_min_isr: bool,
    internal: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """List the partitions of all topics. Several filters are combined with OR.

    Partitions of internal topics are listed with --internal, or if they match a filter. Lag is in
    records: "2:120" means that broker 2 lags by 120 records.

    \b
    Example:
      raftlog cluster partitions --under-replicated
    """
    with Admin(bootstrap) as admin:
        found = list(admin.describe_cluster().partitions)
    if under_replicated or unavailable or at_min_isr:
        found = [
            partition
            for partition in found
            if (under_replicated and partition.is_under_replicated)
            or (unavailable and not partition.is_available)
            or (at_min_isr and partition.is_at_min_isr)
        ]
    elif not internal:
        found = [partition for partition in found if not is_internal_topic(partition.topic)]
    if as_json:
        output.print_json([overview.partition_row(partition) for partition in found])
        return
    columns = ("partition", "leader", "epoch", "replicas", "isr", "min", "witnesses", "lag")
    output.print_table(
        (*columns, "high watermark", "state"),
        list(map(_partition_cells, found)),
        if_set=("witnesses",),
        drop=("high watermark", "epoch", "min", "witnesses", "replicas"),
    )


def _partition_cells(partition: PartitionOverview) -> tuple[Any, ...]:
    return (
        f"{partition.topic}:{partition.partition}",
        partition.leader,
        partition.leader_epoch,
        overview.ids(partition.replicas),
        overview.ids(partition.isr),
        partition.min_isr,
        overview.ids(partition.witnesses),
        overview.lag(partition.replica_states),
        partition.high_watermark,
        overview.partition_state(partition),
    )


@cluster.command(short_help="Show releases of brokers, and versions of formats.")
@click.option(
    "--upgrade",
    is_flag=True,
    help="Require the newest protocol between brokers, after all brokers were updated. Brokers of "
    "earlier releases are then rejected.",
)
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
@click.pass_context
def features(
    context: click.Context,
    upgrade: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Show the release of each broker, and the versions of formats and requests.

    \b
    level     version that all brokers write; "-" if it differs
    versions  versions that all brokers read

    The levels of peer.protocol and cluster.state change only with --upgrade. A downgrade is
    possible until then. Of all other formats, a broker writes its newest version. Exit status 3 if
    a broker writes a version that another one does not read: these brokers must not run together.
    The table lists the requests ("api ...") whose versions differ between brokers; --json lists all
    requests.

    \b
    Example:
      raftlog cluster features
      raftlog cluster features --upgrade
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        if upgrade:
            admin.upgrade_features()
        found = admin.describe_features()
    bad = [each.name for each in found.features if not each.compatible]
    if as_json:
        output.print_json(asdict(found))
    else:
        _print_features(found)
        if bad:
            click.echo(
                f"Brokers write versions that others do not read: {', '.join(bad)}. Stop the "
                "brokers with the newer release"
            )
    if bad:
        context.exit(STATUS_DEGRADED)


def _print_features(found: ClusterFeatures) -> None:
    output.print_table(
        ("broker", "software"),
        [(each.id, each.problem or each.software) for each in found.brokers],
        prose="software",
    )
    click.echo()
    differing = [
        replace(each, name=f"api {each.name}") for each in found.apis if each.level is None
    ]
    output.print_table(
        ("feature", "level", "versions"),
        [
            (
                each.name,
                "-" if each.level is None else each.level,
                f"{each.version_min} to {each.version_max}"
                if each.version_min <= each.version_max
                else "none in common",
            )
            for each in (*found.features, *differing)
        ],
    )


# -- changes -------------------------------------------------------------------------------


@cluster.command(short_help="Transfer the leadership of a partition.")
@click.argument(
    "partition",
    metavar="TOPIC:P",
    shell_complete=completing.partitions,
    callback=lambda _context, _parameter, text: options.topic_partition(text),
)
@click.option(
    "--to",
    type=click.IntRange(min=0),
    shell_complete=completing.brokers,
    help="Broker that becomes the leader.",
)
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def transfer_leader(
    partition: TopicPartition,
    to: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Transfer the leadership of a partition to another in-sync replica. No record is lost.

    Without --to, the new leader is the first live replica in the preferred order.

    \b
    Example:
      raftlog cluster transfer-leader clicks:0 --to 2
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        leads = admin.transfer_leader(partition.topic, partition.partition, to)
    output.report(
        {**partition._asdict(), **asdict(leads)},
        f"broker {leads.leader} leads {partition}, in epoch {leads.leader_epoch}",
        as_json=as_json,
    )


@cluster.command(short_help="Move replicas to other brokers.")
@click.option(
    "--topic",
    metavar="T[:P]",
    shell_complete=completing.topics,
    help="Topic, or one partition of it.",
)
@click.option(
    "--brokers",
    metavar="IDS",
    callback=options.parsed(options.broker_ids),
    help="Brokers for the replicas, such as 1,2,4. For one partition: exactly these, preferred "
    "leader first.",
)
@click.option("--plan", type=click.File("rb"), help="Execute the plan of this file.")
@click.option("--generate", is_flag=True, help="Print a balanced plan as JSON, and move nothing.")
@click.option("--verify", is_flag=True, help="Print the moves in progress.")
@click.option("--cancel", is_flag=True, help="Cancel the moves in progress.")
@click.option("--dry-run", is_flag=True, help="Print the moves, and move nothing.")
@click.option("--no-wait", is_flag=True, help="Return when the moves are stored.")
@options.throttle
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def reassign(
    topic: str | None,
    brokers: list[int] | None,
    plan: BinaryIO | None,
    generate: bool,
    verify: bool,
    cancel: bool,
    dry_run: bool,
    no_wait: bool,
    throttle: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Move replicas to other brokers. No record is lost; clients follow automatically.

    One replica of a partition moves at a time. The new replica copies all records and joins the
    in-sync replicas before the former one is removed. A move continues after a crash of any broker.
    With --topic and --brokers, the replicas are distributed over these brokers.

    --throttle limits the copies. Without other options, it changes the limit of moves in progress.

    \b
    Example:
      raftlog cluster reassign --topic clicks:0 --brokers 1,2,4
      raftlog cluster reassign --generate --brokers 1,2,3,4 > plan.json
      raftlog cluster reassign --plan plan.json --no-wait --throttle 10MB
      raftlog cluster reassign --verify
      raftlog cluster reassign --throttle none
    """
    given = (plan is not None) + generate + verify + cancel
    is_throttle_only = throttle is not None and not (given or topic or brokers)
    if given > 1 or (given == 0 and not (topic and brokers) and not is_throttle_only):
        raise click.UsageError(
            "pass --topic and --brokers, or one of --plan, --generate, --verify, --cancel and "
            "--throttle"
        )
    if plan is not None and (topic or brokers):
        raise click.UsageError("--plan cannot be combined with --topic and --brokers")
    if cancel and (dry_run or ":" in (topic or "")):
        raise click.UsageError(
            "--cancel cannot be combined with --dry-run, or with one partition of a topic. "
            "--verify prints the moves in progress"
        )
    if throttle is not None and (generate or verify or dry_run):
        raise click.UsageError("--throttle cannot be combined with an option that only prints")
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        throttle_moves(admin, throttle)
        if is_throttle_only:
            _end_or_show(admin, None, cancel=False, no_wait=True, as_json=as_json)
            return
        if verify or cancel:
            _end_or_show(admin, topic, cancel=cancel, no_wait=no_wait, as_json=as_json)
            return
        if plan is not None:
            try:
                planned = parse(plan.read())
            except ValueError as error:
                raise click.UsageError(str(error)) from error
        else:
            planned = _planned(admin, topic, brokers)
        if generate:
            output.print_json({"moves": rows(planned)})
            return
        _execute(admin, planned, dry_run=dry_run, no_wait=no_wait, as_json=as_json)


def _planned(admin: Admin, topic: str | None, brokers: list[int] | None) -> list[PlannedMove]:
    """Return the plan for one partition, a topic, or all topics."""
    name, colon, number = (topic or "").partition(":")
    described = admin.describe_cluster([name] if topic else None)
    if colon and brokers:
        partition = options.topic_partition(f"{name}:{number}").partition
        for each in described.partitions:
            if each.partition == partition:
                return [PlannedMove(name, partition, each.replicas, tuple(brokers))]
        raise Failed(f"topic {name!r} has no partition {partition}")
    if moving := moving_partitions(described):
        raise Failed(
            f"{counted(len(moving), 'partition has', 'partitions have')} moves in progress. Wait "
            "for them, or cancel them with "
            "`raftlog cluster reassign --cancel`"
        )
    places = brokers_of(described, brokers)
    most = max((len(each.replicas) for each in described.partitions), default=0)
    if most > len(places):
        raise Failed(
            f"a partition has {counted(most, 'replica')}, but the number of available brokers is "
            f"{len(places)}"
        )
    return rebalance(placed(described.partitions), places)


def _end_or_show(
    admin: Admin, topic: str | None, *, cancel: bool, no_wait: bool, as_json: bool
) -> None:
    name = (topic or "").partition(":")[0]
    names = [name] if name else None
    described = admin.describe_cluster(names)
    if cancel:
        topics = sorted({each.topic for each in moving_partitions(described)})
        for each in topics:
            admin.cancel_reassignment(each)
        if not no_wait:
            wait(admin, topics)
        described = admin.describe_cluster(names)
    print_moving(described, as_json=as_json)


def _execute(
    admin: Admin, planned: list[PlannedMove], *, dry_run: bool, no_wait: bool, as_json: bool
) -> None:
    show(planned, as_json=as_json)
    if dry_run:
        return
    start(admin, planned)
    if not no_wait:
        wait(admin, {move.topic for move in planned})


@cluster.command(
    name="rebalance", short_help="Distribute replicas and leaders evenly over the brokers."
)
@click.option("--dry-run", is_flag=True, help="Print the moves, and move nothing.")
@click.option("--no-wait", is_flag=True, help="Return when the moves are stored.")
@options.throttle
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def rebalance_cluster(
    dry_run: bool,
    no_wait: bool,
    throttle: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Distribute replicas and leaders evenly over the brokers that are up, and over their racks.

    The number of moves is minimal. Replicas of brokers that are down also move.

    \b
    Example:
      raftlog cluster rebalance --dry-run
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        planned = _planned(admin, None, None)
        if not dry_run:
            throttle_moves(admin, throttle)
        _execute(admin, planned, dry_run=dry_run, no_wait=no_wait, as_json=as_json)


@cluster.command(short_help="Remove a broker after its replicas and votes have moved.")
@click.argument(
    "broker", metavar="ID", type=click.IntRange(min=0), shell_complete=completing.brokers
)
@click.option("--cancel", is_flag=True, help="Keep the broker, and cancel the moves in progress.")
@click.option("--no-wait", is_flag=True, help="Return when the request is stored.")
@options.throttle
@options.as_json
@options.cluster_secret_file
@options.bootstrap
def decommission(
    broker: int,
    cancel: bool,
    no_wait: bool,
    throttle: int | None,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Remove a broker from the cluster, after its replicas and votes have moved to others.

    The broker can be running or permanently lost. No record is lost, and clients follow
    automatically. The removal continues after any crash; repeat the command to see the progress. A
    running broker stops at the end. It can rejoin only with an empty data directory.

    The command is rejected if fewer brokers would remain than a topic has replicas, or if the other
    voters are not a majority.

    With --cancel, the broker remains in the cluster. Replicas that have moved do not move back: see
    `raftlog cluster rebalance`.

    \b
    Example:
      raftlog cluster decommission 3
      raftlog cluster decommission 3 --cancel
    """
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        throttle_moves(admin, throttle)
        if cancel:
            back = admin.cancel_decommission(broker)
            output.report(
                {"broker": broker, "cancelled": True, "moving": back},
                f"broker {broker} remains: "
                f"{counted(back, 'partition returns', 'partitions return')} to "
                "the former replicas",
                as_json=as_json,
            )
            return
        progress = admin.decommission_broker(broker)
        if not no_wait and not progress.removed:
            progress = wait_for_removal(admin, broker, progress)
    output.report(
        {"broker": broker, **asdict(progress)},
        f"broker {broker} is removed"
        if progress.removed
        else f"broker {broker} is being removed: "
        f"{counted(progress.partitions, 'partition is', 'partitions are')} left",
        as_json=as_json,
    )


def wait_for_removal(
    admin: Admin, broker: int, progress: DecommissionProgress
) -> DecommissionProgress:
    """Wait until the broker is removed. Shows a progress bar and what the removal waits for."""
    shown = ""
    with click.progressbar(
        length=progress.partitions, label=f"broker {broker}: partitions moved", file=sys.stderr
    ) as bar:
        left = progress.partitions
        while not progress.removed:
            if progress.waits_for and progress.waits_for != shown:
                output.note(f"waiting: {progress.waits_for}")
            shown = progress.waits_for
            time.sleep(POLL_INTERVAL_S)
            progress = admin.decommission_broker(broker)
            bar.update(max(0, left - progress.partitions))
            left = min(left, progress.partitions)
    return progress


@cluster.command(short_help="Recover the cluster after a majority of brokers is lost.")
@click.option(
    "--lost",
    metavar="IDS",
    callback=options.parsed(options.broker_ids),
    help="Brokers whose data directories are destroyed, such as 2,3. The cluster never accepts "
    "those again; the brokers may return with empty ones.",
)
@click.option(
    "--accept-loss",
    is_flag=False,
    flag_value=ANY_LOSS,
    metavar="[ID]",
    help="Accept that acknowledged records may be lost. With =ID, only the loss for which "
    "--dry-run printed this ID.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    shell_complete=completing.topics,
    help="Recover only this topic; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Print the plan and its losses, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@options.wide
@options.as_json
@options.cluster_secret_file
@options.bootstrap
@click.pass_context
def recover(
    context: click.Context,
    lost: list[int] | None,
    accept_loss: str | None,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
    cluster_secret_file: str | None,
    bootstrap: str,
) -> None:
    """Recover the cluster after the permanent loss of a majority of brokers.

    Each broker that responds reports its replicas and cluster state. The broker with the newest
    cluster state then decides alone, without the votes of the brokers that do not respond. It
    cannot know what these have acknowledged without it, so the command prints what may be lost, and
    does nothing without --lost and --accept-loss. The replica with the longest log becomes the
    leader, or an empty replica if none remains. The loss has an ID. If the loss changes after it
    was printed, for example because another disk fails, the command changes nothing and prints the
    new loss.

    Use this command only if the disks of the other brokers are destroyed. Their data directories
    are never accepted again. If the brokers are only isolated by a network partition, and a
    majority of them goes on, the recovery is void: this side stops as soon as they meet. If both
    sides recover, there are two clusters, and both stop as soon as they meet.

    Exit status 1 if a partition remains without a leader, or if nothing was changed.

    \b
    Example:
      raftlog cluster recover --bootstrap 10.0.0.3:9100 --dry-run
      raftlog cluster recover --bootstrap 10.0.0.3:9100 --lost 1,2 --accept-loss
      raftlog cluster recover --lost 1,2 --accept-loss=5f0c2a91b7d4 --yes
    """
    accepted = True if accept_loss == ANY_LOSS else accept_loss or False
    wanted = _Wanted(tuple(lost or ()), topics or None)
    with Admin(bootstrap, cluster_secret_file=cluster_secret_file) as admin:
        if not (yes or dry_run):
            accepted = _confirm(admin, accepted, wanted)
        done = wanted.recover(admin, accepted, dry_run=dry_run)
    if as_json:
        output.print_json(asdict(done))
    else:
        _print_recovery(done, dry_run=dry_run or done.refused or not accepted)
    if done.refused:
        raise Failed(f"nothing was changed: {_refusal(done, wanted, accepted)}")
    left = any(part.problem or part.leader is None for part in done.partitions)
    if not dry_run and (left or (done.needs_loss and not accepted)):
        context.exit(STATUS_FAILED)


@dataclass(frozen=True, slots=True)
class _Wanted:
    lost: tuple[int, ...]
    topics: tuple[str, ...] | None

    def recover(
        self, admin: Admin, accepted: bool | str, *, dry_run: bool = False
    ) -> RecoveryDescription:
        return admin.recover_cluster(
            lost=self.lost, accept_loss=accepted, topics=self.topics, dry_run=dry_run
        )


def _refusal(done: RecoveryDescription, wanted: _Wanted, accepted: bool | str) -> str:
    """Return why the loss was not accepted; empty if it was."""
    if missing := sorted({*done.lost} - {*wanted.lost}):
        return (
            f"the data directories of brokers {overview.ids(missing)} would be given up. If they "
            f"are destroyed, add --lost {','.join(map(str, done.lost))}"
        )
    if isinstance(accepted, str) and done.loss_id not in ("", accepted):
        return f"the loss is {done.loss_id}, not {accepted}"
    return ""


def _confirm(admin: Admin, accepted: bool | str, wanted: _Wanted) -> bool | str:
    """Print the plan and its losses, and ask for confirmation. Returns the accepted loss: the one
    that was printed. Raises ``Failed`` without a confirmation.
    """
    described = admin.describe_cluster()
    down = [broker.id for broker in described.brokers if not broker.live]
    unavailable = sum(not partition.is_available for partition in described.partitions)
    total = len(described.partitions)
    live = len(described.brokers) - len(down)
    output.note(
        f"brokers that respond: {live} of {len(described.brokers)}; "
        f"partitions without a leader: {unavailable} of {total}."
    )
    if down:
        output.note(f"Brokers {overview.ids(down)} do not respond.")
    planned = wanted.recover(admin, accepted, dry_run=True)
    if planned.cluster_note:
        output.note(f"cluster: {planned.cluster_note}.")
    for part in planned.partitions:
        what = "MAY LOSE: " if part.may_lose else ""
        output.note(f"{part.topic}:{part.partition}: {what}{part.problem or part.note}.")
    if not accepted or not planned.loss_id:
        return accepted
    if why := _refusal(planned, wanted, accepted):
        raise Failed(f"nothing was changed: {why}")
    if wanted.lost:
        output.note(
            f"The data directories of brokers {overview.ids(list(wanted.lost))} will never be "
            "accepted again. Continue only if they are destroyed."
        )
    try:
        agreed = click.confirm("Recover with the remaining brokers?", err=True)
    except click.Abort:
        agreed = False  # stdin is at its end
    if not agreed:
        raise Failed("nothing was changed: confirmation is missing; see --yes")
    return planned.loss_id


def _print_recovery(done: RecoveryDescription, *, dry_run: bool) -> None:
    click.echo(f"cluster: {done.cluster_note or 'a majority responds, nothing to do'}")
    if done.loss_id:
        names = f"--lost {','.join(map(str, done.lost))} " if done.lost else ""
        click.echo(f"to accept this loss, and no other: {names}--accept-loss={done.loss_id}")
    if dry_run:
        click.echo("Nothing was changed.")
    if not done.partitions:
        click.echo("partitions: nothing to do")
        return
    rows = [
        (
            f"{part.topic}:{part.partition}",
            "none" if part.leader is None else part.leader,
            part.log_end_offset,
            "yes" if part.may_lose else "no",
            part.problem or part.note,
        )
        for part in done.partitions
    ]
    what = "planned" if dry_run else "done"
    output.print_table(("partition", "leader", "log end", "may lose", what), rows, prose=what)


# -- moves -----------------------------------------------------------------------------------------
#
# Plans of replica moves as JSON, and their execution: ``raftlog cluster reassign`` and others.


POLL_INTERVAL_S: Final = 0.5


class Place(NamedTuple):
    """A broker that may store replicas."""

    id: int
    rack: str


def placed(partitions: Iterable[PartitionOverview]) -> list[PlacedPartition]:
    """Return the partitions as input of a plan."""
    return [PlacedPartition(each.topic, each.partition, each.replicas) for each in partitions]


def rows(moves: Iterable[PlannedMove]) -> list[dict[str, Any]]:
    """Return the moves as JSON that ``parse`` reads."""
    return [
        {"topic": m.topic, "partition": m.partition, "from": list(m.before), "to": list(m.after)}
        for m in moves
    ]


def parse(text: str | bytes) -> list[PlannedMove]:
    """Parse a plan. Raises ``ValueError`` if it is invalid."""
    try:
        plan = output.parse_json(text)
    except ValueError as error:
        raise ValueError(f"the plan is {error}") from None
    moves = plan.get("moves") if isinstance(plan, dict) else plan
    if not isinstance(moves, list):
        raise ValueError('the plan has no list "moves"')
    return [_move(number, row) for number, row in enumerate(moves)]


def _move(number: int, row: Any) -> PlannedMove:
    try:
        move = PlannedMove(
            row["topic"], row["partition"], tuple(row.get("from", ())), tuple(row["to"])
        )
    except (AttributeError, KeyError, TypeError):
        raise ValueError(
            f'move {number} of the plan is not an object with "topic", "partition" and "to", '
            'such as {"topic": "clicks", "partition": 0, "to": [1, 2]}'
        ) from None
    if not all(type(each) is int for each in (move.partition, *move.before, *move.after)):
        raise ValueError(f'move {number} of the plan: "partition", "from" and "to" are numbers')
    if type(move.topic) is not str:
        raise ValueError(f'move {number} of the plan: "topic" is text')
    return move


def show(moves: Sequence[PlannedMove], *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        output.print_json({"moves": rows(moves)})
    elif not moves:
        output.note("no replica has to move")
    else:
        columns = ("partition", "from", "to", "copies")
        output.print_table(
            columns,
            [
                (
                    f"{m.topic}:{m.partition}",
                    overview.ids(m.before),
                    overview.ids(m.after),
                    len(set(m.after) - set(m.before)),
                )
                for m in moves
            ],
        )


def start(admin: Admin, moves: Sequence[PlannedMove]) -> None:
    """Request the moves, topic by topic."""
    for topic in sorted({move.topic for move in moves}):
        mine = [move for move in moves if move.topic == topic]
        admin.reassign_partitions(
            topic,
            {move.partition: move.after for move in mine},
            before={move.partition: move.before for move in mine if move.before},
        )


def throttle_moves(admin: Admin, bytes_per_s: int | None) -> None:
    """Limit the copies of moves. None: keep the limit; 0: remove it."""
    if bytes_per_s is not None:
        admin.throttle_moves(bytes_per_s)


def moving_partitions(described: ClusterDescription) -> list[PartitionOverview]:
    """Return the partitions with a move in progress."""
    return [partition for partition in described.partitions if partition.target]


def wait(admin: Admin, topics: Iterable[str]) -> None:
    """Wait until no partition of these topics moves."""
    names, shown = sorted(set(topics)), -1
    if not names:
        return
    while left := len(moving_partitions(admin.describe_cluster(names))):
        if left != shown:
            output.note(f"partitions with moves in progress: {left}")
            shown = left
        time.sleep(POLL_INTERVAL_S)


def print_moving(described: ClusterDescription, *, as_json: bool) -> None:
    """Print the moves in progress, the lag of copying replicas in records, and the throttle."""
    partitions, rate = moving_partitions(described), described.move_throttle
    if as_json:
        found = [
            {
                "topic": each.topic,
                "partition": each.partition,
                "from": list(each.replicas),
                "to": list(each.target),
                "isr": list(each.isr),
                "lag": overview.lag(each.replica_states),
            }
            for each in partitions
        ]
        output.print_json({"moving": found, "throttle_bytes_per_s": rate or None})
        return
    if rate:
        output.note(f"throttle: {rate} bytes per second for each broker")
    if not partitions:
        output.note("no moves in progress")
    else:
        columns = ("partition", "replicas", "to", "isr", "lag")
        output.print_table(
            columns,
            [
                (
                    f"{each.topic}:{each.partition}",
                    overview.ids(each.replicas),
                    overview.ids(each.target),
                    overview.ids(each.isr),
                    overview.lag(each.replica_states),
                )
                for each in partitions
            ],
        )


def brokers_of(described: ClusterDescription, ids: Sequence[int] | None) -> list[Place]:
    """Return the brokers that may store replicas: those listed, or all that are up."""
    if ids is None:
        found = [broker for broker in described.brokers if overview.is_up(broker)]
    else:
        known = {broker.id: broker for broker in described.brokers}
        if unknown := [broker for broker in ids if broker not in known]:
            raise Failed(f"the cluster has no broker {unknown[0]}; it has {sorted(known)}")
        found = [known[broker] for broker in ids]
    if not found:
        raise Failed("no broker is up")
    return [Place(broker.id, broker.rack or "") for broker in found]
