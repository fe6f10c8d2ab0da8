"""One member of a consumer group, in a separate process that ``groups`` starts and reads.

It prints one JSON value per line, with the monotonic time of the system: assigned partitions,
revoked partitions, and at the end the times of received records of each partition.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from raftlog import Consumer, TopicPartition

POLL_MS = 100


def main(bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> None:
    """Consume until SIGTERM."""
    is_running = True

    def end(_signal: int, _frame: object) -> None:
        nonlocal is_running
        is_running = False

    signal.signal(signal.SIGTERM, end)
    arrivals: dict[int, list[float]] = defaultdict(list)
    with Consumer(
        bootstrap,
        group=group,
        auto_offset_reset="earliest",
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 3,
    ) as consumer:
        report("joining")
        consumer.subscribe(
            [topic],
            on_assign=lambda partitions: report("assigned", partitions=numbers(partitions)),
            on_revoke=lambda partitions: report("revoked", partitions=numbers(partitions)),
        )
        while is_running:
            records = consumer.poll(timeout_ms=POLL_MS)
            now = time.monotonic()
            for partition in {record.partition for record in records}:
                arrivals[partition].append(now)
    report("arrivals", arrivals=arrivals)


def numbers(partitions: Iterable[TopicPartition]) -> list[int]:
    return sorted(tp.partition for tp in partitions)


def report(event: str, **details: Any) -> None:
    line = {"event": event, "at": time.monotonic(), **details}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
