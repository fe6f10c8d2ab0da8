"""Stored bytes that are bad or missing, on real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raftlog import Admin, NewTopic, Producer, TopicPartition, limits
from raftlog.errors import CorruptBatchError, DamagedLogError, OutcomeUnknownError
from raftlog.record import parse_header
from raftlog.testing import Cluster, cluster, wait_until
from tests.consensus.journals import block_ends
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

pytestmark = pytest.mark.integration

# -- segments --------------------------------------------------------------------------------------

# Stored bytes that are bad or missing, in some copies of several: found, and copied again.


LATER = pytest.mark.nightly

HEADER, PAYLOAD = 5, -5  # bytes of a batch; from its end, if negative


def copy_of(running: Cluster, broker_id: int) -> Path:
    """Where a broker stores the partition."""
    (directory,) = running.broker(broker_id).data_dir.glob(f"topics/{TOPIC}/*/0")
    return directory


def flip(running: Cluster, broker_id: int, byte: int) -> None:
    """Flip a bit in the middle of the active segment, which the broker has open and writes to."""
    path = max(copy_of(running, broker_id).glob("*.log"))
    stored, starts = path.read_bytes(), [0]
    while starts[-1] < len(stored):
        try:
            starts.append(starts[-1] + parse_header(stored, starts[-1]).length)
        except CorruptBatchError:
            break  # it is being written
    middle = len(starts) // 2
    position = starts[middle] + byte if byte >= 0 else starts[middle + 1] + byte
    with path.open("r+b") as file:
        file.seek(position)
        file.write(bytes([stored[position] ^ 0x10]))


def until_made_anew(running: Cluster, directory: Path, broker_id: int) -> None:
    """The damaged files are kept beside the copy, and the copy is in sync again."""
    wait_until(
        lambda: any(directory.parent.glob("0.quarantine-*")),
        timeout_s=PATIENCE_S,
        what=f"broker {broker_id} sets its damaged copy aside",
    )
    until_in_sync(running)


@pytest.mark.parametrize(
    "byte",
    [pytest.param(HEADER, id="header"), pytest.param(PAYLOAD, id="payload", marks=LATER)],
)
def test_a_consumer_reads_on_though_the_leaders_copy_is_damaged(tmp_path: Path, byte: int) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=200)
            leader = leader_of(running)
            directory = copy_of(running, leader)
            flip(running, leader, byte)
            assert len(read_all(running.bootstrap, TopicPartition(TOPIC, 0))) >= 200
            until_made_anew(running, directory, leader)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    assert "log corrupt" in running.broker(leader).log_path.read_text(encoding="utf-8")


def test_a_scrub_finds_damage_that_nobody_reads(tmp_path: Path) -> None:
    settings = {"log.scrub.interval.ms": "1000"}
    with cluster(brokers=3, directory=tmp_path, settings=settings, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=200)
            leader = leader_of(running)
            follower = leader % 3 + 1
            directory = copy_of(running, follower)
            flip(running, follower, PAYLOAD)
            until_made_anew(running, directory, follower)
            assert leader_of(running) == leader
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)


def test_s41_segment_vanishes_under_its_leader(tmp_path: Path) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3, segment_bytes="16384")
        with Load(running.bootstrap) as load:
            load.goes_on(count=2_000)
            leader = leader_of(running)
            directory = copy_of(running, leader)
            segments = sorted(directory.glob("*.log"))
            assert len(segments) > limits.OPEN_SEALED_SEGMENTS_MAX + 1
            segments[0].unlink()
            assert len(read_all(running.bootstrap, TopicPartition(TOPIC, 0))) >= 2_000
            until_made_anew(running, directory, leader)
            load.goes_on(count=100)
        load.check(running.bootstrap)
        same_everywhere(running)
    assert "Traceback" not in running.broker(leader).log_path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("victim", "what"),
    [
        ("leader", "partition"),
        pytest.param("follower", "all topics", marks=LATER),
        pytest.param("leader", "topic", marks=LATER),
        pytest.param("leader", "all topics", marks=LATER),
        pytest.param("follower", "topic", marks=LATER),
        pytest.param("follower", "partition", marks=LATER),
    ],
)
def test_s41_files_vanish_at_work(tmp_path: Path, victim: str, what: str) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=300)
            leader = leader_of(running)
            broker = running.broker(leader if victim == "leader" else leader % 3 + 1)
            directory = copy_of(running, broker.id)
            levels = {"partition": directory, "topic": directory.parents[1]}
            shutil.rmtree(levels.get(what, broker.data_dir / "topics"))
            until_made_anew(running, directory, broker.id)
            load.goes_on(count=300)
        load.check(running.bootstrap)
        until_in_sync(running)
        same_everywhere(running)
        assert broker.running
    assert "was moved, or files in it are missing" in broker.log_path.read_text(encoding="utf-8")


def test_the_only_copy_is_removed_under_a_running_broker(tmp_path: Path) -> None:
    with cluster(brokers=1, directory=tmp_path) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1), NewTopic("other", 1)])
        with Producer(running.bootstrap) as producer:
            producer.send(TOPIC, b"x").result()
            directory = copy_of(running, 1)
            shutil.rmtree(directory)
            with pytest.raises((DamagedLogError, OutcomeUnknownError), match=str(directory)):
                producer.send(TOPIC, b"y").result()
            with pytest.raises(DamagedLogError, match="restore the directory"):
                producer.send(TOPIC, b"z").result()
            producer.send("other", b"z").result()
        assert str(directory) in running.views(TOPIC, 0)[1].damage


@pytest.mark.parametrize(
    "is_clean", [pytest.param(False, id="kill"), pytest.param(True, id="stop", marks=LATER)]
)
def test_s41_files_vanish_while_down(tmp_path: Path, is_clean: bool) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=600)
        until_in_sync(running)
        victims = running.brokers[:2]
        (running.stop if is_clean else running.kill)()
        for broker in victims:
            shutil.rmtree(copy_of(running, broker.id))
        running.start()
        load.check(running.bootstrap)
        until_in_sync(running)
        same_everywhere(running)
    for broker in victims:
        assert "the directory or its checkpoint is missing" in broker.log_path.read_text(
            encoding="utf-8"
        )


@pytest.mark.parametrize(
    "lost",
    [("topics", "copies", "catalog"), pytest.param(("topics", "copies"), marks=LATER)],
    ids=len,
)
def test_s41_record_of_copies_vanishes(tmp_path: Path, lost: tuple[str, ...]) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        with Load(running.bootstrap) as load:
            load.goes_on(count=300)
        until_in_sync(running)
        running.kill()
        *victims, survivor = running.brokers
        for broker in victims:
            for name in lost:
                path = broker.data_dir / name
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            broker.spawn()
        for broker in victims:
            broker.wait_ready()
            wait_until(
                lambda broker=broker: "copies was lost" in broker.log_path.read_text("utf-8"),
                timeout_s=PATIENCE_S,
                what=f"broker {broker.id} doubts its copy",
            )
        survivor.start()
        load.check(running.bootstrap)
        until_in_sync(running)
        same_everywhere(running)
        create(running, topic="new", copies=3)


def test_a_broker_alone_refuses_a_partition_whose_files_have_vanished(tmp_path: Path) -> None:
    with cluster(brokers=1, directory=tmp_path) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic(TOPIC, 1), NewTopic("other", 1)])
        with Producer(running.bootstrap) as producer:
            producer.send(TOPIC, b"x").result()
        running.kill()
        directory = copy_of(running, 1)
        shutil.rmtree(directory)
        running.start()
        with Producer(running.bootstrap) as producer:
            with pytest.raises(DamagedLogError, match=str(directory)):
                producer.send(TOPIC, b"y").result()
            producer.send("other", b"z").result()
        with pytest.raises(DamagedLogError, match="held records up to offset 1"):
            read_all(running.bootstrap, TopicPartition(TOPIC, 0))
        view = running.views(TOPIC, 0)[1]
        assert "held records up to offset 1" in view.damage
        assert not directory.exists()


# -- the consensus journal -------------------------------------------------------------------------

# A consensus journal that loses its end between two blocks, on real processes.
#
# It looks whole to the broker that has it. The others have heard of more, and refuse it.


JOURNAL_CUT_LATER = [pytest.mark.nightly, pytest.mark.timeout(300)]


@pytest.mark.parametrize("lost", ["many", pytest.param("three", marks=JOURNAL_CUT_LATER)])
def test_a_broker_is_refused_and_comes_back_whole_once_its_directory_is_empty(
    tmp_path: Path, lost: str
) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        broker = running.broker(2)
        with Load(running.bootstrap) as load:
            load.goes_on(count=50)
            broker.kill()
            journal = broker.data_dir / "consensus.journal"
            ends = block_ends(journal.read_bytes())
            assert len(ends) > 6
            # Block 1 is the new file's, and block 2 has the number of this boot, the only one.
            end = ends[2] if lost == "many" else ends[-4]
            with journal.open("r+b") as file:
                file.truncate(end)
            broker.start()
            wait_until(
                lambda: "has lost acknowledged blocks" in broker.log_path.read_text("utf-8"),
                timeout_s=PATIENCE_S,
                what=f"broker 2 is told what is wrong ({broker.log_path})",
            )
            (sentence, *_) = [
                line
                for line in broker.log_path.read_text("utf-8").splitlines()
                if "has lost acknowledged blocks" in line and "ERROR" in line
            ]
            assert "the consensus journal of broker 2" in sentence
            assert "Start the broker with an empty data directory" in sentence
            load.goes_on(count=50)
            broker.kill()
            running.wipe(2)
            broker.start()
            until_in_sync(running)
            load.goes_on(count=50)
        load.check(running.bootstrap)
        same_everywhere(running)
