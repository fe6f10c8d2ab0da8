"""Profiles: the addresses and credentials of clusters, in a file of the user.

A profile is a TOML table of arguments, such as ``bootstrap`` and ``sasl_username``. The file
``~/.config/raftlog/config.toml`` has a table for each cluster; a separate file is one profile.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from raftlog import limits
from raftlog.client.settings import PROFILE_VARIABLE
from raftlog.errors import InvalidRequestError

VARIABLE: Final = PROFILE_VARIABLE
KEYS: Final = (
    "bootstrap",
    "security_protocol",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "sasl_mechanism",
    "sasl_username",
    "sasl_password",
    "sasl_token_auth",
    "sasl_oauthbearer_token_file",
    "sasl_oauthbearer_token_command",
)
_FILES: Final = ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "sasl_oauthbearer_token_file")


def config_file() -> Path:
    """Return the path of the file with the profiles of the user."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "raftlog" / "config.toml"


def load(profile: str) -> dict[str, str]:
    """Return the arguments of a profile.

    ``profile``: the name of a table in ``config_file()``; or the path of a file, with a slash or
    the ending ``.toml``. Paths in a file are relative to it.

    Raises ``InvalidRequestError`` if there is no such profile, if it has an unknown key, or if it
    contains a password and other users can read it.
    """
    if not isinstance(profile, str | os.PathLike):
        raise TypeError(f"profile={profile!r} is not a str")
    name = os.fspath(profile)
    if os.sep in name or name.endswith(".toml"):
        path = Path(name).expanduser()
        return _checked(_read(path), path, name)
    path = config_file()
    tables = _read(path)
    found = tables.get(name)
    if not isinstance(found, dict):
        known = ", ".join(sorted(key for key, value in tables.items() if isinstance(value, dict)))
        raise InvalidRequestError(
            f"profile {name!r} is not in {path}; it has: {known or 'none'}. For a file, write "
            f"./{name}.toml"
        )
    return _checked(found, path, name)


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            # Some editors begin a file with a byte order mark: "-sig" ignores it.
            text = file.read(limits.PROFILE_BYTES_MAX).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InvalidRequestError(f"the profile file {path} cannot be read: {reason}") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:  # its text may contain a password
        raise InvalidRequestError(f"the profile file {path} is not TOML") from error
    if "sasl_password" in text and mode & (stat.S_IROTH | stat.S_IWOTH):
        raise InvalidRequestError(
            f"the profile file {path} contains a password and has the mode {mode:04o}: every user "
            "of this machine can read or change it. Run chmod 600 on it, and rotate the password"
        )
    if "sasl_oauthbearer_token_command" in text and mode & stat.S_IWOTH:
        raise InvalidRequestError(
            f"the profile file {path} contains a command and has the mode {mode:04o}: every user "
            "of this machine can change it. Run chmod 600 on it"
        )
    return found


def _checked(table: Mapping[str, Any], path: Path, name: str) -> dict[str, str]:
    values = {}
    for key, value in table.items():
        if key not in KEYS:
            raise InvalidRequestError(
                f"profile {name} in {path}: {key!r} is not a key; there are: {', '.join(KEYS)}"
            )
        if not isinstance(value, str | bool):
            raise InvalidRequestError(
                f"profile {name} in {path}: {key} is a {type(value).__name__}, not a text"
            )
        text = value if isinstance(value, str) else str(value).lower()
        values[key] = str(path.parent.joinpath(Path(text).expanduser())) if key in _FILES else text
    return values


def dump(values: Mapping[str, str]) -> str:
    """Return these keys and values as TOML."""
    import json

    def quoted(value: str) -> str:
        # A JSON string is a TOML basic string, except its surrogates and DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

    return "".join(f"{key} = {quoted(value)}\n" for key, value in values.items())
