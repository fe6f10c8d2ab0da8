"""Many idle consumers in one process, which ``groups`` starts and stops."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence

from raftlog.aio import AsyncConsumer
from raftlog.types import TopicPartition


async def main(bootstrap: str, kind: str, topic: str, members: int, groups: Sequence[str]) -> None:
    """Run ``members`` consumers of each group. Prints "ready" when all have partitions."""
    is_over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, is_over.set)
    begun = asyncio.Semaphore(0)
    consumers: list[AsyncConsumer] = []
    for group in groups:
        for number in range(members):
            consumer = AsyncConsumer(bootstrap, group=group if kind == "group" else None)
            consumers.append(consumer)
            if kind == "group":
                await consumer.subscribe([topic])
            else:
                await consumer.assign([TopicPartition(topic, number)])
    polls = [asyncio.ensure_future(_poll(consumer, begun)) for consumer in consumers]
    for _ in consumers:
        await begun.acquire()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await is_over.wait()
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    await asyncio.gather(*(consumer.close() for consumer in consumers))


async def _poll(consumer: AsyncConsumer, begun: asyncio.Semaphore) -> None:
    """Poll indefinitely. Release ``begun`` once a partition is assigned."""
    has_begun = False
    while True:
        await consumer.poll(timeout_ms=10_000 if has_begun else 100)
        if not has_begun and await consumer.assignment():
            has_begun = True
            begun.release()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:]))
