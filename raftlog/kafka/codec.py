"""Readers and writers of Kafka's messages, created from ``schema`` on first use.

A message is an instance of a class with the fields of all served versions and their defaults. For
each version there is one straight-line reader and one writer: Python source that is compiled once,
as in ``dataclasses``. Neighbouring fields of fixed size are one ``struct`` operation.

The reader or writer of a structure with arrays is a generator: it yields the size of each array,
and 0 after every ``ITEMS_PER_STEP`` elements, so that other work can run in between. Arrays of
numbers are one ``struct`` operation and not counted.

Input is not trusted: an array's length is compared with the remaining bytes, and of numbers with
``KAFKA_ITEMS_MAX``. Before other elements are decoded, the memory that they will have is compared
with ``KAFKA_DECODED_BYTES_MAX``: a number of elements would stop tools that ask for all partitions
of a large cluster. A reader raises one of ``READ_ERRORS``.

Formats: https://kafka.apache.org/protocol (types), KIP-482 (compact types and tagged fields).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from raftlog import limits
from raftlog.kafka import api as apis
from raftlog.kafka.table import TABLE
from raftlog.types import Buffer

# A message or one of its structures: its class is created from the table, so mypy cannot know it.
Message: TypeAlias = Any
T = TypeVar("T")
# Yields None when other work can run.
Pieces: TypeAlias = Generator[None, None, T]
# Reads a message from a position; returns it and the position after it.
Reader: TypeAlias = Callable[[memoryview, int], Pieces[tuple[Message, int]]]
# Calls the second argument with each piece of the encoded message, in order.
Writer: TypeAlias = Callable[[Message, Callable[[Buffer], None]], Pieces[None]]

ITEMS_PER_STEP: Final = 128  # elements of an array: takes less than a millisecond
_STRUCT_BYTES: Final = 24  # of an object without fields
_SLOT_BYTES: Final = 8
_VALUE_BYTES: Final = 56  # of an empty string or list, and more than a number
ZERO_UUID: Final = bytes(16)
_FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
}


class BadMessageError(ValueError):
    """A received message is not valid."""


# Exceptions of a reader for invalid input: a bound was exceeded, or bytes are missing.
READ_ERRORS: Final = (BadMessageError, IndexError, struct.error, UnicodeDecodeError)


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return the unsigned varint at ``at``, of at most five bytes, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        # guard: varints of Kafka requests are short
        if shift > 28:
            raise BadMessageError("a varint of more than five bytes")


_SHORT_VARINTS: Final = [bytes([value]) for value in range(128)]


def varint(value: int) -> bytes:
    """Return ``value``, at least 0, as an unsigned varint."""
    if value < 0x80:
        return _SHORT_VARINTS[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Structs:
    """Classes of a message, as attributes, by Kafka's names of the structures."""

    def __init__(self, definition: Definition) -> None:
        self.root: type[Message]
        for name in reversed(definition.structs):
            fields = [(field.name, Any, self._default(field)) for field in definition.structs[name]]
            setattr(self, name, msgspec.defstruct(name, fields, gc=False))
        self.root = getattr(self, definition.name)

    def __getattr__(self, name: str) -> type[Message]:
        raise AttributeError(f"the message has no structure {name}")

    def _default(self, field: Field) -> Any:
        if field.is_array:
            return None if field.default == "null" else msgspec.field(default_factory=list)
        if is_struct(field.element) and field.default != "null":
            return msgspec.field(default_factory=getattr(self, field.element))
        return _default(field)


def _default(field: Field) -> Any:
    """Return the default of a field that is neither an array nor a structure."""
    if field.default == "null" or field.type == "records":
        return None
    if field.type == "bool":
        return field.default == "true"
    if field.type == "float64":
        return float(field.default or 0)
    if field.type in _FIXED:
        return int(field.default or "0", 0)
    return {"string": field.default, "bytes": b"", "uuid": ZERO_UUID}[field.type]


@cache
def structs(kind: Kind, key: int) -> Structs:
    """Return the classes of a message."""
    return Structs(definitions()[kind, key])


