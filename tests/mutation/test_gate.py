"""The mutation gate: addresses and changes, what production reaches, and whole runs."""

from __future__ import annotations

import ast
from dataclasses import replace as changed
from pathlib import Path

import pytest

from tests.mutation.address import Place, addresses_on, parsed
from tests.mutation.change import (
    Change,
    always,
    argument,
    both,
    calls,
    drop,
    move,
    never,
    replace,
    swap,
    value,
)
from tests.mutation.change import replace as replaced
from tests.mutation.guard import Guard, StaleGuardError
from tests.mutation.guards import GUARDS
from tests.mutation.reach import Reach
from tests.mutation.run import ROOT, Workspace, chosen, culprit_of, gate, unreachable

# -- guards ----------------------------------------------------------------------------------------

# Guards' addresses and changes, on a function of a few lines.


CODE = """\
LIMIT = 3


class Log:
    @property
    def end(self): return self._end

    @end.setter
    def end(self, value): self._end = value

    async def append(self, batch, epoch):
        # The epoch comes first.
        if epoch < self.epoch and batch.size > 0:
            raise StaleError(epoch)
        self.file.write(batch, sync=True)
        position = self.file.position
        await self.sync(position, LIMIT)
        self.end = position
        return [each for each in self.parts if each.size < LIMIT]

    def sync(self, position, limit): ...
"""
RENAMED = CODE.replace("epoch,", "term,").replace("epoch)", "term)").replace("if epoch", "if term")
RENAMED = RENAMED.replace("batch", "piece").replace("position = s", "here = s")
RENAMED = RENAMED.replace("(position, L", "(here, L").replace("= position", "= here")


def guard(change: Change, function: str = "Log.append") -> Guard:
    return Guard(name="g", why="", module="m.py", function=function, change=change, tests=("t.py",))


def without(change: Change, text: str = CODE) -> str:
    """The lines of the function that are not as they were."""
    there = guard(change).switched_off(text).splitlines()
    before = ast.unparse(ast.parse(text)).splitlines()
    after = ast.unparse(ast.parse("\n".join(there))).splitlines()
    return "; ".join(line.strip() for line in after if line not in before)


