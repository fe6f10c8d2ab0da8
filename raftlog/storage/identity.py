"""Identity of a data directory: broker id, cluster id and directory id, in one state file.

A directory that was wiped gets a new directory id, so the cluster can recognize it (S21).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from raftlog.disk import Disk
from raftlog.errors import DamagedLogError, DataDirectoryError
from raftlog.storage import state_file

BROKER_ID_DEFAULT: Final = 1
FORMAT_VERSION: Final = 1
CLUSTER_UNKNOWN: Final = ""  # the broker has not joined a cluster yet


@dataclass(frozen=True, slots=True)
class Identity:
    """Owner of a data directory. Every new or wiped directory gets a new ``directory_id``."""

    broker_id: int
    cluster_id: str
    directory_id: str


def stored_identity(disk: Disk, directory: str) -> Identity | None:
    """Return the identity of a data directory; None for a new one.

    Raises ``DataDirectoryError`` if it cannot be read.
    """
    path = f"{directory}/identity"
    try:
        state = state_file.read(disk, path)
    except (OSError, DamagedLogError) as error:
        raise DataDirectoryError(f"{path} cannot be read: {error}") from error
    if state is None:
        return None
    return Identity(state["broker_id"], state["cluster_id"], state["directory_id"])


class IdentityFile:
    """The file ``identity`` of a data directory."""

    def __init__(self, disk: Disk, directory: str, *, new_id: Callable[[], str]) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/identity"
        self._new_id = new_id
        self.is_new = False  # True if ``take`` created the file

    def take(self, broker_id: int | None, cluster_id: str | None) -> Identity:
        """Return the stored identity, or create one in a new directory.

        ``broker_id``, ``cluster_id``: the expected ids. None, or an empty cluster id, accepts the
        stored one. Raises ``DataDirectoryError`` if the directory belongs to another broker or
        cluster or has another format version, and ``OSError``.
        """
        state = state_file.read(self._disk, self._path)
        if state is None:
            return self._make(broker_id, cluster_id)
        if state["version"] != FORMAT_VERSION:
            raise DataDirectoryError(
                f"data directory {self._directory} has format version {state['version']}, but this "
                f"release reads version {FORMAT_VERSION}. Use the release that wrote it, or upgrade"
            )
        found = Identity(state["broker_id"], state["cluster_id"], state["directory_id"])
        if broker_id is not None and broker_id != found.broker_id:
            raise self._of_another("broker", found.broker_id, broker_id)
        return self.adopt(found, cluster_id or found.cluster_id)

    def adopt(self, identity: Identity, cluster_id: str) -> Identity:
        """Save and return the identity with ``cluster_id``, durably. Raises ``DataDirectoryError``
        if the directory belongs to another cluster, and ``OSError``."""
        if cluster_id == identity.cluster_id:
            return identity
        if identity.cluster_id != CLUSTER_UNKNOWN:
            raise self._of_another("cluster", identity.cluster_id, cluster_id)
        return self._write(replace(identity, cluster_id=cluster_id))

    def _make(self, broker_id: int | None, cluster_id: str | None) -> Identity:
        self.is_new = True
        with suppress(PermissionError):  # the parent belongs to another user
            self._disk.sync_dir(os.path.dirname(self._directory) or ".")
        return self._write(
            Identity(
                BROKER_ID_DEFAULT if broker_id is None else broker_id,
                self._new_id() if cluster_id is None else cluster_id,
                self._new_id(),
            )
        )

    def _write(self, identity: Identity) -> Identity:
        state_file.write(
            self._disk,
            self._path,
            {
                "version": FORMAT_VERSION,
                "broker_id": identity.broker_id,
                "cluster_id": identity.cluster_id,
                "directory_id": identity.directory_id,
            },
        )
        return identity

    def _of_another(self, what: str, found: object, wanted: object) -> DataDirectoryError:
        return DataDirectoryError(
            f"data directory {self._directory} belongs to {what} id {found}, not {wanted}. "
            f"Use the data directory of {what} {wanted}, or an empty directory"
        )
