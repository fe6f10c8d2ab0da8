"""The promises on real processes: brokers that are killed, lost with their disks, or paused."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from raftlog import Admin, Producer, TopicPartition
from raftlog.errors import RaftlogError, RetriableError
from raftlog.testing import BrokerProcess, Cluster, cluster, wait_until
from raftlog.testing.cluster import local_cluster, members
from raftlog.types import Offset
from raftlog_jepsen.control.disks import LoopDisk, why_not
from tests.integration.load import (
    PATIENCE_S,
    TOPIC,
    Load,
    bring_back,
    create,
    leader_of,
    lose,
    read_all,
    same_everywhere,
    summary,
    until_in_sync,
)
from tests.server.harness import Client, batch_of

pytestmark = pytest.mark.integration

# -- promise 1: kills ------------------------------------------------------------------------------

# Promise 1, on real processes: of three brokers one is killed, or two lost with their disks.


DELIVERY_S = 4.0


def kill_leaders(running: Cluster, load: Load, times: int) -> list[float]:
    """SIGKILL the leader, and bring it back; how long nothing was acknowledged, for each."""
    silences = []
    for _ in range(times):
        leader = running.broker(leader_of(running))
        killed_at = time.monotonic()
        leader.kill()
        load.goes_on()
        silences.append(load.silence(killed_at))
        leader.start()
        until_in_sync(running)
        load.goes_on(count=100)
    return silences


@pytest.mark.parametrize(
    "trials", [2, pytest.param(8, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_writes_go_on_when_the_leader_is_killed(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            silences = kill_leaders(running, load, trials)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGKILL of the leader, without an acknowledgement: {summary(silences)}")
    assert max(silences) < 5.0
    assert trials < 8 or statistics.median(silences) < 2.0  # of three, one may be unlucky


def refusal(bootstrap: str) -> RaftlogError:
    """What a producer is told that has no more patience than ``DELIVERY_S``."""
    with (
        Producer(
            bootstrap,
            linger_ms=0,
            request_timeout_ms=int(DELIVERY_S * 500),
            delivery_timeout_ms=int(DELIVERY_S * 1_000),
        ) as producer,
        pytest.raises(RaftlogError) as refused,
    ):
        producer.send(TOPIC, b"refused", partition=0).result(10 * DELIVERY_S)
    return refused.value


def recover(running: Cluster, load: Load, left: int) -> None:
    """The operator's word, then the two that were lost come back, with nothing."""
    alone = str(running.broker(left).address)
    with Admin(alone) as admin:
        shown = admin.recover_cluster(dry_run=True)
        recovered = admin.recover_cluster(lost=shown.lost, accept_loss=shown.loss_id)
        assert [part.problem for part in recovered.partitions] == [""]
        assert recovered.partitions[0].leader == left
        load.goes_on(count=100)
        bring_back(running)
        admin.alter_topic(TOPIC, {"min.insync.replicas": None})
    load.goes_on(count=100)


@pytest.mark.parametrize(
    "survivor", ["leader", pytest.param("follower", marks=pytest.mark.nightly)]
)
def test_the_last_of_three_serves_what_is_committed_and_recovers_everything(
    tmp_path: Path, survivor: str, say: Callable[[str], None]
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=200)
            long_committed = dict(load.ledgers[0].acknowledged)
            load.goes_on(count=200)
            leader = leader_of(running)
            left = leader if survivor == "leader" else leader % 3 + 1
            lose(running, {1, 2, 3} - {left})
            alone = str(running.broker(left).address)
            found = read_all(alone, TopicPartition(TOPIC, 0), read_from="replica")
            assert [offset for offset, _ in found] == list(range(len(found)))
            assert {value: offset for offset, value in found}.items() >= long_committed.items()
            noted = refusal(alone)
            say(f"the {survivor} is left; a producer is told: {noted!r}")
            assert isinstance(noted, RetriableError), "nothing was done, and it says so"
            recover(running, load, left)
        load.check(running.bootstrap)
        same_everywhere(running)


def test_recovering_at_once_leaves_nothing_undone(tmp_path: Path) -> None:
    """An operator, or a script, that is quicker than the brokers' own news of who is gone."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            left = leader_of(running) % 3 + 1
            lose(running, {1, 2, 3} - {left})
            recover(running, load, left)
        load.check(running.bootstrap)
        same_everywhere(running)


# -- promise 2: lost disks -------------------------------------------------------------------------

# Promise 2, on real processes: any n-1 of n replicas are lost with their disks, and writes go on.
#
# Nobody gives a word: with 2n-1 brokers a majority is left that agrees on what to do.


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


# -- promise 3: all at once ------------------------------------------------------------------------

# Promise 3, on real processes: all brokers at once, under load: SIGKILL, and a power cut.


@contextmanager
def powered(tmp_path: Path) -> Iterator[tuple[Cluster, list[LoopDisk]]]:
    """Three brokers, each on a disk whose power can be cut."""
    if why_not():
        pytest.skip(f"not injected: the power cannot be cut here: {why_not()}")
    with ExitStack() as stack:
        running = local_cluster(tmp_path, brokers=3)
        disks = []
        for broker in running.brokers:
            disks.append(stack.enter_context(LoopDisk(tmp_path, f"disk-{broker.id}")))
            broker.data_dir = disks[-1].mount_point / "data"
        stack.callback(running.close)
        running.start()
        yield running, disks


@pytest.mark.parametrize(
    "trials", [2, pytest.param(8, marks=[pytest.mark.seeds, pytest.mark.timeout(600)])]
)
def test_all_brokers_are_killed_at_once(
    tmp_path: Path, trials: int, say: Callable[[str], None]
) -> None:
    silences = []
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                killed_at = time.monotonic()
                running.kill()
                running.start()
                load.goes_on()
                silences.append(load.silence(killed_at))
                load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGKILL of all three, without an acknowledgement: {summary(silences)}")


@pytest.mark.parametrize(
    "trials", [1, pytest.param(20, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_s40_all_power_cut(tmp_path: Path, trials: int, say: Callable[[str], None]) -> None:
    """What reached the three disks, and nothing else, is there when the power comes back."""
    silences = []
    with powered(tmp_path) as (running, disks):
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for _ in range(trials):
                for disk in disks:
                    disk.mark()
                cut_at = time.monotonic()
                running.kill()
                for disk in disks:
                    disk.cut_power()
                assert not any(disk.marked() for disk in disks), (
                    "what nobody synced is there: no power was cut"
                )
                running.start()
                load.goes_on()
                silences.append(load.silence(cut_at))
                load.goes_on(count=100)
        load.check(running.bootstrap)
        until_in_sync(running)
        same_everywhere(running)
    say(f"power cut of all three, without an acknowledgement: {summary(silences)}")


def test_a_power_cut_takes_what_nobody_synced(tmp_path: Path) -> None:
    """The same without fsync loses records: so the test above would notice a missing one."""
    with powered(tmp_path) as (running, disks):
        create(running, copies=3, flush_policy="os")
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            running.kill()  # under load: what was acknowledged just now is on no disk yet
            for disk in disks:
                disk.cut_power()
            running.start()
            until_in_sync(running)
        found = read_all(running.bootstrap, TopicPartition(TOPIC, 0))
        problems = load.ledgers[0].judge(found)
        assert problems
        assert all(problem.startswith("lost: ") for problem in problems), problems


# -- promise 4: leaders that slept -----------------------------------------------------------------

# Promise 4, on real processes: a leader that slept, or was cut off, and wakes after its successor
# was elected acknowledges nothing that is not kept.


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
