"""Checks of console requests, and headers that protect its pages. Pure.

These checks protect a loopback port against pages of other sites in a browser on the same machine:

- The Host header must name the loopback interface. Otherwise a site whose name resolves to
  127.0.0.1 (DNS rebinding) could read the pages.
- A change requires a token that only pages of the console contain, and the Origin of the console.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from raftlog.config import Address
from raftlog.security.acl import CLUSTER_NAME, Operation, ResourceType
from raftlog.types import is_internal_topic

TOKEN_FIELD: Final = "token"  # noqa: S105 - not a secret

# No inline script or style, nothing from other sites, no frames.
CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, the Origin of a form is "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

TOPIC_CHANGES: Final[tuple[Operation, ...]] = ("WRITE", "DELETE", "ALTER", "ALTER_CONFIGS")
MOVE_LEADERS: Final = "MOVE_LEADERS"


def refusal(host: str, *, listens_on_loopback: bool) -> str:
    """Return why a request with this Host header is refused; "" if it is not."""
    if not listens_on_loopback:
        return ""
    name = urlsplit(f"//{host}").hostname if host else None
    if name and Address(name, 0).is_loopback:
        return ""
    return (
        "this broker serves its console on the loopback interface, and the request is for the "
        f"host {host[:100]!r}. Use http://127.0.0.1:PORT or http://localhost:PORT"
    )


def change_refusal(
    headers: Mapping[str, str], form: Mapping[str, str], token: str, *, is_read_only: bool
) -> str:
    """Return why a changing request is refused; "" if it is not.

    ``headers``: by lower-case name. ``token``: token of the console's pages.
    """
    if is_read_only:
        return (
            "the console of this broker is read-only. Set http.console.read.only=false, which "
            "requires an http.listen on the loopback interface, or authentication.required=true"
        )
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        return "the request comes from a page of another site"
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return "the request comes from a page of another site"
    if not hmac.compare_digest(form.get(TOKEN_FIELD, "").encode(), token.encode()):
        return "the page is older than the broker's last start. Go back, reload it, and try again"
    return ""


def rights(
    topic: str, may: Callable[[Operation, ResourceType, str], bool], *, is_read_only: bool
) -> frozenset[str]:
    """Return which changes the pages of a topic offer: of ``TOPIC_CHANGES``, and ``MOVE_LEADERS``.

    ``topic``: "" on other pages. ``may``: whether the user may do an operation with a resource. The
    pages hide other changes; the brokers refuse them.
    """
    if is_read_only or not topic:
        return frozenset()
    found = {MOVE_LEADERS} if may("ALTER", "CLUSTER", CLUSTER_NAME) else set()
    if not is_internal_topic(topic):
        found |= {operation for operation in TOPIC_CHANGES if may(operation, "TOPIC", topic)}
    return frozenset(found)
