"""What counts as run in production: by names, and on the safe side."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.reach import Reach
from tests.mutation.run import ROOT, unreachable
from tests.mutation.test_run import ABOVE

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
