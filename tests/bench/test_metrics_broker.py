"""The version of the server without counting: what is left out, and what is not."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from raftlog.bench.metrics_broker import versions

SOURCE = """
def counting(self):
    began = self.counters.now()
    self._counters.requests += 1
    if began:
        self.services.counters.seconds.observe(began)
    self.done += 1
    return began

class Other:
    def counting_too(self, counters):
        counters.ended("api")
        return self.counters

    def plain(self):
        return self.clock.now()
"""


class Counted:
    """Counts every use of its counters."""

    def __init__(self) -> None:
        self.uses = 0
        self.done = 0
        self.requests = 0
        self.counters = self._counters = self.services = self.seconds = self

    def now(self) -> float:
        self.uses += 1
        return 5.0

    def observe(self, _seconds: float) -> None:
        self.uses += 1


def test_only_statements_that_count_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "counting_module.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = import_module(path.stem)
    found = list(versions(module))
    functions: dict[str, Any] = {each[0].__qualname__: each for each in found}
    assert functions.keys() == {"counting", "Other.counting_too"}
    counting, own, without = functions["counting"]
    state = Counted()
    counting.__code__ = own
    assert counting(state) == 5.0
    assert (state.uses, state.requests, state.done) == (2, 1, 1)
    counting.__code__ = without
    assert counting(state) == 0.0
    assert (state.uses, state.requests, state.done) == (2, 1, 2)
