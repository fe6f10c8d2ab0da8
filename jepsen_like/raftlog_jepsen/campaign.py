"""Campaigns: series of runs with different workloads, faults and clusters, and a table of results.

Each run is a separate process (``raftlog chaos run``) in a separate sandbox, so that runs can
execute in parallel without affecting each other. All files of a failed run are kept. A failed run
is never repeated (h3, h5).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from raftlog_jepsen.plan import ClientName

STATUS: Final = {0: "valid", 1: "invalid", 3: "unknown"}
USAGE: Final = 2  # invalid options: all other command lines would fail too
OVERHEAD_S: Final = 600.0  # a run that takes longer than its load plus this time counts as hung
SUMMARY: Final = "summary.json"
KEPT: Final = ("report.html", "verdict.json", SUMMARY)  # kept files of a valid run


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Parameters of one run of a campaign. ``weight``: relative frequency. ``client``: clients of
    the workload, as in ``RunOptions``."""

    name: str
    nemeses: tuple[str, ...]
    workload: str = "append"
    brokers: int = 3
    rate: float | None = None
    pairs: bool = False
    secure: bool = False
    client: ClientName = "raftlog"
    weight: int = 1

    def arguments(self) -> list[str]:
        """Return the arguments of ``raftlog chaos run``."""
        words = ["--workload", self.workload, "--nemesis", ",".join(self.nemeses)]
        words += ["--brokers", str(self.brokers)]
        if self.rate is not None:
            words += ["--rate", f"{self.rate:g}"]
        if self.client != "raftlog":
            words += ["--client", self.client]
        flags = {"--pairs": self.pairs, "--secure": self.secure}
        return [*words, *(flag for flag, is_set in flags.items() if is_set)]


