"""The index of scenarios names tests that exist, and all that bear a scenario's name."""

from __future__ import annotations

import re

from tests.scenarios.index import SCENARIOS
from tests.tidy import sources

NUMBERED = re.compile(r"test_(s\d\d)_")
DEFINITION = re.compile(rf"\bdef\s+{NUMBERED.pattern}")

DEFINED = {
    (source.path, function.name)
    for source in sources.tests()
    if source.path.rpartition("/")[2].startswith("test_")  # what pytest collects
    and DEFINITION.search(source.text)  # the others need not be parsed
    for function in source.functions
    if NUMBERED.match(function.name)
}


def test_all_are_there() -> None:
    assert list(SCENARIOS) == [f"S{number:02}" for number in range(1, 42)]


def test_the_tests_of_a_scenario_exist_and_bear_its_name() -> None:
    for number in SCENARIOS:
        scenario = SCENARIOS[number]
        assert bool(scenario.tests) != bool(scenario.why_none), (
            "a test, or a reason why there is none"
        )
        for place in scenario.tests:
            assert place in DEFINED
            assert place[1].startswith(f"test_{number.lower()}_")


def test_each_part_of_a_scenario_has_a_test_of_its_own() -> None:
    for number in SCENARIOS:
        scenario = SCENARIOS[number]
        if scenario.why_none:
            continue
        functions = {function for _path, function in scenario.tests}
        for part in scenario.name.split(" / "):
            own = {name for name in functions if name.startswith(f"test_{number.lower()}_{part}")}
            assert own, f"no test of {part}"
            functions -= own


def test_no_scenarios_test_is_left_out() -> None:
    listed = [place for scenario in SCENARIOS.values() for place in scenario.tests]
    assert len(set(listed)) == len(listed)
    assert set(listed) == DEFINED
