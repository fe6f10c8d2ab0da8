"""The embedded log: the usual clients, a broker's files, one opener."""

from __future__ import annotations

import _thread
import errno
import gc
import os
import threading
import time
from pathlib import Path

import pytest

import raftlog
from raftlog.clock import SystemClock
from raftlog.disk import OsDisk, OsLock
from raftlog.errors import (
    ClosedError,
    DataDirectoryError,
    InvalidConfigError,
    RaftlogError,
    StorageFailedError,
    TopicExistsError,
    UnknownTopicError,
)
from tests.server.harness import FaultyDisk, batch_of, running

TIMEOUT_S = 20
LATER_MS = 20_000


def read_all(log: raftlog.EmbeddedLog, topic: str, count: int) -> list[bytes | None]:
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(timeout_ms=LATER_MS)]
        return found


def test_what_is_produced_is_consumed_and_outlives_the_log(tmp_path: Path) -> None:
    values = [b"value %d" % number for number in range(10_000)]
    with raftlog.open(tmp_path) as log:
        log.create_topic("t")
        with log.producer() as producer:
            first = producer.send("t", values[0], key=b"k").result(timeout=TIMEOUT_S)
            assert (first.partition, first.offset) == (0, 0)
            producer.send_many("t", values[1:]).result(timeout=TIMEOUT_S)
        assert read_all(log, "t", len(values)) == values
    with raftlog.open(str(tmp_path)) as log:
        assert read_all(log, "t", len(values)) == values


def test_closing_sends_what_is_queued(tmp_path: Path) -> None:
    with raftlog.open(tmp_path) as log:
        log.create_topic("t")
        producer = log.producer(linger_ms=10_000)
        future = producer.send("t", b"late")
    assert future.result(timeout=TIMEOUT_S).offset == 0
    with raftlog.open(tmp_path) as log:
        assert read_all(log, "t", 1) == [b"late"]


def test_a_reader_waits_for_a_writer_in_another_thread(tmp_path: Path) -> None:
    with raftlog.open(tmp_path) as log:
        log.create_topic("t")
        found: list[list[bytes | None]] = []
        reader = threading.Thread(target=lambda: found.append(read_all(log, "t", 3)))
        reader.start()
        with log.producer(linger_ms=0) as producer:
            for number in range(3):
                producer.send("t", b"%d" % number).result(timeout=TIMEOUT_S)
        reader.join(TIMEOUT_S)
        assert found == [[b"0", b"1", b"2"]]


def test_topics(tmp_path: Path) -> None:
    with raftlog.open(tmp_path) as log:
        log.create_topic("t", partitions=3, config={"retention.ms": "5000"})
        log.create_topic("t", if_not_exists=True)
        with pytest.raises(TopicExistsError):
            log.create_topic("t")
        with log.admin() as admin:
            (described,) = admin.describe_topics(["t"])
            assert len(described.partitions) == 3
        with log.producer() as producer, pytest.raises(UnknownTopicError):
            producer.send("nope", b"x").result(timeout=TIMEOUT_S)


def test_one_opener_at_a_time(tmp_path: Path) -> None:
    with raftlog.open(tmp_path):
        with pytest.raises(DataDirectoryError, match="in use"):
            raftlog.open(tmp_path)
        with pytest.raises(DataDirectoryError, match="in use"), running(tmp_path):
            pass
    with raftlog.open(tmp_path):
        pass


class InterruptedDisk(OsDisk):
    """Ctrl-C at the first of these operations, which goes on when the test says so."""

    def __init__(self, operation: str) -> None:
        super().__init__()
        self._operation = operation
        self.goes_on = threading.Event()

    def _note(self, operation: str) -> None:
        if operation == self._operation and not self.goes_on.is_set():
            _thread.interrupt_main()
            self.goes_on.wait(TIMEOUT_S)

    def lock(self, path: str) -> OsLock:
        self._note("lock")
        return super().lock(path)

    def write_atomic(self, path: str, data: bytes) -> None:
        self._note(os.path.basename(path))
        super().write_atomic(path, data)


@pytest.mark.parametrize("operation", ["lock", "clock"])
def test_an_interrupted_start_gives_the_directory_back(tmp_path: Path, operation: str) -> None:
    disk = InterruptedDisk(operation)
    with pytest.raises(KeyboardInterrupt):
        raftlog.open(tmp_path, disk=disk)
    disk.goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "raftlog-embedded":
            thread.join(TIMEOUT_S)
    with raftlog.open(tmp_path) as log:
        log.create_topic("t")


