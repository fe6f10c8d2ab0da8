"""Guards of how a cluster begins: that there is one, and that its voters are who was there."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

_FOUNDING: Final = "raftlog/server/cluster/founding.py"
_TESTS: Final = "tests/server/cluster/test_founding.py"

GUARDS: Final = [
    Guard(
        name="a cluster is founded once every voter was seen",
        why="two empty disks are a majority of three: a second cluster without topics",
        module=_FOUNDING,
        old="    if missing:\n",
        new="    if len(missing) > len(founders) // 2:\n",
        tests=(f"{_TESTS}::test_two_lost_disks_join_the_third_and_found_nothing",),
    ),
    Guard(
        name="who sees a cluster founds none",
        why="an empty disk and the operator's word make a second cluster beside one that lives",
        module=_FOUNDING,
        old="        if voter in seen and seen[voter].cluster_id:\n",
        new="        if voter in seen and seen[voter].cluster_id and not without:\n",
        tests=(f"{_TESTS}::test_who_sees_a_cluster_joins_it",),
    ),
    Guard(
        name="one broker founds the cluster",
        why="two brokers found one each at the same moment",
        module=_FOUNDING,
        old="    if founders[0] != broker_id:\n",
        new="    if founders[-1] < broker_id:\n",
        tests=(
            (f"{_TESTS}::test_the_first_voter_founds_once_all_are_seen_and_none_was_in_a_cluster"),
        ),
    ),
    Guard(
        name="a state of another cluster is not taken over",
        why="a broker that met two clusters forgets the one it belongs to",
        module="raftlog/replication/cluster_state.py",
        old='        if before.cluster_id not in {"", after.cluster_id}:\n',
        new='        if before.cluster_id == "x":\n',
        tests=("tests/replication/test_cluster_state.py::test_a_cluster_is_named_once",),
    ),
    Guard(
        name="what a broker said of itself holds when the link comes about",
        why="a broker counts as one without a cluster that has joined one in between",
        module="raftlog/server/peers/peering.py",
        old="        if me != answering.me:\n",
        new="        if me.broker_id != answering.me.broker_id:\n",
        tests=(
            (
                "tests/server/peers/test_peering.py"
                "::test_an_answer_that_is_out_of_date_brings_no_connection_about"
            ),
        ),
    ),
    Guard(
        name="brokers with other voters do not work together",
        why="a broker with a wrong list becomes a cluster of its own",
        module="raftlog/protocol/peer_auth.py",
        old="    if me.voters != peer.voters:\n",
        new="    if me.voters > peer.voters:\n",
        tests=("tests/protocol/test_peer_auth.py::test_another_list_of_voters_is_another_cluster",),
    ),
]
