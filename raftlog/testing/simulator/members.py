"""The members of a simulated consumer group: they join, read, commit, leave and crash.

Each is the real asynchronous consumer on a separate machine. A separate random stream selects kills
and pauses. Deliveries, ownership and commits are recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import chain
from typing import Final

from raftlog.client.aio.admin import AsyncAdmin
from raftlog.client.aio.consumer import AsyncConsumer
from raftlog.errors import RaftlogError, UnknownGroupError
from raftlog.testing.simulator.history import Commit, Outcome, Owning
from raftlog.testing.simulator.kafka_member import KafkaMember
from raftlog.testing.simulator.loop import NodeLoop
from raftlog.testing.simulator.plans import GroupPlan
from raftlog.testing.simulator.process import ClientMachine
from raftlog.testing.simulator.workload import (
    PATIENCE_S,
    TOPIC,
    Workload,
    ask_each_broker,
    by_partition,
)
from raftlog.types import Offset, OffsetAndMetadata, TopicPartition

GROUP: Final = "readers"
JOINING_S_MAX: Final = 10.0
PREFIX: Final = "member-"  # of names of machines and processes
CLOSE_TIMEOUT_MS: Final = 2_000
MEMBER_QUESTIONS_MAX: Final = 8  # requests about the group, to one broker
CATCHING_UP_RECORDS: Final = 500  # maximum of a poll after permanent healing
LEFT_PAUSED_SHARE: Final = 0.3


class Members:
    """All members of one simulation; none if its plan has no group."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._random = workload.world.random("members")
        self._loop = NodeLoop(workload.world.time, "members")
        self._owned: dict[str, dict[TopicPartition, Owning]] = {}  # by machine
        self._machines: list[ClientMachine] = []
        self._left_paused: NodeLoop | None = None
        self._is_disturbed = True

    def start(self) -> None:
        """Start all members, and wait until all partitions can have an owner."""
        plan = self._workload.plan.group
        if plan is None:
            return
        for number in range(1, plan.members + 1):
            be_member = partial(self._be_member, plan)
            self._machines.append(self._workload.add(f"{PREFIX}{number}", be_member))
        self._workload.world.run_until(self._own_all, limit_s=JOINING_S_MAX)
        asker = partial(
            ask_each_broker,
            self._workload,
            connect=lambda machine, broker: self._workload.admin(machine, str(broker)),
            ask=ask_committed,
            questions_max=MEMBER_QUESTIONS_MAX,
            pause_s=(0.1, 0.6),
        )
        self._workload.add("group-asker", asker)
        self._disturb_later(plan)

    def _own_all(self) -> bool:
        owned = set(chain.from_iterable(self._owned.values()))
        return len(owned) == self._workload.plan.partitions

    @property
    def names(self) -> list[str]:
        """Names of their machines."""
        return [machine.name for machine in self._machines]

    def leave_one_paused(self) -> None:
        """End the faults of members. One may be paused until ``resume``: then others receive its
        partitions.
        """
        self._is_disturbed = False
        random = self._workload.world.random("core/members")
        running = [machine for machine in self._machines if machine.is_running]
        if len(running) > 1 and random.random() < LEFT_PAUSED_SHARE:
            self._left_paused = random.choice(running).loop
            self._left_paused.pause()

    def resume(self) -> None:
        if self._left_paused is not None:
            self._left_paused.resume()
            self._left_paused = None

    # -- faults

    def _disturb_later(self, plan: GroupPlan) -> None:
        seconds = self._random.expovariate(1 / plan.disturbs_s)
        self._loop.call_later(seconds, self._disturb, plan)

    def _disturb(self, plan: GroupPlan) -> None:
        """Kill, pause or isolate a member for some time."""
        if self._workload.is_over or not self._is_disturbed:
            return
        machine = self._random.choice(self._machines)
        how = self._random.choice((self._kill, self._pause, self._cut_off))
        seconds = 2 * plan.session_timeout_ms / 1_000 * self._random.random()
        if machine.is_running and not machine.loop.is_paused:
            self._workload.world.trace(f"{machine.name}: {how.__name__} for {seconds:.3f} s")
            self._loop.call_later(seconds, how(machine))
        self._disturb_later(plan)

    def _kill(self, machine: ClientMachine) -> Callable[[], None]:
        """Kill the machine. Returns a function that starts it again."""
        machine.kill()
        return partial(self._start_again, machine)

    def _pause(self, machine: ClientMachine) -> Callable[[], None]:
        machine.loop.pause()
        return machine.loop.resume

    def _cut_off(self, machine: ClientMachine) -> Callable[[], None]:
        """Isolate the machine from all brokers, or from one. Returns a function that ends this."""
        network, brokers = self._workload.world.network, self._workload.world.brokers
        names = [broker.name for broker in brokers]
        if self._random.random() < 0.5:
            names = [self._random.choice(names)]
        for name in names:
            network.cut(machine.name, name)

        def mend() -> None:
            for name in names:
                network.mend(machine.name, name)

        return mend

    def _start_again(self, machine: ClientMachine) -> None:
        if not machine.is_running:
            machine.start()

    # -- operations

    async def _be_member(self, plan: GroupPlan, machine: ClientMachine) -> None:
        workload = self._workload
        owned = self._owned.setdefault(machine.name, {})
        forget(workload, owned)  # of the previous process, which was killed
        session = 0
        while not workload.is_over:
            session += 1
            consumer = _consumer(workload, plan, machine)
            process = f"{machine.name}/{machine.boots}.{session}"
            member = _Member(workload, plan, machine, consumer, process, owned)
            try:
                await member.run()
            except RaftlogError as error:
                workload.world.trace(f"{process}: {error}")
                await asyncio.sleep(PATIENCE_S)
            await consumer.close(timeout_ms=CLOSE_TIMEOUT_MS)
            forget(workload, owned)
            await asyncio.sleep(plan.away_s * machine.random.random())


