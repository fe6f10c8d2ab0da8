"""``raftlog backup`` and ``raftlog restore``: copy topics to files, and from files to a cluster."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import Any, Final

import click
from click.core import ParameterSource

from raftlog.backup import BackupSource, open_store, verify, write_backup
from raftlog.clock import SystemClock
from raftlog.errors import RaftlogError, counted
from raftlog.mirror import Mirror, Progress
from raftlog.mirror.mirror import Policy, Source
from raftlog_cli import options, output
from raftlog_cli.main import STATUS_FAILED, Failed

_TOPICS = options.pattern("--topics", "topic names. Internal topics are excluded", default=".*")
_GROUPS = options.pattern("--groups", "names of consumer groups", default=".*")


@click.command()
@click.option("--to", "url", required=True, metavar="URL", help="Directory or fsspec URL.")
@_TOPICS
@_GROUPS
@options.as_json
@options.bootstrap
def backup(url: str, topics: str, groups: str, as_json: bool, bootstrap: str) -> None:
    """Copy topics, their settings and group offsets to files.

    The first run copies all committed records, later runs to the same URL only new ones. Every
    batch is verified. URL is a directory, or a URL of a file system that fsspec supports, such as
    s3://bucket/path. Exits with status 1 if no topic matches --topics.

    \b
    Example:
      raftlog backup --to /backups/raftlog --topics 'clicks|orders-.*'
    """
    done = 0
    with output.progress("backup (bytes)", hidden=as_json) as advance:

        def show(size_bytes: int) -> None:
            nonlocal done
            advance(size_bytes - done)
            done = size_bytes

        found = write_backup(
            bootstrap,
            open_store(url),
            topic_pattern=topics,
            group_pattern=groups,
            now_ms=SystemClock().wall_ms(),
            on_progress=lambda progress: show(progress.size_bytes),
        )
    skipped = (
        f", {counted(found.skipped, 'offset')} skipped (already deleted)" if found.skipped else ""
    )
    if found.copied_again:
        output.note(
            f"{counted(found.copied_again, 'partition')} copied again: the cluster had removed "
            "marks of deleted keys that the backup never had (delete.retention.ms)"
        )
    output.report(
        asdict(found),
        f"{counted(found.topics, 'topic')}, {counted(found.partitions, 'partition')}, "
        f"{counted(found.groups, 'group')}: "
        f"{counted(found.offsets, 'new offset')}, {found.size_bytes} bytes{skipped}",
        as_json=as_json,
    )
    _check_found(found.topics, topics)


def _check_found(count: int, pattern: str) -> None:
    """Raise ``Failed`` if the option --topics was given, and matches nothing: mostly a typo."""
    source = click.get_current_context().get_parameter_source("topics")
    if not count and source is not ParameterSource.DEFAULT:
        raise Failed(f"no topic matches --topics {pattern!r}. It has to match the whole name")


@click.command()
@click.option("--from", "url", required=True, metavar="URL", help="Directory or URL of a backup.")
@_TOPICS
@_GROUPS
@click.option("--prefix", default="", help="Prefix of the topic names in the cluster.")
@click.option(
    "--overwrite-groups",
    is_flag=True,
    help="Also set the offsets of groups that exist in the cluster and have no members.",
)
@options.keep_settings
@click.option(
    "--verify", "only_verify", is_flag=True, help="Verify the files, of --topics; restore nothing."
)
@options.as_json
@options.bootstrap
def restore(
    url: str,
    topics: str,
    groups: str,
    prefix: str,
    overwrite_groups: bool,
    keep_settings: bool,
    only_verify: bool,
    as_json: bool,
    bootstrap: str,
) -> None:
    """Restore topics and group offsets from a backup.

    Records keep their offsets. Topics are created with their settings. A topic that exists must be
    empty or partly restored. Repeat the command to continue an interrupted restore. Exits with
    status 1 if a partition was not restored, a file is corrupt, or no topic matches --topics.

    The offsets of groups are restored at the end, under the same group names, also with --prefix. A
    group that exists in the cluster keeps its offsets, and the command prints its name.

    \b
    Example:
      raftlog restore --from /backups/raftlog --bootstrap 127.0.0.1:9200
    """
    store = open_store(url)
    if only_verify:
        _verify(url, topics, as_json=as_json)
        return
    run_mirror(
        BackupSource(store),
        bootstrap,
        topics=topics,
        groups=groups,
        prefix=prefix,
        existing_groups=Policy.OVERWRITE if overwrite_groups else Policy.KEEP,
        keep_settings=keep_settings,
        once=True,
        as_json=as_json,
    )


def _verify(url: str, topics: str, *, as_json: bool) -> None:
    """Print each partition; exit with status 1 if one is corrupt."""
    problems = []
    for tp, part, problem in verify(open_store(url), topics):
        problems.append(problem)
        row = {**tp._asdict(), "start": part.start, "end": part.end, "problem": problem}
        text = f"{tp}: offsets {part.start} to {part.end}: {problem or 'ok'}"
        output.report(row, text, as_json=as_json)
    _check_found(len(problems), topics)
    if any(problems):
        click.get_current_context().exit(STATUS_FAILED)


# -- mirror ----------------------------------------------------------------------------------------
#
# ``raftlog mirror``: copy topics to another cluster, and show the progress and the lag.


_REPORT_S: Final = 1.0


class Display:
    """Prints the progress at most once per second: JSON lines, or one line on a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._is_terminal = sys.stderr.isatty() and not as_json
        self._due_at = 0.0
        self._refused: dict[str, str] = {}

    def show(self, progress: Progress) -> None:
        self._note_refused(progress)
        now = time.monotonic()
        if now < self._due_at:
            return
        self._due_at = now + _REPORT_S
        if self._as_json:
            output.print_json(_to_dict(progress))
        elif self._is_terminal:
            click.echo(f"{self._start_of_line}{_sentence(progress)}", err=True, nl=False)

    def _note_refused(self, progress: Progress) -> None:
        """Print each partition and group that is not copied, once per reason."""
        refused = {
            **{f"{tp} is not mirrored": reason for tp, reason in progress.refused.items()},
            **{
                f"the offsets of group {group} are not copied": reason
                for group, reason in progress.refused_groups.items()
            },
        }
        for what, reason in refused.items():
            if self._refused.get(what) != reason:
                output.note(f"{self._start_of_line}{what}: {reason}")
        self._refused = refused

    def warn(self, error: RaftlogError) -> None:
        output.note(f"{self._start_of_line}mirror interrupted, retrying: {error}")

    def end(self, progress: Progress) -> None:
        self._note_refused(progress)
        if self._is_terminal:
            click.echo(self._start_of_line, err=True, nl=False)
        output.report(_to_dict(progress), _sentence(progress), as_json=self._as_json)

    @property
    def _start_of_line(self) -> str:
        return "\r\x1b[K" if self._is_terminal else ""


