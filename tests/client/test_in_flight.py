"""One partition's batches in flight: what is repeated, what is lost, and under which sequence."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.accumulator import PartitionQueue, PendingBatch, ProducerIdAndEpoch, Run
from raftlog.client.sender import (
    CORRUPT_TRIES_MAX,
    EPOCH_MAX,
    SEQUENCE_MASK,
    InFlightBatches,
    expired,
    stranded,
)
from raftlog.errors import (
    BrokerUnavailableError,
    ConnectionLostError,
    CorruptBatchError,
    DeliveryTimedOutError,
    InvalidRequestError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    RaftlogError,
    RecordTooLargeError,
    RequestTimedOutError,
)
from raftlog.record import Codec, parse_header
from tests.client.world import FakeLog

PRODUCER = ProducerIdAndEpoch(7, 0)
QUEUE = PartitionQueue("t", 0)
GAP = OutOfOrderSequenceError("gap")
LOST = ConnectionLostError("lost")
MOVED = NotLeaderError("moved")
DAMAGED = CorruptBatchError("the bytes and their CRC disagree")
TOO_LARGE = RecordTooLargeError("too large")


def batch(*values: bytes, expires_at: float = 100.0) -> PendingBatch:
    pending = PendingBatch(QUEUE, due_at=0.0, expires_at=expires_at)
    pending.extend(Run(list(values) or [b"v"], None, None, 1, 0))
    return pending


def launch(
    flight: InFlightBatches, *batches: PendingBatch, producer: ProducerIdAndEpoch | None = PRODUCER
) -> None:
    for pending in batches:
        assert flight.may_launch(pending, producer=producer)
        flight.launch(pending, pending.encode(Codec.NONE, None))


def bytes_of(pending: PendingBatch) -> bytes:
    return pending.header + pending.encode(Codec.NONE, None).payload


def place(pending: PendingBatch) -> tuple[int, int, int]:
    header = parse_header(bytes_of(pending))
    return header.producer_id, header.producer_epoch, header.base_sequence


def test_sequences_count_records() -> None:
    flight = InFlightBatches(idempotent=True)
    batches = [batch(b"1", b"2"), batch(b"3"), batch(b"4")]
    launch(flight, *batches)
    assert [place(pending) for pending in batches] == [(7, 0, 0), (7, 0, 2), (7, 0, 3)]


def test_sequences_wrap_as_in_kafka() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, batch())
    flight._next_sequence = SEQUENCE_MASK - 1
    over, after = batch(b"1", b"2", b"3"), batch()
    launch(flight, over, after)
    assert place(over)[2] == (1 << 31) - 2
    assert place(after)[2] == 1


def test_without_idempotence_there_is_no_sequence() -> None:
    flight = InFlightBatches(idempotent=False)
    pending = batch()
    launch(flight, pending, producer=None)
    assert place(pending) == (-1, -1, -1)


def test_nothing_is_launched_before_there_is_a_producer_id() -> None:
    flight = InFlightBatches(idempotent=True)
    assert not flight.may_launch(batch(), producer=None)
    assert flight.wants_other_than(None)
    assert not flight.wants_other_than(PRODUCER)


def test_no_more_in_flight_than_the_broker_remembers() -> None:
    flight = InFlightBatches(idempotent=True)
    batches = [batch() for _ in range(7)]
    for pending in batches[:5]:
        assert not flight.full_for(pending)
        launch(flight, pending)
    assert flight.full_for(batches[5])
    for pending in batches[1:5]:
        flight.succeeded(pending)
    assert flight.full_for(batches[5]), "the broker must not forget the first, which may come again"
    flight.setback(batches[0], LOST)
    launch(flight, *flight.resolve(0.0).again)
    assert flight.full_for(batches[5])
    flight.succeeded(batches[0])
    launch(flight, *batches[5:])


@pytest.mark.parametrize("error", [MOVED, LOST, RequestTimedOutError("late")])
def test_a_passing_failure_repeats_the_same_bytes_in_order(error: RaftlogError) -> None:
    flight = InFlightBatches(idempotent=True)
    batches = [batch(b"1"), batch(b"2"), batch(b"3")]
    launch(flight, *batches)
    before = [bytes_of(pending) for pending in batches]
    flight.setback(batches[0], error)
    assert flight.held
    flight.setback(batches[2], LOST)
    flight.succeeded(batches[1])
    again, lost = flight.resolve(0.0)
    assert (again, lost) == ([batches[0], batches[2]], [])
    assert not flight.held
    launch(flight, *again)
    assert [bytes_of(pending) for pending in again] == [before[0], before[2]]


def test_an_unknown_outcome_is_final_without_a_sequence() -> None:
    flight = InFlightBatches(idempotent=False)
    first, second = batch(), batch()
    launch(flight, first, second)
    flight.setback(first, LOST)
    flight.setback(second, MOVED)
    again, lost = flight.resolve(0.0)
    assert again == [second]
    assert lost == [(first, LOST)]


def test_what_follows_a_refused_batch_gets_a_new_place() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, second, third = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, second, third)
    flight.setback(bad, TOO_LARGE)
    flight.setback(second, GAP)
    flight.setback(third, GAP)
    again, lost = flight.resolve(0.0)
    assert lost == [(bad, TOO_LARGE)]
    assert again == [second, third]
    launch(flight, *again)
    assert [place(pending) for pending in again] == [(7, 1, 0), (7, 1, 1)]


def test_what_may_be_stored_is_tried_under_its_old_place_first() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, unknown, fresh = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, unknown)
    flight.setback(bad, TOO_LARGE)
    flight.setback(unknown, LOST)
    again, _ = flight.resolve(0.0)
    assert again == [unknown]
    launch(flight, unknown)
    assert place(unknown) == (7, 0, 1), "an attempt without an answer may have stored it"
    assert not flight.may_launch(fresh, producer=PRODUCER), "first that has to be settled"
    flight.setback(unknown, GAP)
    again, ((lost, error),) = flight.resolve(0.0)
    assert (again, lost) == ([], unknown)
    assert type(error) is OutcomeUnknownError, "another leader's log may have it, and come back"
    launch(flight, fresh)
    assert place(fresh) == (7, 1, 0)


def test_what_may_be_stored_gets_no_other_place() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, refused, unknown = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, refused, unknown)
    flight.setback(bad, TOO_LARGE)
    flight.setback(refused, GAP)
    flight.setback(unknown, LOST)
    again, lost = flight.resolve(0.0)
    assert again == [refused], "it is in no log: refused it was, and that was its only attempt"
    assert [(pending, type(error)) for pending, error in lost] == [
        (bad, RecordTooLargeError),
        (unknown, OutcomeUnknownError),
    ]
    launch(flight, refused)
    assert place(refused) == (7, 1, 0)


def test_what_waits_its_turn_and_may_be_stored_is_stranded_by_a_new_sequence() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, second, third = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, second, third)
    flight.setback(bad, TOO_LARGE)
    flight.setback(second, MOVED)
    flight.setback(third, LOST)
    assert flight.resolve(0.0).again == [second, third]
    launch(flight, second)  # the third has no room in the request
    flight.setback(second, GAP)
    assert flight.resolve(0.0).again == [second]
    assert flight.is_stranded(third)
    assert not flight.is_stranded(second)
    assert "twice" in str(stranded(third))


def test_what_is_in_flight_to_one_leader_keeps_the_rest_from_another() -> None:
    flight = InFlightBatches(idempotent=True)
    flight.sent_to(1, 3)
    launch(flight, first := batch())
    assert first.leader_epoch == 3
    assert not flight.must_stay(1, 3)
    assert flight.must_stay(2, 4)
    assert flight.must_stay(1, 4), "the same broker, elected anew"
    flight.setback(first, LOST)
    assert not flight.must_stay(2, 4)


def test_a_new_leader_is_not_kept_waiting() -> None:
    flight = InFlightBatches(idempotent=True)
    flight.sent_to(1, 3)
    launch(flight, first := batch())
    flight.setback(first, MOVED)
    flight.resolve(0.0)
    flight.not_before = 7.0
    assert flight.waits_until(3) == 7.0
    assert flight.waits_until(4) == 0.0
    flight.sent_to(2, 4)
    assert flight.waits_until(4) == 7.0, "once"


def test_a_new_epoch_begins_when_nothing_of_the_old_one_is_left() -> None:
    flight = InFlightBatches(idempotent=True)
    bad, follower, fresh = batch(), batch(b"2"), batch(b"3")
    launch(flight, bad, follower)
    flight.setback(bad, RequestTimedOutError("late"))
    bad.expires_at = 0.0
    flight.succeeded(follower)
    _, ((_, error),) = flight.resolve(1.0)
    assert isinstance(error, DeliveryTimedOutError)
    launch(flight, fresh)
    assert place(fresh) == (7, 1, 0)


def test_a_gap_that_is_not_ours_is_told() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, first := batch())
    flight.succeeded(first)
    launch(flight, second := batch(), third := batch())
    flight.setback(second, GAP)
    flight.setback(third, GAP)
    again, lost = flight.resolve(0.0)
    assert lost == [(second, GAP)], "the broker lost what it had acknowledged"
    assert again == [third]
    launch(flight, third)
    assert place(third) == (7, 1, 0)


def test_a_batch_lost_while_it_waited_spends_its_place() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, first := batch())
    flight.setback(first, MOVED)
    flight.resolve(0.0)
    flight.lose(first, MOVED)
    launch(flight, second := batch())
    assert place(second) == (7, 1, 0)
    flight.lose(batch(), MOVED)  # one that was never launched leaves no hole
    assert not flight.spent


def test_another_topic_of_the_same_name_begins_anew() -> None:
    flight = InFlightBatches(idempotent=True)
    flight.begin_anew()
    launch(flight, first := batch())
    assert place(first) == (7, 0, 0)
    flight.succeeded(first)
    flight.begin_anew()
    launch(flight, second := batch())
    assert place(second) == (7, 1, 0)


def test_when_all_epochs_are_used_up_another_producer_id_is_taken() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, first := batch(), producer=ProducerIdAndEpoch(7, EPOCH_MAX))
    flight.setback(first, TOO_LARGE)
    flight.resolve(0.0)
    second = batch()
    assert not flight.may_launch(second, producer=PRODUCER)
    assert flight.wants_other_than(PRODUCER)
    launch(flight, second, producer=ProducerIdAndEpoch(8, 0))
    assert place(second) == (8, 0, 0)


@pytest.mark.parametrize(
    ("error", "unknown", "expected"),
    [
        (None, False, BrokerUnavailableError),
        (MOVED, False, NotLeaderError),
        (LOST, True, DeliveryTimedOutError),
        (MOVED, True, DeliveryTimedOutError),
        (DAMAGED, False, CorruptBatchError),
    ],
)
def test_the_error_of_an_expired_batch_says_whether_it_may_be_stored(
    error: RaftlogError | None, unknown: bool, expected: type[RaftlogError]
) -> None:
    pending = batch()
    pending.error, pending.outcome_unknown = error, unknown
    found = expired(pending)
    assert type(found) is expected
    assert "delivery_timeout_ms" in str(found)
    assert ("may or may not be stored" in str(found)) == unknown


def test_a_refusal_after_an_attempt_without_an_answer_leaves_the_outcome_unknown() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, pending := batch())
    flight.setback(pending, LOST)
    launch(flight, *flight.resolve(0.0).again)
    flight.setback(pending, TOO_LARGE)
    ((_, error),) = flight.resolve(0.0).lost
    assert type(error) is OutcomeUnknownError
    assert "too large" in str(error)


def test_a_batch_that_came_damaged_is_sent_again_a_few_times() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, pending := batch())
    for _ in range(CORRUPT_TRIES_MAX):
        flight.setback(pending, DAMAGED)
        assert flight.resolve(0.0).again == [pending]
        flight.failures += 1  # as the sender does
        launch(flight, pending)
    flight.setback(pending, DAMAGED)
    ((_, error),) = flight.resolve(0.0).lost
    assert error is DAMAGED, "it is not the way that damages it"


def test_passing_failures_end_with_the_delivery_timeout() -> None:
    flight = InFlightBatches(idempotent=True)
    launch(flight, pending := batch(expires_at=10.0))
    flight.setback(pending, MOVED)
    assert flight.resolve(9.9).again == [pending]
    launch(flight, pending)
    flight.setback(pending, MOVED)
    ((lost, error),) = flight.resolve(10.0).lost
    assert lost is pending
    assert isinstance(error, NotLeaderError)


# Each fate of an attempt, as the broker and the network decide it.
FATES = ("answered", "answer lost", "request lost", "moved", "refused")


@given(st.integers(0, 10_000), st.integers(1, 12))
def test_whatever_happens_nothing_is_stored_twice_or_out_of_order(seed: int, count: int) -> None:
    """A broker with strict sequences, a network that loses, batches that may be refused."""
    chance = random.Random(seed)
    flight, log, now = InFlightBatches(idempotent=True), FakeLog(), 0.0
    waiting = [
        batch(b"%d" % number, expires_at=chance.choice([5.0, 1e9])) for number in range(count)
    ]
    numbers = {id(pending): number for number, pending in enumerate(waiting)}
    acknowledged: list[int] = []
    failed: list[tuple[int, RaftlogError]] = []
    while waiting or flight.in_flight:
        now += 1.0
        while waiting and not flight.held and chance.random() < 0.8:
            if flight.is_stranded(waiting[0]):
                pending = waiting.pop(0)
                failed.append((numbers[id(pending)], stranded(pending)))
                continue
            if flight.full_for(waiting[0]) or not flight.may_launch(waiting[0], producer=PRODUCER):
                break
            launch(flight, waiting.pop(0))
        for pending in list(flight.in_flight):  # answers come in the order of the requests
            fate = chance.choice(FATES)
            outcome: RaftlogError | None = {
                "answered": None,
                "answer lost": LOST,
                "request lost": LOST,
                "moved": MOVED,
                "refused": InvalidRequestError("bad record") if chance.random() < 0.3 else None,
            }[fate]
            stored = fate == "answer lost" or outcome is None
            if stored:
                try:
                    log.append(bytes_of(pending))
                except RaftlogError as error:
                    outcome = outcome or error
            if outcome is None:
                flight.succeeded(pending)
                acknowledged.append(numbers[id(pending)])
            else:
                flight.setback(pending, outcome)
        if flight.setbacks:
            again, lost = flight.resolve(now)
            waiting[:0] = again
            failed += [(numbers[id(pending)], error) for pending, error in lost]
    stored_numbers = [int(value or b"") for value in log.values()]
    assert stored_numbers == sorted(set(stored_numbers)), "once each, and in order"
    assert set(acknowledged) <= set(stored_numbers), "what is acknowledged is stored"
    assert sorted([*acknowledged, *(number for number, _ in failed)]) == list(range(count))
    for number, error in failed:
        if not isinstance(error, OutcomeUnknownError):
            assert number not in stored_numbers, f"{error!r} says that it is not stored"
