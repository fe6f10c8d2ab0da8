"""Which functions of the product run in production, by their names: from its entry points on.

An approximation on the safe side, of the syntax trees alone. What a function that runs names, as a
name or as an attribute, runs too, wherever a function of that name stands. What a library may call
counts as run: special methods, and the methods of classes that a library's class is a base of. What
nobody names but tests is dead, and a guard there guards nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, TypeAlias

PACKAGES: Final = ("raftlog", "cli", "spark_source")
# Parts of them that no broker and no client runs.
FOR_TESTS: Final = ("raftlog/testing/", "raftlog/bench/")
# Modules whose public functions, and methods of public classes, users and commands call.
ENTRIES: Final = (
    "raftlog/__main__.py",
    "raftlog/client/",
    "raftlog/embedded.py",
    "raftlog/record/kafka_batch.py",  # for the broker's port for Kafka's clients
    "raftlog/server/main.py",
    "raftlog/types.py",
    "cli/raftlog_cli/",
    "spark_source/pyspark_raftlog/__init__.py",
)
# Bases that call no method of theirs.
PASSIVE: Final = frozenset(("Protocol", "ABC", "Generic", "NamedTuple", "Struct", "Message"))

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


class Reach:
    """Of the sources of ``texts``, by path. ``entries``: paths, or folders that end in ``/``."""

    def __init__(self, texts: Mapping[str, str], *, entries: Collection[str] = ENTRIES) -> None:
        self.texts = texts
        self._trees = {path: ast.parse(text) for path, text in texts.items()}
        self._functions: dict[str, list[Function]] = {}
        self._entries = tuple(entries)
        self._foreign = _with_foreign_bases(self._trees.values())
        self._uses: dict[str, set[str]] = {}  # by a function's name: what functions so called name
        self._roots: set[str] = set()
        for path, tree in self._trees.items():
            self._scan(tree, None, is_entry=path.startswith(self._entries), is_called=False)
        self.names = self._closure()

    def _scan(self, node: ast.AST, inside: str | None, *, is_entry: bool, is_called: bool) -> None:
        """``inside``: the function that names what is below; ``is_called``: by a library."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                is_foreign = child.name in self._foreign
                self._scan(child, inside, is_entry=is_entry, is_called=is_foreign)
            elif isinstance(child, Function):
                self._function(child, inside, is_entry=is_entry, is_called=is_called)
            else:
                self._note(inside, _names(child))
                self._scan(child, inside, is_entry=is_entry, is_called=is_called)

    def _function(
        self, function: Function, inside: str | None, *, is_entry: bool, is_called: bool
    ) -> None:
        name = function.name
        is_special = name.startswith("__") and name.endswith("__")
        is_public = is_entry and not name.startswith("_")
        if inside is None and (is_special or is_public or is_called or _is_registered(function)):
            self._roots.add(name)
        for decorator in function.decorator_list:
            self._scan(ast.Expr(decorator), inside, is_entry=False, is_called=False)
        # Its defaults and annotations count with its body.
        body = ast.Module([*function.body, ast.Expr(function.args)], [])  # type: ignore[arg-type,list-item]
        self._uses.setdefault(name, set())
        self._scan(body, name, is_entry=False, is_called=False)

    def _note(self, inside: str | None, names: set[str]) -> None:
        if inside is None:
            self._roots |= names
        else:
            self._uses.setdefault(inside, set()).update(names)

    def _closure(self) -> set[str]:
        reached: set[str] = set()
        waiting = list(self._roots)
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += self._uses.get(name, ())
        return reached

    def dead(self, path: str, line: int) -> str:
        """The function around ``line`` that nothing reaches, or "" if all of them are reached."""
        if path not in self._functions:
            every = ast.walk(self._trees[path])
            self._functions[path] = [node for node in every if isinstance(node, Function)]
        around = [
            function
            for function in self._functions[path]
            if function.lineno <= line <= (function.end_lineno or 0)
        ]
        return next((each.name for each in around if each.name not in self.names), "")


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return {node.value}  # for getattr, and tables of names
    return set()


def _with_foreign_bases(trees: Iterable[ast.Module]) -> set[str]:
    """The classes that have a base of a library's, maybe through others."""
    bases: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found = bases.setdefault(node.name, set())
                found |= {_last_name(base) for base in node.bases} - PASSIVE
    foreign = {name for name, above in bases.items() if above - bases.keys()}
    while more := {name for name, above in bases.items() if above & foreign} - foreign:
        foreign |= more
    return foreign


def _last_name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def _is_registered(function: Function) -> bool:
    """Whether a decorator hands it to somebody: a command, a handler. Some only describe it."""
    describing = {"property", "cached_property", "classmethod", "staticmethod", "setter"}
    describing |= {"contextmanager", "asynccontextmanager", "abstractmethod", "override", "cache"}
    describing |= {"lru_cache", "overload", "dataclass", "final"}
    names = (_last_name(d.func if isinstance(d, ast.Call) else d) for d in function.decorator_list)
    return any(name not in describing for name in names)


def sources(root: Path) -> Iterator[tuple[str, str]]:
    """The product's modules: paths from ``root``, and their texts."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            relative = path.relative_to(root).as_posix()
            if not relative.startswith(FOR_TESTS):
                yield relative, path.read_text(encoding="utf-8")


@cache
def of_product(root: Path) -> Reach:
    return Reach(dict(sources(root)))
