"""``make test``: `make check` beside the tests.

Four test processes for two cores: tests of real brokers wait more than they compute. The tests of
`make check` have a process of their own: they parse all code, and every collection of garbage in
their process then takes a second. Arguments go to pytest.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from tests.quick import CHECKS, Checks, say
from tests.spark_source.fixtures import NO_JAVA, has_java
from tests.tidy.sources import ROOT

PYTEST = (sys.executable, "-m", "pytest")
# In a new clone, the tests are compiled by one process first: the four would all compile all.
COLLECT = (*PYTEST, "-q", "--collect-only")
COMPILED = ROOT / "tests" / "__pycache__"
OF_CHECK = ("tests/tidy", "tests/mutation/test_guards.py")
TESTS = (*PYTEST, "-n", "4", "--budgets", *(f"--ignore={path}" for path in OF_CHECK))


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    began = time.monotonic()
    if not has_java():  # not after 8 minutes
        say(f"{NO_JAVA}, then repeat this. Without it: make test ARGS='-m \"not spark\"'")
        if "not spark" not in " ".join(arguments):
            return 2
    checks = Checks([*CHECKS, (*PYTEST, "-q", *OF_CHECK)])
    if not any(COMPILED.glob("conftest.*")):
        say("compiling the tests, once ...")
        subprocess.run(COLLECT, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    status = subprocess.run([*TESTS, *arguments], cwd=ROOT, check=False).returncode
    failed = checks.failed()
    say(f"{time.monotonic() - began:.0f} s in all; checks: {', '.join(failed) or 'good'}")
    return status or int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
