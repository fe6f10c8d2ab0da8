"""The file ``compaction`` of a log, and the replacement of segments by cleaned segments.

    0000….log  0100….log  0200….log      before the compaction
    0000….cleaned                        step 1: replacement of all three, written and synced
    compaction                           step 2: contains the swap, durably; step 3 can be repeated
    0000….log                            step 3: rename the cleaned file, remove the other two

A log without the file was never compacted. If the file is empty or corrupt, the state is lost:
no record counts as clean, and tombstones may be missing anywhere.

``compaction`` contains the clean part (``compaction.CompactionState``) and the *swaps*: the cleaned
files and the segments that they replace. If the file contains swaps, the start of the log performs
them again before it reads any segment. Swaps are idempotent. The start removes cleaned files that
no swap names, because they are left from a crash.

Swaps are *settled* (removed from the file) after the new names are durable. This happens before the
next cleaned file is created, because it may have the same name. It also happens before the log is
truncated, because a later file may have the name of a file that the swap removes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_file
from raftlog.storage.compaction import CompactionState
from raftlog.storage.segment import INDEX_SUFFIX, LOG_SUFFIX, base_offsets, file_name
from raftlog.types import Offset

CLEANED_SUFFIX: Final = ".cleaned"
NAME: Final = "compaction"


class Swap(NamedTuple):
    """Replacement of the segments with base offsets ``replaced`` by the cleaned file of
    ``replaced[0]``, which has ``size_bytes`` bytes."""

    replaced: tuple[Offset, ...]
    size_bytes: int

    @property
    def base_offset(self) -> Offset:
        return self.replaced[0]


class CompactionFiles:
    """Compaction state file and cleaned files of one log. Any thread may call, one at a time."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        self._path = f"{directory}/{NAME}"

    def cleaned_path(self, base_offset: Offset) -> str:
        return f"{self.directory}/{file_name(base_offset, CLEANED_SUFFIX)}"

    def _log_path(self, base_offset: Offset) -> str:
        return f"{self.directory}/{file_name(base_offset, LOG_SUFFIX)}"

    # -- the state ---------------------------------------------------------------------------------

    def read(self) -> tuple[CompactionState, tuple[Swap, ...]]:
        """Return the state and the swaps in the file. Raises ``DamagedLogError`` and
        ``OSError``."""
        found = state_file.read(self._disk, self._path)
        if found is None:
            return CompactionState(), ()
        swaps = tuple(Swap(tuple(replaced), size) for replaced, size in found["swaps"])
        return CompactionState.from_json(found["state"]), swaps

    def write(self, state: CompactionState, swaps: Sequence[Swap] = ()) -> None:
        """Replace the file, durably. Raises ``OSError``."""
        rows = [[list(swap.replaced), swap.size_bytes] for swap in swaps]
        state_file.write(self._disk, self._path, {"state": state.to_json(), "swaps": rows})

    def replace(self, state: CompactionState) -> None:
        """Write the state without swaps. If the disk is full, empty the file: a lost state is safe,
        and a wrong state is not."""
        try:
            self.write(state)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._lose()

    def _lose(self) -> None:
        """Empty the file, durably. This needs no disk space. The file is not removed, because a log
        without the file counts as never compacted."""
        if self._disk.exists(self._path):
            file = self._disk.open(self._path, write=True)
            try:
                file.truncate(0)
                file.sync()
            finally:
                file.close()

    # -- the segments ------------------------------------------------------------------------------

    def remove_indexes(self, swaps: Sequence[Swap]) -> None:
        """Remove the indexes of the replaced segments. Otherwise recovery could use one of them as
        the index of the cleaned segment."""
        for swap in swaps:
            for base in swap.replaced:
                path = f"{self.directory}/{file_name(base, INDEX_SUFFIX)}"
                if self._disk.exists(path):
                    with suppress(FileNotFoundError):  # retention also removes indexes
                        self._disk.remove(path)

    def carry_out(self, swaps: Sequence[Swap]) -> None:
        """Replace the segments by the cleaned files. Skips the steps that are already done.

        The result is durable after the directory is synced. If a cleaned file has a wrong size, the
        segments that it should replace stay. Raises ``OSError``.
        """
        for swap in swaps:
            cleaned, log = self.cleaned_path(swap.base_offset), self._log_path(swap.base_offset)
            if self._size(cleaned) == swap.size_bytes:
                self._disk.rename(cleaned, log)
            elif self._size(log) != swap.size_bytes:
                continue
            for base in swap.replaced[1:]:
                path = self._log_path(base)
                if self._disk.exists(path):
                    self._disk.remove(path)

    def _size(self, path: str) -> int:
        """Return the size in bytes; -1 if the file does not exist."""
        if not self._disk.exists(path):
            return -1
        file = self._disk.open(path, write=False)
        size = file.size()
        file.close()
        return size

    def place_of(self, swap: Swap) -> str:
        """Return the path of the cleaned file: its cleaned name or its segment name; "" if neither
        file has the expected size."""
        for path in (self.cleaned_path(swap.base_offset), self._log_path(swap.base_offset)):
            if self._size(path) == swap.size_bytes:
                return path
        return ""

    def leftovers(self) -> list[str]:
        """Return the paths of all cleaned files."""
        bases = base_offsets(self._disk.list_dir(self.directory), CLEANED_SUFFIX)
        return [self.cleaned_path(base) for base in bases]

    # -- a start -----------------------------------------------------------------------------------

    def recover(self, notes: list[str], *, high_watermark: Offset) -> tuple[CompactionState, str]:
        """Perform the recorded swaps and remove other cleaned files. Returns the state and the
        description of corruption, or "".

        ``high_watermark``: from the checkpoint. Passes remove nothing above it, so tombstones may
        be missing only below it if the state is lost.

        If the file is unreadable and cleaned files exist, their swaps may be partly done. This
        counts as corruption. Raises ``OSError``.
        """
        leftovers = self.leftovers()
        try:
            state, swaps = self.read()
        except (DamagedLogError, OSError) as error:
            if leftovers:
                return CompactionState(), f"{error}; a compaction was in progress"
            notes.append(f"{error}; the whole log counts as never compacted")
            lost = CompactionState().lacking_tombstones(high_watermark)
            self.replace(lost)
            return lost, ""
        if swaps:
            self.carry_out(swaps)
            self._disk.sync_dir(self.directory)
            self.replace(state)
        for path in self.leftovers():
            self._disk.remove(path)
        return state, ""

    def keep_up_to(self, state: CompactionState, end: Offset) -> CompactionState:
        """Return the state, truncated at the recovered log end ``end``. Saves it durably if it
        changes."""
        kept = state.cut(end)
        if kept != state:
            self.replace(kept)
        return kept


def segment_paths(disk: Disk, directory: str) -> dict[Offset, str]:
    """Return the paths of the segments that a start would load, by base offset, ascending.

    Read-only. Segments that a recorded swap replaces are omitted, and the path of the cleaned file
    is returned instead.
    """
    files = CompactionFiles(disk, directory)
    paths = {
        base: f"{directory}/{file_name(base, LOG_SUFFIX)}"
        for base in base_offsets(disk.list_dir(directory), LOG_SUFFIX)
    }
    try:
        _state, swaps = files.read()
    except (DamagedLogError, OSError):
        return paths
    for swap in swaps:
        place = files.place_of(swap)
        if place:
            for base in swap.replaced[1:]:
                paths.pop(base, None)
            paths[swap.base_offset] = place
    return dict(sorted(paths.items()))
