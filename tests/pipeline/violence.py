"""Exactly once under faults: jobs and leaders are killed, a checkpoint is deleted, rows counted.

    python -m tests.pipeline.violence --source vdl --kills 10 --leaders 2 --seed 1
    python -m tests.pipeline.violence --sinks iceberg,delta-s3,iceberg-s3 --zombies 2 --speculate

A producer writes numbered records without a pause; one in 500 is broken, and of some only Spark may
decide how they are decoded, now few and now many: tasks write the rows that they read, leave some
records to Spark, or give up a batch (`Outcome.files`). Meanwhile the process that
runs the jobs, one for each sink, is killed (SIGKILL) with all its children at random moments and
restarted; Spark's checkpoints are deleted once; the leader of a partition is killed and restarted.
A zombie is suspended instead of killed, and continues after its successor has committed to each
table: it must end by itself. With `--speculate` executors are frozen for seconds, repeatedly, so
that Spark runs their tasks a second time elsewhere, and then continue; such a run counts only if a
task was overtaken by its copy. At the end the jobs run to the end of the topic. Every acknowledged
number must be in each table once, and every broken record in each dead-letter table once. A table
of upserts has a row for each of KEYS keys: that of the last number of its key.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
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
from tests.pipeline.live_rows import live_rows
from tests.pipeline.objects import make_bucket, object_server
from tests.pipeline.standalone import Cluster, signal_all, tree
from vdl.pipeline.job import load_job
from vdl.pipeline.open_table import dead_table, rows_table, storage_settings
from vdl.pipeline.options import parse
from vdl.pipeline.storage import Storage, storage_of
from vdl.pipeline.topics import Topics

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "numbers"
PARTITIONS = 3
BROKEN_EVERY = 500
DOUBTFUL_EVERY, DOUBTFUL_PHASE, DOUBTFUL_OFTEN = 100, 8_000, 10
"""One of DOUBTFUL_EVERY records is in doubt; in every fourth phase one of DOUBTFUL_OFTEN."""
LEFT_BYTES = 24 << 10
"""Limit on the records in doubt of a batch, which batches of the fourth phase exceed."""
DIRECT = "-direct-"
"""Part of the names of files whose rows a task has written as it read them."""
KEYS = 5003
"""Number of keys: a prime, so that broken records have all keys."""
COMPACT_EVERY = 5
"""Commits of a table of upserts between compactions."""
START_SECONDS_MAX = 900
ZOMBIE_SECONDS_MAX = 600
FREEZE_SECONDS = 5.0
THAW_SECONDS_MAX = 8.0
"""Longest time between two freezes.

Meanwhile a frozen task continues, and ends or is refused as late.
"""
REFUSED = "another run of this job is writing the same table"
MARKED = re.compile(r"Marking task (\d+) in stage (\S+) .*as speculatable")
STARTED = re.compile(r"Starting task (\d+)\.(\d+) in stage (\S+) ")
OVERTAKEN = re.compile(r"Killing attempt \d+ for task (\d+)\.\d+ in stage (\S+) .*succeeded on")
"""Spark's log messages about tasks that run twice.

It marks a task for a second run, an attempt begins, and one has ended while another continues.
"""
RATE = 300
"""Records a second: enough that the jobs rarely reach the topic's end."""

JOB = """
[job]
name = "{name}"
[source]
kind = "{source}"
bootstrap = "{bootstrap}"
topics = ["{topic}"]
max_rows = 4000
[decode]
schema = "n bigint, key bigint, text string"
[sink]
kind = "{sink}"
path = "{path}"
{mode}
{more}
[errors]
share_max = 0.05
[run]
interval_seconds = 0.2
checkpoint = "{name}-checkpoint"
compact_every = {compact_every}
"""
CATALOG = """
[sink.catalog]
type = "sql"
uri = "sqlite:///{folder}/catalog.db"
"""
SINKS = (
    "parquet", "delta", "iceberg", "delta-s3", "iceberg-s3", "iceberg-upsert", "delta-upsert",
)  # fmt: skip
"""With "-s3" in an object store, which is a server of its own."""
STORED, UPSERT = "-s3", "-upsert"
BUCKET = "violence"


class Load:
    """Producer that runs until stopped.

    `acknowledged`: the acknowledged numbers; `broken`: number of acknowledged broken records.
    """

    def __init__(self, bootstrap: str, rate: int = RATE) -> None:
        self._rate = rate
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
            if number > (time.monotonic() - began) * self._rate:
                self._producer.poll(0.01)
                continue
            told = {"n": number, "key": number % KEYS, "text": f"record {number}"}
            value = json.dumps(told).encode()
            if is_doubtful(number):
                value = value.replace(b'{"n"', b'{"n": -1, "n"')
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
            key = str(number % KEYS).encode()
            self._producer.produce(TOPIC, value, key, on_delivery=delivered)
        except BufferError:
            self.failed += 1

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()


