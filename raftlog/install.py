"""How to install raftlog and its extras, for the texts of errors. The only place that knows it.

raftlog is not on a package index: it is installed from a clone of the repository. With the first
release, the commands change here.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

IN_CLONE: Final = "in a clone of the repository"


def install_command(extra: str = "") -> str:
    """Return the command that installs an optional dependency, and where to run it.

    ``extra``: name of the extra. Default: raftlog without extras.

    In an environment with raftlog-client, the command installs the extra of raftlog-client.
    """
    if not extra:
        return f"pip install -e . {IN_CLONE}"
    if find_spec("raftlog.server") is None:
        return f"pip install './deploy/client[{extra}]' {IN_CLONE}"
    return f"pip install -e '.[{extra}]' {IN_CLONE}"
