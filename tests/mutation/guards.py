"""All guards: a comment above the statement of each, and a row of the manual's table.

``# guard: NAME`` stands above a statement of the product. The row of that name on the page says
what follows without the guard, which change removes it, and which tests fail then.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tests.mutation import change
from tests.mutation.address import around, parsed
from tests.mutation.guard import Guard

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/contributing/mutations.md"
PRODUCT: Final = ("raftlog", "cli/raftlog_cli", "spark_source/pyspark_raftlog")
COLUMNS: Final = 4
_MARKER: Final = re.compile(r" *# guard: (.+)")
_BETWEEN_CELLS: Final = re.compile(r"(?<!\\) \| ")


def markers(root: Path) -> Iterator[tuple[str, str, int]]:
    """Yield the names in the comments of the product, with module and line (from 1)."""
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*.py")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if found := _MARKER.fullmatch(line):
                    yield found[1], path.relative_to(root).as_posix(), number


def rows(page: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each guard: name, consequence, change, tests. Raises ``ValueError``."""
    for line in page.splitlines():
        if line.startswith("| ") and not line.startswith(("| guard |", "| --- |")):
            cells = _BETWEEN_CELLS.split(line.removeprefix("| ").removesuffix(" |"))
            if len(cells) != COLUMNS:
                raise ValueError(f"{len(cells)} columns, not {COLUMNS}: {line}")
            yield tuple(cell.replace("\\|", "|") for cell in cells)


def read(page: str, marked: Mapping[str, tuple[str, int]], root: Path) -> Iterator[Guard]:
    """Yield the guards in the order of ``page``. Raises ``ValueError``, ``SyntaxError``."""
    for name, why, code, tests in rows(page):
        if name not in marked:
            raise ValueError(f"no statement has the comment `# guard: {name}`")
        module, line = marked[name]
        yield Guard(
            name=name,
            why=why,
            module=module,
            function=around(parsed((root / module).read_text(encoding="utf-8")), line),
            change=_built(ast.parse(code.strip("`"), mode="eval").body),
            tests=tuple(f"tests/{test}" for test in re.findall(r"`([^`]+)`", tests)),
        )


def _built(node: ast.expr) -> Any:
    """Return what an expression of calls of ``tests.mutation.change`` and literals makes."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = {each.arg: _built(each.value) for each in node.keywords if each.arg}
        return getattr(change, node.func.id)(*map(_built, node.args), **named)
    return ast.literal_eval(node)


LINES: Final = {name: (module, line) for name, module, line in markers(ROOT)}
GUARDS: Final = tuple(read(PAGE.read_text(encoding="utf-8"), LINES, ROOT))
