"""Compares the vendored files of the console with the npm packages that they are from.

``python -m tests.cli.console.npm`` downloads the packages with npm, checks their integrity values
and each file. It exits with 1, and names the file, if one differs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "cli/raftlog_cli/console/static/vendor"


def differences(package: dict[str, Any], folder: Path) -> list[str]:
    """What is not as in the package, which is downloaded to ``folder``."""
    name = f"{package['package']}@{package['version']}"
    command = ["npm", "pack", "--silent", "--pack-destination", str(folder), name]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    packed = folder / ran.stdout.split()[-1]
    digest = base64.b64encode(hashlib.sha512(packed.read_bytes()).digest()).decode()
    if f"sha512-{digest}" != package["integrity"]:
        return [f"{name}: the package has another integrity value"]
    found = []
    with tarfile.open(packed) as archive:
        for file, values in package["files"].items():
            original = archive.extractfile(f"package/{values['from']}")
            assert original is not None
            if original.read() != (FOLDER / file).read_bytes():
                found.append(f"{file} is not {values['from']} of {name}")
    return found


def main() -> int:
    packages = json.loads((FOLDER / "vendored.json").read_text())
    with tempfile.TemporaryDirectory() as folder:
        found = [line for package in packages for line in differences(package, Path(folder))]
    for line in found:
        sys.stderr.write(f"{line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
