"""Calls that are banned by name, each with where it is banned and what to write in its place."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.tidy import sources
from tests.tidy.sources import Source


@dataclass(frozen=True)
class Ban:
    """``names`` may end in ``.*``; ``where`` and ``allowed`` are beginnings of paths."""

    names: tuple[str, ...]
    where: tuple[str, ...]
    instead: str
    allowed: tuple[str, ...] = ()

    def covers(self, source: Source) -> bool:
        return source.path.startswith(self.where) and not source.path.startswith(self.allowed)

    def hits(self, name: str) -> bool:
        return any(
            name == ban or name.startswith(ban[:-1]) for ban in self.names if ban[-1] == "*"
        ) or (name in self.names)


CODE = ("raftlog/", "cli/", "spark_source/", "jepsen_like/")
ALL = (*CODE, "tests/", "docs/")
PURE = (
    "raftlog/record/",
    "raftlog/replication/",
    "raftlog/consumer_groups/",
    "raftlog/protocol/",
    "raftlog/kafka/",
    "raftlog/security/",
    "raftlog/config/",
    "raftlog/types.py",
    "raftlog/limits.py",
    "raftlog/errors.py",
)

BANS = [
    Ban(
        ("time.sleep",),
        ("tests/",),
        "wait for what you wait for: a future, an event, `raftlog.testing.cluster.wait_until`",
    ),
    Ban(
        ("unittest.mock.*", "unittest.mock", "mock.*"),
        ("tests/",),
        "a fake from raftlog.testing; pytest's monkeypatch for the environment",
    ),
    Ban(
        ("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today", "time.time"),
        CODE,
        "take a raftlog.clock.Clock (or the milliseconds) as an argument",
        allowed=("raftlog/clock.py",),
    ),
    Ban(
        ("random.*", "secrets.*", "uuid.uuid4", "uuid.uuid1"),
        PURE,
        "take the number, or a random.Random, as an argument",
    ),
    Ban(
        ("random.random", "random.randint", "random.choice", "random.shuffle", "random.randrange"),
        ALL,
        "a random.Random(seed) of your own: the shared generator cannot be replayed",
    ),
    Ban(
        ("open", "os.open", "os.fsync", "os.fdatasync", "os.rename", "os.replace", "os.remove"),
        ("raftlog/storage/", *PURE),
        "raftlog.disk.Disk, so that the simulated disk sees it",
    ),
    Ban(
        ("os.fsync", "os.fdatasync", "os.rename", "os.replace"),
        ("raftlog/",),
        "raftlog.disk.Disk: durable file work has one home",
        allowed=("raftlog/disk.py", "raftlog/testing/"),
    ),
    Ban(
        ("pickle.*", "marshal.*", "shelve.*", "eval", "exec"),
        ALL,
        "msgspec or msgpack: bytes from outside must not become code",
        allowed=("raftlog/kafka/codec.py",),  # source from a constant table, as dataclasses do it
    ),
    Ban(
        ("print",),
        ("raftlog/",),
        "a logger; only raftlog_cli prints",
        allowed=("raftlog/server/main.py",),  # the process's first and last words, on stderr
    ),
    Ban(
        ("sys.exit", "exit", "quit", "os._exit"),
        ("raftlog/",),
        "raise a RaftlogError or return a status; raftlog_cli.main turns it into an exit status",
        allowed=("raftlog/server/main.py", "raftlog/testing/fork_server.py"),  # ends its forks
    ),
]


def uses(source: Source, ban: Ban) -> list[str]:
    return [
        f"{source.path}:{line} {name}: {ban.instead}"
        for line, name in source.origins
        if ban.hits(name)
    ]


@pytest.mark.parametrize("ban", BANS, ids=lambda ban: ban.names[0])
def test_banned_calls_are_not_used(ban: Ban) -> None:
    found = [
        use for source in sources.everything() if ban.covers(source) for use in uses(source, ban)
    ]
    assert not found, found


def test_a_ban_sees_through_import_forms() -> None:
    ban = BANS[0]
    forms = [
        "import time\ntime.sleep(1)",
        "from time import sleep\nsleep(1)",
        "import time as t\nt.sleep(1)",
        "from time import sleep as nap\nnap(1)",
    ]
    for form in forms:
        source = Source("tests/example.py")
        source.__dict__["text"] = form
        assert uses(source, ban), form
