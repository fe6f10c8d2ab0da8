"""Kinds of tests, what each may cost, and what `make test` leaves to `make nightly`.

A pytest plugin. At the end of a run it prints the ten slowest tests, and the seconds per kind; a
kind over its budget (``[tool.raftlog.budgets]`` of pyproject.toml) fails a run with ``--budgets``.
Budgets are seconds on the machine that they were measured on: a fixed piece of work, timed between
tests, says how much slower this one is, or how busy.

Tests of the test tools themselves run when a tool has changed since its tests last passed, which
``tests/tools.json`` records by the hash of its files; otherwise nightly.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[1]
RECORD: Final = ROOT / "tests" / "tools.json"
SLOWEST: Final = 10

# The first that fits is a test's kind.
MARKS: Final = ("spark", "integration", "simulated", "seeds")
HYPOTHESIS: Final = "hypothesis"
TOOL: Final = "tool"
TIDY: Final = "tidy"
UNIT: Final = "unit"


@dataclass(frozen=True)
class Tool:
    """A test tool. ``parts``: its files, and ``tests`` those of its own tests, from the root."""

    parts: tuple[str, ...]
    tests: tuple[str, ...]

    def has(self, item: pytest.Item) -> bool:
        return item.nodeid.startswith(self.tests)

    def digest(self) -> str:
        """Return the hash of its files, and of its tests."""
        state = hashlib.sha256()
        for place in (*self.parts, *self.tests):
            at = ROOT / place
            for path in [at] if at.is_file() else sorted(at.rglob("*.py")):
                name = path.relative_to(ROOT).as_posix()
                state.update(name.encode() + b"\0" + path.read_bytes())
        return state.hexdigest()[:16]


TOOLS: Final[Mapping[str, Tool]] = {
    "checker": Tool(
        ("raftlog/testing/checker", "raftlog/testing/history"),
        ("tests/testing/checker/", "tests/testing/history/"),
    ),
    "simulator": Tool(("raftlog/testing/simulator",), ("tests/testing/simulator/",)),
    "fault injection": Tool(
        ("jepsen_like", "docs/how-to/inject-faults.md"),
        ("tests/jepsen_like/", "tests/integration/test_chaos_page.py"),
    ),
    "benchmarks": Tool(
        ("raftlog/bench", "cli/raftlog_cli/bench.py"),
        ("tests/bench/", "tests/cli/test_bench.py", "tests/spark_source/test_bench.py"),
    ),
    "mutation": Tool(
        tuple(
            f"tests/mutation/{name}.py" for name in ("address", "change", "guard", "reach", "run")
        ),
        ("tests/mutation/test_gate.py",),
    ),
}

CALIBRATION_LOOPS: Final = 100_000
CALIBRATION_S: Final = 0.0072  # of the machine of the budgets, with its suite running
CALIBRATE_EVERY: Final = 100  # tests of one process


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("raftlog")
    group.addoption("--budgets", action="store_true", help="fail if a kind is over its budget")
    group.addoption("--only-tools", action="store_true", help="run the tests of the test tools")


def kind_of(item: pytest.Item) -> str:
    if any(tool.has(item) for tool in TOOLS.values()):
        return TOOL  # has no budget: these run rarely
    for mark in MARKS:
        if item.get_closest_marker(mark) is not None:
            return mark
    if item.nodeid.startswith("tests/tidy/"):
        return TIDY
    return HYPOTHESIS if item.get_closest_marker("hypothesis") is not None else UNIT


# -- tools -----------------------------------------------------------------------------------------


def unchanged() -> set[str]:
    """Return the tools whose tests have passed with their present files."""
    passed = json.loads(RECORD.read_text(encoding="utf-8"))
    return {tool for tool in TOOLS if passed.get(tool) == TOOLS[tool].digest()}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the tests of unchanged tools, unless the command names a file."""
    if config.getoption("only_tools") or any(".py" in argument for argument in config.args):
        return None
    if config not in _left_out:
        _left_out[config] = tuple(place for tool in unchanged() for place in TOOLS[tool].tests)
    name = collection_path.relative_to(ROOT).as_posix() + "/" * collection_path.is_dir()
    return True if name in _left_out[config] else None


