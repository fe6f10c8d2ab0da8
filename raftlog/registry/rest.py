"""The registry's HTTP interface, without HTTP: a ``Call`` becomes an ``Answer``.

Paths, fields and codes are those of Confluent's Schema Registry. ``answer`` is pure, and decides as
``Registry`` does: the caller appends the records, applies them, and sends the answer once they are
committed. Fields that older clients of Confluent reject (``guid`` and the like) are in the answer
only if the client says that it accepts unknown fields.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from raftlog import limits
from raftlog.errors import (
    AccessDeniedError,
    OutcomeUnknownError,
    RaftlogError,
    SchemaError,
    StorageError,
    UnsupportedFeatureError,
)
from raftlog.registry import formats
from raftlog.registry.formats import AVRO, FORMATS, PROTOBUF, Parsed, compact
from raftlog.registry.state import (
    DEFAULT_LEVEL,
    DEFAULT_MODE,
    GLOBAL,
    INVALID_SCHEMA,
    INVALID_VERSION,
    LATEST,
    VERSION_NOT_FOUND,
    Change,
    Record,
    Reference,
    Registry,
    Schema,
    Version,
    check_subject,
    references_field,
)
from raftlog.security.acl import Operation

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
# Header of clients that accept fields that they do not know.
ACCEPT_UNKNOWN: Final = "confluent-accept-unknown-properties"
# First parts of the paths.
ROOTS: Final = ("schemas", "subjects", "config", "mode", "compatibility", "contexts", "v1")


class Call(NamedTuple):
    """A request. ``path``: percent-encoded. ``accepts_unknown``: see ``ACCEPT_UNKNOWN``."""

    method: str
    path: str
    query: Mapping[str, str] = {}
    body: bytes = b""
    accepts_unknown: bool = False


class Answer(NamedTuple):
    """A response. ``body``: JSON. ``records``: what has to be committed before it is sent."""

    status: int
    body: bytes
    records: tuple[Record, ...] = ()


def answer(registry: Registry, call: Call, *, version: str = "", cluster_id: str = "") -> Answer:
    """Return the answer to a call. Raises no ``RaftlogError``: an error is an answer.

    ``version``, ``cluster_id``: what ``/v1/metadata`` returns.
    """
    try:
        handle, parts = _route(call)
        request = _Request(registry, call, parts, version, cluster_id)
        result = handle(request)
        records: tuple[Record, ...] = ()
        if isinstance(result, Change):
            result, records = result
        body = result.encode() if isinstance(result, _Raw) else compact(result).encode()
    except RaftlogError as error:
        return failed(error)
    return Answer(200, body, records)


def failed(error: RaftlogError) -> Answer:
    """Return the answer for an error, with Confluent's code."""
    if isinstance(error, SchemaError):
        code = error.registry_code
    elif isinstance(error, AccessDeniedError):
        code = 40301
    elif isinstance(error, UnsupportedFeatureError):
        code = 501
    elif isinstance(error, StorageError):
        code = 50001
    elif isinstance(error, OutcomeUnknownError):
        code = 50002
    else:
        code = 50003
    status = code // 100 if code >= 1_000 else code
    return Answer(status, compact({"error_code": code, "message": str(error)}).encode())


def required(call: Call) -> Operation:
    """Return the operation with topic ``__schemas`` that a call requires of its user."""
    root = call.path.strip("/").partition("/")[0]
    if call.method in ("GET", "HEAD"):
        return "DESCRIBE"
    if root in ("config", "mode"):
        return "ALTER_CONFIGS"
    if call.method == "DELETE":
        return "DELETE"
    return "WRITE" if is_write(call) else "DESCRIBE"


def is_write(call: Call) -> bool:
    """Whether the call may change the registry."""
    if call.method == "POST":
        parts = call.path.strip("/").split("/")
        return len(parts) == 3 and parts[0] == "subjects"
    return call.method in ("PUT", "DELETE")


