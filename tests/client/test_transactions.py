"""Transactions of a producer: with the coordinator's state machine, over brokers in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from raftlog import limits
from raftlog.client.aio.clients import AsyncProducer
from raftlog.client.base import ClientEnvironment
from raftlog.client.delivery import DeliveryFuture
from raftlog.client.producer import Producer
from raftlog.client.transactions import (
    CLOSE_ABORT_S,
    RESERVE_WITHIN_S,
    RESERVED_S,
    AsyncTransaction,
)
from raftlog.errors import (
    BrokerUnavailableError,
    ClosedError,
    FencedMemberError,
    InvalidRequestError,
    NotLeaderError,
    OutcomeUnknownError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionAbortedError,
    UnknownTopicError,
    UnsupportedApiError,
)
from raftlog.protocol import api as apis
from raftlog.protocol.records import (
    EndTransactionRequest,
    InitTransactionsRequest,
    OffsetFetchRequest,
    PartitionName,
    ProduceRequest,
)
from raftlog.record import parse_header
from tests.client.consumer_groups.consuming import consumer_of, filled, some
from tests.client.fake_transactions import FakeTransactions
from tests.client.sending import outcome
from tests.client.test_subscription import A
from tests.client.world import (
    FakeCluster,
    Peer,
    Request,
    do_and_ignore,
    hold,
    ignore,
    refuse,
    refuse_partitions,
    run,
)
from tests.running import runs


def producer_of(fake: FakeCluster, **settings: Any) -> AsyncProducer:
    defaults = {"transactional_id": "x", "linger_ms": 0}
    return AsyncProducer(fake.bootstrap, host=fake.host, **{**defaults, **settings})


def coordinated(fake: FakeCluster, partitions: int = 2) -> FakeTransactions:
    fake.create("t", partitions)
    return FakeTransactions(fake)


async def committed(producer: AsyncProducer, *values: bytes) -> None:
    async with producer.transaction() as txn:
        for value in values:
            await txn.send("t", value, partition=0)


Work = Callable[[AsyncTransaction], Awaitable[None]]


async def in_transaction(producer: AsyncProducer, work: Work) -> None:
    async with producer.transaction() as txn:
        await work(txn)


@runs(run)
async def test_the_records_of_a_block_become_visible_together(fake: FakeCluster) -> None:
    known = coordinated(fake)
    async with producer_of(fake) as producer:
        async with producer.transaction() as txn:
            future = await txn.send("t", b"a", partition=0)
            await txn.send_many("t", [b"b", b"c"], partition=1)
            assert known.visible() == []
        assert (await future).offset == 0
        assert sorted(known.visible()) == [b"a", b"b", b"c"]
        assert len(fake.asked(EndTransactionRequest)) == 1
        assert {each.transactional_id for each in fake.asked(ProduceRequest)} == {"x"}


@runs(run)
async def test_transactions_in_quick_succession_reserve_the_partitions_of_the_next(
    fake: FakeCluster,
) -> None:
    known = coordinated(fake)
    async with producer_of(fake) as producer:
        for value in (b"a", b"b", b"c"):
            await committed(producer, value)
        await asyncio.sleep(RESERVE_WITHIN_S + 0.1)
        await committed(producer, b"d")
    ends = fake.asked(EndTransactionRequest)
    part = PartitionName(topic="t", partition=0)
    assert [each.reserve for each in ends] == [[], [part], [part], []]
    assert known.visible() == [b"a", b"b", b"c", b"d"]


@runs(run)
async def test_a_reservation_that_was_not_used_soon_is_given_back(fake: FakeCluster) -> None:
    """Else an idle producer would have an open transaction, until the coordinator aborts it."""
    known = coordinated(fake)
    async with producer_of(fake) as producer:
        await committed(producer, b"a")
        await committed(producer, b"b")
        async with producer.transaction():
            await asyncio.sleep(RESERVED_S + 0.1)  # it sends nothing
        await asyncio.sleep(RESERVED_S + 0.1)
        ends = [each.commit for each in fake.asked(EndTransactionRequest)]
        assert ends == [True, True, False]
        with pytest.raises(InvalidRequestError, match="nothing to recover"):
            await producer.recover()
        await committed(producer, b"c")
    assert len(fake.asked(EndTransactionRequest)) == 4
    assert known.visible() == [b"a", b"b", b"c"]


@runs(run)
async def test_the_next_transaction_waits_until_a_reservation_is_given_back(
    fake: FakeCluster,
) -> None:
    """The response has the identity of the next transaction: it must not arrive in a later one."""
    known, gate = coordinated(fake), asyncio.Event()
    async with producer_of(fake) as producer:
        await committed(producer, b"a")
        await committed(producer, b"b")

        def late(peer: Peer, request: Request) -> None:
            async def later() -> None:
                await gate.wait()
                fake.always[apis.END_TRANSACTION](peer, request)

            fake.keep(later())

        fake.next(apis.END_TRANSACTION, late)
        await asyncio.sleep(RESERVED_S + 0.1)
        next_one = asyncio.ensure_future(committed(producer, b"c"))
        await asyncio.sleep(0.1)
        assert len(fake.asked(EndTransactionRequest)) == 3
        gate.set()
        await next_one
        assert known.visible() == [b"a", b"b", b"c"]


@runs(run)
async def test_a_reservation_that_could_not_be_given_back_is_aborted_by_the_next_transaction(
    fake: FakeCluster,
) -> None:
    known = coordinated(fake)
    async with producer_of(fake, request_timeout_ms=200, delivery_timeout_ms=200) as producer:
        await committed(producer, b"a")
        await committed(producer, b"b")
        fake.next(apis.END_TRANSACTION, ignore)
        await asyncio.sleep(RESERVED_S + 1)
        with pytest.raises(InvalidRequestError, match="nothing to recover"):
            await producer.recover()
        await committed(producer, b"c")
    ends = [each.commit for each in fake.asked(EndTransactionRequest)]
    assert ends == [True, True, False, False, True]
    assert known.visible() == [b"a", b"b", b"c"]


@runs(run)
async def test_each_transaction_has_the_identity_of_the_last_end_and_its_own_sequences(
    fake: FakeCluster,
) -> None:
    known = coordinated(fake)
    async with producer_of(fake) as producer:
        for value in (b"a", b"b", b"c"):
            await committed(producer, value)
    headers = [parse_header(batch) for batch in fake.topics["t"].logs[0].batches]
    assert [(each.producer_epoch, each.base_sequence) for each in headers] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]
    assert len(fake.asked(InitTransactionsRequest)) == 1
    assert known.visible() == [b"a", b"b", b"c"]


@runs(run)
async def test_an_exception_in_the_block_aborts_and_is_raised(fake: FakeCluster) -> None:
    known = coordinated(fake)
    async with producer_of(fake) as producer:

        async def work(txn: AsyncTransaction) -> None:
            await (await txn.send("t", b"a", partition=0))
            raise KeyError("a mistake")

        with pytest.raises(KeyError):
            await in_transaction(producer, work)
        await committed(producer, b"b")
    assert (known.visible(), [end.is_commit for end in known.ends]) == ([b"b"], [False, True])


@runs(run)
async def test_an_abort_does_not_wait_for_records(fake: FakeCluster) -> None:
    """Neither for those in flight: what a broker stores of them later is too late."""
    known = coordinated(fake)
    gate, sent = asyncio.Event(), list[DeliveryFuture]()
    async with producer_of(fake) as producer:
        await committed(producer, b"a")
        fake.next(apis.PRODUCE, hold(gate))

        async def work(txn: AsyncTransaction) -> None:
            sent.append(await txn.send("t", b"b", partition=0))
            await asyncio.sleep(0.1)
            sent.append(await txn.send("t", b"c", partition=1))
            raise KeyError

        with pytest.raises(KeyError):
            await in_transaction(producer, work)
        for future in sent:
            assert isinstance(future.exception(), TransactionAbortedError)
        gate.set()
        await committed(producer, b"d")
        assert producer.undelivered() == 0
    assert known.visible() == [b"a", b"d"]


@runs(run)
async def test_of_two_blocks_that_begin_at_once_one_is_refused(fake: FakeCluster) -> None:
    """Both wait for the first identity. Else the commit of one had records of the other."""
    known = coordinated(fake)
    async with producer_of(fake) as producer:
        blocks = [committed(producer, value) for value in (b"a", b"b")]
        first, second = await asyncio.gather(*blocks, return_exceptions=True)
        assert first is None
        assert isinstance(second, InvalidRequestError)
        assert "is open" in str(second)
    assert known.visible() == [b"a"]


@runs(run)
async def test_an_empty_block_asks_nothing(fake: FakeCluster) -> None:
    coordinated(fake)
    async with producer_of(fake) as producer:
        await committed(producer)

        async def work(txn: AsyncTransaction) -> None:
            raise KeyError

        with pytest.raises(KeyError):
            await in_transaction(producer, work)
    assert fake.asked(EndTransactionRequest) == []


# -- records that are not stored ---------------------------------------------------------------


@runs(run)
async def test_a_record_that_is_not_stored_aborts(fake: FakeCluster) -> None:
    known = coordinated(fake)
    fake.next(apis.PRODUCE, refuse_partitions(RecordTooLargeError("too large")))
    async with producer_of(fake) as producer:
        with pytest.raises(TransactionAbortedError, match="run the block again") as caught:
            await committed(producer, b"a", b"b")
        assert isinstance(caught.value.__cause__, RecordTooLargeError)
        await committed(producer, b"c")
    assert known.visible() == [b"c"]


@pytest.mark.parametrize(
    ("topic", "value", "cause"),
    [
        ("gone", b"x", UnknownTopicError),
        ("t", b"x" * (limits.MIB + 100), RecordTooLargeError),
    ],
    ids=["topic", "size"],
)
def test_a_record_that_was_not_queued_aborts(
    topic: str, value: bytes, cause: type[Exception]
) -> None:
    async def test(fake: FakeCluster) -> None:
        known = coordinated(fake)

        async def work(txn: AsyncTransaction) -> None:
            await txn.send("t", b"a", partition=0)
            await outcome(await txn.send(topic, value))

        async with producer_of(fake) as producer:
            with pytest.raises(TransactionAbortedError) as caught:
                await in_transaction(producer, work)
        assert isinstance(caught.value.__cause__, cause)
        assert known.visible() == []

    run(test)


@runs(run)
async def test_a_lost_batch_is_followed_by_none(fake: FakeCluster) -> None:
    """A new sequence would begin at an epoch that the coordinator has not given."""
    known = coordinated(fake)
    fake.next(apis.PRODUCE, refuse_partitions(RecordTooLargeError("too large")))
    late: list[DeliveryFuture] = []
    async with producer_of(fake) as producer:

        async def work(txn: AsyncTransaction) -> None:
            await outcome(await txn.send("t", b"a", partition=0))
            late.append(await txn.send("t", b"b", partition=0))

        with pytest.raises(TransactionAbortedError):
            await in_transaction(producer, work)
        assert isinstance(await outcome(late[0]), RecordTooLargeError)
    assert fake.topics["t"].logs[0].batches == []
    assert known.ends == []  # nothing was added to the transaction


@runs(run)
async def test_a_leader_that_moves_is_no_reason_to_abort(fake: FakeCluster) -> None:
    known = coordinated(fake)
    fake.next(apis.PRODUCE, refuse_partitions(NotLeaderError("moved")), do_and_ignore)
    async with producer_of(fake, request_timeout_ms=1_000) as producer:
        await committed(producer, b"a", b"b")
    assert known.visible() == [b"a", b"b"]


# -- the coordinator ---------------------------------------------------------------------------


@runs(run)
async def test_a_transaction_that_timed_out_is_aborted_and_the_next_one_goes_on(
    fake: FakeCluster,
) -> None:
    known = coordinated(fake)
    async with producer_of(fake) as producer:

        async def work(txn: AsyncTransaction) -> None:
            await (await txn.send("t", b"a", partition=0))
            known.abort()

        with pytest.raises(TransactionAbortedError):
            await in_transaction(producer, work)

        async def work(txn: AsyncTransaction) -> None:
            await (await txn.send("t", b"b", partition=0))
            known.abort()
            assert isinstance(
                await outcome(await txn.send("t", b"c", partition=0)), TransactionAbortedError
            )

        with pytest.raises(TransactionAbortedError):
            await in_transaction(producer, work)
        await committed(producer, b"d")
    assert known.visible() == [b"d"]
    assert len(fake.asked(InitTransactionsRequest)) == 1


@runs(run)
async def test_a_newer_producer_fences_for_all_time(fake: FakeCluster) -> None:
    known = coordinated(fake)
    new = producer_of(fake)
    async with producer_of(fake) as old:
        await committed(old, b"a")

        async def work(txn: AsyncTransaction) -> None:
            await (await txn.send("t", b"b", partition=0))
            await committed(new, b"c")

        with pytest.raises(ProducerFencedError):
            await in_transaction(old, work)
        with pytest.raises(ProducerFencedError):
            await committed(old, b"d")
        await committed(new, b"e")
        await new.close()
    assert known.visible() == [b"a", b"c", b"e"]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_commit_without_a_response_is_recovered(is_done: bool) -> None:
    async def test(fake: FakeCluster) -> None:
        known = coordinated(fake)
        async with producer_of(fake, request_timeout_ms=200, delivery_timeout_ms=200) as producer:
            fake.next(apis.END_TRANSACTION, known.end_and_ignore if is_done else ignore)
            with pytest.raises(OutcomeUnknownError, match=r"producer\.recover\(\)"):
                await committed(producer, b"a")
            with pytest.raises(InvalidRequestError, match=r"producer\.recover\(\)"):
                await committed(producer, b"b")
            assert await producer.recover() is True
            with pytest.raises(InvalidRequestError, match="nothing to recover"):
                await producer.recover()
            await committed(producer, b"c")
        assert known.visible() == [b"a", b"c"]

    run(test)


@runs(run)
async def test_what_was_aborted_meanwhile_is_recovered_as_that(fake: FakeCluster) -> None:
    known = coordinated(fake)
    async with producer_of(fake, request_timeout_ms=200, delivery_timeout_ms=200) as producer:
        fake.next(apis.END_TRANSACTION, ignore)
        with pytest.raises(OutcomeUnknownError):
            await committed(producer, b"a")
        known.abort()
        assert await producer.recover() is False
        await committed(producer, b"b")
    assert known.visible() == [b"b"]


@runs(run)
async def test_an_abort_without_a_response_is_repeated_by_the_next_transaction(
    fake: FakeCluster,
) -> None:
    known = coordinated(fake)
    async with producer_of(fake, request_timeout_ms=200, delivery_timeout_ms=200) as producer:
        fake.next(apis.END_TRANSACTION, ignore)

        async def work(txn: AsyncTransaction) -> None:
            await (await txn.send("t", b"a", partition=0))
            raise KeyError

        with pytest.raises(KeyError):
            await in_transaction(producer, work)
        await committed(producer, b"b")
    assert ([end.is_commit for end in known.ends], known.visible()) == ([False, True], [b"b"])


@runs(run)
async def test_an_older_cluster_says_that_it_has_no_transactions(fake: FakeCluster) -> None:
    coordinated(fake)
    fake.always[apis.FIND_TRANSACTION_COORDINATORS] = refuse(UnsupportedApiError("not known"))
    async with producer_of(fake) as producer:
        with pytest.raises(UnsupportedApiError):
            await committed(producer, b"a")


@runs(run)
async def test_a_new_producer_ends_the_transaction_of_the_old_one_before_its_first(
    fake: FakeCluster,
) -> None:
    """A consumer may wait for that, and have no record for a transaction until then."""
    known = coordinated(fake)
    old = producer_of(fake)
    txn = old.transaction()
    await txn.__aenter__()
    await (await txn.send("t", b"a", partition=0))
    async with producer_of(fake):
        await asyncio.sleep(1)
        assert [end.is_commit for end in known.ends] == [False]
    await old.close()


@runs(run)
async def test_no_transaction_without_a_response(fake: FakeCluster) -> None:
    """Nothing is unknown then, and nothing to recover."""
    coordinated(fake)
    fake.next(apis.INIT_TRANSACTIONS, ignore)
    async with producer_of(fake, request_timeout_ms=200, delivery_timeout_ms=200) as producer:
        with pytest.raises(BrokerUnavailableError, match="no transaction was begun"):
            await committed(producer, b"a")
        await committed(producer, b"b")


@runs(run)
async def test_an_unknown_outcome_of_a_record_is_none_of_the_transaction(
    fake: FakeCluster,
) -> None:
    coordinated(fake)
    fake.always[apis.PRODUCE] = ignore

    async def work(txn: AsyncTransaction) -> None:
        await (await txn.send("t", b"a", partition=0))

    async with producer_of(fake, request_timeout_ms=200, delivery_timeout_ms=200) as producer:
        with pytest.raises(TransactionAbortedError) as caught:
            await in_transaction(producer, work)
    assert isinstance(caught.value.__cause__, OutcomeUnknownError)


# -- offsets -----------------------------------------------------------------------------------


@runs(run)
async def test_offsets_are_committed_with_the_records(fake: FakeCluster) -> None:
    groups = filled(fake)
    fake.create("out")
    known = FakeTransactions(fake, groups)
    async with (
        consumer_of(fake, auto_commit=False) as consumer,
        producer_of(fake) as producer,
    ):
        await consumer.subscribe(["t"])
        assert await some(consumer, 3) == [0, 1, 2]
        async with producer.transaction() as txn:
            await txn.send("out", b"a")
            await txn.commit_offsets(consumer)
            assert groups.committed() == {}
        assert groups.committed()[A] == 3
        assert await some(consumer, 2) == [3, 4]

        async def work(txn: AsyncTransaction) -> None:
            await txn.commit_offsets(consumer)
            raise KeyError

        with pytest.raises(KeyError):
            await in_transaction(producer, work)
        assert groups.committed()[A] == 3
    assert known.visible("out") == [b"a"]
    assert all(each.require_stable for each in fake.asked(OffsetFetchRequest))


@runs(run)
async def test_a_cancelled_commit_of_offsets_aborts_the_transaction(fake: FakeCluster) -> None:
    """Also if the application goes on: its records would be committed, and processed again."""
    groups = filled(fake)
    fake.create("out")
    known = FakeTransactions(fake, groups)

    async def work(txn: AsyncTransaction) -> None:
        await txn.send("out", b"a")
        fake.next(apis.TRANSACTION_OFFSET_COMMIT, ignore)
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await txn.commit_offsets(consumer)

    async with consumer_of(fake, auto_commit=False) as consumer, producer_of(fake) as producer:
        await consumer.subscribe(["t"])
        await some(consumer, 3)
        with pytest.raises(TransactionAbortedError, match="cancelled"):
            await in_transaction(producer, work)
    assert (known.visible("out"), groups.committed()) == ([], {})


@runs(run)
async def test_transactions_with_offsets_reserve_the_groups_too(fake: FakeCluster) -> None:
    groups = filled(fake)
    FakeTransactions(fake, groups)
    async with consumer_of(fake, auto_commit=False) as consumer, producer_of(fake) as producer:
        await consumer.subscribe(["t"])
        for _ in range(3):
            await some(consumer, 1)
            async with producer.transaction() as txn:
                await txn.commit_offsets(consumer)
        async with producer.transaction() as txn:
            await txn.send("t", b"a")
    ends = [each for each in fake.asked(EndTransactionRequest) if each.commit]
    assert [each.reserve_offsets for each in ends] == [False, True, True, False]
    assert groups.committed()[A] == 3


@runs(run)
async def test_a_member_that_lost_its_partitions_does_not_commit(fake: FakeCluster) -> None:
    groups = filled(fake)
    known = FakeTransactions(fake, groups)
    async with consumer_of(fake, auto_commit=False) as consumer, producer_of(fake) as producer:
        await consumer.subscribe(["t"])
        await some(consumer, 3)
        fake.next(apis.TRANSACTION_OFFSET_COMMIT, refuse(FencedMemberError("too slow")))

        async def work(txn: AsyncTransaction) -> None:
            await txn.commit_offsets(consumer)

        with pytest.raises(TransactionAbortedError, match="Poll again"):
            await in_transaction(producer, work)
    assert groups.committed() == {}
    assert not any(end.is_commit for end in known.ends)


@runs(run)
async def test_a_consumer_that_lost_its_membership_aborts_even_if_the_error_is_ignored(
    fake: FakeCluster,
) -> None:
    """Kafka's CommitFailedException, which is abortable. Else the output would be committed
    without its offsets, and written again.
    """
    groups = filled(fake)
    fake.create("out", 1)
    known = FakeTransactions(fake, groups)
    async with consumer_of(fake, auto_commit=False) as consumer, producer_of(fake) as producer:
        await consumer.subscribe(["t"])
        await some(consumer, 3)
        member = consumer._member
        assert member is not None
        member.membership.fenced(
            FencedMemberError("too slow"), incarnation=member.membership.incarnation
        )

        async def work(txn: AsyncTransaction) -> None:
            await txn.send("out", b"a")
            with pytest.raises(TransactionAbortedError, match=r"lost its membership.*Poll again"):
                await txn.commit_offsets(consumer)

        with pytest.raises(TransactionAbortedError, match="lost its membership"):
            await in_transaction(producer, work)
    assert known.visible("out") == []
    assert groups.committed() == {}


@runs(run)
async def test_consumers_that_commit_automatically_are_refused(fake: FakeCluster) -> None:
    FakeTransactions(fake, filled(fake))
    async with consumer_of(fake) as consumer, producer_of(fake) as producer:
        await consumer.subscribe(["t"])
        await some(consumer, 3)
        async with producer.transaction() as txn:
            with pytest.raises(InvalidRequestError, match="auto_commit=False"):
                await txn.commit_offsets(consumer)


# -- what is refused at once -------------------------------------------------------------------


@runs(run)
async def test_records_belong_to_the_open_transaction(fake: FakeCluster) -> None:
    coordinated(fake)
    async with producer_of(fake) as producer:
        await committed(producer, b"a")
        with pytest.raises(InvalidRequestError, match=r"with producer\.transaction\(\)"):
            await producer.send("t", b"b")
        with pytest.raises(InvalidRequestError, match=r"with producer\.transaction\(\)"):
            await producer.send_many("t", [b"b"])
        async with producer.transaction() as txn:
            with pytest.raises(InvalidRequestError, match="is open"):
                await committed(producer, b"c")
        old: AsyncTransaction = txn
        with pytest.raises(InvalidRequestError, match="within its `with` block"):
            await old.send("t", b"d")


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"transactional_id": ""}, InvalidRequestError, "0 characters"),
        ({"transactional_id": 7}, TypeError, "not a str"),
        ({"transactional_id": "x", "acks": 1}, InvalidRequestError, "acks='all'"),
        ({"transactional_id": "x", "idempotent": False}, InvalidRequestError, "idempotent"),
        ({"transaction_timeout_ms": 0}, InvalidRequestError, "transaction_timeout_ms"),
    ],
)
def test_arguments(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Producer(**settings)


# -- close -----------------------------------------------------------------------------------------


@runs(run)
async def test_close_aborts_the_open_transaction(fake: FakeCluster) -> None:
    """Readers of committed records would wait for its time limit."""
    known = coordinated(fake)
    producer = producer_of(fake)

    async def work(txn: AsyncTransaction) -> None:
        await (await txn.send("t", b"a", partition=0))
        await producer.close()

    with pytest.raises(ClosedError):
        await in_transaction(producer, work)
    assert [end.is_commit for end in known.ends] == [False]
    assert known.visible() == []


@runs(run)
async def test_close_gives_back_a_reservation(fake: FakeCluster) -> None:
    known = coordinated(fake)
    async with producer_of(fake) as producer:
        await committed(producer, b"a")
        await committed(producer, b"b")
        assert known.shard.view("x").status == "ongoing"
    assert known.shard.view("x").status == "complete_abort"
    assert known.visible() == [b"a", b"b"]


@runs(run)
async def test_close_of_a_fenced_producer_requests_nothing(fake: FakeCluster) -> None:
    coordinated(fake)
    async with producer_of(fake) as old:
        await committed(old, b"a")
        await committed(old, b"b")
        async with producer_of(fake) as new:
            await committed(new, b"c")
        with pytest.raises(ProducerFencedError):
            await committed(old, b"d")
        ends = len(fake.asked(EndTransactionRequest))
    assert len(fake.asked(EndTransactionRequest)) == ends


@runs(run)
async def test_close_does_not_wait_long_for_the_coordinator(fake: FakeCluster) -> None:
    coordinated(fake)
    producer = producer_of(fake)
    await producer.transaction().__aenter__()
    await (await producer.send("t", b"a", partition=0))
    fake.always[apis.END_TRANSACTION] = ignore
    async with asyncio.timeout(CLOSE_ABORT_S + 1):
        await producer.close()


# -- the synchronous producer ------------------------------------------------------------------


def test_the_synchronous_producer() -> None:
    fake = FakeCluster()
    fake.create("t", 1)
    host = ClientEnvironment(connector=fake.connect)
    with Producer(fake.bootstrap, host=host, transactional_id="x", linger_ms=0) as producer:

        async def coordinate() -> FakeTransactions:
            return FakeTransactions(fake)

        known = producer._run_in_thread(coordinate)
        with producer.transaction() as txn:
            txn.send("t", b"a")
            txn.send_many("t", [b"b", b"c"])
        with pytest.raises(TypeError), producer.transaction() as txn:
            txn.send("t", object())
        with pytest.raises(InvalidRequestError, match="nothing to recover"):
            producer.recover()
    assert known.visible() == [b"a", b"b", b"c"]
    with pytest.raises(ClosedError), producer.transaction():
        pass


@pytest.mark.parametrize("edge", ["begin", "commit"])
def test_ctrl_c_at_an_edge_of_a_block_leaves_no_transaction_open(
    monkeypatch: pytest.MonkeyPatch, edge: str
) -> None:
    fake = FakeCluster()
    fake.create("t", 1)
    host = ClientEnvironment(connector=fake.connect)
    with Producer(fake.bootstrap, host=host, transactional_id="x", linger_ms=0) as producer:

        async def coordinate() -> FakeTransactions:
            return FakeTransactions(fake)

        known = producer._run_in_thread(coordinate)
        call = producer._thread.call

        def interrupted(work: Callable[[], Any], _timeout_s: float | None = None) -> None:
            monkeypatch.setattr(producer._thread, "call", call)
            if edge == "begin":
                call(work)
            raise KeyboardInterrupt

        def run_block() -> None:
            if edge == "begin":
                monkeypatch.setattr(producer._thread, "call", interrupted)
            with producer.transaction() as txn:
                txn.send("t", b"a").result()
                monkeypatch.setattr(producer._thread, "call", interrupted)

        with pytest.raises(KeyboardInterrupt):
            run_block()
        with producer.transaction() as txn:
            txn.send("t", b"b")
    assert known.visible() == [b"b"]


def test_without_a_transactional_id() -> None:
    with (
        Producer() as producer,
        pytest.raises(InvalidRequestError, match=r"transactional_id='\.\.\.'"),
    ):
        producer.transaction()
