"""Former names of modules, for one release: an import by one gives the module of today.

A module has one name and one object: an old name is a second entry in ``sys.modules``, and no
second copy of the code.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

# Packages, also with modules below them.
_PACKAGES: Final = {
    "raftlog.cli": "raftlog_cli",
    "raftlog.jepsen_like": "raftlog_jepsen",
    "raftlog.spark_source": "pyspark_raftlog",
}
# Modules that were merged into others.
_MODULES: Final = {
    "raftlog.backup.manifest": "raftlog.backup.writer",
    "raftlog.backup.source": "raftlog.backup.writer",
    "raftlog.backup.store": "raftlog.backup.writer",
    "raftlog.client.admin": "raftlog.client.administration.admin",
    "raftlog.client.aio.admin": "raftlog.client.administration.admin",
    "raftlog.client.aio.consumer": "raftlog.client.aio.clients",
    "raftlog.client.aio.producer": "raftlog.client.aio.clients",
    "raftlog_jepsen.run_options": "raftlog_jepsen.runner",
    "raftlog.mirror.session": "raftlog.mirror.mirror",
    "raftlog.mirror.source": "raftlog.mirror.mirror",
    "pyspark_raftlog.batch_reader": "pyspark_raftlog.reader",
    "pyspark_raftlog.client_options": "pyspark_raftlog.options",
    "pyspark_raftlog.lag": "pyspark_raftlog.offsets",
    "pyspark_raftlog.option_names": "pyspark_raftlog.options",
    "pyspark_raftlog.option_values": "pyspark_raftlog.options",
    "pyspark_raftlog.selection": "pyspark_raftlog.options",
    "pyspark_raftlog.stream_planner": "pyspark_raftlog.planning",
    "pyspark_raftlog.stream_reader": "pyspark_raftlog.reader",
    "pyspark_raftlog.stream_writer": "pyspark_raftlog.writer",
    "pyspark_raftlog.task_reader": "pyspark_raftlog.reader",
}
_ROOTS: Final = ("raftlog.", "raftlog_jepsen.", "pyspark_raftlog.")


def name_of_today(name: str) -> str:
    """Return the present name of the module that is or was called ``name``."""
    for former, today in _PACKAGES.items():
        if name == former or name.startswith(f"{former}."):
            name = today + name[len(former) :]
    return _MODULES.get(name, name)


class Finder:
    """Finds modules by former names, for ``sys.meta_path``. Before the finder of files, which would
    load the modules below a former package a second time.
    """

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not name.startswith(_ROOTS) or name_of_today(name) == name:
            return None
        return ModuleSpec(name, _Loader())  # type: ignore[arg-type]  # importlib.abc is expensive


class _Loader:
    def create_module(self, _spec: ModuleSpec) -> None:
        """Let importlib make an empty module, which ``exec_module`` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(name_of_today(module.__name__))
