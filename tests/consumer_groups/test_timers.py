"""What is due comes out in the order of time; what is put off costs nothing."""

from __future__ import annotations

from raftlog.consumer_groups.shard import Timers


def test_what_is_due_comes_in_the_order_of_time() -> None:
    timers = Timers()
    assert timers.next_at is None
    assert timers.pop_due(9.0) is None
    for at, group, member in ((3.0, "b", "m"), (1.0, "g", ""), (3.0, "a", "m")):
        timers.add(at, group, member)
    assert timers.next_at == 1.0
    assert timers.pop_due(0.9) is None
    due = [timers.pop_due(3.0) for _ in range(4)]
    assert due == [(1.0, "g", ""), (3.0, "b", "m"), (3.0, "a", "m"), None]
