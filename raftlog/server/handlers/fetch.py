"""``fetch``: committed batches, at once or when there are enough of them.

A fetch reads only while its client takes answers and while the broker has memory for them; what it
waits for otherwise is in ``ResponseBudget`` and ``Connection``. Failures are per partition, and end
the wait.
"""

from __future__ import annotations

from typing import cast

from raftlog.errors import DamagedLogError, RaftlogError
from raftlog.protocol.connection import Request
from raftlog.protocol.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from raftlog.protocol.schema import Failure
from raftlog.server.context import BrokerContext
from raftlog.server.replica_host import PartitionHost
from raftlog.server.reply import Reply


def handle(context: BrokerContext, request: Request, reply: Reply) -> None:
    _Fetch(context, cast(FetchRequest, request.message), reply).run()


class _Fetch:
    """One request until it is answered. Nothing is kept of a read that was not enough."""

    __slots__ = (
        "_answers",
        "_committed_bytes",
        "_context",
        "_deadline_seconds",
        "_failures",
        "_found_bytes",
        "_hosts",
        "_reply",
        "_request",
    )

    def __init__(self, context: BrokerContext, request: FetchRequest, reply: Reply) -> None:
        self._context = context
        self._request = request
        self._reply = reply
        self._deadline_seconds = context.loop.time() + request.wait_ms_max / 1_000
        self._hosts: list[tuple[FetchPartition, PartitionHost]] = []
        self._failures: list[FetchedPartition] = []
        # By the last read; before there was one, as if there were enough.
        self._found_bytes = request.bytes_min
        self._committed_bytes = 0  # by all the hosts, at the last read
        for part in request.partitions:
            try:
                host = context.topics.host(part.topic, part.partition)
                host.check_epoch(part.leader_epoch)
                host.check_readable(replica_ok=self._may_be_any(host))
                self._hosts.append((part, host))
            except RaftlogError as error:
                self._failures.append(_failed(part, error))

    def run(self) -> None:
        """Answer now, or wait for data. Called again after a wait for room."""
        if not self._reply.is_wanted:
            return
        remaining_seconds = self._deadline_seconds - self._context.loop.time()
        if self._attempt(remaining_seconds <= 0 or self._context.is_stopping):
            return
        self._context.purgatory.park(
            self._reply.connection,
            [host for _part, host in self._hosts],
            self._attempt,
            timer_seconds=remaining_seconds,
        )

    def _attempt(self, final: bool) -> bool:
        """Answer if there is enough, and in any case if ``final``.

        True when the wait for data is over: answered, or waiting for room, after which ``run`` goes
        on.
        """
        if not final and not self._may_be_enough():
            return False
        connection, responses = self._reply.connection, self._context.responses
        if not connection.may_answer_at_length:
            connection.when_writable(self.run)
            return True
        if responses.full:
            responses.when_room(self.run)
            return True
        answers, batches = self._read()
        failed = any(answer.failure is not None for answer in answers)
        if not final and not failed and self._found_bytes < self._request.bytes_min:
            return False
        self._reply.send(FetchResponse(partitions=answers), batches)
        return True

    def _may_be_enough(self) -> bool:
        """Whether a read is worth it."""
        committed = sum(host.committed_bytes for _part, host in self._hosts)
        closed = any(self._is_over(host) for _part, host in self._hosts)
        new_bytes = committed - self._committed_bytes
        return closed or self._found_bytes + new_bytes >= self._request.bytes_min

    def _may_be_any(self, host: PartitionHost) -> bool:
        """Whether the host need not lead. A damaged one does not, and may be all there is: what is
        good of it is read until another one leads."""
        return self._request.replica_ok or bool(host.log.damage)

    def _is_over(self, host: PartitionHost) -> bool:
        """No more can be read here: the host is closed, or another broker leads."""
        return host.closed is not None or (host.leadership is None and not self._may_be_any(host))

    def _read(self) -> tuple[list[FetchedPartition], list[bytes]]:
        """What is there, within the limits: whole batches, at least one if there is any."""
        answers = list(self._failures)
        batches: list[bytes] = []
        bytes_left = min(self._request.bytes_max, self._context.config.fetch_max_bytes)
        self._committed_bytes = sum(host.committed_bytes for _part, host in self._hosts)
        self._found_bytes = 0
        for part, host in self._in_turn():
            if bytes_left <= 0 and batches:
                break
            try:
                host.check_readable(replica_ok=self._may_be_any(host))
                found = self._read_one(part, host, bytes_left)
            except RaftlogError as error:
                answers.append(_failed(part, error))
                continue
            size = sum(map(len, found))
            if not found or (size > bytes_left and batches):
                continue  # only an empty answer may go over the limit, for the sake of one batch
            bytes_left -= size
            self._found_bytes += size
            batches += found
            answers.append(
                FetchedPartition(
                    topic=part.topic,
                    partition=part.partition,
                    high_watermark=host.high_watermark,
                    log_start_offset=host.log.log_start_offset,
                    length=size,
                )
            )
        return answers, batches

    def _read_one(self, part: FetchPartition, host: PartitionHost, bytes_left: int) -> list[bytes]:
        """Batches of one partition; whether they are whole is looked at only where that is in
        doubt. Up to damage, reading goes on."""
        if part.offset == host.high_watermark and host.closed is None:
            return []
        verifier, bytes_max = self._context.verifier, min(part.bytes_max, bytes_left)
        if part.doubtful:
            verifier.doubt(host, part.offset, bytes_max=bytes_max)
        try:
            return host.read(start_offset=part.offset, bytes_max=bytes_max)
        except DamagedLogError:
            if host.log.damage:
                raise
            verifier.doubt(host, part.offset, bytes_max=bytes_max)
        return host.read(start_offset=part.offset, bytes_max=bytes_max)

    def _in_turn(self) -> list[tuple[FetchPartition, PartitionHost]]:
        """The partitions, from another one on each time: under a limit, none is always the last."""
        hosts = self._hosts
        start = self._context.next_turn() % len(hosts) if hosts else 0
        return hosts[start:] + hosts[:start] if start else hosts


def _failed(part: FetchPartition, error: RaftlogError) -> FetchedPartition:
    return FetchedPartition(topic=part.topic, partition=part.partition, failure=Failure.of(error))
