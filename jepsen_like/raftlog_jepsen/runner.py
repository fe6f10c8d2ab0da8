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
import threading
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import raftlog
from raftlog.testing.checker.judge import judge_file
from raftlog.testing.checker.verdict import Verdict
from raftlog.testing.history.entries import Note, Phase, Recorder, Start, read
from raftlog_jepsen import schedule
from raftlog_jepsen.cluster import ClusterUnderTest, Needs
from raftlog_jepsen.control import sandbox
from raftlog_jepsen.external import ExternalCluster
from raftlog_jepsen.final import dump_replicas, final_reads
from raftlog_jepsen.members import Members
from raftlog_jepsen.nemesis.driver import Driver
from raftlog_jepsen.nemesis.fault_budget import FaultBudget
from raftlog_jepsen.nemesis.registry import make, needs_of
from raftlog_jepsen.plan import RunPlan, WorkloadName
from raftlog_jepsen.report.digest import digest
from raftlog_jepsen.report.html import write_report
from raftlog_jepsen.run_options import RunOptions, draw_plan
from raftlog_jepsen.summary import KILLS, summarise
from raftlog_jepsen.workload.admin import AdminWorkload
from raftlog_jepsen.workload.append import AppendWorkload
from raftlog_jepsen.workload.base import Workload, WorkloadContext, existing_partitions
from raftlog_jepsen.workload.compact import CompactWorkload
from raftlog_jepsen.workload.groups import GroupsWorkload
from raftlog_jepsen.workload.offsets import OffsetsWorkload
from raftlog_jepsen.workload.replay import ReplayWorkload

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
                needs(self.plan.nemeses, with_root=sandbox.is_inside()),
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
