"""Fuzzing of Kafka's requests: damaged requests for the decoder, and for a broker's handlers.

    python -m tests.kafka.fuzz --seconds 60 --seed 1

Requests are generated from the schema, for every API and version, and then damaged: bytes flipped,
numbers replaced by extreme ones, parts cut, repeated or exchanged. The decoder must return requests
or end the connection, and raise nothing. A broker must answer or close the connection; an
exception in a handler is a failure. So is a change of topics, records, settings or committed
offsets by a request that is refused. The counts are printed, and the seed repeats a run.

A request may hold the loop for 5 ms. Holds are processor time of the loop's thread: that of one
request for the decoder, and the longest of a turn of the loop until the answer for brokers.
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import socket
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka import codec, errors
from raftlog.kafka.api import Api
from raftlog.kafka.codec import BadMessageError, Field, definitions, is_struct
from raftlog.kafka.connection import KafkaBroken, KafkaConnectionState, KafkaUnread
from raftlog.testing.kafka_wire import request, response
from raftlog.types import is_internal_topic
from tests.record.kafka_batches import KafkaRecord, kafka_batch
from tests.server.attacks import LoopLag
from tests.server.harness import RunningBroker, running

NAMES: Final = ("a", "b", "t", "t", "t", "", "__consumer_offsets", "é" * 20, "x" * 300, "bad/name")
NUMBERS: Final = (0, 0, 1, 1, 2, 3, 7, 100, -1, -2, -3, 127, 32_767, -32_768, 2**31 - 1, -(2**31))
RECORDS: Final = tuple(
    kafka_batch([KafkaRecord(b"v" * size, key) for _ in range(count)])
    for size, key, count in ((0, None, 1), (10, b"k", 3), (200, b"", 100))
)
INTEGER_BITS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
CORPUS_SIZE: Final = 20  # requests of each API and version
DECODED_PER_CONNECTION: Final = 50
SENT_PER_CONNECTION: Final = 30
WAIT_S: Final = 0.02
LENGTH_BYTES: Final = 4
HEAD_BYTES: Final = 12  # length, API key, version, correlation id
CONNECTIONS_PER_BROKER: Final = 2_000
TIMEOUT_S: Final = 60
MEMORY_BYTES_MAX: Final = 2 * limits.GIB
HOLD_S_MAX: Final = 0.005
# Requests that change what ``_state`` returns. Their answers are awaited, and compared with it.
CHANGES: Final = (
    apis.PRODUCE,
    apis.OFFSET_COMMIT,
    apis.OFFSET_DELETE,
    apis.DELETE_GROUPS,
    apis.CREATE_TOPICS,
    apis.DELETE_TOPICS,
    apis.CREATE_PARTITIONS,
    apis.DELETE_RECORDS,
    apis.ALTER_CONFIGS,
    apis.INCREMENTAL_ALTER_CONFIGS,
)
_CHANGES: Final = frozenset(api.key for api in CHANGES)
CHANGED_WITHIN_S: Final = 30.0


class Holds:
    """Holds of the loop by requests: the longest, and the number above ``HOLD_S_MAX`` by API."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._longest_s = 0.0
        self._above: Counter[str] = Counter()

    def add(self, request: bytes, seconds: float) -> None:
        self._longest_s = max(self._longest_s, seconds)
        if seconds > HOLD_S_MAX:
            key, version = struct.unpack_from(">hh", request, LENGTH_BYTES)
            name = apis.APIS[key].name if key in apis.APIS else f"API {key}"
            self._above[f"{name} {version}"] += 1

    def __str__(self) -> str:
        return (
            f"{self._name}: held for {self._longest_s * 1_000:.1f} ms at most, "
            f"{self._above.total():,} times above {HOLD_S_MAX * 1_000:.0f} ms {dict(self._above)}"
        )


