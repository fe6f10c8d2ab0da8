"""Rejects requests that contain a partition, topic or group more than once.

Duplicates only cost work.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from raftlog.errors import InvalidRequestError


def check_once(api: str, names: Sequence[Hashable]) -> None:
    """Raise ``InvalidRequestError`` for a name that a request of ``api`` has more than once."""
    if len(names) < 2 or len(set(names)) == len(names):
        return
    seen: set[Hashable] = set()
    for name in names:
        if name in seen:
            shown = ":".join(map(str, name)) if isinstance(name, tuple) else name
            raise InvalidRequestError(
                f"{api} contains {shown} twice. Nothing was done. Specify each one once"
            )
        seen.add(name)
