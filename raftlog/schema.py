"""Serializers and deserializers of keys and values: Avro, JSON and Protobuf with the schema
registry, and MessagePack.

    Producer(value_serializer=raftlog.schema.Avro(SCHEMA))
    Consumer(value_deserializer=raftlog.schema.Avro())

The client calls the registry over its own connections: at the first record of a topic, and at the
first record with another schema. The bytes are those of Confluent's serializers. Needs the extra
``schema``; MessagePack does not.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import msgpack

from raftlog.client.registry import path_of
from raftlog.client.settings import NeedsSchemaError
from raftlog.config.topic import SUBJECT_STRATEGIES
from raftlog.errors import RaftlogError, SchemaError
from raftlog.registry.formats import (
    AVRO,
    JSON,
    PROTOBUF,
    Parsed,
    subject_of,
    type_names,
)
from raftlog.registry.rest import fetch_schema, parse_body
from raftlog.registry.values import Decode, decoder_of, encoder_of, split_value, with_id

__all__ = ["Avro", "Json", "Msgpack", "Protobuf"]

# ``call_registry`` of a client: method, path, body, query.
CallRegistry: TypeAlias = Callable[..., Awaitable[Any]]
# Name of a type or file, subject, version.
ReferenceTuple: TypeAlias = tuple[str, str, int]


class _Format:
    """Settings of a format that uses the registry. See ``Avro``."""

    kind = ""

    def __init__(
        self,
        schema: str | None = None,
        *,
        subject: str | None = None,
        strategy: str = "topic",
        references: Iterable[ReferenceTuple] = (),
        auto_register: bool = True,
        normalize: bool = False,
    ) -> None:
        """Create the format.

        ``schema``: text of the schema that a producer writes with. Default: the latest version of
            the subject. A consumer reads each value with the schema that it was written with.
        ``subject``: default: by ``strategy``.
        ``strategy``: how the subject of a topic is named, as by Confluent's serializers: "topic",
            ``TOPIC-value``, or ``TOPIC-key`` for keys; "record", the full name of the type, so that
            all topics share its versions; "topic-record", ``TOPIC-`` and the full name. The type is
            the record of Avro, the title of a JSON schema, the message of Protobuf.
        ``references``: schemas that ``schema`` uses: name, subject, version.
        ``auto_register``: register ``schema`` if the subject does not have it. With False, the
            first record of a topic fails with ``SchemaError`` then.
        ``normalize``: register the normal form of the text.
        """
        if strategy not in SUBJECT_STRATEGIES:
            raise ValueError(f"strategy={strategy!r} is none of {', '.join(SUBJECT_STRATEGIES)}")
        self.schema = schema
        self.subject = subject
        self.strategy = strategy
        self.references = tuple(references)
        self.auto_register = auto_register
        self.normalize = normalize

    def for_client(self, argument: str) -> SchemaSerializer | SchemaDeserializer:
        """Return the serializer or deserializer for an argument of a client."""
        part = argument.partition("_")[0]
        is_reader = argument.endswith("_deserializer")
        return SchemaDeserializer(self) if is_reader else SchemaSerializer(self, part)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(subject={self.subject!r}, strategy={self.strategy!r})"

    def body(self) -> dict[str, Any]:
        """Return the schema for the registry."""
        references = [
            {"name": name, "subject": subject, "version": version}
            for name, subject, version in self.references
        ]
        more = {"references": references} if references else {}
        return {"schema": self.schema, "schemaType": self.kind, **more}

    def type_name(self, parsed: Parsed) -> str:
        """Return the full name of the type that a producer writes; "" if it has none."""
        return next(iter(type_names(parsed)), "")

    async def decoder(self, parsed: Parsed, _call: CallRegistry) -> Decode:
        """Return the function from the bytes after the ID to an object."""
        return decoder_of(parsed)


class Avro(_Format):
    """Avro: dicts and the other types of fastavro, with the ID of their schema in the registry.

    A consumer with ``schema`` resolves values to it: fields get its defaults and aliases.
    """

    kind = AVRO

    async def decoder(self, parsed: Parsed, call: CallRegistry) -> Decode:
        if self.schema is None:
            return decoder_of(parsed)
        return decoder_of(parsed, await parse_body(_getter(call), self.body()))


class Json(_Format):
    """JSON that is valid with a JSON schema, with its ID in the registry."""

    kind = JSON


class Protobuf(_Format):
    """Messages of Protobuf, with the ID of their schema in the registry.

    ``schema`` can be the class of a message that protoc has generated: consumers then get its
    messages. Otherwise they get messages of the schema, and producers can also send dicts of its
    first message.
    """

    kind = PROTOBUF

    def __init__(self, schema: Any = None, **settings: Any) -> None:
        self._class = None if schema is None or isinstance(schema, str) else schema
        if self._class is not None:
            proto = self._class.DESCRIPTOR.file.serialized_pb
            schema = base64.b64encode(proto).decode()
        super().__init__(schema, **settings)

    def type_name(self, parsed: Parsed) -> str:
        return str(self._class.DESCRIPTOR.full_name) if self._class else super().type_name(parsed)

    async def decoder(self, parsed: Parsed, _call: CallRegistry) -> Decode:
        decode, message_class = decoder_of(parsed), self._class
        if message_class is None:
            return decode
        return lambda data: message_class.FromString(decode(data).SerializeToString())


class Msgpack:
    """MessagePack: dicts, lists, text, bytes and numbers, without a schema."""

    def for_client(self, argument: str) -> Callable[[Any], Any]:
        """Return the function for an argument of a client."""
        if argument.endswith("_deserializer"):
            return lambda data: msgpack.unpackb(data, strict_map_key=False)
        return lambda value: None if value is None else msgpack.packb(value)


class SchemaSerializer:
    """Serializer of one client. ``of`` works once ``prepare`` has returned for the topic."""

    def __init__(self, form: _Format, part: str) -> None:
        self._form = form
        self._part = part
        self._encoders: dict[str, Callable[[Any], bytes | None]] = {}  # by topic

    def __call__(self, _value: Any) -> Any:
        raise TypeError("a serializer with a schema belongs to one client: pass it to a Producer")

    def lacks(self, topic: str) -> bool:
        return topic not in self._encoders

    def of(self, topic: str) -> Callable[[Any], bytes | None]:
        """Return the function from an object to a value of the topic."""
        return self._encoders[topic]

    async def prepare(self, call: CallRegistry, topic: str) -> None:
        """Get the schema of a topic. Raises ``SchemaError``, and the errors of any request."""
        if topic in self._encoders:
            return
        form = self._form
        subject = form.subject or await self._subject(call, topic)
        if form.schema is None:
            latest = path_of("subjects", subject, "versions", "latest")
            schema_id = (await call("GET", latest))["id"]
        elif form.auto_register:
            path = path_of("subjects", subject, "versions")
            query = {"normalize": str(form.normalize).lower()}
            schema_id = (await call("POST", path, form.body(), query))["id"]
        else:
            path = path_of("subjects", subject)
            schema_id = (await call("POST", path, form.body()))["id"]
        encode = encoder_of(await _fetch(call, schema_id))
        self._encoders[topic] = lambda value: (
            value if value is None else with_id(schema_id, encode(value))
        )

    async def _subject(self, call: CallRegistry, topic: str) -> str:
        form, name = self._form, ""
        if form.strategy != "topic":
            if form.schema is None:
                raise SchemaError(
                    f"strategy={form.strategy!r} takes the subject from the type: pass the schema, "
                    "or the subject"
                )
            name = form.type_name(await parse_body(_getter(call), form.body()))
            if not name:
                raise SchemaError(
                    f"strategy={form.strategy!r} takes the subject from the type, and the schema "
                    "has no named one: use a record (Avro), or add a title (JSON)"
                )
        return subject_of(form.strategy, topic, self._part, name)


class SchemaDeserializer:
    """Deserializer of one client: each value has the ID of its schema."""

    def __init__(self, form: _Format) -> None:
        self._form = form
        self._decoders: dict[int, Decode] = {}

    def __call__(self, data: bytes) -> Any:
        """Return the object. Raises ``SchemaError``, or ``NeedsSchemaError``: then ``learn``."""
        schema_id, body = split_value(data)
        decode = self._decoders.get(schema_id)
        if decode is None:
            raise NeedsSchemaError(self, schema_id)
        return decode(bytes(body))

    async def learn(self, call: CallRegistry, schema_id: int) -> None:
        """Get a schema. If it cannot be had, the next value with it raises the reason."""
        try:
            parsed = await _fetch(call, schema_id)
            self._decoders[schema_id] = await self._form.decoder(parsed, call)
        except RaftlogError as error:
            self._decoders[schema_id] = self._failing(schema_id, error)

    def _failing(self, schema_id: int, error: RaftlogError) -> Decode:
        def fail(_data: bytes) -> Any:
            del self._decoders[schema_id]  # the next attempt asks again
            raise error

        return fail


async def _fetch(call: CallRegistry, schema_id: int) -> Parsed:
    return await fetch_schema(_getter(call), f"/schemas/ids/{schema_id}")


def _getter(call: CallRegistry) -> Callable[[str], Awaitable[Any]]:
    return lambda path: call("GET", path)
