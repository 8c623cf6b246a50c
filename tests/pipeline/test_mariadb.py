"""A real MariaDB, its binlog in topics, and tables that equal MariaDB's at the end.

CHANGES, LEADERS and KILLS set the number of changes, and how often a leader and the capture are
killed meanwhile (`make cdc`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pymysqlreplication", reason="needs the `mariadb` extra")
pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

from tests.chaos.harness.replica_set import ReplicaSet
from tests.ecosystem.mariadb_server import DATABASE, USER, MariaDbServer
from tests.pipeline.test_spark import run_once
from vdl.pipeline.errors import PipelineError
from vdl.pipeline.job import load_job
from vdl.pipeline.mariadb.capture import Capturing, Writer
from vdl.pipeline.mariadb.settings import Capture, load_capture
from vdl.pipeline.open_table import rows_table

ROOT = Path(__file__).resolve().parents[2]
CHANGES = int(os.environ.get("CHANGES", "3000"))
LEADERS = int(os.environ.get("LEADERS", "1"))
KILLS = int(os.environ.get("KILLS", "1"))
KEYS = max(50, CHANGES // 20)

CAPTURE = """
[capture]
name = "{name}"
[mariadb]
port = {port}
user = "{user}"
password = "env:VDL_TEST_MARIADB"
server_id = 4711
tables = ["{database}.{table}"]
[topics]
bootstrap = "{bootstrap}"
partitions = {partitions}
"""
JOB = """
[job]
name = "{name}-{sink}"
[source]
bootstrap = "{bootstrap}"
topics = ["{name}.{database}.{table}"]
max_rows = 20000
[decode]
schema = "{schema}"
envelope = "debezium"
[sink]
kind = "{sink}"
path = "{sink}"
mode = "upsert"
key = ["id"]
[errors]
share_max = 0.0
"""
TABLE = """
CREATE TABLE items (
  id BIGINT UNSIGNED PRIMARY KEY, name VARCHAR(40) CHARACTER SET utf8mb4, price DECIMAL(12,3),
  seen TIMESTAMP(6) NULL, made DATETIME NULL, day DATE, data VARBINARY(20), note TEXT
)
"""
COLUMNS = ("id", "name", "price", "seen", "made", "day", "data", "note")
SCHEMA = (
    "id bigint, name string, price decimal(12,3), seen timestamp, made string, day date, "
    "data string, note string"
)


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    with MariaDbServer(tmp_path_factory.mktemp("mariadb") / "server") as server:
        yield server


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VDL_TEST_MARIADB", "secret")


def capture_file(
    folder: Path, name: str, server: MariaDbServer, bootstrap: str, table: str, partitions: int = 3
) -> Path:
    file = folder / f"{name}.toml"
    text = CAPTURE.format(
        name=name, port=server.port, user=USER, database=DATABASE, table=table,
        bootstrap=bootstrap, partitions=partitions,
    )  # fmt: skip
    file.write_text(text, encoding="utf-8")
    return file


def captured(file: Path) -> Capture:
    """Capture the binlog to its end in this process."""
    settings = load_capture(file)
    Capturing(settings).run(once=True)
    return settings


def records(bootstrap: str, topic: str, partitions: int = 1) -> list[tuple[Any, Any]]:
    """Return (key, value) of the committed records, parsed from JSON, partition by partition."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True,
         "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, n, 0) for n in range(partitions)])
    found, ended = [], 0
    with closing(consumer):
        while ended < partitions:
            message = consumer.poll(30)
            assert message is not None
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended += 1
                continue
            told = (message.key(), message.value())
            found.append(tuple(None if one is None else json.loads(one) for one in told))
    return found


