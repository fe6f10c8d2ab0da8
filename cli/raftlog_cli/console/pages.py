"""Pages of the console: template values from queries of the cluster."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

import click

from raftlog import Admin, NewTopic, Producer, limits
from raftlog.client.administration.groups import GroupDescription
from raftlog.client.descriptions import (
    BrokerDescription,
    ClusterDescription,
    CopyVerification,
    EventDescription,
    PartitionOverview,
    PartitionPage,
    PartitionVerification,
    ProducerPage,
)
from raftlog.clock import SystemClock
from raftlog.config.keys import DAY_MS, INT64_MAX
from raftlog.config.topic import TOPIC_KEYS
from raftlog.errors import (
    GroupNotEmptyError,
    InvalidRequestError,
    RaftlogError,
    UnknownPartitionError,
    UnknownTopicError,
    counted,
)
from raftlog.types import Offset, TopicPartition, check_group_id, check_topic_name
from raftlog_cli import explain
from raftlog_cli import overview as health
from raftlog_cli.cluster import parse_since
from raftlog_cli.console import records as topic_records
from raftlog_cli.console.history import History
from raftlog_cli.console.http import choice, whole
from raftlog_cli.group import (
    Selection,
    check_in_range,
    choose,
    committed_offsets,
    parse_to,
    partition_ranges,
    places,
    seconds,
)
from raftlog_cli.options import From, in_units, key_and_value, unit_of
from raftlog_cli.overview import SORTS, Sample, TopicRow, overview
from raftlog_cli.topic import topic_rows
from raftlog_cli.txn import partition_rows

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
        make_reader: Callable[[], topic_records.Reader],
        schemas: topic_records.Schemas,
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
            "sentences": explain.explain_broker(cluster, found, self.admin.describe_events()),
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
        sentences = explain.explain_partition(described, found, self.admin.describe_events())
        return {"part": found, "sentences": sentences}

    def new_topic(self, _parameters: Parameters) -> Values:
        return {"keys": TOPIC_KEYS, "form": {}}

    def create_topic(self, form: Parameters) -> str:
        """Create a topic. Returns the URL of the next page."""
        name = form.get("name", "").strip()
        key, value = form.get("setting", ""), form.get("value", "").strip()
        chosen = {each.name: form.get(each.name, "") for each in TOPIC_KEYS if each.choices}
        settings = {**chosen, **({key: in_units(value, key)} if key else {})}
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
        setting = form.get("setting", "")
        value = None if form.get("reset") else in_units(form.get("value", "").strip(), setting)
        self.admin.alter_topic(name, {setting: value})
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
        decoder = topic_records.Decoder(self._schemas, query.topic)
        rows = [topic_records.row_of(record, query.format, decoder) for record in found.records]
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
            "places": topic_records.PLACES,
            "formats": topic_records.FORMATS,
            "parameters": parameters,
            "found": found,
            "rows": rows,
            "next": topic_records.positions_text(found.next),
            "older": self._older(query, found, kept),
            "newer": f"?{urlencode({**kept, 'at': topic_records.positions_text(found.next)})}",
            "download": f"?{urlencode({**kept, **self._start_of(parameters)})}",
            "kept": urlencode(kept),
        }

    def _start_of(self, parameters: Parameters) -> dict[str, str]:
        return {name: parameters[name] for name in ("from", "at") if parameters.get(name)}

    def _older(
        self, query: topic_records.Query, found: topic_records.Found, kept: Parameters
    ) -> str:
        """Return the URL of the records before those of a read of one partition; "" for none."""
        if len(found.extents) != 1 or query.text:
            return ""
        ((partition, extent),) = found.extents.items()
        first = min((record.offset for record in found.records), default=found.next[partition])
        if first <= extent.beginning:
            return ""
        # A read that began in a gap, which compaction leaves, has to begin further back.
        back = max(query.count, 2 * (first - query.at.get(partition, first)))
        start = max(first - back, extent.beginning)
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
        wanted = topic_records.parse_query(name, {"as": parameters.get("as", "")}, now_ms=0).format
        decoder = topic_records.Decoder(self._schemas, name)
        row = topic_records.row_of(found, wanted, decoder, chars_max=limits.CONSOLE_TEXT_MAX)
        return {"topic": name, "row": row, "format": wanted, "formats": topic_records.FORMATS}

    def download(self, parameters: Parameters) -> tuple[str, bytes, str]:
        """Return file name, content, and the parameter ``at`` of the next part ("" at the end)."""
        query = replace(
            self._query({**parameters, "n": ""}), count=limits.CONSOLE_DOWNLOAD_RECORDS_MAX
        )
        with closing(self._reader()) as reader:
            content, found = reader.download(query)
        next_ = "" if found.reason == "end" else topic_records.positions_text(found.next)
        return topic_records.download_name(query, found), content, next_

    def _query(self, parameters: Parameters) -> topic_records.Query:
        name = check_topic_name(parameters["name"])
        return topic_records.parse_query(name, parameters, now_ms=self._clock.wall_ms())

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
            "sentences": explain.explain_lag(group)[:SENTENCES_MAX] if group.lag else [],
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


# -- checks ----------------------------------------------------------------------------------------
#
# Checks of the copies of partitions: brokers verify them, and their chain values must be equal.
#
# A check continues in steps of ``CONSOLE_CHECK_STEP_MS``, one for each request of the page. Without
# a request, it does nothing.


# Of one copy, the worst first.
STATES: Final = ("corrupt", "differs", "unverified", "partial", "equal")


@dataclass(frozen=True, slots=True)
class CopyRow:
    """One copy. ``detail``: description for people. ``share``: verified part of the copy, 0 to 1.

    ``up_to``: the copy is equal to the reference below this offset, or was verified below it.
    """

    topic: str
    partition: int
    copy: CopyVerification
    is_leader: bool
    state: str
    detail: str
    up_to: Offset
    share: float


class Check:
    """Check of the copies of some partitions. Thread-safe; one step runs at a time."""

    def __init__(self, partitions: list[PartitionOverview]) -> None:
        self.partitions = partitions
        self.started_ms = SystemClock().wall_ms()
        self.is_stopped = False
        self._results: list[PartitionVerification] = []  # only the last one may be partial
        self._turn = threading.Lock()

    @property
    def done(self) -> int:
        """The number of partitions whose result is final."""
        return len(self._results) - (bool(self._results) and self._results[-1].is_partial)

    @property
    def is_running(self) -> bool:
        return not self.is_stopped and self.done < len(self.partitions)

    def step(self, admin: Admin) -> None:
        """Continue for ``CONSOLE_CHECK_STEP_MS``. Raises the errors of the client.

        Does nothing while another step runs.
        """
        # guard: one step of a check of copies runs at a time
        if not self._turn.acquire(blocking=False):
            return
        try:
            clock = SystemClock()
            until = clock.monotonic() + limits.CONSOLE_CHECK_STEP_MS / 1_000
            while self.is_running and (left_s := until - clock.monotonic()) > 0:
                before = None
                if self._results and self._results[-1].is_partial:
                    before = self._results[-1]
                found = admin.verify_copies(
                    self.partitions[self.done], before, time_ms=round(1_000 * left_s)
                )
                self._results[self.done :] = [found]
        finally:
            self._turn.release()

    def rows(self) -> list[CopyRow]:
        """Return the copies that were verified, the worst first."""
        found = [
            _row(partition, result, copy)
            for partition, result in zip(self.partitions, list(self._results), strict=False)
            for copy in result.copies
        ]
        return sorted(found, key=lambda row: STATES.index(row.state))


def _row(
    partition: PartitionOverview, result: PartitionVerification, copy: CopyVerification
) -> CopyRow:
    end = result.high_watermark
    state, detail = health.copy_state(copy, end)
    if state == "equal" and result.is_partial:
        state = "partial"  # it is compared when the other copies are verified
    return CopyRow(
        result.topic,
        result.partition,
        copy,
        copy.broker == partition.leader,
        state,
        detail,
        copy.end_offset if copy.differs_at < 0 else copy.differs_at,
        min(copy.end_offset / end, 1.0) if end else 1.0,
    )


class Checks:
    """The last ``CONSOLE_CHECKS_MAX`` checks of one user. Thread-safe."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int | None], Check] = OrderedDict()

    def find(self, topic: str, partition: int | None) -> Check | None:
        """Return the last check of a partition, or of a topic (None)."""
        with self._lock:
            return self._kept.get((topic, partition))

    def start(self, topic: str, partition: int | None) -> Check:
        """Replace the last check by a new one.

        Raises ``UnknownTopicError`` or ``UnknownPartitionError``.
        """
        check_exists(self._admin, topic, partition)
        found = [
            each
            for each in self._admin.describe_cluster([topic]).partitions
            if partition in (None, each.partition)
        ]
        made = Check(sorted(found, key=lambda each: each.partition))
        with self._lock:
            self._kept[topic, partition] = made
            self._kept.move_to_end((topic, partition))
            while len(self._kept) > limits.CONSOLE_CHECKS_MAX:
                self._kept.popitem(last=False)
        return made


