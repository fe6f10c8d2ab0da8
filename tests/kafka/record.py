"""``python -m tests.kafka.record``: record requests of Kafka's clients in ``requests.json``.

A relay between each client and a broker keeps one request of each API and version, by the ID of the
topic and without. ``test_requests`` sends them to a broker again: what clients send is not what one
expects them to send. The Java client's are recorded if ``python -m tests.kafka_peers.install
kafka`` has installed its tools.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
from confluent_kafka import admin as librdkafka

from raftlog.kafka import api as apis
from raftlog.testing.cluster import free_ports
from tests.kafka.requests import CONTROL_APIS, PATH, Recorded, api_and_version
from tests.kafka_peers.install import JAVA_LIBRARY
from tests.server.harness import running

TIMEOUT_S: Final = 20
TOPIC: Final = "orders"
GROUP: Final = "readers"
RECORDS: Final = 3


class Relay:
    """Passes bytes on between clients and a broker, and keeps the requests."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.frames: list[bytes] = []
        self._ports = port, broker_port
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        async def serve() -> None:
            await asyncio.start_server(self._serve, "127.0.0.1", self._ports[0])

        self._loop.run_until_complete(serve())
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_there = await asyncio.open_connection("127.0.0.1", self._ports[1])
        await asyncio.gather(
            self._pass(reader, to_there, self.frames.append),
            self._pass(there, writer, lambda _frame: None),
        )

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        note: Callable[[bytes], None],
    ) -> None:
        try:
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                note(frame)
                writer.write(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def first_of_each(self, topic_id: bytes) -> list[bytes]:
        """The first request of each kind since the last call."""
        seen: dict[tuple[int, int, bool], bytes] = {}
        for frame in self.frames:
            key, version = api_and_version(frame)
            if key in apis.APIS and key not in CONTROL_APIS:
                seen.setdefault((key, version, topic_id in frame), frame)
        self.frames.clear()
        return list(seen.values())


def by_librdkafka(bootstrap: str) -> None:
    own = {"bootstrap.servers": bootstrap}
    admin = librdkafka.AdminClient(own)
    names = confluent_kafka.TopicCollection([TOPIC])
    for found in admin.describe_topics(names).values():
        found.result(TIMEOUT_S)
    resource = librdkafka.ConfigResource("topic", TOPIC)
    for described in admin.describe_configs([resource]).values():
        described.result(TIMEOUT_S)
    producer = confluent_kafka.Producer({**own, "enable.idempotence": True})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"%d" % number, b"k")
    producer.flush(TIMEOUT_S)
    for protocol in ("classic", "consumer"):
        group = f"{GROUP}-{protocol}"
        settings = {"group.id": group, "auto.offset.reset": "earliest"}
        consumer = confluent_kafka.Consumer({**own, **settings, "group.protocol": protocol})
        consumer.subscribe([TOPIC])
        for _ in range(RECORDS):
            assert consumer.poll(TIMEOUT_S) is not None
        consumer.commit(asynchronous=False)
        consumer.close()
        for described in admin.describe_consumer_groups([group]).values():
            described.result(TIMEOUT_S)
    part = confluent_kafka.TopicPartition(TOPIC, 0)
    for listed in admin.list_offsets({part: librdkafka.OffsetSpec.latest()}).values():
        listed.result(TIMEOUT_S)


def by_kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
    for _ in range(RECORDS):
        producer.send(TOPIC, b"x").get(TIMEOUT_S)
    producer.close()
    consumer = kafka.KafkaConsumer(
        TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest"
    )
    while not consumer.poll(1_000):
        pass
    consumer.commit()
    consumer.close()


def by_aiokafka(bootstrap: str) -> None:
    async def use() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        await producer.send_and_wait(TOPIC, b"x")
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            TOPIC, bootstrap_servers=bootstrap, group_id=GROUP, auto_offset_reset="earliest"
        )
        await consumer.start()
        await consumer.getone()
        await consumer.commit()
        await consumer.stop()

    asyncio.run(use())


def by_java(bootstrap: str) -> None:
    def run(tool: str, *words: str, text: str = "") -> None:
        java = ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{JAVA_LIBRARY}/*")
        name = f"org.apache.kafka.tools.{tool}"
        command = (*java, name, "--bootstrap-server", bootstrap, *words)
        subprocess.run(command, input=text, text=True, check=True, timeout=120)

    names = confluent_kafka.TopicCollection([TOPIC])
    admin = librdkafka.AdminClient({"bootstrap.servers": bootstrap})
    id_ = admin.describe_topics(names)[TOPIC].result(TIMEOUT_S).topic_id
    text = str(id_).replace("+", "-").replace("/", "_")
    run("TopicCommand", "--create", "--topic", "made", "--partitions", "2")
    run("TopicCommand", "--describe", "--topic-id", text)
    run("TopicCommand", "--delete", "--topic", "made")
    run("ConsoleProducer", "--topic", TOPIC, text="a\nb\n")
    for protocol in ("classic", "consumer"):
        words = ("--consumer-property", f"group.protocol={protocol}", "--group", f"java-{protocol}")
        reading = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "20000")
        run("consumer.ConsoleConsumer", "--topic", TOPIC, *reading, *words)
    run("consumer.group.ConsumerGroupCommand", "--describe", "--all-groups")
    run("GetOffsetShell", "--topic", TOPIC)


CLIENTS: Final[dict[str, Callable[[str], None]]] = {
    "confluent-kafka": by_librdkafka,
    "kafka-python": by_kafka_python,
    "aiokafka": by_aiokafka,
    "java": by_java,
}


def main() -> None:
    ports = list(free_ports(2))
    known = json.loads(PATH.read_text()) if PATH.exists() else {}
    settings: dict[str, Any] = {
        "kafka_listen": f"127.0.0.1:{ports[0]}",
        "kafka_advertised_listen": f"127.0.0.1:{ports[1]}",
        "group_initial_rebalance_delay_ms": "0",
    }
    with tempfile.TemporaryDirectory() as directory, running(Path(directory), **settings) as broker:
        with broker.client() as native:
            topic_id = native.create(TOPIC).id
        relay = Relay(ports[1], ports[0])
        for name, use in CLIENTS.items():
            if name == "java" and not JAVA_LIBRARY.exists():
                continue
            use(f"127.0.0.1:{ports[1]}")
            frames = [frame.hex() for frame in relay.first_of_each(bytes.fromhex(topic_id))]
            known[name] = Recorded(topic_id=uuid.UUID(topic_id).hex, requests=frames)._asdict()
            sys.stdout.write(f"{name}: {len(frames)} requests\n")
    PATH.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
