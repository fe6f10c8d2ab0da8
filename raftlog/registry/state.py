"""State of the schema registry: subjects, versions, IDs, configurations and modes.

``Registry`` is the state of the topic ``__schemas``: ``replay`` applies one record. Its decisions
change nothing: they return the records of the change, which the caller appends as one batch and
then applies. One decision is made at a time, and other reads are possible then. So IDs are given
in the order of the log: a new leader, which has replayed the log, cannot give an ID a second time.
An ID whose schema is deleted permanently is not given again either: the batch of the deletion
contains the next one.

Keys and values are JSON, with the fields that Confluent's registry has in its topic ``_schemas``.
Pure: parsing and comparing can take long, so a broker decides in a thread.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from raftlog import limits
from raftlog.errors import InvalidRequestError, SchemaError
from raftlog.registry import formats
from raftlog.registry.formats import AVRO, Named, Parsed, compact

T = TypeVar("T")

LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE"),
    *("FULL", "FULL_TRANSITIVE", "NONE"),
)
DEFAULT_LEVEL: Final = "BACKWARD"
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT")
DEFAULT_MODE: Final = "READWRITE"
GLOBAL: Final = ""  # instead of a subject
LATEST: Final = -1

# Codes of errors, which are Confluent's.
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
CONFIG_NOT_FOUND: Final = 40408
MODE_NOT_FOUND: Final = 40409
INCOMPATIBLE: Final = 409
INVALID_SCHEMA: Final = formats.INVALID
INVALID_VERSION: Final = 42202
INVALID_LEVEL: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
INVALID_SUBJECT: Final = 42208


class Reference(NamedTuple):
    """A schema that another one uses under ``name``."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A text with its references. ``id``: 0 if it has none yet. ``guid``: identifies the content.

    ``extra``: fields ``metadata`` and ``ruleSet`` of clients, stored and returned as they are.
    """

    kind: str
    text: str
    references: tuple[Reference, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    id: int = 0
    guid: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a subject."""

    subject: str
    version: int
    schema: Schema
    is_deleted: bool = False


class Record(NamedTuple):
    """A record of ``__schemas``. ``value``: None deletes the key."""

    key: bytes
    value: bytes | None


class Change(NamedTuple, Generic[T]):
    """A decision: its result, and the records that it writes."""

    result: T
    records: tuple[Record, ...] = ()


