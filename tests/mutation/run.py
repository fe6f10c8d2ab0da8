"""Mutation gate: remove each guard of the product, and check that the tests detect it.

    python -m tests.mutation.run [NAME ...] [--jobs 2]
    python -m tests.mutation.run --at raftlog/disk.py:120     (addresses of a line)

The product has no switches: a guard is removed from the source of a copy of the repository, the
tests of its entry run there, and at least one of them must fail. Coverage does not show a guard
that can be removed unnoticed. Exit status 1 if a guard survives, if no product code reaches it, if
its address matches nothing, if its tests cannot run, or if they fail with the guard in place.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from raftlog.testing.fork_server import python_path
from tests.mutation import reach
from tests.mutation.address import addresses_on
from tests.mutation.guard import Guard, StaleGuardError
from tests.mutation.guards import GUARDS, ROOT

COPIED: Final = (
    "raftlog",
    "cli",
    "spark_source",
    "jepsen_like",
    "tests",
    "docs",
    "pyproject.toml",
)
ROOTS: Final = frozenset(("cli", "spark_source", "jepsen_like"))  # folders of a package each
TEST_SECONDS_MAX: Final = 60  # of one test: without its guard it may hang
RUN_SECONDS_MAX: Final = 300

PASSED: Final = 0  # pytest's exit statuses
FAILED: Final = 1
TIMED_OUT: Final = -1  # ours: pytest did not end

KILLED: Final = "killed"
SURVIVED: Final = "survived"  # every test passed without the guard
UNREACHABLE: Final = "unreachable"  # nothing but tests calls the function around it
STALE: Final = "stale"  # its address fits nothing
BROKEN: Final = "broken"  # its tests did not run
VERDICTS: Final = (KILLED, SURVIVED, UNREACHABLE, STALE, BROKEN)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Run:
    """What pytest said. ``culprit`` is the first test that failed, or what else is known."""

    status: int
    culprit: str
    seconds: float
    output: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """``detail``: the test that noticed that the guard was gone, or what else is known."""

    guard: Guard
    verdict: str  # of ``VERDICTS``
    detail: str
    seconds: float


class Workspace:
    """A copy of the code in which one guard at a time is switched off."""

    def __init__(self, source: Path, path: Path, copied: Sequence[str]) -> None:
        self.path = path
        path.mkdir(parents=True)
        for name in copied:
            if (source / name).is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "_build")
                shutil.copytree(source / name, path / name, ignore=ignored, symlinks=True)
            elif (source / name).exists():
                shutil.copy2(source / name, path / name)

    @contextmanager
    def without(self, guard: Guard) -> Iterator[None]:
        """The copy without ``guard``, until the block ends. Raises ``StaleGuardError``."""
        module = self.path / guard.module
        text = module.read_text(encoding="utf-8")
        self._write(module, guard.switched_off(text))
        try:
            yield
        finally:
            self._write(module, text)

    def _write(self, module: Path, text: str) -> None:
        """Compiled files are told from newer ones by size and second only: too coarse for this."""
        for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"):
            compiled.unlink()
        module.write_text(text, encoding="utf-8")

    def test(self, tests: Sequence[str]) -> Run:
        """Run ``tests``, whatever their marks, up to the first that fails."""
        limit = f"--timeout={TEST_SECONDS_MAX}"
        options = ("-x", "-q", "-p", "no:cacheprovider", limit, "-m", "not nightly")
        began = time.monotonic()
        try:
            done = self._python("-m", "pytest", *options, *tests)
        except subprocess.TimeoutExpired:
            return Run(TIMED_OUT, f"no end after {RUN_SECONDS_MAX} s", float(RUN_SECONDS_MAX), "")
        output = done.stdout + done.stderr
        return Run(done.returncode, culprit_of(output), time.monotonic() - began, output)

    def imports_its_own(self, module: str) -> bool:
        """Whether Python, started here, imports the copy's module and no other of that name."""
        parts = module.removesuffix(".py").split("/")
        dotted = ".".join(parts[parts[0] in ROOTS :])
        code = f"import importlib; print(importlib.import_module({dotted!r}).__file__)"
        found = self._python("-c", code).stdout.strip()
        return os.path.realpath(found) == os.path.realpath(self.path / module)

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST", "PYTHON", "HYPOTHESIS", "RAFTLOG", "COV"))
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**environment, **python_path(self.path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )


def culprit_of(output: str) -> str:
    """The first test that pytest's ``output`` says has failed."""
    found = re.search(r"^(?:FAILED|ERROR) (\S+::\w+(?:\[.*?\])?)(?= - |$)", output, re.MULTILINE)
    if found is not None:
        return found[1]
    return "a test that never ended" if "Timeout" in output else ""


