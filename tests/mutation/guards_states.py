"""Guards of what a partition's group agrees on, and of what its arbiter proposes."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

STATES: Final = [
    Guard(
        name="commands are for one version",
        why="a proposal that comes late undoes what was agreed on since (S08)",
        module="raftlog/replication/partition_state.py",
        old="    if command.version != state.version:\n",
        new="    if command.version < 0:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_command_for_another_version_is_rejected"
            ),
        ),
    ),
    Guard(
        name="every change is a new version",
        why="two proposals for one state are both accepted",
        module="raftlog/replication/partition_state.py",
        old="    return Accepted(replace(changed, version=state.version + 1))\n",
        new="    return Accepted(replace(changed, version=state.version))\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_every_accepted_command_makes_the_next_version"
            ),
        ),
    ),
    Guard(
        name="the ISR is changed in the leader's own epoch",
        why="a leader that was deposed changes the ISR of its successor",
        module="raftlog/replication/partition_state.py",
        old="    if command.leader_epoch != state.leader_epoch:\n",
        new="    if command.leader_epoch < 0:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_an_isr_change_of_another_leader_epoch_is_rejected"
            ),
        ),
    ),
    Guard(
        name="the leader is in the ISR",
        why="what the leader has need not be what is committed",
        module="raftlog/replication/partition_state.py",
        old="    if state.leader is None or isr.get(state.leader) != "
        "state.isr.get(state.leader):\n",
        new="    if not isr:\n",
        tests=("tests/replication/test_partition_state.py::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="only replicas are in the ISR",
        why="a witness, which stores nothing, counts as a copy (I10)",
        module="raftlog/replication/partition_state.py",
        old="    if strangers:\n",
        new="    if strangers is None:\n",
        tests=("tests/replication/test_partition_state.py::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="a copy is in sync or lost",
        why="a copy that is gone counts for a commit (P6)",
        module="raftlog/replication/partition_state.py",
        old="    if lost & isr.keys():\n",
        new="    if lost is None:\n",
        tests=("tests/replication/test_partition_state.py::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="a lost copy is not eligible",
        why="a broker that has lost its copy is elected (P6)",
        module="raftlog/replication/partition_state.py",
        old="    outside = lost | isr.keys()  # of the ELR and the former ones\n",
        new="    outside = isr.keys()\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_lost_copy_is_forgotten_and_the_epoch_fences_what_it_said"
            ),
        ),
    ),
    Guard(
        name="a lost copy ends the epoch",
        why="what it has acknowledged before brings it back into the ISR (P6)",
        module="raftlog/replication/partition_state.py",
        old="        _in_next_epoch(state) if lost else state,\n",
        new="        state,\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_lost_copy_is_forgotten_and_the_epoch_fences_what_it_said"
            ),
        ),
    ),
    Guard(
        name="min_isr is at least 1",
        why="a partition commits without any copy",
        module="raftlog/replication/partition_state.py",
        old="    if command.min_isr < 1:\n",
        new="    if command.min_isr < -1:\n",
        tests=("tests/replication/test_partition_state.py::test_a_senseless_isr_is_rejected",),
    ),
    Guard(
        name="only members of the ISR or ELR lead",
        why="a replica without committed records is elected, and they are gone",
        module="raftlog/replication/partition_state.py",
        old="        if elr.get(leader) != directory_id:\n",
        new="        if leader not in state.replicas:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_who_is_not_in_the_isr_or_elr_on_that_disk_is_not_elected"
            ),
        ),
    ),
    Guard(
        name="a leader is elected with its directory",
        why="a broker that came back with an empty disk leads (S20)",
        module="raftlog/replication/partition_state.py",
        old="    if isr.get(leader) != directory_id:\n"
        "        if elr.get(leader) != directory_id:\n",
        new="    if leader not in isr:\n        if elr.get(leader) != directory_id:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_who_is_not_in_the_isr_or_elr_on_that_disk_is_not_elected"
            ),
        ),
    ),
    Guard(
        name="an election is a new epoch",
        why="fetches and answers of the old leader's time count (S17)",
        module="raftlog/replication/partition_state.py",
        old="        leader=leader,\n"
        "        leader_epoch=state.leader_epoch + 1,\n"
        "        leader_boot=command.boot,\n"
        "        isr=isr,\n",
        new="        leader=leader,\n"
        "        leader_epoch=state.leader_epoch,\n"
        "        leader_boot=command.boot,\n"
        "        isr=isr,\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_member_of_the_isr_is_elected_and_the_isr_stays"
            ),
        ),
    ),
    Guard(
        name="an unclean election is a new epoch",
        why="replicas keep what the new leader never had",
        module="raftlog/replication/partition_state.py",
        old="        leader_epoch=state.leader_epoch + 1,\n"
        "        leader_boot=command.boot,\n"
        "        isr={leader",
        new="        leader_epoch=state.leader_epoch,\n"
        "        leader_boot=command.boot,\n"
        "        isr={leader",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_an_unclean_election_takes_any_replica_and_only_that"
            ),
        ),
    ),
    Guard(
        name="an election is for one run of the leader",
        why="a leader that was killed goes on with less than it had (S17)",
        module="raftlog/replication/partition_state.py",
        old="        leader_boot=command.boot,\n        isr=isr,\n",
        new="        isr=isr,\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_member_of_the_isr_is_elected_and_the_isr_stays"
            ),
        ),
    ),
    Guard(
        name="a leader from the ELR is alone in the ISR",
        why="members of the ISR that lack what it has are counted",
        module="raftlog/replication/partition_state.py",
        old="        isr, elr = {leader: directory_id}, _without({**elr, **isr}, {leader})\n",
        new="        isr, elr = {**isr, leader: directory_id}, _without(elr, {leader})\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_member_of_the_elr_becomes_the_isr_alone_and_all_others_stay_eligible"
            ),
        ),
    ),
    Guard(
        name="those that leave a small ISR stay eligible",
        why="after the last member died nobody may lead, though copies are whole (KIP-966)",
        module="raftlog/replication/partition_state.py",
        old="    return left if len(isr) < min_isr else {}\n",
        new="    return left if len(isr) < 0 else {}\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_who_leaves_an_isr_that_is_then_too_small_is_eligible"
            ),
        ),
    ),
    Guard(
        name="the ELR is cleared when the ISR can commit",
        why="a replica that lacks committed records is elected",
        module="raftlog/replication/partition_state.py",
        old="    return left if len(isr) < min_isr else {}\n",
        new="    return left\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_who_leaves_an_isr_that_is_large_enough_is_a_former_member"
            ),
        ),
    ),
    Guard(
        name="the leader is not dropped",
        why="a partition has a leader that stores nothing",
        module="raftlog/replication/partition_state.py",
        old="    if state.leader in dropped:\n",
        new="    if state.leader is dropped:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_change_that_drops_what_is_needed_is_rejected"
            ),
        ),
    ),
    Guard(
        name="one member of the ISR is left",
        why="the last copy of what is committed is dropped",
        module="raftlog/replication/partition_state.py",
        old="    if not isr:\n",
        new="    if isr is None:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_change_that_drops_what_is_needed_is_rejected"
            ),
        ),
    ),
    Guard(
        name="copies that are needed are not dropped",
        why="a reassignment takes copies below min_isr",
        module="raftlog/replication/partition_state.py",
        old=" and len(isr) < state.min_isr:\n",
        new=" and len(isr) < 0:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_change_that_drops_what_is_needed_is_rejected"
            ),
        ),
    ),
    Guard(
        name="a dropped replica ends the epoch",
        why="what it has said before counts when it is added again (S20)",
        module="raftlog/replication/partition_state.py",
        old="        _in_next_epoch(state) if dropped else state,\n",
        new="        state,\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_dropped_replica_is_forgotten_and_the_epoch_fences_what_it_said"
            ),
        ),
    ),
    Guard(
        name="replicas and witnesses are different brokers",
        why="one broker has two votes, or a partition no copy",
        module="raftlog/replication/partition_state.py",
        old="    if not replicas or len({*replicas, *witnesses}) != len(replicas) + "
        "len(witnesses):\n",
        new="    if not replicas:\n",
        tests=(
            (
                "tests/replication/test_partition_state.py"
                "::test_a_change_that_drops_what_is_needed_is_rejected"
            ),
        ),
    ),
]

ELECTIONS: Final = [
    Guard(
        name="the ISR comes before the ELR",
        why="a leader is taken that needs others to catch up first",
        module="raftlog/replication/election.py",
        old="    for members in (state.isr, state.elr):\n",
        new="    for members in (state.elr, state.isr):\n",
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_the_elr_leads_only_when_no_member_of_the_isr_can"
            ),
        ),
    ),
    Guard(
        name="the ELR leads when the ISR cannot",
        why="a partition stays down though a whole copy is there (KIP-966)",
        module="raftlog/replication/election.py",
        old="    for members in (state.isr, state.elr):\n",
        new="    for members in (state.isr,):\n",
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_the_elr_leads_only_when_no_member_of_the_isr_can"
            ),
        ),
    ),
    Guard(
        name="a candidate is on the disk that is a member",
        why="a wiped broker is proposed, again and again",
        module="raftlog/replication/election.py",
        old="        is_member = directory_id is not None and directory_of(broker) == "
        "directory_id\n",
        new="        is_member = directory_id is not None\n",
        tests=("tests/replication/test_election.py::test_a_leader_on_another_disk_is_no_leader",),
    ),
    Guard(
        name="a candidate is live",
        why="a dead broker is elected",
        module="raftlog/replication/election.py",
        old="        if is_member and broker in state.replicas and is_live(broker):\n",
        new="        if is_member and broker in state.replicas:\n",
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_a_dead_leader_is_followed_by_the_first_in_preferred_order"
            ),
        ),
    ),
    Guard(
        name="a leader that starts again is elected again",
        why="a leader goes on in an epoch whose unsynced records it has lost (S17)",
        module="raftlog/replication/election.py",
        old="    boot = None if boot_of is None else boot_of(leader)\n"
        "    return directory_of(leader) in {None, state.isr.get(leader)} and boot in {\n",
        new="    boot = None\n"
        "    return directory_of(leader) in {None, state.isr.get(leader)} and boot in {\n",
        tests=(
            "tests/replication/test_election.py::test_a_leader_of_another_run_is_elected_again",
        ),
    ),
    Guard(
        name="a leader on another disk is none",
        why="nobody is elected in the place of a leader that was wiped",
        module="raftlog/replication/election.py",
        old="    return directory_of(leader) in {None, state.isr.get(leader)} and boot in {\n",
        new="    return boot in {\n",
        tests=("tests/replication/test_election.py::test_a_leader_on_another_disk_is_no_leader",),
    ),
    Guard(
        name="leadership goes to who is in sync",
        why="an operator's transfer is proposed to a replica that lags",
        module="raftlog/replication/election.py",
        old="    if to not in state.isr or directory_of(to) != state.isr[to]:\n",
        new="    if to not in state.isr:\n",
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_leadership_does_not_move_to_a_dead_broker_or_an_empty_disk"
            ),
        ),
    ),
    Guard(
        name="a dead member of the ISR is not replaced",
        why="a copy that may be the only other one is dropped",
        module="raftlog/replication/election.py",
        old="    free = [broker for broker in dead if broker not in members]\n",
        new="    free = [broker for broker in dead if broker not in state.isr]\n",
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_a_dead_eligible_replica_stays_until_another_copy_is_in_sync"
            ),
        ),
    ),
    Guard(
        name="a surplus replica waits for the others",
        why="a copy is dropped while others are still being made",
        module="raftlog/replication/election.py",
        old="        if broker != state.leader and all(o in state.isr and is_live(o) for o in "
        "others):\n",
        new="        if broker != state.leader:\n",
        tests=(
            "tests/replication/test_election.py::test_a_replica_too_many_becomes_a_witness_again",
        ),
    ),
]

GUARDS: Final = [*STATES, *ELECTIONS]
