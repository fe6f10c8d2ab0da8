"""``make audit``: compares the installed distributions with published advisories (pip-audit).

It needs a package index that serves advisories. Without one, it says so and is no failure, unless
``--strict`` is given. A result counts for a day. pip-audit has a virtual environment of its own, so
that its dependencies are not installed besides those of raftlog.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path
from typing import Any, Final, NamedTuple

HOME: Final = Path(sys.prefix) / "audit"
STAMP: Final = HOME / "passed"
DAY_S: Final = 86_400
TIMEOUT_S: Final = 300


class Result(NamedTuple):
    """Numbers of distributions, and a line for each advisory about one of them."""

    audited: int
    skipped: int
    advisories: list[str]


def read(report: str) -> Result:
    """Return the result of pip-audit's JSON. Raises ``ValueError`` if it is none."""
    rows: list[dict[str, Any]] = json.loads(report)["dependencies"]
    known = [row for row in rows if "skip_reason" not in row]
    advisories = [
        f"{row['name']} {row['version']}: {found['id']}, fixed in "
        f"{', '.join(found['fix_versions']) or 'no version yet'}"
        for row in known
        for found in row["vulns"]
    ]
    return Result(len(known), len(rows) - len(known), advisories)


def audit() -> Result:
    """Run pip-audit. Raises ``OSError`` or ``ValueError`` if it cannot be installed, or fails."""
    if not (HOME / "bin" / "pip-audit").exists():
        venv.create(HOME, with_pip=True, clear=True)
        _run("python", "-m", "pip", "install", "--quiet", "pip-audit>=2.9")
    installed = sysconfig.get_path("purelib")
    return read(
        _run(
            *("pip-audit", "--path", installed, "--skip-editable", "--progress-spinner", "off"),
            *("--timeout", "10", "--format", "json"),
        )
    )


def _run(name: str, *arguments: str) -> str:
    try:
        ran = subprocess.run(
            [HOME / "bin" / name, *arguments],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{name} did not end within {TIMEOUT_S} s") from error
    if ran.returncode and not ran.stdout.strip():  # with advisories, it has output
        raise OSError(ran.stderr.strip().rpartition("\n")[2] or f"{name}: {ran.returncode}")
    return ran.stdout


def conclude(result: Result | Exception, *, strict: bool) -> tuple[int, str]:
    """Return the exit status, and what to print."""
    if isinstance(result, Exception):
        return int(strict), f"audit: not done: {result}"
    if result.advisories:
        return 1, "audit: known vulnerabilities:\n" + "\n".join(result.advisories)
    if not result.audited:
        return int(strict), (
            "audit: not done: the package index serves no advisories about any of "
            f"{result.skipped} distributions"
        )
    return 0, f"audit: no known vulnerability in {result.audited} ({result.skipped} not known)"


def main() -> int:
    strict = "--strict" in sys.argv[1:]
    marker = Path(sys.prefix) / ".dev"  # newer than the result: other distributions
    if not strict and STAMP.exists():
        passed_at = STAMP.stat().st_mtime
        if passed_at > max(marker.stat().st_mtime, time.time() - DAY_S):
            print(STAMP.read_text().strip())  # noqa: T201 - its output
            return 0
    result: Result | Exception
    try:
        result = audit()
    except (OSError, ValueError, KeyError, subprocess.CalledProcessError) as error:
        result = error
    status, text = conclude(result, strict=strict)
    print(text)  # noqa: T201 - its output
    if not status and HOME.exists():
        STAMP.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
