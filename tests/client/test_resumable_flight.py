"""One partition's batches of a producer with a name: their places are given, and none moves."""

from __future__ import annotations

import pytest

from raftlog.client.accumulator import PendingBatch, ProducerIdAndEpoch
from raftlog.client.sender import EPOCH_MAX, ResumableInFlightBatches
from raftlog.errors import (
    ConnectionLostError,
    InvalidRequestError,
    NotLeaderError,
    OutcomeUnknownError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RaftlogError,
    RequestTimedOutError,
    UnknownTopicError,
)
from tests.client.test_sender import batch, bytes_of, launch, place

NAMED = ProducerIdAndEpoch((1 << 62) + 7, EPOCH_MAX)
GAP = OutOfOrderSequenceError("gap")
LOST = ConnectionLostError("lost")
MOVED = NotLeaderError("moved")
BAD = InvalidRequestError("bad record")


def flight_of() -> ResumableInFlightBatches:
    return ResumableInFlightBatches(idempotent=True, identity=NAMED)


def numbered(first: int, *values: bytes, expires_at: float = 100.0) -> PendingBatch:
    pending = batch(*values, expires_at=expires_at)
    pending.base_sequence = first
    return pending


def reason(flight: ResumableInFlightBatches, pending: PendingBatch) -> RaftlogError:
    error = flight.why_broken(pending)
    assert error is not None
    return error


def test_each_batch_has_the_place_that_it_came_with() -> None:
    flight = flight_of()
    launch(flight, first := numbered(40, b"1", b"2"), second := numbered(42), producer=None)
    assert not flight.wants_other_than(None)
    assert [place(one) for one in (first, second)] == [(*NAMED, 40), (*NAMED, 42)]


def test_the_next_one_waits_until_the_one_before_is_stored() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0))
    assert flight.is_busy(numbered(1))
    flight.succeeded(first)
    assert not flight.is_busy(numbered(1))


@pytest.mark.parametrize("error", [MOVED, LOST, RequestTimedOutError("late")])
def test_a_repeat_has_the_same_bytes(error: RaftlogError) -> None:
    flight = flight_of()
    launch(flight, pending := numbered(3))
    before = bytes_of(pending)
    flight.setback(pending, error)
    assert flight.resolve(0.0) == ([pending], [])
    launch(flight, pending)
    assert bytes_of(pending) == before
    assert flight.why_broken(numbered(4)) is None


def test_what_is_refused_takes_all_later_ones_with_it() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0), second := numbered(1), third := numbered(2))
    flight.setback(first, BAD)
    flight.setback(second, GAP)
    flight.setback(third, LOST)
    again, lost = flight.resolve(0.0)
    assert again == []
    assert [one for one, _ in lost] == [first, second, third]
    assert [type(error) for _, error in lost] == [
        InvalidRequestError,
        InvalidRequestError,
        OutcomeUnknownError,
    ]
    assert all("bad record" in str(error) for _, error in lost)
    assert "bad record" in str(reason(flight, numbered(3)))
    assert flight.identity == NAMED, "no epoch is raised, whatever happens"


def test_those_before_a_lost_one_go_on() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0), second := numbered(1))
    flight.setback(first, MOVED)
    flight.setback(second, BAD)
    again, ((lost, _),) = flight.resolve(0.0)
    assert (again, lost) == ([first], second)
    assert flight.why_broken(first) is None
    launch(flight, first)
    flight.succeeded(first)
    assert isinstance(reason(flight, numbered(2)), InvalidRequestError)


def test_one_that_was_never_sent_and_is_lost_lets_those_on_their_way_be() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0))
    flight.lose(numbered(1), BAD)
    flight.setback(first, MOVED)
    assert flight.resolve(0.0).again == [first]
    assert isinstance(reason(flight, numbered(2)), InvalidRequestError)


def test_the_first_reason_stays() -> None:
    flight = flight_of()
    launch(flight, numbered(0), second := numbered(1))
    flight.lose(second, BAD)
    flight.lose(numbered(2), MOVED)
    assert "bad record" in str(reason(flight, numbered(3)))


def test_a_gap_behind_what_is_to_be_repeated_is_none() -> None:
    flight = flight_of()
    launch(flight, first := numbered(0), second := numbered(1))
    flight.setback(first, MOVED)
    flight.setback(second, GAP)
    assert flight.resolve(0.0) == ([first, second], [])


@pytest.mark.parametrize(
    ("before", "error"), [(None, OutOfOrderSequenceError), (LOST, OutcomeUnknownError)]
)
def test_a_gap_before_all_others_means_that_somebody_else_has_appended(
    before: RaftlogError | None, error: type[RaftlogError]
) -> None:
    flight = flight_of()
    launch(flight, pending := numbered(0))
    if before is not None:
        flight.setback(pending, before)
        launch(flight, *flight.resolve(0.0).again)
    flight.setback(pending, GAP)
    ((lost, told),) = flight.resolve(0.0).lost
    assert lost is pending
    assert isinstance(told, error)
    assert "another run of the same name has appended" in str(told)
    assert "stored()" in str(told)
    assert isinstance(reason(flight, numbered(1)), error)


def test_a_later_epoch_ends_the_run() -> None:
    flight = flight_of()
    launch(flight, pending := numbered(0))
    flight.setback(pending, ProducerFencedError("epoch 1 has written"))
    ((_, error),) = flight.resolve(0.0).lost
    assert isinstance(error, ProducerFencedError)
    assert isinstance(reason(flight, numbered(1)), ProducerFencedError)


def test_in_another_topic_of_the_name_nothing_goes_on() -> None:
    flight = flight_of()
    launch(flight, pending := numbered(7))
    flight.begin_anew()
    assert isinstance(reason(flight, numbered(8)), UnknownTopicError)
    flight.setback(pending, MOVED)
    ((_, error),) = flight.resolve(0.0).lost
    assert isinstance(error, UnknownTopicError)
