"""Where in a function something stands: a node of its syntax tree, by what it is and mentions.

An address is one line of words, such as ``if errno NO_DESCRIPTOR``, ``call sync_dir`` or
``assign start #2/3``: a kind; what the node mentions besides local variables, in any order; and
where several nodes are alike, which of how many. It has to fit exactly one node.

Kinds of statements: ``if for while with try except return raise assert assign delete def pass``
(``call`` for a call that is a statement). A statement with a block mentions what its head does, and
what the simple statements of its block do. Kinds of expressions: ``call compare and or not`` and
others by their names in ``ast``, in lower case; and by where they stand: ``condition`` (of an if, a
while, an assert), ``operand`` (of an ``and`` or ``or``), ``filter`` (of a comprehension),
``argument`` and ``keyword`` (of a call). What may be mentioned: attributes, names of modules,
functions and constants, ``keyword=``, literals without blanks, operators. A call's function comes
first.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import textwrap
from collections.abc import Collection, Iterator
from functools import cache
from itertools import combinations
from typing import Final, TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
Scope: TypeAlias = ast.Module | ast.ClassDef | Function

SIGNS: Final[dict[type[ast.AST], str]] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is-not", ast.In: "in", ast.NotIn: "not-in", ast.And: "and",
    ast.Or: "or", ast.Not: "not", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//",
    ast.Div: "/", ast.Mod: "%", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&",
    ast.BitOr: "|", ast.BitXor: "^", ast.Invert: "~", ast.USub: "minus",
}  # fmt: skip
KINDS: Final[dict[str, str]] = {
    "asyncfor": "for",
    "asyncwith": "with",
    "annassign": "assign",
    "augassign": "assign",
    "excepthandler": "except",
    "asyncfunctiondef": "def",
    "functiondef": "def",
}
_ALIKE: Final = re.compile(r"#(\d+)/(\d+)")


# What is worth an address of its own when a line is asked for.
_ADDRESSED: Final = (
    *(ast.If, ast.For, ast.While, ast.With, ast.Return, ast.Raise, ast.Assert, ast.Assign),
    *(ast.AugAssign, ast.AnnAssign, ast.Call, ast.Compare, ast.BoolOp),
)


class StaleAddressError(Exception):
    """The code has changed: the address fits no node, or several."""


class Place:
    """A copy of the function called ``qualified`` of a module's ``tree``; "" for the module itself.

    Raises ``StaleAddressError`` if there is none, or if there are several.
    """

    def __init__(self, tree: ast.Module, qualified: str) -> None:
        self.original, around = _scope(tree, qualified)
        self.scope = copy.deepcopy(self.original)
        self.parents = {
            child: node for node in ast.walk(self.scope) for child in ast.iter_child_nodes(node)
        }
        functions = [scope for scope in around if isinstance(scope, Function)]
        self.locals = frozenset(name for function in functions for name in _locals(function))
        self._words_of: dict[ast.AST, frozenset[str]] = {}

    def find(self, address: str) -> ast.AST:
        """Raises ``StaleAddressError``."""
        kind, *words = address.split()
        which = _ALIKE.fullmatch(words[-1]) if words else None
        if which:
            words.pop()
        found = self.fitting(kind, words)
        number, count = (int(which[1]), int(which[2])) if which else (1, 1)
        if len(found) != count or not 1 <= number <= count:
            lines = ", ".join(str(line_of(node, self.parents)) for node in found) or "none"
            raise StaleAddressError(
                f"{address!r} fits {len(found)} places, not {count} (lines: {lines}): "
                "the code has changed, and the guard's entry has to follow it"
            )
        return found[number - 1]

    def fitting(self, kind: str, words: list[str]) -> list[ast.AST]:
        return [
            node
            for node in _below(self.scope)
            if kind in self._kinds(node) and self._mentions(node, kind, words)
        ]

    def address(self, node: ast.AST) -> str:
        """One that fits ``node`` alone: few words that tell much, an ordinal only if it must."""
        found = (
            candidate
            for rank, kind in enumerate(self._kinds(node))
            for candidate in self._candidates(node, kind, rank)
        )
        return min(found, key=lambda candidate: candidate[0])[1]

    def _candidates(self, node: ast.AST, kind: str, rank: int) -> Iterator[tuple[int, str]]:
        """With what each costs."""
        first = [_called(node)] if isinstance(node, ast.Call) and kind == "call" else []
        head = set()
        for part in list(_distinguishing(node))[:1]:
            head |= {
                word for each in _below(part, itself=True) for word in _words(each, self.locals)
            }
        telling = sorted(
            self.mentioned(node) - set(first), key=lambda w: (_how_telling(w), w not in head, w)
        )
        for count in range(3):
            for chosen in combinations(telling[:12], count):
                words = [*first, *chosen]
                found = self.fitting(kind, words)
                if node in found:
                    alike = f" #{found.index(node) + 1}/{len(found)}" if len(found) > 1 else ""
                    vague = sum(_how_telling(word) for word in words) if words else 2
                    cost = 2 * len(found) + len(words) + 2 * vague + rank
                    yield cost, " ".join((kind, *words)) + alike

    def put_into(self, text: str) -> str:
        """The module's ``text`` with this function as it was changed, and without its comments."""
        new = ast.unparse(ast.fix_missing_locations(self.scope))
        if isinstance(self.original, ast.Module):
            return new + "\n"
        lines = text.splitlines(keepends=True)
        first = min(node.lineno for node in (self.original, *self.original.decorator_list))
        indented = textwrap.indent(new, " " * self.original.col_offset) + "\n"
        return "".join((*lines[: first - 1], indented, *lines[self.original.end_lineno :]))

    def mentioned(self, node: ast.AST) -> frozenset[str]:
        """Words that distinguish ``node``; nothing that is local to its function."""
        if node not in self._words_of:
            parts = (each for part in _distinguishing(node) for each in _below(part, itself=True))
            words = {word for each in parts for word in _words(each, self.locals)}
            called = {_called(node)} if isinstance(node, ast.Call) else set()
            self._words_of[node] = frozenset(words | called)
        return self._words_of[node]

    def _mentions(self, node: ast.AST, kind: str, words: list[str]) -> bool:
        if kind == "call" and isinstance(node, ast.Call) and words[:1] != [_called(node)]:
            return False
        return self.mentioned(node).issuperset(words)

    def _kinds(self, node: ast.AST) -> list[str]:
        own = type(node).__name__.lower()
        if isinstance(node, ast.BoolOp):
            own = SIGNS[type(node.op)]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            own = "not"
        kinds = [KINDS.get(own, own)]
        parent = self.parents.get(node)
        if isinstance(parent, ast.BoolOp) and node in parent.values:
            kinds.append("operand")
        if isinstance(parent, ast.If | ast.While | ast.Assert | ast.IfExp) and node is parent.test:
            kinds.append("condition")
        if isinstance(parent, ast.comprehension) and node in parent.ifs:
            kinds.append("filter")
        if isinstance(parent, ast.Call) and node in parent.args:
            kinds.append("argument")
        return [] if kinds == ["expr"] else kinds


