"""Formats of schemas: AVRO, JSON and PROTOBUF. Parses, identifies and compares them.

``parse`` turns a text into a ``Parsed`` schema; ``problems`` returns why a reader with one schema
cannot read the values of another. Everything is pure and bounded by ``raftlog.limits``, and can
take long: a broker runs it in a thread. The libraries are those of the extra ``schema``, and are
imported when the first schema of their format is parsed.

The rules are those of the specifications: Avro's schema resolution; of JSON Schema, that each value
of the older schema is valid with the newer one, decided keyword by keyword; of Protobuf, what its
wire format can read. They agree with Confluent's registry except where a comment says so.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urljoin

from raftlog import limits
from raftlog.errors import SchemaError, UnsupportedFeatureError
from raftlog.install import install_command

AVRO: Final = "AVRO"
JSON: Final = "JSON"
PROTOBUF: Final = "PROTOBUF"
FORMATS: Final = (AVRO, JSON, PROTOBUF)
INVALID: Final = 42201  # Confluent's code of a schema that does not parse

Named: TypeAlias = Sequence[tuple[str, str]]  # names and texts of referenced schemas, leaves first


@dataclass(frozen=True, slots=True)
class Parsed:
    """A schema that is valid.

    ``text``: as the registry stores it. ``normal``: the same for all texts of equal content: it
    identifies the schema. ``named``: the schemas that it refers to. ``model``: what ``problems``
    and ``raftlog.registry.values`` work with.
    """

    kind: str
    text: str
    normal: str
    model: Any = field(repr=False, compare=False)
    named: Named = field(default=(), repr=False)


def parse(kind: str, text: str, named: Named = ()) -> Parsed:
    """Return a schema of the format ``kind``. ``named``: the schemas that it refers to.

    Raises ``SchemaError`` with the reason, or ``UnsupportedFeatureError`` if a library is missing.
    """
    try:
        return replace(_parse(kind, text, named), named=tuple(named))
    except SchemaError as error:
        raise SchemaError(f"Invalid schema: {error}", INVALID) from error


def _parse(kind: str, text: str, named: Named) -> Parsed:
    parser = _PARSERS.get(kind)
    if parser is None:
        raise SchemaError(f"{kind[:50]!r} is not a type of schemas. Use {', '.join(FORMATS)}")
    if not text.strip():
        raise SchemaError("Empty schema")
    size_max = PROTOBUF_BYTES_MAX if kind == PROTOBUF else limits.SCHEMA_BYTES_MAX
    for name, each in (("the schema", text), *named):
        if len(each) > size_max or len(each.encode(errors="replace")) > size_max:
            raise SchemaError(
                f"{name[:200]} is longer than {size_max} bytes. Split it by references", INVALID
            )
    return parser(text, named)


def problems(reader: Parsed, writer: Parsed) -> list[str]:
    """Return why values of ``writer`` cannot be read with ``reader``: empty if they can.

    At most ``limits.SCHEMA_PROBLEMS_MAX`` texts, each with the place in the schema.
    """
    if reader.kind != writer.kind:
        return [f"SCHEMA_TYPE_CHANGED: /: type {reader.kind} is compared with {writer.kind}"]
    if (reader.normal, reader.named) == (writer.normal, writer.named):
        return []
    found = _Problems()
    try:
        _COMPARERS[reader.kind](reader.model, writer.model, found)
    except RecursionError as error:
        raise SchemaError("the schemas have too many levels to be compared", INVALID) from error
    return found.texts


def type_names(parsed: Parsed) -> list[str]:
    """Return the full names of the types that values of a schema can have: the record of Avro, the
    title of a JSON schema, all messages of a Protobuf file, the first one first. Can be empty.
    """
    if parsed.kind == PROTOBUF:
        return [str(message.full_name) for _, message in _messages_of(parsed.model.file)]
    if parsed.kind == AVRO:
        return [parsed.model.root.name] if parsed.model.root.name else []
    title = parsed.model.root.get("title") if isinstance(parsed.model.root, dict) else None
    return [title] if isinstance(title, str) and title else []


def subject_of(strategy: str, topic: str, part: str, name: str) -> str:
    """Return the subject of a schema by a strategy of Confluent's serializers: "topic", "record" or
    "topic-record". ``part``: "value" or "key". ``name``: one of ``type_names``.
    """
    if strategy == "topic":
        return f"{topic}-{part}"
    return name if strategy == "record" else f"{topic}-{name}"


def guid_of(kind: str, normal: str, extra: str) -> str:
    """Return the GUID of a schema: the same in every registry. ``extra``: of its references."""
    digest = hashlib.md5(f"{kind}\0{normal}\0{extra}".encode(), usedforsecurity=False).hexdigest()
    return "-".join((digest[:8], digest[8:12], digest[12:16], digest[16:20], digest[20:]))


class _Problems:
    """Texts of one comparison; compares each pair of schemas once, so recursive ones end."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        # By identity, and with the objects: an id of a freed object would be another's.
        self._seen: dict[tuple[int, int], tuple[object, object]] = {}
        self._compared = 0

    def add(self, code: str, path: str, text: str) -> None:
        if len(self.texts) < limits.SCHEMA_PROBLEMS_MAX:
            self.texts.append(f"{code}: {path or '/'}: {text}")

    def take_steps(self, count: int = 1) -> None:
        """Raise ``SchemaError`` if the comparison has too many steps with these ones."""
        self._compared += count
        # guard: a comparison of schemas ends
        if self._compared > limits.SCHEMA_COMPARISONS_MAX:
            raise SchemaError(
                f"the schemas cannot be compared in {limits.SCHEMA_COMPARISONS_MAX} steps "
                "(SCHEMA_COMPARISONS_MAX). Nest fewer unions (Avro), anyOf, oneOf (JSON), or use "
                "fewer patternProperties",
                INVALID,
            )

    def is_new(self, reader: object, writer: object) -> bool:
        self.take_steps()
        pair = id(reader), id(writer)
        if pair in self._seen:
            return False
        self._seen[pair] = reader, writer
        return True

    def trial(self, compare: Callable[[_Problems], None]) -> list[str]:
        """Return the problems of a comparison without adding them. Pairs that it has found to be
        compatible stay known.
        """
        before, self.texts, known = self.texts, [], len(self._seen)
        compare(self)
        found, self.texts = self.texts, before
        while found and len(self._seen) > known:
            self._seen.popitem()
        return found


def library(name: str) -> Any:
    """Return a module of the extra ``schema``. Raises ``UnsupportedFeatureError``."""
    try:
        return import_module(name)
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"schemas of this type need {name.partition('.')[0]}: {install_command('schema')}"
        ) from error


