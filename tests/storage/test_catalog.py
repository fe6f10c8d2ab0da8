"""Topics and producer ids: what is accepted, refused, and read back after a restart."""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.disk import OsDisk
from raftlog.errors import (
    DamagedLogError,
    DataDirectoryError,
    DiskFullError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    RaftlogError,
    StorageFailedError,
    UnknownTopicError,
)
from raftlog.storage import Log, Store, state_files
from raftlog.storage import catalog as module
from raftlog.storage.catalog import Catalog, Dropping, Topic
from raftlog.storage.checkpoint import (
    SLOT_BYTES,
    SLOTS,
    Anchor,
    Checkpoint,
    CheckpointFile,
    Copies,
    CopyRecord,
    decode_slots,
    encode_slot,
)
from raftlog.storage.disk_tasks import write_unsynced
from raftlog.testing.disk import FOREVER, Fault, SimDisk, Stopped
from tests.server.harness import values_of
from tests.storage.crashes import sweep
from tests.storage.directories import (
    DATA,
    FIRST,
    SECOND,
    SimDiskOfTrees,
    host,
    open_store,
    reopened,
)
from tests.storage.harm import overwrite
from tests.storage.logs import (
    DIRECTORY,
    ONE_SEGMENT,
    append,
    files,
    fill,
    killed,
    open_log,
    sim_disk,
    stored,
    value_at,
    values,
)

PATH = "data/catalog"


def new_disk() -> SimDisk:
    disk = sim_disk()
    disk.make_dirs("data")
    return disk


def catalog_on(disk: SimDisk) -> Catalog:
    return Catalog(disk, PATH)


def created(catalog: Catalog, name: str = "clicks", partitions: int = 2, **keys: str) -> Topic:
    overrides = {key.replace("_", "."): value for key, value in keys.items()}
    topic = planned(catalog, name, partitions, overrides)
    catalog.host(topic)
    return topic


def planned(catalog: Catalog, name: str, partitions: int, overrides: Mapping[str, str]) -> Topic:
    """A topic all of whose partitions are here; its id is its name."""
    wanted = range(min(partitions, 10))
    return catalog.plan_hosting(name, name, wanted, total=partitions, overrides=overrides)


def test_a_topic_is_read_back_after_a_power_cut() -> None:
    disk = new_disk()
    topic = created(catalog_on(disk), retention_ms="5000")
    disk.power_cut()
    catalog = catalog_on(disk)
    assert catalog.get("clicks") == topic
    assert topic.config == TopicConfig(retention_ms=5_000)
    assert topic.overrides == {"retention.ms": "5000"}
    assert catalog.deleting == {}


