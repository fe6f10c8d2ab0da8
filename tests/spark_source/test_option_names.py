"""An option that there is not, or not here, is refused or noted; none is ignored in silence."""

from __future__ import annotations

import pytest

from pyspark_raftlog.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    Texts,
    check_names,
    check_no_secrets,
    notices,
)
from raftlog.errors import InvalidRequestError

MODES = [(False, False), (False, True), (True, False), (True, True)]


def refused(name: str, *, writing: bool = False, streaming: bool = False) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        check_names(Texts({name: "1"}), writing=writing, streaming=streaming)
    return str(caught.value)


def noted(*names: str, writing: bool = False, streaming: bool = False) -> tuple[str, ...]:
    texts = Texts(dict.fromkeys(names, "true"))
    check_names(texts, writing=writing, streaming=streaming)
    return notices(texts, writing=writing, streaming=streaming)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("subscribepatern", "did you mean subscribePattern?"),
        ("StartingOffset", "did you mean startingOffsets?"),
        ("boostrap.servers", "did you mean bootstrap.servers?"),
        ("include_headers", "did you mean includeHeaders?"),
        ("groupIdPrefix", "is called groupId here"),
        ("quite.another", "there are subscribe, subscribePattern, assign, "),
    ],
)
def test_an_unknown_option_is_refused_with_what_may_be_meant(name: str, meant: str) -> None:
    message = refused(name)
    assert name.lower() in message
    assert meant in message


@pytest.mark.parametrize("streaming", [False, True])
def test_options_of_the_other_direction_are_refused(streaming: bool) -> None:
    for name in SINK_OPTIONS:
        assert f"option {name} is for writes" in refused(name, streaming=streaming)
    for name in SOURCE_OPTIONS:
        message = refused(name, writing=True, streaming=streaming)
        assert f"option {name} is for reads" in message
    assert "name it in the option subscribe" in refused("topic")


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert f"option {name} is for batch reads" in refused(name, streaming=True)
    assert noted(name) == ()


@pytest.mark.parametrize(("writing", "streaming"), MODES)
def test_what_spark_adds_is_let_through(writing: bool, streaming: bool) -> None:
    names = ("queryName", "checkpointLocation", "asyncProgressTrackingEnabled")
    assert noted(*names, writing=writing, streaming=streaming) == ()


@pytest.mark.parametrize("name", ["path", "paths"])
def test_a_path_has_no_effect_and_that_is_said(name: str) -> None:
    assert noted(name) == ("the path has no effect: name topics by the option subscribe",)
    assert "by the option topic" in noted(name, writing=True)[0]


def test_options_without_effect_in_a_batch_read_are_noted() -> None:
    names = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupId",
             "maxBytesPerTrigger", "commitOffsets")  # fmt: skip
    found = noted(*names)
    assert sorted(found) == sorted(f"option {name} has no effect in a batch read" for name in names)
    assert noted(*names, streaming=True) == ()


def test_options_without_effect_in_a_stream_are_noted() -> None:
    assert noted("groupId", "maxTriggerDelay", streaming=True) == (
        "option groupId has no effect without commitOffsets=true",
        "option maxTriggerDelay has no effect without minOffsetsPerTrigger",
    )


def test_the_option_that_comes_first_is_named() -> None:
    assert noted("startingOffsets", "startingTimestamp", "endingOffsets") == (
        "option startingOffsets has no effect if startingTimestamp is set",
    )


@pytest.mark.parametrize(
    "name", ["raftlog.sasl.password", "sasl_password", "kafka.sasl.password",
             "RAFTLOG.sasl.oauthbearer.token.command"],
)  # fmt: skip
def test_a_secret_in_the_options_of_a_table_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"SHOW CREATE TABLE prints.*'raftlog\.profile'"):
        check_no_secrets({"bootstrap.servers": "a:1", name: "the secret"})
    check_no_secrets({"bootstrap.servers": "a:1", "sasl_username": "alice"})
