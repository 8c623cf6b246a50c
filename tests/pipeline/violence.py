"""Exactly once under violence: jobs and leaders are killed, a checkpoint is deleted, rows counted.

    python -m tests.pipeline.violence --source vdl --kills 10 --leaders 2 --seed 1
    python -m tests.pipeline.violence --sinks iceberg,delta-s3,iceberg-s3

A producer writes numbered records, one in 500 of them broken, without a pause. Meanwhile the
process that runs the jobs, one for each sink, is killed with all its children (SIGKILL) at
random moments and started again; Spark's checkpoints are deleted once; the server that leads a
partition is killed and started again. At the end the jobs run to the end of the topic, and every
number that was acknowledged must be in each table once, every broken record in each table of dead
letters once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from confluent_kafka import Producer

from tests.chaos.harness.replica_set import ReplicaSet
from tests.pipeline.objects import make_bucket, object_server
from vdl.pipeline.job import load_job
from vdl.pipeline.open_table import dead_table, rows_table, storage_settings
from vdl.pipeline.options import parse
from vdl.pipeline.storage import Storage, storage_of
from vdl.pipeline.topics import Topics

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "numbers"
PARTITIONS = 3
BROKEN_EVERY = 500
START_SECONDS_MAX = 300
RATE = 300
"""Records a second: slow enough that the jobs are never at their end for long."""

JOB = """
[job]
name = "{name}"
[source]
kind = "{source}"
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_rows = 4000
[decode]
schema = "n bigint, text string"
[sink]
kind = "{sink}"
path = "{path}"
{more}
[errors]
share_max = 0.05
[run]
interval_seconds = 0.2
checkpoint = "{name}-checkpoint"
"""
CATALOG = """
[sink.catalog]
type = "sql"
uri = "sqlite:///{folder}/catalog.db"
"""
SINKS = ("parquet", "delta", "iceberg", "delta-s3", "iceberg-s3")
"""With "-s3" in a store of objects, a server of its own."""
BUCKET = "violence"


class Load:
    """Produces until stopped. `acknowledged`: the numbers that were; `broken`: how many others."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "message.timeout.ms": 120_000,
                "log_level": 2,
            }
        )
        self.acknowledged: set[int] = set()
        self.broken = 0
        self.failed = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        began = time.monotonic()
        while not self._stopping.is_set():
            if number > (time.monotonic() - began) * RATE:
                self._producer.poll(0.01)
                continue
            value = json.dumps({"n": number, "text": f"record {number}"}).encode()
            is_broken = number % BROKEN_EVERY == BROKEN_EVERY - 1
            self._produce(number, value[:-5] if is_broken else value, is_broken=is_broken)
            number += 1
            self._producer.poll(0)
        self._producer.flush(120)

    def _produce(self, number: int, value: bytes, *, is_broken: bool) -> None:
        def delivered(error: Any, message: Any) -> None:
            del message
            if error is not None:
                self.failed += 1
            elif is_broken:
                self.broken += 1
            else:
                self.acknowledged.add(number)

        try:
            self._producer.produce(TOPIC, value, str(number).encode(), on_delivery=delivered)
        except BufferError:
            self.failed += 1

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


@dataclass
class Outcome:
    """What came of it. `lost` and `twice` by table."""

    produced: int = 0
    broken: int = 0
    kills: int = 0
    commits: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    twice: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    dead_twice: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return (
            not any(self.lost.values())
            and not any(self.twice.values())
            and not any(self.dead_twice.values())
            and all(count == self.broken for count in self.dead.values())
        )


