"""The examples of the manual, on a real Spark and real brokers: their results are exact."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from raftlog import Admin, NewTopic, Producer
from raftlog.testing import Cluster, wait_until
from raftlog.testing.fork_server import python_path
from tests.spark_source.fixtures import NewTopicFunction
from tests.spark_source.sinks import stored_records, stored_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples" / "spark"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
ONCE = {"availableNow": True}


def example(name: str) -> ModuleType:
    """The script as a module that no worker can import: as if it were the main program."""
    return run(EXAMPLES / f"{name}.py")


def run(path: Path, **names: Any) -> ModuleType:
    """A file, run as a module which has these names beforehand."""
    spec = importlib.util.spec_from_file_location(f"run_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    spec.loader.exec_module(module)
    return module


def ms(time: datetime) -> int:
    return int(time.timestamp() * 1_000)


def send(
    brokers: Cluster,
    topic: str,
    values: Sequence[Any],
    keys: Sequence[Any] | None = None,
    **more: Any,
) -> None:
    """Text is sent as UTF-8."""
    with Producer(brokers.bootstrap) as producer:
        encoded = [[each.encode() for each in column] for column in (values, keys or ())]
        producer.send_many(topic, encoded[0], encoded[1] or None, **more).result()


# -- README ----------------------------------------------------------------------------------------


def test_the_example_of_the_readme(
    spark: SparkSession,
    brokers: Cluster,
    admin: Admin,
    new_topic: NewTopicFunction,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mark = "<!-- run by tests/spark_source/test_examples.py -->\n```python\n"
    _, _, rest = (ROOT / "README.md").read_text().partition(mark)
    program, _, _ = rest.partition("```")
    for own, here in (("127.0.0.1:9100", brokers.bootstrap), ("checkpoints", str(tmp_path))):
        assert own in program
        program = program.replace(own, here)
    new_topic(3, name="clicks")
    new_topic(name="clicks-copy")
    (tmp_path / "readme.py").write_text(program)
    try:
        run(tmp_path / "readme.py")
        assert stored_values(brokers.bootstrap, "clicks-copy") == ["/cart"]
    finally:  # the pages have topics with the same names
        admin.delete_topics(["clicks", "clicks-copy"])
    read, copied = capsys.readouterr().out.split("timestamp", 1)
    assert "key" in read
    assert copied.count("user-1") == 1


# -- batch -----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_access_log(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction, seed: int
) -> None:
    chance, topic = random.Random(seed), new_topic(3)
    paths = [f"/page/{number}" for number in range(15)]
    requests, lines = [], []
    for number in range(2_000):
        time = NOON + timedelta(seconds=number * 7)
        path = paths[min(chance.randrange(15), chance.randrange(15))]
        status, size = chance.choice([200, 200, 304, 404]), chance.randrange(10_000)
        requests.append((time.replace(minute=0, second=0), path, status, size))
        local = time.astimezone(UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        shown = "-" if status == 304 else size
        lines.append(
            f'10.0.0.{number % 9} - - [{local}] "GET {path} HTTP/1.1" {status} {shown} "-" "x"'
        )
    send(brokers, topic, lines)
    send(brokers, topic, ["no access-log line", ""], partition=2)

    reports = example("access_log").main(spark, bootstrap=brokers.bootstrap, topic=topic)
    found = {name: [tuple(row) for row in report.collect()] for name, report in reports.items()}
    hits, sizes = Counter(path for _, path, _, _ in requests), Counter[str]()
    for _, path, status, size in requests:
        sizes[path] += size if status != 304 else 0
    top = sorted(hits, key=lambda path: (-hits[path], path))[:10]
    assert found["top paths"] == [(path, hits[path], sizes[path]) for path in top]
    by_hour = Counter((f"{hour:%Y-%m-%d %H:00}", status) for hour, _, status, _ in requests)
    assert found["status by hour"] == [(*key, by_hour[key]) for key in sorted(by_hour)]
    others = found["lines that are no access-log lines"]
    assert [(partition, line) for partition, _, line in others] == [
        (2, "no access-log line"),
        (2, ""),
    ]


@pytest.mark.nightly
def test_reprocess(spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction) -> None:
    old, new = new_topic(3), new_topic(2)
    module = example("reprocess")
    until = NOON + timedelta(hours=1)
    agents = [(("agent", b"Firefox"),), (("agent", b"NiceBot/1"),), (), None]
    views = [
        (f"user-{number % 20}", f"/page/{number}?from=mail", agents[number % 4], ms(NOON) + number)
        for number in range(400)
    ]
    later = [("user-1", "/later", None, ms(until))]
    for keys, values, headers, times in (zip(*part, strict=True) for part in (views, later)):
        send(brokers, old, values, keys, headers=headers, timestamps_ms=list(times))
    for _ in range(2):
        module.main(spark, bootstrap=brokers.bootstrap, views=old, into=new, until=until)
    found: dict[str, list[tuple[str, int]]] = {}
    for records in stored_records(brokers.bootstrap, new).values():
        for record in records:
            key, value = (record.key or b"").decode(), (record.value or b"").decode()
            found.setdefault(key, []).append((value, record.timestamp_ms))
    expected: dict[str, list[tuple[str, int]]] = {}
    for key, value, agent, time in views:
        if agent != agents[1]:
            expected.setdefault(key, []).append((value.partition("?")[0], time))
    assert found == expected, "once, and in the order of each key"


@pytest.mark.nightly
def test_export_parquet(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction, tmp_path: Path
) -> None:
    topic = new_topic(2)
    times = [NOON + timedelta(hours=number) for number in range(48)]
    for partition in range(2):
        values = [f"{partition}-{number}" for number in range(48)]
        moments = list(map(ms, times))
        send(brokers, topic, values, partition=partition, timestamps_ms=moments)
    export, out = example("export_parquet").main, str(tmp_path / "out")
    part = {"since": times[6], "until": times[30]}
    assert export(spark, bootstrap=brokers.bootstrap, topic=topic, out=out, **part) == 48
    rows = (
        spark.read.parquet(out).selectExpr("cast(value AS string)", "timestamp", "date").collect()
    )
    assert sorted((value, str(date)) for value, _, date in rows) == sorted(
        (f"{partition}-{number}", f"{times[number]:%Y-%m-%d}")
        for partition in range(2)
        for number in range(6, 30)
    )
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {
        "date=2026-05-01",
        "date=2026-05-02",
    }
    offsets = dict(map(example("export_parquet").parse_offsets, ("0:5:8", "1:47:48")))
    assert export(spark, bootstrap=brokers.bootstrap, topic=topic, out=out, offsets=offsets) == 4
    places = spark.read.parquet(out).select("partition", "offset").collect()
    assert sorted(map(tuple, places)) == [(0, 5), (0, 6), (0, 7), (1, 47)]


@pytest.mark.nightly
def test_typed_values(spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction) -> None:
    topics = {"json_topic": new_topic(2), "avro_topic": new_topic(2)}
    readings = [{"sensor": f"s{number % 3}", "celsius": number / 4} for number in range(90)]
    send(brokers, topics["json_topic"], list(map(json.dumps, readings)))
    means = example("typed_values").main(spark, bootstrap=brokers.bootstrap, **topics)
    assert [tuple(row) for row in means.collect()] == [
        (f"s{number}", sum(range(number, 90, 3)) / 4 / 30) for number in range(3)
    ]


@pytest.mark.nightly
def test_the_code_on_the_page_runs(
    spark: SparkSession, brokers: Cluster, admin: Admin, tmp_path: Path
) -> None:
    """As it stands, but for the address; what needs a JAR is left out."""
    from pyspark.errors import AnalysisException

    code = blocks("docs/tutorial/spark.md") + blocks("docs/how-to/use-spark.md")
    page = [each for each in code if "import from_avro" not in each]
    topics = ["clicks", "clicks-copy", "counts", "access-log", "readings", "enriched"]
    admin.create_topics([NewTopic(name) for name in topics])
    fields = [{"name": "sensor", "type": "string"}, {"name": "celsius", "type": "double"}]
    schema = json.dumps({"type": "record", "name": "Reading", "fields": fields})
    admin.call_schema_registry("POST", "/subjects/readings-value/versions", {"schema": schema})
    send(brokers, "clicks", ["/cart", "/"], ["ann", "bob"])
    records = spark.sql("""SELECT '{"sensor": "s1", "celsius": 2.5}' AS value""")
    streamed = spark.readStream.format("raftlog").options(
        **{"bootstrap.servers": brokers.bootstrap}, subscribe="clicks", startingOffsets="earliest"
    )
    words = streamed.load().selectExpr("cast(value AS string) AS word").groupBy("word").count()
    spark.conf.set("spark.sql.streaming.pollingDelay", "200ms")  # while others have work to do
    try:
        program = tmp_path / "page.py"
        text = "\n".join(page).replace("127.0.0.1:9100", brokers.bootstrap)
        program.write_text(text.replace("checkpoints/", f"{tmp_path}/"))
        enriched = streamed.load().select("key", "value")
        ran = run(program, spark=spark, records=records, counts=words, enriched=enriched)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.conf.unset("spark.sql.streaming.pollingDelay")
    assert stored_values(brokers.bootstrap, "counts") == ["1", "2"], "the page writes a third click"
    assert len(stored_values(brokers.bootstrap, "enriched")) == 3
    assert ran.values.collect()[0].value == '{"sensor":"s1","celsius":2.5}'
    with pytest.raises(AnalysisException, match=r"beyond the end.*'clicks' partition 0"):
        ran.by_offset.count()  # it is shorter than the page's


def blocks(path: str) -> list[str]:
    """The Python code of a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_word_count(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction, tmp_path: Path, seed: int
) -> None:
    lines, counts = new_topic(2), new_topic(1, cleanup_policy="compact")
    chance, module = random.Random(seed), example("word_count")
    noted: list[str] = []
    for words in (["The", "log", "is", "the"], ["log.", "is,", "new"]):
        noted += (more := [" ".join(chance.choices(words, k=8)) for _ in range(50)])
        send(brokers, lines, more)
        topics = {"lines": lines, "counts": counts, "checkpoint": str(tmp_path)}
        module.main(spark, bootstrap=brokers.bootstrap, **topics, trigger=ONCE).awaitTermination()
        (records,) = stored_records(brokers.bootstrap, counts).values()
        last = {(each.key or b"").decode(): int(each.value or b"") for each in records}
        text = " ".join(noted).lower().replace(".", "").replace(",", "")
        assert last == Counter(text.split())
    assert [bool(each.key) for each in records] == [True] * 6, "3 words, then 3: what has changed"


