"""One partition as a consumer knows it: what of it is processed."""

from __future__ import annotations

import pytest

from raftlog.client.parts import Part
from tests.client.test_subscription import A


@pytest.mark.parametrize(
    ("position", "unprocessed", "is_iterated", "processed"),
    [
        (None, None, False, None),
        (7, None, False, 7),
        (7, None, True, 7),
        (7, 3, False, 3),  # polled: all since then may be in hand
        (7, 3, True, 6),  # iterated: the last one is
        (3, 3, True, 3),  # nothing is handed out yet
        (None, 3, True, None),
    ],
)
def test_processed_is_what_is_not_in_hand(
    position: int | None, unprocessed: int | None, is_iterated: bool, processed: int | None
) -> None:
    part = Part(A, position, "earliest", unprocessed=unprocessed, is_iterated=is_iterated)
    assert part.processed == processed
