"""Decode a column of values to Arrow columns: JSON objects, and values with the ID of a schema.

JSON: Arrow parses all values of a batch together; Python code per value runs only to find values
that do not match. Each value is wrapped in an object of one field, so a value that is cut off or
that contains two documents cannot shift the rows after it.

Avro: fastavro decodes each value with the schema of its ID, resolved to that of the topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from raftlog import limits
from raftlog.errors import InvalidRequestError, SchemaError, UnsupportedFeatureError
from raftlog.registry.formats import AVRO, JSON, Parsed
from raftlog.registry.values import (
    ID_HEADERS,
    MAGIC_ID,
    PREFIX,
    VALUE,
    Decode,
    SchemaKey,
    decoder_of,
    schema_in,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_FIELD: Final = "r"  # of the object around each value
_PREFIX: Final = b'{"r":'
_SUFFIX: Final = b"}\n"
_BLOCK_BYTES: Final = limits.MIB  # Arrow parses blocks in parallel
_SHOWN_BYTES_MAX: Final = 80  # of a value in an error
_INT64_END: Final = 1 << 63


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
        self.reason = reason


def infer(values: pa.Array, *, null_on_error: bool) -> pa.Schema | None:
    """Return the fields of JSON objects, in the order of their appearance; None without a value.

    Times are text, because only some of the values may have the format that Arrow recognizes.
    Whole numbers from 2^63 on are unsigned, if none is negative: Arrow alone would round them.

    Raises ``BadValueError`` if a value is not JSON or fields differ in type, unless
    ``null_on_error``, and ``InvalidRequestError`` if the values are not objects, or have too many
    levels.
    """
    import pyarrow as pa

    present = values.drop_null()
    if null_on_error:
        present = present.filter(pa.array(_decodable(present, dict)))
    try:
        rows = _parsed(present, None)
    except pa.ArrowInvalid:
        row, reason = _first_bad(present, None)
        if not null_on_error:
            place = int(values.is_valid().to_numpy(zero_copy_only=False).nonzero()[0][row])
            raise BadValueError(place, present[row].as_py(), reason) from None
        if row == 0:
            return infer(_from_first_good(present), null_on_error=True)
        rows = _parsed(present.slice(0, row), None)
    if pa.types.is_null(rows.type):
        return None
    if not pa.types.is_struct(rows.type):
        raise InvalidRequestError(
            f"the values are JSON of the type {rows.type}, not objects with fields. Use "
            "value='text'"
        )
    try:
        return pa.schema(_plain(_exact(rows, present)))
    except (RecursionError, pa.ArrowInvalid) as error:  # Arrow's schemas have up to 64 levels
        raise InvalidRequestError(
            "the values have too many levels to become columns. Use value='text', or schema= with "
            "the fields to decode"
        ) from error


def _from_first_good(present: pa.Array) -> pa.Array:
    """Return the values from the first one on that Arrow can parse."""
    import pyarrow as pa

    for row in range(len(present)):
        try:
            _parsed(present.slice(row, 1), None)
        except pa.ArrowInvalid:
            continue
        return present.slice(row)
    return present.slice(len(present))


def _exact(rows: Any, present: pa.Array) -> pa.DataType:
    """Return the type of parsed values, in which numbers that Arrow has rounded are unsigned."""
    wanted = _unrounded(rows)
    if wanted == rows.type:
        return wanted
    import pyarrow as pa

    try:
        return _parsed(present.slice(0, len(rows)), wanted).type
    except pa.ArrowInvalid:  # not whole numbers, such as 1e19
        return rows.type


def _unrounded(rows: Any) -> pa.DataType:
    """Return the type with uint64 in place of double for what may be whole numbers from 2^63 on."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = rows.type
    if pa.types.is_struct(kind):
        fields = [(each.name, _unrounded(rows.field(at))) for at, each in enumerate(kind)]
        return pa.struct(fields)
    if pa.types.is_list(kind):
        return pa.list_(_unrounded(rows.flatten()))
    if pa.types.is_floating(kind):
        lowest, highest = pc.min_max(rows).as_py().values()
        if highest is not None and lowest >= 0 and _INT64_END <= highest <= 2 * _INT64_END:
            return pa.uint64()
    return kind


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

    A decoder in C removes most of the others; Arrow divides the rest in halves. It also parses the
    NaN and Infinity of Python's json.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    is_good = _decodable(present, _python_type(data_type))
    is_good |= pc.match_substring_regex(present, "NaN|Inf").to_numpy(zero_copy_only=False)
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
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
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
    values.cast(pa.string())  # raises: Arrow's parser does not check UTF-8
    for octet in (b"\n", b"\r"):  # ends of lines; JSON allows them, and tabs, between tokens only
        if octet in octets:
            values = pc.replace_substring(values, octet, b"\t")
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