def test_a_change_encodes_one_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands, all took longer with each topic that there was."""
    disk = new_disk()
    catalog = catalog_on(disk)
    for number in range(3):
        created(catalog, f"t{number}")
    encoded: list[str] = []
    to_state = module._to_state

    def count(topic: Topic) -> dict[str, Any]:
        encoded.append(topic.name)
        return to_state(topic)

    monkeypatch.setattr(module, "_to_state", count)
    created(catalog, "t3")
    created(catalog, "t1", retention_ms="5000")
    assert encoded == ["t3", "t1"]
    data = disk.read_file(PATH, bytes_max=1 << 20)
    assert data == state_files.encode(state_files.decode(data, path=PATH)), "as if encoded at once"
    assert catalog_on(disk).by_id == catalog.by_id


@pytest.mark.parametrize(
    ("name", "partitions", "overrides", "error"),
    [
        ("a/b", 1, {}, InvalidTopicError),
        ("..", 1, {}, InvalidTopicError),
        ("", 1, {}, InvalidTopicError),
        ("x" * 250, 1, {}, InvalidTopicError),
        ("caf\u00e9", 1, {}, InvalidTopicError),
        ("new", 0, {}, InvalidPartitionsError),
        ("new", -1, {}, InvalidPartitionsError),
        ("new", limits.PARTITIONS_PER_TOPIC_MAX + 1, {}, InvalidPartitionsError),
        ("new", 1, {"retention.hours": "1"}, InvalidConfigError),
        ("new", 1, {"retention.ms": "soon"}, InvalidConfigError),
        ("new", 1, {"segment.bytes": "1"}, InvalidConfigError),
    ],
)
def test_what_is_wrong_with_a_new_topic_is_told(
    name: str, partitions: int, overrides: dict[str, str], error: type[RaftlogError]
) -> None:
    catalog = catalog_on(new_disk())
    created(catalog)
    with pytest.raises(error):
        planned(catalog, name, partitions, overrides)
    assert list(catalog.topics) == ["clicks"]


def test_readers_see_the_topics_before_or_after() -> None:
    catalog = catalog_on(new_disk())
    before = catalog.topics
    created(catalog)
    assert before == {}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault({"sync"}), StorageFailedError),
        (Fault({"write"}, error=28, times=2), DiskFullError),  # also of the spare space
    ],
)
def test_a_change_that_cannot_be_written_did_not_happen(
    fault: Fault, error: type[RaftlogError]
) -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    created(catalog)
    disk.faults.append(fault)
    with pytest.raises(error, match="data/catalog"):
        catalog.drop("clicks", [0])
    assert list(catalog.topics) == ["clicks"]
    assert list(catalog_on(disk).topics) == ["clicks"]


def test_damage_to_the_catalog_is_never_taken_for_an_empty_one() -> None:
    disk = new_disk()
    created(catalog_on(disk))
    disk.flip_bit(PATH, 300)
    with pytest.raises(DamagedLogError, match="data/catalog is corrupt"):
        catalog_on(disk)


# -- single partitions -----------------------------------------------------------------------------


def placed(catalog: Catalog, *partitions: int, id_: str = "aa", name: str = "clicks") -> Topic:
    topic = catalog.plan_hosting(name, id_, partitions, total=5, overrides={})
    catalog.host(topic)
    return topic


def test_hosted_partitions_are_read_back_and_add_up() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    placed(catalog, 3)
    topic = placed(catalog, 1, 4)
    assert (topic.partitions, topic.local) == (5, (1, 3, 4))
    disk.power_cut()
    assert catalog_on(disk).topics == catalog_on(disk).topics == {"clicks": topic}


def test_only_what_is_here_counts_against_the_limit() -> None:
    catalog = catalog_on(new_disk())
    for number in range(limits.PARTITIONS_PER_BROKER_MAX // limits.PARTITIONS_PER_TOPIC_MAX):
        id_, total = f"t{number}", limits.PARTITIONS_PER_TOPIC_MAX
        wanted = range(total - (number == 0))
        catalog.host(catalog.plan_hosting(id_, id_, wanted, total=total, overrides={}))
    placed(catalog, 4)
    placed(catalog, 4)
    with pytest.raises(InvalidPartitionsError, match="the broker would have"):
        placed(catalog, 3)


def test_dropped_partitions_are_remembered_until_their_files_are_gone() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    placed(catalog, 1, 2)
    assert catalog.drop("aa", [4]) == []
    assert catalog.drop("bb", [1]) == []
    (first,), (second,) = catalog.drop("aa", [4, 1]), catalog.drop("aa", [2, 1])
    assert first == Dropping("clicks", "aa", 1)
    assert catalog.topics == {}
    assert catalog.unneeded([first]) == {}  # the directory has the other's files
    assert catalog.unneeded([first, second]) == {"aa": second}
    again = catalog_on(disk)
    assert again.dropping == (first, second)
    again.dropped([first])
    assert again.unneeded([second]) == {"aa": second}
    again.dropped([second])
    assert catalog_on(disk).dropping == ()


def test_of_two_topics_of_one_name_the_last_one_counts() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    placed(catalog, 1, id_="aa")
    placed(catalog, 2, id_="bb")
    placed(catalog, 3, id_="aa")
    for found in (catalog, catalog_on(disk)):
        assert found.get("clicks").id == "bb"
        assert list(found.by_id) == ["aa", "bb"]
        assert found.by_id["aa"].local == (1, 3)


def test_a_full_disk_leaves_room_for_the_changes_that_free_it() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    for name in ("a", "b", "c"):
        created(catalog, name)
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFullError):
        created(catalog, "d")
    catalog.dropped(catalog.drop("b", [0, 1]))
    again = catalog_on(disk)
    assert sorted(again.topics) == ["a", "c"]
    assert again.dropping == ()


def test_the_catalog_of_an_earlier_release_is_read() -> None:
    """Topics were here as a whole, and those that were deleted were listed until their files were
    gone.
    """
    disk = new_disk()
    row = {"name": "clicks", "id": "aa", "partitions": 2, "config": {}}
    gone = {**row, "id": "bb"}
    state = {"topics": [row], "deleting": [gone], "producer_ids_reserved": 1_000}
    state_files.write(disk, PATH, state)
    catalog = catalog_on(disk)
    assert catalog.get("clicks") == Topic("clicks", "aa", 2)
    assert (list(catalog.get("clicks").local), catalog.dropping) == ([0, 1], ())
    catalog.deleted(catalog.deleting["bb"])
    assert catalog_on(disk).deleting == {}
    with pytest.raises(UnknownTopicError, match=r"missing.*raftlog topic create"):
        catalog.get("missing")


# -- checkpoint ------------------------------------------------------------------------------------
#
# Two slots, overwritten in turns: what is read back after every way of losing one or both.


CHECKPOINT_PATH = "log/checkpoint"
offsets = st.integers(0, (1 << 63) - 1)
anchors = st.builds(Anchor, offsets, st.integers(0, (1 << 64) - 1), st.integers(-1, 1 << 31))


def disk_with_log(seed: int = 1) -> SimDisk:
    disk = SimDisk(Random(seed))
    disk.make_dirs("log")
    return disk


def loaded(disk: SimDisk) -> CheckpointFile:
    checkpoint = CheckpointFile(disk, CHECKPOINT_PATH)
    assert checkpoint.load() == ""
    return checkpoint


def slots(first: bytes, second: bytes) -> bytes:
    return first.ljust(SLOT_BYTES, b"\0") + second.ljust(SLOT_BYTES, b"\0")


@given(st.builds(Checkpoint, offsets, offsets, offsets, anchors), st.integers(1, 1 << 40))
def test_a_slot_is_read_back(checkpoint: Checkpoint, sequence: int) -> None:
    assert decode_slots(encode_slot(sequence, checkpoint)) == (sequence, checkpoint)


def test_the_bytes_are_as_drawn() -> None:
    data = encode_slot(5, Checkpoint(1, 2, 3, Anchor(4, (1 << 64) - 6, 7), (1 << 64) - 9))
    assert (len(data), data[:4]) == (72, b"RLC2")
    words = [int.from_bytes(data[at : at + 8], "little") for at in range(8, 72, 8)]
    assert words == [(1 << 64) - 9, 5, 1, 2, 3, 4, (1 << 64) - 6, 7]
    assert SLOT_BYTES * SLOTS == 8_192


def test_the_newest_slot_counts() -> None:
    old, new = encode_slot(5, Checkpoint(1, 1, 1)), encode_slot(6, Checkpoint(2, 2, 2))
    assert decode_slots(slots(old, new)) == (6, Checkpoint(2, 2, 2))
    assert decode_slots(slots(new, old)) == (6, Checkpoint(2, 2, 2))


def test_a_changed_bit_gives_the_other_slot() -> None:
    old, new = encode_slot(5, Checkpoint(1, 1, 1)), encode_slot(6, Checkpoint(2, 2, 2))
    for bit in range(len(new) * 8):
        rotten = bytearray(new)
        rotten[bit // 8] ^= 1 << bit % 8
        assert decode_slots(slots(old, bytes(rotten))) == (5, Checkpoint(1, 1, 1)), bit


@given(st.binary(min_size=1, max_size=2 * SLOT_BYTES))
def test_any_bytes_are_slots_or_none(data: bytes) -> None:
    found = decode_slots(data)
    assert found is None or found == (0, Checkpoint())


def test_a_new_log_has_none_and_needs_none() -> None:
    assert loaded(disk_with_log()).latest == Checkpoint()


def test_a_change_is_kept_by_a_killed_process_and_leaves_the_rest() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.update(log_start_offset=3)
    checkpoint.update(durable_end_offset=9, high_watermark=8)
    checkpoint.update(durable_end_offset=10)
    disk.crash()
    assert loaded(disk).latest == Checkpoint(3, 8, 10)


def test_a_synced_change_survives_a_power_cut_and_later_ones_are_old_or_new() -> None:
    seen = set()
    for seed in range(40):
        disk = disk_with_log(seed)
        checkpoint = loaded(disk)
        checkpoint.update(durable_end_offset=10, sync=True)
        for end in (11, 12, 13):
            checkpoint.update(durable_end_offset=end)
        disk.power_cut()
        seen.add(loaded(disk).latest.durable_end_offset)
    assert seen == {10, 11, 12, 13}


def test_the_name_is_durable_before_the_first_slot_is_written() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    assert disk.durable_bytes(CHECKPOINT_PATH) is None

    def check(operation: str, _path: str) -> None:
        assert operation != "write" or disk.durable_bytes(CHECKPOINT_PATH) is not None

    disk.before = check
    checkpoint.update(durable_end_offset=1)
    assert checkpoint.is_written


@pytest.mark.parametrize("slot", range(SLOTS))
def test_a_synced_change_survives_the_loss_of_either_slot(slot: int) -> None:
    """Falling back to the start before would look like missing segments."""
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.update(log_start_offset=1, sync=True)
    checkpoint.update(log_start_offset=2, sync=True)
    disk.flip_bit(CHECKPOINT_PATH, slot * SLOT_BYTES * 8 + 99)
    assert loaded(disk).latest.log_start_offset == 2


def test_a_torn_first_write_is_what_a_new_log_says() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    disk.faults.append(Fault({"write"}))
    with pytest.raises(OSError, match="Input/output"):
        checkpoint.update(durable_end_offset=9)
    disk.crash()
    assert loaded(disk).latest in (Checkpoint(), Checkpoint(0, 0, 9))


def test_two_bad_slots_are_told() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    for end in (1, 2):
        checkpoint.update(durable_end_offset=end)
    for slot in range(SLOTS):
        disk.flip_bit(CHECKPOINT_PATH, slot * SLOT_BYTES * 8 + 99)
    checkpoint = CheckpointFile(disk, CHECKPOINT_PATH)
    assert "no valid slot" in checkpoint.load()
    assert checkpoint.latest == Checkpoint()


def test_a_file_that_cannot_be_read_is_told() -> None:
    disk = disk_with_log()
    loaded(disk).update(durable_end_offset=1)
    disk.faults.append(Fault({"read"}))
    assert "cannot be read" in CheckpointFile(disk, CHECKPOINT_PATH).load()


def test_writing_goes_on_in_the_older_slot() -> None:
    disk = disk_with_log()
    loaded(disk).update(durable_end_offset=1)
    for end in (2, 3, 4):
        loaded(disk).update(durable_end_offset=end)
        assert loaded(disk).latest.durable_end_offset == end


def test_raising_the_log_start_never_lowers_it() -> None:
    """Two tasks may run in any order; lowering is truncation's, and says so."""
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.raise_log_start(60)
    checkpoint.raise_log_start(50)
    assert loaded(disk).latest.log_start_offset == 60
    checkpoint.update(log_start_offset=40, sync=True)
    disk.power_cut()
    assert loaded(disk).latest.log_start_offset == 40


