"""Assignors of a broker: the built-in ones, and those of the operator."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence

from raftlog.consumer_groups import BUILT_IN, DEFAULT_ASSIGNOR, Assignor, named
from raftlog.errors import InvalidConfigError


def load_assignors(wanted: Sequence[str]) -> tuple[Mapping[str, Assignor], str]:
    """Return the assignors by the names that consumers request, and the name of the first one in
    ``wanted``.

    ``wanted``: names of built-in assignors, or ``module:attribute``: an ``Assignor``, or a class
    that creates one. Raises ``InvalidConfigError`` with the problem.
    """
    found = [_load(name) for name in wanted]
    own = [assignor for assignor in found if assignor not in BUILT_IN.values()]
    try:
        by_name = named(own)
    except ValueError as error:
        raise InvalidConfigError(f"group.assignors={','.join(wanted)}: {error}") from error
    # The default is the fallback for others.
    offered = {DEFAULT_ASSIGNOR, *(assignor.name for assignor in found)}
    return {name: by_name[name] for name in by_name if name in offered}, found[0].name


def _load(name: str) -> Assignor:
    built_in = BUILT_IN.get(name)
    if built_in is not None:
        return built_in
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise _refused(
            name, f"it is not one of {', '.join(sorted(BUILT_IN))}, and not module:attribute"
        )
    try:
        found = getattr(importlib.import_module(module_name), attribute)
        assignor = found() if isinstance(found, type) else found
    except Exception as error:  # an operator's module can raise anything
        raise _refused(name, f"{type(error).__name__}: {error}") from error
    if not (hasattr(assignor, "name") and callable(getattr(assignor, "assign", None))):
        raise _refused(
            name, "it is not a raftlog.consumer_groups.Assignor with `name` and `assign`"
        )
    checked: Assignor = assignor
    return checked


def _refused(name: str, why: str) -> InvalidConfigError:
    return InvalidConfigError(f"group.assignors: {name} cannot be loaded: {why}")
