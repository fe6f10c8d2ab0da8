"""Guards' addresses and changes, on a function of a few lines."""

from __future__ import annotations

import ast

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
from tests.mutation.guard import Guard, StaleGuardError
from tests.mutation.guards import GUARDS
from tests.mutation.run import ROOT

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
