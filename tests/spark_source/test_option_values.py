"""One option's text becomes a value, or an error that names the option and what it takes."""

from __future__ import annotations

import pytest

from pyspark_raftlog.options import Texts, choice, flag, integer
from raftlog import limits
from raftlog.errors import InvalidRequestError

NAME = "maxTriggerDelay"


def test_names_have_any_case_and_values_no_spaces_around_them() -> None:
    texts = Texts({"MaxTriggerDelay": " 5 ", "b": "x"})
    assert texts.get(NAME) == texts.get("MAXTRIGGERDELAY") == "5"
    assert NAME in texts
    assert "c" not in texts
    assert texts.get("c") is None
    assert texts.names == ["b", "maxtriggerdelay"]


def test_a_name_in_two_cases_is_refused_unless_they_agree() -> None:
    assert Texts({"Ab": "1", "aB": "1"}).get("ab") == "1"
    with pytest.raises(InvalidRequestError, match="given twice"):
        Texts({"Ab": "1", "aB": "2"})


def test_an_option_of_kafkas_connector_is_the_same_by_its_other_name() -> None:
    texts = Texts({"compression": "lz4", "fetchOffset.numRetries": "5", "numRetries": "5"})
    assert (texts.get("codec"), texts.get("numRetries")) == ("lz4", "5")
    assert texts.names == ["codec", "numretries"]
    with pytest.raises(InvalidRequestError, match="'compression' is given twice, by two names"):
        Texts({"codec": "zstd", "compression": "lz4"})


def test_an_empty_option_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="option groupId is empty: set a value"):
        Texts({"groupid": "  "}).get("groupId")


def test_a_long_text_is_refused() -> None:
    texts = Texts({"columns": "a" * (limits.MIB + 1)})
    with pytest.raises(InvalidRequestError, match="option columns has 1048577 characters"):
        texts.short("columns")


@pytest.mark.parametrize(
    ("text", "ms"),
    [("0", 0), ("250", 250), ("500ms", 500), ("30s", 30_000), ("15m", 900_000), ("2 min", 120_000),
     ("2h", 7_200_000), ("1D", 86_400_000)],
)  # fmt: skip
def test_durations_are_written_as_in_spark(text: str, ms: int) -> None:
    assert Texts({NAME: text}).duration_ms(NAME, 0) == ms


@pytest.mark.parametrize(
    "text", ["-1", "1.5s", "s", "5 weeks", "5us", "1s 2s", "٣s", "9" * 30, "9999999999999d", "1e3"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="option maxTriggerDelay="):
        Texts({NAME: text}).duration_ms(NAME, 0)


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1_024), ("4k", 4_096), ("4MB", 4 << 20), ("1g", 1 << 30)]
)
def test_sizes_are_written_as_in_spark(text: str, size: int) -> None:
    assert Texts({"batchMaxBytes": text}).size("batchMaxBytes", 1_024, 1 << 30) == size


@pytest.mark.parametrize("text", ["1023", "2g", "-4k", "4x", "k", "1.5m"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"option batchMaxBytes='{text}'"):
        Texts({"batchMaxBytes": text}).size("batchMaxBytes", 1_024, 1 << 30)


@pytest.mark.parametrize("text", ["", "1.0", "1e3", "true", "1_000", "0x10", "٣", "9" * 5_000])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="a whole number from 1 to 5") as caught:
        integer("n", text, 1, 5)
    assert len(str(caught.value)) < 500


def test_a_number_out_of_range_is_refused_with_the_range() -> None:
    assert integer("n", "+5", 1, 5) == 5
    for text in ("0", "6", "-2"):
        with pytest.raises(InvalidRequestError, match=f"option n='{text}' is not from 1 to 5"):
            integer("n", text, 1, 5)
    assert Texts({}).integer("n", 1, 5) is None
    assert Texts({}).size("n", 1, 5) is Texts({}).duration_ms("n", 1) is None


def test_flags_are_true_or_false() -> None:
    assert flag("f", "TRUE") is True
    assert Texts({"f": "False"}).flag("f", True) is False
    assert Texts({}).flag("f", True) is True
    for text in ("1", "yes", "t"):
        with pytest.raises(InvalidRequestError, match="it is true or false"):
            flag("f", text)


def test_a_choice_is_one_of_the_words() -> None:
    assert choice("isolation", "Committed", ("committed",)) == "committed"
    with pytest.raises(InvalidRequestError, match="option s='x': it is error or latest"):
        choice("s", "x", ("error", "latest"))