# -- values with the ID of a schema ----------------------------------------------------------------

# A type of Arrow, and what makes its Python value from that of fastavro; None: nothing to do.
_Converted: TypeAlias = "tuple[pa.DataType, Callable[[Any], Any] | None]"
_Failures: TypeAlias = dict[int, str]  # rows, and why their values cannot be read


class TypedDecoder:
    """Converts values with the ID of a schema to columns of one schema.

    ``fetch`` returns the schema at a path of the registry: it is called once for each path.
    ``reader``: the schema whose fields become columns: of Avro or JSON. A schema of something else
    than a record has the column ``value``. Fields without a single type of Arrow (unions of several
    types, recursive records, JSON without a type) are texts of JSON.
    """

    def __init__(
        self, fetch: Callable[[str], Parsed], reader: Parsed, *, null_on_error: bool
    ) -> None:
        import pyarrow as pa

        if reader.kind not in (AVRO, JSON):
            raise UnsupportedFeatureError(
                f"value='typed' reads Avro and JSON, and the schema is {reader.kind}. Use "
                "value='raw', or a Consumer with raftlog.schema.Protobuf()"
            )
        self._fetch = fetch
        self._reader = reader
        self._null_on_error = null_on_error
        self._decoders: dict[SchemaKey | None, Decode | str] = {None: _NO_ID}
        types, model = _ArrowTypes(), reader.model
        is_avro = reader.kind == AVRO
        found = types.avro(model.parsed) if is_avro else types.json(model.root, model.resolver)
        self._is_record = types.is_record
        self._columns = found
        self.schema = pa.schema(
            [
                (name, pa.string() if each is None else each[0])
                for name, each in self._columns.items()
            ]
        )

    def decode(self, values: pa.Array, headers: pa.Array, names: Sequence[str]) -> list[pa.Array]:
        """Return these columns of ``schema``. Null values are null in each.

        Raises ``BadValueError`` for the first value that has no known schema or does not match it,
        and what ``fetch`` raises, other than ``SchemaError``.
        """
        keys, bodies = _keyed(values, headers)
        failures: _Failures = {}
        decoders = {key: self._decoder(key) for key in dict.fromkeys(keys) if key != _NULL}
        for row, key in enumerate(keys):
            if key != _NULL and isinstance(reason := decoders[key], str):
                failures[row] = reason
                bodies[row] = None
        if self._reader.kind == AVRO:
            objects: list[Any] = self._objects(keys, bodies, decoders, failures)
            columns = self._from_objects(objects, names, failures)
        else:
            columns = self._from_json(bodies, names, failures)
        if failures and not self._null_on_error:
            row = min(failures)
            raise BadValueError(row, values[row].as_py(), failures[row])
        return columns

    def _decoder(self, key: SchemaKey | None) -> Decode | str:
        """Return the decoder of the values of a schema, or why they cannot be decoded."""
        found = self._decoders.get(key)
        if found is None:
            if len(self._decoders) > limits.SCAN_SCHEMAS_MAX:
                raise UnsupportedFeatureError(
                    f"the values have more than {limits.SCAN_SCHEMAS_MAX} IDs of schemas: most are "
                    "probably no IDs. Use value='raw'"
                )
            found = self._decoders[key] = self._made(key)
        return found

    def _made(self, key: SchemaKey | None) -> Decode | str:
        path = f"/schemas/ids/{key}" if isinstance(key, int) else f"/schemas/guids/{key}"
        reader = self._reader
        try:
            writer = self._fetch(path)
        except SchemaError as error:
            return (
                f"its schema {key} is not in the registry ({error}). It was deleted permanently, "
                "or is of another registry"
            )
        if writer.kind != reader.kind:
            return f"its schema {key} is {writer.kind}, and that of the topic {reader.kind}"
        is_same = (writer.normal, writer.named) == (reader.normal, reader.named)
        return decoder_of(writer, None if is_same else reader)

    def _objects(
        self,
        keys: list[Any],
        bodies: list[bytes | None],
        decoders: dict[Any, Decode | str],
        failures: _Failures,
    ) -> list[Any]:
        objects: list[Any] = []
        for row, (key, body) in enumerate(zip(keys, bodies, strict=True)):
            if body is None:
                objects.append(None)
                continue
            try:
                objects.append(decoders[key](body))  # type: ignore[operator] # not a reason: above
            except SchemaError as error:
                failures[row] = str(error)
                objects.append(None)
                if not self._null_on_error:
                    objects += [None] * (len(keys) - len(objects))
                    break
        return objects

    def _from_objects(
        self, objects: list[Any], names: Sequence[str], failures: _Failures
    ) -> list[pa.Array]:
        import pyarrow as pa

        def column(name: str, rows: list[Any]) -> pa.Array:
            known = self._columns[name]
            data_type, convert = (pa.string(), _as_text) if known is None else known
            found = [each if each is None or not self._is_record else each[name] for each in rows]
            if convert is not None:
                found = [None if each is None else convert(each) for each in found]
            return pa.array(found, data_type)

        try:
            return [column(name, objects) for name in names]
        except _CONVERSION_ERRORS:  # such as a decimal that has more digits than its type
            for row, each in enumerate(objects):
                try:
                    for name in names:
                        column(name, [each])
                except _CONVERSION_ERRORS as error:
                    failures[row] = f"it does not fit its type: {error}"
                    objects[row] = None
            return [column(name, objects) for name in names]

    def _from_json(
        self, bodies: list[bytes | None], names: Sequence[str], failures: _Failures
    ) -> list[pa.Array]:
        import pyarrow as pa

        typed = pa.schema([self.schema.field(name) for name in names if self._columns[name]])
        decoder = JsonDecoder(typed, null_on_error=self._null_on_error)
        try:
            decoded = decoder.decode(pa.array(bodies, pa.binary())) if typed.names else []
        except BadValueError as error:
            failures[error.row] = error.reason
            return []
        found = dict(zip(typed.names, decoded, strict=True))
        texts = [name for name in names if name not in found]
        if texts:
            found |= self._json_texts(bodies, texts, failures)
        return [found[name] for name in names]

    def _json_texts(
        self, bodies: list[bytes | None], names: Sequence[str], failures: _Failures
    ) -> dict[str, pa.Array]:
        """Return fields, or the whole value, as texts of JSON."""
        import msgspec
        import pyarrow as pa

        kind: Any = dict[str, msgspec.Raw] if self._is_record else msgspec.Raw
        decode = msgspec.json.Decoder(kind).decode
        found: dict[str, list[str | None]] = {name: [] for name in names}
        for row, body in enumerate(bodies):
            fields: Any = {}
            if body is not None:
                try:
                    value = decode(body)
                    texts = value if self._is_record else {"value": value}
                    fields = {name: str(texts[name], "utf-8") for name in names if name in texts}
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    failures.setdefault(row, str(error))
            for name in names:
                text = fields.get(name)
                found[name].append(None if text == "null" else text)
        return {name: pa.array(texts, pa.string()) for name, texts in found.items()}


