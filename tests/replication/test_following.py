"""Where a follower's log parts from the leader's: KIP-101, KIP-279 and KIP-595 by example."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftlog.replication.leadership import (
    Diverged,
    OutOfRange,
    copied_without,
    divergence,
    lacks_committed,
    last_epoch,
    may_lose_committed,
    must_restart,
    truncation_point,
)
from raftlog.storage.segment import EpochCache, EpochStart


def cache(*starts: tuple[int, int]) -> EpochCache:
    return EpochCache(EpochStart(epoch, start) for epoch, start in starts)


LEADER = cache((1, 0), (3, 10), (6, 20))  # and its log ends at 30, in epoch 6


def asked(
    epoch: int, offset: int, epochs: EpochCache = LEADER, *, log_start: int = 0
) -> Diverged | OutOfRange | None:
    return divergence(
        epochs, log_end=30, log_start=log_start, last_epoch=epoch, fetch_offset=offset
    )


@pytest.mark.parametrize(
    ("epoch", "offset"), [(-1, 0), (1, 5), (1, 10), (3, 11), (3, 20), (6, 21), (6, 30)]
)
def test_a_prefix_does_not_diverge(epoch: int, offset: int) -> None:
    assert asked(epoch, offset) is None


@pytest.mark.parametrize(
    ("epoch", "offset", "answer"),
    [
        (1, 11, Diverged(1, 10)),  # wrote on in an epoch that had ended
        (3, 25, Diverged(3, 20)),
        (6, 31, Diverged(6, 30)),  # more than the leader has
        (2, 12, Diverged(1, 10)),  # an epoch that the leader never saw (KIP-279)
        (5, 15, Diverged(3, 20)),  # the same, and the follower is the shorter one
        (9, 30, Diverged(6, 30)),
    ],
)
def test_another_log_diverges_at_the_end_of_the_largest_common_epoch(
    epoch: int, offset: int, answer: Diverged
) -> None:
    assert asked(epoch, offset) == answer


@pytest.mark.parametrize(("epoch", "offset"), [(1, 9), (-1, 9), (-1, 0), (9, 9)])
def test_a_log_that_ends_below_the_leaders_start_begins_anew(epoch: int, offset: int) -> None:
    epochs = cache((3, 10), (6, 20))
    assert asked(epoch, offset, epochs, log_start=10) == OutOfRange(10)


def test_an_empty_log_may_begin_anywhere_in_the_leaders() -> None:
    assert asked(-1, 10, cache((3, 10), (6, 20)), log_start=10) is None
    assert asked(-1, 25) is None
    assert asked(-1, 30) is None
    assert asked(-1, 31) == OutOfRange(0)


def test_a_log_with_nothing_in_common_begins_anew() -> None:
    assert asked(2, 15, cache((3, 10), (6, 20)), log_start=10) == OutOfRange(10)


def test_what_is_common_may_lie_below_the_leaders_start() -> None:
    """Its epochs may be trimmed late: where they end below its start, there is nothing to keep."""
    assert asked(1, 15, LEADER, log_start=12) == OutOfRange(12)


def test_an_epoch_without_records_is_common_too() -> None:
    epochs = cache((1, 0), (4, 30))  # elected, and nothing written yet
    assert asked(1, 30, epochs) is None
    assert asked(4, 30, epochs) is None
    assert asked(3, 20, epochs) == Diverged(1, 30)


# -- the follower's side ---------------------------------------------------------------------------

FOLLOWER = cache((1, 0), (2, 8), (5, 18))  # and its log ends at 25


def point(diverged: Diverged, epochs: EpochCache = FOLLOWER, *, log_start: int = 0) -> int:
    return truncation_point(epochs, log_end=25, log_start=log_start, diverged=diverged)


@pytest.mark.parametrize(
    ("diverged", "offset"),
    [
        (Diverged(5, 22), 22),  # both know the epoch, the leader's ends first
        (Diverged(1, 10), 8),  # the follower's ends first
        (Diverged(1, 5), 5),
        (Diverged(4, 20), 18),  # the follower's largest one below is 2
        (Diverged(3, 12), 12),
    ],
)
def test_the_follower_cuts_to_the_common_part_of_both(diverged: Diverged, offset: int) -> None:
    assert point(diverged) == offset


def test_a_follower_that_knows_only_larger_epochs_keeps_nothing() -> None:
    epochs = cache((5, 10), (6, 20))
    assert point(Diverged(3, 15), epochs, log_start=10) == 10
    assert point(Diverged(3, 4), epochs, log_start=10) == 4


def test_what_a_follower_asks_with_is_the_epoch_of_its_last_batch() -> None:
    epochs = cache((1, 0), (3, 10), (6, 20), (7, 20))
    assert last_epoch(cache(), log_end=0) == -1
    assert last_epoch(cache((1, 0)), log_end=0) == -1  # an epoch, and nothing written
    assert last_epoch(epochs, log_end=10) == 1
    assert last_epoch(epochs, log_end=20) == 3  # not 6 or 7, which start right there
    assert last_epoch(epochs, log_end=21) == 7


# -- both, until they agree ------------------------------------------------------------------------

Log = list[int]  # the epoch of each record: one epoch has one leader, and so one record there


def epochs_of(log: Log) -> EpochCache:
    found = EpochCache()
    for offset, epoch in enumerate(log):
        found.assign(epoch, offset)
    return found


@st.composite
def diverged_logs(draw: st.DrawFn) -> tuple[Log, Log]:
    """Two logs with a common beginning, then epochs of their own, or the end of one."""
    common = sorted(draw(st.lists(st.integers(1, 4), max_size=6)))
    first = (common[-1] if common else 0) + 1
    owner = draw(st.lists(st.booleans(), min_size=8, max_size=8))

    def tail(mine: bool) -> Log:
        own = [first + number for number, is_mine in enumerate(owner) if is_mine is mine]
        return sorted(draw(st.lists(st.sampled_from(own), max_size=6))) if own else []

    return common + tail(True), common + tail(False)


@given(logs=diverged_logs())
def test_rounds_of_truncation_end_at_the_common_prefix(logs: tuple[Log, Log]) -> None:
    leader, follower = logs[0], list(logs[1])
    common = 0
    while common < min(map(len, logs)) and leader[common] == follower[common]:
        common += 1
    epochs = epochs_of(leader)
    epochs.assign(20, len(leader))
    rounds = 0
    while True:
        own = epochs_of(follower)
        found = divergence(
            epochs,
            log_end=len(leader),
            log_start=0,
            last_epoch=last_epoch(own, log_end=len(follower)),
            fetch_offset=len(follower),
        )
        if found is None:
            break
        if isinstance(found, OutOfRange):
            follower.clear()
            continue
        cut = truncation_point(own, log_end=len(follower), log_start=0, diverged=found)
        assert common <= cut < len(follower)
        del follower[cut:]
        rounds += 1
    assert follower == leader[: len(follower)]
    assert len(follower) == common or len(follower) == len(logs[1])
    assert rounds <= len(set(logs[1])) + 1


# -- what is committed -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last_epoch", "unclean_epoch", "may"),
    [(5, -1, False), (-1, -1, False), (5, 6, True), (5, 5, False), (6, 5, False), (-1, 0, True)],
)
def test_committed_records_may_be_lost_only_to_a_later_unclean_election(
    last_epoch: int, unclean_epoch: int, may: bool
) -> None:
    assert may_lose_committed(last_epoch=last_epoch, unclean_epoch=unclean_epoch) is may


@pytest.mark.parametrize(
    ("differs", "lacks"),
    [
        (Diverged(3, 6), True),
        (Diverged(3, 7), False),
        (OutOfRange(6), True),
        (OutOfRange(7), False),
    ],
)
def test_a_leader_lacks_what_its_follower_knows_is_committed(
    differs: Diverged | OutOfRange, lacks: bool
) -> None:
    assert lacks_committed(differs, high_watermark=7) is lacks


# -- compacted logs --------------------------------------------------------------------------------


# -- tombstones ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("log_end", "copied_below", "removed_below", "restarts"),
    [
        (10, 0, 0, False),  # the leader has removed none
        (10, 0, 10, False),  # none that the follower has not received
        (10, 0, 11, True),
        (10, 10, 11, True),
        (10, 11, 11, False),  # its copy began when the leader had removed them
        (10, 20, 21, True),  # and has removed more since
        (0, 0, 1, True),  # also an empty log notes it first
    ],
)
def test_a_follower_restarts_that_ends_below_tombstones_which_its_leader_removed(
    log_end: int, copied_below: int, removed_below: int, restarts: bool
) -> None:
    found = must_restart(log_end=log_end, copied_below=copied_below, removed_below=removed_below)
    assert found is restarts


def test_a_copy_may_lack_what_its_leader_lacks_or_may_remove_next() -> None:
    assert copied_without(removed_below=5, clean_end=9) == 9
    assert copied_without(removed_below=7, clean_end=3) == 7


class Replica:
    """A log as a model: which offsets of one history are left of it."""

    def __init__(self) -> None:
        self.left: set[int] = set()
        self.end = self.clean_end = self.removed_below = 0
        self.copied_below, self.copied_in = 0, -1

    def compact(self, history: list[tuple[int, bool]], end: int, due: int) -> None:
        """A pass up to ``end`` that removes tombstones below ``due``, which is clean."""
        due = min(due, self.clean_end)
        end = max(min(end, self.end), self.clean_end)
        self.removed_below = max(self.removed_below, due)
        newest = {history[at][0]: at for at in sorted(self.left) if at < end}
        for at in sorted(self.left):
            key, is_tombstone = history[at]
            if at < end and (newest[key] > at or (is_tombstone and at < due)):
                self.left.discard(at)
        self.clean_end = end

    def fetch(self, leader: Replica, epoch: int, count: int) -> None:
        if must_restart(
            log_end=self.end,
            copied_below=self.copied_below if self.copied_in == epoch else 0,
            removed_below=leader.removed_below,
        ):
            lacks = copied_without(removed_below=leader.removed_below, clean_end=leader.clean_end)
            self.left.clear()
            self.end = self.clean_end = 0
            self.removed_below = self.copied_below = lacks
            self.copied_in = epoch
            return
        end = max(self.end, min(self.end + count, leader.end))
        self.left |= {at for at in leader.left if self.end <= at < end}
        self.end = end

    def truncate(self, end: int) -> None:
        self.left = {at for at in self.left if at < end}
        self.end, self.clean_end = end, min(self.clean_end, end)
        self.removed_below = min(self.removed_below, end)
        self.copied_in = -1

    def check(self, history: list[tuple[int, bool]]) -> None:
        """The newest record of each key is there, if the log ends above it; or that is a tombstone,
        and none of the key is."""
        newest = {key: at for at, (key, _) in enumerate(history)}
        found = {history[at][0]: at for at in sorted(self.left)}
        for key, at in newest.items():
            if at < self.end and found.get(key) != at:
                assert history[at][1], f"the newest record of key {key} is lost"
                assert key not in found, f"key {key} came back"


OTHERS = st.integers(0, 2)
STEP = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("fetch"), OTHERS, st.sampled_from((1, 3, 100))),
    st.tuples(st.just("compact"), st.integers(-3, 2), st.sampled_from((0, 100))),
    st.tuples(st.sampled_from(("lead", "wipe", "truncate")), OTHERS, st.integers(1, 3)),
)


# The second leader has never compacted: what the first one had removed is copied from it.
CHANGES_OF_LEADER: list[tuple[str, int, Any]] = [
    ("lead", 2, 1),
    ("write", 0, False),
    ("compact", 2, 0),
    ("fetch", 1, 1),
    ("write", 0, True),
    ("compact", 2, 100),
    ("fetch", 1, 1),
    ("fetch", 0, 3),
    ("lead", 1, 1),
    ("fetch", 0, 1),
    ("lead", 2, 1),
    ("compact", 2, 100),
    ("fetch", 0, 1),
]


@given(st.lists(STEP, min_size=20, max_size=60))
@example(CHANGES_OF_LEADER)
@settings(max_examples=4 * settings().max_examples)
def test_no_deleted_key_comes_back_however_replicas_compact_and_copy(
    steps: list[tuple[str, int, Any]],
) -> None:
    """Without any clock: a tombstone is due as soon as its part is clean."""
    history: list[tuple[int, bool]] = []
    replicas = [Replica() for _ in range(3)]
    leader, epoch = replicas[0], 0
    for step, which, number in steps:
        replica = leader if which < 0 else replicas[which]
        if step == "write":
            history.append((which, number))
            leader.left.add(len(history) - 1)
            leader.end = len(history)
        elif step == "compact":
            replica.compact(history, 100, number)
        elif step == "lead" and replica.end == len(history):
            leader, epoch = replica, epoch + 1
        elif replica is leader:
            continue
        elif step == "fetch":
            replica.fetch(leader, epoch, number)
        elif step == "wipe":
            replicas[which] = Replica()
        elif step == "truncate":
            replica.truncate(max(replica.end - number, 0))
        for each in replicas:
            each.check(history)
