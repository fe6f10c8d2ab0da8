"""Defaults in the signatures of clients. Imports nothing, so that a client class can be imported
without its settings."""

from __future__ import annotations

from typing import Final

CLIENT_ID_DEFAULT: Final = "raftlog-python"
TRANSACTION_TIMEOUT_MS_DEFAULT: Final = 60_000  # Kafka's
