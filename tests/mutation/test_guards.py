"""The table of guards fits the code as it is: what is changed is there, and so are the tests."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.mutation import page
from tests.mutation.address import Place, parsed
from tests.mutation.guard import Guard
from tests.mutation.guards import GUARDS
from tests.mutation.run import COPIED, ROOT, unreachable

BY_NAME = {guard.name: guard for guard in GUARDS}


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def names_in(path: str) -> set[str]:
    """Of functions, and of what a module assigns (Hypothesis' state machines become tests so)."""
    nodes = list(ast.walk(ast.parse(text_of(path))))
    defined = {n.name for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    assigned = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return defined | assigned | {"runTest"}


def test_each_guard_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(GUARDS)


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_its_addresses_fit_one_place_each(guard: Guard) -> None:
    """It fails here first when code changes: the entry in ``guards_*.py`` has to follow."""
    assert guard.module.startswith(("raftlog/", "spark_source/", "cli/"))
    text = text_of(guard.module)
    without = guard.switched_off(text)
    compile(without, guard.module, "exec")
    unchanged = Place(parsed(text), guard.function).put_into(text)
    assert without != unchanged, "the change changes nothing"


def test_every_guard_is_reached_by_what_runs_in_production() -> None:
    """One in a function that only tests call guards nothing: wire the function, or delete it."""
    dead = {guard.name: name for guard in GUARDS if (name := unreachable(guard, ROOT))}
    assert not dead, f"unreachable: {dead}"


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_what_has_to_fail_is_there(guard: Guard) -> None:
    assert guard.tests
    for test in guard.tests:
        path, *names = test.partition("[")[0].split("::")
        assert path.startswith(COPIED)
        assert set(names) <= names_in(path), test


def test_no_two_guards_are_the_same() -> None:
    keys = {(guard.module, guard.function, guard.change.key) for guard in GUARDS}
    assert len(keys) == len(GUARDS)


def test_the_page_is_up_to_date() -> None:
    assert text_of(page.PATH) == page.text(GUARDS), "run `python -m tests.mutation.run --page`"


def test_every_guard_is_on_the_page() -> None:
    rows = [line for line in page.text(GUARDS).splitlines() if line.startswith("| ")]
    assert len(rows) - 2 * len(page.AREAS) <= len(GUARDS)
    assert all(any(row.startswith(f"| {name} |") for row in rows) for name in BY_NAME)