CHANGES = {
    "drop a statement": (drop("call write"), ""),
    "drop an operand": (drop("compare epoch"), "if batch.size > 0:"),
    "drop a keyword": (drop("keyword sync="), "self.file.write(batch)"),
    "drop a filter": (drop("filter size"), "return [each for each in self.parts]"),
    "never": (never("if StaleError"), "if False:"),
    "always": (always("compare epoch"), "if True and batch.size > 0:"),
    "swap": (swap("compare epoch <", ">="), "if epoch >= self.epoch and batch.size > 0:"),
    "swap and": (swap("and epoch", "or"), "if epoch < self.epoch or batch.size > 0:"),
    "other method": (calls("call write", "read"), "self.file.read(batch, sync=True)"),
    "other function": (calls("call sync", "os.stat"), "await os.stat(position, LIMIT)"),
    "argument": (argument("call sync", 1, "_.args[1] + 1"), "await self.sync(position, LIMIT + 1)"),
    "keyword": (argument("call write", "sync", "False"), "self.file.write(batch, sync=False)"),
    "value": (value("assign end", "_ + LIMIT"), "self.end = position + LIMIT"),
    "condition": (value("if StaleError", "_.values[1]"), "if batch.size > 0:"),
    "replace": (replace("name LIMIT #1/2", "9"), "await self.sync(position, 9)"),
    "insert": (replace("call write", "self.other(_.args[0])\n_"), "self.other(batch)"),
    "both": (both(drop("if StaleError"), never("filter size")),
             "return [each for each in self.parts if False]"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_does_what_it_says(name: str) -> None:
    change, expected = CHANGES[name]
    assert without(change) == expected
    changed = guard(change).switched_off(CODE)
    assert changed != CODE
    assert changed.endswith("    def sync(self, position, limit): ...\n"), "others are as they were"


@pytest.mark.parametrize("name", CHANGES)
def test_a_renamed_local_variable_breaks_nothing(name: str) -> None:
    assert RENAMED.count("here") == 3
    guard(CHANGES[name][0]).switched_off(RENAMED)


def test_a_block_that_has_nothing_left_is_passed() -> None:
    assert "if epoch < self.epoch and batch.size > 0:\n            pass" in (
        guard(drop("raise StaleError")).switched_off(CODE)
    )


def test_a_statement_comes_later() -> None:
    moved = guard(move("call write", after="call sync")).switched_off(CODE)
    assert moved.index("write(batch") > moved.index("await self.sync")
    assert moved.count("write(batch") == 1


@pytest.mark.parametrize(
    ("change", "function", "trouble"),
    [
        (drop("call flush"), "Log.append", "'call flush' fits 0 places, not 1"),
        (drop("compare"), "Log.append", r"fits 3 places, not 1 \(lines: 13, 13, 19\)"),
        (drop("compare #1/2"), "Log.append", "fits 3 places, not 2"),
        (drop("call write"), "Log.write", "0 definitions of write in Log.write"),
        (value("assign end", "posit + 1"), "Log.append", "'posit .* names posit"),
    ],
)
def test_code_that_has_changed_is_told(change: Change, function: str, trouble: str) -> None:
    with pytest.raises(StaleGuardError, match=f"g: m.py, {function}: .*{trouble}"):
        guard(change, function).switched_off(CODE)


def test_a_guard_knows_its_line() -> None:
    assert guard(drop("assign end", "call write")).line(CODE) == 15


def test_a_module_itself_is_changed() -> None:
    assert guard(value("assign LIMIT", "4"), "").switched_off(CODE).startswith("LIMIT = 4\n")


def test_the_addresses_on_a_line_are_printed() -> None:
    assert list(addresses_on(CODE, 15)) == [
        'function="Log.append"',
        '"call write"  # self.file.write(batch, sync=True)',
    ]


@pytest.mark.parametrize("module", sorted({guard.module for guard in GUARDS})[::12])
def test_an_address_that_is_given_out_fits(module: str) -> None:
    text = (ROOT / module).read_text(encoding="utf-8")
    for each in ast.walk(parsed(text)):
        if isinstance(each, ast.FunctionDef) and each in parsed(text).body:
            place = Place(parsed(text), each.name)
            for node in ast.walk(place.scope):
                if isinstance(node, ast.Call | ast.If | ast.Return):
                    assert place.find(place.address(node)) is node


# -- reach -----------------------------------------------------------------------------------------

# What counts as run in production: by names, and on the safe side.


MAIN = """\
import library

def main():
    go(Worker())

def go(worker):
    worker.begin()
"""
WORK = """\
class Worker:
    def __init__(self):
        self.set_up()

    def begin(self):
        def inner():
            self.finish()
        inner()

    def finish(self): ...
    def set_up(self): ...
    def forgotten(self):
        self.only_from_there()
    def only_from_there(self): ...

class Lines(library.Base):
    def data_received(self, data): ...

class Derived(Lines):
    def connection_lost(self): ...

@library.command
def registered(): ...

TABLE = {"a": in_a_table}
def in_a_table(): ...
"""


def found() -> Reach:
    return Reach({"main.py": MAIN, "work.py": WORK}, entries=("main.py",))


@pytest.mark.parametrize(
    "name",
    ["go", "begin", "finish", "set_up", "data_received", "connection_lost", "registered",
     "in_a_table", "inner"],
)  # fmt: skip
def test_what_an_entry_comes_to_or_a_library_may_call_is_run(name: str) -> None:
    assert name in found().names


@pytest.mark.parametrize("name", ["forgotten", "only_from_there"])
def test_what_nothing_names_that_runs_is_dead(name: str) -> None:
    reach = found()
    assert name not in reach.names
    line = WORK.splitlines().index(f"    def {name}(self):" + " ..." * (name != "forgotten")) + 1
    assert reach.dead("work.py", line) == name
    assert reach.dead("main.py", 4) == ""


def test_a_guard_of_no_product_module_is_nobodys(tmp_path: Path) -> None:
    assert unreachable(ABOVE, tmp_path) == ""


def test_functions_that_were_only_tested_are_told() -> None:
    text = "def dead():\n    check()\n"
    assert Reach({"m.py": text}, entries=()).dead("m.py", 2) == "dead"
    assert (ROOT / "raftlog").is_dir()


# -- runs ------------------------------------------------------------------------------------------

# The gate itself, on a repository of two functions: what it lets pass and what it does not.


RUN_CODE = """\
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
BELOW = changed(ABOVE, name="below", change=never("if <"))
GONE = changed(ABOVE, name="gone", change=never("if 7"))
BROKEN = changed(ABOVE, name="broken", change=replaced("if 9", "break"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    for name, text in {
        "thing/__init__.py": "",
        "thing/code.py": RUN_CODE,
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
    assert (source / "thing/code.py").read_text() == RUN_CODE


@pytest.mark.integration
def test_one_survivor_fails_the_gate_whatever_the_others_do(source: Path) -> None:
    status, said = verdict(source, ABOVE, BELOW, changed(ABOVE, name="again"), jobs=2)
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
    status, said = verdict(source, changed(ABOVE, tests=(test,)))
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
    status, said = verdict(source, changed(ABOVE, module="json/decoder.py"))
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
    assert module.read_text() == RUN_CODE
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