def test_all_room_is_taken_when_the_file_is_made() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    disk.capacity_bytes = 0
    checkpoint.prepare()
    for end in range(5):
        checkpoint.update(durable_end_offset=end, sync=True)
    disk.power_cut()
    assert loaded(disk).latest.durable_end_offset == 4


def test_making_the_file_on_a_full_disk_fails_and_works_later() -> None:
    disk = disk_with_log()
    disk.capacity_bytes = 5_000
    checkpoint = loaded(disk)
    for _ in range(2):
        with pytest.raises(OSError, match="No space") as raised:
            checkpoint.prepare()
        assert raised.value.errno == errno.ENOSPC
    disk.capacity_bytes = None
    checkpoint.update(durable_end_offset=7, sync=True)
    disk.power_cut()
    assert loaded(disk).latest.durable_end_offset == 7


def test_closing_twice_is_harmless_and_writing_opens_again() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.update(durable_end_offset=1)
    checkpoint.close()
    checkpoint.close()
    checkpoint.update(durable_end_offset=2)
    assert loaded(disk).latest.durable_end_offset == 2


def test_an_anchor_goes_with_the_log_start_and_never_back() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.raise_log_start(60, Anchor(50, 5, 1))
    checkpoint.raise_log_start(40, Anchor(30, 3, 1))
    checkpoint.raise_log_start(70)
    disk.power_cut()
    assert loaded(disk).latest == Checkpoint(70, 0, 0, Anchor(50, 5, 1))
    checkpoint = loaded(disk)
    checkpoint.update(anchor=Anchor(7), log_start_offset=7, sync=True)
    disk.power_cut()
    assert loaded(disk).latest == Checkpoint(7, 0, 0, Anchor(7, 0, -1))