_left_out: Final[dict[pytest.Config, tuple[str, ...]]] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests of tools only, if that is asked."""
    if config.getoption("only_tools"):
        chosen = {item for item in items if any(tool.has(item) for tool in TOOLS.values())}
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = [item for item in items if item in chosen]


# -- processes -------------------------------------------------------------------------------------

STARTS: Final = frozenset(  # audit events
    ("subprocess.Popen", "os.fork", "os.posix_spawn", "raftlog.testing.fork")
)
STARTERS: Final = frozenset(("spark", "integration", "peers", "browser"))  # marks
_quiet: list[str] = []  # the test that runs, if it must not start a process


def _on_audit_event(event: str, _arguments: object) -> None:
    if event in STARTS and _quiet:
        raise AssertionError(f"{_quiet[0]} starts a process: mark it with pytest.mark.integration")


sys.addaudithook(_on_audit_event)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _quiet[:] = [] if any(map(item.get_closest_marker, STARTERS)) else [item.nodeid]
    try:
        return (yield)
    finally:
        _quiet.clear()


# -- seconds ---------------------------------------------------------------------------------------


class Seconds:
    """Of one process: which kinds the tests are of, and how fast the machine is."""

    def __init__(self) -> None:
        self._count = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Iterator[None]:
        report = yield
        report.kind = kind_of(item)
        if call.when == "teardown":
            self._count += 1
            if self._count % CALIBRATE_EVERY == 1:
                report.calibration_s = calibrate()
        return report


def calibrate() -> float:
    """Return the wall seconds of a fixed piece of work."""
    began = time.perf_counter()
    for number in range(CALIBRATION_LOOPS):
        number * number
    return time.perf_counter() - began


class Summary:
    """Of the whole run, in the process that reports it."""

    def __init__(self, *, is_strict: bool) -> None:
        self._is_strict = is_strict
        self._of_kind: Counter[str] = Counter()
        self._of_test: Counter[str] = Counter()
        self._tests: Counter[str] = Counter()
        self._calibrations: list[float] = []
        self._over: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        kind = getattr(report, "kind", UNIT)
        self._of_kind[kind] += report.duration
        self._of_test[report.nodeid] += report.duration
        self._tests[kind] += report.when == "call"
        if (calibration := getattr(report, "calibration_s", None)) is not None:
            self._calibrations.append(calibration)

    @property
    def _slowness(self) -> float:
        """How many times slower than the machine of the budgets; 1 if it is faster.

        The mean: on a busy machine, few of these short pieces of work wait, but for long.
        """
        return max(1.0, fmean(self._calibrations or [0.0]) / CALIBRATION_S)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not self._is_strict:
            return
        slowness = self._slowness
        for kind, budget in budgets().items():
            if self._of_kind[kind] > budget * slowness:
                self._over.append(kind)
        if self._over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self._tests:
            return
        say = terminalreporter.line
        terminalreporter.section(f"the {SLOWEST} slowest tests")
        for test, seconds in self._of_test.most_common(SLOWEST):
            say(f"{seconds:8.1f} s  {test}")
        terminalreporter.section("seconds per kind, of all test processes")
        allowed = budgets()
        for kind, seconds in self._of_kind.most_common():
            budget = f"budget {allowed[kind]} s" if kind in allowed else "no budget"
            say(f"{seconds:8.1f} s  {kind:12} {self._tests[kind]:6} tests, {budget}")
        say(f"this machine, now: {self._slowness:.1f} times slower than that of the budgets")
        for kind in self._over:
            say(
                f"ERROR: the {kind} tests are over their budget: make a test cheaper, replace one, "
                "or leave one to `make nightly` (docs/contributing/testing.md)",
                red=True,
            )


def budgets() -> dict[str, int]:
    """Return the seconds that the tests of each kind may take in `make test`."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    table: dict[str, int] = tomllib.loads(text)["tool"]["raftlog"]["budgets"]
    return table


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Seconds())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Summary(is_strict=config.getoption("budgets")))


def main() -> int:
    """``python -m tests.kinds``: record that the tests of all tools have passed."""
    text = json.dumps({name: tool.digest() for name, tool in TOOLS.items()}, indent=2) + "\n"
    RECORD.write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {RECORD.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