@cache
def reader(kind: Kind, key: int, version: int) -> Reader:
    """Return the reader of a message in a version."""
    read, is_long = _function(kind, key, version, _read_lines, "read")

    def read_in_steps(data: memoryview, at: int) -> Pieces[tuple[Message, int]]:
        made: tuple[Message, int]
        if is_long:
            made = yield from _counted(read(data, at))
        else:
            made = read(data, at)
        return made

    return read_in_steps


def _counted(steps: Generator[int, None, T]) -> Pieces[T]:
    """Run the steps of a reader. Raises ``BadMessageError`` if its elements need too much
    memory.
    """
    size = 0
    while True:
        try:
            size += next(steps)
        except StopIteration as end:
            made: T = end.value
            return made
        # guard: the elements of a Kafka request have limited memory
        if size > limits.KAFKA_DECODED_BYTES_MAX:
            raise BadMessageError(
                f"its elements need more memory than KAFKA_DECODED_BYTES_MAX "
                f"({limits.KAFKA_DECODED_BYTES_MAX}). Send several requests"
            )
        yield None


@cache
def writer(kind: Kind, key: int, version: int) -> Writer:
    """Return the writer of a message in a version."""
    write, is_long = _function(kind, key, version, _write_lines, "write")

    def write_in_steps(message: Message, add: Callable[[Buffer], None]) -> Pieces[None]:
        if is_long:
            for _ in write(message, add):
                yield None
        else:
            write(message, add)

    return write_in_steps


def has_field(kind: Kind, key: int, version: int, name: str) -> bool:
    """Return whether a message has a field, outside of its arrays and structures, in a version."""
    definition = definitions()[kind, key]
    plain, tagged = _Version(definition, version).fields(definition.name)
    return any(field.name == name for field in plain + tagged)


def finish(steps: Generator[object, None, T]) -> T:
    """Run all steps at once, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: T = end.value
            return made


def _function(
    kind: Kind,
    key: int,
    version: int,
    lines_of: Callable[[_Version, str], list[str]],
    verb: str,
) -> tuple[Callable[..., Any], bool]:
    """Compile the functions of all structures of a message. Returns that of the message, and
    whether it is a generator.
    """
    definition = definitions()[kind, key]
    one = _Version(definition, version)
    lines: list[str] = []
    for name in reversed(definition.structs):
        lines += lines_of(one, name)
    classes = structs(kind, key)
    names: dict[str, Any] = {
        "BadMessageError": BadMessageError,
        "ITEMS_MAX": limits.KAFKA_ITEMS_MAX,
        "PER_STEP": ITEMS_PER_STEP,
        "TAGS_MAX": limits.KAFKA_TAGS_MAX,
        "read_varint": read_varint,
        "varint": varint,
        "pack": struct.pack,
        "unpack_from": struct.unpack_from,
    }
    names |= {f"new_{name}": getattr(classes, name) for name in definition.structs}
    names |= {f"S_{each}": struct.Struct(f">{each}") for each in ("h", "i")}
    names |= {name: struct.Struct(fmt) for name, fmt in one.packed.items()}
    # The source is created from the constant table; it contains no input.
    exec(compile("\n".join(lines), f"<{definition.name} {version}>", "exec"), names)  # noqa: S102 - source from a constant table
    return names[f"{verb}_{definition.name}"], one.is_long(definition.name)


class _Version:
    """Values for the source of one version of a message."""

    def __init__(self, definition: Definition, version: int) -> None:
        self.definition = definition
        self.version = version
        self.flexible = version >= definition.first_flexible
        self.packed: dict[str, str] = {}  # struct formats, by the name that the source uses

    def pack(self, fmt: str) -> str:
        """Return the name of the ``struct.Struct`` of ``fmt``."""
        name = "P_" + fmt.replace("?", "t")
        self.packed[name] = f">{fmt}"
        return name

    def fields(self, name: str) -> tuple[list[Field], list[Field]]:
        """Return the fields of a structure in this version: in order, and the tagged ones."""
        plain, tagged = [], []
        for field in self.definition.structs[name]:
            if self.version in field.tagged:
                tagged.append(field)
            elif self.version in field.versions:
                plain.append(field)
        return plain, tagged

    def is_long(self, name: str) -> bool:
        """Return whether a structure contains arrays other than of numbers, at any depth."""
        plain, tagged = self.fields(name)
        return any(
            (field.is_array and field.element not in _FIXED)
            or (is_struct(field.element) and self.is_long(field.element))
            for field in plain + tagged
        )

    def size_of(self, element: str) -> int:
        """Return the approximate memory, in bytes, of an element of an array, without text."""
        if not is_struct(element):
            return _VALUE_BYTES
        plain, tagged = self.fields(element)
        values = [field for field in plain + tagged if field.type != "bool"]
        all_fields = self.definition.structs[element]
        return _STRUCT_BYTES + _SLOT_BYTES * len(all_fields) + _VALUE_BYTES * len(values)

    def call(self, verb: str, name: str, arguments: str) -> str:
        """Return the expression that reads or writes a structure."""
        wait = "yield from " if self.is_long(name) else ""
        return f"{wait}{verb}_{name}({arguments})"


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Group neighbouring fields of fixed size; any other field is a group by itself."""
    runs: list[list[Field]] = []
    fixed = False
    for field in fields:
        if field.type in _FIXED and fixed:
            runs[-1].append(field)
        else:
            runs.append([field])
        fixed = field.type in _FIXED
    return runs