def is_doubtful(number: int) -> bool:
    """Return True if a record of this number has a member twice, of which the second counts."""
    is_often = number // DOUBTFUL_PHASE % 4 == 3
    return number % (DOUBTFUL_OFTEN if is_often else DOUBTFUL_EVERY) == 7


@dataclass
class Outcome:
    """Result of a run. `lost` and `twice` by table.

    `files`: table → numbers of its files that tasks wrote as they read, and that Spark's rows made.
    """

    produced: int = 0
    broken: int = 0
    kills: int = 0
    zombies: list[str] = field(default_factory=list)
    """Last line of each zombie.

    "" if it had to be killed because it had not opened its tables yet: it is then a second run like
    any other.
    """
    copies: int = 0
    """Number of tasks that Spark started again while they continued, with `speculates`."""
    overtaken: int = 0
    """Number of those with one attempt that ended while the other continued."""
    speculates: bool = False
    commits: dict[str, int] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    twice: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    dead_twice: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return (
            bool(self.commits)
            and (self.overtaken > 0 or not self.speculates)
            and not any(self.lost.values())
            and not any(self.twice.values())
            and not any(self.dead_twice.values())
            and all(count == self.broken for count in self.dead.values())
        )


class Jobs:
    """Process of all jobs, and its successors; each has a log of its own."""

    def __init__(self, files: list[Path], folder: Path, cluster: Cluster | None) -> None:
        """Run on a cluster, where tasks run twice, or in a separate process."""
        self._files = files
        self._folder = folder
        self._cluster = cluster
        self._of_zombies: set[int] = set()
        self._logs: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, once: bool = False) -> subprocess.Popen[bytes]:
        # Lower priority than the servers: a machine of two cores has not enough for all.
        command = ["nice", "-n", "5", sys.executable, "-m", "tests.pipeline.jobs_process"]
        command += ["--left-bytes", str(LEFT_BYTES), *(["--once"] if once else [])]
        command += ["--master", self._cluster.url] if self._cluster else []
        self._logs.append(self._folder / f"jobs-{len(self._logs)}.log")
        with self._logs[-1].open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *map(str, self._files)], cwd=ROOT, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        return self._process

    def told(self) -> str:
        """Return the log of the last process."""
        return self._logs[-1].read_text(errors="replace")

    def batches(self) -> int:
        return sum(log.read_text(errors="replace").count(" batch ") for log in self._logs)

    def done_twice(self) -> tuple[int, int]:
        """Return the totals of `done_twice` over all logs."""
        found = [done_twice(log.read_text(errors="replace")) for log in self._logs]
        return sum(copies for copies, _ in found), sum(late for _, late in found)

    def ensure(self) -> None:
        """Start it again if it ended by itself, as a supervisor would."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kill (SIGKILL) the process and all its descendants.

        Executors on a cluster end when they detect it.
        """
        assert self._process is not None
        kill_tree(self._process)

    def suspend(self) -> Zombie:
        """Suspend the process like a machine that hangs, and disown it."""
        assert self._process is not None
        executors = self.executors()
        self._of_zombies.update(executors)
        found = Zombie(self._process, executors, self._logs[-1])
        self._process = None
        return found

    def executors(self) -> list[int]:
        """Return the executors on a cluster that do not belong to a zombie."""
        found = [] if self._cluster is None else self._cluster.executors()
        return [pid for pid in found if pid not in self._of_zombies]


