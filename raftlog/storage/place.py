"""The files `place` and `place.mark` of a data directory: recognize a copy, or a restored one.

A copy that was taken while the broker ran lacks the votes and acknowledgements that the broker gave
afterwards. If it started in place of the original, it would vote again, and lead without records
that it has acknowledged. Files keep their inode number until they are copied, so a mark with
another number is a copy. It becomes a new member of the cluster: without a vote, like an empty
directory, until the others give it one; but with its records, of which only the missing ones are
copied.

A directory that was closed cleanly may be moved: the others know if it has run since (its boot
number). A block device that is restored keeps its numbers: the others recognize it by the position
of its journal (``Journal.note_heard``), if one of them is there that has heard more.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from raftlog.disk import NO_ROOM, Disk
from raftlog.errors import DamagedLogError
from raftlog.storage import state_files


@dataclass(frozen=True, slots=True)
class Place:
    """``member_id``: ID under which the cluster knows the directory. ``former_id``: its ID before
    this start, if the directory is a copy; else empty."""

    member_id: str
    former_id: str = ""

    def notes(self) -> list[str]:
        """Return log lines about what was found."""
        if not self.former_id:
            return []
        ids = f"member_id={self.member_id} former_id={self.former_id}"
        return [f"data directory copied or restored: the others have to admit it first; {ids}"]


def take(
    disk: Disk, directory: str, *, directory_id: str, may_move: bool, new_id: Callable[[], str]
) -> Place:
    """Return the ID of the directory in the cluster, and store where it is.

    ``may_move``: it was closed cleanly, or has no peers. Raises ``OSError``.
    """
    path, mark = f"{directory}/place", f"{directory}/place.mark"
    known = None
    with suppress(DamagedLogError):
        known = state_files.read(disk, path)
    if not disk.exists(mark):
        disk.open(mark, create=True).close()
        disk.sync_dir(directory)
    inode = disk.inode(mark)
    if known is None or known.get("directory_id") != directory_id:
        known = {"directory_id": directory_id, "member_id": directory_id, "inode": 0}
    member_id, was = str(known["member_id"]), known["inode"]
    if inode == was:
        return Place(member_id)
    # guard: a directory that was copied while it was open is another member
    is_copy = bool(was and inode) and not may_move
    place = Place(new_id(), member_id) if is_copy else Place(member_id)
    state = {"directory_id": directory_id, "member_id": place.member_id, "inode": inode}
    try:
        state_files.write(disk, path, state)
    except OSError as error:
        if is_copy or error.errno not in NO_ROOM:
            raise
    return place
