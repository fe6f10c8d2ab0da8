"""``raftlog cluster events``: print the changes of the cluster with their times."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Final

import click

from raftlog import Admin
from raftlog.client.descriptions import EventDescription
from raftlog.clock import SystemClock
from raftlog.errors import RaftlogError
from raftlog.types import TimestampMs
from raftlog_cli import options, output
from raftlog_cli.offsets import TIME_GRAMMAR, parse_time

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
