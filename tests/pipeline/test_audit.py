"""Audit: one flipped bit, one torn and one missing batch among three copies are each named.

AUDIT_MB sets the size of a copy: small without it, 1,100 for the full form (`make audit-large`).
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the `spark` extra")
pytest.importorskip("confluent_kafka", reason="needs the `dev` extra")

from segments.io.fs import RealFileSystem
from segments.log.segment import LogFiles
from segments.tool import INDEX_ENTRIES, Directory
from tests.chaos.harness.replica_set import ReplicaSet
from tests.pipeline.test_reading import create
from vdl.pipeline.audit import Finding, audit, judge, pieces_of, read_piece, tail_of

MB = int(os.environ.get("AUDIT_MB", "0"))
SMALL_FILES = """[kafka]
"log.segment.bytes" = 65536
"message.max.bytes" = 32768
"""
OFTEN_WRITTEN = """
[storage]
checkpoint_interval = "200ms"
"""
SEGMENTS_SECONDS_MAX = 60
NAMES = ("replica", "group", "index", "term", "offset", "crc", "bytes", "problem")


@pytest.fixture
def copies() -> Iterator[list[str]]:
    """Data directories of three stopped servers.

    Their segments are 64 KiB, or of the default size if the copies are large.
    """
    servers = ReplicaSet(3)
    try:
        servers.up()
        servers.down()
        for server_id in servers.server_ids:
            config = servers.server(server_id).config_file
            text = config.read_text(encoding="utf-8")
            if not MB:
                text = text.replace("[kafka]\n", SMALL_FILES) + OFTEN_WRITTEN
            config.write_text(text, encoding="utf-8")
        servers.up()
        create(servers.bootstrap, "copied", 1)
        for _ in range(2):
            produce_one_partition(servers.bootstrap, MB * 500 if MB else 2000)
        directories = [str(servers.directory / str(n) / "store") for n in servers.server_ids]
        deadline = time.monotonic() + SEGMENTS_SECONDS_MAX
        while any(len(list(Path(d).glob("logs/*/*.log"))) < 4 for d in directories):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        servers.down()
        yield directories
    finally:
        servers.close()


def produce_one_partition(bootstrap: str, count: int) -> None:
    """Produce records of about a kilobyte each if copies are large."""
    from confluent_kafka import Producer

    settings = {"linger.ms": 5} if MB else {"linger.ms": 2, "batch.size": 10_000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for n in range(count):
        while True:
            try:
                producer.produce("copied", b"%07d " % n * 125 if MB else b"%d " % n * 60)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


def found_in(directories: list[str]) -> tuple[list[Finding], int]:
    """Return the findings of the tasks, joined as Spark does, and the number of entries."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for path in directories:
        with Directory(RealFileSystem(), path, INDEX_ENTRIES) as directory:
            for log_id in sorted(directory.identity.logs):
                told = [
                    row
                    for piece in pieces_of(directory, log_id)
                    for batch in read_piece(piece)
                    for row in batch.to_pylist()
                ]
                told += [dict(zip(NAMES, row, strict=True)) for row in tail_of(directory, log_id)]
                for row in told:
                    rows[row["group"], row["index"]].append(row)
    findings = [
        finding
        for (group, index), copies in sorted(rows.items())
        for finding in judge({"group": group, "index": index, "copies": copies})
    ]
    return findings, sum(map(len, rows.values()))


def damage(directories: list[str]) -> dict[str, Finding]:
    """Damage each copy; return the expected findings.

    Flips a bit in the first, tears the last batch of a segment in the second, and cuts a batch and
    all after it off the third.
    """
    rng = random.Random(7)
    wanted: dict[str, Finding] = {}
    for path, what in zip(directories, ("damaged", "torn", "missing"), strict=True):
        with Directory(RealFileSystem(), path, INDEX_ENTRIES) as directory:
            known = max(directory.identity.logs.values(), key=lambda k: len(directory.segments(k)))
            files: LogFiles = directory.files(known)
            segments = directory.segments(known)
            last = segments[1].first_index - 1
            file = Path(files.segment_path(segments[0].number))
            data = bytearray(file.read_bytes())
            if what == "damaged":
                index = rng.randrange(segments[0].first_index, last)
                idx = files.idx(index)
                data[idx.position + 60] ^= 1 << rng.randrange(8)
            else:
                index = last
                idx = files.idx(index)
                del data[idx.position + (idx.length // 2 if what == "torn" else 0) :]
            file.write_bytes(data)
            wanted[what] = Finding(known.group_id, index, path, what, idx.base_offset)
    return wanted


def test_audit_of_equal_copies_finds_nothing(copies: list[str]) -> None:
    findings, entries = found_in(copies)
    assert findings == []
    assert entries > 300


def test_audit_names_index_and_replica_of_each_damage(copies: list[str]) -> None:
    wanted = damage(copies)
    findings, _ = found_in(copies)
    assert sorted(findings, key=str) == sorted(wanted.values(), key=str)


def test_audit_of_copies_that_differ_names_the_minority() -> None:
    """Each copy matches its own CRC; two of three agree."""
    rows = [
        {"replica": name, "term": 3, "offset": 40, "crc": crc, "problem": ""}
        for name, crc in (("a", 1), ("b", 2), ("c", 1))
    ]
    row = {"group": 9, "index": 5, "copies": rows}
    assert judge(row) == [Finding(9, 5, "b", "different", 40)]
    found = judge({**row, "copies": rows[:2]})
    assert [one.replica for one in found] == ["a", "b"]
    assert all("the right copy is unknown" in one.what for one in found)


@pytest.mark.takes_turns(parts=2)
@pytest.mark.spark
def test_audit_on_spark_finds_the_same(
    spark: Any, copies: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, entries = found_in(copies)
    wanted = damage(copies)
    found = audit(copies, spark)
    assert sorted(found.findings, key=str) == sorted(wanted.values(), key=str)
    assert (found.directories, found.entries) == (3, entries - len(wanted))
    entries_wrong = sorted({(one.group, one.index) for one in wanted.values()})
    assert found.wrong == len(entries_wrong)
    monkeypatch.setattr("vdl.pipeline.audit.TOLD_MAX", 1)
    shortened = audit(copies, spark)
    assert {(one.group, one.index) for one in shortened.findings} == {entries_wrong[0]}
    assert shortened.wrong == found.wrong
