"""Values of queries and forms."""

from __future__ import annotations

import pytest

from raftlog.errors import InvalidRequestError
from raftlog_cli.console.http import choice, whole


def test_whole_numbers() -> None:
    assert whole({"n": " 12 "}, "n", 3) == 12
    assert (whole({"n": ""}, "n", 3), whole({}, "n", 3)) == (3, 3)
    for text in ("x", "-1", "1.5", "\N{SUPERSCRIPT TWO}", "1" * 19):
        with pytest.raises(InvalidRequestError, match=r"^n: "):
            whole({"n": text}, "n", 3)


def test_choices() -> None:
    assert choice({"c": "b"}, "c", ("a", "b")) == "b"
    assert (choice({"c": ""}, "c", ("a", "b")), choice({}, "c", ("a", "b"))) == ("a", "a")
    with pytest.raises(InvalidRequestError, match=r"^c: 'B' is not one of a, b"):
        choice({"c": "B"}, "c", ("a", "b"))
