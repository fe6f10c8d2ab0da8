"""Words that docs/contributing/writing.md avoids, in the manual and in the product's texts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.tidy.sources import ROOT

WORDS: Final = re.compile(
    r"(?<!\.)\b(anew|beside|but\s+for|for\s+ever|for\s+good|for\s+want\s+of|in\s+vain|meanwhile"
    r"|nevertheless|nobody|no\s+more(?!\s+than)|of\s+(?:its|their|his)\s+own|rather(?!\s+than)"
    r"|shall|so\s+far\s+as|somebody|whatever|whoever)\b",
    re.IGNORECASE,
)
LISTS_THE_WORDS: Final = "docs/contributing/writing.md"
# Written from the sources of the product and of the tests, which are searched themselves.
GENERATED: Final = re.compile(r"<!-- Written by .*-->")


def places(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if GENERATED.match(text):
        return []
    name = path.relative_to(ROOT)
    return [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]!r}"
        for found in WORDS.finditer(text)
    ]


def searched() -> list[Path]:
    pages = [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    code = [
        path
        for folder in ("raftlog", "cli", "jepsen_like", "spark_source")
        for path in (ROOT / folder).rglob("*.py")
    ]
    return [*ROOT.glob("*.md"), *pages, *code]


def test_avoided_words_do_not_come_back() -> None:
    found = []
    for path in searched():
        name = path.relative_to(ROOT).as_posix()
        if name != LISTS_THE_WORDS:
            found += places(path)
    assert not found, "docs/contributing/writing.md has the words to use:\n" + "\n".join(found)
