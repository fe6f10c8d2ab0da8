"""The file ``compaction`` beside a log's segments, and how cleaned segments take their places.

    0000….log  0100….log  0200….log      as they are
    0000….cleaned                        what is to stand for all three: written and synced first
    compaction                           says so from here on, durably; then no step can be lost
    0000….log                            the other two removed, the cleaned one renamed

A log without the file was never compacted. An empty one, or one that is damaged, means that the
state is lost: nothing counts as clean, and tombstones may be missing anywhere.

``compaction`` holds what is clean (``compaction.CompactionState``) and the *swaps*: which cleaned
file stands for which segments. While it holds swaps, a start carries them out once more, before it
looks at anything else; doing so again changes nothing. A cleaned file of which it says nothing is
what a crash has left, and is removed.

The swaps are *settled*, taken out of the file, once the new names are durable: before the next
cleaned file is made (it may have the same name), and before the log is cut (a file that is made
later may have the name of one that is to be removed).
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
    """The cleaned file of ``replaced[0]``, of ``size_bytes``, stands for the segments at all of
    ``replaced``."""

    replaced: tuple[Offset, ...]
    size_bytes: int

    @property
    def base_offset(self) -> Offset:
        return self.replaced[0]


class CompactionFiles:
    """Reads and writes them. Any thread may call, one at a time."""

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
        """What it says; raises ``DamagedLogError`` and ``OSError``."""
        found = state_file.read(self._disk, self._path)
        if found is None:
            return CompactionState(), ()
        swaps = tuple(Swap(tuple(replaced), size) for replaced, size in found["swaps"])
        return CompactionState.from_json(found["state"]), swaps

    def write(self, state: CompactionState, swaps: Sequence[Swap] = ()) -> None:
        """Durably."""
        rows = [[list(swap.replaced), swap.size_bytes] for swap in swaps]
        state_file.write(self._disk, self._path, {"state": state.to_json(), "swaps": rows})

    def replace(self, state: CompactionState) -> None:
        """As ``write``, without swaps; where there is no room, a lost state is better than one that
        is wrong."""
        try:
            self.write(state)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._lose()

    def _lose(self) -> None:
        """Empty the file, durably. That needs no room; without the file, it would count as never
        compacted."""
        if self._disk.exists(self._path):
            file = self._disk.open(self._path, write=True)
            try:
                file.truncate(0)
                file.sync()
            finally:
                file.close()

    # -- the segments ------------------------------------------------------------------------------

    def remove_indexes(self, swaps: Sequence[Swap]) -> None:
        """An index that outlived its segment would be taken for that of the cleaned one."""
        for swap in swaps:
            for base in swap.replaced:
                path = f"{self.directory}/{file_name(base, INDEX_SUFFIX)}"
                if self._disk.exists(path):
                    with suppress(FileNotFoundError):  # retention removes indexes, too
                        self._disk.remove(path)

    def carry_out(self, swaps: Sequence[Swap]) -> None:
        """Let the cleaned files take their places; what is done already is passed over.

        Durable only after the directory was synced. Where a cleaned file is not what it should be,
        the segments that it was to replace stay.
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
        """-1 where there is no such file."""
        if not self._disk.exists(path):
            return -1
        file = self._disk.open(path, write=False)
        size = file.size()
        file.close()
        return size

    def place_of(self, swap: Swap) -> str:
        """Where the cleaned file lies, under its own name or in its place; "" if it is neither."""
        for path in (self.cleaned_path(swap.base_offset), self._log_path(swap.base_offset)):
            if self._size(path) == swap.size_bytes:
                return path
        return ""

    def leftovers(self) -> list[str]:
        """The paths of all cleaned files."""
        bases = base_offsets(self._disk.list_dir(self.directory), CLEANED_SUFFIX)
        return [self.cleaned_path(base) for base in bases]

    # -- a start -----------------------------------------------------------------------------------

    def recover(self, notes: list[str], *, high_watermark: Offset) -> tuple[CompactionState, str]:
        """Carry out what was decided, remove what was not; the state, and what is damaged, or "".

        ``high_watermark``: the checkpoint's. Passes remove nothing above it, so that much may be
        missing from a log whose state is lost.

        Without a legible file it cannot be told whether cleaned files that lie here were to take
        their places, and perhaps have half done so: that is damage. Raises ``OSError``.
        """
        leftovers = self.leftovers()
        try:
            state, swaps = self.read()
        except (DamagedLogError, OSError) as error:
            if leftovers:
                return CompactionState(), f"{error}, in the middle of a compaction"
            notes.append(f"{error}; all of the log counts as never compacted")
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
        """The state of a log that has been found to end at ``end``, durably."""
        kept = state.cut(end)
        if kept != state:
            self.replace(kept)
        return kept


def segment_paths(disk: Disk, directory: str) -> dict[Offset, str]:
    """Where the segments lie that a start would find, ascending, and nothing is changed.

    Those that a compaction is about to take away are left out, and what takes their place is named.
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
