"""Pages of the console: template values from queries of the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urlencode

import click

from raftlog import Admin, NewTopic, Producer, limits
from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    EventDescription,
    PartitionPage,
)
from raftlog.client.group_descriptions import GroupDescription
from raftlog.clock import SystemClock
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    RaftlogError,
    UnknownPartitionError,
    counted,
)
from raftlog.types import Offset, TopicPartition, check_group_id, check_topic_name
from raftlog_cli import explaining
from raftlog_cli.console import avro, decoding
from raftlog_cli.console import records as reading
from raftlog_cli.console.checks import Checks
from raftlog_cli.console.cluster_view import ClusterView
from raftlog_cli.console.history import History
from raftlog_cli.console.paging import (
    PARTITION_ROWS,
    ROWS,
    Page,
    fetched,
    page_of,
)
from raftlog_cli.events import parse_since
from raftlog_cli.group import (
    Selection,
    check_in_range,
    choose,
    committed_offsets,
    parse_to,
    partition_ranges,
    places,
)
from raftlog_cli.http_parameters import whole
from raftlog_cli.offsets import From
from raftlog_cli.options import key_and_value
from raftlog_cli.overview import SORTS, TopicRow, overview
from raftlog_cli.topic import topic_rows

SENTENCES_MAX: Final = 8
Values = dict[str, Any]
Parameters = Mapping[str, str]


class Pages:
    """Queries of all pages. Thread-safe."""

    def __init__(
        self,
        admin: Admin,
        view: ClusterView,
        history: History,
        make_reader: Callable[[], reading.Reader],
        schemas: avro.Schemas,
        *,
        make_producer: Callable[[], Producer],
        is_secured: bool,
    ) -> None:
        """``make_reader``, ``make_producer``: return a reader of records for one page, and a
        producer for one record. ``is_secured``: users of the console authenticate.
        """
        self.admin = admin
        self.is_secured = is_secured
        self.checks = Checks(admin)
        self._view = view
        self._history = history
        self._reader = make_reader
        self._producer = make_producer
        self._schemas = schemas
        self._clock = SystemClock()

    def _wall_s(self) -> float:
        return self._clock.wall_ms() / 1_000

    # -- cluster

    def cluster(self, _parameters: Parameters) -> Values:
        now, before = self._view.samples()
        shown = overview(now, before)
        return {
            "shown": shown,
            "topics": shown.topics[:10],
            "rates": points(self._history.rates(shown.rate, self._wall_s())),
            "fullest": fullest(now.cluster.brokers),
            "skew": leader_skew(shown.brokers),
        }

    def broker(self, parameters: Parameters) -> Values:
        """Return one broker, explained. Raises ``InvalidRequestError`` if it is unknown."""
        broker = whole(parameters, "id", 0)
        number, (cluster, stored) = fetched(
            lambda number: self._partitions_of(broker, number),
            lambda found: found[1].total,
            PARTITION_ROWS,
            parameters,
        )
        found = next((each for each in cluster.brokers if each.id == broker), None)
        if found is None:
            raise InvalidRequestError(f"the cluster has no broker {broker}")
        return {
            "broker": found,
            "sentences": explaining.explain_broker(cluster, found, self.admin.describe_events()),
            "page": Page(
                stored.partitions,
                number,
                PARTITION_ROWS,
                stored.total,
                "/broker",
                parameters,
            ),
        }

    def _partitions_of(self, broker: int, number: int) -> tuple[ClusterDescription, PartitionPage]:
        """Return a summary of the cluster, and the page ``number`` of a broker's partitions."""
        skip = min((number - 1) * PARTITION_ROWS, limits.PARTITIONS_PER_CLUSTER_MAX)
        cluster = self._view.kept(
            f"/broker/{broker}/{skip}",
            lambda: self.admin.summarize_cluster(broker, skip=skip, limit=PARTITION_ROWS),
        )
        assert cluster.page is not None
        return cluster, cluster.page

    # -- topics

    def topics(self, parameters: Parameters) -> Values:
        now, before = self._view.samples()
        sort = parameters.get("sort", "")
        rows: Sequence[TopicRow] = overview(
            now, before, sort=sort if sort in SORTS else "name"
        ).topics
        wanted = parameters.get("q", "").lower()
        found = [row for row in rows if wanted in row.name.lower()]
        return {
            "page": page_of(found, ROWS, "/topics", parameters),
            "q": parameters.get("q", ""),
            "sort": sort if sort in SORTS else "name",
            "total": len(rows),
        }

    def topic(self, parameters: Parameters) -> Values:
        """Return the settings and partitions of a topic. Raises ``UnknownTopicError``."""
        name = check_topic_name(parameters["name"])
        number, row = fetched(
            lambda number: self._topic_row(name, number),
            lambda row: int(row["partition_count"]),
            PARTITION_ROWS,
            parameters,
        )
        summary = self._view.samples()[0].cluster
        sums = next((topic for topic in summary.topics or () if topic.name == name), None)
        return {
            "topic": row,
            "settings": [
                {
                    "name": key.name,
                    "value": row["config"].get(key.name, ""),
                    "help": key.help,
                    "accepts": key.accepts,
                    "default": key.show(key.default),
                    "is_set": key.name in row["config_overrides"],
                    "choices": key.choices,
                }
                for key in TOPIC_KEYS
            ],
            "page": Page(
                row["partitions"],
                number,
                PARTITION_ROWS,
                row["partition_count"],
                f"/topics/{name}",
                parameters,
            ),
            "size_bytes": None if sums is None else sums.size_bytes,
            "records": None if sums is None else sums.records,
            "out_of_sync": 0 if sums is None else sums.under_replicated + sums.unavailable,
        }

    def _topic_row(self, name: str, number: int) -> dict[str, Any]:
        """Return a topic, with the page ``number`` of its partitions."""
        start = min((number - 1) * PARTITION_ROWS, limits.PARTITIONS_PER_TOPIC_MAX)
        numbers = range(start, start + PARTITION_ROWS)
        return self._view.kept(
            f"{name}/{start}", lambda: topic_rows(self.admin, [name], numbers)[0]
        )

    def partition(self, parameters: Parameters) -> Values:
        """Return one partition and its explanation. Raises ``UnknownPartitionError``."""
        name, number = check_topic_name(parameters["name"]), whole(parameters, "partition", 0)
        number = min(number, limits.PARTITIONS_PER_TOPIC_MAX)
        described = self._view.kept(
            f"/partitions/{name}/{number}",
            lambda: self.admin.describe_cluster([name], partitions=range(number, number + 1)),
        )
        found = next((part for part in described.partitions if part.partition == number), None)
        if found is None:
            raise UnknownPartitionError(f"there is no partition {name}:{number}")
        sentences = explaining.explain_partition(described, found, self.admin.describe_events())
        return {"part": found, "sentences": sentences}

    def new_topic(self, _parameters: Parameters) -> Values:
        return {"keys": TOPIC_KEYS, "form": {}}

    def create_topic(self, form: Parameters) -> str:
        """Create a topic. Returns the URL of the next page."""
        name = form.get("name", "").strip()
        key, value = form.get("setting", ""), form.get("value", "").strip()
        chosen = {each.name: form.get(each.name, "") for each in TOPIC_KEYS if each.choices}
        settings = {**chosen, **({key: value} if key else {})}
        self.admin.create_topics(
            [
                NewTopic(
                    name,
                    whole(form, "partitions", 1),
                    whole(form, "replication_factor", 0),
                    {setting: text for setting, text in settings.items() if text},
                )
            ]
        )
        self._view.forget()
        return f"/topics/{name}"

    def alter_topic(self, form: Parameters) -> str:
        """Change one setting, or reset it to its default. Returns the URL of the next page."""
        name = check_topic_name(form["name"])
        value = None if form.get("reset") else form.get("value", "").strip()
        self.admin.alter_topic(name, {form.get("setting", ""): value})
        self._view.forget()
        return f"/topics/{name}?tab=settings"

    def extend_topic(self, form: Parameters) -> str:
        name = check_topic_name(form["name"])
        self.admin.add_partitions(name, whole(form, "partitions", 0))
        self._view.forget()
        return f"/topics/{name}"

    def delete_topic(self, form: Parameters) -> str:
        """Delete the topic whose name the user has typed. Returns the URL of the topics."""
        name = check_topic_name(form["name"])
        if form.get("confirmed", "").strip() != name:
            raise InvalidRequestError(
                f"confirmed: this is not the name of the topic, {name}. Nothing was deleted: go "
                "back, and type its name"
            )
        self.admin.delete_topics([name])
        self._view.forget()
        return "/topics"

    def delete_records(self, form: Parameters) -> str:
        """Delete the records of a partition below an offset. Returns the URL of the partition."""
        name, partition = check_topic_name(form["name"]), whole(form, "partition", -1)
        before = whole(form, "before", -1)
        if before < 0:  # -1 deletes all records
            raise InvalidRequestError("before: enter the first offset that remains")
        self.admin.delete_records({TopicPartition(name, partition): before})
        self._view.forget()
        return f"/topics/{name}/partitions/{partition}"

    def move_leader(self, form: Parameters) -> str:
        """Transfer the leadership of a partition. Returns the URL of the partition."""
        name, partition = check_topic_name(form["name"]), whole(form, "partition", -1)
        self.admin.transfer_leader(name, partition, whole(form, "to", -1))
        self._view.forget()
        return f"/topics/{name}/partitions/{partition}"

    def topic_groups(self, parameters: Parameters) -> Values:
        """Return the groups that read the topic, or have committed offsets in it, and their lag
        there. Raises the errors of the client.
        """
        name = check_topic_name(parameters["name"])
        described, omitted = self._view.kept("/groups", self._described_groups)
        shares = (
            replace(group, partitions=tuple(p for p in group.partitions if p.topic == name))
            for group in described
        )
        found = sorted(
            (group for group in shares if group.partitions),
            key=lambda group: (-group.lag, group.group),
        )
        path = f"/topics/{name}/groups"
        return {"topic": name, "page": page_of(found, ROWS, path, parameters), "omitted": omitted}

    def _described_groups(self) -> tuple[list[GroupDescription], int]:
        """Return the first ``CONSOLE_GROUPS_DESCRIBED_MAX`` groups, and the number of others."""
        names = [row.group for row in self.admin.list_groups()]
        chosen = names[: limits.CONSOLE_GROUPS_DESCRIBED_MAX]
        return self.admin.describe_groups(chosen) if chosen else [], len(names) - len(chosen)

    # -- records

    def new_record(self, parameters: Parameters) -> Values:
        """Return the form; after a record was stored, with its partition and offset."""
        stored = [whole(parameters, each, 0) for each in ("stored", "offset") if each in parameters]
        return {
            "topic": check_topic_name(parameters["name"]),
            "partition": parameters.get("partition", ""),
            "stored": stored if len(stored) == 2 else None,
        }

    def produce(self, form: Parameters) -> str:
        """Send one record. Returns the URL of the form, which links to the record.

        An empty key is none; lines end with a line feed. Raises ``InvalidRequestError``, or the
        error of the delivery.
        """
        name, key = check_topic_name(form["name"]), form.get("key", "")
        value = form.get("value", "").replace("\r\n", "\n")  # as forms send line ends
        partition = form.get("partition", "").strip()
        lines = [line for line in form.get("headers", "").splitlines() if line.strip()]
        try:
            headers = [key_and_value(line) for line in lines]
        except click.BadParameter as error:
            raise InvalidRequestError(f"headers: {error.message}") from error
        with self._producer() as producer:
            stored = producer.send(
                name,
                None if form.get("tombstone") else value.encode(),
                key.encode() if key else None,
                [(header, text.encode()) for header, text in headers],
                partition=whole(form, "partition", 0) if partition else None,
            ).result()
        at = {"partition": partition, "stored": stored.partition, "offset": stored.offset}
        return f"/topics/{name}/produce?{urlencode(at)}"

    def records(self, parameters: Parameters) -> Values:
        query = self._query(parameters)
        with closing(self._reader()) as reader:
            found = reader.read(query)
        decoder = avro.Decoder(self._schemas, query.topic)
        rows = [reading.row_of(record, query.format, decoder) for record in found.records]
        if query.is_newest_first:
            rows.reverse()
        kept = {
            name: parameters[name]
            for name in ("partition", "q", "in", "as", "n")
            if parameters.get(name)
        }
        return {
            "topic": query.topic,
            "query": query,
            "places": reading.PLACES,
            "formats": decoding.FORMATS,
            "parameters": parameters,
            "found": found,
            "rows": rows,
            "next": reading.positions_text(found.next),
            "older": self._older(query, found, kept),
            "newer": f"?{urlencode({**kept, 'at': reading.positions_text(found.next)})}",
            "download": f"?{urlencode({**kept, **self._start_of(parameters)})}",
            "kept": urlencode(kept),
        }

    def _start_of(self, parameters: Parameters) -> dict[str, str]:
        return {name: parameters[name] for name in ("from", "at") if parameters.get(name)}

    def _older(self, query: reading.Query, found: reading.Found, kept: Parameters) -> str:
        """Return the URL of the records before those of a read of one partition; "" for none."""
        if len(found.extents) != 1 or query.text:
            return ""
        ((partition, extent),) = found.extents.items()
        first = min((record.offset for record in found.records), default=found.next[partition])
        if first <= extent.beginning:
            return ""
        start = max(first - query.count, extent.beginning)
        return f"?{urlencode({**kept, 'at': f'{partition}:{start}'})}"

    def record(self, parameters: Parameters) -> Values:
        """Return one record. Raises ``InvalidRequestError`` if there is none at the offset."""
        name = check_topic_name(parameters["name"])
        tp = TopicPartition(name, whole(parameters, "partition", -1))
        offset = whole(parameters, "offset", -1)
        with closing(self._reader()) as reader:
            found = reader.one(tp, offset)
        if found is None:
            raise InvalidRequestError(
                f"{tp} has no record at offset {offset}: deleted, compacted, or not written yet"
            )
        wanted = reading.parse_query(name, {"as": parameters.get("as", "")}, now_ms=0).format
        decoder = avro.Decoder(self._schemas, name)
        row = reading.row_of(found, wanted, decoder, chars_max=limits.CONSOLE_TEXT_MAX)
        return {"topic": name, "row": row, "format": wanted, "formats": decoding.FORMATS}

    def download(self, parameters: Parameters) -> tuple[str, bytes, str]:
        """Return file name, content, and the parameter ``at`` of the next part ("" at the end)."""
        query = replace(
            self._query({**parameters, "n": ""}), count=limits.CONSOLE_DOWNLOAD_RECORDS_MAX
        )
        with closing(self._reader()) as reader:
            content, found = reader.download(query)
        next_ = "" if found.reason == "end" else reading.positions_text(found.next)
        return reading.download_name(query, found), content, next_

    def _query(self, parameters: Parameters) -> reading.Query:
        name = check_topic_name(parameters["name"])
        return reading.parse_query(name, parameters, now_ms=self._clock.wall_ms())

    # -- consumer groups

    def groups(self, parameters: Parameters) -> Values:
        wanted = parameters.get("q", "").lower()
        listed = self.admin.list_groups()
        found = [row for row in listed if wanted in row.group.lower()]
        page = page_of(found, ROWS, "/groups", parameters)
        described: dict[str, GroupDescription] = {}
        # A group was deleted, or its coordinator is down: list the groups without lag.
        with suppress(RaftlogError):
            names = [row.group for row in page.rows]
            described = {group.group: group for group in self.admin.describe_groups(names)}
        return {
            "page": page,
            "described": described,
            "q": parameters.get("q", ""),
            "total": len(listed),
        }

    def group(self, parameters: Parameters) -> Values:
        """Return one group. Raises ``UnknownGroupError``."""
        name = check_group_id(parameters.get("name", ""))
        (group,) = self.admin.describe_groups([name])
        lags = self._history.lags(name, group.lag, self._wall_s())
        members = {member.member_id: member for member in group.members}
        rows = sorted(group.partitions, key=lambda part: (part.topic, part.partition))
        return {
            "group": group,
            "members": [
                (member, partition_ranges(member.assigned)) for member in group.members[:ROWS]
            ],
            "page": page_of(rows, PARTITION_ROWS, "/group", parameters),
            "readers": members,
            "lag_max": max((part.lag or 0 for part in rows), default=0),
            "lags": points(lags),
            "sentences": explaining.explain_lag(group)[:SENTENCES_MAX] if group.lag else [],
        }

    def reset(self, form: Parameters) -> Values:
        """Return the preview of a reset. Raises ``InvalidRequestError`` or an error of offsets."""
        name, new, group = self._new_offsets(form)
        to = parse_to(form["to"].strip())
        old = {TopicPartition(part.topic, part.partition): part.offset for part in group.partitions}
        rows = [
            {"tp": tp, "old": old.get(tp), "new": offset, "change": change(old.get(tp), offset)}
            for tp, offset in sorted(new.items())
        ]
        return {
            "group": group,
            # A relative time would have another value when the reset is confirmed.
            "form": {**form, "to": f"@{to.number}"} if to.kind is From.TIME else form,
            "rows": rows[:PARTITION_ROWS],
            "total": len(rows),
            "name": name,
        }

    def apply_reset(self, form: Parameters) -> str:
        name, new, group = self._new_offsets(form)
        if group.members:
            raise GroupNotEmptyError(
                f"group {name!r} has {counted(len(group.members), 'member')}. Stop its consumers "
                "before the "
                "reset"
            )
        self.admin.alter_group_offsets(name, new, expected=committed_offsets(group))
        return "/group?" + urlencode({"name": name})

    def _new_offsets(
        self, form: Parameters
    ) -> tuple[str, dict[TopicPartition, Offset], GroupDescription]:
        name = check_group_id(form.get("name", ""))
        topic = form.get("topic", "")
        try:
            to = parse_to(form.get("to", "").strip())
        except click.BadParameter as error:
            raise InvalidRequestError(error.message) from error
        (group,) = self.admin.describe_groups([name])
        old = {
            TopicPartition(part.topic, part.partition): part.offset
            for part in group.partitions
            if part.offset is not None
        }
        selections = [Selection(check_topic_name(topic))] if topic else []
        chosen = choose(self.admin, name, old, selections, only_committed=False)
        new = places(self.admin, chosen, to)
        check_in_range(new, chosen)
        return name, new, group

    # -- events

    def events(self, parameters: Parameters) -> Values:
        text = parameters.get("since", "")
        try:
            since_ms = parse_since(text) if text else 0
        except ValueError as error:
            raise InvalidRequestError(f"since: {error}") from error
        found = sorted(
            self.admin.describe_events(since_ms), key=lambda event: event.at_ms, reverse=True
        )
        kinds = sorted({event.kind for event in found})
        kind, wanted = parameters.get("kind", ""), parameters.get("q", "").lower()
        kept = [
            event
            for event in found
            if (not kind or event.kind == kind) and wanted in _searched(event)
        ]
        return {
            "page": page_of(kept, PARTITION_ROWS, "/events", parameters),
            "kinds": kinds,
            "kind": kind,
            "since": text,
            "q": parameters.get("q", ""),
        }