def test_an_anchor_speaks_of_one_offset() -> None:
    assert Anchor().is_known_at(0)
    assert not Anchor().is_known_at(5)
    assert Anchor(5, 77, 1).is_known_at(5)
    assert not Anchor(5, 77, 1).is_known_at(6)
    assert not Anchor(5).is_known_at(5)


def test_it_is_written_once_it_has_said_something() -> None:
    disk = disk_with_log()
    checkpoint = loaded(disk)
    checkpoint.prepare()
    assert not checkpoint.is_written
    checkpoint.update(durable_end_offset=1)
    assert checkpoint.is_written
    assert loaded(disk).is_written


def test_where_the_file_is_open_a_segment_is_begun_beside_a_sync() -> None:
    """The event loop must not wait for a thread that is in a sync."""
    taken: list[str] = []

    class Mutex:
        def __enter__(self) -> None:
            taken.append("taken")

        def __exit__(self, *_error: object) -> None:
            """Another thread may have it."""

    disk = SimDisk(Random(1))
    disk.make_mutex = Mutex
    disk.make_dirs("log")
    checkpoint = CheckpointFile(disk, "log/checkpoint")
    for _ in range(3):
        checkpoint.prepare()
    assert taken == ["taken"]


# -- copies ----------------------------------------------------------------------------------------
#
# Partitions' files that vanish, or are older than the data directory knows: damage, never a new
# log.


PARTITION = f"{DATA}/topics/clicks/{FIRST}/1"
CHECKPOINT = f"{PARTITION}/checkpoint"


def checkpoint_new_disk() -> SimDisk:
    return SimDiskOfTrees(sim_disk().random)


def ended(store: Store, disk: SimDisk, how: str) -> None:
    """The process ends, by one of three ways."""
    if how == "stop":
        store.close()
    elif how == "power cut":
        disk.power_cut()


def written(disk: SimDisk, how: str = "kill", *, count: int = 5) -> None:
    """A data directory with two partitions, the second one with ``count`` records."""
    store = open_store(disk)
    fill(host(store, 0), 1)
    fill(host(store, 1, segment_bytes="16384"), count)
    ended(store, disk, how)


def remove_checkpoint_and_tail(disk: SimDisk) -> None:
    disk.lose(CHECKPOINT)
    disk.cut_off(f"{PARTITION}/{0:020d}.log", 300)


def empty(disk: SimDisk) -> None:
    for name in disk.list_dir(PARTITION):
        disk.lose(f"{PARTITION}/{name}")


def zero_checkpoint(disk: SimDisk) -> None:
    overwrite(disk, CHECKPOINT, bytes(8_192))


VANISHING: dict[str, Callable[[SimDisk], None]] = {
    "directory": lambda disk: disk.lose(PARTITION),
    "content of the directory": empty,
    "topic": lambda disk: disk.lose(f"{DATA}/topics/clicks"),
    "all topics": lambda disk: disk.lose(f"{DATA}/topics"),
    "segment": lambda disk: disk.lose(f"{PARTITION}/{0:020d}.log"),
    "checkpoint": lambda disk: disk.lose(CHECKPOINT),
    "checkpoint and tail": remove_checkpoint_and_tail,
    "zeros for a checkpoint": zero_checkpoint,
}


def test_files_that_vanish_are_damage() -> None:
    for what, vanish in VANISHING.items():
        for how in ["kill", "stop", "power cut"]:
            disk = checkpoint_new_disk()
            written(disk, how)
            disk.crash()
            vanish(disk)
            for _start in range(3):
                store = reopened(disk)
                log = store.hosted_log(FIRST, 1)
                assert PARTITION in log.damage
                assert log.log_end_offset == 5
                with pytest.raises(DamagedLogError):
                    append(log, b"x")
                with pytest.raises(DamagedLogError):
                    log.read(start_offset=4, end_offset=5, bytes_max=1)
                if "topic" not in what:
                    assert values(store.hosted_log(FIRST, 0)) == [b"0 ".ljust(200, b".")]


def linked(data: Path, below: str) -> Path:
    """A data directory with two partitions, one of them with records, of which a part is at the
    end of a symbolic link. Returns the place of that part.
    """
    store = Store.open(OsDisk(), str(data))
    host(store, 0)
    host(store, 1, count=5)
    store.close()
    link, place = data / below, data.parent / "mounted"
    link.rename(place)
    link.symlink_to(place)
    return place


@pytest.mark.parametrize("below", ["topics", "topics/clicks", f"topics/clicks/{FIRST}/1"])
def test_a_link_that_leads_nowhere_is_damage_until_it_leads_somewhere(
    tmp_path: Path, below: str
) -> None:
    data = tmp_path / "data"
    place = linked(data, below)
    away = place.rename(tmp_path / "not mounted")
    for _start in range(2):
        store = Store.open(OsDisk(), str(data), has_peers=True)
        for number in range(2 if below != f"topics/clicks/{FIRST}/1" else 0):
            assert f"{data / below} is a symbolic link" in store.hosted_log(FIRST, number).damage
        assert "held records up to offset 5" in store.hosted_log(FIRST, 1).damage
        store.abandon()
    away.rename(place)
    store = Store.open(OsDisk(), str(data), has_peers=True)
    assert len(values(store.hosted_log(FIRST, 1))) == 5
    assert not store.hosted_log(FIRST, 0).damage
    store.abandon()


