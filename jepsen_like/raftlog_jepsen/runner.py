"""One run, from an empty directory to a verdict: cluster, clients, faults, healing, checking.

Clients run on an event loop in one thread, the nemesis in another. The caller's thread waits for
them and shows the progress. All events are recorded in one history. The verdict depends on that
history only (``checker``), so that it can be checked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import raftlog
from raftlog.testing.checker.judge import judge_file
from raftlog.testing.checker.verdict import Verdict
from raftlog.testing.history import Note, Phase, Recorder, Start, read
from raftlog_jepsen import plan
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.control import namespaces
from raftlog_jepsen.external import ExternalCluster
from raftlog_jepsen.final import dump_replicas, final_reads
from raftlog_jepsen.members import Members
from raftlog_jepsen.nemesis import driver as schedule
from raftlog_jepsen.nemesis.base import FaultBudget
from raftlog_jepsen.nemesis.driver import GROUPS, Driver, expand, make, needs_of
from raftlog_jepsen.plan import CLIENTS, WORKLOADS, ClientName, RunPlan, WorkloadName
from raftlog_jepsen.report.digest import Digest, FaultSpan, digest
from raftlog_jepsen.report.html import write_report
from raftlog_jepsen.workload.admin import AdminWorkload
from raftlog_jepsen.workload.append import AppendWorkload, CompactWorkload
from raftlog_jepsen.workload.base import Workload, WorkloadContext, existing_partitions
from raftlog_jepsen.workload.groups import GroupsWorkload, OffsetsWorkload
from raftlog_jepsen.workload.replay import ReplayWorkload
from raftlog_jepsen.workload.transactions import TransactionsWorkload, etl

HISTORY: Final = "history.jsonl"
VERDICT: Final = "verdict.json"
SUMMARY: Final = "summary.json"
QUIESCE_S: Final = 60.0
POLL_S: Final = 0.5  # interval of progress updates
CLOSE_SECONDS: Final = 30.0  # time limit for closing at the end of the run
CLIENTS_END_S: Final = 90.0  # for clients to flush and close after the load
PROCESS: Final = "runner"
OF_ROOT: Final = frozenset(("namespaces", "loop_disks", "time_namespaces", "member_places"))
MAKERS: Final[Mapping[WorkloadName, Callable[[], Workload]]] = {
    "append": AppendWorkload,
    "replay": ReplayWorkload,
    "admin": AdminWorkload,
    "offsets": OffsetsWorkload,
    "groups": GroupsWorkload,
    "compact": CompactWorkload,
    "txn": TransactionsWorkload,
    "etl": etl,
}


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run, for display. ``elapsed_s``: seconds since the load started."""

    phase: str
    elapsed_s: float
    time_s: float
    acknowledged: int  # records
    unknown: int  # records
    faults: tuple[str, ...]  # kinds of the active faults


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a run."""

    plan: RunPlan
    verdict: Verdict
    directory: Path
    report: Path


class ChaosError(Exception):
    """The run could not be started; the message contains the reason."""


def run(options: RunOptions) -> Outcome:
    """Execute a run with ``options``.

    Raises ``ChaosError`` if the cluster or its topics cannot be created, ``ValueError`` for invalid
    or contradictory options. Later failures are part of the verdict.
    """
    plan = draw_plan(options)
    directory = options.directory
    directory.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(directory / HISTORY, time.monotonic_ns)
    try:
        _Run(options, plan, recorder).go()
    finally:
        recorder.close()
    options.say("checking the history")
    verdict = judge_file(recorder.path)
    report = write_report(directory, recorder.path, verdict)
    summary = summarise(digest(read(recorder.path)), verdict)
    for name, content in ((VERDICT, verdict.to_dict()), (SUMMARY, summary)):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")
    return Outcome(plan, verdict, directory, report)


def facts() -> dict[str, str]:
    """Return the versions and the machine of the run, which readers need to interpret results."""
    return {
        "raftlog": raftlog.__version__,
        "pysyncobj": version("pysyncobj"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": str(len(os.sched_getaffinity(0))),
    }


def needs(kinds: Collection[str], *, with_root: bool) -> Needs:
    """Return the requirements of these kinds of fault.

    Without root, namespaces and disks in files are not available. Relays then inject network
    partitions, and kinds with other requirements report that they cannot be injected.
    """
    names = needs_of(kinds)
    if not with_root:
        if "namespaces" in names:
            names |= {"relays"}
        names -= OF_ROOT
    return Needs(**dict.fromkeys(names, True))


class _Run:
    """The state of one run."""

    def __init__(self, options: RunOptions, plan: RunPlan, recorder: Recorder) -> None:
        self.options = options
        self.plan = plan
        self.recorder = recorder
        self.clients = _LoopThread()
        self.stopping = threading.Event()
        self.began_s = 0.0

    def go(self) -> None:
        """Run all phases in order. Stops everything that was started, also after an error."""
        with contextlib.ExitStack() as stack:
            cluster = stack.enter_context(self._cluster())
            stack.callback(self.clients.close)
            members = self._members(cluster, stack)
            context, workload = self._workload(cluster, members)
            self._check_places(cluster)
            ledger = FaultBudget(cluster)
            nemeses = make(self.plan.nemeses, cluster, ledger)
            driver = Driver(nemeses, ledger, self.recorder, self._elapsed_s)
            self._load(context, workload, driver)
            self._phase("heal")
            driver.heal()
            cluster.net.heal()
            for text in cluster.ensure_all_up():
                self._note(text)
            driver.heal()  # again: some kinds heal only if no other fault is active
            self._phase("quiesce")
            missing = cluster.wait_quiet(QUIESCE_S)
            for each in missing:
                self._note(f"not converged after {QUIESCE_S:g} s: {each}")
            if missing:
                self._phase("quiesce", type_="fail")
            for text in cluster.unexpected_exits():
                self._note(text, is_trouble=True)
            self._note_kills(cluster)
            if workload.drains:
                self._drain(context, workload)
            self._phase("read")
            if workload.name not in plan.TRANSACTIONAL:
                self.clients.wait(self._read(context))
            self._dump(cluster)
            self._phase("end")

    # -- phases

    @contextlib.contextmanager
    def _cluster(self) -> Iterator[Any]:
        options = self.options
        if options.bootstrap is not None:
            made: Any = ExternalCluster(options.bootstrap, options.control, shape=self.plan.shape)
        else:
            made = ClusterUnderTest(
                self.plan.shape,
                needs(self.plan.nemeses, with_root=namespaces.is_inside()),
                options.directory,
                settings=dict(self.plan.settings),
                source=options.source,
                secure=options.secure,
            )
        try:
            self._start_entry(made)
            self._phase("setup")
            try:
                made.start()
            except Exception as error:
                raise ChaosError(f"the cluster did not start: {error}") from error
            with _environment(made.secured.environment if options.secure else {}):
                yield made
        finally:
            made.close()

    def _start_entry(self, cluster: Any) -> None:
        where = facts() | {"network": cluster.net.backend}
        if self.options.secure:
            where["security"] = "TLS, SCRAM, access rules"
        self.recorder.record(
            Start(
                time=0,
                process=PROCESS,
                type="info",
                plan=dataclasses.asdict(self.plan),
                facts=where,
            )
        )

    def _members(self, cluster: Any, stack: contextlib.ExitStack) -> Members | None:
        """Create the members of the plan's consumer groups. No member runs yet."""
        groups = self.plan.workload.groups
        if not any(group.members for group in groups):
            return None
        places = getattr(cluster, "member_places", None)
        members = Members(
            self.options.directory / "members",
            self.recorder,
            cluster.bootstrap,
            groups,
            client=self.plan.client,
            **({} if places is None else {"prefix": places.prefix}),
        )
        stack.callback(members.close)
        cluster.members = members
        return members

    def _workload(self, cluster: Any, members: Members | None) -> tuple[WorkloadContext, Workload]:
        async def prepare() -> tuple[WorkloadContext, Workload]:
            context = WorkloadContext(
                plan=self.plan,
                bootstrap=cluster.bootstrap,
                brokers={number: str(where) for number, where in cluster.addresses().items()},
                recorder=self.recorder,
                random=Random(f"{self.plan.seed}/clients"),
                stopping=asyncio.Event(),
                members=members,
            )
            workload: Workload = MAKERS[self.plan.workload.name]()
            await workload.prepare(context)
            return context, workload

        try:
            prepared: tuple[WorkloadContext, Workload] = self.clients.wait(prepare())
            return prepared
        except Exception as error:
            raise ChaosError(f"the topics cannot be created: {error}") from error

    def _check_places(self, cluster: Any) -> None:
        """Each replica of a new partition must be on another machine."""
        for part in cluster.status().values():
            if len(self.plan.shape.machines_of(part.replicas)) < len(part.replicas):
                self._note(
                    f"{part.name}: replicas {sorted(part.replicas)} share a machine",
                    is_trouble=True,
                )

    def _load(self, context: WorkloadContext, workload: Workload, driver: Driver) -> None:
        plan = self.plan
        steps = schedule.draw(
            plan.nemeses,
            lambda kind, random: driver.nemeses[kind].draw(kind, random, plan.shape),
            Random(f"{plan.seed}/faults"),
            time_s=plan.time_s,
            pairs=plan.pairs,
        )
        self._phase("load")
        self.began_s = time.monotonic()
        load = self.clients.start(workload.run(context))
        nemesis = threading.Thread(
            target=driver.play, args=(steps, self.stopping), name="nemesis", daemon=True
        )
        nemesis.start()
        try:
            while not load.done() and self._elapsed_s() < plan.time_s:
                self._show(driver)
                self.stopping.wait(POLL_S)
        finally:
            self.stopping.set()
            nemesis.join()
            self.clients.call(context.stopping.set)
        self._show(driver)
        try:
            load.result(CLIENTS_END_S)
        except TimeoutError:
            where = "; ".join(self.clients.whereabouts())
            self._note(f"clients did not end within {CLIENTS_END_S:g} s: {where}", is_trouble=True)
            load.cancel()
        except Exception:  # noqa: BLE001 - the history must record a bug of the clients
            self._note(f"clients failed: {traceback.format_exc(limit=-6)}", is_trouble=True)

    def _note_kills(self, cluster: Any) -> None:
        kills = cluster.kills()
        if any(kills.values()):
            each = ", ".join(f"broker {broker} {count}" for broker, count in kills.items())
            self._note(f"{KILLS}: {sum(kills.values())} ({each})")

    def _drain(self, context: WorkloadContext, workload: Workload) -> None:
        self._phase("drain")
        if not self.clients.wait(workload.drain(context)):
            self._phase("drain", type_="fail")

    async def _read(self, context: WorkloadContext) -> None:
        try:
            await final_reads(context, await existing_partitions(context))
        except TimeoutError as error:
            self._note(f"the final log could not be read: {error}", is_trouble=True)
            self._phase("read", type_="fail")

    def _dump(self, cluster: Any) -> None:
        directories = cluster.data_directories()
        if not directories:  # an external cluster
            self._note("replica files were not checked: they are not accessible on this machine")
            return
        self._phase("dump")
        # All faults are healed: every replica must be complete, in the ISR or not.
        replicas = {name: part.replicas for name, part in cluster.status().items()}
        cluster.stop()
        dump_replicas(self.recorder, directories, replicas)

    # -- helpers

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def _phase(self, name: str, *, type_: Literal["info", "fail"] = "info") -> None:
        """Record a phase. ``fail``: the phase did not reach its goal; the checker decides on the
        consequence."""
        if type_ == "info":
            self.options.say(name)
        self.recorder.record(Phase(time=0, process=PROCESS, type=type_, name=name))

    def _note(self, text: str, *, is_trouble: bool = False) -> None:
        self.options.say(text)
        self.recorder.record(
            Note(time=0, process=PROCESS, type="info", text=text, is_trouble=is_trouble)
        )

    def _show(self, driver: Driver) -> None:
        if self.options.progress is not None:
            kinds = tuple(plan.kind for plan in list(driver.active.values()))
            self.options.progress(
                Progress(
                    "load",
                    self._elapsed_s(),
                    self.plan.time_s,
                    self.recorder.acknowledged,
                    self.recorder.unknown,
                    kinds,
                )
            )


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, which the clients of this and of child processes read."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class _LoopThread:
    """The clients' event loop, in a separate thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="clients", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.start(work).result()

    def whereabouts(self) -> list[str]:
        """Return the innermost source line at which each task waits."""

        async def report() -> list[str]:
            found = []
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                frames = task.get_stack()
                at = f"{frames[-1].f_code.co_filename}:{frames[-1].f_lineno}" if frames else "?"
                found.append(f"{task.get_coro()!r:.120} at {at}")
            return sorted(found)

        reported: list[str] = self.wait(report())
        return reported

    def call(self, act: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(act)

    def close(self) -> None:
        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            if tasks:  # a client that closes may wait for its own task, which is cancelled too
                await asyncio.wait(tasks, timeout=CLOSE_SECONDS)

        self.wait(end())
        self.call(self._loop.stop)
        self._thread.join()
        self._loop.close()


# -- campaign --------------------------------------------------------------------------------------
#
# Campaigns: series of runs with different workloads, faults and clusters, and a table of results.
#
# Each run is a separate process (``raftlog chaos run``) in a separate sandbox, so that runs can
# execute in parallel without affecting each other. All files of a failed run are kept. A failed run
# is never repeated (h3, h5).


STATUS: Final = {0: "valid", 1: "invalid", 3: "unknown"}
USAGE: Final = 2  # invalid options: all other command lines would fail too
OVERHEAD_S: Final = 600.0  # a run that takes longer than its load plus this time counts as hung
KEPT: Final = ("report.html", "verdict.json", SUMMARY)  # kept files of a valid run


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Parameters of one run of a campaign. ``weight``: relative frequency. ``client``: clients of
    the workload, as in ``RunOptions``."""

    name: str
    nemeses: tuple[str, ...]
    workload: str = "append"
    brokers: int = 3
    workers: int = 1
    rate: float | None = None
    pairs: bool = False
    secure: bool = False
    client: ClientName = "raftlog"
    weight: int = 1

    def arguments(self) -> list[str]:
        """Return the arguments of ``raftlog chaos run``."""
        words = ["--workload", self.workload, "--nemesis", ",".join(self.nemeses)]
        words += ["--brokers", str(self.brokers)]
        if self.workers > 1:
            words += ["--workers", str(self.workers)]
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
    Mix(name="workers", nemeses=("kill", "pause", "partition"), workers=2),
    Mix(name="workers and losses", nemeses=("wipe", "power", "storm"), workers=2),
    Mix(name="workers and membership", nemeses=("membership", "kill"), workers=2),
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
    Mix(name="transactions", nemeses=("kill", "pause", "partition"), workload="txn", weight=2),
    Mix(name="transactions and power", nemeses=("power", "wipe"), workload="txn"),
    Mix(name="etl", nemeses=("kill", "pause", "partition"), workload="etl", weight=2),
    Mix(name="etl and power", nemeses=("power", "transfer"), workload="etl"),
    Mix(name="everything", nemeses=("all",), brokers=5, weight=2),
    Mix(name="everything with groups", nemeses=("all",), workload="groups", brokers=5),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    ``verdict``: valid, invalid, unknown, or the reason why the run has no verdict. ``summary``: the
    content of summary.json (``raftlog_jepsen.runner``); empty if the run ended before writing it.
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
    started: list[subprocess.Popen[bytes]] = []
    is_ending = threading.Event()

    def begun(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        if is_ending.is_set():  # since the loop below
            process.terminate()

    def work() -> None:
        while time.monotonic() < deadline and not is_ending.is_set():
            with lock:
                seed = next(numbers)
            row = run_campaign(turns[seed % len(turns)], seed, options, begun)
            if is_ending.is_set():
                return
            with lock:
                rows.append(row)
                (options.directory / "campaign.md").write_text(table(rows))
            options.say(_line(row))

    with ThreadPoolExecutor(options.jobs, thread_name_prefix="campaign") as pool:
        futures: list[Future[None]] = [pool.submit(work) for _ in range(options.jobs)]
        try:
            for future in futures:
                future.result()
        except BaseException:  # Ctrl-C, or options that a run refuses
            is_ending.set()
            for process in started:
                process.terminate()  # it stops its brokers
            raise
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


def kinds_missing_here() -> dict[str, str]:
    """Return the kinds of fault that cannot be injected on this machine, with the reasons."""
    command = [sys.executable, "-m", "raftlog", "chaos", "run", "--list", "--json"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return {kind["name"]: kind["why_not"] for kind in json.loads(listed.stdout) if kind["why_not"]}


def runnable(mixes: Iterable[Mix], missing: Mapping[str, str]) -> tuple[list[Mix], list[str]]:
    """Return the mixes without ``missing`` kinds, and a note for each other one with the reason."""
    found, notes = [], []
    for mix in mixes:
        reasons = {missing[kind]: kind for kind in expand(mix.nemeses) if kind in missing}
        if reasons:
            why = "; ".join(f"{kind}: {reason}" for reason, kind in reasons.items())
            notes.append(f"the mix {mix.name!r} is left out. {why}")
        else:
            found.append(mix)
    return found, notes


def run_campaign(
    mix: Mix,
    seed: int,
    options: CampaignOptions,
    on_start: Callable[[subprocess.Popen[bytes]], object] = lambda _process: None,
) -> Row:
    """Execute one run in a separate process. Raises ``ValueError`` for contradictory options."""
    directory = options.directory / f"{seed:05d}-{mix.name.replace(' ', '-')}"
    command = [sys.executable, "-m", "raftlog", "chaos", "run", *mix.arguments()]
    command += ["--time", f"{options.run_s:g}", "--seed", str(seed), "--report", str(directory)]
    began = time.monotonic()
    said = directory.with_suffix(".txt")
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},  # the brokers inherit it
            process_group=0,  # Ctrl-C signals the campaign only, which then stops its runs
        )
        on_start(process)
        try:
            status: int | None = process.wait(options.run_s + OVERHEAD_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
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


# -- summary ---------------------------------------------------------------------------------------
#
# Key results of a run, for tables of many runs: ``summary.json``.


NS: Final = 1_000_000_000
KILLS: Final = "SIGKILLs of brokers"  # prefix of the runner's note


def summarise(found: Digest, verdict: Verdict) -> dict[str, Any]:
    """Return the key results of a run. Times in seconds.

    ``effects``: number of affected brokers by kind of effect, for faults that can affect several
    brokers at once. A power cut of three brokers counts as three ``power cuts of brokers``.
    """
    injected = [fault for fault in found.faults if fault.injected]
    load = [phase for phase in found.phases if phase.name == "load"]
    outages = [outage.length_ns / NS for outage in verdict.outages]
    return {
        "verdict": verdict.valid,
        "anomalies": {kind: count for kind, count in verdict.counts.items() if count},
        "troubles": list(verdict.troubles),
        "acknowledged": found.total.acked,
        "load_s": round(sum(phase.end_s - phase.begin_s for phase in load), 1),
        "injected": dict(sorted(Counter(fault.kind for fault in injected).items())),
        "not_injected": dict(
            sorted(Counter(fault.kind for fault in found.faults if not fault.injected).items())
        ),
        "effects": dict(sorted(_effects(found, injected).items())),
        "longest_outage_s": round(max(outages, default=0.0), 2),
    }


def _effects(found: Digest, injected: list[FaultSpan]) -> Counter[str]:
    effects: Counter[str] = Counter()
    for fault in injected:
        if fault.kind == "power":
            effects["power cuts of brokers"] += len(fault.targets)
        if fault.kind == "wipe":
            effects["disks wiped"] += len(fault.targets)
    for _, note in found.notes:
        name, _, counts = note.text.partition(": ")
        if name == KILLS:
            effects[KILLS] += int(counts.split()[0])
    return effects


# -- run options -----------------------------------------------------------------------------------
#
# Conversion of the options of a run to its plan. Pure.


# These kinds lose stored data: topics need replicas on other brokers.
LOSSY: Final = frozenset(
    ("corrupt", "truncate", "rollback", "wipe", "swap-disks", "old-backup", "vanish", "disk-error")
)
# Faults that a control script can inject into an external cluster, or that need only a client.
ELSEWHERE: Final = frozenset(
    ("kill", "storm", "pause", "partition", "one-way", "transfer", "topics", "settings",
     "member-kill", "member-pause", "member-churn")
)  # fmt: skip
MEMBER_KINDS: Final = frozenset(GROUPS["members"])
# While these change the voters, the fault budget does not know them.
MEMBERSHIP_KINDS: Final = frozenset(GROUPS["membership"])
BROKERS_MAX: Final = 9
WORKERS_MAX: Final = 3
BROKERS_ALL_MAX: Final = 15
AVAILABLE: Final = 0.75  # share of runs whose topics accept writes while a replica is down
FACTOR_LEAST: Final = 3  # replication factor of such a topic
TIME_MAX_S: Final = 7 * 86_400.0


def _silent(_text: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a run. ``directory``: contains all files of the run.

    ``time_s``: seconds of load, 5 to 604,800. ``brokers``: 1 to 9. ``workers``: brokers of each of
    these machines, 1 to 3: then faults affect whole machines, too. ``rate``: records per second of
    all producers; default: drawn from the seed. ``pairs``: two kinds of fault overlap. ``client``:
    "kafka" for clients with Kafka's protocol. ``source``: a directory with another raftlog package,
    which brokers run. ``bootstrap``, ``control``: an external cluster, and the script that injects
    faults into it. ``secure``: brokers with TLS, users and access rules.
    """

    workload: WorkloadName
    nemeses: tuple[str, ...]
    time_s: float
    seed: int
    directory: Path
    brokers: int = 3
    workers: int = 1
    rate: float | None = None
    pairs: bool = False
    client: ClientName = "raftlog"
    source: Path | None = None
    bootstrap: str | None = None
    control: Path | None = None
    without_root: bool = False
    secure: bool = False
    say: Callable[[str], None] = _silent
    progress: Callable[[Any], None] | None = None


def _check(options: RunOptions) -> None:
    """Raise ``ValueError`` for an option that is out of range."""
    if options.workload not in WORKLOADS:
        raise ValueError(f"unknown workload {options.workload!r}. Use {', '.join(WORKLOADS)}")
    if options.client == "kafka" and options.workload in plan.TRANSACTIONAL:
        raise ValueError(f"--workload {options.workload} needs --client raftlog")
    if options.client not in CLIENTS:
        raise ValueError(f"unknown client {options.client!r}. Use {', '.join(CLIENTS)}")
    if not 5 <= options.time_s <= TIME_MAX_S:
        raise ValueError(f"--time is {options.time_s:g} s. Use 5 s to {TIME_MAX_S:g} s")
    if not 1 <= options.brokers <= BROKERS_MAX:
        raise ValueError(f"--brokers is {options.brokers}. Use 1 to {BROKERS_MAX}")
    if not 1 <= options.workers <= WORKERS_MAX:
        raise ValueError(f"--workers is {options.workers}. Use 1 to {WORKERS_MAX}")
    if options.brokers * options.workers > BROKERS_ALL_MAX:
        raise ValueError(
            f"--brokers {options.brokers} --workers {options.workers} is more than "
            f"{BROKERS_ALL_MAX} brokers"
        )


def draw_plan(options: RunOptions) -> RunPlan:
    """Draw the plan of a run. The same options give the same plan.

    Raises ``ValueError`` if an option is out of range or contradicts another. The text names it.
    """
    _check(options)
    kinds = _kinds(options)
    if options.bootstrap is not None and not ELSEWHERE.issuperset(kinds):
        others = ", ".join(sorted({*kinds} - ELSEWHERE))
        raise ValueError(
            f"not possible on an external cluster: {others}. Use {', '.join(sorted(ELSEWHERE))}"
        )
    random = Random(f"{options.seed}/{options.workload}/{options.brokers}")
    mode = plan.draw_rate_mode(random)
    is_available = random.random() < AVAILABLE
    shape = plan.draw_shape(
        random,
        brokers=options.brokers * options.workers,
        workers=options.workers,
        workload=options.workload,
        mode=mode,
        lossy=not LOSSY.isdisjoint(kinds),
        available=is_available and options.brokers >= FACTOR_LEAST,
    )
    rate = options.rate
    if rate is None:
        rate = plan.draw_rate(random, workload=options.workload)
    clients = plan.draw_workload(random, name=options.workload, mode=mode, rate=rate)
    groups = plan.draw_groups(random, workload=options.workload, topics=shape.topics)
    settings = plan.draw_settings(random, workload=options.workload)
    if options.client == "kafka":
        groups = plan.with_protocols(groups, Random(f"{options.seed}/kafka"))
        settings += plan.KAFKA_SETTINGS
    if shape.coordinators:
        factor = max(topic.replication_factor for topic in shape.topics)
        factor = max(factor, min(FACTOR_LEAST, options.brokers))
        settings += (
            ("offsets.topic.num.partitions", str(shape.coordinators)),
            ("offsets.topic.replication.factor", str(factor)),
            ("transaction.state.log.num.partitions", str(shape.coordinators)),
            ("transaction.state.log.replication.factor", str(factor)),
        )
    return RunPlan(
        seed=options.seed,
        shape=shape,
        workload=replace(clients, groups=groups),
        nemeses=kinds,
        requested=tuple(
            tuple(kind for kind in expand([name]) if kind in kinds) for name in options.nemeses
        ),
        time_s=options.time_s,
        rate=options.rate,
        pairs=options.pairs,
        settings=settings,
        client=options.client,
    )


def _kinds(options: RunOptions) -> tuple[str, ...]:
    """Return the kinds of fault. Excludes those of members from ``all`` without consumer groups,
    and changes of the membership if another kind loses data. Raises ``ValueError`` if such a kind
    was requested by name."""
    kinds = expand(options.nemeses)
    if not LOSSY.isdisjoint(kinds):
        named = sorted(MEMBERSHIP_KINDS & set(expand([n for n in options.nemeses if n != "all"])))
        if named:
            raise ValueError(
                f"{', '.join(named)}: not together with faults that lose data, such as "
                f"{min(LOSSY & {*kinds})}. Run them separately"
            )
        kinds = tuple(kind for kind in kinds if kind not in MEMBERSHIP_KINDS)
    if options.workload == "groups":
        return kinds
    named = sorted(MEMBER_KINDS & {*options.nemeses})
    if named:
        raise ValueError(f"{', '.join(named)} needs consumer groups. Add --workload groups")
    return tuple(kind for kind in kinds if kind not in MEMBER_KINDS)