MIXES: Final[tuple[Mix, ...]] = (
    Mix(name="kill", nemeses=("kill", "storm"), weight=2),
    Mix(name="power", nemeses=("power",), weight=2),
    Mix(name="losses of 5", nemeses=("wipe",), brokers=5, weight=2),
    Mix(name="losses of 3", nemeses=("wipe", "kill")),
    Mix(name="pause", nemeses=("pause", "kill", "pause-inside"), workload="replay"),
    Mix(name="netsplits", nemeses=("partition", "one-way", "slow-link"), weight=2),
    Mix(name="netsplits of 5", nemeses=("partition", "kill"), brokers=5, pairs=True),
    Mix(name="links", nemeses=("link-delay", "link-stall", "link-reset", "link-late")),
    Mix(name="garbled links", nemeses=("link-garble", "link-late")),
    Mix(name="kill and netsplit", nemeses=("kill", "partition", "pause"), pairs=True, weight=2),
    Mix(name="power and pause", nemeses=("power", "pause"), pairs=True),
    Mix(name="disks", nemeses=("disk-full", "read-only", "disk-error", "slow-disk")),
    Mix(name="damage", nemeses=("corrupt", "truncate", "rollback", "kill")),
    Mix(name="vanishing files", nemeses=("vanish", "kill")),
    Mix(name="old disks", nemeses=("swap-disks", "old-backup", "kill")),
    Mix(name="clocks", nemeses=("clock-jump", "clock-strobe", "clock-bases", "kill")),
    Mix(name="resources", nemeses=("fds", "memory", "cpu")),
    Mix(name="failpoints", nemeses=("crash-at", "slow-disk", "pause-inside"), weight=2),
    Mix(name="hung disks", nemeses=("hung-disk", "slow-disk", "kill"), weight=2),
    Mix(name="admin", nemeses=("kill", "transfer", "settings"), workload="admin", weight=2),
    Mix(name="admin and netsplit", nemeses=("partition", "kill"), workload="admin"),
    Mix(name="replay", nemeses=("kill", "partition"), workload="replay"),
    Mix(name="offsets", nemeses=("kill", "storm", "partition", "pause"), workload="offsets"),
    Mix(name="offsets and power", nemeses=("power", "kill", "transfer"), workload="offsets"),
    Mix(name="offsets and disks", nemeses=("wipe", "crash-at", "slow-disk"), workload="offsets"),
    Mix(name="membership", nemeses=("membership",), brokers=5),
    Mix(
        name="membership and faults",
        nemeses=("membership", "kill", "pause", "partition"),
        brokers=5,
        pairs=True,
        weight=2,
    ),
    Mix(name="members", nemeses=("members",), workload="groups"),
    Mix(name="members and brokers", nemeses=("members", "kill", "pause"), workload="groups"),
    Mix(
        name="members and netsplits",
        nemeses=("member-pause", "member-partition", "partition", "transfer"),
        workload="groups",
        pairs=True,
    ),
    Mix(name="groups and power", nemeses=("power", "member-kill"), workload="groups", pairs=True),
    Mix(name="compaction", nemeses=("kill", "storm", "crash-at"), workload="compact"),
    Mix(name="compaction and power", nemeses=("power", "crash-at"), workload="compact"),
    Mix(name="compaction and losses", nemeses=("wipe", "corrupt", "kill"), workload="compact"),
    Mix(name="everything", nemeses=("all",), brokers=5, weight=2),
    Mix(name="everything with groups", nemeses=("all",), workload="groups", brokers=5),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    ``verdict``: valid, invalid, unknown, or the reason why the run has no verdict. ``summary``: the
    content of summary.json (``raftlog_jepsen.summary``); empty if the run ended before writing it.
    """

    mix: Mix
    seed: int
    verdict: str
    seconds: float
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.verdict == "valid"

    def to_dict(self) -> dict[str, Any]:
        """Return the run for JSON. The verdict of the row replaces that of the summary."""
        run_campaign = {"mix": self.mix.name, "arguments": self.mix.arguments(), "seed": self.seed}
        return {
            **self.summary,
            **run_campaign,
            "verdict": self.verdict,
            "seconds": round(self.seconds, 1),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignOptions:
    """Options of a campaign. ``time_s``: seconds in which new runs start. ``run_s``: load of one
    run, seconds. ``jobs``: number of parallel runs."""

    directory: Path
    time_s: float
    run_s: float = 180.0
    jobs: int = 1
    seed: int = 1
    mixes: Sequence[Mix] = MIXES
    say: Callable[[str], None] = lambda _text: None


def campaign(options: CampaignOptions) -> list[Row]:
    """Execute runs until ``time_s`` has passed. Each run adds a row to the table in
    ``campaign.md``."""
    options.directory.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.time_s
    turns = [mix for mix in options.mixes for _ in range(mix.weight)]
    rows: list[Row] = []
    lock = threading.Lock()
    numbers = iter(range(options.seed, sys.maxsize))

    def work() -> None:
        while time.monotonic() < deadline:
            with lock:
                seed = next(numbers)
            row = run_campaign(turns[seed % len(turns)], seed, options)
            with lock:
                rows.append(row)
                (options.directory / "campaign.md").write_text(table(rows))
            options.say(_line(row))

    with ThreadPoolExecutor(options.jobs, thread_name_prefix="campaign") as pool:
        futures: list[Future[None]] = [pool.submit(work) for _ in range(options.jobs)]
    for future in futures:
        future.result()
    return rows


def mixes_named(
    texts: Sequence[str], *, secure: bool = False, client: ClientName = "raftlog"
) -> list[Mix]:
    """Return the mixes whose names contain one of ``texts``; all if it is empty. Each has the given
    ``secure`` and ``client``.

    Raises ``ValueError`` if a text is in no name.
    """
    for text in texts:
        if not any(text in mix.name for mix in MIXES):
            names = ", ".join(mix.name for mix in MIXES)
            raise ValueError(f"no mix has {text!r} in its name. The mixes: {names}")
    found = [mix for mix in MIXES if not texts or any(text in mix.name for text in texts)]
    return [replace(mix, secure=secure, client=client) for mix in found]


def run_campaign(mix: Mix, seed: int, options: CampaignOptions) -> Row:
    """Execute one run in a separate process. Raises ``ValueError`` for contradictory options."""
    directory = options.directory / f"{seed:05d}-{mix.name.replace(' ', '-')}"
    command = [sys.executable, "-m", "raftlog", "chaos", "run", *mix.arguments()]
    command += ["--time", f"{options.run_s:g}", "--seed", str(seed), "--report", str(directory)]
    began = time.monotonic()
    said = directory.with_suffix(".txt")
    with said.open("wb") as output:
        try:
            status: int | None = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=options.run_s + OVERHEAD_S,
                check=False,
                env={**os.environ, "PYTHONFAULTHANDLER": "1"},  # the brokers inherit it
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
    seconds = time.monotonic() - began
    verdict = "the run hung" if status is None else STATUS.get(status, f"exit status {status}")
    found = directory / SUMMARY
    row = Row(mix, seed, verdict, seconds, json.loads(found.read_bytes()) if found.exists() else {})
    if status == USAGE:
        raise ValueError(f"{' '.join(command)}: {said.read_text(errors='replace')}")
    if row.is_good:
        _keep_little(directory)
        said.unlink()
    return row


def _keep_little(directory: Path) -> None:
    """Delete all files of a valid run except the results: logs of many runs would fill the disk."""
    for path in directory.iterdir():
        if path.name in KEPT:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def table(rows: Iterable[Row]) -> str:
    """Return the runs as a table in Markdown, in the order of their seeds, with totals."""
    rows = sorted(rows, key=lambda row: row.seed)
    lines = [
        "| seed | mix | command | faults injected | acknowledged | longest outage | verdict |",
        "|---:|---|---|---|---:|---:|---|",
    ]
    lines += [
        f"| {row.seed} | {row.mix.name} | `{' '.join(row.mix.arguments())}` | {_faults(row)} | "
        f"{row.summary.get('acknowledged', 0):,} | {_outage(row)} | {_verdict(row)} |"
        for row in rows
    ]
    return "\n".join([*lines, "", *_sums(rows), ""])


def _sums(rows: Sequence[Row]) -> list[str]:
    faults: dict[str, int] = {}
    effects: dict[str, int] = {}
    for row in rows:
        for kind, count in row.summary.get("injected", {}).items():
            faults[kind] = faults.get(kind, 0) + count
        for what, count in row.summary.get("effects", {}).items():
            effects[what] = effects.get(what, 0) + count
    load_s = sum(row.summary.get("load_s", 0.0) for row in rows)
    whole = (
        f"{len(rows)} runs, {sum(row.is_good for row in rows)} valid; {load_s / 3600:.2f} hours of "
        f"load ({sum(row.seconds for row in rows) / 3600:.2f} hours of runs); "
        f"{sum(row.summary.get('acknowledged', 0) for row in rows):,} records acknowledged."
    )
    return [
        whole,
        "",
        "Faults injected: " + (_counts(faults) or "none") + ".",
        "",
        "Effects observed: " + (_counts(effects) or "none") + ".",
    ]


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def _faults(row: Row) -> str:
    return _counts(row.summary.get("injected", {}))


def _outage(row: Row) -> str:
    longest = row.summary.get("longest_outage_s")
    return "" if longest is None else f"{longest:.1f} s"


def _verdict(row: Row) -> str:
    anomalies = row.summary.get("anomalies")
    return f"{row.verdict}: {_counts(anomalies)}" if anomalies else row.verdict


def _line(row: Row) -> str:
    return f"{row.seed} {row.mix.name}: {_verdict(row)} after {row.seconds:.0f} s; {_faults(row)}"
