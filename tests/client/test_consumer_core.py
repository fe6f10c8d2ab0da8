"""Taking what is fetched: records, runs and Arrow; damage, deserializers, positions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from raftlog.client.consumer import ConsumerCore, check_times
from raftlog.client.settings import ConnectionSettings, parse_bootstrap
from raftlog.errors import (
    BrokerUnavailableError,
    CorruptBatchError,
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftlog.protocol.records import FetchRequest, ListOffsetsRequest
from raftlog.types import OffsetAndTimestamp, TopicPartition
from tests.client.samples import consumer_settings, stored_batch
from tests.client.test_fetcher import fill
from tests.client.test_subscription import A, B
from tests.client.world import FakeCluster, run
from tests.running import runs


def core_of(fake: FakeCluster, **settings: Any) -> ConsumerCore:
    deserializers = {
        name: settings.pop(name, None) for name in ("key_deserializer", "value_deserializer")
    }
    core = ConsumerCore(
        ConnectionSettings(
            bootstrap=parse_bootstrap(fake.bootstrap),
            client_id="me",
            request_timeout_ms=30_000,
            bootstrap_timeout_ms=3_000,
            metadata_max_age_ms=30_000,
        ),
        consumer_settings(**settings),
        fake.host,
        **deserializers,
    )
    core.attach(asyncio.get_running_loop().call_soon)
    return core


async def filled(fake: FakeCluster, *counts: int, **settings: Any) -> ConsumerCore:
    """A core that has fetched batches of so many records of partition 0."""
    fake.create("t", 2)
    fill(fake, *counts)
    core = core_of(fake, **settings)
    await core.assign([A])
    core.activate()
    await asyncio.sleep(0.1)
    return core


def taken(core: ConsumerCore, most: int) -> list[int]:
    return [record.offset for record in core.take(most)]


@runs(run)
async def test_records_are_taken_up_to_the_number_asked_for_across_batches(
    fake: FakeCluster,
) -> None:
    core = await filled(fake, 3, 1, 4)
    assert [taken(core, most) for most in (2, 3, 9, 9)] == [[0, 1], [2, 3, 4], [5, 6, 7], []]
    assert await core.position(A) == 8
    await core.close()


@runs(run)
async def test_records_carry_where_they_are(fake: FakeCluster) -> None:
    core = await filled(fake, 1)
    (record,) = core.take(9)
    assert (record.topic, record.partition, record.offset) == ("t", 0, 0)
    assert (record.key, record.value, record.headers) == (None, b"x", ())
    assert record.leader_epoch == 3
    await core.close()


@runs(run)
async def test_runs_and_takes_can_be_mixed(fake: FakeCluster) -> None:
    core = await filled(fake, 4, 2)
    first = core.next_run()
    assert first is not None
    record = next(first.records)
    first.part.position = record.offset + 1
    assert taken(core, 2) == [1, 2]
    assert list(first.records) == []
    second = core.next_run()
    assert second is not None
    for record in second.records:
        second.part.position = record.offset + 1
    assert await core.position(A) == 4
    assert taken(core, 9) == [4, 5]
    assert core.next_run() is None
    await core.close()


def test_arrow_joins_batches_from_the_position_on() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 3, 2)
        assert taken(core, 1) == [0]
        found = core.take_arrow()
        assert found is not None
        assert found.column("offset").to_pylist() == [1, 2, 3, 4]
        assert core.take_arrow() is None
        assert await core.position(A) == 5
        await core.close()

    run(test)


def damage(fake: FakeCluster, index: int) -> None:
    """Flip a bit in the payload of a stored batch: its header stays good."""
    log = fake.topics["t"].logs[0]
    bad = bytearray(log.batches[index])
    bad[-1] ^= 1
    log.batches[index] = bytes(bad)


@pytest.mark.parametrize("how", ["take", "run", "arrow"])
def test_damage_is_told_with_its_place_and_never_stepped_over(how: str) -> None:
    pytest.importorskip("pyarrow")

    def read(core: ConsumerCore) -> Any:
        return {"take": lambda: core.take(9), "run": core.next_run, "arrow": core.take_arrow}[how]()

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 2)
        fill(fake, 3, 1)
        damage(fake, 1)
        await asyncio.sleep(0.6)
        first = read(core)
        if how == "run":
            for record in first.records:
                first.part.position = record.offset + 1
        assert await core.position(A) == 2
        await asyncio.sleep(0.1)
        if how != "take":  # which has come that far with the good records
            assert not read(core), "it is asked for once more before it is told"
            await asyncio.sleep(0.1)
        for _ in range(2):
            with pytest.raises(
                CorruptBatchError, match=r"t:0: .* offset 2 .*seek\(.*, 5\)"
            ) as told:
                read(core)
            await asyncio.sleep(0.1)
        assert await core.position(A) == 2
        assert (told.value.topic, told.value.partition, told.value.offset) == ("t", 0, 2)
        told.value.skip()
        await asyncio.sleep(0.1)
        assert taken(core, 9) == [5]
        await core.close()

    run(test)


def doubts(fake: FakeCluster) -> list[int]:
    """The offsets that a broker was asked to look at."""
    parts = [part for request in fake.asked(FetchRequest) for part in request.partitions]
    return [part.offset for part in parts if part.doubtful]


@pytest.mark.parametrize("how", ["take", "run", "arrow"])
def test_what_came_damaged_once_is_asked_for_again_and_nobody_is_told(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("pyarrow")

    def count(core: ConsumerCore) -> int:
        if how == "take":
            return len(core.take(9))
        if how == "arrow":
            found = core.take_arrow()
            return 0 if found is None else found.num_rows
        run_ = core.next_run()
        if run_ is None:
            return 0
        records = list(run_.records)
        run_.part.position = records[-1].offset + 1
        return len(records)

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 2)
        fill(fake, 3, 1)
        log = fake.topics["t"].logs[0]
        good = list(log.batches)
        damage(fake, 1)
        await asyncio.sleep(0.6)
        found = count(core)
        log.batches[:] = good
        while found < 6:
            found += count(core)
            await asyncio.sleep(0.1)
        assert found == 6
        assert await core.position(A) == 6
        assert doubts(fake) == [2]
        await core.close()

    run(test)
    assert "offset=2" in caplog.text


@runs(run)
async def test_after_a_seek_a_damaged_batch_is_met_for_the_first_time(fake: FakeCluster) -> None:
    core = await filled(fake, 2)
    damage(fake, 0)
    core.subscription.seek(A, 0)
    core.wake()
    await asyncio.sleep(0.1)
    assert core.take(9) == []
    core.subscription.seek(A, 0)
    core.wake()
    await asyncio.sleep(0.1)
    assert core.take(9) == []
    await asyncio.sleep(0.1)
    with pytest.raises(CorruptBatchError):
        core.take(9)
    await core.close()


def test_records_before_the_damage_come_first() -> None:
    pytest.importorskip("pyarrow")

    async def test(fake: FakeCluster) -> None:
        fake.create("t", 2)
        fill(fake, 2, 3)
        damage(fake, 1)
        core = core_of(fake)
        await core.assign([A])
        core.activate()
        await asyncio.sleep(0.1)
        assert taken(core, 9) == [0, 1]
        core.subscription.seek(A, 0)
        core.wake()
        await asyncio.sleep(0.1)
        found = core.take_arrow()
        assert found is not None
        assert found.num_rows == 2
        await core.close()

    run(test)


@runs(run)
async def test_checking_can_be_left_out(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 1)
    batch = bytearray(fake.topics["t"].logs[0].batches[0])
    batch[40] ^= 1  # the stored CRC itself
    fake.topics["t"].logs[0].batches[0] = bytes(batch)
    core = core_of(fake, check_crcs=False)
    await core.assign([A])
    core.activate()
    await asyncio.sleep(0.1)
    assert taken(core, 9) == [0]
    await core.close()


@runs(run)
async def test_deserializers_see_what_is_not_none(fake: FakeCluster) -> None:
    core = await filled(fake, 2, key_deserializer=bytes.decode, value_deserializer=len)
    assert [(record.key, record.value) for record in core.take(9)] == [(None, 1)] * 2
    await core.close()


def test_a_record_that_cannot_be_deserialized_is_told_and_can_be_passed() -> None:
    def picky(value: bytes) -> bytes:
        if value == b"bad":
            raise ValueError("not this one")
        return value

    async def test(fake: FakeCluster) -> None:
        core = await filled(fake, 1, value_deserializer=picky)
        log = fake.topics["t"].logs[0]
        log.batches.append(stored_batch(1, b"good", b"bad", b"fine"))
        log.end = 4
        await asyncio.sleep(0.6)
        assert taken(core, 9) == [0, 1], "those before it"
        with pytest.raises(DeserializationError, match=r"t:0: .* offset 2: .*not this") as caught:
            core.take(9)
        error = caught.value
        assert isinstance(error.__cause__, ValueError)
        assert (error.topic, error.partition, error.offset) == ("t", 0, 2)
        assert await core.position(A) == 2
        error.skip()
        assert await core.position(A) == 3
        await asyncio.sleep(0.1)
        assert taken(core, 9) == [3]
        await core.close()

    run(test)


@runs(run)
async def test_assigning_checks_that_partitions_exist(fake: FakeCluster) -> None:
    fake.create("t", 2)
    core = core_of(fake)
    with pytest.raises(UnknownTopicError):
        await core.assign([TopicPartition("nope", 0)])
    with pytest.raises(UnknownPartitionError):
        await core.assign([TopicPartition("t", 2)])
    assert not core.subscription.parts
    await core.close()


@runs(run)
async def test_latest_is_the_end_when_it_was_assigned(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 3)
    core = core_of(fake, auto_offset_reset="latest")
    await core.assign([A])
    fill(fake, 2)
    core.activate()
    await asyncio.sleep(0.1)
    assert taken(core, 9) == [3, 4]
    await core.close()


@runs(run)
async def test_subscribing_reads_all_partitions(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fake.create("u")
    core = core_of(fake)
    await core.subscribe(["t", "u"])
    assert set(core.subscription.parts) == {A, B, TopicPartition("u", 0)}
    await core.subscribe(["u"])
    assert set(core.subscription.parts) == {TopicPartition("u", 0)}
    await core.close()


@runs(run)
async def test_positions_and_offsets_are_looked_up(fake: FakeCluster) -> None:
    fake.create("t", 2)
    fill(fake, 4)
    core = core_of(fake)
    await core.assign([A, B])
    assert await core.position(A) == 0
    assert await core.offsets([A, B], "latest") == {A: 4, B: 0}
    await core.reset([A], "latest")
    assert await core.position(A) == 4
    found = await core.offsets_for_times({A: 1_700_000_000_000, B: 1})
    assert found == {A: OffsetAndTimestamp(0, 1_700_000_000_000), B: None}
    asked = len(fake.asked(ListOffsetsRequest))
    await core.resolve_positions([A])
    assert len(fake.asked(ListOffsetsRequest)) == asked, "it is known"
    await core.close()


@runs(run)
async def test_without_a_policy_there_is_no_position(fake: FakeCluster) -> None:
    fake.create("t", 2)
    core = core_of(fake, auto_offset_reset="error")
    await core.assign([A])
    with pytest.raises(OffsetOutOfRangeError, match="seek"):
        await core.position(A)
    await core.close()


@pytest.mark.parametrize("times", [[A], {A: 1.5}, {A: True}, {A: "now"}])
def test_times_are_checked(times: Any) -> None:
    with pytest.raises(TypeError):
        check_times(times)


def test_a_time_before_1970_is_refused() -> None:
    assert check_times({("t", 0): 5}) == {A: 5}
    with pytest.raises(InvalidRequestError, match="1970"):
        check_times({A: -1})


@pytest.mark.parametrize("read_from", ["leader", "replica"])
@runs(run, brokers=3)
async def test_without_a_leader_where_to_begin_is_known_and_the_end_is_not(
    fake: FakeCluster, *, read_from: str
) -> None:
    topic = fake.create("t", 2)
    fill(fake, 4)
    topic.known_ends = {2: 3, 3: 2}
    core = core_of(fake, read_from=read_from, auto_offset_reset="latest")
    await core.topic("t")
    fake.kill(1)
    start = asyncio.get_running_loop().time()
    await core.assign([A])
    assert await core.position(A) == 3
    assert await core.offsets([A], "earliest") == {A: 0}
    assert asyncio.get_running_loop().time() - start < 5
    if read_from == "replica":
        assert await core.offsets([A], "latest") == {A: 3}
    else:
        with pytest.raises(BrokerUnavailableError, match="broker 1"):
            await core.offsets([A], "latest")  # lest ends that were shown go back
    await core.close()