_CONVERSION_ERRORS: Final = (ValueError, TypeError, OverflowError, ArithmeticError)
_NULL: Final = ""  # instead of the key of a schema: no value
_NO_ID: Final = (
    "it does not begin with a zero byte and the ID of a schema, so value='raw', 'text' or 'json' "
    "can read it"
)


def _keyed(values: pa.Array, headers: pa.Array) -> tuple[list[Any], list[bytes | None]]:
    """Return the key of the schema of each value (None: it has none), and the bytes after it."""
    import pyarrow.compute as pc

    data = values.to_pylist()
    keys: list[Any] = [_NULL] * len(data)
    in_header = {}
    if pc.any(pc.equal(headers.flatten().field("key"), ID_HEADERS[VALUE])).as_py():
        for row, each in enumerate(headers.to_pylist()):
            key = schema_in([(header["key"], header["value"]) for header in each or ()])
            if key is not None:
                in_header[row] = key
    for row, value in enumerate(data):
        if value is None:
            continue
        if row in in_header:
            keys[row] = in_header[row]
        elif len(value) >= PREFIX.size and value[0] == MAGIC_ID:
            keys[row] = PREFIX.unpack_from(value)[1]
            data[row] = value[PREFIX.size :]
        else:
            keys[row] = None
    return keys, data


