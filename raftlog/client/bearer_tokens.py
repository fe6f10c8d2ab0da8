"""Sources of bearer tokens (OAUTHBEARER): a file, or a command that prints a token."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from raftlog import limits
from raftlog.errors import AuthenticationError


class TokenFile:
    """A file that another program keeps up to date, such as a projected token of Kubernetes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()

    def token(self) -> str:
        """Read the token. Raises ``AuthenticationError`` if that is not possible."""
        try:
            with self._path.open("rb") as file:
                data = file.read(limits.SASL_MESSAGE_BYTES_MAX + 1)
        except OSError as error:
            raise AuthenticationError(
                f"sasl_oauthbearer_token_file={self._path} cannot be read: {error.strerror}"
            ) from error
        return _text(data)


class TokenCommand:
    """A command whose standard output is a token. It runs without a shell."""

    def __init__(self, command: str) -> None:
        """Raises ``ValueError`` if the quotation marks of the command are not in pairs."""
        self._words = shlex.split(command)

    def token(self) -> str:
        """Run the command. Raises ``AuthenticationError`` if it fails, or takes too long."""
        try:
            done = subprocess.run(  # noqa: S603 - the command that the user configured
                self._words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=limits.TOKEN_COMMAND_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            status = getattr(error, "returncode", None)
            reason = f"exit status {status}" if status is not None else type(error).__name__
            raise AuthenticationError(
                f"sasl_oauthbearer_token_command failed ({reason}): {self._words[:1]}"
            ) from None  # the error contains the output
        return _text(done.stdout)


def _text(data: bytes) -> str:
    """Return the token. ``authentication.token_of`` checks its characters."""
    return data.strip().decode("ascii", "replace")