@pytest.mark.parametrize("below", ["topics", "topics/clicks", f"topics/clicks/{FIRST}/1"])
def test_a_copy_at_a_link_that_leads_nowhere_can_be_replaced(tmp_path: Path, below: str) -> None:
    data = tmp_path / "data"
    linked(data, below).rename(tmp_path / "not mounted")
    store = Store.open(OsDisk(), str(data), has_peers=True)
    store.quarantine(FIRST, 1)
    assert (data / f"{below}.quarantine-1").is_symlink()
    fill(store.hosted_log(FIRST, 1), 2)
    store.close()
    store = Store.open(OsDisk(), str(data), has_peers=True)
    assert len(values(store.hosted_log(FIRST, 1))) == 2
    store.drop_partitions(FIRST, [1])  # with what is in quarantine
    assert not (data / f"topics/clicks/{FIRST}/1.quarantine-1").is_symlink()
    store.close()


def test_a_lone_broker_does_not_start_without_the_place_of_its_topics(tmp_path: Path) -> None:
    data = tmp_path / "data"
    place = linked(data, "topics")
    away = place.rename(tmp_path / "not mounted")
    with pytest.raises(DataDirectoryError, match=f"{data}/topics is a symbolic link to a path"):
        Store.open(OsDisk(), str(data))
    away.rename(place)
    store = Store.open(OsDisk(), str(data))
    assert len(values(store.hosted_log(FIRST, 1))) == 5
    store.close()


def test_a_new_topic_does_not_need_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    data = tmp_path / "data"
    linked(data, "topics/clicks").rename(tmp_path / "not mounted")
    store = Store.open(OsDisk(), str(data), has_peers=True)
    assert not host(store, 0, id_=SECOND, count=1).damage
    store.abandon()


@pytest.mark.parametrize("how", ["kill", "stop", "power cut"])
@pytest.mark.parametrize("count", [1, 60], ids=["a record", "several segments"])
def test_files_from_before_the_last_start_are_damage(how: str, count: int) -> None:
    disk = checkpoint_new_disk()
    written(disk, "stop")
    old = disk.image(PARTITION)
    disk.crash()
    store = open_store(disk)
    fill(store.hosted_log(FIRST, 1), count)
    ended(store, disk, how)
    disk.crash()
    disk.put_back(PARTITION, old)
    assert "an older state" in reopened(disk).hosted_log(FIRST, 1).damage
    for _start in range(9):  # what a user deletes in a damaged log does not make it any newer
        log = reopened(disk).hosted_log(FIRST, 1)
        assert log.damage
        log.advance_log_start(log.log_start_offset).run()


def test_older_files_that_are_longer_are_damage() -> None:
    disk = checkpoint_new_disk()
    written(disk, "stop", count=9)
    old = disk.image(PARTITION)
    disk.crash()
    store = open_store(disk)
    log = store.hosted_log(FIRST, 1)
    log.truncate_to(3)
    fill(log, 2, leader_epoch=4)
    disk.crash()
    disk.put_back(PARTITION, old)
    assert "an older state" in reopened(disk).hosted_log(FIRST, 1).damage


def test_the_files_of_an_earlier_copy_are_damage() -> None:
    disk = checkpoint_new_disk()
    written(disk, count=20)
    old = disk.image(PARTITION)
    store = reopened(disk)
    store.quarantine(FIRST, 1)
    fill(store.hosted_log(FIRST, 1), 2)
    disk.crash()
    disk.put_back(PARTITION, old)
    assert "another copy" in reopened(disk).hosted_log(FIRST, 1).damage


@pytest.mark.parametrize("how", ["kill", "stop", "power cut"])
def test_what_is_there_is_no_damage(how: str) -> None:
    disk = checkpoint_new_disk()
    written(disk, how)
    for number in range(5, 9):
        store = reopened(disk)
        log = store.hosted_log(FIRST, 1)
        assert log.damage == ""
        assert len(values(log)) == number
        fill(log, 1)
        ended(store, disk, how)


def test_a_power_cut_at_any_moment_is_no_damage(seed: int) -> None:
    """The record is never ahead of the disk."""
    for number in range(60):
        disk = SimDiskOfTrees(sim_disk(seed + number).random)
        disk.faults.append(Fault(error=None, skip=number))
        try:
            written(disk, "stop")
        except Stopped:
            disk.crash()
        disk.faults.clear()
        disk.power_cut()
        store = open_store(disk)
        assert [log.damage for _, _, log in store.hosted() if log.damage] == []


def test_a_partition_that_never_held_a_record_may_vanish() -> None:
    disk = checkpoint_new_disk()
    host(open_store(disk), 1)
    disk.lose(f"{DATA}/topics")
    log = reopened(disk).hosted_log(FIRST, 1)
    fill(log, 1)
    assert log.damage == ""


def test_a_quarantine_makes_room_for_a_copy_that_is_missing() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    disk.lose(f"{DATA}/topics")
    store = reopened(disk)
    assert store.quarantine(FIRST, 1) == f"{PARTITION}.quarantine-1"
    fill(store.hosted_log(FIRST, 1), 3)
    log = reopened(disk).hosted_log(FIRST, 1)
    assert (log.damage, log.log_end_offset) == ("", 3)


def test_a_partition_that_was_dropped_is_forgotten() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    store = reopened(disk)
    store.drop_partitions(FIRST, [1])
    log = host(store, 1)
    assert (log.damage, log.log_end_offset) == ("", 0)
    fill(log, 1)
    store = reopened(disk)
    assert store.hosted_log(FIRST, 1).damage == ""
    store.drop_partitions(FIRST, [1])
    store.drop_partitions(FIRST, [0])
    assert Copies(disk, DATA, new_id=lambda: "", is_new=True).rows == {}


