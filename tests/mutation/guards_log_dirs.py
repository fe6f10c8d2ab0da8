"""Guards of log directories: a lost disk is damage of its replicas, and of nothing else."""

from __future__ import annotations

from typing import Final

from tests.mutation.change import always, drop, never, replace, value
from tests.mutation.guard import Guard

LOG_DIRS: Final = "raftlog/storage/log_dirs.py"
TOPIC_LOGS: Final = "raftlog/storage/store.py"
_STORE: Final = "tests/storage/test_opening.py"
_CLUSTER: Final = "tests/server/cluster/test_copies.py"

AT_THE_START: Final = [
    Guard(
        name="a known log directory is never created again",
        why="a missing mount is taken for an empty disk, and filled on another one",
        module=LOG_DIRS,
        function="LogDirs._lock_and_read",
        change=always("if make_dirs"),
        tests=(
            f"{_STORE}::test_a_directory_that_is_missing_at_the_start_is_damage_of_its_replicas",
        ),
    ),
    Guard(
        name="a bare mount point is no empty disk",
        why="the same, if the directory is the mount point itself",
        module=LOG_DIRS,
        function="LogDirs._lock_and_read",
        change=never("if is_mount ENODEV"),
        tests=(f"{_STORE}::test_a_mount_point_without_its_file_system_is_no_empty_disk",),
    ),
    Guard(
        name="a log directory with files has an identity",
        why="replicas of another broker are used, or other files are taken for replicas",
        module=LOG_DIRS,
        function="LogDirs._lock_and_read",
        change=never("if ENOENT"),
        tests=(f"{_STORE}::test_files_without_their_identity_are_not_used",),
    ),
    Guard(
        name="a log directory belongs to one data directory",
        why="a broker uses the replicas of another one, or of its own former data directory",
        module=LOG_DIRS,
        function="LogDirs._lock_and_read",
        change=never("if directory_id"),
        tests=(
            f"{_STORE}::test_the_directory_of_another_broker_is_refused",
            f"{_STORE}::test_a_directory_of_a_wiped_data_directory_is_refused",
        ),
    ),
    Guard(
        name="a log directory is not copied",
        why="the replicas of one copy are used, and written, as those of the other",
        module=LOG_DIRS,
        function="LogDirs.attach",
        change=never("if _by_id id"),
        tests=(f"{_STORE}::test_a_copy_of_another_one_is_refused",),
    ),
    Guard(
        name="no log directory is inside another one",
        why="one disk is taken for two, and its replicas for strays of the other",
        module=LOG_DIRS,
        function="_check_paths",
        change=never("if commonpath"),
        tests=(f"{_STORE}::test_one_directory_twice_or_inside_another_is_refused",),
    ),
    Guard(
        name="a removed log directory has no replicas",
        why="the broker forgets replicas that count as in sync",
        module=LOG_DIRS,
        function="LogDirs.attach",
        change=drop("call _check_unused"),
        tests=(f"{_STORE}::test_a_removed_directory_must_have_no_replicas",),
    ),
    Guard(
        name="logs opened before their disk failed are offline too",
        why="a broker serves replicas from a disk that has failed at the start",
        module="raftlog/storage/store.py",
        function="Store._open_logs",
        change=drop("call _check_log_dirs"),
        tests=(f"{_STORE}::test_a_disk_that_fails_between_two_logs_takes_down_both",),
    ),
]

