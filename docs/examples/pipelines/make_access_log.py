"""Write an access log in Apache's combined format: the same lines in every run.

python docs/examples/pipelines/make_access_log.py access.log
"""

from __future__ import annotations

import random
import sys
from datetime import UTC, datetime, timedelta

PAGES = ["/", "/about", "/blog/index.html", "/blog/log-or-table", "/blog/raft", "/images/logo.png"]
PAGES += [f"/products/{number}" for number in range(40)] + ["/search?q=log", "/style.css"]
AGENTS = ["Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (Macintosh)", "Googlebot/2.1", "curl/8.5"]
STATUSES = [200] * 90 + [304] * 5 + [404] * 4 + [500]


def lines(count: int = 10_000, seed: int = 1) -> list[str]:
    """Return the lines, in the order of their times: four days of May 2015."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    hosts = [f"10.{number % 7}.{number % 13}.{number}" for number in range(1, 201)]
    weights = [1 / rank for rank in range(1, len(PAGES) + 1)]
    at = datetime(2015, 5, 17, 10, 5, tzinfo=UTC)
    found = []
    for _ in range(count):
        at += timedelta(seconds=chance.randrange(1, 70))
        host = hosts[int(len(hosts) * chance.random() ** 2)]
        page = chance.choices(PAGES, weights)[0]
        status, agent = chance.choice(STATUSES), chance.choice(AGENTS)
        size = "-" if status == 304 else chance.randrange(200, 90_000)
        time = at.strftime("%d/%b/%Y:%H:%M:%S +0000")
        found.append(f'{host} - - [{time}] "GET {page} HTTP/1.1" {status} {size} "-" "{agent}"')
    return found


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines())
