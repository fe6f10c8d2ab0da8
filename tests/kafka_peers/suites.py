"""Runs of the tests that a client's own repository has, against our brokers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path

OUTPUT_MAX = 20_000  # characters of the output that a failure shows


def run_suite(
    words: Collection[str], directory: Path, environment: Mapping[str, str], timeout_s: float
) -> str:
    """Run the tests in ``directory``. Returns their output. A failure of some raises nothing."""
    done = subprocess.run(
        [*words],
        cwd=directory,
        env={**os.environ, **environment},
        timeout=timeout_s,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return done.stdout


def verify_outcomes(
    outcomes: Mapping[str, str],
    cannot_pass: Collection[str],
    passed_min: int,
    output: str,
    *,
    may_fail: Collection[str] = (),
) -> None:
    """Assert that the tests in ``cannot_pass`` alone fail, of those that ran.

    ``outcomes`` by test: PASS, FAIL or SKIP, also with an ending (PASSED). ``passed_min``: tests
    that pass at least. ``may_fail``: tests that are not considered, as a race of the client decides
    their outcomes.
    """
    outcomes = {name: outcome for name, outcome in outcomes.items() if name not in may_fail}
    failed = {name for name, outcome in outcomes.items() if outcome.startswith("FAIL")}
    run = {name for name, outcome in outcomes.items() if not outcome.startswith("SKIP")}
    assert failed == run.intersection(cannot_pass), output[-OUTPUT_MAX:]
    assert sum(outcome.startswith("PASS") for outcome in outcomes.values()) >= passed_min, output
