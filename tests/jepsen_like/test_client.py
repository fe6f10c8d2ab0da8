"""Outcomes are decided for every error; what is called is what the history says."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import confluent_kafka as kafka
import pytest

from raftlog import Admin, NewTopic, errors
from raftlog.aio import AsyncConsumer, AsyncProducer
from raftlog.client.delivery import Delivery, DeliveryFuture, RangesFuture
from raftlog.config import Address
from raftlog.errors import (
    BrokerUnavailableError,
    InstanceFencedError,
    OffsetOutOfRangeError,
    OutcomeUnknownError,
    RaftlogError,
)
from raftlog.testing import Cluster, cluster, wait_until
from raftlog.testing import history as values
from raftlog.testing.cluster import free_port
from raftlog.testing.fork_server import SOURCE, python_path
from raftlog.testing.history import (
    AnyEntry,
    Append,
    Commit,
    Committed,
    Ends,
    Poll,
    Recorder,
    Type,
    read,
)
from raftlog.types import ConsumerRecord, OffsetAndMetadata, OffsetRange, TopicPartition
from raftlog_jepsen import external
from raftlog_jepsen.client import (
    MISMATCH,
    NOTHING,
    OUTCOMES,
    Clients,
    Process,
    by_partition,
    commit,
    commit_outcome_of,
    committed,
    describe,
    offset_of,
    outcome_of,
)
from raftlog_jepsen.external import CannotError, ExternalCluster, Script, ScriptError, ScriptNet
from raftlog_jepsen.kafka_clients import KafkaConsumer, KafkaProducer, delivery, error_of
from raftlog_jepsen.nemesis.base import FaultPlan
from raftlog_jepsen.nemesis.process import ProcessNemesis
from raftlog_jepsen.plan import Shape, TopicShape

PARTITION = TopicPartition("t", 1)


def tree(base: type[RaftlogError]) -> list[type[RaftlogError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in tree(child))]


# -- outcomes --------------------------------------------------------------------------------------


def test_every_error_is_decided() -> None:
    own = {error for error in tree(RaftlogError) if error.__module__ == "raftlog.errors"}
    assert set(OUTCOMES) == own, "decide in jepsen_like.client what it says of a send"


def test_only_what_comes_before_the_append_is_a_failure() -> None:
    for kind in tree(RaftlogError):
        validation = (
            errors.InvalidRequestError,
            errors.InvalidTopicError,
            errors.UnknownTopicError,
            errors.UnknownPartitionError,
            errors.RecordTooLargeError,
            errors.CorruptBatchError,
        )
        may_fail = issubclass(kind, (errors.RetriableError, *validation))
        assert outcome_of(kind("because")) == ("fail" if may_fail else "info")


def test_an_error_that_is_not_in_the_table_is_what_its_base_is() -> None:
    class NewRetriableError(errors.NotLeaderError):
        code = -1

    assert outcome_of(NewRetriableError()) == "fail"
    assert outcome_of(errors.from_code(199, "of a later release")) == "info"
    assert outcome_of(errors.from_code(99, "of a later release")) == "fail"


def test_errors_are_told_shortly() -> None:
    assert describe(errors.NotLeaderError("it is 2")) == "NotLeaderError: it is 2"
    assert len(describe(errors.NotLeaderError("x" * 5_000))) == 300


# -- processes -------------------------------------------------------------------------------------


def test_a_process_is_retired_once_for_all_that_it_had_under_way() -> None:
    process = Process("producer-1/1")
    first = process.name
    process.retire(first)
    second = process.name
    assert second != first
    process.retire(first)
    assert process.name == second
    process.retire(second)
    assert process.name not in {first, second}


# -- appends ---------------------------------------------------------------------------------------


class FakeProducer:
    """Gives out the futures it was made with, one for each call, or raises what stands there."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.sent: list[bytes] = []

    async def send(self, topic: str, value: bytes, *, partition: int) -> Any:
        assert (topic, partition) == PARTITION
        return self._answer([value])

    async def send_many(self, topic: str, records: Sequence[bytes], *, partition: int) -> Any:
        assert (topic, partition) == PARTITION
        return self._answer(records)

    def _answer(self, records: Sequence[bytes]) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, RaftlogError):
            raise answer
        self.sent += records
        return answer


