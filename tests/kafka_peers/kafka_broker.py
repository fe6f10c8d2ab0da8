"""One broker of Kafka itself (KRaft), from the jars that ``install`` has copied."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from raftlog.config import Address
from raftlog.testing.probes import free_ports, wait_until
from tests.kafka_peers.install import JAVA_LIBRARY

START_TIMEOUT_S = 180
JAVA = ("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{JAVA_LIBRARY}/*")
PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
num.partitions=2
"""


@contextlib.contextmanager
def kafka_broker(directory: Path) -> Iterator[Address]:
    """A broker that runs while the block does, with its data below ``directory``."""
    broker, controller = free_ports(2)
    path = directory / "server.properties"
    logs = directory / "logs"
    path.write_text(PROPERTIES.format(broker=broker, controller=controller, directory=logs))
    tool = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(path))
    subprocess.run([*JAVA, *tool], check=True, capture_output=True)
    with (directory / "kafka.log").open("wb") as log:
        process = subprocess.Popen([*JAVA, "kafka.Kafka", str(path)], stdout=log, stderr=log)
    try:
        wait_until(
            lambda: _is_listening(process, broker), timeout_s=START_TIMEOUT_S, what="Kafka listens"
        )
        yield Address("127.0.0.1", broker)
    finally:
        process.kill()
        process.wait()


def _is_listening(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "Kafka has ended: see kafka.log"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
