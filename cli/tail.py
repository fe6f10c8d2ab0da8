"""``raftlog tail``: records to standard output, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

from raftlog import Consumer
from raftlog.cli import group_tail, options, reading
from raftlog.cli.formats import Formatter, compile_format, format_json, format_values
from raftlog.cli.offsets import EARLIEST, LATEST, Bound, From, Offsets, parse_offsets
from raftlog.clock import SystemClock
from raftlog.types import check_group_id

COUNT_DEFAULT: Final = 10  # as `tail` has it


def _parsed(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """An option's callback that turns ``ValueError`` into wrong usage."""

    def callback(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
        try:
            return None if text is None else parse(text)
        except (ValueError, re.error) as error:
            raise click.BadParameter(str(error)) from error

    return callback


@click.command()
@click.argument("topic")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Only this partition.")
@click.option(
    "-o",
    "--offsets",
    metavar="OFFSETS",
    callback=_parsed(lambda text: parse_offsets(text, now_ms=SystemClock().wall_ms())),
    help="Where to start, and maybe to stop; see above.",
)
@click.option("-n", "--count", type=click.IntRange(min=0), help="Stop after so many records.")
@click.option("-f", "--follow", is_flag=True, help="Wait for new records until interrupted.")
@click.option(
    "--group",
    metavar="G",
    help="Read as a member of this consumer group, which goes on where it stopped.",
)
@click.option(
    "--format",
    "formatter",
    metavar="FMT",
    callback=_parsed(compile_format),
    help="How to print a record; see above.  [default: %v]",
)
@click.option(
    "--grep",
    "pattern",
    metavar="RE",
    callback=_parsed(lambda text: re.compile(text.encode())),
    help="Only records whose value has this regular expression in it.",
)
@click.option(
    "--any-replica",
    is_flag=True,
    help="Ask replicas that do not lead, too: when the leader is gone, or to spare it.",
)
@options.as_json
@options.bootstrap
def tail(
    topic: str,
    partition: int | None,
    offsets: Offsets | None,
    count: int | None,
    follow: bool,
    group: str | None,
    formatter: Formatter | None,
    pattern: re.Pattern[bytes] | None,
    any_replica: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Print records.

    Without -f it ends at the records that are there when it starts. Without -o it prints the last
    10 (or COUNT) records of each partition; with -f, new ones. When a partition's leader is gone
    for good, --any-replica prints what a replica that is left knows to be committed.

    With --group it prints what the group has not read yet, shares the partitions with the group's
    other members (not with -p: then it reads that one), and commits what it has printed. Then -o
    is only for where nothing is committed yet: earliest, which is the default, or latest.

    \b
    OFFSETS:  earliest  latest  N  -N (N before the end)  +N (N after the beginning)
              @TIME  @TIME1:TIME2  N1:N2 (the second is not included)
    TIME:     ISO 8601 (UTC unless it says), milliseconds since 1970, or relative: -2h, -1h30m
    FMT:      %t topic  %p partition  %o offset  %k key  %v value  %T timestamp (ms)
              %h headers  %e leader epoch  %%  \\n  \\t  \\r  \\0  \\\\  \\xHH;
              \\c at the end: no newline

    \b
    Example:
      raftlog tail clicks -p 0 -o @-2h -n 100 --format '%p:%o %k %v' --grep /cart
    """
    if follow and offsets is not None and offsets.stop is not None:
        raise click.UsageError("-f does not go with a range: it has an end")
    if as_json and formatter is not None:
        raise click.UsageError("--json does not go with --format")
    write = format_json if as_json else formatter or format_values
    # Retention may overtake us: then go on with the first record that is left.
    reset = "earliest" if group is None else _group_reset(group, offsets)
    last = 0
    if offsets is None and group is None:
        last = 0 if follow else COUNT_DEFAULT if count is None else count
        offsets = Offsets(LATEST if follow else Bound(From.END, last))
        count = count if follow else None
    interrupt: KeyboardInterrupt | None = None
    with Consumer(
        bootstrap,
        group=group,
        auto_offset_reset=reset,
        read_from="replica" if any_replica else "leader",
    ) as consumer:
        partitions = reading.partitions_of(consumer, topic, partition)
        printing: dict[str, Any] = {"write": write, "pattern": pattern, "count": count}
        if group is not None:
            printing |= {"is_member": partition is None, "follow": follow}
            interrupt = group_tail.copy(consumer, topic, partitions, **printing)
        else:
            assert offsets is not None, "it has a default"
            spans = reading.plan(consumer, partitions, offsets, follow=follow)
            spans = reading.with_last(consumer, spans, last)
            reading.copy(consumer, spans, **printing)
    if interrupt is not None:
        raise interrupt


def _group_reset(group: str, offsets: Offsets | None) -> str:
    """Where a group begins that has committed nothing."""
    check_group_id(group)
    if offsets not in {None, Offsets(EARLIEST), Offsets(LATEST)}:
        raise click.UsageError(
            "--group takes -o earliest or -o latest, for where nothing is committed yet; "
            f"`raftlog group reset {group} --to OFFSETS` sets where the group goes on"
        )
    return "latest" if offsets == Offsets(LATEST) else "earliest"
