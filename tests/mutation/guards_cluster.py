"""Guards of what the cluster agrees on: brokers, topics, producer ids."""

from __future__ import annotations

from typing import Final

from tests.mutation.guard import Guard

CLUSTER: Final = [
    Guard(
        name="an old copy of a broker does not register",
        why="a disk that was put back leads with what it forgot (S22)",
        module="raftlog/replication/cluster_state.py",
        old="    if wanted.boot < held.boot:\n",
        new="    if wanted.boot < 0:\n",
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_registration_that_cannot_be_the_same_broker_is_refused"
            ),
        ),
    ),
    Guard(
        name="a broker id has one live disk",
        why="two brokers with one id take each other's place (S22)",
        module="raftlog/replication/cluster_state.py",
        old="        if not held.fenced:\n",
        new="        if held.boot < 0:\n",
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_registration_that_cannot_be_the_same_broker_is_refused"
            ),
        ),
    ),
    Guard(
        name="a copy of a live directory does not register",
        why="two processes have one directory id",
        module="raftlog/replication/cluster_state.py",
        old="    if wanted.boot == held.boot and not held.fenced:\n",
        new="    if wanted.boot < 0 and not held.fenced:\n",
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_registration_that_cannot_be_the_same_broker_is_refused"
            ),
        ),
    ),
    Guard(
        name="fencing is for one registration",
        why="a broker that is back is fenced for what an older run did (KIP-903)",
        module="raftlog/replication/cluster_state.py",
        old="        if held.broker_epoch != command.broker_epoch:\n",
        new="        if command.broker_epoch < 0:\n",
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_broker_epoch_grows_at_every_registration"
            ),
        ),
    ),
    Guard(
        name="a registration begins fenced",
        why="a broker is counted on before it serves",
        module="raftlog/replication/cluster_state.py",
        old="            fenced=True,\n",
        new="            fenced=False,\n",
        tests=(
            "tests/replication/test_cluster_state.py::test_a_broker_is_fenced_until_it_is_let_in",
        ),
    ),
    Guard(
        name="replicas are noted by version",
        why="an older assignment takes the place of a newer one",
        module="raftlog/replication/cluster_state.py",
        old="        if command.version <= held.version:\n",
        new="        if command.version < 0:\n",
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_replicas_follow_what_the_partition_has_agreed_on"
            ),
        ),
    ),
    Guard(
        name="min.insync.replicas can be met",
        why="nothing can ever be committed",
        module="raftlog/replication/cluster_state.py",
        old="    if config.min_insync_replicas > replication_factor:\n",
        new="    if config.min_insync_replicas < 0:\n",
        tests=("tests/replication/test_cluster_state.py::test_a_topic_that_cannot_be_is_refused",),
    ),
    Guard(
        name="a deletion is of one topic id",
        why="a deletion that is repeated takes the topic that was created since (S19)",
        module="raftlog/replication/cluster_state.py",
        old="        if command.topic_id not in (None, topic.id):\n",
        new='        if command.topic_id == "":\n',
        tests=(
            (
                "tests/replication/test_cluster_state.py"
                "::test_a_deletion_may_be_repeated_and_leaves_a_namesake_alone"
            ),
        ),
    ),
    Guard(
        name="producer ids cannot be guessed",
        why="a stranger's batch under the next id passes for the producer's own, which is dropped",
        module="raftlog/server/producer_ids.py",
        old="    return int.from_bytes(entropy(8)) >> (64 - PRODUCER_ID_BITS)\n",
        new="    return int.from_bytes(entropy(1))\n",
        tests=("tests/server/test_producer_ids.py",),
    ),
    Guard(
        name="producer ids are not those of names",
        why="a producer gets the id of another one's name, and its records pass for duplicates",
        module="raftlog/server/producer_ids.py",
        old="PRODUCER_ID_BITS: Final = 62\n",
        new="PRODUCER_ID_BITS: Final = 63\n",
        tests=("tests/server/test_producer_ids.py",),
    ),
]

GUARDS: Final = [*CLUSTER]