def is_quick(call: Call) -> bool:
    """Whether the answer takes a few milliseconds at most, also in a large registry."""
    parts = call.path.strip("/").split("/")
    if call.method != "GET" or "format" in call.query:
        return False
    if parts[0] in ("config", "mode", "contexts", "v1"):
        return True
    return len(parts) > 1 and parts[0] in ("schemas", "subjects") and parts[-1] != "referencedby"


# -- clients ---------------------------------------------------------------------------------------

# Returns the content of the answer to a GET. Raises ``SchemaError``.
Get: TypeAlias = Callable[[str], Awaitable[Any]]


async def fetch_schema(get: Get, path: str) -> Parsed:
    """Return the parsed schema at a path, such as ``/schemas/ids/7``, with its references.

    Raises ``SchemaError``, ``UnsupportedFeatureError``, and what ``get`` raises.
    """
    return await parse_body(get, await get(path))


async def parse_body(get: Get, content: Mapping[str, Any]) -> Parsed:
    """Return the parsed schema of a body, as the registry takes and returns it. See above."""
    named: dict[str, str] = {}
    await _fetch_named(get, content.get("references", ()), named)
    return formats.parse(content.get("schemaType", AVRO), content["schema"], tuple(named.items()))


async def _fetch_named(get: Get, references: Any, named: dict[str, str]) -> None:
    for each in references:
        if each["name"] in named:
            continue
        subject = quote(each["subject"], safe="")
        content = await get(f"/subjects/{subject}/versions/{each['version']}")
        await _fetch_named(get, content.get("references", ()), named)
        named[each["name"]] = content["schema"]


# -- inside ----------------------------------------------------------------------------------------


class _Raw(str):
    """A body that is returned as it is."""

    __slots__ = ()


class _Request(NamedTuple):
    registry: Registry
    call: Call
    parts: Mapping[str, str]  # of the path
    release: str
    cluster_id: str

    @property
    def subject(self) -> str:
        """Return the subject of the path: GLOBAL without one, and of the default context."""
        subject = self.parts.get("subject")
        if subject is None:
            return GLOBAL
        subject = subject.removeprefix(":.:")
        check_subject(subject)
        return subject

    @property
    def number(self) -> int:
        """Return the version of the path."""
        text = self.parts["version"]
        if text == "latest":
            return LATEST
        try:
            number = int(text)
        except ValueError:
            number = 0
        if number != LATEST and not 0 < number <= limits.SCHEMA_ID_MAX:
            raise SchemaError(
                f"The specified version '{text[:50]}' is not a valid version id. Allowed values "
                'are between [1, 2^31-1] and the string "latest"',
                INVALID_VERSION,
            )
        return number

    @property
    def id(self) -> int:
        text = self.parts["id"]
        if not text.isdecimal() or len(text) > 10:
            raise SchemaError(f"{text[:50]!r} is not the ID of a schema", 404)
        return int(text)

    def flag(self, name: str) -> bool:
        return self.call.query.get(name, "").lower() == "true"

    def content(self) -> dict[str, Any]:
        """Return the body, an object."""
        try:
            content = formats.read_json(self.call.body or b"{}")
        except (ValueError, RecursionError) as error:
            raise SchemaError(f"the body is not JSON: {str(error)[:200]}", 400) from error
        if not isinstance(content, dict):
            raise SchemaError("the body is not an object of JSON", 400)
        return content

    def new_schema(self, content: Mapping[str, Any]) -> Schema:
        """Return the schema of the body."""
        text, kind = content.get("schema"), content.get("schemaType") or AVRO
        if not isinstance(text, str) or not isinstance(kind, str):
            raise SchemaError("the body has no field schema with a text", INVALID_SCHEMA)
        references = []
        listed = content.get("references") or []
        if not isinstance(listed, list):
            raise SchemaError("references is not a list", INVALID_SCHEMA)
        for each in listed:
            if not (
                isinstance(each, dict)
                and isinstance(each.get("name"), str)
                and isinstance(each.get("subject"), str)
                and type(each.get("version")) is int
            ):
                raise SchemaError(
                    "each of references needs name, subject and version", INVALID_SCHEMA
                )
            references.append(Reference(each["name"], each["subject"], each["version"]))
        extra = {
            key: content[key] for key in ("metadata", "ruleSet") if content.get(key) is not None
        }
        if extra and len(compact(extra)) > limits.SCHEMA_CONFIG_BYTES_MAX:
            raise SchemaError("metadata and ruleSet are too long", INVALID_SCHEMA)
        return Schema(kind.upper(), text, tuple(references), extra)

    def page(self, items: Sequence[Any]) -> list[Any]:
        """Return the part of a list that offset and limit select."""
        start, count = self._count("offset", 0), self._count("limit", -1)
        return list(items[start:] if count < 0 else items[start : start + count])

    def _count(self, name: str, default: int) -> int:
        text = self.call.query.get(name, "")
        try:
            return max(int(text or default), default)
        except ValueError as error:
            raise SchemaError(f"{name} is not a number: {text[:50]!r}", 400) from error

    # -- fields of responses

    def about(self, schema: Schema) -> dict[str, Any]:
        """Return the fields of a schema besides its text."""
        found: dict[str, Any] = {} if schema.kind == AVRO else {"schemaType": schema.kind}
        found.update(references_field(schema.references))
        found.update(schema.extra)
        if self.call.accepts_unknown:
            found["guid"] = schema.guid
        return found

    def text_of(self, schema: Schema) -> str:
        """Return the text of a schema, in the format that the query asks for."""
        wanted = self.call.query.get("format", "")
        if wanted == "serialized" and schema.kind == PROTOBUF:
            return formats.serialized(self.registry.parsed(schema))
        return schema.text

    def shown(self, version: Version) -> dict[str, Any]:
        return {
            "subject": version.subject,
            "version": version.version,
            "id": version.schema.id,
            **self.about(version.schema),
            "schema": self.text_of(version.schema),
        }