def unreachable(guard: Guard, source: Path) -> str:
    """The function around the guard that no product code reaches, or ""."""
    product = reach.of_product(source)
    if guard.module not in product.texts:
        return ""
    try:
        line = guard.line(product.texts[guard.module])
    except StaleGuardError:
        return ""  # and that is said elsewhere
    return product.dead(guard.module, line)


def judge(workspace: Workspace, guard: Guard) -> Outcome:
    """Switch one guard off, and see whether its tests notice."""
    try:
        with workspace.without(guard):
            run = workspace.test(guard.tests)
    except StaleGuardError as error:
        return Outcome(guard, STALE, str(error), 0.0)
    if run.status == FAILED:
        return Outcome(guard, KILLED, run.culprit, run.seconds)
    if run.status == PASSED:
        return Outcome(guard, SURVIVED, "every test passed without it", run.seconds)
    tail = " | ".join(run.output.strip().splitlines()[-3:])
    return Outcome(guard, BROKEN, f"exit status {run.status}: {tail}", run.seconds)


def gate(
    guards: Sequence[Guard], *, source: Path, copied: Sequence[str], jobs: int, say: Say
) -> int:
    """Judge all ``guards``, ``jobs`` at a time; the exit status."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as directory:
        folder = Path(directory).resolve()
        spaces = [Workspace(source, folder / str(n), copied) for n in range(min(jobs, len(guards)))]
        trouble = trouble_before(spaces[0], guards)
        if trouble:
            say(trouble)
            return 1
        outcomes = judge_all(spaces, guards, say)
    outcomes = [_reached(outcome, source) for outcome in outcomes]
    counts = Counter(outcome.verdict for outcome in outcomes)
    always = {KILLED, SURVIVED, UNREACHABLE}
    noted = [f"{counts[each]} {each}" for each in VERDICTS if each in always or counts[each]]
    say(f"{len(guards)} guards: {', '.join(noted)}; {time.monotonic() - began:.0f} s")
    alive = [outcome for outcome in outcomes if outcome.verdict != KILLED]
    for outcome in alive:
        say(f"{outcome.verdict}: {outcome.guard.name}: {outcome.guard.why}\n    {outcome.detail}")
    return 1 if alive else 0


def _reached(outcome: Outcome, source: Path) -> Outcome:
    """A guard where production never comes guards nothing, whatever its tests say."""
    name = unreachable(outcome.guard, source)
    if not name:
        return outcome
    return replace(outcome, verdict=UNREACHABLE, detail=f"nothing but tests calls {name}")


def trouble_before(workspace: Workspace, guards: Sequence[Guard]) -> str:
    """Why nothing could be learned from switching guards off; "" when all is as it should be."""
    if not workspace.imports_its_own(guards[0].module):
        return "tests would import another copy of the code than the one that is changed"
    run = workspace.test(sorted({test for guard in guards for test in guard.tests}))
    if run.status != PASSED:
        return f"these tests do not pass with all guards in place:\n{run.output}"
    return ""


def judge_all(spaces: Sequence[Workspace], guards: Sequence[Guard], say: Say) -> list[Outcome]:
    """Each in a workspace that no other uses meanwhile; in the order of ``guards``."""
    free, lock = list(spaces), threading.Lock()

    def one(guard: Guard) -> Outcome:
        with lock:
            workspace = free.pop()
        try:
            return judge(workspace, guard)
        finally:
            with lock:
                free.append(workspace)

    width = max(len(guard.name) for guard in guards)
    with ThreadPoolExecutor(len(spaces)) as pool:
        futures = [pool.submit(one, guard) for guard in guards]
        for future in as_completed(futures):
            outcome = future.result()
            say(f"{outcome.guard.name:{width}}  {outcome.seconds:5.1f} s  "
                f"{outcome.verdict}: {outcome.detail}")  # fmt: skip
    return [future.result() for future in futures]


def chosen(names: Sequence[str]) -> list[Guard]:
    """The guards of these names, or all. Raises ``SystemExit`` for a name that is none."""
    unknown = sorted(set(names) - {guard.name for guard in GUARDS})
    if unknown:
        raise SystemExit(f"there are no guards {', '.join(unknown)}")
    return [guard for guard in GUARDS if not names or guard.name in names]


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.run", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("names", nargs="*", metavar="NAME", help="guards (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--at", metavar="PATH:LINE", help="only print the addresses of the line")
    options = parser.parse_args(arguments)
    if options.at:
        path, _, line = options.at.rpartition(":")
        say("\n".join(addresses_on((ROOT / path).read_text(encoding="utf-8"), int(line))))
        return 0
    return gate(chosen(options.names), source=ROOT, copied=COPIED, jobs=options.jobs, say=say)


if __name__ == "__main__":
    raise SystemExit(main())
