"""Voters of the cluster group: one broker at a time, live ones, and a majority that is there."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest

from raftlog.replication.cluster_commands import BrokerRecord
from raftlog.replication.cluster_state import next_voters, voters_wanted

Voters = dict[int, str]


def disk(broker: int) -> str:
    return f"disk-{broker}"


def of(*brokers: int) -> Voters:
    return {broker: disk(broker) for broker in brokers}


def step(
    voters: Voters,
    brokers: Iterable[int],
    *,
    draining: Iterable[int] = (),
    down: Iterable[int] = (),
    fenced: Iterable[int] = (),
    removed: Iterable[int] = (),
    configured: Iterable[int] = (),
    elsewhere: Voters | None = None,
) -> Voters | None:
    """``elsewhere``: brokers that are connected with another data directory."""
    records = {
        broker: BrokerRecord(
            broker, "h", 1, "", disk(broker), 1, 1, broker in {*fenced}, broker in {*draining}
        )
        for broker in brokers
    }
    there = {**of(*records), **(elsewhere or {})}
    return next_voters(
        voters,
        brokers=records,
        removed={*removed},
        configured={*configured},
        linked=lambda broker: None if broker in {*down} else there.get(broker),
    )


def test_few_brokers_vote_in_a_large_cluster() -> None:
    assert [voters_wanted(count) for count in range(1, 8)] == [1, 1, 3, 3, 5, 5, 5]


@pytest.mark.parametrize(
    ("voters", "brokers", "after"),
    [
        (of(1), (1, 2), None),  # two voters would tolerate no failure either
        (of(1), (1, 2, 3), of(1, 2)),
        (of(1, 2), (1, 2, 3), of(1, 2, 3)),
        (of(1, 2, 3), (1, 2, 3, 4), None),
        (of(1, 2, 3), (1, 2, 3, 4, 5), of(1, 2, 3, 4)),
        (of(1, 2, 3, 4), (1, 2, 3, 4, 5), of(1, 2, 3, 4, 5)),
        (of(1, 2, 3, 4, 5, 6, 7), range(1, 10), None),  # as configured
    ],
)
def test_brokers_that_joined_become_voters(
    voters: Voters, brokers: Iterable[int], after: Voters | None
) -> None:
    assert step(voters, brokers) == after


@pytest.mark.parametrize("why", ["down", "fenced", "draining"])
def test_a_broker_that_is_not_there_to_stay_gets_no_vote(why: str) -> None:
    assert step(of(1, 2), (1, 2, 3, 4), **{why: [3]}) == of(1, 2, 4)  # type: ignore[arg-type]
    assert step(of(1, 2), (1, 2, 3), **{why: [3]}) is None  # type: ignore[arg-type]


def test_a_broker_that_is_connected_from_another_disk_gets_no_vote_before_it_registers() -> None:
    assert step(of(1, 2), (1, 2, 3), elsewhere={3: "new"}) is None


def test_a_voter_that_leaves_is_replaced_in_one_step() -> None:
    assert step(of(1, 2, 3), (1, 2, 3, 4), draining=[1]) == of(2, 3, 4)
    assert step(of(1), (1, 2), draining=[1]) == of(2)


def test_a_voter_leaves_alone_where_no_other_broker_can_take_its_place() -> None:
    assert step(of(1, 2, 3), (1, 2, 3), draining=[3]) == of(1, 2)
    assert step(of(1, 2, 3), (1, 2, 3, 4), draining=[3], down=[4]) == of(1, 2)
    assert step(of(1, 2, 3, 4, 5), (1, 2, 3, 4, 5), draining=[5]) == of(1, 2, 3, 4)


def test_of_two_that_leave_the_lost_one_is_first() -> None:
    assert step(of(1, 2, 3), (1, 2, 3, 4, 5), draining=[1, 3], down=[3]) == of(1, 2, 4)


def test_the_last_voter_does_not_leave_without_another() -> None:
    assert step(of(1), (1, 2), draining=[1], down=[2]) is None


def test_a_majority_of_the_next_voters_is_there() -> None:
    assert step(of(1, 2, 3), (1, 2, 3), draining=[2], down=[3]) is None
    assert step(of(1, 2, 3), (1, 2, 3, 4), draining=[2], down=[3]) == of(1, 3, 4)
    assert step(of(1, 2), (1, 2, 3), down=[2]) == of(1, 2, 3)


def test_a_voter_that_was_removed_leaves() -> None:
    """The seal that made it one overtook its removal."""
    assert step(of(1, 2, 3, 4), (1, 2, 3), removed=[4]) == of(1, 2, 3)


def test_voters_on_new_disks_vote_with_them_and_configured_ones_get_their_vote() -> None:
    assert step(of(1, 2, 3), (1, 2, 3), elsewhere={3: "new"}) == {**of(1, 2), 3: "new"}
    assert step(of(1, 2), (1, 2), configured=[1, 2, 3], elsewhere=of(3)) == of(1, 2, 3)
    assert step(of(1, 2), (1, 2), configured=[1, 2, 3]) is None, "it is not there"


def test_the_configuration_gives_no_vote_to_a_broker_that_was_removed() -> None:
    facts = {"configured": [1, 2, 3], "elsewhere": of(3)}
    assert step(of(1, 2), (1, 2), removed=[3], **facts) is None  # type: ignore[arg-type]
    assert step(of(1, 2), (1, 2, 3), draining=[3], **facts) is None  # type: ignore[arg-type]


def test_any_cluster_comes_to_its_voters_one_by_one() -> None:
    random = Random(7)
    for _ in range(300):
        brokers = range(1, random.randint(1, 8) + 1)
        draining = {b for b in brokers if random.random() < 0.3}
        draining.discard(random.choice(list(brokers)))
        voters = of(*random.sample(brokers, random.randint(1, len(brokers))))
        for _step in range(20):
            after = step(voters, brokers, draining=draining)
            if after is None:
                break
            assert len(voters.keys() - after.keys()) <= 1
            assert len(after.keys() - voters.keys()) <= 1
            voters = after
        assert draining.isdisjoint(voters)
        assert len(voters) >= voters_wanted(len(brokers) - len(draining))
