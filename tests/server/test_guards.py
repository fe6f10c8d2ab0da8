"""Work on a copy that had to wait for the disk: by then the state may be another one."""

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
from raftlog.protocol import api as apis
from raftlog.protocol.connection import Request
from raftlog.protocol.peer import Divergence, ReplicaFetchRequest, TopicIdPartition
from raftlog.protocol.records import (
    FetchPartition,
    FetchRequest,
    ListOffsetsRequest,
    OffsetAnswer,
    OffsetQuery,
    ProducePartition,
    ProduceRequest,
)
from raftlog.record import validate
from raftlog.replication.cluster_commands import CreateTopic, SetReplicas
from raftlog.replication.partition_state import ChangeIsr, ChangeReplicas
from raftlog.server.apis import offsets
from raftlog.server.context import BrokerContext
from raftlog.server.disks import DiskSpace
from raftlog.server.partition import Partition
from raftlog.server.scheduling import Acknowledge
from raftlog.storage import Log
from raftlog.storage.log_dirs import DiskMeasure
from tests.running import runs
from tests.server.cluster.copying import Copying, batches, leaders_log, part
from tests.server.cluster.fake import (
    DISKS,
    TOPIC_ID,
    FakeReply,
    Scene,
    append,
    play,
    state_of,
    write,
)
from tests.server.cluster.hosting import Hosting, hosting
from tests.server.cluster.leading import Leading, at
from tests.server.harness import Client, batch_of, error_of, only
from tests.storage.logs import searched


async def keep_the_disk_busy(h: Hosting) -> None:
    """With another topic, until the workers are released."""
    h.s.workers.hold()
    h.s.command(CreateTopic(name="u", topic_id="T2", partitions=1, replication_factor=3))
    await h.s.come_to_rest()


def test_a_copy_that_counts_again_is_not_set_aside() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        old, hosted = h.host(), h.hosted()
        await keep_the_disk_busy(h)
        h.partitions.damaged(old, "bad")
        h.s.plane.agree()
        await h.s.come_to_rest()
        assert 1 not in hosted.state.isr, "it may go: as soon as the disk is free"
        back = {**hosted.state.isr, 1: DISKS[1]}
        state = hosted.state
        await h.apply(ChangeIsr(state.version, state.leader_epoch, back, state.min_isr))
        h.s.workers.release()
        await h.partitions.until_seen("u")
        await h.s.come_to_rest()
        assert h.host() is old
        assert old.closed is None

    hosting(test)


def test_a_copy_of_who_is_a_replica_again_is_not_dropped() -> None:
    async def test(h: Hosting) -> None:
        await h.create()
        await h.elect(2)
        old, hosted = h.host(), h.hosted()
        await keep_the_disk_busy(h)
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3), (1,)))
        h.s.command(
            SetReplicas(
                topic_id="T1",
                partition=0,
                replicas=(2, 3),
                witnesses=(1,),
                version=hosted.state.version,
            )
        )
        h.partitions.review(list(h.partitions.hosted.values()))
        await h.apply(ChangeReplicas(hosted.state.version, (2, 3, 1), ()))
        h.s.workers.release()
        await h.partitions.until_seen("t")
        await h.s.come_to_rest()
        assert h.host() is old
        assert old.closed is None

    hosting(test)


# -- guards copying --------------------------------------------------------------------------------
#
# What a leader must not count or tell, and a follower not take, where nothing else notices.


@runs(play)
async def test_who_has_not_gone_on_since_an_election_is_told_no_watermark(s: Scene) -> None:
    """It was answered in epoch 5, and has said nothing yet: its log may have to be cut first."""
    lead = Leading(s)
    log = s.log()
    write(log, b"a", epoch=3)
    host = lead.leader(log, isr=[1])
    assert lead.fetch(at(0), full=True).parts[0].length
    newer = replace(lead.partitions[TOPIC_ID, 0].state, leader_epoch=6, version=2)
    host.lead(newer, 1, lag_max_seconds=10)
    append(host, b"b")
    await s.come_to_rest()
    assert host.high_watermark == 2
    waiting = lead.fetch()
    lead.fetch()
    assert waiting.parts == []


