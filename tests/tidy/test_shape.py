"""Small functions, small modules that say what they hold, a test beside each, nothing left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import NamedTuple

import raftlog
from raftlog import aio, tracing
from tests.tidy import sources
from tests.tidy.sources import ROOT, Source

# -- modules ---------------------------------------------------------------------------------------


FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 1500
UNFINISHED = re.compile(
    r"\b(" + "|".join(("FIX" + "ME", "TO" + "DO", "X" * 3, "HA" + "CK")) + r")\b"
)

# Modules that no test imports, and the tests that cover them: through commands, brokers, processes.
COVERED_BY = {
    "cli/raftlog_cli/acl.py": "tests/cli/test_access.py",
    "cli/raftlog_cli/backup.py": "tests/cli/test_copies.py",
    "cli/raftlog_cli/log.py": "tests/cli/test_log.py",
    "cli/raftlog_cli/quota.py": "tests/cli/test_access.py",
    "cli/raftlog_cli/security.py": "tests/cli/test_access.py",
    "cli/raftlog_cli/token.py": "tests/server/test_delegation_tokens.py",
    "cli/raftlog_cli/topic.py": "tests/cli/test_topic.py",
    "raftlog/bench/group_idlers.py": "tests/bench/test_broker.py",
    "raftlog/bench/group_member.py": "tests/bench/test_broker.py",
    "raftlog/client/scan.py": "tests/client/test_scan.py",
    "raftlog/kafka_names.py": "tests/test_types.py",
    "raftlog/scanning.py": "tests/test_scanning.py",
    "raftlog/server/apis/metadata.py": "tests/server/apis/test_topics.py",
    "raftlog/server/kafka/group_offsets.py": "tests/kafka/clients/test_groups.py",
    "raftlog/server/kafka/groups.py": "tests/kafka/clients/test_groups.py",
    "raftlog/server/kafka/security.py": "tests/kafka/clients/test_sasl.py",
    "raftlog/server/kafka/cluster.py": "tests/server/kafka/test_cluster.py",
    "raftlog/standard_streams.py": "tests/server/test_main.py",
    "raftlog/testing/pytest_plugin.py": "tests/testing/test_cluster.py",
}


def counted(text: str) -> int:
    """Lines, without the comments that name guards."""
    return sum(not line.lstrip().startswith("# guard: ") for line in text.splitlines())


def lines(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = source.text.splitlines()[function.lineno - 1 : function.end_lineno]
    return counted("\n".join(body))


def test_functions_fit_on_a_page() -> None:
    long = [
        f"{source.path}:{function.lineno} {function.name} has {lines(source, function)} lines"
        for source in sources.everything()
        for function in source.functions
        if lines(source, function) > FUNCTION_LINES_MAX
    ]
    assert not long, f"cut these to {FUNCTION_LINES_MAX} lines: {long}"


def test_modules_stay_small() -> None:
    big = [
        f"{source.path} has {count} lines, {MODULE_LINES_MAX} are allowed"
        for source in sources.everything()
        if (count := counted(source.text)) > MODULE_LINES_MAX
    ]
    assert not big, f"split these by what they hold: {big}"


def test_modules_say_what_lives_in_them() -> None:
    silent = [s.path for s in sources.everything() if s.text.strip() and not opening(s)]
    assert not silent, f"open these with a docstring that says what lives there: {silent}"
    ragged = [s.path for s in sources.packages() if opening(s)[-1:] not in {".", "", ":", "?"}]
    assert not ragged, f"end the docstring's first paragraph as a sentence: {ragged}"


def opening(source: Source) -> str:
    """The first paragraph of the docstring."""
    return (ast.get_docstring(source.tree) or "").partition("\n\n")[0]


def test_packages_have_an_init_file() -> None:
    folders = {(ROOT / source.path).parent for source in sources.packages()}
    bare = [folder.relative_to(ROOT).as_posix() for folder in sorted(folders)
            if not (folder / "__init__.py").exists()]  # fmt: skip
    assert not bare, f"add an __init__.py with a docstring to: {bare}"


def imported_by_tests() -> set[str]:
    tests = [source for source in sources.everything() if source.path.startswith("tests/")]
    return {name for source in tests for name in source.imported_modules}


def test_every_module_has_tests() -> None:
    tested = imported_by_tests()
    missing = [
        source.path
        for source in sources.packages()
        if source.functions
        and not source.path.endswith(("/__init__.py", "/__main__.py"))
        and source.module not in tested
        and source.path not in COVERED_BY
    ]
    assert not missing, f"no test imports these: {missing}"


def test_exceptions_to_the_rules_still_stand() -> None:
    gone = [path for pair in COVERED_BY.items() for path in pair if not (ROOT / path).exists()]
    assert not gone
    tested = imported_by_tests()
    needless = [s.path for s in sources.packages() if s.path in COVERED_BY and s.module in tested]
    assert not needless, f"tests import these: {needless}"


def test_nothing_is_left_unfinished() -> None:
    marks = [
        f"{source.path}:{number} {line.strip()}"
        for source in sources.everything()
        for number, line in enumerate(source.text.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not marks, f"do these or open an issue: {marks}"


def dotted_strings(source: Source) -> set[str]:
    """Modules may be loaded by name (the command table, lazy public names)."""
    nodes = (node for node in source.nodes if isinstance(node, ast.Constant))
    return {node.value.partition(":")[0] for node in nodes if isinstance(node.value, str)}


def test_no_module_is_dead() -> None:
    # The console script, and what users import.
    alive = {"raftlog_cli.main", "raftlog.tracing"}
    for source in sources.packages():
        alive |= {name for name in source.imported_modules if name != source.module}
        alive |= dotted_strings(source)
    dead = [
        source.path
        for source in sources.packages()
        if not source.path.endswith(("/__init__.py", "/__main__.py"))
        and not source.path.startswith("raftlog/testing/")  # tests and users import those
        and source.module not in alive
    ]
    assert not dead, f"nothing imports these: {dead}"


# -- callers ---------------------------------------------------------------------------------------

# Every public function and method of the product has a caller in the product, or is public API.


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
