"""The report of a run: one HTML file without scripts and external resources.

This module assembles the page. ``digest`` (events) and the verdict contain the texts and numbers;
``timeline`` and ``plots`` draw the pictures; ``tables`` creates the tables.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import Element

from raftlog.testing.checker.verdict import Verdict
from raftlog.testing.history import entries as history
from raftlog.testing.history.entries import AnyEntry, DamagedHistoryError
from raftlog_jepsen.report import canvas, markup, plots, run_facts, tables
from raftlog_jepsen.report.digest import Digest, digest
from raftlog_jepsen.report.judgement import Anomaly, Judgement, judgement_of
from raftlog_jepsen.report.markup import node
from raftlog_jepsen.report.owners import ownership
from raftlog_jepsen.report.timeline import timeline

REPORT: Final = "report.html"
HISTORY: Final = "history.jsonl"

STYLE: Final = """
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 1rem; background: var(--paper);
  color: var(--ink); overflow-wrap: anywhere;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .3rem; line-height: 1.25; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
header { border-left: .5rem solid; border-radius: .3rem; background: var(--soft);
  padding: .9rem 1.1rem; }
header p { margin: .2rem 0 0; }
.valid { border-color: var(--ok); } .valid h1 { color: var(--ok); }
.invalid { border-color: var(--fail); } .invalid h1 { color: var(--fail); }
.unknown { border-color: var(--info); } .unknown h1 { color: var(--info); }
figure { margin: .5rem 0 1rem; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 760px; height: auto; }
.wide { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; overflow-wrap: normal; }
caption { text-align: left; color: var(--faint); padding: .2rem 0; }
th, td { text-align: left; vertical-align: top; padding: .28rem .6rem;
  border-bottom: 1px solid var(--line); }
th { color: var(--faint); font-weight: 600; }
td:first-child, th:first-child { white-space: nowrap; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.found td { background: var(--soft); font-weight: 600; }
tr.found td:first-child { color: var(--fail); }
tr.zero td { color: var(--faint); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .5rem 0; }
dt { color: var(--faint); } dd { margin: 0; }
code, pre { font: .85rem ui-monospace, Menlo, Consolas, monospace; }
pre { background: var(--soft); padding: .5rem .7rem; overflow-x: auto; white-space: pre-wrap;
  margin: .3rem 0; }
details { margin: .4rem 0; } summary { cursor: pointer; }
.hint { color: var(--faint); font-size: .88rem; margin: .2rem 0; }
@media (max-width: 600px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; }
  body { padding: .6rem; } }
