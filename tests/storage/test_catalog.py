"""Topics and producer ids: what is accepted, refused, and read back after a restart."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from raftlog import limits
from raftlog.config import TopicConfig
from raftlog.errors import (
    DamagedLogError,
    DiskFullError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidTopicError,
    RaftlogError,
    StorageFailedError,
    TopicExistsError,
    UnknownTopicError,
)
from raftlog.storage import catalog as module
from raftlog.storage import state_files
from raftlog.storage.catalog import Catalog, Dropping, Topic
from raftlog.testing.disk import Fault, SimDisk
from tests.storage.logs import sim_disk

PATH = "data/catalog"


def new_disk() -> SimDisk:
    disk = sim_disk()
    disk.make_dirs("data")
    return disk


def catalog_on(disk: SimDisk) -> Catalog:
    numbers = count()
    return Catalog(disk, PATH, new_id=lambda: f"id{next(numbers)}")


def created(catalog: Catalog, name: str = "clicks", partitions: int = 2, **keys: str) -> Topic:
    overrides = {key.replace("_", "."): value for key, value in keys.items()}
    topic = catalog.plan(name, partitions=partitions, overrides=overrides)
    catalog.create(topic)
    return topic


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
    catalog.alter("t1", {"retention.ms": "5000"})
    assert encoded == ["t3", "t1"]
    data = disk.read_file(PATH, bytes_max=1 << 20)
    assert data == state_files.encode(state_files.decode(data, path=PATH)), "as if encoded at once"
    assert catalog_on(disk).by_id == catalog.by_id


def test_planning_changes_nothing() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    catalog.plan("clicks", partitions=1, overrides={})
    assert (catalog.topics, disk.list_dir("data")) == ({}, [])


@pytest.mark.parametrize(
    ("name", "partitions", "overrides", "error"),
    [
        ("clicks", 1, {}, TopicExistsError),
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
        catalog.plan(name, partitions=partitions, overrides=overrides)
    assert list(catalog.topics) == ["clicks"]


def test_a_broker_has_so_many_partitions_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PARTITIONS_PER_BROKER_MAX", 5)
    catalog = catalog_on(new_disk())
    created(catalog, partitions=3)
    created(catalog, "other", partitions=2)
    with pytest.raises(InvalidPartitionsError, match=r"6 partitions.*limit of 5"):
        catalog.plan("third", partitions=1, overrides={})
    with pytest.raises(InvalidPartitionsError, match="limit of 5"):
        catalog.plan_extension("clicks", 4)


@pytest.mark.parametrize(
    "act",
    [
        lambda catalog: catalog.get("missing"),
        lambda catalog: catalog.delete("missing"),
        lambda catalog: catalog.alter("missing", {}),
        lambda catalog: catalog.plan_extension("missing", 3),
    ],
    ids=["get", "delete", "alter", "extend"],
)
def test_an_unknown_topic_is_told(act: Callable[[Catalog], object]) -> None:
    with pytest.raises(UnknownTopicError, match=r"missing.*raftlog topic create"):
        act(catalog_on(new_disk()))


def test_settings_are_changed_and_put_back() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    created(catalog, retention_ms="5000")
    altered = catalog.alter("clicks", {"segment.bytes": "20000", "retention.ms": None})
    assert altered.overrides == {"segment.bytes": "20000"}
    assert altered.config == TopicConfig(segment_bytes=20_000)
    assert catalog_on(disk).get("clicks") == altered


@pytest.mark.parametrize("changes", [{"no.such": "1"}, {"no.such": None}, {"retention.ms": "x"}])
def test_a_bad_change_is_refused_whole(changes: dict[str, str | None]) -> None:
    catalog = catalog_on(new_disk())
    topic = created(catalog)
    with pytest.raises(InvalidConfigError):
        catalog.alter("clicks", {"segment.bytes": "20000", **changes})
    assert catalog.get("clicks") == topic


def test_partitions_are_added_and_never_taken_away() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    created(catalog, partitions=2)
    catalog.extend(catalog.plan_extension("clicks", 5))
    assert catalog_on(disk).get("clicks").partitions == 5
    for total in (5, 4, 0):
        with pytest.raises(InvalidPartitionsError):
            catalog.plan_extension("clicks", total)


def test_a_dropped_topic_is_remembered_until_its_files_are_gone() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    topic = created(catalog)
    assert catalog.delete("clicks") == topic
    assert catalog.topics == {}
    again = catalog_on(disk)
    assert again.deleting == {topic.id: topic}
    again.deleted(topic)
    assert catalog_on(disk).deleting == {}


def test_a_topic_that_is_created_again_has_another_id() -> None:
    catalog = catalog_on(new_disk())
    first = created(catalog)
    catalog.delete("clicks")
    assert created(catalog).id != first.id


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
        catalog.delete("clicks")
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


def test_a_topic_that_is_here_as_a_whole_says_so() -> None:
    topic = created(catalog_on(new_disk()), partitions=3)
    assert (topic.hosted, list(topic.local)) == (None, [0, 1, 2])


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


def test_a_catalog_written_before_partitions_were_placed_is_read() -> None:
    disk = new_disk()
    row = {"name": "clicks", "id": "aa", "partitions": 2, "config": {}}
    state_files.write(disk, PATH, {"topics": [row], "deleting": [], "producer_ids_reserved": 1_000})
    catalog = catalog_on(disk)
    assert catalog.get("clicks") == Topic("clicks", "aa", 2)
    assert catalog.dropping == ()


def test_a_full_disk_leaves_room_for_the_changes_that_free_it() -> None:
    disk = new_disk()
    catalog = catalog_on(disk)
    for name in ("a", "b", "c"):
        catalog.create(catalog.plan(name, partitions=1, overrides={}))
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFullError):
        catalog.create(catalog.plan("d", partitions=1, overrides={}))
    for _round in range(3):
        catalog.alter("a", {"retention.ms": "1"})
    deleted = catalog.delete("b")
    catalog.deleted(deleted)
    again = catalog_on(disk)
    assert sorted(again.topics) == ["a", "c"]
    assert again.get("a").config.retention_ms == 1
