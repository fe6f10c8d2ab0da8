"""The self-test of the checker: stored histories with a known verdict, checked again.

``golden_histories.zst`` contains one valid history, and for each anomaly the edits that add it to
that history. The self-test shows users of a verdict what the checker detects. The tests create the
file, and try the same anomalies in histories of many seeds (``tests/golden/make_histories.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import zstandard

from raftlog.testing.checker.judge import judge
from raftlog.testing.checker.verdict import Verdict
from raftlog.testing.history.entries import AnyEntry

GOLDEN: Final = Path(__file__).with_name("golden_histories.zst")
FILE_BYTES_MAX: Final = 16 << 20  # decompressed
VALID: Final = "valid"
UNKNOWN: Final = "unknown"


class Edit(msgspec.Struct, frozen=True):
    """Replace the entries from ``start`` to before ``end`` of the valid history with
    ``entries``."""

    start: int
    end: int
    entries: list[AnyEntry]


class Case(msgspec.Struct, frozen=True):
    """One anomaly. ``expected``: its kind; or the verdict, ``valid`` or ``unknown``."""

    name: str
    expected: str
    edits: list[Edit]


class GoldenHistories(msgspec.Struct, frozen=True):
    """The valid history, and the anomalies that can be added to it."""

    valid: list[AnyEntry]
    cases: list[Case]

    def entries_of(self, case: Case) -> Iterator[AnyEntry]:
        """Return the history with the anomaly."""
        at = 0
        for edit in case.edits:
            yield from self.valid[at : edit.start]
            yield from edit.entries
            at = edit.end
        yield from self.valid[at:]


class Result(NamedTuple):
    """Result of the checker for one stored history."""

    name: str
    expected: str
    passed: bool


def load(path: Path = GOLDEN) -> GoldenHistories:
    """Load the stored histories. Raises ``OSError``, ``zstandard.ZstdError`` or
    ``msgspec.MsgspecError`` if the file is corrupt."""
    data = zstandard.ZstdDecompressor().decompress(
        path.read_bytes(), max_output_size=FILE_BYTES_MAX
    )
    return msgspec.json.decode(data, type=GoldenHistories)


def run() -> tuple[Result, ...]:
    """Check every stored history. Every result should have ``passed``."""
    golden = load()
    return tuple(
        Result(case.name, case.expected, is_expected(case.expected, judge(golden.entries_of(case))))
        for case in golden.cases
    )


def is_expected(expected: str, verdict: Verdict) -> bool:
    """Return whether the verdict has the expected state or contains the expected kind of
    anomaly."""
    if expected in (VALID, UNKNOWN):
        return verdict.valid == expected
    return verdict.valid == "invalid" and expected in verdict.kinds
