"""What lies in a data directory is found, harmed as was asked, and the harm is seen."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from raftlog.storage.segment import LOG_SUFFIX
from raftlog_jepsen.control import disks
from raftlog_jepsen.control.disks import MODES, REGIONS, Mode, Place, Region
from tests.jepsen_like.nemesis.stores import BATCH_BYTES, make_data


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    make_data(directory, 1, partitions=2)
    return directory


def one(data_dir: Path, region: Region) -> Place:
    return disks.places(data_dir, region)[0]


# -- which there are


def test_every_region_has_its_files(data_dir: Path) -> None:
    counts = {region: len(disks.places(data_dir, region)) for region in REGIONS}
    assert counts == {
        "closed": 4,  # two in each of two partitions
        "active": 2,
        "index": 6,
        "epochs": 2,
        "producers": 2,
        "checkpoint": 4,  # two slots in each
        "journal": 1,
        "identity": 1,
        "catalog": 1,
    }
    assert not [
        place for r in REGIONS for place in disks.places(data_dir, r) if disks.trouble(place)
    ]


def test_what_is_not_synced_is_no_place_to_harm(data_dir: Path) -> None:
    place = one(data_dir, "active")
    assert place.end == place.path.stat().st_size > place.indexed > 0
    disks.tear(place, Random(1))
    again = one(data_dir, "active")
    assert again.end == place.end < again.path.stat().st_size
    assert not disks.trouble(again), "torn bytes are no damage"


def test_of_one_partition_only_its_own(data_dir: Path) -> None:
    first, second = disks.partitions(data_dir)
    assert {place.path.parent for place in disks.places(data_dir, "closed", partition=second)} == {
        second
    }
    assert not disks.places(data_dir, "journal", partition=first)


def test_copies_that_were_set_aside_are_told_and_not_harmed(data_dir: Path) -> None:
    first, second = disks.partitions(data_dir)
    aside = first.rename(first.with_name("0.quarantine-1"))
    assert disks.quarantines(data_dir) == {aside}
    assert disks.partitions(data_dir) == [second]


def test_an_empty_directory_has_nothing(tmp_path: Path) -> None:
    assert disks.partitions(tmp_path) == []
    assert disks.quarantines(tmp_path) == set()
    assert disks.log_ends(tmp_path) == {}
    assert not [place for region in REGIONS for place in disks.places(tmp_path, region)]


def test_the_ends_of_logs(data_dir: Path) -> None:
    ends = disks.log_ends(data_dir)
    assert sorted(ends) == [str(p.relative_to(data_dir)) for p in disks.partitions(data_dir)]
    assert {end for _, end in ends.values()} == {20}


# -- harm


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("region", REGIONS)
def test_what_is_corrupted_is_seen_to_be(data_dir: Path, region: Region, mode: Mode) -> None:
    place = one(data_dir, region)
    before = place.path.read_bytes()
    change = disks.corrupt(place, mode, Random(3), bits=2)
    after = place.path.read_bytes()
    assert len(after) == len(before)
    assert place.start <= change.position
    end = change.position + len(change.before)
    assert end <= place.end
    assert before[: change.position] == after[: change.position]
    assert before[change.position : end] == change.before != change.after
    assert after[change.position : end] == change.after
    assert before[end:] == after[end:]
    if region != "checkpoint":  # of which the other slot is good
        assert disks.trouble(place)


def test_bits_are_flipped_one_by_one(data_dir: Path) -> None:
    change = disks.corrupt(one(data_dir, "closed"), "flip", Random(1), bits=1)
    (before,), (after,) = change.before, change.after
    assert (before ^ after).bit_count() == 1


def test_zeros_over_zeros_are_a_flipped_bit(tmp_path: Path) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(bytes(100))
    change = disks.corrupt(Place(path, "closed", 0, 100), "zero", Random(1))
    assert change.mode == "flip"
    assert any(path.read_bytes())


@pytest.mark.parametrize("region", sorted(set(REGIONS) - {"checkpoint"}))
def test_what_is_cut_off_is_seen_to_be(data_dir: Path, region: Region) -> None:
    place = one(data_dir, region)
    before = place.path.read_bytes()
    change = disks.cut(place, Random(5))
    assert place.path.read_bytes() + change.before == before
    assert disks.trouble(place)


def test_an_old_file_in_the_place_of_a_new_one(data_dir: Path) -> None:
    place = one(data_dir, "active")
    new = place.path.read_bytes()
    old = new[: -(BATCH_BYTES + 200)]
    change = disks.put_back(place, old)
    assert place.path.read_bytes() == old
    assert (change.position, change.before) == (len(old), new[len(old) :])
    assert disks.trouble(place), "what was synced is missing"


def test_what_was_done_is_told(data_dir: Path) -> None:
    place = one(data_dir, "closed")
    changed = disks.corrupt(place, "flip", Random(1), bits=1).to_history()
    assert changed["file"].endswith(LOG_SUFFIX)
    assert changed["before"] != changed["after"]
    assert changed["is_indexed"]


# -- whole directories


def test_a_directory_is_emptied_and_stays(data_dir: Path) -> None:
    (data_dir / "link").symlink_to(data_dir.parent)
    count = sum(path.is_file() and not path.is_symlink() for path in data_dir.rglob("*"))
    assert disks.empty(data_dir) == count + 1
    assert list(data_dir.iterdir()) == []
    assert data_dir.parent.exists()
    assert disks.empty(data_dir / "none") == 0


@pytest.mark.integration
def test_disks_are_exchanged(tmp_path: Path) -> None:
    one_dir, other_dir = tmp_path / "one", tmp_path / "other"
    make_data(one_dir, 1)
    make_data(other_dir, 2)
    ids = [disks.directory_id(one_dir), disks.directory_id(other_dir)]
    assert "" not in ids
    disks.exchange(one_dir, other_dir, tmp_path / "aside")
    assert [disks.directory_id(other_dir), disks.directory_id(one_dir)] == ids
    assert not (tmp_path / "aside").exists()
    assert len(disks.partitions(one_dir)) == 1


def test_a_directory_without_an_identity(data_dir: Path) -> None:
    (data_dir / "identity").write_text("nonsense")
    assert disks.directory_id(data_dir) == ""
    assert disks.directory_id(data_dir / "none") == ""