class Registry:
    """Call ``replay`` for each record of the log. Decisions may run in another thread, one at a
    time, while nothing is replayed.
    """

    def __init__(self) -> None:
        self.skipped_records = 0  # of newer releases
        self.next_id = 1
        self.text_bytes = 0
        self._schemas: dict[int, Schema] = {}
        self._used: dict[int, dict[tuple[str, int], None]] = {}  # versions, by ID
        self._by_guid: dict[str, int] = {}
        self._subjects: dict[str, dict[int, Version]] = {}
        self._configs: dict[str, dict[str, Any]] = {}
        self._modes: dict[str, str] = {}
        self._parsed: OrderedDict[tuple[Any, ...], Parsed] = OrderedDict()

    # -- the log -----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record. Raises ``InvalidRequestError`` if it is malformed."""
        try:
            name = json.loads(key)
            content: Any = None if value is None else json.loads(value)
            kind, subject = name["keytype"], name.get("subject") or GLOBAL
            if kind == "SCHEMA":
                self._put_version(subject, int(name["version"]), content)
            elif kind == "CONFIG":
                _put(self._configs, subject, content)
            elif kind == "MODE":
                _put(self._modes, subject, None if content is None else content["mode"])
            elif kind == "NEXT_ID":
                self.next_id = max(self.next_id, int(content["nextId"]))
            else:
                self.skipped_records += 1
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequestError(f"not a record of the schema registry: {error!r}") from error

    def _put_version(self, subject: str, number: int, content: Any) -> None:
        versions = self._subjects.setdefault(subject, {})
        former = versions.pop(number, None)
        if content is None:
            if not versions:
                del self._subjects[subject]
        else:
            schema = self._schemas.get(content["id"]) or _schema_of(content)
            if former is None or former.schema.id != schema.id:
                self._use(schema, (subject, number))
            else:
                former = None  # the same schema: only its deletion changes
            versions[number] = Version(subject, number, schema, bool(content.get("deleted")))
            self.next_id = max(self.next_id, schema.id + 1)
        if former is not None:
            self._drop(former.schema, (subject, number))

    def _use(self, schema: Schema, place: tuple[str, int]) -> None:
        if schema.id not in self._schemas:
            self._schemas[schema.id] = schema
            self._by_guid.setdefault(schema.guid, schema.id)
            self.text_bytes += len(schema.text)
        self._used.setdefault(schema.id, {})[place] = None

    def _drop(self, schema: Schema, place: tuple[str, int]) -> None:
        places = self._used[schema.id]
        del places[place]
        if places:
            return
        del self._used[schema.id], self._schemas[schema.id]
        self.text_bytes -= len(schema.text)
        if self._by_guid.get(schema.guid) == schema.id:
            del self._by_guid[schema.guid]

    # -- queries -----------------------------------------------------------------------------------

    @property
    def max_id(self) -> int:
        """Return the highest ID, 0 if there are none."""
        return max(self._schemas, default=0)

    def schema(self, schema_id: int) -> Schema:
        """Raises ``SchemaError``, like all queries, if there is none."""
        found = self._schemas.get(schema_id)
        if found is None:
            raise SchemaError(f"Schema {schema_id} not found", SCHEMA_NOT_FOUND)
        return found

    def schema_by_guid(self, guid: str) -> Schema:
        found = self._by_guid.get(guid.lower())
        if found is None:
            raise SchemaError(f"Schema {guid[:64]} not found", SCHEMA_NOT_FOUND)
        return self._schemas[found]

    def uses(self, schema_id: int, *, deleted: bool = False) -> list[Version]:
        """Return the versions that have the schema."""
        self.schema(schema_id)
        found = [
            self._subjects[subject][number] for subject, number in sorted(self._used[schema_id])
        ]
        return [each for each in found if deleted or not each.is_deleted]

    def all_versions(self, prefix: str = "", *, deleted: bool = False) -> Iterator[Version]:
        for subject in sorted(self._subjects):
            if subject.startswith(prefix):
                versions = self._subjects[subject]
                for number in sorted(versions):
                    if deleted or not versions[number].is_deleted:
                        yield versions[number]

    def subjects(
        self, prefix: str = "", *, deleted: bool = False, deleted_only: bool = False
    ) -> list[str]:
        found = []
        for subject in sorted(self._subjects):
            if not subject.startswith(prefix):
                continue
            is_gone = all(each.is_deleted for each in self._subjects[subject].values())
            if is_gone if deleted_only else deleted or not is_gone:
                found.append(subject)
        return found

    def versions(
        self, subject: str, *, deleted: bool = False, deleted_only: bool = False
    ) -> list[Version]:
        """Return the versions of a subject, in order."""
        versions = self._subjects.get(subject, {})
        found = [
            versions[number]
            for number in sorted(versions)
            if (versions[number].is_deleted if deleted_only else True)
            and (deleted or deleted_only or not versions[number].is_deleted)
        ]
        if not found:
            raise SchemaError(f"Subject {subject!r} not found.", SUBJECT_NOT_FOUND)
        return found

    def version(self, subject: str, number: int, *, deleted: bool = False) -> Version:
        """Return one version. ``number``: ``LATEST`` for the last one."""
        found = self.versions(subject, deleted=deleted)
        if number == LATEST:
            return found[-1]
        for each in found:
            if each.version == number:
                return each
        raise SchemaError(f"Version {number} not found.", VERSION_NOT_FOUND)

    def referrers(self, version: Version) -> list[int]:
        """Return the IDs of the schemas that refer to a version."""
        place = version.subject, version.version
        return sorted(
            {
                each.schema.id
                for each in self.all_versions()
                if any((one.subject, one.version) == place for one in each.schema.references)
            }
        )

    def config(self, subject: str) -> dict[str, Any] | None:
        """Return the configuration of a subject, or ``GLOBAL``, itself."""
        return self._configs.get(subject)

    def level(self, subject: str) -> str:
        """Return the compatibility level that applies to a subject."""
        for scope in (subject, GLOBAL):
            level = self._configs.get(scope, {}).get("compatibilityLevel")
            if level:
                return str(level)
        return DEFAULT_LEVEL

    def own_mode(self, subject: str) -> str | None:
        return self._modes.get(subject)

    def mode(self, subject: str) -> str:
        """Return the mode that applies to a subject."""
        overall = self._modes.get(GLOBAL, DEFAULT_MODE)
        return overall if overall == "READONLY_OVERRIDE" else self._modes.get(subject, overall)

    # -- schemas -----------------------------------------------------------------------------------

    def named(self, references: Sequence[Reference]) -> Named:
        """Return the names and texts of all schemas that are referred to, leaves first."""
        if len(references) > limits.SCHEMA_REFERENCES_MAX:
            raise SchemaError(
                f"{len(references)} references are more than {limits.SCHEMA_REFERENCES_MAX} "
                "(SCHEMA_REFERENCES_MAX)",
                INVALID_SCHEMA,
            )
        found: dict[str, str] = {}
        self._collect(references, found, depth=1)
        return tuple(found.items())

    def _collect(
        self, references: Sequence[Reference], found: dict[str, str], *, depth: int
    ) -> None:
        too_many = len(found) > limits.SCHEMA_REFERENCES_MAX
        if depth > limits.SCHEMA_REFERENCE_DEPTH_MAX or too_many:
            raise SchemaError(
                f"the references are deeper than {limits.SCHEMA_REFERENCE_DEPTH_MAX}, or more than "
                f"{limits.SCHEMA_REFERENCES_MAX}",
                INVALID_SCHEMA,
            )
        for each in references:
            if each.name in found:
                continue
            try:
                version = self.version(each.subject, each.version, deleted=True)
            except SchemaError as error:
                raise SchemaError(
                    f"No schema reference found for subject {each.subject!r} and version "
                    f"{each.version}",
                    INVALID_SCHEMA,
                ) from error
            self._collect(version.schema.references, found, depth=depth + 1)
            found[each.name] = version.schema.text

    def parsed(self, schema: Schema) -> Parsed:
        """Return a schema parsed. The last ones are kept."""
        key = (schema.kind, schema.text, schema.references)
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = formats.parse(schema.kind, schema.text, self.named(schema.references))
            self._parsed[key] = parsed
            if len(self._parsed) > limits.SCHEMAS_PARSED_KEPT_MAX:
                self._parsed.popitem(last=False)
        return parsed

    def prepared(self, new: Schema, *, normalize: bool = False) -> tuple[Schema, Parsed]:
        """Return a schema of a client as it would be stored: with the numbers of its references,
        and its GUID. Raises ``SchemaError``.
        """
        references = []
        for each in new.references:
            number = each.version
            if number == LATEST:
                number = self.version(each.subject, LATEST).version
            references.append(each._replace(version=number))
        new = Schema(new.kind, new.text, tuple(references), new.extra)
        parsed = self.parsed(new)
        text = parsed.normal if normalize else parsed.text
        about = compact([*map(list, references), dict(new.extra)], is_sorted=True)
        guid = formats.guid_of(new.kind, parsed.normal, about)
        return Schema(new.kind, text, new.references, new.extra, guid=guid), parsed

    def find(self, subject: str, new: Schema, *, deleted: bool = False) -> Version:
        """Return the version of a subject with the content of ``new``, the latest of them."""
        versions = self.versions(subject, deleted=deleted)
        wanted, _ = self.prepared(new)
        for each in reversed(versions):
            if each.schema.guid == wanted.guid:
                return each
        raise SchemaError("Schema not found", SCHEMA_NOT_FOUND)

    def check(self, new: Schema, versions: Sequence[Version], level: str) -> list[str]:
        """Return why ``new`` is not compatible with the versions, by a compatibility level."""
        _, parsed = self.prepared(new)
        if level == "NONE" or not versions:
            return []
        if not level.endswith("_TRANSITIVE"):
            versions = versions[-1:]
        if sum(len(each.schema.text) for each in versions) > limits.SCHEMA_COMPARED_BYTES_MAX:
            raise SchemaError(
                f"the versions of the subject have more than {limits.SCHEMA_COMPARED_BYTES_MAX} "
                "bytes together, too many to compare. Delete old ones, or use a level without "
                "_TRANSITIVE",
                NOT_PERMITTED,
            )
        found: list[str] = []
        for each in reversed(versions):
            older = self.parsed(each.schema)
            texts = []
            if not level.startswith("FORWARD"):
                texts += formats.problems(parsed, older)
            if not level.startswith("BACKWARD"):
                texts += formats.problems(older, parsed)
            found += [f"{text} (version {each.version})" for text in texts]
            if len(found) >= limits.SCHEMA_PROBLEMS_MAX:
                break
        return found[: limits.SCHEMA_PROBLEMS_MAX]

    # -- decisions ---------------------------------------------------------------------------------

    def register(
        self,
        subject: str,
        new: Schema,
        *,
        normalize: bool = False,
        schema_id: int = 0,
        version: int = 0,
    ) -> Change[Version]:
        """Add a version, or return the one with the same content.

        ``schema_id``, ``version``: 0, except in mode IMPORT.
        """
        mode = self._check_writable(subject)
        if (mode == "IMPORT") != bool(schema_id):
            needed = "An ID is required" if mode == "IMPORT" else "An ID is not permitted"
            raise SchemaError(f"{needed}: subject {subject!r} is in mode {mode}", NOT_PERMITTED)
        prepared, _ = self.prepared(new, normalize=normalize)
        versions = self._subjects.get(subject, {})
        live = [versions[number] for number in sorted(versions) if not versions[number].is_deleted]
        if mode == "IMPORT":
            return self._import(subject, prepared, schema_id, version)
        for each in reversed(live):
            if each.schema.guid == prepared.guid:
                return Change(each)
        self._check_room(subject, prepared)
        level = self.level(subject)
        texts = self.check(new, live, level)
        if texts:
            raise SchemaError(
                "Schema being registered is incompatible with an earlier schema for subject "
                f'"{subject}", details: [{"; ".join(texts)}; compatibility: {level}]',
                INCOMPATIBLE,
            )
        known = self._by_guid.get(prepared.guid)
        stored = self._schemas[known] if known else _with_id(prepared, self.next_id)
        added = Version(subject, max(versions, default=0) + 1, stored)
        return Change(added, (_version_record(added),))

    def _import(self, subject: str, new: Schema, schema_id: int, number: int) -> Change[Version]:
        known = self._schemas.get(schema_id)
        if known is not None and known.guid != new.guid:
            raise SchemaError(
                f"Overwrite new schema with id {schema_id} is not permitted.", NOT_PERMITTED
            )
        if not 0 < schema_id <= limits.SCHEMA_ID_MAX or number > limits.SCHEMA_ID_MAX:
            raise SchemaError(f"the ID or version {schema_id} is out of range", NOT_PERMITTED)
        versions = self._subjects.get(subject, {})
        number = number if number > 0 else max(versions, default=0) + 1
        present = versions.get(number)
        if present is not None and present.schema.id == schema_id and not present.is_deleted:
            return Change(present)
        self._check_room(subject, new)
        added = Version(subject, number, known or _with_id(new, schema_id))
        return Change(added, (_version_record(added),))

    def _check_room(self, subject: str, new: Schema) -> None:
        versions = self._subjects.get(subject, {})
        text = ""
        if len(versions) >= limits.SCHEMA_VERSIONS_MAX:
            text = f"subject {subject!r} has {len(versions)} versions (SCHEMA_VERSIONS_MAX)"
        elif not versions and len(self._subjects) >= limits.SCHEMA_SUBJECTS_MAX:
            text = f"there are {len(self._subjects)} subjects (SCHEMA_SUBJECTS_MAX)"
        elif self.text_bytes + len(new.text) > limits.SCHEMAS_BYTES_MAX:
            text = f"the schemas have {self.text_bytes} bytes (SCHEMAS_BYTES_MAX)"
        elif self.next_id > limits.SCHEMA_ID_MAX:
            text = "all IDs are used"
        if text:
            raise SchemaError(f"{text}: delete some permanently", NOT_PERMITTED)

    def _check_writable(self, subject: str) -> str:
        check_subject(subject)
        mode = self.mode(subject)
        if mode.startswith("READONLY"):
            raise SchemaError(f"Subject {subject} is in read-only mode", NOT_PERMITTED)
        return mode

    def delete_subject(self, subject: str, *, permanent: bool) -> Change[list[int]]:
        """Delete all versions: first softly, then permanently."""
        self._check_writable(subject)
        versions = self.versions(subject, deleted=True)
        live = [each for each in versions if not each.is_deleted]
        if permanent and live:
            raise SchemaError(
                f"Subject {subject!r} was not deleted first before being permanently deleted",
                SUBJECT_NOT_SOFT_DELETED,
            )
        if not permanent and not live:
            raise SchemaError(
                f"Subject {subject!r} was soft deleted. Set permanent=true to delete permanently",
                SUBJECT_SOFT_DELETED,
            )
        chosen = versions if permanent else live
        self._check_unreferenced(chosen)
        records = self._deletions(chosen, permanent=permanent)
        if permanent:
            records += [
                Record(_key(kind, subject), None)
                for kind, there in (("CONFIG", self._configs), ("MODE", self._modes))
                if subject in there
            ]
        return Change([each.version for each in chosen], tuple(records))

    def delete_version(self, subject: str, number: int, *, permanent: bool) -> Change[int]:
        """Delete one version: first softly, then permanently."""
        self._check_writable(subject)
        # A version that is deleted softly has another error than one that never existed.
        version = self.version(subject, number, deleted=permanent or number != LATEST)
        name = f"Subject {subject!r} Version {version.version}"
        if permanent and not version.is_deleted:
            raise SchemaError(
                f"{name} was not deleted first before being permanently deleted",
                VERSION_NOT_SOFT_DELETED,
            )
        if not permanent and version.is_deleted:
            raise SchemaError(
                f"{name} was soft deleted. Set permanent=true to delete permanently",
                VERSION_SOFT_DELETED,
            )
        self._check_unreferenced([version])
        records = self._deletions([version], permanent=permanent)
        return Change(version.version, tuple(records))

    def _check_unreferenced(self, versions: Sequence[Version]) -> None:
        for each in versions:
            if self.referrers(each):
                raise SchemaError(
                    "One or more references exist to the schema "
                    f"{{magic=1,keytype=SCHEMA,subject={each.subject},version={each.version}}}.",
                    REFERENCE_EXISTS,
                )

    def _deletions(self, versions: Sequence[Version], *, permanent: bool) -> list[Record]:
        if not permanent:
            return [
                _version_record(Version(each.subject, each.version, each.schema, is_deleted=True))
                for each in versions
            ]
        records = [Record(_key("SCHEMA", each.subject, each.version), None) for each in versions]
        # Compaction removes the tombstones, and with them the highest ID: it must not be reused.
        next_id = compact({"nextId": self.next_id}).encode()
        # guard: a permanent deletion keeps the next schema ID
        return [*records, Record(_key("NEXT_ID", GLOBAL), next_id)]

    def set_config(self, subject: str, config: Mapping[str, Any]) -> Change[dict[str, Any]]:
        """Replace the configuration of a subject, or ``GLOBAL``. ``config``: as of a client."""
        check_subject(subject, or_global=True)
        stored = {key: value for key, value in config.items() if key != "compatibility"}
        level = config.get("compatibility", config.get("compatibilityLevel"))
        if level is not None:
            if not isinstance(level, str) or level.upper() not in LEVELS:
                raise SchemaError(
                    f"Invalid compatibility level {str(level)[:50]!r}. Valid values are "
                    f"{', '.join(LEVELS)}",
                    INVALID_LEVEL,
                )
            stored["compatibilityLevel"] = level.upper()
        value = compact(stored).encode()
        if len(value) > limits.SCHEMA_CONFIG_BYTES_MAX:
            raise SchemaError("the configuration is too long", INVALID_LEVEL)
        return Change(stored, (Record(_key("CONFIG", subject), value),))

    def delete_config(self, subject: str) -> Change[dict[str, Any]]:
        """Remove a configuration, and return it."""
        former = self._configs.get(subject)
        if former is None:
            if subject != GLOBAL:
                raise _not_configured(subject, "compatibility", CONFIG_NOT_FOUND)
            return Change({"compatibilityLevel": DEFAULT_LEVEL})
        return Change(former, (Record(_key("CONFIG", subject), None),))

    def set_mode(self, subject: str, mode: object, *, force: bool = False) -> Change[str]:
        """Set the mode of a subject, or ``GLOBAL``."""
        check_subject(subject, or_global=True)
        if not isinstance(mode, str) or mode.upper() not in MODES:
            raise SchemaError(
                f"Invalid mode {str(mode)[:50]!r}. Valid values are {', '.join(MODES)}",
                INVALID_MODE,
            )
        mode = mode.upper()
        there = self._subjects if subject == GLOBAL else self._subjects.get(subject)
        if mode == "IMPORT" and self.mode(subject) != "IMPORT" and there and not force:
            raise SchemaError(
                "Cannot import since found existing subjects. Delete them, or set force=true",
                NOT_PERMITTED,
            )
        value = compact({"mode": mode}).encode()
        return Change(mode, (Record(_key("MODE", subject), value),))

    def delete_mode(self, subject: str) -> Change[str]:
        """Remove the mode of a subject, and return it."""
        former = self._modes.get(subject)
        if former is None:
            raise _not_configured(subject, "mode", MODE_NOT_FOUND)
        return Change(former, (Record(_key("MODE", subject), None),))


