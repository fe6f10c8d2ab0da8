"""Small functions, small modules that say what they hold, a test beside each, nothing left over."""

from __future__ import annotations

import ast
import re

from tests.tidy import sources
from tests.tidy.sources import ROOT, Source

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 1000
# Modules that hold one class whose invariants span all of its methods.
LARGER_MODULES = {"raftlog/storage/log.py": 1200}
UNFINISHED = re.compile(
    r"\b(" + "|".join(("FIX" + "ME", "TO" + "DO", "X" * 3, "HA" + "CK")) + r")\b"
)

# Modules without a file of tests that mirrors them, and the tests that cover them.
COVERED_BY = {
    "jepsen_like/raftlog_jepsen/nemesis/base.py": "tests/jepsen_like/nemesis/test_process.py",
    "raftlog/aio.py": "tests/test_exported_members.py",
    "raftlog/bench/group_idlers.py": "tests/bench/test_groups.py",
    "raftlog/bench/group_member.py": "tests/bench/test_groups.py",
    "raftlog/client/admin_arguments.py": "tests/client/test_admin.py",
    "raftlog/client/authentication.py": "tests/server/test_authentication.py",
    "raftlog/backup/source.py": "tests/backup/test_backup.py",
    "raftlog/backup/writer.py": "tests/backup/test_backup.py",
    "raftlog/client/batch_reader.py": "tests/mirror/test_mirror.py",
    "raftlog/client/partition_reader.py": "tests/client/test_range_reader.py",
    "raftlog/client/topic_ids.py": "tests/client/aio/test_admin.py",
    "raftlog/client/users.py": "tests/server/test_authentication.py",
    "cli/raftlog_cli/token.py": "tests/server/test_delegation_tokens.py",
    "raftlog/client/bearer_tokens.py": "tests/server/test_tokens.py",
    "raftlog/client/delegation_tokens.py": "tests/server/test_delegation_tokens.py",
    "raftlog/client/topic_changes.py": "tests/client/aio/test_admin.py",
    "raftlog/protocol/delegation_tokens.py": "tests/protocol/test_golden.py",
    "raftlog/server/handlers/delegation_tokens.py": "tests/server/test_delegation_tokens.py",
    "raftlog/server/kafka/handlers/delegation_tokens.py": "tests/server/test_delegation_tokens.py",
    "raftlog/server/requests/delegation_tokens.py": "tests/server/test_delegation_tokens.py",
    "raftlog/protocol/authentication.py": "tests/protocol/test_golden.py",
    "raftlog/mirror/session.py": "tests/mirror/test_mirror.py",
    "raftlog/server/cluster/first_user.py": "tests/server/test_authentication.py",
    "raftlog/mirror/source.py": "tests/mirror/test_mirror.py",
    "raftlog/server/context.py": "tests/server/handlers/test_fetch.py",
    "raftlog/server/handlers/sasl.py": "tests/server/test_authentication.py",
    "raftlog/server/handlers/users.py": "tests/server/test_authentication.py",
    "raftlog/server/kafka/handlers/sasl.py": "tests/kafka/clients/test_sasl.py",
    "raftlog/server/requests/append.py": "tests/server/handlers/test_produce.py",
    "raftlog/server/requests/authenticate.py": "tests/server/test_authentication.py",
    "raftlog/server/requests/deletion.py": "tests/server/handlers/test_records.py",
    "raftlog/server/requests/leaders.py": "tests/server/kafka/test_parts.py",
    "raftlog/server/requests/lookup.py": "tests/server/handlers/test_list_offsets.py",
    "raftlog/server/requests/read.py": "tests/server/handlers/test_fetch.py",
    "raftlog/server/requests/users.py": "tests/server/test_authentication.py",
    "cli/raftlog_cli/user.py": "tests/cli/test_up.py",
    "raftlog/testing/administrator.py": "tests/cli/test_security.py",
}


def lines(node: ast.AST) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_functions_fit_on_a_page() -> None:
    long = [
        f"{source.path}:{function.lineno} {function.name} has {lines(function)} lines"
        for source in sources.everything()
        for function in source.functions
        if lines(function) > FUNCTION_LINES_MAX
    ]
    assert not long, f"cut these to {FUNCTION_LINES_MAX} lines: {long}"


