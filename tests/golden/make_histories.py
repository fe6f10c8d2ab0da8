"""The stored histories of ``raftlog chaos selftest``: one valid history, and each anomaly as edits.

After a change of the generators or of the format, ``python -m tests.golden.make_histories`` writes
the file.
"""

from __future__ import annotations

from difflib import SequenceMatcher
from random import Random
from typing import Final

import msgspec
import zstandard

from raftlog.testing.checker.judge import GOLDEN, VALID, Case, Edit, GoldenHistories
from raftlog.testing.history import AnyEntry
from tests.testing.checker.history_editor import HistoryEditor
from tests.testing.checker.mutations import MUTATIONS
from tests.testing.checker.synthetic import Size, history

SEED: Final = 1
SIZE: Final = Size(operations=200)


def make() -> GoldenHistories:
    """The content of the file."""
    valid = list(history(SEED, SIZE))
    cases = [Case(VALID, VALID, [])]
    for mutation in MUTATIONS:
        editor = HistoryEditor(valid, Random(SEED))
        mutation.apply(editor)
        cases.append(Case(mutation.name, mutation.kind, edits_between(valid, editor.entries)))
    return GoldenHistories(valid, cases)


def edits_between(before: list[AnyEntry], after: list[AnyEntry]) -> list[Edit]:
    """The edits that make ``after`` of ``before``."""
    lines = [[msgspec.json.encode(entry) for entry in entries] for entries in (before, after)]
    codes = SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    return [Edit(a, b, after[c:d]) for kind, a, b, c, d in codes if kind != "equal"]


def main() -> None:
    GOLDEN.write_bytes(zstandard.compress(msgspec.json.encode(make()), 19))


if __name__ == "__main__":
    main()
