"""The whole broker: how it stops, what a restart finds, and batches of Kafka's clients."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import Consumer, limits
from raftlog.config import BrokerConfig, TopicConfig
from raftlog.config.address import Watermark
from raftlog.errors import (
    DiskFullError,
    InvalidConfigError,
    InvalidRequestError,
    StorageFailedError,
)
from raftlog.protocol.security import PEER_PROTOCOL_VERSION, PEER_PROTOCOL_VERSION_MIN
from raftlog.record import check_batch, parse_header, to_stored
from raftlog.server.broker import MINUTE_MS, Broker, read_secret
from raftlog.server.context import features
from raftlog.server.disks import (
    AGAIN_SECONDS,
    FAILURE_CHECKS,
    INODES_KEPT,
    JOURNAL_SECONDS,
    KEPT_BYTES,
    SUSPECT_SECONDS,
    WATCH_SECONDS,
    DiskSpace,
    DiskWatch,
    JournalReserve,
    SpaceLevel,
)
from raftlog.server.scheduling import Unfinished, Workers
from raftlog.storage.log_dirs import DiskMeasure
from raftlog.types import TopicPartition
from tests.client.virtual import VirtualLoop
from tests.record.kafka_batches import KAFKA_CODECS, KafkaRecord, kafka_batch
from tests.running import runs
from tests.server.cluster.fake import Scene, play
from tests.server.harness import (
    TIMEOUT_S,
    Client,
    FaultyDisk,
    RunningBroker,
    batch_of,
    error_of,
    running,
)

# -- the broker ------------------------------------------------------------------------------------

# The whole broker: how it stops, what a restart finds, and what a failed disk does.


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
    assert broker.call(context.lookup.maker.copies) == (1, 1)


# -- disks -----------------------------------------------------------------------------------------
#
# Watermarks of free disk space: what is refused below them, and when that ends.


T = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
SIZE = 10_000


def space() -> DiskSpace:
    return DiskSpace(producers=Watermark(10), replication=Watermark(5, 100))


def at(found: DiskSpace, free: int) -> SpaceLevel:
    found.measured(DiskMeasure(free, SIZE))
    return found.level


def refused(found: DiskSpace, where: TopicPartition = T) -> list[str]:
    who = []
    for name, check in (
        ("producers", found.check_producer),
        ("replication", found.check_replication),
    ):
        try:
            check(where)
        except DiskFullError:
            who.append(name)
    return who


def test_producers_are_refused_first_and_internal_topics_never() -> None:
    found = space()
    assert refused(found) == [], "nothing is known yet"
    assert at(found, 1_000) is SpaceLevel.NORMAL
    assert refused(found) == []
    assert at(found, 999) is SpaceLevel.NO_PRODUCERS
    assert refused(found) == ["producers"]
    assert at(found, 99) is SpaceLevel.READ_ONLY
    assert refused(found) == ["producers", "replication"]
    assert refused(found, OFFSETS) == []


def test_a_level_ends_a_fifth_above_its_watermark() -> None:
    found = space()
    at(found, 99)
    assert at(found, 119) is SpaceLevel.READ_ONLY
    assert at(found, 120) is SpaceLevel.NO_PRODUCERS
    assert at(found, 100) is SpaceLevel.NO_PRODUCERS, "it began below 100"
    assert at(found, 1_199) is SpaceLevel.NO_PRODUCERS
    assert at(found, 1_200) is SpaceLevel.NORMAL
    assert at(found, 1_000) is SpaceLevel.NORMAL


def test_a_refusal_says_which_setting_and_what_to_do() -> None:
    found = space()
    at(found, 700)
    with pytest.raises(DiskFullError) as caught:
        found.check_producer(T)
    text = str(caught.value)
    for part in (
        "t:0: producers are refused: 700 of 10,000 bytes",
        "disk.watermark.producers=10%",
        "until 1,200 bytes are free",
        "lower retention.ms",
    ):
        assert part in text
    at(found, 0)
    assert "disk.watermark.replication=5%,100" in found.reason


def test_without_watermarks_nothing_is_refused() -> None:
    found = DiskSpace()
    assert at(found, 0) is SpaceLevel.NORMAL
    assert (refused(found), found.reason) == ([], "")


@given(st.lists(st.integers(0, SIZE), max_size=20), st.integers(0, SIZE))
def test_the_level_is_never_lower_than_that_of_the_free_space(
    history: list[int], free: int
) -> None:
    """Whatever was measured before: hysteresis only prolongs a level."""
    found, fresh = space(), space()
    for each in history:
        at(found, each)
    assert at(found, free) >= at(fresh, free)
    if free >= SIZE * 12 // 100:
        assert found.level is SpaceLevel.NORMAL


def test_the_watermarks_apply_to_inodes() -> None:
    found = space()

    def at_inodes(free: int) -> SpaceLevel:
        found.measured(DiskMeasure(SIZE, SIZE, free, 1_000))
        return found.level

    assert at_inodes(-1) is SpaceLevel.NORMAL, "a file system without a limit"
    assert at_inodes(100) is SpaceLevel.NORMAL
    assert at_inodes(99) is SpaceLevel.NO_PRODUCERS
    assert "99 of 1,000 inodes" in found.reason
    assert at_inodes(119) is SpaceLevel.NO_PRODUCERS
    assert at_inodes(49) is SpaceLevel.READ_ONLY
    found.measured(DiskMeasure(SIZE, SIZE, INODES_KEPT * 2, 1_000_000))
    assert found.level is SpaceLevel.NORMAL, "of many inodes, a fixed number is kept"
    off = DiskSpace(producers=Watermark(None, 0), replication=Watermark(0))
    off.measured(DiskMeasure(SIZE, SIZE, 0, 1_000))
    assert off.level is SpaceLevel.NORMAL


def test_failing_writes_are_a_problem_until_one_succeeds_or_the_disk_takes_writes_again() -> None:
    found = DiskSpace()
    works = DiskMeasure(SIZE, SIZE)
    found.write_failed(DiskFullError("writing x: no space"))
    assert found.reason == "writes to the disk fail: writing x: no space"
    assert found.state == "failing"
    assert refused(found) == [], "an append may succeed"
    found.write_succeeded()
    assert (found.reason, found.state) == ("", "normal")

    found.write_failed(DiskFullError("writing x: no space"))
    for _ in range(FAILURE_CHECKS - 1):
        assert not found.measured(works)
    assert not found.measured(works._replace(failure="no inode left"))
    assert found.failure == "no inode left"
    for _ in range(FAILURE_CHECKS - 1):
        assert not found.measured(works)
    assert found.failure
    assert found.measured(works), "it is over, which is reported"
    assert not found.reason


@pytest.mark.parametrize(
    ("lacks", "text"),
    [
        (DiskMeasure(SIZE, SIZE, 0, 100), "no inode is left"),
        (DiskMeasure(SIZE, SIZE, open_files=193, open_files_max=200), "193 of 200 file desc"),
    ],
)
def test_a_limit_of_files_that_is_reached_is_a_problem_without_watermarks(
    lacks: DiskMeasure, text: str
) -> None:
    found = DiskSpace()
    assert found.measured(lacks), "it is reported"
    assert text in found.reason
    assert not found.measured(lacks), "once"
    found.measured(DiskMeasure(SIZE, SIZE, 1, 100, open_files=192, open_files_max=200))
    found.write_succeeded()
    assert found.reason == ""


# -- disk watch ------------------------------------------------------------------------------------
#
# A disk that ends no sync is noticed in bounded time, and a process that slept is not to blame.


DISKS_TIMEOUT_S = 5.0
LATE_S = 2 * WATCH_SECONDS  # than the timeout, at most


class Threads:
    """Work is submitted, and ends when the test says so."""

    def __init__(self) -> None:
        self.unfinished = Unfinished()

    def submit(self) -> Any:
        return self.unfinished.until(lambda _result, _error: None)

    @property
    def as_workers(self) -> Workers:
        return cast(Workers, self)


class Bench:
    def __init__(self) -> None:
        self.loop = VirtualLoop()
        self.sync, self.journal, self.other = Threads(), Threads(), Threads()
        self.watch = DiskWatch(
            self.loop,
            sync=self.sync.as_workers,
            journal=self.journal.as_workers,
            others=[self.other.as_workers],
            timeout_s=DISKS_TIMEOUT_S,
        )
        self.hung = 0
        self.journal_hung = 0
        self.watch.start(on_logs_hung=self._logs, while_hung=self._while_hung)

    def _logs(self) -> None:
        self.hung += 1

    def _while_hung(self) -> None:
        self.journal_hung += self.watch.is_journal_hung

    def run(self, seconds: float) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)

        self.loop.run_until_complete(wait())


@pytest.fixture
def benches() -> Iterator[Callable[[], Bench]]:
    made: list[Bench] = []

    def make() -> Bench:
        made.append(Bench())
        return made[-1]

    yield make
    for bench in made:
        bench.watch.stop()
        bench.loop.close()


def test_a_sync_that_does_not_end_means_that_the_disk_hangs(benches: Callable[[], Bench]) -> None:
    b = benches()
    done = b.sync.submit()
    b.run(DISKS_TIMEOUT_S - 0.1)
    assert not b.watch.is_hung
    b.run(LATE_S + 0.1)
    assert b.watch.is_hung
    b.run(DISKS_TIMEOUT_S)
    assert (b.hung, b.journal_hung) == (1, 0), "said once"
    done(None, None)
    b.run(LATE_S)
    assert not b.watch.is_hung
    b.sync.submit()
    b.run(DISKS_TIMEOUT_S + LATE_S)
    assert b.hung == 2


def test_syncs_that_end_one_after_the_other_are_no_sign(benches: Callable[[], Bench]) -> None:
    b = benches()
    for _ in range(5):
        done = b.sync.submit()
        b.run(DISKS_TIMEOUT_S - LATE_S)
        done(None, None)
    assert b.hung == 0


def test_the_oldest_counts_though_others_end(benches: Callable[[], Bench]) -> None:
    b = benches()
    b.sync.submit()
    for _ in range(6):
        done = b.sync.submit()
        b.run(1)
        done(None, None)
    assert b.hung == 1


def test_a_process_that_slept_has_not_waited_for_its_disk(benches: Callable[[], Bench]) -> None:
    b = benches()
    b.sync.submit()
    b.journal.submit()
    b.run(LATE_S)
    b.loop.now += 100.0
    b.run(LATE_S)
    assert (b.hung, b.journal_hung) == (0, 0)
    b.run(DISKS_TIMEOUT_S)
    assert b.hung == 1


def test_a_journal_that_waits_is_noticed_sooner_where_logs_hang(
    benches: Callable[[], Bench],
) -> None:
    b = benches()
    b.journal.submit()
    b.run(DISKS_TIMEOUT_S - 0.1)
    assert not b.watch.is_journal_hung
    b.run(LATE_S + 0.1)
    assert b.watch.is_journal_hung
    assert b.journal_hung

    both = benches()
    both.sync.submit()
    both.run(DISKS_TIMEOUT_S + LATE_S)
    assert both.watch.is_hung
    both.journal.submit()
    both.run(JOURNAL_SECONDS + LATE_S)
    assert both.watch.is_journal_hung


def test_it_looks_no_more_once_it_is_stopped(benches: Callable[[], Bench]) -> None:
    b = benches()
    b.sync.submit()
    b.watch.stop()
    b.run(3 * DISKS_TIMEOUT_S)
    assert b.hung == 0


def test_other_work_that_takes_long_is_reason_for_doubt_alone(
    benches: Callable[[], Bench],
) -> None:
    b = benches()
    done = b.other.submit()
    b.run(SUSPECT_SECONDS - 0.1)
    assert not b.watch.is_suspect
    b.run(3 * DISKS_TIMEOUT_S)
    assert b.watch.is_suspect
    assert not b.watch.is_hung
    done(None, None)
    b.run(LATE_S)
    assert not b.watch.is_suspect


# -- journal reserve -------------------------------------------------------------------------------
#
# Room behind the journal: asked for once, again when half is used, and not always in vain.


class Keeping:
    def __init__(self, s: Scene) -> None:
        self.size = 1_000
        self.asked: list[int] = []
        self.error: OSError | None = None
        self.room = JournalReserve(
            self.reserve, size=lambda: self.size, worker=s.workers, now=s.loop.time
        )

    def reserve(self, size: int) -> None:
        self.asked.append(size)
        if self.error is not None:
            raise self.error

    async def poll(self, s: Scene) -> int:
        """How often it was asked for in all."""
        self.room.poll()
        await s.come_to_rest()
        return len(self.asked)


@runs(play)
async def test_it_is_kept_again_when_half_of_it_is_used(s: Scene) -> None:
    k = Keeping(s)
    assert await k.poll(s) == 1
    assert k.asked == [KEPT_BYTES]
    assert await k.poll(s) == 1
    k.size += KEPT_BYTES // 2 - 1
    assert await k.poll(s) == 1
    k.size += 1
    assert await k.poll(s) == 2
    assert await k.poll(s) == 2


@runs(play)
async def test_it_is_kept_again_behind_a_journal_that_was_rewritten(s: Scene) -> None:
    k = Keeping(s)
    await k.poll(s)
    k.size -= 1
    assert await k.poll(s) == 2


@runs(play)
async def test_one_at_a_time(s: Scene) -> None:
    k = Keeping(s)
    s.workers.hold()
    k.room.poll()
    k.room.poll()
    s.workers.release()
    await s.come_to_rest()
    assert len(k.asked) == 1


@runs(play)
async def test_where_there_is_none_it_is_asked_for_later(s: Scene) -> None:
    k = Keeping(s)
    k.error = OSError(errno.ENOSPC, "No space left on device")
    assert await k.poll(s) == 1
    assert await k.poll(s) == 1
    await asyncio.sleep(AGAIN_SECONDS)
    assert await k.poll(s) == 2
    k.error = None
    await asyncio.sleep(AGAIN_SECONDS)
    assert await k.poll(s) == 3
    await asyncio.sleep(AGAIN_SECONDS)
    assert await k.poll(s) == 3


# -- features --------------------------------------------------------------------------------------
#
# The versions that a broker reports of its formats.


@pytest.mark.parametrize("version", range(PEER_PROTOCOL_VERSION_MIN, PEER_PROTOCOL_VERSION + 1))
def test_a_broker_reads_what_it_writes(version: int) -> None:
    for each in features(version):
        assert each.version_min <= each.level <= each.version_max, each
    names = [each.name for each in features(version)]
    assert names == sorted(set(names))
    assert len(names) <= limits.FEATURES_MAX


# -- kafka batches ---------------------------------------------------------------------------------

# Batches of Kafka's clients on a broker: what raftlog's clients read of them.


NOW_MS = 1_700_000_000_000
LATER_MS = 20_000


def records_of(base: int, count: int) -> list[KafkaRecord]:
    return [
        KafkaRecord(b"v%d" % n, b"k%d" % n if n % 2 else None, NOW_MS + n, (("h", b"%d" % n),))
        for n in range(base, base + count)
    ]


def append(broker: RunningBroker, sent: bytes) -> None:
    """What the port for Kafka's clients does with a batch."""
    batch = to_stored(check_batch(sent))
    host = broker.broker.context.topics.host("t", 0)
    end = broker.call(lambda: host.append(batch, parse_header(batch))).last_offset + 1
    broker.wait_until(lambda: host.high_watermark >= end)


