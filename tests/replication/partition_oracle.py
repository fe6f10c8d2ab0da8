"""What must hold in a ``partition_world``, by books of its own: the invariants of the design.

It sees all disks at once, which nobody in the world does. A broken promise is an AssertionError.
"""

from __future__ import annotations

from raftlog.replication.leadership import Leadership
from raftlog.replication.partition_state import BrokerId, ChangeIsr, Command, PartitionState
from tests.replication.partition_node import Entry, Node


class Oracle:
    """``trimmed``: below which records were deleted on purpose."""

    def __init__(self, nodes: dict[BrokerId, Node]) -> None:
        self.nodes = nodes
        self.committed: dict[int, Entry] = {}
        self.committed_by_epoch: dict[int, int] = {}
        self.chains: dict[tuple[int, int], int] = {}
        self.leaders: dict[int, tuple[BrokerId, int]] = {}
        self.trimmed = 0
        self.lost: dict[tuple[BrokerId, str], int] = {}  # copies, and what they held by then

    @property
    def true_end(self) -> int:
        """The highest offset that was ever committed, and one."""
        return max(self.committed, default=-1) + 1

    def is_sound(self, broker: BrokerId, directory_id: str) -> bool:
        node = self.nodes[broker]
        return node.directory_id == directory_id and not node.is_damaged

    def holders(self, state: PartitionState) -> set[BrokerId]:
        """Who may be elected, and can be: the budget of losses is to leave one."""
        eligible = {**state.elr, **state.isr}
        return {broker for broker in eligible if self.is_sound(broker, eligible[broker])}

    def note_leader(self, epoch: int, node: Node) -> None:
        led = (node.id, node.boot)
        assert self.leaders.setdefault(epoch, led) == led, "I1: two leaders in one epoch"
        assert node.id in node.state.replicas, "I10: a witness leads"

    def note_entry(self, offset: int, entry: Entry, before: int | None) -> None:
        if before is not None:
            assert entry.chain == hash((before, entry.epoch, entry.value)), "I5: another log below"
        known = self.chains.setdefault((offset, entry.epoch), entry.chain)
        assert known == entry.chain, "I5: the same offset and epoch, and another log"

    def note_progress(self, node: Node, leadership: Leadership, current: PartitionState) -> None:
        """The leader's high watermark may have moved: what lies below it is committed for good."""
        self.check_maximal(leadership, current)
        before, after = node.high_watermark, leadership.high_watermark
        assert after >= before, "I7: the high watermark went back"
        epoch = leadership.leader_epoch
        if after > before:
            self.check_copies(leadership, current)
            for offset in range(max(before, node.start), after):
                entry = node.log[offset - node.start]
                assert self.committed.setdefault(offset, entry) == entry, "I9: another record"
            self.committed_by_epoch[epoch] = max(after, self.committed_by_epoch.get(epoch, 0))
        if leadership.is_ready:
            older = [end for e, end in self.committed_by_epoch.items() if e < epoch]
            assert after >= max(older, default=0), "P3: ready, and behind an earlier leader"

    def check_maximal(self, leadership: Leadership, current: PartitionState) -> None:
        if leadership.leader_epoch == current.leader_epoch:
            known = set(current.isr.items())
            assert leadership.maximal_isr() >= known, "I6: a member that does not count"

    def note_lost(self, node: Node) -> None:
        """This copy was wiped, found to be damaged, or deleted."""
        copy = (node.id, node.directory_id)
        self.lost[copy] = max(node.durable, self.lost.get(copy, 0))

    def check_copies(self, leadership: Leadership, current: PartitionState) -> None:
        """I7: as many as min_isr were durable when it was acknowledged."""
        isr = leadership.state.isr
        assert len(isr) >= leadership.state.min_isr, "I7: fewer members than min_isr"
        if leadership.leader_epoch == current.leader_epoch:
            assert len(isr) >= current.min_isr, "I7: fewer members than min_isr is by now"
        for copy in isr.items():
            node = self.nodes[copy[0]]
            held = self.lost.get(copy, -1)
            if node.directory_id == copy[1]:
                held = max(held, node.durable)
            assert held >= leadership.high_watermark, "I7: not durable everywhere"

    def check_command(
        self, before: PartitionState, after: PartitionState, command: Command
    ) -> None:
        """Once for every command that is accepted."""
        isr, elr, former = after.isr.keys(), after.elr.keys(), after.former.keys()
        stores = set(after.replicas)
        assert after.version == before.version + 1
        assert after.leader_epoch - before.leader_epoch in {0, 1}
        assert after.leader in isr, "I1: a leader that is not in sync"
        assert len(isr) + len(elr) + len(former) == len(isr | elr | former)
        assert (isr | elr | former) <= stores, "I10: a member that stores nothing"
        assert not stores & set(after.witnesses), "I10: a witness that stores"
        assert not elr or len(isr) < after.min_isr
        if isinstance(command, ChangeIsr) and len(isr) < after.min_isr:
            left = before.elr.keys() | before.isr.keys()
            assert left <= isr | elr | set(command.lost), "KIP-966: eligible no more"

    def check_copies_of(self, state: PartitionState) -> None:
        """I4 and I8: every copy that may be elected holds all that was ever committed."""
        true_end, holders = self.true_end, self.holders(state)
        assert holders, "the budget of losses was exceeded: the world's own mistake"
        for broker in holders:
            node = self.nodes[broker]
            assert node.durable >= true_end, "I4: eligible, and not all is durable"
            assert node.start <= self.trimmed, "I8: records are missing at the start"
            for offset in range(node.start, true_end):
                assert node.log[offset - node.start] == self.committed[offset], "I8: another log"
