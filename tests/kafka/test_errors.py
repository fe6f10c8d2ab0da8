"""Each error of raftlog has a code of Kafka's, in every place."""

from __future__ import annotations

import pytest

from raftlog import errors as own
from raftlog.kafka import errors
from raftlog.kafka.errors import Place, code_of


def test_every_error_has_a_code() -> None:
    for place in Place:
        for error in own.ERRORS_BY_CODE.values():
            code = code_of(error("why"), place)
            assert code != errors.NONE
            assert code != errors.UNKNOWN_SERVER_ERROR or error is own.RaftlogError


@pytest.mark.parametrize(
    ("error", "place", "code"),
    [
        (own.NotLeaderError, Place.DATA, 6),
        (own.ThrottledError, Place.ADMIN, 89),
        (own.ThrottledError, Place.GROUPS, 14),
        (own.LeaderNotAvailableError, Place.METADATA, 5),
        (own.LeaderNotAvailableError, Place.DATA, 6),
        (own.LeaderNotAvailableError, Place.OFFSETS, 78),
        (own.ClusterNotReadyError, Place.ADMIN, 41),
        (own.OutOfOrderSequenceError, Place.DATA, 45),
        (own.ProducerFencedError, Place.DATA, 47),
        (own.RequestTimedOutError, Place.ADMIN, 7),
        (own.KeyRequiredError, Place.DATA, 87),
        (own.UnknownTopicError, Place.DATA, 3),
        (own.OffsetOutOfRangeError, Place.DATA, 1),
        (own.DamagedLogError, Place.DATA, 56),
    ],
)
def test_codes_that_clients_act_on(error: type[own.RaftlogError], place: Place, code: int) -> None:
    assert code_of(error("why"), place) == code
