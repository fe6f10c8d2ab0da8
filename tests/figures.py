"""Print how large the code is, and how many modules a value passes.

    python -m tests.figures
    python -m tests.figures --against REV     beside the files and lines of a commit

A *walk* is counted in a simulated cluster of three brokers with one client, in one process: the
product's functions that are called between a request and its outcome, in three of four windows, so
that periodic work is left out. Files and lines are those of git.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = ("raftlog", "cli", "spark_source", "jepsen_like")
WINDOWS: Final = 4
SMALL_LINES: Final = 120


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--against", metavar="REV", help="a commit to compare with")
    arguments.add_argument("--files", action="store_true", help="no walks")
    chosen = arguments.parse_args()
    columns = [("this tree", figures() if chosen.files else figures() | walks())]
    if chosen.against:
        columns.insert(0, (chosen.against, figures_of(chosen.against)))
    print("| figure |" + "".join(f" {name} |" for name, _ in columns))
    print("|---|" + "---:|" * len(columns))
    for name in columns[-1][1]:
        print(f"| {name} |" + "".join(f" {found.get(name, '')} |" for _, found in columns))


def figures_of(revision: str) -> dict[str, int | str]:
    """The figures of a commit, which this file counts in its tree: its walks need its modules."""
    with tree_of(revision) as directory:
        own = directory / "tests" / Path(__file__).name
        own.write_bytes(Path(__file__).read_bytes())
        ran = subprocess.run(
            [sys.executable, "-m", "tests.figures", "--files"],
            cwd=directory,
            capture_output=True,
            text=True,
            check=True,
        )
    rows = [line.split("|") for line in ran.stdout.splitlines()[2:]]
    return {row[1].strip(): row[2].strip() for row in rows}


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A directory with the files of a commit."""
    with tempfile.TemporaryDirectory(prefix="raftlog-tree-") as directory:
        git("worktree", "add", "--detach", "--quiet", directory, revision)
        try:
            yield Path(directory)
        finally:
            git("worktree", "remove", "--force", directory)


def git(*words: str) -> str:
    done = subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


# -- files -----------------------------------------------------------------------------------------


def figures() -> dict[str, int | str]:
    listed = [line.split() for line in git("ls-files", "-s").splitlines()]
    paths = [words[-1] for words in listed]
    product = {path: text(path) for path in paths if is_python(path, PACKAGES)}
    tests = {path: text(path) for path in paths if is_python(path, ("tests",))}
    found: dict[str, int | str] = {
        "product files": len(product),
        "product lines": lines(product),
        "product lines with a comment, %": comments(product),
        "test files": len(tests),
        "test lines": lines(tests),
        "symbolic links": sum(words[0] == "120000" for words in listed),
    }
    importers = importers_of(product)
    found["modules with one importer, under 120 lines"] = sum(
        len(importers[path]) == 1 and text.count("\n") < SMALL_LINES
        for path, text in product.items()
    )
    found["modules in circles of imports"] = len(circles(importers))
    return found


def is_python(path: str, places: tuple[str, ...]) -> bool:
    return path.endswith(".py") and path.partition("/")[0] in places


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def lines(sources: dict[str, str]) -> int:
    return sum(source.count("\n") for source in sources.values())


def comments(sources: dict[str, str]) -> str:
    ours = sum(
        line.lstrip().startswith("#") or "  # " in line
        for source in sources.values()
        for line in source.splitlines()
    )
    return f"{100 * ours / lines(sources):.1f}"


def importers_of(product: dict[str, str]) -> dict[str, set[str]]:
    """The modules that import each one when they are loaded."""
    names = {module_of(path): path for path in product}
    importers: dict[str, set[str]] = {path: set() for path in product}
    for path, source in product.items():
        for node in ast.parse(source).body:
            for name in imported(node):
                if name in names:
                    importers[names[name]].add(path)
    return importers


def module_of(path: str) -> str:
    parts = path.removesuffix(".py").split("/")
    if parts[0] in PACKAGES[1:]:
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def circles(importers: dict[str, set[str]]) -> set[str]:
    """The modules that import each other in a loop, but for packages."""
    left = {path: set(found) for path, found in importers.items()}
    while True:
        used = set().union(*left.values())
        ends = {p for p in left if not left[p] or p not in used or p.endswith("__init__.py")}
        if not ends:
            return set(left)
        left = {path: found - ends for path, found in left.items() if path not in ends}


# -- walks -----------------------------------------------------------------------------------------


def walks() -> dict[str, int | str]:
    from raftlog.client.administration.admin import AsyncAdmin
    from raftlog.client.aio.clients import AsyncProducer
    from raftlog.testing.simulator.kafka import KafkaClient, KafkaProducer
    from raftlog.testing.simulator.world import ClientMachine, World
    from raftlog.types import NewTopic

    with World(1, brokers=3) as world:
        world.boot()
        found: dict[str, int | str] = {}

        async def program(machine: ClientMachine) -> None:
            settings: dict[str, Any] = {"bootstrap": world.bootstrap, "host": machine.host()}
            async with AsyncAdmin(**settings) as admin:
                names = iter(range(100))

                async def create() -> None:
                    await admin.create_topics(
                        [NewTopic(f"t{next(names)}", partitions=1, replication_factor=3)]
                    )

                await create()
                found["modules of `topic create`"] = await walk(create)
            async with AsyncProducer(**settings) as producer:

                async def send() -> None:
                    await (await producer.send("t0", b"value"))

                await send()
                found["modules of a produced record"] = await walk(send)
            brokers = [broker.address for broker in world.brokers]
            kafka = KafkaProducer(
                KafkaClient(machine, brokers, "t0"),
                acks=-1,
                idempotent=True,
                compression="none",
                linger_ms=0,
                delivery_timeout_ms=30_000,
            )

            async def send_by_kafka() -> None:
                await (await kafka.send("t0", b"value", partition=0))

            await send_by_kafka()
            found["modules of a record of a Kafka client (the broker's)"] = await walk(
                send_by_kafka
            )
            await kafka.close(10.0)

        machine = world.add_client("client", program)
        machine.start()
        assert world.run_until(lambda: machine.is_done, limit_s=600.0), "the walks do not end"
        world.check()
    return found


async def walk(step: Callable[[], Awaitable[object]]) -> int:
    """The product's modules with a function that most windows call, and most idle ones do not."""
    busy: Counter[tuple[str, str]] = Counter()
    idle: Counter[tuple[str, str]] = Counter()
    loop = asyncio.get_running_loop()
    for _ in range(WINDOWS):
        await asyncio.sleep(1)
        began = loop.time()
        busy.update(await called_in(step))
        idle.update(await called_in(partial(asyncio.sleep, loop.time() - began)))
    usual = {at for at, count in busy.items() if count >= WINDOWS - 1 > idle[at]}
    files = {Path(file) for file, _ in usual}
    product = {str(file.relative_to(ROOT)) for file in files if file.is_relative_to(ROOT)}
    return sum(is_python(path, PACKAGES) and "testing" not in path for path in product)


async def called_in(step: Callable[[], Awaitable[object]]) -> set[tuple[str, str]]:
    """The functions that are called until ``step`` has ended: file and name."""
    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        await step()
    finally:
        sys.setprofile(None)
    return seen


if __name__ == "__main__":
    main()