def _pause(number: str) -> str:
    """Return the line that ends a step after some elements."""
    return f"if not {number} % PER_STEP: yield 0"


# -- source of readers: b is the buffer, p the position --------------------------------------------


def _read_lines(one: _Version, name: str) -> list[str]:
    plain, tagged = one.fields(name)
    lines = [f"def read_{name}(b, p):"]
    body: list[str] = []
    for run in _runs(plain):
        if run[0].type in _FIXED:
            pack = one.pack("".join(_FIXED[field.type] for field in run))
            targets = ", ".join(f"x_{field.name}" for field in run)
            body.append(f"{targets}, = {pack}.unpack_from(b, p); p += {pack}.size")
        else:
            body += _read_value(one, run[0], f"x_{run[0].name}")
    if one.flexible:
        for field in tagged:
            if is_struct(field.element) and not field.is_array and field.default != "null":
                body.append(f"x_{field.name} = new_{field.element}()")
            else:
                value = [] if field.is_array and field.default != "null" else _default(field)
                body.append(f"x_{field.name} = {value!r}")
        body += _read_tags(one, tagged)
    values = ", ".join(f"{field.name}=x_{field.name}" for field in plain + tagged)
    body.append(f"return new_{name}({values}), p")
    return lines + _indented(body)


def _read_tags(one: _Version, tagged: list[Field]) -> list[str]:
    known = [f"if tag == {field.tag}:" for field in tagged]
    inner = ["tag, p = read_varint(b, p)", "size, p = read_varint(b, p)", "end = p + size"]
    inner.append("if end > len(b): raise BadMessageError('tagged field beyond the end')")
    for number, (test, field) in enumerate(zip(known, tagged, strict=True)):
        inner.append(("el" if number else "") + test)
        inner += _indented(_read_value(one, field, f"x_{field.name}"))
        inner.append("    if p != end: raise BadMessageError('size of a tagged field')")
    inner.append("p = end")
    return [
        "k, p = read_varint(b, p)",
        "if k > TAGS_MAX: raise BadMessageError('number of tagged fields')",
        "for _ in range(k):",
        *_indented(inner),
    ]


def _read_length(one: _Version, *, short: bool) -> list[str]:
    """Return the lines that read a length into ``k``; -1 is null."""
    if one.flexible:
        return ["k = b[p]; p += 1", "if k > 127: k, p = read_varint(b, p - 1)", "k -= 1"]
    pack, size = ("S_h", 2) if short else ("S_i", 4)
    return [f"k, = {pack}.unpack_from(b, p); p += {size}"]


def _read_value(one: _Version, field: Field, target: str) -> list[str]:
    nullable = one.version in field.nullable
    if field.is_array:
        return _read_array(one, field, target, nullable=nullable)
    if field.type in _FIXED:
        pack = one.pack(_FIXED[field.type])
        return [f"{target}, = {pack}.unpack_from(b, p); p += {pack}.size"]
    if field.type == "uuid":
        return [
            "if len(b) - p < 16: raise BadMessageError('uuid')",
            f"{target} = bytes(b[p:p + 16]); p += 16",
        ]
    if is_struct(field.type):
        read = f"{target}, p = {one.call('read', field.type, 'b, p')}"
        if not nullable:
            return [read]
        byte = f"k, = {one.pack('b')}.unpack_from(b, p); p += 1"
        return [byte, f"if k < 0: {target} = None", f"else: {read}"]
    convert = {
        "string": "str(b[p:p + k], 'utf-8')",
        "bytes": "bytes(b[p:p + k])",
        "records": "b[p:p + k]",
    }[field.type]
    null = f"{target} = None" if nullable else "raise BadMessageError('null')"
    return [
        *_read_length(one, short=field.type == "string"),
        "if k > len(b) - p: raise BadMessageError('length')",
        f"if k < 0: {null}",
        f"else: {target} = {convert}; p += k",
    ]