def addresses_on(text: str, line: int) -> Iterator[str]:
    """The function around a ``line``, from 1, and the addresses of what begins there."""
    qualified = around(parsed(text), line)
    yield f'function="{qualified}"'
    place = Place(parsed(text), qualified)
    for node in _below(place.scope):
        if getattr(node, "lineno", 0) == line and isinstance(node, _ADDRESSED):
            yield f'"{place.address(node)}"  # {ast.unparse(node).splitlines()[0]}'


def around(tree: ast.Module, line: int) -> str:
    """Return the qualified name of the function or class around a ``line``, from 1."""
    names: list[str] = []
    scope: ast.AST = tree
    while True:
        inner = [d for d in _definitions(scope) if d.lineno <= line <= (d.end_lineno or 0)]
        if not inner:
            return ".".join(names)
        scope = inner[0]
        names.append(inner[0].name)


@cache
def parsed(text: str) -> ast.Module:
    """Not to be changed: others get the same."""
    return ast.parse(text)


def line_of(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> int:
    while not hasattr(node, "lineno"):
        node = parents[node]
    return int(node.lineno)


def _scope(tree: ast.Module, qualified: str) -> tuple[Scope, list[Scope]]:
    scope: Scope = tree
    around: list[Scope] = [tree]
    for name in filter(None, qualified.split(".")):
        found = [node for node in _definitions(scope) if node.name == name and not _is_setter(node)]
        if len(found) != 1:
            raise StaleAddressError(f"there are {len(found)} definitions of {name} in {qualified}")
        scope = found[0]
        around.append(scope)
    return scope, around


def _definitions(scope: ast.AST) -> Iterator[ast.ClassDef | Function]:
    """Those that belong to ``scope``, not to others in it."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, ast.ClassDef | Function):
            yield child
        else:
            yield from _definitions(child)


def _is_setter(node: ast.ClassDef | Function) -> bool:
    """It has the name of another function, its property."""
    return any(isinstance(d, ast.Attribute) and d.attr == "setter" for d in node.decorator_list)


def _below(node: ast.AST, *, itself: bool = False) -> Iterator[ast.AST]:
    if itself:
        yield node
    for child in ast.iter_child_nodes(node):
        yield from _below(child, itself=True)


def _distinguishing(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` itself; of a statement with a block its head, and its block's simple statements."""
    if not isinstance(getattr(node, "body", None), list):
        yield node
        return
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            yield value
        elif field in {"items", "type"}:
            yield from value
        elif field == "body":
            yield from (each for each in value if not isinstance(getattr(each, "body", None), list))


def _words(node: ast.AST, unnamed: Collection[str]) -> Iterator[str]:
    match node:
        case ast.Name(id=name) if name in unnamed or name in {"self", "cls"}:
            return
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.keyword(arg=str(name)):
            yield f"{name}="
        case ast.Constant(value=value) if not re.search(r"\s", repr(value)):
            yield repr(value)
        case ast.Compare(ops=ops):
            yield from (SIGNS[type(op)] for op in ops)
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            yield SIGNS.get(type(op), type(op).__name__)


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "?")


def _how_telling(word: str) -> int:
    """Less is better: names, then literals, built-ins and such, then operators."""
    if word in SIGNS.values():
        return 2
    return 0 if word.isidentifier() and not hasattr(builtins, word) and len(word) > 3 else 1


def _locals(function: Function) -> set[str]:
    """Its arguments and variables, and those of functions in it; not what it imports."""
    names = {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
    names |= {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    names |= {
        node.name
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and node.name
    }
    names |= {
        node.name
        for node in ast.walk(function)
        if isinstance(node, Function) and node is not function
    }
    known = {
        n
        for node in ast.walk(function)
        if isinstance(node, ast.Global | ast.Nonlocal)
        for n in node.names
    }
    return names - known - {"self", "cls"}
