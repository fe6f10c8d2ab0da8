"""What a leader must not count or tell, and a follower not take, where nothing else notices."""

from __future__ import annotations

from dataclasses import replace

from raftlog.protocol.peer import Divergence, ReplicaFetchRequest
from tests.running import runs
from tests.server.cluster.copying import Copying, batches, leaders_log, part
from tests.server.cluster.leading import Leading, at
from tests.server.cluster.paper import TOPIC_ID, PaperReply, Scene, append, play, write


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

    def ask(round_number: int) -> PaperReply:
        reply = PaperReply()
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
    ((_, told),) = s.links.told
    assert told.partitions[0].durable_offset == 1
    s.workers.release()
    await s.come_to_rest()
    assert s.links.told[-1][1].partitions[0].durable_offset == 2
