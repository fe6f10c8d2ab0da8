"""Mirrors between two logs: the same offsets and records, and the offsets of groups."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import raftlog
from raftlog import Admin, NewTopic, TopicPartition
from raftlog.client.consumer import Checked
from raftlog.client.descriptions import PartitionDescription, TopicDescription, TopicListing
from raftlog.client.fetcher import Fetcher
from raftlog.client.readers import BatchReader
from raftlog.client.resumable import ResumableProducer
from raftlog.config import TopicConfig
from raftlog.embedded import ADDRESS, EmbeddedLog
from raftlog.errors import (
    AccessDeniedError,
    CorruptBatchError,
    InvalidRequestError,
    LeaderNotAvailableError,
)
from raftlog.mirror import Mirror, Progress
from raftlog.mirror.compacted import Known, begun, by_partition, is_whole
from raftlog.mirror.mirror import (
    SPAN_MAX,
    ClusterSource,
    MirrorSettings,
    Place,
    Policy,
    Session,
    bodies,
    commits_due,
    copy_of,
    difference,
    hole_of,
    holes,
    planned,
    refusal,
    selected,
    sequence_of,
    settings_due,
)
from raftlog.protocol.records import DescribedProducer
from raftlog.record import COLUMNS, Codec, decode_records, encode, parse_header, seal, validate
from raftlog.testing import wait_until
from raftlog.types import ConsumerRecord, OffsetAndMetadata
from tests.mirror.tombstones import without_tombstones
from tests.record.kafka_batches import KafkaRecord, as_stored, kafka_batch
from tests.record.test_compaction import FOURS, log_of, rewritten

# -- records ---------------------------------------------------------------------------------------

# Mirrors between two logs: the same offsets and records, through kills, holes and compaction.


TP = TopicPartition("t", 0)
TIMEOUT_S = 20
COMPACTING = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.01",
}


@pytest.fixture
def source(tmp_path: Path) -> Iterator[EmbeddedLog]:
    settings = {"log.cleaner.interval.ms": "100"}
    with raftlog.open(tmp_path / "source", settings=settings) as log:
        yield log


@pytest.fixture
def target(tmp_path: Path) -> Iterator[EmbeddedLog]:
    with raftlog.open(tmp_path / "target") as log:
        yield log


def mirror(source: EmbeddedLog, target: EmbeddedLog, **settings: Any) -> Mirror:
    return Mirror(
        str(ADDRESS),
        str(ADDRESS),
        **{"topics": ".*", **settings},
        source_host=source._open_host(),
        target_host=target._open_host(),
    )


def mirrored(source: EmbeddedLog, target: EmbeddedLog, **settings: Any) -> Progress:
    return mirror(source, target, **settings).run(once=True)


def settings_of(
    source: EmbeddedLog, target: EmbeddedLog, groups: re.Pattern[str] | None = None
) -> MirrorSettings:
    return MirrorSettings(
        source=ClusterSource(str(ADDRESS), source._open_host()),
        target=str(ADDRESS),
        topics=re.compile("t"),
        target_host=target._open_host(),
        groups=groups,
    )


def send(log: EmbeddedLog, values: list[bytes], topic: str = "t", partition: int = 0) -> None:
    with log.producer() as producer:
        producer.send_many(topic, values, partition=partition).result(timeout=TIMEOUT_S)


def records(log: EmbeddedLog, tp: TopicPartition = TP) -> list[ConsumerRecord]:
    with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([tp])
        end = consumer.end_offsets([tp])[tp]
        found: list[ConsumerRecord] = []
        while consumer.position(tp) < end:
            found += consumer.poll(timeout_ms=1_000)
        return found


def extent(log: EmbeddedLog, tp: TopicPartition = TP) -> tuple[int, int]:
    with log.consumer() as consumer:
        return consumer.beginning_offsets([tp])[tp], consumer.end_offsets([tp])[tp]


def content(found: list[ConsumerRecord]) -> list[tuple[object, ...]]:
    return [(r.offset, r.key, r.value, r.headers, r.timestamp_ms) for r in found]


def test_a_copy_has_the_records_offsets_and_settings(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t", 2, config={"retention.ms": "3600000000"})
    with source.producer(compression="zstd") as producer:
        for number in range(50):
            producer.send(
                "t",
                b"%d" % number,
                key=b"k%d" % number,
                headers=[("h", b"1")],
                partition=number % 2,
            )
    send(source, [b"a", b"b"])
    progress = mirrored(source, target)
    assert (progress.records, progress.lag, progress.refused) == (52, 0, {})
    for number in range(2):
        tp = TopicPartition("t", number)
        assert content(records(target, tp)) == content(records(source, tp))
    with target.admin() as admin:
        (described,) = admin.describe_topics(["t"])
        assert described.config["retention.ms"] == "3600000000"
        assert described.config_overrides == ("retention.ms",)


def test_settings_of_the_source_are_followed_unless_told_otherwise(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t", config={"retention.ms": "3600000000", "segment.bytes": "20000"})
    mirrored(source, target)
    changes = {"retention.ms": "-1", "segment.bytes": None, "cleanup.policy": "compact"}
    with source.admin() as admin:
        admin.alter_topic("t", changes)
    assert mirrored(source, target, keep_settings=True).altered == []
    assert mirrored(source, target).altered == ["t"]
    with target.admin() as admin:
        (described,) = admin.describe_topics(["t"])
    assert described.overrides == {"retention.ms": "-1", "cleanup.policy": "compact"}


def test_settings_that_the_target_refuses_are_an_error_with_the_way_out(
    source: EmbeddedLog, target: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_topic("t", config={"retention.ms": "3600000000"})
    mirrored(source, target)
    with source.admin() as admin:
        admin.alter_topic("t", {"retention.ms": "-1"})

    def refuse(_admin: Admin, _topic: str, _config: object) -> None:
        raise AccessDeniedError("not allowed to alter topics")

    monkeypatch.setattr(Admin, "alter_topic", refuse)
    with pytest.raises(InvalidRequestError, match=r"\(retention.ms=-1\): not allowed.*--keep-set"):
        mirrored(source, target)


def test_a_copy_that_is_deleted_in_between_is_created_again(
    source: EmbeddedLog, target: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_topic("t", config={"retention.ms": "3600000000"})
    mirrored(source, target)
    with source.admin() as admin:
        admin.alter_topic("t", {"retention.ms": "-1"})
    alter = Admin.alter_topic

    def delete_before(admin: Admin, topic: str, config: Mapping[str, str | None]) -> None:
        monkeypatch.setattr(Admin, "alter_topic", alter)
        admin.delete_topics([topic])
        alter(admin, topic, config)

    monkeypatch.setattr(Admin, "alter_topic", delete_before)
    monkeypatch.setattr("raftlog.mirror.mirror._PAUSE_S", 0)
    assert not mirrored(source, target).altered
    with target.admin() as admin:
        (described,) = admin.describe_topics(["t"])
    assert described.overrides == {"retention.ms": "-1"}


def test_another_run_copies_what_is_new(source: EmbeddedLog, target: EmbeddedLog) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2"])
    assert mirrored(source, target).records == 2
    assert mirrored(source, target).records == 0
    send(source, [b"3"])
    assert mirrored(source, target).records == 1
    assert content(records(target)) == content(records(source))


def test_offsets_that_the_source_deleted_are_holes(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    for number in range(5):
        send(source, [b"%d" % number] * 10)
    with source.admin() as admin:
        admin.delete_records({TP: 25})
    assert mirrored(source, target).skipped == 0
    assert extent(target) == extent(source) == (25, 50)
    assert content(records(target)) == content(records(source))
    with source.admin() as admin:
        send(source, [b"5"] * 10)
        admin.delete_records({TP: 60})
    assert mirrored(source, target).skipped == 10
    send(source, [b"6"])
    assert mirrored(source, target).records == 1
    assert extent(target) == (25, 61)
    assert content(records(target))[-1] == content(records(source))[-1]


def test_records_of_others_are_not_mixed_with_a_copy(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    target.create_topic("t")
    send(source, [b"1", b"2"])
    send(target, [b"x"])
    progress = mirrored(source, target)
    assert "differs from the source" in progress.refused[TP]
    assert [record.value for record in records(target)] == [b"x"]
    assert mirrored(source, target, prefix="copy-").records == 2


def test_a_copy_that_another_producer_has_written_to_is_refused(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    send(source, [b"1"])
    mirrored(source, target)
    send(target, [b"x"])
    send(source, [b"2", b"3"])
    assert "another producer has written the offsets 1 to 1" in mirrored(source, target).refused[TP]


def test_a_source_that_was_created_again_is_refused(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2"])
    mirrored(source, target)
    with source.admin() as admin:
        admin.delete_topics(["t"])
        admin.create_topics([NewTopic("t")])
    assert "created again" in mirrored(source, target).refused[TP]
    send(source, [b"a", b"b", b"c"])
    assert "differs from the source" in mirrored(source, target).refused[TP]


def test_sessions_that_end_anywhere_copy_each_record_once(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    for number in range(40):
        send(source, [b"%d" % number] * 3)
    settings = settings_of(source, target)
    progress = Progress()
    for steps in range(12):  # later sessions find new records, and end with batches in flight
        with suppress(ZeroDivisionError), Session(settings, progress) as session:
            session.start()
            for _ in range(steps % 3):
                session.step(0.05)
            raise ZeroDivisionError  # as after an error: nothing is flushed
        send(source, [b"more"] * 5)
    mirrored(source, target)
    assert content(records(target)) == content(records(source))


def test_committed_offsets_of_groups_are_copied(source: EmbeddedLog, target: EmbeddedLog) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2", b"3"])
    with source.admin() as admin:
        for group in ("readers", "others"):
            admin.commit_offsets(group, {TP: 2})
    mirrored(source, target, prefix="p-", groups="read.*")
    copy = TopicPartition("p-t", 0)
    with target.admin() as admin:
        assert [listing.group for listing in admin.list_groups()] == ["readers"]
        assert admin.group_offsets("readers")[copy].offset == 2
        admin.commit_offsets("readers", {copy: 3})  # consumers have continued there
    assert mirrored(source, target, prefix="p-", groups="read.*").groups == 1
    with target.admin() as admin:
        assert admin.group_offsets("readers")[copy].offset == 3


def test_a_commit_in_the_target_meanwhile_is_not_moved_back(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2", b"3"])
    with source.admin() as admin:
        admin.commit_offsets("g", {TP: 2})
    settings = settings_of(source, target, re.compile("g"))
    with target.admin() as admin, Session(settings, Progress()) as session:
        session.start()
        while not session.is_caught_up:
            session.step(0.1)
        admin.commit_offsets("g", {TP: 1})
        read = session._target.group_offsets

        def read_and_wait(name: str) -> dict[TopicPartition, OffsetAndMetadata]:
            found = read(name)
            admin.commit_offsets("g", {TP: 3})  # of a consumer of the target
            return found

        session._target.group_offsets = read_and_wait  # type: ignore[method-assign]
        session.finish()
        assert admin.group_offsets("g")[TP].offset == 3


def test_a_group_with_members_in_the_target_keeps_its_offsets_and_is_reported(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2", b"3"])
    with source.admin() as admin:
        for group in ("busy", "readers"):
            admin.commit_offsets(group, {TP: 2})
    target.create_topic("other")
    with target.consumer(group="busy") as consumer:
        consumer.subscribe(["other"])
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        progress = mirrored(source, target, groups=".*")
    assert progress.groups == 1
    assert list(progress.refused_groups) == ["busy"]
    assert "members" in progress.refused_groups["busy"]


def test_a_group_that_exists_is_changed_only_on_request(
    source: EmbeddedLog, target: EmbeddedLog
) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2", b"3"])
    copy, other = TopicPartition("r-t", 0), TopicPartition("live", 0)
    target.create_topic("live")
    send(target, [b"1"], "live")
    with source.admin() as admin:
        for group in ("live", "readers"):
            admin.commit_offsets(group, {TP: 2})
    with target.admin() as admin:
        admin.commit_offsets("live", {other: 1})
        for _ in range(2):  # the second run repeats the first one
            progress = mirrored(
                source, target, prefix="r-", groups=".*", existing_groups=Policy.KEEP
            )
            assert (progress.groups, list(progress.refused_groups)) == (1, ["live"])
            assert admin.group_offsets("readers")[copy].offset == 2
            assert list(admin.group_offsets("live")) == [other]
        admin.commit_offsets("readers", {copy: 3})
        overwrite = Policy.OVERWRITE
        progress = mirrored(source, target, prefix="r-", groups=".*", existing_groups=overwrite)
        assert (progress.groups, progress.refused_groups) == (2, {})
        assert admin.group_offsets("readers")[copy].offset == 2
        offsets = {tp: found.offset for tp, found in admin.group_offsets("live").items()}
        assert offsets == {copy: 2, other: 1}


@dataclass
class WithoutTombstones:
    """A source that says below which offset it has removed tombstones."""

    source: ClusterSource
    removed_below: int = 0

    @contextmanager
    def admin(self) -> Iterator[Admin]:
        with self.source.admin() as admin:
            described = admin.describe_topics

            def describe(topics: Iterable[str]) -> list[TopicDescription]:
                return [
                    without_tombstones(topic, self.removed_below) for topic in described(topics)
                ]

            admin.describe_topics = describe  # type: ignore[method-assign,assignment]
            yield admin

    def reader(self, *, one_batch: bool = False) -> BatchReader:
        return self.source.reader(one_batch=one_batch)


def test_a_copy_that_lacks_removed_tombstones_is_made_anew(
    source: EmbeddedLog, target: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.create_topic("t")
    send(source, [b"1", b"2", b"3"])
    noted = WithoutTombstones(ClusterSource(str(ADDRESS), source._open_host()))
    running = Mirror(noted, str(ADDRESS), topics="t", target_host=target._open_host())
    assert running.run(once=True).copied_again == []
    with target.admin() as admin:
        first = admin.find_topics()["t"].id
    noted.removed_below = 3  # the copy ends there: it has every tombstone below
    assert running.run(once=True).copied_again == []
    send(source, [b"4"])
    noted.removed_below = 4
    assert running.run(once=True).copied_again == ["t"]
    assert content(records(target)) == content(records(source))
    with target.admin() as admin:
        assert admin.find_topics()["t"].id != first
    settings = replace(settings_of(source, target), source=noted)
    noted.removed_below = 5
    with Session(settings, Progress()) as session:
        assert not session.start()
    noted.removed_below = 4
    running.run(once=True)
    with Session(settings, Progress()) as session:
        assert session.start()
        assert session.finish()
        monkeypatch.setattr(Fetcher, "take_removed_below", lambda _: {TP: {99: 5}})
        assert not session.finish(), "a leader in between had removed more"
    with target.admin() as admin:
        assert "t" not in admin.find_topics()


def test_holes_of_any_size_survive_restarts_and_compaction(
    target: EmbeddedLog, tmp_path: Path
) -> None:
    """As after two billion deleted records, for which the source would take too long."""
    settings = {"log.cleaner.interval.ms": "50"}
    with raftlog.open(tmp_path / "large", settings=settings) as log:
        log.create_topic("t", config=COMPACTING)
        host = log._open_host()
        with ResumableProducer(str(ADDRESS), name="n", host=host) as producer:
            producer.stored([TP])
            producer.append(TP, hole_of(SPAN_MAX), base_offset=0).result(TIMEOUT_S)
        with log.producer() as plain:
            for number in range(60):
                value = b"%02d" % number * 500
                plain.send("t", value, key=b"k%d" % (number % 4)).result(TIMEOUT_S)
        wait_until(lambda: len(records(log)) < 30, timeout_s=TIMEOUT_S, what="a compaction")
    for path in (tmp_path / "large").rglob("*.index"):
        path.unlink()
    with raftlog.open(tmp_path / "large") as log:
        kept = records(log)
        assert extent(log) == (0, SPAN_MAX + 60)
        assert [record.offset for record in kept][-4:] == list(range(SPAN_MAX + 56, SPAN_MAX + 60))
        with log.admin() as admin:
            admin.delete_records({TP: SPAN_MAX})
        assert extent(log)[0] == SPAN_MAX
        mirrored(log, target)
    assert content(records(target)) == content(kept)
    assert extent(target) == (SPAN_MAX, SPAN_MAX + 60)


def test_topics_and_partitions_that_appear_are_copied(
    source: EmbeddedLog, target: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.mirror.mirror.REFRESH_S", 0.01)
    source.create_topic("t")
    seen: list[tuple[int, int]] = []

    def on_progress(progress: Progress) -> None:
        state = (progress.topics, progress.partitions)
        if state in seen:
            return
        seen.append(state)
        if state == (1, 1):
            source.create_topic("other")
            send(source, [b"1"], "other")
        elif state == (2, 2):
            with source.admin() as admin:
                admin.add_partitions("t", 2)
            send(source, [b"2"], "t", 1)
        else:
            running.stop()

    running = mirror(source, target, on_progress=on_progress)
    running.run()
    assert seen == [(1, 1), (2, 2), (2, 3)]
    assert mirrored(source, target).lag == 0
    assert [record.value for record in records(target, TopicPartition("other", 0))] == [b"1"]
    assert [record.value for record in records(target, TopicPartition("t", 1))] == [b"2"]


def test_a_compacted_source_keeps_its_offsets(source: EmbeddedLog, target: EmbeddedLog) -> None:
    source.create_topic("t", config=COMPACTING)
    with source.producer() as producer:
        for number in range(60):
            producer.send("t", b"%02d" % number * 500, key=b"k%d" % (number % 4)).result(TIMEOUT_S)
    wait_until(lambda: len(records(source)) < 30, timeout_s=TIMEOUT_S, what="a compaction")
    mirrored(source, target)
    found = {record.offset: record for record in records(target)}
    expected = {record.offset: record for record in records(source)}
    last = {record.key: record.offset for record in expected.values()}
    assert all(found[offset] == expected[offset] for offset in last.values())
    assert extent(target) == extent(source) == (0, 60)


def test_an_epoch_of_the_producer_ends_before_its_sequence_wraps(
    source: EmbeddedLog, target: EmbeddedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raftlog.mirror.mirror.SPAN_MAX", 7)
    source.create_topic("t")
    for number in range(6):
        send(source, [b"%d" % number] * 3)
        if number % 2:
            mirrored(source, target)
    assert content(records(target)) == content(records(source))
    with source.admin() as admin:
        name = f"raftlog mirror of {admin.describe_cluster().cluster_id}"
    host = target._open_host()
    with ResumableProducer(str(ADDRESS), name=name, host=host) as producer:
        described = producer.described([TP])[TP]
    assert (described.producer_epoch, described.last_sequence) == (2, 5)


# -- batches ---------------------------------------------------------------------------------------
#
# Bodies of copies: the same payload and offsets, holes, and the rest of a joined batch.


def test_a_copy_has_the_payload_and_the_range_of_its_original() -> None:
    (batch,) = rewritten(log_of(FOURS[:1]), [[False, True, False, False]])
    header = parse_header(batch)
    body = copy_of(header, batch)
    copy = seal(body, producer_id=1, producer_epoch=0, base_sequence=0) + body.payload
    assert validate(copy).last_offset_delta == header.last_offset_delta == 3
    assert [r.offset for r in decode_records(copy, topic="t", partition=0)] == [1]
    assert body.payload == batch[-len(body.payload) :]


def test_a_hole_is_a_batch_without_records_that_a_compacted_topic_accepts() -> None:
    (hole,) = holes(5, 25)
    header = validate(seal(hole) + hole.payload, keys_required=True)
    assert (header.record_count, header.last_offset_delta, header.codec) == (0, 19, Codec.NONE)
    assert [body.last_offset_delta + 1 for body in holes(0, 2 * SPAN_MAX + 1)] == [
        SPAN_MAX,
        SPAN_MAX,
        1,
    ]
    assert not list(holes(7, 7))


def test_what_is_appended_ends_where_the_batch_ends() -> None:
    joined = rewritten(log_of(FOURS), [[True] * 4] * len(FOURS))
    assert len(joined) == 1
    header = parse_header(joined[0])
    for position in range(header.next_offset + 1):
        spans = [body.last_offset_delta + 1 for body in bodies((header, joined[0]), position)]
        assert position + sum(spans) == header.next_offset
        records = sum(body.record_count for body in bodies((header, joined[0]), position))
        assert records == header.next_offset - position


def test_offsets_before_the_batch_become_a_hole() -> None:
    second = log_of(FOURS[:2])[1]
    batch = parse_header(second), second
    assert [body.record_count for body in bodies(batch, 1)] == [0, 4]


def test_a_position_inside_of_an_original_batch_is_of_another_log() -> None:
    data = log_of(FOURS[:1])[0]
    with pytest.raises(CorruptBatchError, match="inside the source batch"):
        list(bodies((parse_header(data), data), 2))


def test_a_batch_of_a_kafka_client_is_copied_as_columns() -> None:
    """Its checksum covers the producer fields, which are the mirror's in the copy."""
    data = as_stored(kafka_batch([KafkaRecord(b"a", b"k"), KafkaRecord(b"b")]), base_offset=7)
    (body,) = bodies((parse_header(data), data), 7)
    copy = seal(body, producer_id=1, producer_epoch=0, base_sequence=7) + body.payload
    assert validate(copy).layout == COLUMNS
    found = [(r.key, r.value) for r in decode_records(copy, topic="t", partition=0)]
    assert found == [(b"k", b"a"), (None, b"b")]


