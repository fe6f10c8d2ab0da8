"""Brokers' planes, links and handlers over real sockets, disks and threads, in one process.

What Raft does under faults is tested in virtual time, with ``raftlog.consensus``. Here it is
whether the parts fit together.
"""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from raftlog.config import Address
from raftlog.consensus import Applied, ConsensusNode, ConsensusSettings, Journal, Outcome
from raftlog.disk import Disk, OsDisk
from raftlog.errors import ClusterNotReadyError, CommitUnknownError, StorageFailedError
from raftlog.protocol.peer import PeerIdentity
from raftlog.server import dispatch as dispatching
from raftlog.server.consensus_plane import ConsensusPlane
from raftlog.server.peers import SocketPeerConnector
from raftlog.server.scheduling import Workers
from tests.server.harness import FaultyDisk
from tests.server.peers.world import HANDLERS, FakeBroker

TIMEOUT_S = 30.0
GROUP = "cluster"
IDS = (1, 2, 3)
QUICK = ConsensusSettings(
    election_timeout_ms=1_500, suspect_timeout_ms=50, heartbeat_ms=200, tick_ms=20
)


class Words:
    """A state machine: what was said, in order."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def apply(self, command: bytes) -> int:
        self.said.append(command)
        return len(self.said)

    def snapshot(self) -> bytes:
        return b" ".join(self.said)

    def restore(self, snapshot: bytes) -> None:
        self.said = snapshot.split()


class CutConnector(SocketPeerConnector):
    """Sockets, except to whom the link is cut."""

    def __init__(self) -> None:
        super().__init__()
        self.cut: set[int] = set()  # ports

    async def connect(
        self, address: Address, protocol_factory: Callable[[], asyncio.BufferedProtocol]
    ) -> asyncio.Transport:
        if address.port in self.cut:
            raise ConnectionRefusedError(111, "the link is cut")
        return await super().connect(address, protocol_factory)


class Voter(FakeBroker):
    """A broker with consensus and nothing else."""

    def __init__(self, broker_id: int, directory: Path, disk: Disk | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.connector = CutConnector()
        self.journal = Journal.open(disk or OsDisk(), str(directory / f"{broker_id}.log"))
        self.failed: list[StorageFailedError] = []
        self.workers = Workers(loop, count=1, name=f"journal-{broker_id}")
        dice = random.Random(broker_id)
        self.plane = ConsensusPlane(
            ConsensusNode(
                broker_id,
                f"disk-{broker_id}",
                self.journal,
                settings=QUICK,
                chance=dice.random,
                send=self._send,
            ),
            loop,
            self.workers,
            on_failed=self.failed.append,
        )
        super().__init__(
            loop,
            self.connector,
            broker_id,
            boot=self.journal.boot,
            receive=self.plane.receive,
        )
        self.words = Words()
        self.server: asyncio.Server
        self.address: Address

    async def listen(self) -> None:
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(self.make, "127.0.0.1", 0)
        self.address = Address(*self.server.sockets[0].getsockname()[:2])

    async def stop(self) -> None:
        await self.close()
        await self.plane.stop()
        self.server.close()
        self.workers.stop()
        self.journal.close()

    def _send(self, peer: int, envelope: bytes) -> None:
        self.links.send(peer, envelope)

    def _up(self, identity: PeerIdentity) -> None:
        super()._up(identity)
        self.plane.peer_up(identity.broker_id, identity.directory_id, identity.boot)

    def _down(self, broker_id: int, reason: str) -> None:
        super()._down(broker_id, reason)
        self.plane.peer_down(broker_id)


class Trio:
    """Three voters of one group."""

    def __init__(self, voters: dict[int, Voter]) -> None:
        self.voters = voters

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():  # noqa: ASYNC110 - what it looks at tells nobody
                await asyncio.sleep(0.005)

    async def leader(self) -> Voter:
        await self.until(lambda: any(v.plane.leads(GROUP) for v in self.voters.values()))
        return next(v for v in self.voters.values() if v.plane.leads(GROUP))

    async def say(self, voter: Voter, word: bytes) -> int:
        """Propose until it is agreed on; its place."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                try:
                    place = await voter.plane.propose(GROUP, word)
                except (ClusterNotReadyError, CommitUnknownError):
                    await asyncio.sleep(0.01)
                    continue
                assert isinstance(place, int)
                return place

    async def all_say(self, *words: bytes) -> None:
        """Every machine has these, in this order; one that was retried may be there twice."""

        def has_all(voter: Voter) -> bool:
            return list(dict.fromkeys(voter.words.said)) == list(words)

        await self.until(lambda: all(map(has_all, self.voters.values())))
        longest = max((v.words.said for v in self.voters.values()), key=len)
        await self.until(lambda: all(v.words.said == longest for v in self.voters.values()))

    def cut(self, one: Voter, other: Voter) -> None:
        """Both directions, at once."""
        one.connector.cut.add(other.address.port)
        other.connector.cut.add(one.address.port)
        for voter, peer in ((one, other), (other, one)):
            voter.links._links[peer.identity.broker_id].drop("the test cuts it")

    def heal(self) -> None:
        for voter in self.voters.values():
            voter.connector.cut.clear()


