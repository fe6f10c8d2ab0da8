"""What operators ask of a broker without others: operations, and changes to topics."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from raftlog import limits
from raftlog.errors import (
    BrokerUnavailableError,
    ClusterNotReadyError,
    InvalidRequestError,
    OutcomeUnknownError,
    RaftlogError,
    StorageFailedError,
    ThrottledError,
    TopicExistsError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    PartitionPage,
    PartitionStatus,
    RecoverClusterRequest,
    RecoverClusterResponse,
    TopicSummary,
    TransferLeaderRequest,
)
from raftlog.protocol.records import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    TopicsResponse,
    TopicToCreate,
)
from raftlog.replication.partition_state import PartitionState
from raftlog.server.cluster import replicas
from raftlog.server.operations import (
    DESCRIBED_PER_STEP,
    SUMMARIZED_PER_STEP,
    Summary,
    describe_partitions,
    summarize,
)
from raftlog.server.partition import Partition
from raftlog.server.topic_table import HostedTopic, TopicTable
from tests.running import runs
from tests.server.cluster.fake import DISKS, TOPIC_ID, Scene, append, play, state_of
from tests.server.harness import (
    Client,
    FakeClock,
    FaultyFile,
    RunningBroker,
    batch_of,
    error_of,
    finished,
    only,
    running,
)

# -- operations ------------------------------------------------------------------------------------

# What a broker without others answers an operator.


def described(*arguments: Any) -> list[PartitionStatus]:
    steps = describe_partitions(*arguments, lambda _topic_id, _partition: [])
    found: list[PartitionStatus] = finished(steps)
    return found


def describe(client: Client, **facts: object) -> DescribeClusterResponse:
    answer: DescribeClusterResponse = client.ask(
        apis.DESCRIBE_CLUSTER,
        DescribeClusterRequest(**facts),  # type: ignore[arg-type]
    )
    return answer


def test_it_reports_what_uses_its_disk(client: Client) -> None:
    client.create("t", 2, retention_ms="3600000", segment_bytes="16384")
    client.create("kept", 1, cleanup_policy="compact")
    for _ in range(3):
        client.produce("t", batch_of(b"x" * 12_000))
    assert describe(client).disk_use is None, "only on request"
    use = describe(client, topics=[], include_disk=True).disk_use
    assert use is not None
    kept, t = sorted(use.topics, key=lambda topic: topic.topic)
    assert (kept.retention_ms, kept.retention_bytes, kept.size_bytes) == (-1, -1, 0)
    assert (t.replicas, t.retention_ms, t.expired_bytes) == (2, 3_600_000, 0)
    assert t.size_bytes > 36_000
    assert 24_000 < t.expiring_bytes <= t.size_bytes, "an hour is less than a day"
    assert use.journal_bytes > 0
    assert use.quarantine_bytes == 0


def test_it_is_its_own_controller_and_leads_everything(
    broker: RunningBroker, client: Client
) -> None:
    client.create("t", 2)
    client.produce("t", batch_of(b"a", b"b"))
    noted = describe(client)
    (me,) = noted.brokers
    assert noted.controller == me.id
    assert (me.live, me.fenced) == (True, False)
    assert me.directory_id != ""
    first, second = noted.partitions
    assert (first.topic, first.partition, first.leader) == ("t", 0, me.id)
    assert (first.replicas, first.isr, first.witnesses, first.elr) == ([me.id], [me.id], [], [])
    assert (first.high_watermark, second.high_watermark) == (2, 0)
    (replica,) = first.replica_status
    assert (replica.broker, replica.log_end_offset, replica.durable_end_offset) == (me.id, 2, 2)
    assert (replica.in_isr, replica.lag_ms, replica.damage) == (True, 0, "")
    assert replica.chain != second.replica_status[0].chain
    assert broker is not None


class SteppingClock(FakeClock):
    """Its wall clock is moved, and no time passes."""

    def monotonic(self) -> float:
        return 0.0


def test_a_wrong_clock_is_told(tmp_path: Path) -> None:
    clock = SteppingClock()
    with running(tmp_path, clock=clock) as broker, broker.client() as client:
        assert describe(client).brokers[0].clock_error_ms == 0
        clock.now_ms += 86_400_000
        assert describe(client).brokers[0].clock_error_ms == 86_400_000


def test_only_what_was_asked_for(client: Client) -> None:
    client.create("t")
    client.create("u", 2)
    assert [p.topic for p in describe(client, topics=["u"]).partitions] == ["u", "u"]
    assert describe(client, topics=[]).partitions == []
    assert describe(client, include_partitions=False).partitions == []


def test_there_is_nobody_to_lead_in_its_place(client: Client) -> None:
    client.create("t")
    with pytest.raises(InvalidRequestError, match="no other replica"):
        client.ask(apis.TRANSFER_LEADER, TransferLeaderRequest(topic="t", partition=0))


def test_there_is_nothing_to_recover(client: Client) -> None:
    client.create("t")
    noted = client.ask(apis.RECOVER_CLUSTER, RecoverClusterRequest())
    assert isinstance(noted, RecoverClusterResponse)
    assert noted.partitions == []


def test_its_name_outlives_it(tmp_path: Path) -> None:
    names = []
    for _ in range(2):
        with running(tmp_path / "data") as broker, broker.client() as client:
            names.append(describe(client).cluster_id)
    assert names[0] == names[1] != ""


def table(states: dict[int, PartitionState], *hosts: Partition | None, s: Scene) -> TopicTable:
    topics = TopicTable()
    topics.state_of = lambda _topic_id, partition: states.get(partition)
    config = s.log().config
    topics.add(HostedTopic("t", TOPIC_ID, config, {}, list(hosts)))
    return topics


@runs(play)
async def test_a_partition_of_which_nothing_is_known_is_told_as_such(s: Scene) -> None:
    (noted,) = described(table({}, None, s=s), DescribeClusterRequest(), 1, 0.0)
    assert (noted.leader, noted.leader_epoch, noted.replicas) == (None, -1, [])


@runs(play)
async def test_a_partition_that_is_elsewhere_has_no_offsets_here(s: Scene) -> None:
    state = state_of(2, 3, witnesses=[1], elr=[3], isr=[2], min_isr=2)
    (noted,) = described(table({0: state}, None, s=s), DescribeClusterRequest(), 1, 0.0)
    assert (noted.leader, noted.isr, noted.elr, noted.witnesses) == (2, [2], [3], [1])
    assert (noted.high_watermark, noted.log_start_offset, noted.replica_status) == (-1, -1, [])


@runs(play)
async def test_a_leader_tells_how_far_its_followers_are(s: Scene) -> None:
    state = state_of(1, 2, 3, isr=[1, 2], min_isr=1)
    host = s.host()
    host.lead(state, 1, lag_max_seconds=10)
    append(host, b"a", b"b")
    await s.come_to_rest()
    host.on_follower(2, DISKS[2], fetch_offset=2, durable_offset=1)
    now = s.loop.time() + 3
    (noted,) = described(table({0: state}, host, s=s), DescribeClusterRequest(), 1, now)
    mine, two, three = noted.replica_status
    assert (mine.broker, mine.in_isr, mine.lag_ms) == (1, True, 0)
    assert (two.broker, two.log_end_offset, two.durable_end_offset) == (2, 2, 1)
    assert (two.in_isr, two.lag_ms) == (True, 3_000)
    assert (three.broker, three.in_isr, three.log_end_offset) == (3, False, -1)


@runs(play)
async def test_damage_is_told(s: Scene) -> None:
    state = state_of(2, 1)
    host = s.host()
    host.follow(2, 1)
    host.log.note_damage("a flipped bit", offset=0)
    (noted,) = described(table({0: state}, host, s=s), DescribeClusterRequest(), 1, 0.0)
    (mine,) = noted.replica_status
    assert (mine.damage, mine.in_isr, mine.lag_ms) == ("a flipped bit", False, -1)


def summary_of(
    topics: TopicTable,
    is_live: Callable[[int], bool] = lambda _leader: True,
    page: PartitionPage | None = None,
) -> Summary:
    request = DescribeClusterRequest(summary=True, page=page)
    found: Summary = finished(summarize(topics, request, 1, 0.0, is_live, lambda *_: [7]))
    return found


@runs(play)
async def test_a_summary_counts_what_is_led_and_names_partitions_with_a_problem(s: Scene) -> None:
    state = state_of(1, 2, 3, isr=[1, 2], min_isr=2)
    host = s.host()
    host.lead(state, 1, lag_max_seconds=10)
    append(host, b"a", b"b")
    await s.come_to_rest()
    host.on_follower(2, DISKS[2], fetch_offset=2, durable_offset=2)
    states = {
        0: state,
        1: state_of(2, 3, isr=[2, 3]),
        2: state_of(3, 2, isr=[3, 2]),
        3: state_of(3, 2, isr=[3, 2]),
    }
    topics = table(states, host, None, None, None, s=s)
    found = summary_of(topics, lambda leader: leader != 3)
    assert found.topics == [
        TopicSummary(
            topic="t",
            topic_id=TOPIC_ID,
            partitions=4,
            led=1,
            records=2,
            end=2,
            under_replicated=1,
            at_min_isr=1,
            size_bytes=host.log.size_bytes,
        )
    ]
    assert [part.partition for part in found.partitions] == [0, 2, 3]
    assert (found.leads, found.replicas) == ({1: 1, 2: 1, 3: 2}, {1: 1, 2: 4, 3: 4})


@runs(play)
async def test_a_summary_names_a_bounded_number_of_partitions(s: Scene) -> None:
    topics = table({}, *[None] * 5, s=s)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CLUSTER_SUMMARY_PARTITIONS_MAX", 2)
        found = summary_of(topics)
    assert [part.partition for part in found.partitions] == [0, 1]
    assert (found.topics[0].partitions, found.topics[0].led) == (5, 0)


@runs(play)
async def test_a_summary_lists_a_page_of_the_partitions_of_one_broker(s: Scene) -> None:
    states = {number: state_of(1 + number % 2, 3, isr=[3]) for number in range(9)}
    topics = table(states, *[None] * 10, s=s)
    for broker, skip, limit, expected in [
        *((1, 0, 2, [0, 2]), (1, 2, 2, [4, 6]), (1, 4, 2, [8]), (1, 5, 2, [])),
        *((2, 1, 9, [3, 5, 7]), (3, 8, 1, [8]), (4, 0, 9, [])),
    ]:
        found = summary_of(topics, page=PartitionPage(broker=broker, skip=skip, limit=limit))
        assert [part.partition for part in found.page] == expected
        assert all(part.target == [7] for part in found.page)
    assert summary_of(topics).page == []


@runs(play)
async def test_a_summary_describes_few_partitions_in_one_step(s: Scene) -> None:
    count = 2 * SUMMARIZED_PER_STEP
    topics = table({n: state_of(1, 2) for n in range(count)}, *[None] * count, s=s)
    for page, is_live, least in [
        (None, True, 2),
        (PartitionPage(broker=2, limit=5 * DESCRIBED_PER_STEP), True, 2 + 5),
        (None, False, 2 + count // DESCRIBED_PER_STEP),
    ]:
        request = DescribeClusterRequest(summary=True, page=page)
        made = summarize(topics, request, 1, 0.0, lambda _l, live=is_live: live, lambda *_: [])
        assert least <= sum(1 for _ in made) <= least + 1


def test_a_summary_of_a_broker_alone(client: Client) -> None:
    client.create("t", 2)
    client.produce("t", batch_of(b"a", b"b"))
    noted = describe(client, summary=True)
    assert (noted.partitions, noted.brokers[0].leads, noted.brokers[0].replicas) == ([], 2, 2)
    assert noted.topics is not None
    assert [(topic.led, topic.records, topic.end) for topic in noted.topics] == [(2, 2, 2)]
    assert (describe(client).topics, describe(client).brokers[0].leads) == (None, -1)
    noted = describe(client, summary=True, page=PartitionPage(broker=noted.brokers[0].id, skip=1))
    assert [(part.partition, part.high_watermark) for part in noted.page] == [(1, 0)]


# -- changes to topics -----------------------------------------------------------------------------

# Changes to topics: in order, bounded, and none after the end.


def test_changes_happen_in_the_order_of_arrival(client: Client) -> None:
    create = CreateTopicsRequest(topics=[TopicToCreate(name="t")])
    delete = DeleteTopicsRequest(topics=["t"])
    sent = [
        client.send(apis.CREATE_TOPICS, create),
        client.send(apis.CREATE_TOPICS, create),
        client.send(apis.DELETE_TOPICS, delete),
        client.send(apis.CREATE_TOPICS, create),
    ]
    answers = [client.answer(id_).message for id_ in sent]
    results = [only(answer.results) for answer in answers if isinstance(answer, TopicsResponse)]
    assert [result.failure is None for result in results] == [True, False, True, True]
    assert isinstance(error_of(results[1]), TopicExistsError)


def test_the_loop_turns_while_partitions_are_created(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a request of the fuzzer: 100 partitions held it for 10 ms."""
    turns: list[int] = []  # partitions created in each turn of the loop
    loop = broker.broker.context.loop

    class Created(Partition):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            turns[-1] += 1

    def turn() -> None:
        turns.append(0)
        loop.call_soon(turn)

    monkeypatch.setattr(replicas, "Partition", Created)
    broker.call(turn)
    with broker.client() as client:
        client.create("wide", partitions=300)
    assert sum(turns) == 300
    assert max(turns) <= replicas.HOSTS_PER_TURN


