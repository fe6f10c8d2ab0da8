"""A log's checkpoint: three offsets, overwritten in place in two alternating slots.

- log start offset: the first record that still exists;
- high watermark: the end of what was known to be committed;
- durable end offset: the end of what is known to be synced. It tells damage from a torn tail.

In place, because deleting old records must work on a full disk, where a new file cannot be made,
and because it is written after every group commit: that write is *not* synced, so it costs
microseconds. After a killed process it is exact; after a power cut it may be old, but never ahead
of the truth. Two slots, so that a torn or rotten one leaves the write before it.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, replace
from typing import Final

from raftlog.disk import Disk, File
from raftlog.record.checksum import crc32c
from raftlog.types import Offset

# slot | magic 4 "RLCP" | crc32c 4 of what follows | sequence 8 |
#      | log_start_offset 8 | high_watermark 8 | durable_end_offset 8 |               little-endian
_HEAD: Final = struct.Struct("<4sI")
_BODY: Final = struct.Struct("<Qqqq")
_MAGIC: Final = b"RLCP"
SLOT_BYTES: Final = 4_096  # a page and a sector each: one write touches one of them
SLOTS: Final = 2
assert _HEAD.size + _BODY.size == 40, "the drawing above and the code disagree"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    log_start_offset: Offset = 0
    high_watermark: Offset = 0
    durable_end_offset: Offset = 0


def encode_slot(sequence: int, checkpoint: Checkpoint) -> bytes:
    body = _BODY.pack(
        sequence,
        checkpoint.log_start_offset,
        checkpoint.high_watermark,
        checkpoint.durable_end_offset,
    )
    return _HEAD.pack(_MAGIC, crc32c(body)) + body


def decode_slots(data: bytes) -> tuple[int, Checkpoint] | None:
    """The newest good slot and its sequence, or None when neither is good.

    A slot of zeros was never written (or not all of the file was): it says what a new log's would.
    """
    newest: tuple[int, Checkpoint] | None = None
    for slot in range(SLOTS):
        start = slot * SLOT_BYTES
        if len(data) < start + _HEAD.size + _BODY.size:
            break
        magic, crc = _HEAD.unpack_from(data, start)
        body = data[start + _HEAD.size : start + _HEAD.size + _BODY.size]
        is_blank = not any(data[start : start + _HEAD.size + _BODY.size])
        if not is_blank and (magic != _MAGIC or crc != crc32c(body)):
            continue
        sequence, *offsets = _BODY.unpack(body)
        if newest is None or sequence > newest[0]:
            newest = sequence, Checkpoint(*offsets)
    return newest


class CheckpointFile:
    """The file, opened when it is first written. Any thread may call: each method takes a lock."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._file: File | None = None
        self._sequence = 0
        self._lock = threading.Lock()  # the log's owner and its tickets both write
        self.latest = Checkpoint()

    def load(self) -> str:
        """Read the file into ``latest``; what is wrong with it, or "" (also when there is none)."""
        if not self._disk.exists(self.path):
            return ""
        try:
            data = self._disk.read_file(self.path, bytes_max=SLOTS * SLOT_BYTES)
        except OSError as error:
            return f"{self.path} cannot be read: {error}"
        found = decode_slots(data)
        if found is None:
            return "" if not data.strip(b"\0") else f"{self.path} is damaged: no slot of it is good"
        self._sequence, self.latest = found
        return ""

    def prepare(self) -> None:
        """Make the file with all its room, so that later writes need none. May raise ENOSPC."""
        with self._lock:
            if self._file is None:
                self._open()

    def _open(self) -> File:
        file = self._disk.open(self.path, create=True)
        # Slots are written only once the file and its name are durable: where none was, a process
        # may have ended before they were.
        if file.size() < SLOTS * SLOT_BYTES or self._sequence == 0:
            try:
                file.append([bytes(max(0, SLOTS * SLOT_BYTES - file.size()))])
                file.sync()
                self._disk.sync_dir(self.path.rsplit("/", 1)[0])
            except OSError:
                file.close()
                raise
        self._file = file
        return file

    def update(
        self,
        *,
        log_start_offset: Offset | None = None,
        high_watermark: Offset | None = None,
        durable_end_offset: Offset | None = None,
        sync: bool = False,
    ) -> None:
        """Change the given offsets; with ``sync`` the change is durable on return.

        A durable change stands in both slots: losing one of them must not take it back.
        """
        given = {
            "log_start_offset": log_start_offset,
            "high_watermark": high_watermark,
            "durable_end_offset": durable_end_offset,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        with self._lock:
            self._write(replace(self.latest, **changed), sync=sync)

    def raise_log_start(self, log_start_offset: Offset) -> None:
        """Durably; and never lower it: those who raise it may come in any order."""
        with self._lock:
            start = max(log_start_offset, self.latest.log_start_offset)
            self._write(replace(self.latest, log_start_offset=start), sync=True)

    def _write(self, checkpoint: Checkpoint, *, sync: bool) -> None:
        file = self._file or self._open()
        self.latest = checkpoint
        for _ in range(SLOTS if sync else 1):
            self._sequence += 1
            slot = self._sequence % SLOTS
            file.pwrite(encode_slot(self._sequence, checkpoint), slot * SLOT_BYTES)
            if sync:
                file.sync()

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None