class Requests:
    """Valid requests with any values, from a seed, and damaged ones made of them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._corpus = [
            self._request(api, version)
            for api in apis.APIS.values()
            for version in range(api.version_min, api.version_max + 1)
            for _ in range(CORPUS_SIZE)
        ]

    def damaged(self, times: Sequence[int], first: int = LENGTH_BYTES) -> bytes:
        """A request with its length, which is right; what follows may have any bytes.

        ``times``: numbers of damages, one is chosen. ``first``: the first byte that is damaged.
        """
        chance = self.chance
        data = bytearray(chance.choice(self._corpus))
        for _ in range(chance.choice(times)):
            self._damage(data, first)
        data[:4] = struct.pack(">i", len(data) - 4)
        return bytes(data)

    def _damage(self, data: bytearray, first: int) -> None:
        chance = self.chance
        at = chance.randrange(first, len(data) + 1)
        kind = chance.randrange(6)
        if kind == 0:
            data[at : at + 1] = bytes((chance.randrange(256),))
        elif kind == 1:
            data[at : at + 4] = struct.pack(">i", chance.choice(NUMBERS))
        elif kind == 2:
            data[at : at + 5] = b"\xff\xff\xff\xff\x0f"  # a long varint
        elif kind == 3:
            del data[at:]
        elif kind == 4:
            other = chance.choice(self._corpus)
            data[at:] = other[chance.randrange(len(other)) :]
        else:
            data[at:at] = data[at : at + chance.randrange(1, 64)]
        data += bytes(max(0, HEAD_BYTES - len(data)))

    def _request(self, api: Api, version: int) -> bytes:
        definition = definitions()["request", api.key]
        root = next(iter(definition.structs))
        return request(api, version, self._struct(api, version, root))

    def _struct(self, api: Api, version: int, name: str) -> Any:
        fields = definitions()["request", api.key].structs[name]
        values = {
            field.name: self._field(api, version, field)
            for field in fields
            if version in field.versions
        }
        structs = codec.structs("request", api.key)
        make = (
            structs.root
            if name == next(iter(definitions()["request", api.key].structs))
            else (getattr(structs, name))
        )
        return make(**values)

    def _field(self, api: Api, version: int, field: Field) -> Any:
        chance = self.chance
        if version in field.nullable and chance.random() < 0.1:
            return None
        if field.is_array:
            return [self._one(api, version, field) for _ in range(chance.choice((0, 1, 1, 2, 5)))]
        return self._one(api, version, field)

    def _one(self, api: Api, version: int, field: Field) -> Any:
        chance, kind = self.chance, field.element
        if is_struct(kind):
            return self._struct(api, version, kind)
        if kind in INTEGER_BITS:
            half = 1 << INTEGER_BITS[kind] - 1
            number = chance.choice(NUMBERS) if chance.random() < 0.9 else chance.getrandbits(62)
            return max(-half, min(half - 1, number))
        if kind == "records":
            return [chance.choice(RECORDS)]
        return {
            "bool": chance.random() < 0.5,
            "uint16": chance.randrange(65_536),
            "float64": chance.random(),
            "string": chance.choice(NAMES),
            "bytes": chance.randbytes(chance.randrange(40)),
            "uuid": chance.randbytes(16),
        }[kind]


def fuzz_decoder(requests: Requests, end: float, counts: Counter[str]) -> Holds:
    """Feed damaged requests to the state of a connection until the time ``end``."""
    holds = Holds("decoder")
    import_module("numpy")  # this and the next as a broker's process at its start
    gc.freeze()
    scratch = memoryview(bytearray(256 * limits.KIB))
    while time.monotonic() < end:
        state = KafkaConnectionState(scratch=scratch)
        for _ in range(DECODED_PER_CONNECTION):
            data = sent = requests.damaged((0, 1, 1, 1, 2, 5))
            counts["decoded"] += 1
            before_s = time.thread_time()
            events: list[Any] = []
            while data:
                room = state.get_buffer()
                piece, data = data[: len(room)], data[len(room) :]
                room[: len(piece)] = piece
                events += state.received(len(piece))
            decoded = [_is_decoded(state, event) for event in events]
            holds.add(sent, time.thread_time() - before_s)
            if not all(decoded):
                counts["rejected by the decoder"] += 1
                break
    return holds


def _is_decoded(state: KafkaConnectionState, event: Any) -> bool:
    """Read a request to its end, also a long one that a broker reads in steps."""
    if isinstance(event, KafkaBroken):
        return False
    if isinstance(event, KafkaUnread):
        try:
            event = codec.finish(event.read)
        except BadMessageError:
            return False
    state.finish(event)
    return True


def fuzz_broker(requests: Requests, end: float, counts: Counter[str]) -> Holds:
    """Send damaged requests to brokers until the time ``end``. Each broker is replaced in time:
    requests create topics and groups.
    """
    holds = Holds("brokers")
    while time.monotonic() < end:
        with (
            tempfile.TemporaryDirectory() as directory,
            running(Path(directory), group_initial_rebalance_delay_ms="0") as broker,
        ):
            with broker.client() as client:
                client.create("t", 2)
            gc.freeze()
            for _ in range(CONNECTIONS_PER_BROKER):
                _converse(requests, broker, counts, holds)
                assert broker.broker.context.counters.mistakes == 0, "see the broker's log"
                if time.monotonic() > end:
                    break
    return holds


def _converse(
    requests: Requests, broker: RunningBroker, counts: Counter[str], holds: Holds
) -> None:
    """Send requests on one connection, each after the answer to the one before, until the broker
    closes it or an answer waits for an event, as those of members of groups do.
    """
    counts["connections"] += 1
    with socket.create_connection(tuple(broker.address), TIMEOUT_S) as connection:
        connection.settimeout(WAIT_S)
        for _ in range(SENT_PER_CONNECTION):
            sent = requests.damaged((0, 0, 1, 2), HEAD_BYTES)
            counts["sent to brokers"] += 1
            key, version = struct.unpack_from(">hh", sent, LENGTH_BYTES)
            before = _state(broker) if key in _CHANGES else None
            # A produce request without acknowledgement has no answer.
            is_awaited = before is not None and key != apis.PRODUCE.key
            connection.settimeout(CHANGED_WITHIN_S if is_awaited else WAIT_S)
            try:
                with LoopLag(broker) as lag:
                    connection.sendall(sent)
                    answer = _answer(connection)
            except TimeoutError:
                counts["not answered yet"] += 1
                return
            finally:
                holds.add(sent, lag.worst_cpu_seconds)
            if answer is None:
                counts["closed by the broker"] += 1
                return
            counts["answered"] += 1
            if before is not None and _is_refused(apis.APIS[key], version, answer):
                counts["refused"] += 1
                after = _state(broker)
                assert after == before, f"{before} is {after} after a refused request {sent.hex()}"


def _is_refused(api: Api, version: int, answer: bytes) -> bool:
    """Whether every outcome in the answer is an error, after which nothing may still change."""
    codes = list(codes_of(response(api, version, answer)[1]))
    return bool(codes) and not {errors.NONE, errors.REQUEST_TIMED_OUT} & set(codes)


def codes_of(message: Any) -> Iterator[int]:
    """The error codes of an answer: those of a list's items, if there are any, not of the whole."""
    structs = [
        each
        for name in message.__struct_fields__
        if isinstance(getattr(message, name), list)
        for each in getattr(message, name)
        if hasattr(each, "__struct_fields__")
    ]
    found = [code for each in structs for code in codes_of(each)]
    if found:
        yield from found
    elif hasattr(message, "error_code"):
        yield message.error_code