class Jobs:
    """The process of all jobs."""

    def __init__(self, files: list[Path], log: Path) -> None:
        self._files = files
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, once: bool = False) -> subprocess.Popen[bytes]:
        # Behind the servers: a machine of two cores has not enough for all.
        command = ["nice", "-n", "5", sys.executable, "-m", "tests.pipeline.jobs_process"]
        command += ["--once"] if once else []
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *map(str, self._files)], cwd=ROOT, stdout=log, stderr=log
            )
        return self._process

    def batches(self) -> int:
        return self._log.read_text(errors="replace").count(" batch ")

    def ensure(self) -> None:
        """Start it again where it ended by itself, as a supervisor would."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def kill(self) -> None:
        """SIGKILL, the process and everything below it."""
        assert self._process is not None
        for pid in reversed(_tree(self._process.pid)):
            _kill(pid)
        self._process.wait()


def _tree(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                rest = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(rest[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def violate(
    *,
    source: str,
    kills: int,
    leaders: int,
    seed: int,
    folder: Path,
    servers: ReplicaSet,
    sinks: Sequence[str] = ("parquet", "delta"),
) -> Outcome:
    """Run it all; `servers` must be up."""
    rng = random.Random(seed)
    topic_command = Topics(parse({"bootstrap": servers.bootstrap, "topics": TOPIC}))
    from examples.flights import create_topic

    create_topic(servers.bootstrap, TOPIC, partitions=PARTITIONS)
    files: list[Path] = []
    for sink in sinks:
        file = folder / f"{sink}.toml"
        name, is_stored = f"{source}-{sink}", sink.endswith("-s3")
        text = JOB.format(
            name=name, source=source, bootstrap=servers.bootstrap, topic=TOPIC,
            sink=sink.removesuffix("-s3"), path=f"s3://{BUCKET}/{name}" if is_stored else name,
            more=CATALOG.format(folder=folder) if sink.startswith("iceberg") else "",
        )  # fmt: skip
        file.write_text(text)
        files.append(file)
    jobs = Jobs(files, folder / "jobs.log")
    load = Load(servers.bootstrap)
    outcome = Outcome(kills=kills)
    leader_kills = set(rng.sample(range(kills), min(kills, leaders)))
    try:
        for number in range(kills):
            seen = jobs.batches() if jobs._log.exists() else 0
            jobs.ensure()
            # Most often while batches are committed, now and then before the first one.
            wanted = seen + rng.choice([0, 1, 2, 3, 5])
            deadline = time.monotonic() + START_SECONDS_MAX
            while jobs.batches() < wanted and time.monotonic() < deadline:
                time.sleep(0.05)
                jobs.ensure()
            if number in leader_kills:
                leader = _leader(servers)
                print(f"  kill server {leader}", flush=True)
                servers.kill(leader)
                time.sleep(rng.uniform(0, 2))
            time.sleep(rng.uniform(0, 1.5) if wanted > seen else rng.uniform(1, 15))
            jobs.kill()
            print(f"  kill {number + 1}: {jobs.batches()} batches so far", flush=True)
            if number in leader_kills:
                servers.start(leader)
            if number == kills // 2:
                for file in files:
                    shutil.rmtree(load_job(file).checkpoint, ignore_errors=True)
    finally:
        load.stop()
    process = jobs.start(once=True)
    assert process.wait(2 * START_SECONDS_MAX) == 0, (folder / "jobs.log").read_text()[-3000:]
    outcome.produced, outcome.broken = len(load.acknowledged), load.broken
    _count(files, load, outcome, topic_command.ids())
    return outcome


def _leader(servers: ReplicaSet) -> int:
    from confluent_kafka.admin import AdminClient  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": servers.bootstrap})
    return int(admin.list_topics(TOPIC, timeout=20).topics[TOPIC].partitions[0].leader)


def _count(
    files: list[Path], load: Load, outcome: Outcome, ids: dict[str, tuple[str, int]]
) -> None:
    import pyarrow.parquet as pq

    for file in files:
        job = load_job(file)
        table, letters = rows_table(job), dead_table(job)
        table.open(ids)
        letters.open(ids)
        storage = storage_of(job.sink.path, storage_settings(job))

        def read(path: str, storage: Storage = storage) -> Any:
            return pq.read_table(storage.open(path))

        numbers = Counter(n for path in table.files() for n in read(path)["n"].to_pylist())
        dead = Counter(
            place
            for path in letters.files()
            for place in zip(
                *(read(path)[c].to_pylist() for c in ("partition", "offset")), strict=True
            )
        )
        outcome.commits[job.name] = table.sequence
        outcome.lost[job.name] = len(load.acknowledged - set(numbers))
        outcome.twice[job.name] = sum(count - 1 for count in numbers.values())
        outcome.dead[job.name] = len(dead)
        outcome.dead_twice[job.name] = sum(count - 1 for count in dead.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Exactly once under violence.")
    parser.add_argument("--source", choices=["vdl", "kafka"], default="vdl")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--leaders", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sinks", default="parquet,delta", help=f"some of {', '.join(SINKS)}")
    options = parser.parse_args()
    sinks = options.sinks.split(",")
    if not set(sinks) <= set(SINKS):
        parser.error(f"--sinks: some of {', '.join(SINKS)}")
    with contextlib.ExitStack() as more:
        if any(sink.endswith("-s3") for sink in sinks):
            address = more.enter_context(object_server())
            os.environ |= {
                "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "me",
                "AWS_SECRET_ACCESS_KEY": "word",
            }  # fmt: skip
            make_bucket(address, BUCKET)
        return run(options, sinks)


def run(options: argparse.Namespace, sinks: Sequence[str]) -> int:
    folder = Path(mkdtemp(prefix="vdl-violence-"))
    servers = ReplicaSet(3)
    servers.up()
    try:
        outcome = violate(
            source=options.source, kills=options.kills, leaders=options.leaders,
            seed=options.seed, folder=folder, servers=servers, sinks=sinks,
        )  # fmt: skip
    finally:
        servers.close()
    print(outcome)
    if outcome.is_good:
        shutil.rmtree(folder)
    print("exactly once" if outcome.is_good else f"NOT exactly once: {folder}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
