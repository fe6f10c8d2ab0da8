"""``raftlog produce``: lines into a topic, in bounded memory."""

from __future__ import annotations

import time
from io import BufferedReader
from typing import Any

import click

from raftlog import Producer
from raftlog.cli import options, output, stalls
from raftlog.cli.feed import Feed
from raftlog.cli.main import Failed
from raftlog.errors import RaftlogError


@click.command()
@click.argument("topic")
@click.option(
    "--file",
    "source",
    type=click.File("rb"),
    default="-",
    help="Read this file instead of standard input.",
)
@click.option(
    "--key-separator",
    metavar="S",
    help="What stands before the first S of a line is the key; a line without it has none.",
)
@click.option("--jsonl", is_flag=True, help="Each line is a record as JSON; see above.")
@click.option("-p", "--partition", type=click.IntRange(min=0), help="Send all to this partition.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda _context, _parameter, pairs: [options.key_and_value(pair) for pair in pairs],
    help="A header for every record; may be repeated.",
)
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True,
              help="Whose disk to wait for.")  # fmt: skip
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd", "gzip"]),
    default="none",
    show_default=True,
    help="How batches are compressed.",
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N",
              help="At most N records a second.")  # fmt: skip
@options.as_json
@options.bootstrap
def produce(
    topic: str,
    source: BufferedReader,
    key_separator: str | None,
    jsonl: bool,
    partition: int | None,
    headers: list[tuple[str, str]],
    acks: str,
    compression: str,
    rate: float | None,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Send records, a line each, from a file or standard input.

    A line's bytes are kept exactly, without its newline. Lines without a key are spread over the
    partitions, in runs. Prints how many records were acknowledged, and their offsets.

    With --jsonl a line is {"key", "value", "headers", "partition", "timestamp_ms"}, all of them
    optional: text as a string, other bytes as {"base64": "..."}, headers as an object or as pairs.
    What `tail --json` prints can be sent again this way.

    \b
    Example:
      raftlog produce clicks --file access.log --compression lz4
      echo 'user-1 /cart' | raftlog produce clicks --key-separator ' '
      raftlog tail clicks -o earliest --json | raftlog produce copy --jsonl
    """
    started = time.monotonic()
    pairs = tuple((key, value.encode()) for key, value in headers)
    with (
        Producer(bootstrap, acks=acks, compression=compression) as producer,
        output.progress(f"to {topic}", hidden=source.isatty()) as advance,
    ):
        feed = Feed(producer, topic, partition=partition, headers=pairs, rate=rate, advance=advance)
        try:
            with stalls.noted(
                lambda: feed.sent, producer.undelivered, lambda: stalls.reason(bootstrap, topic)
            ):
                if jsonl:
                    feed.send_json(source)
                else:
                    feed.send_lines(source, key_separator.encode() if key_separator else None)
                producer.flush()
                feed.receipts.settle_all()
        except RaftlogError as error:
            raise Failed(f"{error} ({feed.receipts.acknowledged} records acknowledged)") from error
    summary = feed.summary(seconds=time.monotonic() - started)
    if as_json:
        output.print_json(summary)
    else:
        _print(summary)


def _print(summary: dict[str, Any]) -> None:
    click.echo(f"{summary['records']} records to {summary['topic']}")
    for row in summary["partitions"]:
        click.echo(
            f"partition {row['partition']}: {row['records']} records, "
            f"offsets {row['first_offset']} to {row['last_offset']}"
        )
