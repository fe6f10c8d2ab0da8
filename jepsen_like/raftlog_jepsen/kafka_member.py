"""Application of a group member with Kafka's protocol, around a consumer of confluent-kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

import confluent_kafka as kafka

from raftlog.errors import InstanceFencedError, RaftlogError
from raftlog.types import ConsumerRecord, Offset, TopicPartition
from raftlog_jepsen.client import describe
from raftlog_jepsen.committing import noted
from raftlog_jepsen.kafka_clients import commit, connecting, error_of, logger, record_of
from raftlog_jepsen.member import (
    METADATA_MAX_AGE_MS,
    PATIENCE_S,
    POLL_MS,
    REQUEST_TIMEOUT_MS,
    SLOW,
    Event,
    Work,
    emit,
    names,
)

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
