"""What a report counts: seconds, faults, and kinds of fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raftlog.testing.history import Admin, Note, Phase, Poll
from raftlog_jepsen.cluster import ClusterUnderTest
from raftlog_jepsen.nemesis import driver
from raftlog_jepsen.report import digest as module
from raftlog_jepsen.report import kinds
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.kinds import kinds_here
from tests.jepsen_like.report.histories import append, at, fault, phases, sorted_by_time, start

# -- counting --------------------------------------------------------------------------------------

# Counting what happened in which second, and what became of each fault.


def test_appends_are_counted_when_they_end() -> None:
    found = digest(
        sorted_by_time(
            [start()],
            append(0.5, 0.2, 0, 10),
            append(0.9, 0.3, 10, 5, process="p2"),
            append(1.5, 5.0, 20, 7, "info", process="p3", offsets=[(20, 3, 15)], error="timeout"),
            append(1.6, 0.1, 30, 9, "fail", process="p4", error="fenced"),
        )
    )
    assert found.base_ns == at(0)
    assert found.length_s == 6.5
    assert {number: dict(second.appends) for number, second in found.seconds.items()} == {
        0: {"ok": 1},
        1: {"ok": 1, "fail": 1},
        6: {"info": 1},
    }
    assert [found.seconds[number].acked for number in (0, 1, 6)] == [10, 5, 3]
    assert found.total.acked == 18
    assert found.operations["append"] == {"ok": 2, "info": 1, "fail": 1}
    assert found.errors == {("append", "info", "timeout"): 1, ("append", "fail", "fenced"): 1}
    assert not found.unfinished


def test_appends_in_flight_at_once_have_their_own_latencies() -> None:
    first, second = append(0.0, 0.4, 0, 1), append(0.1, 0.1, 1, 1)
    total = digest(sorted_by_time([start()], first, second)).total
    assert sum(total.ok.values()) == 2
    assert total.longest_ns == 400_000_000
    assert module.quantile_s(total.ok, 0.5) == pytest.approx(0.1, rel=0.1)
    assert module.quantile_s(total.ok, 1.0) == pytest.approx(0.4, rel=0.1)


def test_a_failure_has_no_latency_and_an_unknown_outcome_has_its_own() -> None:
    total = digest([*append(0, 0.1, 0, 1, "fail"), *append(1, 2.0, 1, 1, "info")]).total
    assert total.ok == {}
    assert list(total.unknown) == [module.bucket(2_000_000_000)]


@pytest.mark.parametrize("duration_ns", [0, 1_000, 5_432, 10**6, 123_456_789, 3_600 * 10**9])
def test_a_bucket_tells_its_durations_within_5_per_cent(duration_ns: int) -> None:
    middle = module.middle_s(module.bucket(duration_ns))
    assert middle == pytest.approx(max(duration_ns, 1_000) / 1e9, rel=0.05)


def test_no_latency_has_no_quantile() -> None:
    with pytest.raises(ValueError, match="no latency"):
        module.quantile_s({}, 0.5)


def test_what_never_ended_is_told() -> None:
    found = digest([append(0, 1, 0, 1)[0], Poll(time=at(2), process="c", type="invoke")])
    assert found.unfinished == {"append": 1, "poll": 1}
    assert found.operations == {}


def test_records_read_and_new_leaders_come_from_polls() -> None:
    def poll(at_s: float, *runs: tuple[int, int, int, int]) -> Poll:
        return Poll(time=at(at_s), process="c", type="ok", records={"t:0": list(runs)})

    found = digest([start(), poll(1, (0, 10, 0, 3)), poll(2, (0, 10, 0, 3), (10, 5, 10, 4))])
    assert found.total.read == 25
    assert found.new_leaders == [(2.0, "t:0", 4)]


def test_a_fault_lasts_from_its_beginning_to_its_end() -> None:
    entries = sorted_by_time(
        [start()],
        fault(1, "kill", 2, 5, targets=(1, 3), effect={"killed": 2}, effect_end={"took_s": 1.5}),
        fault(2, "power", 3, None, targets=(2,), budget="beyond"),
        [Phase(time=at(9), process="runner", type="info", name="end")],
    )
    kill, power = digest(entries).faults
    assert (kill.kind, kill.targets, kill.begin_s, kill.end_s) == ("kill", [1, 3], 2.0, 5.0)
    assert (kill.effect, kill.effect_end, kill.why) == ({"killed": 2}, {"took_s": 1.5}, "")
    assert (power.end_s, power.beyond, power.injected) == (9.0, True, True)


def test_what_was_not_injected_says_why_and_what_cannot_be_undone_too() -> None:
    refused = fault(1, "wipe", 2, None, effect={"why": "too few are left"}, injected=False)
    begun = fault(2, "slow-link", 3, 6, effect={"qdisc": 1})
    begun[-1].injected = False
    begun[-1].effect = {"why": "no tc"}
    wipe, slow = digest(sorted_by_time([start()], refused, begun)).faults
    assert (wipe.injected, wipe.why) == (False, "too few are left")
    assert (slow.injected, slow.trouble_end, slow.effect) == (True, "no tc", {"qdisc": 1})


def test_phases_follow_each_other_to_the_end() -> None:
    found = digest(sorted_by_time([start()], phases(10), append(20, 15, 0, 1)))
    assert [(p.name, p.begin_s, p.end_s) for p in found.phases][:2] == [
        ("setup", 0.0, 4.0),
        ("load", 4.0, 14.0),
    ]
    assert found.phases[-1].end_s == 35.0


def test_many_notes_are_left_out_but_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTES_MAX", 2)
    notes = [
        Note(time=at(n), process="runner", type="info", text=str(n), is_trouble=n == 4)
        for n in range(5)
    ]
    found = digest(notes)
    assert [note.text for _, note in found.notes] == ["0", "1", "4"]
    assert found.notes_left_out == 2
    assert [note.text for _, note in found.troubles] == ["4"]


def test_different_errors_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ERRORS_MAX", 1)
    admin = [
        Admin(time=at(n), process="a", type="fail", what="create", error=f"error {n % 2}")
        for n in range(4)
    ]
    assert digest(admin).errors == {("admin", "fail", "error 0"): 2}


def test_a_clock_that_goes_back_does_no_harm() -> None:
    found = digest([*append(5, 1, 0, 1), *append(3, 1, 1, 1)])
    assert found.length_s == 1.0
    assert found.operations["append"]["ok"] == 2


def test_an_empty_history_is_an_empty_digest() -> None:
    found = digest([])
    assert (found.start, found.length_s, found.entries, found.total.acked) == (None, 0.0, 0, 0)


# -- kinds of fault --------------------------------------------------------------------------------

# Every kind of fault with its sentence, and which can be injected here.


@pytest.mark.integration
def test_every_kind_has_a_sentence() -> None:
    found = kinds_here(without_root=True)
    assert [kind.name for kind in found] == list(driver.KINDS)
    assert all(kind.description[-1] == "." for kind in found)


@pytest.mark.integration
def test_without_root_what_needs_it_is_refused_and_the_rest_is_not() -> None:
    why = {kind.name: kind.why_not for kind in kinds_here(without_root=True)}
    assert not any(why[name] for name in ("kill", "storm", "pause", "wipe", "transfer"))
    assert all("root" in why[name] for name in ("power", "disk-full", "clock-bases"))


@pytest.mark.integration
def test_what_the_machine_lacks_is_found_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ClusterUnderTest.__init__

    def lacking(self: Any, shape: Any, needs: Any, directory: Path) -> None:
        (directory / "disk-1").mkdir()  # as that of a loop device, which a failure leaves behind
        if needs.fake_time:
            raise OSError("no libfaketime")
        made(self, shape, needs, directory)

    without = driver.needs_of(driver.KINDS) - {"fake_time", "failpoints"}
    monkeypatch.setattr(kinds, "NEED_ROOT", without)
    monkeypatch.setattr(ClusterUnderTest, "__init__", lacking)
    why = {kind.name: kind.why_not for kind in kinds_here(without_root=True)}
    assert "faketime" in why["clock-jump"]
    assert (why["kill"], why["crash-at"]) == ("", "")