class _ArrowTypes:
    """Types of Arrow for the fields of a schema. None: there is none, or the schema is too large.

    ``avro`` and ``json`` return those of the fields of a record. If the schema is something else,
    ``is_record`` is False, and the whole value is called ``value``.
    """

    def __init__(self) -> None:
        self.is_record = True
        self._left = limits.SCAN_FIELDS_MAX  # a record that is used twice counts twice

    def avro(self, schema: Any) -> dict[str, _Converted | None]:
        is_node = isinstance(schema, dict)
        self._names: Mapping[str, Any] = schema.get("__named_schemas", {}) if is_node else {}
        self.is_record = is_node and schema["type"] == "record" and bool(schema["fields"])
        if not self.is_record:
            return {"value": self._avro(schema, ())}
        within = (schema["name"],)
        return {each["name"]: self._avro(each["type"], within) for each in schema["fields"]}

    def json(self, schema: Any, resolver: Any) -> dict[str, _Converted | None]:
        found = self._json_fields(schema, resolver, ())
        self.is_record = bool(found)
        if not found:
            return {"value": None}
        return {name: None if each is None else (each, None) for name, each in found.items()}

    def _avro(self, schema: Any, within: tuple[str, ...]) -> _Converted | None:
        """``within``: names of the records that contain it."""
        self._left -= 1
        if self._left < 0:
            return None
        if isinstance(schema, list):
            branches = [each for each in schema if each != "null"]
            return self._avro(branches[0], within) if len(branches) == 1 else None
        if isinstance(schema, str):
            schema = self._names.get(schema) or {"type": schema}
        kind = schema["type"]
        if not isinstance(kind, str) or kind in self._names:
            return self._avro(kind, within)
        if kind in ("record", "error"):
            return None if schema["name"] in within else self._avro_record(schema, within)
        if kind == "array":
            return _list_of(self._avro(schema["items"], within))
        if kind == "map":
            return _map_of(self._avro(schema["values"], within))
        return _avro_simple(schema)

    def _avro_record(self, schema: Any, within: tuple[str, ...]) -> _Converted | None:
        import pyarrow as pa

        fields: list[Any] = []
        converts: list[tuple[str, Callable[[Any], Any]]] = []
        for each in schema["fields"]:
            found = self._avro(each["type"], (*within, schema["name"]))
            if found is None:
                return None
            fields.append((each["name"], found[0]))
            if found[1] is not None:
                converts.append((each["name"], found[1]))

        def convert(value: Any) -> Any:
            changed = dict(value)
            for name, each in converts:
                if changed[name] is not None:
                    changed[name] = each(changed[name])
            return changed

        return pa.struct(fields), convert if converts else None

    def _json_fields(
        self, raw: Any, resolver: Any, within: tuple[int, ...]
    ) -> dict[str, pa.DataType | None] | None:
        raw, resolver, within = _json_target(raw, resolver, within)
        if not isinstance(raw, dict) or not isinstance(raw.get("properties"), dict):
            return None
        return {
            name: self._json(each, resolver, within) for name, each in raw["properties"].items()
        }

    def _json(self, raw: Any, resolver: Any, within: tuple[int, ...]) -> pa.DataType | None:
        """``within``: identities of the schemas that references led to."""
        import pyarrow as pa

        self._left -= 1
        raw, resolver, within = _json_target(raw, resolver, within)
        if self._left < 0 or not isinstance(raw, dict):
            return None
        for key in ("oneOf", "anyOf"):
            branches = [each for each in raw.get(key, ()) if each != {"type": "null"}]
            if branches:
                return self._json(branches[0], resolver, within) if len(branches) == 1 else None
        kinds = raw.get("type", ())
        types = {kinds} if isinstance(kinds, str) else set(kinds)
        types.discard("null")
        if types == {"integer", "number"}:
            return pa.float64()
        kind = types.pop() if len(types) == 1 else None
        if kind == "array":
            inner = self._json(raw.get("items"), resolver, within)
            return None if inner is None else pa.list_(inner)
        if kind == "object":
            fields = self._json_fields(raw, resolver, within)
            if not fields or None in fields.values():
                return None
            return pa.struct(list(fields.items()))
        made = _JSON_SIMPLE.get(kind)
        return None if made is None else made(pa)