# -- positions -------------------------------------------------------------------------------------
#
# Where a copy continues, and which copies must not be continued.


UNKNOWN = DescribedProducer(1)


def known(last_offset: int, *, epoch: int = 0, sequence: int = 0) -> DescribedProducer:
    return DescribedProducer(1, epoch, sequence, last_offset, 0)


def place(
    end: int,
    written: DescribedProducer,
    *,
    start: int = 0,
    source: tuple[int, int] = (0, 100),
) -> Place:
    return Place(start, end, written, *source)


@pytest.mark.parametrize(
    ("found", "position", "why"),
    [
        (place(0, UNKNOWN), 0, ""),
        (place(0, UNKNOWN, source=(50, 50)), 0, ""),
        (place(10, known(9)), 10, ""),
        (place(10, known(14)), 15, ""),  # committed since the end was queried
        (place(10, known(8)), 10, "another producer has written the offsets 9 to 9"),
        (place(10, UNKNOWN), 10, ""),  # compared with the source
        (place(10, UNKNOWN, source=(10, 100)), 10, "may have records"),
        (place(10, known(9), source=(10, 100)), 10, ""),
        (place(10, UNKNOWN, start=10, source=(10, 100)), 10, ""),  # empty
        (place(101, known(100)), 101, "beyond the end 100"),
        (place(101, UNKNOWN, start=101), 101, "beyond the end 100"),
    ],
)
def test_a_copy_continues_at_its_end_unless_it_is_not_ours(
    found: Place, position: int, why: str
) -> None:
    assert found.position == position
    assert (why in refusal(found)) if why else not refusal(found)


