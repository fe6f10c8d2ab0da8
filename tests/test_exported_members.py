"""What users import is what ``__all__`` says, and nothing else is promised."""

from __future__ import annotations

import builtins
import importlib

import pytest

import raftlog

# docs and programs out there use these: rename one only with an ADR and an alias.
PROMISED = {
    *("Admin", "Consumer", "ConsumerRecord", "NewTopic", "Producer", "RecordMetadata"),
    *("TopicPartition", "aio", "errors"),
}


def test_what_the_documentation_promises_is_there() -> None:
    assert set(raftlog.__all__) >= PROMISED


def test_every_public_name_can_be_imported() -> None:
    for name in raftlog.__all__:
        assert getattr(raftlog, name) is not None
        assert name in dir(raftlog)


def test_importing_everything_replaces_no_built_in_function() -> None:
    assert not set(raftlog.__all__) & set(dir(builtins))
    assert "open" in dir(raftlog)


def test_other_names_are_refused_as_any_module_does() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        raftlog.Nonsense  # noqa: B018 - looking it up is the test


def test_asyncio_names_are_in_aio() -> None:
    aio = importlib.import_module("raftlog.aio")
    assert set(aio.__all__) == {"AsyncAdmin", "AsyncConsumer", "AsyncProducer"}
    assert dir(aio) == [name for name in aio.__all__ if getattr(aio, name) is not None]
