"""What may be tried again, and the bounds of the back-off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.client.retry import Backoff, is_behind, is_old_news, may_pass, may_retry
from raftlog.errors import (
    ERRORS_BY_CODE,
    ClusterNotReadyError,
    CommitUnknownError,
    ConnectionLostError,
    FencedLeaderEpochError,
    InvalidRequestError,
    KeyRequiredError,
    LeaderNotAvailableError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutcomeUnknownError,
    RaftlogError,
    RecordTooLargeError,
    RetriableError,
    ThrottledError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)


def test_the_class_of_an_error_decides() -> None:
    for error in ERRORS_BY_CODE.values():
        nothing_was_done = issubclass(error, RetriableError)
        unknown = issubclass(error, OutcomeUnknownError)
        assert may_retry(error("x"), repeatable=False) is nothing_was_done
        assert may_retry(error("x"), repeatable=True) is (nothing_was_done or unknown)


def test_other_exceptions_are_never_retried() -> None:
    assert not may_retry(ValueError("x"), repeatable=True)
    assert not may_retry(UnknownTopicError("x"), repeatable=True)
    assert may_retry(ThrottledError("x"), repeatable=False)


@given(
    first_ms=st.integers(1, 1_000),
    longest_ms=st.integers(1_000, 60_000),
    attempt=st.integers(0, 10_000),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_back_off_is_bounded_and_never_nothing(
    first_ms: int, longest_ms: int, attempt: int, chance: float
) -> None:
    backoff = Backoff(first_ms=first_ms, longest_ms=longest_ms)
    seconds = backoff.seconds(attempt, lambda: chance)
    assert 0 < seconds <= longest_ms / 1_000


def test_a_back_off_doubles() -> None:
    backoff = Backoff(first_ms=100, longest_ms=1_000)
    assert [backoff.seconds(attempt, lambda: 1.0) for attempt in range(6)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    )


@pytest.mark.parametrize(
    ("error", "old_news", "behind", "passes"),
    [
        (NotLeaderError("x"), True, False, True),
        (FencedLeaderEpochError("x"), True, False, True),
        (UnknownLeaderEpochError("x"), True, True, True),
        (LeaderNotAvailableError("x"), True, True, True),
        (NotEnoughReplicasError("x"), True, True, True),
        (UnknownTopicError("x"), True, True, True),
        (UnknownPartitionError("x"), True, True, True),
        (CommitUnknownError("x"), True, False, False),
        (KeyRequiredError("x"), True, False, False),
        (RecordTooLargeError("x"), True, False, False),
        (ClusterNotReadyError("x"), False, False, True),
        (ConnectionLostError("x"), False, False, False),
        (InvalidRequestError("x"), False, False, False),
    ],
)
def test_whose_news_are_old(
    error: RaftlogError, old_news: bool, behind: bool, passes: bool
) -> None:
    assert is_old_news(error) == old_news
    assert is_behind(error) == behind
    assert may_pass(error, repeatable=False) == passes
    assert may_pass(error, repeatable=True) == (passes or isinstance(error, OutcomeUnknownError))
    assert may_retry(error, repeatable=False) == isinstance(error, RetriableError)