Play = Callable[[Callable[[Trio], Coroutine[Any, Any, None]]], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Play:
    """Run a test with three voters that have just begun to dial each other."""
    for number, handler in HANDLERS.items():
        monkeypatch.setitem(dispatching.HANDLERS, number, handler)

    async def whole(test: Callable[[Trio], Coroutine[Any, Any, None]]) -> None:
        voters = {broker_id: Voter(broker_id, tmp_path) for broker_id in IDS}
        for voter in voters.values():
            await voter.listen()
        addresses = {broker_id: voter.address for broker_id, voter in voters.items()}
        members = {broker_id: f"disk-{broker_id}" for broker_id in IDS}
        for voter in voters.values():
            voter.plane.open_group(GROUP, voter.words, voters=members, base=b"")
            voter.links.set_addresses(addresses)
        try:
            await test(Trio(voters))
            assert all(voter.failed == [] for voter in voters.values())
            assert all(v.context.counters.mistakes == 0 for v in voters.values())
        finally:
            for voter in voters.values():
                await voter.stop()

    return lambda test: asyncio.run(whole(test))


def test_three_brokers_elect_and_agree_over_sockets(play: Play) -> None:
    async def test(trio: Trio) -> None:
        leader = await trio.leader()
        follower = next(v for v in trio.voters.values() if v is not leader)
        assert await trio.say(leader, b"one") >= 1
        assert await trio.say(follower, b"two") >= 2  # forwarded to the leader
        await trio.all_say(b"one", b"two")

    play(test)


def test_they_go_on_while_a_link_is_cut_and_catch_up_when_it_is_healed(play: Play) -> None:
    async def test(trio: Trio) -> None:
        leader = await trio.leader()
        await trio.say(leader, b"one")
        await trio.all_say(b"one")
        lonely, other = (v for v in trio.voters.values() if v is not leader)
        trio.cut(leader, lonely)
        assert lonely.events[-1] == ("down", leader.identity.broker_id)
        await trio.say(other, b"two")
        await trio.until(lambda: b"two" in leader.words.said and b"two" in other.words.said)
        trio.heal()
        await trio.until(lambda: lonely.links.is_up(leader.identity.broker_id))
        await trio.say(lonely, b"three")
        await trio.all_say(b"one", b"two", b"three")

    play(test)


def test_a_majority_goes_on_without_the_leader(play: Play) -> None:
    async def test(trio: Trio) -> None:
        first = await trio.leader()
        await trio.say(first, b"one")
        await trio.all_say(b"one")
        rest = [v for v in trio.voters.values() if v is not first]
        for voter in rest:
            trio.cut(first, voter)
        await trio.until(lambda: any(v.plane.leads(GROUP) for v in rest))
        await trio.say(rest[0], b"two")
        await trio.until(lambda: all(b"two" in v.words.said for v in rest))
        assert b"two" not in first.words.said
        trio.heal()
        await trio.all_say(b"one", b"two")

    play(test)


def test_outcomes_by_callback_come_after_the_machine_has_the_command(play: Play) -> None:
    async def test(trio: Trio) -> None:
        leader = await trio.leader()
        seen: list[tuple[Outcome, list[bytes]]] = []

        def done(outcome: Outcome) -> None:
            seen.append((outcome, list(leader.words.said)))
            if not isinstance(outcome, Applied):
                leader.plane.propose_bytes(GROUP, b"one", done)

        leader.plane.propose_bytes(GROUP, b"one", done)
        assert seen == []
        await trio.until(lambda: seen and isinstance(seen[-1][0], Applied))
        outcome, said = seen[-1]
        assert isinstance(outcome, Applied)
        assert outcome.result == len(said)
        assert said[-1] == b"one"

    play(test)


# -- one broker and its disk ---------------------------------------------------------------------


def alone(tmp_path: Path, test: Callable[[Trio, FaultyDisk], Coroutine[Any, Any, None]]) -> None:
    """Run a test with the one voter of a group, on a disk that fails when it is told to."""

    async def whole() -> None:
        disk = FaultyDisk()
        voter = Voter(1, tmp_path, disk)
        await voter.listen()
        voter.plane.open_group(GROUP, voter.words, voters={1: "disk-1"}, base=b"")
        try:
            await test(Trio({1: voter}), disk)
        finally:
            await voter.stop()

    asyncio.run(whole())


def test_consensus_waits_for_room_on_a_full_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(trio: Trio, disk: FaultyDisk) -> None:
        leader = await trio.leader()
        await trio.say(leader, b"one")
        disk.faults.no_room = True
        waiting = asyncio.ensure_future(leader.plane.propose(GROUP, b"two"))
        await trio.until(lambda: "disk full: cannot write" in caplog.text)
        assert not waiting.done()
        disk.faults.no_room = False
        assert await waiting == 2
        assert leader.failed == []

    alone(tmp_path, test)


def test_a_failed_sync_of_the_journal_ends_consensus(tmp_path: Path) -> None:
    async def test(trio: Trio, disk: FaultyDisk) -> None:
        leader = await trio.leader()
        disk.faults.sync_error = errno.EIO
        with pytest.raises(CommitUnknownError):
            await leader.plane.propose(GROUP, b"one")
        assert len(leader.failed) == 1
        assert leader.words.said == []
        with pytest.raises(ClusterNotReadyError):
            await leader.plane.propose(GROUP, b"two")

    alone(tmp_path, test)
