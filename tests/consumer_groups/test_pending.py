"""Offsets that transactions commit: pending until the marker, in a shard and over a failover."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from raftlog import limits
from raftlog.consumer_groups import NO_MEMBER_EPOCH, Commit, Committed
from raftlog.consumer_groups.shard import PendingGuard
from raftlog.consumer_groups.values import OffsetKey, PendingKey, decode_key
from raftlog.errors import (
    CoordinatorLoadingError,
    FencedMemberError,
    GroupNotEmptyError,
    InstanceFencedError,
    InvalidRequestError,
    ProducerFencedError,
    RaftlogError,
    RebalanceInProgressError,
    StaleMemberEpochError,
    StaleTransactionCoordinatorError,
    ThrottledError,
    TransactionAbortedError,
    UnknownMemberError,
    UnknownTopicError,
)
from raftlog.transactions import Marker
from raftlog.types import TopicPartition
from tests.consumer_groups.scene import GROUP, ClassicScene, compacted, groups_of, replayed, written

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER, OTHER = 77, 78


class TransactionScene(ClassicScene):
    """Producers 77 and 78, at epoch 0 unless the test says otherwise, without membership."""

    def guard(self, producer: int = PRODUCER, epoch: int = 0, by: int = 0) -> PendingGuard:
        return self.shard.guard(producer, epoch, coordinator_epoch=by)

    def pend(
        self,
        *partitions: int,
        offset: int = 9,
        producer: int = PRODUCER,
        epoch: int = 0,
        guard: PendingGuard | None = None,
        member: tuple[str, int] = ("", NO_MEMBER_EPOCH),
        instance: str | None = None,
        topic: str = "t",
        group: str = GROUP,
    ) -> list[RaftlogError | None]:
        results: list[RaftlogError | None] = self.take(
            self.shard.commit_pending(
                guard or self.guard(producer, epoch),
                group,
                *member,
                [Commit(topic, number, offset) for number in partitions],
                {},
                instance_id=instance,
                now=self.now,
                now_ms=self.now_ms,
            )
        )
        return results

    def end(
        self,
        *,
        commit: bool = True,
        producer: int = PRODUCER,
        epoch: int = 0,
        by: int = 1,
        bumped: bool = False,
        reserves: bool = False,
    ) -> int:
        """Returns the number of records that the marker writes."""
        marker = Marker(producer, epoch, commit, by, bumped, reserves)
        step = self.shard.end_transaction(marker, now=self.now)
        self.take(step)
        return len(step.records)

    def pending(self, group: str = GROUP) -> dict[tuple[int, int], int]:
        """(producer, partition) -> offset."""
        found = groups_of(self.shard)[group].pending
        return {
            (producer, where.partition): found.value(producer, where).offset.offset
            for producer, where in found
        }


@pytest.mark.parametrize(("commit", "after"), [(True, 9), (False, 7)])
def test_a_pending_offset_counts_when_its_transaction_is_committed(
    commit: bool, after: int
) -> None:
    scene = TransactionScene()
    scene.commit(None, ("t", 0), offset=7)
    assert scene.pend(0) == [None]
    assert scene.offset("t", 0) == 7
    scene.end(commit=commit)
    assert (scene.offset("t", 0), scene.pending()) == (after, {})
    assert scene.end(commit=not commit) == 0, "the marker is sent again"
    assert scene.offset("t", 0) == after


def test_a_marker_ends_the_transaction_in_all_groups_and_no_other_transaction() -> None:
    scene = TransactionScene()
    scene.pend(0, offset=1)
    scene.pend(0, offset=2, group="other")
    scene.pend(1, offset=3, producer=OTHER)
    scene.end()
    assert (scene.offset("t", 0), scene.offset("t", 0, "other")) == (1, 2)
    assert scene.pending() == {(OTHER, 1): 3}


def test_a_second_commit_of_the_transaction_replaces_the_first() -> None:
    scene = TransactionScene()
    scene.pend(0, 1, offset=9)
    scene.pend(0, offset=12)
    scene.end()
    assert (scene.offset("t", 0), scene.offset("t", 1)) == (12, 9)


def test_the_offset_that_was_written_last_counts() -> None:
    scene = TransactionScene()
    scene.pend(0, 1, offset=1)
    scene.pend(0, offset=2, producer=OTHER)
    scene.commit(None, ("t", 1), offset=3)
    scene.fail_over()
    scene.end(producer=OTHER)
    scene.end()
    assert (scene.offset("t", 0), scene.offset("t", 1)) == (2, 3)


def test_an_aborted_offset_leaves_the_pending_one_before_it() -> None:
    scene = TransactionScene()
    scene.pend(0, offset=1)
    scene.pend(0, offset=2, producer=OTHER)
    scene.end(commit=False, producer=OTHER)
    scene.end()
    assert scene.offset("t", 0) == 1


def test_an_older_epoch_is_fenced_by_offsets_and_by_markers() -> None:
    scene = TransactionScene()
    scene.pend(0, epoch=5)
    for epoch, marker in ((4, None), (5, 6)):
        if marker is not None:
            scene.end(commit=False, epoch=marker)
        with pytest.raises(ProducerFencedError, match="create a new producer"):
            scene.pend(0, epoch=epoch)
    assert scene.pend(0, epoch=6) == [None]


def test_what_an_older_transaction_has_left_is_not_committed_with_a_newer_one() -> None:
    scene = TransactionScene()
    scene.pend(0, epoch=5, group="other")
    scene.pend(1, epoch=6)
    scene.end(epoch=6)
    assert (scene.offset("t", 0, "other"), scene.offset("t", 1)) == (-1, 9)


def test_a_bumped_marker_that_comes_twice_does_not_end_the_next_transaction() -> None:
    scene = TransactionScene()
    scene.pend(0, epoch=5)
    scene.end(epoch=6, bumped=True)
    scene.pend(0, epoch=6, offset=12)
    assert scene.end(epoch=6, bumped=True) == 0
    assert (scene.offset("t", 0), scene.pending()) == (9, {(PRODUCER, 0): 12})
    scene.end(epoch=7, bumped=True)
    assert scene.offset("t", 0) == 12


def test_a_marker_of_a_former_coordinator_is_refused_after_a_failover_of_the_groups() -> None:
    """In version 1 of transactions, the next transaction has the same epoch: the late marker would
    commit half of it.
    """
    scene = TransactionScene()
    scene.pend(0, guard=scene.guard(by=3))
    scene.end(by=4)
    scene.pend(0, offset=12, guard=scene.guard(by=4))
    scene.fail_over()
    with pytest.raises(StaleTransactionCoordinatorError, match="leader epoch 3: one with 4"):
        scene.end(by=3)
    assert (scene.offset("t", 0), scene.pending()) == (9, {(PRODUCER, 0): 12})
    scene.end(by=4)
    assert scene.offset("t", 0) == 12


def test_a_commit_reserves_the_groups_for_the_next_transaction_only() -> None:
    """Its coordinator need not be asked: that they are in it was committed before the marker."""
    scene = TransactionScene()
    scene.pend(0)
    scene.end(epoch=1, bumped=True, reserves=True)
    assert [scene.guard(epoch=epoch).has_begun for epoch in (0, 1, 2)] == [False, True, False]
    scene.pend(0, epoch=1, offset=12)
    scene.end(epoch=2, bumped=True)
    scene.end(epoch=1, bumped=True, reserves=True)  # it arrives again
    assert not any(scene.guard(epoch=epoch).has_begun for epoch in (0, 1, 2))
    assert scene.offset("t", 0) == 12
    scene.end(epoch=3, bumped=True, reserves=True)
    scene.fail_over()
    assert not scene.guard(epoch=3).has_begun


def test_a_marker_of_a_former_coordinator_is_refused() -> None:
    scene = TransactionScene()
    scene.end(by=4)
    scene.pend(0)
    with pytest.raises(StaleTransactionCoordinatorError, match="leader epoch 3"):
        scene.end(by=3)
    scene.end(by=4)
    assert scene.offset("t", 0) == 9


def test_a_guard_ends_with_a_marker_of_the_producer() -> None:
    scene = TransactionScene()
    guard = scene.guard()
    scene.end(producer=OTHER)
    assert scene.pend(0, guard=guard) == [None]
    late = scene.guard()
    scene.end(commit=False)
    with pytest.raises(TransactionAbortedError, match="ended before its offsets"):
        scene.pend(0, guard=late)
    assert scene.pending() == {}


def test_a_guard_of_the_next_transaction_outlives_the_bumped_marker_of_the_last_one() -> None:
    """Which its coordinator waits for. Else the next transaction would be aborted for nothing."""
    scene = TransactionScene()
    guard = scene.guard(epoch=6)
    scene.end(epoch=6, bumped=True)
    assert scene.pend(0, epoch=6, guard=guard) == [None]


def test_a_guard_ends_with_the_state_that_has_given_it() -> None:
    scene = TransactionScene()
    guard = scene.guard()
    scene.fail_over()
    with pytest.raises(CoordinatorLoadingError):
        scene.pend(0, guard=guard)


def test_a_guard_does_not_outlive_what_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_MARKERS_KEPT_MAX", 1)
    scene = TransactionScene()
    guard = scene.guard()
    scene.end()
    scene.end(producer=OTHER)
    with pytest.raises(TransactionAbortedError):
        scene.pend(0, guard=guard)


def test_a_refused_marker_does_not_change_what_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an older marker is forgotten after a newer one, which then counts as not forgotten."""
    monkeypatch.setattr(limits, "TRANSACTION_MARKERS_KEPT_MAX", 2)
    scene = TransactionScene()
    scene.end(producer=OTHER, by=2)
    guard = scene.guard()
    scene.end()
    with pytest.raises(StaleTransactionCoordinatorError):
        scene.end(producer=OTHER, by=1)
    scene.end(producer=OTHER + 1)
    scene.end(producer=OTHER + 2)
    with pytest.raises(TransactionAbortedError):
        scene.pend(0, guard=guard)


