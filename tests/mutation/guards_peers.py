"""Guards of a broker's door and of its disks: who is let in, and what waits for a sync."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

PEERS: Final = [
    Guard(
        name="the dialled side is asked for its proof",
        why="a broker talks to whoever answers at a peer's address",
        module="raftlog/protocol/peer_auth.py",
        old="        if not hmac.compare_digest(wanted, response.proof):\n",
        new="        if len(wanted) != len(response.proof):\n",
        tests=(
            (
                "tests/protocol/test_peer_auth.py"
                "::test_another_secret_is_found_out_by_whoever_looks_first"
            ),
        ),
    ),
    Guard(
        name="the dialling side is asked for its proof",
        why="whoever knows no secret votes and copies",
        module="raftlog/protocol/peer_auth.py",
        old="        if not hmac.compare_digest(wanted, prove.proof):\n",
        new="        if len(wanted) != len(prove.proof):\n",
        tests=(
            (
                "tests/protocol/test_peer_auth.py"
                "::test_the_answering_side_finds_out_a_dialling_one_that_does_not_look"
            ),
        ),
    ),
    Guard(
        name="a proof is of one role",
        why="a broker's own proof is sent back to it",
        module="raftlog/protocol/peer_auth.py",
        old='_ROLE_ANSWERING: Final = b"raftlog peer, answering"\n',
        new="_ROLE_ANSWERING: Final = _ROLE_DIALLING\n",
        tests=(
            "tests/protocol/test_peer_auth.py::test_the_proof_of_one_role_is_none_of_the_other",
        ),
    ),
    Guard(
        name="a proof is of fresh nonces",
        why="a handshake that was recorded lets anybody in",
        module="raftlog/protocol/peer_auth.py",
        old="hello.nonce, *_fields(answering), nonce):\n",
        new="hello.nonce, *_fields(answering)):\n",
        tests=(
            (
                "tests/protocol/test_peer_auth.py"
                "::test_a_proof_recorded_from_the_dialling_side_is_of_no_use"
            ),
        ),
    ),
    Guard(
        name="fields of a proof have their lengths",
        why="one identity's proof is good for another that spells the same",
        module="raftlog/protocol/peer_auth.py",
        old='        mac.update(len(field).to_bytes(4, "little"))\n',
        new="",
        tests=(
            (
                "tests/protocol/test_guards_proofs.py"
                "::test_two_identities_that_spell_the_same_have_different_proofs"
            ),
        ),
    ),
    Guard(
        name="one proof per connection",
        why="secrets are tried until one fits",
        module="raftlog/protocol/peer_auth.py",
        old="        hello, self._hello = self._hello, None\n",
        new="        hello = self._hello\n",
        tests=("tests/protocol/test_peer_auth.py::test_there_is_one_try",),
    ),
    Guard(
        name="brokers of another cluster",
        why="two clusters mix",
        module="raftlog/protocol/peer_auth.py",
        old="    if me.cluster_id and peer.cluster_id and me.cluster_id != peer.cluster_id:\n",
        new="    if me.cluster_id and peer.cluster_id and me.boot < 0:\n",
        tests=("tests/protocol/test_peer_auth.py::test_another_cluster_is_told_so_by_both_sides",),
    ),
    Guard(
        name="a namesake",
        why="two brokers with one id take part (S22)",
        module="raftlog/protocol/peer_auth.py",
        old="    if peer.broker_id == me.broker_id:\n",
        new="    if peer.broker_id < 0:\n",
        tests=(
            "tests/protocol/test_peer_auth.py::test_a_namesake_is_refused_before_it_gets_a_proof",
        ),
    ),
    Guard(
        name="the data directory of this broker, elsewhere",
        why="a copy of this broker takes part beside it",
        module="raftlog/protocol/peer_auth.py",
        old="    if peer.directory_id == me.directory_id:\n",
        new='    if peer.directory_id == "":\n',
        tests=("tests/protocol/test_peer_auth.py::test_its_own_data_directory_is_refused",),
    ),
    Guard(
        name="an old copy of a peer's directory",
        why="a disk that was put back has forgotten what it promised (S22)",
        module="raftlog/protocol/peer_auth.py",
        old="    is_stale = peer.boot < seen_boot or (peer.boot == seen_boot and is_other_run)\n",
        new="    is_stale = peer.boot == seen_boot and is_other_run\n",
        tests=(
            (
                "tests/protocol/test_peer_auth.py"
                "::test_an_older_boot_of_the_same_directory_is_an_old_copy"
            ),
        ),
    ),
    Guard(
        name="an old copy of a peer's directory that is one start behind",
        why="it comes with a number that was seen already, and is believed (S22)",
        module="raftlog/protocol/peer_auth.py",
        old="    is_stale = peer.boot < seen_boot or (peer.boot == seen_boot and is_other_run)\n",
        new="    is_stale = peer.boot < seen_boot or (peer.boot < 0 and is_other_run)\n",
        tests=(
            (
                "tests/protocol/test_peer_auth.py"
                "::test_the_same_boot_in_another_run_is_an_old_copy_too"
            ),
        ),
    ),
    Guard(
        name="a peer's journal that has lost its end",
        why="a broker that has forgotten votes and entries takes part, or is stuck without a word",
        module="raftlog/protocol/peer_auth.py",
        old="    is_short = peer.boot > heard_boot and peer.journal_sequence < heard_sequence\n",
        new="    is_short = peer.boot > heard_boot and peer.journal_sequence < 0\n",
        tests=(
            (
                "tests/protocol/test_peer_auth.py"
                "::test_a_later_boot_has_to_find_all_that_its_journal_told_of"
            ),
        ),
    ),
    Guard(
        name="a journal that has lost its end stays refused",
        why="with a few starts more it has as many blocks again, and is believed",
        module="raftlog/server/peers/registry.py",
        old="        if directory_id == peer.directory_id:\n",
        new="        if directory_id == peer.directory_id and peer.boot < 0:\n",
        tests=(
            (
                "tests/server/peers/test_registry.py"
                "::test_a_journal_that_has_lost_its_end_is_refused_for_good"
            ),
        ),
    ),
    Guard(
        name="another live directory with a peer's id",
        why="two brokers with one id take turns (S22)",
        module="raftlog/server/peers/registry.py",
        old="            if live.directory_id != peer.directory_id:\n",
        new="            if live.boot < 0:\n",
        tests=(
            (
                "tests/server/peers/test_registry.py"
                "::test_another_directory_is_refused_while_a_link_to_the_first_is_up"
            ),
        ),
    ),
    Guard(
        name="what is known of a peer is asked for",
        why="an old copy is admitted that the journal knows better",
        module="raftlog/server/peers/registry.py",
        old="        for seen in (self._seen(peer.broker_id), self._latest.get(peer.broker_id)):\n",
        new="        for seen in (self._latest.get(peer.broker_id),):\n",
        tests=("tests/server/peers/test_registry.py::test_an_older_boot_of_a_directory_is_stale",),
    ),
    Guard(
        name="a newer connection silences the older one",
        why="what was on its way on an older connection comes after what is newer (hazard 5)",
        module="raftlog/server/peers/registry.py",
        old="            older.connection.peer_identity = None  # what it has read already is "
        "nobody's\n",
        new="",
        tests=(
            "tests/server/peers/test_registry.py::test_a_newer_connection_supersedes_the_older_one",
        ),
    ),
    Guard(
        name="peers are checked before they are admitted",
        why="a proved broker that may not take part does",
        module="raftlog/server/peers/peering.py",
        old="        self.registry.admit_incoming(peer, connection)\n",
        new="        self.registry.latest(peer.broker_id)\n",
        tests=(
            (
                "tests/server/handlers/test_peer.py"
                "::test_a_proved_peer_that_may_not_take_part_is_told_why"
            ),
        ),
    ),
    Guard(
        name="who changes the cluster knows its secret",
        why="whoever reaches a port has the cluster go on without its majority",
        module="raftlog/server/context.py",
        old="        if self.operator_secret and not is_proved:\n",
        new="        if is_proved and not self.operator_secret:\n",
        tests=("tests/server/handlers/test_operator.py",),
    ),
    Guard(
        name="an operator's proof is checked",
        why="any proof does",
        module="raftlog/server/handlers/operator.py",
        old="    granting.check(message)\n",
        new="",
        tests=("tests/server/handlers/test_operator.py::test_another_secret_makes_no_operator",),
    ),
    Guard(
        name="what is for peers is for proved peers",
        why="any client can vote, and copy",
        module="raftlog/server/dispatch.py",
        old="    if request.api.peer_only and connection.peer_identity is None:\n",
        new="    if request.api.peer_only and connection.is_closed:\n",
        tests=("tests/server/handlers/test_peer.py::test_envelopes_without_a_proof_are_denied",),
    ),
    Guard(
        name="a leader's session begins with all positions",
        why="positions of a connection that ended are taken for those of this one",
        module="raftlog/protocol/replica_session.py",
        old="        if not (request.full or self._has_begun):\n",
        new="        if request.full is None:\n",
        tests=(
            "tests/protocol/test_replica_session.py::test_a_session_begins_with_a_full_request",
        ),
    ),
    Guard(
        name="a fetch session begins with all positions",
        why="a leader counts positions that were said on another connection",
        module="raftlog/server/cluster/fetcher.py",
        old="        self._session = FollowerSession()\n        self._round = 0\n",
        new="        self._round = 0\n",
        tests=(
            (
                "tests/server/cluster/test_fetcher_failures.py"
                "::test_a_new_connection_is_told_everything_and_old_answers_are_nobodys"
            ),
        ),
    ),
]

DISKS: Final = [
    Guard(
        name="progress is told after the sync",
        why="records are acknowledged while they are being synced",
        module="raftlog/server/flusher.py",
        old="            self._workers.submit(ticket.run, self._finished)\n",
        new="            self._workers.submit(ticket.run, self._finished)\n"
        "            self._on_durable()\n",
        tests=("tests/server/test_flusher.py::test_what_one_turn_appends_goes_into_one_sync",),
    ),
    Guard(
        name="a failed sync is the last",
        why="the next sync says that all is well",
        module="raftlog/server/flusher.py",
        old="        self._stopped = True\n        if not isinstance(error, OSError):",
        new="        if not isinstance(error, OSError):",
        tests=("tests/server/test_flusher.py::test_a_failed_sync_is_the_last",),
    ),
    Guard(
        name="a failed sync ends the broker",
        why="a broker goes on with a disk that is not to be trusted",
        module="raftlog/server/flusher.py",
        old="        self._on_failed(self._log.failed_sync(ticket, error))\n",
        new="        self._log.failed_sync(ticket, error)\n",
        tests=("tests/server/test_flusher.py::test_a_failed_sync_is_the_last",),
    ),
    Guard(
        name="cuts wait for the sync that is out",
        why="a log is cut while its end is being made durable",
        module="raftlog/server/flusher.py",
        old="        if self._ticket is None:\n            job()\n",
        new="        if self._log is not None:\n            job()\n",
        tests=("tests/server/test_flusher.py::test_jobs_run_between_syncs",),
    ),
    Guard(
        name="no turn while the journal is synced",
        why="consensus counts what is not on the disk",
        module="raftlog/server/consensus_plane.py",
        old="        if self._ended or self._pausing or self._ticket is not None:\n",
        new="        if self._ended or self._pausing:\n",
        tests=(
            (
                "tests/server/test_consensus_plane.py"
                "::test_what_comes_back_from_within_the_node_waits_until_it_is_done"
            ),
        ),
    ),
    Guard(
        name="no turn while the disk is full",
        why="what has no room is sent",
        module="raftlog/server/consensus_plane.py",
        old="        if self._ended or self._pausing or self._ticket is not None:\n",
        new="        if self._ended or self._ticket is not None:\n",
        tests=(
            (
                "tests/server/test_consensus_plane.py"
                "::test_a_full_disk_is_tried_again_and_nothing_is_sent_meanwhile"
            ),
        ),
    ),
    Guard(
        name="no consensus after a failure",
        why="a broker votes from a memory that is not to be trusted",
        module="raftlog/server/consensus_plane.py",
        old="        return self._stopped or self.failure is not None\n",
        new="        return self._stopped\n",
        tests=("tests/server/test_consensus_plane.py::test_a_failed_sync_is_the_end",),
    ),
    Guard(
        name="nothing is completed after a failure",
        why="what a mistake left in memory is sent when the disk is back",
        module="raftlog/server/consensus_plane.py",
        old="        if self.failure is not None:\n            pass  # what",
        new="        if self._stopped:\n            pass  # what",
        tests=("tests/server/test_consensus_plane.py::test_a_mistake_in_consensus_is_the_end_too",),
    ),
]

GUARDS: Final = [*PEERS, *DISKS]
