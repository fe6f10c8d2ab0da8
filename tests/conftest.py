"""What every test gets: Hypothesis profiles, a seed, and the command that repeats a failure.

No fixtures of one package live here; they stand in that package's own ``conftest.py``.
"""

from __future__ import annotations

import gc
import itertools
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from raftlog.errors import InvalidRequestError
from raftlog.protocol import api, schema

if TYPE_CHECKING:
    from raftlog.testing import Cluster
    from raftlog.testing.certificates import Certificates

pytest_plugins = ["raftlog.testing.pytest_plugin", "tests.kinds"]

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "dev")

# None has a deadline: a busy machine is no reason to fail. Examples are random: the run's seed, of
# this commit or of this night, decides them.
settings.register_profile(
    "dev",
    max_examples=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=60)
settings.register_profile("nightly", settings.get_profile("dev"), max_examples=2_000)
settings.load_profile(PROFILE)

ROOT = Path(__file__).resolve().parents[1]
SEED_WITHOUT_GIT = 20_240_229

# The tests of one file go to one worker: they may share a cluster, or a recording. Those of this
# place share a Spark session.
TOGETHER = ("tests/spark_source/",)
# These take long and share nothing: each goes to the worker that is free.
APART = (
    "tests/cli/test_demo.py",
    "tests/integration/test_damage.py",
    "tests/integration/test_promises.py",
    "tests/scenarios/test_s_clusters.py",
    "tests/simulation/",
    "tests/storage/test_compaction_crashes.py",
    "tests/storage/test_replica_crashes.py",
)
COLLECT_EVERY = 100  # tests


def pytest_configure(config: pytest.Config) -> None:
    """Choose the run's seed before xdist starts its workers, so that all have the same."""
    if "RAFTLOG_SEED" not in os.environ:
        seed = secrets.randbelow(1 << 32) if PROFILE == "nightly" else seed_of_commit()
        os.environ["RAFTLOG_SEED"] = str(seed)
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = os.environ["RAFTLOG_SEED"]
    # A shell starts jobs in the background with it ignored: tests of Ctrl-C would hang.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def seed_of_commit() -> int:
    """Return a number from the hash of HEAD: another for each commit, the same for all its runs."""
    git = ("git", "rev-parse", "HEAD")
    with suppress(OSError):
        done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return int(done.stdout[:8], 16)
    return SEED_WITHOUT_GIT


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collections of garbage would take a quarter of the time: almost all stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # it is xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """The tests of a file are one worker's, but for ``TOGETHER`` and ``APART``.

    By path: ``--dist loadgroup`` of xdist 3.8 sees no groups under pytest 9.2. In the order of
    ``pytest_collection_modifyitems``: by number of tests, the longest of ``APART`` would be last.
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(APART):
                return nodeid
            file = nodeid.partition("::")[0]
            return next((place for place in TOGETHER if nodeid.startswith(place)), file)

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest go first, so that no worker ends alone: those on Spark, whole simulated clusters,
    and ``APART``. Then files with tests of real brokers, which wait, among those that compute.
    """
    real = {item.path for item in items if item.get_closest_marker("integration")}
    files = dict.fromkeys(item.path for item in items)
    place = {
        path: (number + 0.5) / len(group)
        for group in ([p for p in files if p in real], [p for p in files if p not in real])
        for number, path in enumerate(group)
    }

    def rank(item: pytest.Item) -> tuple[int, float]:
        if item.nodeid.startswith(TOGETHER):
            return 0, 0.0
        if item.get_closest_marker("simulated") is not None:
            return 1, 0.0
        return (2, 0.0) if item.nodeid.startswith(APART) else (3, place[item.path])

    items.sort(key=rank)


def pytest_runtest_logfinish() -> None:
    """What is left after many tests stays: collections of garbage, some tests' own, pass it by."""
    if next(_finished) % COLLECT_EVERY == 0:
        gc.collect()
        gc.freeze()


_finished = itertools.count(1)


def pytest_collection_finish() -> None:
    """Ten thousand tests stay to the end: collections of garbage, some tests' own, pass them by.

    msgspec evaluates the limits in a message's annotations with the first use of its decoder. If a
    test has changed one by then, the others of its process would get the changed limit.
    """
    for made in vars(api).values():
        if isinstance(made, api.Api):
            for message_type in (made.request, made.response):
                with suppress(InvalidRequestError):
                    schema.decode(b"", message_type)
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str:
    return f"raftlog: HYPOTHESIS_PROFILE={PROFILE} RAFTLOG_SEED={os.environ['RAFTLOG_SEED']}"


# Programs that some tests need, as the reasons of skipped tests name them, and Debian's packages.
PACKAGES = {
    "buildah": "buildah",
    "kubectl": "kubernetes-client",
    "promtool": "prometheus",
    "systemd-analyze": "systemd",
    "libfaketimeMT": "faketime",
    "mkfs.ext4": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "ip": "iproute2",
    "bridge": "iproute2",
    "tc": "iproute2",
}
# The same for distributions of Python, which are in the extra `nightly`.
DISTRIBUTIONS = ("check-jsonschema", "kubernetes-validate")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Seeds that ran, and what to install for tests that were skipped for want of a program."""
    passed = terminalreporter.stats.get("passed", ())
    for report in passed:
        for name, count in report.user_properties:
            terminalreporter.line(f"{report.nodeid.partition('::')[2]}: {count:,} {name}")
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", ())]
    missing = [(reason, program) for reason in reasons for program in (*PACKAGES, *DISTRIBUTIONS)
               if re.search(rf"\bno (.*, )?{re.escape(program)}\b", reason)]  # fmt: skip
    if missing:
        programs = {program for _reason, program in missing}
        packages = " ".join(sorted({PACKAGES[program] for program in programs & PACKAGES.keys()}))
        count = len({reason for reason, _program in missing})
        terminalreporter.section("optional programs")
        terminalreporter.line(f"skipped for want of a program: {count} places in the tests")
        if packages:
            terminalreporter.line(f"to run them, too (Debian): apt install {packages}")
        if programs & set(DISTRIBUTIONS):
            terminalreporter.line("to run them, too: pip install -e '.[nightly]'")


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a figure that is part of the result, whether or not the test passes."""

    def noted(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return noted


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Three brokers that the tests of a module share."""
    from raftlog.testing import cluster

    with cluster(brokers=3, with_relays=False) as running:
        yield running


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A CA, a certificate of local brokers and one of clients, for all tests of the run."""
    from raftlog.testing import certificates

    return certificates.create(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def seed() -> int:
    """The run's seed. A test that needs chance makes its own ``random.Random(seed)``."""
    return int(os.environ["RAFTLOG_SEED"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test that used chance says what replays it."""
    report = yield
    is_random = "seed" in getattr(item, "fixturenames", ()) or item.get_closest_marker("hypothesis")
    if report.failed and is_random:
        replay = (
            f"HYPOTHESIS_PROFILE={PROFILE} RAFTLOG_SEED={os.environ['RAFTLOG_SEED']} "
            f"{sys.executable} -m pytest '{item.nodeid}'"
        )
        report.sections.append(("to run this again", replay))
    return report
