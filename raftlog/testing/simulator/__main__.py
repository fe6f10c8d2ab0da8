"""``python -m raftlog.testing.simulator``: run seeds, and print the result of each.

The exit status is 1 if a seed failed. The output then contains the command that reproduces it.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from raftlog.testing.history import write
from raftlog.testing.simulator import mirroring, recovering, transacting
from raftlog.testing.simulator.scenario import MODES, Scenario, Verdict, entries, run
from raftlog.testing.simulator.world import Result

VIOLATIONS_SHOWN_MAX: Final = 20
WORLDS: Final = (
    "recovery",
    "mirror",
    "transactions",
)  # with other clients than those of ``scenario``


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds. Returns the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL + 1)  # log lines of brokers have no virtual time
    bad = 0
    for seed in range(options.seed, options.seed + options.count):
        is_good = (_run_world if options.mode in WORLDS else _run_scenario)(seed, options)
        bad += not is_good
    if options.count > 1:
        say(f"{options.count - bad} of {options.count} seeds passed")
    return 1 if bad else 0


def _run_scenario(seed: int, options: argparse.Namespace) -> bool:
    scenario = Scenario.draw(
        seed,
        mode=options.mode,
        brokers=options.brokers,
        light=options.light,
        compacted=options.compacted,
    )
    if options.trace:
        say(f"{scenario}")
    verdict = run(scenario, on_trace=say if options.trace else None)
    say(summary(verdict))
    if options.history and verdict.workload is not None and verdict.ending is not None:
        write(options.history, entries(verdict.workload.history, verdict.ending))
    return verdict.is_good


def _run_world(seed: int, options: argparse.Namespace) -> bool:
    on_trace = say if options.trace else None
    result: Result
    if options.mode == "recovery":
        result = recovering.run(recovering.RecoveryPlan.draw(seed), on_trace=on_trace)
    elif options.mode == "transactions":
        plan = transacting.TransactionPlan.draw(seed)
        result = transacting.run(plan, on_trace=on_trace)
    else:
        result = mirroring.run(mirroring.MirrorPlan.draw(seed), on_trace=on_trace)
    counts = ", ".join(f"{what} {count}" for what, count in result.counts.items())
    say(f"seed {seed}: {'BAD' if result.violations else 'good'} {result.digest}; {counts}")
    for violation in result.violations[:VIOLATIONS_SHOWN_MAX]:
        say(f"  {violation}")
    if result.violations:
        module = "python -m raftlog.testing.simulator"
        say(f"  reproduce with: {module} --seed {seed} --mode {options.mode} --trace")
    return not result.violations


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m raftlog.testing.simulator",
        description="Run simulated clusters: the real broker and clients on virtual time.",
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--count", type=int, default=1, help="number of seeds (default: 1)")
    parser.add_argument(
        "--mode",
        choices=(*MODES, *WORLDS),
        default="safety",
        help="recovery, mirror, transactions: worlds that draw their brokers (default: safety)",
    )
    parser.add_argument("--brokers", type=int, default=1, help="number of brokers (default: 1)")
    parser.add_argument("--light", action="store_true", help="short runs with a light workload")
    parser.add_argument("--compacted", action="store_true", help="use a compacted topic")
    parser.add_argument("--history", type=Path, help="file for the history of the last seed")
    parser.add_argument("--trace", action="store_true", help="print events with virtual times")
    return parser


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def summary(verdict: Verdict) -> str:
    """Return one line for a seed. For a failed seed, add the violations and the command that
    reproduces it.
    """
    scenario = verdict.scenario
    faults = ", ".join(f"{kind} {count}" for kind, count in verdict.faults.items()) or "no faults"
    operations = ", ".join(f"{what} {count}" for what, count in verdict.operations.items())
    how = f"{'good' if verdict.is_good else 'BAD'} {verdict.digest}"
    size = f"{verdict.events} events in {verdict.virtual_s:.1f} s"
    lines = [f"seed {scenario.seed}: {how} {size}; {faults}; {operations}"]
    if not verdict.is_good:
        shown = verdict.violations[:VIOLATIONS_SHOWN_MAX]
        lines += [f"  {violation}" for violation in shown]
        lines.append(f"  violations: {len(verdict.violations)}; reproduce with:")
        lines.append(f"  {replay(scenario)}")
    return "\n".join(lines)


def replay(scenario: Scenario) -> str:
    """Return the command that runs the scenario again, with a trace."""
    options = " --light" * scenario.light + " --compacted" * scenario.is_compacted
    return (
        f"python -m raftlog.testing.simulator --seed {scenario.seed} --mode {scenario.mode} "
        f"--brokers {scenario.brokers}{options} --trace"
    )


if __name__ == "__main__":
    raise SystemExit(main())