class Zombie:
    """Suspended process of all jobs, until `resume`."""

    def __init__(self, process: subprocess.Popen[bytes], executors: list[int], log: Path) -> None:
        self._process = process
        self._log = log
        self._pids = [pid for root in (process.pid, *executors) for pid in tree(root)]
        signal_all(self._pids, signal.SIGSTOP)

    def resume(self) -> str:
        """Continue it; return why it ended, or "" if it did not."""
        signal_all(self._pids, signal.SIGCONT)
        try:
            self._process.wait(ZOMBIE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return ""
        told = self._log.read_text(errors="replace")
        return REFUSED if REFUSED in told else (told.strip().splitlines() or ["ended"])[-1]

    def kill(self) -> None:
        kill_tree(self._process)
        # A suspended executor would hold its place forever.
        signal_all(self._pids[1:], signal.SIGCONT)


def done_twice(log: str) -> tuple[int, int]:
    """Return the numbers of copies of running tasks, and of late attempts, in Spark's INFO log."""
    marked: set[tuple[str, str]] = set()
    copied: set[tuple[str, str]] = set()
    late = 0
    for line in log.splitlines():
        if found := MARKED.search(line):
            marked.add((found[1], found[2]))
        elif (found := STARTED.search(line)) and found[2] != "0":
            copied |= {(found[1], found[3])} & marked
        elif found := OVERTAKEN.search(line):
            late += (found[1], found[2]) in copied
    return len(copied), late


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its descendants unless it has ended."""
    if process.poll() is None:
        signal_all(reversed(tree(process.pid)), signal.SIGKILL)
        process.wait()


def _freeze(jobs: Jobs, rng: random.Random) -> None:
    """Suspend one executor for a while, with its Python processes."""
    found = jobs.executors()
    if not found:
        return
    pids = tree(rng.choice(found))
    signal_all(pids, signal.SIGSTOP)
    try:
        time.sleep(FREEZE_SECONDS)
    finally:
        signal_all(pids, signal.SIGCONT)


class Freezer:
    """Freezes executors from time to time, if enabled."""

    def __init__(self, jobs: Jobs, rng: random.Random, *, is_wanted: bool) -> None:
        self._jobs = jobs
        self._rng = rng
        self._is_wanted = is_wanted
        self._next = 0.0

    def maybe(self) -> None:
        if self._is_wanted and time.monotonic() >= self._next:
            _freeze(self._jobs, self._rng)
            self._next = time.monotonic() + self._rng.uniform(1, THAW_SECONDS_MAX)

    def maybe_at_the_end(self) -> None:
        """Freeze one every other time, so that a kill comes when a late attempt just continued."""
        if self._is_wanted and self._rng.random() < 0.5:
            _freeze(self._jobs, self._rng)


def _let_go_on(zombie: Zombie, jobs: Jobs, files: list[Path]) -> str:
    """Resume a zombie once its successor has committed to each table.

    Return why it ended, or "".
    """
    names = [load_job(file).name for file in files]
    deadline = time.monotonic() + START_SECONDS_MAX
    while not all(f"{name} batch " in jobs.told() for name in names):
        if time.monotonic() >= deadline:
            print("  the successor of a zombie has not committed to each table", flush=True)
            break
        time.sleep(0.05)
        jobs.ensure()
    return zombie.resume()


def violate(
    *,
    source: str,
    kills: int,
    leaders: int,
    seed: int,
    folder: Path,
    servers: ReplicaSet,
    sinks: Sequence[str] = ("parquet", "delta"),
    zombies: int = 0,
    cluster: Cluster | None = None,
    rate: int = RATE,
) -> Outcome:
    """Run the test. `servers` must be running, and `cluster`, where tasks run twice, if given."""
    rng = random.Random(seed)
    topic_command = Topics(parse({"bootstrap": servers.bootstrap, "topics": TOPIC}))
    from examples.flights import create_topic

    create_topic(servers.bootstrap, TOPIC, partitions=PARTITIONS)
    files: list[Path] = []
    for sink in sinks:
        file = folder / f"{sink}.toml"
        name, is_stored = f"{source}-{sink}", sink.endswith(STORED)
        text = JOB.format(
            name=name, source=source, bootstrap=servers.bootstrap, topic=TOPIC,
            sink=sink.removesuffix(STORED).removesuffix(UPSERT),
            path=f"s3://{BUCKET}/{name}" if is_stored else name,
            mode='mode = "upsert"\nkey = ["key"]' if sink.endswith(UPSERT) else "",
            compact_every=COMPACT_EVERY if sink.endswith(UPSERT) else 0,
            more=CATALOG.format(folder=folder) if sink.startswith("iceberg") else "",
        )  # fmt: skip
        file.write_text(text)
        files.append(file)
    jobs = Jobs(files, folder, cluster)
    load = Load(servers.bootstrap, rate)
    freezer = Freezer(jobs, rng, is_wanted=cluster is not None)
    outcome = Outcome(kills=kills, speculates=cluster is not None)
    leader_kills = set(rng.sample(range(kills), min(kills, leaders)))
    # The last process is killed, not suspended: the final run begins with its remains.
    others = sorted(set(range(kills - 1)) - leader_kills)
    suspended = set(rng.sample(others, min(len(others), zombies)))
    zombie: Zombie | None = None
    try:
        for number in range(kills):
            seen = jobs.batches()
            jobs.ensure()
            if zombie is not None:
                outcome.zombies.append(_let_go_on(zombie, jobs, files))
                print(f"  zombie: {outcome.zombies[-1] or 'goes on'}", flush=True)
                zombie.kill()
                zombie = None
            # Most often while batches are committed, sometimes before the first one.
            wanted = seen + rng.choice([0, 1, 2, 3, 5]) * (len(files) if cluster else 1)
            # A zombie has opened its tables.
            wanted = max(wanted, seen + 1) if number in suspended else wanted
            deadline = time.monotonic() + START_SECONDS_MAX
            while jobs.batches() < wanted and time.monotonic() < deadline:
                time.sleep(0.05)
                jobs.ensure()
                freezer.maybe()
            if number in leader_kills:
                leader = _leader(servers)
                print(f"  kill server {leader}", flush=True)
                servers.kill(leader)
                time.sleep(rng.uniform(0, 2))
            time.sleep(rng.uniform(0, 1.5) if wanted > seen else rng.uniform(1, 15))
            freezer.maybe_at_the_end()
            if number in suspended:
                zombie = jobs.suspend()
            else:
                jobs.kill()
            what = "suspend" if zombie else "kill"
            print(f"  {what} {number + 1}: {jobs.batches()} batches so far", flush=True)
            if number in leader_kills:
                servers.start(leader)
            if number == kills // 2:
                for file in files:
                    shutil.rmtree(load_job(file).checkpoint, ignore_errors=True)
    finally:
        load.stop()
        if zombie is not None:
            zombie.kill()
        if jobs.is_running():
            jobs.kill()
    process = jobs.start(once=True)
    try:
        deadline = time.monotonic() + 2 * START_SECONDS_MAX
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
            freezer.maybe()
        assert process.poll() == 0, jobs.told()[-3000:]
    finally:
        kill_tree(process)
    outcome.copies, outcome.overtaken = jobs.done_twice()
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

        rows = live_rows(table)
        dead = Counter(
            place
            for path in letters.files()
            for place in zip(
                *(read(path)[c].to_pylist() for c in ("partition", "offset")), strict=True
            )
        )
        outcome.commits[job.name] = table.sequence
        direct = sum(DIRECT in path for path in table.files())
        outcome.files[job.name] = (direct, len(table.files()) - direct)
        seen = Counter(row["key" if job.is_upsert else "n"] for row in rows)
        outcome.twice[job.name] = sum(count - 1 for count in seen.values())
        if job.is_upsert:
            last = {n % KEYS: n for n in sorted(load.acknowledged)}
            found = {row["key"]: row["n"] for row in rows}
            outcome.lost[job.name] = sum(found.get(key, -1) < n for key, n in last.items())
        else:
            outcome.lost[job.name] = len(load.acknowledged - set(seen))
        outcome.dead[job.name] = len(dead)
        outcome.dead_twice[job.name] = sum(count - 1 for count in dead.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Exactly once under violence.")
    parser.add_argument("--source", choices=["vdl", "kafka"], default="vdl")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--leaders", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sinks", default="parquet,delta", help=f"some of {', '.join(SINKS)}")
    parser.add_argument("--zombies", type=int, default=0, help="kills that only suspend")
    parser.add_argument(
        "--speculate", action="store_true", help="on a cluster of two, which freeze"
    )
    parser.add_argument("--rate", type=int, default=RATE, help="records a second")
    options = parser.parse_args()
    sinks = options.sinks.split(",")
    if not set(sinks) <= set(SINKS):
        parser.error(f"--sinks: some of {', '.join(SINKS)}")
    # If it is terminated, it still ends the processes it has started.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    with contextlib.ExitStack() as more:
        os.environ["PYTHONPATH"] = str(ROOT)
        if any(sink.endswith("-s3") for sink in sinks):
            address = more.enter_context(object_server())
            os.environ |= {
                "AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "me",
                "AWS_SECRET_ACCESS_KEY": "word",
            }  # fmt: skip
            make_bucket(address, BUCKET)
        return run(options, sinks)


def _cluster(folder: Path) -> Cluster:
    """Return a cluster with room for a run, a zombie, and the remains of a killed run."""
    made = folder / "cluster"
    made.mkdir()
    return Cluster(made, ("127.0.0.2", "127.0.0.3"), cores=4, memory="4g")


def run(options: argparse.Namespace, sinks: Sequence[str]) -> int:
    folder = Path(mkdtemp(prefix="vdl-violence-"))
    servers = ReplicaSet(3)
    with contextlib.ExitStack() as more:
        more.callback(servers.close)
        servers.up()
        cluster = more.enter_context(_cluster(folder)) if options.speculate else None
        outcome = violate(
            source=options.source, kills=options.kills, leaders=options.leaders,
            seed=options.seed, folder=folder, servers=servers, sinks=sinks,
            zombies=options.zombies, cluster=cluster, rate=options.rate,
        )  # fmt: skip
    print(outcome)
    if outcome.is_good:
        shutil.rmtree(folder)
    print("exactly once" if outcome.is_good else f"NOT exactly once: {folder}")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
