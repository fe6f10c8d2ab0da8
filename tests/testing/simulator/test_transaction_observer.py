"""Each invariant of transactions is seen to be broken when it is, and a good course breaks none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from raftlog.config import TopicConfig
from raftlog.consumer_groups.values import (
    Key,
    OffsetKey,
    OffsetValue,
    PendingKey,
    PendingValue,
    Value,
    record,
)
from raftlog.storage.producer_state import ProducerTable
from raftlog.testing.simulator.transaction_observer import (
    INVARIANTS,
    Batch,
    Model,
    Part,
    Stream,
    TransactionObserver,
)
from raftlog.testing.simulator.world import World
from raftlog.transactions import STATUSES, TransactionValue, encode_key
from raftlog.transactions import _encode as encoded
from raftlog.types import OFFSETS_TOPIC, TopicPartition

P: Final = TopicPartition("t", 0)
OFFSETS: Final = TopicPartition(OFFSETS_TOPIC, 0)
PART: Final[Part] = ("topic", 0)
OF_OFFSETS: Final[Part] = ("offsets", 0)
PARTS: Final = {"topic": [0], "offsets": [0]}
ID: Final = 7
WHERE: Final = ("g", "t", 0)


class Course:
    """Of one producer, in a partition and in a group. ``kinds``: what was violated."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.model = Model(lambda kind, _text: self.kinds.append(kind), groups=["g"])
        self.stream = self.model.stream(P, PART)
        self.offsets = self.model.stream(OFFSETS, OF_OFFSETS)
        self.end = {P: 0, OFFSETS: 0}

    def decide(
        self, status: str, epoch: int, *, number: int = 1, parts: dict[str, list[int]] = PARTS
    ) -> None:
        value = TransactionValue(
            1, ID, -1, -1, epoch, epoch - 1, 9, STATUSES.index(cast("Any", status)), parts, 0, 0, 2,
            number, 0, True, {}, -1,
        )  # fmt: skip
        self.model.decided([(encode_key("id"), encoded(value))])

    def write(
        self,
        epoch: int = 0,
        *,
        marker: bool | None = None,
        transactional: bool = True,
        records: int = 1,
    ) -> None:
        """``marker``: whether it is one of a commit."""
        header = self._header(self.stream, records)
        header.producer_id, header.producer_epoch = ID, epoch
        header.is_transactional = transactional
        header.is_control, header.is_commit = marker is not None, bool(marker)
        self.model.appended(self.stream, header)
        self.model.committed(self.stream, Batch(header))

    def group(self, *written: tuple[Key, Value | None]) -> None:
        records = [(each.key, each.value) for each in (record(*pair) for pair in written)]
        self.model.committed(self.offsets, Batch(self._header(self.offsets, 1), records))

    def _header(self, stream: Stream, count: int) -> Any:
        base = stream.committed
        return SimpleNamespace(
            base_offset=base, next_offset=base + count, is_control=False, is_transactional=False
        )

    def begin(self) -> None:
        self.decide("empty", 0)
        self.decide("ongoing", 0)
        self.write(records=2)
        self.group((pending(), pending_value()))


def pending() -> PendingKey:
    return PendingKey(ID, *WHERE)


def offset(value: int = 5) -> OffsetValue:
    return OffsetValue(1, "topic", value, 0, "", 0, 0)


def pending_value() -> PendingValue:
    return PendingValue(1, 0, 1, offset(), 0)


def commit(course: Course) -> None:
    course.begin()
    course.decide("prepare_commit", 1)
    course.write(1, marker=True)
    course.group((pending(), None), (OffsetKey(*WHERE), offset()))
    course.decide("complete_commit", 1, parts={})
    course.model.check_complete()


def abort(course: Course) -> None:
    course.begin()
    course.decide("prepare_abort", 1)
    course.write(1, marker=False)
    course.group((pending(), None))
    course.decide("complete_abort", 1, parts={})
    course.model.check_complete()


@pytest.mark.parametrize("run", [commit, abort])
def test_a_good_course_breaks_nothing(run: Callable[[Course], None]) -> None:
    course = Course()
    run(course)
    course.decide("ongoing", 1, number=2)
    course.write(1)
    assert course.stream.stable == {0: 0, 2: 0, 3: 3, 4: 3}
    assert not course.kinds


def test_a_reader_gets_what_is_committed_and_skips_what_is_not() -> None:
    course = Course()
    commit(course)
    course.decide("ongoing", 1, number=2)
    course.write(1)
    course.write(transactional=False)
    for each in (0, 1, 4):
        course.model.delivered("reader", P, each)
    assert not course.kinds


def decided_twice(course: Course) -> None:
    course.begin()
    course.decide("prepare_commit", 1)
    course.decide("prepare_abort", 1)


def completed_otherwise(course: Course) -> None:
    course.decide("prepare_commit", 1, parts={})
    course.decide("complete_abort", 1)


def marked_undecided(course: Course) -> None:
    course.begin()
    course.write(1, marker=True)


def marked_otherwise(course: Course) -> None:
    course.begin()
    course.decide("prepare_abort", 1)
    course.write(1, marker=True)


