"""Former name of ``raftlog_jepsen``, for one release."""

from __future__ import annotations

import sys

from raftlog_jepsen import runner

sys.modules[f"{__name__}.runner"] = runner
sys.modules[f"{__name__}.run_options"] = runner
