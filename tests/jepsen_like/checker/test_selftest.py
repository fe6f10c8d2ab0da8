"""The checker finds every anomaly that is put into a good run, and none in the good run itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raftlog.jepsen_like.checker import appends, honesty, judge, observed, polls, selftest
from raftlog.jepsen_like.checker.mutations import MUTATIONS
from raftlog.jepsen_like.checker.selftest import NONE, SEEDS, Result


@pytest.mark.parametrize("seed", SEEDS)
def test_every_anomaly_is_found(seed: int) -> None:
    results = selftest.run([seed])
    assert len(results) == len(MUTATIONS) + 1
    assert [result for result in results if not result.passed] == []


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_every_anomaly_is_found_in_many_more_histories() -> None:
    assert [result for result in selftest.run(range(100, 600)) if not result.passed] == []


def nothing(*_: object, **__: object) -> tuple[str, ...]:
    return ()


@pytest.mark.parametrize(
    ("module", "kinds"),
    [
        (appends, {"LOST-tail", "MOVED", "REALTIME-ORDER", "NONMONOTONIC-SEND"}),
        (observed, {"OBSERVED-THEN-LOST"}),
        (polls, {"POLL-SKIP", "INT-POLL-SKIP", "NONMONOTONIC-POLL", "STALE-READ"}),
    ],
)
def test_a_judge_that_does_not_look_is_caught(
    module: object, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "check", nothing)
    results = selftest.run([1])
    assert {result.kind for result in results if not result.passed} >= kinds
    assert results[0].passed


def test_a_judge_without_doubts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(honesty, "troubles", nothing)
    results = selftest.run([1], [m for m in MUTATIONS if m.kind == "unknown"])
    assert not any(result.passed for result in results if result.kind == "unknown")


def test_a_judge_that_is_never_content_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., tuple[str, ...]] = honesty.troubles  # type: ignore[assignment]

    def doubt(*args: object) -> tuple[str, ...]:
        return (*real(*args), "who knows")

    monkeypatch.setattr(judge.honesty, "troubles", doubt)
    first, *_ = selftest.run([1, 2], MUTATIONS[:1])
    assert (first.mutation, first.missed, first.passed) == (NONE, (1, 2), False)


def test_a_result() -> None:
    result = Result("lose the tail", "LOST-tail", 20, (3, 7))
    assert result.found == 18
    assert result.to_dict() == {
        "mutation": "lose the tail",
        "kind": "LOST-tail",
        "seeds": 20,
        "missed": (3, 7),
        "found": 18,
        "passed": False,
    }
