"""Cluster description, merged from the responses of all brokers.

Every broker has metadata about leaders, which may be stale. Only the leader of a partition knows
the progress of its replicas, and only a replica knows the state of the bytes on its disk. So all
brokers are queried at once, and slow ones are omitted. If several brokers report the same
partition, the newest leader epoch counts, and within this epoch the leader's own report.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.client import descriptions
from raftlog.client.cluster import Cluster
from raftlog.client.descriptions import (
    BrokerDescription,
    BrokerFeatures,
    ClusterDescription,
    ClusterFeatures,
    CopyVerification,
    DiskDescription,
    DiskUseDescription,
    EventDescription,
    FeatureDescription,
    FeatureVersions,
    LogDirDescription,
    PartitionOverview,
    PartitionPage,
    PartitionVerification,
    ReplicaDescription,
    TopicDiskUse,
    TopicSummary,
)
from raftlog.client.settings import BROKER_IDS, integer
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    InvalidRequestError,
    OutcomeUnknownError,
    RaftlogError,
    RetriableError,
    UnknownTopicError,
)
from raftlog.protocol import api as apis
from raftlog.protocol import cluster as wire
from raftlog.protocol.api import Api
from raftlog.protocol.cluster import (
    BrokerStatus,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeEventsRequest,
    DescribeEventsResponse,
    DiskStatus,
    EventStatus,
    PartitionStatus,
    ReplicaStatus,
    VerifyCopyRequest,
    VerifyCopyResponse,
)
from raftlog.protocol.records import (
    DescribeTopicsRequest,
    DescribeTopicsResponse,
    MetadataRequest,
    MetadataResponse,
    PartitionDescription,
    TopicDescription,
)
from raftlog.protocol.schema import Failure, Message, PartitionRange, numbers_of
from raftlog.protocol.security import ApiVersionsRequest, ApiVersionsResponse
from raftlog.types import Offset, TimestampMs

PATIENCE_S: Final = 2.0  # time limit for the response of each broker

_Answers: TypeAlias = Mapping[int, Message | RaftlogError]  # by broker
_Reported: TypeAlias = tuple[int, PartitionStatus]  # (reporting broker, report)
_UNKNOWN: Final = -1


async def describe_cluster(
    cluster: Cluster, topics: Sequence[str] | None, *, partitions: bool | range
) -> ClusterDescription:
    """Return the brokers, and the partitions of ``topics`` (None: all).

    Raises ``BrokerUnavailableError`` if no broker responds, and ``UnknownTopicError``.
    """
    span = None if isinstance(partitions, bool) else _span(partitions)
    request = DescribeClusterRequest(
        topics=None if topics is None else list(topics),
        include_partitions=partitions is not False,
        span=span,
    )
    described = _described(cluster, await _answers_of(cluster, request))
    if partitions is False:
        return replace(described, partitions=())
    if span is not None:  # brokers of earlier releases list all
        numbers = span.of(limits.PARTITIONS_PER_TOPIC_MAX)
        kept = tuple(part for part in described.partitions if part.partition in numbers)
        return replace(described, partitions=kept)
    missing = set(topics or ()) - {partition.topic for partition in described.partitions}
    if missing:
        raise UnknownTopicError(f"topic {min(missing)!r} does not exist")
    return described


def _span(numbers: range) -> PartitionRange:
    """Return the range for a request. Raises ``InvalidRequestError`` if it is not valid."""
    if numbers.step != 1 or not 0 <= numbers.start < numbers.stop:
        raise InvalidRequestError(f"partitions={numbers} is not a range of numbers from 0")
    count = min(len(numbers), limits.PARTITIONS_PER_TOPIC_MAX)
    return PartitionRange(start=min(numbers.start, limits.PARTITIONS_PER_TOPIC_MAX), count=count)


async def summarize_cluster(
    cluster: Cluster, broker: int | None, skip: int, limit: int
) -> ClusterDescription:
    """Return the brokers, all topics in numbers, and some partitions with a problem.

    ``broker``: also list its partitions, ``limit`` of them after the first ``skip``. Raises
    ``BrokerUnavailableError`` if no broker responds.
    """
    page = None
    if broker is not None:
        page = wire.PartitionPage(
            broker=integer("broker", broker, *BROKER_IDS),
            skip=integer("skip", skip, 0, limits.PARTITIONS_PER_CLUSTER_MAX),
            limit=integer("limit", limit, 1, limits.CLUSTER_PAGE_PARTITIONS_MAX),
        )
    answers = await _answers_of(cluster, DescribeClusterRequest(summary=True, page=page))
    if any(answer.topics is None for _, answer in _responses(answers)):
        # A broker of an earlier release lists all partitions.
        described = await describe_cluster(cluster, None, partitions=True)
        return replace(
            described,
            topics=topics_in(described.partitions),
            page=None if page is None else _page_in(described.partitions, page),
        )
    described = _described(cluster, answers)
    return replace(
        described,
        topics=_merged_topics(answers),
        page=None if page is None else _merged_page(answers, described.brokers, page),
    )


def _page_in(partitions: Sequence[PartitionOverview], page: wire.PartitionPage) -> PartitionPage:
    stored = [part for part in partitions if page.broker in part.replicas]
    return PartitionPage(tuple(stored[page.skip : page.skip + page.limit]), page.skip, len(stored))


def _merged_page(
    answers: _Answers, brokers: Sequence[BrokerDescription], page: wire.PartitionPage
) -> PartitionPage:
    """Merge the pages of all brokers. While topics are created or deleted, brokers can count
    different partitions: the page then lacks some.
    """
    pages = {source: answer.page for source, answer in _responses(answers)}
    found = _merged_partitions(pages, brokers, summarized=set(pages))
    total = next((broker.replicas for broker in brokers if broker.id == page.broker), 0)
    return PartitionPage(found[: page.limit], page.skip, max(total or 0, len(found)))


async def _answers_of(cluster: Cluster, request: DescribeClusterRequest) -> _Answers:
    """Return the response or the error of every broker. Raises the error if none responds."""

    async def attempt() -> _Answers:
        await cluster.refresh()
        known = dict(cluster.view.brokers)
        answers = await _ask(cluster, request, known)
        # The metadata of an isolated broker names only itself; this response names all brokers.
        others = {
            status.id: Address(status.host, status.port)
            for answer in answers.values()
            if isinstance(answer, DescribeClusterResponse)
            for status in answer.brokers
            if status.id not in known and status.port
        }
        answers = {**answers, **await _ask(cluster, request, others)}
        _check_answered(answers, DescribeClusterResponse)
        return answers

    return await cluster.persist(attempt, repeatable=True)


def _described(cluster: Cluster, answers: _Answers) -> ClusterDescription:
    brokers = _merged_brokers(cluster, answers)
    return ClusterDescription(
        cluster_id=cluster.view.cluster_id,
        brokers=brokers,
        controller=_controller(answers),
        partitions=_merged_partitions(
            {source: answer.partitions for source, answer in _responses(answers)},
            brokers,
            summarized={
                source for source, answer in _responses(answers) if answer.topics is not None
            },
        ),
        move_throttle=_move_throttle(answers),
    )


def _merged_topics(answers: _Answers) -> tuple[TopicSummary, ...]:
    """Sum the reports of all brokers. Of a topic that was created again, the topic counts that most
    brokers know.
    """
    reported: dict[str, list[wire.TopicSummary]] = {}
    for _, answer in _responses(answers):
        for topic in answer.topics or ():
            reported.setdefault(topic.topic, []).append(topic)
    return tuple(_topic(reported[name]) for name in sorted(reported))


def _topic(reported: Sequence[wire.TopicSummary]) -> TopicSummary:
    ids = [topic.topic_id for topic in reported]
    same = [topic for topic in reported if topic.topic_id == max(ids, key=ids.count)]
    partitions = max(topic.partitions for topic in same)
    sizes = [topic.size_bytes for topic in same if topic.led]
    return TopicSummary(
        name=same[0].topic,
        id=same[0].topic_id,
        partitions=partitions,
        available=min(sum(topic.led for topic in same), partitions),
        records=sum(topic.records for topic in same),
        end=sum(topic.end for topic in same),
        under_replicated=sum(topic.under_replicated for topic in same),
        at_min_isr=sum(topic.at_min_isr for topic in same),
        size_bytes=-1 if -1 in sizes else sum(sizes),
    )


def topics_in(partitions: Sequence[PartitionOverview]) -> tuple[TopicSummary, ...]:
    """Return the topics of these partitions in numbers, in the order of the partitions."""
    by_topic: dict[str, list[PartitionOverview]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic, []).append(partition)
    found = []
    for name, parts in by_topic.items():
        led = [part for part in parts if part.is_available]
        found.append(
            TopicSummary(
                name=name,
                id=parts[0].topic_id,
                partitions=len(parts),
                available=len(led),
                records=sum(
                    max(part.high_watermark - max(part.log_start_offset, 0), 0) for part in parts
                ),
                end=sum(max(part.high_watermark, 0) for part in led),
                under_replicated=sum(part.is_under_replicated for part in led),
                at_min_isr=sum(part.is_at_min_isr for part in led),
            )
        )
    return tuple(found)


async def describe_disks(cluster: Cluster) -> list[DiskUseDescription]:
    """Return what uses the disks of all brokers, by broker ID.

    Raises ``BrokerUnavailableError`` if no broker responds.
    """
    request = DescribeClusterRequest(topics=[], include_partitions=False, include_disk=True)
    answers = await ask_every_broker(cluster, apis.DESCRIBE_CLUSTER, request)
    return [_disk_use(broker, answer) for broker, answer in sorted(answers.items())]


def _disk_use(broker_id: int, answer: Message | RaftlogError) -> DiskUseDescription:
    if not isinstance(answer, DescribeClusterResponse):
        return DiskUseDescription(broker_id, None, problem=str(answer))
    disks = [_disk(broker.disk) for broker in answer.brokers if broker.id == broker_id]
    use = answer.disk_use
    if use is None:
        problem = "its release does not report what uses its disk. Upgrade the broker"
        return DiskUseDescription(broker_id, None, problem=problem)
    topics = [
        TopicDiskUse(
            topic=each.topic,
            replicas=each.replicas,
            size_bytes=each.size_bytes,
            expired_bytes=each.expired_bytes,
            expiring_bytes=each.expiring_bytes,
            retention_ms=each.retention_ms,
            retention_bytes=each.retention_bytes,
        )
        for each in use.topics
    ]
    return DiskUseDescription(
        broker=broker_id,
        disk=disks[0] if disks else None,
        journal_bytes=use.journal_bytes,
        quarantine_bytes=use.quarantine_bytes,
        topics=tuple(sorted(topics, key=lambda topic: (-topic.size_bytes, topic.topic))),
    )


async def _ask(
    cluster: Cluster, request: DescribeClusterRequest, brokers: Mapping[int, Address]
) -> _Answers:
    return await cluster.ask_all(
        apis.DESCRIBE_CLUSTER, request, brokers=brokers, patience_s=PATIENCE_S
    )


async def ask_every_broker(cluster: Cluster, api: Api, request: Message) -> _Answers:
    """Return the response or the error of every broker of the metadata, by broker ID.

    Retries until a broker responds. Raises the error of a broker if none does.
    """

    async def attempt() -> _Answers:
        await cluster.refresh()
        answers = await cluster.ask_all(
            api, request, brokers=cluster.view.brokers, patience_s=PATIENCE_S
        )
        _check_answered(answers, api.response)
        return answers

    return await cluster.persist(attempt, repeatable=True)


def _check_answered(answers: _Answers, kind: type[Message]) -> None:
    """Raise the error of a broker if no broker has responded."""
    errors = [answer for answer in answers.values() if isinstance(answer, RaftlogError)]
    if not any(isinstance(answer, kind) for answer in answers.values()):
        raise errors[0] if errors else BrokerUnavailableError("the metadata contains no broker")


def _responses(answers: _Answers) -> list[tuple[int, DescribeClusterResponse]]:
    return [
        (broker, answer)
        for broker, answer in answers.items()
        if isinstance(answer, DescribeClusterResponse)
    ]


def _controller(answers: _Answers) -> int | None:
    """Return the broker that reports itself as controller; else the one most brokers report."""
    named = [answer.controller for _, answer in _responses(answers)]
    claims = [broker for broker, answer in _responses(answers) if answer.controller == broker]
    candidates = claims or [broker for broker in named if broker is not None]
    return max(candidates, key=named.count, default=None)


def _move_throttle(answers: _Answers) -> int:
    """Return the limit as the controller reports it; else as most brokers do."""
    controller = _controller(answers)
    reported = {broker: answer.move_throttle for broker, answer in _responses(answers)}
    values = list(reported.values())
    return reported.get(
        _UNKNOWN if controller is None else controller, max(values, key=values.count)
    )


def _merged_brokers(cluster: Cluster, answers: _Answers) -> tuple[BrokerDescription, ...]:
    """Return the brokers of the newest state of the cluster. A broker that has just started can
    still list some that were removed."""
    responses = _responses(answers)
    newest = max((answer.version for _, answer in responses), default=0)
    states = [answer.brokers for _, answer in responses if answer.version == newest]
    members = {status.id for brokers in states for status in brokers}
    if not newest:  # no broker has a state, or those that have one run an earlier release
        members |= cluster.view.brokers.keys()
    reported: dict[int, BrokerStatus] = {}
    for source, answer in responses:
        for status in answer.brokers:
            best = reported.get(status.id)
            # Within one epoch, the broker's own report counts.
            if best is None or (status.broker_epoch, source == status.id) > (best.broker_epoch, 0):
                reported[status.id] = status
    return tuple(
        _broker(cluster, broker_id, reported.get(broker_id), answers.get(broker_id))
        for broker_id in sorted(members)
    )


def _broker(
    cluster: Cluster,
    broker_id: int,
    status: BrokerStatus | None,
    answer: Message | RaftlogError | None,
) -> BrokerDescription:
    view = cluster.view
    is_live = answer is not None and not isinstance(answer, RetriableError | OutcomeUnknownError)
    problem = "its address is unknown" if answer is None else ""
    if isinstance(answer, RaftlogError):
        problem = str(answer)
    address = view.brokers.get(broker_id)
    if status is None:
        assert address is not None, "the metadata or a response contains every broker"
        return BrokerDescription(
            broker_id,
            address.host,
            address.port,
            view.racks.get(broker_id),
            live=is_live,
            problem=problem,
        )
    return BrokerDescription(
        id=broker_id,
        host=address.host if address is not None else status.host,
        port=address.port if address is not None else status.port,
        rack=view.racks.get(broker_id, status.rack),
        directory_id=status.directory_id,
        broker_epoch=status.broker_epoch,
        fenced=status.fenced,
        live=is_live,
        problem=problem,
        clock_error_ms=status.clock_error_ms,
        draining=status.draining,
        has_vote=status.has_vote,
        disk=_disk(status.disk),
        leads=None if status.leads == _UNKNOWN else status.leads,
        replicas=None if status.replicas == _UNKNOWN else status.replicas,
    )


def _disk(status: DiskStatus | None) -> DiskDescription | None:
    if status is None or status.free_bytes < 0:
        return None
    log_dirs = [
        LogDirDescription(each.path, each.free_bytes, each.size_bytes, each.failed, each.problem)
        for each in status.log_dirs
    ]
    return DiskDescription(
        status.free_bytes, status.size_bytes, status.level, status.reason, tuple(log_dirs)
    )


def _merged_partitions(
    partitions: Mapping[int, Sequence[PartitionStatus]],
    brokers: Sequence[BrokerDescription],
    *,
    summarized: set[int],
) -> tuple[PartitionOverview, ...]:
    """Merge the partitions that brokers have reported. ``summarized``: see ``_overview``."""
    down = {broker.id for broker in brokers if not broker.live}
    reported: dict[tuple[str, int], list[_Reported]] = {}
    for source, statuses in partitions.items():
        for status in statuses:
            reported.setdefault((status.topic, status.partition), []).append((source, status))
    return tuple(_overview(reported[key], down, summarized) for key in sorted(reported))


def _overview(
    reported: Sequence[_Reported], down: set[int], summarized: set[int]
) -> PartitionOverview:
    """Merge the reports of one partition. ``summarized``: brokers that report only some
    partitions: those in which they find a problem, or a page.
    """
    source, best = max(reported, key=_weight)
    is_available = source == best.leader or best.leader in summarized
    # Without the leader, the highest high watermark counts, because it only grows.
    offsets = (
        best if source == best.leader else max(reported, key=lambda said: said[1].high_watermark)[1]
    )
    failures = [status.failure for _, status in reported if status.failure is not None]
    return PartitionOverview(
        topic=best.topic,
        topic_id=best.topic_id,
        partition=best.partition,
        leader=best.leader,
        leader_epoch=best.leader_epoch,
        replicas=tuple(best.replicas),
        isr=tuple(best.isr),
        witnesses=tuple(best.witnesses),
        elr=tuple(best.elr),
        min_isr=best.min_isr,
        is_available=is_available,
        log_start_offset=offsets.log_start_offset,
        high_watermark=offsets.high_watermark,
        replica_states=_replicas(best, reported, is_available=is_available),
        problem=str(failures[0].to_error()) if failures else "",
        down=tuple(broker for broker in best.replicas if broker in down),
        unclean_epoch=best.unclean_epoch,
        unclean_offset=best.unclean_offset,
        target=tuple(best.target),
    )


def _weight(reported: _Reported) -> tuple[int, bool]:
    source, status = reported
    return status.leader_epoch, source == status.leader


def _replicas(
    best: PartitionStatus, reported: Sequence[_Reported], *, is_available: bool
) -> tuple[ReplicaDescription, ...]:
    """Merge each replica's own report with the leader's report of its lag."""
    by_leader = {status.broker: status for status in best.replica_status if is_available}
    own = {
        source: status
        for source, partition in reported
        for status in partition.replica_status
        if status.broker == source
    }
    leader = by_leader.get(best.leader if best.leader is not None else _UNKNOWN)
    found = []
    for broker in best.replicas:
        progress = by_leader.get(broker, ReplicaStatus(broker=broker))
        status = own.get(broker, progress)
        end = status.log_end_offset
        is_comparable = leader is not None and min(end, leader.log_end_offset) >= 0
        lag = max(0, leader.log_end_offset - end) if is_comparable and leader else _UNKNOWN
        found.append(
            ReplicaDescription(
                broker=broker,
                log_end_offset=end,
                durable_end_offset=status.durable_end_offset,
                lag_records=lag,
                lag_ms=progress.lag_ms,
                in_isr=broker in best.isr,
                chain=status.chain,
                damage=status.damage or progress.damage,
            )
        )
    return tuple(found)


async def describe_topics(
    cluster: Cluster, topics: Sequence[str] | None, partitions: range | None
) -> list[descriptions.TopicDescription]:
    """Return the topics (None: all); each partition as reported by its leader, if it responds.

    ``partitions``: only those; None for all. Raises ``UnknownTopicError`` for a topic that does not
    exist, and ``BrokerUnavailableError`` if no broker responds.
    """
    span = None if partitions is None else _span(partitions)
    parts: list[list[str] | None] = [None]
    if topics is not None:
        step = limits.TOPICS_PER_REQUEST_MAX
        parts = [list(topics[start : start + step]) for start in range(0, len(topics), step)]
    found = [topic for part in parts for topic in await _described_topics(cluster, part, span)]
    for topic, _absent in found:
        if topic.failure is not None:
            raise named_failure(topic.name, topic.failure)
    return [descriptions.topic_description(topic, absent) for topic, absent in found]


class _Described(NamedTuple):
    """``absent``: partitions whose leader has not reported."""

    topic: TopicDescription
    absent: frozenset[int]


async def _described_topics(
    cluster: Cluster, names: list[str] | None, span: PartitionRange | None
) -> list[_Described]:
    """Return the topics, page by page. A topic that does not exist has a ``failure``."""
    found: list[_Described] = []
    after = ""
    while True:
        request = DescribeTopicsRequest(topics=names, after=after, paged=True, span=span)
        page, end = await _describe_page(cluster, request)
        found += page
        if end is None:
            return found
        if names is None:
            after = end
        else:
            names = names[names.index(end) + 1 :]


async def _describe_page(
    cluster: Cluster, request: DescribeTopicsRequest
) -> tuple[list[_Described], str | None]:
    """Return the first of these topics, and the name of the last one; None after all of them."""
    names = request.topics
    answers = await ask_every_broker(cluster, apis.DESCRIBE_TOPICS, request)
    pages = {
        source: answer
        for source, answer in answers.items()
        if isinstance(answer, DescribeTopicsResponse)
    }
    place = (lambda name: name) if names is None else names.index
    ends = [page.topics[-1].name for page in pages.values() if page.is_page]
    end = min(ends, key=place, default=None)  # every response is complete up to it
    reported: dict[str, list[tuple[int, TopicDescription]]] = {}
    for source, page in pages.items():
        for topic in page.topics:
            if end is None or place(topic.name) <= place(end):
                reported.setdefault(topic.name, []).append((source, topic))
    controller = cluster.view.controller
    decides = isinstance(answers.get(_UNKNOWN if controller is None else controller), Message)
    found = [
        _merged_topic(
            [said for said in sayings if said[1].failure is None] or sayings,
            controller,
            request.span,
        )
        for sayings in reported.values()
        if names is not None or not decides or any(said[0] == controller for said in sayings)
    ]
    return found if names is not None else sorted(found, key=lambda each: each.topic.name), end


def _merged_topic(
    reported: Sequence[tuple[int, TopicDescription]],
    controller: int | None,
    span: PartitionRange | None,
) -> _Described:
    newest = max(reported, key=lambda said: (said[0] == controller, _newest_epoch(said[1])))[1]
    same = [(source, topic) for source, topic in reported if topic.id == newest.id]
    partitions: dict[int, list[tuple[int, PartitionDescription]]] = {}
    for source, topic in same:
        for part in topic.partitions:
            partitions.setdefault(part.info.partition, []).append((source, part))
    count = max(*(topic.partition_count for _, topic in same), max(partitions, default=-1) + 1)
    chosen = {
        number: max(partitions[number], key=_part_weight)
        for number in numbers_of(span, count)  # brokers of earlier releases list all
        if number in partitions
    }
    topic = TopicDescription(
        name=newest.name,
        failure=newest.failure,
        id=newest.id,
        config=newest.config,
        config_overrides=newest.config_overrides,
        partitions=[part for _source, part in chosen.values()],
        is_internal=newest.is_internal,
        partition_count=count,
    )
    absent = [number for number, (source, part) in chosen.items() if source != part.info.leader]
    return _Described(topic, frozenset(absent))


def _newest_epoch(topic: TopicDescription) -> int:
    return max((part.info.leader_epoch for part in topic.partitions), default=_UNKNOWN)


def _part_weight(reported: tuple[int, PartitionDescription]) -> tuple[int, bool, int]:
    source, part = reported
    return part.info.leader_epoch, source == part.info.leader, part.high_watermark


# -- describe events -------------------------------------------------------------------------------
#
# Event history of the cluster, merged from the responses of all brokers.


# Brokers apply the same change within this time, by their clocks: that much older events are
# requested, so that an event before ``since_ms`` is not returned with the time of a slower broker.
APART_MS: Final = 60_000


async def describe_events(cluster: Cluster, since_ms: TimestampMs) -> list[EventDescription]:
    """Return the events since then, oldest first.

    Raises ``BrokerUnavailableError`` if no broker responds.
    """
    request = DescribeEventsRequest(since_ms=max(0, since_ms - APART_MS))
    answers = await ask_every_broker(cluster, apis.DESCRIBE_EVENTS, request)
    found = merged(
        event
        for answer in answers.values()
        if isinstance(answer, DescribeEventsResponse)
        for event in answer.events
    )
    return [event for event in found if event.at_ms >= since_ms]


def merged(events: Iterable[EventStatus]) -> list[EventDescription]:
    """Return each event once, with the earliest time that a broker reports for it."""
    found: dict[tuple[object, ...], EventStatus] = {}
    for event in events:
        place = event.broker if event.partition is None else event.partition
        key = event.kind, event.topic_id, place, event.version, event.leader_epoch
        best = found.get(key)
        if best is None or event.at_ms < best.at_ms:
            found[key] = event
    return [
        EventDescription(
            at_ms=event.at_ms,
            kind=event.kind,
            text=event.text,
            topic=event.topic or None,
            partition=event.partition,
            broker=event.broker,
            leader_epoch=event.leader_epoch,
            version=event.version,
        )
        for event in sorted(found.values(), key=lambda event: (event.at_ms, event.version))
    ]


# -- describe features -----------------------------------------------------------------------------
#
# Versions of formats and protocols, reported by every broker, and what they have in common.


async def describe_features(cluster: Cluster) -> ClusterFeatures:
    """Return the versions of every broker.

    Raises ``BrokerUnavailableError`` if no broker responds.
    """
    request = ApiVersionsRequest(client_id=cluster.settings.client_id)
    answers = await ask_every_broker(cluster, apis.API_VERSIONS, request)
    brokers = [_feature_broker(broker_id, answers[broker_id]) for broker_id in sorted(answers)]
    return ClusterFeatures(
        brokers=tuple(brokers),
        features=common([broker.features for broker in brokers if not broker.problem]),
        apis=common([broker.apis for broker in brokers if not broker.problem]),
    )


def _feature_broker(broker_id: int, answer: Message | RaftlogError) -> BrokerFeatures:
    if not isinstance(answer, ApiVersionsResponse):
        return BrokerFeatures(id=broker_id, problem=str(answer))
    names = {api.number: api.name for api in apis.APIS.values()}
    return BrokerFeatures(
        id=broker_id,
        software=answer.broker_software,
        features={
            each.name: FeatureVersions(each.version_min, each.version_max, each.level)
            for each in answer.features
        },
        apis={  # a client uses the newest version that both have
            names.get(each.api, str(each.api)): FeatureVersions(
                each.version_min, each.version_max, each.version_max
            )
            for each in answer.apis
        },
    )


def common(reported: Sequence[Mapping[str, FeatureVersions]]) -> tuple[FeatureDescription, ...]:
    """Return each feature with the versions that all brokers read, in the order of the names.

    ``reported``: the features of each broker that responded.
    """
    return tuple(
        _common(name, [features.get(name) for features in reported])
        for name in sorted({name for features in reported for name in features})
    )


def _common(name: str, reported: Sequence[FeatureVersions | None]) -> FeatureDescription:
    known = [each for each in reported if each is not None]
    low = max(each.version_min for each in known)
    high = min(each.version_max for each in known)
    levels = {each.level for each in known}
    return FeatureDescription(
        name=name,
        version_min=low,
        version_max=high,
        level=levels.pop() if len(levels) == 1 and len(known) == len(reported) else None,
        compatible=all(low <= each.level <= high for each in known),
    )


# -- verify copies ---------------------------------------------------------------------------------
#
# Comparison of the copies of a partition: each broker verifies its copy, and the chain values of
# all copies below the high watermark must be equal.
#
# A hash-chain value covers the whole log below its offset, also after compaction (docs/adr/0015).
# So one value per copy is compared. Only if two differ, further values show where.


# Chain value at an offset; None if it is unknown.
ChainAt: TypeAlias = Callable[[Offset], Awaitable[int | None]]


async def verify_copies(
    cluster: Cluster,
    partition: PartitionOverview,
    before: PartitionVerification | None = None,
    *,
    time_ms: int | None = None,
) -> PartitionVerification:
    """Verify all copies of ``partition`` up to its high watermark, and compare them.

    ``before``: a partial result to continue. ``time_ms``: after this time, return a partial result.
    """
    end = max(partition.high_watermark, 0) if before is None else before.high_watermark
    former = {} if before is None else {copy.broker: copy for copy in before.copies}
    loop = asyncio.get_running_loop()
    until = math.inf if time_ms is None else loop.time() + time_ms / 1_000
    copies = await asyncio.gather(
        *(
            _verified(cluster, partition, former.get(broker, _begun(broker)), end, until)
            for broker in partition.replicas
        )
    )
    found = {copy.broker: copy for copy in copies}
    if not any(copy.is_partial for copy in copies):
        valid = [copy for copy in copies if not (copy.damage or copy.problem)]
        valid.sort(key=lambda copy: copy.broker != partition.leader)  # the leader's first
        for copy in valid[1:]:
            found[copy.broker] = await _compared(cluster, partition, valid[0], copy)
    return PartitionVerification(
        partition.topic, partition.partition, end, tuple(found[b] for b in partition.replicas)
    )


def _begun(broker: int) -> CopyVerification:
    return CopyVerification(broker, 0, 0, is_partial=True)


async def _verified(
    cluster: Cluster,
    partition: PartitionOverview,
    copy: CopyVerification,
    end: Offset,
    until: float,
) -> CopyVerification:
    """Make a broker verify its copy up to ``end``, part by part; no part begins after ``until``."""
    broker, offset = copy.broker, copy.end_offset
    while copy.is_partial:
        try:
            answer = await _ask_copies(cluster, partition, broker, offset, end)
        except RaftlogError as error:
            return CopyVerification(broker, copy.start_offset, offset, problem=str(error))
        start, offset = answer.log_start_offset, answer.reached
        goal = min(end, answer.log_end_offset)
        if offset >= goal:
            return CopyVerification(broker, start, goal)
        if answer.damage:
            return CopyVerification(broker, start, offset, damage=answer.damage)
        copy = CopyVerification(broker, start, offset, is_partial=True)
        if asyncio.get_running_loop().time() >= until:
            break
    return copy


async def _ask_copies(
    cluster: Cluster, partition: PartitionOverview, broker: int, start: Offset, end: Offset
) -> VerifyCopyResponse:
    connection = await cluster.connection(broker)
    request = VerifyCopyRequest(
        topic=partition.topic, partition=partition.partition, start_offset=start, end_offset=end
    )
    answer = await cluster.ask(connection, apis.VERIFY_COPY, request)
    assert isinstance(answer, VerifyCopyResponse)
    return answer


async def _compared(
    cluster: Cluster,
    partition: PartitionOverview,
    reference: CopyVerification,
    copy: CopyVerification,
) -> CopyVerification:
    """Return ``copy``, with the offset from which on it differs, or with a problem."""

    def chain_of(broker: int) -> ChainAt:
        async def chain_at(offset: Offset) -> int | None:
            return (await _ask_copies(cluster, partition, broker, offset, offset)).chain

        return chain_at

    start = max(reference.start_offset, copy.start_offset)
    end = min(reference.end_offset, copy.end_offset)
    try:
        if end <= start:
            return copy
        ours, theirs = chain_of(reference.broker), chain_of(copy.broker)
        expected, found = await ours(end), await theirs(end)
        if expected is None or found is None:
            reason = f"its hash-chain value at offset {end} is unknown. Verify again later"
            return replace(copy, problem=reason)
        # guard: chain values of copies are compared
        if expected == found:
            return copy
        return replace(copy, differs_at=await first_difference(ours, theirs, start, end))
    except RaftlogError as error:
        return replace(copy, problem=str(error))


async def first_difference(ours: ChainAt, theirs: ChainAt, start: Offset, end: Offset) -> Offset:
    """Return an offset of the first batch that differs. The logs differ below ``end``.

    Logs that differ below an offset differ below all later ones. An unknown value counts as equal:
    the result is then in a later batch.
    """
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        expected, found = await ours(middle), await theirs(middle)
        if expected is None or found is None or expected == found:
            low = middle
        else:
            high = middle
    return low


# -- topic ids -------------------------------------------------------------------------------------
#
# IDs of topics, for requests that must not concern a newer topic of the same name.


async def topic_ids(
    cluster: Cluster, names: list[str], missing: list[RaftlogError]
) -> dict[str, str]:
    """Return the ids of topics by name. ``missing`` receives an error for each that does not exist.

    Asks again while a broker does not know its topics yet. Raises the errors of ``persist``.
    """
    ids: dict[str, str] = {}
    for start in range(0, len(names), limits.TOPICS_PER_REQUEST_MAX):
        part = names[start : start + limits.TOPICS_PER_REQUEST_MAX]
        for name, found in await cluster.persist(partial(_ask_ids, cluster, part), repeatable=True):
            if isinstance(found, RaftlogError):
                missing.append(found)
            else:
                ids[name] = found
    return ids


async def _ask_ids(cluster: Cluster, names: list[str]) -> list[tuple[str, str | RaftlogError]]:
    answer = await cluster.call(apis.METADATA, MetadataRequest(topics=names))
    assert isinstance(answer, MetadataResponse)
    found: list[tuple[str, str | RaftlogError]] = []
    for topic in answer.topics:
        error = None if topic.failure is None else named_failure(topic.name, topic.failure)
        if error is not None and not isinstance(error, UnknownTopicError):
            raise error
        found.append((topic.name, error or topic.id))
    return found


def named_failure(name: str, failure: Failure) -> RaftlogError:
    """Return the failure as an error whose message contains the topic name."""
    error = failure.to_error()
    return error if name in str(error) else type(error)(f"{name}: {error}")
