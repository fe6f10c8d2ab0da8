"""Where a client lives: the real world, unless it is told otherwise."""

from __future__ import annotations

from raftlog.client.host import Host
from raftlog.clock import SystemClock


def test_the_default_is_the_real_world() -> None:
    host = Host()
    assert host.connector is None
    assert host.loop_thread is None
    assert isinstance(host.clock, SystemClock)
    assert 0 <= host.chance() < 1
    assert Host().chance != host.chance, "clients draw from generators of their own"
