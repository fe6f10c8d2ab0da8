"""ID of a broker that joins a cluster without --id: from its data directory, or a new one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from raftlog.config import BrokerConfig
from raftlog.disk import OsDisk
from raftlog.errors import InvalidConfigError
from raftlog.server.broker import read_secret
from raftlog.storage.identity import stored_identity

TIMEOUT_MS: Final = 30_000  # for the response of a broker of the cluster


def with_id(config: BrokerConfig) -> BrokerConfig:
    """Return the settings with the ID of the data directory. In a new directory, a broker that
    joins a cluster gets the next ID of the cluster.

    Raises ``RaftlogError`` if no broker of the cluster responds or the directory is unreadable.
    """
    identity = stored_identity(OsDisk(), config.data_dir)
    if identity is not None:
        return replace(config, id=identity.broker_id)
    if not config.join:
        return config
    if config.tls_broker_id_required:
        raise InvalidConfigError(
            "tls.broker.id.required: the certificate of this broker names its ID, so the cluster "
            "cannot assign one. Set --id to the ID in the certificate"
        )
    from raftlog import Admin  # only here: other brokers start faster without the client

    with Admin(
        [str(address) for address in config.join],
        cluster_secret=read_secret(config).decode(),
        security_protocol="SSL" if config.tls_ca_file else "PLAINTEXT",
        ssl_cafile=config.tls_ca_file or None,
        ssl_certfile=config.tls_certificate_file or None,
        ssl_keyfile=config.tls_key_file or None,
        bootstrap_timeout_ms=TIMEOUT_MS,
    ) as admin:
        return replace(config, id=admin.reserve_broker_id())