@media print { details > * { display: block; } }
"""


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
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("title", f"raftlog chaos: {judged.state}"),
        node("style", canvas.style() + STYLE),
    )
    body = node(
        "body",
        _headline(found, judged),
        _facts(found, source),
        *_verdict(judged),
        *_pictures(found, judged),
        *_faults(found),
        *_windows(found, judged),
        *_clients(found, judged),
        *_notes(found),
    )
    root = node("html", head, body, lang="en")
    return "<!DOCTYPE html>\n" + markup.serialise(root) + "\n"


MARKS: Final = {"valid": "✓", "invalid": "✗", "unknown": "?"}


def _headline(found: Digest, judged: Judgement) -> Element:
    mark = node("span", MARKS[judged.state], aria_hidden="true")
    return node(
        "header",
        node("h1", mark, f" {judged.state}"),
        node("p", judged.sentence),
        node("p", f"{markup.counted(found.total.acked, 'record')} acknowledged in "
             f"{markup.seconds(found.length_s)}; "
             f"{markup.counted(sum(f.injected for f in found.faults), 'fault')} injected, "
             f"{markup.counted(sum(not f.injected for f in found.faults), 'fault')} not injected."),
        class_=judged.state,
    )  # fmt: skip


def _facts(found: Digest, source: str) -> Element:
    pairs = [
        part
        for name, value in run_facts.rows(found)
        for part in (node("dt", name), node("dd", markup.cut(value)))
    ]
    commands = [
        part
        for name, command in run_facts.repeat_commands(found, source)
        for part in (node("p", f"To {name}:", class_="hint"), node("pre", markup.cut(command)))
    ]
    title = node("h2", "Parameters of the run", id="run")
    return node("section", title, node("dl", *pairs), *commands)


# -- the verdict ----------------------------------------------------------------------------------


def _verdict(judged: Judgement) -> Iterator[Element]:
    yield node("h2", "Verdict", id="verdict")
    rows = [
        node(
            "tr",
            node("td", anomaly.kind),
            node("td", "not judged" if anomaly.why_not else f"{anomaly.count:,}", class_="n"),
            node(
                "td",
                anomaly.description + (f" (not judged: {anomaly.why_not})" * bool(anomaly.why_not)),
            ),
            class_="found" if anomaly.count else "zero",
        )
        for anomaly in judged.anomalies
    ]
    heads = (("anomaly", None), ("found", "n"), ("description", None))
    made = node(
        "table",
        node("caption", "All kinds of anomaly that the checker detects."),
        node("thead", node("tr", *(node("th", h, scope="col", class_=c) for h, c in heads))),
        node("tbody", *rows),
    )
    yield node("div", made, class_="wide")
    for trouble in judged.troubles:
        yield node("p", f"Trouble: {markup.cut(trouble)}")
    for anomaly in judged.anomalies:
        if anomaly.count:
            yield _evidence(anomaly)


def _evidence(anomaly: Anomaly) -> Element:
    shown = len(anomaly.evidence)
    title = f"{anomaly.kind}: evidence of {shown:,} of {anomaly.count:,}"
    items = (node("pre", markup.cut(text)) for text in anomaly.evidence)
    return node("details", node("summary", title), *items, open="open")


# -- pictures and tables --------------------------------------------------------------------------


def _pictures(found: Digest, judged: Judgement) -> Iterator[Element]:
    yield node("h2", "Timeline", id="timeline-section")
    yield _hint(
        "Numbers in bars are broker ids. An exclamation mark: the fault exceeds the fault "
        "budget. A crossed-out fault was not injected. Point at an element for details."
    )
    yield node("figure", timeline(found, judged.windows))
    owners = ownership(found)
    if owners is not None:
        yield node("h2", "Partition ownership", id="owners-section")
        yield _hint(
            "A bar shows the time in which a group member assumed ownership of a partition. It is "
            "hatched while the member was stopped. A half-height bar means that another member "
            "assumed ownership at the same time."
        )
        yield node("figure", owners)
    yield node("h2", "Throughput and latency", id="plots")
    yield node("figure", plots.throughput(found, judged.windows))
    yield node("figure", plots.latency(found, judged.windows))


def _hint(text: str) -> Element:
    return node("p", text, class_="hint")


def _faults(found: Digest) -> Iterator[Element]:
    yield node("h2", "Faults", id="faults")
    rows = tables.fault_rows(found.faults, run_facts.kinds_of(found))
    if not rows:
        yield _hint("No faults were requested.")
        return
    yield tables.table(
        tables.FAULT_COLUMNS, rows, "By kind; effects are summed over the injected faults."
    )
    each = tables.each_fault_rows(found.faults)
    if each:
        title = f"Each fault ({_of(len(each), len(found.faults))})"
        listed = tables.table(tables.EACH_COLUMNS, each, "In the order of their start.")
        yield node("details", node("summary", title), listed)


def _of(shown: int, whole: int) -> str:
    return f"{whole:,}" if shown == whole else f"the first {shown:,} of {whole:,}"


def _windows(found: Digest, judged: Judgement) -> Iterator[Element]:
    yield node("h2", "Times without an acknowledgement", id="unavailability")
    rows = tables.window_rows(judged.windows, found.faults)
    if rows:
        yield tables.table(tables.WINDOW_COLUMNS, rows, "In descending order of their length.")
    else:
        yield _hint("No time exceeds the minimum length.")


def _clients(found: Digest, judged: Judgement) -> Iterator[Element]:
    yield node("h2", "Clients", id="clients")
    yield tables.table(
        tables.OPERATION_COLUMNS,
        tables.operation_rows(found),
        "Operations. An append contains one or more records. info: its outcome is unknown.",
    )
    total = found.total
    stats = [
        ("records acknowledged", f"{total.acked:,}"),
        ("records read by consumers", f"{total.read:,}"),
        *((name, value) for name, value in judged.stats if name != "lines"),
    ]
    yield tables.table(("", ""), stats, "Totals.")
    latencies = tables.latency_rows(found)
    if latencies:
        yield tables.table(tables.LATENCY_COLUMNS, latencies, "Latency.")
    errors = tables.error_rows(found)
    if errors:
        listed = tables.table(tables.ERROR_COLUMNS, errors, "In descending order of frequency.")
        yield node("details", node("summary", "Errors of clients"), listed)


def _notes(found: Digest) -> Iterator[Element]:
    yield node("h2", "Notes of the harness", id="notes")
    rows: Sequence[Sequence[str]] = tables.note_rows(found)
    if not rows:
        yield _hint("None.")
        return
    left_out = found.notes_left_out + len(found.notes) - len(rows)
    more = f" {left_out:,} more are in the history." if left_out else ""
    yield tables.table(tables.NOTE_COLUMNS, rows, f"Troubles first.{more}")
