"""Rules for names of certificates: which texts are rules."""

from __future__ import annotations

import pytest

from raftlog import limits
from raftlog.config import BrokerConfig
from raftlog.config.address import apply_rules, parse_principal_rules
from raftlog.errors import InvalidConfigError


@pytest.mark.parametrize(
    "text",
    ["", "DEFAULT", "RULE:a/b/", "RULE:a/b/L,DEFAULT", r"RULE:a\/b/c\/d/U,RULE:^x{1,2}$/$0/"],
)
def test_a_text_is_kept(text: str) -> None:
    config = BrokerConfig.from_text({"ssl.principal.mapping.rules": text})
    assert config.to_text()["ssl.principal.mapping.rules"] == text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "default",
            "RULE:a/b",
            "RULE:a",
            "RULE:(/b/",
            "RULE:a/$1/",
            "RULE:a/b/X",
            "DEFAULT DEFAULT",
        ),
        "RULE:a/" + "b" * limits.PRINCIPAL_RULES_CHARS_MAX + "/",
    ],
)
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"ssl\.principal\.mapping\.rules"):
        BrokerConfig.from_text({"ssl.principal.mapping.rules": text})


def test_slashes_and_dollars_are_escaped() -> None:
    rules = parse_principal_rules(r"RULE:CN=a\/(b)/x\/$1\$1/")
    assert apply_rules(rules, "CN=a/b") == "x/b$1"
