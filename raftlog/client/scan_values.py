"""Decode a column of JSON objects to Arrow columns, with Arrow's own reader.

Arrow parses all values of a batch together; Python code per value runs only to find values that do
not match. Each value is wrapped in an object of one field, so a value that is cut off or that
contains two documents cannot shift the rows after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raftlog import limits
from raftlog.errors import InvalidRequestError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_FIELD: Final = "r"  # of the object around each value
_PREFIX: Final = b'{"r":'
_SUFFIX: Final = b"}\n"
_BLOCK_BYTES: Final = limits.MIB  # Arrow parses blocks in parallel
_SHOWN_BYTES_MAX: Final = 80  # of a value in an error


class JsonDecoder:
    """Converts JSON objects to columns of fixed types. Pure.

    ``schema``: the fields to decode; other fields of the objects are ignored, and missing ones are
    null. ``null_on_error``: a value that does not match is null in every column.
    """

    def __init__(self, schema: pa.Schema, *, null_on_error: bool) -> None:
        import pyarrow as pa

        self.schema = schema
        self._type = pa.struct(list(schema))
        self._null_on_error = null_on_error

    def decode(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns of ``schema``. Null values are null in each.

        Raises ``BadValueError`` for the first value that is not a JSON object of these types.
        """
        rows, places = _rows(values, self._type, null_on_error=self._null_on_error)
        if places is not None:
            rows = rows.take(places)
        columns: list[pa.Array] = rows.flatten()
        return columns


class BadValueError(Exception):
    """A value that is not JSON, or of other types. ``row``: its index; ``reason``: by Arrow."""

    def __init__(self, row: int, value: bytes, reason: str) -> None:
        shown = value[:_SHOWN_BYTES_MAX].decode(errors="replace")
        super().__init__(f"{shown!r}{'…' if len(value) > _SHOWN_BYTES_MAX else ''}: {reason}")
        self.row = row


def infer(values: pa.Array, *, null_on_error: bool) -> pa.Schema | None:
    """Return the fields of JSON objects, in the order of their appearance; None without a value.

    Times are text, because only some of the values may have the format that Arrow recognizes.

    Raises ``BadValueError`` if a value is not JSON or fields differ in type, unless
    ``null_on_error``, and ``InvalidRequestError`` if the values are not objects.
    """
    import pyarrow as pa

    present = values.drop_null()
    if null_on_error:
        present = present.filter(pa.array(_decodable(present, dict)))
    try:
        rows = _parsed(present, None)
    except pa.ArrowInvalid:
        row, reason = _first_bad(present, None)
        if not null_on_error or row == 0:
            place = int(values.is_valid().to_numpy(zero_copy_only=False).nonzero()[0][row])
            raise BadValueError(place, present[row].as_py(), reason) from None
        rows = _parsed(present.slice(0, row), None)
    if pa.types.is_null(rows.type):
        return None
    if not pa.types.is_struct(rows.type):
        raise InvalidRequestError(
            f"the values are JSON of the type {rows.type}, not objects with fields. Use "
            "value='text'"
        )
    return pa.schema(_plain(rows.type))


def _plain(data_type: pa.DataType) -> Any:
    """Return the type without the types that Arrow guesses from single values."""
    import pyarrow as pa

    if pa.types.is_struct(data_type):
        return pa.struct([pa.field(each.name, _plain(each.type)) for each in data_type])
    if pa.types.is_list(data_type):
        return pa.list_(_plain(data_type.value_type))
    if pa.types.is_null(data_type) or pa.types.is_timestamp(data_type):
        return pa.string()
    return data_type


def _rows(
    values: pa.Array, data_type: pa.DataType, *, null_on_error: bool
) -> tuple[Any, pa.Array | None]:
    """Return the parsed values, and for each value the index of its row, if they differ."""
    import numpy as np
    import pyarrow as pa

    is_valid = values.is_valid().to_numpy(zero_copy_only=False)
    present = values.drop_null()
    try:
        rows = _parsed(present, data_type)
    except pa.ArrowInvalid:
        if not null_on_error:
            row, reason = _first_bad(present, data_type)
            place = int(np.flatnonzero(is_valid)[row])
            raise BadValueError(place, present[row].as_py(), reason) from None
        is_good = _matching(present, data_type)
        is_valid[np.flatnonzero(is_valid)[~is_good]] = False
        rows = _parsed(present.filter(pa.array(is_good)), data_type)
    return rows, None if len(rows) == len(values) else _places(is_valid)


def _places(is_valid: npt.NDArray[np.bool_]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.cumsum(is_valid) - 1, pa.int64(), mask=~is_valid)


