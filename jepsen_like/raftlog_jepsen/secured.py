"""A secured cluster: certificates, and the user of the clients with its access rules."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from raftlog import Acl, Admin
from raftlog.client import profiles
from raftlog.clock import SystemClock
from raftlog.config import Address
from raftlog.security.acl import ANY, CLUSTER_NAME
from raftlog.testing.certificates import LOCAL_HOSTS, create
from raftlog.testing.cluster import (
    CREDENTIALS_FILE,
    PASSWORD_BYTES,
    PROFILE_FILE,
    TLS_DIRECTORY,
    authentication_settings,
    private_file,
    write_profile,
)

USER: Final = "chaos"
USER_PROFILE: Final = "chaos.toml"
SESSION_MS: Final = 10_000  # short, so that clients authenticate again under faults
DAYS: Final = 3_650
YEAR_MS: Final = 365 * 86_400_000
START_MS: Final = 30_000
# The user is authorized for all operations. It is no super user, so that the broker checks the
# rules for each request.
RULES: Final = (
    Acl(f"User:{USER}", "ALL", "TOPIC", ANY),
    Acl(f"User:{USER}", "ALL", "GROUP", ANY),
    Acl(f"User:{USER}", "ALL", "TRANSACTIONAL_ID", ANY),
    Acl(f"User:{USER}", "ALL", "CLUSTER", CLUSTER_NAME),
)


class _LastYear(SystemClock):
    """Start of the validity of certificates: faults may set the clocks of brokers back."""

    def wall_ms(self) -> int:
        return super().wall_ms() - YEAR_MS


class Secured:
    """Files of a secured cluster, in its directory.

    ``environment``: of its clients, valid after ``admit``.
    """

    def __init__(self, directory: Path, listen: Mapping[int, Address]) -> None:
        """Create the certificates. ``listen``: addresses of the brokers, by broker id."""
        self._directory = directory
        self._files = create(
            directory / TLS_DIRECTORY,
            hosts=sorted({*LOCAL_HOSTS, *(each.host for each in listen.values())}),
            brokers=listen,
            days=DAYS,
            clock=_LastYear(),
        )
        self._credentials = directory / CREDENTIALS_FILE
        self.environment = {profiles.VARIABLE: str(directory / USER_PROFILE)}

    def settings(self, broker_id: int) -> dict[str, str]:
        """Return the settings of the broker."""
        return {
            **self._files.broker_settings(broker_id),
            **authentication_settings(self._credentials),
            "connections.max.reauth.ms": str(SESSION_MS),
        }

    def admit(self, bootstrap: str) -> None:
        """Create the user of the clients and its rules as the administrator, once per directory.

        Raises ``RaftlogError`` if the cluster does not respond.
        """
        path = self._directory / USER_PROFILE
        if path.exists():
            return
        profile = self._directory / PROFILE_FILE
        write_profile(profile, self._files, self._credentials, bootstrap)
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        with Admin(bootstrap, profile=str(profile), bootstrap_timeout_ms=START_MS) as admin:
            admin.create_acls(RULES)
            admin.create_user(USER, password)
        own = {**profiles.load(str(profile)), "sasl_username": USER, "sasl_password": password}
        private_file(path, profiles.dump(own))