def test_a_queue_that_is_full_says_so(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ADMIN_REQUESTS_PENDING_MAX", 3)
    gate = threading.Event()
    broker.broker._workers.admin.submit(gate.wait, lambda _result, _error: None)
    with broker.client() as client:
        topics = [TopicToCreate(name=name, partitions=1) for name in "abcd"]
        requests = [CreateTopicsRequest(topics=[topic]) for topic in topics]
        sent = [client.send(apis.CREATE_TOPICS, request) for request in requests[:3]]
        with pytest.raises(ThrottledError, match="ADMIN_REQUESTS_PENDING_MAX"):
            client.ask(apis.CREATE_TOPICS, requests[3])
        gate.set()
        for id_ in sent:
            client.answer(id_)
        client.ask(apis.CREATE_TOPICS, requests[3])


def test_work_takes_its_turn(broker: RunningBroker, caplog: pytest.LogCaptureFixture) -> None:
    """It is told how that ended; also by a mistake, and when there are no turns any more."""
    administration = broker.broker.context.administration
    noted: list[RaftlogError | None] = []
    done: list[str] = []
    closed = BrokerUnavailableError("the broker stops")

    def work(name: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            done.append(name)
            if error is not None:
                raise error

        return run

    def submit() -> None:
        administration.submit_work(work("good"), noted.append)
        administration.submit_work(work("refused", TopicExistsError("t")), noted.append)
        administration.submit_work(work("mistaken", KeyError("a bug")), noted.append)

    broker.call(submit)
    broker.wait_until(lambda: len(noted) == 3)
    broker.call(lambda: administration.close(closed))
    broker.call(lambda: administration.submit_work(work("late"), noted.append))
    broker.wait_until(lambda: len(noted) == 4)
    assert done == ["good", "refused", "mistaken"]
    kinds = [None, TopicExistsError, OutcomeUnknownError, BrokerUnavailableError]
    assert [error and type(error) for error in noted] == kinds
    assert "KeyError: 'a bug'" in caplog.text


def test_a_failed_disk_ends_all_changes(
    broker: RunningBroker, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: FaultyFile) -> None:
        raise OSError(5, "Input/output error", file.path)

    monkeypatch.setattr(FaultyFile, "sync", fail)
    assert isinstance(error_of(client.create("t")), OutcomeUnknownError | ClusterNotReadyError)
    monkeypatch.undo()
    assert len(broker.fatal) == 1
    with pytest.raises(StorageFailedError):
        client.create("t")
    client.close()
    broker.expect_failed_stop()