def _searched(event: EventDescription) -> str:
    place = "" if event.topic is None else f"{event.topic}:{event.partition} "
    return f"{place}{event.kind} {event.text}".lower()


def change(old: Offset | None, new: Offset) -> str:
    """Describe the change of a committed offset."""
    if old is None:
        return "new"
    if new == old:
        return "none"
    return f"{new - old:+,}"


def fullest(brokers: Iterable[BrokerDescription]) -> BrokerDescription | None:
    """Return the broker with the smallest share of free disk space; None if none is known."""
    known = [broker for broker in brokers if broker.disk is not None and broker.disk.size_bytes > 0]

    def free_share(broker: BrokerDescription) -> float:
        return 0.0 if broker.disk is None else broker.disk.free_bytes / broker.disk.size_bytes

    return min(known, key=free_share, default=None)


def leader_skew(brokers: Iterable[Mapping[str, Any]]) -> int:
    """Return the difference between the most and the fewest leaderships of brokers that are up."""
    leads = [row["leads"] for row in brokers if row["state"] == "up"]
    return max(leads) - min(leads) if leads else 0


def points(values: Iterable[tuple[float, float]]) -> str:
    """Return the points of a plot for the script: times in whole seconds, and values."""
    listed = [(round(at), round(value, 1)) for at, value in values]
    return json.dumps([[at for at, _ in listed], [value for _, value in listed]])