def _state(broker: RunningBroker) -> Any:
    """Topics with their settings and the offsets of their records, and committed offsets; after the
    changes that requests have begun, which may have timed out.
    """
    context = broker.broker.context
    changes, groups = context.administration, context.coordinator
    broker.wait_until(lambda: not (changes._tasks or groups._unnotified or groups._is_notifying))

    def read() -> Any:
        topics = {
            topic.id: (
                topic.name,
                dict(topic.overrides),
                [(host.log.log_start_offset, host.log.log_end_offset) for host in topic.hosts],
            )
            for topic in context.topics
            if not is_internal_topic(topic.name)
        }
        shards = [shard.loaded for shard in context.coordinator.shards()]
        offsets = {
            (name, topic): sorted(shard.committed_in(name, topic))
            for shard in shards
            if shard is not None
            for name in shard.names()
            for topic in shard.committed_topics(name)
        }
        return topics, offsets

    return broker.call(read)


def _answer(connection: socket.socket) -> bytes | None:
    """Read an answer. Returns None at the end of the stream."""
    received = b""
    while len(received) < LENGTH_BYTES or len(received) < LENGTH_BYTES + int.from_bytes(
        received[:LENGTH_BYTES], "big"
    ):
        try:
            piece = connection.recv(1 << 20)
        except ConnectionResetError:
            return None
        if not piece:
            return None
        received += piece
    return received


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="time of each of the two parts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    requests = Requests(options.seed)
    holds = [
        part(requests, time.monotonic() + options.seconds, counts)
        for part in (fuzz_decoder, fuzz_broker)
    ]
    memory_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * limits.KIB
    lines = [f"seed {options.seed}", *(f"{name}: {count:,}" for name, count in counts.items())]
    lines += map(str, holds)
    sys.stdout.write("\n".join([*lines, f"memory: {memory_bytes:,} bytes at most"]) + "\n")
    assert memory_bytes < MEMORY_BYTES_MAX


if __name__ == "__main__":
    main()
