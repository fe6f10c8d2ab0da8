"""Reading the state of consumer groups from the log: all of it, and a little at a time.

A leader may have batches that are not committed yet: an earlier leader's, or its own from before it
had to begin anew. They will be committed, as nobody else can cut them off while it leads; so what
is read goes up to the log's end, and waits until all of that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from raftlog import limits
from raftlog.errors import CorruptBatchError, DamagedLogError, InvalidRequestError, RaftlogError
from raftlog.record import decode_lists, parse_header, split
from raftlog.server.partition import Partition
from raftlog.types import Buffer, Offset

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 256 * limits.KIB  # read at a time
RECORDS_PER_TURN: Final = 200  # before the loop serves others: about a millisecond


class Replays(Protocol):
    """What takes records in: ``GroupShard``."""

    def replay(self, key: bytes, value: bytes | None) -> None: ...


async def load(
    groups: Replays,
    host: Partition,
    *,
    turn: asyncio.Lock,
    doubt: Callable[[Partition, Offset], None],
) -> None:
    """Give ``groups`` every record from the log's start to its present end.

    ``turn``: of the broker's loads one reads at a time, so that together they keep the loop no
    longer than one. ``doubt``: told where stored bytes could not be read. Raises what the host
    refuses a wait or a read with, and ``DamagedLogError`` for what is not to be understood.
    """
    end = host.log.log_end_offset
    await committed(host, end)
    assert host.is_ready, "the log must extend past every offset that earlier leaders returned"
    async with turn:
        offset = host.log.log_start_offset
        while offset < end:
            try:
                offset = await _load_slice(groups, host, offset)
            except (DamagedLogError, CorruptBatchError) as error:
                doubt(host, offset)
                raise DamagedLogError(
                    f"{host.topic_partition}: cannot read the batch at offset {offset}, so the "
                    f"state of its consumer groups is unknown: {error}"
                ) from error


async def _load_slice(groups: Replays, host: Partition, offset: Offset) -> Offset:
    """Replay some batches from ``offset`` on; the offset after them."""
    stored = host.read(start_offset=offset, bytes_max=SLICE_BYTES)
    if not stored:
        raise DamagedLogError("no batch is stored there, and the log continues after it")
    for piece in stored:
        for batch in split(piece):
            header = parse_header(batch)
            if header.record_count:  # else compaction has left nothing of it
                await _replay(groups, host, batch)
            offset = header.next_offset
    return offset


async def _replay(groups: Replays, host: Partition, batch: Buffer) -> None:
    records = decode_lists(batch)
    for number, (offset, key, value) in enumerate(
        zip(records.offsets, records.keys, records.values, strict=True), start=1
    ):
        try:
            groups.replay(key or b"", value)
        except InvalidRequestError as error:
            raise DamagedLogError(
                f"{host.topic_partition}: the record at offset {offset} is not a consumer group "
                f"record: {error}"
            ) from error
        if number % RECORDS_PER_TURN == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def committed(host: Partition, end: Offset) -> None:
    """Return once everything below ``end`` is committed. Raises why it never will be."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: RaftlogError | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    host.when_committed(end, done)
    await future
