"""One member of a consumer group, as a separate process, so that it can be killed and stopped.

``python -m raftlog_jepsen.member JSON`` reads and processes records, commits offsets, and
reports each event as a line of JSON, with the time of the system's monotonic clock. It reports
records after processing them and before the next poll. Records that are not reported were not
processed, and must not be committed.

It leaves the group and ends when it reads ``stop`` from its standard input. It ends immediately at
the end of its standard input, because its parent process has ended.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Sequence
from random import Random
from typing import Any, Final, Protocol

import confluent_kafka as kafka
import msgspec

from raftlog import Consumer
from raftlog.aio import AsyncConsumer
from raftlog.errors import ClosedError, InstanceFencedError, RaftlogError
from raftlog.testing import history
from raftlog.types import ConsumerRecord, Offset, TopicPartition
from raftlog_jepsen.client import by_partition, describe, noted
from raftlog_jepsen.kafka_clients import commit, connecting, error_of, logger, record_of

POLL_MS: Final = 200
PATIENCE_S: Final = 0.2  # after an error; seconds
REQUEST_TIMEOUT_MS: Final = 5_000
METADATA_MAX_AGE_MS: Final = 2_000
HEARTBEATS: Final = (3, 10, 15)  # heartbeats per session timeout; 3 is the minimum
STOP_S: Final = 1.0  # time limit for an iteration to notice the stop
SLOW: Final = 0.1  # share of polls with slow processing
ITERATED: Final = 50  # records of an iteration that count as one poll
SLOW_RECORDS: Final = 0.002  # share of records with slow processing, in an iteration
OUT: Final = 1  # standard output


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one member; see ``plan.GroupShape`` and ``plan.MemberShape``."""

    bootstrap: str
    name: str
    group: str
    topics: list[str]
    by_pattern: bool = False
    style: str = "poll"
    commits: str = "manual"
    commit_every: int = 1
    auto_commit_s: float = 1.0
    records_max: int = 500
    handling_s: float = 0.0
    instance: str = ""
    assignor: str = ""
    session_timeout_s: float = 6.0
    protocol: str = ""  # group protocol of a Kafka client; empty for raftlog's client


