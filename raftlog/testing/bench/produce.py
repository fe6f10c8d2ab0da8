"""How fast one producer gets records acknowledged, next to the floor."""

from __future__ import annotations

import statistics
import time
import uuid
from pathlib import Path

from raftlog import Admin, NewTopic, Producer
from raftlog.limits import MIB, PRODUCER_BATCHES_REMEMBERED
from raftlog.record import encode, seal
from raftlog.testing.bench.figures import Throughput
from raftlog.testing.bench.floor import (
    FloorClient,
    empty_files,
    floor_server,
    warm_page_cache,
)


def produce(
    bootstrap: str,
    directory: Path,
    *,
    records: int,
    value_bytes: int,
    one_by_one: bool = False,
    rounds: int = 3,
    compression: str = "none",
    replicas: int = 1,
) -> Throughput:
    """Alternate rounds of the floor and of a producer; ``directory`` is on the disk to measure.

    With ``replicas``, of the topic, the floor is a pipeline of as many processes.

    Each round starts with nothing on the disk and the other of the two first, because what went
    before decides how fast the page cache is (see ``warm_page_cache``).
    """
    value = b"x" * value_bytes
    records_per_batch, frame = _full_batch(value)
    frames = max(1, records // records_per_batch)
    floor_rates, rates = [], []
    warm_page_cache(directory, 2 * replicas * frames * len(frame))
    with (
        Admin(bootstrap) as admin,
        floor_server(directory, sync="thread", followers=replicas - 1) as address,
    ):

        def floor_round() -> None:
            client = FloorClient(address)
            seconds = client.stream(frame, frames=frames, in_flight_max=PRODUCER_BATCHES_REMEMBERED)
            client.close()
            empty_files(directory)
            floor_rates.append(frames * records_per_batch / seconds)

        def product_round() -> None:
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            admin.create_topics([NewTopic(topic, replication_factor=replicas)])
            try:
                chunk = [value] * (1 if one_by_one else records_per_batch)
                rates.append(_produce_round(bootstrap, topic, chunk, records, compression))
            finally:
                admin.delete_topics([topic])

        for number in range(rounds):
            pair = (floor_round, product_round)
            for run in pair if number % 2 else reversed(pair):
                run()
    rate, floor_rate = statistics.median(rates), statistics.median(floor_rates)
    return Throughput(
        name=_name("send" if one_by_one else "send_many", replicas),
        records=records,
        value_bytes=value_bytes,
        rounds=rounds,
        records_per_s=rate,
        megabytes_per_s=rate * len(frame) / records_per_batch / 1e6,
        floor_records_per_s=floor_rate,
        ratio=rate / floor_rate,
    )


def _name(call: str, replicas: int) -> str:
    return call if replicas == 1 else f"{call}, {replicas} replicas"


def _full_batch(value: bytes) -> tuple[int, bytes]:
    """The number of such values that make a batch of about 1 MiB, and the batch."""
    count = max(1, MIB // (len(value) + 12) - 8)
    body = encode([value] * count, timestamps_ms=int(time.time() * 1000))
    return count, seal(body) + body.payload


def _produce_round(
    bootstrap: str, topic: str, chunk: list[bytes], records: int, compression: str
) -> float:
    """Records per second, from the first call until all are acknowledged.

    A chunk of one record is a call of ``send``, a larger one a call of ``send_many``.
    """
    calls = max(1, records // len(chunk))
    with Producer(bootstrap, compression=compression) as producer:
        producer.send(topic, chunk[0]).result(timeout=30)  # connect, look up, get an id
        start = time.perf_counter()
        if len(chunk) == 1:
            send, value = producer.send, chunk[0]
            for _ in range(calls):
                send(topic, value)
        else:
            for _ in range(calls):
                producer.send_many(topic, chunk)
        producer.flush(timeout=120)
        return calls * len(chunk) / (time.perf_counter() - start)
