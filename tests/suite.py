"""``make test``: style, types and layers beside pytest, which leaves a core to them at first.

Three test processes for two cores: tests of real brokers wait as much as they compute. Arguments go
to pytest.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from tests.quick import Checks, say
from tests.tidy.sources import ROOT

PYTEST = (sys.executable, "-m", "pytest", "-n", "3", "--budgets")


def main(arguments: Sequence[str]) -> int:
    """Return the exit status."""
    began = time.monotonic()
    checks = Checks()
    status = subprocess.run([*PYTEST, *arguments], cwd=ROOT, check=False).returncode
    failed = checks.failed()
    say(f"{time.monotonic() - began:.0f} s in all; checks: {', '.join(failed) or 'good'}")
    return status or int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