def test_a_catalog_that_vanishes_too_makes_no_new_log() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    disk.lose(f"{DATA}/topics")
    disk.lose(f"{DATA}/catalog")
    assert "is missing" in host(reopened(disk), 1).damage


def test_a_rotten_checkpoint_is_rebuilt_up_to_the_end_that_is_on_record() -> None:
    for lost_bytes, is_damaged in ((0, False), (1, True)):
        disk = checkpoint_new_disk()
        written(disk, "stop")
        overwrite(disk, CHECKPOINT, b"rotten" * 1_000)
        for name in (name for name in disk.list_dir(PARTITION) if name.endswith(".index")):
            disk.lose(f"{PARTITION}/{name}")
        path = f"{PARTITION}/{0:020d}.log"
        disk.cut_off(path, len(disk.read_file(path, bytes_max=1 << 20)) - lost_bytes)
        for _start in range(2):
            log = reopened(disk).hosted_log(FIRST, 1)
            assert bool(log.damage) == is_damaged


def test_without_the_file_what_is_there_counts() -> None:
    disk = checkpoint_new_disk()
    written(disk, "stop")
    disk.lose(PARTITION)
    disk.lose(f"{DATA}/copies")
    log = reopened(disk).hosted_log(FIRST, 1)
    assert (log.damage, log.log_end_offset) == ("", 0)


def test_a_rotten_file_is_refused() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    overwrite(disk, f"{DATA}/copies", b"rotten")
    with pytest.raises(DataDirectoryError, match="copies is corrupt"):
        reopened(disk)


def test_a_full_disk_does_not_keep_a_copy_from_being_cut() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    store = reopened(disk)
    disk.faults.append(Fault({"create"}, errno.ENOSPC, path="*copies*"))
    log = store.hosted_log(FIRST, 1)
    log.truncate_to(3)
    fill(log, 2)
    disk.lose(PARTITION)
    assert reopened(disk).hosted_log(FIRST, 1).damage


def test_any_other_failure_of_the_disk_is_raised() -> None:
    disk = checkpoint_new_disk()
    disk.make_dirs(DATA)
    copies = Copies(disk, DATA, new_id=lambda: "x", is_new=True)
    disk.faults.append(Fault({"sync"}, errno.EIO))
    with pytest.raises(OSError, match="error"):
        copies.of(FIRST, 1).record(CopyRecord(1, 2, 3, 4))


def test_records_after_the_first_are_saved_together() -> None:
    disk = checkpoint_new_disk()
    store = open_store(disk)
    logs = [host(store, number, count=2) for number in range(4)]
    for log in logs:
        log.truncate_to(1)
    before = disk.changes
    store.save_copies()
    assert disk.changes - before < 10
    store.save_copies()
    known = Copies(disk, DATA, new_id=lambda: "x", is_new=True).rows
    assert [record.durable_end_offset for record in known.values()] == [1, 1, 1, 1]
    assert len({record.copy_id for record in known.values()}) == 4


def test_copies_of_a_topic_are_forgotten_while_others_are_recorded() -> None:
    """By the threads of syncs. Without a lock, nearly each search ends with an error."""
    disk = checkpoint_new_disk()
    disk.make_dirs(DATA)
    copies = Copies(disk, DATA, new_id=lambda: "x", is_new=True)
    record = CopyRecord(1, 2, 3, 4)
    copies.recorded.update(f"{number}/0" for number in range(100_000))
    for number in range(2_000):
        copies.of(f"{number}", 0).record(record)
    is_over = threading.Event()

    def write() -> None:
        for number in range(2_000, 100_000):
            if is_over.is_set():
                break
            copies.of(f"{number}", 0).record(record)

    thread = threading.Thread(target=write)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        for number in range(20):
            copies.forget_topic(f"{number}")
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
    assert not any(f"{number}/0" in copies.rows for number in range(20))


# -- a durable end that is newer than the checkpoint on the disk -----------------------------------


def recorded(disk: SimDisk) -> Store:
    """A partition with six records, whose durable end was recorded after its last checkpoint."""
    store = open_store(disk)
    log = host(store, 1)
    for _ in range(6):
        fill(log, 1)
    store.save_copies()
    return store