def test_only_a_transaction_with_pending_offsets_is_known_to_extend_to_the_shard() -> None:
    scene = TransactionScene()
    assert not scene.guard().has_begun
    scene.pend(0)
    scene.fail_over()
    assert scene.guard().has_begun
    assert not scene.guard(epoch=1).has_begun
    scene.commit(None, ("t", 0))
    assert not scene.guard().has_begun


def test_a_stable_offset_is_one_that_no_open_transaction_changes() -> None:
    scene = TransactionScene()
    scene.commit(None, ("t", 0), ("t", 1), offset=7)
    scene.pend(0)
    fetch = scene.shard.fetch
    unstable, stable = fetch(GROUP, [T0, T1], require_stable=True)
    assert unstable == Committed("t", 0, is_stable=False)
    assert (stable.offset, stable.is_stable) == (7, True)
    assert [one.offset for one in fetch(GROUP, [T0, T1])] == [7, 7]
    scene.end()
    assert [one.offset for one in fetch(GROUP, require_stable=True)] == [9, 7]


# -- committers --------------------------------------------------------------------------------


def test_members_commit_at_their_generation_and_others_at_none() -> None:
    scene = TransactionScene()
    scene.formed("m0", "m1")
    generation = scene.group.generation
    assert scene.pend(0, member=("m0", generation)) == [None]
    assert scene.pend(1) == [None], "by a client of before KIP-447"
    with pytest.raises(GroupNotEmptyError):
        scene.commit(None, ("t", 1))
    with pytest.raises(FencedMemberError):
        scene.pend(0, member=("m0", generation - 1))
    with pytest.raises(UnknownMemberError):
        scene.pend(0, member=("gone", generation))
    with pytest.raises(UnknownMemberError):
        scene.pend(0, member=("", generation))