def test_raftlogs_clients_read_what_kafkas_clients_wrote(tmp_path: Path) -> None:
    expected = records_of(0, 100 * len(KAFKA_CODECS))
    with running(tmp_path) as broker:
        with broker.client() as client:
            client.create("t")
            for number, codec in enumerate(KAFKA_CODECS):
                append(broker, kafka_batch(expected[number * 100 :][:100], codec=codec))
            client.produce("t", batch_of(b"columns", timestamp_ms=NOW_MS + 900))
        tp = TopicPartition("t", 0)
        address = str(broker.address)
        with Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([tp])
            rows = []
            while len(rows) <= len(expected):
                rows += consumer.poll(timeout_ms=LATER_MS)
            assert [row.offset for row in rows] == list(range(len(expected) + 1))
            found = [KafkaRecord(r.value, r.key, r.timestamp_ms, r.headers) for r in rows]
            assert found[:-1] == expected
            assert found[-1].value == b"columns"
            assert consumer.offsets_for_times({tp: NOW_MS + 250})[tp].offset == 250
            consumer.seek(tp, 150)
            table = consumer.poll_arrow(timeout_ms=LATER_MS)
            assert table.column("offset").to_pylist()[:2] == [150, 151]
            assert table.column("value").to_pylist()[:2] == [b"v150", b"v151"]


def test_a_raftlog_client_cannot_send_rows(tmp_path: Path) -> None:
    batch = bytes(to_stored(check_batch(kafka_batch(records_of(0, 3)))))
    with running(tmp_path) as broker, broker.client() as client:
        client.create("t")
        error = error_of(client.produce("t", batch))
        assert isinstance(error, InvalidRequestError)
        assert "Kafka's protocol" in str(error)
