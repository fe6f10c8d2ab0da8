"""Single partitions of topics that a cluster has placed: hosted, brought up to date, dropped."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

import pytest

from raftlog.config import TopicConfig
from raftlog.errors import (
    DamagedLogError,
    DiskFullError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    StorageFailedError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.storage import Log, Store
from raftlog.storage.checkpoint import decode_slots
from raftlog.testing.disk import Fault, SimDisk, Stopped
from raftlog.types import TopicPartition
from tests.storage.crashes import sweep
from tests.storage.directories import (
    DATA,
    FIRST,
    SECOND,
    host,
    hosted,
    open_store,
    paths_of,
    reopened,
)
from tests.storage.logs import append, files, fill, sim_disk, values


@pytest.fixture(params=[pytest.param(1), pytest.param(20, marks=pytest.mark.seeds)])
def chances(request: pytest.FixtureRequest) -> int:
    """How many outcomes of each power cut are looked at."""
    count: int = request.param
    return count


# -- hosting ---------------------------------------------------------------------------------------


def test_only_the_hosted_partitions_are_here_and_they_stay() -> None:
    disk = sim_disk()
    store = open_store(disk)
    append(host(store, 2, segment_bytes="20000"), b"two")
    append(host(store, 0, segment_bytes="20000"), b"zero")
    assert paths_of(disk) == [f"clicks/{FIRST}/0", f"clicks/{FIRST}/2"]
    store.close()
    store = reopened(disk)
    topic = store.topic("clicks")
    assert (topic.id, topic.partitions, tuple(topic.local)) == (FIRST, 4, (0, 2))
    assert topic.config == TopicConfig(segment_bytes=20_000)
    assert values(store.log("clicks", 0)) == values(store.hosted_log(FIRST, 0)) == [b"zero"]
    assert values(store.log("clicks", 2)) == [b"two"]
    assert store.log("clicks", 2).config == topic.config
    assert sorted(key for key, _ in store.logs()) == [
        TopicPartition("clicks", 0),
        TopicPartition("clicks", 2),
    ]
    with pytest.raises(UnknownPartitionError, match="not on this broker"):
        store.log("clicks", 1)
    for id_, partition in ((FIRST, 1), ("other", 0)):
        with pytest.raises(UnknownPartitionError, match="not on this broker"):
            store.hosted_log(id_, partition)


def test_hosting_again_gives_the_same_log_and_writes_nothing() -> None:
    disk = sim_disk()
    store = open_store(disk)
    log = host(store, 1, count=3)
    changes = disk.changes
    assert host(store, 1) is log
    assert disk.changes == changes


def test_a_hosted_partition_is_durable_at_once() -> None:
    for seed in range(8):
        disk = sim_disk(seed)
        host(open_store(disk), 3, count=2)
        assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 3): 2}


@pytest.mark.parametrize("path", ["*/clicks", f"*/{FIRST}"])
def test_a_partition_that_a_killed_process_had_begun_to_host_is_durable_too(path: str) -> None:
    """Its directory, or that of its topic, is there already, and was never synced."""
    for seed in range(10):
        disk = sim_disk(seed)
        store = open_store(disk)
        if path != "*/clicks":
            host(store, 0)
        disk.faults.append(Fault({"sync_dir"}, error=None, path=path))
        with pytest.raises(Stopped):
            host(store, 1, count=1)
        disk.faults.clear()
        store = reopened(disk)
        host(store, 0)
        host(store, 1, count=1)
        again = reopened(disk, power_cut=True)
        assert hosted(again) == {(FIRST, 0): 0, (FIRST, 1): 1}
        log = again.hosted_log(FIRST, 1)
        assert log is not None
        assert not log.damage, "its directory did not vanish"


def test_several_are_hosted_with_one_write_of_the_catalog() -> None:
    disk = sim_disk()
    store = open_store(disk)
    counter = Fault({"rename"}, path="*catalog*", skip=100)
    disk.faults.append(counter)
    logs = store.host_partitions("clicks", FIRST, [3, 1], total_partitions=4, overrides={})
    assert logs == [store.hosted_log(FIRST, 3), store.hosted_log(FIRST, 1)]
    assert counter.skip == 99


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"name": "a/b"}, InvalidTopicError),
        ({"total": 0}, InvalidPartitionsError),
        ({"segment_bytes": "1"}, InvalidConfigError),
        ({"id_": "../.."}, AssertionError),
        ({"partition": 4}, AssertionError),
    ],
)
def test_what_makes_no_sense_is_refused_and_leaves_nothing(
    changes: dict[str, object], error: type[Exception]
) -> None:
    disk = sim_disk()
    store = open_store(disk)
    before = disk.changes
    with pytest.raises(error):
        host(store, **{"partition": 0, **changes})  # type: ignore[arg-type]
    assert disk.changes == before


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, DiskFullError), (errno.EIO, StorageFailedError)]
)
@pytest.mark.parametrize("operation", ["make_dir", "sync_dir", "rename"])
def test_a_partition_that_could_not_be_hosted_is_not_here(
    operation: str, code: int, error: type[Exception]
) -> None:
    disk = sim_disk()
    store = open_store(disk)
    id_ = SECOND if operation == "make_dir" else FIRST  # of a topic that has its directory
    host(store, 0, id_=id_)
    disk.faults.append(Fault({operation}, code))
    with pytest.raises(error, match=r"clicks|catalog"):
        host(store, 1)
    assert hosted(store) == {(id_, 0): 0}
    fill(host(store, 1), 2)
    assert hosted(reopened(disk)) == {(id_, 0): 0, (FIRST, 1): 2}


def test_a_topic_of_this_broker_alone_becomes_one_that_is_placed() -> None:
    disk = sim_disk()
    store = open_store(disk)
    topic = store.create_topic("clicks", partitions=2, config={})
    fill(store.log("clicks", 1), 3)
    store.update_topic(topic.id, overrides={}, total_partitions=4)
    assert tuple(store.topic("clicks").local) == (0, 1)
    host(store, 3, id_=topic.id)
    assert hosted(reopened(disk)) == {(topic.id, 0): 0, (topic.id, 1): 3, (topic.id, 3): 0}


# -- keeping up to date ----------------------------------------------------------------------------


def test_settings_and_the_partition_count_are_brought_up_to_date() -> None:
    disk = sim_disk()
    store = open_store(disk)
    log = host(store, 1)
    changes = disk.changes
    store.update_topic(FIRST, overrides={}, total_partitions=4)
    store.update_topic("not-here", overrides={}, total_partitions=9)
    assert disk.changes == changes
    store.update_topic(FIRST, overrides={"flush.policy": "os"}, total_partitions=6)
    for found in (store, reopened(disk, power_cut=True)):
        topic = found.topic("clicks")
        assert (topic.partitions, tuple(topic.local)) == (6, (1,))
        assert topic.config.flush_policy == "os"
    assert log.config.flush_policy == "os"
    assert reopened(disk).log("clicks", 1).config.flush_policy == "os"


# -- one name, two ids (S19) -----------------------------------------------------------------------


def test_a_topic_created_again_never_meets_the_files_of_the_first() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=5)
    host(store, 1, count=5)
    host(store, 0, id_=SECOND, total=1, count=2)
    assert store.topic("clicks").id == SECOND
    assert store.log("clicks", 0).log_end_offset == 2
    assert hosted(store) == {(FIRST, 0): 5, (FIRST, 1): 5, (SECOND, 0): 2}
    store = reopened(disk)
    assert hosted(store) == {(FIRST, 0): 5, (FIRST, 1): 5, (SECOND, 0): 2}
    assert store.topic("clicks").id == SECOND
    store.drop_partitions(FIRST, [0])
    store.drop_partitions(FIRST, [1])
    for found in (store, reopened(disk)):
        assert hosted(found) == {(SECOND, 0): 2}
        assert found.topic("clicks").id == SECOND
    assert paths_of(disk) == [f"clicks/{SECOND}/0"]


# -- dropping --------------------------------------------------------------------------------------


def test_a_dropped_partition_is_gone_with_its_files() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=2)
    host(store, 3, count=2)
    store.drop_partitions(FIRST, [3])
    store.drop_partitions(FIRST, [3])
    assert paths_of(disk) == [f"clicks/{FIRST}/0"]
    store = reopened(disk, power_cut=True)
    assert hosted(store) == {(FIRST, 0): 2}
    store.drop_partitions(FIRST, [0])
    assert paths_of(disk) == []
    with pytest.raises(UnknownTopicError):
        store.topic("clicks")
    assert hosted(reopened(disk, power_cut=True)) == {}
    assert disk.list_dir(f"{DATA}/topics/clicks") == []


def test_a_partition_that_comes_back_is_empty() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=5)
    host(store, 1, count=5)
    store.drop_partitions(FIRST, [1])
    assert host(store, 1).log_end_offset == 0
    store.drop_partitions(FIRST, [1])
    disk.faults.append(Fault({"remove"}, errno.ENOSPC))  # a removal that is cut short
    host(store, 1, count=3)
    with pytest.raises(DiskFullError):
        store.drop_partitions(FIRST, [1])
    assert host(store, 1).log_end_offset == 0
    assert hosted(reopened(disk)) == {(FIRST, 0): 5, (FIRST, 1): 0}


def test_a_drop_without_room_for_the_catalog_has_not_happened() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0, count=5)
    disk.faults.append(Fault({"rename"}, errno.ENOSPC))
    with pytest.raises(DiskFullError):
        store.drop_partitions(FIRST, [0])
    assert values(store.hosted_log(FIRST, 0))
    assert hosted(reopened(disk)) == {(FIRST, 0): 5}


class CountingDisk(SimDisk):
    """Counts the syncs of directories: of new names, and of replaced state files."""

    syncs = 0

    def sync_dir(self, path: str) -> None:
        self.syncs += 1
        super().sync_dir(path)


def test_many_partitions_take_as_many_syncs_as_few() -> None:
    """On a disk that takes a millisecond for each, a topic of 1,000 took seconds."""

    def syncs(count: int) -> tuple[int, int]:
        disk = CountingDisk(Random(1))
        disk.make_dirs("var")
        store = open_store(disk)
        before = disk.syncs
        store.host_partitions("clicks", FIRST, range(count), total_partitions=count, overrides={})
        made = disk.syncs
        store.drop_partitions(FIRST, range(count))
        assert hosted(reopened(disk, power_cut=True)) == {}
        return made - before, disk.syncs - made

    assert syncs(30) == syncs(2)


# -- directories -----------------------------------------------------------------------------------


def test_a_partition_gets_its_directory_with_its_first_record() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0)
    host(store, 1)
    assert paths_of(disk) == [f"clicks/{FIRST}"]
    fill(store.hosted_log(FIRST, 1), 2)
    assert paths_of(disk) == [f"clicks/{FIRST}/1"]
    assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 0): 0, (FIRST, 1): 2}
    disk.lose(f"{DATA}/topics/clicks/{FIRST}")
    store = reopened(disk)
    assert store.hosted_log(FIRST, 1).damage, "it had records"
    assert not store.hosted_log(FIRST, 0).damage
    fill(store.hosted_log(FIRST, 0), 1)


def test_a_directory_is_not_created_where_that_of_its_topic_was_lost() -> None:
    """Another file system can be in its place."""
    disk = sim_disk()
    store = open_store(disk)
    log = host(store, 1)
    disk.lose(f"{DATA}/topics/clicks")
    with pytest.raises(DamagedLogError, match="missing"):
        fill(log, 1)
    assert not disk.exists(f"{DATA}/topics/clicks")
    assert log.damage


def operations_of(disk: SimDisk) -> list[str]:
    """The changes to the disk from now on, with their paths below the data directory."""
    found: list[str] = []

    def note(operation: str, path: str) -> None:
        found.append(f"{operation} {path.removeprefix(DATA).removeprefix('/')}")

    disk.before = note
    return found


def test_the_first_record_syncs_nothing_on_the_event_loop_and_each_file_once_in_the_task() -> None:
    disk = sim_disk()
    log = host(open_store(disk), 1)
    operations = operations_of(disk)
    append(log, b"x")
    assert [each for each in operations if each.startswith("sync")] == []
    task = log.begin_sync()
    assert task is not None
    operations.clear()
    task.run()
    home, partition = f"topics/clicks/{FIRST}", f"topics/clicks/{FIRST}/1"
    assert [each for each in operations if each.startswith("sync")] == [
        f"sync {partition}/{0:020d}.log",
        f"sync {partition}/epochs.tmp",
        f"sync_dir {partition}",
        f"sync_dir {home}",
        f"sync {partition}/checkpoint",
        "sync copies.tmp",
        "sync_dir ",
    ]


def test_names_are_durable_before_a_slot_is_written_and_the_slots_before_the_record() -> None:
    """A kill in between leaves a checkpoint which shows that the names need no other sync."""
    disk = sim_disk()
    log = host(open_store(disk), 1)
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    append(log, b"x")
    task = log.begin_sync()
    assert task is not None
    seen = []

    def check(operation: str, at: str) -> None:
        if operation == "write" and at == f"{path}/checkpoint":
            assert disk.durable_bytes(f"{path}/{0:020d}.log")
            assert disk.durable_bytes(at) is not None
            seen.append("slot")
        elif operation == "create" and at == f"{DATA}/copies.tmp":
            found = decode_slots(disk.durable_bytes(f"{path}/checkpoint") or b"")
            assert found is not None
            assert (found[0], found[1].durable_end_offset) == (2, 1)
            seen.append("record")

    disk.before = check
    task.run()
    assert seen == ["slot", "slot", "record"]


def test_names_are_durable_before_a_slot_of_a_log_that_restarts_at_an_offset() -> None:
    """There is no sync task: the first write to the checkpoint syncs them."""
    disk = sim_disk()
    log = host(open_store(disk), 1)
    log.restart_at(7)
    assert disk.durable_bytes(f"{DATA}/topics/clicks/{FIRST}/1/checkpoint")
    assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 1): 7}


def test_a_full_disk_does_not_excuse_a_name_that_is_not_durable() -> None:
    """Other errors of a full disk are ignored after the records are durable."""
    disk = sim_disk()
    log = host(open_store(disk), 1)
    append(log, b"x")
    disk.faults.append(Fault({"sync_dir"}, errno.ENOSPC, path=f"{DATA}/topics/clicks/{FIRST}"))
    with pytest.raises(StorageFailedError):
        log.sync()


@pytest.mark.parametrize("is_full", [False, True])
def test_records_of_a_killed_process_have_a_durable_directory_once_they_are_open(
    is_full: bool,
) -> None:
    """They count as durable, and no sync task follows."""
    disk = sim_disk()
    append(host(open_store(disk), 1), b"x")
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    disk.crash()
    disk.lose(f"{path}/checkpoint")  # as a power failure may
    if is_full:
        disk.capacity_bytes = disk.used_bytes
    log = open_store(disk).hosted_log(FIRST, 1)
    assert log.durable_end_offset == 1
    assert disk.durable_bytes(f"{path}/{0:020d}.log")
    assert is_full or disk.durable_bytes(f"{path}/checkpoint") is not None
    disk.capacity_bytes = None
    fill(log, 1)
    assert hosted(reopened(disk, power_cut=True)) == {(FIRST, 1): 2}


def test_names_that_a_killed_process_has_created_are_made_durable() -> None:
    disk = sim_disk()
    log = host(open_store(disk), 1)
    disk.faults.append(Fault({"create"}, error=None, path="*.log"))
    with pytest.raises(Stopped):
        append(log, b"x")
    log = reopened(disk).hosted_log(FIRST, 1)
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    assert disk.exists(f"{path}/checkpoint")
    fill(log, 1)
    assert disk.durable_bytes(f"{path}/{0:020d}.log")


def without_checkpoint(disk: SimDisk) -> Log:
    """A log with a record that opened without a checkpoint, because the disk was full."""
    append(host(open_store(disk), 1, segment_bytes="16384"), b"x")
    disk.crash()
    disk.lose(f"{DATA}/topics/clicks/{FIRST}/1/checkpoint")
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*/checkpoint"))
    return open_store(disk).hosted_log(FIRST, 1)


def test_a_checkpoint_that_is_created_before_a_truncation_is_named() -> None:
    disk = sim_disk()
    log = without_checkpoint(disk)
    append(log, b"y")
    path = f"{DATA}/topics/clicks/{FIRST}/1/checkpoint"
    disk.faults.append(Fault({"sync_dir"}, errno.ENOSPC, path=f"*/{FIRST}/1"))
    with pytest.raises(StorageFailedError):
        log.truncate_to(1)
    assert disk.exists(path)


def test_a_checkpoint_that_is_created_while_a_task_runs_is_not_covered_by_it() -> None:
    """The task has synced the directory before, if the disk was full at the start."""
    disk = sim_disk()
    log = without_checkpoint(disk)
    path = f"{DATA}/topics/clicks/{FIRST}/1"
    append(log, b"y", leader_epoch=4)
    task = log.begin_sync()
    assert task is not None
    sync_dir = disk.sync_dir

    def sync_dir_and_roll(at: str) -> None:
        sync_dir(at)
        if log.segment_count == 1:
            append(log, bytes(16_300))

    disk.sync_dir = sync_dir_and_roll  # type: ignore[method-assign]
    task.run()
    assert log.segment_count == 2
    assert disk.durable_bytes(f"{path}/checkpoint") is not None


# -- crashes ---------------------------------------------------------------------------------------


@dataclass
class Hosts:
    """Which records of which partitions a crash may leave: one of these."""

    store: Store
    legal: list[dict[tuple[str, int], int]]


def prepare_two(disk: SimDisk) -> Hosts:
    store = open_store(disk)
    host(store, 0, count=2)
    host(store, 2, count=3)
    return Hosts(store, [{(FIRST, 0): 2, (FIRST, 2): 3}])


def check_hosts(disk: SimDisk, state: Hosts) -> None:
    store = open_store(disk)
    found = hosted(store)
    assert found in state.legal
    assert not any(log.damage for _, log in store.logs())
    for (id_, partition), end in found.items():
        log = store.hosted_log(id_, partition)
        append(log, b"on")
        log.sync()
        found[id_, partition] = end + 1
    store = reopened(disk, power_cut=True)
    assert hosted(store) == found
    state.legal = [found]
    hosts = {f"clicks/{id_}/{partition}" for id_, partition in found}
    for path in set(paths_of(disk)) - hosts:  # hosted by half
        assert files(disk, ".log", f"{DATA}/topics/{path}") == []
    store.abandon()
    disk.crash()


def test_hosting_partitions(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Hosts) -> None:
        (before,) = state.legal
        for id_, partition in ((FIRST, 1), (SECOND, 0)):
            after = {**before, (id_, partition): 0}
            state.legal = [before, after]
            host(state.store, partition, id_=id_)
            before = after
            state.legal = [after]

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_the_first_records_of_a_partition(chances: int, seed: int) -> None:
    """Without its directory, the partition is empty; no record that was durable is lost."""

    def act(disk: SimDisk, state: Hosts) -> None:
        (before,) = state.legal

        def ends(*counts: int) -> list[dict[tuple[str, int], int]]:
            return [{**before, (FIRST, 1): count} for count in counts]

        state.legal = [before, *ends(0)]
        log = host(state.store, 1)
        for count in (1, 2):
            state.legal = ends(count - 1, count)
            fill(log, 1)
            state.legal = ends(count)

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_dropping_partitions(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Hosts) -> None:
        state.legal = [{(FIRST, 0): 2, (FIRST, 2): 3}, {(FIRST, 0): 2}]
        state.store.drop_partitions(FIRST, [2])
        state.legal = [{(FIRST, 0): 2}, {}]
        state.store.drop_partitions(FIRST, [0])
        state.legal = [{}]

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_dropping_and_hosting_again(chances: int, seed: int) -> None:
    def act(disk: SimDisk, state: Hosts) -> None:
        state.legal = [{(FIRST, 0): 2, (FIRST, 2): 3}, {(FIRST, 0): 2}]
        state.store.drop_partitions(FIRST, [2])
        state.legal = [{(FIRST, 0): 2}, {(FIRST, 0): 2, (FIRST, 2): 0}]
        host(state.store, 2)
        state.legal = [{(FIRST, 0): 2, (FIRST, 2): 0}]

    sweep(prepare_two, act, check_hosts, seed=seed, chances=chances)


def test_a_restored_copy_that_was_removed_is_quarantined() -> None:
    """A replica that comes back to the broker must not continue with its older records."""
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0)
    host(store, 1, count=3)
    image = disk.image("var/data/topics")
    store.drop_partitions(FIRST, [1])
    store.abandon()
    disk.crash()
    disk.put_back("var/data/topics", image)
    store = open_store(disk)
    assert hosted(store) == {(FIRST, 0): 0}
    assert [note.split()[1:5] for note in store.notes] == [["is", "no", "copy", "of"]]
    assert disk.list_dir(f"var/data/topics/clicks/{FIRST}") == ["1.quarantine-1"]
    host(store, 1)
    assert hosted(store) == {(FIRST, 0): 0, (FIRST, 1): 0}


def test_a_copy_that_an_older_catalog_lacks_is_kept() -> None:
    disk = sim_disk()
    store = open_store(disk)
    host(store, 0)
    older = disk.image("var/data/catalog")
    host(store, 1, count=3)
    store.close()
    disk.put_back("var/data/catalog", older)
    store = open_store(disk)
    assert store.notes == []
    host(store, 1)
    assert hosted(store) == {(FIRST, 0): 0, (FIRST, 1): 3}
