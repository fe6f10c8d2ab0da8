"""DescribeLogDirs and ListPartitionReassignments: where replicas are, and where they move."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial

from raftlog.errors import RaftlogError, UnknownTopicError
from raftlog.kafka import api, codec
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import KAFKA_STORAGE_ERROR, Place, code_of
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.parts import check_count
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.partition import Partition
from raftlog.server.topic_table import HostedTopic
from raftlog.server.turns import Steps

_LogDirs = codec.structs("response", api.DESCRIBE_LOG_DIRS.key)
_Moves = codec.structs("response", api.LIST_PARTITION_REASSIGNMENTS.key)


def handle_log_dirs(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the replicas on this broker with their sizes: those of the request, or all."""
    asked = request.message.topics
    wanted = None if asked is None else [(topic.topic, topic.partitions) for topic in asked]
    directory = context.config.data_dir
    disk = yield partial(shutil.disk_usage, directory)
    further = context.operations.log_dirs
    # By id of the log directory; "" for the data directory.
    topics: dict[str, list[Message]] = {"": [], **{each.id: [] for each in further.log_dirs}}
    for topic, numbers in _selected(context, "DescribeLogDirs", wanted):
        replicas: dict[str, list[Message]] = {}
        for number in numbers:
            host = topic.hosts[number]
            if host is not None:
                found = replicas.setdefault(host.log.log_dir.id, [])
                found.append(_replica(number, host))
        for id_, partitions in replicas.items():
            part = _LogDirs.DescribeLogDirsTopic(name=topic.name, partitions=partitions)
            topics[id_].append(part)
        yield None
    results = [
        _LogDirs.DescribeLogDirsResult(
            log_dir=os.path.abspath(directory),
            topics=topics[""],
            total_bytes=disk.total,
            usable_bytes=disk.free,
        )
    ]
    results += [
        _LogDirs.DescribeLogDirsResult(
            error_code=KAFKA_STORAGE_ERROR if each.failure else 0,
            log_dir=os.path.abspath(each.path),
            topics=topics[each.id],
            total_bytes=further.space(each).size_bytes,
            usable_bytes=further.space(each).free_bytes,
        )
        for each in further.log_dirs
    ]
    reply.send(_LogDirs.root(results=results))


def refuse_log_dirs(_request: KafkaRequest, error: RaftlogError) -> Message:
    """Return a response without directories; before version 3, without the error too."""
    return _LogDirs.root(error_code=code_of(error, Place.METADATA))


def handle_moves(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> Steps:
    """Return the partitions that move to other brokers: those of the request, or all."""
    asked = request.message.topics
    wanted = None if asked is None else [(topic.name, topic.partition_indexes) for topic in asked]
    topics: list[Message] = []
    for topic, numbers in _selected(context, "ListPartitionReassignments", wanted):
        moves = [
            _move(number, context.topics.info(topic, number).replicas, target)
            for number in numbers
            if (target := context.operations.target(topic.id, number))
        ]
        if moves:
            topics.append(_Moves.OngoingTopicReassignment(name=topic.name, partitions=moves))
        yield None
    reply.send(_Moves.root(error_message=None, topics=topics))


def _selected(
    context: BrokerContext, what: str, wanted: list[tuple[str, list[int]]] | None
) -> Iterator[tuple[HostedTopic, Iterable[int]]]:
    """Iterate over the requested topics and partition numbers that exist; None: over all."""
    if wanted is None:
        for topic in context.topics:
            yield topic, range(len(topic.hosts))
        return
    check_count(what, sum(len(numbers) for _, numbers in wanted))
    for name, numbers in wanted:
        try:
            topic = context.topics.topic(name)
        except UnknownTopicError:
            continue
        yield topic, sorted({number for number in numbers if 0 <= number < len(topic.hosts)})


def _replica(number: int, host: Partition) -> Message:
    return _LogDirs.DescribeLogDirsPartition(
        partition_index=number,
        partition_size=host.log.size_bytes,
        offset_lag=max(0, host.high_watermark - host.log.log_end_offset),
    )


def _move(number: int, replicas: list[int], target: list[int]) -> Message:
    adding = [broker for broker in target if broker not in replicas]
    return _Moves.OngoingPartitionReassignment(
        partition_index=number,
        replicas=[*replicas, *adding],
        adding_replicas=adding,
        removing_replicas=[broker for broker in replicas if broker not in target],
    )
