"""How a guard is taken out of a function: operations on nodes of its syntax tree.

Each takes addresses (see ``address``) of what is changed. In the text of a replacement ``_`` is the
node that was found, and ``_.left``, ``_.args[0]`` and so on are its parts, by their names in
``ast``: local variables are named so, and may have other names tomorrow.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from tests.mutation.address import SIGNS, Place, StaleAddressError

OPERATORS: Final = {sign: kind for kind, sign in SIGNS.items()}
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True, slots=True)
class Edit:
    """``addresses`` are found first, then ``work`` changes what they fit."""

    addresses: tuple[str, ...]
    work: Callable[[Place, list[ast.AST]], None]
    key: tuple[str, ...]
    replacement: str = ""  # Python that names what the function has to know


@dataclass(frozen=True, slots=True)
class Change:
    """Some edits of one function, made together."""

    edits: tuple[Edit, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for changes that do the same."""
        return tuple((edit.addresses, edit.key) for edit in self.edits)

    def find(self, place: Place) -> list[list[ast.AST]]:
        """The nodes of each edit. Raises ``StaleAddressError``."""
        return [[place.find(address) for address in edit.addresses] for edit in self.edits]

    def apply(self, place: Place) -> None:
        """Change the tree. Raises ``StaleAddressError``."""
        for edit, nodes in zip(self.edits, self.find(place), strict=True):
            edit.work(place, nodes)


def both(*changes: Change) -> Change:
    """All of them."""
    return Change(tuple(edit for change in changes for edit in change.edits))


def drop(*addresses: str) -> Change:
    """Without these: statements, operands, keyword arguments, conditions of comprehensions."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        for node in nodes:
            _put(place, _whole(place, node), [])

    return _change(addresses, work, "drop")


def replace(address: str, by: str) -> Change:
    """``by``: an expression in an expression's place, statements in a statement's."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        (found,) = nodes
        whole = _whole(place, found)
        new = _filled(ast.parse(by), found).body
        if isinstance(whole, ast.stmt):
            _put(place, whole, new)
        else:
            _put(place, found, [_only_expression(new, by)])

    return _change((address,), work, "replace", by, replacement=by)


def value(address: str, by: str) -> Change:
    """What is assigned or returned, or an if's or while's condition; ``_`` is what it was."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        field = "test" if hasattr(nodes[0], "test") else "value"
        old = getattr(nodes[0], field)
        setattr(nodes[0], field, _filled(_expression(by), old))

    return _change((address,), work, "value", by, replacement=by)


def never(address: str) -> Change:
    """A condition that does not hold: of an if or while, or an expression."""
    return _fixed(address, False)


def always(address: str) -> Change:
    """A condition that holds."""
    return _fixed(address, True)


def swap(address: str, sign: str) -> Change:
    """A comparison, an arithmetic operation, or an ``and`` or ``or``, with another operator."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        operator = OPERATORS[sign]()
        if isinstance(nodes[0], ast.Compare):
            assert len(nodes[0].ops) == 1, "a chain of comparisons"
            nodes[0].ops = [operator]  # type: ignore[list-item]
        else:
            nodes[0].op = operator  # type: ignore[attr-defined]

    return _change((address,), work, "swap", sign)


def calls(address: str, function: str) -> Change:
    """Another method of the same object, or with a dot in it another function; same arguments."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        (call,) = nodes
        assert isinstance(call, ast.Call), address
        if "." not in function and isinstance(call.func, ast.Attribute):
            call.func.attr = function
        else:
            call.func = _expression(function)

    return _change((address,), work, "calls", function)


def argument(address: str, which: int | str, by: str) -> Change:
    """A call with another positional (from 0) or keyword argument."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        (call,) = nodes
        assert isinstance(call, ast.Call), address
        if isinstance(which, int):
            call.args[which] = _filled(_expression(by), call)
        else:
            given = next(each for each in call.keywords if each.arg == which)
            given.value = _filled(_expression(by), call)

    return _change((address,), work, "argument", str(which), by, replacement=by)


def move(address: str, *, after: str) -> Change:
    """A statement that comes later."""

    def work(place: Place, nodes: list[ast.AST]) -> None:
        early, late = (_whole(place, node) for node in nodes)
        _put(place, late, [late, early])
        block = _block(place, early)
        del block[next(n for n, each in enumerate(block) if each is early)]

    return _change((address, after), work, "move")


def _change(
    addresses: tuple[str, ...],
    work: Callable[[Place, list[ast.AST]], None],
    *key: str,
    replacement: str = "",
) -> Change:
    return Change((Edit(addresses, work, key, replacement),))


def _fixed(address: str, value: bool) -> Change:
    def work(place: Place, nodes: list[ast.AST]) -> None:
        node = getattr(nodes[0], "test", nodes[0])
        _put(place, node, [ast.Constant(value)])

    return _change((address,), work, str(value))


def _whole(place: Place, node: ast.AST) -> ast.AST:
    """The statement that is all this expression, awaited or not; else the node itself."""
    above = place.parents[node]
    if isinstance(above, ast.Await):
        above = place.parents[above]
    return above if isinstance(above, ast.Expr) else node


def _block(place: Place, node: ast.AST) -> list[ast.AST]:
    for _field, value in ast.iter_fields(place.parents[node]):
        if isinstance(value, list) and any(each is node for each in value):
            return value
    raise StaleAddressError(f"{ast.unparse(node)!r} is no item of a list")


def _put(place: Place, node: ast.AST, new: list[ast.AST]) -> None:
    """``new`` where ``node`` is; a block that has nothing left gets a ``pass``."""
    parent = place.parents[node]
    for field, value in ast.iter_fields(parent):
        if value is node:
            setattr(parent, field, new[0])
        elif isinstance(value, list) and any(each is node for each in value):
            at = next(n for n, each in enumerate(value) if each is node)
            value[at : at + 1] = new
            if not value and field == "body":
                value.append(ast.Pass())
            if isinstance(parent, ast.BoolOp) and len(value) == 1:
                _put(place, parent, list(value))
    for each in new:
        place.parents.setdefault(each, parent)


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _only_expression(body: list[ast.stmt], text: str) -> ast.expr:
    (statement,) = body
    assert isinstance(statement, ast.Expr), text
    return statement.value


def _filled(new: Node, found: ast.AST) -> Node:
    """``new`` with ``_`` and its parts put in from ``found``."""
    return cast(Node, _Filling(found).visit(new))


class _Filling(ast.NodeTransformer):
    def __init__(self, found: ast.AST) -> None:
        self._found = found

    def visit(self, node: ast.AST) -> Any:
        if (
            isinstance(node, ast.Expr)
            and isinstance(self._found, ast.stmt)
            and _is_hole(node.value)
        ):
            return copy.deepcopy(self._found)
        part = self._part(node)
        return copy.deepcopy(part) if isinstance(part, ast.AST) else self.generic_visit(node)

    def _part(self, node: ast.AST) -> object:
        """What a path from ``_`` on leads to; None if it is no such path."""
        if _is_hole(node):
            return self._found
        if isinstance(node, ast.Attribute):
            inner = self._part(node.value)
            return getattr(inner, node.attr, None) if isinstance(inner, ast.AST) else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            inner = self._part(node.value)
            return inner[node.slice.value] if isinstance(inner, list) else None
        return None


def _is_hole(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "_"


def names_needed(replacement: str) -> set[str]:
    """What a replacement takes from its function or module, or from Python itself."""
    nodes = list(ast.walk(ast.parse(replacement)))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return used - own - {"_", "self"} - set(dir(builtins))
