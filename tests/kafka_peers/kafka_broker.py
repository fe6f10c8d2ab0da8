"""Brokers of Kafka itself (KRaft), from the jars that ``install`` has copied."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from raftlog.config import Address
from raftlog.kafka import api as apis
from raftlog.kafka import codec
from raftlog.testing.cluster import free_ports, wait_until
from tests.kafka_peers.install import JAVA_LIBRARY
from tests.server.kafka.kafka_client import KafkaClient

START_TIMEOUT_S = 180
METADATA_VERSION = 12
PRODUCER_ID_VERSION = 4
JAVA = ("java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{JAVA_LIBRARY}/*")
SERVER = ("java", "-Xmx1g", "-cp", f"{JAVA_LIBRARY}/*")  # with the compiler that is fast at last
PROPERTIES = """\
process.roles=broker,controller
node.id={number}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={directory}
offsets.topic.replication.factor={brokers}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={brokers}
transaction.state.log.min.isr={quorum}
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
num.partitions=2
"""


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    """Running brokers, and their process IDs."""

    addresses: list[Address]
    pids: tuple[int, ...]


@contextlib.contextmanager
def kafka_broker(directory: Path) -> Iterator[Address]:
    """A broker that runs while the block does, with its data below ``directory``."""
    with kafka_cluster(directory, 1, java=JAVA) as running:
        yield running.addresses[0]


@contextlib.contextmanager
def kafka_cluster(
    directory: Path, brokers: int, *, java: tuple[str, ...] = SERVER
) -> Iterator[KafkaCluster]:
    """Brokers that run while the block does, with their data below ``directory``."""
    ports = list(free_ports(2 * brokers))
    voters = ",".join(f"{n}@127.0.0.1:{ports[brokers + n - 1]}" for n in range(1, brokers + 1))
    with contextlib.ExitStack() as stack:
        processes: list[subprocess.Popen[bytes]] = []
        for number in range(1, brokers + 1):
            home = directory / f"kafka-{number}"
            home.mkdir()
            path = home / "server.properties"
            path.write_text(
                PROPERTIES.format(
                    number=number,
                    voters=voters,
                    broker=ports[number - 1],
                    controller=ports[brokers + number - 1],
                    directory=home / "logs",
                    brokers=brokers,
                    quorum=brokers // 2 + 1,
                )
            )
            tool = ("kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ")
            subprocess.run([*JAVA, *tool, "-c", str(path)], check=True, capture_output=True)
            log = stack.enter_context((home / "kafka.log").open("wb"))
            process = subprocess.Popen([*java, "kafka.Kafka", str(path)], stdout=log, stderr=log)
            stack.callback(_end, process)
            processes.append(process)
        for process, port in zip(processes, ports, strict=False):
            wait_until(
                lambda process=process, port=port: _is_listening(process, port),
                timeout_s=START_TIMEOUT_S,
                what="Kafka listens",
            )
        addresses = [Address("127.0.0.1", port) for port in ports[:brokers]]
        for address in addresses:
            wait_until(
                lambda address=address: _knows(address, brokers),
                timeout_s=START_TIMEOUT_S,
                what=f"the broker at {address} knows all brokers and has producer ids",
            )
        yield KafkaCluster(addresses, tuple(process.pid for process in processes))


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _knows(address: Address, brokers: int) -> bool:
    """Whether a broker reports that all have registered, and has got producer ids from the
    controller: they listen before. Until then it answers that its coordinator loads (14).
    """
    producer = codec.structs("request", apis.INIT_PRODUCER_ID.key)
    with contextlib.closing(KafkaClient(address)) as client:
        metadata = client.ask(apis.METADATA, METADATA_VERSION, None)
        wanted = producer.root(transactional_id=None, transaction_timeout_ms=60_000)
        has_ids = client.ask(apis.INIT_PRODUCER_ID, PRODUCER_ID_VERSION, wanted).error_code == 0
    return has_ids and len(metadata.brokers) == brokers and metadata.controller_id >= 0


def _is_listening(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None, "Kafka has ended: see kafka.log"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
