"""The named scenarios, and the tests that stand for each. ``test_index`` holds it true.

``docs/contributing/scenarios.md`` is made of this table. Levels, from the cheapest: rules
(``replication``), virtual time (``consensus``, ``agreement``), one broker, real clusters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PURE: Final = "tests/replication/test_histories.py"
RULES: Final = "tests/replication/test_histories.py"
AGREEMENT: Final = "tests/scenarios/test_s_agreement.py"
BROKER: Final = "tests/scenarios/test_s_one_broker.py"
CLUSTER: Final = "tests/scenarios/test_s_clusters.py"
GROUPS: Final = "tests/scenarios/test_s_groups.py"
PAUSE: Final = "tests/integration/test_promises.py"
ALL: Final = "tests/integration/test_promises.py"
FULL: Final = "tests/integration/test_disks.py"
HUNG: Final = "tests/integration/test_disks.py"
DAMAGE: Final = "tests/integration/test_damage.py"
COMPACTION: Final = "tests/storage/test_compaction_crashes.py"
CRASHES: Final = "tests/storage/test_crash_points.py"


class Scenario(NamedTuple):
    """``told``: what happens, and what must not come of it. ``why_none``: why it has no test.

    ``name``: of a scenario in several parts, their names with `` / `` between; each is a test.
    """

    name: str
    noted: str
    tests: tuple[tuple[str, str], ...]  # (file, function)
    why_none: str = ""


def _named(path: str, *functions: str) -> tuple[tuple[str, str], ...]:
    return tuple((path, function) for function in functions)


SCENARIOS: Final[dict[str, Scenario]] = {
    "S01": Scenario(
        "hw_truncation_loss",
        "A follower starts again and keeps what lies above its own, stale high watermark; the "
        "leader dies at once (KIP-101).",
        _named(PURE, "test_s01_hw_truncation_loss"),
    ),
    "S02": Scenario(
        "hw_divergence_power",
        "Both lose tails that were not synced, and offsets are used again for other records "
        "(KIP-101).",
        _named(PURE, "test_s02_hw_divergence_power"),
    ),
    "S03": Scenario(
        "fast_failover_divergence",
        "Two elections without records: the leader answers for an epoch that it never had "
        "(KIP-279).",
        (
            *_named(RULES, "test_s03_fast_failover_divergence"),
            *_named(PURE, "test_s03_two_elections_without_records"),
        ),
    ),
    "S04": Scenario(
        "fetch_fencing",
        "A fetch of another epoch is refused and moves no watermark (KIP-320).",
        _named(PURE, "test_s04_fetch_fencing"),
    ),
    "S05": Scenario(
        "truncation_fenced",
        "What was said about truncation in an epoch is void in the next (Kip320.tla).",
        _named(PURE, "test_s05_truncation_fenced"),
    ),
    "S06": Scenario(
        "isr_expand_needs_epoch_start",
        "A follower at a stale watermark, below the start of the epoch, does not join the ISR.",
        _named(RULES, "test_s06_isr_expand_needs_epoch_start"),
    ),
    "S07": Scenario(
        "maximal_isr",
        "An ISR change is under way, rejected, or its answer is lost: the watermark waits for "
        "the union (KIP-497).",
        _named(RULES, "test_s07_maximal_isr"),
    ),
    "S08": Scenario(
        "stale_partition_epoch_cas",
        "An ISR change that comes after an election is refused (KIP-497).",
        _named(RULES, "test_s08_stale_partition_epoch_cas"),
    ),
    "S09": Scenario(
        "fenced_replica_join",
        "A broker that is dead, fenced or on its way out is not put into the ISR (KIP-841).",
        _named(RULES, "test_s09_fenced_replica_join"),
    ),
    "S10": Scenario(
        "reboot_aba",
        "Caught up, then rebooted with an empty disk: a late ISR change does not let it in "
        "(KIP-903).",
        (
            *_named(RULES, "test_s10_reboot_aba"),
            *_named(PURE, "test_s10_an_emptied_disk_is_not_elected_for_the_old_one"),
        ),
    ),
    "S11": Scenario(
        "last_replica_standing",
        "The ISR shrinks to one, which loses its tail: nobody truncates to it in silence "
        "(KIP-966).",
        _named(PURE, "test_s11_last_replica_standing"),
    ),
    "S12": Scenario(
        "unclean_member_excluded",
        "A restart without the mark of a clean end: out of the ISR until it has caught up, unless "
        "every acknowledgement was synced (KIP-966).",
        _named(PURE, "test_s12_unclean_member_excluded"),
    ),
    "S13": Scenario(
        "zombie_leader_min_isr_1",
        "A leader sleeps past every timeout and wakes beside its successor: it acknowledges "
        "nothing.",
        (
            *_named(PURE, "test_s13_zombie_leader_min_isr_1"),
            *_named(
                PAUSE,
                "test_s13_a_leader_that_was_paused",
                "test_s13_a_leader_that_would_be_alone_in_the_isr",
                "test_s13_a_leader_that_is_alone_and_sleeps_while_a_follower_joins",
            ),
        ),
    ),
    "S14": Scenario(
        "raft_leader_isolated",
        "A Raft leader without its majority steps down within about an election timeout, and "
        "passes no old news for new.",
        _named(AGREEMENT, "test_s14_raft_leader_isolated"),
    ),
    "S15": Scenario(
        "empty_epoch_cache",
        "Epochs without records outlive restarts; a follower behind the log start does not loop.",
        (
            *_named(RULES, "test_s15_empty_epoch_cache"),
            *_named(PURE, "test_s15_a_follower_behind_the_leaders_start_catches_up"),
        ),
    ),
    "S16": Scenario(
        "last_fetched_epoch_after_empty_fetch",
        "An empty answer does not clear what was fetched last (KAFKA-15510).",
        _named(PURE, "test_s16_last_fetched_epoch_after_empty_fetch"),
    ),
    "S17": Scenario(
        "same_epoch_after_restart",
        "A leader that starts again takes a new epoch: bytes may be gone (KAFKA-10527).",
        _named(PURE, "test_s17_same_epoch_after_restart"),
    ),
    "S18": Scenario(
        "sparse_epoch_cache",
        "An epoch cache that is damaged or old is rebuilt from the log; nothing is cut to 0.",
        _named(RULES, "test_s18_sparse_epoch_cache"),
    ),
    "S19": Scenario(
        "recreated_topic",
        "Same name, new id: the old copy is a stray, and is not merged (KAFKA-14616).",
        _named(CLUSTER, "test_s19_recreated_topic"),
    ),
    "S20": Scenario(
        "remove_readd_one_batch",
        "A replica that was removed and added again, empty, between two looks is not in sync.",
        _named(PURE, "test_s20_remove_readd_one_batch"),
    ),
    "S21": Scenario(
        "wiped_voter",
        "A broker returns with an empty disk: no vote and no acknowledgement until it is let in "
        "with the new one (KIP-853).",
        (
            *_named(AGREEMENT, "test_s21_wiped_voter"),
            *_named(CLUSTER, "test_s21_wiped_voter_on_disks"),
        ),
    ),
    "S22": Scenario(
        "swapped_disks / old_backup",
        "Disks that were swapped, or put back from a backup, are found out at the start.",
        _named(CLUSTER, "test_s22_swapped_disks", "test_s22_old_backup"),
    ),
    "S23": Scenario(
        "witness_matrix",
        "2n-1 voters, n copies: every set of n-1 brokers may be gone; a witness may be Raft "
        "leader, and never leads the partition.",
        (
            *_named(
                AGREEMENT,
                "test_s23_witness_matrix_of_votes",
                "test_s23_witness_matrix_of_copies",
            ),
            *_named(PURE, "test_s23_any_one_of_three_brokers_may_be_gone_with_two_copies"),
        ),
    ),
    "S24": Scenario(
        "metadata_commit_before_use",
        "A broker acts on what was committed only; what was proposed leaves no trace.",
        _named(
            PURE,
            "test_s24_metadata_commit_before_use",
            "test_s24_nobody_acts_on_an_older_state_after_a_restart",
        ),
    ),
    "S25": Scenario(
        "ack_after_hw_only",
        "Appended, and the epoch is lost before the watermark is there: unknown, and never ok.",
        _named(BROKER, "test_s25_ack_after_hw_only"),
    ),
    "S26": Scenario(
        "read_below_hw_only",
        "What is not committed is shown to nobody, also while leadership changes.",
        _named(BROKER, "test_s26_read_below_hw_only"),
    ),
    "S27": Scenario(
        "idempotent_across_failover",
        "A retry to the new leader, after retention and restarts, is known for what it is.",
        _named(
            CLUSTER,
            "test_s27_idempotent_across_failover",
            "test_s27_what_was_deleted_stays_deleted_when_the_leader_changes",
        ),
    ),
    "S28": Scenario(
        "corrupt_tail_vs_corrupt_middle",
        "A torn end is cut; bad bytes below it are set aside and copied again, never truncated.",
        _named(CLUSTER, "test_s28_corrupt_tail_vs_corrupt_middle"),
    ),
    "S29": Scenario(
        "corrupt_snapshot_minority / corrupt_meta_minority",
        "Damaged snapshots, or damaged state, on a minority delete and overwrite nothing of the "
        "others'.",
        (
            *_named(
                CLUSTER, "test_s29_corrupt_snapshot_minority", "test_s29_corrupt_meta_minority"
            ),
            *_named(BROKER, "test_s29_corrupt_journal_is_refused"),
        ),
    ),
    "S30": Scenario(
        "fsync_error_is_fatal",
        "A failed fsync ends the process; the next start looks at what the disk holds.",
        _named(BROKER, "test_s30_fsync_error_is_fatal"),
    ),
    "S31": Scenario(
        "disk_full",
        "Writes are refused, reads go on, and writes resume when there is room. With replicas that "
        "have room, they go on without that broker.",
        (
            *_named(BROKER, "test_s31_disk_full"),
            *_named(FULL, "test_s31_the_leaders_disk_is_full"),
        ),
    ),
    "S32": Scenario(
        "read_only",
        "A file system that turns read-only: no write is told ok, and nothing is harmed.",
        _named(BROKER, "test_s32_read_only"),
    ),
    "S33": Scenario(
        "fd_exhaustion",
        "The listener outlives a time without file descriptors.",
        _named(BROKER, "test_s33_fd_exhaustion"),
    ),
    "S34": Scenario(
        "partial_connectivity_quorum_loss / partial_connectivity_constrained / "
        "partial_connectivity_chained",
        "Quorum loss, constrained, chained: whoever reaches a majority leads within a bound, if it "
        "has what was agreed on.",
        _named(
            AGREEMENT,
            "test_s34_partial_connectivity_quorum_loss",
            "test_s34_partial_connectivity_constrained",
            "test_s34_partial_connectivity_constrained_to_one_that_lags",
            "test_s34_partial_connectivity_chained",
        ),
    ),
    "S35": Scenario(
        "disruptive_rejoin",
        "A voter that returns with a high term costs one election at most (KIP-996).",
        _named(AGREEMENT, "test_s35_disruptive_rejoin"),
    ),
    "S36": Scenario(
        "slow_follower_drops_from_isr / slow_leader_disk",
        "A follower that stands still leaves the ISR, and latency is what it was. A leader whose "
        "disk hangs, or is slower than the others', hands over.",
        (
            *_named(CLUSTER, "test_s36_slow_follower_drops_from_isr"),
            *_named(HUNG, "test_s36_slow_leader_disk", "test_s36_slow_leader_disk_that_hangs"),
        ),
    ),
    "S37": Scenario(
        "kill_during_compaction / kill_during_snapshot / kill_during_rewrite",
        "The process ends at any step of compacting a topic, of saving a snapshot of a log, or of "
        "rewriting the consensus journal.",
        (
            *_named(COMPACTION, "test_s37_kill_during_compaction_at_every_step"),
            *_named(CRASHES, "test_s37_kill_during_snapshot_at_every_step"),
            *_named(BROKER, "test_s37_kill_during_rewrite_at_every_step"),
        ),
    ),
    "S38": Scenario(
        "membership_overlap",
        "A second change of replicas or voters, while one is open, is refused.",
        _named(
            AGREEMENT,
            "test_s38_membership_overlap",
            "test_s38_membership_overlap_of_replacements",
            "test_s38_membership_overlap_of_voters",
        ),
    ),
    "S39": Scenario(
        "group_offset_durability",
        "A committed position outlives power cuts: its coordinator's, and all brokers' at once.",
        _named(GROUPS, "test_s39_group_offset_durability"),
    ),
    "S40": Scenario(
        "all_power_cut",
        "All brokers lose power at once, under load: nothing that was acknowledged is lost.",
        _named(ALL, "test_s40_all_power_cut"),
    ),
    "S41": Scenario(
        "files_vanish_while_down / files_vanish_at_work / record_of_copies_vanishes / "
        "segment_vanishes",
        "Directories of partitions, or one segment, are removed: from stopped brokers, or under "
        "running ones. The copies are made again, and no empty copy leads.",
        _named(
            DAMAGE,
            "test_s41_files_vanish_while_down",
            "test_s41_files_vanish_at_work",
            "test_s41_record_of_copies_vanishes",
            "test_s41_segment_vanishes_under_its_leader",
        ),
    ),
}