@pytest.mark.nightly
def test_click_sessions(
    spark: SparkSession, brokers: Cluster, new_topic: NewTopicFunction, tmp_path: Path
) -> None:
    clicks, sessions = new_topic(2), new_topic(1)
    module = example("click_sessions")

    def click(*what: tuple[str, int, str]) -> None:
        """Who, at what minute after noon, what page."""
        users, minutes, pages = zip(*what, strict=True)
        times = [ms(NOON + timedelta(minutes=minute)) for minute in minutes]
        send(brokers, clicks, pages, users, timestamps_ms=times)
        topics = {"clicks": clicks, "sessions": sessions, "checkpoint": str(tmp_path)}
        module.main(spark, bootstrap=brokers.bootstrap, **topics, trigger=ONCE).awaitTermination()

    def stored() -> list[tuple[Any, ...]]:
        found = stored_records(brokers.bootstrap, sessions).values()
        values = [json.loads(record.value or b"") for records in found for record in records]
        return sorted(tuple(value.values()) for value in values)

    def at(minute: int) -> str:
        return f"{NOON + timedelta(minutes=minute):%Y-%m-%dT%H:%M:%S.000Z}"

    click(("ann", 0, "/"), ("bob", 5, "/"), ("ann", 20, "/cart"), ("ann", 25, "/"), ("ann", 70, ""))
    closed = [("ann", at(0), at(25), 3, 2), ("bob", at(5), at(5), 1, 1)]
    assert stored() == closed, "ann's second session may still grow"
    click(("ann", 95, "/help"), ("bob", 10, "/too-late"), ("cay", 300, "/"))
    assert stored() == sorted([*closed, ("ann", at(70), at(95), 2, 2)])


