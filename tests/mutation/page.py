"""The manual's table of guards, written from the tables here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tests.mutation.guard import Guard

PATH: Final = "docs/contributing/mutations.md"

AREAS: Final[Mapping[str, str]] = {
    "The disk": "raftlog/disk.py",
    "Settings": "raftlog/config/",
    "Batches": "raftlog/record/",
    "Storage": "raftlog/storage/",
    "Consensus": "raftlog/consensus/",
    "Replication": "raftlog/replication/",
    "Consumer groups": "raftlog/consumer_groups/",
    "Protocol": "raftlog/protocol/",
    "Brokers": "raftlog/server/",
    "Clients": "raftlog/client/",
    "Spark": "spark_source/",
}

INTRODUCTION: Final = """\
<!-- Written by `python -m tests.mutation.run --page`: do not edit. -->

# Guards

An fsync that can be deleted unnoticed is untested, and so is a check of an epoch. `make mutation`
takes {count} guards out of the source, one at a time, in a copy of the repository; the tests that
are named here then have to fail. The product itself has no switches. The entries stand in
`tests/mutation/guards_*.py`: the function, what is changed in it, and why. They name nodes of its
syntax tree ("the call of `sync`", "the if that mentions `leader_epoch`"), not its text.

When code changes, `tests/mutation/test_guards.py` says which entries have to follow it. A new guard
comes with an entry; `make mutation ARGS="'NAME'"` tries one, and
`python -m tests.mutation.run --at raftlog/disk.py:120` prints how to name what is on a line.
"""
HEAD: Final = """\
## {title}

| guard | in | without it | noticed by |
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