def _read_array(one: _Version, field: Field, target: str, *, nullable: bool) -> list[str]:
    element = field.element
    lines = _read_length(one, short=False)
    most = " or k > ITEMS_MAX" if element in _FIXED else ""
    lines.append(f"if k > len(b) - p{most}: raise BadMessageError('array length')")
    null = f"{target} = None" if nullable else "raise BadMessageError('null')"
    lines += [f"if k < 0: {null}", "else:"]
    if element in _FIXED:
        letter = _FIXED[element]
        size = struct.calcsize(f">{letter}")
        each = [f"{target} = list(unpack_from(f'>{{k}}{letter}', b, p)); p += {size} * k"]
    else:
        one_field = Field("", element, one.definition.versions, range(0), -1, range(0), "")
        loop = _read_value(one, one_field, "y")
        number = f"i_{field.name}"
        size = one.size_of(element)
        each = [f"yield k * {size}", f"{target} = []; add_{field.name} = {target}.append"]
        each.append(f"for {number} in range(1, k + 1):")
        each += _indented([*loop, f"add_{field.name}(y)", _pause(number)])
    return lines + _indented(each)


# -- source of writers: m is the message, a takes each piece ---------------------------------------


def _write_lines(one: _Version, name: str) -> list[str]:
    plain, tagged = one.fields(name)
    body: list[str] = []
    for run in _runs(plain):
        if run[0].type in _FIXED:
            pack = one.pack("".join(_FIXED[field.type] for field in run))
            body.append(f"a({pack}.pack({', '.join(f'm.{field.name}' for field in run)}))")
        else:
            body += _write_value(one, run[0], f"m.{run[0].name}")
    if one.flexible:
        body += _write_tags(one, tagged)
    return [f"def write_{name}(m, a):", *_indented(body or ["pass"])]


def _write_tags(one: _Version, tagged: list[Field]) -> list[str]:
    if not tagged:
        return ["a(b'\\0')"]
    lines = ["tags = []"]
    for field in sorted(tagged, key=lambda field: field.tag):
        if is_struct(field.element) and not field.is_array and field.default != "null":
            default = f"new_{field.element}()"
        else:
            value = [] if field.is_array and field.default != "null" else _default(field)
            default = repr(value)
        inner = [
            "tag = []; outer = a; a = tag.append",
            *_write_value(one, field, f"m.{field.name}"),
        ]
        inner += ["a = outer; tag = b''.join(tag)"]
        inner.append(f"tags.append(varint({field.tag}) + varint(len(tag)) + tag)")
        lines += [f"if m.{field.name} != {default}:", *_indented(inner)]
    return [*lines, "a(varint(len(tags)))", "for tag in tags: a(tag)"]


def _write_value(one: _Version, field: Field, source: str) -> list[str]:
    if field.type in _FIXED:
        return [f"a({one.pack(_FIXED[field.type])}.pack({source}))"]
    if field.type == "uuid":
        return [f"a({source})"]
    if one.version not in field.nullable:
        return _write_present(one, field, source)
    null = "b'\\0'" if one.flexible else "b'\\xff\\xff\\xff\\xff'"
    if field.type == "string" and not one.flexible:
        null = "b'\\xff\\xff'"
    if is_struct(field.type):
        null = "b'\\xff'"
    present = _write_present(one, field, source)
    if is_struct(field.type):
        present.insert(0, "a(b'\\1')")
    return [f"if {source} is None: a({null})", "else:", *_indented(present)]


