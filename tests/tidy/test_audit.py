"""What `make audit` concludes from a report: it never mistakes a missing answer for a good one."""

from __future__ import annotations

import json

from tests.audit import Result, conclude, read

VULNERABLE = {
    "name": "a",
    "version": "1",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
SAFE = {"name": "b", "version": "1", "vulns": []}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found"}


def test_advisories_fail() -> None:
    result = read(json.dumps({"dependencies": [VULNERABLE, SAFE, UNKNOWN]}))
    assert (result.audited, result.skipped) == (2, 1)
    status, text = conclude(result, strict=False)
    assert status == 1
    assert "a 1: PYSEC-1, fixed in 2\na 1: PYSEC-2, fixed in no version yet" in text


def test_what_could_not_be_compared_is_no_success() -> None:
    none = read(json.dumps({"dependencies": [UNKNOWN]}))
    for result in (none, OSError("no route")):
        status, text = conclude(result, strict=False)
        assert (status, "not done" in text) == (0, True)
        assert conclude(result, strict=True)[0] == 1
    assert conclude(Result(1, 1, []), strict=True) == (
        0,
        "audit: no known vulnerability in 1 (1 not known)",
    )