def test_changes_are_envelopes_each_once(
    mariadb: MariaDbServer, bootstrap: str, tmp_path: Path
) -> None:
    """Covers a snapshot, changes, and TRUNCATE.

    A changed key becomes a deletion and a row. Nothing is duplicated by a second run, nor by a
    fenced run that continues.
    """
    mariadb.run(
        f"CREATE TABLE {DATABASE}.small (id INT PRIMARY KEY, n DECIMAL(9,2), b BIT(9), t TIME(1))",
        f"INSERT INTO {DATABASE}.small VALUES (1, 1.50, b'100000001', '-01:02:03.5')",
    )
    file = capture_file(tmp_path, "small", mariadb, bootstrap, "small", 1)
    settings = captured(file)
    topic = settings.topic(DATABASE, "small")
    one = {"id": 1, "n": "1.50", "b": 257, "t": "-01:02:03.500000"}
    ((key, value),) = records(bootstrap, topic)
    assert (key, value["op"], value["before"], value["after"]) == ({"id": 1}, "r", None, one)
    mariadb.run(
        f"UPDATE {DATABASE}.small SET n = 2",
        f"UPDATE {DATABASE}.small SET id = 2",
        f"ALTER TABLE {DATABASE}.small ADD COLUMN more INT FIRST",
        f"INSERT INTO {DATABASE}.small (id, more) VALUES (3, 4), (5, 6)",
        f"DELETE FROM {DATABASE}.small WHERE id = 3",
        f"TRUNCATE TABLE {DATABASE}.small",
    )
    zombie = Writer(settings, Capturing(settings).totals)
    place = zombie.fence()
    assert place is not None
    assert captured(file)
    assert captured(file)
    with pytest.raises(Exception, match=r"fenced|epoch"):
        zombie.commit(place)
    changes = records(bootstrap, topic)[1:]
    two = {**one, "n": "2.00"}
    told = [
        (key, None if value is None else (value["op"], value["before"], value["after"]))
        for key, value in changes
    ]
    three = {"more": 4, "id": 3, "n": None, "b": None, "t": None}
    assert told == [
        ({"id": 1}, ("u", one, two)),
        ({"id": 1}, ("d", two, None)),
        ({"id": 1}, None),
        ({"id": 2}, ("c", None, {**two, "id": 2})),
        ({"id": 3}, ("c", None, three)),
        ({"id": 5}, ("c", None, {**three, "id": 5, "more": 6})),
        ({"id": 3}, ("d", three, None)),
        ({"id": 3}, None),
        (None, ("t", None, None)),
    ]