def _consumer(
    workload: Workload, plan: GroupPlan, machine: ClientMachine
) -> AsyncConsumer | KafkaMember:
    instance_id = machine.name if plan.is_static else None
    if plan.is_kafka:
        return workload.kafka_member(
            machine,
            group=GROUP,
            instance_id=instance_id,
            session_timeout_ms=plan.session_timeout_ms,
            fetch_max_wait_ms=plan.wait_ms,
        )
    return workload.consumer(
        machine,
        group=GROUP,
        group_instance_id=instance_id,
        auto_commit=False,
        session_timeout_ms=plan.session_timeout_ms,
        heartbeat_interval_ms=plan.session_timeout_ms // 4,
        assignor=plan.assignor,
        auto_offset_reset="earliest",
        read_from=plan.read_from,
        fetch_max_wait_ms=plan.wait_ms,
    )


def forget(workload: Workload, owned: dict[TopicPartition, Owning]) -> None:
    """End the ownership of these partitions with an unknown outcome."""
    for owning in owned.values():
        workload.history.end(owning, Outcome.INFO)
    owned.clear()


class _Member:
    """One consumer, from its creation to its end."""

    def __init__(
        self,
        workload: Workload,
        plan: GroupPlan,
        machine: ClientMachine,
        consumer: AsyncConsumer | KafkaMember,
        process: str,
        owned: dict[TopicPartition, Owning],
    ) -> None:
        self._workload = workload
        self._history = workload.history
        self._plan = plan
        self._random = machine.random
        self._consumer = consumer
        self._process = process
        self._owned = owned
        self._assignments = 0
        self._done: dict[TopicPartition, Offset] = {}  # next offset of each partition

    async def run(self) -> None:
        await self._consumer.subscribe(
            [TOPIC], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )
        plan, random = self._plan, self._random
        for _ in range(random.randint(1, plan.polls_max)):
            if self._workload.is_over:
                return
            await self._poll()
            await asyncio.sleep(plan.pause_s * random.random())
            if self._done and random.random() < plan.commits:
                await self._commit(self._done)

    async def _poll(self) -> None:
        # A member that reads less than is produced would leave a partition behind the backlog of
        # another for longer than a healed cluster has to make progress.
        is_healed = self._workload.core is not None
        records_max = CATCHING_UP_RECORDS if is_healed else self._plan.records_max
        poll = self._history.poll(self._process)
        try:
            records = await self._consumer.poll(self._plan.wait_ms, records_max)
        except RaftlogError as error:
            self._history.end(poll, Outcome.FAIL, repr(error))
            raise
        # A partition that is assigned again is read from the committed offset of the group.
        poll.process = f"{self._process}@{self._assignments}"
        poll.records = by_partition(records)
        poll.topic_ids = self._topic_ids(poll.records)
        self._history.end(poll, Outcome.OK)
        self._done |= {tp: seen[-1].offset + 1 for tp, seen in poll.records.items()}

    async def _commit(self, offsets: dict[TopicPartition, Offset]) -> None:
        commit = self._history.commit(self._process, offsets, self._topic_ids(offsets))
        named = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        if self._random.random() >= self._plan.waits:
            future = self._consumer.commit_async(named)
            future.add_done_callback(lambda done: self._committed(commit, done.exception()))
            return
        try:
            await self._consumer.commit(named, timeout_ms=self._plan.session_timeout_ms)
        except RaftlogError as error:
            self._committed(commit, error)
        else:
            self._committed(commit, None)

    def _committed(self, commit: Commit, error: BaseException | None) -> None:
        outcome = Outcome.OK if error is None else Outcome.INFO
        self._history.end(commit, outcome, "" if error is None else repr(error))

    def _topic_ids(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        return {tp: self._owned[tp].topic_id for tp in partitions}

    # -- callbacks of the consumer

    def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        self._assignments += 1
        if isinstance(self._consumer, KafkaMember):
            held = dict.fromkeys(partitions, self._consumer.topic_id)
        else:
            assert self._consumer._member is not None
            held = self._consumer._member.membership.holdings()[0]
        for tp in partitions:
            self._owned[tp] = self._history.owning(self._process, tp, held[tp])
            self._done.pop(tp, None)

    async def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        read = {tp: self._done[tp] for tp in partitions if tp in self._done}
        if read:
            await self._commit(read)
        self._given_up(partitions, Outcome.OK)

    def _lost(self, partitions: Collection[TopicPartition]) -> None:
        self._given_up(partitions, Outcome.INFO)

    def _given_up(self, partitions: Collection[TopicPartition], outcome: Outcome) -> None:
        for tp in partitions:
            self._done.pop(tp, None)
            self._history.end(self._owned.pop(tp), outcome)


async def ask_once(workload: Workload, machine: ClientMachine) -> None:
    """Request the committed offsets of the group until this succeeds."""
    while True:
        admin = workload.admin(machine)
        try:
            await ask_committed(workload, machine, admin)
        except RaftlogError as error:
            workload.world.trace(f"{machine.name}: {error}")
            await asyncio.sleep(PATIENCE_S)
        else:
            return
        finally:
            await admin.close()


async def ask_committed(workload: Workload, machine: ClientMachine, admin: AsyncAdmin) -> None:
    """Record the committed offsets of the group. Raises the errors of the client."""
    asking = workload.history.committed(machine.name)
    try:
        found = await admin.group_offsets(GROUP)
    except UnknownGroupError:
        found = {}
    except RaftlogError as error:
        workload.history.end(asking, Outcome.FAIL, repr(error))
        raise
    asking.offsets = {tp: given.offset for tp, given in found.items()}
    workload.history.end(asking, Outcome.OK)
