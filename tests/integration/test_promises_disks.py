"""Promise 2, on real processes: any n-1 of n replicas are lost with their disks, and writes go on.

Nobody gives a word: with 2n-1 brokers a majority is left that agrees on what to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.testing import Cluster, cluster, wait_until
from tests.integration.load import (
    PATIENCE_S,
    TOPIC,
    Load,
    bring_back,
    create,
    leader_of,
    lose,
    same_everywhere,
    until_in_sync,
)

pytestmark = pytest.mark.integration

LATER = [pytest.mark.nightly, pytest.mark.timeout(300)]


def replicas_of(running: Cluster) -> list[int]:
    """The replicas of the partition, its leader first."""
    leader = leader_of(running)
    info = running.views(TOPIC, 0)[leader].info
    return [leader, *(broker for broker in info.replicas if broker != leader)]


def lose_replicas(running: Cluster, load: Load, places: tuple[int, ...]) -> float:
    """Those at ``places`` of the partition's replicas; how long nothing was acknowledged then."""
    load.goes_on(count=100)
    replicas = replicas_of(running)
    lost_at = time.monotonic()
    lose(running, [replicas[place] for place in places])
    load.goes_on()
    silence = load.silence(lost_at)
    load.goes_on(count=100)
    return silence


@pytest.mark.parametrize(
    "places",
    [(0, 1), pytest.param((0, 2), marks=LATER), pytest.param((1, 2), marks=LATER)],
    ids=["leader-and-follower", "leader-and-other", "both-followers"],
)
def test_any_two_of_three_replicas_are_lost_and_writes_go_on(
    tmp_path: Path, places: tuple[int, ...], say: Callable[[str], None]
) -> None:
    with cluster(brokers=5, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3, min_insync_replicas="1")
        with Load(running.bootstrap) as load:
            silence = lose_replicas(running, load, places)
            bring_back(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"two of three replicas lost, without an acknowledgement: {silence:.2f} s")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "places",
    [(0, 1), pytest.param((0, 2), marks=LATER), pytest.param((1, 2), marks=LATER)],
    ids=["leader-and-follower", "leader-and-other", "both-followers"],
)
def test_a_replacement_catches_up_and_writes_go_on(
    tmp_path: Path, places: tuple[int, ...], say: Callable[[str], None]
) -> None:
    """With two copies asked for, and one left, another broker gets a copy by itself."""
    settings = {"replica.replacement.delay.ms": "1000"}
    with cluster(brokers=5, directory=tmp_path, settings=settings, with_relays=False) as running:
        create(running, copies=3, min_insync_replicas="2")
        with Load(running.bootstrap) as load:
            lost = {replicas_of(running)[place] for place in places}
            silence = lose_replicas(running, load, places)
            wait_until(
                lambda: len(copies := replicas_of(running)) == 3 and lost.isdisjoint(copies),
                timeout_s=PATIENCE_S,
                what="brokers that were witnesses store what the lost ones stored",
            )
            until_in_sync(running)
            load.goes_on(count=100)
            bring_back(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"two of three replicas lost, one replaced, without an acknowledgement: {silence:.2f} s")


@pytest.mark.parametrize(
    "place",
    [0, pytest.param(1, marks=pytest.mark.nightly), pytest.param(2, marks=pytest.mark.nightly)],
    ids=["leader", "follower", "witness"],
)
def test_any_one_of_three_brokers_is_lost_with_two_copies(
    tmp_path: Path, place: int, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=2)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            replicas = replicas_of(running)
            assert len(replicas) == 2
            witness = ({1, 2, 3} - set(replicas)).pop()
            lost_at = time.monotonic()
            lose(running, [[*replicas, witness][place]])
            load.goes_on()
            silence = load.silence(lost_at)
            bring_back(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"one of three brokers lost, two copies, without an acknowledgement: {silence:.2f} s")
