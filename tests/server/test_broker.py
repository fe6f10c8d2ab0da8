"""The whole broker: how it stops, what a restart finds, and what a failed disk does."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from raftlog.config import BrokerConfig, TopicConfig
from raftlog.errors import InvalidConfigError, StorageFailedError
from raftlog.server.broker import MINUTE_MS, Broker, read_secret
from tests.server.harness import (
    TIMEOUT_S,
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    running,
)


def sequenced(number: int) -> bytes:
    return batch_of(b"%d" % number, producer_id=3, producer_epoch=0, base_sequence=number)


def stop_in_background(broker: RunningBroker) -> threading.Thread:
    thread = threading.Thread(target=broker.stop)
    thread.start()
    broker.wait_until(lambda: broker.broker.context.is_stopping)
    return thread


def test_a_graceful_stop_answers_what_is_in_flight(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_gate.clear()
    produced = client.send_batch("t", batch_of(b"b"))
    fetch = client.send_fetch("t", 1, wait_ms_max=20_000)
    client.offset("t", "latest")
    stopping = stop_in_background(broker)
    assert client.fetched(fetch) == ([], [])  # with what there was
    disk.faults.sync_gate.set()
    assert client.produced(produced).base_offset == 1
    assert client.is_closed_by_broker()
    client.close()
    stopping.join()


class DiskWithHangingDirectories(FaultyDisk):
    """Syncs of the directories of topics and partitions wait for the gate, too."""

    def sync_dir(self, path: str) -> None:
        if "/topics/" in path:
            assert self.faults.sync_gate.wait(TIMEOUT_S), "nobody opened the gate"
        super().sync_dir(path)


def test_the_first_record_of_a_partition_does_not_stop_the_broker_while_its_disk_hangs(
    tmp_path: Path,
) -> None:
    disk = DiskWithHangingDirectories()
    with running(tmp_path, disk=disk) as broker, broker.client() as client:
        client.create("t")
        disk.faults.sync_gate.clear()
        produced = client.send_batch("t", batch_of(b"a"))
        with broker.client() as other:
            assert other.fetch("t")[1] == [], "not durable yet"
        disk.faults.sync_gate.set()
        assert client.produced(produced).base_offset == 0
    with running(tmp_path) as broker, broker.client() as client:
        assert client.fetch("t")[1] == [b"a"]


def test_a_stop_does_not_wait_for_ever_for_a_client(tmp_path: Path) -> None:
    disk = FaultyDisk()
    settings = {"controlled_shutdown_timeout_ms": "50"}
    with running(tmp_path, disk=disk, **settings) as broker, broker.client() as client:  # type: ignore[arg-type]
        client.create("t")
        client.produce("t", batch_of(b"a"))
        disk.faults.sync_gate.clear()
        client.send_batch("t", batch_of(b"b"))
        client.offset("t", "latest")
        stopping = stop_in_background(broker)
        assert client.is_closed_by_broker()
        disk.faults.sync_gate.set()
        stopping.join()
    with running(tmp_path) as broker, broker.client() as client:
        assert client.fetch("t")[1] == [b"a", b"b"], "not acknowledged, and not lost either"


def test_a_restart_finds_everything_and_knows_duplicates(tmp_path: Path) -> None:
    with running(tmp_path) as broker, broker.client() as client:
        client.create("t")
        for number in range(8):
            assert client.produce("t", sequenced(number)).base_offset == number
    with running(tmp_path) as broker, broker.client() as client:
        assert client.produce("t", sequenced(7)).base_offset == 7
        assert client.produce("t", sequenced(4)).base_offset == 4
        assert client.produce("t", sequenced(9)).failure is not None
        assert client.produce("t", sequenced(8)).base_offset == 8
        assert client.fetch("t")[1] == [b"%d" % number for number in range(9)]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_fsync_is_fatal(
    broker: RunningBroker, client: Client, disk: FaultyDisk, code: int, tmp_path: Path
) -> None:
    client.create("t")
    client.create("other")
    client.produce("t", batch_of(b"a"))
    disk.faults.sync_error = code
    refused = client.produce("t", batch_of(b"b"))
    assert isinstance(error_of(refused), StorageFailedError)
    assert len(broker.fatal) == 1
    assert "t" in str(broker.fatal[0])
    disk.faults.sync_error = 0
    for topic in ("t", "other"):  # one disk: all of it is in doubt
        assert isinstance(error_of(client.produce(topic, batch_of(b"c"))), StorageFailedError)
        assert isinstance(error_of(client.offset(topic, 0)), StorageFailedError)
    client.close()
    assert broker.expect_failed_stop() is broker.fatal[0]
    with running(tmp_path / "data") as again, again.client() as other:
        assert other.fetch("t")[1][:1] == [b"a"]
        assert other.produce("t", batch_of(b"d")).failure is None


def test_the_last_words_name_the_file_and_what_to_do(
    broker: RunningBroker, client: Client, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    client.create("t")
    disk.faults.sync_error = errno.EIO
    client.produce("t", batch_of(b"a"))
    words = [record.message for record in caplog.records if record.levelname == "CRITICAL"]
    assert len(words) == 1
    for word in ("topics/t/", "Input/output error", "another sync cannot verify", "start"):
        assert word in words[0]
    client.close()
    broker.expect_failed_stop()


def test_a_failed_disk_on_the_way_out_is_told(
    broker: RunningBroker, client: Client, disk: FaultyDisk
) -> None:
    client.create("t")
    log = broker.broker.context.topics.host("t", 0).log
    log.config = TopicConfig(flush_policy="os")  # as with several brokers
    client.produce("t", batch_of(b"a"))
    broker.wait_until(lambda: log.durable_end_offset == 1)  # as a new segment is
    disk.faults.sync_error = errno.EIO
    client.produce("t", batch_of(b"b"))
    assert broker.fatal == []
    client.close()
    assert "t" in str(broker.expect_failed_stop())


def test_connections_work_without_sockets(broker: RunningBroker) -> None:
    assert isinstance(broker.broker, Broker)
    assert broker.broker.connections.make() is not broker.broker.connections.make()


@pytest.mark.parametrize(
    ("secret", "mode", "says"),
    [
        ("0123456789abcdef", 0o640, ""),
        ("0123456789abcdef", 0o644, "mode 0644.*chmod 600"),
        ("0123456789abcdef", 0o602, "mode 0602"),
        ("0123456789abcde", 0o600, "15 bytes"),
        ("", 0o600, "0 bytes"),
    ],
)
def test_a_secret_is_long_and_not_for_everybody(
    tmp_path: Path, secret: str, mode: int, says: str
) -> None:
    path = tmp_path / "secret"
    path.write_text(secret + "\n")
    path.chmod(mode)
    config = BrokerConfig.from_text({"cluster.secret.file": str(path)})
    if says:
        with pytest.raises(InvalidConfigError, match=says):
            read_secret(config)
    else:
        assert read_secret(config) == secret.encode()


# -- wiring ----------------------------------------------------------------------------------------
#
# A broker's coordinator is made of its settings and hears what it has to.


def test_settings_come_to_the_shards(tmp_path: Path) -> None:
    with running(
        tmp_path / "data",
        group_min_session_timeout_ms="200",
        group_max_session_timeout_ms="400",
        group_max_size="5",
        offsets_retention_minutes="3",
        group_assignors="range",
    ) as broker:
        coordinator = broker.broker.context.coordinator
        groups = broker.call(coordinator._services.new_groups)
        settings = groups._world.settings
        assert (settings.session_timeout_ms_min, settings.session_timeout_ms_max) == (200, 400)
        assert settings.members_per_group_max == 5
        assert settings.offsets_retention_ms == 3 * MINUTE_MS
        assert settings.default_assignor == "range"


def test_it_hears_of_topics(broker: RunningBroker) -> None:
    context = broker.broker.context
    before = broker.call(lambda: context.coordinator.metadata_version)
    with broker.client() as client:
        client.create("t")
    assert broker.call(lambda: context.coordinator.metadata_version) > before


def test_one_broker_has_all_copies(broker: RunningBroker) -> None:
    context = broker.broker.context
    assert broker.call(context.lookup._copies) == (1, 1)
