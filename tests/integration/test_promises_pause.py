"""Promise 4, on real processes: a leader that slept, or was cut off, and wakes after its successor
was elected acknowledges nothing that is not kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raftlog import TopicPartition
from raftlog.errors import RaftlogError
from raftlog.testing import BrokerProcess, Cluster, cluster, wait_until
from raftlog.testing.cluster import members
from raftlog.types import Offset
from tests.integration.load import (
    PATIENCE_S,
    TOPIC,
    Load,
    create,
    leader_of,
    read_all,
    same_everywhere,
    until_in_sync,
)
from tests.server.harness import Client, batch_of

pytestmark = pytest.mark.integration

REQUESTS = 5


class Whispers:
    """Records sent to one broker, whoever leads, by a client that knows of no epoch.

    Each is a request of its own, with acks=all; the answers are looked at when all is over.
    """

    def __init__(self, broker: BrokerProcess, name: str) -> None:
        self._client = Client(broker.address)
        self._name = name
        self._sent: dict[bytes, int] = {}  # the request's correlation id, by value
        self.acknowledged: dict[bytes, Offset] = {}
        self.refused: list[RaftlogError] = []

    @property
    def values(self) -> set[bytes]:
        return set(self._sent)

    def send(self, count: int = REQUESTS) -> None:
        for _ in range(count):
            value = f"{self._name}/{len(self._sent)}".encode()
            self._sent[value] = self._client.send_batch(TOPIC, batch_of(value))

    def hear(self) -> None:
        """Take the answers to all that was sent: each is one, good or bad."""
        for value, correlation_id in self._sent.items():
            answer = self._client.produced(correlation_id)
            if answer.failure is None:
                self.acknowledged[value] = answer.base_offset
            else:
                self.refused.append(answer.failure.to_error())
        self._client.close()

    def check(self, bootstrap: str) -> None:
        """What was acknowledged is there, where it was said to be; nothing is there twice."""
        found = read_all(bootstrap, TopicPartition(TOPIC, 0))
        places = [(value, offset) for offset, value in found if value in self._sent]
        assert len(dict(places)) == len(places)
        assert dict(places).items() >= self.acknowledged.items(), self.acknowledged


@contextmanager
def three(tmp_path: Path, *, min_isr: int, with_relays: bool = False) -> Iterator[Cluster]:
    with cluster(brokers=3, directory=tmp_path, with_relays=with_relays) as running:
        create(running, copies=3, min_insync_replicas=str(min_isr))
        yield running


def successor(running: Cluster, old: int) -> None:
    """Wait until another broker leads."""
    wait_until(
        lambda: running.leader(TOPIC, 0) not in {None, old},
        timeout_s=PATIENCE_S,
        what=f"a successor of broker {old}",
    )


@pytest.mark.parametrize("min_isr", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_s13_a_leader_that_was_paused(
    tmp_path: Path, min_isr: int, say: Callable[[str], None]
) -> None:
    with three(tmp_path, min_isr=min_isr) as running:
        with Load(running.bootstrap) as load:
            old = running.broker(leader_of(running))
            whispers = Whispers(old, "asleep")
            paused_at = time.monotonic()
            old.pause()
            whispers.send()  # the kernel takes them; it will read them when it wakes
            load.goes_on()
            silence = load.silence(paused_at)
            old.resume()
            whispers.send()
            whispers.hear()
            until_in_sync(running)
            load.goes_on(count=100)
        load.check(running.bootstrap, strangers=whispers.values)
        whispers.check(running.bootstrap)
        same_everywhere(running)
    assert len(whispers.refused) >= REQUESTS, "it took records as if it led still"
    say(f"SIGSTOP of the leader, without an acknowledgement: {silence:.2f} s")


@pytest.mark.parametrize("min_isr", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_s13_a_leader_that_would_be_alone_in_the_isr(tmp_path: Path, min_isr: int) -> None:
    """Cut off, it wants to be the only one in sync, and may be asked to commit alone.

    It falls asleep on that proposal, and wakes among others who have agreed on a successor.
    """
    with three(tmp_path, min_isr=min_isr, with_relays=True) as running:
        with Load(running.bootstrap) as load:
            old = running.broker(leader_of(running))
            whispers = Whispers(old, "alone")
            running.isolate(old.id)
            whispers.send()
            successor(running, old.id)
            whispers.send()
            old.pause()
            whispers.send()
            load.goes_on()
            running.heal()
            old.resume()
            whispers.hear()
            until_in_sync(running)
            load.goes_on(count=100)
        load.check(running.bootstrap, strangers=whispers.values)
        whispers.check(running.bootstrap)
        same_everywhere(running)
    assert not whispers.acknowledged, "alone, it could not know"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "trials", [1, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_s13_a_leader_that_is_alone_and_sleeps_while_a_follower_joins(
    tmp_path: Path, seed: int, trials: int
) -> None:
    """ISR={leader} is agreed on, min.insync.replicas is 1, and a follower is on its way back."""
    chance = random.Random(seed)
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=2, min_insync_replicas="1")
        noted: set[bytes] = set()
        with Load(running.bootstrap) as load:
            for trial in range(trials):
                old = running.broker(leader_of(running))
                info = running.views(TOPIC, 0)[old.id].info
                follower = running.broker(next(b for b in info.replicas if b != old.id))
                follower.kill()
                load.goes_on(count=50)
                whispers = Whispers(old, f"trial {trial}")
                follower.start()
                load.goes_on(count=1 + chance.randrange(100))
                whispers.send()
                old.pause()
                whispers.send()
                wait_until(
                    lambda old=old: old.id not in _members(running, old.id),  # type: ignore[misc]
                    timeout_s=PATIENCE_S,
                    what="the others know that it sleeps",
                )
                old.resume()
                whispers.hear()
                noted |= whispers.values
                load.goes_on(count=10)
                until_in_sync(running)
                whispers.check(running.bootstrap)
        load.check(running.bootstrap, strangers=noted)
        same_everywhere(running)


def _members(running: Cluster, but: int) -> set[int]:
    """The brokers that are in the cluster as all see it ``but`` one."""
    return set.intersection(
        *(members(broker.address) or {but} for broker in running.brokers if broker.id != but)
    )
