"""Seeds of simulated clusters: no promise of the product may break in any of them.

The run's seed, of this commit or this night, is the first. A failure prints the command that
repeats the one bad seed with a trace.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from raftlog.testing.simulator import __main__ as simulator
from raftlog.testing.simulator import consensus
from raftlog.testing.simulator.scenario import Mode, Scenario, Verdict, run

pytestmark = pytest.mark.simulated

SEEDS_PER_TEST = 4
CONSENSUS_SEEDS_PER_TEST = 10
NIGHTLY_S = 300  # of each kind
SEEDS_PER_PROCESS = 5
OUTPUT_MAX = 4_000  # characters of a failed process

# Of whole clusters: mode, brokers, compacted topics, tests of `make test`, of `make seeds`.
KINDS: list[tuple[Mode, int, bool, int, int]] = [
    ("safety", 3, False, 3, 12),
    ("safety", 5, False, 0, 4),
    ("liveness", 3, False, 0, 6),
    ("liveness", 5, False, 0, 2),
    ("safety", 3, True, 1, 4),
    ("safety", 1, True, 1, 1),
    ("liveness", 3, True, 0, 1),
    ("safety", 1, False, 1, 2),
    ("safety", 2, False, 0, 2),
    ("liveness", 1, False, 1, 2),
]
TESTS = [
    pytest.param(
        *(mode, brokers, compacted, number),
        marks=[pytest.mark.seeds] if number >= few else [],
        id=f"{mode}-{brokers}{'-compacted' * compacted}-{number}",
    )
    for mode, brokers, compacted, few, more in KINDS
    for number in range(few + more)
]


# Worlds of their own kind: mode, seeds per test, tests of `make test`, of `make seeds`.
WORLDS = [  # some take minutes
    ("recovery", 2, 1, 4),
    ("mirror", 1, 0, 2),
    ("transactions", 3, 1, 4),
]
TESTS_OF_WORLDS = [
    pytest.param(
        *(mode, seeds, number),
        marks=[pytest.mark.seeds] if number >= few else [],
        id=f"{mode}-{number}",
    )
    for mode, seeds, few, more in WORLDS
    for number in range(few + more)
]


def check_world(seed: int, mode: str, *, count: int = 1) -> None:
    assert not simulator.main(["--seed", str(seed), "--mode", mode, "--count", str(count)])


def check(seed: int, mode: Mode, brokers: int, compacted: bool, *, light: bool = True) -> None:
    verdict = run(Scenario.draw(seed, mode=mode, brokers=brokers, light=light, compacted=compacted))
    assert verdict.is_good, (verdict.violations[:10], replay(verdict))


def replay(verdict: Verdict) -> str:
    scenario = verdict.scenario
    options = " --light" * scenario.light + " --compacted" * scenario.is_compacted
    return (
        f"python -m raftlog.testing.simulator --seed {scenario.seed} --mode {scenario.mode} "
        f"--brokers {scenario.brokers}{options} --trace"
    )


def check_consensus(seed: int) -> None:
    report = consensus.run(seed)
    replay = f"python -m {consensus.__name__} --seed {seed} --trace"
    assert not report.violations, f"{consensus.describe(report)}\n{replay}"
    assert report.acked > 0


@pytest.mark.parametrize(("mode", "brokers", "compacted", "number"), TESTS)
def test_a_cluster_keeps_its_promises(
    seed: int, mode: Mode, brokers: int, compacted: bool, number: int
) -> None:
    first = seed + number * SEEDS_PER_TEST
    for each in range(first, first + SEEDS_PER_TEST):
        check(each, mode, brokers, compacted)


@pytest.mark.parametrize(("mode", "seeds", "number"), TESTS_OF_WORLDS)
def test_a_world_of_its_own_kind_keeps_its_promises(
    seed: int, mode: str, seeds: int, number: int
) -> None:
    check_world(seed + number * seeds, mode, count=seeds)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.seeds) for n in range(1, 20))]
)
def test_consensus_keeps_its_promises(seed: int, number: int) -> None:
    first = seed + number * CONSENSUS_SEEDS_PER_TEST
    for each in range(first, first + CONSENSUS_SEEDS_PER_TEST):
        check_consensus(each)


# -- by night --------------------------------------------------------------------------------------


Record = Callable[[str, object], None]


def for_a_while(seed: int, record: Record, check: Callable[[int], int]) -> None:
    """Check seeds from ``seed`` on until ``NIGHTLY_S`` have passed. Their number is printed.

    ``check`` returns how many it has checked.
    """
    until, first = time.monotonic() + NIGHTLY_S, seed
    while time.monotonic() < until:
        seed += check(seed)
    record("seeds", seed - first)


def in_a_process(*options: str) -> Callable[[int], int]:
    """Check some seeds in a process of their own: a world leaves some of its memory behind."""

    def check(seed: int) -> int:
        command = [sys.executable, "-m", "raftlog.testing.simulator", *options]
        command += ["--seed", str(seed), "--count", str(SEEDS_PER_PROCESS)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-OUTPUT_MAX:] + done.stderr[-OUTPUT_MAX:]
        return SEEDS_PER_PROCESS

    return check


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("mode", "brokers", "compacted"), [kind[:3] for kind in KINDS])
def test_clusters_for_a_while(
    seed: int, record_property: Record, mode: Mode, brokers: int, compacted: bool
) -> None:
    options = ["--mode", mode, "--brokers", str(brokers), *["--compacted"] * compacted]
    for_a_while(seed, record_property, in_a_process(*options))


@pytest.mark.nightly
@pytest.mark.timeout(0)
def test_consensus_for_a_while(seed: int, record_property: Record) -> None:
    def check(each: int) -> int:
        check_consensus(each)
        return 1

    for_a_while(seed, record_property, check)


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", [world[0] for world in WORLDS])
def test_worlds_for_a_while(seed: int, record_property: Record, mode: str) -> None:
    for_a_while(seed, record_property, in_a_process("--mode", mode))