def test_only_offsets_that_both_logs_have_are_compared() -> None:
    assert place(10, UNKNOWN, source=(9, 20)).is_comparable
    assert not place(10, UNKNOWN, source=(10, 20)).is_comparable
    assert not place(10, UNKNOWN, start=10).is_comparable


def test_the_sequence_continues_in_the_epoch_of_the_last_run() -> None:
    assert sequence_of(place(10, UNKNOWN)) == (0, 0)
    assert sequence_of(place(10, known(9, epoch=3, sequence=4))) == (3, 5)


def batch_with(*values: bytes, time_ms: int = 1) -> Checked:
    body = encode(list(values), timestamps_ms=time_ms)
    data = memoryview(seal(body) + body.payload)
    return parse_header(data), data


def test_records_are_compared_by_offset() -> None:
    ours = place(2, UNKNOWN)
    assert not difference(ours, batch_with(b"a", b"b"), batch_with(b"a", b"b"))
    assert not difference(ours, batch_with(b"a", b"b"), batch_with(b"a"))
    for other in (batch_with(b"a", b"c"), batch_with(b"a", b"b", time_ms=2)):
        assert "offset" in difference(ours, batch_with(b"a", b"b"), other)


def test_without_a_common_record_only_the_producer_state_proves_the_copy() -> None:
    (empty,) = rewritten(log_of(FOURS[:1]), [[False] * 4])
    checked = parse_header(empty), memoryview(empty)
    assert not difference(place(4, known(3)), checked, checked)
    assert "none at its end to compare" in difference(place(4, UNKNOWN), checked, checked)