def test_the_files_are_a_brokers(tmp_path: Path) -> None:
    with running(tmp_path, id="7") as broker, broker.client() as client:
        client.create("t")
        client.produce("t", batch_of(b"broker's"))
    with raftlog.open(tmp_path) as log, log.producer() as producer:
        producer.send("t", b"embedded").result(timeout=TIMEOUT_S)
        assert read_all(log, "t", 2) == [b"broker's", b"embedded"]
    with running(tmp_path, id="7") as broker, broker.client() as client:
        assert client.fetch("t")[1] == [b"broker's", b"embedded"]


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    log = raftlog.open(tmp_path)
    log.create_topic("t")
    producer, consumer = log.producer(), log.consumer()
    log.close()
    log.close()
    assert "closed" in repr(log)
    for call in (
        lambda: producer.send("t", b"x"),
        lambda: consumer.subscribe(["t"]),
        log.producer,
        log.consumer,
        log.admin,
    ):
        with pytest.raises(ClosedError):
            call()


def test_a_consumer_that_fails_when_it_is_closed_does_not_hold_the_log(tmp_path: Path) -> None:
    def fail(_partitions: object) -> None:
        raise ValueError("of the application")

    log = raftlog.open(tmp_path)
    log.create_topic("t")
    producer = log.producer(linger_ms=10_000)
    late = producer.send("t", b"late")
    consumer = log.consumer(group="g")
    consumer.subscribe(["t"], on_revoke=fail)
    while not consumer.assignment():
        consumer.poll(timeout_ms=100)
    with pytest.raises(ValueError, match="of the application"):
        log.close()
    with raftlog.open(tmp_path) as again:
        assert read_all(again, "t", 1) == [b"late"]
    assert late.done()


def test_a_failed_disk_shows_as_errors(tmp_path: Path) -> None:
    disk = FaultyDisk()
    log = raftlog.open(tmp_path, disk=disk)
    log.create_topic("t")
    with log.producer(linger_ms=0) as producer:
        producer.send("t", b"kept").result(timeout=TIMEOUT_S)
        disk.faults.sync_error = errno.EIO
        for _ in range(2):
            with pytest.raises(StorageFailedError):
                producer.send("t", b"lost").result(timeout=TIMEOUT_S)
    with pytest.raises(StorageFailedError):
        log.create_topic("other")
    with pytest.raises(StorageFailedError):
        log.close()
    with raftlog.open(tmp_path) as again:
        assert read_all(again, "t", 1)[0] == b"kept"


def test_a_full_disk_passes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with raftlog.open(tmp_path, disk=disk) as log:
        log.create_topic("t")
        with log.producer(linger_ms=0) as producer:
            producer.send("t", b"first").result(timeout=TIMEOUT_S)
            disk.faults.no_room = True
            waiting = producer.send("t", b"second")
            assert read_all(log, "t", 1) == [b"first"]
            assert not waiting.done()
            disk.faults.no_room = False
            assert waiting.result(timeout=TIMEOUT_S).offset == 1


def test_settings_are_a_brokers(tmp_path: Path) -> None:
    with raftlog.open(tmp_path, settings={"fetch.max.bytes": "2048"}) as log:
        log.create_topic("t")
    with pytest.raises(InvalidConfigError, match=r"no\.such"):
        raftlog.open(tmp_path, settings={"no.such": "1"})


def test_a_path_that_cannot_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(RaftlogError, match="file"):
        raftlog.open(tmp_path / "file")


def drop(held: list[raftlog.EmbeddedLog]) -> None:
    held.clear()
    gc.collect()


def test_an_unclosed_log_is_noticed_and_lets_go(tmp_path: Path) -> None:
    log = raftlog.open(tmp_path)
    log.create_topic("t")
    thread = log._thread
    held = [log]
    del log
    with pytest.warns(ResourceWarning, match="unclosed EmbeddedLog"):
        drop(held)
    assert thread._thread is not None
    thread._thread.join(TIMEOUT_S)
    with raftlog.open(tmp_path) as again:
        assert again.path == str(tmp_path)


# -- clock -----------------------------------------------------------------------------------------
#
# The machine's clocks: one that people read, one that only grows.


def test_the_wall_clock_is_in_milliseconds_since_1970() -> None:
    before = time.time()
    now_ms = SystemClock().wall_ms()
    assert int(before * 1_000) <= now_ms <= time.time() * 1_000


def test_the_monotonic_clock_never_goes_back() -> None:
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(1_000)]
    assert readings == sorted(readings)
