"""The report of a run: one HTML file without scripts and external resources.

``page.html`` is the template of the page. ``digest`` (events) and the verdict contain the texts and
numbers; ``pictures`` arranges the pictures, this module the tables.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from raftlog.testing import history
from raftlog.testing.checker import verdict as checker
from raftlog.testing.checker.verdict import Outage, Valid, Verdict
from raftlog.testing.history import AnyEntry, DamagedHistoryError
from raftlog_jepsen.report import pictures
from raftlog_jepsen.report.digest import Digest, FaultSpan, digest, quantile_s
from raftlog_jepsen.report.pictures import Window, ownership, timeline

REPORT: Final = "report.html"
HISTORY: Final = "history.jsonl"

_NOT_IN_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
MARKS: Final = {"valid": "✓", "invalid": "✗", "unknown": "?"}


def write_report(directory: Path, entries: Iterable[AnyEntry] | Path, verdict: Verdict) -> Path:
    """Write ``report.html`` into ``directory``, and return its path.

    ``entries``: a history, or the path of its file. The report contains the file up to the first
    line that cannot be read; the verdict reports that line. Raises ``OSError``.
    """
    if isinstance(entries, Path):
        source = str(entries)
        found = digest(_readable(entries))
    else:
        source = HISTORY
        found = digest(entries)
    path = directory / REPORT
    path.write_text(page(found, judgement_of(verdict, found.base_ns), source), encoding="utf-8")
    return path


def _readable(path: Path) -> Iterator[AnyEntry]:
    with contextlib.suppress(DamagedHistoryError):
        yield from history.read(path)


def page(found: Digest, judged: Judgement, source: str = HISTORY) -> str:
    """Return the complete document. ``source``: file name of the history."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        cut=pictures.cut, counted=pictures.counted, seconds=pictures.seconds, number="{:,}".format
    )
    listed = note_rows(found)
    text = environment.get_template("page.html").render(
        found=found,
        judged=judged,
        mark=MARKS[judged.state],
        colours=pictures.COLOURS,
        injected=sum(fault.injected for fault in found.faults),
        facts=rows(found),
        commands=repeat_commands(found, source),
        timeline=timeline(found, judged.windows),
        owners=ownership(found),
        plots=[draw(found, judged.windows) for draw in (pictures.throughput, pictures.latency)],
        faults=fault_rows(found.faults, kinds_of(found)),
        each=each_fault_rows(found.faults),
        windows=window_rows(judged.windows, found.faults),
        operations=operation_rows(found),
        latencies=latency_rows(found),
        errors=error_rows(found),
        notes=listed,
        notes_left=found.notes_left_out + len(found.notes) - len(listed),
    )
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


# -- tables ----------------------------------------------------------------------------------------
#
# The tables of a report: faults, outages, clients, notes. Rows of text.


FAULTS_LISTED_MAX: Final = 400
REASONS_MAX: Final = 3  # most frequent reasons why a kind was not injected
EFFECTS_MAX: Final = 8
WORD_CHARS_MAX: Final = 24  # maximum length of a state of a broker
ACTIVE_MAX: Final = 6  # faults named for one outage
WINDOWS_MAX: Final = 200
ERRORS_MAX: Final = 20
NOTES_MAX: Final = 200
# Identifiers, times and states: a sum of them has no meaning.
NOT_SUMMED: Final = frozenset(
    [
        "pid",
        "pids",
        "port",
        "signal",
        "status",
        "at",
        "offset",
        "position",
        "seed",
        "broker",
        "before",
        "after",
    ]
)

Rows = list[tuple[str, ...]]


# -- faults ---------------------------------------------------------------------------------------


def fault_rows(faults: Sequence[FaultSpan], asked_for: Iterable[str] = ()) -> Rows:
    """Return a row for each kind, also for requested kinds that were never selected."""
    kinds: dict[str, list[FaultSpan]] = {kind: [] for kind in asked_for}
    for fault in faults:
        kinds.setdefault(fault.kind, []).append(fault)
    rows: Rows = []
    for kind, those in kinds.items():
        injected = [fault for fault in those if fault.injected]
        left = len(those) - len(injected)
        why = _reasons(fault.why for fault in those if not fault.injected)
        refused = (f"{left:,}: {why}" if left else "0") if those else "never selected in this run"
        beyond = sum(fault.beyond for fault in those)
        row = (
            kind,
            f"{len(those):,}",
            f"{len(injected):,}",
            refused,
            f"{beyond:,}",
            _sum(injected),
        )
        rows.append(row)
    return rows


