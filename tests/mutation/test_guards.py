"""The table of guards fits the code as it is: what is changed is there, and so are the tests."""

from __future__ import annotations

import ast
from functools import cache

import pytest

from tests.mutation.guard import Guard, StaleGuardError, unchanged
from tests.mutation.guards import GUARDS, LINES, ROOT, markers, read
from tests.mutation.run import COPIED, unreachable

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


def test_each_guard_has_one_comment_and_one_row() -> None:
    names = [name for name, _module, _line in markers(ROOT)]
    assert sorted(names) == sorted(guard.name for guard in GUARDS)
    assert len(BY_NAME) == len(GUARDS)


def test_their_addresses_fit_one_place_each() -> None:
    """It fails here first when code changes: the row of the page has to follow."""
    wrong = {guard.name: why for guard in GUARDS if (why := address_problem(guard))}
    assert not wrong


def address_problem(guard: Guard) -> str:
    text = text_of(guard.module)
    try:
        without = guard.switched_off(text)
        compile(without, guard.module, "exec")
    except (StaleGuardError, SyntaxError) as error:
        return str(error)
    as_it_is = unchanged(text, guard.function).put_into(text)
    return "the change changes nothing" if without == as_it_is else ""


def test_each_comment_stands_above_what_is_changed() -> None:
    away = {guard.name: line for guard in GUARDS if (line := line_of_comment(guard))}
    assert not away, f"comments that stand elsewhere, by line: {away}"


def line_of_comment(guard: Guard) -> int:
    """0 if only comments are between it and the statement that is changed first."""
    _module, line = LINES[guard.name]
    code = text_of(guard.module).splitlines()
    below = line
    while code[below].lstrip().startswith("#"):
        below += 1
    return 0 if guard.statement_line(text_of(guard.module)) == below + 1 else line


def test_a_row_without_a_comment_is_named() -> None:
    page = '| a b | c | `never("if")` | `test_disk.py::test_x` |\n'
    with pytest.raises(ValueError, match="no statement has the comment `# guard: a b`"):
        list(read(page, {}, ROOT))


def test_every_guard_is_reached_by_what_runs_in_production() -> None:
    """One in a function that only tests call guards nothing: wire the function, or delete it."""
    dead = {guard.name: name for guard in GUARDS if (name := unreachable(guard, ROOT))}
    assert not dead, f"unreachable: {dead}"


def test_what_has_to_fail_is_there() -> None:
    assert not [guard.name for guard in GUARDS if not guard.tests]
    tests = {test for guard in GUARDS for test in guard.tests}
    assert not {test for test in tests if not is_there(test)}


def is_there(test: str) -> bool:
    path, *names = test.partition("[")[0].split("::")
    return path.startswith(COPIED) and set(names) <= names_in(path)


def test_no_two_guards_are_the_same() -> None:
    keys = {(guard.module, guard.function, guard.change.key) for guard in GUARDS}
    assert len(keys) == len(GUARDS)
