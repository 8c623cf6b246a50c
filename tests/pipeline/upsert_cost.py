"""Cost of a commit of upserts to an Iceberg table: processor time, bytes, the driver's memory.

    python -m tests.pipeline.upsert_cost --rows 10000000 --share 0.01 --commits 6

Executors write a table of `--rows` rows in eight files. Batches then change `--share` of its keys,
drawn at random, and delete one in a hundred of these: every file has keys of every batch. The
staging files of a batch are written beforehand, as the tasks of a job do; only the commit is
measured. With `--in-process` the driver does all of it.

At the end PyIceberg reads the table; each row must be that of its key's last record.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

import numpy as np

from tests.pipeline.standalone import tree
from vdl.pipeline.catalog_settings import local_catalog, name_of
from vdl.pipeline.compaction import BYTES_TARGET
from vdl.pipeline.open_table import open_place
from vdl.pipeline.positions import OffsetRange, Positions, TopicPositions
from vdl.pipeline.session import make_session
from vdl.pipeline.storage import Folders
from vdl.pipeline.table import DELETE, OP, ROW, Commit, DataFile, Place, TableSink
from vdl.pipeline.tasks import Tasks, here, on_spark

ROOT = Path(__file__).resolve().parents[2]
TOPICS = {"t": ("id", 1)}
RUN = "0123456789ab"
FILES, STAGED = 8, 2
SEED = 5
DELETED_EVERY = 100
NAMES = ("id", "generation", "amount", "text", "_partition", "_offset")


@dataclass(frozen=True)
class Part:
    """File to be written, with the records of offsets [start, end).

    `generation`: its batch, 0 for the initial table; `first`: offset of the batch's first record.
    """

    path: str
    start: int
    end: int
    generation: int
    first: int
    keys: int
    """Number of keys of the table."""
    changed: int
    """Number of keys that a batch changes."""


def batch_keys(generation: int, keys: int, changed: int) -> Any:
    """Return the keys that a batch changes, in the order of its records."""
    rng = np.random.default_rng((SEED, generation))
    return rng.choice(keys, changed, replace=False)


def is_deleted(keys: Any) -> Any:
    """Return True for each key that a batch deletes."""
    return keys % DELETED_EVERY == DELETED_EVERY - 1


def write_part(part: Part) -> DataFile:
    import pyarrow as pa
    import pyarrow.parquet as pq

    keys = np.arange(part.start, part.end)
    if part.generation:
        of_batch = batch_keys(part.generation, part.keys, part.changed)
        keys = of_batch[part.start - part.first : part.end - part.first]
    count = len(keys)
    columns = {
        "id": pa.array(keys, pa.int64()),
        "generation": pa.array(np.full(count, part.generation), pa.int32()),
        "amount": pa.array(np.modf(keys * 0.6180339887)[0] * 1000),
        "text": pa.array([f"{key * 2654435761 % 4294967296:08x}" for key in keys.tolist()]),
        "_partition": pa.array(np.zeros(count), pa.int32()),
        "_offset": pa.array(np.arange(part.start, part.end), pa.int64()),
    }
    if part.generation:
        columns[OP] = pa.array(np.where(is_deleted(keys), DELETE, ROW))
    with Folders().create(part.path) as file:
        pq.write_table(pa.table(columns), file, compression="zstd", row_group_size=128 * 1024)
    span = OffsetRange("t", 0, part.start, part.end)
    return DataFile(part.path, count, Folders().finish(part.path), (span,))


def at(offset: int) -> Positions:
    return Positions({"t": TopicPositions("id", {0: offset})})


@dataclass(frozen=True)
class Measured:
    """Cost of one commit.

    `driver_cpu`: that of this process alone; `peak_mb`: memory beyond what was held before.
    """

    rows: int
    seconds: float
    cpu: float
    driver_cpu: float
    written: int
    files: int
    peak_mb: float

    def line(self) -> str:
        return (
            f"{self.rows / self.cpu:,.0f} rows per CPU-s | {self.cpu:.2f} CPU-s "
            f"({self.driver_cpu:.2f} in the driver's Python) | {self.seconds:.2f} s | "
            f"{self.written / 1e6:.1f} MB in {self.files} files | driver +{self.peak_mb:.0f} MB"
        )


def processor_times() -> dict[int, float]:
    """Return pid → processor time of this process and its descendants, without ended ones."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for pid in tree(os.getpid()):
        with contextlib.suppress(OSError):
            rest = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            found[pid] = sum(map(int, rest[11:13])) / ticks
    return found


def since(before: dict[int, float]) -> float:
    """Return the processor time spent since.

    It misses that of idle Python processes that Spark has ended.
    """
    return sum(spent - before.get(pid, 0.0) for pid, spent in processor_times().items())


