"""Who may take part: stale copies, ids in use, newer connections."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from raftlog.consensus.journal import PeerSeen
from raftlog.consensus.transport import Heard
from raftlog.errors import (
    BrokerIdInUseError,
    BrokerRemovedError,
    StaleBrokerError,
    UnsupportedVersionError,
)
from raftlog.protocol.peer import PeerIdentity
from raftlog.server.peers.links import PeerRegistry

TIMEOUT_S = 3.0


def peer(
    directory: str = "disk", boot: int = 1, broker_id: int = 2, port: int = 2, journal: int = 0
) -> PeerIdentity:
    return PeerIdentity(
        broker_id=broker_id,
        directory_id=directory,
        boot=boot,
        host="broker",
        port=port,
        protocol_version=1,
        journal_sequence=journal,
    )


@dataclass
class Incoming:
    last_active_seconds: float = 0.0
    is_closed: bool = False
    certificate: None = None
    peer_identity: PeerIdentity | None = None
    aborted: list[str] = field(default_factory=list)

    def abort(self, reason: str) -> None:
        self.is_closed = True
        self.aborted.append(reason)


class Scene:
    def __init__(self) -> None:
        self.now = 0.0
        self.version_min = 1
        self.seen: dict[int, PeerSeen] = {}
        self.heard: dict[int, Heard] = {}
        self.came: list[PeerIdentity] = []
        self.registry = PeerRegistry(
            seen=self.seen.get,
            heard=self.heard.get,
            time=lambda: self.now,
            session_timeout_s=TIMEOUT_S,
            version_min=lambda: self.version_min,
            check_state=self.check_state,
        )
        self.registry.on_incoming = self.came.append
        self.removed: set[str] = set()

    def check_state(self, peer: PeerIdentity) -> None:
        if peer.directory_id in self.removed:
            raise BrokerRemovedError("it was removed")


def test_a_stranger_may_come_in() -> None:
    scene = Scene()
    scene.registry.check(peer())
    assert scene.registry.latest(2) is None
    assert not scene.registry.is_live(2)
    scene.registry.admit_incoming(peer(), Incoming())
    assert scene.registry.latest(2) == peer()
    assert scene.registry.is_live(2)
    assert scene.came == [peer()]


@pytest.mark.parametrize(
    ("seen", "now", "is_stale"),
    [
        (PeerSeen("disk", 5), peer(boot=4), True),
        (PeerSeen("disk", 5), peer(boot=5), False),
        (PeerSeen("disk", 5), peer(boot=6), False),
        (PeerSeen("another", 5), peer(boot=1), False),
        # Stored before this broker started: the copy lacks blocks that the peer has reported.
        (PeerSeen("disk", 5, sequence=9), replace(peer(boot=6), journal_sequence=8), True),
        (PeerSeen("disk", 5, sequence=9), replace(peer(boot=6), journal_sequence=9), False),
        (PeerSeen("another", 5, sequence=9), replace(peer(boot=6), journal_sequence=8), False),
    ],
)
@pytest.mark.parametrize("way", ["incoming", "outgoing"])
def test_an_older_boot_of_a_directory_is_stale(
    seen: PeerSeen, now: PeerIdentity, is_stale: bool, way: str
) -> None:
    scene = Scene()
    scene.seen[2] = seen

    def admit() -> None:
        if way == "incoming":
            scene.registry.admit_incoming(now, Incoming())
        else:
            scene.registry.admit_outgoing(now)

    if is_stale:
        with pytest.raises(StaleBrokerError):
            admit()
        assert not scene.registry.is_live(2)
        assert scene.came == []
    else:
        admit()
        assert scene.registry.is_live(2)


@pytest.mark.parametrize("way", ["incoming", "outgoing"])
def test_a_journal_that_has_lost_its_end_is_refused_for_good(way: str) -> None:
    scene = Scene()
    scene.heard[2] = Heard("disk", boot=3, sequence=20)

    def admit(now: PeerIdentity) -> None:
        if way == "incoming":
            scene.registry.admit_incoming(now, Incoming())
        else:
            scene.registry.admit_outgoing(now)

    with pytest.raises(StaleBrokerError, match="has lost acknowledged blocks") as first:
        admit(peer(boot=4, journal=19))
    assert not scene.registry.is_live(2)
    with pytest.raises(StaleBrokerError) as later:  # boots alone have added as many blocks again
        admit(peer(boot=9, journal=25))
    assert str(later.value) == str(first.value)
    admit(peer("new disk", boot=1, journal=1))
    assert scene.registry.is_live(2)


def test_a_journal_that_holds_all_it_told_of_is_no_matter() -> None:
    scene = Scene()
    scene.heard[2] = Heard("disk", boot=3, sequence=20)
    scene.registry.admit_incoming(peer(boot=3, journal=8), Incoming())  # told of it since
    scene.registry.admit_incoming(peer(boot=4, journal=20), Incoming())
    assert scene.came == [peer(boot=3, journal=8), peer(boot=4, journal=20)]


def test_a_boot_seen_in_this_run_counts_before_it_is_durable() -> None:
    scene = Scene()
    scene.registry.admit_outgoing(peer(boot=7))
    scene.registry.outgoing_down(2)
    with pytest.raises(StaleBrokerError):
        scene.registry.admit_incoming(peer(boot=6), Incoming())


def test_another_directory_is_refused_while_a_link_to_the_first_is_up() -> None:
    scene = Scene()
    scene.registry.admit_outgoing(peer("first"))
    with pytest.raises(BrokerIdInUseError, match="first"):
        scene.registry.admit_incoming(peer("second"), Incoming())
    scene.registry.outgoing_down(2)
    scene.registry.admit_incoming(peer("second"), Incoming())


def test_a_copy_that_runs_beside_its_original_is_refused() -> None:
    scene = Scene()
    scene.registry.admit_outgoing(peer(boot=4, port=2))
    with pytest.raises(BrokerIdInUseError, match="twice"):
        scene.registry.admit_incoming(peer(boot=4, port=3), Incoming())
    scene.registry.admit_incoming(peer(boot=4, port=2), Incoming())
    scene.registry.admit_incoming(peer(boot=5, port=3), Incoming())  # it has moved


@pytest.mark.parametrize("end", ["closed", "silent"])
def test_another_directory_is_refused_while_the_first_is_heard_of(end: str) -> None:
    scene = Scene()
    first = Incoming()
    scene.registry.admit_incoming(peer("first"), first)
    scene.now = TIMEOUT_S - 0.1
    with pytest.raises(BrokerIdInUseError):
        scene.registry.admit_outgoing(peer("second"))
    if end == "closed":
        first.is_closed = True
    else:
        scene.now = TIMEOUT_S
    assert not scene.registry.is_live(2)
    scene.registry.admit_outgoing(peer("second"))
    assert scene.registry.latest(2) == peer("second")


def test_other_ids_are_none_of_its_business() -> None:
    scene = Scene()
    scene.registry.admit_outgoing(peer("first"))
    scene.registry.admit_outgoing(peer("second", broker_id=3))
    scene.registry.outgoing_down(9)


def test_a_newer_connection_supersedes_the_older_one() -> None:
    scene = Scene()
    older, newer = Incoming(), Incoming()
    older.peer_identity = peer()
    scene.registry.admit_incoming(peer(), older)
    scene.registry.admit_incoming(peer(boot=2), newer)
    assert older.peer_identity is None
    assert len(older.aborted) == 1
    assert not newer.is_closed
    assert scene.registry.latest(2) == peer(boot=2)


def test_a_refused_connection_supersedes_nothing() -> None:
    scene = Scene()
    older, newer = Incoming(), Incoming()
    scene.registry.admit_incoming(peer(boot=2), older)
    with pytest.raises(StaleBrokerError):
        scene.registry.admit_incoming(peer(boot=1), newer)
    assert not older.is_closed
    assert scene.registry.latest(2) == peer(boot=2)


def test_a_peer_that_would_misread_the_clusters_state_is_refused_and_disconnected() -> None:
    scene = Scene()
    older, newer = Incoming(), Incoming()
    scene.registry.admit_incoming(peer(), older)
    scene.registry.admit_incoming(replace(peer("other", broker_id=3), protocol_version=2), newer)
    scene.version_min = 2
    scene.registry.end_refused()
    assert (older.is_closed, newer.is_closed) == (True, False)
    with pytest.raises(UnsupportedVersionError, match="Upgrade broker 2"):
        scene.registry.admit_incoming(peer(), Incoming())
    with pytest.raises(UnsupportedVersionError):
        scene.registry.admit_outgoing(peer())
    scene.registry.admit_outgoing(replace(peer(boot=2), protocol_version=2))


def test_a_broker_that_the_state_excludes_is_disconnected_and_refused() -> None:
    """It may have missed its removal, and learns of it when it connects again."""
    scene = Scene()
    removed, other = Incoming(), Incoming()
    scene.registry.admit_incoming(peer(), removed)
    scene.registry.admit_incoming(peer("other", broker_id=3), other)
    scene.removed.add("disk")
    scene.registry.end_refused()
    assert (removed.is_closed, other.is_closed) == (True, False)
    for admit in (scene.registry.admit_outgoing, scene.registry.check):
        with pytest.raises(BrokerRemovedError):
            admit(peer(boot=2))