def test_modules_stay_small() -> None:
    big = [
        f"{source.path} has {count} lines, {allowed} are allowed"
        for source in sources.everything()
        if (count := source.text.count("\n"))
        > (allowed := LARGER_MODULES.get(source.path, MODULE_LINES_MAX))
    ]
    assert not big, f"split these by what they hold: {big}"


def test_modules_say_what_lives_in_them() -> None:
    silent = [s.path for s in sources.everything() if s.text.strip() and not opening(s)]
    assert not silent, f"open these with a docstring that says what lives there: {silent}"
    ragged = [s.path for s in sources.packages() if opening(s)[-1:] not in {".", "", ":", "?"}]
    assert not ragged, f"end the docstring's first paragraph as a sentence: {ragged}"


def opening(source: Source) -> str:
    """The first paragraph of the docstring."""
    return (ast.get_docstring(source.tree) or "").partition("\n\n")[0]


def test_packages_have_an_init_file() -> None:
    folders = {(ROOT / source.path).parent for source in sources.packages()}
    bare = [folder.relative_to(ROOT).as_posix() for folder in sorted(folders)
            if not (folder / "__init__.py").exists()]  # fmt: skip
    assert not bare, f"add an __init__.py with a docstring to: {bare}"


def mirror(source: Source) -> str:
    """``raftlog/record/batch.py`` -> ``tests/record/test_batch.py``; others keep their folder,
    as in ``tests/cli``.
    """
    path = source.path.removeprefix("raftlog/")
    for package in ("raftlog_cli/", "pyspark_raftlog/", "raftlog_jepsen/"):
        path = path.replace(package, "")
    folder, _, name = path.rpartition("/")
    return "/".join(part for part in ("tests", folder, f"test_{name}") if part)


def covering(source: Source) -> str:
    return COVERED_BY.get(source.path, mirror(source))


def test_every_module_has_its_test() -> None:
    missing = [
        f"{source.path} -> {mirror(source)}"
        for source in sources.packages()
        if source.functions
        and not source.path.endswith(("/__init__.py", "/__main__.py"))
        and not (ROOT / covering(source)).exists()
    ]
    assert not missing, f"write these: {missing}"


def test_exceptions_to_the_rules_still_stand() -> None:
    gone = [path for pair in COVERED_BY.items() for path in pair if not (ROOT / path).exists()]
    assert not gone
    covered = [source for source in sources.packages() if source.path in COVERED_BY]
    twice = [source.path for source in covered if (ROOT / mirror(source)).exists()]
    assert not twice, f"these have tests of their own: {twice}"


def test_nothing_is_left_unfinished() -> None:
    marks = [
        f"{source.path}:{number} {line.strip()}"
        for source in sources.everything()
        for number, line in enumerate(source.text.splitlines(), start=1)
        if UNFINISHED.search(line)
    ]
    assert not marks, f"do these or open an issue: {marks}"


def dotted_strings(source: Source) -> set[str]:
    """Modules may be loaded by name (the command table, lazy public names)."""
    nodes = (node for node in source.nodes if isinstance(node, ast.Constant))
    return {node.value.partition(":")[0] for node in nodes if isinstance(node.value, str)}


FORMER_NAMES = {"raftlog.cli", "raftlog.jepsen_like", "raftlog.spark_source"}


def test_no_module_is_dead() -> None:
    # The console script, and what users import.
    alive = {"raftlog_cli.main", "raftlog.tracing", *FORMER_NAMES}
    for source in sources.packages():
        alive |= {name for name in source.imported_modules if name != source.module}
        alive |= dotted_strings(source)
    dead = [
        source.path
        for source in sources.packages()
        if not source.path.endswith(("/__init__.py", "/__main__.py"))
        and not source.path.startswith("raftlog/testing/")  # tests and users import those
        and source.module not in alive
    ]
    assert not dead, f"nothing imports these: {dead}"
