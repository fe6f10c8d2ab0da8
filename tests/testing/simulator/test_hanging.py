"""Which operations a hang holds, and who goes on when it is over."""

from __future__ import annotations

from raftlog.testing.simulator.world import Hang


def test_it_holds_what_it_is_about() -> None:
    data = Hang(spares="*/journal*")
    assert data.holds("sync", "data/0.log")
    assert data.holds("sync_dir", "data")
    assert not data.holds("write", "data/0.log"), "the page cache takes it"
    assert not data.holds("sync", "data/journal")
    assert Hang("*/journal*").holds("sync", "data/journal")
    assert not Hang("*/journal*").holds("sync", "data/0.log")


def test_all_go_on_in_their_order_when_it_is_over() -> None:
    hang, told = Hang(), list[str]()
    hang.when_over(lambda: told.append("a"))
    hang.when_over(lambda: told.append("b"))
    hang.end()
    hang.end()
    assert told == ["a", "b"]
    assert not hang.holds("sync", "x")
