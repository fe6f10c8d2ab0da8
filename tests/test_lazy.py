"""Names that a package imports at their first use."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from raftlog.lazy import lazy_names


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("lazy_package")
    made.__getattr__ = lazy_names("lazy_package", {"Fraction": "fractions"})  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_package", made)
    return made


def test_a_name_is_imported_once(package: ModuleType) -> None:
    from fractions import Fraction

    assert "Fraction" not in vars(package)
    assert package.Fraction is Fraction
    assert vars(package)["Fraction"] is Fraction


def test_other_names_are_refused_as_any_module_does(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'nothing'"):
        package.nothing  # noqa: B018 - looking it up is the test