_Handle: TypeAlias = Callable[[_Request], Any]


def _types(_request: _Request) -> Any:
    return sorted(FORMATS, reverse=True)


def _schemas(request: _Request) -> Any:
    found: Iterable[Version] = request.registry.all_versions(
        request.call.query.get("subjectPrefix", ""), deleted=request.flag("deleted")
    )
    if request.flag("latestOnly"):
        found = {each.subject: each for each in found}.values()
    return [request.shown(each) for each in request.page(list(found))]


def _schema(request: _Request) -> Any:
    schema = request.registry.schema(request.id)
    subject = request.call.query.get("subject")
    found = {**request.about(schema), "schema": request.text_of(schema)}
    if request.flag("fetchMaxId"):
        found["maxId"] = request.registry.max_id
    if subject and request.call.accepts_unknown:
        for each in request.registry.uses(schema.id, deleted=True):
            if each.subject == subject:
                found.update(subject=each.subject, version=each.version)
    return found


def _schema_text(request: _Request) -> Any:
    return _Raw(request.text_of(request.registry.schema(request.id)))


def _schema_by_guid(request: _Request) -> Any:
    schema = request.registry.schema_by_guid(request.parts["guid"])
    return {**request.about(schema), "schema": request.text_of(schema)}


def _ids_of_guid(request: _Request) -> Any:
    schema = request.registry.schema_by_guid(request.parts["guid"])
    return [{"context": ".", "id": schema.id}]


def _schema_subjects(request: _Request) -> Any:
    uses = request.registry.uses(request.id, deleted=request.flag("deleted"))
    return request.page(sorted({each.subject for each in uses}))


def _schema_versions(request: _Request) -> Any:
    uses = request.registry.uses(request.id, deleted=request.flag("deleted"))
    return request.page([{"subject": each.subject, "version": each.version} for each in uses])


def _subjects(request: _Request) -> Any:
    prefix = request.call.query.get("subjectPrefix", "")
    prefix = "" if prefix in (":*:", ":.:") else prefix
    found = request.registry.subjects(
        prefix, deleted=request.flag("deleted"), deleted_only=request.flag("deletedOnly")
    )
    return request.page(found)


