"""A led partition's classic groups: joins and syncs that wait, and what ends the waiting.

The groups are the product's own, the log is real; the loop's time is virtual.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.consumer_groups import (
    BUILT_IN,
    GroupSettings,
    GroupShard,
    Join,
    JoinResult,
    Sync,
    SyncResult,
    TopicInfo,
)
from raftlog.consumer_groups.values import Topics
from raftlog.errors import (
    CoordinatorLoadingError,
    DiskFullError,
    NotCoordinatorError,
    RaftlogError,
    RebalanceInProgressError,
    UnknownMemberError,
)
from tests.running import runs
from tests.server.cluster.fake import Scene, play
from tests.server.consumer_groups.fake_groups import Shown

ALL = (1, 2, 3)
DELAY_MS = 1_000


class Classic(Shown):
    """Members join under their names. ``told``: (name, generation, assignment, or error)."""

    def __init__(self, s: Scene, **fields: Any) -> None:
        super().__init__(s, **fields)
        self.topics = Topics({"t": TopicInfo("id-t", 4)}, 1)

    def _new_groups(self) -> GroupShard:
        settings = GroupSettings(initial_rebalance_delay_ms=DELAY_MS)
        return GroupShard(settings, BUILT_IN)

    async def ready(self) -> Classic:
        await self.s.come_to_rest()
        assert not self.shard.is_loading
        return self

    def join(self, name: str, *, again: bool = False, owner: str = "connection") -> None:
        def done(result: JoinResult) -> None:
            self.noted.append((name, result.generation))

        join = Join(
            group="g",
            member_id=name if again else "",
            new_member_id=name,
            protocol_type="consumer",
            protocols=(("range", b""),),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=5_000,
        )
        self.shard.join(join, done, self.failed(name), owner=owner)

    def sync(self, name: str, generation: int, **given: bytes) -> None:
        def done(result: SyncResult) -> None:
            self.noted.append((name, result.assignment))

        sync = Sync(
            group="g", member_id=name, generation=generation, assignments=tuple(given.items())
        )
        self.shard.sync(sync, done, self.failed(name), owner="connection")

    def pulse(self, name: str, generation: int) -> None:
        self.shard.classic_heartbeat(
            lambda groups, now, _now_ms: groups.classic_heartbeat(
                "g", name, None, generation, now=now
            ),
            lambda _: self.noted.append((name, "alive")),
            self.failed(name),
        )

    def failed(self, name: str) -> Any:
        def failed(error: RaftlogError) -> None:
            self.noted.append((name, type(error)))

        return failed


async def formed(s: Scene, **fields: Any) -> Classic:
    """Members a, which leads, and b wait for their assignments in generation 1."""
    shown = await Classic(s, **fields).ready()
    shown.join("a")
    shown.join("b")
    shown.commit()
    await asyncio.sleep(2 * DELAY_MS / 1_000 + 0.1)
    shown.commit()
    assert sorted(shown.noted) == [("a", 1), ("b", 1)]
    shown.noted.clear()
    return shown


@runs(play)
async def test_a_generation_is_told_when_it_is_committed(s: Scene) -> None:
    shown = await Classic(s, isr=ALL).ready()
    shown.join("a")
    await asyncio.sleep(DELAY_MS / 1_000 + 0.1)
    assert shown.noted == []
    shown.commit()
    assert shown.noted == [("a", 1)]


@runs(play)
async def test_assignments_are_told_when_they_are_committed(s: Scene) -> None:
    shown = await formed(s, isr=ALL)
    shown.sync("b", 1)
    shown.sync("a", 1, a=b"0", b=b"1")
    await s.come_to_rest()
    assert shown.noted == []
    shown.commit()
    assert sorted(shown.noted) == [("a", b"0"), ("b", b"1")]


@runs(play)
async def test_who_waits_when_leadership_ends_is_sent_elsewhere(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    shown.host.follow(2, 6)
    shown.shard.close(NotCoordinatorError("it moved"))
    assert shown.noted == [("b", NotCoordinatorError)]


@runs(play)
async def test_who_waits_when_the_log_is_full_is_told_to_try_again(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    s.disk.capacity_bytes = 0
    with pytest.raises(DiskFullError):
        shown.sync("a", 1, a=b"0", b=b"1")
    assert shown.noted == [("b", CoordinatorLoadingError)]


@runs(play)
async def test_a_newer_request_of_a_member_ends_the_older_wait(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    shown.sync("b", 1)
    await s.come_to_rest()
    assert shown.noted == [("b", RebalanceInProgressError)]
    shown.sync("a", 1, b=b"1")
    await s.come_to_rest()
    assert ("b", b"1") in shown.noted


@runs(play)
async def test_a_closed_connection_ends_the_wait_and_not_the_member(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("a", 1, a=b"0", b=b"1")
    await s.come_to_rest()
    shown.noted.clear()
    shown.join("b", again=True, owner="gone")  # it has what it needs: the same generation
    shown.join("a", again=True, owner="gone")  # the leader's begins a rebalance
    shown.noted.clear()
    shown.shard.forget("gone")
    shown.join("b", again=True)
    await s.come_to_rest()
    assert shown.noted == [("b", 2)], "a has joined, though no response can be sent to it"


@runs(play)
async def test_a_session_ends_by_the_clock(s: Scene) -> None:
    shown = await formed(s)
    shown.sync("b", 1)
    shown.sync("a", 1, a=b"0", b=b"1")
    await asyncio.sleep(6)
    shown.pulse("a", 1)
    await asyncio.sleep(6)
    shown.noted.clear()
    shown.pulse("b", 1)
    shown.pulse("a", 1)
    await s.come_to_rest()
    assert shown.noted == [("b", UnknownMemberError), ("a", RebalanceInProgressError)]


@runs(play)
async def test_a_heartbeat_is_answered_by_a_leader_only(s: Scene) -> None:
    shown = await formed(s)
    shown.answers_questions = False
    shown.pulse("a", 1)
    await s.come_to_rest()
    assert shown.noted == []
    shown.questions.pop()(None)
    assert shown.noted == [("a", "alive")]
