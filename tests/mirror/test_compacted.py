"""Whether a copy has every tombstone that it needs."""

from __future__ import annotations

from raftlog.client.descriptions import PartitionDescription
from raftlog.mirror.compacted import Known, begun, is_whole


def source(removed_below: int, *, clean_end: int = 0, epoch: int = 3) -> PartitionDescription:
    return PartitionDescription(
        0, 1, epoch, (1,), (1,), (), 0, 100, 100, 1, "", removed_below, clean_end
    )


def test_a_tombstone_beyond_what_was_read_must_still_be_there() -> None:
    assert is_whole(Known(3, 50), source(50))
    assert not is_whole(Known(3, 50), source(51))


def test_a_copy_that_begins_now_lacks_only_what_the_source_lacks() -> None:
    known = begun(source(40, clean_end=80))
    assert (known.end, known.copied_below) == (0, 80)
    assert is_whole(known, source(80))
    assert not is_whole(known, source(81))


def test_another_leader_may_have_removed_others() -> None:
    known = begun(source(40, clean_end=80))
    assert not is_whole(known, source(60, epoch=4))
    assert known.checked(source(60, epoch=4), 70) == Known(4, 70)


def test_what_was_read_since_counts_from_the_next_comparison_on() -> None:
    known = Known(3, 50).checked(source(50), 90)
    assert is_whole(known, source(90))
    assert not is_whole(known, source(91))
