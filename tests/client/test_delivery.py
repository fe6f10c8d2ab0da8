"""Futures of sent records: results, errors, callbacks, awaiting, and errors that nobody saw."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import logging
import threading

import pytest

from raftlog.client.delivery import (
    Delivery,
    DeliveryFuture,
    RangesFuture,
    until_done,
)
from raftlog.client.threads import pending_of
from raftlog.errors import ClosedError, UnknownTopicError
from raftlog.types import NO_TIMESTAMP, OffsetRange, RecordMetadata


def delivery(*timestamps_ms: int) -> Delivery:
    return Delivery("t", 2, list(timestamps_ms) or [7, 8, 9])


def test_a_result_is_where_the_record_is() -> None:
    batch = delivery()
    futures = [DeliveryFuture(batch, index) for index in range(3)]
    assert not any(future.done() for future in futures)
    batch.succeed(100, NO_TIMESTAMP)
    assert [future.result() for future in futures] == [
        RecordMetadata("t", 2, 100, 7),
        RecordMetadata("t", 2, 101, 8),
        RecordMetadata("t", 2, 102, 9),
    ]
    assert futures[0].exception() is None
    assert "delivered" in repr(futures[0])


def test_the_leaders_time_wins() -> None:
    batch = delivery()
    batch.succeed(0, 55)
    assert DeliveryFuture(batch, 1).result().timestamp_ms == 55


def test_one_timestamp_for_all() -> None:
    batch = Delivery("t", 0, 41)
    batch.succeed(0, NO_TIMESTAMP)
    assert DeliveryFuture(batch, 9).result().timestamp_ms == 41


def test_without_acks_the_offset_is_unknown() -> None:
    batch = delivery()
    batch.succeed(-1, NO_TIMESTAMP)
    assert DeliveryFuture(batch, 2).result().offset == -1
    assert RangesFuture([(batch, 0, 3)]).result() == [OffsetRange("t", 2, -1, -1)]


def test_the_garbage_collector_has_no_work_with_futures() -> None:
    assert not gc.is_tracked(DeliveryFuture(Delivery("t", 0, 1), 0))


def test_an_error_comes_out_of_every_future() -> None:
    batch = delivery()
    batch.fail(UnknownTopicError("no such topic"))
    for index in range(3):
        future = DeliveryFuture(batch, index)
        assert isinstance(future.exception(), UnknownTopicError)
        with pytest.raises(UnknownTopicError):
            future.result()
    traceback_entries = 0
    error = future.exception()
    trace = error.__traceback__ if error else None
    while trace is not None:
        traceback_entries, trace = traceback_entries + 1, trace.tb_next
    assert traceback_entries < 10, "an error that is raised often must not grow"


def test_a_wait_gives_up_in_time() -> None:
    future = DeliveryFuture(delivery(), 0)
    with pytest.raises(TimeoutError, match="continues to send"):
        future.result(timeout=0)
    with pytest.raises(TimeoutError):
        future.exception(timeout=0)
    assert "pending" in repr(future)


def test_a_thread_that_waits_is_woken() -> None:
    batch = delivery()
    waiting = threading.Event()
    add = batch.add_callback
    batch_with_news = RangesFuture([(batch, 0, 2)])
    found: list[list[OffsetRange]] = []
    thread = threading.Thread(target=lambda: found.append(batch_with_news.result(20)))
    thread.start()
    add(waiting.set)
    batch.succeed(5, NO_TIMESTAMP)
    thread.join()
    assert waiting.is_set()
    assert found == [[OffsetRange("t", 2, 5, 6)]]


def test_callbacks_run_once_now_or_later() -> None:
    batch = delivery()
    future = DeliveryFuture(batch, 1)
    seen: list[object] = []
    future.add_done_callback(seen.append)
    assert not seen
    batch.succeed(3, NO_TIMESTAMP)
    future.add_done_callback(seen.append)
    assert seen == [future, future]


def test_a_callback_that_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    batch = delivery()

    def fail(_future: object) -> None:
        raise ValueError("in the callback")

    future = DeliveryFuture(batch, 0)
    future.add_done_callback(fail)
    seen: list[object] = []
    future.add_done_callback(seen.append)
    batch.add_callback(lambda: fail(None))
    batch.succeed(0, NO_TIMESTAMP)
    assert seen == [future]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize("how", ["wait", "as_completed"])
def test_the_standard_librarys_waits_work(how: str) -> None:
    first, second, third = delivery(), delivery(), delivery()
    first.succeed(100, NO_TIMESTAMP)
    futures = [DeliveryFuture(first, 0), RangesFuture([(second, 0, 3), (third, 0, 3)])]
    done, pending = concurrent.futures.wait(
        futures, timeout=5, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert (done, pending) == ({futures[0]}, {futures[1]})
    done, pending = concurrent.futures.wait(futures, timeout=0)
    assert pending == {futures[1]}
    assert futures[1].running()
    assert not futures[1].cancel()
    assert not futures[1].cancelled()

    def resolve() -> None:
        third.succeed(7, NO_TIMESTAMP)
        second.fail(ClosedError("closed"))

    threading.Timer(0.01, resolve).start()
    if how == "wait":
        assert concurrent.futures.wait(futures, timeout=5).done == set(futures)
    else:
        assert set(concurrent.futures.as_completed(futures, timeout=5)) == set(futures)
    assert isinstance(futures[1].exception(), ClosedError)


def test_ranges_are_in_input_order_and_wait_for_all() -> None:
    first, second = delivery(), Delivery("t", 0, 1)
    future = RangesFuture([(first, 0, 3), (second, 4, 2), (first, 3, 1)])
    seen: list[object] = []
    future.add_done_callback(seen.append)
    second.succeed(50, NO_TIMESTAMP)
    assert not future.done()
    assert not seen
    assert "6 records" in repr(future)
    first.succeed(10, NO_TIMESTAMP)
    assert future.done()
    assert seen == [future]
    assert future.result() == [
        OffsetRange("t", 2, 10, 12),
        OffsetRange("t", 0, 54, 55),
        OffsetRange("t", 2, 13, 13),
    ]


def test_no_records_are_no_ranges() -> None:
    assert RangesFuture([]).result() == []


def test_the_first_error_of_a_run_is_raised() -> None:
    good, bad, worse = delivery(), delivery(), delivery()
    future = RangesFuture([(good, 0, 1), (bad, 0, 1), (worse, 0, 1)])
    worse.fail(ClosedError("worse"))
    bad.fail(UnknownTopicError("bad"))
    good.succeed(0, NO_TIMESTAMP)
    with pytest.raises(UnknownTopicError, match="bad"):
        future.result()


def test_awaiting_works_in_any_loop_and_from_any_thread() -> None:
    batch = delivery()
    future = DeliveryFuture(batch, 2)

    async def wait() -> RecordMetadata:
        return await future

    async def main() -> list[RecordMetadata]:
        tasks = [asyncio.ensure_future(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        await asyncio.to_thread(batch.succeed, 7, NO_TIMESTAMP)
        return [await tasks[1], await tasks[2]]

    assert asyncio.run(main()) == [RecordMetadata("t", 2, 9, 9)] * 2
    assert asyncio.run(wait()) == RecordMetadata("t", 2, 9, 9)  # done long ago, in another loop


def test_a_loop_that_closed_meanwhile_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    batch = delivery()

    async def begin() -> None:
        task = asyncio.ensure_future(until_done(pending_of([batch])))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begin())
    batch.succeed(0, NO_TIMESTAMP)
    assert not caplog.text


def test_an_error_that_nobody_asked_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    seen, unseen, good = delivery(), delivery(), delivery()
    for batch in (seen, unseen):
        batch.fail(UnknownTopicError("gone"))
    good.succeed(0, NO_TIMESTAMP)
    DeliveryFuture(seen, 0).exception()
    del seen, unseen, good, batch
    gc.collect()
    assert caplog.text.count("no future checked") == 1


@pytest.mark.parametrize("look", ["exception", "callback"])
def test_asking_in_any_way_counts(look: str, caplog: pytest.LogCaptureFixture) -> None:
    batch = delivery()
    future = DeliveryFuture(batch, 0)
    batch.fail(UnknownTopicError("gone"))
    if look == "exception":
        future.exception()
    else:
        future.add_done_callback(lambda _future: None)
    del batch, future
    gc.collect()
    assert not caplog.text


def test_a_delivery_that_failed_before_it_began() -> None:
    batch = Delivery.failed("t", -1, UnknownTopicError("no"))
    assert isinstance(DeliveryFuture(batch, 0).exception(), UnknownTopicError)
