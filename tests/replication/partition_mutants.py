"""Brokers without one of their guards, for runs in which that must be noticed."""

from __future__ import annotations

from dataclasses import replace

from tests.replication.partition_world import Answer, Fetch, Message, Node, World


class CountsOldFetches(World):
    """A leader does not look at the epoch of a fetch (S04)."""

    def is_current(self, node: Node, message: Message) -> bool:
        return isinstance(message, Fetch) or super().is_current(node, message)


class ObeysOldLeaders(World):
    """A follower does not look at who answers, and in which epoch (S05)."""

    def is_current(self, node: Node, message: Message) -> bool:
        return isinstance(message, Answer) or super().is_current(node, message)

    def answers(self, node: Node, answer: Answer) -> bool:
        return node.leadership is None and answer.position == node.position


class ObeysOldAnswers(World):
    """An answer that comes late cuts the log as it is by now."""

    def answers(self, node: Node, answer: Answer) -> bool:
        return answer.differs is not None or super().answers(node, answer)


class CutsToWatermark(World):
    """A follower begins by dropping what it does not know to be committed (S01, before KIP-101)."""

    def take_role(self, node: Node) -> None:
        super().take_role(node)
        if node.leadership is None and self.is_caught_up(node):
            node.cut(max(node.high_watermark, node.start))


class LeadsOnAfterRestart(World):
    """A leader that starts again goes on in the epoch that it had (S17)."""

    def may_lead(self, node: Node) -> bool:
        return super().may_lead(replace(node, boot=node.state.leader_boot))

    def boot_of(self, broker: int) -> int:
        return 0


class LeadsOnAnyDisk(World):
    """A leader does not look at which of its disks is in the ISR (S20, S21)."""

    def may_lead(self, node: Node) -> bool:
        state = node.state
        return state.leader == node.id and state.leader_boot == node.boot and not node.is_damaged


class ActsOnOldStates(World):
    """After a restart it follows, and drops its copy, by what was agreed on long ago."""

    def is_caught_up(self, node: Node) -> bool:
        return True


class ForgetsDamage(World):
    """It copies all again, and tells nobody that it has to (P6)."""

    def damage(self, broker: int) -> None:
        super().damage(broker)
        self.nodes[broker].damaged_in = None


class ForgetsDamageEarly(World):
    """It begins again as soon as the state that it knows does not name it (P6)."""

    def is_forgotten(self, node: Node, damaged_in: int) -> bool:
        return node.id not in {*node.state.isr, *node.state.elr}
