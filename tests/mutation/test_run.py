"""The gate itself, on a repository of two functions: what it lets pass and what it does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutation.change import never, value
from tests.mutation.change import replace as replaced
from tests.mutation.guard import Guard
from tests.mutation.guards import GUARDS
from tests.mutation.run import Workspace, chosen, culprit_of, gate

CODE = """\
def clipped(number: int) -> int:
    if number > 9:
        number = 9
    if number < 0:
        number = 0
    return number
"""
TESTS = """\
from thing.code import clipped


def test_inside():
    assert clipped(5) == 5


def test_above():
    assert clipped(12) == 9
"""
COPIED = ("thing", "tests", "pyproject.toml")
ABOVE = Guard(
    name="above",
    why="too much",
    module="thing/code.py",
    function="clipped",
    change=value("if 9", "_.left > 99"),
    tests=("tests/test_code.py::test_inside", "tests/test_code.py::test_above"),
)
BELOW = replace(ABOVE, name="below", change=never("if <"))
GONE = replace(ABOVE, name="gone", change=never("if 7"))
BROKEN = replace(ABOVE, name="broken", change=replaced("if 9", "break"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name, text in {
        "thing/__init__.py": "",
        "thing/code.py": CODE,
        "tests/test_code.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\n",
        "secrets.txt": "not copied",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def verdict(source: Path, *guards: Guard, jobs: int = 1) -> tuple[int, str]:
    """The exit status, and all that was said."""
    lines: list[str] = []
    status = gate(guards, source=source, copied=COPIED, jobs=jobs, say=lines.append)
    return status, "\n".join(lines)


@pytest.mark.integration
def test_a_guard_whose_test_fails_without_it_is_killed(source: Path) -> None:
    status, said = verdict(source, ABOVE)
    assert status == 0
    assert "above" in said
    assert "tests/test_code.py::test_above" in said
    assert "1 guards: 1 killed, 0 survived, 0 unreachable; " in said
    assert (source / "thing/code.py").read_text() == CODE


@pytest.mark.integration
def test_one_survivor_fails_the_gate_whatever_the_others_do(source: Path) -> None:
    status, said = verdict(source, ABOVE, BELOW, replace(ABOVE, name="again"), jobs=2)
    assert status == 1
    assert "3 guards: 2 killed, 1 survived, 0 unreachable; " in said
    assert "survived: below: too much" in said


@pytest.mark.integration
def test_a_guard_that_is_not_in_the_code_fails_the_gate(source: Path) -> None:
    status, said = verdict(source, GONE)
    assert status == 1
    assert "stale: gone: thing/code.py, clipped: 'if 7' fits 0 places" in said


@pytest.mark.integration
def test_code_that_does_not_compile_kills_nothing(source: Path) -> None:
    status, said = verdict(source, BROKEN, ABOVE)
    assert status == 1
    assert "broken: exit status" in said
    assert "2 guards: 1 killed, 0 survived, 0 unreachable, 1 broken; " in said, (
        "and the code was put right again"
    )


@pytest.mark.integration
@pytest.mark.parametrize("test", ["tests/test_code.py::test_nothing", "tests/test_other.py"])
def test_a_test_that_is_not_there_fails_the_gate(source: Path, test: str) -> None:
    status, said = verdict(source, replace(ABOVE, tests=(test,)))
    assert status == 1
    assert "do not pass with all guards in place" in said


@pytest.mark.integration
def test_tests_that_fail_anyway_prove_nothing(source: Path) -> None:
    (source / "tests/test_code.py").write_text(TESTS + "    assert clipped(1) == 2\n")
    status, said = verdict(source, ABOVE)
    assert status == 1
    assert "do not pass with all guards in place" in said


@pytest.mark.integration
def test_another_copy_of_the_code_is_found_out(source: Path) -> None:
    """As when a package that is installed hides the one that is changed."""
    status, said = verdict(source, replace(ABOVE, module="json/decoder.py"))
    assert status == 1
    assert "another copy" in said


@pytest.mark.integration
def test_a_workspace_has_what_is_needed_and_is_restored(source: Path, tmp_path: Path) -> None:
    workspace = Workspace(source, tmp_path / "copy", COPIED)
    assert not (workspace.path / "secrets.txt").exists()
    module = workspace.path / ABOVE.module
    with workspace.without(ABOVE):
        assert "number > 99" in module.read_text()
        assert workspace.test(ABOVE.tests).status == 1
    assert module.read_text() == CODE
    assert workspace.test(ABOVE.tests).status == 0, "nothing that was compiled is left either"


@pytest.mark.parametrize(
    ("output", "culprit"),
    [
        ("FAILED tests/a.py::test_b[1 - 2] - assert 1 == 2\n", "tests/a.py::test_b[1 - 2]"),
        ("x\nFAILED tests/a.py::test_b\nFAILED tests/a.py::test_c\n", "tests/a.py::test_b"),
        ("ERROR tests/a.py::test_b - OSError\n", "tests/a.py::test_b"),
        ("+++++ Timeout +++++\n", "a test that never ended"),
        ("", ""),
    ],
)
def test_who_noticed(output: str, culprit: str) -> None:
    assert culprit_of(output) == culprit


def test_guards_are_chosen_by_name() -> None:
    assert chosen([]) == list(GUARDS)
    assert chosen([GUARDS[3].name]) == [GUARDS[3]]
    with pytest.raises(SystemExit, match="there are no guards nonsense"):
        chosen(["nonsense"])