def _avro_simple(schema: Any) -> _Converted | None:
    import pyarrow as pa

    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        digits, scale = schema["precision"], schema.get("scale", 0)
        if digits <= _DECIMAL128_DIGITS:
            return pa.decimal128(digits, scale), None
        return None if digits > _DECIMAL256_DIGITS else (pa.decimal256(digits, scale), None)
    if logical == "uuid" and kind == "string":
        return pa.string(), str
    if kind == "fixed":
        return pa.binary(schema["size"]), None
    made = _AVRO_LOGICAL.get((kind, logical)) or _AVRO_SIMPLE.get(kind)
    return None if made is None else (made(pa), None)


def _list_of(inner: _Converted | None) -> _Converted | None:
    import pyarrow as pa

    if inner is None:
        return None
    data_type, change = inner
    if change is None:
        return pa.list_(data_type), None
    return (
        pa.list_(data_type),
        lambda value: [None if each is None else change(each) for each in value],
    )


def _map_of(inner: _Converted | None) -> _Converted | None:
    import pyarrow as pa

    if inner is None:
        return None
    data_type, change = inner

    def convert(value: Any) -> Any:
        if change is None:
            return list(value.items())
        return [(key, None if each is None else change(each)) for key, each in value.items()]

    return pa.map_(pa.string(), data_type), convert


_DECIMAL128_DIGITS: Final = 38
_DECIMAL256_DIGITS: Final = 76
_AVRO_SIMPLE: Final[dict[str, Callable[[Any], Any]]] = {
    "boolean": lambda pa: pa.bool_(),
    "int": lambda pa: pa.int32(),
    "long": lambda pa: pa.int64(),
    "float": lambda pa: pa.float32(),
    "double": lambda pa: pa.float64(),
    "bytes": lambda pa: pa.binary(),
    "string": lambda pa: pa.string(),
    "enum": lambda pa: pa.string(),
}
_AVRO_LOGICAL: Final[dict[tuple[str, str], Callable[[Any], Any]]] = {
    ("int", "date"): lambda pa: pa.date32(),
    ("int", "time-millis"): lambda pa: pa.time32("ms"),
    ("long", "time-micros"): lambda pa: pa.time64("us"),
    ("long", "timestamp-millis"): lambda pa: pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): lambda pa: pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): lambda pa: pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): lambda pa: pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): lambda pa: pa.timestamp("us"),
}
_JSON_SIMPLE: Final[dict[str | None, Callable[[Any], Any]]] = {
    "integer": lambda pa: pa.int64(),
    "number": lambda pa: pa.float64(),
    "string": lambda pa: pa.string(),
    "boolean": lambda pa: pa.bool_(),
}


def _as_text(value: Any) -> str:
    """Return an object of fastavro as JSON: bytes as in Avro's own JSON, a character for each."""
    return json.dumps(value, ensure_ascii=False, default=_plain_value)


def _plain_value(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _json_target(
    raw: Any, resolver: Any, within: tuple[int, ...]
) -> tuple[Any, Any, tuple[int, ...]]:
    """Return the schema that references lead to; None instead of a schema that contains itself."""
    while isinstance(raw, dict) and "$ref" in raw:
        found = resolver.lookup(raw["$ref"])
        raw, resolver = found.contents, found.resolver
        if id(raw) in within:
            return None, resolver, within
        within = (*within, id(raw))
    return raw, resolver, within
