"""The judge's own test: good histories are valid, and each anomaly put into one is found.

A checker that has never found anything is untested. It goes with the checker, so that whoever
relies on a verdict can see what the judge would have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from raftlog.jepsen_like.checker.judge import judge
from raftlog.jepsen_like.checker.mutations import MUTATIONS, UNKNOWN, Mutation
from raftlog.jepsen_like.checker.synthetic import history
from raftlog.jepsen_like.checker.tape import Tape
from raftlog.jepsen_like.history import AnyEntry

SEEDS: Final = range(1, 21)
NONE: Final = "none"  # the mutation that changes nothing


@dataclass(frozen=True, slots=True)
class Result:
    """One mutation, put into a history of each seed. ``kind``: what had to be found, or what the
    verdict had to be. ``missed``: the seeds of which it was not."""

    mutation: str
    kind: str
    seeds: int
    missed: tuple[int, ...] = ()

    @property
    def found(self) -> int:
        """In how many histories it was found."""
        return self.seeds - len(self.missed)

    @property
    def passed(self) -> bool:
        return not self.missed

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"found": self.found, "passed": self.passed}


def run(
    seeds: Iterable[int] = SEEDS, mutations: Sequence[Mutation] = MUTATIONS
) -> tuple[Result, ...]:
    """Try every mutation with every seed; first of all, none. All should have ``passed``."""
    seeds = list(seeds)
    missed: dict[tuple[str, str], list[int]] = {(NONE, "valid"): []}
    missed |= {(mutation.name, mutation.kind): [] for mutation in mutations}
    for seed in seeds:
        good = list(history(seed))
        if judge(good).valid != "valid":
            missed[NONE, "valid"].append(seed)
        for mutation in mutations:
            if not finds(mutation, good, seed):
                missed[mutation.name, mutation.kind].append(seed)
    return tuple(
        Result(name, kind, len(seeds), tuple(some)) for (name, kind), some in missed.items()
    )


def finds(mutation: Mutation, good: Sequence[AnyEntry], seed: int) -> bool:
    """Whether the judge sees what the mutation does to a good history."""
    tape = Tape(good, Random(seed))
    mutation.apply(tape)
    verdict = judge(tape.entries)
    if mutation.kind == UNKNOWN:
        return verdict.valid == "unknown"
    return verdict.valid == "invalid" and mutation.kind in verdict.kinds