def _write_present(one: _Version, field: Field, source: str) -> list[str]:
    """Return the lines that write a value that is not null."""

    def length(of: str, pack: str = "S_i") -> str:
        return f"a(varint({of} + 1))" if one.flexible else f"a({pack}.pack({of}))"

    element = field.element
    if field.is_array and element in _FIXED:
        letter = _FIXED[element]
        return [length(f"len({source})"), f"a(pack(f'>{{len({source})}}{letter}', *{source}))"]
    if field.is_array:
        one_field = Field("", element, one.definition.versions, range(0), -1, range(0), "")
        loop = _write_value(one, one_field, "y")
        number = f"i_{field.name}"
        head = [length(f"len({source})"), f"yield len({source})"]
        head.append(f"for {number}, y in enumerate({source}, 1):")
        return [*head, *_indented([*loop, _pause(number)])]
    if is_struct(element):
        return [one.call("write", element, f"{source}, a")]
    if field.type == "string":
        return [f"e = {source}.encode()", length("len(e)", "S_h"), "a(e)"]
    if field.type == "records":
        return [length(f"sum(map(len, {source}))"), f"for e in {source}: a(e)"]
    return [length(f"len({source})"), f"a({source})"]


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


# -- schema ----------------------------------------------------------------------------------------
#
# Kafka's messages as data: the parsed ``TABLE``.
#
# A message begins with ``request|response KEY NAME VERSIONS FIRST-FLEXIBLE-VERSION``. Each further
# line is a field, indented by its depth: ``NAME TYPE [VERSIONS] [null=VERSIONS] [tag=N:VERSIONS]
# [default=VALUE]``. Without versions, all versions of the message have the field. ``[]`` before a
# type is an array. A type with a capital letter is a structure; its fields follow, once.


Kind: TypeAlias = Literal["request", "response"]

_NO_VERSIONS: Final = range(0)


class Field(NamedTuple):
    """One field. ``default``: the text of its default value, or "" for the type's."""

    name: str
    type: str
    versions: range
    nullable: range
    tag: int
    tagged: range
    default: str

    @property
    def element(self) -> str:
        """The type of the array's elements, or else of the value."""
        return self.type.removeprefix("[]")

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")


class Definition(NamedTuple):
    """One message. ``structs`` begins with the message itself; nested structures follow."""

    kind: Kind
    key: int
    name: str
    versions: range
    first_flexible: int
    structs: dict[str, tuple[Field, ...]]


def is_struct(type_name: str) -> bool:
    """Return whether a type is a structure of the message."""
    return type_name[0].isupper()


@cache
def definitions() -> Mapping[tuple[Kind, int], Definition]:
    """Return all messages, by kind and API key."""
    blocks: list[list[str]] = []
    for line in TABLE.splitlines():
        if not line.startswith(" "):
            blocks.append([])
        blocks[-1].append(line)
    parsed = [_definition(block) for block in blocks]
    return {(each.kind, each.key): each for each in parsed}


def is_flexible(key: int, version: int) -> bool:
    """Return whether requests and responses of an API have tagged fields in ``version``."""
    return version >= definitions()["request", key].first_flexible


def _definition(block: list[str]) -> Definition:
    kind, key, name, versions, first_flexible = block[0].split()
    served = _range(versions)
    structs: dict[str, list[Field]] = {name: []}
    path = [name]
    for line in block[1:]:
        depth = len(line) - len(line.lstrip())
        del path[depth:]
        field = _field(line.split(), served)
        structs[path[-1]].append(field)
        if is_struct(field.element):
            structs.setdefault(field.element, [])
            path.append(field.element)
    assert kind in ("request", "response")
    return Definition(
        "request" if kind == "request" else "response",
        int(key),
        name,
        served,
        int(first_flexible),
        {each: tuple(fields) for each, fields in structs.items()},
    )


def _field(words: list[str], served: range) -> Field:
    versions, nullable, tagged, tag, default = served, _NO_VERSIONS, _NO_VERSIONS, -1, ""
    for word in words[2:]:
        option, _, value = word.partition("=")
        if option == "null":
            nullable = _range(value)
        elif option == "tag":
            number, _, of_tag = value.partition(":")
            tag, tagged = int(number), _range(of_tag)
        elif option == "default":
            default = value
        else:
            versions = _range(option)
    return Field(words[0], words[1], versions, nullable, tag, tagged, default)


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last) + 1)