def client_delivery(offset: int | None, error: RaftlogError | None = None) -> Delivery:
    made = Delivery("t", 1, 0)
    if error is not None:
        made.fail(error)
    elif offset is not None:
        made.succeed(offset, -1)
    return made


def one(offset: int) -> DeliveryFuture:
    return DeliveryFuture(client_delivery(offset), 0)


def lost(error: RaftlogError) -> DeliveryFuture:
    return DeliveryFuture(client_delivery(None, error), 0)


def many(*parts: tuple[int, int]) -> RangesFuture:
    return RangesFuture([(client_delivery(offset), 0, count) for offset, count in parts])


class Rig:
    """Clients, and what they recorded."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "history.jsonl"
        counter = itertools.count()
        self.recorder = Recorder(self.path, lambda: next(counter))
        self.clients = Clients(self.recorder)

    def entries(self) -> list[AnyEntry]:
        self.recorder.close()
        return list(read(self.path))

    async def append(self, producer: FakeProducer, count: int, **settings: Any) -> Type:
        group = await self.clients.begin(
            cast(AsyncProducer, producer), "p", PARTITION, count=count, padding=9, **settings
        )
        return await self.clients.finish(group)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    with suppress(ValueError):  # it is closed already
        made.recorder.close()


def completion(rig: Rig) -> Append:
    invoked, completed = rig.entries()
    assert isinstance(invoked, Append)
    assert isinstance(completed, Append)
    assert (invoked.type, invoked.process, invoked.partition) == ("invoke", "p", "t:1")
    assert (invoked.first, invoked.count) == (completed.first, completed.count)
    assert (invoked.acks, invoked.idempotent) == (completed.acks, completed.idempotent)
    return completed


def test_a_group_is_acknowledged_where_its_parts_are(rig: Rig) -> None:
    producer = FakeProducer(many((40, 2), (42, 1), (50, 2)))
    assert asyncio.run(rig.append(producer, 5)) == "ok"
    assert list(map(values.decode_value, producer.sent)) == [1, 2, 3, 4, 5]
    done = completion(rig)
    assert (done.type, done.error) == ("ok", "")
    assert done.offsets == [(1, 3, 40), (4, 2, 50)]
    assert rig.clients.acked == {"t:1": 52}


def test_values_are_never_given_out_twice(rig: Rig) -> None:
    producers = [FakeProducer(many((0, 3))), FakeProducer(errors.ThrottledError()),
                 FakeProducer(many((3, 2)))]  # fmt: skip
    for producer, count in zip(producers, (3, 4, 2), strict=True):
        asyncio.run(rig.append(producer, count))
    assert list(map(values.decode_value, producers[2].sent)) == [8, 9]


@pytest.mark.parametrize(
    ("answers", "ended", "offsets"),
    [
        ([one(7), one(8)], "ok", [(1, 2, 7)]),
        ([one(7), lost(errors.NotLeaderError())], "fail", [(1, 1, 7)]),
        ([lost(errors.NotEnoughReplicasError()), one(9)], "fail", [(2, 1, 9)]),
        ([lost(errors.CommitUnknownError()), one(9)], "info", [(2, 1, 9)]),
        ([lost(errors.NotLeaderError()), lost(errors.ConnectionLostError())], "info", []),
        ([one(7), errors.ThrottledError()], "fail", [(1, 1, 7)]),
        ([one(7), errors.ClosedError()], "info", [(1, 1, 7)]),
    ],
)
def test_one_by_one_each_record_counts(
    rig: Rig, answers: list[Any], ended: Type, offsets: list[Any]
) -> None:
    assert asyncio.run(rig.append(FakeProducer(*answers), 2, one_by_one=True)) == ended
    done = completion(rig)
    assert done.type == ended
    assert done.offsets == offsets
    assert (done.error == "") == (ended == "ok")


@pytest.mark.parametrize(
    ("answer", "ended"),
    [
        (RangesFuture([(client_delivery(None, errors.RequestTimedOutError()), 0, 2)]), "info"),
        (RangesFuture([(client_delivery(None, errors.LeaderNotAvailableError()), 0, 2)]), "fail"),
        (errors.ThrottledError(), "fail"),
        (errors.ClosedError(), "info"),
    ],
)
def test_a_group_that_is_not_acknowledged_ends_as_its_error_says(
    rig: Rig, answer: Any, ended: Type
) -> None:
    assert asyncio.run(rig.append(FakeProducer(answer), 2)) == ended
    done = completion(rig)
    assert (done.type, done.offsets) == (ended, [])
    assert rig.clients.acked == {}


def test_what_one_leader_acknowledges_need_not_be_there_at_the_end(rig: Rig) -> None:
    asyncio.run(rig.append(FakeProducer(many((5, 1))), 1, acks=1, idempotent=False))
    assert rig.clients.acked == {}
    assert completion(rig).acks == 1


def test_another_exception_is_nobodys_outcome(rig: Rig) -> None:
    class Broken(FakeProducer):
        def _answer(self, records: Sequence[bytes]) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(rig.append(Broken(), 1))
    assert [entry.type for entry in rig.entries()] == ["invoke"]


# -- reading ---------------------------------------------------------------------------------------


class FakeConsumer:
    """Gives what it was made with."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    async def poll(self, timeout_ms: int, max_records: int) -> list[ConsumerRecord]:
        assert (timeout_ms, max_records) == (100, 50)
        return self._given()

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> Any:
        assert partitions == [PARTITION]
        return self._given()

    def _given(self) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def record(partition: int, offset: int, value: bytes | None, epoch: int = 3) -> ConsumerRecord:
    return ConsumerRecord("t", partition, offset, None, value, (), 0, epoch)


