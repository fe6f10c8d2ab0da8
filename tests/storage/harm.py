"""Doing harm to stored files, and what the verifier says of it. No assertions here."""

from __future__ import annotations

from raftlog.storage import inspect
from raftlog.testing.disk import SimDisk
from tests.storage.logs import DIRECTORY


def problems(disk: SimDisk) -> set[str]:
    (report,) = inspect.verify(disk, DIRECTORY)
    return {problem.kind for problem in report.problems}


def overwrite(disk: SimDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append([data])
    file.sync()
