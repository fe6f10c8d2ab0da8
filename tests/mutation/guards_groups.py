"""Guards of generations of a Raft group, of its commands, and of links between voters."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, calls, drop, never, replace, value
from tests.mutation.guard import Guard

GUARDS_VOTERS: Final = "tests/consensus/test_hazards.py"
HOSTED_GROUP: Final = "tests/consensus/test_hosted_group.py"
NODE_BAD_INPUT: Final = "tests/consensus/test_node.py"
PEER_TRANSPORT: Final = "tests/consensus/test_transport.py"
PROPOSALS: Final = "tests/consensus/test_proposals.py"

GENERATIONS: Final = [
    Guard(
        name="messages of another generation are dropped",
        why="votes and entries of other voters count in this log",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup.receive",
        change=never("if generation"),
        tests=(f"{HOSTED_GROUP}::test_a_seal_ends_a_generation_and_keeps_the_state",),
    ),
    Guard(
        name="commands after a seal have no effect",
        why="brokers end a generation with different states",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup._SyncObj__doApplyCommand",
        change=drop("if seal #1/2"),
        tests=(f"{GUARDS_VOTERS}::test_a_command_behind_a_seal_is_not_applied",),
    ),
    Guard(
        name="a sealed generation rejects commands",
        why="a command is placed where it never counts, and its outcome is unknown",
        module="raftlog/consensus/raft_group.py",
        function="RaftGroup.accepts",
        change=drop("compare _log"),
        tests=(
            f"{HOSTED_GROUP}::test_commands_that_come_during_a_seal_are_for_the_next_generation",
        ),
    ),
    Guard(
        name="a truncated seal has no effect",
        why="a leader rejects commands for a seal that was never committed",
        module="raftlog/consensus/journal.py",
        function="RaftLog._cut",
        change=never("compare seal_index #2/2"),
        tests=(
            "tests/consensus/test_journal.py::test_the_first_seal_is_remembered_until_it_is_cut",
        ),
    ),
    Guard(
        name="only newer generations are adopted",
        why="a broker returns to a state that it has left",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup._on_offer",
        change=never("if generation"),
        tests=(f"{HOSTED_GROUP}::test_a_seal_ends_a_generation_and_keeps_the_state",),
    ),
    Guard(
        name="an offer of a voter without its disk is rejected",
        why="a voter that lost its votes decides how the group continues",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup._on_offer",
        change=replace("return False #1/2", "pass"),
        tests=(f"{HOSTED_GROUP}::test_an_offer_is_adopted_only_if_it_is_newer_and_a_voters",),
    ),
    Guard(
        name="a wiped voter does not vote",
        why="a broker that lost its votes votes again (hazard 13)",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup._build",
        change=value("if broker_id", "_.left.args[0] not in self.voters"),
        tests=(f"{HOSTED_GROUP}::test_a_voter_that_lost_its_disk_is_no_voter",),
    ),
    Guard(
        name="a voter is its directory",
        why="a wiped peer's votes and acknowledgements count (hazard 13)",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup._is_voter",
        change=replace("compare directory_id", "_.comparators[0].args[0] in self.voters"),
        tests=(
            (
                "tests/consensus/test_hosted_group.py"
                "::test_the_vote_of_another_directory_does_not_count_though_it_takes_itself_for_a_"
                "voter"
            ),
        ),
    ),
    Guard(
        name="only messages of voters count",
        why="a broker that is no voter is counted",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup.receive",
        change=drop("not hears"),
        tests=(
            f"{GUARDS_VOTERS}::test_the_answer_of_a_broker_that_has_no_vote_counts_for_nothing",
        ),
    ),
    Guard(
        name="only the broker that received a command reports its position",
        why="a faulty peer ends another broker's command",
        module="raftlog/consensus/hosted_group.py",
        function="Proposals.answered",
        change=drop("if forwarded_to #2/2"),
        tests=(f"{PROPOSALS}::test_only_the_leader_that_was_asked_answers_once",),
    ),
    Guard(
        name="a command whose index has another entry was not applied",
        why="a client receives success for another command",
        module="raftlog/consensus/hosted_group.py",
        function="HostedGroup._on_applied",
        change=never("if VOID"),
        tests=(f"{HOSTED_GROUP}::test_the_outcome_of_a_command_that_was_overwritten_is_known",),
    ),
    Guard(
        name="a forwarded command is unknown once the leader changed",
        why="its client waits indefinitely, or receives that it was not proposed",
        module="raftlog/consensus/hosted_group.py",
        function="Proposals.leader_is",
        change=calls("call Unknown", "NotProposed"),
        tests=(f"{PROPOSALS}::test_what_was_forwarded_to_another_leader_is_unknown",),
    ),
    Guard(
        name="a command that timed out is unknown",
        why="a client repeats what was applied",
        module="raftlog/consensus/hosted_group.py",
        function="Proposals.expire",
        change=argument("call _end Unknown", 1, "NotProposed('not committed in time')"),
        tests=(f"{PROPOSALS}::test_what_waited_too_long_had_no_effect_and_what_was_sent_may_have",),
    ),
]

LINKS: Final = [
    Guard(
        name="envelopes of another boot or directory",
        why="messages of an older incarnation of a peer count",
        module="raftlog/consensus/transport.py",
        function="Link.admits",
        change=drop("compare boot"),
        tests=(f"{PEER_TRANSPORT}::test_a_peer_that_started_again_begins_anew",),
    ),
    Guard(
        name="envelopes while the link is down",
        why="a message of a connection that ended counts",
        module="raftlog/consensus/transport.py",
        function="Link.admits",
        change=drop("not is_up"),
        tests=(f"{PEER_TRANSPORT}::test_nothing_is_admitted_while_the_link_is_down",),
    ),
    Guard(
        name="repeated and late envelopes",
        why="an old acknowledgement or vote counts again (hazard 3)",
        module="raftlog/consensus/transport.py",
        function="Link.admits",
        change=replace("compare sequence", "_.comparators[0] <= _.comparators[1]"),
        tests=(f"{PEER_TRANSPORT}::test_a_duplicate_and_one_that_was_overtaken_are_not_admitted",),
    ),
    Guard(
        name="envelopes of a superseded connection",
        why="messages of an older connection count after newer ones (hazard 5)",
        module="raftlog/consensus/transport.py",
        function="Link.admits",
        change=replace("compare SEQUENCE_JUMP_MAX link", "_.comparators[0] <= _.comparators[1]"),
        tests=(f"{PEER_TRANSPORT}::test_late_bytes_of_a_session_that_ended_are_not_admitted",),
    ),
    Guard(
        name="each connection is a new session",
        why="a peer accepts messages of an older connection",
        module="raftlog/consensus/transport.py",
        function="Link.up",
        change=replace("assign _number", "self._number = 1"),
        tests=(f"{PEER_TRANSPORT}::test_envelopes_carry_session_and_sequence",),
    ),
    Guard(
        name="messages of a restored disk do not count",
        why="an old copy has lost what it acknowledged (S22)",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._peer_up",
        change=never("if boot"),
        tests=(f"{NODE_BAD_INPUT}::test_a_peer_whose_disk_was_set_back_is_not_listened_to",),
    ),
    Guard(
        name="boot numbers of peers are stored",
        why="after a restart an old copy of a peer's disk counts (S22)",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._peer_up",
        change=replace("call note_peer", "self._journal.peers.get(_.args[0])"),
        tests=(f"{NODE_BAD_INPUT}::test_a_peer_whose_disk_was_set_back_is_not_listened_to",),
    ),
    Guard(
        name="messages of another broker with the same id do not count",
        why="a broker with this broker's id votes in its name",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._peer_up",
        change=never("if _broker_id"),
        tests=(f"{NODE_BAD_INPUT}::test_a_broker_that_claims_our_own_id_is_no_peer",),
    ),
    Guard(
        name="messages are checked completely",
        why="an invalid field stops the broker, or is counted",
        module="raftlog/consensus/transport.py",
        function="decode",
        change=value("if is_message", "type(_.operand.args[0]) is not list"),
        tests=(
            (
                "tests/consensus/test_transport.py"
                "::test_a_message_of_other_types_lengths_or_ranges_is_refused"
            ),
        ),
    ),
    Guard(
        name="the library has the expected version",
        why="another version's internals are overridden, and no guarantee holds",
        module="raftlog/consensus/selftest.py",
        function="_faults",
        change=never("if VERSION"),
        tests=("tests/consensus/test_selftest.py::test_another_version_is_refused",),
    ),
]

GUARDS: Final = [*GENERATIONS, *LINKS]