RECORDS = [
    record(1, 10, values.encode_value(5, 3)),
    record(0, 2, values.encode_value(9, 0)),
    record(1, 11, values.encode_value(6, 2_000)),
    record(1, 12, b"nonsense"),
    record(1, 13, None),
    record(1, 14, values.encode_value(7, 1), epoch=4),
]


async def poll(rig: Rig, answer: Any, positions: dict[TopicPartition, int]) -> int:
    consumer = cast(AsyncConsumer, FakeConsumer(answer))
    return await rig.clients.poll(
        consumer, "c", positions, wait_ms=100, records_max=50, source="replica"
    )


def test_records_come_by_partition_in_the_order_given() -> None:
    found = by_partition(RECORDS)
    assert found[TopicPartition("t", 0)] == [(2, 9, 3)]
    assert found[PARTITION] == [(10, 5, 3), (11, 6, 3), (12, -1, 3), (13, -1, 3), (14, 7, 4)]


def test_a_poll_says_where_it_was_and_what_it_got(rig: Rig) -> None:
    positions = {PARTITION: 10, TopicPartition("t", 0): 2}
    assert asyncio.run(poll(rig, RECORDS, positions)) == len(RECORDS)
    assert positions == {PARTITION: 15, TopicPartition("t", 0): 3}
    invoked, done = rig.entries()
    assert isinstance(invoked, Poll)
    assert isinstance(done, Poll)
    assert invoked.positions == {"t:1": 10, "t:0": 2}
    assert done.records == {
        "t:1": [(10, 2, 5, 3), (12, 1, -1, 3), (13, 1, -1, 3), (14, 1, 7, 4)],
        "t:0": [(2, 1, 9, 3)],
    }
    assert (invoked.source, done.source, done.type) == ("replica", "replica", "ok")


def test_a_poll_that_fails_is_recorded_and_raised(rig: Rig) -> None:
    positions = {PARTITION: 10}
    with pytest.raises(errors.OffsetOutOfRangeError):
        asyncio.run(poll(rig, errors.OffsetOutOfRangeError("gone"), positions))
    assert positions == {PARTITION: 10}
    _, done = rig.entries()
    assert isinstance(done, Poll)
    assert (done.type, done.error, done.records) == ("fail", "OffsetOutOfRangeError: gone", {})


@pytest.mark.parametrize(
    ("answer", "ended", "ends"),
    [({PARTITION: 7}, "ok", {"t:1": 7}), (errors.LeaderNotAvailableError("none"), "fail", {})],
)
def test_ends_are_recorded(rig: Rig, answer: Any, ended: Type, ends: dict[str, int]) -> None:
    consumer = cast(AsyncConsumer, FakeConsumer(answer))
    asking = rig.clients.ends(consumer, "e", [PARTITION])
    if ended == "ok":
        assert asyncio.run(asking) == answer
    else:
        with pytest.raises(RaftlogError):
            asyncio.run(asking)
    invoked, done = rig.entries()
    assert isinstance(done, Ends)
    assert (invoked.type, done.type, done.ends) == ("invoke", ended, ends)


