"""Modules by the names that they had before."""

from __future__ import annotations

from importlib import import_module

import pytest

from raftlog.former_names import name_of_today


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("raftlog.cli.main", "raftlog_cli.main"),
        ("raftlog.spark_source", "pyspark_raftlog"),
        ("raftlog.spark_source.options", "pyspark_raftlog.options"),
        ("raftlog.spark_source.stream_writer", "pyspark_raftlog.writer"),
        ("raftlog.jepsen_like.run_options", "raftlog_jepsen.runner"),
        ("raftlog.client.aio.producer", "raftlog.client.aio.clients"),
    ],
)
def test_a_former_name_is_the_module_of_today(former: str, today: str) -> None:
    module = import_module(today)
    assert import_module(former) is module
    assert module.__name__ == today


def test_a_package_has_its_former_modules() -> None:
    from raftlog.backup import store, writer  # type: ignore[attr-defined]

    assert store is writer
    from raftlog.spark_source import stream_writer  # type: ignore[import-not-found]

    assert stream_writer is import_module("pyspark_raftlog.writer")


def test_other_names_stay_as_they_are() -> None:
    assert name_of_today("raftlog.client.consumer") == "raftlog.client.consumer"
    assert name_of_today("raftlog.client_of_mine") == "raftlog.client_of_mine"


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"raftlog\.client\.nothing"):
        import_module("raftlog.client.nothing")
