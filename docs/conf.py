"""How Sphinx builds the manual. What it says is in the Markdown files and in generate.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from raftlog import __version__

project = "raftlog"
author = "the raftlog authors"
copyright = "the raftlog authors"  # noqa: A001 - Sphinx's name
version = release = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"raftlog {release}"
html_copy_source = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