# -- committing ------------------------------------------------------------------------------------
#
# Commits, and what is told about them, get into the history as they were.


ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class CommittingFakeConsumer:
    """Keeps what is committed; raises ``error`` if it has one."""

    def __init__(self, error: RaftlogError | None = None) -> None:
        self.error = error
        self.kept: dict[TopicPartition, OffsetAndMetadata] = {}

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.error is not None:
            raise self.error
        self.kept |= offsets

    async def committed(
        self, partitions: Iterable[TopicPartition], *, metadata: bool
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        assert metadata
        if self.error is not None:
            raise self.error
        return {tp: self.kept.get(tp) for tp in partitions}


def noted(tmp_path: Path, work: Any) -> tuple[Any, list[AnyEntry]]:
    recorder = Recorder(tmp_path / "history.jsonl", itertools.count(1).__next__)
    result = asyncio.run(work(recorder))
    recorder.close()
    return result, list(read(recorder.path))


def test_a_commit_and_what_is_read_back(tmp_path: Path) -> None:
    consumer = cast(AsyncConsumer, CommittingFakeConsumer())

    async def work(recorder: Recorder) -> Any:
        assert await commit(recorder, consumer, "c", "g", {ONE: 7})
        return await committed(recorder, consumer, "c", "g", [ONE, OTHER])

    result, entries = noted(tmp_path, work)
    assert result == {ONE: 7, OTHER: NOTHING}
    kinds = [(type(entry), entry.type) for entry in entries]
    assert kinds == [
        (Commit, "invoke"), (Commit, "ok"), (Committed, "invoke"), (Committed, "ok"),
    ]  # fmt: skip
    done = entries[-1]
    assert isinstance(done, Committed)
    assert (done.group, done.offsets) == ("g", {"t:0": 7, "t:1": -1})


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (errors.UnknownMemberError("gone"), "info"),
        (errors.RequestTimedOutError("late"), "info"),
        (errors.InvalidGroupError("a bad name"), "fail"),
    ],
)
def test_only_what_is_certain_is_a_failure(tmp_path: Path, error: RaftlogError, ended: str) -> None:
    consumer = cast(AsyncConsumer, CommittingFakeConsumer(error))
    assert commit_outcome_of(error) == ended

    async def work(recorder: Recorder) -> Any:
        is_ok = await commit(recorder, consumer, "c", "g", {ONE: 7})
        return is_ok, await committed(recorder, consumer, "c", "g", [ONE])

    result, entries = noted(tmp_path, work)
    assert result == (False, None)
    assert [entry.type for entry in entries] == ["invoke", ended, "invoke", "fail"]
    assert str(error) in getattr(entries[1], "error", "")


def test_an_offset_with_the_note_of_another_is_none_that_was_committed() -> None:
    assert offset_of(OffsetAndMetadata(7, "7")) == 7
    assert offset_of(OffsetAndMetadata(7, "")) == 7
    assert offset_of(OffsetAndMetadata(7, "8")) > MISMATCH
    assert offset_of(None) == NOTHING


# -- external --------------------------------------------------------------------------------------
#
# A cluster that is not ours: the user's script does the harm, and its word is only a word.


PATIENCE_S = 40.0
# What a user would write. Brokers' ids of processes are in files beside it.
CONTROL = """#!/bin/sh
cd "$(dirname "$0")"
case $1 in
kill) kill -KILL "$(cat "pid-$2")" ;;
start)
    PYTHONPATH=@SOURCE@ @PYTHON@ -P -m raftlog broker --config "broker-$2.toml" \\
        </dev/null >/dev/null 2>&1 &
    echo $! >"pid-$2" ;;
pause) kill -STOP "$(cat "pid-$2")" ;;
resume) kill -CONT "$(cat "pid-$2")" ;;
state)
    case $(cut -d ' ' -f 3 "/proc/$(cat "pid-$2")/stat" 2>/dev/null) in
    T) echo stopped ;;
    "" | Z) echo gone ;;
    *) echo running ;;
    esac ;;
wipe) rm -r "broker-$2" ;;
*) echo "$1 is nothing I can do" >&2; exit 3 ;;
esac
"""
RECORD = '#!/bin/sh\necho "$@" >>"$0.calls"\n'