AT_WORK: Final = [
    Guard(
        name="a failed disk takes down its replicas only",
        why="the broker ends, with the replicas on all its disks",
        module="raftlog/storage/log.py",
        function="Log._failed",
        change=never("if is_cause_of"),
        tests=(f"{_STORE}::test_a_failed_disk_takes_down_its_replicas_only",),
    ),
    Guard(
        name="a failure of the data directory ends the broker",
        why="the broker goes on without a record of its copies, which may then be lost unnoticed",
        module=LOG_DIRS,
        function="LogDir.is_cause_of",
        change=value("return path", "True"),
        tests=(f"{_STORE}::test_a_failure_of_the_data_directory_is_not_blamed_on_another_disk",),
    ),
    Guard(
        name="a missing log directory is offline",
        why="its replicas are created again on the disk below the mount point",
        module="raftlog/storage/log.py",
        function="Log._note_missing",
        change=drop("call check_place"),
        tests=(f"{_STORE}::test_a_directory_that_is_gone_is_not_made_again",),
    ),
    Guard(
        name="nothing is created in a log directory that is gone",
        why="new replicas are created on the disk below the mount point",
        module=TOPIC_LOGS,
        function="TopicLogs.create",
        change=drop("call check_place"),
        tests=(f"{_STORE}::test_nothing_is_created_where_another_disk_is_mounted",),
    ),
    Guard(
        name="an offline replica is not replaced",
        why="its files are moved, or created on another disk, while they may return",
        module="raftlog/server/cluster/replicas.py",
        function="next_step",
        change=never("if min_isr isr"),
        tests=("tests/server/cluster/test_replicas.py::test_an_offline_copy_is_not_replaced",),
    ),
    Guard(
        name="an offline replica stays in an ISR that needs it",
        why="another copy is elected without records that are on the offline disk",
        module="raftlog/server/cluster/replicas.py",
        function="next_step",
        change=replace("compare min_isr", "False"),
        tests=(
            (
                "tests/server/cluster/test_replicas.py"
                "::test_an_offline_copy_leaves_only_an_isr_that_can_do_without_it"
            ),
        ),
    ),
    Guard(
        name="no shorter copy is elected for an offline one",
        why="acknowledged records are truncated that are on a disk that may return",
        module="raftlog/server/cluster/elections.py",
        function="report_of",
        change=never("if is_offline"),
        tests=(
            "tests/server/cluster/test_elections.py::test_what_this_broker_reports_of_its_own_copies",
            f"{_CLUSTER}::test_the_only_complete_copy_is_waited_for",
        ),
    ),
    Guard(
        name="a recovery waits for an offline replica",
        why="an operator who accepts the loss of a disk also loses records on one that returns",
        module="raftlog/replication/election.py",
        function="plan",
        change=never("if is_offline"),
        tests=(
            (
                "tests/replication/test_election.py"
                "::test_a_copy_on_a_disk_that_may_return_is_waited_for"
            ),
        ),
    ),
    Guard(
        name="an offline log answers no request",
        why="clients receive an end offset below the one that they know",
        module="raftlog/server/partition.py",
        function="Partition._check_open",
        change=never("if is_offline"),
        tests=("tests/server/test_partition.py::test_an_offline_log_answers_nothing",),
    ),
    Guard(
        name="a follower appends nothing to a disk that hangs",
        why="a new segment holds up the event loop, and the whole broker",
        module="raftlog/server/partition.py",
        function="Partition.append_copied",
        change=never("if _is_disk_hung"),
        tests=(
            (
                "tests/server/cluster/test_upgrades.py"
                "::test_a_follower_on_another_disk_appends_nothing_while_that_hangs"
            ),
        ),
    ),
    Guard(
        name="a disk is tested without other work",
        why="a disk that is unmounted or read-only is noticed at the next write, which may be long",
        module="raftlog/server/broker.py",
        function="Broker._watch_space",
        change=drop("if is_expendable"),
        tests=(f"{_CLUSTER}::test_a_disk_without_work_that_fails_is_noticed",),
    ),
]

REMOVING: Final = [
    Guard(
        name="the copy in another log directory keeps its record",
        why="the loss of a replica that was placed again goes unnoticed",
        module="raftlog/storage/store.py",
        function="Store._remove_partitions",
        change=drop("filter holds"),
        tests=(f"{_STORE}::test_partitions_of_a_failed_directory_are_removed_when_it_is_back",),
    ),
    Guard(
        name="files in a failed log directory are removed later",
        why="an old copy is used when the broker becomes a replica again",
        module=TOPIC_LOGS,
        function="TopicLogs.remove_partitions",
        change=drop("filter failure"),
        tests=(f"{_STORE}::test_partitions_of_a_failed_directory_are_removed_when_it_is_back",),
    ),
    Guard(
        name="topics in a failed log directory are removed later",
        why="its records are kept after the deletion",
        module="raftlog/storage/store.py",
        function="Store._remove_files",
        change=always("if is_removed"),
        tests=(f"{_STORE}::test_a_topic_is_removed_from_a_failed_directory_when_it_is_back",),
    ),
    Guard(
        name="one copy of a partition is used",
        why="a former copy in another log directory stays for ever, and may be used later",
        module=TOPIC_LOGS,
        function="TopicLogs._quarantine_stray",
        change=value("assign directory", "True"),
        tests=(f"{_STORE}::test_old_copies_in_a_directory_that_is_added_again_are_moved_aside",),
    ),
]

GUARDS: Final = [*AT_THE_START, *AT_WORK, *REMOVING]
