"""One range as it comes: what is taken of the batches, and which make a portion.

What is asked of the cluster is in ``test_range_reader``.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.client.administration.admin import AsyncAdmin
from raftlog.client.administration.describe import ChainAt, first_difference
from raftlog.client.consumer import Checked
from raftlog.client.descriptions import CopyVerification, PartitionVerification
from raftlog.client.readers import Range
from raftlog.errors import CorruptBatchError
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import VerifyCopyRequest, VerifyCopyResponse
from raftlog.protocol.connection import Request
from raftlog.record import check, split
from raftlog.testing import Cluster, wait_until
from raftlog_cli.main import run
from tests.client.samples import stored_batch
from tests.client.test_fetcher import fill as fill_fake
from tests.client.test_subscription import A
from tests.client.world import FakeCluster, Peer
from tests.client.world import run as run_fake


def range_of(start: int, end: int, **changes: Any) -> Range:
    settings: dict[str, Any] = {"rows_max": 10, "bytes_max": 1 << 20, "timeout_ms": 1, **changes}
    return Range(tp=A, start=start, end=end, fetched=start, topic_id="", columns=None, **settings)


def is_enough(wanted: Range) -> bool:
    return wanted.is_enough


def batch(base: int, count: int, *, size: int = 1) -> Checked:
    data = memoryview(stored_batch(base, *[b"x" * size] * count))
    return check(data), data


def bases(taken: list[Checked]) -> list[int]:
    return [header.base_offset for header, _ in taken]


def test_batches_are_taken_in_order_from_the_one_with_the_start_on() -> None:
    wanted = range_of(4, 11)
    assert not is_enough(wanted)
    wanted.add([batch(0, 3), batch(3, 2), batch(5, 5)])
    assert (wanted.fetched, wanted.is_fetched, wanted.rows) == (10, False, 7)
    wanted.add([batch(5, 5), batch(10, 2)])
    assert (wanted.fetched, wanted.is_fetched, wanted.rows) == (12, True, 9)
    taken, pieces = wanted.take()
    assert (bases(taken), pieces) == ([3, 5, 10], 1)
    assert (wanted.rows, wanted.size_bytes, list(wanted.batches)) == (0, 0, [])


def test_a_gap_is_no_part_of_any_log() -> None:
    wanted = range_of(0, 20)
    wanted.add([batch(0, 3)])
    with pytest.raises(CorruptBatchError, match=r"offsets 3 to 4 are missing: .* starts at 5"):
        wanted.add([batch(5, 1)])


def test_a_portion_is_as_large_as_asked_for_and_no_larger() -> None:
    wanted = range_of(0, 100, rows_max=10)
    wanted.add([batch(0, 4), batch(4, 4)])
    assert not is_enough(wanted)
    wanted.add([batch(8, 4), batch(12, 4)])
    assert is_enough(wanted)
    assert bases(wanted.take()[0]) == [0, 4]
    assert not is_enough(wanted)
    wanted.add([batch(16, 2)])
    assert is_enough(wanted)
    assert bases(wanted.take()[0]) == [8, 12, 16]


def test_so_it_is_by_size() -> None:
    wanted = range_of(0, 100, bytes_max=2_500)
    wanted.add([batch(offset, 1, size=1_000) for offset in range(2)])
    assert not is_enough(wanted)
    wanted.add([batch(2, 1, size=1_000)])
    assert is_enough(wanted)
    assert bases(wanted.take()[0]) == [0, 1]


@pytest.mark.parametrize(
    ("rows", "size", "pieces"), [(10, 1, 1), (11, 1, 2), (30, 1, 3), (2, 5_000, 3), (1, 0, 1)]
)
def test_a_large_batch_is_one_portion_to_be_split(rows: int, size: int, pieces: int) -> None:
    wanted = range_of(0, 100, rows_max=10, bytes_max=4_000)
    wanted.add([batch(0, rows, size=size), batch(rows, 100)])
    taken, count = wanted.take()
    assert (bases(taken), count) == ([0], pieces)


# -- verify copies ---------------------------------------------------------------------------------
#
# Comparison of copies: corrupt, differing and missing ones, by chain values and on brokers.


TIMEOUT_S = 30.0


# -- by chain values -------------------------------------------------------------------------------


def chain_of(values: list[int | None]) -> ChainAt:
    async def chain_at(offset: int) -> int | None:
        return values[offset]

    return chain_at


def test_the_first_batch_that_differs_is_found() -> None:
    for differs_at in range(20):
        ours: list[int | None] = list(range(21))
        theirs = [value if value is not None and value <= differs_at else -1 for value in ours]
        search = first_difference(chain_of(ours), chain_of(theirs), 0, 20)
        assert asyncio.run(search) == differs_at


def test_unknown_values_move_the_result_to_a_later_batch() -> None:
    ours: list[int | None] = [0, 1, None, None, None, 5, 6]
    theirs: list[int | None] = [0, 1, -1, -1, -1, -1, -1]
    assert asyncio.run(first_difference(chain_of(ours), chain_of(theirs), 0, 6)) == 4


def test_a_verification_is_complete_when_all_copies_were_verified_to_the_high_watermark() -> None:
    whole = CopyVerification(1, 0, 10)

    def verification(*copies: CopyVerification) -> PartitionVerification:
        return PartitionVerification("t", 0, 10, copies)

    assert verification(whole).is_complete
    for other in (CopyVerification(2, 0, 9), CopyVerification(2, 0, 10, problem="unreachable")):
        assert not verification(whole, other).is_complete
        assert not verification(whole, other).is_bad
    for bad in (CopyVerification(2, 0, 4, damage="flip"), CopyVerification(2, 0, 10, differs_at=4)):
        assert verification(whole, bad).is_bad
    assert not verification().is_complete


def answering(peer: Peer, request: Request) -> None:
    """Verify copies of 9 offsets, 4 at a time. That of broker 3 differs from offset 5 on."""
    asked = request.message
    assert isinstance(asked, VerifyCopyRequest)
    reached = min(asked.start_offset + 4, 9)
    chain = asked.end_offset + (100 if peer.broker_id == 3 and asked.end_offset > 5 else 0)
    answer = VerifyCopyResponse(
        log_start_offset=0,
        log_end_offset=9,
        reached=reached,
        chain=chain if asked.end_offset <= reached else None,
    )
    peer.write(peer.state.reply(request, answer))


def test_copies_with_other_chain_values_differ() -> None:
    async def test(fake: FakeCluster) -> PartitionVerification:
        fake.create("t", 1, leaders=[2])
        fill_fake(fake, 9)
        fake.always[apis.VERIFY_COPY] = answering
        async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
            (partition,) = (await admin.describe_cluster()).partitions
            return await admin.verify_copies(partition)

    found = run_fake(test, brokers=3)
    assert found.is_bad
    assert found.high_watermark == 9
    assert {copy.broker: (copy.end_offset, copy.differs_at) for copy in found.copies} == {
        1: (9, -1),
        2: (9, -1),
        3: (9, 5),
    }


def test_a_time_limit_makes_the_result_partial_and_it_is_continued() -> None:
    """Each call asks each broker for one part: 4 of the 9 offsets."""

    async def test(fake: FakeCluster) -> list[PartitionVerification]:
        fake.create("t", 1, leaders=[2])
        fill_fake(fake, 9)
        fake.always[apis.VERIFY_COPY] = answering
        found: list[PartitionVerification] = []
        async with AsyncAdmin(fake.bootstrap, host=fake.host) as admin:
            (partition,) = (await admin.describe_cluster()).partitions
            for _ in range(3):
                before = found[-1] if found else None
                found.append(await admin.verify_copies(partition, before, time_ms=0))
            asked = fake.asked(VerifyCopyRequest)
            assert [each.start_offset for each in asked[:6]] == [0] * 3 + [4] * 3
            whole = await admin.verify_copies(partition)
        assert found[-1] == whole
        return found

    first, second, last = run_fake(test, brokers=3)
    assert [{copy.end_offset for copy in each.copies} for each in (first, second)] == [{4}, {8}]
    assert (first.is_partial, first.is_complete, first.is_bad) == (True, False, False)
    assert (last.is_partial, last.is_bad) == (False, True)


# -- real brokers ----------------------------------------------------------------------------------


def verify(
    three: Cluster, capfd: pytest.CaptureFixture[str], topic: str
) -> tuple[int, dict[str, Any]]:
    """Exit status and result of ``raftlog log verify --cluster``."""
    capfd.readouterr()
    arguments = ["--cluster", "--topic", topic, "--bootstrap", three.bootstrap, "--json"]
    status = run(["log", "verify", *arguments])
    return status, json.loads(capfd.readouterr().out)


def fill(three: Cluster, topic: str) -> None:
    with Admin(three.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, replication_factor=3)])
    with Producer(three.bootstrap) as producer:
        for number in range(30):
            producer.send(topic, b"%d" % number * 100, partition=0).result(TIMEOUT_S)
    wait_until(lambda: three.is_in_sync(topic, 0), timeout_s=TIMEOUT_S, what="replicas in sync")


def flip(segment: Path, batch_number: int) -> None:
    """Flip a bit in the payload of a batch."""
    data = bytearray(segment.read_bytes())
    batches = list(split(bytes(data)))
    position = sum(map(len, batches[: batch_number + 1])) - 5
    with segment.open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 0x10]))


@pytest.mark.integration
def test_a_flipped_bit_is_reported_with_its_offset_and_repaired(
    three: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(three, "flipped")
    status, result = verify(three, capfd, "flipped")
    assert (status, result["sound"]) == (0, True)
    (partition,) = result["partitions"]
    assert (partition["state"], partition["high_watermark"]) == ("equal", 30)
    assert [copy["end_offset"] for copy in partition["copies"]] == [30] * 3
    victim = next(b for b in (1, 2, 3) if b != three.leader("flipped", 0))
    (segment,) = three.broker(victim).data_dir.glob("topics/flipped/*/0/*.log")
    flip(segment, 17)
    status, result = verify(three, capfd, "flipped")
    assert (status, result["sound"]) == (1, False)
    (bad,) = [copy for copy in result["partitions"][0]["copies"] if copy["damage"]]
    assert (bad["broker"], bad["end_offset"]) == (victim, 17)
    wait_until(
        lambda: verify(three, capfd, "flipped")[0] == 0, timeout_s=TIMEOUT_S, what="a new copy"
    )
    assert any(segment.parent.parent.glob("0.quarantine-*"))


@pytest.mark.integration
def test_a_copy_on_a_broker_that_is_down_is_not_verified(
    three: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(three, "down")
    three.broker(3).kill()
    try:
        status, result = verify(three, capfd, "down")
    finally:
        three.broker(3).start()
    assert (status, result["sound"]) == (3, False)
    (missing,) = [copy for copy in result["partitions"][0]["copies"] if copy["problem"]]
    assert missing["broker"] == 3