def _first_bad(present: pa.Array, data_type: pa.DataType | None) -> tuple[int, str]:
    """Return the first value that cannot be parsed after those before it, with the reason."""
    import pyarrow as pa

    good, bad, reason = 0, len(present), ""  # the first ``good`` values are parsed, not ``bad``
    while bad - good > 1 or not reason:
        middle = (good + bad + 1) // 2
        try:
            _parsed(present.slice(0, middle), data_type)
            good = middle
        except pa.ArrowInvalid as error:
            bad, reason = middle, _reason(error)
            if bad == good:
                break
    return bad - 1, reason


def _matching(present: pa.Array, data_type: pa.DataType) -> npt.NDArray[np.bool_]:
    """Return which values can be parsed together. Runs only if one of them cannot.

    A decoder in C removes most of the others; Arrow divides the rest in halves.
    """
    import numpy as np
    import pyarrow as pa

    is_good = _decodable(present, _python_type(data_type))
    rows = np.flatnonzero(is_good)
    parts = [(0, len(rows))]
    while parts:
        start, stop = parts.pop()
        try:
            _parsed(present.take(pa.array(rows[start:stop])), data_type)
        except pa.ArrowInvalid:
            if stop - start == 1:
                is_good[rows[start]] = False
            else:
                middle = (start + stop) // 2
                parts += [(start, middle), (middle, stop)]
    return is_good


def _decodable(present: pa.Array, kind: Any) -> npt.NDArray[np.bool_]:
    """Return which values msgspec decodes as ``kind``."""
    import msgspec
    import numpy as np

    decode = msgspec.json.Decoder(kind).decode

    def is_decodable(value: bytes) -> bool:
        try:
            decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return False
        return True

    return np.fromiter(map(is_decodable, present.to_pylist()), np.bool_, len(present))


def _python_type(data_type: pa.DataType) -> Any:
    """Return the type for msgspec; Any if Arrow alone can decide."""
    import msgspec
    import pyarrow as pa

    if pa.types.is_struct(data_type):
        names = [field.name for field in data_type]
        fields = [(f"f{at}", _python_type(each.type), None) for at, each in enumerate(data_type)]
        renamed = {f"f{at}": name for at, name in enumerate(names)}
        return msgspec.defstruct("Value", fields, rename=renamed) | None
    if pa.types.is_list(data_type):
        return list[_python_type(data_type.value_type)] | None  # type: ignore[misc]
    for is_type, found in (
        (pa.types.is_integer, int),
        (pa.types.is_floating, float),
        (pa.types.is_boolean, bool),
        (pa.types.is_string, str),
    ):
        if is_type(data_type):
            return found | None
    return Any


def _reason(error: Exception) -> str:
    """Return the text of Arrow without the names of the wrapper."""
    text = str(error).partition("\n")[0].removeprefix("JSON parse error: ")
    text = (text.rpartition(" in row ")[0] or text).rstrip(".")
    return text.replace(f"Column(/{_FIELD}/", "Column(/").replace(f"Column(/{_FIELD})", "the value")


def _parsed(values: pa.Array, data_type: pa.DataType | None) -> Any:
    """Return the values, none of which is null, as an array. Raises ``ArrowInvalid``."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.json as pj

    if not len(values):
        return pa.nulls(0, data_type or pa.null())
    values = values.cast(pa.binary())
    first, last = values.offset, values.offset + len(values)
    ends = memoryview(values.buffers()[1]).cast("i")
    blob = values.buffers()[2]  # None if all values are empty
    octets = blob.slice(ends[first], ends[last] - ends[first]).to_pybytes() if blob else b""
    for octet in (b"\n", b"\r"):  # ends of lines; JSON allows them between tokens only
        if octet in octets:
            values = pc.replace_substring(values, octet, b" ")
    lines = pc.binary_join_element_wise(_PREFIX, values, _SUFFIX, b"")
    longest = pc.max(pc.binary_length(lines)).as_py()
    data = lines.buffers()[-1]
    assert lines.offset == 0, "the result of a computation is not a slice"
    table = pj.read_json(
        pa.BufferReader(data.slice(0, pc.sum(pc.binary_length(lines)).as_py())),
        read_options=pj.ReadOptions(
            use_threads=len(octets) > _BLOCK_BYTES,  # else there is one block
            block_size=max(_BLOCK_BYTES, longest + 1),
        ),
        parse_options=pj.ParseOptions(
            explicit_schema=data_type and pa.schema([(_FIELD, data_type)]),
            unexpected_field_behavior="ignore" if data_type else "infer",
        ),
    )
    if table.num_rows != len(values) or table.column_names != [_FIELD]:
        raise pa.ArrowInvalid("not exactly one JSON value")
    return table.column(0).combine_chunks()


def decode_text(values: pa.Array, *, null_on_error: bool) -> pa.Array:
    """Return UTF-8 texts. Raises ``BadValueError`` for the first value that is not UTF-8."""
    import pyarrow as pa

    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                if not null_on_error:
                    raise BadValueError(row, value, "it is not UTF-8") from None
                texts.append(None)
        return pa.array(texts, pa.string())
