"""Installation of the Kafka clients that ``make kafka-peers`` runs, outside of the repository.

    python -m tests.kafka_peers.install

Downloads through Maven, Go, npm and pip into ``kafka-peers`` of the virtual environment. What is
there and newer than its sources is kept.
"""

from __future__ import annotations

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
PACKAGES = {  # programs, and what has them
    "java": "openjdk-17-jdk-headless",
    "javac": "openjdk-17-jdk-headless",
    "mvn": "maven",
    "go": "Go 1.26 or later",
    "node": "nodejs",
    "npm": "npm",
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
    (CACHE / "js").mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "js/package.json", CACHE / "js")
    run("npm", "install", "--silent", "--no-audit", "--no-fund", directory=CACHE / "js")


def install_spark() -> None:
    copy_jars("spark/pom.xml", SPARK_LIBRARY)
    spark = version_in("spark/pom.xml", r"2\.13</artifactId>\s*<version>(.*?)<")
    words = ("--quiet", "--disable-pip-version-check", "--upgrade", "--target", PYSPARK)
    run(sys.executable, "-m", "pip", "install", *words, f"pyspark=={spark}")


STEPS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "java": (install_java, ("java/pom.xml", "java/Peer.java")),
    "go": (install_go, ("go/go.mod", "go/go.sum", "go/peer.go")),
    "js": (install_js, ("js/package.json",)),
    "spark": (install_spark, ("spark/pom.xml",)),
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