class Event(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A line of output. ``what``: assigned, revoked, lost, given, commit (with ``type``), error,
    end."""

    what: str
    at: int = 0
    type: str = ""
    partitions: list[str] = []
    offsets: dict[str, int] = {}
    records: dict[str, list[tuple[int, int, int, int]]] = {}
    error: str = ""


_ENCODER: Final = msgspec.json.Encoder()


def emit(event: Event) -> None:
    """Write the event immediately: a kill of this process must not lose it."""
    event.at = event.at or time.monotonic_ns()
    line = memoryview(_ENCODER.encode(event) + b"\n")
    while line:
        line = line[os.write(OUT, line) :]


class Work:
    """Processed and committed offsets of the application. ``stopping``: set when it must end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.random = Random(settings.name)
        self.stopping = threading.Event()
        self.done: dict[TopicPartition, Offset] = {}  # the next offset to process
        self.committed: dict[TopicPartition, Offset] = {}
        self._polls = 0

    @property
    def wanted(self) -> dict[str, Any]:
        """Return the arguments of ``subscribe``."""
        if self.settings.by_pattern:
            return {"pattern": "|".join(map(re.escape, self.settings.topics))}
        return {"topics": self.settings.topics}

    def consumer_settings(self) -> dict[str, Any]:
        mine = self.settings
        session_ms = int(mine.session_timeout_s * 1_000)
        return {
            "group": mine.group,
            "group_instance_id": mine.instance or None,
            "auto_offset_reset": "earliest",
            "auto_commit": mine.commits == "auto",
            "auto_commit_interval_ms": int(mine.auto_commit_s * 1_000),
            "session_timeout_ms": session_ms,
            "heartbeat_interval_ms": session_ms // self.random.choice(HEARTBEATS),
            "assignor": mine.assignor or None,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
            "client_id": mine.name,
        }

    def pause_s(self, share: float) -> float:
        """Draw the seconds of processing: up to ``handling_s`` with the probability ``share``,
        otherwise 0."""
        if self.settings.handling_s and self.random.random() < share:
            return self.random.uniform(0.0, self.settings.handling_s)
        return 0.0

    def dealt_with(self, records: Sequence[ConsumerRecord]) -> None:
        found = by_partition(records)
        emit(
            Event(
                what="given",
                records={str(tp): list(history.runs(rows)) for tp, rows in found.items()},
            )
        )
        for tp, rows in found.items():
            self.done[tp] = rows[-1][0] + 1
        self._polls += 1

    def due(self) -> dict[TopicPartition, Offset]:
        """Return the offsets to commit now; empty if no commit is due or all are committed."""
        least = self.settings.commit_every * (ITERATED if self.settings.style == "iterate" else 1)
        if self.settings.commits != "manual" or self._polls < least:
            return {}
        self._polls = 0
        return self.open(self.done)

    def open(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Offset]:
        """Return the offsets of these partitions that are processed and not committed; only with
        manual commits."""
        if self.settings.commits != "manual":
            return {}
        return {
            tp: self.done[tp]
            for tp in partitions
            if tp in self.done and self.done[tp] != self.committed.get(tp)
        }

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        for tp in partitions:
            self.done.pop(tp, None)
            self.committed.pop(tp, None)

    # -- commits, reported before and after

    def committing(self, offsets: dict[TopicPartition, Offset]) -> Event:
        named = {str(tp): offset for tp, offset in offsets.items()}
        emit(Event(what="commit", type="invoke", offsets=named))
        return Event(what="commit", type="ok", offsets=named)

    def committed_ok(self, done: Event, offsets: dict[TopicPartition, Offset]) -> None:
        self.committed |= offsets
        emit(done)

    def commit_failed(self, done: Event, error: RaftlogError) -> None:
        done.type, done.error = "info", describe(error)
        emit(done)


def names(partitions: Collection[TopicPartition]) -> list[str]:
    return [str(tp) for tp in sorted(partitions)]


# -- with the synchronous consumer -----------------------------------------------------------------


class Synchronous:
    """The application around ``Consumer``."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.consumer = Consumer(work.settings.bootstrap, **work.consumer_settings())

    def run(self) -> None:
        with self.consumer:
            step = self._subscribe
            while not self.work.stopping.is_set():
                try:
                    step()
                    step = self._iterate if self.work.settings.style == "iterate" else self._poll
                except (ClosedError, InstanceFencedError):
                    if not self.work.stopping.is_set():
                        raise
                except RaftlogError as error:
                    emit(Event(what="error", error=describe(error)))
                    time.sleep(PATIENCE_S)

    def stop(self) -> None:
        """Stop from another thread: an iteration may wait for a record that never arrives."""
        self.work.stopping.set()
        if self.work.settings.style == "iterate":
            time.sleep(STOP_S)
            self.consumer.close()

    def _subscribe(self) -> None:
        self.consumer.subscribe(
            **self.work.wanted,
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    def _poll(self) -> None:
        records = self.consumer.poll(POLL_MS, self.work.settings.records_max)
        if records:
            time.sleep(self.work.pause_s(SLOW))
            self.work.dealt_with(records)
            self._commit(self.work.due())

    def _iterate(self) -> None:
        for record in self.consumer:
            time.sleep(self.work.pause_s(SLOW_RECORDS))
            self.work.dealt_with([record])
            self._commit(self.work.due())
            if self.work.stopping.is_set():
                break

    def _commit(self, offsets: dict[TopicPartition, Offset]) -> None:
        if not offsets:
            return
        done = self.work.committing(offsets)
        try:
            self.consumer.commit(noted(offsets))
        except RaftlogError as error:
            self.work.commit_failed(done, error)
        else:
            self.work.committed_ok(done, offsets)

    def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.work.forget(partitions)
        emit(Event(what="assigned", partitions=names(partitions)))

    def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        self._commit(self.work.open(partitions))
        emit(Event(what="revoked", partitions=names(partitions)))
        self.work.forget(partitions)

    def _lost(self, partitions: Collection[TopicPartition]) -> None:
        emit(Event(what="lost", partitions=names(partitions)))
        self.work.forget(partitions)


# -- with the asynchronous consumer ----------------------------------------------------------------


class Asynchronous:
    """The application around ``AsyncConsumer``."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.consumer = AsyncConsumer(work.settings.bootstrap, **work.consumer_settings())

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        """Stop from another thread."""
        self.work.stopping.set()

    async def _run(self) -> None:
        async with self.consumer:
            step = self._subscribe
            while not self.work.stopping.is_set():
                try:
                    await step()
                    step = self._poll
                except (ClosedError, InstanceFencedError):
                    raise
                except RaftlogError as error:
                    emit(Event(what="error", error=describe(error)))
                    await asyncio.sleep(PATIENCE_S)

    async def _subscribe(self) -> None:
        await self.consumer.subscribe(
            **self.work.wanted,
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )

    async def _poll(self) -> None:
        records = await self.consumer.poll(POLL_MS, self.work.settings.records_max)
        if records:
            await asyncio.sleep(self.work.pause_s(SLOW))
            self.work.dealt_with(records)
            await self._commit(self.work.due())

    async def _commit(self, offsets: dict[TopicPartition, Offset]) -> None:
        if not offsets:
            return
        done = self.work.committing(offsets)
        try:
            await self.consumer.commit(noted(offsets))
        except RaftlogError as error:
            self.work.commit_failed(done, error)
        else:
            self.work.committed_ok(done, offsets)

    async def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        self.work.forget(partitions)
        emit(Event(what="assigned", partitions=names(partitions)))

    async def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        await self._commit(self.work.open(partitions))
        emit(Event(what="revoked", partitions=names(partitions)))
        self.work.forget(partitions)

    async def _lost(self, partitions: Collection[TopicPartition]) -> None:
        emit(Event(what="lost", partitions=names(partitions)))
        self.work.forget(partitions)


# -- the process -----------------------------------------------------------------------------------


class Application(Protocol):
    """``stop`` is called from another thread."""

    def run(self) -> None: ...
    def stop(self) -> None: ...


def _application(work: Work) -> Application:
    if work.settings.protocol:
        return Subscriber(work)
    return Asynchronous(work) if work.settings.style == "aio" else Synchronous(work)


def main(argument: str) -> None:
    """Run as a member until ``stop``. Reports an error that ends the member, then raises it."""
    work = Work(msgspec.json.decode(argument, type=Settings))
    application = _application(work)

    stopped = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                application.stop()
                stopped.set()
        os._exit(1)  # the parent process has ended and cannot stop this one

    threading.Thread(target=listen, name="listen", daemon=True).start()
    try:
        application.run()
    except RaftlogError as error:
        emit(Event(what="end", error=describe(error)))
        raise
    stopped.wait()  # the thread that stops the application may still run
    emit(Event(what="end"))
    os._exit(0)  # without waiting for other threads


# -- kafka member ----------------------------------------------------------------------------------
#
# Application of a group member with Kafka's protocol, around a consumer of confluent-kafka.


POLL_INTERVAL_MS_MAX: Final = 60_000
CLASSIC_STRATEGIES: Final = {"range": "range", "uniform": "cooperative-sticky"}


class Subscriber:
    """Polls, processes and commits. All callbacks run within ``poll`` or ``close``."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._held: list[ConsumerRecord[bytes, bytes]] = []  # polled, not processed
        self._consumer = kafka.Consumer(self._settings(), logger=logger)

    def _settings(self) -> dict[str, Any]:
        mine = self.work.settings
        session_ms = int(mine.session_timeout_s * 1_000)
        given: dict[str, Any] = {
            **connecting(mine.bootstrap),
            "client.id": mine.name,
            "group.id": mine.group,
            "group.protocol": mine.protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": mine.commits == "auto",
            "auto.commit.interval.ms": int(mine.auto_commit_s * 1_000),
            "enable.auto.offset.store": False,  # only offsets of processed records are stored
            "max.poll.interval.ms": POLL_INTERVAL_MS_MAX,
            "fetch.error.backoff.ms": 100,
            "check.crcs": True,
            "socket.timeout.ms": REQUEST_TIMEOUT_MS,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
        }
        if mine.instance:
            given["group.instance.id"] = mine.instance
        if mine.protocol == "consumer":
            return given | ({"group.remote.assignor": mine.assignor} if mine.assignor else {})
        return given | {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": session_ms // 4,
            "partition.assignment.strategy": CLASSIC_STRATEGIES.get(mine.assignor, "roundrobin"),
        }

    def run(self) -> None:
        topics = list(self.work.settings.topics)
        if self.work.settings.by_pattern:
            topics = [f"^({'|'.join(map(re.escape, topics))})$"]
        try:
            self._consumer.subscribe(
                topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
            while not self.work.stopping.is_set():
                try:
                    self._poll()
                except kafka.KafkaException as error:
                    self._failed(error_of(error.args[0]))
        finally:
            self._consumer.close()

    def stop(self) -> None:
        """Stop from another thread."""
        self.work.stopping.set()

    def _failed(self, error: RaftlogError) -> None:
        emit(Event(what="error", error=describe(error)))
        if isinstance(error, InstanceFencedError):
            raise error
        time.sleep(PATIENCE_S)

    def _poll(self) -> None:
        message = self._consumer.poll(POLL_MS / 1_000)
        while message is not None:
            failure = message.error()
            if failure is not None:
                self._failed(error_of(failure))
                break
            self._held.append(record_of(message))
            if len(self._held) >= self.work.settings.records_max:
                break
            message = self._consumer.poll(0)
        self._process()
        self._commit(self.work.due())

    def _process(self) -> None:
        """Process the polled records. Also called before their partitions are revoked."""
        if not self._held:
            return
        held, self._held = self._held, []
        time.sleep(self.work.pause_s(SLOW))
        self.work.dealt_with(held)
        if self.work.settings.commits == "auto":
            ends = {TopicPartition(one.topic, one.partition): one.offset + 1 for one in held}
            self._consumer.store_offsets(
                offsets=[kafka.TopicPartition(*tp, offset) for tp, offset in ends.items()]
            )

    def _commit(self, offsets: dict[TopicPartition, Offset]) -> None:
        if not offsets:
            return
        done = self.work.committing(offsets)
        try:
            commit(self._consumer, noted(offsets))
        except kafka.KafkaException as error:
            self.work.commit_failed(done, error_of(error.args[0]))
        except RaftlogError as error:
            self.work.commit_failed(done, error)
        else:
            self.work.committed_ok(done, offsets)

    def _assigned(self, _consumer: object, partitions: Sequence[kafka.TopicPartition]) -> None:
        self._process()
        found = _named(partitions)
        self.work.forget(found)
        emit(Event(what="assigned", partitions=names(found)))

    def _revoked(self, _consumer: object, partitions: Sequence[kafka.TopicPartition]) -> None:
        self._process()
        found = _named(partitions)
        self._commit(self.work.open(found))
        emit(Event(what="revoked", partitions=names(found)))
        self.work.forget(found)

    def _lost(self, _consumer: object, partitions: Sequence[kafka.TopicPartition]) -> None:
        found = _named(partitions)
        self._held = [
            one for one in self._held if TopicPartition(one.topic, one.partition) not in found
        ]
        emit(Event(what="lost", partitions=names(found)))
        self.work.forget(found)


def _named(partitions: Collection[kafka.TopicPartition]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, one.partition) for one in partitions]


if __name__ == "__main__":
    main(sys.argv[1])