@pytest.mark.parametrize("has_peers", [False, True])
def test_a_bad_batch_below_the_recorded_end_is_damage_after_a_power_cut(
    has_peers: bool, seed: int
) -> None:
    for number in range(20):
        disk = SimDiskOfTrees(sim_disk(seed + number).random)
        recorded(disk)
        disk.power_cut()
        path = f"{PARTITION}/{0:020d}.log"
        size = len(disk.read_file(path, bytes_max=1 << 20))
        disk.flip_bit(path, 8 * size // 2)
        for _start in range(2):
            store = Store.open(disk, DATA, has_peers=has_peers)
            log = store.hosted_log(FIRST, 1)
            assert log.damage
            assert not log.is_torn
            assert log.log_end_offset == 6
            assert len(values(log)) == 3
            disk.power_cut()


def test_a_tail_above_the_recorded_end_is_still_cut(seed: int) -> None:
    for number in range(20):
        disk = SimDiskOfTrees(sim_disk(seed + number).random)
        log = recorded(disk).hosted_log(FIRST, 1)
        fill(log, 2, sync=False)
        log = reopened(disk, power_cut=True).hosted_log(FIRST, 1)
        assert log.damage == ""
        assert log.log_end_offset >= 6


def test_a_log_that_is_cut_below_the_recorded_end_is_no_damage(seed: int) -> None:
    def act(_disk: SimDisk, store: Store) -> None:
        log = store.hosted_log(FIRST, 1)
        log.truncate_to(2)
        fill(log, 1, leader_epoch=4)

    def check(disk: SimDisk, _state: Store) -> None:
        """A truncation that was not synced may have removed a part: seed 3596201745 found it."""
        log = open_store(disk).hosted_log(FIRST, 1)
        assert log.damage == ""
        before, after = [value_at(offset) for offset in range(6)], [value_at(n) for n in range(3)]
        found = values(log)
        assert len(found) >= 2
        assert found in (before[: len(found)], after[: len(found)])

    sweep(recorded, act, check, seed=seed, make_disk=SimDiskOfTrees)


class Harsh(Random):
    """Nothing that is not synced survives a power cut."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


def test_a_cut_that_could_not_be_recorded_is_no_damage() -> None:
    """The record's end is of a checkpoint that a power cut took back; the cut's is newer still."""
    disk = SimDiskOfTrees(Harsh(1))
    recorded(disk)
    log = reopened(disk, power_cut=True).hosted_log(FIRST, 1)
    assert log.log_end_offset == 6
    disk.faults.append(Fault({"create", "write"}, errno.ENOSPC, path="*copies*", times=FOREVER))
    log.truncate_to(2)
    disk.faults.clear()
    assert reopened(disk).hosted_log(FIRST, 1).damage == ""


# -- segments that cannot be read ------------------------------------------------------------------


def sealed_and_active(disk: SimDisk) -> Log:
    log = host(open_store(disk), 1, segment_bytes="16384")
    fill(log, 20, size=2_000)
    assert log.segment_count == 3
    log.abandon()  # the files are opened again by whoever reads
    return log


@pytest.mark.parametrize("how", ["vanishes", "cannot be opened", "cannot be read"])
def test_a_sealed_segment_that_cannot_be_read_is_damage(how: str) -> None:
    disk = checkpoint_new_disk()
    log = sealed_and_active(disk)
    path = sorted(f"{PARTITION}/{name}" for name in disk.list_dir(PARTITION) if "log" in name)[1]
    start = int(path.rpartition("/")[2].removesuffix(".log"))
    if how == "vanishes":
        disk.lose(path)
    else:
        operation = {"cannot be opened": "open", "cannot be read": "read"}[how]
        disk.faults.append(Fault({operation}, errno.EIO, path=path, times=FOREVER))
    # What is good before it is read; the read that begins there finds the damage.
    (part,) = log.read(start_offset=0, end_offset=20, bytes_max=1 << 20)
    assert len(values_of(part)) == start
    with pytest.raises(DamagedLogError, match=path):
        log.read(start_offset=start, end_offset=20, bytes_max=1 << 20)
    with pytest.raises(DamagedLogError, match=path):
        log.verify(start, bytes_max=1 << 20)
    assert path in log.damage
    assert log.readable_end_offset == start
    restarted = reopened(disk).hosted_log(FIRST, 1)
    assert restarted.damage
    assert restarted.readable_end_offset == start


def test_the_last_segment_that_cannot_be_opened_is_not_cut() -> None:
    disk = checkpoint_new_disk()
    log = sealed_and_active(disk)
    path = max(f"{PARTITION}/{name}" for name in disk.list_dir(PARTITION) if "log" in name)
    overwrite(disk, CHECKPOINT, b"rotten" * 1_000)  # so that nothing tells what was durable
    disk.lose(f"{DATA}/copies")
    size = len(disk.read_file(path, bytes_max=1 << 20))
    disk.faults.append(Fault({"open"}, errno.EIO, path=path, times=FOREVER))
    log = reopened(disk).hosted_log(FIRST, 1)
    assert f"{path} cannot be opened" in log.damage
    assert len(disk.read_file(path, bytes_max=1 << 20)) == size


def test_want_of_a_descriptor_is_no_damage() -> None:
    disk = checkpoint_new_disk()
    log = sealed_and_active(disk)
    disk.faults.append(Fault({"open"}, errno.EMFILE, path="*.log"))
    with pytest.raises(OSError, match="open files"):
        log.read(start_offset=0, end_offset=1, bytes_max=1)
    assert len(values(log)) == 20
    assert log.damage == ""


# -- the record itself is lost ---------------------------------------------------------------------


def restarted_without_record(disk: SimDisk, *others: str, has_peers: bool = True) -> Store:
    """The broker starts again, without the file ``copies`` and what else is named."""
    disk.crash()
    for name in ("copies", *others):
        disk.lose(f"{DATA}/{name}")
    return Store.open(disk, DATA, has_peers=has_peers)


@pytest.mark.parametrize("others", [(), ("topics",), ("topics", "catalog")])
def test_copies_are_in_doubt_once_the_record_of_them_is_lost(others: tuple[str, ...]) -> None:
    disk = checkpoint_new_disk()
    written(disk)
    store = restarted_without_record(disk, *others)
    for _ in range(2):  # until they are settled, and not only in one run
        log = host(store, 1)
        assert f"{DATA}/copies was lost" in log.doubt
        assert (log.damage, log.log_end_offset) == ("", 0 if others else 5)
        store.close()
        disk.crash()
        store = Store.open(disk, DATA, has_peers=True)
    assert store.resolve(FIRST, 1).doubt == ""
    disk.crash()
    store = Store.open(disk, DATA, has_peers=True)
    assert store.hosted_log(FIRST, 1).doubt == ""
    disk.crash()
    disk.lose(PARTITION)
    assert Store.open(disk, DATA, has_peers=True).hosted_log(FIRST, 1).damage


def test_a_copy_in_doubt_that_is_synced_stays_in_doubt() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    fill(restarted_without_record(disk).hosted_log(FIRST, 1), 1)
    disk.crash()
    assert Store.open(disk, DATA, has_peers=True).hosted_log(FIRST, 1).doubt


def test_a_copy_that_is_replaced_is_not_in_doubt() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    store = restarted_without_record(disk)
    store.quarantine(FIRST, 1)
    assert store.hosted_log(FIRST, 1).doubt == ""


def test_a_broker_alone_continues_without_the_record() -> None:
    """That is how an operator accepts what is stored."""
    disk = checkpoint_new_disk()
    written(disk)
    log = restarted_without_record(disk, has_peers=False).hosted_log(FIRST, 1)
    assert (log.doubt, log.damage, log.log_end_offset) == ("", "", 5)


def test_a_new_directory_has_nothing_in_doubt() -> None:
    disk = checkpoint_new_disk()
    store = Store.open(disk, DATA, has_peers=True)
    assert host(store, 1).doubt == ""
    disk.crash()
    assert Store.open(disk, DATA, has_peers=True).hosted_log(FIRST, 1).doubt == ""


def test_a_full_disk_is_no_reason_not_to_start() -> None:
    disk = checkpoint_new_disk()
    written(disk)
    disk.capacity_bytes = disk.used_bytes
    assert restarted_without_record(disk).hosted_log(FIRST, 1).doubt


# -- disk tasks ------------------------------------------------------------------------------------
#
# Tasks: blocking work that touches files and never the log. Their orders: test_durability.


def test_a_ticket_knows_what_to_sync_when_the_log_has_gone_on() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 8, sync=False)
    whole = stored(log)
    task = log.begin_sync()
    assert task is not None
    fill(log, 20, sync=False)
    task.run()
    durable = b"".join(disk.durable_bytes(path) or b"" for path in files(disk, ".log"))
    assert durable.startswith(b"".join(whole))


def test_a_ticket_runs_in_any_thread() -> None:
    log = open_log(sim_disk())
    fill(log, 8, sync=False)
    task = log.begin_sync()
    assert task is not None
    thread = threading.Thread(target=task.run)
    thread.start()
    fill(log, 8, sync=False)
    thread.join()
    log.complete_sync(task)
    assert log.durable_end_offset == 8
    assert values(log) == [value_at(offset) for offset in range(16)]


def test_what_only_quickens_the_next_start_may_lack_room() -> None:
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 3)
    fill(log, 9, sync=False)  # a roll: an index and a snapshot are due
    disk.faults.append(Fault({"create"}, errno.ENOSPC, times=-1))
    log.sync()
    assert log.durable_end_offset == 12
    disk.faults.clear()
    log = killed(disk)
    assert (log.log_end_offset, log.damage) == (12, "")


def test_a_ticket_that_was_lost_with_its_process_is_made_up_for() -> None:
    disk = sim_disk()
    log = open_log(disk)
    append(log, b"x", producer=(7, 0, 0))
    fill(log, 9, sync=False)
    assert log.begin_sync() is not None
    log = killed(disk)
    task = log.begin_sync()  # the sealed segments still want their indexes
    assert task is not None
    task.run()
    log.complete_sync(task)
    assert len(files(disk, ".index")) == log.segment_count - 1
    assert len(files(disk, ".producers")) == 1


def test_two_tickets_may_save_producers_at_once() -> None:
    """A sync's and a deletion's, in two threads."""
    disk = sim_disk()
    log = open_log(disk, ONE_SEGMENT)
    for number in range(8):
        append(log, b"x" * 300, producer=(7, 0, number))
    log.sync()
    drop = log.advance_log_start(8)
    assert drop.snapshot is not None
    threads = [
        threading.Thread(target=drop.files.write_snapshot, args=drop.snapshot) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    drop.run()
    assert log._files.read_snapshot(log_end_offset=8).snapshot() == drop.snapshot[1]


def test_a_deletion_finds_files_gone_already() -> None:
    """It may be carried out twice: here, and by the next start."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    task = log.advance_log_start(20)
    for path in task.paths[:3]:
        if disk.exists(path):
            disk.remove(path)
    task.run()
    task.run()
    assert files(disk, ".log") == [f"{DIRECTORY}/{20:020d}.log"]


def test_an_unsynced_write_replaces_the_file_whole() -> None:
    disk = sim_disk()
    disk.make_dirs("d")
    write_unsynced(disk, "d/a", b"a long first version")
    write_unsynced(disk, "d/a", b"second")
    assert disk.read_file("d/a", bytes_max=limits.KIB) == b"second"
    assert disk.list_dir("d") == ["a"]


def test_an_unsynced_write_without_room_holds_none_of_it() -> None:
    disk = sim_disk()
    disk.make_dirs("d")
    write_unsynced(disk, "d/a", b"first")
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="No space"):
        write_unsynced(disk, "d/a", b"a longer second")
    assert disk.read_file("d/a", bytes_max=limits.KIB) == b"first"
    assert disk.free_bytes("d") == 5


def test_a_drop_that_finds_an_index_gone_already_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction, which a drop makes useless, may be about to remove the same one."""
    disk = sim_disk()
    log = open_log(disk)
    fill(log, 20)
    task = log.advance_log_start(15)
    gone = next(path for path in task.paths if path.endswith(".index"))
    exists = disk.exists

    def exists_until_now(path: str) -> bool:
        found = exists(path)
        if path == gone and found:
            disk.remove(path)
        return found

    monkeypatch.setattr(disk, "exists", exists_until_now)
    task.run()
    assert not any(map(exists, task.paths))