# -- frame -----------------------------------------------------------------------------------------
#
# Frames of Kafka's protocol: a length of four bytes, a header, and one message.
#
#     request    length i32 | api key i16 | version i16 | correlation ID i32 | client ID | tags
#                | message
#     response   length i32 | correlation ID i32 | tags | message
#
# Tags are present in flexible versions only (KIP-482); a response to ApiVersions never has them
# (KIP-511), so that a client can read it before it knows the broker's versions.


LENGTH_BYTES: Final = 4
REQUEST_BYTES_MIN: Final = 8  # of the header without a client ID
# Bytes of a connection that distinguish Kafka's protocol from raftlog's: length, half of the key.
CHOICE_BYTES: Final = 6
_KEYS_MAX: Final = 1_024  # less than raftlog's magic; Kafka's API keys are below 100
_HEAD: Final = struct.Struct(">hhi")
_INT32: Final = struct.Struct(">i")
_PIECE_BYTES_MAX: Final = 4 * limits.KIB  # smaller pieces of a response are joined
_BUFFER_BYTES_MIN: Final = 16 * limits.KIB


def is_kafka(first: bytes, bytes_max: int) -> bool:
    """Return whether a connection that begins with these bytes is a Kafka client's: with
    ``CHOICE_BYTES`` or more.

    A Kafka request begins with its length, at most ``bytes_max``, and an API key, also one that
    does not exist: below ``_KEYS_MAX``, or negative. Others are refused as damaged raftlog frames,
    at once, and not when as many bytes have arrived as they claim.
    """
    length = int.from_bytes(first[:LENGTH_BYTES], "big")
    key = int.from_bytes(first[LENGTH_BYTES:CHOICE_BYTES], "big", signed=True)
    return REQUEST_BYTES_MIN <= length <= bytes_max and key < _KEYS_MAX


class FrameReader:
    """Separates received bytes into requests. Requests own their memory.

    The buffer grows with the received bytes, not by the length that a client claims, unless
    ``may_trust`` returns True.
    """

    def __init__(
        self, bytes_max: int, *, scratch: memoryview, may_trust: Callable[[], bool] = lambda: False
    ) -> None:
        """``bytes_max``: longest request. ``scratch``: receive buffer that connections share."""
        self._bytes_max = bytes_max
        self._scratch = scratch
        self._may_trust = may_trust
        self._bytes_min = REQUEST_BYTES_MIN
        self._own = bytearray()  # used instead of the scratch while a request is incomplete
        self._have = 0  # bytes in it
        self.waiting = False  # complete requests may be held back
        self.error: BadMessageError | None = None  # no further request can be separated
        self.refused_head = b""  # of the request with the error, as far as it was received

    def permit(self, bytes_max: int) -> None:
        """Accept requests of up to ``bytes_max`` bytes from now on."""
        self._bytes_max = bytes_max

    def expect_tokens(self, *, are_next: bool) -> None:
        """Accept frames of any length, which are no requests, or no longer."""
        self._bytes_min = 0 if are_next else REQUEST_BYTES_MIN

    @property
    def in_frame(self) -> bool:
        """Whether a request is incomplete."""
        return self._have > 0 and not self.waiting

    @property
    def bytes_held(self) -> int:
        return len(self._own)

    def get_buffer(self) -> memoryview:
        """Return memory for the next received bytes."""
        if not self._have:
            return self._scratch
        if self._have == len(self._own):
            self._own = self._enlarged()
        return memoryview(self._own)[self._have :]

    def received(self, count: int, *, frames_max: int) -> list[memoryview]:
        """Return up to ``frames_max`` requests after ``count`` new bytes in the buffer.

        A length out of range sets ``error``, after the requests before it were returned.
        """
        if self.error is not None or not (self._have or count):
            return []
        source = memoryview(self._own) if self._have else self._scratch
        view = source[: self._have + count]
        frames: list[memoryview] = []
        at = 0
        while len(frames) < frames_max and len(view) - at >= LENGTH_BYTES:
            try:
                end = at + LENGTH_BYTES + self._length(view, at)
            except BadMessageError as error:
                self.error = error
                head = view[at + LENGTH_BYTES : at + LENGTH_BYTES + REQUEST_BYTES_MIN]
                self.refused_head = bytes(head)
                self._own, self._have = bytearray(), 0
                return frames
            if end > len(view):
                break
            if self._have and at == 0 and end == len(source):
                frames.append(view[LENGTH_BYTES:end])  # the request takes over the buffer
            else:
                frames.append(memoryview(bytes(view[at + LENGTH_BYTES : end])))
            at = end
        rest = view[at:]
        self.waiting = len(frames) == frames_max and len(rest) > 0
        if at or not self._have:
            self._keep(rest)
        else:
            self._have = len(view)
        return frames

    def _keep(self, rest: memoryview) -> None:
        self._have = len(rest)
        if not rest:
            self._own = bytearray()
            return
        kept = bytes(rest)
        self._own = bytearray(kept)
        self._own = self._enlarged()

    def _enlarged(self) -> bytearray:
        """Return a copy of the own buffer with space for the rest of its request, or with twice the
        size.
        """
        have = self._have
        wanted = max(2 * have, _BUFFER_BYTES_MIN)
        if have >= LENGTH_BYTES:
            size = LENGTH_BYTES + self._length(memoryview(self._own), 0)
            if size > have:
                is_trusted = size <= limits.FRAME_TRUSTED_BYTES_MAX and self._may_trust()
                wanted = size if is_trusted else min(wanted, size)
        larger = bytearray(wanted)
        larger[:have] = self._own[:have]
        return larger

    def _length(self, view: memoryview, at: int) -> int:
        length = int.from_bytes(view[at : at + LENGTH_BYTES], "big")
        # guard: a Kafka request has a limited length
        if not self._bytes_min <= length <= self._bytes_max:
            raise BadMessageError(
                f"a request of {length} bytes; {self._bytes_min} to {self._bytes_max} are "
                "permitted (socket.request.max.bytes)"
            )
        key = view[at + LENGTH_BYTES : at + CHOICE_BYTES]
        if self._bytes_min and len(key) == 2 and length > limits.KAFKA_REQUEST_BYTES_MAX:
            number = int.from_bytes(key, "big")
            # guard: a Kafka request without records has a lower limit
            if number != apis.PRODUCE.key:
                raise BadMessageError(
                    f"a request of {length} bytes with API key {number}; at most "
                    f"{limits.KAFKA_REQUEST_BYTES_MAX} are permitted (KAFKA_REQUEST_BYTES_MAX)"
                )
        return length


