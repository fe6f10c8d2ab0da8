"""``raftlog backup`` and ``raftlog restore``: copy topics to files, and from files to a cluster."""

from __future__ import annotations

from dataclasses import asdict

import click

from raftlog.backup import BackupSource, open_store, verify, write_backup
from raftlog.clock import SystemClock
from raftlog.errors import counted
from raftlog.mirror.groups import Policy
from raftlog_cli import options, output
from raftlog_cli.main import STATUS_FAILED
from raftlog_cli.mirror import run_mirror

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
    s3://bucket/path.

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
@click.option("--verify", "only_verify", is_flag=True, help="Verify the files; restore nothing.")
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
    status 1 if a partition was not restored, or a file is corrupt.

    The offsets of groups are restored at the end, under the same group names, also with --prefix. A
    group that exists in the cluster keeps its offsets, and the command prints its name.

    \b
    Example:
      raftlog restore --from /backups/raftlog --bootstrap 127.0.0.1:9200
    """
    store = open_store(url)
    if only_verify:
        _verify(url, as_json=as_json)
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


def _verify(url: str, *, as_json: bool) -> None:
    """Print each partition; exit with status 1 if one is corrupt."""
    is_damaged = False
    for tp, part, problem in verify(open_store(url)):
        is_damaged |= bool(problem)
        row = {**tp._asdict(), "start": part.start, "end": part.end, "problem": problem}
        text = f"{tp}: offsets {part.start} to {part.end}: {problem or 'ok'}"
        output.report(row, text, as_json=as_json)
    if is_damaged:
        click.get_current_context().exit(STATUS_FAILED)
