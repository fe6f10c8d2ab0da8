"""Installation of the Kafka clients that ``make kafka-peers`` runs, outside of the repository.

    python -m tests.kafka_peers.install

Downloads through Maven, Go, npm and pip into ``kafka-peers`` of the virtual environment. What is
there and newer than its sources is kept.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(sys.prefix) / "kafka-peers"
JAVA_LIBRARY = CACHE / "java/lib"
SPARK_LIBRARY = CACHE / "spark/lib"
PYSPARK = CACHE / "spark/python"
LIBRDKAFKA = CACHE / "librdkafka/node_modules/@confluentinc/kafka-javascript/deps/librdkafka"
PACKAGES = {  # programs, and what has them
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "go": "Go 1.26 or later",
    "node": "nodejs",
    "npm": "npm",
    "g++": "g++",
    "make": "make",
    "kcat": "kcat",
}


def version_in(path: str, pattern: str) -> str:
    """Return the version that a file of this folder pins."""
    found = re.search(pattern, (HERE / path).read_text())
    assert found is not None, f"{path} has no {pattern}"
    return found[1]


def run(*words: object, directory: Path = HERE) -> None:
    subprocess.run([*map(str, words)], cwd=directory, check=True)


def copy_jars(pom: str, library: Path) -> None:
    words = ("-DoutputDirectory=" + str(library), "-Dmdep.useBaseVersion=true")
    run("mvn", "-q", "-B", "-f", HERE / pom, "dependency:copy-dependencies", *words)


def install_java() -> None:
    copy_jars("java/pom.xml", JAVA_LIBRARY)
    run("javac", "-cp", f"{JAVA_LIBRARY}/*", "-d", CACHE / "java/peer", HERE / "java/Peer.java")


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
    words = ("--quiet", "--disable-pip-version-check", "--editable", f"{root}[regex]")
    run(sys.executable, "-m", "pip", "install", *words)


def install_spark() -> None:
    copy_jars("spark/pom.xml", SPARK_LIBRARY)
    spark = version_in("spark/pom.xml", r"2\.13</artifactId>\s*<version>(.*?)<")
    words = ("--quiet", "--disable-pip-version-check", "--upgrade", "--target", PYSPARK)
    run(sys.executable, "-m", "pip", "install", *words, f"pyspark=={spark}")


STEPS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "java": (install_java, ("java/pom.xml", "java/Peer.java")),
    "go": (install_go, ("go/go.mod", "go/go.sum", "go/peer.go")),
    "js": (install_js, ("js/package.json",)),
    "librdkafka": (install_librdkafka, ("librdkafka/package.json",)),
    "spark": (install_spark, ("spark/pom.xml",)),
    "regex": (install_regex, ()),
}


def main() -> None:
    missing = {package for name, package in PACKAGES.items() if shutil.which(name) is None}
    if missing:
        sys.exit(f"kafka-peers: install these programs first: {', '.join(sorted(missing))}")
    for name, (step, sources) in STEPS.items():
        done = CACHE / f"{name}.done"
        if done.exists() and all(
            (HERE / source).stat().st_mtime <= done.stat().st_mtime for source in sources
        ):
            continue
        sys.stdout.write(f"kafka-peers: installing {name} into {CACHE}\n")
        sys.stdout.flush()
        step()
        done.touch()


if __name__ == "__main__":
    main()
