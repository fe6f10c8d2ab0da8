"""Guards of peer authentication and admission, and of syncs."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import argument, drop, never, replace, value
from tests.mutation.guard import Guard

_CERTIFICATES: Final = "tests/server/peers/test_certificates.py"

PEERS: Final = [
    Guard(
        name="a directory that was copied while it was open is another member",
        why="it votes again without the votes and acknowledgements that it gave after the copy",
        module="raftlog/storage/place.py",
        function="take",
        change=value("assign bool", "False"),
        tests=(
            "tests/storage/test_state_files.py::test_a_copy_gets_another_id_and_keeps_that",
            (
                "tests/server/cluster/test_copies.py"
                "::test_a_copy_has_no_vote_and_is_completed_by_the_others"
            ),
        ),
    ),
    Guard(
        name="a directory that was closed cleanly may be moved",
        why="a cluster whose machines are replaced has no votes left",
        module="raftlog/storage/store.py",
        function="Store._read_files",
        change=argument("call take may_move=", "may_move", "False"),
        tests=(
            "tests/storage/test_state_files.py::test_a_data_directory_that_was_closed_may_be_moved",
        ),
    ),
    Guard(
        name="what peers have reported of their journals is durable",
        why="after a restart of all brokers, an older copy of a disk votes without its votes",
        module="raftlog/consensus/node.py",
        function="ConsensusNode._beat",
        change=never("if _note_heard"),
        tests=(
            (
                "tests/consensus/test_node.py"
                "::test_what_a_peer_has_reported_is_known_after_a_restart_of_all"
            ),
        ),
    ),
    Guard(
        name="stored reports of a journal count, too",
        why="only a broker that runs since then recognizes an older copy of a disk",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry._check_journal",
        change=replace("tuple _seen", "(None, _.elts[0])"),
        tests=("tests/server/peers/test_links.py::test_an_older_boot_of_a_directory_is_stale",),
    ),
    Guard(
        name="the accepting side requires the certificate of the peer",
        why="with the secret and a certificate of any client, a process acts as a broker",
        module="raftlog/server/peers/links.py",
        function="Peering.admit",
        change=drop("call check_certificate"),
        tests=(f"{_CERTIFICATES}::test_a_broker_accepts_only_the_certificate_that_names_its_peer",),
    ),
    Guard(
        name="the connecting side requires the certificate of the peer",
        why="a broker communicates with a process that has the certificate of another one",
        module="raftlog/server/peers/links.py",
        function="greet",
        change=drop("call check_certificate"),
        tests=(
            f"{_CERTIFICATES}::test_a_broker_connects_only_to_the_certificate_that_names_its_peer",
        ),
    ),
    Guard(
        name="certificates of brokers authenticate no user",
        why="a certificate from the CA of brokers gives the permissions of the user with its name",
        module="raftlog/server/connection.py",
        function="Connections.__init__",
        change=value("assign principal_rules", "config.ssl_principal_mapping_rules"),
        tests=(f"{_CERTIFICATES}::test_the_certificate_of_a_broker_is_no_user",),
    ),
    Guard(
        name="the accepting side proves the secret",
        why="a broker communicates with any process at a peer's address",
        module="raftlog/protocol/security.py",
        function="Dialling.check",
        change=value("if compare_digest", "len(_.operand.args[0]) != len(_.operand.args[1])"),
        tests=(
            (
                "tests/protocol/test_security.py"
                "::test_another_secret_is_found_out_by_whoever_looks_first"
            ),
        ),
    ),
    Guard(
        name="the connecting side proves the secret",
        why="a process without the secret votes and copies",
        module="raftlog/protocol/security.py",
        function="Answering.check",
        change=value("if compare_digest", "len(_.operand.args[0]) != len(_.operand.args[1])"),
        tests=(
            (
                "tests/protocol/test_security.py"
                "::test_the_answering_side_finds_out_a_dialling_one_that_does_not_look"
            ),
        ),
    ),
    Guard(
        name="a proof is of one role",
        why="a broker's own proof is sent back to it",
        module="raftlog/protocol/security.py",
        function="",
        change=value("assign Final _ROLE_ANSWERING", "_ROLE_DIALLING"),
        tests=("tests/protocol/test_security.py::test_the_proof_of_one_role_is_none_of_the_other",),
    ),
    Guard(
        name="a proof is of fresh nonces",
        why="any process can replay a recorded handshake",
        module="raftlog/protocol/security.py",
        function="_peer_proof",
        change=replace("tuple _fields", "(_.elts[0], _.elts[1], _.elts[2], _.elts[3])"),
        tests=(
            (
                "tests/protocol/test_security.py"
                "::test_a_proof_recorded_from_the_dialling_side_is_of_no_use"
            ),
        ),
    ),
    Guard(
        name="fields of a proof have their lengths",
        why="one identity's proof is valid for another with the same concatenation",
        module="raftlog/protocol/security.py",
        function="_peer_proof",
        change=drop("call update to_bytes"),
        tests=(
            (
                "tests/protocol/test_peer.py"
                "::test_two_identities_that_spell_the_same_have_different_proofs"
            ),
        ),
    ),
    Guard(
        name="one proof per connection",
        why="secrets are tried until one fits",
        module="raftlog/protocol/security.py",
        function="Answering.check",
        change=replace("assign _hello", "_.targets[0].elts[0] = self._hello"),
        tests=("tests/protocol/test_security.py::test_there_is_one_try",),
    ),
    Guard(
        name="brokers of another cluster",
        why="two clusters mix",
        module="raftlog/protocol/security.py",
        function="check_cluster",
        change=never("compare cluster_id"),
        tests=("tests/protocol/test_security.py::test_another_cluster_is_told_so_by_both_sides",),
    ),
    Guard(
        name="another broker with the same id",
        why="two brokers with one id take part (S22)",
        module="raftlog/protocol/security.py",
        function="_check_other",
        change=never("if BrokerIdInUseError"),
        tests=(
            "tests/protocol/test_security.py::test_a_namesake_is_refused_before_it_gets_a_proof",
        ),
    ),
    Guard(
        name="the data directory of this broker, elsewhere",
        why="a copy of this broker takes part in addition to it",
        module="raftlog/protocol/security.py",
        function="_check_other",
        change=never("if AccessDeniedError"),
        tests=("tests/protocol/test_security.py::test_its_own_data_directory_is_refused",),
    ),
    Guard(
        name="an old copy of a peer's directory",
        why="a restored disk has lost what it acknowledged (S22)",
        module="raftlog/protocol/security.py",
        function="check_boot",
        change=drop("compare boot <"),
        tests=(
            (
                "tests/protocol/test_security.py"
                "::test_an_older_boot_of_the_same_directory_is_an_old_copy"
            ),
        ),
    ),
    Guard(
        name="an old copy of a peer's directory that is one start behind",
        why="its boot number was seen already, and it is accepted (S22)",
        module="raftlog/protocol/security.py",
        function="check_boot",
        change=never("compare boot =="),
        tests=(
            (
                "tests/protocol/test_security.py"
                "::test_the_same_boot_in_another_run_is_an_old_copy_too"
            ),
        ),
    ),
    Guard(
        name="a peer's journal that has lost its end",
        why="a broker that lost votes and entries takes part, or waits without an error",
        module="raftlog/protocol/security.py",
        function="check_journal",
        change=never("compare journal_sequence"),
        tests=(
            (
                "tests/protocol/test_security.py"
                "::test_a_later_boot_has_to_find_all_that_its_journal_told_of"
            ),
        ),
    ),
    Guard(
        name="a journal that has lost its end stays rejected",
        why="after some restarts it has as many blocks again, and is accepted",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry._check_journal",
        change=never("if directory_id"),
        tests=(
            (
                "tests/server/peers/test_links.py"
                "::test_a_journal_that_has_lost_its_end_is_refused_for_good"
            ),
        ),
    ),
    Guard(
        name="another live directory with a peer's id",
        why="two brokers with one id alternate (S22)",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry.check",
        change=never("if BrokerIdInUseError #1/2"),
        tests=(
            (
                "tests/server/peers/test_links.py"
                "::test_another_directory_is_refused_while_a_link_to_the_first_is_up"
            ),
        ),
    ),
    Guard(
        name="the stored facts about a peer are checked",
        why="an old copy is admitted that the journal contradicts",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry.check",
        change=drop("call _seen"),
        tests=("tests/server/peers/test_links.py::test_an_older_boot_of_a_directory_is_stale",),
    ),
    Guard(
        name="a newer connection ends the older one",
        why="messages of an older connection arrive after newer ones (hazard 5)",
        module="raftlog/server/peers/links.py",
        function="PeerRegistry.admit_incoming",
        change=drop("assign connection"),
        tests=(
            "tests/server/peers/test_links.py::test_a_newer_connection_supersedes_the_older_one",
        ),
    ),
    Guard(
        name="peers are checked before they are admitted",
        why="an authenticated broker takes part that must not",
        module="raftlog/server/peers/links.py",
        function="Peering.admit",
        change=replace("call admit_incoming", "self.registry.latest(_.args[0].broker_id)"),
        tests=(
            (
                "tests/server/apis/test_peer.py"
                "::test_a_proved_peer_that_may_not_take_part_is_told_why"
            ),
        ),
    ),
    Guard(
        name="changes of the cluster require its secret",
        why="any client that reaches a port recovers the cluster without its majority",
        module="raftlog/server/context.py",
        function="BrokerContext.check_operator",
        change=value("if operator_secret", "_.values[1].operand and (not _.values[0])"),
        tests=("tests/server/handlers/test_operator.py",),
    ),
    Guard(
        name="an operator's proof is checked",
        why="any proof is accepted",
        module="raftlog/server/apis/security.py",
        function="handle_prove",
        change=drop("call check"),
        tests=("tests/server/handlers/test_operator.py::test_another_secret_makes_no_operator",),
    ),
    Guard(
        name="peer requests require an authenticated peer",
        why="any client can vote, and copy",
        module="raftlog/server/dispatch.py",
        function="dispatch",
        change=replace("compare peer_identity", "_.left.value.is_closed"),
        tests=("tests/server/apis/test_peer.py::test_envelopes_without_a_proof_are_denied",),
    ),
    Guard(
        name="a leader's session begins with all positions",
        why="positions of a connection that ended count for this one",
        module="raftlog/protocol/peer.py",
        function="LeaderSession.apply",
        change=value("if _has_begun", "_.operand.values[0] is None"),
        tests=("tests/protocol/test_peer.py::test_a_session_begins_with_a_full_request",),
    ),
    Guard(
        name="a fetch session begins with all positions",
        why="a leader counts positions that another connection reported",
        module="raftlog/server/cluster/fetcher.py",
        function="ReplicaFetcher.link_up",
        change=drop("assign FollowerSession"),
        tests=(
            (
                "tests/server/cluster/test_fetcher.py"
                "::test_a_new_connection_is_told_everything_and_old_answers_are_nobodys"
            ),
        ),
    ),
]

DISKS: Final = [
    Guard(
        name="progress is reported after the sync",
        why="records are acknowledged while they are being synced",
        module="raftlog/server/partition.py",
        function="LogFlusher._begin",
        change=replace("call submit", "_\nself._on_durable()"),
        tests=("tests/server/test_partition.py::test_what_one_turn_appends_goes_into_one_sync",),
    ),
    Guard(
        name="a failed sync is the last",
        why="the next sync succeeds",
        module="raftlog/server/partition.py",
        function="LogFlusher._finished",
        change=drop("assign _stopped"),
        tests=("tests/server/test_partition.py::test_a_failed_sync_is_the_last",),
    ),
    Guard(
        name="a failed sync ends the broker",
        why="a broker continues with a failed disk",
        module="raftlog/server/partition.py",
        function="LogFlusher._finished",
        change=drop("call _on_failed"),
        tests=("tests/server/test_partition.py::test_a_failed_sync_is_the_last",),
    ),
    Guard(
        name="truncations wait for the sync in progress",
        why="a log is truncated while its end is being made durable",
        module="raftlog/server/partition.py",
        function="LogFlusher.between_syncs",
        change=value("if _task", "self._log is not None"),
        tests=("tests/server/test_partition.py::test_jobs_run_between_syncs",),
    ),
    Guard(
        name="no turn while the journal is synced",
        why="consensus counts what is not on the disk",
        module="raftlog/server/consensus_plane.py",
        function="ConsensusPlane._turn",
        change=drop("compare _task"),
        tests=(
            (
                "tests/server/test_consensus_plane.py"
                "::test_what_comes_back_from_within_the_node_waits_until_it_is_done"
            ),
        ),
    ),
    Guard(
        name="no turn while the disk is full",
        why="messages are sent whose state could not be stored",
        module="raftlog/server/consensus_plane.py",
        function="ConsensusPlane._turn",
        change=drop("attribute _pausing"),
        tests=(
            (
                "tests/server/test_consensus_plane.py"
                "::test_a_full_disk_is_tried_again_and_nothing_is_sent_meanwhile"
            ),
        ),
    ),
    Guard(
        name="no consensus after a failure",
        why="a broker votes from a state that may be wrong",
        module="raftlog/server/consensus_plane.py",
        function="ConsensusPlane._ended",
        change=drop("compare failure"),
        tests=("tests/server/test_consensus_plane.py::test_a_failed_sync_is_the_end",),
    ),
    Guard(
        name="nothing is completed after a failure",
        why="the result of an internal error is sent when the disk works again",
        module="raftlog/server/consensus_plane.py",
        function="ConsensusPlane._synced",
        change=value("if failure", "self._stopped"),
        tests=("tests/server/test_consensus_plane.py::test_a_mistake_in_consensus_is_the_end_too",),
    ),
]

GUARDS: Final = [*PEERS, *DISKS]
