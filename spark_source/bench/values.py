"""Values to write and read: lines such as a web shop logs, all different, of an exact size. Pure.

They compress about as such lines do, and Parquet finds no dictionary in them.
"""

from __future__ import annotations

import random
from typing import Final

SEED: Final = 2026
_WORDS: Final = "the order was paid and is on its way to the customer, who may track where it is. "


def values_of(count: int, value_bytes: int) -> list[bytes]:
    """``count`` values of ``value_bytes`` each (1 at least); the same ones every time."""
    chance = random.Random(SEED)
    text = _WORDS * (value_bytes // len(_WORDS) + 2)
    return [_value(chance, text, value_bytes) for _ in range(count)]


def _value(chance: random.Random, text: str, value_bytes: int) -> bytes:
    first = chance.randrange(len(_WORDS))
    line = (
        f'{{"user":"{chance.getrandbits(48):012x}","path":"/item/{chance.randrange(100_000):05d}",'
        f'"ms":{chance.randrange(1_000):03d},"note":"{text[first : first + value_bytes]}'
    )
    return f'{line[: max(0, value_bytes - 2)]}"}}'.encode()[-value_bytes:]