def status_kb(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise KeyError(name)


def sizes(folder: Path) -> dict[Path, int]:
    parts = (folder / "data", folder / "metadata")
    return {path: path.stat().st_size for part in parts for path in part.glob("*")}


def measured(table: TableSink, commit: Commit, columns: Any) -> Measured:
    folder = Path(table.path)
    before = sizes(folder)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    held = status_kb("VmRSS")
    times, own, began = processor_times(), time.process_time(), time.monotonic()
    table.commit(commit, columns)
    seconds = time.monotonic() - began
    spent, own = since(times), time.process_time() - own
    new = {path: size for path, size in sizes(folder).items() if path not in before}
    peak = max(0, status_kb("VmHWM") - held) / 1024
    return Measured(commit.rows, seconds, spent, own, sum(new.values()), len(new), peak)


class Bench:
    """Table written by a job."""

    def __init__(self, folder: Path, spark: Any, keys: int, changed: int, tasks: Tasks) -> None:
        self._spark = spark
        self._keys, self._changed = keys, changed
        self._tasks = tasks
        self._path = str(folder / "t")
        self.table = self._opened(("id",))
        self._columns: Any = None
        self._offset = 0

    def _opened(self, key: tuple[str, ...]) -> Any:
        where = local_catalog(self._path), name_of(self._path)
        table = open_place(Place("iceberg", self._path, {}, *where, (), key), "job", self._tasks)
        table.open(TOPICS)
        return table

    def load(self) -> None:
        """Create the table, and write its rows as an appending job would."""
        parts = self._parts(0, self._keys, FILES, str(Path(self._path) / "data"))
        import pyarrow as pa

        kinds = [pa.int64(), pa.int32(), pa.float64(), pa.string(), pa.int32(), pa.int64()]
        self._columns = pa.schema(list(zip(NAMES, kinds, strict=True)))
        self.table.staging(RUN)
        self.table.commit(Commit("job", RUN, 0, at(0), at(0), 0, 0, (), ""), self._columns)
        appending = self._opened(())
        files = tuple(on_spark(self._spark)(write_part, parts))
        rows = self._keys
        commit = Commit("job", RUN, 1, at(0), at(rows), rows, 0, files, "")
        appending.commit(commit, self._columns)
        self._offset = rows
        self.table = self._opened(("id",))

    def _parts(self, generation: int, rows: int, count: int, folder: str) -> list[Part]:
        ends = [self._offset + rows * (n + 1) // count for n in range(count)]
        starts = [self._offset, *ends[:-1]]
        return [
            Part(
                f"{folder}/job-{RUN}-{generation}-{n}.parquet", start, end, generation,
                self._offset, self._keys, self._changed,
            )
            for n, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]  # fmt: skip

    def change(self, generation: int) -> Measured:
        folder = self.table.staging(RUN)
        parts = self._parts(generation, self._changed, STAGED, folder)
        files = tuple(on_spark(self._spark)(write_part, parts))
        start, end = at(self._offset), at(self._offset + self._changed)
        commit = Commit("job", RUN, generation + 1, start, end, self._changed, 0, files, "")
        found = measured(self.table, commit, self._columns)
        self._offset += self._changed
        return found

    def compact(self) -> str:
        times, own, began = processor_times(), time.process_time(), time.monotonic()
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        held = status_kb("VmRSS")
        before = sizes(Path(self._path))
        done = self.table.compact(BYTES_TARGET)
        new = [size for path, size in sizes(Path(self._path)).items() if path not in before]
        peak = (status_kb("VmHWM") - held) / 1024
        return (
            f"compaction: {done.before} files became {done.after}, {sum(new) / 1e6:.1f} MB, "
            f"{since(times):.2f} CPU-s ({time.process_time() - own:.2f} in the driver's "
            f"Python), {time.monotonic() - began:.2f} s, driver +{peak:.0f} MB"
        )

    def check(self, batches: int) -> str:
        """Check that each row is of its key's last record; return the cost of reading."""
        own, began = time.process_time(), time.monotonic()
        found = self.table._load().scan(selected_fields=("id", "generation")).to_arrow()
        told = f"read in {time.process_time() - own:.2f} CPU-s, {time.monotonic() - began:.2f} s"
        wanted = np.zeros(self._keys, dtype=np.int32)
        for generation in range(1, batches + 1):
            keys = batch_keys(generation, self._keys, self._changed)
            wanted[keys] = np.where(is_deleted(keys), -1, generation)
        keys, generations = found["id"].to_numpy(), found["generation"].to_numpy()
        seen = np.full(self._keys, -1, dtype=np.int32)
        seen[keys] = generations
        assert len(keys) == np.count_nonzero(wanted >= 0), (len(keys), "rows")
        assert np.array_equal(seen, wanted)
        return f"{len(keys):,} rows, each of its key's last record; {told}"


def main() -> int:
    parser = argparse.ArgumentParser(description="What a commit of upserts costs.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--commits", type=int, default=6)
    parser.add_argument("--master", default="local-cluster[2,1,2048]")
    parser.add_argument("--in-process", action="store_true")
    parser.add_argument("--compact", action="store_true", help="At the end.")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)
    folder = Path(mkdtemp(prefix="vdl-upserts-"))
    settings = {
        "spark.ui.enabled": "false", "spark.executor.memory": "1g",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }  # fmt: skip
    spark = make_session("upserts", master=options.master, settings=settings)
    try:
        tasks = here if options.in_process else on_spark(spark)
        changed = round(options.rows * options.share)
        bench = Bench(folder, spark, options.rows, changed, tasks)
        bench.load()
        total = sum(sizes(folder / "t").values())
        print(f"{options.rows:,} rows, {total / 1e6:.0f} MB; {changed:,} a commit", flush=True)
        found = []
        for generation in range(1, options.commits + 1):
            found.append(bench.change(generation))
            print(f"{generation} | {found[-1].line()}", flush=True)
        rate = median(one.rows / one.cpu for one in found)
        written = sum(one.written for one in found) / len(found) / 1e6
        peak = max(one.peak_mb for one in found)
        print(f"median {rate:,.0f} rows per CPU-s; mean {written:.1f} MB; driver +{peak:.0f} MB")
        print(bench.check(options.commits), flush=True)
        if options.compact:
            print(bench.compact())
            print(bench.check(options.commits))
    finally:
        spark.stop()
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