def script_of(directory: Path, text: str) -> Path:
    path = directory / "control.sh"
    path.write_text(text)
    path.chmod(0o700)
    return path


def calls(path: Path) -> list[str]:
    """What a script that only records was called with, since the last look."""
    record = path.with_name(path.name + ".calls")
    found = record.read_text().splitlines() if record.exists() else []
    record.unlink(missing_ok=True)
    return sorted(found)


# -- the script


@pytest.mark.integration
@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        ("echo no luck >&2; exit 1", ScriptError, "kill 2: status 1: no luck"),
        ("echo not here >&2; exit 3", CannotError, "kill 2: not here"),
        ("exit 3", CannotError, "the script does not support it"),
        ("exec sleep 60", ScriptError, "kill 2: not done after 0.2 s"),
    ],
)
def test_a_script_that_does_not_do_it_says_why(
    tmp_path: Path, text: str, error: type[ScriptError], says: str
) -> None:
    script = Script(script_of(tmp_path, f"#!/bin/sh\n{text}\n"), timeout_s=0.2)
    with pytest.raises(error, match=says):
        script.do("kill", 2)
    assert (script.cannot("kill") != "") == (error is CannotError)
    assert script.cannot("pause") == ""


@pytest.mark.integration
def test_what_a_script_cannot_do_is_not_asked_again(tmp_path: Path) -> None:
    path = script_of(tmp_path, RECORD + "exit 3\n")
    script = Script(path)
    for _ in range(2):
        with pytest.raises(CannotError):
            script.do("pause", 1)
    assert calls(path) == ["pause 1"]


@pytest.mark.integration
def test_without_a_script_nothing_can_be_done(tmp_path: Path) -> None:
    script = Script(None)
    assert script.cannot("kill") == "no control script. Set --control"
    with pytest.raises(CannotError, match="kill: no control script"):
        script.do("kill", 1)
    with pytest.raises(ScriptError, match="cannot be run"):
        Script(tmp_path / "nowhere").do("kill", 1)


@pytest.mark.integration
def test_a_script_says_what_it_says(tmp_path: Path) -> None:
    script = Script(script_of(tmp_path, '#!/bin/sh\necho "  $1 of $2 "\n'))
    assert script.do("state", 2) == "state of 2"
    assert script.do_all("state", [(1,), (3,)]) == ["state of 1", "state of 3"]
    assert script.do_all("state", []) == []


@pytest.mark.integration
def test_what_is_cut_is_what_the_script_was_told(tmp_path: Path) -> None:
    path = script_of(tmp_path, RECORD)
    net = ScriptNet(Script(path), {1: Address("127.0.0.1", free_port())})
    net.heal()
    assert calls(path) == []
    net.cut({(1, 2), (2, 1), (1, 3)})
    assert calls(path) == ["cut 1 2", "cut 1 3", "cut 2 1"]
    assert not net.passes(1, 3)
    assert net.passes(3, 1)
    assert not net.reaches(3, 1)
    assert net.reaches(2, 3)
    assert not net.reaches(0, 1)  # nobody is there
    net.mend({(1, 2), (2, 1)})
    assert calls(path) == ["cut 1 3", "heal"]
    assert net.passes(1, 2)
    net.heal()
    assert calls(path) == ["heal"]
    with pytest.raises(CannotError):
        net.slow(1, 64_000)
    net.unslow(1)


# -- with a cluster


@dataclass
class Theirs:
    """A cluster that somebody else started, and their script."""

    running: Cluster
    script: Path

    def broker_pid(self, broker_id: int) -> int:
        return int(self.script.with_name(f"pid-{broker_id}").read_text())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    directory = tmp_path_factory.mktemp("theirs")
    text = CONTROL.replace("@PYTHON@", sys.executable)
    script = script_of(directory, text.replace("@SOURCE@", python_path(SOURCE)["PYTHONPATH"]))
    with cluster(3, directory=directory, with_relays=False) as running:
        for broker in running.brokers:
            (directory / f"pid-{broker.id}").write_text(str(broker.pid))
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("events", 1, 3)])
        made = Theirs(running, script)
        try:
            yield made
        finally:
            for broker in running.brokers:
                pid = made.broker_pid(broker.id)
                if pid != broker.pid:  # the script started it
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def reached(theirs: Theirs) -> Iterator[ExternalCluster]:
    made = ExternalCluster(theirs.running.bootstrap, theirs.script)
    try:
        yield made
        made.ensure_all_up()
        assert made.wait_quiet(PATIENCE_S) == []
    finally:
        made.close()


