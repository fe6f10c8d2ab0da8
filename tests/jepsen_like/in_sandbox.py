"""Run in a sandbox: a cluster with all that needs root, and what was seen of it, as JSON."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from raftlog import Admin, NewTopic
from raftlog.testing import wait_until
from raftlog_jepsen.cluster import ClusterUnderTest, Needs, state_of
from raftlog_jepsen.plan import Shape, TopicShape

PATIENCE_S = 40.0
NEEDS = Needs(namespaces=True, loop_disks=True, time_namespaces=True)
TOPIC = TopicShape(name="events", partitions=1, replication_factor=3, min_isr=2)


def look(cluster: ClusterUnderTest, directory: Path) -> dict[str, Any]:
    cluster.start()
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics([NewTopic(TOPIC.name, 1, 3)])
    hosts = list(cluster.hosts.values())
    seen: dict[str, Any] = {
        "quiet": [cluster.wait_quiet(PATIENCE_S)],
        "backend": cluster.net.backend,
        "pids": [(host.process.pid, host.broker_pid) for host in hosts],
        "devices": [path.stat().st_dev for path in (directory, *(h.data_dir for h in hosts))],
        "logs": [str(host.process.log_path.relative_to(directory)) for host in hosts],
        "networks": [
            os.readlink(f"/proc/{pid}/ns/net") for pid in (os.getpid(), *map(broker_pid, hosts))
        ],
        "bases": [
            Path(f"/proc/{broker_pid(host)}/timens_offsets").read_text().split()[1]
            for host in hosts
        ],
    }
    first, second = hosts[0].process.pid, hosts[0].broker_pid
    assert first is not None
    assert second is not None
    both = (first, second)
    cluster.pause([1])
    wait_until(lambda: [*map(state_of, both)] == ["stopped"] * 2, what="both stop")
    seen["paused"] = [*map(state_of, both)]
    cluster.kill([1])
    seen["killed"] = [*map(state_of, both)]
    cluster.start_broker(1)
    seen["quiet"].append(cluster.wait_quiet(PATIENCE_S))
    cluster.stop()
    seen["last_words"] = [host.process.last_words() for host in hosts]
    return seen


def broker_pid(host: Any) -> int:
    assert host.broker_pid is not None
    return int(host.broker_pid)


def main(directory: Path) -> None:
    cluster = ClusterUnderTest(Shape(brokers=3, topics=(TOPIC,)), NEEDS, directory)
    try:
        seen = look(cluster, directory)
    finally:
        cluster.close()
    seen["images"] = len(list(directory.glob("disk-*.img")))
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
