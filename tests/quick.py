"""``make quick``: style, types and layers, and the unit tests of what changed since main.

What changed: commits since the merge base with ``origin/main`` (or ``main``), and what is not
committed. Its tests: test files that changed; of each product module that changed, the file that
mirrors it, and test files that import it, those of its own package first, up to ``FILES_MAX``. The
addresses of the guards in it are checked, too. Tests of real brokers, whole simulated clusters and
long randomised ones are left to `make test`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.mutation.guards import GUARDS
from tests.mutation.test_guards import address_problem
from tests.tidy import sources
from tests.tidy.sources import ROOT, Source
from tests.tidy.test_shape import COVERED_BY

FILES_MAX: Final = 12
FOLDERS: Final = {
    "raftlog_cli": "cli",
    "raftlog_jepsen": "jepsen_like",
    "pyspark_raftlog": "spark_source",
}
BIN: Final = Path(sys.executable).parent
CHECKS: Final = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "--quiet", "."),
    ("lint-imports",),
    ("mypy",),
)
MARKS: Final = (
    "not integration and not spark and not seeds and not simulated and not nightly and not peers"
)
NO_TESTS: Final = 5  # pytest's exit status: none was selected


def changed_files() -> set[str]:
    """Paths of Python files, from the repository's root; what was deleted is left out."""
    base = _git("merge-base", "HEAD", "origin/main") or _git("merge-base", "HEAD", "main") or "HEAD"
    names = _git("diff", "--name-only", base).splitlines()
    names += _git("ls-files", "--others", "--exclude-standard").splitlines()
    return {name for name in names if name.endswith(".py") and (ROOT / name).exists()}


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def covering(source: Source) -> str:
    """The tests that are known to cover a module, or else those of its name."""
    folder, _, name = source.module.removeprefix("raftlog.").rpartition(".")
    package = {
        "raftlog_cli": "cli",
        "raftlog_jepsen": "jepsen_like",
        "pyspark_raftlog": "spark_source",
    }
    top, _, rest = folder.partition(".")
    folder = "/".join([package.get(top, top), *rest.split(".")]).strip("/")
    return COVERED_BY.get(source.path, f"tests/{folder}/test_{name}.py")


def selected(changed: set[str]) -> tuple[list[str], int]:
    """What pytest is given, and how many files that import what changed are not among it."""
    modules = [source for source in sources.packages() if source.path in changed]
    tests = [source for source in sources.tests() if _is_test(source)]
    first = {source.path for source in tests if source.path in changed}
    first |= {covering(source) for source in modules if (ROOT / covering(source)).exists()}
    names = {source.module for source in modules}
    folders = {path.rpartition("/")[0] for path in first}
    users = [
        (source.path.rpartition("/")[0] not in folders, source.path)
        for source in tests
        if source.imported_modules & names and source.path not in first
    ]
    rest = [path for _is_far, path in sorted(users)]
    taken = max(0, FILES_MAX - len(first))
    return [*sorted(first), *rest[:taken]], len(rest[taken:])


def _is_test(source: Source) -> bool:
    name = source.path.rpartition("/")[2]
    return name.startswith("test_") and not source.path.startswith("tests/tidy/")


def _guard_problems(changed: set[str]) -> Iterator[str]:
    for guard in GUARDS:
        if guard.module in changed and (problem := address_problem(guard)):
            yield problem


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Checks:
    """Checks that run beside the tests: names of programs of ``BIN``, or paths, and arguments."""

    def __init__(self, commands: Sequence[Sequence[str]] = CHECKS) -> None:
        self._commands = commands
        pipe, both = subprocess.PIPE, subprocess.STDOUT
        self._running = [
            subprocess.Popen(
                [BIN / check[0], *check[1:]], cwd=ROOT, stdout=pipe, stderr=both, text=True
            )
            for check in commands
        ]

    def failed(self) -> list[str]:
        """Wait for the checks. Return those that failed, after printing their output."""
        failed = []
        for check, process in zip(self._commands, self._running, strict=True):
            output, _ = process.communicate()
            if process.returncode:
                say(output)
                failed.append(" ".join(check))
        return failed


def main(arguments: Sequence[str]) -> int:
    """The exit status. ``arguments`` go to pytest."""
    checks = Checks()
    changed = changed_files()
    chosen, left_out = selected(changed)
    status = 0
    if chosen:
        pytest = (sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", MARKS)
        status = subprocess.run([*pytest, *arguments, *chosen], cwd=ROOT, check=False).returncode
    failed = [] if status in {0, NO_TESTS} else ["tests"]
    failed += _guard_problems(changed)
    failed += checks.failed()
    if left_out:
        say(f"{left_out} more test files import what changed: `make test` runs them")
    say(f"failed: {', '.join(failed)}" if failed else f"good: {len(chosen)} selected for pytest")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