@runs(play)
async def test_who_is_asked_for_a_sign_gives_it_after_the_question(s: Scene) -> None:
    """A request that was on its way when the question came says nothing of what came since."""
    lead = Leading(s)
    lead.leader()
    heard: list[str] = []

    def ask(round_number: int) -> FakeReply:
        reply = FakeReply()
        request = ReplicaFetchRequest(partitions=[], full=False, round=round_number)
        lead.session.fetch(request, reply.as_reply)
        return reply

    lead.fetch(at(0), full=True)
    lead.session.when_fetched_again(lambda: heard.append("it"))
    ask(0)
    assert heard == []
    await s.come_to_rest()
    ask(0)
    assert heard == []
    ask(1)
    assert heard == ["it"]


@pytest.mark.parametrize("is_forgotten", [False, True])
@runs(play)
async def test_a_sign_that_is_given_with_the_end_of_following_confirms_nothing(
    s: Scene, *, is_forgotten: bool
) -> None:
    """The follower may have been elected before the question, and say so only with its answer."""
    lead = Leading(s)
    lead.leader()
    lead.leader(partition=1)
    lead.fetch(at(0), at(0, partition=1), full=True)
    heard: list[bool] = []
    lead.session.when_fetched_again(lambda: heard.append(lead.session.follows(TOPIC_ID, 0, 5)))
    await s.come_to_rest()
    gone = TopicIdPartition(TOPIC_ID, 0)
    request = ReplicaFetchRequest(
        partitions=[] if is_forgotten else [at(0, epoch=6)],
        full=False,
        forgotten=[gone] if is_forgotten else [],
        round=1,
    )
    lead.session.fetch(request, FakeReply().as_reply)
    assert heard == [False]


@runs(play)
async def test_a_question_that_no_request_awaited_is_carried_by_the_next_response(s: Scene) -> None:
    """Else it would wait for records, and the leader for the Raft group."""
    lead = Leading(s)
    lead.leader()
    lead.fetch(at(0), full=True)
    lead.session.when_fetched_again(lambda: None)
    await s.come_to_rest()  # answers the only request that waits
    lead.session.when_fetched_again(lambda: None)
    await s.come_to_rest()
    reply = FakeReply()
    request = ReplicaFetchRequest(partitions=[], full=False, round=1)
    lead.session.fetch(request, reply.as_reply)
    assert reply.answers


@runs(play)
async def test_a_log_that_is_to_be_cut_takes_nothing_until_then(s: Scene) -> None:
    """Two requests are out: the answer to the second must not go behind what the first cuts."""
    c = Copying(s)
    source = leaders_log(s, b"a", b"b")
    host = c.follower()
    for partition in (host, c.follower(partition=1)):
        c.fetcher.add(partition)
        await s.come_to_rest()
    assert len(c.requests) == 2
    s.workers.hold()
    host.append_copied(batches(source)[: len(batches(source)) - len(batches(source, 1))])
    await s.come_to_rest()  # a sync is out: the cut waits for it
    await c.answer(part(diverged=Divergence(epoch=5, end_offset=0)), request=0)
    data = batches(source, 1)
    await c.answer(part(length=len(data)), data=data, request=1)
    assert host.log.log_end_offset == 1
    s.workers.release()
    await s.come_to_rest()
    assert host.log.log_end_offset == 0


@runs(play)
async def test_progress_is_what_is_synced_and_not_what_came_since(s: Scene) -> None:
    c = Copying(s)
    source = leaders_log(s, b"a", b"b")
    first, both = len(batches(source)) - len(batches(source, 1)), batches(source)
    host = c.follower()
    c.fetcher.add(host)
    await s.come_to_rest()
    s.workers.hold()
    await c.answer(part(length=first), data=both[:first])
    await c.answer(part(length=len(both) - first), data=both[first:])
    assert host.log.log_end_offset == 2
    assert s.workers.held is not None
    ((work, done),) = s.workers.held
    s.workers.hold()
    done(work(), None)
    await s.come_to_rest()
    ((_, noted),) = s.links.noted
    assert noted.partitions[0].durable_offset == 1
    s.workers.release()
    await s.come_to_rest()
    assert s.links.noted[-1][1].partitions[0].durable_offset == 2


# -- guards epochs ---------------------------------------------------------------------------------
#
# A request of a client that knows another leader than this one: refused, whatever it asks for.


NEWER = 7


def test_records_of_a_producer_that_knows_a_newer_leader_are_not_appended(client: Client) -> None:
    client.create("t")
    batch = batch_of(b"a")
    part = ProducePartition(topic="t", partition=0, length=len(batch), leader_epoch=NEWER)
    answer = client.produced(
        client.send(apis.PRODUCE, ProduceRequest(acks=-1, partitions=[part]), [batch])
    )
    assert isinstance(error_of(answer), UnknownLeaderEpochError)
    assert client.offset("t", "latest").offset == 0


