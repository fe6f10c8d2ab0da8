"""Samza's re-processing: a second version of a job reads the topic again, beside the first."""

from collections.abc import Callable

from raftlog import Consumer, Producer


def run(version: int, keep: Callable[[bytes], bool]) -> int:
    """Copy the lines to keep into the topic of this version. Returns their number."""
    count = 0
    with (
        # A group of its own: it starts at the first record, and the other version goes on.
        Consumer(group=f"views-{version}", auto_offset_reset="earliest") as consumer,
        Producer(compression="zstd") as producer,
    ):
        consumer.subscribe(["access-log"])
        while records := consumer.poll(timeout_ms=10_000, max_records=10_000):
            kept = [record.value for record in records if keep(record.value)]
            if kept:
                producer.send_many(f"views-{version}", kept)
            count += len(kept)
    return count


def is_success(line: bytes) -> bool:
    """Version 1."""
    return b'" 200 ' in line


def is_view(line: bytes) -> bool:
    """Version 2: without robots, pictures and style sheets."""
    return is_success(line) and not any(part in line for part in (b"bot", b".png", b".css"))


print("version 1:", run(1, is_success), "records")
print("version 2:", run(2, is_view), "records; readers change to its topic when it has caught up")