def read_head(frame: memoryview) -> tuple[int, int, int]:
    """Return the API key, version and correlation ID of a request."""
    key, version, correlation_id = _HEAD.unpack_from(frame)
    return key, version, correlation_id


def read_client_id(frame: memoryview, *, flexible: bool) -> tuple[str, int]:
    """Return the client ID ("" for null), and the position of the message.

    Raises one of ``codec.READ_ERRORS``.
    """
    at = _HEAD.size
    size = int.from_bytes(frame[at : at + 2], "big", signed=True)
    at += 2
    if size > len(frame) - at:
        raise BadMessageError("client ID beyond the end")
    client_id = "" if size < 0 else str(frame[at : at + size], "utf-8")
    at += max(size, 0)
    if not flexible:
        return client_id, at
    count, at = read_varint(frame, at)
    if count > limits.KAFKA_TAGS_MAX:
        raise BadMessageError("number of tagged fields")
    for _ in range(count):
        _, at = read_varint(frame, at)
        size, at = read_varint(frame, at)
        at += size
        if at > len(frame):
            raise BadMessageError("tagged field beyond the end")
    return client_id, at


def response(correlation_id: int, pieces: list[Buffer], *, flexible: bool) -> list[Buffer]:
    """Return the buffers of a response: small pieces joined, large ones unchanged.

    ``flexible``: whether its header has tags.
    """
    head = _INT32.pack(correlation_id) + (b"\0" if flexible else b"")
    length = len(head) + sum(map(len, pieces))
    return joined([_INT32.pack(length), head, *pieces])


def joined(pieces: Iterable[Buffer]) -> list[Buffer]:
    """Return the pieces as buffers: small neighbours joined, large ones unchanged."""
    buffers: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) <= _PIECE_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            buffers.append(b"".join(small))
            small = []
        buffers.append(piece)
    if small:
        buffers.append(b"".join(small))
    return buffers
