"""MariaDB, Debezium's envelopes in topics, and tables that end up equal to MariaDB's.

CHANGES, LEADERS and KILLS set the number of changes, and how often a leader and Connect are killed
meanwhile (`make cdc`).
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("deltalake", reason="needs the `spark` extra")
pytest.importorskip("pyspark", reason="needs the `spark` extra")

import pyarrow.parquet as pq

from tests.chaos.harness.replica_set import ReplicaSet
from tests.ecosystem.debezium import EXAMPLE, Debezium
from tests.ecosystem.mariadb_load import COLUMNS, Load
from tests.ecosystem.mariadb_server import MariaDbServer
from tests.ecosystem.records import Topics
from tests.ecosystem.test_debezium import CHANGES, CONNECT, KEYS, KILLS, LEADERS, stops
from tests.pipeline.test_spark import run_once
from tests.pipeline.test_upserts_on_spark import decoded
from vdl.pipeline.job import Job, parse_job
from vdl.pipeline.open_table import rows_table

REPLICATION = 3
SCHEMA = (
    "id bigint, name string, price decimal(12,3), seen timestamp, made timestamp, day date, "
    "data string, note string"
)
SINKS = {"delta": True, "iceberg": False}
"""Kind of table → True if the envelopes of its topic are in a payload beside their schema."""


@pytest.mark.takes_turns(parts=3)
def test_tables_are_what_mariadb_has_through_kills_of_a_leader_and_connect(
    spark: Any, servers: ReplicaSet, tmp_path: Path
) -> None:
    """The jobs run over the snapshot, after each kill of a leader, and at the end.

    The checksums cover all columns of all rows.
    """
    topics = Topics(servers.bootstrap, replication=REPLICATION)
    with (
        MariaDbServer(tmp_path / "mariadb") as mariadb,
        Debezium(mariadb, topics, tmp_path, name="debezium") as debezium,
    ):
        load = Load(mariadb, changes=CHANGES, keys=KEYS, seed=1)
        jobs: dict[str, Job] = {}
        for sink, with_schemas in SINKS.items():
            topic = debezium.capture(sink, with_schemas=with_schemas)
            debezium.program.wait_for(f"{topic} is there", lambda: topic in topics.names())  # noqa: B023
            jobs[sink] = job_of(tmp_path, servers.bootstrap, topic, sink)
        for job in jobs.values():
            run_once(job, spark)
        try:
            load.start()
            for stop, victim in stops():
                load.wait_for(stop * CHANGES)
                if victim == CONNECT:
                    debezium.kill()
                    debezium.start()
                    continue
                leader = topics.leader(jobs["delta"].source.topics[0], 0)
                servers.kill(leader)
                for job in jobs.values():
                    run_once(job, spark)
                servers.start(leader)
                servers.wait_serving(leader)
            load.join()
        finally:
            load.abort()
        changes = [change for key in load.history.values() for change in key]
        expected = len(changes) + sum(op == "d" for op, *_ in changes)
        for job in jobs.values():
            with topics.follow(job.source.topics[0]) as found:
                debezium.program.wait_for_count("all changes", found.count, expected)
        rows = mariadb.rows(f"SELECT {', '.join(COLUMNS)} FROM items")
    sums = {"mariadb": checksum(rows)}
    for sink, job in jobs.items():
        run_once(job, spark)
        table = rows_table(job)
        table.open({})
        written = [row for path in table.files() for row in pq.read_table(path).to_pylist()]
        sums[sink] = checksum(tuple(row[name] for name in COLUMNS) for row in written)
    print(
        f"\n{len(changes)} changes of {KEYS} keys in MariaDB, {LEADERS} leaders and {KILLS} "
        f"workers killed: {len(rows)} rows; "
        + ", ".join(f"{name} {digest[:16]}" for name, digest in sums.items())
    )
    assert len(rows) > KEYS // 4
    assert sums == dict.fromkeys(sums, sums["mariadb"])


def test_dates_of_debezium_are_dates_in_rows_and_keys(spark: Any) -> None:
    """`isostring` appends a Z to a date. Dates without it, and invalid ones, are read as before."""
    texts = ["2013-01-31Z", "2013-01-31", "2013-1-31", "2013-02-31Z"]
    keys = [json.dumps({"id": 1, "day": day}).encode() for day in texts]
    values = [json.dumps({"op": "c", "after": json.loads(key)}).encode() for key in keys]
    records: list[tuple[bytes | None, bytes | None]] = [*zip(keys, values, strict=True)]
    records += [(key, None) for key in keys]
    rows = decoded(
        spark, records, schema="id bigint, day date", envelope="debezium", tombstones="delete",
        key=["id", "day"],
    )  # fmt: skip
    day = datetime.date(2013, 1, 31)
    is_good = [row["_error"] is None for row in rows]
    assert is_good == [True, True, True, False] * 2
    assert {row["day"] for row in rows if row["_error"] is None} == {day}


def job_of(folder: Path, bootstrap: str, topic: str, sink: str) -> Job:
    """Return the job of the example, of all columns, with places of this test."""
    data = tomllib.loads((EXAMPLE / "items.toml").read_text(encoding="utf-8"))
    data["job"]["name"] = f"items-{sink}"
    data["source"] |= {"bootstrap": bootstrap, "topics": [topic]}
    data["decode"]["schema"] = SCHEMA
    data["sink"] |= {"kind": sink, "path": f"{sink}-table"}
    data["errors"] = {"share_max": 0.0}
    return parse_job(data, sink, folder)


def checksum(rows: Iterable[tuple[Any, ...]]) -> str:
    """Return a digest of rows in any order."""
    texts = sorted(json.dumps([_text(value) for value in row]) for row in rows)
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _text(value: Any) -> Any:
    """Return a value as text: times in UTC without a zone, bytes as base64."""
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None).isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return None if value is None else str(value)