def test_a_replaced_instance_is_fenced() -> None:
    scene = TransactionScene()
    scene.enter("m0", instance="i")
    scene.sync("m0", instance="i")
    scene.enter("m1", instance="i")
    with pytest.raises(InstanceFencedError):
        scene.pend(0, member=("m0", scene.group.generation), instance="i")


def test_a_generation_commits_while_its_members_ask_for_their_assignment() -> None:
    scene = TransactionScene()
    scene.enter("m0")
    member = "m0", scene.group.generation
    with pytest.raises(RebalanceInProgressError):
        scene.commit("m0", ("t", 0), epoch=member[1])
    assert scene.pend(0, member=member) == [None]


def test_a_member_of_the_consumer_protocol_commits_at_its_epoch() -> None:
    scene = TransactionScene()
    scene.join("m0")
    scene.join("m1")
    scene.settle()
    epoch = scene.epoch_of("m0")
    assert scene.pend(0, member=("m0", epoch)) == [None]
    with pytest.raises(StaleMemberEpochError):
        scene.pend(3, member=("m0", epoch - 1))
    with pytest.raises(FencedMemberError):
        scene.pend(0, member=("m0", epoch + 1))


def test_each_offset_is_checked_and_only_valid_ones_create_the_group() -> None:
    scene = TransactionScene()
    assert isinstance(scene.pend(0, topic="u")[0], UnknownTopicError)
    assert scene.shard.list() == []
    assert scene.guard().has_begun is False
    assert scene.pend(0) == [None]
    assert scene.shard.list()[0].group == GROUP


