"""Ratios to the floor beside those of another commit: ``python -m tests.bench_check``.

Each round runs the floor and three brokers (``raftlog bench cluster``) of both commits, by turns. A
benchmark fails if each of its ratios is worse than each of the other commit's: then the difference
is larger than the noise of this run. Ratios of another machine, or of another hour, say nothing:
they depend on its cores, its disk and its load. Exit status 1 if any fails.

The other commit is the one in tests/bench.json, or that of ``--against``. ``--write`` records this
one, from which later ones are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from raftlog.testing.fork_server import python_path
from tests.figures import git, tree_of

ROOT: Final = Path(__file__).resolve().parents[1]
RECORDED: Final = Path(__file__).with_name("bench.json")
ROUNDS: Final = 5
RECORDS: Final = 1_000_000
LATENCY: Final = "p50_us"  # in the values of a benchmark whose ratio is better if it is smaller

# By benchmark: its ratio to the floor, and whether smaller is better.
Ratios: TypeAlias = Mapping[str, tuple[float, bool]]


def measure(tree: Path) -> Ratios:
    """Run the benchmarks of a tree once."""
    command = (sys.executable, "-m", "raftlog", "bench", "cluster", "--json")
    options = ("--rounds", "1", "--records", str(RECORDS))
    done = subprocess.run(
        [*command, *options],
        cwd=tree,
        env={**os.environ, **python_path(tree)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = [figure for line in done.stdout.splitlines() for figure in json.loads(line)]
    return {
        f"{each['name']}, {each.get('value_bytes', 100)} bytes": (
            float(each["ratio"]),
            LATENCY in each,
        )
        for each in found
    }


def verdicts(now: Sequence[Ratios], before: Sequence[Ratios]) -> dict[str, bool]:
    """Return whether each benchmark of the rounds ``now`` is not worse. A new one is not."""
    good = {}
    for name, (_ratio, smaller_is_better) in now[0].items():
        ours = ratios_of(now, name)
        theirs = ratios_of(before, name) or ours
        good[name] = min(ours) <= max(theirs) if smaller_is_better else max(ours) >= min(theirs)
    return good


def ratios_of(rounds: Sequence[Ratios], name: str) -> list[float]:
    return [each[name][0] for each in rounds if name in each]


def shown(ratios: Sequence[float]) -> str:
    if not ratios:
        return "none"
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench_check", description=__doc__)
    parser.add_argument("--against", metavar="REV", help="the other commit")
    parser.add_argument("--write", action="store_true", help="record this commit, without a run")
    options = parser.parse_args(arguments)
    if options.write:
        content = {"commit": git("rev-parse", "HEAD").strip()}
        RECORDED.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        return 0
    other = options.against or json.loads(RECORDED.read_text(encoding="utf-8"))["commit"]
    now, before = [], []
    with tree_of(other) as tree:
        for number in range(1, ROUNDS + 1):
            now.append(measure(ROOT))
            before.append(measure(tree))
            sys.stderr.write(f"round {number} of {ROUNDS}\n")
    good = verdicts(now, before)
    for name, is_good in good.items():
        sys.stdout.write(
            f"{name}: {shown(ratios_of(now, name))}, {other[:8]}: "
            f"{shown(ratios_of(before, name))}: {'good' if is_good else 'WORSE'}\n"
        )
    return 0 if all(good.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
