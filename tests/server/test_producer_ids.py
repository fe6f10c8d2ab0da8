"""Producer ids: of unguessable bytes, and not where those of producers with a name lie."""

from __future__ import annotations

import itertools
import os

from raftlog.security.producer_ids import NAMED_ID_BASE
from raftlog.server.apis import produce


def test_an_id_has_62_bits_of_what_cannot_be_guessed() -> None:
    asked: list[int] = []

    def entropy(count: int) -> bytes:
        asked.append(count)
        return b"\xff" * count

    assert produce.draw(entropy) == NAMED_ID_BASE - 1
    assert produce.draw(lambda count: bytes(count - 1) + b"\x04") == 1
    assert asked == [8]


def test_ids_do_not_follow_from_one_another() -> None:
    drawn = [produce.draw(os.urandom) for _ in range(1_000)]
    assert len(set(drawn)) == 1_000
    assert all(0 <= id_ < NAMED_ID_BASE for id_ in drawn)
    steps = {(b - a) % (1 << 62) for a, b in itertools.pairwise(drawn)}
    assert min(steps) > 1 << 32, "no two are near each other"
