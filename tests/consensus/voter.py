"""One voter of a raft group, alone with a test: it hears messages, and what it says is kept."""

from __future__ import annotations

from typing import Any

from raftlog.consensus import transport
from raftlog.consensus.raft_group import LEADER, RaftGroup, Timing
from raftlog.consensus.settings import ConsensusSettings
from raftlog.consensus.transport import COMMAND, Link, PeerTransport
from tests.consensus.journals import disk_of, open_journal

US = 1


def command(text: str) -> bytes:
    return bytes([COMMAND]) + text.encode()


class Voter:
    """Broker 1 of brokers 1 to ``count``, all linked, at second 100. What it says is kept."""

    def __init__(self, count: int = 3, *, links: bool = True, terms: tuple[int, ...] = ()) -> None:
        self.now = 100.0
        self.links = {peer: Link() for peer in range(2, count + 1)}
        self.journal = open_journal(disk_of()).group("t/0")
        self.journal.begin_generation(0, dict.fromkeys(range(1, count + 1), ""), b"")
        if terms:
            self.journal.add(b"\x01", 1, 0)
            for index, term in enumerate(terms, start=2):
                self.journal.add(command(f"old {index}"), index, term)
            self.journal.setCurrentTerm(terms[-1], None)
        self.applied: list[bytes] = []
        self.start()
        for peer in self.links if links else ():
            self.link(peer)
        self.said()

    def start(self) -> None:
        self.group = RaftGroup(
            US,
            self.journal.voters,
            journal=self.journal,
            transport=PeerTransport(self.links, "t/0", 0),
            timing=Timing(ConsensusSettings()),
            chance=lambda: 0.0,
            apply=self.applied.append,
            now=self.now,
        )

    def link(self, peer: int) -> None:
        self.links[peer].up("", 1)
        self.group.peer_up(peer, self.now)

    def unlink(self, peer: int) -> None:
        self.links[peer].down()
        self.group.peer_down(peer, self.now)

    def said(self) -> dict[int, list[list[Any]]]:
        """To whom what was said since the last time: [term, type, field, ...]."""
        self.group.send_appends(self.now)
        heard = {}
        for peer, link in self.links.items():
            parts = link.collect(1, "", 0) if link.has_mail else []
            messages = [message for part in parts for message in transport.decode(part).messages]
            if messages:
                heard[peer] = [message[2:] for message in messages]
        return heard

    def hear(self, peer: int, term: int, kind: int, *fields: Any) -> bool:
        assert transport.is_message(["t/0", 0, term, kind, *fields])
        return self.group.receive(peer, term, kind, list(fields), self.now)

    def answer_to(self, peer: int, term: int, kind: int, *fields: Any) -> Any:
        """What it says to that and to nobody else."""
        self.said()
        assert self.hear(peer, term, kind, *fields)
        ((receiver, (message,)),) = self.said().items()
        assert receiver == peer
        return message

    def step(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.group.step(self.now)

    def become_leader(self) -> None:
        self.step(10)
        asked = self.said()
        for peer, messages in asked.items():
            term, kind, number, *_ = messages[-1]
            assert kind == transport.PRE_VOTE
            self.hear(peer, term, transport.PRE_VOTE_ANSWER, number, True)
        for peer in self.said():
            self.hear(peer, self.group.term, transport.VOTE_ANSWER, True)
        self.said()
        assert self.group.role == LEADER

    def follow(self, leader: int = 2, term: int = 1) -> None:
        """Hear a heartbeat of a leader whose log is ours."""
        last_term, last_index = self.group._log.end
        assert self.hear(leader, term, transport.APPEND, last_index, last_term, 1, [])
        self.said()
        assert self.group.leader == leader

    def acknowledge(self, *peers: int, index: int | None = None) -> None:
        last = self.group._log.last_index if index is None else index
        for peer in peers:
            assert self.hear(peer, self.group.term, transport.APPEND_ANSWER, True, 1, last)
