"""Installation of Kafka, and of the clients that ``make kafka-peers`` runs, outside of the
repository.

    python -m tests.kafka_peers.install [STEP ...]     (default: all steps)

Downloads through Maven, Go, npm, pip and Git into ``kafka-peers`` of the virtual environment.
What is there and newer than its sources is kept. The step ``kafka`` is all that
``make kafka-differential`` requires.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
CACHE = Path(sys.prefix) / "kafka-peers"
JAVA_LIBRARY = CACHE / "java/lib"
FLINK_LIBRARY = CACHE / "flink/lib"
SPARK_LIBRARY = CACHE / "spark/lib"
PYSPARK = CACHE / "spark/python"
PYTHON_LIBRARY = CACHE / "python/lib"
KAFKA_PYTHON = CACHE / "python/kafka-python"
FRAMEWORKS = CACHE / "frameworks"
CONFLUENT_TESTS = CACHE / "python/confluent-kafka"
LIBRDKAFKA = CACHE / "librdkafka/node_modules/@confluentinc/kafka-javascript/deps/librdkafka"
CONFLUENT_SOURCE = "https://github.com/confluentinc/confluent-kafka-python"
CONFLUENT_TESTS_VERSION = "2.15.0"
SERVICE = """\
class ExternalService:
    def __init__(self, host, port):
        pass


SpawnedService = None
"""
PACKAGES = {  # programs, and what has them
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "go": "Go 1.26 or later",
    "node": "nodejs",
    "npm": "npm",
    "g++": "g++",
    "git": "git",
    "make": "make",
    "kcat": "kcat",
}
NOT_NEEDED = {"kcat"}  # without it, its own tests are skipped
CLONE_TIMEOUT_S = 120


def version_in(path: str, pattern: str) -> str:
    """Return the version that a file of this folder pins."""
    found = re.search(pattern, (HERE / path).read_text())
    assert found is not None, f"{path} has no {pattern}"
    return found[1]


def run(*words: object, directory: Path = HERE, timeout_s: float | None = None) -> None:
    subprocess.run([*map(str, words)], cwd=directory, check=True, timeout=timeout_s)


def copy_jars(pom: str, library: Path) -> None:
    words = ("-DoutputDirectory=" + str(library), "-Dmdep.useBaseVersion=true")
    run("mvn", "-q", "-B", "-f", HERE / pom, "dependency:copy-dependencies", *words)


def install_kafka() -> None:
    """Kafka's broker, tools and Java client: what the differential test and benchmarks need."""
    copy_jars("java/pom.xml", JAVA_LIBRARY)


def install_java() -> None:
    sources = HERE / "java/Peer.java", HERE / "java/WordCount.java"
    run("javac", "-cp", f"{JAVA_LIBRARY}/*", "-d", CACHE / "java/peer", *sources)


def install_flink() -> None:
    copy_jars("flink/pom.xml", FLINK_LIBRARY)
    source = HERE / "flink/FlinkCount.java"
    run("javac", "-cp", f"{FLINK_LIBRARY}/*", "-d", CACHE / "flink/peer", source)


def install_go() -> None:
    run("go", "build", "-o", CACHE / "go/peer", ".", directory=HERE / "go")
    run("go", "test", "-c", "-o", CACHE / "go/kgo.test", ".", directory=kgo_source())


def kgo_source() -> Path:
    """Return the directory with franz-go's client and its tests, in Go's module cache."""
    words = ("go", "list", "-m", "-f", "{{.Dir}}", "github.com/twmb/franz-go")
    done = subprocess.run(words, cwd=HERE / "go", capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()) / "pkg/kgo"


def install_js() -> None:
    npm_install("js")


def npm_install(name: str, *words: str) -> None:
    """Install the packages of ``name``/package.json, which is in this folder."""
    (CACHE / name).mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / name / "package.json", CACHE / name)
    always = ("--silent", "--no-audit", "--no-fund")
    run("npm", "install", *always, *words, directory=CACHE / name)


def install_librdkafka() -> None:
    npm_install("librdkafka", "--ignore-scripts")
    run("bash", "./configure", "--disable-curl", directory=LIBRDKAFKA)
    make = ("make", "--silent", f"-j{os.cpu_count() or 1}")
    run(*make, "libs", directory=LIBRDKAFKA)
    run(*make, "-C", "tests", "build", directory=LIBRDKAFKA)


def install_regex() -> None:
    """Install RE2, with which brokers match the regular expressions of subscriptions."""
    root = HERE.parent.parent
    pip_install("--editable", f"{root}[regex]")


def pip_install(*words: object) -> None:
    run(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words)