ORDERS = 1_500
BATCH = 100


@pytest.mark.nightly
def test_enrich_exactly_once(
    spark: SparkSession,
    brokers: Cluster,
    new_topic: NewTopicFunction,
    admin: Admin,
    tmp_path: Path,
) -> None:
    """The driver, JVM and all, is killed when a batch is written in part, and not noted down."""
    orders, priced = new_topic(2), new_topic(3)
    prices, checkpoint = tmp_path / "prices.csv", tmp_path / "checkpoint"
    table = {"tea": 3, "jam": 5}
    prices.write_text("item,price\n" + "".join(f"{item},{table[item]}\n" for item in table))
    wanted: list[dict[str, Any]] = [
        {"id": number, "item": ("tea", "jam", "pen")[number % 3], "count": number % 7}
        for number in range(ORDERS)
    ]
    users = [f"user-{order['id'] % 10}" for order in wanted]
    send(brokers, orders, list(map(json.dumps, wanted)), users)
    settings = {
        "bootstrap": brokers.bootstrap,
        "orders": orders,
        "priced": priced,
        "prices": str(prices),
        "checkpoint": str(checkpoint),
    }

    def stored_count() -> int:
        return sum(end or 0 for end in admin.offsets(priced).values())

    def in_mid_batch() -> bool:
        """More is stored than the batches have that Spark knows to be done."""
        done = max(numbers(checkpoint / "commits"), default=-1)
        return done >= 0 and stored_count() > planned_end(checkpoint, orders, done)

    flags = [f"--{name}={value}" for name, value in settings.items()]
    with driver("enrich_exactly_once", *flags, f"--batch-records={BATCH}") as process:
        while True:
            wait_until(
                lambda: process.poll() is not None or in_mid_batch(), timeout_s=100, what="a batch"
            )
            os.killpg(process.pid, signal.SIGSTOP)  # what holds now, holds when it is killed
            assert process.poll() is None, "it has ended by itself"
            if in_mid_batch():
                break
            os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    planned, done = numbers(checkpoint / "offsets"), numbers(checkpoint / "commits")
    assert max(planned) == max(done) + 1
    assert stored_count() < ORDERS
    module = example("enrich_exactly_once")
    module.main(spark, **settings, trigger=ONCE).awaitTermination()
    found: dict[str, list[dict[str, Any]]] = {}
    for records in stored_records(brokers.bootstrap, priced).values():
        for record in records:
            found.setdefault((record.key or b"").decode(), []).append(
                json.loads(record.value or b"")
            )
    expected: dict[str, list[dict[str, Any]]] = {}
    for user, order in zip(users, wanted, strict=True):
        price = table.get(order["item"])
        more = {} if price is None else {"price": price, "cost": price * order["count"]}
        expected.setdefault(user, []).append(order | more)
    assert found == expected, "each order once, and a user's orders in their order"


def numbers(folder: Path) -> list[int]:
    """The batches that a checkpoint has in ``offsets`` or ``commits``."""
    return [int(each.name) for each in folder.glob("[0-9]*")]


def planned_end(checkpoint: Path, topic: str, batch_id: int) -> int:
    """How many records of a topic the batches up to this one have, by the checkpoint."""
    file = checkpoint / "offsets" / str(batch_id)
    ends = json.loads(file.read_text().splitlines()[-1])[topic]
    return sum(ends.values())


@contextmanager
def driver(name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """An example as a program of its own; whatever of it runs in the end is killed."""
    quick = (
        "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'"  # to start, and to die
    )
    settings = ["--master local[2]", "--conf spark.ui.enabled=false", quick, "pyspark-shell"]
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": " ".join(settings),
        **python_path(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
