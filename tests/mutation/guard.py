"""One guard of the product, and the change of the code that takes it out. Nothing is run here.

Its statement has a comment, docs/contributing/mutations.md has a row (``tests.mutation.guards``):

    # guard: progress is counted in its own epoch
    if progress.leader_epoch != self.leader_epoch:

    | progress is counted in its own epoch | what a follower had on its disk under an old leader
    is counted | `never("if leader_epoch progress")` | `server/cluster/test_fetch_session.py::...` |

``change`` says what to do (``tests/mutation/change.py``) with which node of the function's syntax
tree (``tests/mutation/address.py``). ``python -m tests.mutation.run --at raftlog/disk.py:120``
prints the addresses of what stands on that line.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.mutation.address import Place, StaleAddressError, line_of, parsed
from tests.mutation.change import Change, names_needed


class StaleGuardError(Exception):
    """The code has changed: the entry does not fit it any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A place in the code without which a promise breaks.

    ``module`` and ``tests`` are paths from the repository's root; tests may be pytest's node ids.
    ``function`` is a qualified name, such as ``Log.append``; "" is the module itself. With
    ``change`` made in it, at least one of the tests fails.
    """

    name: str
    why: str  # what happens without it
    module: str
    function: str
    change: Change
    tests: tuple[str, ...]

    def switched_off(self, text: str) -> str:
        """The module's ``text`` without the guard. Raises ``StaleGuardError``."""
        place = self._place(text)
        self.change.apply(place)
        return place.put_into(text)

    def line(self, text: str) -> int:
        """The line of ``text``, from 1, that is changed first. Raises ``StaleGuardError``."""
        return min(line_of(node, parents) for node, parents in self._changed(text))

    def statement_line(self, text: str) -> int:
        """The line of the statement, or ``except``, around that. Raises ``StaleGuardError``."""
        return min(_statement_line(node, parents) for node, parents in self._changed(text))

    def _changed(self, text: str) -> Iterator[tuple[ast.AST, dict[ast.AST, ast.AST]]]:
        try:
            place = unchanged(text, self.function)
            found = self.change.find(place)
        except StaleAddressError as error:
            raise StaleGuardError(f"{self.name}: {error}") from error
        return ((node, place.parents) for nodes in found for node in nodes)

    def _place(self, text: str) -> Place:
        tree = parsed(text)
        try:
            place = Place(tree, self.function)
            self.change.find(place)
            self._check_names(place, tree)
        except StaleAddressError as error:
            raise StaleGuardError(
                f"{self.name}: {self.module}, {self.function}: {error}"
            ) from error
        return place

    def _check_names(self, place: Place, tree: ast.Module) -> None:
        """A name that is gone would fail every test, for no reason of the guard's."""
        for edit in self.change.edits:
            needed = names_needed(edit.replacement)
            unknown = needed and needed - place.locals - _defined(tree)
            if unknown:
                raise StaleAddressError(f"{edit.replacement!r} names {', '.join(sorted(unknown))}")


def _statement_line(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> int:
    while not isinstance(node, ast.stmt | ast.ExceptHandler):
        node = parents[node]
    decorators = getattr(node, "decorator_list", [])
    return min(each.lineno for each in (node, *decorators))


@cache
def unchanged(text: str, function: str) -> Place:
    """The place of a guard. Not to be changed: others get the same."""
    return Place(parsed(text), function)


@cache
def _defined(tree: ast.Module) -> frozenset[str]:
    return frozenset(_names_defined(tree))


def _names_defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
    for statement in tree.body:
        for node in (
            ast.walk(statement) if isinstance(statement, ast.Assign | ast.AnnAssign) else ()
        ):
            if isinstance(node, ast.Name):
                yield node.id
