"""Exactly once under violence: jobs and leaders are killed, a checkpoint is deleted, rows counted.

    python -m tests.pipeline.violence --source vdl --kills 10 --leaders 2 --seed 1
    python -m tests.pipeline.violence --sinks iceberg,delta-s3,iceberg-s3 --zombies 2 --speculate

A producer writes numbered records, one in 500 of them broken, without a pause. Meanwhile the
process that runs the jobs, one for each sink, is killed with all its children (SIGKILL) at
random moments and started again; Spark's checkpoints are deleted once; the server that leads a
partition is killed and started again. A zombie is suspended instead of killed, and goes on when its
successor has committed to each table: it must end by itself. With `--speculate` executors are
frozen for seconds, so that Spark does their tasks again elsewhere and both go on. At the end the
jobs run to the end of the topic, and every
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
from collections.abc import Iterable, Sequence
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
ZOMBIE_SECONDS_MAX = 120
FREEZE_SECONDS = 5.0
EXECUTOR = b"CoarseGrainedExecutorBackend"
REFUSED = "another run of this job is writing the same table"
SPECULATED = " as speculatable "
RATE = 300
"""Records a second: so many that the jobs are never at their end for long."""

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
    zombies: list[str] = field(default_factory=list)
    """What each said when it ended; "" where it had to be killed, as one that had not opened its
    tables yet: that is a second run like any other."""
    speculated: int = 0
    """Tasks that Spark did again while they went on."""
    commits: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    twice: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    dead_twice: dict[str, int] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return (
            bool(self.commits)
            and not any(self.lost.values())
            and not any(self.twice.values())
            and not any(self.dead_twice.values())
            and all(count == self.broken for count in self.dead.values())
        )


class Jobs:
    """The process of all jobs, one after the other; each has a log of its own."""

    def __init__(self, files: list[Path], folder: Path, *, speculate: bool) -> None:
        self._files = files
        self._folder = folder
        self._speculate = speculate
        self._logs: list[Path] = []
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, once: bool = False) -> subprocess.Popen[bytes]:
        # Behind the servers: a machine of two cores has not enough for all.
        command = ["nice", "-n", "5", sys.executable, "-m", "tests.pipeline.jobs_process"]
        command += ["--once"] if once else []
        command += ["--speculate"] if self._speculate else []
        self._logs.append(self._folder / f"jobs-{len(self._logs)}.log")
        with self._logs[-1].open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *map(str, self._files)], cwd=ROOT, stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        return self._process

    def told(self) -> str:
        """By the last process."""
        return self._logs[-1].read_text(errors="replace")

    def count(self, text: str) -> int:
        """How often all have said it."""
        return sum(log.read_text(errors="replace").count(text) for log in self._logs)

    def batches(self) -> int:
        return self.count(" batch ")

    def ensure(self) -> None:
        """Start it again where it ended by itself, as a supervisor would."""
        if self._process is None or self._process.poll() is not None:
            self.start()

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, the process and everything below it."""
        assert self._process is not None
        kill_tree(self._process)

    def suspend(self) -> Zombie:
        """As a machine that hangs: it is not ours any more, and knows nothing of it."""
        assert self._process is not None
        found = Zombie(self._process, self._logs[-1])
        self._process = None
        return found

    def executors(self) -> list[int]:
        if self._process is None:
            return []
        found = []
        for pid in _tree(self._process.pid):
            with contextlib.suppress(OSError):
                if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found


class Zombie:
    """A process of all jobs that does nothing until `resume`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log
        self._pids = _tree(process.pid)
        _signal(self._pids, signal.SIGSTOP)

    def resume(self) -> str:
        """Let it go on; why it ended, or "" where it did not."""
        _signal(self._pids, signal.SIGCONT)
        try:
            self._process.wait(ZOMBIE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return ""
        told = self._log.read_text(errors="replace")
        return REFUSED if REFUSED in told else (told.strip().splitlines() or ["ended"])[-1]

    def kill(self) -> None:
        kill_tree(self._process)


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


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """If it has not ended by itself."""
    if process.poll() is None:
        _signal(reversed(_tree(process.pid)), signal.SIGKILL)
        process.wait()


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _freeze(jobs: Jobs, rng: random.Random) -> None:
    """Let one executor do nothing for a while, with the Python processes below it."""
    found = jobs.executors()
    if not found:
        return
    pids = _tree(rng.choice(found))
    _signal(pids, signal.SIGSTOP)
    try:
        time.sleep(FREEZE_SECONDS)
    finally:
        _signal(pids, signal.SIGCONT)


def _let_go_on(zombie: Zombie, jobs: Jobs, files: list[Path]) -> str:
    """Once its successor has committed to each table; why it ended, or ""."""
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
    speculate: bool = False,
    rate: int = RATE,
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
    jobs = Jobs(files, folder, speculate=speculate)
    load = Load(servers.bootstrap, rate)
    outcome = Outcome(kills=kills)
    leader_kills = set(rng.sample(range(kills), min(kills, leaders)))
    # The last one is killed: what it leaves behind is what the end begins with.
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
            # Most often while batches are committed, now and then before the first one.
            wanted = seen + rng.choice([0, 1, 2, 3, 5])
            # A zombie knows where its tables end.
            wanted = max(wanted, seen + 1) if number in suspended else wanted
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
            if speculate:
                _freeze(jobs, rng)
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
        assert process.wait(2 * START_SECONDS_MAX) == 0, jobs.told()[-3000:]
    finally:
        kill_tree(process)
    outcome.speculated = jobs.count(SPECULATED)
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
    parser.add_argument("--zombies", type=int, default=0, help="kills that only suspend")
    parser.add_argument("--speculate", action="store_true", help="on two executors, which freeze")
    parser.add_argument("--rate", type=int, default=RATE, help="records a second")
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
            zombies=options.zombies, speculate=options.speculate, rate=options.rate,
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