def completed_without_marker(course: Course) -> None:
    course.decide("ongoing", 0)
    course.decide("prepare_commit", 1, parts={"topic": [0]})
    course.decide("complete_commit", 1, parts={})
    course.model.check_complete()


def followed_without_marker(course: Course) -> None:
    course.decide("prepare_commit", 1, parts={"topic": [0]})
    course.decide("prepare_commit", 2, number=2, parts={})
    course.model.check_complete()


def completed_with_pending_offsets(course: Course) -> None:
    course.begin()
    course.decide("prepare_abort", 1)
    course.write(1, marker=False)
    course.decide("complete_abort", 1, parts={})
    course.model.check_complete()


def not_a_part(course: Course) -> None:
    course.decide("ongoing", 0, parts={"other": [0]})
    course.write()


def old_instance(course: Course) -> None:
    course.begin()
    course.decide("empty", 1)
    course.write()


def end_of_old_instance(course: Course) -> None:
    course.decide("empty", 3)
    course.decide("prepare_commit", 3)


def late_batch(course: Course) -> None:
    commit(course)
    course.write()


def aborted_read(course: Course) -> None:
    abort(course)
    course.model.delivered("reader", P, 0)


def undecided_read(course: Course) -> None:
    course.begin()
    course.model.delivered("reader", P, 0)


def skipped(course: Course) -> None:
    commit(course)
    course.model.delivered("reader", P, 1)


def aborted_offset(course: Course) -> None:
    course.begin()
    course.decide("prepare_abort", 1)
    course.group((pending(), None), (OffsetKey(*WHERE), offset()))


def dropped_offset(course: Course) -> None:
    course.begin()
    course.decide("prepare_commit", 1)
    course.group((pending(), None))


def offset_of_no_transaction(course: Course) -> None:
    course.group((OffsetKey(*WHERE), offset()))


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (decided_twice, "TWO-DECISIONS"),
        (completed_otherwise, "TWO-DECISIONS"),
        (marked_undecided, "UNDECIDED-MARKER"),
        (marked_otherwise, "UNDECIDED-MARKER"),
        (completed_without_marker, "UNMARKED"),
        (followed_without_marker, "UNMARKED"),
        (completed_with_pending_offsets, "UNMARKED"),
        (not_a_part, "NOT-A-PART"),
        (old_instance, "ZOMBIE-EPOCH"),
        (end_of_old_instance, "ZOMBIE-EPOCH"),
        (late_batch, "ZOMBIE-EPOCH"),
        (aborted_read, "INVISIBLE"),
        (undecided_read, "INVISIBLE"),
        (skipped, "INVISIBLE"),
        (aborted_offset, "OFFSETS-TORN"),
        (dropped_offset, "OFFSETS-TORN"),
        (offset_of_no_transaction, "OFFSETS-TORN"),
    ],
)
def test_what_must_not_be(run: Callable[[Course], None], kind: str) -> None:
    course = Course()
    run(course)
    assert set(course.kinds) == {kind}
    assert kind in INVARIANTS


# -- replicas --------------------------------------------------------------------------------------


def replica(*, start: int = 0, others: int = 0, policy: str = "delete") -> Any:
    """A replica with the aborted transaction of ``abort``, and others that are not in the log."""
    table = ProducerTable()
    table.transactions.begin(ID, 0)
    for number in range(others):
        table.transactions.begin(ID + 1 + number, 0)
        table.transactions.end(ID + 1 + number, 1, is_commit=False)
    table.transactions.end(ID, 2, is_commit=False)
    log = SimpleNamespace(
        log_start_offset=start,
        log_end_offset=3,
        last_epoch=4,
        producers=table,
        damage="",
        config=TopicConfig(cleanup_policy=policy),
    )
    return SimpleNamespace(log=log, high_watermark=3, last_stable_offset=3)


def test_replicas_are_compared_with_the_log_and_with_each_other() -> None:
    kinds: list[str] = []

    def noted(kind: str, _text: str) -> None:
        kinds.append(kind)

    def after(host: Any, name: str = "a") -> list[str]:
        observer._check_replica(name, course.stream, host)
        taken = kinds.copy()
        kinds.clear()
        return taken

    with World(0, brokers=1) as world:
        observer = TransactionObserver(world, noted)
        course = Course()
        abort(course)
        assert not after(replica())
        behind = replica()
        behind.last_stable_offset = 2
        assert after(behind) == ["STABLE-OFFSET"]
        other = replica()
        other.log.producers.transactions.begin(ID, 2)
        assert after(other, "b") == ["REPLICAS-DIFFER"]
        lacking = replica()
        lacking.log.producers.transactions.keep_aborted(lambda _each: False)
        assert after(lacking, "c") == ["ABORTED-LIST"]
        lacking.log.log_start_offset = 3
        assert not after(lacking, "d")  # its records are deleted
        assert after(replica(others=1), "e") == ["ABORTED-LIST"]
        compacted = replica(policy="compact")
        compacted.log.producers.transactions.keep_aborted(lambda _each: False)
        compacted.log.producers.transactions.begin(ID, 2)
        assert not after(compacted, "f"), "it has neither what has ended, nor what was aborted"
        assert after(replica(others=1, policy="compact"), "g") == ["ABORTED-LIST"]
