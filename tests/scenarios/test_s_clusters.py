"""The named scenarios that need disks, processes and links as they are: real clusters."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic, TopicPartition
from raftlog.disk import KEEP_INODES, _file_system
from raftlog.errors import BrokerUnavailableError, NotLeaderError
from raftlog.protocol.records import ProducedPartition
from raftlog.testing import BrokerProcess, Cluster, cluster, wait_until
from tests.integration.load import (
    PATIENCE_S,
    TOPIC,
    Load,
    bring_back,
    create,
    leader_of,
    read_all,
    same_everywhere,
    until_in_sync,
)
from tests.server.harness import Client, batch_of

pytestmark = pytest.mark.integration


def said(broker: BrokerProcess, words: str) -> bool:
    return words in broker.log_path.read_text(errors="replace")


def until_said(broker: BrokerProcess, words: str) -> None:
    wait_until(
        lambda: said(broker, words),
        timeout_s=PATIENCE_S,
        what=f"broker {broker.id} says {words!r} in {broker.log_path}",
    )


def segments(broker: BrokerProcess) -> list[Path]:
    return sorted(broker.data_dir.rglob("*.log"))


def test_s19_recreated_topic(tmp_path: Path) -> None:
    """While a broker is down its topic is deleted, and made anew: its old records are strays."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
        away = running.broker(leader_of(running) % 3 + 1)
        away.kill()
        with Admin(running.bootstrap) as admin:
            old = admin.describe_topics([TOPIC])[0].id
            admin.delete_topics([TOPIC])
        (old_segment,) = [path for path in segments(away) if path.stat().st_size]
        with Admin(running.bootstrap) as admin:
            ids = _create_with_two(admin)
        assert ids[TOPIC] != old
        with Load(running.bootstrap, pace_s=0.05) as other:
            away.start()
            until_in_sync(running)
            wait_until(
                lambda: not old_segment.exists(),
                timeout_s=PATIENCE_S,
                what=f"the removal of {old_segment}",
            )
            other.goes_on(count=10)
        other.check(running.bootstrap)
        same_everywhere(running)


def _create_with_two(admin: Admin) -> dict[str, str]:
    """The topic once more, on three brokers of which one is down."""
    return admin.create_topics([NewTopic(TOPIC, 1, 3)])


def test_s21_wiped_voter_on_disks(tmp_path: Path) -> None:
    """A broker that returns with nothing is let in as a new one, and in sync only when it is."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            for turn in range(2):
                leader = leader_of(running)
                wiped = running.broker(leader if turn else leader % 3 + 1)
                load.goes_on(count=100)
                wiped.kill()
                running.wipe(wiped.id)
                wiped.start()
                until_in_sync(running)
                load.goes_on(count=100)
            wait_until(
                lambda: any(said(b, "voters changed: group=cluster") for b in running.brokers),
                timeout_s=PATIENCE_S,
                what="another voter of the cluster",
            )
        load.check(running.bootstrap)
        same_everywhere(running)


def test_s22_swapped_disks(tmp_path: Path) -> None:
    """Two brokers with each other's disks do not start; with their own ones, all is there."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
        one, other = running.brokers[:2]
        _swap_disks(one, other)
        for broker in (one, other):
            with pytest.raises(BrokerUnavailableError, match="belongs to broker"):
                broker.start()
        _swap_disks(one, other)
        bring_back(running)
        load.check(running.bootstrap)
        same_everywhere(running)


def _swap_disks(one: BrokerProcess, other: BrokerProcess) -> None:
    for broker in (one, other):
        broker.kill()
    aside = one.data_dir.with_name("aside")
    one.data_dir.rename(aside)
    other.data_dir.rename(one.data_dir)
    aside.rename(other.data_dir)


