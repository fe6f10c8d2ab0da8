"""Which requests are refused, and why."""

from __future__ import annotations

import pytest

from raftlog_cli.console import app

OWN = {"host": "127.0.0.1:9200", "origin": "http://127.0.0.1:9200"}
FORM = {"token": "secret"}


@pytest.mark.parametrize(
    "host", ["127.0.0.1:9200", "localhost:9200", "LOCALHOST", "[::1]:9200", "127.9.9.9"]
)
def test_a_loopback_port_serves_loopback_names(host: str) -> None:
    assert app.refusal(host, listens_on_loopback=True) == ""


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:9200", "10.0.0.1"],
)
def test_a_loopback_port_refuses_names_that_a_site_may_point_to_it(host: str) -> None:
    assert "loopback" in app.refusal(host, listens_on_loopback=True)
    assert app.refusal(host, listens_on_loopback=False) == ""


def test_a_change_from_its_own_page_is_accepted() -> None:
    assert app.change_refusal(OWN, FORM, "secret", is_read_only=False) == ""
    without_origin = {"host": "127.0.0.1:9200"}
    assert app.change_refusal(without_origin, FORM, "secret", is_read_only=False) == ""


@pytest.mark.parametrize(
    ("headers", "form", "is_read_only", "noted"),
    [
        (OWN, FORM, True, "read-only"),
        (OWN, {}, False, "reload it"),
        (OWN, {"token": "guess"}, False, "reload it"),
        ({**OWN, "origin": "http://evil.example"}, FORM, False, "another site"),
        ({**OWN, "origin": "null"}, FORM, False, "another site"),
        ({**OWN, "origin": "http://127.0.0.1:9300"}, FORM, False, "another site"),
        ({**OWN, "sec-fetch-site": "cross-site"}, FORM, False, "another site"),
        ({**OWN, "sec-fetch-site": "same-site"}, FORM, False, "another site"),
    ],
)
def test_other_changes_are_refused(
    headers: dict[str, str], form: dict[str, str], is_read_only: bool, noted: str
) -> None:
    refused = app.change_refusal(headers, form, "secret", is_read_only=is_read_only)
    assert noted in refused


def test_the_policy_allows_no_inline_code() -> None:
    policy = app.HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")


def test_the_pages_of_a_topic_offer_what_the_user_may_change() -> None:
    allowed = {("WRITE", "TOPIC", "clicks"), ("ALTER", "CLUSTER", "kafka-cluster")}

    def rights(topic: str, *, is_read_only: bool = False) -> set[str]:
        return {*app.rights(topic, lambda *asked: asked in allowed, is_read_only=is_read_only)}

    assert rights("clicks") == {"WRITE", app.MOVE_LEADERS}
    assert rights("orders") == {app.MOVE_LEADERS}
    assert rights("clicks", is_read_only=True) == rights("") == set()
    every = app.rights("__consumer_offsets", lambda *_asked: True, is_read_only=False)
    assert every == {app.MOVE_LEADERS}  # clients change no internal topic
