"""PySyncObj's surroundings: clock, journal, poller, nodes."""

from __future__ import annotations

import threading

from pysyncobj import FAIL_REASON, syncobj
from pysyncobj.journal import MemoryJournal

from raftlog.consensus import raft_group
from raftlog.consensus.raft_group import VOID, PeerNode, Timing
from raftlog.consensus.settings import ConsensusSettings


def test_the_library_sees_the_time_it_is_given_in_this_thread_only() -> None:
    raft_group.set_now(1234.5)
    assert raft_group.now() == syncobj.monotonicTime() == 1234.5
    elsewhere: list[float] = []
    thread = threading.Thread(target=lambda: elsewhere.append(syncobj.monotonicTime()))
    thread.start()
    thread.join()
    assert elsewhere != [1234.5]


def test_others_in_this_process_get_the_librarys_own_journal_and_poller() -> None:
    assert isinstance(syncobj.createJournal(None), MemoryJournal)
    assert hasattr(syncobj.createPoller("poll"), "subscribe")
    groups_own = syncobj.createPoller(Timing(ConsensusSettings()).library_settings.pollerType)
    assert not hasattr(groups_own, "subscribe")
    assert groups_own.poll(10.0) is None, "it does not wait"


def test_a_node_is_its_broker_id() -> None:
    assert {PeerNode(3)} == {PeerNode(3)}
    assert hash(PeerNode(3)) == hash(3)
    assert str(PeerNode(3)) == "3"


def test_an_entry_that_another_took_the_place_of_is_void() -> None:
    results: list[object] = []
    called = raft_group.subscriber(results.append)
    called("result", FAIL_REASON.SUCCESS)
    called(None, FAIL_REASON.DISCARDED)
    assert results == ["result", VOID]


def test_heartbeats_of_many_groups_coincide_and_never_stand_still() -> None:
    timing = Timing(ConsensusSettings())
    assert {round(timing.next_heartbeat(now), 6) for now in (10.01, 10.03, 10.049)} == {11.0}
    quick = Timing(ConsensusSettings(heartbeat_ms=50))
    now = 0.0
    for _ in range(1_000):
        due = quick.next_heartbeat(now)
        assert now < due <= now + 0.051
        now = due