def install_python() -> None:
    """Install two Python clients with what their tests import, and the tests of kafka-python.

    Its package lacks two modules of its tests. The second would start Kafka's broker.
    """
    shutil.rmtree(CACHE / "python", ignore_errors=True)
    (KAFKA_PYTHON / "test").mkdir(parents=True)
    pip_install("--target", PYTHON_LIBRARY, "--requirement", HERE / "python/requirements.txt")
    version = version_in("python/requirements.txt", r"kafka-python\S*==(\S+)")
    words = ("--quiet", "--no-deps", "--no-binary", ":all:", f"kafka-python=={version}")
    run(sys.executable, "-m", "pip", "download", *words, directory=CACHE / "python")
    shutil.unpack_archive(CACHE / f"python/kafka_python-{version}.tar.gz", CACHE / "python")
    unpacked = CACHE / f"python/kafka_python-{version}"
    shutil.copytree(unpacked / "test", KAFKA_PYTHON / "test", dirs_exist_ok=True)
    shutil.rmtree(unpacked)
    (KAFKA_PYTHON / "test/__init__.py").touch()
    (KAFKA_PYTHON / "test/service.py").write_text(SERVICE)


def install_frameworks() -> None:
    """Install stream processors apart from the clients: they require other versions of these."""
    shutil.rmtree(FRAMEWORKS, ignore_errors=True)
    pip_install("--target", FRAMEWORKS, "--requirement", HERE / "python/frameworks.txt")


def install_confluent_tests() -> None:
    """Get the tests of confluent-kafka, which are in no package, with Git."""
    shutil.rmtree(CONFLUENT_TESTS, ignore_errors=True)
    words = ("--quiet", "--depth", "1", "--branch", f"v{CONFLUENT_TESTS_VERSION}")
    git = ("git", "-c", "advice.detachedHead=false", "-c", "credential.helper=")
    clone = (*git, "clone", *words, CONFLUENT_SOURCE, CONFLUENT_TESTS)
    run(*clone, timeout_s=CLONE_TIMEOUT_S)
    (trivup,) = CONFLUENT_TESTS.glob("tests/trivup/trivup-*.tar.gz")
    pip_install("--target", PYTHON_LIBRARY, "--no-deps", trivup)


def install_spark() -> None:
    copy_jars("spark/pom.xml", SPARK_LIBRARY)
    spark = version_in("spark/pom.xml", r"2\.13</artifactId>\s*<version>(.*?)<")
    pip_install("--upgrade", "--target", PYSPARK, f"pyspark=={spark}")


class Step(NamedTuple):
    """A part of the installation. ``sources``: it is repeated if one is newer. ``programs``: that
    it runs, and that its tests run.
    """

    install: Callable[[], None]
    sources: tuple[str, ...]
    programs: tuple[str, ...]


STEPS: dict[str, Step] = {
    "kafka": Step(install_kafka, ("java/pom.xml",), ("java", "mvn")),
    "java": Step(
        install_java,
        ("java/pom.xml", "java/Peer.java", "java/WordCount.java"),
        ("java", "javac"),
    ),
    "flink": Step(
        install_flink, ("flink/pom.xml", "flink/FlinkCount.java"), ("java", "javac", "mvn")
    ),
    "go": Step(install_go, ("go/go.mod", "go/go.sum", "go/peer.go"), ("go",)),
    "js": Step(install_js, ("js/package.json",), ("node", "npm")),
    "librdkafka": Step(install_librdkafka, ("librdkafka/package.json",), ("npm", "g++", "make")),
    "spark": Step(install_spark, ("spark/pom.xml",), ("java", "mvn")),
    "python": Step(install_python, ("python/requirements.txt",), ("kcat",)),
    "frameworks": Step(install_frameworks, ("python/frameworks.txt",), ()),
    "confluent": Step(install_confluent_tests, ("python/requirements.txt",), ("git",)),
    "regex": Step(install_regex, (), ()),
}
OPTIONAL = {"confluent"}  # not from a package registry


def is_done(name: str) -> bool:
    done = CACHE / f"{name}.done"
    return done.exists() and all(
        (HERE / source).stat().st_mtime <= done.stat().st_mtime for source in STEPS[name].sources
    )


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in STEPS]
    if unknown:
        sys.exit(f"kafka-peers: no step {', '.join(unknown)}; steps are {', '.join(STEPS)}")
    wanted = [name for name in STEPS if not names or name in names]
    programs = {program for name in wanted for program in STEPS[name].programs}
    found = {program for program in programs if shutil.which(program) is not None}
    missing = {PACKAGES[program] for program in programs - found - NOT_NEEDED}
    if missing:
        sys.exit(f"kafka-peers: install these programs first: {', '.join(sorted(missing))}")
    for program in sorted((programs & NOT_NEEDED) - found):
        sys.stdout.write(f"kafka-peers: no program {program}: its tests are skipped. To run them, ")
        sys.stdout.write(f"install {PACKAGES[program]}\n")
    for name in wanted:
        if is_done(name):
            continue
        sys.stdout.write(f"kafka-peers: installing {name} into {CACHE}\n")
        sys.stdout.flush()
        try:
            STEPS[name].install()
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            if name not in OPTIONAL:
                sys.exit(f"kafka-peers: cannot install {name}: {error}")
            sys.stdout.write(
                f"kafka-peers: cannot fetch {name}: {error}. The tests that require it are "
                "skipped\n"
            )
        else:
            CACHE.mkdir(parents=True, exist_ok=True)
            (CACHE / f"{name}.done").touch()


if __name__ == "__main__":
    main(sys.argv[1:])
