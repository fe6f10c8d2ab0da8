"""Elections by the contents of the replicas: request reports, wait briefly, and select a leader.

For the broker that proposes a leader. ``raftlog.replication.election`` evaluates the reports.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from raftlog import limits
from raftlog.config.keys import INT64_MAX
from raftlog.errors import RaftlogError
from raftlog.protocol import api as apis
from raftlog.protocol.replication import (
    CopyDescription,
    DescribeCopiesRequest,
    DescribeCopiesResponse,
    TopicIdPartition,
)
from raftlog.replication.commands import Elect, ElectUnclean
from raftlog.replication.election import (
    CopyReport,
    Reports,
    Standing,
    choose_member,
    choose_unsure,
)
from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster.hosted_partition import HostedPartition, group_id
from raftlog.server.cluster.liveness import Incarnation, Liveness
from raftlog.server.peers.channel import Answer
from raftlog.server.peers.links import PeerLinks
from raftlog.storage import Log

logger = logging.getLogger(__name__)

# Seconds. A live broker that has not responded by then is skipped: its disk or event loop hangs.
REPORT_SECONDS_MAX: Final = 1.0
FRESH_SECONDS: Final = 1.0  # then reports are requested again, if there is still no leader


@dataclass(slots=True)
class _Survey:
    """Survey of one partition, for one version of its state."""

    version: int
    began_at: float
    reports: dict[int, CopyReport] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    done_at: float | None = None


def report_of(log: Log, state: PartitionState, me: Incarnation) -> CopyReport:
    """Return this broker's report on its own copy.

    The end of an offline copy is unknown. It counts as the longest one, so that no copy with fewer
    records is elected before the log directory is repaired, or an operator decides.
    """
    version = state.version
    if log.is_offline:
        epoch = state.leader_epoch
        return CopyReport(Standing.DAMAGED, epoch, INT64_MAX, version, me.directory_id, me.boot)
    end = log.readable_end_offset if log.damage else log.acknowledged_end_offset
    at_end = end == log.log_end_offset and not log.damage
    last_epoch = log.last_epoch if at_end else log.epochs.epoch_at(end - 1)
    return CopyReport(_standing(log), last_epoch, end, version, me.directory_id, me.boot)


def _standing(log: Log) -> Standing:
    if log.damage and not log.is_torn:
        return Standing.DAMAGED
    return Standing.UNSURE if log.damage or log.doubt else Standing.SOUND


class Surveys:
    """At most one survey per partition."""

    def __init__(
        self,
        broker_id: int,
        me: Incarnation,
        *,
        loop: asyncio.AbstractEventLoop,
        links: PeerLinks,
        liveness: Liveness,
        unclean_recovery_seconds: float,
        find: Callable[[str], HostedPartition | None],
        on_complete: Callable[[HostedPartition], None],
    ) -> None:
        """``find``: a partition by its group. ``on_complete``: called when all replicas have
        responded.
        """
        self._broker_id = broker_id
        self._me = me
        self._loop = loop
        self._links = links
        self._liveness = liveness
        self._unclean_recovery_seconds = unclean_recovery_seconds
        self._find = find
        self._on_complete = on_complete
        self._surveys: dict[str, _Survey] = {}
        self._due: dict[int, dict[str, None]] = {}  # groups to request reports for, by broker

    # -- asking

    def reports(self, hosted: HostedPartition) -> Reports | None:
        """Return the reports of the live replicas, by broker id; None while some are missing.

        The first call requests them; ``on_complete`` is called when it is time to call again.
        """
        now, state = self._loop.time(), hosted.state
        survey = self._surveys.get(hosted.group_id)
        if survey is None or survey.version != state.version or self._is_stale(survey, now):
            survey = self._surveys[hosted.group_id] = _Survey(state.version, now)
        if hosted.host is not None and self._broker_id in state.replicas:
            survey.reports[self._broker_id] = report_of(hosted.host.log, state, self._me)
        missing = [
            broker
            for broker in state.replicas
            if broker not in survey.answered
            and broker != self._broker_id
            and self._liveness.is_live(broker)
        ]
        if not missing or now - survey.began_at >= REPORT_SECONDS_MAX:
            survey.done_at = now if survey.done_at is None else survey.done_at
            return survey.reports
        for broker in missing:
            if broker not in survey.asked and self._links.is_up(broker):
                survey.asked.add(broker)
                self._ask(broker, hosted.group_id)
        return None

    def choose(
        self, hosted: HostedPartition, *, first: int | None = None, without: int | None = None
    ) -> Elect | ElectUnclean | None:
        """Return the election of a leader other than ``without``; None while reports are missing,
        or no broker can lead.

        Selects a complete copy. If there is none, it selects the longest of those that may lack
        records, once no better one is to be expected. ``first`` leads if its log is as long as any
        other.
        """
        reports = self.reports(hosted)
        if reports is None:
            return None
        liveness = self._liveness
        return choose_member(
            hosted.state, liveness, first=first, without=without, reports=reports
        ) or choose_unsure(
            hosted.state,
            reports=reports,
            directory_of=liveness.directory_of,
            gone_seconds=liveness.silent_seconds,
            wait_seconds=self._unclean_recovery_seconds,
        )

    def is_sound(self, hosted: HostedPartition, broker: int) -> bool:
        """Whether ``broker`` has reported a complete copy since it knows the partition's state."""
        report = (self.reports(hosted) or {}).get(broker)
        is_new = report is not None and report.version >= hosted.state.version
        return is_new and report is not None and report.standing is Standing.SOUND

    def _is_stale(self, survey: _Survey, now: float) -> bool:
        return survey.done_at is not None and now - survey.done_at >= FRESH_SECONDS

    def _ask(self, broker: int, group: str) -> None:
        if not self._due:
            self._loop.call_soon(self._send)
        self._due.setdefault(broker, {})[group] = None

    def _send(self) -> None:
        due, self._due = self._due, {}
        for group in [group for group in self._surveys if self._find(group) is None]:
            del self._surveys[group]
        for broker, groups in due.items():
            names, size = list(groups), limits.PARTITIONS_PER_REQUEST_MAX
            for start in range(0, len(names), size):
                self._request(broker, names[start : start + size])

    def _request(self, broker: int, groups: Sequence[str]) -> None:
        partitions = [hosted for group in groups if (hosted := self._find(group)) is not None]
        request = DescribeCopiesRequest(
            partitions=[
                TopicIdPartition(topic_id=hosted.topic_id, partition=hosted.partition)
                for hosted in partitions
            ]
        )
        try:
            future = self._links.request(broker, apis.DESCRIBE_COPIES, request)
        except RaftlogError as error:
            logger.debug("replica report request failed: broker=%d error=%s", broker, error)
            return
        timer = self._loop.call_later(REPORT_SECONDS_MAX, future.cancel)

        def done(answer: asyncio.Future[Answer]) -> None:
            timer.cancel()
            if not answer.cancelled() and answer.exception() is None:
                response = cast(DescribeCopiesResponse, answer.result().message)
                self._take(broker, partitions, response)

        future.add_done_callback(done)

    def _take(
        self, broker: int, partitions: list[HostedPartition], response: DescribeCopiesResponse
    ) -> None:
        found = {group_id(copy.topic_id, copy.partition): copy for copy in response.copies}
        for hosted in partitions:
            survey = self._surveys.get(hosted.group_id)
            if survey is None:
                continue
            survey.answered.add(broker)
            copy = found.get(hosted.group_id)
            if copy is not None:
                survey.reports[broker] = _report(copy, response)
            if survey.asked <= survey.answered:
                self._loop.call_soon(partial(self._on_complete, hosted))

    # -- answering

    def describe(self, partitions: Iterable[TopicIdPartition]) -> DescribeCopiesResponse:
        """Return reports on this broker's copies of ``partitions``; those that it does not store
        are left out.
        """
        copies = []
        for key in partitions:
            hosted = self._find(group_id(key.topic_id, key.partition))
            if hosted is None or hosted.host is None or hosted.host.closed is not None:
                continue
            report = report_of(hosted.host.log, hosted.state, self._me)
            copies.append(
                CopyDescription(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    end_offset=report.end_offset,
                    last_epoch=report.last_epoch,
                    standing=report.standing,
                    version=report.version,
                )
            )
        return DescribeCopiesResponse(
            directory_id=self._me.directory_id, boot=self._me.boot, copies=copies
        )


def _report(copy: CopyDescription, response: DescribeCopiesResponse) -> CopyReport:
    return CopyReport(
        Standing(copy.standing),
        copy.last_epoch,
        copy.end_offset,
        copy.version,
        response.directory_id,
        response.boot,
    )