def check_subject(subject: str, *, or_global: bool = False) -> None:
    """Raise ``SchemaError`` for a name that subjects cannot have."""
    if not subject and or_global:
        return
    if not (0 < len(subject) <= limits.SCHEMA_SUBJECT_CHARS_MAX and subject.isprintable()):
        raise SchemaError(
            f"The specified subject {subject[:100]!r} is not valid: use 1 to "
            f"{limits.SCHEMA_SUBJECT_CHARS_MAX} printable characters",
            INVALID_SUBJECT,
        )


def _not_configured(subject: str, what: str, code: int) -> SchemaError:
    return SchemaError(f"Subject {subject!r} does not have subject-level {what} configured", code)


def _put(there: dict[str, T], subject: str, content: T | None) -> None:
    if content is None:
        there.pop(subject, None)
    else:
        there[subject] = content


def _with_id(schema: Schema, schema_id: int) -> Schema:
    return Schema(schema.kind, schema.text, schema.references, schema.extra, schema_id, schema.guid)


def _key(kind: str, subject: str, version: int | None = None) -> bytes:
    content: dict[str, Any] = {"keytype": kind, "subject": subject or None}
    if version is not None:
        content["version"] = version
    return compact({**content, "magic": 1}).encode()


def _version_record(version: Version) -> Record:
    schema = version.schema
    content: dict[str, Any] = {
        "subject": version.subject,
        "version": version.version,
        "id": schema.id,
        "guid": schema.guid,
        **({} if schema.kind == AVRO else {"schemaType": schema.kind}),
        **references_field(schema.references),
        **schema.extra,
        "schema": schema.text,
        "deleted": version.is_deleted,
    }
    key = _key("SCHEMA", version.subject, version.version)
    return Record(key, compact(content).encode())


def references_field(references: Iterable[Reference]) -> dict[str, Any]:
    """Return the field of the references in JSON; nothing if there are none."""
    listed = [each._asdict() for each in references]
    return {"references": listed} if listed else {}


def _schema_of(content: Mapping[str, Any]) -> Schema:
    references = tuple(
        Reference(each["name"], each["subject"], each["version"])
        for each in content.get("references", ())
    )
    extra = {key: content[key] for key in ("metadata", "ruleSet") if content.get(key) is not None}
    return Schema(
        content.get("schemaType", AVRO),
        content["schema"],
        references,
        extra,
        content["id"],
        content["guid"],
    )
