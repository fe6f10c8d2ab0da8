"""Broker whose metrics can be disabled, in a separate process that ``metrics`` starts.

Metrics have no switch. For the comparison, every function of the server that counts has a second
version, compiled from its source without the statements that count. A line on standard input
selects the version; the response is the CPU time of the process.
"""

from __future__ import annotations

import ast
import inspect
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from raftlog.config import BrokerConfig
from raftlog.server import main

WITH: Final = "with"
WITHOUT: Final = "without"
_COUNTERS: Final = ("counters", "_counters")
_PACKAGE: Final = "raftlog.server."


class _WithoutCounting(ast.NodeTransformer):
    """Removes calls of counters and additions to them. Their clock returns 0."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        is_counted = isinstance(node.value, ast.Call) and _counts(node.value.func)
        return ast.copy_location(ast.Pass(), node) if is_counted else self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if _counts(node.target) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_clock = isinstance(node.func, ast.Attribute) and node.func.attr == "now"
        if is_clock and _counts(node.func):
            return ast.copy_location(ast.Constant(0.0), node)
        return self.generic_visit(node)


def _counts(node: ast.AST) -> bool:
    """Return whether an attribute is one of counters, such as ``self._counters.requests``."""
    while isinstance(node, ast.Attribute):
        if node.attr in _COUNTERS:
            return True
        node = node.value
    return isinstance(node, ast.Name) and node.id in _COUNTERS


def versions(module: ModuleType) -> Iterator[tuple[FunctionType, CodeType, CodeType]]:
    """Yield each function of the module that counts, with its code with and without counting.

    Both code objects are new, so that the interpreter has optimized neither of them.
    """
    source = inspect.getsource(module)
    if not any(name in source for name in _COUNTERS):
        return
    path = module.__file__ or ""
    own, without = (
        {_place(code): code for code in _codes(compile(tree, path, "exec", dont_inherit=True))}
        for tree in (ast.parse(source), _WithoutCounting().visit(ast.parse(source)))
    )
    for function in _functions(module):
        place = _place(function.__code__)
        if (
            place in own
            and own[place].co_code != without[place].co_code
            and own[place].co_freevars == without[place].co_freevars
        ):
            yield function, own[place], without[place]


def _place(code: CodeType) -> tuple[str, int]:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    for value in vars(module).values():
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            if isinstance(member, FunctionType) and member.__module__ == module.__name__:
                yield member


class Switch:
    """Selects one of two versions of all functions of the server that count."""

    def __init__(self) -> None:
        server = [module for name, module in sys.modules.items() if name.startswith(_PACKAGE)]
        found = [each for module in server for each in versions(module)]
        self.functions = [function for function, _, _ in found]
        self._codes = {
            WITH: [code for _, code, _ in found],
            WITHOUT: [code for _, _, code in found],
        }

    def select(self, version: str) -> None:
        """Use the functions ``WITH`` or ``WITHOUT`` counting, from their next call."""
        for function, code in zip(self.functions, self._codes[version], strict=True):
            function.__code__ = code


def _respond() -> None:
    """Respond to the lines on standard input, until its end."""
    switch: Any = None
    for line in sys.stdin:
        switch = switch or Switch()  # all modules are imported now
        switch.select(line.strip())
        sys.stdout.write(f"{time.process_time_ns()} {len(switch.functions)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    threading.Thread(target=_respond, daemon=True).start()
    main.run(BrokerConfig.from_text(dict(word.split("=", 1) for word in sys.argv[1:])))
