"""The page-view events of ``raftlog demo``: JSON lines, the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Final

FIRST_EVENT_MS: Final = 1_767_225_600_000  # 2026-01-01T00:00Z: the demo's own calendar
GAP_MS_MAX: Final = 40
USERS: Final = 5_000

_PAGES: Final = (
    "/",
    "/search",
    "/cart",
    "/checkout",
    "/login",
    "/help",
    "/item/{}",
    "/item/{}/reviews",
)
_REFERRERS: Final = (None, None, "https://www.example.com/", "https://news.example.org/today")
_COUNTRIES: Final = ("BR", "DE", "IN", "JP", "KE", "US", "日本")  # the last: text need not be ASCII


def page_views(count: int, *, seed: int) -> Iterator[bytes]:
    """``count`` events, one JSON object each, without newlines."""
    random = Random(seed)
    time_ms = FIRST_EVENT_MS
    for number in range(count):
        time_ms += random.randrange(GAP_MS_MAX)
        event = {
            "event": number,
            "time_ms": time_ms,
            "user": f"user-{random.randrange(USERS)}",
            "page": random.choice(_PAGES).format(random.randrange(10_000)),
            "referrer": random.choice(_REFERRERS),
            "country": random.choice(_COUNTRIES),
            "load_ms": int(random.lognormvariate(5, 0.6)),
        }
        yield json.dumps(event, ensure_ascii=False).encode()
