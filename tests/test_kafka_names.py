"""Names of Kafka's clients are answered with raftlog's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from raftlog import Admin, Consumer, NewTopic, Producer, aio


@pytest.mark.parametrize(
    ("make", "argument", "name"),
    [
        (NewTopic, {"topic": "t"}, "name"),
        (Producer, {"bootstrap_servers": "h:1"}, "bootstrap"),
        (Producer, {"compression_type": "lz4"}, "compression"),
        (Producer, {"linger.ms": 5}, "linger_ms"),
        (Producer, {"security.protocol": "SSL"}, "security_protocol"),
        (Producer, {"sasl_plain_username": "u"}, "sasl_username"),
        (Consumer, {"group_id": "g"}, "group"),
        (Consumer, {"enable_auto_commit": False}, "auto_commit"),
        (Consumer, {"group.id": "g"}, "group"),
        (Consumer, {"auto.offset.reset": "earliest"}, "auto_offset_reset"),
        (Admin, {"bootstrap_servers": "h:1"}, "bootstrap"),
        (aio.AsyncProducer, {"bootstrap.servers": "h:1"}, "bootstrap"),
        (aio.AsyncConsumer, {"max_poll_records": 5}, "poll(max_records=...)"),
        (aio.AsyncAdmin, {"bootstrap_servers": "h:1"}, "bootstrap"),
        (lambda **given: NewTopic("t", **given), {"num_partitions": 3}, "partitions"),
    ],
)
def test_the_error_gives_the_name_to_use(
    make: Callable[..., Any], argument: dict[str, object], name: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{next(iter(argument))!r}: use {name}")):
        make(**argument)


@pytest.mark.parametrize("argument", ["group_id", "enable.auto.commit", "num_partitions"])
@pytest.mark.parametrize("make", [Producer, Admin, aio.AsyncProducer])
def test_a_setting_of_another_client_is_not_advised(
    make: Callable[..., Any], argument: str
) -> None:
    with pytest.raises(TypeError, match=f"'{argument}': remove it"):
        make(**{argument: 1})


def test_other_unknown_names_are_pythons_to_refuse() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lingerms'"):
        Producer(lingerms=5)  # type: ignore[call-arg]


def test_a_dict_of_settings_is_answered_too() -> None:
    with pytest.raises(TypeError, match="settings as keyword arguments"):
        Producer({"bootstrap.servers": "h:1"})  # type: ignore[arg-type]