@click.command()
@click.option(
    "--from",
    "source",
    required=True,
    metavar="HOST:PORT[,...]",
    help="Addresses of brokers of the cluster to copy from.",
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="HOST:PORT[,...]",
    help="Addresses of brokers of the cluster to copy to.",
)
@options.pattern("--topics", "topic names. Internal topics are excluded", required=True)
@options.pattern("--groups", "names of consumer groups whose offsets are also copied")
@click.option("--prefix", default="", help="Prefix of the topic names in the target cluster.")
@options.keep_settings
@click.option("--once", is_flag=True, help="Stop at the end offsets of the time of the start.")
@options.security
@options.as_json
def mirror(
    source: str,
    target: str,
    topics: str,
    groups: str | None,
    prefix: str,
    keep_settings: bool,
    once: bool,
    as_json: bool,
) -> None:
    """Copy topics of one cluster to another, with their offsets.

    Runs until it is stopped. The next run continues where the last one ended. Exits with status 1
    if a partition could not be mirrored, or, with --once, no topic matches --topics.

    \b
    Example:
      raftlog mirror --from 127.0.0.1:9100 --to 127.0.0.1:9200 --topics 'clicks|orders-.*' --once
    """
    run_mirror(
        source,
        target,
        topics=topics,
        groups=groups,
        prefix=prefix,
        keep_settings=keep_settings,
        once=once,
        as_json=as_json,
    )


def run_mirror(
    source: str | Source, target: str, *, once: bool, as_json: bool, **selection: Any
) -> None:
    """Run a ``Mirror`` of ``selection``, and show its progress until it ends or Ctrl-C stops it.

    Exits with status 1 if it could not mirror a partition.
    """
    display = Display(as_json=as_json)
    running = Mirror(source, target, on_progress=display.show, on_error=display.warn, **selection)
    try:
        progress = running.run(once=once)
    except KeyboardInterrupt:
        display.end(running.progress)
        raise
    display.end(progress)
    if once:
        _check_found(progress.topics, selection["topics"])
    if progress.refused:
        click.get_current_context().exit(STATUS_FAILED)


def _sentence(progress: Progress) -> str:
    refused = f", {len(progress.refused)} refused" if progress.refused else ""
    skipped = f", {counted(progress.skipped, 'offset')} skipped" if progress.skipped else ""
    again = f", copied again: {' '.join(progress.copied_again)}" if progress.copied_again else ""
    altered = f", settings changed: {' '.join(progress.altered)}" if progress.altered else ""
    groups = f", {counted(progress.groups, 'group')}" if progress.groups else ""
    return (
        f"{counted(progress.topics, 'topic')}, "
        f"{counted(progress.partitions, 'partition')}{refused}{groups}: "
        f"{counted(progress.records, 'record')} copied, {progress.size_bytes} bytes{skipped}"
        f"{again}{altered}, lag {progress.lag}"
    )


def _to_dict(progress: Progress) -> dict[str, Any]:
    return {
        "topics": progress.topics,
        "partitions": progress.partitions,
        "records": progress.records,
        "bytes": progress.size_bytes,
        "skipped": progress.skipped,
        "copied_again": progress.copied_again,
        "altered": progress.altered,
        "lag": progress.lag,
        "refused": [
            {"topic": tp.topic, "partition": tp.partition, "reason": reason}
            for tp, reason in progress.refused.items()
        ],
        "groups": progress.groups,
        "refused_groups": [
            {"group": group, "reason": reason} for group, reason in progress.refused_groups.items()
        ],
    }
