"""Where secrets appear: in texts, and in the files of a directory, in several encodings."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path


def forms_of(secret: str | bytes) -> set[bytes]:
    """A secret as it is, in hexadecimal, in base64 and as Python prints it."""
    data = secret.encode() if isinstance(secret, str) else secret
    encoded = {base64.b64encode(data).rstrip(b"="), base64.urlsafe_b64encode(data).rstrip(b"=")}
    return {data, data.hex().encode(), repr(data)[2:-1].encode(), *encoded}


def found_in(text: str | bytes, secrets: Iterable[str | bytes]) -> list[bytes]:
    """The forms of secrets that the text contains."""
    data = text.encode() if isinstance(text, str) else text
    return [form for secret in secrets for form in forms_of(secret) if form in data]


def files_with(directory: Path, secrets: Iterable[str | bytes]) -> set[str]:
    """The files that contain a secret, relative to ``directory``."""
    wanted = list(secrets)
    return {
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.is_file() and found_in(path.read_bytes(), wanted)
    }
