"""Registry of nemeses: their kinds of fault and the requirements of these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from raftlog_jepsen.nemesis.administration import AdministrationNemesis
from raftlog_jepsen.nemesis.base import Nemesis
from raftlog_jepsen.nemesis.clocks import ClocksNemesis
from raftlog_jepsen.nemesis.damage import DamageNemesis
from raftlog_jepsen.nemesis.disks import DisksNemesis
from raftlog_jepsen.nemesis.failpoints import FailpointsNemesis
from raftlog_jepsen.nemesis.links import LinksNemesis
from raftlog_jepsen.nemesis.losses import LossesNemesis
from raftlog_jepsen.nemesis.members import MembersNemesis
from raftlog_jepsen.nemesis.membership import MembershipNemesis
from raftlog_jepsen.nemesis.network import NetworkNemesis
from raftlog_jepsen.nemesis.power import PowerNemesis
from raftlog_jepsen.nemesis.process import ProcessNemesis
from raftlog_jepsen.nemesis.resources import ResourcesNemesis
from raftlog_jepsen.nemesis.vanishing import VanishNemesis


class Home(NamedTuple):
    """Some kinds of one nemesis. ``maker``: creates it from a cluster and its fault budget.

    ``needs``: requirements of the kinds, see ``cluster.Needs``.
    """

    maker: Callable[[Any, Any], Nemesis]
    kinds: tuple[str, ...]
    needs: tuple[str, ...] = ()


HOMES: Final[tuple[Home, ...]] = (
    Home(ProcessNemesis, ("kill", "storm", "pause")),
    Home(NetworkNemesis, ("partition", "one-way"), ("namespaces",)),
    Home(NetworkNemesis, ("slow-link",), ("namespaces",)),
    Home(
        LinksNemesis,
        ("link-delay", "link-stall", "link-reset", "link-garble", "link-late"),
        ("relays", "client_relays"),
    ),
    Home(PowerNemesis, ("power",), ("loop_disks",)),
    Home(DisksNemesis, ("disk-full", "read-only", "disk-error"), ("loop_disks",)),
    Home(
        FailpointsNemesis,
        ("crash-at", "slow-disk", "hung-disk", "pause-inside", "disk-error-at"),
        ("failpoints",),
    ),
    Home(DamageNemesis, ("corrupt", "truncate", "rollback")),
    Home(LossesNemesis, ("wipe", "swap-disks", "old-backup")),
    Home(VanishNemesis, ("vanish",)),
    Home(ClocksNemesis, ("clock-jump", "clock-strobe"), ("fake_time",)),
    Home(ClocksNemesis, ("clock-bases",), ("time_namespaces",)),
    Home(ResourcesNemesis, ("fds", "memory", "cpu")),
    Home(AdministrationNemesis, ("transfer", "topics", "settings")),
    Home(MembershipNemesis, ("decommission", "reassign", "replication-factor", "rolling-restart")),
    Home(MembersNemesis, ("member-kill", "member-pause", "member-churn")),
    Home(MembersNemesis, ("member-partition",), ("namespaces", "member_places")),
)

KINDS: Final[Mapping[str, Home]] = {kind: home for home in HOMES for kind in home.kinds}

# Group names: each expands to several kinds.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "process": ("kill", "storm", "pause"),
    "network": ("partition", "one-way", "slow-link"),
    "links": ("link-delay", "link-stall", "link-reset", "link-garble", "link-late"),
    "disk": ("disk-full", "read-only", "disk-error", "slow-disk", "hung-disk", "disk-error-at"),
    "damage": ("corrupt", "truncate", "rollback"),
    "losses": ("wipe", "swap-disks", "old-backup", "vanish"),
    "clocks": ("clock-jump", "clock-strobe", "clock-bases"),
    "resources": ("fds", "memory", "cpu"),
    "admin": ("transfer", "topics", "settings"),
    "membership": ("decommission", "reassign", "replication-factor", "rolling-restart"),
    "members": ("member-kill", "member-pause", "member-churn", "member-partition"),
    "all": tuple(KINDS),
}


def expand(names: Sequence[str]) -> tuple[str, ...]:
    """Return the kinds that ``names`` of kinds and groups expand to, each once, in order.

    Raises ``ValueError`` if a name is unknown.
    """
    kinds: dict[str, None] = {}
    for name in names:
        if name not in KINDS and name not in GROUPS:
            raise ValueError(
                f"unknown kind of fault {name!r}. Use {', '.join(KINDS)}, or a "
                f"group: {', '.join(GROUPS)}"
            )
        kinds |= dict.fromkeys(GROUPS.get(name, (name,)))
    return tuple(kinds)


def needs_of(kinds: Collection[str]) -> set[str]:
    """Return the requirements of these kinds: names of fields of ``cluster.Needs``."""
    return {need for kind in kinds for need in KINDS[kind].needs}


def make(kinds: Collection[str], cluster: Any, ledger: Any) -> dict[str, Nemesis]:
    """Create the nemesis of each kind. Kinds of the same class share one object."""
    makers = {KINDS[kind].maker for kind in kinds}
    made = {maker: maker(cluster, ledger) for maker in makers}
    return {kind: made[KINDS[kind].maker] for kind in kinds}