@pytest.mark.parametrize("starts_since", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_s22_old_backup(tmp_path: Path, starts_since: int) -> None:
    """A disk put back from a copy lacks what its broker has acknowledged since: it has no vote
    until the others admit it, and is completed; or it is refused, where it cannot know.
    """
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            broker = running.broker(leader_of(running) % 3 + 1)
            broker.kill()
            copy = tmp_path / "copy"
            shutil.copytree(broker.data_dir, copy)
            for _ in range(starts_since):
                bring_back(running)
                load.goes_on(count=100)
                broker.kill()
            running.wipe(broker.id)
            shutil.copytree(copy, broker.data_dir)
            broker.spawn()
            is_known = _file_system(str(tmp_path)) in KEEP_INODES
            wait_until(
                lambda: said(broker, "copied or restored" if is_known else "cannot work together"),
                timeout_s=10,
                what="the word about the old copy",
            )
            load.goes_on(count=100)
            if not is_known:
                assert broker.id not in running.views(TOPIC, 0)[leader_of(running)].info.isr
                broker.kill()
                running.wipe(broker.id)
            bring_back(running)
        load.check(running.bootstrap)
        same_everywhere(running)


def test_s27_idempotent_across_failover(tmp_path: Path) -> None:
    """A retry to the next leader, and to one that has started again, finds its first try."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)

        def send(sequence: int, *values: bytes) -> int:
            """To whichever broker leads; the batch's offset."""
            batch = batch_of(*values, producer_id=7, producer_epoch=0, base_sequence=sequence)
            answers: list[ProducedPartition] = []

            def is_taken() -> bool:
                with Client(running.broker(leader_of(running)).address) as client:
                    answers.append(client.produce(TOPIC, batch))
                failure = answers[-1].failure
                assert failure is None or failure.code == NotLeaderError.code, failure
                return failure is None

            wait_until(is_taken, timeout_s=PATIENCE_S, what="a leader that takes it")
            return answers[-1].base_offset

        assert [send(0, b"a", b"b"), send(2, b"c")] == [0, 2]
        old = running.broker(leader_of(running))
        old.kill()
        wait_until(lambda: running.leader(TOPIC, 0) not in {None, old.id}, timeout_s=PATIENCE_S)
        assert [send(0, b"a", b"b"), send(2, b"c")] == [0, 2], "told where they are"
        assert send(3, b"d") == 3
        bring_back(running)
        with Admin(running.bootstrap) as admin:  # retention: the batches go, the memory stays
            admin.delete_records({TopicPartition(TOPIC, 0): 3})
        assert send(4, b"e") == 4
        until_start(running, 3)
        running.stop()
        running.start()
        until_in_sync(running)
        assert [send(3, b"d"), send(4, b"e")] == [3, 4]
        assert send(5, b"f") == 5
        values = [value for _, value in read_all(running.bootstrap, TopicPartition(TOPIC, 0))]
        assert values == [b"d", b"e", b"f"]


def until_start(running: Cluster, offset: int) -> None:
    wait_until(
        lambda: {view.log_start_offset for view in running.views(TOPIC, 0).values()} == {offset},
        timeout_s=10,
        what=f"every replica starts at {offset}",
    )


def test_s27_what_was_deleted_stays_deleted_when_the_leader_changes(tmp_path: Path) -> None:
    """Also where nothing is written after it: what a client has seen does not come back."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=50)
        until_committed_everywhere(running)
        with Admin(running.bootstrap) as admin:
            admin.delete_records({TopicPartition(TOPIC, 0): 30})
        until_start(running, 30)


def until_committed_everywhere(running: Cluster) -> None:
    """Every replica knows that all is committed: nothing more is on its way."""
    wait_until(
        lambda: (
            len({(v.high_watermark, v.log_end_offset) for v in running.views(TOPIC, 0).values()})
            == 1
        ),
        timeout_s=10,
        what="the high watermark, everywhere",
    )


@pytest.mark.parametrize("place", ["middle", "tail"])
def test_s28_corrupt_tail_vs_corrupt_middle(tmp_path: Path, place: str) -> None:
    """Bytes that were synced and are bad: the copy is made anew from a peer, and never cut short.

    A torn end that nobody acknowledged is cut, and copied again.
    """
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=300)
            broker = running.broker(leader_of(running) % 3 + 1)
            broker.kill()
            (segment,) = [path for path in segments(broker) if path.stat().st_size]
            data = bytearray(segment.read_bytes())
            if place == "middle":
                data[len(data) // 2] ^= 1
            else:
                data += data[: len(data) // 3]  # as a write that did not end
            segment.write_bytes(data)
            bring_back(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
        quarantined = list(broker.data_dir.rglob("*quarantine*"))
        assert bool(quarantined) == (place == "middle"), quarantined


def test_s29_corrupt_snapshot_minority(tmp_path: Path) -> None:
    """What a broker keeps beside its records is damaged: it is made again from its own records."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            broker = running.broker(leader_of(running))
            broker.stop()
            (copy,) = broker.data_dir.glob(f"topics/{TOPIC}/*/0")
            kept = [*copy.glob("*.producers"), *copy.glob("*.index"), copy / "epochs"]
            assert len(kept) >= 3, "it was stopped in an orderly way"
            for path in kept:
                data = bytearray(path.read_bytes())
                data[len(data) // 2] ^= 1
                path.write_bytes(data)
            load.goes_on(count=100)
            broker.start()
            until_in_sync(running)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
        assert not any(copy.parent.glob("*quarantine*")), "its records were good"


@pytest.mark.nightly
def test_s29_corrupt_meta_minority(tmp_path: Path) -> None:
    """A broker whose consensus journal is damaged does not start; the others lose nothing by it."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=100)
            broker = running.broker(leader_of(running))
            broker.kill()
            journal = broker.data_dir / "consensus.journal"
            data = bytearray(journal.read_bytes())
            data[len(data) // 2] ^= 1
            journal.write_bytes(data)
            with pytest.raises(BrokerUnavailableError, match="journal"):
                broker.start()
            load.goes_on(count=100)
            running.wipe(broker.id)
            bring_back(running)
        load.check(running.bootstrap)
        same_everywhere(running)


@pytest.mark.nightly
def test_s36_slow_follower_drops_from_isr(tmp_path: Path, say: Callable[[str], None]) -> None:
    """A follower that stands still holds writes up for a session, and no longer."""
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            slow = running.broker(leader_of(running) % 3 + 1)
            paused_at = time.monotonic()
            slow.pause()
            load.goes_on(count=100)
            silence = load.silence(paused_at)
            assert slow.id not in running.views(TOPIC, 0)[leader_of(running)].info.isr
            quick_since = time.monotonic()
            load.goes_on(count=200)
            assert load.silence(quick_since) < silence, "latency is back to normal without it"
            slow.resume()
            until_in_sync(running)
        load.check(running.bootstrap)
        same_everywhere(running)
    say(f"SIGSTOP of a follower, without an acknowledgement: {silence:.2f} s")