def _lookup(request: _Request) -> Any:
    new = request.new_schema(request.content())
    found = request.registry.find(request.subject, new, deleted=request.flag("deleted"))
    return request.shown(found)


def _register(request: _Request) -> Any:
    content = request.content()
    schema_id, number = content.get("id"), content.get("version")
    change = request.registry.register(
        request.subject,
        request.new_schema(content),
        normalize=request.flag("normalize"),
        schema_id=schema_id if type(schema_id) is int and schema_id > 0 else 0,
        version=number if type(number) is int and number > 0 else 0,
    )
    added = change.result
    shown = request.shown(added) if request.call.accepts_unknown else {"id": added.schema.id}
    return Change(shown, change.records)


def _versions(request: _Request) -> Any:
    found = request.registry.versions(
        request.subject,
        deleted=request.flag("deleted"),
        deleted_only=request.flag("deletedOnly"),
    )
    return request.page([each.version for each in found])


def _version(request: _Request) -> Any:
    return request.shown(_version_of(request))


def _version_of(request: _Request) -> Version:
    return request.registry.version(
        request.subject, request.number, deleted=request.flag("deleted")
    )


def _version_text(request: _Request) -> Any:
    return _Raw(request.text_of(_version_of(request).schema))


def _referenced_by(request: _Request) -> Any:
    version = request.registry.version(request.subject, request.number, deleted=True)
    return request.page(request.registry.referrers(version))


def _delete_subject(request: _Request) -> Any:
    return request.registry.delete_subject(request.subject, permanent=request.flag("permanent"))


def _delete_version(request: _Request) -> Any:
    return request.registry.delete_version(
        request.subject, request.number, permanent=request.flag("permanent")
    )


def _check(request: _Request) -> Any:
    """Compare with the versions that the level of the subject requires."""
    registry, subject = request.registry, request.subject
    try:
        versions = registry.versions(subject)
    except SchemaError:
        versions = []
    return _checked(request, versions, registry.level(subject))


def _check_version(request: _Request) -> Any:
    registry, subject = request.registry, request.subject
    try:
        versions = [registry.version(subject, request.number)]
    except SchemaError as error:
        if request.number != LATEST:
            raise SchemaError(f"Version {request.number} not found.", VERSION_NOT_FOUND) from error
        versions = []
    return _checked(request, versions, registry.level(subject))


def _checked(request: _Request, versions: Sequence[Version], level: str) -> Any:
    texts = request.registry.check(request.new_schema(request.content()), versions, level)
    found: dict[str, Any] = {"is_compatible": not texts}
    if request.flag("verbose"):
        found["messages"] = texts
    return found


def _config(request: _Request) -> Any:
    registry, subject = request.registry, request.subject
    found = registry.config(subject)
    if found is None and subject != GLOBAL and not request.flag("defaultToGlobal"):
        raise SchemaError(
            f"Subject {subject!r} does not have subject-level compatibility configured", 40408
        )
    if found is None:
        found = registry.config(GLOBAL) or {}
    return _config_fields(request, {"compatibilityLevel": DEFAULT_LEVEL, **found})


def _config_fields(request: _Request, config: Mapping[str, Any]) -> dict[str, Any]:
    shown = request.call.accepts_unknown
    return {key: config[key] for key in config if shown or key == "compatibilityLevel"}


def _set_config(request: _Request) -> Any:
    change = request.registry.set_config(request.subject, request.content())
    stored = dict(change.result)
    level = stored.pop("compatibilityLevel", None)
    shown = stored if request.call.accepts_unknown else {}
    if level is not None:
        shown = {"compatibility": level, **shown}
    return Change(shown, change.records)


def _delete_config(request: _Request) -> Any:
    change = request.registry.delete_config(request.subject)
    return Change(_config_fields(request, change.result), change.records)


def _mode(request: _Request) -> Any:
    registry, subject = request.registry, request.subject
    own = registry.own_mode(subject)
    if own is None and subject != GLOBAL and not request.flag("defaultToGlobal"):
        raise SchemaError(f"Subject {subject!r} does not have subject-level mode configured", 40409)
    return {"mode": own or registry.own_mode(GLOBAL) or DEFAULT_MODE}