# -- tombstones ------------------------------------------------------------------------------------

# Whether a copy has every tombstone that it needs.


def compacted_source(
    removed_below: int, *, clean_end: int = 0, epoch: int = 3
) -> PartitionDescription:
    return PartitionDescription(
        0, 1, epoch, (1,), (1,), (), 0, 100, 100, 1, "", removed_below, clean_end
    )


def test_a_tombstone_beyond_what_was_read_must_still_be_there() -> None:
    assert is_whole(Known(3, 50), compacted_source(50), {})
    assert not is_whole(Known(3, 50), compacted_source(51), {})


def test_a_copy_that_begins_now_lacks_only_what_the_source_lacks() -> None:
    known = begun(compacted_source(40, clean_end=80))
    assert (known.end, known.copied_below) == (0, 80)
    assert is_whole(known, compacted_source(80), {})
    assert not is_whole(known, compacted_source(81), {})


def test_another_leader_may_have_removed_others() -> None:
    known = begun(compacted_source(40, clean_end=80))
    assert not is_whole(known, compacted_source(60, epoch=4), {})
    assert known.checked(compacted_source(60, epoch=4), 70) == Known(4, 70)


@pytest.mark.parametrize(("policy", "is_refused"), [("compact,delete", True), ("delete", False)])
def test_only_the_leader_says_which_tombstones_are_gone(policy: str, is_refused: bool) -> None:
    part = replace(compacted_source(50), by_leader=False)
    topic = TopicDescription("t", "id", {"cleanup.policy": policy}, {}, (part,))
    if is_refused:
        with pytest.raises(LeaderNotAvailableError, match="t:0: the leader does not respond"):
            by_partition([topic])
    else:
        assert by_partition([topic]) == {TopicPartition("t", 0): part}