def compact(value: object, *, is_sorted: bool = False) -> str:
    """Return JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=is_sorted)


def read_json(data: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ``ValueError`` also for what ``json`` reads although
    JSON or UTF-8 does not have it, such as NaN and lone surrogates: it could not be returned.
    """
    value = json.loads(data)
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def _loaded(text: str) -> Any:
    """Return the value of a JSON text. Raises ``SchemaError``, also if it is too deep."""
    try:
        value = read_json(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the schema is not JSON: {str(error)[:200]}", INVALID) from error
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > limits.SCHEMA_DEPTH_MAX:
            raise SchemaError(
                f"the schema has more than {limits.SCHEMA_DEPTH_MAX} levels (SCHEMA_DEPTH_MAX)",
                INVALID,
            )
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return value


# -- Avro ------------------------------------------------------------------------------------------


_PRIMITIVES: Final = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_FULL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
# What a reader's type can read besides itself (Avro's specification, schema resolution).
_PROMOTED: Final[dict[str, frozenset[str]]] = {
    "long": frozenset(("int",)),
    "float": frozenset(("int", "long")),
    "double": frozenset(("int", "long", "float")),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}


@dataclass(slots=True, eq=False)
class AvroField:
    name: str
    aliases: tuple[str, ...]
    schema: AvroSchema
    has_default: bool


@dataclass(slots=True, eq=False)
class AvroSchema:
    """A node of an Avro schema. Names are full names. Recursive schemas are cyclic."""

    type: str
    name: str = ""
    aliases: frozenset[str] = frozenset()
    fields: list[AvroField] = field(default_factory=list)  # of a record
    branches: list[AvroSchema] = field(default_factory=list)  # of a union
    items: AvroSchema | None = None  # of an array or a map
    symbols: tuple[str, ...] = ()  # of an enum
    default: str | None = None  # of an enum
    size: int = 0  # of a fixed


@dataclass(frozen=True, slots=True)
class AvroModel:
    """``root``: to compare. ``parsed``: what fastavro reads and writes values with."""

    root: AvroSchema
    parsed: Any


def _parse_avro(text: str, named: Named) -> Parsed:
    fastavro = library("fastavro.schema")
    raw = _loaded(text)
    known: dict[str, Any] = {}
    names: dict[str, AvroSchema] = {}
    try:
        for _name, other in named:
            other_raw = _loaded(other)
            fastavro.parse_schema(other_raw, named_schemas=known)
            _avro_node(other_raw, "", names)
        parsed = fastavro.parse_schema(raw, named_schemas=known)
        if named and not (isinstance(parsed, dict) and "name" in parsed):
            parsed = fastavro.parse_schema(_with_types(parsed, known, set()))
        root = _avro_node(raw, "", names)
    except SchemaError:
        raise
    except Exception as error:  # a malformed schema makes fastavro raise nearly anything
        reason = str(error)[:300] or type(error).__name__
        raise SchemaError(f"not an Avro schema: {reason}", INVALID) from error
    plain = _plain(raw)
    return Parsed(AVRO, compact(plain), compact(plain, is_sorted=True), AvroModel(root, parsed))


def _with_types(parsed: Any, known: Mapping[str, Any], seen: set[str]) -> Any:
    """Return a schema that fastavro has parsed with the definition of each type in the place of its
    first name. fastavro keeps the types of references with a schema only if it is a record.
    """
    if isinstance(parsed, list):
        return [_with_types(branch, known, seen) for branch in parsed]
    if isinstance(parsed, str):
        is_first = parsed in known and parsed not in seen
        return _with_types(known[parsed], known, seen) if is_first else parsed
    name = parsed.get("name")
    if name in seen:
        return name
    if name is not None:
        seen.add(name)
    whole = {key: value for key, value in parsed.items() if not key.startswith("__")}
    for key in whole.keys() & {"items", "values"}:
        whole[key] = _with_types(whole[key], known, seen)
    if "fields" in whole:
        whole["fields"] = [
            {**each, "type": _with_types(each["type"], known, seen)} for each in whole["fields"]
        ]
    return whole


def _plain(raw: Any) -> Any:
    """Return the schema with ``{"type": "int"}`` as ``"int"``, as Avro's libraries print it."""
    if isinstance(raw, list):
        return [_plain(branch) for branch in raw]
    if not isinstance(raw, dict):
        return raw
    if raw.keys() == {"type"} and raw["type"] in _PRIMITIVES:
        return raw["type"]
    changed = {key: _plain(raw[key]) for key in ("type", "items", "values") if key in raw}
    if isinstance(raw.get("fields"), list):
        changed["fields"] = [_plain(each) for each in raw["fields"]]
    return {key: changed.get(key, value) for key, value in raw.items()}


def _avro_node(raw: Any, namespace: str, names: dict[str, AvroSchema]) -> AvroSchema:
    """Return the node of a schema that fastavro has accepted."""
    if isinstance(raw, str):
        if raw in _PRIMITIVES:
            return AvroSchema(raw)
        full = raw if "." in raw or not namespace else f"{namespace}.{raw}"
        return names[full] if full in names else names[raw]
    if isinstance(raw, list):
        return AvroSchema("union", branches=[_avro_node(each, namespace, names) for each in raw])
    kind = raw["type"]
    if isinstance(kind, dict | list):
        return _avro_node(kind, namespace, names)
    if kind in ("array", "map"):
        inner = raw["items" if kind == "array" else "values"]
        return AvroSchema(kind, items=_avro_node(inner, namespace, names))
    if kind not in ("record", "error", "enum", "fixed"):
        return _avro_node(kind, namespace, names)
    name = raw["name"]
    space = name.rpartition(".")[0] if "." in name else raw.get("namespace", namespace) or ""
    full = name if "." in name or not space else f"{space}.{name}"
    aliases = raw.get("aliases", ())
    node = AvroSchema(
        "record" if kind == "error" else kind,
        full,
        frozenset(each if "." in each or not space else f"{space}.{each}" for each in aliases),
        symbols=tuple(raw.get("symbols", ())),
        default=raw.get("default"),
        size=raw.get("size", 0),
    )
    names[full] = node
    _check_names(node, raw)
    for each in raw.get("fields", ()):
        inner_schema = _avro_node(each["type"], space, names)
        field_aliases = tuple(each.get("aliases", ()))
        node.fields.append(AvroField(each["name"], field_aliases, inner_schema, "default" in each))
    return node


def _check_names(node: AvroSchema, raw: Any) -> None:
    """Raise ``SchemaError`` for what fastavro accepts, and other libraries do not."""
    if not _FULL_NAME.fullmatch(node.name):
        raise SchemaError(f"not an Avro schema: {node.name[:200]!r} is not a name", INVALID)
    if node.type != "record":
        return
    fields = raw.get("fields")
    if not isinstance(fields, list):
        raise SchemaError(f"not an Avro schema: {node.name} has no list of fields", INVALID)
    names = [each["name"] for each in fields]
    if len(set(names)) < len(names):
        raise SchemaError(f"not an Avro schema: {node.name} has two fields of a name", INVALID)


def _compare_avro(reader: AvroModel, writer: AvroModel, found: _Problems) -> None:
    _avro(reader.root, writer.root, "", found)


def _avro(reader: AvroSchema, writer: AvroSchema, path: str, found: _Problems) -> None:
    if not found.is_new(reader, writer):
        return
    if writer.type == "union":
        for number, branch in enumerate(writer.branches):
            if reader.type == "union":
                _avro_branch(reader, branch, f"{path}/{number}", found)
            else:
                _avro(reader, branch, f"{path}/{number}", found)
    elif reader.type == "union":
        _avro_branch(reader, writer, path, found)
    elif reader.type == writer.type:
        _avro_same(reader, writer, path, found)
    elif writer.type not in _PROMOTED.get(reader.type, ()):
        found.add(
            "TYPE_MISMATCH",
            path,
            f"reader type {reader.type} cannot read writer type {writer.type}",
        )


def _avro_branch(reader: AvroSchema, writer: AvroSchema, path: str, found: _Problems) -> None:
    """Find a branch of the reader's union that can read ``writer``."""
    for branch in reader.branches:
        if not found.trial(partial(_avro, branch, writer, path)):
            return
    what = writer.name or writer.type
    found.add(
        "MISSING_UNION_BRANCH", path, f"the reader's union has no branch that can read {what}"
    )


def _avro_same(reader: AvroSchema, writer: AvroSchema, path: str, found: _Problems) -> None:
    if reader.items is not None and writer.items is not None:
        part = "items" if reader.type == "array" else "values"
        _avro(reader.items, writer.items, f"{path}/{part}", found)
        return
    if reader.name and not _avro_is_named(reader, writer):
        found.add("NAME_MISMATCH", f"{path}/name", f"expected {writer.name}, not {reader.name}")
        return
    if reader.type == "fixed" and reader.size != writer.size:
        found.add(
            "FIXED_SIZE_MISMATCH", f"{path}/size", f"expected {writer.size}, not {reader.size}"
        )
    elif reader.type == "enum":
        missing = [each for each in writer.symbols if each not in reader.symbols]
        if missing and reader.default is None:
            text = f"the reader has no symbols {', '.join(missing[:10])}, and no default"
            found.add("MISSING_ENUM_SYMBOLS", f"{path}/symbols", text)
    elif reader.type == "record":
        _avro_record(reader, writer, path, found)


def _avro_is_named(reader: AvroSchema, writer: AvroSchema) -> bool:
    """Names match without their namespace, as in Avro's Java library; or by an alias."""
    short = writer.name.rpartition(".")[2]
    return reader.name.rpartition(".")[2] == short or writer.name in reader.aliases


def _avro_record(reader: AvroSchema, writer: AvroSchema, path: str, found: _Problems) -> None:
    written = {each.name: each for each in writer.fields}
    for number, each in enumerate(reader.fields):
        names = [each.name, *each.aliases]
        source = next((written[name] for name in names if name in written), None)
        where = f"{path}/fields/{number}"
        if source is not None:
            _avro(each.schema, source.schema, f"{where}/type", found)
        elif not each.has_default and each.schema.default is None:
            found.add(
                "READER_FIELD_MISSING_DEFAULT_VALUE",
                where,
                f"the reader's field {each.name} has no default, and the writer has no such field",
            )


# -- JSON Schema -----------------------------------------------------------------------------------


_ALL_TYPES: Final = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))
# Keywords whose larger value accepts less, and those whose smaller value does.
_LOWER: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_UPPER: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
# Keywords that are compared by equality: a new or different one may reject older values. Confluent
# ignores most of them.
_EXACT: Final = (
    *("pattern", "multipleOf", "propertyNames", "contains", "dependencies", "dependentRequired"),
    *("dependentSchemas", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"),
    *("minContains", "maxContains"),
)
# Keywords whose effect depends on each other.
_PROPERTIES: Final = frozenset(("properties", "patternProperties", "additionalProperties"))
_ITEMS: Final = frozenset(("items", "additionalItems", "prefixItems"))


@dataclass(frozen=True, slots=True)
class JsonModel:
    """``resolver``: of referencing. ``validator``: of jsonschema, for values."""

    root: Any
    resolver: Any
    validator: Any


def _parse_json(text: str, named: Named) -> Parsed:
    validators = library("jsonschema.validators")
    referencing = library("referencing")
    specification = library("referencing.jsonschema")
    raw = _loaded(text)
    if not isinstance(raw, dict | bool):
        raise SchemaError("not a JSON schema: it is neither an object nor true or false", INVALID)
    kind = validators.validator_for(raw, default=validators.Draft7Validator)
    default = specification.specification_with(
        kind.META_SCHEMA["$schema"], default=specification.DRAFT7
    )

    def resource(content: Any) -> Any:
        return referencing.Resource.from_contents(content, default_specification=default)

    base = raw.get("$id", "") if isinstance(raw, dict) else ""
    try:
        kind.check_schema(raw)
        registry = referencing.Registry()
        for name, other in named:
            content = resource(_loaded(other))
            registry = registry.with_resources([(name, content), (urljoin(base, name), content)])
            registry = content @ registry if content.id() else registry
        resolver = registry.resolver_with_root(resource(raw))
        for reference in _references_in(raw):
            resolver.lookup(reference)
        validator = kind(raw, registry=registry)
    except SchemaError:
        raise
    except Exception as error:  # jsonschema, referencing and regular expressions have their own
        reason = str(getattr(error, "message", error))[:300] or type(error).__name__
        raise SchemaError(f"not a JSON schema: {reason}", INVALID) from error
    return Parsed(
        JSON, compact(raw), compact(raw, is_sorted=True), JsonModel(raw, resolver, validator)
    )


def _references_in(raw: Any) -> Iterator[str]:
    level = [raw]
    while level:
        each = level.pop()
        if isinstance(each, dict):
            reference = each.get("$ref")
            if isinstance(reference, str):
                yield reference
            level.extend(value for key, value in each.items() if key not in ("enum", "const"))
        elif isinstance(each, list):
            level.extend(each)


# Keywords that accept all values.
_ANNOTATIONS: Final = frozenset(
    (
        *("$id", "$schema", "$anchor", "$comment", "$defs", "definitions", "title", "description"),
        *("default", "examples", "deprecated", "readOnly", "writeOnly", "format"),
    )
)


class _JsonPlace(NamedTuple):
    """A schema, and the ``resolver`` for its references.

    ``wholes``: of drafts in which a schema with ``$ref`` can have other keywords, those schemas
    with ``allOf`` in place of ``$ref``, by identity. None: other keywords have no effect there.
    """

    schema: Any
    resolver: Any
    wholes: dict[int, Any] | None

    @classmethod
    def of(cls, model: JsonModel) -> _JsonPlace:
        has_more = "$vocabulary" in model.validator.META_SCHEMA  # from draft 2019-09 on
        return cls(model.root, model.resolver, {} if has_more else None)

    def at(self, schema: Any) -> _JsonPlace:
        return self._replace(schema=schema)

    def resolved(self) -> _JsonPlace:
        """Return the place of the schema that a reference refers to."""
        place = self
        for _ in range(limits.SCHEMA_DEPTH_MAX):
            schema = place.schema
            if not (isinstance(schema, dict) and isinstance(schema.get("$ref"), str)):
                break
            if place.wholes is not None and schema.keys() - _ANNOTATIONS - {"$ref"}:
                return place.at(place._whole(place.wholes))
            hit = place.resolver.lookup(schema["$ref"])
            place = _JsonPlace(hit.contents, hit.resolver, place.wholes)
        return place

    def _whole(self, wholes: dict[int, Any]) -> Any:
        if id(self.schema) not in wholes:
            rest = _without(self.schema, "$ref")
            parts = [*rest.get("allOf", ()), {"$ref": self.schema["$ref"]}]
            # With the schema: an id of a freed object would be another's.
            wholes[id(self.schema)] = self.schema, {**rest, "allOf": parts}
        return wholes[id(self.schema)][1]


def _compare_json(reader: JsonModel, writer: JsonModel, found: _Problems) -> None:
    _json(_JsonPlace.of(reader), _JsonPlace.of(writer), "#", found)


def _json(reader: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    """Find values of ``writer`` that ``reader`` rejects."""
    reader, writer = reader.resolved(), writer.resolved()
    new, old = reader.schema, writer.schema
    if new is True or new == {} or old is False or not found.is_new(new, old):
        return
    if new is False:
        found.add("SCHEMA_REMOVED", path, "no value is valid now")
        return
    old_is_sum = isinstance(old, dict) and any(key in old for key in ("anyOf", "oneOf"))
    if old_is_sum:
        _json_each_old(reader, writer, path, found)
        return
    if any(key in new for key in ("anyOf", "oneOf")):
        _json_some_new(reader, writer, path, found)
        return
    for number, part in enumerate(new.get("allOf", ())):
        _json_part(reader.at(part), writer, f"{path}/allOf/{number}", found)
    plain_old = old if isinstance(old, dict) else {}
    if "not" in new and (
        "not" not in plain_old
        or found.trial(
            lambda one: _json(writer.at(plain_old["not"]), reader.at(new["not"]), path, one)
        )
    ):
        found.add("NOT_TYPE_NARROWED", f"{path}/not", "rejects values that were valid")
    _json_types(new, plain_old, path, found)
    _json_bounds(new, plain_old, path, found)
    if "object" in _types_of(new, plain_old):
        _json_object(reader, writer.at(plain_old), path, found)
    if "array" in _types_of(new, plain_old):
        _json_array(reader, writer.at(plain_old), path, found)


def _without(schema: Any, key: str) -> Any:
    return {name: value for name, value in schema.items() if name != key}


def _json_each_old(reader: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    """Compare each branch of the old anyOf or oneOf."""
    old = writer.schema
    key = "anyOf" if "anyOf" in old else "oneOf"
    rest = _without(old, key)
    for number, branch in enumerate(old[key]):
        place = writer.at(branch).resolved()
        if isinstance(place.schema, dict) and place.resolver is writer.resolver:
            place = place.at({**_apart(rest, place.schema), **place.schema})
        _json(reader, place, f"{path}/{key}/{number}", found)


def _apart(schema: Any, other: Any) -> Any:
    """Return the keywords of a schema whose effect does not depend on those of another one."""
    for keys in (_PROPERTIES, _ITEMS):
        if keys & other.keys():
            schema = {name: value for name, value in schema.items() if name not in keys}
    return schema


def _json_some_new(reader: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    """Find a branch of the new anyOf or oneOf that accepts all old values."""
    new = reader.schema
    key = "anyOf" if "anyOf" in new else "oneOf"
    rest = _without(new, key)
    if rest.keys() - _ANNOTATIONS:
        _json(reader.at(rest), writer, path, found)
    for number, branch in enumerate(new[key]):
        where = f"{path}/{key}/{number}"
        if not found.trial(partial(_json, reader.at(branch), writer, where)):
            return
    found.add("SUM_TYPE_NARROWED", f"{path}/{key}", "no branch accepts all values that were valid")


def _json_part(part: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    """Compare one branch of the new allOf with the old schema, or with a branch of its allOf."""
    old = writer.schema
    if isinstance(old, dict):
        for branch in old.get("allOf", ()):
            if not found.trial(partial(_json, part, writer.at(branch), path)):
                return
    _json(part, writer, path, found)


def _types_in(schema: Any) -> frozenset[str]:
    stated = schema.get("type")
    if stated is None:
        return _ALL_TYPES
    found = frozenset([stated] if isinstance(stated, str) else stated)
    return found | {"integer"} if "number" in found else found


# In this order: a bool is an int.
_KINDS: Final = (
    *((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string")),
    (list, "array"),
)


def _type_of(value: Any) -> str:
    kinds = (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (list, "array"),
    )
    found = next((name for kind, name in kinds if isinstance(value, kind)), None)
    return found or ("null" if value is None else "object")


def _types_of(new: Any, old: Any) -> frozenset[str]:
    return _types_in(new) & _types_in(old)


def _json_types(new: Any, old: Any, path: str, found: _Problems) -> None:
    allowed = [old["const"]] if "const" in old else old.get("enum")
    before = _types_in(old) if allowed is None else frozenset(map(_type_of, allowed))
    missing = before - _types_in(new)
    if missing:
        code = "TYPE_NARROWED" if before & _types_in(new) else "TYPE_CHANGED"
        found.add(code, f"{path}/type", f"{', '.join(sorted(missing))} was valid")
    now = [new["const"]] if "const" in new else new.get("enum")
    if now is None:
        return
    shown = {compact(each, is_sorted=True) for each in now}
    if allowed is None or any(compact(each, is_sorted=True) not in shown for each in allowed):
        found.add("ENUM_ARRAY_NARROWED", f"{path}/enum", "values that were valid are missing")


def _json_bounds(new: Any, old: Any, path: str, found: _Problems) -> None:
    for keys, is_narrower in ((_LOWER, _greater), (_UPPER, _less)):
        for key in keys:
            if key in new and (key not in old or is_narrower(new[key], old[key])):
                if new[key] == 0 and key.startswith("min") and key != "minimum":
                    continue
                found.add(
                    f"{_code(key)}_NARROWED", f"{path}/{key}", "rejects values that were valid"
                )
    for key in _EXACT:
        if key in new and new[key] != old.get(key):
            found.add(f"{_code(key)}_CHANGED", f"{path}/{key}", "may reject values that were valid")


def _code(key: str) -> str:
    return "".join(f"_{each}" if each.isupper() else each for each in key).upper()


def _greater(one: Any, other: Any) -> bool:
    return bool(one > other) if _are_numbers(one, other) else one != other


def _less(one: Any, other: Any) -> bool:
    return bool(one < other) if _are_numbers(one, other) else one != other


def _are_numbers(one: Any, other: Any) -> bool:
    return all(
        isinstance(each, int | float) and not isinstance(each, bool) for each in (one, other)
    )


def _further(schema: Any, key: str = "additionalProperties") -> Any:
    """Return the schema of properties or items that are not listed."""
    return schema.get(key, True)


def _json_object(reader: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    new, old = reader.schema, writer.schema
    _json_properties(reader, writer, path, found)
    further = reader.at(_further(new))
    _json(further, writer.at(_further(old)), f"{path}/additionalProperties", found)
    patterns, old_patterns = new.get("patternProperties", {}), old.get("patternProperties", {})
    found.take_steps(len(patterns) * (len(old_patterns) + len(old.get("properties", ()))))
    for pattern, schema in patterns.items():
        where = f"{path}/patternProperties/{pattern}"
        for before in _before_pattern(pattern, old):
            _json(reader.at(schema), writer.at(before), where, found)
    for pattern, schema in old_patterns.items():
        if pattern not in patterns:
            _json(further, writer.at(schema), f"{path}/patternProperties/{pattern}", found)
    required = frozenset(old.get("required", ()))
    for name in new.get("required", ()):
        schema = new.get("properties", {}).get(name)
        has_default = isinstance(schema, dict) and "default" in schema
        if name not in required and not has_default:
            found.add("REQUIRED_ATTRIBUTE_ADDED", f"{path}/required/{name}", "is required now")


def _json_properties(reader: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    """Compare the properties that one of the two schemas lists."""
    new, old = reader.schema, writer.schema
    new_properties, old_properties = new.get("properties", {}), old.get("properties", {})
    patterns, old_patterns = new.get("patternProperties", {}), old.get("patternProperties", {})
    steps = len(new_properties) * len(old_patterns) + len(old_properties) * len(patterns)
    found.take_steps(steps)
    for name, schema in new_properties.items():
        where = f"{path}/properties/{name}"
        if name in old_properties:
            _json(reader.at(schema), writer.at(old_properties[name]), where, found)
            continue
        for before in _before_property(name, old):
            if before in (True, {}) and schema not in (True, {}):
                found.add(
                    "PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
                    where,
                    "an older value may have this property with any content. Set "
                    "additionalProperties to false in the older schema to add properties",
                )
            else:
                _json(reader.at(schema), writer.at(before), where, found)
    further = _further(new)
    for name, schema in old_properties.items():
        if name in new_properties or any(_is_match(pattern, name) for pattern in patterns):
            continue
        where = f"{path}/properties/{name}"
        if further is False:
            found.add("PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL", where, "rejects the property")
        else:
            _json(reader.at(further), writer.at(schema), where, found)


_PREFIX: Final = re.compile(r"\^([\w -]*)(\$?)")  # a pattern for names with a prefix, or one name


def _is_match(pattern: str, name: str) -> bool | None:
    """Return whether a pattern of names matches; None if that is not known. A regular expression is
    not evaluated: it could take any time.
    """
    simple = _PREFIX.fullmatch(pattern)
    if simple is None:
        return None
    return name == simple[1] if simple[2] else name.startswith(simple[1])


def _are_apart(one: str, other: str) -> bool:
    """Return whether it is known that no name matches both patterns."""
    first, second = _PREFIX.fullmatch(one), _PREFIX.fullmatch(other)
    if first is None or second is None:
        return False
    return not (first[1].startswith(second[1]) or second[1].startswith(first[1]))


def _before_property(name: str, old: Any) -> list[Any]:
    """Return the schemas one of which an older schema has for a property that it does not list."""
    found = []
    for pattern, schema in old.get("patternProperties", {}).items():
        is_match = _is_match(pattern, name)
        if is_match:
            return [schema]
        if is_match is None:
            found.append(schema)
    return [*found, _further(old)]


def _before_pattern(pattern: str, old: Any) -> list[Any]:
    """Return the schemas one of which an older schema has for each name of a pattern."""
    patterns = old.get("patternProperties", {})
    if pattern in patterns:
        return [patterns[pattern]]
    listed = old.get("properties", {}).items()
    return [
        *(schema for name, schema in listed if _is_match(pattern, name) is not False),
        *(schema for other, schema in patterns.items() if not _are_apart(pattern, other)),
        _further(old),
    ]


def _json_array(reader: _JsonPlace, writer: _JsonPlace, path: str, found: _Problems) -> None:
    new, old = reader.schema, writer.schema
    if new.get("uniqueItems") and not old.get("uniqueItems"):
        found.add("UNIQUE_ITEMS_ADDED", f"{path}/uniqueItems", "items may be equal")
    new_first, new_rest = _items_of(new)
    old_first, old_rest = _items_of(old)
    for number in range(max(len(new_first), len(old_first))):
        now = new_first[number] if number < len(new_first) else new_rest
        before = old_first[number] if number < len(old_first) else old_rest
        _json(reader.at(now), writer.at(before), f"{path}/items/{number}", found)
    _json(reader.at(new_rest), writer.at(old_rest), f"{path}/items", found)


def _items_of(schema: Any) -> tuple[list[Any], Any]:
    """Return the schemas of the first items, and of the rest, of any draft."""
    if "prefixItems" in schema:
        return schema["prefixItems"], _further(schema, "items")
    items = _further(schema, "items")
    if isinstance(items, list):
        return items, _further(schema, "additionalItems")
    return [], items


# -- Protobuf --------------------------------------------------------------------------------------


PROTOBUF_BYTES_MAX: Final = limits.SCHEMA_PROTOBUF_BYTES_MAX
ROOT_FILE: Final = "schema.proto"
_SCALARS: Final = (
    *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("", "", "bytes", "uint32", "", "sfixed32", "sfixed64", "sint32", "sint64"),
)  # by FieldDescriptorProto.Type - 1
_STRING: Final = _SCALARS.index("string") + 1
_BYTES: Final = _SCALARS.index("bytes") + 1
_KNOWN_FILES: Final = {
    f"google/protobuf/{name}.proto": f"google.protobuf.{name}_pb2"
    for name in (
        *("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context"),
        *("struct", "timestamp", "type", "wrappers"),
    )
}
# Files that clients of Confluent's registry take for known, too.
_CONFLUENT_FILES: Final = {
    "confluent/meta.proto": (
        'syntax = "proto3"; package confluent; message Meta { string doc = 1; '
        "map<string, string> params = 2; repeated string tags = 3; }"
    ),
    "confluent/type/decimal.proto": (
        'syntax = "proto3"; package confluent.type; message Decimal { bytes value = 1; '
        "uint32 precision = 2; int32 scale = 3; }"
    ),
}
# Kinds of numbers that read each other's encoding.
_VARINTS: Final = frozenset(("int32", "int64", "uint32", "uint64", "bool"))
_ALIKE: Final = (
    frozenset(("sint32", "sint64")),
    frozenset(("fixed32", "sfixed32")),
    frozenset(("fixed64", "sfixed64")),
    frozenset(("string", "bytes")),
)


@dataclass(frozen=True, slots=True)
class ProtobufModel:
    """``file``: the FileDescriptor. ``proto``: its FileDescriptorProto, without its name."""

    file: Any
    proto: Any


def _parse_protobuf(text: str, named: Named) -> Parsed:
    descriptor_pb2 = library("google.protobuf.descriptor_pb2")
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    try:
        for name, other in named:
            _add_file(pool, name, _file_proto(descriptor_pb2, other))
        proto = _file_proto(descriptor_pb2, text)
        file = _add_file(pool, ROOT_FILE, proto)
    except SchemaError:
        raise
    except Exception as error:  # of the pool, which says what is wrong
        reason = str(error)[:300] or type(error).__name__
        raise SchemaError(f"not a Protobuf schema: {reason}", INVALID) from error
    normal = _printed(proto)
    is_text = _decoded_file(descriptor_pb2, text) is None
    return Parsed(PROTOBUF, text if is_text else normal, normal, ProtobufModel(file, proto))


def serialized(parsed: Parsed) -> str:
    """Return a Protobuf schema as the base64 of its FileDescriptorProto."""
    return base64.b64encode(parsed.model.proto.SerializeToString()).decode()


def _add_file(pool: Any, name: str, proto: Any) -> Any:
    """Add a file to the pool, after the well-known files that it imports."""
    for wanted in proto.dependency:
        try:
            pool.FindFileByName(wanted)
        except KeyError:
            _add_known(pool, wanted)
    proto.name = name
    pool.AddSerializedFile(proto.SerializeToString())
    return pool.FindFileByName(name)


def _add_known(pool: Any, name: str) -> None:
    descriptor_pb2 = library("google.protobuf.descriptor_pb2")
    if name in _KNOWN_FILES:
        known = descriptor_pb2.FileDescriptorProto()
        known.ParseFromString(library(_KNOWN_FILES[name]).DESCRIPTOR.serialized_pb)
    elif name in _CONFLUENT_FILES:
        known = _file_proto(descriptor_pb2, _CONFLUENT_FILES[name])
    else:
        raise SchemaError(f"no reference is named {name[:200]!r}, which is imported", INVALID)
    _add_file(pool, name, known)


def _decoded_file(descriptor_pb2: Any, text: str) -> Any:
    """Return the FileDescriptorProto of a base64 text, as some clients send it; else None."""
    try:
        data = base64.b64decode(text, validate=True)
        proto = descriptor_pb2.FileDescriptorProto.FromString(data)
    except (binascii.Error, ValueError, library("google.protobuf.message").DecodeError):
        return None
    return proto


def _file_proto(descriptor_pb2: Any, text: str) -> Any:
    return _decoded_file(descriptor_pb2, text) or _ProtoReader(descriptor_pb2).read(text)


def _refuse(
    _self: Any, _parser: Any, _symbol: Any, line: int, column: int, text: str, _error: Any
) -> None:
    """Handle the first error that ANTLR reports: the parse ends."""
    raise SchemaError(
        f"not a Protobuf schema: line {line}, column {column + 1}: {text[:120]}", INVALID
    )


class _ProtoReader:
    """Converts the syntax tree of proto-schema-parser to a FileDescriptorProto. Options that do not
    change the encoding, services and comments are left out.
    """

    def __init__(self, descriptor_pb2: Any) -> None:
        self._pb = descriptor_pb2
        self._ast = library("proto_schema_parser.ast")
        self._is_proto3 = False

    def read(self, text: str) -> Any:
        parser = library("proto_schema_parser.parser")
        base = library("antlr4.error.ErrorListener").ErrorListener
        listener = type("Strict", (base,), {"syntaxError": _refuse})()

        def strict(part: Any) -> None:
            part.removeErrorListeners()
            part.addErrorListener(listener)

        tree = parser.Parser(setup_lexer=strict, setup_parser=strict).parse(text)
        if tree.edition is not None:
            raise SchemaError("not supported: editions of Protobuf. Use proto3", INVALID)
        self._is_proto3 = (tree.syntax or "proto2").strip("\"'") == "proto3"
        proto = self._pb.FileDescriptorProto(syntax="proto3" if self._is_proto3 else "proto2")
        for each in tree.file_elements:
            self._file_element(proto, each)
        return proto

    def _file_element(self, proto: Any, each: Any) -> None:
        ast = self._ast
        if isinstance(each, ast.Package):
            proto.package = each.name
        elif isinstance(each, ast.Import):
            if each.public:
                proto.public_dependency.append(len(proto.dependency))
            proto.dependency.append(each.name.strip("\"'"))
        elif isinstance(each, ast.Message):
            self._message(proto.message_type.add(), each)
        elif isinstance(each, ast.Enum):
            self._enum(proto.enum_type.add(), each)

    def _message(self, target: Any, tree: Any) -> None:
        ast = self._ast
        target.name = tree.name
        optional: list[Any] = []  # of proto3: each is the only one of a oneof, after the others
        for each in tree.elements:
            if isinstance(each, ast.Field):
                one = self._field(target, each)
                if self._is_proto3 and each.cardinality == ast.FieldCardinality.OPTIONAL:
                    one.proto3_optional = True
                    optional.append(one)
            elif isinstance(each, ast.OneOf):
                target.oneof_decl.add(name=each.name)
                for part in each.elements:
                    if isinstance(part, ast.Field):
                        self._field(target, part).oneof_index = len(target.oneof_decl) - 1
            else:
                self._other_element(target, each)
        for one in optional:
            one.oneof_index = len(target.oneof_decl)
            target.oneof_decl.add(name=f"_{one.name}")

    def _other_element(self, target: Any, each: Any) -> None:
        ast = self._ast
        if isinstance(each, ast.MapField):
            self._map(target, each)
        elif isinstance(each, ast.Message):
            self._message(target.nested_type.add(), each)
        elif isinstance(each, ast.Enum):
            self._enum(target.enum_type.add(), each)
        elif isinstance(each, ast.Reserved):
            self._reserve(target, each)
        elif isinstance(each, ast.Group):
            raise SchemaError("not supported: groups of proto2. Use a message", INVALID)

    def _field(self, target: Any, tree: Any) -> Any:
        one = target.field.add(name=tree.name, number=int(tree.number))
        cardinality = tree.cardinality or self._ast.FieldCardinality.OPTIONAL
        one.label = {"OPTIONAL": 1, "REQUIRED": 2, "REPEATED": 3}[cardinality.value]
        _set_type(one, tree.type)
        for option in tree.options:
            if option.name == "packed" and isinstance(option.value, bool):
                one.options.packed = option.value
            elif option.name == "json_name":
                one.json_name = _unescaped(option.value).decode()
            elif option.name == "default" and not self._is_proto3:
                one.default_value = _default(one, option.value)
        return one

    def _map(self, target: Any, tree: Any) -> None:
        name = "".join(part[:1].upper() + part[1:] for part in tree.name.split("_")) + "Entry"
        entry = target.nested_type.add(name=name)
        entry.options.map_entry = True
        for number, (part, kind) in enumerate(
            (("key", tree.key_type), ("value", tree.value_type)), start=1
        ):
            _set_type(entry.field.add(name=part, number=number, label=1), kind)
        target.field.add(name=tree.name, number=int(tree.number), label=3, type=11, type_name=name)

    def _enum(self, target: Any, tree: Any) -> None:
        target.name = tree.name
        for each in tree.elements:
            if isinstance(each, self._ast.EnumValue):
                target.value.add(name=each.name, number=int(each.number))
            elif isinstance(each, self._ast.Option) and each.name == "allow_alias":
                target.options.allow_alias = bool(each.value)

    def _reserve(self, target: Any, tree: Any) -> None:
        target.reserved_name.extend(name.strip("\"'") for name in tree.names)
        for each in tree.ranges:
            first, _, last = each.partition(" to ")
            end = (1 << 29) - 1 if last.strip() == "max" else int(last or first)
            target.reserved_range.add(start=int(first), end=end + 1)


def _default(one: Any, value: Any) -> str:
    """Return the default of a field as a FieldDescriptorProto has it."""
    if one.type == _STRING:
        return _unescaped(value).decode()
    if one.type == _BYTES:
        return _escaped(_unescaped(value))
    value = getattr(value, "name", value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unescaped(text: str) -> bytes:
    """Return the bytes of a string in a .proto file, such as ``a\\n\\x01``."""
    return bytes(library("google.protobuf.text_encoding").CUnescape(text))


def _escaped(data: bytes, *, is_text: bool = False) -> str:
    """Return the inverse of ``_unescaped``. ``is_text``: without escapes of UTF-8."""
    return str(library("google.protobuf.text_encoding").CEscape(data, is_text))


def _set_type(one: Any, kind: str) -> None:
    if kind in _SCALARS and kind:
        one.type = _SCALARS.index(kind) + 1
    else:
        one.type_name = kind  # the pool finds out if it is a message or an enum


def _printed(proto: Any) -> str:
    """Return the text of a FileDescriptorProto: equal for equal content."""
    lines = [f'syntax = "{proto.syntax or "proto2"}";']
    if proto.package:
        lines.append(f"package {proto.package};")
    public = set(proto.public_dependency)
    lines += [
        f'import {"public " if number in public else ""}"{name}";'
        for number, name in enumerate(proto.dependency)
    ]
    for each in proto.enum_type:
        lines += _printed_enum(each, "")
    for each in proto.message_type:
        lines += _printed_message(each, "", is_proto3=proto.syntax == "proto3")
    return "\n".join(lines) + "\n"


def _printed_enum(proto: Any, indent: str) -> list[str]:
    inside = [f"{indent}  {each.name} = {each.number};" for each in proto.value]
    if proto.options.allow_alias:
        inside.insert(0, f"{indent}  option allow_alias = true;")
    return ["", f"{indent}enum {proto.name} {{", *inside, f"{indent}}}"]


def _printed_message(proto: Any, indent: str, *, is_proto3: bool) -> list[str]:
    inner = f"{indent}  "
    entries = {each.name: each for each in proto.nested_type if each.options.map_entry}
    lines = ["", f"{indent}message {proto.name} {{"]
    ranges = [
        str(each.start) if each.end == each.start + 1 else f"{each.start} to {each.end - 1}"
        for each in proto.reserved_range
    ]
    if ranges:
        lines.append(f"{inner}reserved {', '.join(ranges)};".replace(str((1 << 29) - 1), "max"))
    if proto.reserved_name:
        names = ", ".join(f'"{name}"' for name in proto.reserved_name)
        lines.append(f"{inner}reserved {names};")
    oneofs: dict[int, list[str]] = {}
    for each in proto.field:
        line = _printed_field(each, entries, is_proto3=is_proto3)
        if each.HasField("oneof_index") and not each.proto3_optional:
            oneofs.setdefault(each.oneof_index, []).append(f"{inner}  {line}")
        else:
            lines.append(inner + line)
    for number, members in oneofs.items():
        name = proto.oneof_decl[number].name
        lines += [f"{inner}oneof {name} {{", *members, f"{inner}}}"]
    for each in proto.enum_type:
        lines += _printed_enum(each, inner)[1:]
    for each in proto.nested_type:
        if not each.options.map_entry:
            lines += _printed_message(each, inner, is_proto3=is_proto3)[1:]
    return [*lines, f"{indent}}}"]


def _printed_field(proto: Any, entries: Mapping[str, Any], *, is_proto3: bool) -> str:
    entry = entries.get(proto.type_name.rpartition(".")[2]) if proto.label == 3 else None
    if entry is not None:
        key, value = (_printed_type(each) for each in entry.field)
        return f"map<{key}, {value}> {proto.name} = {proto.number};"
    in_oneof = proto.HasField("oneof_index") and not proto.proto3_optional
    is_plain = in_oneof or (is_proto3 and not proto.proto3_optional)
    label = {1: "" if is_plain else "optional ", 2: "required ", 3: "repeated "}[proto.label]
    options = []
    if proto.HasField("default_value"):
        shown = proto.default_value
        if proto.type == _STRING:
            shown = _escaped(shown.encode(), is_text=True)
        options.append(
            f'default = "{shown}"' if proto.type in (_STRING, _BYTES) else f"default = {shown}"
        )
    if proto.HasField("json_name") and proto.json_name != _json_name(proto.name):
        options.append(f'json_name = "{_escaped(proto.json_name.encode(), is_text=True)}"')
    if proto.options.HasField("packed"):
        options.append(f"packed = {str(proto.options.packed).lower()}")
    tail = f" [{', '.join(options)}]" if options else ""
    return f"{label}{_printed_type(proto)} {proto.name} = {proto.number}{tail};"


def _json_name(name: str) -> str:
    """Return the name that a field has in JSON without an option, as protoc does."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


def _printed_type(proto: Any) -> str:
    return proto.type_name or _SCALARS[proto.type - 1]


def _compare_protobuf(reader: ProtobufModel, writer: ProtobufModel, found: _Problems) -> None:
    now = dict(_messages_of(reader.file))
    for name, message in _messages_of(writer.file):
        if name not in now:
            found.add("MESSAGE_REMOVED", f"/{name}", "the message is missing")
            continue
        _protobuf_message(now[name], message, f"/{name}", found)


def _messages_of(file: Any) -> Iterator[tuple[str, Any]]:
    """Return all messages with their names in the package."""
    level: list[tuple[str, Any]] = list(file.message_types_by_name.items())
    while level:
        name, message = level.pop(0)
        if message.GetOptions().map_entry:
            continue
        yield name, message
        level.extend((f"{name}.{each.name}", each) for each in message.nested_types)


def _protobuf_message(reader: Any, writer: Any, path: str, found: _Problems) -> None:
    new, old = reader.fields_by_number, writer.fields_by_number
    for number, each in old.items():
        where = f"{path}/{number}"
        if number in new:
            _protobuf_field(new[number], each, where, found)
        elif _label(each) == "required":
            found.add("REQUIRED_FIELD_REMOVED", where, f"the required field {each.name} is missing")
        elif _oneof(each) and _oneof(each) in _oneofs(reader):
            found.add("ONEOF_FIELD_REMOVED", where, f"{each.name} is missing in its oneof")
    for number, each in new.items():
        if number not in old and _label(each) == "required":
            found.add("REQUIRED_FIELD_ADDED", f"{path}/{number}", f"{each.name} is required")
    for name in _oneofs(reader):
        moved = [
            number
            for number, each in new.items()
            if _oneof(each) == name and number in old and _oneof(old[number]) != name
        ]
        if len(moved) > 1:
            found.add(
                "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
                f"{path}/{name}",
                f"the fields {', '.join(map(str, moved))} were independent",
            )


def _oneof(each: Any) -> str:
    """Return the name of the oneof of a field; "" for none, and for an optional one of proto3."""
    oneof = each.containing_oneof
    return "" if oneof is None or oneof.name == f"_{each.name}" else oneof.name


def _oneofs(message: Any) -> set[str]:
    return {_oneof(each) for each in message.fields} - {""}


def _label(each: Any) -> str:
    """Return the label: of both interfaces, as label is deprecated since protobuf 6.31."""
    if hasattr(each, "is_repeated"):
        return "repeated" if each.is_repeated else "required" if each.is_required else ""
    return {3: "repeated", 2: "required"}.get(each.label, "")


def _protobuf_field(reader: Any, writer: Any, path: str, found: _Problems) -> None:
    new, old = _protobuf_type(reader), _protobuf_type(writer)
    both_varints = _is_varint(reader, new) and _is_varint(writer, old)
    if (
        new != old
        and not both_varints
        and not any(new in alike and old in alike for alike in _ALIKE)
    ):
        is_named = not {new, old} & set(_SCALARS)
        both_scalar = {new, old} <= set(_SCALARS)
        code = (
            "FIELD_NAMED_TYPE_CHANGED"
            if is_named
            else "FIELD_SCALAR_KIND_CHANGED"
            if both_scalar
            else "FIELD_KIND_CHANGED"
        )
        found.add(code, path, f"{writer.name} had type {old}, not {new}")
    one, other = _message_of(reader), _message_of(writer)
    are_messages = one is not None and other is not None and new == old
    # Of a reference, which may be another version.
    if are_messages and other.file.name != ROOT_FILE and found.is_new(one, other):
        _protobuf_message(one, other, f"{path}/{new}", found)
    is_number = old in _SCALARS and old not in ("string", "bytes")
    if is_number and (_label(reader) == "repeated") != (_label(writer) == "repeated"):
        text = f"{writer.name} changes between one value and several"
        found.add("FIELD_NUMERIC_LABEL_CHANGED", path, text)
    if (_label(reader) == "required") != (_label(writer) == "required"):
        is_added = _label(reader) == "required"
        code = "REQUIRED_FIELD_ADDED" if is_added else "REQUIRED_FIELD_REMOVED"
        found.add(code, path, f"{writer.name} changes between required and optional")


def _message_of(each: Any) -> Any:
    """Return the message of a field, or of the values of a map; None for other types."""
    found = each.message_type
    if found is not None and found.GetOptions().map_entry:
        return found.fields_by_name["value"].message_type
    return found


def _is_varint(each: Any, kind: str) -> bool:
    """Whether the field is encoded like an int64: enums are, too."""
    return kind in _VARINTS or each.enum_type is not None


def _protobuf_type(each: Any) -> str:
    """Return the scalar type, or the name in the package of the message or enum."""
    named = each.message_type or each.enum_type
    if named is None:
        return _SCALARS[each.type - 1]
    package = named.file.package
    name = str(named.full_name)
    if each.message_type is not None and each.message_type.GetOptions().map_entry:
        parts: Iterable[str] = (_protobuf_type(part) for part in each.message_type.fields)
        return f"map<{', '.join(parts)}>"
    is_own = named.file.name == ROOT_FILE
    return name.removeprefix(f"{package}.") if package and is_own else name


_PARSERS: Final[dict[str, Callable[[str, Named], Parsed]]] = {
    AVRO: _parse_avro,
    JSON: _parse_json,
    PROTOBUF: _parse_protobuf,
}
_COMPARERS: Final[dict[str, Callable[[Any, Any, _Problems], None]]] = {
    AVRO: _compare_avro,
    JSON: _compare_json,
    PROTOBUF: _compare_protobuf,
}