def test_large_transaction_is_taken_in_parts_and_goes_on_within(
    mariadb: MariaDbServer, bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the first part, so that a place lies within a transaction of MariaDB."""
    mariadb.run(f"CREATE TABLE {DATABASE}.large (id INT PRIMARY KEY)")
    file = capture_file(tmp_path, "large", mariadb, bootstrap, "large", 1)
    settings = captured(file)
    values = ", ".join(f"({n})" for n in range(25))
    mariadb.run(f"INSERT INTO {DATABASE}.large VALUES {values}")
    monkeypatch.setattr("vdl.pipeline.mariadb.capture.ROWS_MAX", 10)
    commit = Writer.commit

    def killed(writer: Writer, place: Any) -> None:
        commit(writer, place)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Writer, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            captured(file)
    topic = settings.topic(DATABASE, "large")
    assert len(records(bootstrap, topic)) == 10
    captured(file)
    assert [key["id"] for key, _ in records(bootstrap, topic)] == list(range(25))


def test_server_that_does_not_say_enough_is_refused(
    mariadb: MariaDbServer, bootstrap: str, tmp_path: Path
) -> None:
    """The error is one line with everything that is missing."""
    mariadb.run(f"CREATE TABLE {DATABASE}.keyless (a INT, b SET('x', 'y'))")
    file = capture_file(tmp_path, "keyless", mariadb, bootstrap, "keyless", 1)
    mariadb.run("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        with pytest.raises(PipelineError) as failed:
            captured(file)
    finally:
        mariadb.run("SET GLOBAL binlog_row_metadata = 'FULL'")
    told = str(failed.value)
    assert "binlog_row_metadata is MINIMAL, and must be FULL" in told
    assert "shop.keyless has no primary key" in told
    assert "shop.keyless.b is set, which is not read" in told


class Load(threading.Thread):
    """Random changes of `items`, some rows a transaction. `done`: their number."""

    def __init__(self, server: MariaDbServer, seed: int) -> None:
        super().__init__()
        self._server = server
        self._rng = random.Random(seed)
        self.done = 0

    def run(self) -> None:
        connection = self._server.connect()
        with connection, connection.cursor() as cursor:
            while self.done < CHANGES:
                connection.begin()
                for _ in range(min(self._rng.randrange(1, 30), CHANGES - self.done)):
                    self._change(cursor)
                if self._rng.random() < 0.05:
                    connection.rollback()
                    continue
                connection.commit()

    def _change(self, cursor: Any) -> None:
        rng = self._rng
        key = rng.randrange(KEYS)
        kind = rng.random()
        if kind < 0.25:
            self.done += cursor.execute("DELETE FROM items WHERE id = %s", (key,))
        elif kind < 0.3:
            to = rng.randrange(KEYS)
            self.done += cursor.execute("UPDATE IGNORE items SET id = %s WHERE id = %s", (to, key))
        else:
            row = (key, *self._values())
            places = ", ".join(["%s"] * len(row))
            updates = ", ".join(f"{name} = VALUES({name})" for name in COLUMNS[1:])
            sql = f"INSERT INTO items VALUES ({places}) ON DUPLICATE KEY UPDATE {updates}"
            self.done += min(1, cursor.execute(sql, row))

    def _values(self) -> list[object]:
        rng = self._rng
        at = datetime.datetime(2013, 1, 1) + datetime.timedelta(  # noqa: DTZ001 - MariaDB's have none
            microseconds=rng.randrange(6 * 10**14)
        )
        values: list[object] = [
            rng.choice(["", "ärgerlich", "日本", 'a"b\\c', "🙂 x"]) + str(rng.randrange(1000)),
            Decimal(rng.randrange(-(10**9), 10**9)).scaleb(-3),
            at,
            at.replace(microsecond=0),
            at.date(),
            rng.randbytes(rng.randrange(20)),
            "x" * rng.randrange(100),
        ]
        return [None if rng.random() < 0.05 else value for value in values]


def test_tables_are_what_mariadb_has_through_kills_of_a_leader_and_of_the_capture(
    spark: Any, mariadb: MariaDbServer, servers: ReplicaSet, tmp_path: Path
) -> None:
    """Random inserts, updates and deletions, some before the first snapshot.

    The checksums cover all columns of all rows.
    """
    mariadb.run(f"USE {DATABASE}", TABLE.replace("CREATE TABLE ", f"CREATE TABLE {DATABASE}."))
    file = capture_file(tmp_path, "items", mariadb, servers.bootstrap, "items")
    jobs = {sink: job_of(tmp_path, servers.bootstrap, sink) for sink in ("delta", "iceberg")}
    load = Load(mariadb, seed=1)
    load.start()
    stops = sorted(
        [(n + 1) / (LEADERS + 1) for n in range(LEADERS)]
        + [(n + 0.5) / (KILLS + 1) for n in range(KILLS)]
    )
    leaders = [(n + 1) / (LEADERS + 1) for n in range(LEADERS)]
    process = begin(file)
    try:
        for stop in stops:
            wait_for(load, stop * CHANGES)
            if stop in leaders:
                server = leader_of(servers.bootstrap)
                servers.kill(server)
                for job in jobs.values():
                    run_once(job, spark)
                servers.start(server)
                servers.wait_serving(server)
            else:
                process.kill()
                process.wait()
                process = begin(file)
        load.join()
        assert load.done >= CHANGES
    finally:
        process.terminate()
        assert process.wait(60) == 0
    captured(file)
    rows = mariadb.rows(f"SELECT {', '.join(COLUMNS)} FROM items")
    sums = {"mariadb": checksum(rows)}
    for sink, job in jobs.items():
        run_once(job, spark)
        table = rows_table(job)
        table.open({})
        sums[sink] = checksum(tuple(row[name] for name in COLUMNS) for row in live_rows(table))
    print(
        f"\n{load.done} changes of {KEYS} keys in MariaDB, {LEADERS} leaders and {KILLS} captures "
        f"killed: {len(rows)} rows; " + ", ".join(f"{name} {sums[name][:16]}" for name in sums)
    )
    assert len(rows) > KEYS // 4
    assert sums == dict.fromkeys(sums, sums["mariadb"])


def job_of(folder: Path, bootstrap: str, sink: str) -> Any:
    file = folder / f"{sink}.job.toml"
    text = JOB.format(
        name="items", sink=sink, bootstrap=bootstrap, database=DATABASE, table="items",
        schema=SCHEMA,
    )  # fmt: skip
    file.write_text(text, encoding="utf-8")
    return load_job(file)


def begin(file: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "vdl.cli", "pipeline", "mariadb", str(file)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)


def wait_for(load: Load, done: float) -> None:
    while load.is_alive() and load.done < done:
        load.join(0.01)
    assert load.done >= done, load.done


def leader_of(bootstrap: str) -> int:
    """Return the leader of the topic's first partition."""
    topic = f"items.{DATABASE}.items"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    return int(admin.list_topics(topic, timeout=20).topics[topic].partitions[0].leader)


def checksum(rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a checksum of rows in any order."""
    told = sorted(json.dumps([_text(value) for value in row]) for row in rows)
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _text(value: Any) -> Any:
    """Return a value in a common form: times of MariaDB are in UTC without a zone."""
    import base64

    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if value is None else str(value)
