"""Where the time goes: ``python -m tests.profile``, or `make profile`.

py-spy samples a broker and its producer, which sends records for ten seconds. The functions are
printed with the share of the samples in which they run, or wait for one that they called.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final

import raftlog
from raftlog.testing import cluster

PY_SPY: Final = str(Path(sys.executable).with_name("py-spy"))
SECONDS: Final = 10
SHOWN: Final = 40
RUN: Final = 10_000  # records of a call to send_many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--by", choices=["send", "send_many"], default="send_many")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value (100)")
    given = parser.parse_args()
    with cluster() as running, tempfile.TemporaryDirectory() as directory:
        with raftlog.Admin(running.bootstrap) as admin:
            admin.create_topics([raftlog.NewTopic("profiled", partitions=1)])
        broker = running.brokers[0].broker_pid
        assert broker is not None
        files = {name: Path(directory, name) for name in ("broker", "producer")}
        pids = zip(files.items(), (broker, os.getpid()), strict=True)
        samplers = [sampler(pid, file) for (_, file), pid in pids]
        produce(running.bootstrap, bytes(given.size), in_runs=given.by == "send_many")
        for each in samplers:
            assert each.wait() == 0, "py-spy ended with an error: it needs the right to trace"
        for name, file in files.items():
            report(name, file)


def sampler(pid: int, file: Path) -> subprocess.Popen[bytes]:
    options = ("--format", "raw", "--duration", str(SECONDS), "--gil", "--nonblocking")
    command = (PY_SPY, "record", *options, "--output", str(file), "--pid", str(pid))
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def produce(bootstrap: str, value: bytes, *, in_runs: bool) -> None:
    values = [value] * RUN
    end = time.monotonic() + SECONDS + 2
    with raftlog.Producer(bootstrap) as producer:
        while time.monotonic() < end:
            if in_runs:
                producer.send_many("profiled", values)
            else:
                for each in values:
                    producer.send("profiled", each)


def report(name: str, file: Path) -> None:
    """Print the functions of the most samples. A line is a stack and its number of samples."""
    total = 0
    found: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        stack, _, samples = line.rpartition(" ")
        total += int(samples)
        for function in {frame.rpartition(":")[0] for frame in stack.split(";")}:
            found[function] += int(samples)
    print(f"{name}: {total} samples while it held the interpreter's lock")
    for function, count in found.most_common(SHOWN):
        if "raftlog" in function:
            print(f"  {100 * count / max(total, 1):5.1f} %  {function})")


if __name__ == "__main__":
    main()
