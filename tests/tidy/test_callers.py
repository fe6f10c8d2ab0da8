"""Every public function and method of the product has a caller in the product, or is public API."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import NamedTuple

import raftlog
from raftlog import aio, tracing
from tests.tidy import sources
from tests.tidy.sources import Source

# Called by what users write, or by a library that finds it by its name.
CALLED_FROM_OUTSIDE = {
    "raftlog/former_names.py": "methods that importlib calls",
    "raftlog/testing/pytest_plugin.py": "hooks of pytest",
    "raftlog/bench/metrics_broker.py": "methods of ast.NodeTransformer",
    "raftlog/client/scan_dataset.py": "methods of pyarrow.dataset, which DuckDB and others call",
    "raftlog/testing/cluster.py": "for tests of applications",
}


class Definition(NamedTuple):
    """``owner``: the class of a method; empty for a function."""

    source: Source
    owner: str
    name: str
    line: int


def definitions(source: Source) -> Iterator[Definition]:
    """The public functions of a module, and the public methods of its classes."""
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.decorator_list and not node.name.startswith("_"):
                yield Definition(source, "", node.name, node.lineno)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(
                    inner, ast.FunctionDef | ast.AsyncFunctionDef
                ) and not inner.name.startswith("_"):
                    yield Definition(source, node.name, inner.name, inner.lineno)


@cache
def used_names() -> frozenset[str]:
    """Every name and attribute that product code reads, calls or imports."""
    found: set[str] = set()
    for source in sources.packages():
        for node in source.nodes:
            if isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
            elif isinstance(node, ast.alias):
                found.add(node.name.rpartition(".")[2])
    return frozenset(found)


def is_inherited_or_public(definition: Definition) -> bool:
    """Whether a library's class declares the method, or a class that raftlog exports has it."""
    if not definition.owner:
        return False
    owner = getattr(import_module(definition.source.module), definition.owner)
    exported = [
        getattr(module, name) for module in (raftlog, aio, tracing) for name in module.__all__
    ]
    if any(isinstance(cls, type) and issubclass(cls, owner) for cls in exported):
        return True
    return any(
        definition.name in vars(base) and not base.__module__.startswith("raftlog")
        for base in owner.__mro__
    )


def test_every_public_function_has_a_caller() -> None:
    uncalled = [
        f"{definition.source.path}:{definition.line} {definition.owner}.{definition.name}"
        for source in sources.packages()
        if source.path not in CALLED_FROM_OUTSIDE
        for definition in definitions(source)
        if definition.name not in used_names() and not is_inherited_or_public(definition)
    ]
    assert not uncalled, f"give these a caller, or delete them with their tests: {uncalled}"