def test_a_former_leader_may_have_removed_others_when_it_was_read() -> None:
    known, source = begun(compacted_source(40, clean_end=80)), compacted_source(0, epoch=5)
    assert is_whole(known, source, {3: 80})  # the copy began from that leader
    assert not is_whole(known, source, {3: 81})
    assert not is_whole(known, source, {3: 80, 4: 1})


def test_what_was_read_since_counts_from_the_next_comparison_on() -> None:
    known = Known(3, 50).checked(compacted_source(50), 90)
    assert is_whole(known, compacted_source(90), {})
    assert not is_whole(known, compacted_source(91), {})


# -- groups ----------------------------------------------------------------------------------------

# Committed offsets in the target: those of the source, below the end of the copy.


A, B, C, D = (TopicPartition("t", number) for number in range(4))
COPIES = {tp: (TopicPartition("p-t", tp.partition), 100) for tp in (A, B, C)}


def test_offsets_advance_up_to_the_end_of_the_copy() -> None:
    source = {
        A: OffsetAndMetadata(10, "note", 7),
        B: OffsetAndMetadata(150),
        D: OffsetAndMetadata(5),
    }
    assert commits_due(source, {}, COPIES) == {
        COPIES[A][0]: OffsetAndMetadata(10, "note"),
        COPIES[B][0]: OffsetAndMetadata(100),
    }


