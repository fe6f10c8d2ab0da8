"""Loading the state of consumer groups from the complete log, a little at a time.

A leader may have batches that are not committed yet: of an earlier leader, or its own from before a
reload. They will be committed, as no other broker can truncate them while this one leads. So the
load reads up to the end of the log, and waits until all of that is committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from raftlog import limits
from raftlog.errors import CorruptBatchError, DamagedLogError, InvalidRequestError, RaftlogError
from raftlog.record import decode_lists, split_checked
from raftlog.server.partition import Partition
from raftlog.types import Buffer, Offset

logger = logging.getLogger(__name__)

SLICE_BYTES: Final = 256 * limits.KIB  # bytes per read
RECORDS_PER_TURN: Final = 200  # before the event loop serves other work: about 1 ms


class Replays(Protocol):
    """The receiver of records: ``GroupShard``."""

    def replay(self, key: bytes, value: bytes | None) -> None: ...


async def load(
    groups: Replays,
    host: Partition,
    *,
    turn: asyncio.Lock,
    on_unreadable: Callable[[Partition, Offset], None],
) -> None:
    """Replay every record from the start of the log to its current end into ``groups``.

    ``turn``: lock that only one load of the broker holds at a time, so that together they block the
    loop no longer than one does. ``on_unreadable``: called with offsets that could not be read.
    Raises the errors of the host for a wait or a read, and ``DamagedLogError`` for records that
    cannot be decoded.
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
                on_unreadable(host, offset)
                raise DamagedLogError(
                    f"{host.topic_partition}: cannot read the batch at offset {offset}, so the "
                    f"state of its consumer groups is unknown: {error}"
                ) from error


async def _load_slice(groups: Replays, host: Partition, offset: Offset) -> Offset:
    """Replay some batches from ``offset`` on. Returns the offset after them."""
    stored = host.read(start_offset=offset, bytes_max=SLICE_BYTES)
    if not stored:
        raise DamagedLogError("no batch is stored there, and the log continues after it")
    for piece in stored:
        for header, batch in split_checked(piece):
            if header.record_count:  # else compaction has removed all its records
                await _replay(groups, host, batch)
            offset = header.next_offset
    return offset


async def _replay(groups: Replays, host: Partition, batch: Buffer) -> None:
    records = decode_lists(batch, check_crc=False)
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
    """Return once everything below ``end`` is committed. Raises the reason if it never will be."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: RaftlogError | None) -> None:
        if future.done():  # no waiter is left
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    host.when_committed(end, done)
    await future
