"""Start of the ``raftlog`` command, also with ``python -m raftlog``.

Prints the version itself: scripts query it often, and the import of click takes three times as long
as the rest.
"""

from __future__ import annotations

import sys
from contextlib import suppress


def main() -> None:
    """Run the command line, and end the process with its exit status."""
    if sys.argv[1:] == ["--version"]:
        from raftlog import __version__

        with suppress(OSError):  # the command itself reports it
            sys.stdout.write(f"raftlog {__version__}\n")
            sys.stdout.flush()
            return
    from raftlog_cli import main as command

    command.main()


if __name__ == "__main__":
    main()