def test_offsets_never_move_back() -> None:
    source = {A: OffsetAndMetadata(10), B: OffsetAndMetadata(20), C: OffsetAndMetadata(30)}
    target = {COPIES[tp][0]: OffsetAndMetadata(20) for tp in (A, B, C)}
    assert commits_due(source, target, COPIES) == {COPIES[C][0]: OffsetAndMetadata(30)}


def test_offsets_are_overwritten_if_they_differ() -> None:
    source = {A: OffsetAndMetadata(10), B: OffsetAndMetadata(20), C: OffsetAndMetadata(30)}
    target = {COPIES[tp][0]: OffsetAndMetadata(20) for tp in (A, B, C)}
    assert commits_due(source, target, COPIES, Policy.OVERWRITE) == {
        COPIES[A][0]: OffsetAndMetadata(10),
        COPIES[C][0]: OffsetAndMetadata(30),
    }


# -- topics ----------------------------------------------------------------------------------------
#
# Selection of topics, and what the target cluster needs for them.


def described(name: str, partitions: int, replicas: int) -> TopicDescription:
    parts = tuple(
        PartitionDescription(number, 1, 0, tuple(range(1, replicas + 1)), (1,), (), 0, 0, 0, 0, "")
        for number in range(partitions)
    )
    config = {"retention.ms": "5", "segment.bytes": "9"}
    return TopicDescription(name, "id", config, ("retention.ms",), parts)


