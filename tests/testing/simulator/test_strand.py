"""A call goes on when it is let, never beside the loop, and an abandoned one does nothing more."""

from __future__ import annotations

from raftlog.testing.disk import Stopped
from raftlog.testing.simulator.loop import Strand


def holding(events: list[str], name: str) -> Strand:
    def work() -> None:
        events.append(f"{name} begins")
        try:
            strand.hold_up()
            events.append(f"{name} goes on")
        finally:
            events.append(f"{name} ends")

    strand = Strand(work)
    return strand


def test_calls_take_turns() -> None:
    events: list[str] = []
    a, b = holding(events, "a"), holding(events, "b")
    for strand in (a, b, b, a):
        assert Strand.current is None
        strand.resume()
    assert (a.is_done, b.is_done) == (True, True)
    assert events == [
        "a begins", "b begins", "b goes on", "b ends", "a goes on", "a ends",
    ]  # fmt: skip


def test_what_escapes_is_kept() -> None:
    def fails() -> None:
        raise OSError("broken")

    strand = Strand(fails)
    strand.resume()
    assert isinstance(strand.error, OSError)


def test_an_abandoned_call_only_cleans_up() -> None:
    events: list[str] = []
    strand = holding(events, "a")
    strand.resume()
    strand.abandon()
    assert strand.is_done
    assert isinstance(strand.error, Stopped)
    assert events == ["a begins", "a ends"]
    never = holding(events, "b")
    never.abandon()
    assert never.is_done
    assert events[2:] == []
