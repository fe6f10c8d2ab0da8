"""The page of guards in the manual, generated from the entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.mutation.guard import Guard

PATH: Final = "docs/contributing/mutations.md"

AREAS: Final[Mapping[str, str]] = {
    "The disk": "raftlog/disk.py",
    "Settings": "raftlog/config/",
    "Batches": "raftlog/record/",
    "TLS": "raftlog/tls.py",
    "Security": "raftlog/security/",
    "Storage": "raftlog/storage/",
    "Consensus": "raftlog/consensus/",
    "Replication": "raftlog/replication/",
    "Consumer groups": "raftlog/consumer_groups/",
    "Transactions": "raftlog/transactions/",
    "Schema registry": "raftlog/registry/",
    "Protocol": "raftlog/protocol/",
    "Kafka protocol": "raftlog/kafka/",
    "Brokers": "raftlog/server/",
    "Clients": "raftlog/client/",
    "Mirrors": "raftlog/mirror/",
    "Backups": "raftlog/backup/",
    "Spark": "spark_source/pyspark_raftlog/",
    "Console": "cli/raftlog_cli/console/",
    "Local clusters": "raftlog/testing/",
}

INTRODUCTION: Final = """\
<!-- Written by `python -m tests.mutation.run --page`: do not edit. -->

# Guards

A guard is a check or a sync that protects data. `make mutation` removes {count} guards from a copy
of the source, one at a time. The tests in the last column must then fail. The product itself has no
switches. The entries are in `tests/mutation/guards_*.py`: the function, the change and the
consequence. An entry addresses nodes of the syntax tree ("the call of `sync`", "the if that
mentions `leader_epoch`"), not text.

If code changes, `tests/mutation/test_guards.py` reports the entries to update. Add an entry for
each new guard. `make mutation ARGS="'NAME'"` runs one, and
`python -m tests.mutation.run --at raftlog/disk.py:120` prints the addresses of a line.
"""
HEAD: Final = """\
## {title}

| guard | module | consequence if removed | tests that fail |
| --- | --- | --- | --- |
"""


def text(guards: Sequence[Guard]) -> str:
    """The page."""
    return "\n".join([INTRODUCTION.format(count=len(guards)), *_sections(guards)])


def _sections(guards: Sequence[Guard]) -> Iterator[str]:
    for title, folder in AREAS.items():
        rows = [_row(guard, folder) for guard in guards if guard.module.startswith(folder)]
        if rows:
            yield HEAD.format(title=title) + "\n".join(rows) + "\n"


def _row(guard: Guard, folder: str) -> str:
    module = guard.module.removeprefix(folder) or guard.module.rpartition("/")[2]
    tests = "<br>".join(f"`{test.removeprefix('tests/')}`" for test in guard.tests)
    return f"| {guard.name} | `{module}` | {guard.why} | {tests} |"
