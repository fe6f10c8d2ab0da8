"""Clients and a real broker process: what only the whole can show."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, TopicPartition
from raftlog.aio import AsyncConsumer, AsyncProducer
from raftlog.errors import RaftlogError, RecordTooLargeError, UnknownTopicError
from raftlog.testing import Cluster
from tests.client.samples import ROOT, python

pytestmark = pytest.mark.integration

RECORDS = 20_000


def test_killing_the_broker_in_mid_stream_loses_and_doubles_nothing(
    raftlog_cluster: Cluster,
) -> None:
    bootstrap = raftlog_cluster.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t", partitions=3)])
    with Producer(bootstrap, linger_ms=1) as producer:
        futures = []
        for number in range(RECORDS):
            futures.append(producer.send("t", b"%d" % number, key=b"%d" % (number % 50)))
            if number == RECORDS // 2:
                raftlog_cluster.brokers[0].kill()
            if number == RECORDS * 3 // 4:
                raftlog_cluster.brokers[0].start()
        producer.flush(timeout=60)
        places = [future.result(0) for future in futures]
    found: dict[tuple[int, int], bytes | None] = {}
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        while len(found) < RECORDS:
            for record in consumer.poll(20_000, RECORDS):
                found[record.partition, record.offset] = record.value
        ends = consumer.end_offsets([TopicPartition("t", number) for number in range(3)])
    assert sum(ends.values()) == RECORDS
    for number, place in enumerate(places):
        assert found[place.partition, place.offset] == b"%d" % number


def test_a_producer_that_is_never_closed_delivers_at_exit(raftlog_cluster: Cluster) -> None:
    bootstrap = raftlog_cluster.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
    script = """
    from raftlog import Producer

    producer = Producer({bootstrap!r}, linger_ms=60_000)
    for number in range(1_000):
        producer.send("t", b"%d" % number)
    {end}
    """
    for end in ("", "del producer"):  # it exists at exit, or was garbage before
        done = python(script.format(bootstrap=bootstrap, end=end))
        assert (done.returncode, done.stdout) == (0, "")
        assert "not delivered" not in done.stderr
    with Consumer(bootstrap) as consumer:
        assert consumer.end_offsets([TopicPartition("t", 0)]) == {TopicPartition("t", 0): 2_000}


SCRIPT_OF_FORGOTTEN = """
    import asyncio, multiprocessing, threading
    from raftlog import Producer
    from raftlog.aio import AsyncProducer

    def work():
        producer = Producer({bootstrap!r}, linger_ms=60_000)
        for number in range(1_000):
            producer.send("t", b"%d" % number)

    async def use(kept):
        producer = AsyncProducer({bootstrap!r}, linger_ms=60_000)
        for number in range(1_000):
            await producer.send("t", b"%d" % number)
        kept.append(producer)

    kept = []
    {end}