def test_a_consumer_that_knows_a_newer_leader_is_given_nothing(client: Client) -> None:
    client.create("t")
    client.produce("t", batch_of(b"a"))
    part = FetchPartition(topic="t", partition=0, offset=0, leader_epoch=NEWER)
    partitions, values = client.fetched(
        client.send(apis.FETCH, FetchRequest(partitions=[part], wait_ms_max=0))
    )
    assert isinstance(error_of(only(partitions)), UnknownLeaderEpochError)
    assert values == []


def test_a_consumer_that_knows_a_newer_leader_is_told_no_offset(client: Client) -> None:
    client.create("t")
    query = OffsetQuery(topic="t", partition=0, at="latest", leader_epoch=NEWER)
    answer = client.ask(apis.LIST_OFFSETS, ListOffsetsRequest(queries=[query]))
    assert isinstance(error_of(only(answer.answers)), UnknownLeaderEpochError)


# -- guards hosts ----------------------------------------------------------------------------------
#
# What a partition's host must not do, where no other test would notice that it does.


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
    noted: list[RaftlogError | None] = []
    host = leader(s)
    host.when_committed(append(host, b"a"), noted.append)
    await s.come_to_rest()
    assert noted == []
    host.follow(2, 6)
    assert [type(error) for error in noted] == [CommitUnknownError]
    host.advance_high_watermark(1)
    assert len(noted) == 1


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
    assert (host.disk_problem.is_short, host.log.log_end_offset) == (True, 1)


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

    def look_up(self, reply: FakeReply, at: At) -> None:
        query = OffsetQuery(topic="t", partition=0, at=at, leader_epoch=-1)
        request = SimpleNamespace(message=ListOffsetsRequest(queries=[query]))
        context = cast(BrokerContext, self)
        for _ in offsets.handle(context, cast(Request, request), reply.as_reply):
            pass


def answer(reply: FakeReply) -> OffsetAnswer:
    ((message, _),) = reply.answers
    (found,) = message.answers
    assert isinstance(found, OffsetAnswer)
    return found


def failure(reply: FakeReply) -> type[RaftlogError]:
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
    reply = FakeReply()
    asked.look_up(reply, at)
    assert failure(reply) is LeaderNotAvailableError
    assert asked.waiting == []
    asked.host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    reply = FakeReply()
    asked.look_up(reply, at)
    assert reply.answers == []
    asked.waiting.pop()(None)
    assert answer(reply).offset == offset
    reply = FakeReply()
    asked.look_up(reply, at)
    asked.waiting.pop()(NotLeaderError("another one does"))
    assert failure(reply) is NotLeaderError


@runs(play)
async def test_a_start_is_told_once_no_later_leader_can_start_lower(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    asked = Asked(leader(s, log))
    host = asked.host
    noted: list[RaftlogError | None] = []

    def earliest() -> FakeReply:
        reply = FakeReply()
        asked.look_up(reply, "earliest")
        asked.waiting.pop()(None)
        return reply

    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    assert answer(earliest()).offset == 0
    host.delete_records(1, noted.append)
    await s.come_to_rest()
    assert (log.durable_start_offset, noted) == (1, [])
    waiting = earliest()
    assert not waiting.answers
    with pytest.raises(LeaderNotAvailableError):
        host.read(start_offset=0, bytes_max=100)
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2, log_start=1)
    assert noted == [None]
    assert answer(waiting).offset == 1
    assert answer(earliest()).offset == 1
    with pytest.raises(OffsetOutOfRangeError):
        host.read(start_offset=0, bytes_max=100)


@runs(play)
async def test_a_lookup_of_the_start_ends_with_the_leadership(s: Scene) -> None:
    log = s.log()
    write(log, b"a", b"b")
    asked, reply = Asked(leader(s, log)), FakeReply()
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
    noted: list[RaftlogError | None] = []
    host.on_follower(2, "disk-2", fetch_offset=2, durable_offset=2)
    host.delete_records(1, noted.append)
    await s.come_to_rest()
    host.follow(2, 6)
    assert [type(error) for error in noted] == [OutcomeUnknownError]


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
    reply = FakeReply()
    Asked(host).look_up(reply, "latest")
    assert failure(reply) is NotLeaderError
