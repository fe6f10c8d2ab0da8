"""Hypothesis strategies for whole messages, read off the message classes themselves."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec.inspect as inspect
from hypothesis import strategies as st

from raftlog.protocol.api import APIS, Api
from raftlog.protocol.schema import Failure, Message

_INT_MIN: Final = -(1 << 63)  # what msgpack can carry
_INT_MAX: Final = (1 << 64) - 1
_ITEMS_MAX: Final = 4  # of a list or map, where the message would allow many more


@cache
def messages(message_type: type[Message]) -> st.SearchStrategy[Any]:
    """Any message of ``message_type`` that keeps to the bounds in its field types."""
    return _strategy(inspect.type_info(message_type))


def apis() -> st.SearchStrategy[Api]:
    return st.sampled_from(list(APIS.values()))


def message_types() -> list[type[Message]]:
    """Every type that is the header of some frame."""
    types = {api.request for api in APIS.values()} | {api.response for api in APIS.values()}
    return sorted({*types, Failure}, key=lambda message_type: message_type.__name__)


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    if isinstance(info, inspect.StructType):
        fields = {field.name: _strategy(field.type) for field in info.fields}
        return st.builds(info.cls, **fields)
    if isinstance(info, inspect.UnionType):
        return st.one_of([_strategy(part) for part in info.types])
    if isinstance(info, inspect.ListType):
        least = info.min_length or 0
        most = min(info.max_length or _ITEMS_MAX, least + _ITEMS_MAX)
        return st.lists(_strategy(info.item_type), min_size=least, max_size=most)
    if isinstance(info, inspect.DictType):
        items = (_strategy(info.key_type), _strategy(info.value_type))
        return st.dictionaries(*items, max_size=_ITEMS_MAX)
    return _scalar(info)


def _scalar(info: inspect.Type) -> st.SearchStrategy[Any]:
    if isinstance(info, inspect.IntType):
        low = [_INT_MIN, info.ge, None if info.gt is None else info.gt + 1]
        high = [_INT_MAX, info.le, None if info.lt is None else info.lt - 1]
        return st.integers(
            max(bound for bound in low if bound is not None),
            min(bound for bound in high if bound is not None),
        )
    if isinstance(info, inspect.FloatType):
        return st.floats(info.gt, info.le, exclude_min=info.gt is not None, allow_nan=False)
    if isinstance(info, inspect.StrType):
        return st.text(min_size=info.min_length or 0, max_size=info.max_length)
    if isinstance(info, inspect.BytesType):
        return st.binary(min_size=info.min_length or 0, max_size=info.max_length)
    if isinstance(info, inspect.LiteralType):
        return st.sampled_from(info.values)
    if isinstance(info, inspect.BoolType):
        return st.booleans()
    if isinstance(info, inspect.NoneType):
        return st.none()
    raise NotImplementedError(f"a field of a kind that no message had before: {info}")
