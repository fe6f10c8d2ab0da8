"""Start-up cost of imports, compared with that of Python and of asyncio, in new interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from resource import RUSAGE_CHILDREN, getrusage
from typing import Final

from raftlog.bench.figures import Figure

VERSION: Final = "import sys; sys.argv[1:] = ['--version']; import raftlog.__main__ as m; m.main()"
# Name to the program. The first two are the baseline.
CASES: Final = {
    "python -c pass": "pass",
    "import asyncio": "import asyncio",
    "raftlog --version": VERSION,
    "import raftlog.aio": "import raftlog.aio",
    "from raftlog import Producer": "from raftlog import Producer",
    "raftlog.Producer()": "import raftlog; raftlog.Producer()",
    "from raftlog.aio import AsyncConsumer": "from raftlog.aio import AsyncConsumer",
    "import raftlog.server.main": "import raftlog.server.main",
}
_LINE: Final = "import time:"  # of -X importtime: self us | cumulative us | module


def imports(*, rounds: int, cases: Mapping[str, str] = CASES) -> Iterator[Figure]:
    """Measure each case. Yields the minimum of ``rounds`` processes, in milliseconds.

    ``cpu_ms``: CPU time of the process, of user and system. ``import_ms``: sum of the modules, by
    ``-X importtime``, which itself takes a part of it. ``modules``, ``own_modules``: number of
    imported modules, in total and of raftlog.
    """
    for name, code in cases.items():
        _run(code, times=False)  # compiles the modules
        cpu_s = min(_run(code, times=False)[0] for _ in range(rounds))
        found = [_modules(_run(code, times=True)[1]) for _ in range(rounds)]
        import_us = min(sum(modules.values()) for modules in found)
        own = sum(module.split(".")[0] == "raftlog" for module in found[0])
        values = {
            "name": name,
            "rounds": rounds,
            "cpu_ms": cpu_s * 1e3,
            "import_ms": import_us / 1e3,
            "modules": len(found[0]),
            "own_modules": own,
        }
        cells = {
            "benchmark": name,
            "CPU ms": f"{cpu_s * 1e3:.0f}",
            "import ms": f"{import_us / 1e3:.0f}",
            "modules": f"{len(found[0])}",
            "of raftlog": f"{own}",
        }
        yield Figure(values, cells)


def _run(code: str, *, times: bool) -> tuple[float, str]:
    """Run a program in a new interpreter. Returns its CPU seconds and its stderr."""
    options = ["-X", "importtime"] if times else []
    # Compiled modules are kept, as in an installation.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = getrusage(RUSAGE_CHILDREN)
    ran = subprocess.run(
        [sys.executable, *options, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    after = getrusage(RUSAGE_CHILDREN)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return used, ran.stderr


def _modules(stderr: str) -> dict[str, int]:
    """Return the microseconds of each module, without those that it imports."""
    lines = [line.removeprefix(_LINE).split("|") for line in stderr.splitlines() if _LINE in line]
    return {name.strip(): int(own) for own, _, name in lines[1:]}  # the first line is a title
