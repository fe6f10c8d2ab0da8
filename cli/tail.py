"""``raftlog tail``: records to standard output, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

from cli import options, reading
from cli.formats import Formatter, compile_format, format_json, format_values
from cli.offsets import LATEST, Bound, From, Offsets, parse_offsets
from raftlog import Consumer
from raftlog.clock import SystemClock

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
    if offsets is None:
        last = COUNT_DEFAULT if count is None else count
        offsets = Offsets(LATEST if follow else Bound(From.END, last))
        count = count if follow else None
    write = format_json if as_json else formatter or format_values
    # Retention may overtake us: then go on with the first record that is left.
    read_from = "replica" if any_replica else "leader"
    with Consumer(bootstrap, auto_offset_reset="earliest", read_from=read_from) as consumer:
        partitions = reading.partitions_of(consumer, topic, partition)
        spans = reading.plan(consumer, partitions, offsets, follow=follow)
        reading.copy(consumer, spans, write=write, pattern=pattern, count=count)
