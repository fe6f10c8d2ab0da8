"""A producer with a name, on real processes: runs and leaders die, each record is there once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from raftlog import TopicPartition
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.resumable import ResumableProducer
from raftlog.errors import OutOfOrderSequenceError
from raftlog.record import BatchBody, encode
from raftlog.testing import Cluster, cluster
from tests.integration.load import TOPIC, create, leader_of, read_all, until_in_sync

pytestmark = pytest.mark.integration

TP = TopicPartition(TOPIC, 0)
RECORDS = 3_000
VALUES = [b"%d" % number for number in range(RECORDS)]


def producer_of(running: Cluster) -> ResumableProducer:
    return ResumableProducer(
        running.bootstrap, name="the work of a night", request_timeout_ms=5_000
    )


def bodies(values: Sequence[bytes], size: int) -> Iterator[BatchBody]:
    for first in range(0, len(values), size):
        yield encode(values[first : first + size], timestamps_ms=1_700_000_000_000)


def append_and_kill_the_leader(
    running: Cluster, producer: ResumableProducer, values: Sequence[bytes], size: int
) -> list[DeliveryFuture]:
    """What a run does; when half of it is under way, the leader is killed."""
    start = producer.stored([TP])[TP]
    batches = list(bodies(values[start:], size))
    half = len(batches) // 2
    futures = [producer.append(TP, batch) for batch in batches[:half]]
    futures[half // 2].result(20)
    running.broker(leader_of(running)).kill()
    return futures + [producer.append(TP, batch) for batch in batches[half:]]


def test_runs_that_die_under_leaders_that_die_store_everything_once(tmp_path: Path) -> None:
    with cluster(brokers=3, directory=tmp_path, with_relays=False) as running:
        create(running, copies=3)
        zombie = producer_of(running)
        assert zombie.stored([TP]) == {TP: 0}

        first = producer_of(running)
        killed = leader_of(running)
        append_and_kill_the_leader(running, first, VALUES[: RECORDS // 2], 7)
        first.close(timeout=0)  # as if it had died: what is on its way may be stored, or not
        running.broker(killed).start()
        until_in_sync(running)

        with producer_of(running) as second:
            futures = append_and_kill_the_leader(running, second, VALUES, 11)
            second.flush(30)
            offsets = [future.result(0).offset for future in futures]
            assert 0 < offsets[0] <= RECORDS // 2
            assert offsets == list(range(offsets[0], RECORDS, 11))
            assert second.stored([TP]) == {TP: RECORDS}

        late = zombie.append(TP, next(bodies(VALUES, 13)))
        assert isinstance(late.exception(20), OutOfOrderSequenceError)
        zombie.close()
        found = read_all(running.bootstrap, TP)
    assert [value for _, value in found] == VALUES
