"""Adds the modules of the clone to the distribution of clients, and to its source distribution.

A wheel that is built from the source distribution, as by ``python -m build``, finds the modules in
it, and not in the clone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface[Any]):
    """Includes the ``sources`` of ``pyproject.toml``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Add the modules. A source distribution has a file PKG-INFO, and a clone has none."""
        root = Path(self.root)
        if not (root / "PKG-INFO").exists():
            for source, target in self.config["sources"].items():
                build_data["force_include"][str(root / source)] = target