def _reasons(reasons: Iterable[str]) -> str:
    found = Counter(pictures.cut(reason, 300) for reason in reasons)
    parts = [
        f"{reason} ({count:,} times)" if count > 1 else reason
        for reason, count in found.most_common(REASONS_MAX)
    ]
    more = len(found) - REASONS_MAX
    return "; ".join(parts) + (f"; and {more:,} other reasons" if more > 0 else "")


def _sum(faults: Iterable[FaultSpan]) -> str:
    """Summarize the effects of faults of one kind: sums numbers, counts truth values and words."""
    sums: dict[str, float] = {}
    words: Counter[str] = Counter()
    for fault in faults:
        for effect in (fault.effect, fault.effect_end):
            words.update(_words(effect))
            for name, amount in _amounts(effect):
                sums[name] = sums.get(name, 0) + amount
    shown = [
        f"{text}: {pictures.counted(count, 'time')}"
        for text, count in words.most_common(EFFECTS_MAX)
    ]
    shown += [f"{name} {_number(name, amount)}" for name, amount in sums.items()]
    return ", ".join(shown[:EFFECTS_MAX])


def _amounts(effect: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in effect.items():
        if name in NOT_SUMMED:
            continue
        if isinstance(value, bool | int | float):
            yield name, value
        elif isinstance(value, dict) and all(isinstance(v, int | float) for v in value.values()):
            yield name, sum(value.values())  # by broker
        elif isinstance(value, list | tuple | dict) and not _are_words(value):
            yield name, len(value)


def _words(effect: Mapping[str, Any]) -> Iterator[str]:
    """Yield the states of brokers in an effect, such as how each ended."""
    for name, value in effect.items():
        if name not in NOT_SUMMED and _are_words(value):
            yield from (f"{name.replace('_', ' ')} {word}" for word in value.values())


def _are_words(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(word, str) and 0 < len(word) <= WORD_CHARS_MAX for word in value.values()
    )


def _number(name: str, amount: float) -> str:
    if "byte" in name:
        return pictures.size(amount)
    if name.endswith(("_s", "seconds")):
        return pictures.seconds(amount)
    return f"{amount:,.10g}"


def each_fault_rows(faults: Sequence[FaultSpan]) -> Rows:
    """Return a row for each of the first ``FAULTS_LISTED_MAX`` faults."""
    return [
        (
            str(fault.id),
            fault.kind,
            ", ".join(map(str, fault.targets)),
            f"{pictures.clock(fault.begin_s)} to {pictures.clock(fault.end_s)}",
            compact(fault.args),
            _seen(fault),
            ("beyond budget; " if fault.beyond else "")
            + ("must continue" if fault.expects == "available" else "may stop"),
        )
        for fault in faults[:FAULTS_LISTED_MAX]
    ]


def _seen(fault: FaultSpan) -> str:
    if not fault.injected:
        return f"NOT INJECTED: {pictures.cut(fault.why, 300)}"
    parts = [compact(effect) for effect in (fault.effect, fault.effect_end) if effect]
    if fault.trouble_end:
        parts.append(f"not ended as planned: {pictures.cut(fault.trouble_end, 300)}")
    return "; at its end ".join(parts)


def compact(values: Any, chars_max: int = 300) -> str:
    """Format data as text of at most ``chars_max`` characters."""
    if isinstance(values, Mapping):
        text = ", ".join(f"{name} {compact(value)}" for name, value in values.items())
    elif isinstance(values, str):
        text = values
    else:
        text = json.dumps(values, ensure_ascii=False, default=str)
    return pictures.cut(text, chars_max)


# -- outages --------------------------------------------------------------------------------------


def window_rows(windows: Sequence[Window], faults: Sequence[FaultSpan]) -> Rows:
    """Return the times without an acknowledgement, in descending order of their length."""
    longest = sorted(windows, key=lambda window: window.begin_s - window.end_s)
    return [
        (
            pictures.seconds(window.end_s - window.begin_s),
            pictures.clock(window.begin_s),
            pictures.clock(window.end_s),
            _active(window, faults),
            window.text,
        )
        for window in longest[:WINDOWS_MAX]
    ]


def _active(window: Window, faults: Sequence[FaultSpan]) -> str:
    """Return the faults that were active during the window."""
    names = [
        f"{fault.kind} {','.join(map(str, fault.targets))}".strip()
        for fault in faults
        if fault.injected and fault.begin_s < window.end_s and fault.end_s >= window.begin_s
    ]
    if not names:
        return "none"
    more = len(names) - ACTIVE_MAX
    return "; ".join(names[:ACTIVE_MAX]) + (f"; and {more:,} more" if more > 0 else "")


# -- clients and notes ----------------------------------------------------------------------------


def operation_rows(digest: Digest) -> Rows:
    names = dict.fromkeys((*digest.operations, *digest.unfinished))
    return [
        (
            name,
            *(f"{digest.operations.get(name, Counter())[t]:,}" for t in ("ok", "info", "fail")),
            f"{digest.unfinished[name]:,}",
        )
        for name in names
    ]


def latency_rows(digest: Digest) -> Rows:
    total = digest.total
    if not total.ok:
        return []
    longest = total.longest_ns / 1e9
    shares = (("50 %", 0.5), ("90 %", 0.9), ("99 %", 0.99), ("99.9 %", 0.999))
    rows = [(text, pictures.seconds(min(quantile_s(total.ok, s), longest))) for text, s in shares]
    return [*rows, ("all", pictures.seconds(longest))]


def error_rows(digest: Digest) -> Rows:
    """Return the most frequent errors that clients received."""
    return [
        (name, outcome, f"{count:,}", text)
        for (name, outcome, text), count in digest.errors.most_common(ERRORS_MAX)
    ]


def note_rows(digest: Digest) -> Rows:
    """Return the notes, troubles first: each trouble makes the verdict unknown."""
    ordered = sorted(digest.notes, key=lambda pair: (not pair[1].is_trouble, pair[0]))
    return [
        ("TROUBLE" if note.is_trouble else "", pictures.clock(at_s), pictures.cut(note.text))
        for at_s, note in ordered[:NOTES_MAX]
    ]


# -- run facts -------------------------------------------------------------------------------------
#
# Parameters and environment of a run, from the first entry of its history. Pure.
#
# Other histories may have no plan or a plan with other fields. Missing data is omitted.


Row = tuple[str, str]


def kinds_of(digest: Digest) -> list[str]:
    """Return the kinds of fault that were requested."""
    names = _plan(digest).get("nemeses")
    return [str(name) for name in names] if isinstance(names, list | tuple) else []


def rows(digest: Digest) -> list[Row]:
    """Return name and value of each fact."""
    facts = digest.start.facts if digest.start else {}
    return [*_asked(digest), *((str(name), str(value)) for name, value in facts.items() if value)]


def repeat_commands(digest: Digest, history: str) -> list[Row]:
    """Return the commands that check the history and, if it contains the options of the run, repeat
    the run."""
    found = [("check this history again", f"raftlog chaos check {shlex.quote(history)}")]
    again = again_command(digest)
    if again:
        found.insert(0, ("run the same plan again", again))
    return found


def again_command(digest: Digest) -> str:
    """Return ``raftlog chaos run`` with the options of this run; empty without a plan."""
    plan = _plan(digest)
    if "seed" not in plan:
        return ""
    words = ["raftlog", "chaos", "run", "--seed", str(plan["seed"])]
    name = _mapping(plan.get("workload")).get("name")
    if name:
        words += ["--workload", str(name)]
    kinds = kinds_of(digest)
    words += ["--nemesis", ",".join(kinds) if kinds else "none"]
    if isinstance(plan.get("time_s"), int | float):
        words += ["--time", f"{plan['time_s']:g}"]
    brokers = _mapping(plan.get("shape")).get("brokers")
    if brokers:
        words += ["--brokers", str(brokers)]
    if plan.get("rate"):
        words += ["--rate", f"{plan['rate']:g}"]
    if plan.get("pairs"):
        words.append("--pairs")
    return shlex.join(words)


def _plan(digest: Digest) -> Mapping[str, Any]:
    return digest.start.plan if digest.start else {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _asked(digest: Digest) -> Iterator[Row]:
    plan = _plan(digest)
    shape, workload = _mapping(plan.get("shape")), _mapping(plan.get("workload"))
    if "seed" in plan:
        yield "seed", str(plan["seed"])
    if workload.get("name"):
        yield "workload", str(workload["name"])
    clients = [
        pictures.counted(len(workload[key]), key.removesuffix("s"))
        for key in ("producers", "consumers")
        if isinstance(workload.get(key), list | tuple)
    ]
    if clients:
        yield "clients", ", ".join(clients)
    groups = workload.get("groups")
    for one in map(_mapping, groups if isinstance(groups, list | tuple) else ()):
        yield f"group {one.get('name')}", _group(one)
    if plan:
        pairs = ", two at a time" if plan.get("pairs") else ""
        yield "kinds of fault", (", ".join(kinds_of(digest)) or "none") + pairs
    if shape.get("brokers"):
        yield "brokers", str(shape["brokers"])
    topics = shape.get("topics")
    for one in map(_mapping, topics if isinstance(topics, list | tuple) else ()):
        if "name" not in one:
            continue
        copies = f"replication factor {one.get('replication_factor')}"
        plural = "" if one.get("partitions") == 1 else "s"
        parts = f"{one.get('partitions')} partition{plural}"
        description = f"{parts}, {copies}, min ISR {one.get('min_isr')}"
        yield f"topic {one['name']}", description
    if shape.get("flush_policy"):
        yield "flush policy", str(shape["flush_policy"])
    if isinstance(plan.get("time_s"), int | float):
        yield "load", pictures.seconds(plan["time_s"])
    yield "complete run", pictures.seconds(digest.length_s)


def _group(group: Mapping[str, Any]) -> str:
    """Describe a consumer group of the plan."""
    members = [_mapping(member) for member in group.get("members") or ()]
    topics = ", ".join(map(str, group.get("topics") or ()))
    if not members:
        return f"without members, of {topics}"
    commits = "/".join(sorted({str(member.get("commits")) for member in members}))
    styles = ", ".join(str(member.get("style")) for member in members)
    static = ", static" if any(member.get("instance") for member in members) else ""
    return (
        f"{pictures.counted(len(members), 'member')} ({styles}), {commits} commits{static}, "
        f"session timeout {group.get('session_timeout_s'):g} s, of {topics}"
    )


# -- text ------------------------------------------------------------------------------------------
#
# The result of a run as rows of text for terminals. The caller prints them. Pure.


FINDINGS_MAX: Final = 3  # of each kind
TROUBLES_MAX: Final = 5
VALUE_CHARS_MAX: Final = 160  # of one statistic
ANOMALY_COLUMNS: Final = ("anomaly", "found", "description")


def summary_rows(verdict: Verdict) -> list[Row]:
    """Return names and values: statistics, outages, faults that were not injected, troubles, and
    the verdict."""
    shown_below = [name for name in verdict.stats if name == "lines" or name.startswith("outage")]
    stats = stat_rows(verdict, without=shown_below)
    rows = [(name, pictures.cut(value, VALUE_CHARS_MAX)) for name, value in stats]
    if verdict.outages:
        longest = max(outage.length_ns for outage in verdict.outages) / NS
        times = pictures.counted(len(verdict.outages), "time")
        rows.append(("without an ack", f"{times}, the longest {pictures.seconds(longest)}"))
    for kind, count in Counter(str(f.get("kind", "")) for f in verdict.not_injected).items():
        rows.append(("not injected", f"{kind}, {pictures.counted(count, 'time')}"))
    rows += (("trouble", pictures.cut(text, 300)) for text in verdict.troubles[:TROUBLES_MAX])
    left = len(verdict.troubles) - TROUBLES_MAX
    if left > 0:
        rows.append(("", f"and {left:,} more troubles"))
    rows.append(("anomalies", _anomaly_counts(verdict)))
    rows.append(("verdict", f"{verdict.valid.upper()}. {sentence(verdict)}"))
    return rows


def _anomaly_counts(verdict: Verdict) -> str:
    judged = len(verdict.counts) - len(verdict.not_applicable)
    return f"{sum(verdict.counts.values()):,}; {pictures.counted(judged, 'kind')} checked"


def anomaly_rows(verdict: Verdict, *, zeros: bool = False) -> list[tuple[str, str, str]]:
    """Return kind, count and description of each finding; with ``zeros`` of all kinds."""
    return [
        (
            kind,
            "not judged" if kind in verdict.not_applicable else f"{count:,}",
            checker.KINDS.get(kind, ""),
        )
        for kind, count in verdict.counts.items()
        if count or zeros
    ]


def finding_lines(verdict: Verdict) -> list[str]:
    """Return the first ``FINDINGS_MAX`` findings of each kind, one line each."""
    shown: Counter[str] = Counter()
    lines = []
    for anomaly in verdict.anomalies:
        shown[anomaly.kind] += 1
        if shown[anomaly.kind] <= FINDINGS_MAX:
            lines.append(pictures.cut(str(anomaly), 400))
    return lines


def progress_line(progress: Any, rate: float) -> str:
    """Return the progress of a run as one line. ``rate``: current rate, acknowledged records per
    second."""
    faults = ", ".join(progress.faults) or "no fault"
    unknown = f", {progress.unknown:,} unknown" if progress.unknown else ""
    return (
        f"{progress.phase} {progress.elapsed_s:.0f} of {progress.time_s:g} s: "
        f"{rate:,.0f} records/s, {progress.acknowledged:,} acknowledged{unknown}; {faults}"
    )


# -- judgement -------------------------------------------------------------------------------------
#
# Conversion of a verdict to the texts of a report. Pure.


NS: Final = 1_000_000_000
EVIDENCE_CHARS_MAX: Final = 1_500  # of one finding
JudgementRow: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One kind of anomaly: description, number of findings, and evidence for some.

    ``why_not``: why the kind was not checked; ``count`` is then not significant.
    """

    kind: str
    description: str
    count: int
    evidence: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Texts of a verdict for a report. ``anomalies``: all kinds, also those without findings."""

    state: Valid
    sentence: str
    anomalies: tuple[Anomaly, ...]
    windows: tuple[Window, ...] = ()
    stats: tuple[JudgementRow, ...] = ()
    troubles: tuple[str, ...] = ()


def judgement_of(verdict: Verdict, base_ns: int) -> Judgement:
    """Return the texts of ``verdict``. ``base_ns``: time of the first history entry; times in the
    report are relative to it."""
    anomalies = tuple(_anomaly(kind, verdict) for kind in {**checker.KINDS, **verdict.counts})
    return Judgement(
        state=verdict.valid,
        sentence=sentence(verdict),
        anomalies=anomalies,
        windows=tuple(_window(outage, base_ns) for outage in verdict.outages),
        stats=stat_rows(verdict),
        troubles=verdict.troubles,
    )


def sentence(verdict: Verdict) -> str:
    """Return the verdict in one or two sentences."""
    found = {kind: count for kind, count in verdict.counts.items() if count}
    left = len(verdict.not_applicable)
    also = f" {pictures.counted(left, 'kind')} of anomaly could not be checked." if left else ""
    if found:
        listed = ", ".join(f"{kind} ({count:,})" for kind, count in found.items())
        were = "was" if len(found) == 1 else "were"
        return f"{pictures.counted(len(found), 'kind')} of anomaly {were} found: {listed}.{also}"
    if verdict.valid == "unknown":
        first = verdict.troubles[0] if verdict.troubles else "the checker reports no reason"
        more = f" (and {len(verdict.troubles) - 1:,} more)" if verdict.troubles[1:] else ""
        return f"No anomaly was found, but anomalies are possible: {pictures.cut(first, 300)}{more}"
    return f"No anomaly was found.{also}"


def _anomaly(kind: str, verdict: Verdict) -> Anomaly:
    return Anomaly(
        kind,
        checker.KINDS.get(kind, ""),
        verdict.counts.get(kind, 0),
        tuple(_describe(one) for one in verdict.anomalies if one.kind == kind),
        verdict.not_applicable.get(kind, ""),
    )


def _describe(anomaly: checker.Anomaly) -> str:
    evidence = (f"  {name}: {_shown(value)}" for name, value in anomaly.evidence.items())
    lines = [anomaly.message, *evidence]
    return pictures.cut("\n".join(lines), EVIDENCE_CHARS_MAX)


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _window(outage: Outage, base_ns: int) -> Window:
    begin = (outage.start_ns - base_ns) / NS
    length = outage.length_ns / NS
    description = f"no acknowledgement for {pictures.seconds(length)}"
    if outage.unexcused_ns > 0:
        description += (
            f", {pictures.seconds(outage.unexcused_ns / NS)} of it not excused by a fault"
        )
    return Window(begin, begin + length, description)


def stat_rows(verdict: Verdict, without: Collection[str] = ()) -> tuple[JudgementRow, ...]:
    """Return name and value of each statistic that is not empty."""
    rows = ((name, amount(name, value)) for name, value in verdict.stats.items())
    return tuple((words(name), text) for name, text in rows if text and name not in without)


def words(name: str) -> str:
    """Return the name of a statistic as words, without its unit suffix."""
    return name.removesuffix("_ns").removesuffix("_s").removesuffix("_ms").replace("_", " ")


def amount(name: str, value: Any) -> str:
    """Return the value of a statistic in the unit of its name suffix."""
    if isinstance(value, Mapping):
        return ", ".join(f"{words(str(key))} {amount(str(key), v)}" for key, v in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return pictures.cut(str(value), 300)
    for unit, scale in (("_ns", NS), ("_ms", 1_000), ("_s", 1)):
        if name.endswith(unit):
            return pictures.seconds(value / scale)
    if name.endswith("seconds"):
        return pictures.seconds(value)
    if "bytes" in name:
        return pictures.size(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
