"""One guard of the product, and how its source reads without it. Nothing is run here."""

from __future__ import annotations

from dataclasses import dataclass


class StaleGuardError(Exception):
    """The code has changed: the text that is to be replaced does not stand in it exactly once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A place in the code without which a promise breaks.

    ``module`` and ``tests`` are paths from the repository's root; tests may be pytest's node ids.
    ``old`` stands in the module once; with ``new`` in its place, at least one of the tests fails.
    """

    name: str
    why: str  # what happens without it
    module: str
    old: str
    new: str
    tests: tuple[str, ...]

    def switched_off(self, text: str) -> str:
        """The module's ``text`` without the guard. Raises ``StaleGuardError``."""
        count = text.count(self.old)
        if count != 1:
            raise StaleGuardError(
                f"{self.name}: {self.module} has the text {self.old!r} {count} times, not once: "
                "the code has changed, and the guard's entry has to follow it"
            )
        return text.replace(self.old, self.new)
