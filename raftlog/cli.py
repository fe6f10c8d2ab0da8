"""Former name of ``raftlog_cli``, for one release."""

from __future__ import annotations

import sys

from raftlog_cli import main

sys.modules[f"{__name__}.main"] = main