def check_exists(admin: Admin, topic: str, partition: int | None) -> None:
    """Raise ``UnknownTopicError`` or ``UnknownPartitionError`` for what does not exist."""
    known = admin.find_topics([topic]).get(topic)
    if known is None:
        raise UnknownTopicError(f"topic {topic!r} does not exist")
    if partition is not None and partition >= known.partition_count:
        raise UnknownPartitionError(
            f"{topic} has no partition {partition}: it has 0 to {known.partition_count - 1}"
        )


# -- page ------------------------------------------------------------------------------------------


def _place(values: Mapping[str, str]) -> tuple[str, int | None]:
    number = whole(values, "partition", 0) if values.get("partition") else None
    return check_topic_name(values["name"]), number


def check(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return the state of the check of a topic or a partition."""
    topic, partition = _place(parameters)
    found = pages.checks.find(topic, partition)
    if found is None:
        check_exists(pages.admin, topic, partition)
    rows = [] if found is None else found.rows()
    path = f"/topics/{topic}/check"
    return {
        "topic": topic,
        "partition": parameters.get("partition", ""),
        "check": found,
        "counts": {state: sum(row.state == state for row in rows) for state in STATES},
        "page": page_of(
            rows,
            PARTITION_ROWS,
            path,
            {name: parameters.get(name, "") for name in ("partition", "page")},
        ),
    }


def continue_check(pages: Pages, form: Mapping[str, str]) -> str:
    """Start, continue or stop a check. Returns the URL of its page."""
    topic, partition = _place(form)
    action = choice(form, "action", ("continue", "start", "stop"))
    found = pages.checks.find(topic, partition)
    if action == "start":
        found = pages.checks.start(topic, partition)
    if found is not None and action == "stop":
        found.is_stopped = True
    elif found is not None:
        found.step(pages.admin)
    kept = {name: form.get(name, "") for name in ("partition", "page")}
    query = urlencode({name: value for name, value in kept.items() if value})
    return f"/topics/{topic}/check" + (f"?{query}" if query else "")


# -- cluster view ----------------------------------------------------------------------------------
#
# Cached descriptions of the cluster, which all pages of the console share.


KEPT_S_MIN: Final = 1.0
KEPT_FACTOR: Final = (
    9.0  # a description that took 1 s is cached for 9 s, to use at most 10 % of one core
)

CLUSTER: Final = "/"  # name of the description of all topics; no topic has this name

T = TypeVar("T")


class ClusterView:
    """Describes the cluster and single topics on demand. Thread-safe.

    A description is cached for ``KEPT_S_MIN`` or ``KEPT_FACTOR`` times its cost, if that is longer.
    """

    def __init__(self, admin: Admin, monotonic: Callable[[], float]) -> None:
        self._admin = admin
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()  # expiry, value
        self._before: Sample | None = None
        self._now: Sample | None = None

    def kept(self, name: str, describe: Callable[[], T]) -> T:
        """Return the cached description of this name, or a new one. Raises the errors of
        ``describe``.
        """
        with self._lock:
            started = self._monotonic()
            until, value = self._kept.get(name, (started, None))
            if started < until:
                found: T = value
                return found
            found = describe()
            ended = self._monotonic()
            self._kept[name] = ended + max(KEPT_S_MIN, KEPT_FACTOR * (ended - started)), found
            self._kept.move_to_end(name)
            while len(self._kept) > limits.CONSOLE_DESCRIPTIONS_MAX:
                self._kept.popitem(last=False)
            return found

    def forget(self) -> None:
        """Clear the cache after a change."""
        with self._lock:
            self._kept.clear()

    def samples(self) -> tuple[Sample, Sample | None]:
        """Return the current and the previous description. Raises the errors of the client."""
        return self.kept(CLUSTER, self._sample)

    def _sample(self) -> tuple[Sample, Sample | None]:
        described = self._admin.summarize_cluster()
        self._before, self._now = self._now, Sample(self._monotonic(), described)
        return self._now, self._before


# -- paging ----------------------------------------------------------------------------------------
#
# Pages of long lists, and their URLs. Pure.


ROWS: Final = 50  # of a page
PARTITION_ROWS: Final = 100  # of a page of partitions, or what is about one


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """``rows`` of page ``number``, from 1 to ``pages``; each has ``size`` rows at most. ``total``:
    rows of all pages.
    """

    rows: Sequence[T]
    number: int
    size: int
    total: int
    path: str
    parameters: Mapping[str, str]

    @property
    def pages(self) -> int:
        return pages_of(self.total, self.size)

    @property
    def first(self) -> int:
        """The number of the first row, from 1; 0 without rows."""
        return (self.number - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1 if self.rows else 0

    def address(self, number: int) -> str:
        """Return the URL of another page with the same parameters."""
        changed = {**self.parameters, "page": str(number)}
        if number <= 1:
            del changed["page"]
        query = urlencode({name: value for name, value in changed.items() if value})
        return f"{self.path}?{query}" if query else self.path


def page_of(rows: Sequence[T], size: int, path: str, parameters: Mapping[str, str]) -> Page[T]:
    """Return the page with the number ``page`` in ``parameters``, or the nearest one."""
    number = min(number_of(parameters), pages_of(len(rows), size))
    shown = rows[(number - 1) * size : number * size]
    return Page(shown, number, size, len(rows), path, parameters)


def number_of(parameters: Mapping[str, str]) -> int:
    """Return the number ``page`` in ``parameters``; 1 if it is missing or no number."""
    text = parameters.get("page", "")
    wanted = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
    return max(wanted, 1)


def fetched(
    fetch: Callable[[int], T],
    total_of: Callable[[T], int],
    size: int,
    parameters: Mapping[str, str],
) -> tuple[int, T]:
    """Fetch the page with the number ``page`` in ``parameters``, or the last one if it is beyond.

    ``fetch``: returns a page by its number, from 1. ``total_of``: the rows of all pages, by one of
    them. Returns the number of the page, and the page.
    """
    number = number_of(parameters)
    found = fetch(number)
    last = pages_of(total_of(found), size)
    return (number, found) if number <= last else (last, fetch(last))


def pages_of(total: int, size: int) -> int:
    return max(-(-total // size), 1)


# -- producers -------------------------------------------------------------------------------------
#
# Page of the producers of a topic or a partition.


def producers(pages: Pages, parameters: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of producers. Raises ``UnknownTopicError`` or ``UnknownPartitionError``."""
    name, text = check_topic_name(parameters["name"]), parameters.get("partition", "")
    partitions = [whole(parameters, "partition", 0)] if text else None

    def fetch(number: int) -> ProducerPage:
        skip = min((number - 1) * PARTITION_ROWS, limits.PRODUCERS_PER_TOPIC_MAX)
        return pages.admin.describe_producers(name, partitions, skip=skip, limit=PARTITION_ROWS)

    number, found = fetched(fetch, lambda page: page.total, PARTITION_ROWS, parameters)
    kept = {"partition": text, "page": parameters.get("page", "")}
    return {
        "topic": name,
        "partition": text,
        "page": Page(
            found.producers,
            number,
            PARTITION_ROWS,
            found.total,
            f"/topics/{name}/producers",
            kept,
        ),
        "problems": sorted(found.problems.items()),
    }


# -- transactions ----------------------------------------------------------------------------------


def transactions(pages: Pages, parameters: Parameters) -> Values:
    """Return a page of the transactional IDs: those with an open transaction first, the oldest
    before the others.
    """
    wanted = parameters.get("q", "").lower()
    listed = pages.admin.list_transactions()
    found = sorted(
        (row for row in listed if wanted in row.transactional_id.lower()),
        key=lambda row: (row.started_ms is None, row.started_ms or 0, row.transactional_id),
    )
    return {
        "page": page_of(found, ROWS, "/transactions", parameters),
        "q": parameters.get("q", ""),
        "total": len(listed),
        "open": sum(row.started_ms is not None for row in listed),
    }


def transaction(pages: Pages, parameters: Parameters) -> Values:
    """Return one transactional ID. Raises ``UnknownTransactionError``."""
    (found,) = pages.admin.describe_transactions([parameters.get("id", "")])
    return {"found": found, "topics": partition_rows(found)}


def abort_transaction(pages: Pages, form: Parameters) -> str:
    """Abort the open transaction of an ID. Returns the URL of its page."""
    name = form.get("id", "")
    pages.admin.abort_transaction(name)
    return "/transaction?" + urlencode({"id": name})


# -- filters ---------------------------------------------------------------------------------------
#
# Filters of the console's templates. Pure.


NOTHING: Final = "\N{EN DASH}"
SPARK_WIDTH: Final = 96
TIME_LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999


def number(value: float | None) -> str:
    """Format a whole number with separators; a dash if it is unknown (None or negative)."""
    return NOTHING if value is None or value < 0 else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Format a rate with one decimal below 10, without decimals from 10 on."""
    if value is None:
        return NOTHING
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Format bytes with a unit; a dash for an unknown value."""
    if value is None or value < 0:
        return NOTHING
    return health.shown_bytes(value)


def time(at_ms: int) -> str:
    """Format a time in UTC with milliseconds; the number itself if it is outside the calendar."""
    if not 0 <= at_ms <= TIME_LAST_MS:
        return str(at_ms)
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return moment.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def clock(at_ms: int) -> str:
    """Format the time of day in UTC."""
    return f"{time(at_ms)[11:19]} UTC"


def duration(value: float | None) -> str:
    """Format seconds as seconds, minutes, hours or days."""
    if value is None:
        return NOTHING
    if value < 60:
        return f"{seconds(value)} s"
    if value < 3_600:
        return f"{value / 60:.0f} min"
    if value < 172_800:
        return f"{value / 3_600:.1f} h"
    return f"{value / 86_400:.1f} days"


# Units of settings in ms and bytes that forms show, the largest first.
_SHOWN: Final[Mapping[str, Mapping[str, int]]] = {
    "ms": {"d": DAY_MS, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1},
    "bytes": {**{name: getattr(limits, name.upper()) for name in ("GiB", "MiB", "KiB")}, "B": 1},
}


def _whole(amount: int, unit: str) -> tuple[int, str]:
    """Return ``amount`` ms or bytes in the largest unit that is exact."""
    name, factor = next(each for each in _SHOWN[unit].items() if amount % each[1] == 0)
    return amount // factor, name


def readable(value: str, setting: str) -> str:
    """Return the value of a setting in ms or bytes with a larger unit, such as ``7 days``; it is
    rounded if it is a long number in the largest unit that is exact. "" for other settings.
    """
    unit = unit_of(setting)
    if not unit or not value.removeprefix("-").isdecimal():
        return ""
    amount = int(value)
    if amount < 0 or amount == INT64_MAX:
        return "no limit"
    if amount == 0:
        return f"0 {unit}"
    count, name = _whole(amount, unit)
    if name == "d":
        return counted(count, "day")
    if count < 1_000:
        return f"{count} {name}"
    return (duration(amount / 1_000) if unit == "ms" else size(amount)).replace(".0 ", " ")


def brief(value: str, setting: str) -> str:
    """Return the value for a form: in ms or bytes with the largest unit that is exact, as ``7d``
    and ``1GiB``; unchanged if it is another setting, negative, 0 or no limit.
    """
    unit = unit_of(setting)
    if not unit or not value.isdecimal() or int(value) in (0, INT64_MAX):
        return value
    count, name = _whole(int(value), unit)
    return f"{count}{name}"


def exact(value: str, setting: str) -> str:
    """Return the value of a setting with its unit, for a title: ``604,800,000 ms``."""
    unit = unit_of(setting)
    return f"{int(value):,} {unit}" if unit and value.removeprefix("-").isdecimal() else value


def bar(value: float | None, largest: float) -> int:
    """Return the width of a bar, 0 to ``SPARK_WIDTH``; at least 1 for a value above 0."""
    if not value or largest <= 0:
        return 0
    return max(1, min(SPARK_WIDTH, round(SPARK_WIDTH * value / largest)))


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {
    "number": number,
    "rate": rate,
    "size": size,
    "time": time,
    "clock": clock,
    "duration": duration,
    "readable": readable,
    "brief": brief,
    "exact": exact,
    "bar": bar,
    "ids": health.ids,
    "state": health.partition_state,
    "broker_state": health.broker_state,
    "preview": topic_records.preview,
}
