"""What a partition's host must not do, where no other test would notice that it does."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raftlog.client.requests import At
from raftlog.config.address import Watermark
from raftlog.errors import (
    CommitUnknownError,
    DiskFullError,
    FencedLeaderEpochError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
    UnknownLeaderEpochError,
)
from raftlog.protocol.connection import Request
from raftlog.protocol.records import ListOffsetsRequest, OffsetAnswer, OffsetQuery
from raftlog.record import validate
from raftlog.server.apis import offsets
from raftlog.server.context import BrokerContext
from raftlog.server.disks import DiskSpace
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.storage import Log
from raftlog.storage.log_dirs import DiskMeasure
from tests.running import runs
from tests.server.cluster.paper import PaperReply, Scene, append, play, state_of, write
from tests.server.harness import batch_of
from tests.storage.logs import searched

LAG_MAX_S = 10.0


def leader(s: Scene, log: Log | None = None, *, epoch: int = 5, **facts: Any) -> Partition:
    """Broker 1 leads, and broker 2 follows."""
    host = s.host(log)
    host.lead(state_of(1, 2, epoch=epoch, **facts), 1, lag_max_seconds=LAG_MAX_S)
    return host


def copy_of(s: Scene, *values: bytes) -> bytes:
    """These records as a leader has stored them."""
    log = s.log()
    write(log, *values)
    return b"".join(log.read(start_offset=0, end_offset=len(values), bytes_max=1 << 20))


# -- appending -------------------------------------------------------------------------------------


@runs(play)
async def test_who_follows_appends_nothing(s: Scene) -> None:
    host = leader(s)
    host.follow(2, 6)
    with pytest.raises(NotLeaderError, match="broker 2 is the leader"):
        append(host, b"a")
    assert host.log.log_end_offset == 0


@runs(play)
async def test_what_could_not_be_committed_is_not_appended(s: Scene) -> None:
    host = leader(s, isr=(1,), min_isr=2)
    with pytest.raises(NotEnoughReplicasError):
        append(host, b"a")
    assert host.log.log_end_offset == 0
    batch = batch_of(b"a")
    host.append(batch, validate(batch), to_be_committed=False)
    assert host.log.log_end_offset == 1


@runs(play)
async def test_a_producer_that_waits_hears_that_the_leader_is_none_any_more(s: Scene) -> None:
    """And is not acknowledged by what the next leader has in that place."""
    told: list[RaftlogError | None] = []
    host = leader(s)
    host.when_committed(append(host, b"a"), told.append)
    await s.come_to_rest()
    assert told == []
    host.follow(2, 6)
    assert [type(error) for error in told] == [CommitUnknownError]
    host.advance_high_watermark(1)
    assert len(told) == 1


@runs(play)
async def test_a_follower_copies_until_the_second_watermark_of_its_disk(s: Scene) -> None:
    space = DiskSpace(producers=Watermark(10), replication=Watermark(5))
    s.services = replace(s.services, space=space)
    host = s.host()
    host.follow(2, 5)
    space.measured(DiskMeasure(5, 100))
    host.append_copied(copy_of(s, b"a"))
    space.measured(DiskMeasure(4, 100))
    with pytest.raises(DiskFullError, match="t:0: writes are refused, and followers"):
        host.append_copied(copy_of(s, b"a", b"b"))
    assert (host.hindrance.is_short, host.log.log_end_offset) == (True, 1)


# -- watermarks ------------------------------------------------------------------------------------


@runs(play)
async def test_the_watermark_of_a_follower_never_goes_back(s: Scene) -> None:
    host = s.host()
    host.follow(2, 5)
    host.append_copied(copy_of(s, b"a", b"b"))
    host.advance_high_watermark(2)
    host.advance_high_watermark(1)
    assert host.high_watermark == 2


@runs(play)
async def test_a_time_is_looked_up_in_what_is_committed(s: Scene) -> None:
    host = s.host()
    host.follow(2, 5)
    host.append_copied(copy_of(s, b"a", b"b"))
    assert searched(host.offset_for_timestamp(0)) is None
    host.advance_high_watermark(2)
    found = searched(host.offset_for_timestamp(0))
    assert found is not None
    assert found.offset == 0


@runs(play)
async def test_a_new_leader_is_ready_when_all_that_it_found_is_committed(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    host = leader(s, log)
    assert not host.is_ready
    host.on_follower(2, "disk-2", fetch_offset=1, durable_offset=1)
    assert not host.is_ready
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    assert (host.is_ready, host.high_watermark) == (True, 2)


# -- epochs ----------------------------------------------------------------------------------------


@runs(play)
async def test_a_client_of_another_epoch_is_told_which_of_the_two_is_older(s: Scene) -> None:
    host = leader(s, epoch=5)
    host.check_epoch(5)
    host.check_epoch(-1)
    with pytest.raises(FencedLeaderEpochError):
        host.check_epoch(4)
    with pytest.raises(UnknownLeaderEpochError):
        host.check_epoch(6)


@runs(play)
async def test_a_broker_alone_begins_an_epoch_at_each_start(s: Scene) -> None:
    log = s.log()
    write(log, b"a", epoch=3)
    host = s.host(log)
    host.lead_alone(1, "disk-1")
    assert host.leader_epoch == 4


@runs(play)
async def test_a_replica_follows_one_leader_in_one_epoch(s: Scene) -> None:
    host = s.host()
    host.follow(2, 5)
    assert host.follows(2, 5)
    assert not host.follows(2, 4)
    assert not host.follows(3, 5)
    host.follow(2, 6)
    assert not host.follows(2, 5)
    host.follow(None, 7)
    assert not host.follows(2, 7)


# -- list_offsets ----------------------------------------------------------------------------------


class Asked:
    """A broker's context with one partition, and who is asked to confirm its leader."""

    def __init__(self, host: Partition) -> None:
        self.host = host
        self.waiting: list[Acknowledge] = []
        self.topics = SimpleNamespace(host=lambda _topic, _partition: host)
        self.cluster = SimpleNamespace(confirm=lambda _host, done: self.waiting.append(done))

    def look_up(self, reply: PaperReply, at: At) -> None:
        query = OffsetQuery(topic="t", partition=0, at=at, leader_epoch=-1)
        request = SimpleNamespace(message=ListOffsetsRequest(queries=[query]))
        context = cast(BrokerContext, self)
        for _ in offsets.handle(context, cast(Request, request), reply.as_reply):
            pass