def test_the_number_of_pending_offsets_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = TransactionScene(offsets_per_group_max=2)
    scene.commit(None, ("t", 0))
    scene.pend(1)
    assert isinstance(scene.pend(2)[0], ThrottledError)
    assert scene.pend(0, 1) == [None, None]
    monkeypatch.setattr(limits, "TRANSACTION_OFFSETS_MAX", 3)
    with pytest.raises(InvalidRequestError, match="has 2 pending offsets, and commits 2"):
        scene.pend(0, 1)


# -- deletion ----------------------------------------------------------------------------------


def test_a_group_with_pending_offsets_does_not_expire() -> None:
    scene = TransactionScene(offsets_retention_ms=100_000)
    scene.commit(None, ("t", 1))
    scene.pend(0)
    scene.after(1_000)
    scene.end()
    assert (scene.offset("t", 0), scene.offset("t", 1)) == (9, 7)
    scene.after(1_000)
    assert scene.shard.list() == []


def delete_group(scene: TransactionScene) -> None:
    scene.take(scene.shard.delete_group(GROUP))


def delete_offset(scene: TransactionScene) -> None:
    scene.take(scene.shard.delete_offsets(GROUP, [T0], now=scene.now))


def delete_topic(scene: TransactionScene) -> None:
    scene.set_topics({"u": 1})
    scene.set_topics({"t": 4})


@pytest.mark.parametrize("delete", [delete_group, delete_offset, delete_topic])
def test_a_pending_offset_is_deleted_with_its_group_its_partition_or_its_topic(
    delete: Any,
) -> None:
    scene = TransactionScene()
    scene.pend(0)
    delete(scene)
    assert all(not each["pending"] for each in written(scene.shard).values())
    scene.end()
    assert scene.offset("t", 0) == -1


def test_the_topics_of_a_pending_offset_must_be_known_to_the_next_coordinator() -> None:
    scene = TransactionScene()
    scene.commit(None, ("t", 0))
    scene.version = 9
    scene.set_topics({"t": 4, "u": 1})
    scene.pend(0, topic="u")
    shard = replayed(scene.log, scene.settings)
    shard.start({}, version=9, now=0.0, now_ms=0)
    assert not shard.is_started


# -- the log -----------------------------------------------------------------------------------


def test_each_record_has_its_tombstone() -> None:
    scene = TransactionScene()
    scene.pend(0, 1)
    scene.end(commit=False)
    last = {one.key: one.value for one in scene.log}
    kinds = {type(decode_key(key)): value for key, value in last.items()}
    assert kinds[PendingKey] is None
    assert OffsetKey not in kinds


def test_seeded_runs_give_the_same_offsets_after_compaction_and_failover(seed: int) -> None:
    """Compared with the rule itself: of what is committed, what was written last."""
    random = Random(seed)
    for _ in range(20):
        scene = TransactionScene()
        written_: dict[int, list[tuple[int, int]]] = {0: [], 1: []}  # (producer or 0, offset)
        offset = 0
        for _ in range(30):
            part, offset = random.randrange(2), offset + 1
            producer = random.choice((0, PRODUCER, OTHER))
            action = random.random()
            if action < 0.6 and producer:
                scene.pend(part, offset=offset, producer=producer)
                rows = written_[part]
                rows[:] = [row for row in rows if row[0] != producer]
                rows.append((producer, offset))
            elif action < 0.6:
                scene.commit(None, ("t", part), offset=offset)
                written_[part] = [(0, offset)]
            elif action < 0.9 and producer:
                is_commit = random.random() < 0.6
                scene.end(commit=is_commit, producer=producer)
                for rows in written_.values():
                    at = next((n for n, row in enumerate(rows) if row[0] == producer), None)
                    if at is not None and is_commit:
                        rows[: at + 1] = [(0, rows[at][1])]
                    elif at is not None:
                        del rows[at]
            elif GROUP in groups_of(scene.shard):
                scene.log = compacted(scene.log, random)
                scene.fail_over()
            for number, rows in written_.items():
                committed = next((value for who, value in rows if not who), -1)
                assert scene.offset("t", number) == committed
