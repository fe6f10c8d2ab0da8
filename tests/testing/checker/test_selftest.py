"""The checker finds every anomaly that is put into a good run, and none in the good run itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec
import pytest
import zstandard

from raftlog.testing.checker import judge, log, run
from raftlog.testing.checker.judge import GOLDEN, VALID, Result, is_expected
from tests.golden import make_histories
from tests.testing.checker.history_editor import HistoryEditor
from tests.testing.checker.mutations import MUTATIONS, Mutation
from tests.testing.checker.synthetic import history


def missed(seed: int, mutations: Sequence[Mutation] = MUTATIONS) -> list[str]:
    """The mutations of a seed's history that are not found; ``valid`` if that itself is not."""
    good = list(history(seed))
    found = [] if is_expected(VALID, judge.judge(good)) else [VALID]
    for mutation in mutations:
        editor = HistoryEditor(good, Random(seed))
        mutation.apply(editor)
        if not is_expected(mutation.kind, judge.judge(editor.entries)):
            found.append(mutation.name)
    return found


@pytest.mark.parametrize("seed", range(1, 21))
def test_every_anomaly_is_found(seed: int) -> None:
    assert missed(seed) == []


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_every_anomaly_is_found_in_many_more_histories() -> None:
    assert {seed: found for seed in range(100, 600) if (found := missed(seed))} == {}


# -- the stored histories


def test_the_stored_histories_are_those_of_the_generators() -> None:
    assert msgspec.json.encode(judge.load()) == msgspec.json.encode(make_histories.make())


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / GOLDEN.name
    path.write_bytes(GOLDEN.read_bytes()[:-100])
    with pytest.raises(zstandard.ZstdError):
        judge.load(path)


def nothing(*_: object, **__: object) -> tuple[str, ...]:
    return ()


def failed() -> list[Result]:
    return [result for result in judge.run() if not result.passed]


@pytest.mark.parametrize(
    ("check", "kinds"),
    [
        ("check_appends", {"LOST-tail", "MOVED", "REALTIME-ORDER", "NONMONOTONIC-SEND"}),
        ("check_observed", {"OBSERVED-THEN-LOST"}),
        ("check_polls", {"POLL-SKIP", "INT-POLL-SKIP", "NONMONOTONIC-POLL", "STALE-READ"}),
    ],
)
def test_a_judge_that_does_not_look_is_caught(
    check: str, kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert failed() == []
    monkeypatch.setattr(log, check, nothing)
    found = {result.expected for result in failed()}
    assert found >= kinds
    assert VALID not in found


def test_a_judge_without_doubts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "troubles", nothing)
    unknown = [case for case in judge.load().cases if case.expected == judge.UNKNOWN]
    assert len([result for result in failed() if result.expected == judge.UNKNOWN]) == len(unknown)


def test_a_judge_that_is_never_content_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., tuple[str, ...]] = run.troubles  # type: ignore[assignment]

    def doubt(*args: object) -> tuple[str, ...]:
        return (*real(*args), "who knows")

    monkeypatch.setattr(judge.run_checks, "troubles", doubt)
    assert judge.run()[0] == Result(VALID, VALID, passed=False)
