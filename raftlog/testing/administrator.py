"""The administrator of a secured cluster: the first user, its credentials, and its profile."""

from __future__ import annotations

import os
import secrets
import threading
from pathlib import Path
from typing import Final

from raftlog.client import profiles
from raftlog.testing.certificates import Certificates

ADMINISTRATOR: Final = "admin"
PASSWORD_BYTES: Final = 24  # of randomness
CREDENTIALS_FILE: Final = "admin.credentials"
PROFILE_FILE: Final = "admin.toml"


def private_file(path: Path, text: str) -> Path:
    """Create a file that only its owner can read, unless it exists. Returns its path."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name first: a crash must not leave an incomplete secret.
        draft = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.rename(path)
    return path


def authentication_settings(credentials: Path) -> dict[str, str]:
    """Return the settings of brokers that require authentication.

    ``credentials``: file for the name and the password of the administrator; created if it does not
    exist.
    """
    text = f"{ADMINISTRATOR}:{secrets.token_urlsafe(PASSWORD_BYTES)}\n"
    return {
        "authentication.required": "true",
        "admin.credentials.file": str(private_file(credentials, text)),
    }


def write_profile(path: Path, files: Certificates, credentials: Path, bootstrap: str) -> Path:
    """Write the profile of the administrator, readable by its owner only.

    An existing profile keeps its other values: the password may have been rotated since.
    """
    name, _, password = credentials.read_text().strip().partition(":")
    values = {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(files.ca),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": name,
        "sasl_password": password,
        **(profiles.load(str(path)) if path.exists() else {}),
        "bootstrap": bootstrap,
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    private_file(draft, profiles.dump(values)).rename(path)
    return path