@pytest.mark.integration
def test_it_is_found_as_it_is(reached: ExternalCluster, theirs: Theirs) -> None:
    reached.start()
    where = {broker.id: str(broker.address) for broker in theirs.running.brokers}
    assert reached.addresses() == where
    assert reached.shape.broker_ids == (1, 2, 3)
    assert reached.up() == {1, 2, 3}
    assert reached.data_directories() == {}
    assert reached.net.backend == "script"
    assert reached.net.reaches(0, 1)
    assert all(part.is_whole for part in reached.status().values())
    assert [reached.state(broker_id) for broker_id in (1, 2, 3)] == ["running"] * 3
    assert all(host.disk is None for host in reached.hosts.values())
    assert reached.exits() == reached.unexpected_exits() == []
    reached.expect_exit([1])
    reached.stop()
    assert reached.wait_quiet(PATIENCE_S) == []


@pytest.mark.integration
def test_its_brokers_are_killed_and_paused_by_the_script(
    reached: ExternalCluster, theirs: Theirs
) -> None:
    nemesis = ProcessNemesis(reached)
    pid = theirs.broker_pid(2)
    kill = FaultPlan(kind="kill", targets=(2,), args={"who": "one"})
    effect = nemesis.begin(kill)
    assert effect.injected, effect
    assert effect.seen["state"] == {"2": "gone"}
    assert effect.seen["ended"] == {"2": "killed, as the script reports"}
    wait_until(lambda: not theirs.running.broker(2).running, what="its end")
    assert reached.up() == {1, 3}
    assert reached.wait_quiet(0) != []
    effect = nemesis.end(kill)
    assert effect.injected, effect
    assert theirs.broker_pid(2) != pid
    assert reached.kills() == {1: 0, 2: 1, 3: 0}
    assert reached.wait_quiet(PATIENCE_S) == []

    pause = FaultPlan(kind="pause", targets=(1,), args={"who": "one"})
    effect = nemesis.begin(pause)
    assert effect.injected, effect
    assert effect.seen["state"] == {"1": "stopped"}
    assert Path(f"/proc/{theirs.broker_pid(1)}/stat").read_text().split(")")[1].split()[0] == "T"
    assert nemesis.end(pause).seen["after"] == {"1": "running"}


@pytest.mark.integration
def test_what_was_left_undone_is_undone(reached: ExternalCluster) -> None:
    reached.pause([1])
    reached.kill([3])
    with pytest.raises(ValueError, match="broker 1 is running"):
        reached.wipe(1)
    reached.wipe(3)
    assert reached.ensure_all_up() == [
        "broker 1 still needed resume",
        "broker 3 still needed start",
    ]
    assert reached.ensure_all_up() == []


@pytest.mark.integration
def test_a_script_that_only_claims_is_found_out(theirs: Theirs, tmp_path: Path) -> None:
    path = script_of(tmp_path, RECORD)
    made = ExternalCluster(theirs.running.bootstrap, path)
    try:
        nemesis = ProcessNemesis(made, sleep=lambda _: None)
        for kind, why in (("kill", "still running: [2]"), ("pause", "not stopped: [2]")):
            effect = nemesis.begin(FaultPlan(kind=kind, targets=(2,), args={"who": "one"}))
            assert not effect.injected
            assert effect.seen["why"] == why
            nemesis.heal()
        assert {"kill 2", "start 2", "pause 2", "resume 2"} <= set(calls(path))
    finally:
        made.close()


@pytest.mark.integration
def test_a_plan_for_another_cluster_is_refused(theirs: Theirs) -> None:
    topic = TopicShape(name="t", partitions=1, replication_factor=3, min_isr=2)
    with pytest.raises(ValueError, match=r"brokers \[1, 2, 3\], the plan has \[1, 2, 3, 4, 5\]"):
        ExternalCluster(theirs.running.bootstrap, None, shape=Shape(brokers=5, topics=(topic,)))


