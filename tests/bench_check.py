"""Ratios to the floor, compared with recorded ones: ``python -m tests.bench_check [--write]``.

Each round runs the floor and three brokers by turns (``raftlog bench cluster``). A benchmark fails
if its recorded ratio is better than the ratio of every round: then the difference is larger than
the noise of this run. Exit status 1 if any fails. ``--write`` records the medians of this run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

RECORDED: Final = Path(__file__).with_name("bench.json")
ROUNDS: Final = 5
RECORDS: Final = 1_000_000
LATENCY: Final = "p50_us"  # in the values of a benchmark whose ratio is better if it is smaller


def measure() -> dict[str, tuple[float, bool]]:
    """Return a ratio to the floor, and whether smaller is better, by benchmark."""
    command = (sys.executable, "-m", "raftlog", "bench", "cluster", "--json")
    options = ("--rounds", "1", "--records", str(RECORDS))
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=True, text=True)
    found = [figure for line in done.stdout.splitlines() for figure in json.loads(line)]
    return {
        f"{each['name']}, {each.get('value_bytes', 100)} bytes": (
            float(each["ratio"]),
            LATENCY in each,
        )
        for each in found
    }


def verdicts(
    rounds: Sequence[Mapping[str, tuple[float, bool]]], recorded: Mapping[str, float]
) -> dict[str, bool]:
    """Return whether each benchmark of ``rounds`` is as good as recorded. A new one is."""
    good = {}
    for name, (_ratio, smaller_is_better) in rounds[0].items():
        ratios = [each[name][0] for each in rounds]
        known = recorded.get(name, ratios[0])
        good[name] = min(ratios) <= known if smaller_is_better else max(ratios) >= known
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_check", description=__doc__)
    parser.add_argument("--write", action="store_true", help="record the medians of this run")
    options = parser.parse_args(arguments)
    recorded: dict[str, float] = json.loads(RECORDED.read_text(encoding="utf-8"))
    rounds = []
    for number in range(1, ROUNDS + 1):
        rounds.append(measure())
        sys.stderr.write(f"round {number} of {ROUNDS}\n")
    good = verdicts(rounds, recorded)
    medians = {name: statistics.median(each[name][0] for each in rounds) for name in good}
    for name, is_good in good.items():
        ratios = [each[name][0] for each in rounds]
        sys.stdout.write(
            f"{name}: {medians[name]:.2f} ({min(ratios):.2f} to {max(ratios):.2f}), recorded "
            f"{recorded.get(name, float('nan')):.2f}: {'good' if is_good else 'WORSE'}\n"
        )
    if options.write:
        RECORDED.write_text(json.dumps(medians, indent=1) + "\n", encoding="utf-8")
        return 0
    return 0 if all(good.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