def test_whole_names_of_public_topics_match() -> None:
    listings = {name: TopicListing(name, "id", 1) for name in ("a", "ab", "__audit")}
    assert set(selected(listings, ["a", "ab", "gone"], re.compile("a|.*_internal|gone"))) == {"a"}


def test_new_topics_have_the_settings_partitions_and_replicas_of_the_source() -> None:
    made = planned([described("t", 2, 3)], {}, prefix="p-", broker_count=5)
    assert made.create == [NewTopic("p-t", 2, 3, {"retention.ms": "5"})]
    assert made.copies == {
        TopicPartition("t", number): TopicPartition("p-t", number) for number in range(2)
    }


def test_a_small_target_cluster_has_fewer_replicas() -> None:
    (new,) = planned([described("t", 1, 3)], {}, prefix="", broker_count=1).create
    assert new.replication_factor == 1


def test_a_copy_with_fewer_replicas_has_settings_that_allow_commits() -> None:
    source = described("t", 1, 3)
    overrides = {"min.insync.replicas": "2", "flush.policy": "os"}
    source = replace(source, config=overrides, config_overrides=tuple(overrides))
    for brokers in (1, 2, 3):
        (new,) = planned([source], {}, prefix="", broker_count=brokers).create
        TopicConfig.from_text(new.config).check_replication(new.replication_factor)
    assert new.config == overrides
    copy = described("t", 1, 1)
    copy = replace(copy, config={"flush.policy": "fsync"}, config_overrides=())
    assert settings_due(source, copy) == {}


def test_existing_topics_get_missing_partitions() -> None:
    existing = {"t": TopicListing("t", "id", 2), "u": TopicListing("u", "id", 9)}
    sources = [described("t", 4, 1), described("u", 4, 1)]
    made = planned(sources, existing, prefix="", broker_count=1)
    assert (made.create, made.extend) == ([], {"t": 4})
    assert len(made.copies) == 8


def test_a_copy_gets_the_settings_of_its_source() -> None:
    def topic(overrides: dict[str, str]) -> TopicDescription:
        config = {"retention.ms": "7", "cleanup.policy": "delete", "min.insync.replicas": "1"}
        return TopicDescription("t", "id", config | overrides, tuple(overrides), ())

    source = topic({"retention.ms": "-1", "cleanup.policy": "compact", "min.insync.replicas": "2"})
    copy = topic({"retention.ms": "5", "segment.bytes": "9", "cleanup.policy": "compact"})
    due = {"retention.ms": "-1", "segment.bytes": None}
    assert settings_due(source, copy) == due
    assert settings_due(source, source) == {}
    assert settings_due(topic({}), topic({})) == {}