@pytest.mark.integration
def test_a_broker_that_does_not_come_back_is_named(
    reached: ExternalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached.kill([2])
    wait_until(lambda: reached.state(2) == "gone", what="its end")
    reached._down.clear()  # as if the script's start had done nothing
    with monkeypatch.context() as patch:
        patch.setattr(external, "READY_TIMEOUT_S", 0.0)
        with pytest.raises(BrokerUnavailableError, match=r"broker 2 does not respond at .* 0 s"):
            reached.start_broker(2)
        with pytest.raises(BrokerUnavailableError, match="broker 2 not responding"):
            reached.start()
    reached._down.add(2)


# -- kafka clients ---------------------------------------------------------------------------------
#
# Clients of Kafka's protocol that workloads use as they use raftlog's.


ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (kafka.KafkaError._MSG_TIMED_OUT, OutcomeUnknownError),
        (kafka.KafkaError.NOT_ENOUGH_REPLICAS, OutcomeUnknownError),
        (kafka.KafkaError._AUTO_OFFSET_RESET, OffsetOutOfRangeError),
        (kafka.KafkaError.FENCED_INSTANCE_ID, InstanceFencedError),
        (kafka.KafkaError.UNRELEASED_INSTANCE_ID, InstanceFencedError),
    ],
)
def test_the_outcome_of_what_fails_is_unknown(code: int, kind: type[RaftlogError]) -> None:
    assert type(error_of(kafka.KafkaError(code))) is kind


def test_idempotent_producers_send_nothing_with_a_new_epoch() -> None:
    """librdkafka would repeat records (chaos seeds 63001, 63003)."""
    asked = delivery(idempotent=True, timeout_ms=5_000)
    assert asked == {"message.timeout.ms": 0, "max.in.flight": 1}
    asked = delivery(idempotent=False, timeout_ms=5_000)
    assert asked == {"message.timeout.ms": 5_000, "max.in.flight": 5, "retries": 0}


@pytest.mark.integration
def test_records_offsets_and_notes_make_the_round_trip() -> None:
    with cluster(1) as running:
        with Admin(running.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 2, 1)])
        asyncio.run(_round_trip(running))


async def _round_trip(running: Cluster) -> None:
    producer = KafkaProducer(
        running.bootstrap,
        acks=-1,
        idempotent=True,
        compression="lz4",
        linger_ms=5,
        request_timeout_ms=5_000,
        delivery_timeout_ms=10_000,
        metadata_max_age_ms=3_000,
        client_id="p",
    )
    assert await (await producer.send("t", b"0", partition=0)) == [OffsetRange(*ONE, 0, 0)]
    several = await producer.send_many(
        "t", [b"1", None], partition=0, keys=[b"k", b"l"], headers=[[("h", b"v")], []]
    )
    assert await several == [OffsetRange(*ONE, 1, 2)]
    abandoned = await producer.send("absent", b"1", partition=7)
    await producer.close(timeout=0)
    with pytest.raises(OutcomeUnknownError):
        await abandoned
    reader = _consumer(running)
    assert await reader.beginning_offsets([ONE, OTHER]) == {ONE: 0, OTHER: 0}
    assert await reader.end_offsets([ONE, OTHER]) == {ONE: 3, OTHER: 0}
    await reader.assign([ONE])
    await reader.seek(ONE, 1)
    records = []
    while len(records) < 2:
        records += await reader.poll(1_000, 10)
    seen = [(r.offset, r.key, r.value, r.headers, r.leader_epoch >= 0) for r in records]
    assert seen == [(1, b"k", b"1", (("h", b"v"),), True), (2, b"l", None, (), True)]
    await reader.close()
    beyond = _consumer(running)
    await beyond.assign([ONE])
    await beyond.seek(ONE, 9)
    with pytest.raises(OffsetOutOfRangeError):
        await beyond.poll(10_000, 10)
    await beyond.close()
    committer = _consumer(running, group="g")
    await committer.commit({ONE: OffsetAndMetadata(2, "2")})
    found = await committer.committed([ONE, OTHER], metadata=True)
    assert found == {ONE: OffsetAndMetadata(2, "2")}
    await committer.close()


def _consumer(running: Cluster, group: str | None = None) -> KafkaConsumer:
    return KafkaConsumer(
        running.bootstrap,
        group=group,
        wait_ms=100,
        request_timeout_ms=5_000,
        metadata_max_age_ms=3_000,
    )