def _set_mode(request: _Request) -> Any:
    mode = request.content().get("mode")
    change = request.registry.set_mode(request.subject, mode, force=request.flag("force"))
    return Change({"mode": change.result}, change.records)


def _delete_mode(request: _Request) -> Any:
    change = request.registry.delete_mode(request.subject)
    return Change({"mode": change.result}, change.records)


def _contexts(_request: _Request) -> Any:
    return ["."]


def _release(request: _Request) -> Any:
    return {"version": request.release, "commitId": "raftlog"}


def _identity(request: _Request) -> Any:
    clusters = {"kafka-cluster": request.cluster_id, "schema-registry-cluster": "schema-registry"}
    return {"scope": {"path": [], "clusters": clusters}, "id": ""}


_ROUTES: Final[tuple[tuple[str, str, _Handle], ...]] = (
    ("GET", "schemas/types", _types),
    ("GET", "schemas", _schemas),
    ("GET", "schemas/ids/{id}", _schema),
    ("GET", "schemas/ids/{id}/schema", _schema_text),
    ("GET", "schemas/ids/{id}/subjects", _schema_subjects),
    ("GET", "schemas/ids/{id}/versions", _schema_versions),
    ("GET", "schemas/guids/{guid}", _schema_by_guid),
    ("GET", "schemas/guids/{guid}/ids", _ids_of_guid),
    ("GET", "subjects", _subjects),
    ("POST", "subjects/{subject}", _lookup),
    ("DELETE", "subjects/{subject}", _delete_subject),
    ("POST", "subjects/{subject}/versions", _register),
    ("GET", "subjects/{subject}/versions", _versions),
    ("GET", "subjects/{subject}/versions/{version}", _version),
    ("DELETE", "subjects/{subject}/versions/{version}", _delete_version),
    ("GET", "subjects/{subject}/versions/{version}/schema", _version_text),
    ("GET", "subjects/{subject}/versions/{version}/referencedby", _referenced_by),
    ("POST", "compatibility/subjects/{subject}/versions", _check),
    ("POST", "compatibility/subjects/{subject}/versions/{version}", _check_version),
    ("GET", "config", _config),
    ("PUT", "config", _set_config),
    ("DELETE", "config", _delete_config),
    ("GET", "config/{subject}", _config),
    ("PUT", "config/{subject}", _set_config),
    ("DELETE", "config/{subject}", _delete_config),
    ("GET", "mode", _mode),
    ("PUT", "mode", _set_mode),
    ("GET", "mode/{subject}", _mode),
    ("PUT", "mode/{subject}", _set_mode),
    ("DELETE", "mode/{subject}", _delete_mode),
    ("GET", "contexts", _contexts),
    ("GET", "v1/metadata/version", _release),
    ("GET", "v1/metadata/id", _identity),
)
_SPLIT: Final = tuple((method, path.split("/"), handle) for method, path, handle in _ROUTES)


def _route(call: Call) -> tuple[_Handle, dict[str, str]]:
    """Return what handles a call, and the variable parts of its path."""
    if len(call.path) > limits.SCHEMA_PATH_CHARS_MAX:
        raise SchemaError("the path is too long", 404)
    # ``required`` and ``is_write`` compare the same encoded parts.
    # guard: a call is served at the path that its rights are decided by
    given = call.path.strip("/").split("/")
    is_path = False
    for method, wanted, handle in _SPLIT:
        if len(wanted) != len(given):
            continue
        if all(name == part or name[0] == "{" for name, part in zip(wanted, given, strict=True)):
            is_path = True
            if method == call.method:
                pairs = zip(wanted, given, strict=True)
                return handle, {name[1:-1]: unquote(part) for name, part in pairs if name[0] == "{"}
    if is_path:
        raise SchemaError(f"HTTP 405 Method Not Allowed: {call.method[:20]}", 405)
    raise SchemaError("HTTP 404 Not Found", 404)
