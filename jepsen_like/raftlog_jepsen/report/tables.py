"""The tables of a report: faults, outages, clients, notes. Converts rows of text to HTML."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from xml.etree.ElementTree import Element

from raftlog_jepsen.report import markup
from raftlog_jepsen.report.canvas import Window
from raftlog_jepsen.report.digest import Digest, FaultSpan, quantile_s
from raftlog_jepsen.report.markup import node

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


def table(columns: Sequence[str], rows: Iterable[Sequence[str | Element]], caption: str) -> Element:
    """Return a table. A column whose name begins with ``#`` contains numbers."""
    numbers = [name.startswith("#") for name in columns]
    names = [name.removeprefix("#") for name in columns]
    heads = (
        node("th", name, scope="col", class_="n" if number else None)
        for name, number in zip(names, numbers, strict=True)
    )
    body = (
        node(
            "tr",
            *(
                node("td", cell, class_="n" if number else None)
                for cell, number in zip(row, numbers, strict=True)
            ),
        )
        for row in rows
    )
    made = node(
        "table",
        node("caption", caption),
        node("thead", node("tr", *heads)),
        node("tbody", *body),
    )
    return node("div", made, class_="wide")


# -- faults ---------------------------------------------------------------------------------------

FAULT_COLUMNS: Final = ("kind", "#tried", "#injected", "not injected", "#beyond budget", "seen")


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
    found = Counter(markup.cut(reason, 300) for reason in reasons)
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
        f"{text}: {markup.counted(count, 'time')}" for text, count in words.most_common(EFFECTS_MAX)
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
        return markup.size(amount)
    if name.endswith(("_s", "seconds")):
        return markup.seconds(amount)
    return f"{amount:,.10g}"


EACH_COLUMNS: Final = ("#", "kind", "brokers", "time", "arguments", "seen", "writes")


def each_fault_rows(faults: Sequence[FaultSpan]) -> Rows:
    """Return a row for each of the first ``FAULTS_LISTED_MAX`` faults."""
    return [
        (
            str(fault.id),
            fault.kind,
            ", ".join(map(str, fault.targets)),
            f"{markup.clock(fault.begin_s)} to {markup.clock(fault.end_s)}",
            compact(fault.args),
            _seen(fault),
            ("beyond budget; " if fault.beyond else "")
            + ("must continue" if fault.expects == "available" else "may stop"),
        )
        for fault in faults[:FAULTS_LISTED_MAX]
    ]


def _seen(fault: FaultSpan) -> str:
    if not fault.injected:
        return f"NOT INJECTED: {markup.cut(fault.why, 300)}"
    parts = [compact(effect) for effect in (fault.effect, fault.effect_end) if effect]
    if fault.trouble_end:
        parts.append(f"not ended as planned: {markup.cut(fault.trouble_end, 300)}")
    return "; at its end ".join(parts)


def compact(values: Any, chars_max: int = 300) -> str:
    """Format data as text of at most ``chars_max`` characters."""
    if isinstance(values, Mapping):
        text = ", ".join(f"{name} {compact(value)}" for name, value in values.items())
    elif isinstance(values, str):
        text = values
    else:
        text = json.dumps(values, ensure_ascii=False, default=str)
    return markup.cut(text, chars_max)


# -- outages --------------------------------------------------------------------------------------

WINDOW_COLUMNS: Final = ("#length", "from", "to", "faults at that time", "")


def window_rows(windows: Sequence[Window], faults: Sequence[FaultSpan]) -> Rows:
    """Return the times without an acknowledgement, in descending order of their length."""
    longest = sorted(windows, key=lambda window: window.begin_s - window.end_s)
    return [
        (
            markup.seconds(window.end_s - window.begin_s),
            markup.clock(window.begin_s),
            markup.clock(window.end_s),
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

OPERATION_COLUMNS: Final = ("operation", "#ok", "#info", "#fail", "#never completed")
LATENCY_COLUMNS: Final = ("appends that were ok", "#within")
ERROR_COLUMNS: Final = ("operation", "outcome", "#times", "error")
NOTE_COLUMNS: Final = ("", "time", "note")


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
    rows = [(text, markup.seconds(min(quantile_s(total.ok, s), longest))) for text, s in shares]
    return [*rows, ("all", markup.seconds(longest))]


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
        ("TROUBLE" if note.is_trouble else "", markup.clock(at_s), markup.cut(note.text))
        for at_s, note in ordered[:NOTES_MAX]
    ]
