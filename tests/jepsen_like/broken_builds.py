"""Builds of raftlog that are broken on purpose, which the harness has to find out (h6).

    python -m tests.jepsen_like.broken_builds [NAME ...] [--report DIR]

The product carries no switches: a guard is taken out of the source of a copy of the package, and
the brokers of a run are started from there (``raftlog chaos run --source``). A harness that has
never found anything is untested. Exit status 1 when a build passes for a right one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.change import value
from tests.mutation.guard import Guard
from tests.mutation.guards import GUARDS

ROOT: Final = Path(__file__).resolve().parents[2]
INVALID: Final = 1  # exit status of ``raftlog chaos run``
RUN_SECONDS_MAX: Final = 600


# Only together do these do harm that is seen from outside: each alone makes good for the other.
FREE_FIRST: Final = Guard(
    name="a partition is free before it is given",
    why="two members own it at the same time",
    module="raftlog/consumer_groups/group.py",
    function="Group.hand_out",
    change=value("assign owner", "list(_.generators[0].iter)"),
    tests=(),
)
OWNERS_COMMIT: Final = Guard(
    name="only the owner commits",
    why="a commit of one who has lost the partition takes the group back",
    module="raftlog/consumer_groups/group.py",
    function="_refusal",
    change=value(
        "if PartitionNotOwnedError", "_.values[0].left is None and (not _.values[1].comparators[0])"
    ),
    tests=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """``without``: guards' names in the mutation gate. ``arguments``: of the run that finds it."""

    name: str
    why: str
    without: tuple[str, ...]
    arguments: tuple[str, ...]


BUILDS: Final[tuple[Build, ...]] = (
    Build(
        name="fsync",
        why="what was acknowledged is in the page cache only, and a power cut takes it",
        without=("segment data is synced",),
        arguments=("--nemesis", "power", "--time", "45", "--seed", "1"),
    ),
    Build(
        name="isr",
        why="a leader acknowledges what it alone has, and the next one does not have it",
        without=("commits wait for the followers",),
        arguments=("--nemesis", "kill,partition,wipe", "--time", "60", "--seed", "2"),
    ),
    Build(
        name="epoch",
        why="a follower keeps a tail that was never committed",
        without=("an epoch that ended earlier at the leader",),
        arguments=("--nemesis", "partition,kill,pause", "--time", "90", "--seed", "3"),
    ),
    # Without the chain check alone nothing is found: while epochs are checked, no fault that can be
    # injected makes a follower's log differ below its end. It takes a disk that gives back older
    # bytes whose sums are right, at the very place where the log ends.
    Build(
        name="epoch-and-chain",
        why="a follower keeps a tail that was never committed, and goes on from it",
        without=("an epoch that ended earlier at the leader", "hash chain of replicated batches"),
        arguments=("--nemesis", "partition,kill,pause", "--time", "90", "--seed", "3"),
    ),
    Build(
        name="commits",
        why="a commit of offsets is told ok that only the coordinator has, and a failover takes it",
        without=("a response waits for its commit",),
        arguments=("--workload", "offsets", "--nemesis", "partition",
                   "--time", "90", "--seed", "4"),
    ),
    Build(
        name="owners",
        why="a partition is given to another while its owner reads it, and both commit",
        without=(FREE_FIRST.name, OWNERS_COMMIT.name),
        arguments=("--workload", "groups", "--nemesis", "member-churn,member-kill",
                   "--time", "60", "--seed", "5"),
    ),
    Build(
        name="isolation",
        why="readers of committed records get those of open transactions",
        without=("readers of committed records end at the last stable offset",),
        arguments=("--workload", "txn", "--nemesis", "kill", "--time", "30", "--seed", "7"),
    ),
    Build(
        name="keys",
        why="compaction keeps no record of a key that has a newer one, or the newest",
        without=("a newer record of the same key",),
        arguments=("--workload", "compact", "--nemesis", "kill", "--time", "30", "--seed", "6"),
    ),
)  # fmt: skip


def guards_of(build: Build) -> list[Guard]:
    """The guards that the build lacks. Raises ``KeyError`` for one that is not in the gate."""
    known = {guard.name: guard for guard in (*GUARDS, FREE_FIRST, OWNERS_COMMIT)}
    return [known[name] for name in build.without]


def make(build: Build, directory: Path) -> Path:
    """A copy of the package without the build's guards; the directory to start brokers from."""
    target = directory / "raftlog"
    shutil.copytree(
        ROOT / "raftlog", target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=False
    )
    # ``python -m raftlog`` is the command line's.
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("cli", "jepsen_like"):
        shutil.copytree(ROOT / folder, directory / folder, ignore=ignored)
    for guard in guards_of(build):
        path = directory / guard.module
        path.write_text(guard.switched_off(path.read_text()))
    return directory


def is_found(build: Build, report: Path, source: Path) -> tuple[bool, str]:
    """Whether the harness finds an anomaly in the build, and what it found."""
    command = [sys.executable, "-m", "raftlog", "chaos", "run", *build.arguments]
    command += ["--source", str(source), "--report", str(report)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False
    )
    summary = report / "summary.json"
    if not summary.exists():
        return False, f"no verdict: {(done.stderr or done.stdout)[-2_000:]}"
    anomalies = json.loads(summary.read_bytes())["anomalies"]
    found = ", ".join(f"{kind} {count}" for kind, count in anomalies.items())
    return done.returncode == INVALID and bool(found), found or "nothing"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--report", type=Path, help="keep the reports here")
    asked = parser.parse_args(arguments)
    status = 0
    with tempfile.TemporaryDirectory(prefix="raftlog-broken-") as scratch:
        for build in BUILDS:
            if asked.names and build.name not in asked.names:
                continue
            source = make(build, Path(scratch) / build.name)
            report = (asked.report or Path(scratch, "reports")) / build.name
            found, what = is_found(build, report, source)
            sys.stdout.write(f"{build.name}: {'found' if found else 'NOT FOUND'}: {what}\n")
            status |= not found
    return status


if __name__ == "__main__":
    sys.exit(main())