"""


@pytest.mark.parametrize(
    ("end", "is_delivered"),
    [
        (
            "process = multiprocessing.get_context('fork').Process(target=work); process.start()",
            True,
        ),
        ("threading.Thread(target=work).start()", True),  # the main thread ends before it sends
        ("asyncio.run(use(kept))", False),
        ("asyncio.run(use([]))", False),
    ],
    ids=["forked worker", "thread", "asyncio", "asyncio, garbage"],
)
def test_records_of_forgotten_producers_are_delivered_or_reported(
    raftlog_cluster: Cluster, end: str, is_delivered: bool
) -> None:
    bootstrap = raftlog_cluster.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
    done = python(SCRIPT_OF_FORGOTTEN.format(bootstrap=bootstrap, end=end))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("1,000 records were not delivered") == (not is_delivered)
    assert "Traceback" not in done.stderr
    with Consumer(bootstrap) as consumer:
        ends = consumer.end_offsets([TopicPartition("t", 0)])
    assert set(ends.values()) == {1_000 if is_delivered else 0}


def test_clients_need_no_numpy(raftlog_cluster: Cluster) -> None:
    done = python(f"""
    import sys

    sys.modules["numpy"] = None  # as if it were not installed
    from raftlog import Admin, Consumer, NewTopic, Producer

    bootstrap = {raftlog_cluster.bootstrap!r}
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t", partitions=3)])
    numbers = [b"%d" % number for number in range(5_000)]
    with Producer(bootstrap) as producer:
        producer.send_many("t", numbers, numbers, headers=[[("h", b"1")]] * len(numbers))
    found = set()
    with Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        while len(found) < len(numbers):
            found |= {{record.value for record in consumer.poll(20_000, 1_000)}}
    assert found == set(numbers)
    """)
    assert done.returncode == 0, done.stderr


def test_records_that_exit_cannot_deliver_are_counted(raftlog_cluster: Cluster) -> None:
    bootstrap = raftlog_cluster.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
    (broker,) = raftlog_cluster.brokers
    done = python(f"""
    import os, signal
    from raftlog import Producer
    from raftlog.client import producer as module

    module.EXIT_FLUSH_SECONDS_MAX = 0.2
    producer = Producer({bootstrap!r}, linger_ms=60_000)
    producer.send("t", b"0")
    os.kill({broker.pid}, signal.SIGSTOP)
    producer.send_many("t", [b"%d" % number for number in range(999)])
    """)
    os.kill(broker.pid, signal.SIGCONT)
    assert done.returncode == 0, done.stderr
    assert "ResourceWarning: 1,000 records were not delivered" in done.stderr


def test_a_consumer_outlives_a_restart(raftlog_cluster: Cluster) -> None:
    bootstrap = raftlog_cluster.bootstrap
    with Admin(bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
    with (
        Producer(bootstrap) as producer,
        Consumer(bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([TopicPartition("t", 0)])
        producer.send_many("t", [b"before"] * 10).result(20)
        seen = Counter(record.value for record in consumer.poll(20_000, 10))
        raftlog_cluster.brokers[0].kill()
        assert consumer.poll(timeout_ms=100) == []
        raftlog_cluster.brokers[0].start()
        producer.send_many("t", [b"after"] * 10).result(20)
        while sum(seen.values()) < 20:
            seen.update(record.value for record in consumer.poll(20_000))
    assert seen == {b"before": 10, b"after": 10}


def test_everything_once_over_asyncio(raftlog_bootstrap: str) -> None:
    async def main() -> list[bytes | None]:
        async with AsyncProducer(raftlog_bootstrap, compression="zstd") as producer:
            futures = [await producer.send("t", b"%d" % number) for number in range(1_000)]
            for future in futures:
                await future
        async with AsyncConsumer(raftlog_bootstrap, auto_offset_reset="earliest") as consumer:
            await consumer.subscribe(["t"])
            found: list[bytes | None] = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 1_000:
                    return found
        raise AssertionError("an iteration has no end")

    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
    assert asyncio.run(main()) == [b"%d" % number for number in range(1_000)]


@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_every_codec_comes_back(raftlog_bootstrap: str, codec: str) -> None:
    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("t", config={"max.message.bytes": "20000"})])
    values = [b"%d " % number * 50 for number in range(2_000)]
    with Producer(raftlog_bootstrap, compression=codec) as producer:
        producer.send_many("t", values).result(20)
        if codec == "none":
            with pytest.raises(RecordTooLargeError):
                producer.send("t", b"x" * 20_000).result(20)
    with Consumer(raftlog_bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        found: list[bytes | None] = []
        while len(found) < len(values):
            found += [record.value for record in consumer.poll(20_000, 5_000)]
    assert found == values


def test_a_topic_deleted_under_its_clients(raftlog_bootstrap: str) -> None:
    with (
        Admin(raftlog_bootstrap) as admin,
        Producer(raftlog_bootstrap) as producer,
        Consumer(raftlog_bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        admin.create_topics([NewTopic("t")])
        producer.send("t", b"a").result(20)
        consumer.subscribe(["t"])
        assert len(consumer.poll(20_000)) == 1
        admin.delete_topics(["t"])
        with pytest.raises(UnknownTopicError):
            producer.send("t", b"b").result(20)
        with pytest.raises(RaftlogError):
            consumer.poll(20_000)
        admin.create_topics([NewTopic("t")])
        assert producer.send("t", b"c").result(20).offset == 0


def test_ctrl_c_ends_a_program_that_waits_for_records(raftlog_bootstrap: str) -> None:
    with Admin(raftlog_bootstrap) as admin:
        admin.create_topics([NewTopic("t")])
    script = """
import sys
from raftlog import Consumer
with Consumer(sys.argv[1]) as consumer:
    consumer.subscribe(["t"])
    print("waiting", flush=True)
    for record in consumer:
        pass
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, raftlog_bootstrap],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "waiting\n"
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=20)
        finally:
            program.kill()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert program.returncode in {1, 130, -signal.SIGINT}
