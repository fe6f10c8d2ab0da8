"""The source files of the packages and the tests, parsed once. Facts only: no rules here."""

from __future__ import annotations

import ast
import builtins
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("raftlog", "cli", "spark_source", "jepsen_like")


@dataclass(frozen=True)
class Source:
    """One Python file. ``path`` is relative to the repository, with forward slashes."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @property
    def module(self) -> str:
        """The dotted name, such as ``raftlog.record.batch``; a package's is the package's own."""
        parts = self.path.removesuffix(".py").split("/")
        if parts[0] in PACKAGES[1:]:  # folders with a package, which is installed
            parts = parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree, in the order of ``ast.walk``."""
        return list(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return [node for node in self.nodes if isinstance(node, kinds)]

    @cached_property
    def imports(self) -> dict[str, str]:
        """Local name -> dotted origin, wherever in the file the import stands."""
        names: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    names[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    @cached_property
    def imported_modules(self) -> set[str]:
        """Every dotted name an import could mean: ``from a import b`` is a and a.b."""
        found: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
        return found

    @cached_property
    def origins(self) -> list[tuple[int, str]]:
        """Line and origin of each name and each dotted expression that has one."""
        found = (
            (node.lineno, self.origin(node))
            for node in self.nodes
            if isinstance(node, ast.Name | ast.Attribute)
        )
        return [(line, name) for line, name in found if name]

    def origin(self, node: ast.expr) -> str:
        """What a dotted expression names once imports are undone, or ``""``."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id if hasattr(builtins, node.id) else "")
        if isinstance(node, ast.Attribute):
            base = self.origin(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""


@cache
def _files(top: str) -> tuple[Source, ...]:
    paths = sorted((ROOT / top).rglob("*.py"))
    return tuple(Source(path.relative_to(ROOT).as_posix()) for path in paths)


def packages() -> tuple[Source, ...]:
    """Every module of the packages."""
    return tuple(source for package in PACKAGES for source in _files(package))


def tests() -> tuple[Source, ...]:
    return _files("tests")


def everything() -> tuple[Source, ...]:
    return (*packages(), *tests(), *_files("docs"))