def answer(reply: PaperReply) -> OffsetAnswer:
    ((message, _),) = reply.answers
    (found,) = message.answers
    assert isinstance(found, OffsetAnswer)
    return found


def failure(reply: PaperReply) -> type[RaftlogError]:
    found = answer(reply).failure
    assert found is not None
    return type(found.to_error())


@pytest.mark.parametrize(("at", "offset"), [("latest", 2), (0, 0)])
@runs(play)
async def test_an_offset_is_told_once_the_leader_is_ready_and_confirmed(
    s: Scene, *, at: At, offset: int
) -> None:
    """A time is looked up in what is committed: a new leader does not know how much that is."""
    log = s.log()
    write(log, b"a", b"b")
    asked = Asked(leader(s, log))
    reply = PaperReply()
    asked.look_up(reply, at)
    assert failure(reply) is LeaderNotAvailableError
    assert asked.waiting == []
    asked.host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    reply = PaperReply()
    asked.look_up(reply, at)
    assert reply.answers == []
    asked.waiting.pop()(None)
    assert answer(reply).offset == offset
    reply = PaperReply()
    asked.look_up(reply, at)
    asked.waiting.pop()(NotLeaderError("another one does"))
    assert failure(reply) is NotLeaderError


@runs(play)
async def test_a_start_is_told_once_no_later_leader_can_start_lower(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    asked = Asked(leader(s, log))
    host = asked.host
    told: list[RaftlogError | None] = []

    def earliest() -> PaperReply:
        reply = PaperReply()
        asked.look_up(reply, "earliest")
        asked.waiting.pop()(None)
        return reply

    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    assert answer(earliest()).offset == 0
    host.delete_records(1, told.append)
    await s.come_to_rest()
    assert (log.durable_start_offset, told) == (1, [])
    waiting = earliest()
    assert not waiting.answers
    with pytest.raises(LeaderNotAvailableError):
        host.read(start_offset=0, bytes_max=100)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2, log_start=1)
    assert told == [None]
    assert answer(waiting).offset == 1
    assert answer(earliest()).offset == 1
    with pytest.raises(OffsetOutOfRangeError):
        host.read(start_offset=0, bytes_max=100)


@runs(play)
async def test_a_lookup_of_the_start_ends_with_the_leadership(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    asked, reply = Asked(leader(s, log)), PaperReply()
    asked.host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    asked.host.delete_records(1, [].append)
    await s.come_to_rest()
    asked.look_up(reply, "earliest")
    asked.waiting.pop()(None)
    asked.host.follow(2, 6)
    assert failure(reply) is LeaderNotAvailableError


@runs(play)
async def test_a_deletion_that_a_deposed_leader_began_has_no_known_outcome(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    host = leader(s, log)
    told: list[RaftlogError | None] = []
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    host.delete_records(1, told.append)
    await s.come_to_rest()
    host.follow(2, 6)
    assert [type(error) for error in told] == [OutcomeUnknownError]


@runs(play)
async def test_nothing_is_deleted_below_min_isr(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    host = leader(s, log, isr=[1, 2])
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    assert host.leadership is not None
    host.leadership.state = replace(host.leadership.state, min_isr=3)
    with pytest.raises(NotEnoughReplicasError):
        host.delete_records(1, lambda _error: None)
    assert log.log_start_offset == 0


@runs(play)
async def test_a_follower_tells_no_end(s: Scene) -> None:
    host = s.host()
    host.follow(2, 5)
    reply = PaperReply()
    Asked(host).look_up(reply, "latest")
    assert failure(reply) is NotLeaderError
