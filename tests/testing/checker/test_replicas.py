"""What replicas' files hold is the final log, or may be cut off until it is."""

from __future__ import annotations

from typing import Any

from raftlog.testing.checker.judge import NO_DUMPS
from tests.testing.checker.small import Small, good

LOG = [(0, 3, 1, 1), (3, 2, 4, 1), (5, 1, 6, 2)]


def judged(*, second: dict[str, Any] | None = None, **first: Any) -> dict[str, int]:
    """What is found when these are the files of broker 1, and of broker 2."""
    small = good()
    small.finish(log=LOG, dumps={1: first, 2: second or {}})
    return small.found()


def test_good_copies() -> None:
    assert judged() == {}


def test_a_copy_differs() -> None:
    assert judged(records=[*LOG[:2], (5, 1, 4, 2)]) == {"REPLICA-DIVERGENCE": 1}


def test_a_copy_has_another_epoch() -> None:
    assert judged(records=[*LOG[:2], (5, 1, 6, 3)]) == {"EPOCH-ORDER": 1}


def test_epochs_go_down_in_a_copy() -> None:
    assert judged(records=[*LOG, (6, 1, 1, 1)], end=7, chain="") == {"EPOCH-ORDER": 1}


def test_a_copy_has_a_hole() -> None:
    assert judged(records=[LOG[0], LOG[2]]) == {"GAP": 1}


def test_a_copy_starts_late() -> None:
    assert judged(start=3, records=LOG[1:]) == {"GAP": 1}


def test_a_copy_may_start_where_records_were_deleted() -> None:
    small = good()
    small.delete(3)
    small.finish(log=LOG[1:], start=3, dumps={1: {"start": 0, "records": LOG}})
    assert small.found() == {}


def test_a_copy_is_behind() -> None:
    behind = {"records": LOG[:2], "end": 5}
    assert judged(**behind) == {"STUCK": 1}
    assert judged(**behind, should_be_whole=False) == {}


def test_files_are_damaged() -> None:
    problem = "a checksum is wrong"
    assert judged(problem=problem) == {"DAMAGED-REPLICA": 1}
    # What cannot be read because of it is not missing; what can be read has to be right.
    assert judged(problem=problem, records=LOG[:2], end=5) == {"DAMAGED-REPLICA": 1}
    assert judged(problem=problem, records=LOG[::2]) == {"DAMAGED-REPLICA": 1}
    wrong = [*LOG[:2], (5, 1, 4, 2)]
    assert judged(problem=problem, records=wrong) == {
        "DAMAGED-REPLICA": 1,
        "REPLICA-DIVERGENCE": 1,
    }


def test_chains_of_the_same_records_are_the_same() -> None:
    assert judged(chain="abd") == {"REPLICA-DIVERGENCE": 1}
    assert judged(chain="abd", end=5, records=LOG[:2], should_be_whole=False) == {}
    assert judged(chain="") == {}


def test_a_leader_of_old_may_have_more() -> None:
    tail = {"records": [*LOG, (6, 1, 1, 2)], "end": 7, "chain": "abd"}
    assert judged(**tail, should_be_whole=False) == {}
    assert judged(**tail) == {}


def test_a_leader_of_old_may_end_differently() -> None:
    """In another epoch; whoever is in the ISR has given it up."""
    ending = {"records": [*LOG[:2], (5, 1, 3, 1)], "chain": "abd"}
    assert judged(**ending, should_be_whole=False) == {}
    assert judged(**ending) == {"REPLICA-DIVERGENCE": 1}


def test_one_epoch_has_one_value_at_an_offset() -> None:
    records = [*LOG[:2], (5, 1, 3, 2)]
    assert judged(records=records, should_be_whole=False) == {"REPLICA-DIVERGENCE": 1}
    one, other = ({"records": [*LOG, (6, 1, n, 2)], "end": 7, "chain": ""} for n in (1, 2))
    assert judged(**one, second=other) == {"EPOCH-ORDER": 1}
    assert judged(**one, second=other | {"records": [*LOG, (6, 1, 2, 3)]}) == {}


def test_who_differs_once_never_agrees_again() -> None:
    records = [(0, 3, 1, 1), (3, 1, 2, 0), (4, 1, 5, 1), (5, 1, 6, 2)]
    found = judged(records=records, should_be_whole=False)
    assert found == {"REPLICA-DIVERGENCE": 1, "EPOCH-ORDER": 1}


def test_without_a_final_log_copies_are_judged_by_themselves() -> None:
    small = good()
    small.finish(dumps={1: {"records": [(0, 1, 1, 1), (2, 1, 99, 1)], "end": 3}})
    small.entries = [entry for entry in small.entries if entry.process not in {"r1", "r2"}]
    assert small.judge().kinds == {"GAP", "PHANTOM", "EPOCH-ORDER"}


def test_without_files_nothing_is_said_of_them() -> None:
    small = Small()
    small.append(1)
    small.finish()
    small.entries = [e for e in small.entries if type(e).__name__ != "Dump"]
    verdict = small.judge()
    assert verdict.valid == "valid"
    assert {k for k, why in verdict.not_applicable.items() if why == NO_DUMPS} == {
        "REPLICA-DIVERGENCE",
        "DAMAGED-REPLICA",
    }
